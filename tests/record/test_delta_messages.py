"""Messages of a DeltaChannel: a conversation reads as that of an ordinary channel does, whoever wrote it and died."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from functools import reduce
from typing import Annotated, Any, TypedDict
from uuid import uuid4

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, RemoveMessage
from langgraph.channels.binop import BinaryOperatorAggregate
from langgraph.channels.delta import DeltaChannel
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import REMOVE_ALL_MESSAGES, _messages_delta_reducer, add_messages
from langgraph.types import Overwrite
from support import config_of, crossed, examples, move_journal

from langgraph_pgstate import AsyncPGState, PGState

APIS = [PGState, AsyncPGState]
Writes = Sequence[Any]
"""What one node writes to `messages`, call by call."""


def add_all(state: list[BaseMessage], writes: Writes) -> Any:
    return reduce(add_messages, writes, state)


def flat(writes: Writes) -> list[Any]:
    return [item for write in writes for item in (write if isinstance(write, list) else [write])]


def is_remove_all(message: Any) -> bool:
    return isinstance(message, RemoveMessage) and message.id == REMOVE_ALL_MESSAGES


def deaf(state: list[BaseMessage], writes: Writes) -> Any:
    """As LangGraph's own before 1.2.24."""
    return _messages_delta_reducer(state, [[item for item in flat(writes) if not is_remove_all(item)]])


def hearing(state: list[BaseMessage], writes: Writes) -> Any:
    """As LangGraph's own from 1.2.24 on."""
    items = flat(writes)
    for place in reversed(range(len(items))):
        if is_remove_all(items[place]):
            return _messages_delta_reducer([], [items[place + 1 :]])
    return _messages_delta_reducer(state, [items])


REDUCERS = {"add": add_all, "by id": _messages_delta_reducer, "deaf": deaf, "hearing": hearing}


def ordinary(kind: str) -> type:
    """A state with an ordinary channel."""
    by_id = BinaryOperatorAggregate(list, lambda state, write: REDUCERS[kind](state, [write]))
    messages = Annotated[list, add_messages if kind == "add" else by_id.operator]
    return TypedDict("Ordinary", {"messages": messages, "step": int})  # type: ignore[operator]


def delta(kind: str, frequency: int = 1000) -> type:
    """The same with a DeltaChannel."""
    messages = Annotated[list, DeltaChannel(REDUCERS[kind], snapshot_frequency=frequency)]
    return TypedDict("Delta", {"messages": messages, "step": int})  # type: ignore[operator]


def build(schema: type, script: Sequence[tuple[Any, Any]]) -> StateGraph[Any, Any, Any, Any]:
    """A graph whose two nodes run at once, again and again, until the script is played: `[(first, second), …]`."""

    def first(state: Any) -> dict[str, Any]:
        step = state.get("step", 0)
        return {"messages": script[step][0], "step": step + 1}

    def second(state: Any) -> dict[str, Any]:
        return {"messages": script[state.get("step", 0)][1]}

    graph = StateGraph(schema)
    graph.add_node("first", first)
    graph.add_node("second", second)
    graph.add_node("again", lambda state: {})
    graph.add_edge(START, "again")
    ways = ["first", "second", END]
    graph.add_conditional_edges("again", lambda s: ways[:2] if s.get("step", 0) < len(script) else END, ways)
    graph.add_edge(["first", "second"], "again")
    return graph


def said(*ids: str, text: str = "says") -> list[BaseMessage]:
    """New messages, or edits."""
    return [(AIMessage if id.startswith("a") else HumanMessage)(f"{id} {text}", id=id) for id in ids]


def gone(*ids: str) -> list[Any]:
    return [RemoveMessage(id=id) for id in ids]


@asynccontextmanager
async def open_state(api: type, dsn: str, schema: str, **options: Any) -> AsyncIterator[Any]:
    if api is PGState:
        with PGState.open(dsn, schema=schema, **options) as state:
            state.setup()
            yield state
        return
    async with AsyncPGState.open(dsn, schema=schema, **options) as async_state:
        await async_state.setup()
        yield async_state


async def run(state: Any, graph: Any, *arguments: Any, **options: Any) -> Any:
    if isinstance(state, PGState):
        return graph.invoke(*arguments, **options)
    return await graph.ainvoke(*arguments, **options)


