"""Executions of tools: what they were given and returned is encrypted, and a recorded result is used as before."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import Any

import psycopg
import pytest
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from support import GUARD_SECONDS
from support.ledger import LEDGERS, agent_graph, ask, calls, thread, tool_of
from support.ledger import Bench as LedgerBench

from langgraph_pgstate import (
    AsyncPGStateSaver,
    CallableMasterKey,
    Encryption,
    LocalMasterKey,
    PGStateSaver,
    PoolSettings,
)
from langgraph_pgstate.errors import DecryptionError, KeyUnavailableError
from langgraph_pgstate.schema.queries import queries
from langgraph_pgstate.tools import AsyncToolLedger, ToolLedger

MASTER = LocalMasterKey(bytes(range(32)))
GIVEN, RETURNED, RAISED = "planted-given", "planted-returned", "planted-raised"


def stored(connection: psycopg.Connection, schema: str) -> str:
    return str(connection.execute(f'SELECT t.*::text FROM "{schema}".tool_executions t').fetchall())


async def test_what_tools_are_given_and_return(dsn: str, schema: str, connection: psycopg.Connection) -> None:
    done: list[str] = []

    def charge(order: str) -> str:
        """Charge a card."""
        done.append(order)
        if order.endswith("fails"):
            raise ValueError(RAISED)
        return f"{RETURNED} {order}"

    encryption = Encryption(MASTER, scope="thread")
    with PGStateSaver.from_conn_string(dsn, schema=schema, encryption=encryption) as saver:
        ledger = ToolLedger(saver._database, queries(schema))
        bench = LedgerBench(saver, ledger)
        said = calls(("call_1", "charge", {"order": GIVEN}), ("call_2", "charge", {"order": f"{GIVEN} fails"}))
        graph = bench.agent([tool_of(bench, "charge", charge)], said, handle_tool_errors=True)
        answer = await bench.invoke(graph, ask(), thread())
        assert f"{RETURNED} {GIVEN}" in answer["messages"][2].content
        assert sorted(done) == [GIVEN, f"{GIVEN} fails"]
        first = ledger.get("t", "call_1")
        assert first is not None
        assert (first.arguments, first.preview) == ({"order": GIVEN}, f"{RETURNED} {GIVEN}")
        assert {found.idempotency_key for found in ledger.list("t")} == {"call_1", "call_2"}
        shown = stored(connection, schema)
        for secret in (GIVEN, RETURNED, RAISED):
            assert secret not in shown
            assert secret.encode().hex() not in shown
        # The copy has the results, and bound to its own rows: nothing is charged again.
        before = next(state for state in graph.get_state_history(thread()) if state.next and state.next[0] == "tools")
        saver.copy_thread("t", "copy")
        past = {"configurable": {**before.config["configurable"], "thread_id": "copy"}}
        answer = await bench.invoke(graph, None, past)
        assert f"{RETURNED} {GIVEN}" in answer["messages"][2].content
        assert done.count(GIVEN) == 1
        connection.execute(
            f"""UPDATE "{schema}".tool_executions e SET arguments = o.arguments FROM "{schema}".tool_executions o
            WHERE e.idempotency_key = 'call_1' AND o.idempotency_key = 'call_2' AND o.thread_id = e.thread_id"""
        )
        with pytest.raises(DecryptionError, match=r"tool_executions\.arguments"):
            ledger.get("t", "call_1")
        ledger.close()


async def test_what_was_erased_of_an_execution_can_be_read(
    dsn: str, schema: str, connection: psycopg.Connection
) -> None:
    """Guard: statements that empty a row write no content, and are not taken for plain content."""
    encryption = Encryption(MASTER)
    with PGStateSaver.from_conn_string(dsn, schema=schema, encryption=encryption) as saver:
        ledger: Any = ToolLedger(saver._database, queries(schema))
        bench = LedgerBench(saver, ledger)

        def charge(order: str) -> str:
            """Charge a card."""
            return order

        said = calls(("call_1", "charge", {"order": GIVEN}))
        graph = bench.agent([tool_of(bench, "charge", charge)], said)
        await bench.invoke(graph, ask(), {**thread(), "metadata": {"run_id": "run"}})

        async def clear(db: Any) -> None:
            given = {"thread_id": "t", "run_ids": ["run"], "inherited": False}
            await db.execute(queries(schema).clear_executions, given)

        saver._database.run(clear)
        found = ledger.get("t", "call_1")
        assert (found.arguments, found.preview, found.status) == ({}, None, "success")
        ledger.close()


@pytest.mark.slow
@pytest.mark.parametrize("api", LEDGERS)
@pytest.mark.parametrize("size", [1, 2])
async def test_a_data_key_that_expires_during_a_transactional_tool(
    dsn: str, schema: str, connection: psycopg.Connection, api: type, size: int
) -> None:
    """Guard: the key is loaded again while the tool's transaction is open, also if it has the only connection."""
    connection.execute(f'CREATE TABLE "{schema}".bookings (room text)')
    insert = f'INSERT INTO "{schema}".bookings VALUES (%s)'
    pool = PoolSettings(min_size=size, max_size=size)
    is_async = api is AsyncToolLedger
    opened: Any = AsyncPGStateSaver if is_async else PGStateSaver
    options = {"schema": schema, "pool": pool, "encryption": Encryption(MASTER, scope="thread")}
    async with AsyncExitStack() as stack:
        entered = opened.from_conn_string(dsn, **options)
        saver = await stack.enter_async_context(entered) if is_async else stack.enter_context(entered)
        bench = LedgerBench(saver, api(saver._database, queries(schema)))

        def book(room: str, connection: psycopg.Connection) -> str:
            """Book a room."""
            connection.execute(insert, [room])
            saver._database.keys.expire()
            return f"{RETURNED} {room}"

        async def abook(room: str, connection: psycopg.AsyncConnection) -> str:
            """Book a room."""
            await connection.execute(insert, [room])
            saver._database.keys.expire()
            return f"{RETURNED} {room}"

        booked = tool("book")(bench.ledger.transactional(abook if is_async else book))
        node = bench.tool_node([booked])
        graph = agent_graph(node, calls(("call_1", "book", {"room": GIVEN}))).compile(checkpointer=InMemorySaver())
        answer = await asyncio.wait_for(bench.invoke(graph, ask(), thread()), GUARD_SECONDS)
        assert answer["messages"][2].content == f"{RETURNED} {GIVEN}"
        found = await bench.do(bench.ledger.get, "t", "call_1")
        assert (found.status, found.preview) == ("success", f"{RETURNED} {GIVEN}")
        await bench.do(bench.ledger.close)
    assert connection.execute(f'SELECT * FROM "{schema}".bookings').fetchall() == [(GIVEN,)]


