"""Attempts that fail with their transaction, or before it began."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import psycopg
import pytest
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from support import GUARD_SECONDS, wait_until
from support.ledger import Bench, agent_graph, ask, thread

from langgraph_pgstate import AsyncPGState, PGState
from langgraph_pgstate.errors import DatabaseError, ToolSetupError
from langgraph_pgstate.tools import AsyncToolLedger, ToolLedger
from tests.tools.test_executor import BOOK, Slow, bench, in_nothing, open_small, state_of

__all__ = ["bench"]


async def test_a_transaction_that_cannot_be_committed_is_an_error(bench: Bench, connection: psycopg.Connection) -> None:
    schema = bench.saver.schema
    connection.execute(f"ALTER TABLE {schema}.bookings ADD UNIQUE (room) DEFERRABLE INITIALLY DEFERRED")
    connection.execute(f"INSERT INTO {schema}.bookings VALUES ('7')")
    with pytest.raises(DatabaseError, match="duplicate"):
        await bench.invoke(Slow(bench, timeout=GUARD_SECONDS).graph(lambda lent: None, in_nothing), ask(), thread())
    assert state_of(connection, schema) == ([("error", 1)], [("7",)])


async def test_a_transaction_that_a_tool_broke_is_an_error(bench: Bench, connection: psycopg.Connection) -> None:
    schema = bench.saver.schema

    def spoil(lent: Any) -> None:
        with suppress(psycopg.Error):
            lent.execute("SELECT 1 / 0")

    async def aspoil(lent: Any) -> None:
        with suppress(psycopg.Error):
            await lent.execute("SELECT 1 / 0")

    with pytest.raises(psycopg.errors.InFailedSqlTransaction):
        await bench.invoke(Slow(bench, timeout=GUARD_SECONDS).graph(spoil, aspoil), ask(), thread())
    assert state_of(connection, schema) == ([("error", 1)], [])


@pytest.mark.parametrize("code", ["53100", "53200", "57014", "25006"])
async def test_a_transaction_whose_outcome_cannot_be_written_had_no_effect(
    bench: Bench, connection: psycopg.Connection, code: str
) -> None:
    """A full disk or a time limit of the server's is no failure of the tool, and nothing to tell a model of."""
    schema = bench.saver.schema
    raising = f"BEGIN RAISE EXCEPTION 'no room' USING ERRCODE = '{code}'; END"
    connection.execute(f"CREATE FUNCTION {schema}.refuse() RETURNS trigger LANGUAGE plpgsql AS $${raising}$$")
    connection.execute(
        f"CREATE TRIGGER refuse BEFORE UPDATE ON {schema}.tool_executions FOR EACH ROW WHEN (NEW.status = 'success') "
        f"EXECUTE FUNCTION {schema}.refuse()"
    )
    graph = Slow(bench, timeout=GUARD_SECONDS).graph(lambda lent: None, in_nothing, handle_tool_errors=True)
    with pytest.raises(DatabaseError, match=r"book was rolled back, it had no effect, and may be run again.*no room"):
        await bench.invoke(graph, ask(), thread())
    assert state_of(connection, schema) == ([("pending", 1)], [])
    connection.execute(f"DROP FUNCTION {schema}.refuse CASCADE")
    await bench.invoke(graph, None, thread())
    assert state_of(connection, schema) == ([("success", 2)], [("7",)])


@pytest.mark.slow
async def test_a_tool_without_a_connection_has_not_begun(dsn: str, schema: str, connection: psycopg.Connection) -> None:
    async with open_small(ToolLedger, dsn, schema) as bench:
        connection.execute(f"CREATE TABLE {schema}.bookings (room text)")

        @tool
        @bench.ledger.transactional
        def book(room: str, connection: psycopg.Connection) -> str:
            """Book a room."""
            raise AssertionError("it must not run")

        node = ToolNode([book], awrap_tool_call=bench.ledger.acall, handle_tool_errors=True)
        graph = agent_graph(node, BOOK).compile(checkpointer=InMemorySaver())
        with pytest.raises(ToolSetupError, match="AsyncPGState"):
            await graph.ainvoke(ask(), thread())
        assert state_of(connection, schema) == ([("pending", 1)], [])


async def test_a_tool_that_is_cancelled_while_it_waits_for_its_connection_has_not_begun(
    dsn: str, schema: str, connection: psycopg.Connection
) -> None:
    async with open_small(AsyncToolLedger, dsn, schema) as bench:
        connection.execute(f"CREATE TABLE {schema}.bookings (room text)")
        graph = Slow(bench, timeout=None).graph(lambda lent: None, in_nothing)
        database, taken, left = bench.ledger._executor.database, asyncio.Event(), asyncio.Event()

        async def take() -> None:
            async with database.lend():
                taken.set()
                await left.wait()

        with connection.transaction():
            connection.execute(f"LOCK TABLE {schema}.tool_executions IN SHARE ROW EXCLUSIVE MODE")
            running = asyncio.create_task(graph.ainvoke(ask(), thread()))
            query = "SELECT 1 FROM pg_locks WHERE relation = %s::regclass AND NOT granted"
            waits = lambda: connection.execute(query, [f"{schema}.tool_executions"]).fetchall()  # noqa: E731
            await asyncio.to_thread(wait_until, waits, "the intent, which waits for the table")
            # It is next in the line for the only connection.
            taking = asyncio.create_task(take())
            await asyncio.sleep(0)
        await taken.wait()
        assert state_of(connection, schema) == ([("running", 1)], [])
        running.cancel()
        await asyncio.wait({running}, timeout=0.1)
        left.set()
        await taking
        with pytest.raises(asyncio.CancelledError):
            await running
        assert state_of(connection, schema) == ([("pending", 1)], [])


@pytest.mark.slow
def test_a_transactional_tool_does_not_wait_for_its_own_connection(
    dsn: str, schema: str, connection: psycopg.Connection
) -> None:
    with PGState.open(dsn, schema=schema, pool=False) as state:

        def book(room: str, connection: psycopg.Connection) -> str:
            return str(state.threads.get("t"))

        graph = node_of(state.tools.once(state.tools.transactional(book))).compile(checkpointer=state.saver)
        with pytest.raises(ToolSetupError, match="give a pool"):
            graph.invoke(ask(), thread())
        assert [one.status for one in state.tools.list("t")] == ["pending"]


async def test_an_asynchronous_transactional_tool_does_not_wait_for_its_own_connection(dsn: str, schema: str) -> None:
    async with AsyncPGState.open(dsn, schema=schema, pool=False) as state:

        async def book(room: str, connection: psycopg.AsyncConnection) -> str:
            return str(await state.threads.get("t"))

        graph = node_of(state.tools.once(state.tools.transactional(book))).compile(checkpointer=state.saver)
        with pytest.raises(ToolSetupError, match="give a pool"):
            await asyncio.wait_for(graph.ainvoke(ask(), thread()), GUARD_SECONDS)
        assert [one.status for one in await state.tools.list("t")] == ["pending"]


def node_of(once: Callable[..., Any]) -> StateGraph[Any, Any, Any, Any]:
    """A graph with one node, which books a room."""

    async def suspending(state: MessagesState) -> dict[str, Any]:
        await once("17")
        return {}

    def blocking(state: MessagesState) -> dict[str, Any]:
        once("17")
        return {}

    node: Any = suspending if inspect.iscoroutinefunction(once) else blocking
    return StateGraph(MessagesState).add_node("node", node).add_edge(START, "node")
