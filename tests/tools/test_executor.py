"""Transactional tools that take too long: nothing of them is committed, and nobody meets their connection again."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import psycopg
import pytest
from langchain_core.tools import tool
from psycopg import sql
from support import FORK
from support.ledger import LEDGERS, Bench, ask, calls, open_bench, thread

from langgraph_pgstate import AsyncPGStateSaver, PGStateSaver
from langgraph_pgstate.errors import ToolTimeoutError
from langgraph_pgstate.schema.queries import queries
from langgraph_pgstate.tools import AsyncToolLedger, ToolLedger, ToolRetry, acting, executor

BOOK = calls(("call_1", "book", {"room": "7"}))


@asynccontextmanager
async def open_small(api: type, dsn: str, schema: str) -> AsyncIterator[Bench]:
    """A bench with one connection for tools, so that who gets it next gets what a tool left."""
    if api is ToolLedger:
        with (
            PGStateSaver.from_conn_string(dsn, schema=schema) as saver,
            PGStateSaver.from_conn_string(dsn, schema=schema, pool=1) as small,
        ):
            saver.setup()
            ledger = ToolLedger(small._database, queries(schema))
            yield Bench(saver, ledger)
            ledger.close()
    else:
        async with (
            AsyncPGStateSaver.from_conn_string(dsn, schema=schema) as saver,
            AsyncPGStateSaver.from_conn_string(dsn, schema=schema, pool=1) as small,
        ):
            await saver.setup()
            ledger = AsyncToolLedger(small._database, queries(schema))
            yield Bench(saver, ledger)
            await ledger.close()


@pytest.fixture(params=LEDGERS, ids=lambda api: api.__name__)
async def bench(
    request: pytest.FixtureRequest, dsn: str, schema: str, connection: psycopg.Connection
) -> AsyncIterator[Bench]:
    async with open_small(request.param, dsn, schema) as bench:
        connection.execute(f"CREATE TABLE {schema}.bookings (room text)")
        yield bench


class Slow:
    """A tool that books a room and then does what it is told to, in its own api."""

    def __init__(self, bench: Bench, **terms: Any) -> None:
        self.bench = bench
        self.connections: list[Any] = []
        self.outcomes: list[Any] = []
        self.ended = threading.Event()
        bench.ledger.policy("book", **{"timeout": 0.2, **terms})

    def graph(self, then: Callable[[Any], Any], athen: Callable[[Any], Any], **options: Any) -> Any:
        insert = sql.SQL("INSERT INTO {}.bookings VALUES (%s)").format(sql.Identifier(self.bench.saver.schema))
        if self.bench.is_async:

            @tool
            @self.bench.ledger.transactional
            async def book(room: str, connection: psycopg.AsyncConnection) -> str:
                """Book a room."""
                self.connections.append(connection)
                try:
                    await connection.execute(insert, [room])
                    await athen(connection)
                finally:
                    self.ended.set()
                return f"booked {room}"
        else:

            @tool
            @self.bench.ledger.transactional
            def book(room: str, connection: psycopg.Connection) -> str:
                """Book a room."""
                self.connections.append(connection)
                try:
                    connection.execute(insert, [room])
                    then(connection)
                finally:
                    self.ended.set()
                return f"booked {room}"

        return self.bench.agent([book], BOOK, **options)


def state_of(connection: psycopg.Connection, schema: str) -> tuple[Any, Any]:
    """What the ledger says, and what was booked."""
    status = connection.execute(f"SELECT status, attempt FROM {schema}.tool_executions ORDER BY thread_id").fetchall()
    return status, connection.execute(f"SELECT room FROM {schema}.bookings").fetchall()


async def until(condition: Callable[[], Any]) -> None:
    while not condition():
        await asyncio.sleep(0.01)


def in_statement(connection: Any) -> Any:
    return connection.execute("SELECT pg_sleep(60)")


async def in_astatement(connection: Any) -> None:
    await connection.execute("SELECT pg_sleep(60)")


async def in_nothing(connection: Any) -> None:
    pass


async def test_a_tool_that_ends_when_its_time_is_just_over_is_rolled_back(
    bench: Bench, connection: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the decision, before its connection is taken away."""
    schema = bench.saver.schema
    slow = Slow(bench)
    over = threading.Event()

    def interrupt(lent: Any) -> bool:
        over.set()
        slow.ended.wait(60)
        return True

    monkeypatch.setattr(executor, "interrupt", interrupt)

    async def athen(lent: Any) -> None:
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(60)

    with pytest.raises(ToolTimeoutError):
        await bench.invoke(slow.graph(lambda lent: over.wait(60), athen), ask(), thread())
    assert state_of(connection, schema) == ([("timeout", 1)], [])
    assert not slow.connections[0].closed


