"""The inbox: threads that wait for people, their questions, and the answers that resume them."""

from __future__ import annotations

import operator
import secrets
from collections.abc import Iterator
from typing import Annotated, Any, TypedDict

import psycopg
import pytest
from langgraph.func import entrypoint, task
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, Send, interrupt
from support.official import Account

from langgraph_pgstate import AsyncPGState, PGState
from langgraph_pgstate.errors import (
    AlreadyAnsweredError,
    ConfigurationError,
    NotFoundError,
    SerializationError,
    UnsafeTypeError,
)
from langgraph_pgstate.interrupts.types import InterruptedThread


class Talk(TypedDict):
    said: Annotated[list[str], operator.add]


def config_of(thread_id: str, **more: Any) -> Any:
    return {"configurable": {"thread_id": thread_id, **more}}


def asking(saver: Any, *questions: str) -> Any:
    """A graph whose one node asks one question after the other."""

    def node(state: Talk) -> dict[str, Any]:
        return {"said": [str(interrupt({"question": question})) for question in questions]}

    graph = StateGraph(Talk)
    graph.add_node("node", node)
    graph.add_edge(START, "node")
    graph.add_edge("node", END)
    return graph.compile(checkpointer=saver)


def fanned_out(saver: Any, width: int = 3) -> Any:
    """A graph that asks in several tasks at once."""

    def node(name: str) -> dict[str, Any]:
        return {"said": [f"{name}={interrupt(f'what of {name}?')}"]}

    graph = StateGraph(Talk)
    graph.add_node("node", node)
    graph.add_node("end", lambda state: {"said": ["end"]})
    graph.add_conditional_edges(START, lambda state: [Send("node", f"n{at}") for at in range(width)])
    graph.add_edge("node", "end")
    return graph.compile(checkpointer=saver)


@pytest.fixture
def state(dsn: str, schema: str) -> Iterator[PGState]:
    with PGState.open(dsn, schema=schema) as state:
        state.setup()
        yield state


def ids(state: PGState, **filter: Any) -> list[str]:
    return [thread.thread_id for thread in state.interrupts.threads(**filter).items]


def only(state: PGState) -> InterruptedThread:
    (found,) = state.interrupts.threads().items
    return found


def test_an_interrupted_thread_waits_until_it_is_resumed(state: PGState) -> None:
    graph = asking(state.saver, "go on?")
    graph.invoke({"said": []}, config_of("t", user_id="eve", tenant_id="acme", agent="travel"))
    graph.invoke({"said": []}, config_of("other"))
    found = next(item for item in state.interrupts.threads().items if item.thread_id == "t")
    assert (found.user_id, found.tenant_id, found.agent) == ("eve", "acme", "travel")
    (question,) = found.interrupts
    snapshot = graph.get_state(config_of("t"))
    assert (question.interrupt_id, question.value) == (snapshot.interrupts[0].id, {"question": "go on?"})
    assert (question.task_id, found.checkpoint_id) == (
        snapshot.tasks[0].id,
        snapshot.config["configurable"]["checkpoint_id"],
    )
    assert found.since == question.asked_at
    # Resumed as LangGraph resumes, without an answer of ours.
    graph.invoke(Command(resume="yes"), config_of("t"))
    assert ids(state) == ["other"]
    assert state.interrupts.list("t") == ()


def test_those_asked_last_come_first_and_pages_meet(state: PGState) -> None:
    graph = asking(state.saver, "go on?")
    names = [f"t{number}" for number in range(7)]
    for name in names:
        graph.invoke({"said": []}, config_of(name))
    for name in names[::3]:
        graph.invoke(Command(resume="yes"), config_of(name))
    left = [name for name in reversed(names) if name not in names[::3]]
    assert ids(state) == left
    seen: list[str] = []
    cursor = None
    while True:
        page = state.interrupts.threads(limit=1, cursor=cursor)
        seen += [item.thread_id for item in page.items]
        cursor = page.next
        if cursor is None:
            break
        assert len(page.items) == 1
    assert seen == left


def test_filters(state: PGState) -> None:
    graph = asking(state.saver, "go on?")
    graph.invoke({"said": []}, config_of("a", user_id="eve", tenant_id="acme", agent="travel"))
    graph.invoke({"said": []}, config_of("b", user_id="bob", tenant_id="acme", agent="office"))
    assert ids(state, user_id="eve") == ["a"]
    assert ids(state, tenant_id="acme") == ["b", "a"]
    assert ids(state, agent="office", tenant_id="acme") == ["b"]
    assert ids(state, user_id="nobody") == []
    with pytest.raises(ConfigurationError, match="limit"):
        state.interrupts.threads(limit=0)
    with pytest.raises(ConfigurationError, match="cursor"):
        state.interrupts.threads(cursor="nonsense")


