"""People who are asked for an outcome, and the answer each question gets."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any
from uuid import UUID

import psycopg
import pytest
from langgraph.types import Command, interrupt
from support.ledger import Bench, ask, calls, thread, tool_of

from langgraph_pgstate.errors import ToolFailedError, ToolOutcomeUnknownError
from tests.tools.test_ledger import CHARGE, Till, leave_behind, rows, run_and_lose
from tests.tools.test_ledger_more import of_api, one_node

pytestmark = pytest.mark.smoke


@pytest.mark.parametrize(
    ("word", "charged", "content"),
    [
        ("done", 1, "done"),
        ({"decision": "done", "result": "yes"}, 1, "yes"),
        ({"call_1#1": "done"}, 1, "done"),
        ("retry", 2, "charged o1"),
        ("fail", 1, None),
    ],
)
async def test_a_person_is_asked(
    bench: Bench, connection: psycopg.Connection, word: Any, charged: int, content: str | None
) -> None:
    till = Till()
    bench.ledger.policy("charge", on_unknown="ask")
    graph = bench.agent([tool_of(bench, "charge", till.charge)], CHARGE)
    await run_and_lose(bench, graph, connection)
    stopped = await bench.invoke(graph, None, thread())
    question = stopped["__interrupt__"][0].value
    assert (question["tool"], question["arguments"], question["id"]) == ("charge", {"order": "o1"}, "call_1#1")
    json.dumps(question)
    again = await bench.invoke(graph, Command(resume="perhaps"), thread())
    assert again["__interrupt__"][0].value == question
    assert len(till.charged) == 1
    if content is None:
        with pytest.raises(ToolFailedError):
            await bench.invoke(graph, Command(resume=word), thread())
    else:
        state = await bench.invoke(graph, Command(resume=word), thread())
        assert state["messages"][2].content == content
    assert len(till.charged) == charged


class Died(BaseException):
    """Ends a tool as nothing that anybody catches."""


@pytest.mark.parametrize("word", ["retry", {"call_1#1": "retry"}])
async def test_an_old_answer_does_not_settle_a_later_attempt(
    bench: Bench, connection: psycopg.Connection, word: Any
) -> None:
    till = Till()

    def charge(order: str) -> str:
        """Charge a card, and die of it the second time."""
        answer = till.charge(order)
        if len(till.charged) == 2:
            raise Died
        return answer

    bench.ledger.policy("charge", on_unknown="ask")
    graph = bench.agent([tool_of(bench, "charge", charge)], CHARGE)
    await run_and_lose(bench, graph, connection)
    await bench.invoke(graph, None, thread())
    # A person says that it may be run; it is, and is lost again.
    with pytest.raises(Died):
        await bench.invoke(graph, Command(resume=word), thread())
    assert rows(connection, bench.saver.schema, "status, attempt, answers") == [("unknown", 2, 1)]
    stopped = await bench.invoke(graph, None, thread())
    assert len(till.charged) == 2
    assert stopped["__interrupt__"][0].value["attempt"] == 2
    state = await bench.invoke(graph, Command(resume="done"), thread())
    assert state["messages"][2].content == "done"
    assert len(till.charged) == 2


async def test_two_questions_of_one_task_are_told_apart(bench: Bench, connection: psycopg.Connection) -> None:
    till = Till()
    both = calls(("call_1", "charge", {"order": "o1"}), ("call_2", "charge", {"order": "o2"}))
    bench.ledger.policy("charge", on_unknown="ask")
    graph = bench.agent([tool_of(bench, "charge", till.charge)], both)
    await run_and_lose(bench, graph, connection)
    stopped = await bench.invoke(graph, None, thread())
    assert stopped["__interrupt__"][0].value["open"] == ["call_1#1", "call_2#1"]
    # A plain word could be meant for either.
    still = await bench.invoke(graph, Command(resume="retry"), thread())
    assert still["__interrupt__"]
    assert sorted(till.charged) == ["o1", "o2"]
    state = await bench.invoke(graph, Command(resume={"call_2#1": "done", "call_1#1": "retry"}), thread())
    while "__interrupt__" in state:
        state = await bench.invoke(graph, Command(resume={"call_2#1": "done", "call_1#1": "retry"}), thread())
    assert sorted(till.charged) == ["o1", "o1", "o2"]
    assert [message.content for message in state["messages"][2:4]] == ["charged o1", "done"]


async def test_nobody_can_be_asked_outside_of_a_graph(bench: Bench, connection: psycopg.Connection) -> None:
    till = Till()

    def refund(execution: Any, result: Any) -> str:
        return "refunded"

    bench.ledger.policy("refund", on_unknown="ask")
    bench.ledger.compensate(of_api(bench, refund))(tool_of(bench, "charge", till.charge))
    graph = bench.agent([tool_of(bench, "charge", till.charge)], CHARGE)
    await bench.invoke(graph, ask(), thread())
    await bench.do(bench.ledger.compensate, "t")
    connection.execute(
        f"""UPDATE {bench.saver.schema}.tool_executions SET compensated_at = NULL, alive_until = now(), holder_id = 'x',
        status = CASE WHEN compensates IS NOT NULL THEN 'running' ELSE status END"""
    )
    report = await bench.do(bench.ledger.compensate, "t")
    assert [type(error) for _, error in report.failed] == [ToolOutcomeUnknownError]
    assert "no graph" in str(report.failed[0][1])


# Answers


@pytest.mark.parametrize("word", ["yes", "fail"])
async def test_an_answer_given_to_what_is_on_record_is_not_given_to_the_next_question(bench: Bench, word: str) -> None:
    """A tool that was allowed is not asked again; what the task asks after it is another question."""
    allowed: list[str] = []

    def charge(order: str) -> str:
        """Charge a card if somebody agrees, twice."""
        allowed.append(interrupt(f"may I charge {order}?") + interrupt("really?"))
        if word == "fail":
            raise OSError("declined")
        return "charged"

    once = bench.ledger.once(of_api(bench, charge))
    got: list[str] = []

    def body(state: Any) -> Any:
        for order in ("o1", "o2"):
            yield settled(once, order, bench.is_async)
            got.append(interrupt(f"and now, after {order}?"))

    graph = one_node(bench, body)
    state = await bench.invoke(graph, ask(), thread())
    asked = []
    for answer in "abcdef":
        asked.append(state["__interrupt__"][0].value)
        state = await bench.invoke(graph, Command(resume=answer), thread())
    assert "__interrupt__" not in state
    assert asked == [
        *("may I charge o1?", "really?", "and now, after o1?"),
        *("may I charge o2?", "really?", "and now, after o2?"),
    ]
    assert allowed == ["ab", "de"]
    assert got[-2:] == ["c", "f"]


def settled(once: Any, order: str, is_async: bool) -> Any:
    """Call a function, and take its error for an answer."""

    async def suspending() -> Any:
        with suppress(OSError, ToolFailedError):
            return await once(order)

    if is_async:
        return suspending()
    with suppress(OSError, ToolFailedError):
        return once(order)


async def test_a_word_on_an_unknown_outcome_is_not_given_to_the_next_question(
    bench: Bench, connection: psycopg.Connection
) -> None:
    got: list[str] = []

    def ship(order: str) -> str:
        """Ship an order."""
        return "shipped"

    once = bench.ledger.once(of_api(bench, ship), on_unknown="ask")
    fail = [True]

    def body(state: Any) -> Any:
        yield once("o1")
        if fail and fail.pop():
            raise OSError("after the effect")
        got.append(interrupt("and now?"))

    graph = one_node(bench, body)
    with pytest.raises(OSError, match="after"):
        await bench.invoke(graph, ask(), thread())
    leave_behind(connection, bench.saver.schema)
    state = await bench.invoke(graph, None, thread())
    assert state["__interrupt__"][0].value["type"] == "tool_outcome_unknown"
    state = await bench.invoke(graph, Command(resume="done"), thread())
    assert state["__interrupt__"][0].value == "and now?"
    await bench.invoke(graph, Command(resume="later"), thread())
    assert got == ["later"]


@pytest.mark.parametrize("decision", ["done", "fail", "retry"])
@pytest.mark.parametrize("is_begun", [True, False], ids=["unknown", "pending"])
async def test_an_answer_to_what_another_person_has_settled_is_not_given_to_the_next_question(
    bench: Bench, connection: psycopg.Connection, decision: str, is_begun: bool
) -> None:
    """One person settles it on a page, the other answers its interrupt in the chat."""
    got: list[str] = []
    settled_by: list[str] = []

    def ship(order: str) -> str:
        """Ship an order, which is asked for before if nothing was recorded."""
        if not is_begun and not settled_by:
            interrupt("may I?")
        return "shipped"

    once = bench.ledger.once(of_api(bench, ship), on_unknown="ask")
    fail = [is_begun]

    def body(state: Any) -> Any:
        got.append(interrupt("before?"))
        yield settled(once, "o1", bench.is_async)
        if fail.pop() if fail else False:
            raise OSError("after the effect")
        got.append(interrupt("and now?"))
        got.append(interrupt("sure?"))

    graph = one_node(bench, body)
    await bench.invoke(graph, ask(), thread())
    if is_begun:
        with pytest.raises(OSError, match="after"):
            await bench.invoke(graph, Command(resume="first"), thread())
        leave_behind(connection, bench.saver.schema)
        await bench.invoke(graph, None, thread())
    else:
        await bench.invoke(graph, Command(resume="first"), thread())
    ((key, status),) = rows(connection, bench.saver.schema, "idempotency_key, status")
    assert status == ("unknown" if is_begun else "pending")
    settled_by.append("Eve")
    await bench.do(bench.ledger.settle, "t", key, decision, by="Eve")
    state = await bench.invoke(graph, Command(resume="done"), thread())
    assert state["__interrupt__"][0].value == "and now?"
    for answer, question in (("later", "sure?"), ("yes", None)):
        state = await bench.invoke(graph, Command(resume=answer), thread())
        assert [one.value for one in state.get("__interrupt__", ())] == ([question] if question else [])
    assert got[-3:] == ["first", "later", "yes"]


async def test_what_a_person_has_given_up_is_not_retried(bench: Bench, connection: psycopg.Connection) -> None:
    till = Till()
    bench.ledger.policy("charge", on_unknown="ask", on_error="retry")
    graph = bench.agent([tool_of(bench, "charge", till.charge)], CHARGE)
    await run_and_lose(bench, graph, connection)
    await bench.invoke(graph, None, thread())
    with pytest.raises(ToolFailedError, match="a person"):
        await bench.invoke(graph, Command(resume="fail"), thread())
    with pytest.raises(ToolFailedError, match="a person"):
        await bench.invoke(graph, None, thread())
    assert len(till.charged) == 1


async def test_what_follows_what_is_on_record_is_asked_once_after_a_crash(bench: Bench) -> None:
    """The process died between the receipt and the task's end, and takes the answer to the tool's question along."""
    asked: list[str] = []
    got: list[str] = []

    def charge(order: str) -> str:
        """Charge a card if somebody agrees."""
        return str(interrupt("may I?"))

    once = bench.ledger.once(of_api(bench, charge))
    fail = [True]

    def body(state: Any) -> Any:
        interrupt("before?")
        yield once("o1")
        if fail and fail.pop():
            raise OSError("after the receipt")
        got.append(interrupt("and now?"))

    graph = one_node(bench, body)

    async def go_on(state: Any, answer: str) -> Any:
        asked.append(state["__interrupt__"][0].value)
        return await bench.invoke(graph, Command(resume={state["__interrupt__"][0].id: answer}), thread())

    state = await go_on(await bench.invoke(graph, ask(), thread()), "a")
    with pytest.raises(OSError, match="receipt"):
        await go_on(state, "b")
    await bench.invoke(graph, None, thread())
    state = await go_on(await bench.invoke(graph, None, thread()), "c")
    assert "__interrupt__" not in state
    assert asked == ["before?", "may I?", "and now?"]
    assert got == ["c"]


async def test_an_answer_given_to_what_a_check_vouches_for_is_not_given_to_the_next_question(
    bench: Bench, connection: psycopg.Connection
) -> None:
    got: list[str] = []

    def charge(order: str) -> str:
        """Charge a card if somebody agrees."""
        interrupt("may I?")
        raise OSError("after the effect")

    once = bench.ledger.once(of_api(bench, charge), on_unknown="check", check=lambda execution: True)

    def body(state: Any) -> Any:
        yield once("o1")
        got.append(interrupt("and now?"))

    graph = one_node(bench, body)
    await bench.invoke(graph, ask(), thread())
    with pytest.raises(OSError, match="effect"):
        await bench.invoke(graph, Command(resume="yes"), thread())
    # As if the process had been killed: neither the ledger nor LangGraph knows that the answer was used.
    schema = bench.saver.schema
    leave_behind(connection, schema)
    connection.execute(f"UPDATE {schema}.tool_executions SET answers = 0")
    connection.execute(f"DELETE FROM {schema}.writes WHERE idx < 0 AND task_id <> '{UUID(int=0)}'")
    state = await bench.invoke(graph, None, thread())
    assert state["__interrupt__"][0].value == "and now?"
    await bench.invoke(graph, Command(resume="later"), thread())
    assert got == ["later"]