async def test_what_the_server_ended_in_time_took_too_long(
    bench: Bench, connection: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tool that blocks its event loop keeps its own timeout from being noticed: the server notices it."""
    schema = bench.saver.schema
    monkeypatch.setattr(acting, "_SERVERS_GRACE", 0.0)
    slow = Slow(bench)

    def until_ended(lent: Any) -> None:
        pid = lent.info.backend_pid
        while (
            len(slow.connections) == 1
            and connection.execute("SELECT FROM pg_stat_activity WHERE pid = %s", [pid]).fetchall()
        ):
            pass

    async def block_until_ended(lent: Any) -> None:
        until_ended(lent)

    graph = slow.graph(until_ended, block_until_ended)
    with pytest.raises(ToolTimeoutError):
        await bench.invoke(graph, ask(), thread())
    await until(slow.ended.is_set)
    assert state_of(connection, schema) == ([("timeout", 1)], [])
    await bench.invoke(graph, None, thread())
    assert state_of(connection, schema) == ([("success", 2)], [("7",)])


async def test_the_event_loop_does_not_complain_of_what_a_tool_raises_after_its_time(
    dsn: str, schema: str, connection: psycopg.Connection
) -> None:
    complaints: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: complaints.append(context["message"]))
    async with open_small(AsyncToolLedger, dsn, schema) as bench:
        connection.execute(f"CREATE TABLE {schema}.bookings (room text)")

        async def fail_when_cancelled(lent: Any) -> None:
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                raise OSError("I had not finished") from None

        with pytest.raises(ToolTimeoutError):
            await bench.invoke(Slow(bench).graph(in_statement, fail_when_cancelled), ask(), thread())
    gc.collect()
    assert complaints == []


async def test_what_timed_out_left_nothing_and_is_run_again(bench: Bench, connection: psycopg.Connection) -> None:
    schema = bench.saver.schema
    slow = Slow(bench)

    def hang_once(lent: Any) -> None:
        if len(slow.connections) == 1:
            in_statement(lent)

    async def ahang_once(lent: Any) -> None:
        if len(slow.connections) == 1:
            await in_astatement(lent)

    graph = slow.graph(hang_once, ahang_once)
    with pytest.raises(ToolTimeoutError):
        await bench.invoke(graph, ask(), thread())
    state = await bench.invoke(graph, None, thread())
    assert state["messages"][2].content == "booked 7"
    assert state_of(connection, schema) == ([("success", 2)], [("7",)])


async def test_a_timeout_is_retried_like_an_error(bench: Bench, connection: psycopg.Connection) -> None:
    schema = bench.saver.schema
    slow = Slow(bench, on_error="retry", retry=ToolRetry(attempts=2, delay=0.001))

    def hang_once(lent: Any) -> None:
        if len(slow.connections) == 1:
            in_statement(lent)

    async def ahang_once(lent: Any) -> None:
        if len(slow.connections) == 1:
            await in_astatement(lent)

    await bench.invoke(slow.graph(hang_once, ahang_once), ask(), thread())
    assert state_of(connection, schema) == ([("success", 2)], [("7",)])


async def test_a_model_may_hear_of_it(bench: Bench, connection: psycopg.Connection) -> None:
    """Its outcome is known: there is none."""
    slow = Slow(bench)
    state = await bench.invoke(slow.graph(in_statement, in_astatement, handle_tool_errors=True), ask(), thread())
    assert state["messages"][2].status == "error"
    assert state_of(connection, bench.saver.schema) == ([("timeout", 1)], [])


@pytest.mark.slow
@pytest.mark.parametrize("api", LEDGERS)
async def test_time_decides_for_both_or_neither(
    api: type, dsn: str, schema: str, connection: psycopg.Connection
) -> None:
    """Tools that end about when their time is over: an outcome and an effect, or none of either."""
    async with open_bench(api, dsn, schema) as bench:
        connection.execute(f"CREATE TABLE {schema}.bookings (room text)")
        slow = Slow(bench, timeout=0.06)
        seconds = [0.04 + number / 1000 for number in range(30)]

        def then(lent: Any) -> None:
            lent.execute("SELECT pg_sleep(%s)", [seconds[len(slow.connections) % 30]])

        async def athen(lent: Any) -> None:
            await lent.execute("SELECT pg_sleep(%s)", [seconds[len(slow.connections) % 30]])

        graph = slow.graph(then, athen)

        async def one(number: int) -> None:
            with suppress(ToolTimeoutError):
                await bench.invoke(graph, ask(), thread(f"t{number}"))

        for start in range(0, 60, 4):
            await asyncio.gather(*[one(number) for number in range(start, start + 4)])
        counts = dict(
            connection.execute(f"SELECT status, count(*) FROM {schema}.tool_executions GROUP BY 1").fetchall()
        )
        assert counts.keys() <= {"success", "timeout"}
        assert connection.execute(f"SELECT count(*) FROM {schema}.bookings").fetchone() == (counts.get("success", 0),)
        assert sum(counts.values()) == 60


async def test_the_server_is_told_too(bench: Bench, connection: psycopg.Connection) -> None:
    """For the time when this process cannot act; a shorter limit stays."""
    slow = Slow(bench, timeout=30)
    names = ("statement_timeout", "idle_in_transaction_session_timeout")
    query = "SELECT " + ", ".join(f"current_setting('{name}')" for name in names)

    def look(lent: Any) -> None:
        slow.outcomes.append(lent.execute(query).fetchone())

    async def alook(lent: Any) -> None:
        slow.outcomes.append(await (await lent.execute(query)).fetchone())

    graph = slow.graph(look, alook)
    await bench.invoke(graph, ask(), thread())
    (lent,) = slow.connections
    for setting in ("SET statement_timeout = '20s'", "SET idle_in_transaction_session_timeout = '5s'"):
        found = lent.execute(setting)
        if bench.is_async:
            await found
    await bench.invoke(graph, ask(), thread("u"))
    assert slow.outcomes == [("31s", "31s"), ("20s", "5s")]


@pytest.mark.slow
def test_the_server_ends_what_a_stopped_process_cannot(dsn: str, schema: str, connection: psycopg.Connection) -> None:
    with PGStateSaver.from_conn_string(dsn, schema=schema) as saver:
        saver.setup()
    connection.execute(f"CREATE TABLE {schema}.bookings (room text)")
    inserted = FORK.Event()

    async def work() -> None:
        async with open_small(ToolLedger, dsn, schema) as bench:

            def stop(lent: Any) -> None:
                inserted.set()
                os.kill(os.getpid(), signal.SIGSTOP)
                threading.Event().wait(60)

            await bench.invoke(Slow(bench).graph(stop, in_nothing), ask(), thread())

    child = FORK.Process(target=lambda: asyncio.run(work()))
    child.start()
    try:
        assert inserted.wait(60)
        # Waits for the tool's lock on its row, which only the server can take away.
        connection.execute(f"ALTER TABLE {schema}.bookings ADD COLUMN seen boolean")
        assert connection.execute(f"SELECT count(*) FROM {schema}.bookings").fetchone() == (0,)
    finally:
        os.kill(child.pid or 0, signal.SIGKILL)
        child.join()
