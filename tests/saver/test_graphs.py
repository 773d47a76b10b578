"""Real graphs in both APIs: states, histories and pending writes are those of LangGraph's in-memory saver."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import operator
from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated, Any, TypedDict
from uuid import UUID

import pytest
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, RemoveMessage, ToolMessage
from langchain_core.tools import InjectedToolCallId, tool
from langgraph.channels.delta import DeltaChannel
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.func import entrypoint, task
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import REMOVE_ALL_MESSAGES, add_messages
from langgraph.prebuilt import ToolNode
from langgraph.types import Command, Send, StateSnapshot, interrupt
from support import APIS, crossed, open_saver, wait_until

from langgraph_pgstate import PGStateSaver
from langgraph_pgstate.errors import UnsafeTypeError

pytestmark = pytest.mark.smoke

THREAD: Any = {"configurable": {"thread_id": "t"}}
Make = Callable[[Any], Any]


class Run:
    """A compiled graph, driven in one api."""

    def __init__(self, graph: Any, saver: Any, *, blocking: bool, durability: str) -> None:
        self.graph, self.saver, self._blocking, self._durability = graph, saver, blocking, durability

    async def _call(self, name: str, *arguments: Any, **options: Any) -> Any:
        if self._blocking:
            return await asyncio.to_thread(getattr(self.graph, name), *arguments, **options)
        return await getattr(self.graph, f"a{name}")(*arguments, **options)

    async def invoke(self, given: Any, config: Any = THREAD, **options: Any) -> Any:
        """Run the graph."""
        return await self._call("invoke", given, config, durability=self._durability, **options)

    async def update(self, config: Any, values: Any, as_node: str | None = None) -> Any:
        """Change the state; the config of the new checkpoint."""
        return await self._call("update_state", config, values, as_node)

    async def state(self, config: Any = THREAD) -> StateSnapshot:
        """The state, with that of subgraphs."""
        found: StateSnapshot = await self._call("get_state", config, subgraphs=True)
        return found

    async def history(self, config: Any = THREAD) -> list[StateSnapshot]:
        """Every state, newest first."""
        if self._blocking:
            return await asyncio.to_thread(lambda: list(self.graph.get_state_history(config)))
        return [state async for state in self.graph.aget_state_history(config)]

    async def checkpoints(self) -> list[Any]:
        """Every checkpoint of the thread in all its namespaces."""
        if self._blocking:
            return await asyncio.to_thread(lambda: list(self.saver.list(THREAD)))
        return [item async for item in self.saver.alist(THREAD)]


def timeless(state: Any) -> Any:
    """A state without the time it was made at."""
    if not isinstance(state, StateSnapshot):
        return state
    assert state.created_at or not state.metadata
    return state._replace(
        created_at=None, tasks=tuple(task._replace(state=timeless(task.state)) for task in state.tasks)
    )


def plain(item: Any) -> tuple[Any, ...]:
    """What is to be equal of a checkpoint: versions up to their random part, writes in a fixed order."""
    checkpoint = item.checkpoint
    return (
        item.config["configurable"]["checkpoint_ns"],
        item.config,
        item.parent_config,
        item.metadata,
        checkpoint["v"],
        checkpoint["channel_values"],
        {channel: str(version).split(".")[0] for channel, version in checkpoint["channel_versions"].items()},
        {
            node: {channel: str(version).split(".")[0] for channel, version in seen.items()}
            for node, seen in checkpoint["versions_seen"].items()
        },
        checkpoint.get("updated_channels"),
        sorted(item.pending_writes or [], key=repr),
    )


async def outcome(run: Run) -> dict[str, Any]:
    """All that can be asked of a thread."""
    history = await run.history()
    items = sorted(await run.checkpoints(), key=lambda item: sorted(item.config["configurable"].items()))
    return {
        "state": timeless(await run.state()),
        "history": [timeless(state) for state in history],
        "each state": [timeless(await run.state(state.config)) for state in history],
        "checkpoints": [plain(item) for item in items],
    }


@pytest.fixture
def same_ids(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """A function after which LangGraph gives out the same ids as after its last call."""
    numbers = [itertools.count(1)]

    def restart() -> None:
        numbers[0] = itertools.count(1)

    def uuid6(*_: Any, **__: Any) -> UUID:
        return UUID(f"1f000000-0000-6000-8000-{next(numbers[0]):012x}")

    monkeypatch.setattr("langgraph.pregel._checkpoint.uuid6", uuid6)
    monkeypatch.setattr("langgraph.checkpoint.base.uuid6", uuid6)
    return restart


Compare = Callable[..., Awaitable[None]]


@pytest.fixture(params=APIS, ids=lambda api: api.__name__)
def compare(request: pytest.FixtureRequest, dsn: str, schema: str, same_ids: Callable[[], None]) -> Compare:
    """Play a script on a graph with the in-memory saver and with ours; the outcomes must be equal.

    Ours is asked twice: the saver that wrote, and one that starts cold.
    """
    api = request.param
    blocking = api is PGStateSaver

    async def play(make: Make, script: Callable[[Run], Awaitable[Any]], *, durability: str = "async") -> None:
        same_ids()
        memory = InMemorySaver()
        model = Run(make(memory), memory, blocking=blocking, durability=durability)
        expected_answer = await script(model)
        expected = await outcome(model)
        same_ids()
        async with open_saver(api, dsn, schema) as saver:
            run = Run(make(saver), saver, blocking=blocking, durability=durability)
            answer = await script(run)
            assert answer == expected_answer
            assert_equal(await outcome(run), expected)
        async with open_saver(api, dsn, schema, setup=False) as cold:
            assert_equal(await outcome(Run(make(cold), cold, blocking=blocking, durability=durability)), expected)

    return play


def assert_equal(found: dict[str, Any], expected: dict[str, Any]) -> None:
    assert expected["history"]
    for what, values in expected.items():
        assert found[what] == values, what


class Chat(TypedDict):
    messages: Annotated[list[AnyMessage], add_messages]


@tool
def add(a: int, b: int, tool_call_id: Annotated[str, InjectedToolCallId]) -> ToolMessage:
    """Add two numbers."""
    return ToolMessage(str(a + b), name="add", tool_call_id=tool_call_id, id=f"answer to {tool_call_id}")


def chat(saver: Any) -> Any:
    """A model that calls a tool once for each question, and a node that forgets all but the last messages.

    Every message has an id of its own: LangGraph gives ids to others in place, before or after they are stored.
    """

    def model(state: Chat) -> dict[str, Any]:
        last = state["messages"][-1]
        number = len(state["messages"])
        if isinstance(last, HumanMessage):
            call = {"name": "add", "args": {"a": number, "b": 1}, "id": f"call for {last.id}"}
            return {"messages": [AIMessage("", tool_calls=[call], id=f"to {last.id}")]}
        answer = AIMessage(f"It is {last.content}.", response_metadata={"number": number}, id=f"after {last.id}")
        return {"messages": [answer]}

    def forget(state: Chat) -> dict[str, Any]:
        return {"messages": [RemoveMessage(id=str(message.id)) for message in state["messages"][:-6]]}

    graph = StateGraph(Chat)
    graph.add_node("model", model)
    graph.add_node("tools", ToolNode([add]))
    graph.add_node("forget", forget)
    graph.add_edge(START, "model")
    graph.add_conditional_edges(
        "model", lambda state: "tools" if state["messages"][-1].tool_calls else "forget", ["tools", "forget"]
    )
    graph.add_edge("tools", "model")
    graph.add_edge("forget", END)
    return graph.compile(checkpointer=saver)


@pytest.mark.parametrize(
    "durability", ["exit", *(pytest.param(one, marks=pytest.mark.slow) for one in ("sync", "async"))]
)
async def test_a_chat_with_tools_that_forgets(compare: Compare, durability: str) -> None:
    async def script(run: Run) -> Any:
        return [await run.invoke({"messages": [HumanMessage(f"Question {turn}?", id=f"q{turn}")]}) for turn in range(5)]

    await compare(chat, script, durability=durability)


@pytest.mark.slow
async def test_messages_replaced_removed_and_all_removed(compare: Compare) -> None:
    async def script(run: Run) -> Any:
        for turn in range(3):
            await run.invoke({"messages": [HumanMessage(f"Question {turn}?", id=f"q{turn}")]})
        await run.update(THREAD, {"messages": [HumanMessage("Edited", id="q2")]})
        await run.update(THREAD, {"messages": [RemoveMessage(id="q2")]})
        await run.update(THREAD, {"messages": [RemoveMessage(id=REMOVE_ALL_MESSAGES), HumanMessage("New", id="n")]})
        return await run.invoke({"messages": [HumanMessage("And?", id="q9")]})

    await compare(chat, script)


class Approval(TypedDict):
    answers: Annotated[list[str], operator.add]


def approvals(saver: Any) -> Any:
    """Three parallel nodes that each ask, one of them twice."""

    def ask(name: str, questions: int) -> Callable[[Approval], dict[str, Any]]:
        def node(state: Approval) -> dict[str, Any]:
            return {"answers": [f"{name}: {interrupt({'ask': f'{name} {index}'})}" for index in range(questions)]}

        return node

    graph = StateGraph(Approval)
    for name, questions in (("one", 1), ("two", 2), ("three", 1)):
        graph.add_node(name, ask(name, questions))
        graph.add_edge(START, name)
    graph.add_node("after", lambda state: {"answers": [f"{len(state['answers'])} answers"]})
    graph.add_edge(["one", "two", "three"], "after")
    return graph.compile(checkpointer=saver)


async def test_interrupts_answered_one_by_one(compare: Compare) -> None:
    """After each answer everything that can be asked of the half-answered thread is the same, too."""

    async def script(run: Run) -> Any:
        await run.invoke({"answers": []})
        seen = []
        for _ in range(10):
            pending = sorted((await run.state()).interrupts, key=lambda item: item.value["ask"])
            if not pending:
                break
            seen.append([item.value for item in pending])
            await run.invoke(Command(resume={pending[0].id: f"yes to {pending[0].value['ask']}"}))
            seen.append(await outcome(run))
        return seen

    await compare(approvals, script)


async def test_interrupts_answered_all_at_once(compare: Compare) -> None:
    async def script(run: Run) -> Any:
        await run.invoke({"answers": ["before"]})
        while pending := (await run.state()).interrupts:
            await run.invoke(Command(resume={item.id: item.value["ask"].upper() for item in pending}))
        return (await run.state()).values

    await compare(approvals, script)


def counting(saver: Any) -> Any:
    """Three nodes in a row that append."""
    graph = StateGraph(Approval)
    for name in "abc":
        graph.add_node(name, lambda state, name=name: {"answers": [f"{name}{len(state['answers'])}"]})
    graph.add_edge(START, "a")
    graph.add_edge("a", "b")
    graph.add_edge("b", "c")
    graph.add_edge("c", END)
    return graph.compile(checkpointer=saver)


@pytest.mark.slow
async def test_updates_of_past_checkpoints_fork(compare: Compare) -> None:
    async def script(run: Run) -> Any:
        await run.invoke({"answers": ["x" * 200]})
        await run.invoke({"answers": ["y" * 200]})
        history = await run.history()
        results = []
        for past in (history[2], history[5], history[1]):
            forked = await run.update(past.config, {"answers": ["forked"]})
            results.append(await run.invoke(None, forked))
        results.append(await run.invoke({"answers": ["go on"]}))
        return results

    await compare(counting, script)


@pytest.mark.parametrize("position", [2, *(pytest.param(one, marks=pytest.mark.slow) for one in (0, 4))])
async def test_a_copy_of_a_past_checkpoint(compare: Compare, position: int) -> None:
    """`as_node="__copy__"` makes a sibling: a checkpoint whose values come from no ancestor of its own."""

    async def script(run: Run) -> Any:
        await run.invoke({"answers": ["x" * 5000]})
        past = (await run.history())[position]
        copied = await run.update(past.config, None, as_node="__copy__")
        await run.update(copied, {"answers": ["on the copy"]}, as_node="a")
        return await run.invoke(None)

    await compare(counting, script)


async def test_replay_from_a_past_checkpoint(compare: Compare) -> None:
    async def script(run: Run) -> Any:
        await run.invoke({"answers": ["first"]})
        past = (await run.history())[2]
        return await run.invoke(None, past.config), await run.invoke(None, past.config)

    await compare(counting, script)


class Mapped(TypedDict):
    topics: list[str]
    jokes: Annotated[list[str], operator.add]


def map_reduce(saver: Any) -> Any:
    graph = StateGraph(Mapped)
    graph.add_node("plan", lambda state: {"topics": [*state["topics"], "more"]})
    graph.add_node("joke", lambda given: {"jokes": [f"{given['topic']}: {'ha' * given['size']}"]})
    graph.add_node("count", lambda state: {"topics": [str(len(state["jokes"]))]})
    graph.add_edge(START, "plan")
    graph.add_conditional_edges(
        "plan",
        lambda state: [Send("joke", {"topic": topic, "size": 10 * at}) for at, topic in enumerate(state["topics"])],
        ["joke"],
    )
    graph.add_edge("joke", "count")
    graph.add_edge("count", END)
    return graph.compile(checkpointer=saver)


@pytest.mark.parametrize(
    "durability", ["async", *(pytest.param(one, marks=pytest.mark.slow) for one in ("sync", "exit"))]
)
async def test_sends_and_parallel_nodes(compare: Compare, durability: str) -> None:
    async def script(run: Run) -> Any:
        first = await run.invoke({"topics": ["cats", "dogs", "cats"], "jokes": []})
        return first, await run.invoke({"topics": [f"topic {index}" for index in range(12)]})

    await compare(map_reduce, script, durability=durability)


def failing(saver: Any) -> Any:
    """Two parallel nodes, one of which fails whenever it is told to, when the other's writes are stored."""

    def is_stored() -> bool:
        found = saver.get_tuple(THREAD)
        return found is not None and any(channel == "jokes" for _, channel, _ in found.pending_writes)

    def fragile(state: Mapped) -> dict[str, Any]:
        if "break" in state["topics"]:
            wait_until(is_stored, "the other node's writes")
            raise ValueError("broken")
        return {"jokes": ["fragile"]}

    graph = StateGraph(Mapped)
    graph.add_node("sound", lambda state: {"jokes": ["sound"]})
    graph.add_node("fragile", fragile)
    graph.add_edge(START, "sound")
    graph.add_edge(START, "fragile")
    return graph.compile(checkpointer=saver)