def test_decisions_are_known_after_the_thread_has_gone_on(state: PGState) -> None:
    # Values are compressed.
    question, long = secrets.token_hex(3000), secrets.token_hex(300)
    graph = asking(state.saver, "Sure?", question)
    graph.invoke({"said": []}, config_of("t"))
    for answer in ("yes", long):
        command = state.interrupts.answer("t", answer, by="alice")
        graph.invoke(command, config_of("t"))
    places = [str(event.checkpoint_id) for event in state.events.list("t", kind="answer").items]
    found = state.interrupts.decisions("t", places)
    assert [(one.answer.value, one.answer.answered_by) for one in found] == [("yes", "alice"), (long, "alice")]
    # The task has asked something else since the first answer.
    assert [one.interrupt and one.interrupt.value for one in found] == [None, {"question": question}]
    brief = state.interrupts.decisions("t", places, most_bytes=1000)
    assert [(one.answer.value, one.interrupt) for one in brief] == [("yes", None), (long, None)]
    assert [one.answer.value for one in state.interrupts.decisions("t", places, most_bytes=100)] == ["yes"]
    assert state.interrupts.decisions("t", []) == ()
    assert state.interrupts.decisions("other", places) == ()


def test_an_answer_is_recorded_once_and_resumes_the_graph(state: PGState) -> None:
    graph = asking(state.saver, "go on?")
    graph.invoke({"said": []}, config_of("t"))
    question = only(state).interrupts[0]
    command = state.interrupts.answer("t", {"ok": True}, by="alice")
    assert command == Command(resume={question.interrupt_id: {"ok": True}})
    assert ids(state) == []
    assert ids(state, answered=True) == ["t"]
    with pytest.raises(AlreadyAnsweredError, match="alice") as raised:
        state.interrupts.answer("t", "no", by="bob")
    assert (raised.value.interrupt_id, raised.value.answered_by) == (question.interrupt_id, "alice")
    with pytest.raises(AlreadyAnsweredError):
        state.interrupts.answer("t", "no", interrupt_id=question.interrupt_id)
    (answer,) = state.interrupts.answers("t")
    assert (answer.value, answer.answered_by, answer.answered_at) == ({"ok": True}, "alice", raised.value.answered_at)
    (event,) = state.events.list("t", kind="answer").items
    assert event.payload == {"interrupt_id": question.interrupt_id, "by": "alice"}
    assert event.checkpoint_id == answer.checkpoint_id
    # From any process: nothing but the thread's id is known there. It can be asked again until the task is through.
    for _ in range(2):
        assert state.interrupts.resume("t") == command
    assert graph.invoke(state.interrupts.resume("t"), config_of("t"))["said"] == ["{'ok': True}"]
    assert state.interrupts.resume("t") is None
    assert state.interrupts.answers("t") == ()
    assert ids(state, answered=True) == []
    with pytest.raises(NotFoundError):
        state.interrupts.answer("t", "again")


def test_one_question_after_the_other_in_one_task(state: PGState) -> None:
    """The second question is another one, and waits since it was asked."""
    graph = asking(state.saver, "first?", "second?")
    graph.invoke({"said": []}, config_of("t"))
    first = only(state)
    graph.invoke(state.interrupts.answer("t", "one"), config_of("t"))
    second = only(state)
    assert second.checkpoint_id == first.checkpoint_id
    assert second.interrupts[0].value == {"question": "second?"}
    assert second.interrupts[0].interrupt_id != first.interrupts[0].interrupt_id
    assert second.since > first.since
    assert second.answers == ()
    assert graph.invoke(state.interrupts.answer("t", "two"), config_of("t"))["said"] == ["one", "two"]


def test_asking_the_same_again_does_not_wait_anew(state: PGState) -> None:
    graph = asking(state.saver, "first?")
    graph.invoke({"said": []}, config_of("t"))
    since = only(state).since
    graph.invoke(None, config_of("t"))
    assert only(state).since == since


