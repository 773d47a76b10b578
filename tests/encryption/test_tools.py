"""Executions of tools: what they were given and returned is encrypted, and a recorded result is used as before."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
from support.ledger import Bench as LedgerBench
from support.ledger import ask, calls, thread, tool_of

from langgraph_pgstate import Encryption, LocalMasterKey, PGStateSaver
from langgraph_pgstate.errors import DecryptionError
from langgraph_pgstate.schema.queries import queries
from langgraph_pgstate.tools import ToolLedger

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