async def test_a_failed_superstep_keeps_what_succeeded(compare: Compare) -> None:
    """The error and the other task's writes are pending; after a repair the run goes on without repeating it."""

    async def script(run: Run) -> Any:
        with pytest.raises(ValueError, match="broken"):
            await run.invoke({"topics": ["break"], "jokes": []})
        half = await run.state()
        await run.update(THREAD, {"topics": ["fine"]}, as_node="sound")
        return [item.error for item in half.tasks], await run.invoke(None)

    await compare(failing, script, durability="sync")


def with_subgraph(checkpointer: bool | None) -> Make:
    """A parent that calls a subgraph which asks in its middle."""

    def make(saver: Any) -> Any:
        inner = StateGraph(Approval)
        inner.add_node("first", lambda state: {"answers": [f"first of {len(state['answers'])}"]})
        inner.add_node("ask", lambda state: {"answers": [interrupt(f"{len(state['answers'])}?")]})
        inner.add_edge(START, "first")
        inner.add_edge("first", "ask")
        outer = StateGraph(Approval)
        outer.add_node("before", lambda state: {"answers": ["before"]})
        outer.add_node("inner", inner.compile(checkpointer=checkpointer))
        outer.add_node("after", lambda state: {"answers": ["after"]})
        outer.add_edge(START, "before")
        outer.add_edge("before", "inner")
        outer.add_edge("inner", "after")
        return outer.compile(checkpointer=saver)

    return make


