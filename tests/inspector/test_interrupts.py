"""The page of interrupts: what is asked, the answers that are offered, and the answer of a named person."""

from __future__ import annotations

import asyncio
import re
from dataclasses import replace
from html import escape
from typing import Any

import pytest
from langchain_core.messages import HumanMessage
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.types import Command, interrupt
from support.pages import (
    HOSTILE,
    fields_of,
    forms_of,
    inspected,
    read_together,
    state_of,
    statements,
    travel,
    visiting,
    without_bdi,
)
from support.record import at

from langgraph_pgstate import AsyncWorker
from langgraph_pgstate.inspector.interrupts import _shown
from langgraph_pgstate.interrupts.api import AsyncInterrupts
from langgraph_pgstate.interrupts.types import InterruptedThread, PendingInterrupt


def asked(value: Any, schema: Any = None) -> PendingInterrupt:
    """An interrupt."""
    return PendingInterrupt("i", value, at(0), schema, "task", None)


@pytest.mark.slow
async def test_a_named_person_answers(dsn: str, schema: str) -> None:
    async with inspected(dsn, schema) as (server, visitor):
        state = state_of(server)
        await travel(state, "t", metadata={"owner": "a"})
        await state.threads.set_title("t", HOSTILE)
        with statements() as sent:
            html = await visitor.page("/interrupts")
        assert len(sent) <= 5, sent
        assert "<script>alert" not in html
        assert "Book it?" in html
        assert "Say who you are to answer" in html
        (waiting,) = (await visitor.data("/interrupts"))["threads"]
        interrupt_id = waiting["interrupts"][0]["interrupt_id"]
        path = f"/interrupts/t/{interrupt_id}/answer"
        assert (await visitor.act(path, answer="yes")).status_code == 403
        await visitor.introduce("Eve")
        assert f'action="/ui{path}"' in await visitor.page("/interrupts")
        for fields in ({}, {"answer": "  "}, {"choice": "{"}):
            assert (await visitor.act(path, **fields)).status_code == 422
        assert (await visitor.act("/interrupts/t/none/answer", answer="yes")).status_code == 404
        answered = await visitor.act(path, answer='{"ok": true}')
        assert answered.headers["location"] == (f"/ui/interrupts?notice=interrupt.answer&of=t&answered={interrupt_id}")
        notice = (await visitor.client.get(answered.headers["location"])).text
        run_on = forms_of(notice)["/threads/t/run"]
        assert (run_on["head"], run_on["mode"]) == (waiting["checkpoint_id"], "on")
        assert "Answered just now by Eve: {&#34;ok&#34;:true}" in notice
        await visitor.introduce("Adam")
        refused = await visitor.act(path, answer="no")
        assert (refused.status_code, "Answered just now by Eve" in refused.text) == (409, True)
        alone = await visitor.page("/interrupts", thread="t", id=interrupt_id)
        assert "Answered just now by Eve" in alone
        assert "/threads/t/run" in forms_of(alone)
        # A page on which the question stood asks who has answered it.
        told = await visitor.data("/interrupts", thread="t", id=interrupt_id)
        assert told["told"] == 'Answered just now by Eve: {"ok":true}'
        # Until somebody runs it on, the thread is in a list of its own.
        with statements() as sent:
            unused = await visitor.page("/interrupts", show="answered")
        assert len(sent) <= 5, sent
        assert "Answered just now by Eve" in unused
        forms = [forms_of(unused)["/threads/t/run"], run_on]
        assert (await visitor.act("/threads/t/run", **forms[0])).status_code == 303
        second = await visitor.act("/threads/t/run", **forms[1])
        assert (second.status_code, "run on just now by Adam" in second.text) == (409, True)
        assert "/threads/t/run" not in forms_of(await visitor.page("/interrupts", thread="t", id=interrupt_id))
        (answer,) = await state.interrupts.answers("t")
        assert (answer.value, answer.answered_by) == ({"ok": True}, "Eve")
        assert "No thread waits for an answer" in await visitor.page("/interrupts")
        events = await state.events.list("t", kind="answer")
        assert [one.payload["by"] for one in events.items] == ["Eve"]


