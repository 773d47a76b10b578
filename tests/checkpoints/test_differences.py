"""How states differ: channels, messages, and other values down to where they part."""

from __future__ import annotations

import operator
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Annotated, Any, TypedDict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.channels.delta import DeltaChannel
from langgraph.graph import START, StateGraph
from pydantic import BaseModel
from support import config_of, examples, put_arguments
from support.record import ask

from langgraph_pgstate import PGState
from langgraph_pgstate.checkpoints.differences import States, compare
from langgraph_pgstate.checkpoints.types import Difference, ValueChange
from langgraph_pgstate.errors import NotFoundError, UnsafeTypeError
from tests.test_state import APIS, open_state


@pytest.fixture(params=APIS, ids=lambda api: api.__name__)
async def state(request: pytest.FixtureRequest, dsn: str, schema: str) -> AsyncIterator[Any]:
    async with open_state(request.param, dsn, schema) as state:
        yield state


def between(before: dict[str, Any], after: dict[str, Any]) -> Difference:
    return compare(States({}, {}, before, after))


def changes(before: Any, after: Any) -> list[tuple[Any, ...]]:
    """Where two values of one channel differ."""
    found = between({"x": before}, {"x": after})
    return [(item.change, item.path, item.before, item.after) for channel in found.channels for item in channel.values]


@dataclass
class Order:
    number: int
    lines: list[str]


class Booking(BaseModel):
    city: str
    nights: int = 1


def test_channels_are_added_removed_and_changed() -> None:
    found = between({"same": 1, "gone": 2, "other": 3}, {"same": 1, "new": None, "other": 4})
    assert (found.added, found.removed, found.changed) == (("new",), ("gone",), ("other",))
    assert found["gone"].before == 2
    assert found["gone"].values == (ValueChange("removed", (), 2, None),)
    assert found["new"].values == (ValueChange("added", (), None, None),)
    assert found["other"].values == (ValueChange("changed", (), 3, 4),)
    with pytest.raises(KeyError):
        found["same"]
    assert found
    assert not between({"same": [1, {"a": 2}]}, {"same": [1, {"a": 2}]})


def test_what_langgraph_keeps_for_itself_is_left_out() -> None:
    before = {"branch:to:a": None, "__start__": 1, "__pregel_tasks": [], "join:a+b:c": {"a"}, "start:x": 1}
    assert not between(before, {})
    assert between({"__root__": 1, "__previous__": 1}, {"__root__": 2, "__previous__": 2}).changed == (
        "__previous__",
        "__root__",
    )


def test_messages_are_added_edited_and_removed() -> None:
    before = [HumanMessage("a", id="1"), AIMessage("b", id="2"), HumanMessage("c", id="3")]
    after = [HumanMessage("a", id="1"), AIMessage("B", id="2"), AIMessage("d", id="4")]
    found = between({"messages": before}, {"messages": after})["messages"]
    assert [(item.change, item.message_id, item.position) for item in found.messages] == [
        ("removed", "3", 2),
        ("edited", "2", 1),
        ("added", "4", 2),
    ]
    assert (found.messages[1].before.content, found.messages[1].after.content) == ("b", "B")
    assert found.values == ()
    new = between({}, {"messages": after})["messages"]
    assert [(item.change, item.position) for item in new.messages] == [("added", 0), ("added", 1), ("added", 2)]
    gone = between({"messages": before}, {"messages": []})["messages"]
    assert [item.change for item in gone.messages] == ["removed"] * 3


def test_messages_whose_metadata_alone_changed_are_edited() -> None:
    before = [AIMessage("a", id="1", response_metadata={"model": "x"})]
    after = [AIMessage("a", id="1", response_metadata={"model": "y"})]
    (found,) = between({"m": before}, {"m": after})["m"].messages
    assert found.change == "edited"


def test_messages_in_another_order() -> None:
    first, second = HumanMessage("a", id="1"), HumanMessage("b", id="2")
    found = between({"m": [first, second]}, {"m": [second, first]})["m"]
    assert found.messages == ()
    assert found.values == (ValueChange("changed", (), ["1", "2"], ["2", "1"]),)


