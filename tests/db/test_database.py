"""Connections: lost and found again, lent by the caller, shared between threads, counted in round trips, pooled."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.rows import dict_row
from psycopg_pool import AsyncConnectionPool, ConnectionPool
from support import (
    APIS,
    GUARD_SECONDS,
    Restartable,
    config_of,
    counted,
    crossed,
    examples,
    holding,
    invoke,
    loop_graph,
    open_saver,
    put_arguments,
    put_chain,
    set_up,
    terminate,
    usual,
    wait_until,
)

from langgraph_pgstate import AsyncPGStateSaver, PGStateSaver, RetryPolicy
from langgraph_pgstate.db.database import AsyncDatabase, Database
from langgraph_pgstate.errors import ConfigurationError, ConflictError, DatabaseError, UnavailableError

Connection = Any


def named(dsn: str, name: str) -> str:
    """The DSN of sessions that can be told from all others."""
    return make_conninfo(dsn, application_name=name)


async def histories(saver: Any, thread_id: str) -> list[dict[str, Any]]:
    """Values of every checkpoint of a thread, oldest first."""
    return [item.checkpoint["channel_values"] async for item in saver.alist(config_of(thread_id))][::-1]


@asynccontextmanager
async def owned_pool(api: type, dsn: str, schema: str, **options: Any) -> AsyncIterator[tuple[Any, Any]]:
    """A pool of the caller's, of the saver's API, and a saver on it."""
    if api is PGStateSaver:
        with ConnectionPool(dsn, open=True, **options) as pool:
            saver = PGStateSaver(pool, schema=schema)
            saver.setup()
            yield pool, saver
        return
    async with AsyncConnectionPool(dsn, open=False, **options) as async_pool:
        async_saver = AsyncPGStateSaver(async_pool, schema=schema)
        await async_saver.setup()
        yield async_pool, async_saver


@asynccontextmanager
async def owned_connection(api: type, dsn: str, schema: str, **options: Any) -> AsyncIterator[tuple[Any, Any]]:
    """A connection of the caller's, of the saver's API, and a saver on it."""
    if api is PGStateSaver:
        with psycopg.connect(dsn, **options) as connection:
            yield connection, PGStateSaver(connection, schema=schema)
        return
    async with await psycopg.AsyncConnection.connect(dsn, **options) as async_connection:
        yield async_connection, AsyncPGStateSaver(async_connection, schema=schema)


async def maybe(result: Any) -> Any:
    """What a call of either API answers."""
    return await result if asyncio.iscoroutine(result) else result


@pytest.mark.parametrize("pool", [True, False], ids=["pool", "single"])
@pytest.mark.parametrize("api", APIS)
async def test_a_graph_finishes_although_every_backend_is_terminated_in_the_middle(
    api: type, pool: bool, dsn: str, schema: str, connection: psycopg.Connection
) -> None:
    killed = []

    def hook(count: int) -> None:
        if count in (3, 4, 7):
            killed.append(terminate(connection, schema))

    async with open_saver(api, named(dsn, schema), schema, pool=pool) as saver:
        graph = loop_graph(10, hook).compile(checkpointer=saver)
        state = await invoke(graph, saver, {"items": [], "count": 0}, config_of("t"), durability="sync")
        assert state["items"] == [f"item {index}" for index in range(10)]
        assert len(killed) == 3
        assert all(killed)
        found = await histories(saver, "t")
        assert [values.get("count") for values in found] == [None, *range(11)]
        assert [len(values.get("items", [])) for values in found] == [0, *range(11)]


@pytest.mark.slow
@pytest.mark.parametrize(("api", "pool"), crossed(APIS, [4, False]))
async def test_nothing_acknowledged_is_lost_in_a_storm_of_terminations(
    api: type, pool: int | bool, dsn: str, schema: str, connection: psycopg.Connection
) -> None:
    """Every put that returned is there, whole, and on its parent, whatever the others met."""
    over = threading.Event()

    def storm() -> None:
        with psycopg.connect(dsn, autocommit=True) as other:
            while not over.wait(0.03):
                other.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = %s", [schema]
                )

    async with open_saver(api, named(dsn, schema), schema, pool=pool, retry=RetryPolicy(attempts=20)) as saver:
        with ThreadPoolExecutor(1) as executor:
            stormy = executor.submit(storm)
            try:
                acknowledged = await asyncio.gather(*(put_chain(saver, f"t{index}", 40) for index in range(4)))
            finally:
                over.set()
            stormy.result(GUARD_SECONDS)
        for index, configs in enumerate(acknowledged):
            found = [item async for item in saver.alist(config_of(f"t{index}"))][::-1]
            assert [item.config for item in found] == configs
            assert [item.parent_config for item in found] == [None, *configs[:-1]]
            assert [len(item.checkpoint["channel_values"]["messages"]) for item in found] == list(range(1, 41))


@pytest.mark.parametrize("api", APIS)
async def test_a_pool_of_the_caller_recovers(api: type, dsn: str, schema: str, connection: psycopg.Connection) -> None:
    async with owned_pool(api, named(dsn, schema), schema, min_size=3, max_size=3) as (pool, saver):
        await maybe(pool.wait())
        configs = await put_chain(saver, "t", 2)
        assert terminate(connection, schema) == 3
        configs.append(await saver.aput(*put_arguments(configs[-1], 2)))
        assert (await saver.aget_tuple(config_of("t"))).config == configs[-1]


@pytest.mark.parametrize("api", APIS)
async def test_a_lost_connection_of_the_caller_is_said_to_be_unavailable(
    api: type, dsn: str, schema: str, connection: psycopg.Connection
) -> None:
    """Nobody but she can replace it; the driver's error is the cause."""
    async with open_saver(api, dsn, schema):
        pass
    async with owned_connection(api, named(dsn, schema), schema, autocommit=True) as (_, saver):
        await put_chain(saver, "t", 1)
        terminate(connection, schema)
        for _ in range(2):
            with pytest.raises(UnavailableError) as lost:
                await saver.aget_tuple(config_of("t"))
            assert lost.value.retryable
            assert isinstance(lost.value.__cause__, psycopg.Error)