@pytest.mark.slow
@pytest.mark.parametrize("checkpointer", [None, True], ids=["plain", "own history"])
async def test_subgraphs_with_interrupts(compare: Compare, checkpointer: bool | None) -> None:
    async def script(run: Run) -> Any:
        results = []
        for turn in range(3):
            await run.invoke({"answers": [f"turn {turn}"]})
            nested = (await run.state()).tasks[0].state
            assert isinstance(nested, StateSnapshot)
            results.append(nested.values)
            results.append(await run.invoke(Command(resume=f"answer {turn}")))
        return results

    await compare(with_subgraph(checkpointer), script)


async def test_the_state_of_a_subgraph_is_changed_while_it_waits(compare: Compare) -> None:
    async def script(run: Run) -> Any:
        await run.invoke({"answers": []})
        nested = (await run.state()).tasks[0].state
        assert isinstance(nested, StateSnapshot)
        await run.update(nested.config, {"answers": ["slipped in"]})
        return await run.invoke(Command(resume="yes"))

    await compare(with_subgraph(None), script)


def functional(saver: Any) -> Any:
    """The functional API: tasks, a question, and the previous result."""

    @task
    def double(number: int) -> int:
        return number * 2

    @entrypoint(checkpointer=saver)
    def work(number: int, *, previous: int | None = None) -> Any:
        doubled = [double(number + index).result() for index in range(3)]
        answer = interrupt({"sum": sum(doubled)})
        return entrypoint.final(value=[*doubled, answer, previous], save=sum(doubled) + (previous or 0))

    return work


