"""Private names of LangGraph: each is where it is looked for."""

from __future__ import annotations

from contextlib import AsyncExitStack, ExitStack
from itertools import pairwise
from typing import Any, TypedDict
from uuid import UUID

import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.messages import HumanMessage, RemoveMessage
from langgraph import version
from langgraph._internal import _constants
from langgraph._internal._scratchpad import PregelScratchpad
from langgraph.checkpoint.base import _with_msgpack_allowlist
from langgraph.checkpoint.base import id as ids
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde import _msgpack, types
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.checkpoint.serde.types import _DeltaSnapshot
from langgraph.graph import START, StateGraph, message
from langgraph.pregel._algo import LazyAtomicCounter, task_path_str
from langgraph.pregel._loop import AsyncPregelLoop, SyncPregelLoop
from langgraph.types import Send
from support import config_of

from langgraph_pgstate import PGStateSaver
from langgraph_pgstate import langgraph_compat as compat


def test_keys_of_configurable_are_those_of_langgraph() -> None:
    keys = {
        "RUNTIME": "CONFIG_KEY_RUNTIME",
        "REPLAY_STATE": "CONFIG_KEY_REPLAY_STATE",
        "SCRATCHPAD": "CONFIG_KEY_SCRATCHPAD",
        "CHECKPOINTER": "CONFIG_KEY_CHECKPOINTER",
        "DURABILITY": "CONFIG_KEY_DURABILITY",
        "TASK_ID": "CONFIG_KEY_TASK_ID",
        "SEND": "CONFIG_KEY_SEND",
        "RESUME": "RESUME",
    }
    assert {name: getattr(compat, name) for name in keys} == {
        name: getattr(_constants, theirs) for name, theirs in keys.items()
    }


def test_classes_and_functions_are_those_of_langgraph() -> None:
    assert compat.DeltaSnapshot is _DeltaSnapshot
    assert compat.with_msgpack_allowlist is _with_msgpack_allowlist
    assert compat.send_class() is Send
    assert compat.SAFE_TYPES is _msgpack.SAFE_MSGPACK_TYPES
    assert compat.REMOVE_ALL_MESSAGES == message.REMOVE_ALL_MESSAGES
    assert hasattr(ids, "_last_v6_timestamp")


def test_the_reducer_of_messages_is_langgraphs_own_or_add_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    assert compat.messages_delta_reducer() is message._messages_delta_reducer
    monkeypatch.delattr(message, "_messages_delta_reducer")
    said = HumanMessage("a", id="1")
    assert compat.messages_delta_reducer()([], [said, [HumanMessage("b", id="2")], RemoveMessage(id="2")]) == [said]


def test_hooks_of_a_serializer_are_found() -> None:
    def hook(code: int, data: bytes) -> Any:
        return None

    assert not compat.has_own_hook(JsonPlusSerializer())
    assert compat.has_own_hook(JsonPlusSerializer(__unpack_ext_hook__=hook))
    assert compat.extension_hook_of(JsonPlusSerializer(__unpack_ext_hook__=hook)) is hook