def test_several_wait_at_once(state: PGState) -> None:
    graph = fanned_out(state.saver)
    graph.invoke({"said": []}, config_of("t"))
    found = only(state)
    assert sorted(question.value for question in found.interrupts) == ["what of n0?", "what of n1?", "what of n2?"]
    by_value = {question.value: question.interrupt_id for question in found.interrupts}
    with pytest.raises(ConfigurationError, match="several") as raised:
        state.interrupts.answer("t", "?")
    assert all(id in str(raised.value) for id in by_value.values())
    with pytest.raises(NotFoundError, match="has no pending interrupt"):
        state.interrupts.answer("t", "?", interrupt_id="0" * 32)
    state.interrupts.answer("t", "A", interrupt_id=by_value["what of n0?"])
    assert len(only(state).interrupts) == 2
    assert ids(state, answered=True) == ["t"]
    # What is there goes on; the others are asked again and wait on.
    graph.invoke(state.interrupts.resume("t"), config_of("t"))
    assert sorted(question.interrupt_id for question in only(state).interrupts) == sorted(
        [by_value["what of n1?"], by_value["what of n2?"]]
    )
    assert state.interrupts.resume("t") is None
    state.interrupts.answer("t", "B", interrupt_id=by_value["what of n1?"])
    # The last one needs no id.
    state.interrupts.answer("t", "C")
    done = graph.invoke(state.interrupts.resume("t"), config_of("t"))
    assert sorted(done["said"]) == ["end", "n0=A", "n1=B", "n2=C"]
    assert ids(state) == []


def test_a_thread_with_several_questions_is_on_one_page_only(state: PGState) -> None:
    graph = fanned_out(state.saver)
    for name in ("a", "b"):
        graph.invoke({"said": []}, config_of(name))
    first = state.interrupts.threads(limit=1)
    second = state.interrupts.threads(limit=1, cursor=first.next)
    assert [item.thread_id for item in (*first.items, *second.items)] == ["b", "a"]
    assert second.next is None


def test_questions_of_a_subgraph(state: PGState) -> None:
    inner = StateGraph(Talk)
    inner.add_node("ask", lambda state: {"said": [interrupt("inside?")]})
    inner.add_edge(START, "ask")
    outer = StateGraph(Talk)
    outer.add_node("inner", inner.compile())
    outer.add_edge(START, "inner")
    graph = outer.compile(checkpointer=state.saver)
    graph.invoke({"said": []}, config_of("t"))
    assert [question.value for question in only(state).interrupts] == ["inside?"]
    assert graph.invoke(state.interrupts.answer("t", "yes"), config_of("t"))["said"] == ["yes"]
    assert ids(state) == []


@pytest.mark.parametrize("durability", ["exit", "sync"])
def test_a_question_of_a_task_that_other_tasks_called_is_one(state: PGState, durability: Any) -> None:
    """LangGraph stores it for each of these tasks."""

    @task
    def inner(number: int) -> Any:
        return interrupt(f"{number}?")

    @task
    def outer(number: int) -> Any:
        return inner(number).result()

    @entrypoint(checkpointer=state.saver)
    def work(number: int) -> Any:
        return outer(number).result(), interrupt("and?")

    graph = state.record(work)
    graph.invoke(1, config_of("t"), durability=durability)
    (question,) = only(state).interrupts
    assert (question.value, state.interrupts.list("t")) == ("1?", (question,))
    assert [one.value for one in state.threads.state_at(config_of("t")).interrupts] == ["1?"]
    (event,) = state.events.list("t", kind="interrupt").items
    assert event.payload["interrupts"] == [{"id": question.interrupt_id, "value": "1?"}]

    command = state.interrupts.answer("t", "yes")
    assert ids(state) == []
    graph.invoke(command, config_of("t"), durability=durability)
    assert [one.value for one in only(state).interrupts] == ["and?"]
    assert graph.invoke(state.interrupts.answer("t", "no"), config_of("t")) == ("yes", "no")


def test_a_thread_that_moved_on_otherwise_no_longer_waits(state: PGState) -> None:
    graph = asking(state.saver, "go on?")
    graph.invoke({"said": []}, config_of("t"))
    graph.update_state(config_of("t"), {"said": ["never mind"]}, as_node="node")
    assert ids(state) == []
    with pytest.raises(NotFoundError, match="has no pending interrupt"):
        state.interrupts.answer("t", "yes")


def test_an_answer_goes_with_the_question_that_an_update_drops(state: PGState) -> None:
    graph = asking(state.saver, "go on?")
    graph.invoke({"said": []}, config_of("t"))
    state.interrupts.answer("t", "yes")
    graph.update_state(config_of("t"), {"said": ["never mind"]}, as_node="node")
    assert (state.interrupts.answers("t"), state.interrupts.resume("t")) == ((), None)
    assert ids(state, answered=True) == []


def test_a_fork_of_a_thread_that_was_answered_asks_again(state: PGState) -> None:
    graph = asking(state.saver, "go on?")
    graph.invoke({"said": []}, config_of("t"))
    state.interrupts.answer("t", "yes")
    state.threads.fork("t", to="fork")
    assert ids(state) == ["fork"]
    assert ids(state, answered=True) == ["t"]
    assert state.interrupts.resume("fork") is None
    assert graph.invoke(state.interrupts.answer("fork", "no"), config_of("fork"))["said"] == ["no"]
    assert graph.invoke(state.interrupts.resume("t"), config_of("t"))["said"] == ["yes"]