@pytest.mark.parametrize("api", APIS)
async def test_closing_the_callers_pool_is_said_to_be_unavailable(api: type, dsn: str, schema: str) -> None:
    async with owned_pool(api, dsn, schema, min_size=1) as (pool, saver):
        await maybe(pool.close())
        with pytest.raises(UnavailableError, match="closed"):
            await saver.aget_tuple(config_of("t"))


@pytest.mark.parametrize("api", APIS)
async def test_the_saver_never_closes_what_the_caller_owns(api: type, dsn: str, schema: str) -> None:
    async with owned_pool(api, dsn, schema, min_size=1) as (pool, saver):
        await put_chain(saver, "t", 1)
        del saver
        assert not pool.closed


@pytest.mark.slow
@pytest.mark.parametrize(("api", "pool"), crossed(APIS, [3, False]))
async def test_after_a_restart_of_the_server_the_next_call_succeeds(
    api: type, pool: int | bool, server: Restartable
) -> None:
    schema = f"restarted_{api.__name__.lower()}_{pool}".lower()
    async with open_saver(api, server.dsn, schema, pool=pool) as saver:
        configs = await put_chain(saver, "t", 3)
        await asyncio.to_thread(server.stop)
        await asyncio.to_thread(server.start)
        assert (await saver.aget_tuple(config_of("t"))).config == configs[-1]
        configs.append(await saver.aput(*put_arguments(configs[-1], 3)))
        assert [item.config async for item in saver.alist(config_of("t"))] == configs[::-1]


@pytest.mark.slow
@pytest.mark.parametrize(("api", "mode"), crossed(APIS, ["fast", "immediate"]))
async def test_a_call_that_meets_an_outage_ends_when_the_server_is_back(
    api: type, mode: str, server: Restartable
) -> None:
    async with open_saver(api, server.dsn, f"away_{mode}_{api.__name__.lower()}", pool=3) as saver:
        configs = await put_chain(saver, "t", 2)
        await asyncio.to_thread(server.stop, mode)
        put = asyncio.create_task(saver.aput(*put_arguments(configs[-1], 2)))
        pool = saver._database._pool
        await asyncio.to_thread(wait_until, lambda: pool.get_stats()["requests_waiting"] > 0, "the put waits")
        await asyncio.to_thread(server.start)
        configs.append(await asyncio.wait_for(put, GUARD_SECONDS))
        assert [item.config async for item in saver.alist(config_of("t"))] == configs[::-1]


@pytest.mark.slow
@pytest.mark.parametrize("api", APIS)
async def test_a_graph_meets_a_restart_in_the_middle(api: type, server: Restartable) -> None:
    """It finishes, or fails with `UnavailableError` and goes on from its last checkpoint when it is invoked again."""
    down = []

    def hook(count: int) -> None:
        if count == 4 and not down:
            down.append(True)
            server.stop()
            threading.Timer(0.2, server.start).start()

    async with open_saver(api, server.dsn, f"met_{api.__name__.lower()}") as saver:
        graph = loop_graph(8, hook).compile(checkpointer=saver)
        given: Any = {"items": [], "count": 0}
        for _ in range(5):
            try:
                await invoke(graph, saver, given, config_of("t"), durability="sync")
                break
            except UnavailableError:
                given = None
        assert [values.get("count") for values in await histories(saver, "t")] == [None, *range(9)]