def test_messages_without_ids_and_with_the_same() -> None:
    same = [HumanMessage("a"), HumanMessage("a")]
    assert not between({"m": same}, {"m": [HumanMessage("a"), HumanMessage("a")]})
    found = between({"m": same}, {"m": [HumanMessage("a"), HumanMessage("a"), HumanMessage("a")]})
    assert [item.position for item in found["m"].messages] == [2]
    twice = [HumanMessage("a", id="1"), HumanMessage("b", id="1")]
    found = between({"m": twice}, {"m": twice[:1]})
    assert [(item.change, item.position) for item in found["m"].messages] == [("removed", 1)]


def test_mappings_differ_by_key() -> None:
    before = {"a": 1, "b": {"c": 2, "d": [1, 2]}, "gone": 0, 5: "five"}
    after = {"a": 1, "b": {"c": 3, "d": [1, 2, 4]}, "new": 0, 5: "FIVE"}
    assert changes(before, after) == [
        ("removed", ("gone",), 0, None),
        ("changed", ("b", "c"), 2, 3),
        ("added", ("b", "d", 2), None, 4),
        ("added", ("new",), None, 0),
        ("changed", (5,), "five", "FIVE"),
    ]


def test_lists_differ_where_they_do() -> None:
    assert changes([1, 2, 3, 4], [1, 3, 4]) == [("removed", (1,), 2, None)]
    assert changes([1, 4], [1, 2, 3, 4]) == [("added", (1,), None, 2), ("added", (2,), None, 3)]
    assert changes([1, {"a": 1}, 3], [1, {"a": 2}, 3]) == [("changed", (1, "a"), 1, 2)]
    assert changes((1, 2), (1, 3)) == [("changed", (1,), 2, 3)]
    assert changes([1], (1,)) == [("changed", (), [1], (1,))]
    assert changes([], ["a"]) == [("added", (0,), None, "a")]


def test_types_differ_where_values_are_equal() -> None:
    assert changes(1, True) == [("changed", (), 1, True)]
    assert changes([1.0], [1]) == [("changed", (0,), 1.0, 1)]
    assert changes(float("nan"), float("nan")) == []
    assert changes("1", 1) == [("changed", (), "1", 1)]


def test_objects_differ_by_field() -> None:
    assert changes(Order(1, ["a"]), Order(2, ["a", "b"])) == [
        ("changed", ("number",), 1, 2),
        ("added", ("lines", 1), None, "b"),
    ]
    assert changes(Booking(city="Oslo"), Booking(city="Rome")) == [("changed", ("city",), "Oslo", "Rome")]
    assert changes({1, 2}, {2, 3}) == [("removed", (1,), 1, None), ("added", (3,), None, 3)]


def test_values_that_do_not_compare() -> None:
    class Odd:
        def __eq__(self, other: object) -> bool:
            raise RuntimeError

        def __repr__(self) -> str:
            return "odd"

        __hash__ = None  # type: ignore[assignment]

    assert changes(Odd(), Odd()) == []
    long = np.arange(5000.0)
    other = long.copy()
    assert changes({"a": long}, {"a": other}) == []
    other[2500] = -1
    assert [item.path for item in between({"x": {"a": long}}, {"x": {"a": other}})["x"].values] == [("a",)]
    assert changes(np.zeros(0), np.zeros(0)) == []


def test_what_is_nested_without_end_is_compared_whole() -> None:
    def deep(bottom: int) -> Any:
        value: Any = bottom
        for _ in range(400):
            value = [value]
        return value

    assert changes(deep(1), deep(1)) == []
    assert len(changes(deep(1), deep(2))) == 1


def test_lists_within_lists_are_looked_at_a_few_times_only() -> None:
    def deep(*more: int) -> Any:
        value: Any = [0]
        for _ in range(45):
            value = [*more, value, *more]
        return value

    assert changes(deep(1), deep(1, 2))


json = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.floats() | st.text("ab", max_size=2),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text("ab", max_size=2), inner, max_size=3),
    max_leaves=12,
)