class Watching(InMemorySaver):
    """Notes which loop reads."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[Any, Any]] = []

    def get_tuple(self, config: Any) -> Any:
        self.found.append(compat.calling_loop())
        return super().get_tuple(config)

    async def aget_tuple(self, config: Any) -> Any:
        self.found.append(compat.calling_loop())
        return super().get_tuple(config)


@pytest.mark.parametrize(("loop", "stack"), [(SyncPregelLoop, ExitStack), (AsyncPregelLoop, AsyncExitStack)])
async def test_the_loop_that_reads_is_found(loop: type, stack: type) -> None:
    saver = Watching()
    assert compat.calling_loop() == (None, None)
    graph: Any = StateGraph(dict).add_node("a", lambda state: {}).add_edge(START, "a").compile(checkpointer=saver)
    if loop is SyncPregelLoop:
        graph.invoke({}, config_of("t"))
    else:
        await graph.ainvoke({}, config_of("t"))
    exits, found = saver.found[0]
    assert type(exits) is stack
    assert type(found) is loop
    assert found.stack is exits


def test_channels_of_a_graph_that_its_state_does_not_declare_are_known() -> None:
    class State(TypedDict):
        one: str
        branch: str

    builder: Any = StateGraph(State)
    for name in ("a", "b", "c"):
        builder.add_node(name, lambda state: {})
    graph = builder.add_edge(START, "a").add_edge(START, "b").add_edge(["a", "b"], "c").compile()
    own = {name for name in graph.channels if compat.is_schedule_channel(name)}
    assert graph.channels.keys() - own == {"one", "branch"}
    assert any(name.startswith("join:") for name in own)
    assert compat.next_nodes(graph.channels) == ["a", "b", "c"]
    reserved = ("INPUT", "INTERRUPT", "RESUME", "ERROR", "NO_WRITES", "TASKS")
    assert all(compat.is_schedule_channel(getattr(_constants, name)) for name in reserved)
    assert compat.is_schedule_channel(types.SCHEDULED)


@given(st.text(min_size=1))
def test_paths_of_tasks_are_those_of_langgraph(node: str) -> None:
    path = task_path_str((_constants.PULL, node))
    assert path.removeprefix(compat.PULL_PATH) == node
    assert task_path_str((_constants.PULL, node, "node_error_handler", False)) == path + compat.HANDLER_PATH


@pytest.mark.slow
@given(st.lists(st.sampled_from("abcde"), min_size=1, max_size=5, unique=True), st.data())
def test_channels_of_any_graph_that_its_state_does_not_declare_are_known(nodes: list[str], data: st.DataObject) -> None:
    """Graphs of edges, joins, conditions and deferred nodes."""
    state: Any = TypedDict("State", {"branch": int, "join": int, "start": int})  # type: ignore[operator]
    builder: Any = StateGraph(state)
    for name in nodes:
        builder.add_node(name, lambda state: {}, defer=data.draw(st.booleans()))
    builder.add_edge(START, nodes[0])
    for first, second in pairwise(nodes):
        builder.add_edge(data.draw(st.sampled_from([first, [first], [nodes[0], first]])), second)
    if data.draw(st.booleans()):
        builder.add_conditional_edges(nodes[-1], lambda state: nodes[0], [nodes[0]])
    own = {name for name in builder.compile().channels if compat.is_schedule_channel(name)}
    assert builder.compile().channels.keys() - own == {"branch", "join", "start"}
    assert compat.next_nodes(own) == sorted(nodes)


class Counter(int):
    """A counter that starts at a number."""

    def __call__(self) -> int:
        return int(self)


@pytest.mark.parametrize("used", [0, 3])
def test_a_counter_of_interrupts_is_replaced_at_its_count(used: int) -> None:
    lazy = LazyAtomicCounter()
    for _ in range(used):
        lazy()
    pad = PregelScratchpad(
        step=0,
        stop=1,
        call_counter=LazyAtomicCounter(),
        interrupt_counter=lazy,
        get_null_resume=lambda consume: None,
        resume=[],
        subgraph_counter=LazyAtomicCounter(),
    )
    counter = compat.interrupt_counter(pad, Counter)
    assert counter == used
    assert compat.interrupt_counter(pad, Counter) is counter
    assert lazy() == used
    assert compat.interrupt_counter(None, Counter) is None


def test_a_serializer_builds_with_the_functions_it_is_given() -> None:
    class Own(compat.SerializerBase):
        def revive(self, value: dict[str, Any]) -> Any:
            return "revived" if "lc" in value else super().revive(value)

    serde = Own()
    serde.use_extension_hook(lambda code, data: "built")
    assert serde.loads_typed(serde.dumps_typed(UUID(int=0))) == "built"
    assert serde.loads_typed(("json", b'[{"lc": 2}, {"a": 1}]')) == ["revived", {"a": 1}]


@pytest.mark.parametrize(
    ("installed", "lines"),
    [
        ("1.2.14", 1),
        ("1.2.15", 0),
        ("1.2.24.post1", 0),
        ("1.2.24", 0),
        ("1.2.25", 1),
        ("1.3.0rc1", 1),
        ("2.0", 1),
        ("", 0),
    ],
)
def test_another_langgraph_than_the_tested_is_logged_once(
    installed: str,
    lines: int,
    connection: psycopg.Connection,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(version, "__version__", installed)
    monkeypatch.setattr(compat, "TESTED_VERSIONS", ("1.2.15", "1.2.24"))
    compat.warn_if_untested.cache_clear()
    try:
        PGStateSaver(connection)
        PGStateSaver(connection)
    finally:
        compat.warn_if_untested.cache_clear()
    assert len(caplog.messages) == lines