class Refusing:
    """A listener that takes every connection and drops it."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.dsn = (
            f"host=127.0.0.1 port={self._listener.getsockname()[1]} user=u dbname=d sslmode=disable gssencmode=disable"
        )
        self.taken = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                taken, _ = self._listener.accept()
                self.taken += 1
                taken.close()

    def close(self) -> None:
        """Stop listening."""
        self._listener.close()


@pytest.mark.parametrize("api", APIS)
async def test_connecting_is_tried_so_often_and_no_more(api: type) -> None:
    refusing = Refusing()
    policy = RetryPolicy(attempts=4, base_delay=0.001)
    try:
        with pytest.raises(UnavailableError):
            async with open_saver(api, refusing.dsn, "pgstate", pool=False, retry=policy):
                pass
        assert refusing.taken == 4
    finally:
        refusing.close()


@pytest.mark.parametrize("api", APIS)
async def test_an_exhausted_pool_is_said_to_be_unavailable(api: type, dsn: str, schema: str) -> None:
    """The pool's timeout is waited for once, not once per retry; the error says that trying again may help."""
    async with owned_pool(api, dsn, schema, min_size=1, max_size=1, timeout=0.1) as (pool, saver):
        taken = await maybe(pool.getconn())
        try:
            with pytest.raises(UnavailableError) as raised:
                await saver.aget_tuple(config_of("t"))
            assert raised.value.retryable
            assert pool.get_stats()["requests_errors"] == 1
        finally:
            await maybe(pool.putconn(taken))
        assert await saver.aget_tuple(config_of("t")) is None


RAISE_CONFLICT = "DO $$ BEGIN RAISE EXCEPTION 'lost a race' USING ERRCODE = '40001'; END $$"


DIE = "SELECT pg_terminate_backend(pg_backend_pid())"


@asynccontextmanager
async def database_of(api: type, dsn: str, **options: Any) -> AsyncIterator[Any]:
    """What runs the operations of a saver of that api."""
    if api is PGStateSaver:
        with Database.open(dsn, schema="pgstate", **options) as database:
            yield database
        return
    async with AsyncDatabase.open(dsn, schema="pgstate", **options) as async_database:
        yield async_database


class Failing:
    """An operation that sends a statement which fails in the server; counts how often it was run."""

    def __init__(self, statement: str, times: int = 10**9) -> None:
        self._statement, self._times = statement, times
        self.runs = 0

    async def __call__(self, db: Connection) -> str:
        self.runs += 1
        if self.runs <= self._times:
            await db.script(self._statement)
        return "done"


@pytest.mark.parametrize(
    ("statement", "error"), [(RAISE_CONFLICT, ConflictError), (DIE, UnavailableError)], ids=["conflict", "loss"]
)
@pytest.mark.parametrize("pool", [2, False], ids=["pool", "single"])
@pytest.mark.parametrize("api", APIS)
async def test_retries_are_bounded(
    api: type, pool: int | bool, statement: str, error: type[Exception], dsn: str
) -> None:
    policy = RetryPolicy(attempts=3, base_delay=0.001)
    async with database_of(api, dsn, pool=pool, retry=policy) as database:
        operation = Failing(statement)
        with pytest.raises(error):
            await maybe(database.run(operation))
        assert operation.runs == 3
        operation = Failing(statement, times=2)
        assert await maybe(database.run(operation)) == "done"


@pytest.mark.parametrize("statement", [RAISE_CONFLICT, DIE], ids=["conflict", "loss"])
@pytest.mark.parametrize("api", APIS)
async def test_what_is_not_idempotent_is_run_once(api: type, statement: str, dsn: str) -> None:
    async with database_of(api, dsn, retry=RetryPolicy(base_delay=0.001)) as database:
        operation = Failing(statement)
        with pytest.raises(DatabaseError):
            await maybe(database.run_once(operation))
        assert operation.runs == 1
        assert await maybe(database.run_once(Failing(statement, times=0))) == "done"


@pytest.mark.parametrize("api", APIS)
async def test_an_error_of_the_statement_is_not_retried(api: type, dsn: str) -> None:
    async with database_of(api, dsn) as database:
        operation = Failing("SELECT 1 / 0")
        with pytest.raises(DatabaseError, match="division by zero") as raised:
            await maybe(database.run(operation))
        assert operation.runs == 1
        assert (raised.value.sqlstate, raised.value.retryable) == ("22012", False)