async def conversation(state: Any, thread_id: str, **options: Any) -> list[tuple[Any, ...]]:
    answer = state.messages.conversation(thread_id, **options)
    found = answer if isinstance(state, PGState) else await answer
    return [(one.message_id, one.role, one.content, one.tool_calls, one.channel) for one in found]


async def history(state: Any, graph: Any, thread_id: str) -> list[Any]:
    if isinstance(state, PGState):
        return list(graph.get_state_history(config_of(thread_id)))
    return [one async for one in graph.aget_state_history(config_of(thread_id))]


def contents(messages: Sequence[BaseMessage]) -> list[tuple[Any, Any]]:
    return [(one.id, one.content) for one in messages]


SCRIPTS = {
    "appends": ("add", [(said("a1"), said("b1")), (said("a2", "a3"), []), ([], said("b2"))]),
    "one at a time": ("by id", [(said("a1")[0], {"role": "user", "content": "hi", "id": "d"})]),
    "edits": (
        "add",
        [(said("a1"), said("b1")), (said("b1", text="said"), said("a2")), (said("a1", "a1", text="x"), [])],
    ),
    "removals": (
        "add",
        [(said("a1", "a2"), said("b1")), (gone("a2"), said("b2")), (gone("b1"), said("a2", text="back"))],
    ),
    "all removed": ("add", [(said("a1"), said("b1")), (gone(REMOVE_ALL_MESSAGES) + said("a2"), []), (said("a3"), [])]),
    "removed by id": ("by id", [(said("a1"), said("b1")), (gone(REMOVE_ALL_MESSAGES, "nobody") + said("a2"), [])]),
    "removed in vain": ("deaf", [(said("a1"), said("b1")), (gone(REMOVE_ALL_MESSAGES, "nobody") + said("a2"), [])]),
    "all at once": ("hearing", [(said("a1"), said("b1")), (said("a2") + gone(REMOVE_ALL_MESSAGES), said("b2"))]),
    "overwritten": ("by id", [(said("a1"), said("b1")), (Overwrite(said("b1", "a2")), []), (said("a3"), said("b3"))]),
}


@pytest.mark.parametrize("durability", ["async", "exit"])
@pytest.mark.parametrize(("name", "api"), crossed([*SCRIPTS], APIS))
async def test_a_delta_channel_reads_as_an_ordinary_one(
    api: type, name: str, durability: Any, dsn: str, schema: str
) -> None:
    kind, script = SCRIPTS[name]
    async with open_state(api, dsn, schema) as state:
        found = []
        for thread_id, cls in (("o", ordinary(kind)), ("d", delta(kind)), ("s", delta(kind, 2))):
            graph = state.record(build(cls, script).compile(checkpointer=state.saver))
            final = await run(state, graph, {"messages": said("h0")}, config_of(thread_id), durability=durability)
            found.append(await conversation(state, thread_id))
            assert [item[::2][:2] for item in found[-1]] == contents(final["messages"])
            if durability != "exit":
                for snapshot in await history(state, graph, thread_id):
                    id = snapshot.config["configurable"]["checkpoint_id"]
                    then = await conversation(state, thread_id, checkpoint_id=id)
                    assert [item[::2][:2] for item in then] == contents(snapshot.values.get("messages", []))
        assert found[0] == found[1] == found[2]


IDS = st.sampled_from(["a1", "a2", "b1", "b2", "c"])
OPERATION = st.one_of(
    st.builds(lambda id, text: said(id, text=text), IDS, st.sampled_from(["x", "y"])),
    st.builds(gone, IDS),
    st.builds(lambda: said(f"new-{uuid4()}")),
    st.builds(lambda id: [{"role": "user", "content": "as a dict", "id": id}], IDS),
)
PARTS = st.lists(OPERATION, max_size=3).map(lambda parts: [item for part in parts for item in part])
# What follows the removal of all is new: `add_messages` stores it as it is, even a `RemoveMessage`.
EMPTYING = st.builds(lambda before, count: before + gone(REMOVE_ALL_MESSAGES) + fresh(count), PARTS, st.integers(0, 2))
NODE = st.one_of(PARTS, PARTS, EMPTYING)


def fresh(count: int) -> list[BaseMessage]:
    return said(*(f"new-{uuid4()}" for _ in range(count)))


STEPS = st.lists(st.tuples(NODE, NODE), min_size=1, max_size=4)
TURNS = st.lists(st.tuples(st.integers(0, 6), NODE, STEPS), min_size=1, max_size=3)