async def test_the_functional_api(compare: Compare) -> None:
    async def script(run: Run) -> Any:
        results = []
        for turn in range(3):
            await run.invoke(turn)
            results.append(await run.invoke(Command(resume=f"answer {turn}")))
        return results

    await compare(functional, script)


def join(state: list[Any], writes: Sequence[Any]) -> list[Any]:
    """A reducer that may be applied to any batches."""
    return [*(state or []), *itertools.chain.from_iterable(writes)]


class Delta(TypedDict):
    log: Annotated[list[str], DeltaChannel(join, snapshot_frequency=3)]
    other: Annotated[list[str], DeltaChannel(join, snapshot_frequency=50)]
    last: str


def delta(saver: Any) -> Any:
    """Nodes that write to two DeltaChannels, one of which hardly ever takes a snapshot."""
    graph = StateGraph(Delta)
    graph.add_node("a", lambda state: {"log": [f"a{len(state['log'])}"], "last": "a"})
    graph.add_node("b", lambda state: {"log": [f"b{len(state['log'])}"], "other": [f"b{len(state['other'])}"]})
    graph.add_edge(START, "a")
    graph.add_edge("a", "b")
    return graph.compile(checkpointer=saver)


@pytest.mark.slow
@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
async def test_delta_channels(compare: Compare, durability: str) -> None:
    async def script(run: Run) -> Any:
        return [await run.invoke({"log": [f"turn {turn}"], "other": []}) for turn in range(6)]

    await compare(delta, script, durability=durability)