@pytest.mark.parametrize("api", APIS)
async def test_nothing_is_retried_inside_a_callers_transaction(api: type, dsn: str) -> None:
    """Her transaction is aborted, so a second try could not succeed; outside of it the same is tried again."""
    options = {"schema": "pgstate", "retry": RetryPolicy(attempts=3, base_delay=0.001)}
    async with owned_connection(api, dsn, "pgstate") as (connection, _):
        database = Database(connection, **options) if api is PGStateSaver else AsyncDatabase(connection, **options)
        await maybe(connection.execute("SELECT 1"))
        operation = Failing(RAISE_CONFLICT)
        with pytest.raises(ConflictError):
            await maybe(database.run(operation))
        assert operation.runs == 1
        await maybe(connection.rollback())
        operation = Failing(RAISE_CONFLICT)
        with pytest.raises(ConflictError):
            await maybe(database.run(operation))
        assert operation.runs == 3


@pytest.mark.parametrize("api", APIS)
async def test_a_pool_of_the_caller_keeps_its_mode_and_row_factory(
    api: type, dsn: str, schema: str, connection: psycopg.Connection
) -> None:
    """Not in autocommit, rows as dictionaries: every call works and is committed when it returns."""
    options = {"min_size": 1, "max_size": 1, "kwargs": {"row_factory": dict_row}}
    async with owned_pool(api, dsn, schema, **options) as (pool, saver):
        count = f"SELECT count(*) FROM {schema}.checkpoints"
        configs = await put_chain(saver, "t", 3)
        assert connection.execute(count).fetchone() == (3,)
        await saver.aput_writes(configs[-1], [("messages", "x")], "task")
        assert len((await saver.aget_tuple(config_of("t"))).pending_writes) == 1
        await saver.acopy_thread("t", "u")
        assert connection.execute(count).fetchone() == (6,)
        await saver.aprune(["t"])
        assert connection.execute(count).fetchone() == (4,)
        await put_chain(saver, "v", 1)
        with pytest.raises(ConfigurationError):
            await saver.acopy_thread("u", "v")
        own = await maybe(pool.getconn())
        assert own.autocommit is False
        assert own.row_factory is dict_row
        assert own.info.transaction_status == psycopg.pq.TransactionStatus.IDLE
        await maybe(pool.putconn(own))


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("ending", ["commit", "rollback"])
async def test_a_put_in_a_callers_transaction_ends_as_she_ends_it(
    api: type, ending: str, dsn: str, schema: str, connection: psycopg.Connection
) -> None:
    async with open_saver(api, dsn, schema):
        pass
    async with owned_connection(api, dsn, schema) as (own, saver):
        await maybe(own.execute("SELECT 1"))
        configs = await put_chain(saver, "t", 2)
        await saver.aput_writes(configs[-1], [("messages", "x")], "task")
        assert (await saver.aget_tuple(config_of("t"))).config == configs[-1]
        for table in ("threads", "checkpoints", "segments", "writes"):
            assert connection.execute(f"SELECT count(*) FROM {schema}.{table}").fetchone() == (0,)
        await maybe(getattr(own, ending)())
        counts = [
            connection.execute(f"SELECT count(*) FROM {schema}.{table}").fetchone()
            for table in ("threads", "checkpoints", "writes")
        ]
        assert counts == ([(1,), (2,), (1,)] if ending == "commit" else [(0,), (0,), (0,)])


@pytest.mark.parametrize("api", APIS)
async def test_what_was_rolled_back_is_not_built_upon(
    api: type, dsn: str, schema: str, connection: psycopg.Connection
) -> None:
    """The saver may remember checkpoints that her rollback took away; the next put must not refer to their data."""
    async with open_saver(api, dsn, schema):
        pass
    async with owned_connection(api, dsn, schema) as (own, saver):
        await maybe(own.execute("SELECT 1"))
        (gone,) = await put_chain(saver, "t", 1)
        await maybe(own.rollback())
        arguments = put_arguments(gone, 1)
        stored = await saver.aput(*arguments)
        found = await saver.aget_tuple(stored)
        assert found.checkpoint["channel_values"] == arguments[1]["channel_values"]
        async with open_saver(api, dsn, schema) as other:
            assert (await other.aget_tuple(stored)).checkpoint == found.checkpoint


