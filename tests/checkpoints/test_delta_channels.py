"""DeltaChannels: their values are what LangGraph makes of them, with the reducer of a known graph or with its own."""

from __future__ import annotations

from typing import Annotated, Any, TypedDict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, HumanMessage, RemoveMessage
from langgraph.channels.delta import DeltaChannel
from langgraph.graph import START, StateGraph
from langgraph.graph.message import REMOVE_ALL_MESSAGES, _messages_delta_reducer
from langgraph.types import Overwrite
from support import config_of, examples

from langgraph_pgstate import PGState
from langgraph_pgstate.checkpoints import delta_channels
from langgraph_pgstate.checkpoints.delta_channels import MessageRules, learn, rules_of, value_of
from langgraph_pgstate.langgraph_compat import DeltaSnapshot
from langgraph_pgstate.record import LoopRecorder


@pytest.fixture(autouse=True)
def unlearned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delta_channels, "_known", {})
    monkeypatch.setattr(delta_channels, "_rules", {})


def merged(state: dict[str, int], writes: list[dict[str, int]]) -> dict[str, int]:
    return {key: value for part in (state, *writes) for key, value in part.items()}


def newest(state: list[Any], writes: list[Any]) -> list[Any]:
    return [*state, *(item for write in writes for item in write)][-2:]


def graph_of(reducer: Any, kind: type = list) -> Any:
    state: Any = TypedDict("State", {"channel": Annotated[kind, DeltaChannel(reducer)]})  # type: ignore[operator, valid-type]
    return StateGraph(state).add_node("a", lambda state: {}).add_edge(START, "a").compile()


def history(*writes: Any, **seed: Any) -> dict[str, Any]:
    return {"writes": [("task", "channel", write) for write in writes], **seed}


IDS = st.sampled_from(["1", "2", "3", REMOVE_ALL_MESSAGES])
MESSAGE = st.one_of(
    st.builds(lambda id, text: HumanMessage(text, id=id), IDS, st.sampled_from(["a", "b"])),
    st.builds(lambda id: AIMessage("answer", id=id), st.one_of(st.none(), IDS)),
    st.builds(lambda id: RemoveMessage(id=id), IDS),
)
MESSAGES = st.lists(MESSAGE, max_size=3)
SEED = st.lists(st.builds(lambda id: HumanMessage("seed", id=id), IDS), max_size=3, unique_by=lambda one: one.id)
WRITE = st.one_of(MESSAGE, MESSAGES, st.builds(Overwrite, SEED))


@settings(max_examples=examples(300), deadline=None)
@given(seed=st.one_of(st.none(), SEED), writes=st.lists(WRITE, max_size=5))
def test_messages_of_unknown_graphs_are_merged_by_langgraphs_own_reducer(seed: Any, writes: list[Any]) -> None:
    channel = DeltaChannel(_messages_delta_reducer).from_checkpoint(DeltaSnapshot(seed or []))
    channel.replay_writes([("task", "channel", write) for write in writes])
    found = value_of("channel", history(*writes, **({} if seed is None else {"seed": DeltaSnapshot(seed)})))
    assert found == channel.get()


def test_other_values_of_unknown_graphs_are_appended() -> None:
    assert value_of("channel", history("a", ["b"], seed=["s"])) == ["s", "a", "b"]
    assert value_of("channel", history(["a"], Overwrite(["b"]), "c")) == ["b", "c"]


def test_the_reducer_of_a_known_graph_makes_the_value() -> None:
    learn(graph_of(merged, dict))
    assert value_of("channel", history({"a": 1}, {"b": 2}, {"a": 3})) == {"a": 3, "b": 2}
    assert value_of("channel", history({"a": 1}, seed=DeltaSnapshot({"c": 4}))) == {"c": 4, "a": 1}
    # As it is known again by a graph that is made anew for each request.
    learn(graph_of(merged, dict))
    assert value_of("channel", history({"a": 1})) == {"a": 1}
    # A reducer that cannot take what was read as plain data.
    assert value_of("channel", history("not a dict")) == ["not a dict"]


def test_a_graph_that_is_recorded_before_a_loop_runs_is_known() -> None:
    LoopRecorder(lambda: None, lambda: ()).record(graph_of(merged, dict))
    assert value_of("channel", history({"a": 1}, {"b": 2})) == {"a": 1, "b": 2}


def test_of_two_reducers_under_one_name_none_is_taken() -> None:
    learn(graph_of(newest))
    assert value_of("channel", history(["a", "b"], ["c"])) == ["b", "c"]
    learn(graph_of(_messages_delta_reducer))
    learn(graph_of(newest))
    assert value_of("channel", history(["a", "b"], ["c"])) == ["a", "b", "c"]


def test_rules_are_those_of_the_reducer() -> None:
    def ignoring(state: list[Any], writes: list[Any]) -> list[Any]:
        said = [item for write in writes for item in write if item.id != REMOVE_ALL_MESSAGES]
        return _messages_delta_reducer(state, [said])

    own = rules_of("channel")
    assert not own.keeps_place
    learn(graph_of(merged, dict))
    learn(graph_of(lambda state, writes: 1 // 0))
    assert rules_of("channel") == own
    learn(graph_of(ignoring))
    assert rules_of("channel") == MessageRules(hears_remove_all=False, keeps_place=False)


def test_a_reader_gets_the_value_that_the_graph_has(dsn: str, schema: str) -> None:
    class State(TypedDict):
        count: Annotated[dict, DeltaChannel(merged)]
        last: Annotated[list, DeltaChannel(newest)]

    with PGState.open(dsn, schema=schema) as state:
        state.setup()
        builder = StateGraph(State).add_node("a", lambda state: {"count": {"a": 1}, "last": ["d"]})
        graph = state.record(builder.add_edge(START, "a").compile(checkpointer=state.saver))
        final = graph.invoke({"count": {"b": 2}, "last": ["a", "b", "c"]}, config_of("t"))
        assert final == {"count": {"b": 2, "a": 1}, "last": ["c", "d"]}
        assert state.threads.state_at(config_of("t")).values == final
