"""Who did what on a thread, in words: what was asked, what was decided, and by whom."""

from __future__ import annotations

import json
from typing import Any

import pytest
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import Command, interrupt
from support.pages import HOSTILE, state_of, travel
from support.record import Record

from langgraph_pgstate import AsyncPGState
from langgraph_pgstate.inspector.events import decisions_of
from langgraph_pgstate.inspector.forms import OUTCOME_UNKNOWN

from .conftest import Place

CALLS = [
    {"name": "pay", "args": {"to": "eve", "amount": 5}, "description": ""},
    {"name": "mail", "args": {"to": "adam"}, "description": ""},
]
ALLOWED = {"allowed_decisions": ["approve", "edit", "respond", "reject"]}
BATCH = {"action_requests": CALLS, "review_configs": [ALLOWED] * 2}


def asking(question: Any, *, times: int = 1) -> Any:
    """A graph that asks something."""

    def ask(_: MessagesState) -> dict[str, Any]:
        for _number in range(times):
            interrupt(question)
        return {}

    return StateGraph(MessagesState).add_node("ask", ask).add_edge(START, "ask").compile()


async def ask(state: AsyncPGState, thread_id: str, question: Any, *, recorded: bool = True) -> Any:
    """A thread that asks something; the graph, with which it goes on."""
    graph = asking(question).copy({"checkpointer": state.saver})
    graph = state.record(graph) if recorded else graph
    await graph.ainvoke({"messages": []}, {"configurable": {"thread_id": thread_id}})
    await state.flush()
    return graph


async def lines(place: Place, thread_id: str, **query: str) -> dict[str, list[str]]:
    """The lines of the events of a thread, by their titles; of several with one title, of the newest."""
    data = await place[1].data(f"/threads/{thread_id}", view="events", **query)
    return {one["title"]: one["lines"] for one in reversed(data["events"])}


async def test_the_decision_about_each_call_is_told(place: Place) -> None:
    server, visitor = place
    state = state_of(server)
    await visitor.introduce("Adam")
    graph = await ask(state, "t", BATCH)
    (pending,) = await state.interrupts.list("t")
    given = {"decision-0": "edit", "argument-0-0": "eve", "argument-0-1": "4", "decision-1": "reject"}
    response = await visitor.act(f"/interrupts/t/{pending.interrupt_id}/answer", **given, **{"reject-1": "<b>not him"})
    assert response.status_code == 303
    expected = ["edited pay: amount 5 → 4", 'rejected mail(to="adam"): “<b>not him”']
    assert (await lines(place, "t"))["answered"] == expected
    # Also when the thread has gone on, where nothing is recorded, and on a page that has only the answers.
    await graph.ainvoke(await state.interrupts.resume("t"), {"configurable": {"thread_id": "t"}})
    await state.flush()
    found = await lines(place, "t")
    assert (found["answered"], found["went on"]) == (expected, [])
    assert (await lines(place, "t", kind="answer"))["answered"] == expected
    page = await visitor.page("/threads/t", view="events")
    for part in ("Adam", "edited pay: amount 5 → 4", "“&lt;b&gt;not him”", "pay(to=&#34;eve&#34;, amount=5)"):
        assert part in page, part
    assert "action_requests" not in page
    assert "decisions" not in page
    await ask(state, "plain", BATCH, recorded=False)
    (pending,) = await state.interrupts.list("plain")
    decisions = [{"type": "approve"}, {"type": "respond", "message": "Later."}]
    await state.interrupts.answer("plain", {"decisions": decisions}, by="Eve")
    expected = ['approved pay(to="eve", amount=5)', 'responded to mail(to="adam"): “Later.”']
    assert (await lines(place, "plain"))["answered"] == expected


async def test_answers_of_programs_are_told_where_the_run_goes_on(place: Place) -> None:
    server, _ = place
    state = state_of(server)
    graph = await ask(state, "t", BATCH)
    decisions = {"decisions": [{"type": "approve"}, {"type": "reject"}]}
    await graph.ainvoke(Command(resume=decisions), {"configurable": {"thread_id": "t"}})
    await state.flush()
    found = await lines(place, "t")
    assert found["went on"] == ['approved pay(to="eve", amount=5)', 'rejected mail(to="adam")']
    assert found["asked"] == ['pay(to="eve", amount=5)', 'mail(to="adam")']