def test_new_input_drops_the_old_question(state: PGState) -> None:
    """The task that asked it never finishes; the thread waits at its newest checkpoint only."""
    graph = asking(state.saver, "go on?")
    for number in range(3):
        graph.invoke({"said": [f"turn {number}"]}, config_of("t"))
    found = only(state)
    assert found.checkpoint_id == graph.get_state(config_of("t")).config["configurable"]["checkpoint_id"]
    assert len(found.interrupts) == 1
    assert len(state.interrupts.list("t")) == 1


def test_none_is_no_answer(state: PGState) -> None:
    with pytest.raises(ConfigurationError, match="None"):
        state.interrupts.answer("t", None)


def test_what_could_not_be_read_again_is_no_answer(dsn: str, schema: str) -> None:
    with PGState.open(dsn, schema=schema, strict=True) as state:
        what_is_no_answer(state)


def what_is_no_answer(state: PGState) -> None:
    asking(state.saver, "go on?").invoke({"said": []}, config_of("t"))
    with pytest.raises(UnsafeTypeError, match="Account"):
        state.interrupts.answer("t", Account(7))
    with pytest.raises(SerializationError):
        state.interrupts.answer("t", lambda: 7)
    assert len(state.interrupts.list("t")) == 1


@pytest.mark.parametrize("byte", [3, 200], ids=["newer", "damaged"])
def test_a_thread_whose_question_cannot_be_read_is_not_left_out(state: PGState, connection: Any, byte: int) -> None:
    """It is listed with the reason, and does not hide the others."""
    for thread_id in ("bad", "good"):
        asking(state.saver, "go on?").invoke({"said": []}, config_of(thread_id))
    connection.execute(
        f"UPDATE {state.schema}.writes SET data = set_byte(data, 0, %s) WHERE thread_id = 'bad' AND idx = -3", [byte]
    )
    good, bad = state.interrupts.threads().items
    assert (good.thread_id, bad.thread_id) == ("good", "bad")
    assert good.interrupts[0].error is None
    (question,) = bad.interrupts
    assert (question.interrupt_id, question.value) == ("", None)
    assert question.error is not None
    assert "thread 'bad'" in question.error
    assert state.interrupts.list("bad") == (question,)
    with pytest.raises(NotFoundError, match="cannot be read"):
        state.interrupts.answer("bad", "yes")
    state.interrupts.answer("good", "yes")


def test_unknown_threads(state: PGState) -> None:
    assert state.interrupts.list("unknown") == ()
    assert state.interrupts.answers("unknown") == ()
    assert state.interrupts.resume("unknown") is None
    with pytest.raises(NotFoundError):
        state.interrupts.answer("unknown", "yes")


async def test_the_asynchronous_colour(dsn: str, schema: str) -> None:
    async with AsyncPGState.open(dsn, schema=schema) as state:
        await state.setup()
        graph = asking(state.saver, "go on?")
        await graph.ainvoke({"said": []}, config_of("t"))
        (found,) = (await state.interrupts.threads()).items
        assert found.interrupts == await state.interrupts.list("t")
        command = await state.interrupts.answer("t", "yes", by="alice")
        with pytest.raises(AlreadyAnsweredError):
            await state.interrupts.answer("t", "no")
        assert await state.interrupts.resume("t") == command
        assert [answer.value for answer in await state.interrupts.answers("t")] == ["yes"]
        assert (await graph.ainvoke(command, config_of("t")))["said"] == ["yes"]
        assert (await state.interrupts.threads()).items == ()


def test_an_encrypting_serializer_keeps_answers_to_itself(
    dsn: str, schema: str, connection: psycopg.Connection
) -> None:
    from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

    class Hiding(JsonPlusSerializer):
        """Stands for encryption."""

        def dumps_typed(self, obj: Any) -> tuple[str, bytes]:
            type_, data = super().dumps_typed(obj)
            return type_, bytes(byte ^ 0x5A for byte in data)

        def loads_typed(self, data: tuple[str, bytes]) -> Any:
            return super().loads_typed((data[0], bytes(byte ^ 0x5A for byte in data[1])))

    with PGState.open(dsn, schema=schema, serde=Hiding()) as state:
        state.setup()
        graph = asking(state.saver, "go on?")
        graph.invoke({"said": []}, config_of("t"))
        state.interrupts.answer("t", "a secret answer")
        (data,) = connection.execute(f'SELECT value FROM "{schema}".answers').fetchone()  # type: ignore[misc]
        assert b"secret" not in data
        events = connection.execute(f'SELECT payload::text FROM "{schema}".events').fetchall()
        assert all("secret" not in text for (text,) in events)
        assert graph.invoke(state.interrupts.resume("t"), config_of("t"))["said"] == ["a secret answer"]
