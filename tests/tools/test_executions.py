"""Rows of tool executions: taken over, overtaken, and gone with their thread."""

from __future__ import annotations

import psycopg
import pytest
from support.ledger import LEDGERS, Bench, ask, open_bench, thread, tool_of
from support.record import Record

from langgraph_pgstate import PGStateSaver
from langgraph_pgstate.errors import (
    AlreadySettledError,
    ConfigurationError,
    ToolBusyError,
    ToolOvertakenError,
    ToolSetupError,
)
from langgraph_pgstate.schema.queries import queries
from langgraph_pgstate.tools import ToolLedger, ToolSettings
from tests.tools.test_ledger import CHARGE, Till, leave_behind, rows

pytestmark = pytest.mark.smoke


async def test_one_that_was_overtaken_does_not_write_its_outcome(bench: Bench, connection: psycopg.Connection) -> None:
    def charge(order: str) -> str:
        """Charge a card, while somebody else takes the action over."""
        connection.execute(f"UPDATE {bench.saver.schema}.tool_executions SET intent_id = 'another'")
        return "mine"

    graph = bench.agent([tool_of(bench, "charge", charge)], CHARGE)
    with pytest.raises(ToolOvertakenError):
        await bench.invoke(graph, ask(), thread())
    assert rows(connection, bench.saver.schema, "status, preview") == [("running", None)]


async def test_a_thread_deleted_while_a_tool_runs_stays_deleted(bench: Bench, connection: psycopg.Connection) -> None:
    def charge(order: str) -> str:
        """Charge a card, while somebody deletes the thread."""
        connection.execute(f"DELETE FROM {bench.saver.schema}.tool_executions")
        return "mine"

    graph = bench.agent([tool_of(bench, "charge", charge)], CHARGE)
    state = await bench.invoke(graph, ask(), thread())
    assert state["messages"][2].content == "mine"
    assert rows(connection, bench.saver.schema, "status") == []


@pytest.mark.slow
async def test_what_runs_elsewhere_is_waited_for_until_its_time_has_passed(
    dsn: str, schema: str, connection: psycopg.Connection
) -> None:
    """Of another machine only its signs of life tell whether it lives."""
    for number, api in enumerate(LEDGERS):
        till = Till()
        async with open_bench(api, dsn, schema, settings=ToolSettings(wait_seconds=0.2)) as bench:
            bench.ledger.policy("charge", on_unknown="retry")
            graph = bench.agent([tool_of(bench, "charge", till.charge)], CHARGE)
            await bench.invoke(graph, ask(), thread(f"t{number}"))
            states = [state async for state in graph.aget_state_history(thread(f"t{number}"))]
            past = next(state for state in states if state.next == ("tools",)).config
            leave_behind(connection, schema)
            connection.execute(f"UPDATE {schema}.tool_executions SET alive_until = now() + interval '1 h'")
            with pytest.raises(ToolBusyError, match="elsewhere") as raised:
                await bench.invoke(graph, None, past)
            assert raised.value.retryable
            with pytest.raises(ConfigurationError, match="cannot be settled"):
                await bench.do(bench.ledger.settle, f"t{number}", "call_1", "done")
            connection.execute(f"UPDATE {schema}.tool_executions SET alive_until = now()")
            await bench.invoke(graph, None, past)
            assert till.charged == ["o1", "o1"]


# A caller's own connection


async def test_an_intent_that_could_be_rolled_back_lets_no_tool_run(
    dsn: str, schema: str, connection: psycopg.Connection
) -> None:
    till = Till()
    with psycopg.connect(dsn) as mine:
        saver = PGStateSaver(mine, schema=schema)
        saver.setup()
        mine.commit()
        ledger = ToolLedger(saver._database, queries(schema))
        bench = Bench(saver, ledger)
        graph = bench.agent([tool_of(bench, "charge", till.charge)], CHARGE, handle_tool_errors=True)
        mine.execute("SELECT 1")
        with pytest.raises(ToolSetupError, match="in a transaction"):
            graph.invoke(ask(), thread())
        assert till.charged == []
        mine.rollback()
        graph.invoke(ask(), thread())
        assert till.charged == ["o1"]
        mine.rollback()
        assert rows(connection, schema, "status") == [("success",)]
        ledger.close()


@pytest.mark.parametrize("first", ["fail", "retry"])
@pytest.mark.parametrize("status", ["unknown", "error"])
async def test_a_decision_is_changed_only_by_who_has_seen_it(
    bench: Bench, connection: psycopg.Connection, status: str, first: str
) -> None:
    connection.execute(
        f"""INSERT INTO {bench.saver.schema}.tool_executions (thread_id, idempotency_key, tool, status, alive_until,
        arguments) VALUES ('t', 'k', 'pay', %s, now(), '{{}}')""",
        [status],
    )
    await bench.do(bench.ledger.settle, "t", "k", first, by="eve")
    for second in ("done", "retry", "fail"):
        with pytest.raises(AlreadySettledError, match="has been settled"):
            await bench.do(bench.ledger.settle, "t", "k", second, by="adam")
    seen = await bench.do(bench.ledger.get, "t", "k")
    await bench.do(bench.ledger.settle, "t", "k", "done", seen=seen)
    assert (await bench.do(bench.ledger.get, "t", "k")).status == "success"


async def test_who_settles_an_effect_is_an_event(dsn: str, schema: str, connection: psycopg.Connection) -> None:
    record = Record(connection, schema)
    for number, api in enumerate(LEDGERS):
        async with open_bench(api, dsn, schema) as bench:
            record.execution(f"k{number}", status="unknown", run_id="r")
            await bench.do(bench.ledger.settle, "t", f"k{number}", "fail", by="eve")
            with pytest.raises(ConfigurationError):
                await bench.do(bench.ledger.settle, "t", f"k{number}", "guess", by="eve")
    assert record.rows("SELECT kind, run_id, payload FROM events ORDER BY event_id") == [
        ("action", "r", {"action": "settle", "by": "eve", "tool": "pay", "key": f"k{number}", "status": "error"})
        for number in range(len(LEDGERS))
    ]
