"""What follows from what is on record of an action."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import psycopg
import pytest
from langchain_core.tools import StructuredTool, tool
from support import GUARD_SECONDS
from support.ledger import Bench, ask, calls, thread, tool_of

from langgraph_pgstate import PGStateSaver
from langgraph_pgstate.errors import ToolFailedError, ToolOutcomeUnknownError
from langgraph_pgstate.schema.queries import queries
from langgraph_pgstate.tools import ToolRetry
from langgraph_pgstate.tools import executions as tool_executions
from langgraph_pgstate.tools.executions import Intent, Outcome, Recorded
from tests.tools.test_action_runner import divide
from tests.tools.test_ledger import CHARGE, Till, rows, run_and_lose
from tests.tools.test_ledger_more import of_api

pytestmark = pytest.mark.smoke


async def test_an_idempotent_tool_is_run_again_with_the_same_token(
    bench: Bench, connection: psycopg.Connection
) -> None:
    till = Till()
    bench.ledger.policy("charge", on_unknown="retry")
    graph = bench.agent([tool_of(bench, "charge", till.charge)], CHARGE)
    await run_and_lose(bench, graph, connection)
    await bench.invoke(graph, None, thread())
    assert till.charged == ["o1", "o1"]
    assert len(set(till.tokens)) == 1
    assert rows(connection, bench.saver.schema, "status, attempt") == [("success", 2)]


async def test_a_check_that_fails_leaves_it_unknown(bench: Bench, connection: psycopg.Connection) -> None:
    def unreachable(execution: Any) -> Any:
        raise OSError("no route")

    till = Till()
    bench.ledger.policy("charge", on_unknown="check", check=unreachable)
    graph = bench.agent([tool_of(bench, "charge", till.charge)], CHARGE, handle_tool_errors=True)
    await run_and_lose(bench, graph, connection)
    with pytest.raises(ToolOutcomeUnknownError, match="no route"):
        await bench.invoke(graph, None, thread())


def test_of_several_who_saw_the_same_one_goes_on(saver: PGStateSaver, connection: psycopg.Connection) -> None:
    """The compare-and-swaps, and that each is recognised when it is sent again after its answer was lost."""
    database, known = saver._database, queries(saver.schema)

    def intent(name: str) -> Intent:
        return Intent("t", "key", None, name, "charge", "{}")

    def begin(name: str) -> Any:
        return database.run(tool_executions.begin, known, intent(name), "holder", 15.0)

    def take_over(name: str, seen: Recorded, is_gone: bool = True) -> int:
        more = {"is_gone": is_gone, "answers": 0}
        return database.run(tool_executions.take_over, known, intent(name), seen, "holder", 15.0, **more)

    assert begin("a") == (1, None)
    assert begin("a") == (1, None)
    attempt, seen = begin("b")
    assert (attempt, seen.intent_id) == (0, "a")
    assert take_over("b", seen, is_gone=False) == 0
    assert take_over("b", seen) == 2
    assert take_over("b", seen) == 2
    assert take_over("c", seen) == 0
    assert not database.run(tool_executions.settle, known, seen, Outcome("error"), "d", is_gone=True, answers=0)
    database.run(tool_executions.mark_unknown, known, seen, is_gone=True)
    assert rows(connection, saver.schema, "status, intent_id, attempt") == [("running", "b", 2)]
    assert not database.run(tool_executions.finish, known, intent("a"), Outcome("success"))
    for _ in range(2):
        assert database.run(tool_executions.finish, known, intent("b"), Outcome("error"))
    _, seen = begin("e")
    for _ in range(2):
        assert database.run(tool_executions.settle, known, seen, Outcome("pending"), "f", is_gone=True, answers=3)
    assert take_over("g", seen) == 0
    assert rows(connection, saver.schema, "status, intent_id, answers") == [("pending", "f", 3)]


# The same action with other arguments


async def test_a_new_attempt_says_what_it_intends(bench: Bench, connection: psycopg.Connection) -> None:
    """A check, a person and a compensation go by the arguments of the attempt they are about."""
    refunded: list[Any] = []

    def charge(order: str, euros: int) -> str:
        """Charge a card."""
        if euros == 10:
            raise OSError("declined")
        return f"charged {euros}"

    def refund(execution: Any, result: Any) -> str:
        refunded.append(execution.arguments)
        return "refunded"

    bench.ledger.policy("charge", key=lambda args: args["order"], on_error="retry", retry=ToolRetry(attempts=2))
    charge_tool = bench.ledger.compensate(of_api(bench, refund))(tool(of_api(bench, charge)))
    bench.ledger.policy("charge", retry=ToolRetry(attempts=1))
    first = calls(("call_1", "charge", {"order": "o1", "euros": 10}))
    with pytest.raises(OSError, match="declined"):
        await bench.invoke(bench.agent([charge_tool], first), ask(), thread())
    bench.ledger.policy("charge", retry=ToolRetry(attempts=2))
    second = calls(("call_2", "charge", {"order": "o1", "euros": 20}))
    await bench.invoke(bench.agent([charge_tool], first, second), ask(), thread())
    assert rows(connection, bench.saver.schema, "status, arguments") == [("success", {"order": "o1", "euros": 20})]
    await bench.do(bench.ledger.compensate, "t")
    assert refunded == [{"order": "o1", "euros": 20}]


@pytest.mark.parametrize("ends", ["success", "error"])
@pytest.mark.parametrize("is_here", [True, False], ids=["this process", "another process"])
@pytest.mark.parametrize("how", ["copy", "fork"])
async def test_a_fork_made_while_a_tool_runs_waits_for_its_outcome(
    bench: Bench, connection: psycopg.Connection, how: str, is_here: bool, ends: str
) -> None:
    till = Till()
    begun, end = threading.Event(), threading.Event()
    if ends == "error":
        till.errors = [OSError("declined")]

    def charge(order: str) -> str:
        begun.set()
        assert end.wait(GUARD_SECONDS)
        return till.charge(order)

    async def later(order: str) -> str:
        return await asyncio.to_thread(charge, order)

    kind: Any = {"coroutine": later} if bench.is_async else {"func": charge}
    graph = bench.agent([StructuredTool.from_function(**kind, name="charge", description="charge")], CHARGE)
    first = asyncio.ensure_future(bench.invoke(graph, ask(), thread()))
    assert await asyncio.to_thread(begun.wait, GUARD_SECONDS)
    await divide(bench, how)
    if not is_here:
        # The rows of the fork are not renewed.
        connection.execute(
            f"""UPDATE {bench.saver.schema}.tool_executions SET holder_id = 'elsewhere/-/-/1/-/x',
            alive_until = now() + CASE thread_id WHEN 't' THEN interval '1 hour' ELSE interval '-1 s' END"""
        )
    second = asyncio.ensure_future(bench.invoke(graph, None, thread("u")))
    await asyncio.wait({second}, timeout=0.2)
    is_waiting = not second.done()
    end.set()
    answers = await asyncio.gather(first, second, return_exceptions=True)
    assert is_waiting
    if ends == "error":
        assert [type(one) for one in answers] == [OSError, ToolFailedError]
    else:
        assert [one["messages"][2].content for one in answers] == ["charged o1"] * 2
    assert len(till.tokens) == 1
    assert rows(connection, bench.saver.schema, "status") == [(ends,)] * 2


@pytest.mark.parametrize("how", ["copy", "fork"])
async def test_an_attempt_on_a_fork_at_what_was_begun_before_has_the_same_token(
    bench: Bench, connection: psycopg.Connection, how: str
) -> None:
    """Whoever is called elsewhere takes both for one; done there again, it is this thread's to take back."""
    till = Till()
    bench.ledger.policy("charge", on_unknown="retry")
    graph = bench.agent([tool_of(bench, "charge", till.charge)], CHARGE)
    await run_and_lose(bench, graph, connection)
    await divide(bench, how)
    await bench.invoke(graph, None, thread("u"))
    await bench.invoke(graph, None, thread())
    assert len(till.tokens) == 3
    assert len(set(till.tokens)) == 1
    bench.ledger.compensate(of_api(bench, lambda execution, result: "refunded"))(tool_of(bench, "charge", till.charge))
    report = await bench.do(bench.ledger.compensate, "u")
    assert (len(report.compensated), report.elsewhere) == (1, ())
