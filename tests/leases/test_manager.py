"""Runs that are cancelled, interrupted or abandoned: their leases are free at once, whatever they were doing.

No lease expires by itself here, and nothing is collected as garbage: what is free was given back.
"""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Annotated, Any, TypedDict

import anyio
import psycopg
import pytest
from langgraph.channels.delta import DeltaChannel
from langgraph.config import get_config
from langgraph.errors import EmptyInputError
from langgraph.graph import START, StateGraph
from langgraph.pregel._loop import PregelLoop
from support import APIS, GUARD_SECONDS, config_of, holding, loop_graph, open_saver, put_arguments, wait_until

from langgraph_pgstate import AsyncPGStateSaver, PGStateSaver
from langgraph_pgstate.arguments import Address, address_of
from langgraph_pgstate.db.adapters import BlockingConnection, run_blocking
from langgraph_pgstate.errors import LeaseHeldError, LeaseLostError, PGStateError
from langgraph_pgstate.leases import holding as operations
from langgraph_pgstate.leases import registry
from langgraph_pgstate.leases.guards import Guard
from langgraph_pgstate.schema.queries import queries
from tests.leases.test_api import hold, leases, maybe
from tests.leases.test_guards import INPUT, rows

FOREVER = {"guard": "lease", "lease_ttl": 3600}


# Rounds of the event loop: from the first moment of a run to its third superstep.
ROUNDS = [0, 1, 2, 3, 5, 8, 13, 21, 34, 55, 89, 144, 233, 377, 610, 987]