@pytest.mark.parametrize("api", APIS)
async def test_prune_and_copy_in_a_callers_transaction_roll_back(
    api: type, dsn: str, schema: str, connection: psycopg.Connection
) -> None:
    async with open_saver(api, dsn, schema) as saver:
        configs = await put_chain(saver, "t", 4)
    async with owned_connection(api, dsn, schema) as (own, saver):
        await maybe(own.execute("SELECT 1"))
        await saver.acopy_thread("t", "u")
        await saver.aprune(["t"])
        await saver.adelete_thread("t")
        await maybe(own.rollback())
        assert [item.config async for item in saver.alist(config_of("t"))] == configs[::-1]
        assert await saver.aget_tuple(config_of("u")) is None


@pytest.mark.parametrize("api", APIS)
async def test_an_error_in_a_callers_savepoint_leaves_her_transaction_usable(api: type, dsn: str, schema: str) -> None:
    async with open_saver(api, dsn, schema) as saver:
        await put_chain(saver, "t", 1)
        await put_chain(saver, "u", 1)
    async with owned_connection(api, dsn, schema) as (own, saver):
        await maybe(own.execute("SELECT 1"))
        with pytest.raises(ConfigurationError, match="history of its own"):
            await saver.acopy_thread("t", "u")
        assert await saver.aget_tuple(config_of("t")) is not None
        await maybe(own.rollback())


def waiting(connection: psycopg.Connection, application: str) -> int:
    """Sessions of an application that wait for a lock."""
    row = connection.execute(
        "SELECT count(*) FROM pg_stat_activity WHERE application_name = %s AND wait_event_type = 'Lock'", [application]
    ).fetchone()
    return int(row[0]) if row else 0


@pytest.mark.parametrize("api", APIS)
async def test_calls_on_a_pool_run_at_once(api: type, dsn: str, schema: str, connection: psycopg.Connection) -> None:
    """With seven of eight connections held up in the server, other threads' calls go through."""
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(16))
    async with open_saver(api, named(dsn, schema), schema, pool=8) as saver:
        blocked = [f"blocked {index}" for index in range(7)]
        values = ", ".join(f"('{thread_id}')" for thread_id in blocked)
        with holding(dsn, f"INSERT INTO {schema}.threads (thread_id) VALUES {values}") as other:
            held = [asyncio.create_task(put_chain(saver, thread_id, 1)) for thread_id in blocked]
            await asyncio.to_thread(
                wait_until, lambda: waiting(connection, schema) == 7, "seven puts wait in the server"
            )
            await asyncio.wait_for(put_chain(saver, "free", 3), GUARD_SECONDS)
            assert (await asyncio.wait_for(saver.aget_tuple(config_of("free")), GUARD_SECONDS)) is not None
            assert not any(task.done() for task in held)
            other.rollback()
            await asyncio.wait_for(asyncio.gather(*held), GUARD_SECONDS)


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("pool", [1, False], ids=["pool", "single"])
async def test_a_listing_holds_no_connection_while_its_caller_works(
    api: type, pool: int | bool, dsn: str, schema: str
) -> None:
    async with open_saver(api, dsn, schema, pool=pool) as saver:
        configs = await put_chain(saver, "t", 60)

        async def nested() -> list[Any]:
            found = []
            async for item in saver.alist(config_of("t")):
                inner = await saver.aget_tuple(item.config)
                await saver.aput_writes(item.config, [("messages", "seen")], "task")
                found.append(inner.config)
            return found

        assert await asyncio.wait_for(nested(), GUARD_SECONDS) == configs[::-1]


@asynccontextmanager
async def saver_through(
    api: type, kind: str, dsn: str, schema: str, prepare_threshold: int | None
) -> AsyncIterator[Any]:
    if kind == "own pool":
        async with open_saver(api, dsn, schema, pool=1, prepare_threshold=prepare_threshold) as saver:
            yield saver
        return
    options = {"min_size": 1, "max_size": 1, "kwargs": {"prepare_threshold": prepare_threshold}}
    async with owned_pool(api, dsn, schema, **options) as (_, saver):
        yield saver


@pytest.mark.parametrize("prepare_threshold", [5, None], ids=["prepared", "unprepared"])
@pytest.mark.parametrize("kind", ["own pool", "pool without autocommit"])
@pytest.mark.parametrize("api", APIS)
async def test_put_put_writes_and_get_tuple_take_one_round_trip(
    api: type, kind: str, prepare_threshold: int | None, dsn: str, schema: str
) -> None:
    with counted(dsn) as proxy:
        async with saver_through(api, kind, proxy.dsn, schema, prepare_threshold) as saver:
            config: Any = config_of("t")
            counts = []
            for step in range(20):
                at = [proxy.count]
                config = await saver.aput(*put_arguments(config, step))
                at.append(proxy.count)
                await saver.aput_writes(config, [("messages", "x"), ("__interrupt__", "y")], f"task {step}")
                at.append(proxy.count)
                assert (await saver.aget_tuple(config)).config == config
                at.append(proxy.count)
                assert (await saver.aget_tuple(config_of("t"))).config == config
                at.append(proxy.count)
                counts.append([after - before for before, after in pairwise(at)])
            assert [usual(trips) for trips in zip(*counts[10:], strict=True)] == [1, 1, 1, 1]