@pytest.mark.slow
@pytest.mark.parametrize("durability", ["sync", "async"])
async def test_delta_channels_forked_and_replayed(compare: Compare, durability: str) -> None:
    async def script(run: Run) -> Any:
        for turn in range(4):
            await run.invoke({"log": [f"turn {turn}"], "other": []})
        history = await run.history()
        results = []
        for position in (2, 5, 9):
            forked = await run.update(history[position].config, {"log": [f"fork at {position}"]}, as_node="a")
            results.append(await run.invoke(None, forked))
            results.append(await run.invoke({"log": ["on"], "other": []}))
        results.append(await run.invoke(None, history[6].config))
        return results

    await compare(delta, script, durability=durability)


@pytest.mark.slow
@pytest.mark.parametrize("keep_last", [1, 3])
@pytest.mark.parametrize(("turns", "api"), crossed([1, 2, 5, 8], APIS))
async def test_pruned_delta_channels_keep_their_state(
    api: type, turns: int, keep_last: int, dsn: str, schema: str
) -> None:
    """Whatever the distance to the last snapshot; and the thread goes on as if nothing had gone."""

    async def play(thread_id: str, *, prune: bool) -> tuple[Any, Any]:
        config: Any = {"configurable": {"thread_id": thread_id}}
        for turn in range(turns):
            await run.invoke({"log": [f"turn {turn}"], "other": []}, config)
        if prune:
            before = await run.history(config)
            result = await saver.aprune([thread_id], keep_last=keep_last)
            after = await run.history(config)
            assert result.checkpoints == len(before) - len(after)
            kept = {state.config["configurable"]["checkpoint_id"]: state.values for state in after}
            for state in before[:keep_last]:
                assert kept[state.config["configurable"]["checkpoint_id"]] == state.values
        return (await run.state(config)).values, await run.invoke({"log": ["on"], "other": []}, config)

    async with open_saver(api, dsn, schema) as saver:
        run = Run(delta(saver), saver, blocking=api is PGStateSaver, durability="sync")
        assert await play("pruned", prune=True) == await play("whole", prune=False)