async def test_two_persons_answer_at_once(dsn: str, schema: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with inspected(dsn, schema) as (server, eve), visiting(server) as adam:
        state = state_of(server)
        await travel(state)
        await eve.introduce("Eve")
        await adam.introduce("Adam")
        (pending,) = await state.interrupts.list("t")
        path = f"/interrupts/t/{pending.interrupt_id}/answer"
        form = forms_of(await eve.page("/interrupts"))[path]
        read_together(monkeypatch, AsyncInterrupts, "list")
        sent = await asyncio.gather(eve.act(path, **form, answer="yes"), adam.act(path, **form, answer="no"))
        assert sorted(one.status_code for one in sent) == [303, 409], [one.text for one in sent]
        winner, said, late = ("Eve", "yes", sent[1]) if sent[0].status_code == 303 else ("Adam", "no", sent[0])
        assert f"Answered just now by {winner}: {said}. Your answer was not sent." in without_bdi(late.text)
        (answer,) = await state.interrupts.answers("t")
        assert (answer.value, answer.answered_by) == (said, winner)
        assert [one.payload["by"] for one in (await state.events.list("t", kind="answer")).items] == [winner]


@pytest.mark.slow
async def test_an_answer_waits_for_a_run_that_may_answer(dsn: str, schema: str) -> None:
    async with inspected(dsn, schema) as (server, visitor):
        state = state_of(server)
        asking = await state.runs.enqueue("trip", {"messages": []}, thread_id="t")
        async with AsyncWorker(state, {"trip": approval("Book it?")}):
            await asking.wait(30)
        other = await state.runs.enqueue("trip", command=Command(resume="yes"), thread_id="t")
        await visitor.introduce("Eve")
        (pending,) = await state.interrupts.list("t")
        path = f"/interrupts/t/{pending.interrupt_id}/answer"
        refused = await visitor.act(path, answer="not now")
        assert (refused.status_code, "may answer the interrupt first" in refused.text) == (409, True)
        assert "not now</textarea>" in refused.text
        await other.cancel()
        assert (await visitor.act(path, answer="not now")).status_code == 303


@pytest.mark.slow
async def test_a_copy_has_an_answer_of_its_own(dsn: str, schema: str) -> None:
    async with inspected(dsn, schema) as (server, eve), visiting(server) as adam:
        state = state_of(server)
        await travel(state, "source")
        await state.saver.acopy_thread("source", "copy")
        await eve.introduce("Eve")
        await adam.introduce("Adam")
        (pending,) = await state.interrupts.list("source")
        paths = [f"/interrupts/{one}/{pending.interrupt_id}/answer" for one in ("source", "copy")]
        forms = [forms_of(await one.page("/interrupts")) for one in (eve, adam)]
        assert (await eve.act(paths[0], **forms[0][paths[0]], answer="yes")).status_code == 303
        assert (await adam.act(paths[1], **forms[1][paths[1]], answer="no")).status_code == 303
        for path, by in ((paths[0], "Eve: yes"), (paths[1], "Adam: no")):
            late = await adam.act(path, **forms[1][path], answer="later")
            assert (late.status_code, f"Answered just now by {by}" in without_bdi(late.text)) == (409, True)
        # A thread that has gone on is not run on with its answer.
        query = {"thread": "source", "id": pending.interrupt_id}
        assert "/threads/source/run" in forms_of(await eve.page("/interrupts", **query))
        head = (await state.threads.tree("source")).nodes[0].checkpoint_id
        assert (await eve.act("/threads/source/edit", at=head, values="{}", as_node="plan")).status_code == 303
        assert "/threads/source/run" not in forms_of(await eve.page("/interrupts", **query))


def approval(value: Any) -> Any:
    """A graph that asks with this value."""

    def ask(state: MessagesState) -> dict[str, Any]:
        return {"messages": [HumanMessage(repr(interrupt(value)))]}

    return StateGraph(MessagesState).add_node("ask", ask).add_edge(START, "ask").add_edge("ask", END).compile()


async def test_a_call_is_decided_by_its_form(dsn: str, schema: str) -> None:
    request = {
        "name": "send_email",
        "args": {"to": HOSTILE, "copies": 2},
        "description": "Ask **twice** " + HOSTILE,
    }
    decisions = ["approve", "edit", "respond", "reject"]
    value = {"action_requests": [request], "review_configs": [{"allowed_decisions": decisions}]}
    async with inspected(dsn, schema) as (server, visitor):
        state = state_of(server)
        graph = approval(value).copy({"checkpointer": state.saver})
        for thread_id in ("t", "u"):
            await state.threads.create(thread_id, agent="mail")
            await graph.ainvoke({"messages": []}, {"configurable": {"thread_id": thread_id}})
        await visitor.introduce("Eve")
        with statements() as sent:
            html = await visitor.page("/interrupts", agent="mail")
        assert len(sent) <= 5, sent
        # The arguments stand there once, and once more where they are edited.
        assert [html.count(f">{one}<") for one in ("copies", "2")] == [4, 2 + html.count(">2</textarea>")]
        assert "<strong>twice</strong>" in html
        assert "<script>alert" not in html
        assert "<img" not in html
        assert html.count("<strong>twice</strong>") == 2
        (pending,) = await state.interrupts.list("t")
        path = f"/interrupts/t/{pending.interrupt_id}/answer"
        given = forms_of(html)[path]
        assert given["back"] == "/ui/interrupts?agent=mail"
        # The question of the form is another one than that which waits.
        changed = await visitor.act(path, **{**given, "asked": "0" * 16, "decision-0": "approve"})
        assert (changed.status_code, "asks something else now" in changed.text) == (409, True)
        # What was typed stands there again after a refusal.
        wrong = await visitor.act(path, **{**given, "decision-0": "edit", "argument-0-1": "three"})
        assert (wrong.status_code, "must be JSON" in wrong.text, ">three</textarea>" in wrong.text) == (422, True, True)
        # Edited arguments are not approved as they were.
        edited = {**given, "argument-0-1": "3"}
        refused = await visitor.act(path, **{**edited, "decision-0": "approve"})
        assert (refused.status_code, "were edited" in refused.text) == (422, True)
        assert await state.interrupts.answers("t") == ()
        done = await visitor.act(path, **{**edited, "decision-0": "edit"})
        location, _, place = done.headers["location"].partition("#")
        assert location.startswith("/ui/interrupts?agent=mail&notice=interrupt.answer&of=t")
        assert place == "thread-u"
        (answer,) = await state.interrupts.answers("t")
        decision = {"type": "edit", "edited_action": {"name": "send_email", "args": {**request["args"], "copies": 3}}}
        assert answer.value == {"decisions": [decision]}
        await visitor.introduce("Adam")
        late = await visitor.act(path, **{**given, "decision-0": "reject"})
        assert late.status_code == 409
        assert "Answered just now by Eve: edit. Your answer was not sent." in late.text


CALL = {"name": "send_email", "args": {"to": "adam@example.com", "copies": 2}, "description": "Ask **twice**"}
REVIEWED = {
    "action_requests": [CALL],
    "review_configs": [{"allowed_decisions": ["approve", "edit", "respond", "reject"]}],
}


@pytest.mark.parametrize(
    ("value", "fields", "shown"),
    [
        ({"question": "Book it?", "hotel": "Astoria"}, {"answer": "only with\na <b>balcony</b>"}, {"Answer"}),
        (
            REVIEWED,
            {"decision-0": "reject", "reject-0": "too many", "respond-0": "I wrote already", "argument-0-1": "1"},
            {"Decision", "Reason", "Result of the call", "copies"},
        ),
    ],
)
async def test_an_answer_that_is_refused_is_not_lost(
    dsn: str, schema: str, value: Any, fields: dict[str, str], shown: set[str]
) -> None:
    async with inspected(dsn, schema) as (server, visitor):
        state = state_of(server)
        graph = approval(value).copy({"checkpointer": state.saver})
        for thread_id in ("answered", "edited", "deleted"):
            await state.threads.create(thread_id, agent="trip", title="Lisbon")
            await graph.ainvoke({"messages": []}, {"configurable": {"thread_id": thread_id}})
        await visitor.introduce("Adam")
        page = await visitor.page("/interrupts")
        paths = {one: path for path in forms_of(page) for one in ("answered", "edited", "deleted") if one in path}
        given = {one: {**fields_of(page, paths[one]), **fields} for one in paths}
        await state.interrupts.answer("answered", "no", by="Eve")
        await graph.aupdate_state({"configurable": {"thread_id": "edited"}}, {"messages": []}, as_node="ask")
        await state.saver.adelete_thread("deleted", by="Eve")
        for one, status in (("answered", 409), ("edited", 404), ("deleted", 404)):
            refused = await visitor.act(paths[one], **given[one])
            assert refused.status_code == status
            html = without_bdi(refused.text)
            unsent = html.partition("not sent</h2>")[2].partition("</section>")[0]
            for text in (fields[name] for name in fields if name != "decision-0"):
                assert f">{escape(text)}</pre>" in unsent
            if one == "answered":
                # What was left as it was is not told, and each thing once.
                assert set(re.findall("<dt>(.*?)</dt>", unsent)) == shown
                assert html.count("Answered just now by Eve: no") == 1
                asked = html.partition('<details id="asked-before"')[2]
                assert asked.startswith(' class="ask" open>')
                assert "adam@example.com" in asked or "Astoria" in asked


async def test_interrupts_are_filtered_and_paged(dsn: str, schema: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("langgraph_pgstate.inspector.interrupts._PAGE", 2)
    async with inspected(dsn, schema, read_only=True) as (server, visitor):
        state = state_of(server)
        for name in ("a", "b", "c"):
            await travel(state, name, user_id=f"user-{name}")
        first = await visitor.data("/interrupts")
        assert [one["thread_id"] for one in first["threads"]] == ["c", "b"]
        rest = await visitor.data("/interrupts", cursor=first["next"])
        assert [one["thread_id"] for one in rest["threads"]] == ["a"]
        assert [one["thread_id"] for one in (await visitor.data("/interrupts", user="user-b"))["threads"]] == ["b"]
        assert "No thread of these waits" in await visitor.page("/interrupts", user="nobody")
        # What is answered is read, too: a page that has none says where the others are.
        monkeypatch.setattr("langgraph_pgstate.inspector.interrupts._SCAN", 2)
        for name in ("c", "b"):
            await state.interrupts.answer(name, "yes")
        assert "Older ones follow" in await visitor.page("/interrupts")


def test_many_large_interrupts_stay_small() -> None:
    large = {f"key {number}": "long " * 20 for number in range(100)}
    several = tuple(replace(asked(large), interrupt_id=f"i{number}") for number in range(200))
    thread = InterruptedThread("t", "c", at(0), several, (), None, None, None, None)
    for most in (40_000, 400, -5000):
        shown = _shown(thread, most)
        assert len(shown["interrupts"]) + shown["hidden"] == 200
        assert sum(len(one["rest"].text) for one in shown["interrupts"]) <= max(most, 200) + 200
    assert len(_shown(thread, 40_000)["interrupts"]) > 10