@pytest.mark.parametrize("api", APIS)
async def test_a_call_whose_answer_is_lost_is_done_once(
    api: type, dsn: str, schema: str, connection: psycopg.Connection
) -> None:
    """The server has committed when the connection breaks; the second try finds that out and changes nothing more."""
    with counted(dsn) as proxy:
        async with open_saver(api, proxy.dsn, schema, pool=1) as saver:
            configs = await put_chain(saver, "t", 2)
            arguments = put_arguments(configs[-1], 2)
            proxy.answers_to_lose = 1
            configs.append(await saver.aput(*arguments))
            assert proxy.answers_to_lose == 0
            proxy.answers_to_lose = 1
            await saver.aput_writes(configs[-1], [("messages", "x"), ("__interrupt__", "y")], "task")
            proxy.answers_to_lose = 1
            found = await saver.aget_tuple(config_of("t"))
            assert proxy.answers_to_lose == 0
            assert found.checkpoint["channel_values"] == arguments[1]["channel_values"]
            assert sorted(found.pending_writes) == [("task", "__interrupt__", "y"), ("task", "messages", "x")]
            configs.append(await saver.aput(*put_arguments(configs[-1], 3)))
            assert [item.config async for item in saver.alist(config_of("t"))] == configs[::-1]
            await saver.aprune(["t"])
            proxy.answers_to_lose = 1
            await saver.adelete_thread("t")
    for table in ("threads", "checkpoints", "segments", "writes"):
        assert connection.execute(f"SELECT count(*) FROM {schema}.{table}").fetchone() == (0,)


@pytest.mark.parametrize("api", APIS)
async def test_statements_are_prepared_only_when_wanted(api: type, dsn: str, schema: str) -> None:
    for prepare_threshold, expected in ((0, True), (None, False)):
        options = {"min_size": 1, "max_size": 1, "kwargs": {"prepare_threshold": prepare_threshold}}
        async with owned_pool(api, dsn, schema, **options) as (pool, saver):
            await put_chain(saver, "t", 12)
            own = await maybe(pool.getconn())
            cursor = await maybe(own.execute("SELECT count(*) FROM pg_prepared_statements WHERE statement ~ 'INSERT'"))
            (count,) = await maybe(cursor.fetchone())
            assert (count > 0) is expected
            await maybe(pool.putconn(own))


@pytest.mark.parametrize("source", [42, "postgresql://", None, object()])
@pytest.mark.parametrize("api", APIS)
async def test_anything_but_a_connection_or_a_pool_is_refused(api: type, source: Any) -> None:
    with pytest.raises(ConfigurationError, match="connection must be a psycopg"):
        api(source)


async def test_the_other_colours_connections_are_refused(dsn: str) -> None:
    with ConnectionPool(dsn, open=False) as pool, pytest.raises(ConfigurationError, match="PGStateSaver"):
        AsyncPGStateSaver(pool)  # type: ignore[arg-type]
    async with await psycopg.AsyncConnection.connect(dsn) as own:
        with pytest.raises(ConfigurationError, match="AsyncPGStateSaver"):
            PGStateSaver(own)  # type: ignore[arg-type]


