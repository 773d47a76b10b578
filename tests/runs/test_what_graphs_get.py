"""What a graph gets of an enqueued run: what `graph.invoke` gives it, type for type."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from operator import add
from typing import Annotated, Any, TypedDict
from uuid import UUID

import kinds
import pytest
from langchain_core.messages import HumanMessage
from langchain_core.runnables import RunnableConfig
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.runtime import Runtime
from langgraph.types import Command, Send, interrupt
from support import GUARD_SECONDS, spread, wait_until

from langgraph_pgstate import DefaultAnswer, PGState
from langgraph_pgstate.codec.exact import difference
from langgraph_pgstate.errors import SerializationError
from langgraph_pgstate.worker import Worker

MANY: dict[str, Any] = {
    "pair": ("user", "hi"),
    "deep": [{"a": ((1, "x"), {(2, 3)}, frozenset({"y"}))}],
    "keys": {None: 1, 2: (), 1.5: 2, (1, "a"): 3},
    "order": kinds.Order(1, [(1,)]),
    "person": kinds.Person(name="Ann", inner=kinds.Pair((1,), [2])),
    "at": (datetime(2026, 1, 1, tzinfo=UTC), UUID(int=1), kinds.Color.RED, float("nan"), b"\xc4"),
    "message": HumanMessage("hi", additional_kwargs={"at": (1,)}),
    "text": [HumanMessage("hi").text],
}


class State(TypedDict):
    given: Any
    log: Annotated[list[Any], add]


class Seen:
    """A graph that keeps what it was given, once for each invocation."""

    def __init__(self) -> None:
        self.values: list[Any] = []
        builder = StateGraph(State, context_schema=Any)
        builder.add_node("node", self.node)
        builder.add_node("sent", self.sent)
        builder.add_edge(START, "node")
        self.builder = builder

    def node(self, state: State, config: RunnableConfig, runtime: Runtime[Any]) -> dict[str, Any]:
        given = config["configurable"].get("given")
        self.values.append((state.get("given"), state.get("log"), runtime.context, given))
        return {}

    def sent(self, argument: Any) -> dict[str, Any]:
        self.values.append(argument)
        return {}


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments",
    spread(
        [
            {"input": {"given": MANY, "log": []}},
            {"input": {"given": ("user", "hi"), "log": [("note", "p")]}},
            {"input": {"given": 1}, "context": MANY, "config": {"configurable": {"given": MANY}}},
            {"input": {"given": 1}, "context": kinds.Order(2, [(3,)])},
            {"command": Command(update=[("given", ("p",)), ("log", [("q",)])], goto="node")},
            {"command": Command(goto=[Send("sent", {"pair": (1, (2,))})])},
        ]
    ),
    ids=["dict", "tuples", "context and config", "dataclass", "command", "send"],
)
def test_a_graph_gets_what_was_enqueued(dsn: str, schema: str, arguments: dict[str, Any]) -> None:
    plain, enqueued = Seen(), Seen()
    given = dict(arguments)
    call = given.pop("input", None) or given.pop("command")
    with PGState.open(dsn, schema=schema) as state:
        config = {**given.pop("config", {})}
        config["configurable"] = {"thread_id": "plain", **config.get("configurable", {})}
        plain.builder.compile(checkpointer=state.saver).invoke(call, config, **given)
        with Worker(state, {"agent": enqueued.builder}):
            state.runs.enqueue("agent", **arguments).wait(GUARD_SECONDS)
    assert plain.values
    assert difference(plain.values, enqueued.values) is None, enqueued.values


def test_one_message_stays_one_message(dsn: str, schema: str) -> None:
    builder = StateGraph(MessagesState).add_node("node", lambda state: {}).add_edge(START, "node")
    with PGState.open(dsn, schema=schema) as state, Worker(state, {"agent": builder}):
        values = state.runs.enqueue("agent", {"messages": ("user", "hi")}).wait(GUARD_SECONDS)
    assert [message.content for message in values["messages"]] == ["hi"]


@pytest.mark.slow
def test_an_answer_reaches_the_graph_as_it_was_given(dsn: str, schema: str) -> None:
    """Of a person, by default, and where nothing was enqueued."""
    seen: list[Any] = []
    builder = StateGraph(State)
    builder.add_node("ask", lambda state: seen.append(interrupt("?")))
    builder.add_edge(START, "ask")
    answer = ("yes", {(1, 2)}, kinds.Order(1, [()]), HumanMessage("hi").text)
    with PGState.open(dsn, schema=schema) as state, Worker(state, {"agent": builder}):
        state.runs.enqueue("agent", {"given": 1}, thread_id="person").wait(GUARD_SECONDS)
        state.interrupts.answer_run("person", answer).wait(GUARD_SECONDS)
        default = DefaultAnswer(answer, after=timedelta(microseconds=1))
        state.runs.enqueue("agent", {"given": 1}, thread_id="nobody", default_answer=default).wait(GUARD_SECONDS)
        wait_until(lambda: len(seen) == 2, "the default answer")
        graph, config = builder.compile(checkpointer=state.saver), {"configurable": {"thread_id": "plain"}}
        graph.invoke({"given": 1}, config)
        state.interrupts.answer("plain", answer)
        graph.invoke(state.interrupts.resume("plain"), config)
    assert difference([answer] * 3, seen) is None, seen


def test_a_schedule_and_an_assistant_keep_types(dsn: str, schema: str) -> None:
    seen = Seen()
    with PGState.open(dsn, schema=schema) as state, Worker(state, {"agent": seen.builder}):
        state.schedules.put("brief", "agent", {"given": MANY}, cron="0 0 1 1 *", context=("a",))
        state.schedules.trigger("brief").wait(GUARD_SECONDS)
        made = state.assistants.create(graph="agent", context=MANY, config={"configurable": {"given": (1,)}})
    assert difference([(MANY, [], ("a",), None)], seen.values) is None, seen.values
    assert difference((MANY, {"configurable": {"given": (1,)}}), (made.context, made.config)) is None


@pytest.mark.parametrize(
    ("make", "place"),
    [
        (lambda: {"input": {"at": ValueError("no")}}, r"input\['at'\]"),
        (lambda: {"command": Command(resume={"a": bytearray(b"x")})}, r"command\.resume\['a'\]"),
        (lambda: {"context": {UUID(int=1): 1}}, "context, key"),
        (lambda: {"config": {"configurable": {"x": Counter("a")}}}, "config"),
    ],
)
def test_what_would_reach_the_graph_as_something_else_is_refused(
    dsn: str, schema: str, make: Callable[[], dict[str, Any]], place: str
) -> None:
    with PGState.open(dsn, schema=schema) as state:
        with pytest.raises(SerializationError, match=place):
            state.runs.enqueue("agent", **make())
        assert state.runs.queued().items == ()