async def test_each_answer_is_told_of_an_interrupt_that_asks_again(place: Place) -> None:
    server, _ = place
    state = state_of(server)
    graph = state.record(asking({"question": "Sure?"}, times=2).copy({"checkpointer": state.saver}))
    config: Any = {"configurable": {"thread_id": "t"}}
    await graph.ainvoke({"messages": []}, config)
    for answer in ("yes", "quite"):
        await state.interrupts.answer("t", answer, by="Eve")
        await graph.ainvoke(await state.interrupts.resume("t"), config)
    await state.flush()
    data = await place[1].data("/threads/t", view="events", kind="answer")
    assert [one["lines"] for one in data["events"]] == [["quite"], ["yes"]]


async def test_a_fork_is_listed_once_with_who_made_it(place: Place) -> None:
    server, visitor = place
    state = state_of(server)
    ids = await travel(state)
    await visitor.introduce("Adam")
    await visitor.act("/threads/t/fork", at=ids[1], head=ids[0], to="mine")
    await state.threads.fork("t", ids[1], "by-code")
    for thread_id, title, other in (("t", "forked to", "mine"), ("mine", "forked from", "t")):
        data = await visitor.data(f"/threads/{thread_id}", view="events")
        (made,) = [one for one in data["events"] if one["thread_id"] == other]
        assert (made["title"], made["by"]) == (title, "Adam")
    data = await visitor.data("/threads/by-code", view="events")
    assert [(one["title"], one["thread_id"], one["by"]) for one in data["events"]] == [("forked from", "t", None)]
    page = await visitor.page("/threads/t", view="events")
    assert page.count('href="/ui/threads/mine"') == 1


async def test_actions_of_persons_are_told_in_words(place: Place, record: Record) -> None:
    server, visitor = place
    state = state_of(server)
    ids = await travel(state)
    await visitor.introduce("Adam")
    await visitor.act("/threads/t/label", at=ids[1], label="before <b>")
    record.execution("k", status="unknown", tool="pay")
    await state.tools.settle("t", "k", "done", by="Adam")
    response = await visitor.act("/threads/t/edit", at=ids[0], head=ids[0], values=json.dumps({"booking": {"a": 1}}))
    assert response.status_code == 303, response.text
    await visitor.act("/threads/t/label", at=ids[1], label="")
    found = await lines(place, "t")
    told = {title: found[title] for title in ("labelled", "removed the label", "settled", "edited")}
    assert told == {
        "labelled": ["“before <b>”"],
        "removed the label": [],
        "settled": ["pay: success"],
        "edited": ["booking"],
    }
    page = await visitor.page("/threads/t", view="events")
    head = (await state.threads.tree("t")).nodes[0].checkpoint_id
    assert f'href="/ui/threads/t?view=changes&amp;at={head}&amp;to={ids[0]}"' in page
    assert 'href="/ui/tools/t/k"' in page
    # What this version does not know is told, too; and nothing that is planted runs.
    await state.events.add("t", "weather", {"sky": HOSTILE, "by": 5})
    page = await visitor.page("/threads/t", view="events")
    assert "sky: &lt;script&gt;" in page
    assert "<script>alert" not in page


@pytest.mark.parametrize(
    ("question", "answer", "told"),
    [
        (None, {"decisions": [{"type": "approve"}]}, ["approved"]),
        (None, "yes", ["yes"]),
        ({"question": "Book it?"}, {"approved": True}, ['{"approved":true}']),
        (CALLS[0] | {"type": "tool_approval"}, {"type": "approve"}, ['approved pay(to="eve", amount=5)']),
        (
            [{"action_request": {"action": "pay", "args": {"amount": 5}}, "config": {}, "description": ""}],
            [{"type": "edit", "args": {"action": "pay", "args": {"amount": 4, "note": "x"}}}],
            ["edited pay: amount 5 → 4, note  → x"],
        ),
        (
            BATCH,
            {"decisions": [{"type": "edit", "edited_action": {"name": "ask", "args": {"a": 1}}}]},
            ["edited ask(a=1)"],
        ),
        (
            {"type": OUTCOME_UNKNOWN, "tool": "pay", "key": "k", "arguments": {"amount": 5}},
            {"k": "retry"},
            ["pay(amount=5): it did not: run it"],
        ),
        (BATCH, {"decisions": [{"type": "new"}]}, ["new"]),
        (BATCH, {"decisions": []}, ['{"decisions":[]}']),
    ],
)
def test_decisions_in_the_forms_of_libraries(question: Any, answer: Any, told: list[str]) -> None:
    assert decisions_of(question, answer) == told