@pytest.fixture(autouse=True)
def unaided(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    gc.disable()
    monkeypatch.setattr(registry, "_ENTRY_SECONDS", 3600)
    yield
    gc.enable()


def endless(saver: Any) -> Any:
    """A graph that goes on until it is stopped."""

    async def step(state: dict[str, Any]) -> dict[str, Any]:
        await asyncio.sleep(0.001)
        return {"items": ["item"], "count": state["count"] + 1}

    builder = StateGraph(loop_graph(1).state_schema)
    builder.add_node("step", step)
    builder.add_edge(START, "step")
    builder.add_conditional_edges("step", lambda state: "step")
    return builder.compile(checkpointer=saver)


def config_without_end(thread_id: str) -> dict[str, Any]:
    return {**config_of(thread_id), "recursion_limit": 10**6}


def after(rounds: int, call: Callable[[], Any]) -> None:
    """Call something after so many rounds of the event loop."""
    loop = asyncio.get_running_loop()

    def count(left: int) -> None:
        if left:
            loop.call_soon(count, left - 1)
        else:
            call()

    count(rounds)


async def stop_by_anyio(rounds: int, work: Callable[[], Awaitable[Any]]) -> None:
    """As Starlette does when its client is gone: cancelled again at every await."""
    with anyio.CancelScope() as scope:
        after(rounds, scope.cancel)
        await work()


async def stop_by_timeout(rounds: int, work: Callable[[], Awaitable[Any]]) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(None) as limit:
            after(rounds, lambda: limit.reschedule(asyncio.get_running_loop().time()))
            await work()


async def stop_by_task(rounds: int, work: Callable[[], Awaitable[Any]]) -> None:
    task = asyncio.ensure_future(work())
    after(rounds, task.cancel)
    with suppress(asyncio.CancelledError):
        await task


def all_free(connection: psycopg.Connection, schema: str) -> bool:
    return not any(is_held for _, is_held in leases(connection, schema))


async def wait_until_free(connection: psycopg.Connection, schema: str) -> None:
    await asyncio.to_thread(wait_until, lambda: all_free(connection, schema), f"free leases in {schema}")


@pytest.mark.slow
@pytest.mark.parametrize("stop", [stop_by_anyio, stop_by_timeout, stop_by_task])
@pytest.mark.parametrize("api", APIS)
async def test_a_cancelled_run_gives_its_lease_back(
    api: type, stop: Any, dsn: str, schema: str, connection: psycopg.Connection
) -> None:
    calls, loop = ThreadPoolExecutor(), asyncio.get_running_loop()
    loop.set_default_executor(calls)
    async with open_saver(api, dsn, schema, **FOREVER) as saver:
        graph = endless(saver)

        async def stream(config: dict[str, Any]) -> None:
            async for _ in graph.astream(INPUT, config):
                await asyncio.sleep(0)

        for rounds in ROUNDS:
            await stop(rounds, lambda rounds=rounds: graph.ainvoke(INPUT, config_without_end(f"i{rounds}")))
            await stop(rounds, lambda rounds=rounds: stream(config_without_end(f"s{rounds}")))
        # A call of the blocking saver whose thread begins late takes the lease, and gives it back.
        loop.set_default_executor(ThreadPoolExecutor())
        await asyncio.to_thread(calls.shutdown)
        # And what was cancelled does not go on: after what was on its way, nobody takes one again.
        await asyncio.to_thread(wait_until, lambda: is_at_rest(connection, schema), "the last lease's end")


def is_at_rest(connection: psycopg.Connection, schema: str) -> bool:
    """Whether all leases are free, and none is taken within 0.2 seconds."""
    query = f"SELECT thread_id, fencing_token FROM {schema}.leases"
    before = connection.execute(query).fetchall()
    time.sleep(0.2)
    return all_free(connection, schema) and connection.execute(query).fetchall() == before


def extend(state: list[str], writes: Sequence[list[str]]) -> list[str]:
    return [*state, *(item for write in writes for item in write)]


class DeltaState(TypedDict):
    items: Annotated[list[str], DeltaChannel(extend, snapshot_frequency=1000)]


@pytest.mark.parametrize("api", APIS)
async def test_a_run_whose_delta_channels_are_not_read_gives_its_lease_back(
    api: type, dsn: str, schema: str, connection: psycopg.Connection
) -> None:
    """They are read after the checkpoint, before the run's loop is entered."""
    builder = StateGraph(DeltaState)
    builder.add_node("step", lambda state: {"items": ["more"]})
    builder.add_edge(START, "step")
    async with open_saver(api, dsn, schema, **FOREVER, pool=1) as saver:
        graph = builder.compile(checkpointer=saver)
        await graph.ainvoke({"items": ["first"]}, config_of("t"))
        read = saver._get_tuple

        def lock(*arguments: Any) -> Any:
            # What comes next is the history.
            other.execute(f"LOCK TABLE {schema}.checkpoints")
            return found

        async def lock_later(*arguments: Any) -> Any:
            return lock()

        found = await maybe(read(address_of(config_of("t"))))
        with psycopg.connect(dsn) as other:
            saver._get_tuple = lock if api is PGStateSaver else lock_later
            running = asyncio.ensure_future(graph.ainvoke({"items": []}, config_of("t")))
            await asyncio.to_thread(wait_until, lambda: is_blocked(connection), "a statement that waits")
            saver._get_tuple = read
            running.cancel()
            with suppress(asyncio.CancelledError):
                await running
        await wait_until_free(connection, schema)


def is_blocked(connection: psycopg.Connection) -> bool:
    query = "SELECT FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    return bool(connection.execute(query).fetchall())


def is_busy(connection: psycopg.Connection, schema: str) -> bool:
    query = """
        SELECT FROM pg_stat_activity
        WHERE datname = current_database() AND state <> 'idle' AND pid <> pg_backend_pid()
            AND backend_type = 'client backend' AND strpos(query, %s) > 0"""
    return bool(connection.execute(query, [schema]).fetchall())


@pytest.mark.slow
@pytest.mark.parametrize("api", APIS)
async def test_a_block_that_is_cancelled_gives_its_lease_back(
    api: type, dsn: str, schema: str, connection: psycopg.Connection
) -> None:
    async with open_saver(api, dsn, schema, **FOREVER) as saver:

        async def block(thread_id: str) -> None:
            async with hold(saver.lease_manager, thread_id):
                while True:
                    await saver.aput(*put_arguments(config_of(thread_id), 0))

        for rounds in ROUNDS:
            for stop in (stop_by_anyio, stop_by_task):
                await stop(rounds, lambda rounds=rounds, stop=stop: block(f"{stop.__name__}{rounds}"))
        await wait_until_free(connection, schema)


async def test_a_saver_that_is_closed_by_cancellation_gives_everything_back(
    dsn: str, schema: str, connection: psycopg.Connection
) -> None:
    for rounds in (0, 55, 377, 987):
        with anyio.CancelScope() as scope:
            async with AsyncPGStateSaver.from_conn_string(dsn, schema=schema, **FOREVER) as saver:
                after(rounds, scope.cancel)
                await endless(saver).ainvoke(INPUT, config_without_end(f"t{rounds}"))
        assert all_free(connection, schema)


@pytest.mark.parametrize("api", APIS)
async def test_a_lease_that_could_not_be_given_back_is_given_back_later(
    api: type, dsn: str, schema: str, connection: psycopg.Connection
) -> None:
    async with open_saver(api, dsn, schema, **FOREVER) as saver:
        with suppress(PGStateError):
            async with hold(saver.lease_manager, "t"):
                connection.execute(f"ALTER TABLE {schema}.leases RENAME TO away")
        connection.execute(f"ALTER TABLE {schema}.away RENAME TO leases")
        await wait_until_free(connection, schema)


@pytest.mark.parametrize("api", APIS)
async def test_what_a_run_writes_late_takes_no_lease_and_renews_none(
    api: type, dsn: str, schema: str, connection: psycopg.Connection
) -> None:
    """It passes as long as nobody else has had the lease since."""
    configs = []

    async def step(state: dict[str, Any]) -> dict[str, Any]:
        configs.append(get_config())
        return {"count": 1}

    builder = StateGraph(loop_graph(1).state_schema)
    builder.add_node("step", step)
    builder.add_edge(START, "step")
    async with open_saver(api, dsn, schema, **FOREVER) as saver:
        await builder.compile(checkpointer=saver).ainvoke(INPUT, config_of("t"))
        head = await saver.aget_tuple(config_of("t"))
        late = {"configurable": {**configs[0]["configurable"], **head.config["configurable"]}}
        token = connection.execute(f"SELECT fencing_token FROM {schema}.leases").fetchall()
        before = rows(connection, schema)["writes"]
        await saver.aput_writes(late, [("count", 2)], "task")
        assert connection.execute(f"SELECT fencing_token FROM {schema}.leases").fetchall() == token
        assert all_free(connection, schema)
        async with hold(saver.lease_manager, "t"):
            pass
        with pytest.raises(LeaseLostError):
            await saver.aput_writes(late, [("count", 3)], "other task")
        assert rows(connection, schema)["writes"] == before + 1


def test_a_write_does_not_renew_a_lease_that_was_given_back(
    saver: PGStateSaver, connection: psycopg.Connection
) -> None:
    """Which is when both are under way at once."""
    named, db = queries(saver.schema), BlockingConnection(connection)
    lease = run_blocking(operations.take(db, named, "t", "holder", 60.0))
    run_blocking(operations.release(db, named, "t", lease.fencing_token))
    guard = Guard(fencing_token=lease.fencing_token, holder_id="holder", renew_for=60.0)
    run_blocking(db.execute_together(guard.before_writes(named, Address("t", "", "1"))))
    assert leases(connection, saver.schema) == [("t", False)]


@pytest.mark.slow
@pytest.mark.parametrize("api", APIS)
async def test_a_run_that_fails_before_it_has_begun_gives_its_lease_back(
    api: type, dsn: str, schema: str, connection: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its task goes on, its objects are kept, and LangGraph never unwinds a loop that it could not enter."""
    monkeypatch.setattr(registry, "_ENTRY_SECONDS", 0.2)
    kept = []
    async with open_saver(api, dsn, schema, **FOREVER) as saver:
        graph = loop_graph(1).compile(checkpointer=saver)
        for invoke in (graph.ainvoke, graph.invoke)[: 1 if api is AsyncPGStateSaver else 2]:
            try:
                await maybe(invoke(None, config_of("t")))
            except EmptyInputError as error:
                kept.append(error)
        await wait_until_free(connection, schema)
        assert kept
        monkeypatch.setattr(registry, "_ENTRY_SECONDS", 3600)
        # Nor does one whose state cannot be read.
        await graph.ainvoke(INPUT, config_of("u"))
        connection.execute(f"UPDATE {schema}.checkpoints SET state = 'x' WHERE thread_id = 'u'")
        saver._forget("u")
        with pytest.raises(PGStateError) as damaged:
            await graph.ainvoke(INPUT, config_of("u"))
        await wait_until_free(connection, schema)
        assert damaged is not None


class Interrupting:
    """Sends the interrupt of a terminal to the main thread when something has come about."""

    def __init__(self, condition: Callable[[], bool]) -> None:
        self._condition = condition
        self._thread = threading.Thread(target=self._work, daemon=True)

    def _work(self) -> None:
        wait_until(self._condition, "the moment to interrupt")
        os.kill(os.getpid(), signal.SIGINT)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: Any) -> None:
        self._thread.join(GUARD_SECONDS)


def test_an_interrupted_blocking_run_gives_its_lease_back(
    dsn: str, schema: str, connection: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    # It may be interrupted while its loop is entered, too.
    monkeypatch.setattr(registry, "_ENTRY_SECONDS", 0.2)

    def is_held() -> bool:
        with psycopg.connect(dsn, autocommit=True) as own:
            return not all_free(own, schema)

    def is_free() -> bool:
        return all_free(connection, schema)

    with PGStateSaver.from_conn_string(dsn, schema=schema, **FOREVER) as saver:
        graph = loop_graph(10**6, lambda count: time.sleep(0.001)).compile(checkpointer=saver)
        with pytest.raises(KeyboardInterrupt), Interrupting(is_held):
            graph.invoke(INPUT, config_without_end("t"))
        wait_until(is_free, "a free lease")
        stream = graph.stream(INPUT, config_without_end("u"))
        with pytest.raises(KeyboardInterrupt), Interrupting(is_held):
            for _ in stream:
                pass
        # It may be interrupted between two pieces, too, and is suspended then.
        stream.close()
        wait_until(is_free, "a free lease")


@pytest.mark.slow
def test_a_run_that_is_interrupted_at_the_end_of_its_entry_gives_its_lease_back(
    dsn: str, schema: str, connection: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When its input is on its way to the database, while a thread is started for that, it is entered almost."""
    kept = []

    def interrupt(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    with PGStateSaver.from_conn_string(dsn, schema=schema, **FOREVER) as saver:
        graph = loop_graph(1).compile(checkpointer=saver)
        for seconds in (3600.0, 0.2):
            monkeypatch.setattr(registry, "_ENTRY_SECONDS", seconds)
            with monkeypatch.context() as patched:
                patched.setattr(PregelLoop, "_put_checkpoint", interrupt)
                with pytest.raises(KeyboardInterrupt) as raised:
                    graph.invoke(INPUT, config_of("t"))
                kept.append(raised)
            if seconds > 1:
                # Who runs again in this thread has left the other run.
                graph.invoke(INPUT, config_of("t"))
        wait_until(lambda: all_free(connection, schema), "a free lease")


def test_an_interrupt_while_a_lease_is_taken_or_given_back_leaves_none(
    dsn: str, schema: str, connection: psycopg.Connection
) -> None:
    def blocked() -> bool:
        with psycopg.connect(dsn, autocommit=True) as own:
            return is_blocked(own)

    with PGStateSaver.from_conn_string(dsn, schema=schema, **FOREVER) as saver:
        graph = loop_graph(1).compile(checkpointer=saver)
        with saver.lease_manager.hold("t"):
            pass
        with (
            holding(dsn, f"SELECT FROM {schema}.leases FOR UPDATE"),
            pytest.raises(KeyboardInterrupt),
            Interrupting(blocked),
        ):
            graph.invoke(INPUT, config_of("t"))
        wait_until(lambda: all_free(connection, schema), "a free lease")
        with psycopg.connect(dsn) as other:
            lock = f"SELECT FROM {schema}.leases FOR UPDATE".encode()
            with pytest.raises(KeyboardInterrupt), Interrupting(blocked), saver.lease_manager.hold("t"):
                other.execute(lock)
            other.rollback()
        wait_until(lambda: all_free(connection, schema), "a free lease")
        graph.invoke(INPUT, config_of("t"))


async def test_nodes_of_a_run_that_anyio_cancels_are_cancelled_too(dsn: str, schema: str) -> None:
    """LangGraph leaves its loop in a task that anyio cancels before it has begun; then its nodes would go on."""
    ended: list[str] = []
    entered = asyncio.Event()

    async def wait(state: dict[str, Any]) -> dict[str, Any]:
        entered.set()
        try:
            await asyncio.sleep(3600)
        finally:
            ended.append("cancelled")
        return {}

    builder = StateGraph(loop_graph(1).state_schema)
    builder.add_node("wait", wait)
    builder.add_edge(START, "wait")
    async with open_saver(AsyncPGStateSaver, dsn, schema, **FOREVER) as saver:
        graph = builder.compile(checkpointer=saver)
        with anyio.CancelScope() as scope:
            stopping = asyncio.create_task(entered.wait())
            stopping.add_done_callback(lambda _: after(5, scope.cancel))
            await graph.ainvoke(INPUT, config_of("t"))
        await asyncio.to_thread(wait_until, lambda: ended == ["cancelled"], "the node's end")


@pytest.mark.slow
@pytest.mark.parametrize("api", APIS)
async def test_a_run_that_was_cancelled_is_tried_again_at_once(api: type, dsn: str, schema: str) -> None:
    async with open_saver(api, dsn, schema, **FOREVER, on_busy="wait", wait_timeout=GUARD_SECONDS) as saver:
        graph = endless(saver)
        short = loop_graph(1).compile(checkpointer=saver)
        for rounds in ROUNDS:
            await stop_by_anyio(rounds, lambda: graph.ainvoke(INPUT, config_without_end("t")))
            with suppress(LeaseHeldError):
                await short.ainvoke({"items": [], "count": 0}, config_of("t"))