async def test_a_data_key_that_cannot_be_loaded_during_a_transactional_tool(
    dsn: str, schema: str, connection: psycopg.Connection
) -> None:
    """Guard: without its outcome, the tool is rolled back, which is not told to the model as a failure of the tool."""
    connection.execute(f'CREATE TABLE "{schema}".bookings (room text)')
    is_down = False

    def unwrap(key: bytes, context: Any) -> bytes:
        if is_down:
            raise TimeoutError("no answer")
        return MASTER.unwrap(key, context)

    encryption = Encryption(CallableMasterKey("own", MASTER.wrap, unwrap))
    with PGStateSaver.from_conn_string(dsn, schema=schema, encryption=encryption) as saver:
        ledger = ToolLedger(saver._database, queries(schema))
        bench = LedgerBench(saver, ledger)
        ring: Any = saver._database.keys

        @tool
        @ledger.transactional
        def book(room: str, connection: psycopg.Connection) -> str:
            """Book a room."""
            connection.execute(f'INSERT INTO "{schema}".bookings VALUES (%s)', [room])
            if is_down:
                ring._keys.clear()
            return room

        node = bench.tool_node([book], handle_tool_errors=True)
        graph = agent_graph(node, calls(("call_1", "book", {"room": "7"}))).compile(checkpointer=saver)
        is_down = True
        with pytest.raises(KeyUnavailableError, match=r"book was rolled back, it had no effect.*no answer"):
            await bench.invoke(graph, ask(), thread())
        assert connection.execute(f'SELECT * FROM "{schema}".bookings').fetchall() == []
        is_down = False
        await bench.invoke(graph, None, thread())
        assert connection.execute(f'SELECT * FROM "{schema}".bookings').fetchall() == [("7",)]
        ledger.close()