class Bouncer:
    """A PgBouncer in transaction mode before the server, with three server connections."""

    def __init__(self, dsn: str, directory: Path, *, prepared: int) -> None:
        info = conninfo_to_dict(dsn)
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        target = {
            "host": info.get("host") or "127.0.0.1",
            "port": info.get("port") or 5432,
            "dbname": info.get("dbname") or "postgres",
            "user": info.get("user") or "postgres",
            "password": info.get("password"),
        }
        settings = {
            "listen_addr": "127.0.0.1",
            "listen_port": port,
            "unix_socket_dir": "",
            "auth_type": "any",
            "pool_mode": "transaction",
            "default_pool_size": 3,
            "max_client_conn": 100,
            **({"max_prepared_statements": prepared} if prepared else {}),
        }
        line = " ".join(f"{key}={value}" for key, value in target.items() if value)
        file = directory / "pgbouncer.ini"
        file.write_text(
            f"[databases]\napp = {line}\n[pgbouncer]\n"
            + "".join(f"{key} = {value}\n" for key, value in settings.items())
        )
        # PgBouncer refuses to run as root, and the embedded server's socket is open to its own user only.
        user = next((name for name in ("pgserver", "postgres", "nobody") if is_user(name)), None) if is_root() else None
        for folder in (directory, *directory.parents):
            if is_root() and str(folder).startswith("/tmp/"):
                folder.chmod(folder.stat().st_mode | 0o055)
        file.chmod(0o644)
        self.dsn = f"host=127.0.0.1 port={port} dbname=app user=anyone sslmode=disable"
        self.process = subprocess.Popen(
            [shutil.which("pgbouncer") or "", "-q", str(file)], user=user, stderr=subprocess.PIPE
        )
        wait_until(lambda: self.process.poll() is not None or self._answers(), "PgBouncer answers")
        if self.process.poll() is not None:
            raise AssertionError(self.process.stderr.read().decode() if self.process.stderr else "")

    def _answers(self) -> bool:
        with suppress(psycopg.Error), psycopg.connect(self.dsn, connect_timeout=2):
            return True
        return False

    def close(self) -> None:
        """Stop it."""
        self.process.terminate()
        self.process.communicate(timeout=GUARD_SECONDS)


def is_root() -> bool:

    return os.geteuid() == 0


def is_user(name: str) -> bool:
    import pwd

    with suppress(KeyError):
        return bool(pwd.getpwnam(name))
    return False


def bouncer_version() -> tuple[int, ...]:
    binary = shutil.which("pgbouncer")
    if binary is None:
        return ()
    answer = subprocess.run([binary, "--version"], capture_output=True, text=True, check=True).stdout
    return tuple(int(part) for part in answer.split()[1].split("."))


@pytest.mark.slow
@pytest.mark.parametrize(("prepare_threshold", "api"), crossed([None, 5], APIS))
async def test_many_operations_through_pgbouncer(
    api: type, prepare_threshold: int | None, dsn: str, schema: str, tmp_path: Path
) -> None:
    """Eight clients share three server connections that change hands after every transaction."""
    version = bouncer_version()
    if not version:
        pytest.skip("PgBouncer is not installed")
    if prepare_threshold is not None and version < (1, 21):
        pytest.skip(f"PgBouncer {version[0]}.{version[1]} does not track prepared statements, 1.21 does")
    bouncer = Bouncer(dsn, tmp_path, prepared=100 if prepare_threshold is not None else 0)
    steps = examples(60)
    try:
        async with open_saver(api, bouncer.dsn, schema, pool=8, prepare_threshold=prepare_threshold) as saver:

            async def work(number: int) -> int:
                config: Any = config_of(f"t{number}")
                for step in range(steps):
                    config = await saver.aput(*put_arguments(config, step, messages=[str(step)] * 3))
                    await saver.aput_writes(config, [("messages", "x")], "task")
                    assert (await saver.aget_tuple(config_of(f"t{number}"))).config == config
                found = len([item async for item in saver.alist(config_of(f"t{number}"))])
                await saver.aprune([f"t{number}"], keep_last=2)
                await saver.acopy_thread(f"t{number}", f"u{number}")
                await saver.adelete_thread(f"t{number}")
                return found

            assert await asyncio.gather(*map(work, range(16))) == [steps] * 16
            await set_up(saver)
    finally:
        bouncer.close()


def test_a_single_connection_stays_closed_after_its_block(dsn: str, schema: str) -> None:
    """As a pool does: nobody would close it again. Guard: no call is tried again then."""
    retry = RetryPolicy(base_delay=1.0)
    with PGStateSaver.from_conn_string(dsn, schema=schema, pool=False, retry=retry) as saver:
        saver.setup()
    began = time.monotonic()
    with pytest.raises(UnavailableError):
        saver.get_tuple({"configurable": {"thread_id": "t"}})
    assert time.monotonic() - began < 0.5


async def on_lent(api: type, dsn: str, operation: Any, *, begins: bool = False) -> None:
    """Run an operation on a connection of the caller's, in a transaction of hers or outside of one."""
    retry = RetryPolicy(attempts=5, base_delay=0.001)
    if api is PGStateSaver:
        with psycopg.connect(dsn, autocommit=True) as own:
            if begins:
                own.execute("BEGIN")
            await asyncio.to_thread(Database(own, schema="pgstate", retry=retry).run, operation)
        return
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as own:
        if begins:
            await own.execute("BEGIN")
        await AsyncDatabase(own, schema="pgstate", retry=retry).run(operation)


