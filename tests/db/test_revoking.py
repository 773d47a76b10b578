"""Connections that are taken away from who still uses them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import psycopg
import pytest
from support.ledger import LEDGERS, Bench, ask, thread

from langgraph_pgstate import PGStateSaver
from langgraph_pgstate.errors import ToolSetupError, ToolTimeoutError
from langgraph_pgstate.schema.queries import queries
from langgraph_pgstate.tools import ToolLedger
from tests.tools.test_executor import Slow, in_astatement, in_nothing, in_statement, open_small, state_of, until


@pytest.fixture(params=LEDGERS, ids=lambda api: api.__name__)
async def bench(
    request: pytest.FixtureRequest, dsn: str, schema: str, connection: psycopg.Connection
) -> AsyncIterator[Bench]:
    async with open_small(request.param, dsn, schema) as bench:
        connection.execute(f"CREATE TABLE {schema}.bookings (room text)")
        yield bench


@contextmanager
def stubborn(slow: Slow) -> Iterator[tuple[Any, Any]]:
    """Bodies of a tool that does not end with its time, and tries to go on and to commit at the end of the block."""
    go_on = threading.Event()

    def then(lent: Any) -> None:
        with lent.transaction():
            go_on.wait(60)
            for text in (f"INSERT INTO {slow.bench.saver.schema}.bookings VALUES ('late')", "COMMIT"):
                try:
                    lent.execute(text)
                    slow.outcomes.append(text)
                except psycopg.Error as error:
                    slow.outcomes.append(error)

    async def athen(lent: Any) -> None:
        async with lent.transaction():
            while not go_on.is_set():
                with suppress(asyncio.CancelledError):
                    await asyncio.sleep(0.01)
            for text in (f"INSERT INTO {slow.bench.saver.schema}.bookings VALUES ('late')", "COMMIT"):
                try:
                    await lent.execute(text)
                    slow.outcomes.append(text)
                except psycopg.Error as error:
                    slow.outcomes.append(error)

    try:
        yield then, athen
    finally:
        go_on.set()


async def test_a_statement_that_takes_too_long_is_cancelled(bench: Bench, connection: psycopg.Connection) -> None:
    schema = bench.saver.schema
    slow = Slow(bench)
    with pytest.raises(ToolTimeoutError):
        await bench.invoke(slow.graph(in_statement, in_astatement), ask(), thread())
    assert state_of(connection, schema) == ([("timeout", 1)], [])
    # It ended when it was told to: its connection goes on, clean.
    (lent,) = slow.connections
    assert not lent.closed
    assert lent.pgconn.transaction_status == psycopg.pq.TransactionStatus.IDLE
    again = Slow(bench)
    await bench.invoke(again.graph(lambda lent: None, in_nothing), ask(), thread("u"))
    assert again.connections == [lent]
    assert state_of(connection, schema)[1] == [("7",)]


@pytest.mark.slow
async def test_a_tool_that_goes_on_has_lost_its_connection(bench: Bench, connection: psycopg.Connection) -> None:
    schema = bench.saver.schema
    slow = Slow(bench)
    with stubborn(slow) as bodies:
        with pytest.raises(ToolTimeoutError):
            await bench.invoke(slow.graph(*bodies), ask(), thread())
        assert state_of(connection, schema) == ([("timeout", 1)], [])
        assert not slow.ended.is_set()
        # The pool has another one.
        again = Slow(bench, timeout=30)
        await bench.invoke(again.graph(lambda lent: None, in_nothing), ask(), thread("u"))
        assert again.connections != slow.connections
    await until(slow.ended.is_set)
    assert [type(error) for error in slow.outcomes] == [psycopg.OperationalError] * 2
    assert state_of(connection, schema) == ([("timeout", 1), ("success", 1)], [("7",)])
    assert connection.execute(
        "SELECT count(*) FROM pg_stat_activity WHERE state LIKE 'idle in transaction%' AND pid <> pg_backend_pid()"
    ).fetchone() == (0,)


async def test_a_callers_only_connection_is_not_taken_away(
    dsn: str, schema: str, connection: psycopg.Connection
) -> None:
    with psycopg.connect(dsn, autocommit=True) as mine:
        saver = PGStateSaver(mine, schema=schema)
        saver.setup()
        connection.execute(f"CREATE TABLE {schema}.bookings (room text)")
        ledger = ToolLedger(saver._database, queries(schema))
        bench = Bench(saver, ledger)
        graph = Slow(bench).graph(lambda lent: None, in_nothing, handle_tool_errors=True)
        with pytest.raises(ToolSetupError, match="only connection"):
            await bench.invoke(graph, ask(), thread())
        assert state_of(connection, schema) == ([], [])
        ledger.close()