def apply(value: Any, found: list[tuple[Any, ...]]) -> Any:
    """A value with some changes made to it."""
    for change, path, _, after in found:
        if not path:
            return after
        holder = value
        for key in path[:-1]:
            holder = holder[key]
        if change == "removed":
            # Of a list several go, the first place first.
            holder[path[-1]] = removed
        elif change == "added" and isinstance(holder, list):
            holder.insert(path[-1], after)
        else:
            holder[path[-1]] = after
    return without_removed(value)


removed = object()


def without_removed(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: without_removed(item) for key, item in value.items() if item is not removed}
    return [without_removed(item) for item in value if item is not removed] if isinstance(value, list) else value


@settings(max_examples=examples(150), deadline=None)
@given(json, json)
def test_the_differences_made_to_the_first_make_the_second(before: Any, after: Any) -> None:
    import copy

    found = changes(before, after)
    assert changes(apply(copy.deepcopy(before), found), after) == []
    assert changes(before, copy.deepcopy(before)) == []


# Between checkpoints


class Chat(TypedDict):
    messages: Annotated[list[Any], operator.add]
    booking: dict[str, Any]


async def test_two_checkpoints_of_one_thread_and_of_two(state: Any) -> None:
    first = await state.saver.aput(*put_arguments(config_of("t"), 0, items=["a"], booking={"city": "Oslo"}))
    second = await state.saver.aput(*put_arguments(first, 1, items=["a", "b"], booking={"city": "Rome"}))
    found = await ask(state.threads.diff(first, second))
    assert (found.first, found.second) == (first, second)
    assert found["booking"].values == (ValueChange("changed", ("city",), "Oslo", "Rome"),)
    assert found["items"].values == (ValueChange("added", (1,), None, "b"),)
    # Without a checkpoint's id the newest is meant.
    assert await ask(state.threads.diff(first, config_of("t"))) == found
    forked = await ask(state.threads.fork("t", first["configurable"]["checkpoint_id"], "u"))
    assert not await ask(state.threads.diff(first, forked))
    await state.saver.aput(*put_arguments(forked, 1, items=["c"], booking={"city": "Oslo"}))
    assert (await ask(state.threads.diff(config_of("t"), config_of("u")))).changed == ("booking", "items")


async def test_checkpoints_that_are_not_there(state: Any) -> None:
    first = await state.saver.aput(*put_arguments(config_of("t"), 0))
    for other in (config_of("nobody"), {"configurable": {"thread_id": "t", "checkpoint_id": "none"}}):
        with pytest.raises(NotFoundError):
            await ask(state.threads.diff(first, other))


async def test_types_that_may_not_be_built(state: Any) -> None:
    elsewhere = type("Order", (Order,), {"__module__": "never.imported"})
    first = await state.saver.aput(*put_arguments(config_of("t"), 0, order=elsewhere(1, [])))
    with pytest.raises(UnsafeTypeError, match=r"never\.imported"):
        await ask(state.threads.diff(first, first))


class Deltas(TypedDict):
    log: Annotated[list[str], DeltaChannel(lambda state, writes: [*(state or []), *sum(map(list, writes), start=[])])]  # noqa: RUF017


async def test_delta_channels(state: Any) -> None:
    builder = StateGraph(Deltas)
    builder.add_node("a", lambda state: {"log": [f"a{len(state['log'])}"]})
    builder.add_edge(START, "a")
    graph = builder.compile(checkpointer=state.saver)
    for turn in range(3):
        given = ({"log": [f"turn {turn}"]}, config_of("t"))
        graph.invoke(*given) if isinstance(state, PGState) else await graph.ainvoke(*given)
    states = [item async for item in graph.aget_state_history(config_of("t"))]
    for older, newer in ((4, 0), (0, 5), (3, 1)):
        found = await ask(state.threads.diff(states[older].config, states[newer].config))
        before, after = states[older].values["log"], states[newer].values["log"]
        assert (found["log"].before, found["log"].after) == (before, after)