@pytest.mark.parametrize("api", APIS)
async def test_what_began_in_a_callers_transaction_is_not_repeated_outside_of_it(api: type, dsn: str) -> None:
    """Even if that is over when it fails.

    Guard: whether there is one is looked at before, not after.
    """
    tries = []

    async def operation(db: Connection) -> None:
        tries.append(db.is_in_transaction)
        done = db.connection.execute("ROLLBACK")
        if api is not PGStateSaver:
            await done
        raise psycopg.errors.SerializationFailure("lost a race")

    with pytest.raises(ConflictError):
        await on_lent(api, dsn, operation, begins=True)
    assert tries == [True]


@pytest.mark.parametrize("api", APIS)
async def test_on_a_callers_connection_a_lost_race_is_repeated_but_not_a_lost_connection(api: type, dsn: str) -> None:
    """A connection that is lost is hers to replace."""
    tries = []

    async def operation(db: Connection) -> None:
        tries.append(db)
        if len(tries) < 3:
            raise psycopg.errors.SerializationFailure("lost a race")
        raise psycopg.OperationalError("the connection is lost")

    with pytest.raises(UnavailableError):
        await on_lent(api, dsn, operation)
    assert len(tries) == 3


async def test_who_is_cancelled_before_it_has_a_connection_leaves_it_to_others(dsn: str) -> None:
    """A caller who uses her own connection at the time may keep one waiting."""

    async def operation(db: Connection) -> bool:
        return db.is_in_transaction

    async with await psycopg.AsyncConnection.connect(dsn, autocommit=False) as own:
        database = AsyncDatabase(own, schema="pgstate")
        async with own.lock:
            waiting = asyncio.create_task(database.run(operation))
            await asyncio.sleep(0.05)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
        assert await asyncio.wait_for(database.run(operation), GUARD_SECONDS) is False
        assert not own.autocommit


@pytest.mark.parametrize("api", APIS)
async def test_a_connection_that_could_not_be_made_is_made_by_the_next_call(api: type, dsn: str) -> None:
    """Guard: what waits for it lets go when making it fails."""
    made: list[Any] = []

    async def operation(db: Connection) -> bool:
        return db.is_in_transaction

    def connect() -> Any:
        made.append(None)
        if len(made) == 1:
            raise psycopg.OperationalError("refused")
        return (psycopg.Connection if api is PGStateSaver else psycopg.AsyncConnection).connect(dsn, autocommit=True)

    kind: Any = Database if api is PGStateSaver else AsyncDatabase
    database = kind(connect, schema="pgstate", retry=RetryPolicy(attempts=1))
    for expected in (None, False):
        call = asyncio.to_thread(database.run, operation) if kind is Database else database.run(operation)
        if expected is None:
            with pytest.raises(UnavailableError):
                await asyncio.wait_for(call, GUARD_SECONDS)
            assert not database._lock.locked()
        else:
            assert await asyncio.wait_for(call, GUARD_SECONDS) is expected
    closed = database._single.connection.close()
    if kind is not Database:
        await closed


@pytest.mark.parametrize("api", APIS)
async def test_a_connection_in_a_pipeline_of_the_callers_serves_as_any_other(
    api: type, dsn: str, schema: str, connection: psycopg.Connection
) -> None:
    """LangGraph's own saver takes such a connection, with its pipeline."""

    async def use(saver: Any) -> None:
        configs = await put_chain(saver, "t", 3)
        await saver.aput_writes(configs[2], [("messages", "x")], "task")
        found = await saver.aget_tuple(config_of("t"))
        assert (found.config, found.pending_writes) == (configs[2], [("task", "messages", "x")])
        assert len([item async for item in saver.alist(config_of("t"))]) == 3
        # Of a checkpoint that is there already; and of one whose parent was taken away.
        await saver.aput(*put_arguments(configs[1], 2))
        await saver.aprune(["t"])
        assert (await saver.aput(*put_arguments(configs[0], 1)))["configurable"]["thread_id"] == "t"
        await saver.adelete_thread("t")
        assert await saver.aget_tuple(config_of("t")) is None

    if api is PGStateSaver:
        with psycopg.connect(dsn, autocommit=True) as ours, ours.pipeline():
            await use(PGStateSaver(ours, schema=schema))
    else:
        async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as ours, ours.pipeline():
            await use(AsyncPGStateSaver(ours, schema=schema))
    assert connection.execute(f"SELECT count(*) FROM {schema}.checkpoints").fetchone() == (0,)