@pytest.mark.slow
@settings(max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(turns=TURNS, kind=st.sampled_from([*REDUCERS]), frequency=st.sampled_from([1, 2, 3, 1000]))
def test_whatever_is_said_the_record_reads_as_the_reducer_makes_it(
    turns: Any, kind: str, frequency: int, dsn: str, schema: str
) -> None:
    """Turns that go on from the head, or from some checkpoint of the past."""
    thread_id = str(uuid4())
    with PGState.open(dsn, schema=schema) as state:
        state.setup()
        config: Any = config_of(thread_id)
        for back, input, script in turns:
            graph = state.record(build(delta(kind, frequency), script).compile(checkpointer=state.saver))
            # `add_messages` refuses to remove what is not there.
            with suppress(ValueError):
                graph.invoke({"messages": input, "step": 0}, config)
            ended = [one for one in graph.get_state_history(config_of(thread_id)) if not one.next]
            config = ended[min(back, len(ended) - 1)].config if back and ended else config_of(thread_id)
        for snapshot in graph.get_state_history(config_of(thread_id)):
            id = snapshot.config["configurable"]["checkpoint_id"]
            found = state.messages.conversation(thread_id, checkpoint_id=id)
            assert [(one.message_id, one.content) for one in found] == contents(snapshot.values["messages"])


@pytest.mark.parametrize("kind", [*REDUCERS])
def test_what_is_removed_and_said_again_at_once_is_where_the_reducer_puts_it(kind: str, dsn: str, schema: str) -> None:
    script = [(said("a1", "a2"), said("b1")), (gone("a1") + said("a1", "a3"), gone("a2") + said("a2", text="x"))]
    with PGState.open(dsn, schema=schema) as state:
        state.setup()
        graph = state.record(build(delta(kind), script).compile(checkpointer=state.saver))
        final = graph.invoke({"messages": said("h0")}, config_of("t"))
        found = [(one.message_id, one.content) for one in state.messages.conversation("t")]
        assert found == contents(final["messages"])


class Killed(Exception):
    """Stands for the end of the process."""


@pytest.mark.parametrize("api", APIS)
async def test_nothing_is_lost_between_the_writes_and_their_checkpoint(api: type, dsn: str, schema: str) -> None:
    """The process that ran the nodes is gone; another one stores the checkpoint, and runs none of them again."""
    ran = []
    script = [(said("a1"), said("b1")), (said("a2"), said("b2"))]
    builder = build(delta("by id"), script)
    builder.add_node("count", lambda state: ran.append(state["step"]) or {})
    builder.add_edge("first", "count")
    async with open_state(api, dsn, schema) as dying:
        put, aput = dying.saver.put, dying.saver.aput

        def refuse(config: Any, checkpoint: Any, metadata: Any, new_versions: Any) -> Any:
            if metadata["step"] == 1:
                raise Killed
            return put(config, checkpoint, metadata, new_versions)

        async def arefuse(config: Any, checkpoint: Any, metadata: Any, new_versions: Any) -> Any:
            if metadata["step"] == 1:
                raise Killed
            return await aput(config, checkpoint, metadata, new_versions)

        dying.saver.put, dying.saver.aput = refuse, arefuse
        graph = dying.record(builder.compile(checkpointer=dying.saver))
        with pytest.raises(Killed):
            await run(dying, graph, {"messages": said("h0")}, config_of("t"), durability="sync")
    async with open_state(api, dsn, schema) as state:
        assert [item[0] for item in await conversation(state, "t")] == ["h0"]
        graph = state.record(builder.compile(checkpointer=state.saver))
        await run(state, graph, None, config_of("t"))
        assert [item[0] for item in await conversation(state, "t")] == ["h0", "a1", "b1", "a2", "b2"]


def test_a_put_that_comes_twice_says_it_once(dsn: str, schema: str, connection: psycopg.Connection) -> None:
    """With the journal moved in between, and a put of `put_writes` that came twice, too."""
    with PGState.open(dsn, schema=schema) as state:
        state.setup()
        put, put_writes = state.saver.put, state.saver.put_writes

        def twice(*arguments: Any) -> Any:
            put(*arguments)
            move_journal(connection, schema)
            return put(*arguments)

        def writes_twice(*arguments: Any) -> None:
            put_writes(*arguments)
            put_writes(*arguments)

        state.saver.put, state.saver.put_writes = twice, writes_twice  # type: ignore[method-assign]
        script = [(said("a1"), said("b1")), (gone("a1"), said("b1", text="edited"))]
        state.record(build(delta("by id"), script).compile(checkpointer=state.saver)).invoke(
            {"messages": said("h0")}, config_of("t")
        )
        state.flush()
        rows = connection.execute(
            f"SELECT message_id, change FROM {schema}.messages ORDER BY checkpoint_id, position, message_id"
        ).fetchall()
        assert sorted(rows) == [
            ("a1", "added"), ("a1", "removed"), ("b1", "added"), ("b1", "edited"), ("h0", "added")
        ]  # fmt: skip
        assert [one.message_id for one in state.messages.conversation("t")] == ["h0", "b1"]


@pytest.mark.parametrize("api", APIS)
async def test_a_subgraphs_messages_are_its_own_until_the_root_has_them(
    api: type, dsn: str, schema: str, connection: psycopg.Connection
) -> None:
    cls = delta("by id")
    inner = StateGraph(cls)
    inner.add_node("think", lambda state: {"messages": said("thought")})
    inner.add_node("speak", lambda state: {"messages": said("spoken")})
    inner.add_edge(START, "think")
    inner.add_edge("think", "speak")
    agent = inner.compile()

    def quote(state: Any) -> dict[str, Any]:
        return {"messages": agent.invoke({"messages": state["messages"]})["messages"][-1]}

    outer = StateGraph(cls)
    outer.add_node("agent", agent)
    outer.add_node("quote", quote)
    outer.add_edge(START, "agent")
    async with open_state(api, dsn, schema) as state:
        graph = state.record(outer.compile(checkpointer=state.saver))
        await run(state, graph, {"messages": said("h0")}, config_of("t"))
        assert [item[0] for item in await conversation(state, "t")] == ["h0", "thought", "spoken"]
    move_journal(connection, schema)
    rows = connection.execute(
        f"SELECT message_id, change FROM {schema}.messages WHERE checkpoint_ns = '' ORDER BY position"
    ).fetchall()
    assert rows == [("h0", "added"), ("thought", "added"), ("spoken", "added")]
    strays = connection.execute(
        f"SELECT message_id FROM {schema}.messages WHERE checkpoint_ns <> '' AND message_id = ANY(%s)",
        [["h0", "thought", "spoken"]],
    ).fetchall()
    assert strays == []


def test_what_was_said_is_found_and_survives_a_prune(dsn: str, schema: str) -> None:
    with PGState.open(dsn, schema=schema) as state:
        state.setup()
        script = [(said("a1", text="likes pelicans"), said("b1")), (said("a2"), [])]
        graph = state.record(build(delta("by id", 3), script).compile(checkpointer=state.saver))
        graph.invoke({"messages": said("h0")}, config_of("t"))
        graph.invoke({"messages": said("h1"), "step": 1}, config_of("t"))
        assert [hit.message.message_id for hit in state.messages.search("pelicans").items] == ["a1"]
        before = [one.message_id for one in state.messages.conversation("t")]
        assert before == ["h0", "a1", "b1", "a2", "h1"]
        state.saver.prune(["t"])
        assert [one.message_id for one in state.messages.conversation("t")] == before


def test_update_state_is_said_too(dsn: str, schema: str) -> None:
    with PGState.open(dsn, schema=schema) as state:
        state.setup()
        graph = state.record(build(delta("by id"), [(said("a1"), said("b1"))]).compile(checkpointer=state.saver))
        graph.invoke({"messages": said("h0")}, config_of("t"))
        graph.update_state(config_of("t"), {"messages": said("u") + gone("b1")}, as_node="again")
        assert [one.message_id for one in state.messages.conversation("t")] == ["h0", "a1", "u"]


def test_a_graph_without_delta_channels_notes_nothing_of_them(dsn: str, schema: str) -> None:
    with PGState.open(dsn, schema=schema) as state:
        state.setup()
        kinds = []
        after = state._recorder.after_put
        state._recorder.after_put = lambda plan: kinds.extend(k for k, _ in plan.journal_entry.messages) or after(plan)
        graph = state.record(build(ordinary("add"), [(said("a1"), said("b1"))]).compile(checkpointer=state.saver))
        graph.invoke({"messages": said("h0")}, config_of("t"))
        assert set(kinds) == {"added"}