@dataclasses.dataclass
class Order:
    """A type of the application's own."""

    number: int
    lines: list[str]


class Shop(TypedDict):
    order: Order
    log: Annotated[list[str], operator.add]


def shop(saver: Any) -> Any:
    inner = StateGraph(Shop)
    inner.add_node("pack", lambda state: {"order": Order(state["order"].number + 1, [*state["order"].lines, "packed"])})
    inner.add_edge(START, "pack")
    graph = StateGraph(Shop)
    graph.add_node("take", lambda state: {"order": Order(1, ["taken"]), "log": ["taken"]})
    graph.add_node("inner", inner.compile())
    graph.add_node("ask", lambda state: {"log": [interrupt(f"send {state['order'].number}?")]})
    graph.add_edge(START, "take")
    graph.add_edge("take", "inner")
    graph.add_edge("inner", "ask")
    return graph.compile(checkpointer=saver)


@pytest.fixture
def strict(monkeypatch: pytest.MonkeyPatch) -> None:
    """What LANGGRAPH_STRICT_MSGPACK=true does: a graph allows the types of its own state, by a clone of its saver."""
    monkeypatch.setattr("langgraph._internal._serde.STRICT_MSGPACK_ENABLED", True)
    monkeypatch.setattr("langgraph.checkpoint.serde._msgpack.STRICT_MSGPACK_ENABLED", True)


@pytest.mark.usefixtures("strict")
@pytest.mark.parametrize("api", APIS)
async def test_strict_mode_builds_the_types_of_the_graphs_state(api: type, dsn: str, schema: str) -> None:
    """Also in a subgraph and after a restart; a saver without the graph refuses them and says how to allow them."""
    for turn in range(2):
        async with open_saver(api, dsn, schema) as saver:
            run = Run(shop(saver), saver, blocking=api is PGStateSaver, durability="sync")
            await run.invoke({"log": []} if turn == 0 else Command(resume="yes"))
            assert (await run.state()).values["order"] == Order(2, ["taken", "packed"])
            assert len(await run.history()) >= 3
            with pytest.raises(UnsafeTypeError, match="Order") as refused:
                await saver.aget_tuple(THREAD)
            allowed = saver.with_allowlist(refused.value.types)
            assert (await allowed.aget_tuple(THREAD)).checkpoint["channel_values"]["order"].number == 2


@pytest.mark.parametrize("api", APIS)
async def test_a_resumed_graph_goes_on_in_another_process_like_saver(api: type, dsn: str, schema: str) -> None:
    """Each turn on a saver of its own: nothing a run needs is kept in memory alone."""
    lengths = []
    for turn in range(4):
        async with open_saver(api, dsn, schema) as saver:
            run = Run(chat(saver), saver, blocking=api is PGStateSaver, durability="async")
            answer = await run.invoke({"messages": [HumanMessage(f"Question {turn}?", id=f"q{turn}")]})
            lengths.append(len(answer["messages"]))
            assert [message.id for message in answer["messages"] if message.id == f"q{turn}"]
    assert lengths == [4, 6, 6, 6]
