"""The choice of the messages that a model is shown."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage, trim_messages
from langchain_core.messages.utils import count_tokens_approximately
from support import examples

from langgraph_pgstate.errors import ConfigurationError
from langgraph_pgstate.record import Window, window
from langgraph_pgstate.record.windows import budget_of, choose, needs_more

KEPT = ("system", "first_human", "last_human", "last")


def calling(*ids: str, text: str = "") -> AIMessage:
    return AIMessage(text, id="calls " + ids[0], tool_calls=[{"name": "f", "args": {}, "id": id} for id in ids])


def result(id: str, text: str = "") -> ToolMessage:
    return ToolMessage(text, tool_call_id=id, id="of " + id)


def size(messages: list[BaseMessage]) -> int:
    return sum(len(message.content) + 1 for message in messages)


@st.composite
def conversations(draw: st.DrawFn) -> list[BaseMessage]:
    """Messages of all kinds; results may come late, in any order, never, or without a call."""
    found: list[BaseMessage] = []
    waiting: list[str] = []
    for number, kind in enumerate(draw(st.lists(st.sampled_from("shaacct"), max_size=25))):
        id, text = str(number), "x" * draw(st.integers(0, 40))
        if kind == "c":
            ids = [f"{id}-{place}" for place in range(draw(st.integers(1, 3)))]
            waiting += ids
            found.append(calling(*ids, text=text))
        elif kind == "t":
            is_known = waiting and draw(st.booleans())
            found.append(result(waiting.pop(draw(st.integers(0, len(waiting) - 1))) if is_known else id, text))
        else:
            found.append({"s": SystemMessage, "h": HumanMessage, "a": AIMessage}[kind](text, id=id))
    return found


options = st.fixed_dictionaries(
    {
        "max_tokens": st.none() | st.integers(0, 150),
        "max_messages": st.none() | st.integers(0, 12),
        "keep": st.sets(st.sampled_from(KEPT)).map(sorted),
        "token_counter": st.just(size),
    }
)


def ids_of(messages: list[BaseMessage]) -> list[str | None]:
    return [message.id for message in messages]


@pytest.mark.slow
@given(conversations(), options)
@settings(max_examples=examples(1200), deadline=None)
def test_a_window_fits_unless_what_it_keeps_does_not(messages: list[BaseMessage], given: Any) -> None:
    found = window(messages, **given)
    shown = {*ids_of(found)}
    assert ids_of(found) == [message.id for message in messages if message.id in shown], "in another order"
    limits = (given["max_tokens"], size(found)), (given["max_messages"], len(found))
    if any(limit is not None and limit < reached for limit, reached in limits):
        # Even the smallest window has all that.
        assert found
        assert found == window(messages, **{**given, "max_tokens": 0})
    called = {call["id"] for message in messages for call in getattr(message, "tool_calls", ())}
    answered = {message.tool_call_id for message in messages if isinstance(message, ToolMessage)}
    for id in called & answered:
        callers = [m for m in found if any(call["id"] == id for call in getattr(m, "tool_calls", ()))]
        assert bool(callers) == any(isinstance(m, ToolMessage) and m.tool_call_id == id for m in found), "a parted pair"
    people = [message.id for message in messages if isinstance(message, HumanMessage)]
    kept = {
        "system": ids_of([*itertools.takewhile(lambda message: isinstance(message, SystemMessage), messages)]),
        "first_human": people[:1],
        "last_human": people[-1:],
        "last": ids_of(messages[-1:]),
    }
    for kind in given["keep"]:
        assert {*kept[kind]} <= shown, kind
    assert window(found, **given) == found, "another window the second time"


@pytest.mark.slow
@given(conversations(), options, st.data())
@settings(max_examples=examples(1200), deadline=None)
def test_pages_give_the_same_window_as_the_whole(messages: list[BaseMessage], given: Any, data: st.DataObject) -> None:
    budget = budget_of(given)
    head = 0
    while head < len(messages) and needs_more(messages[:head], given["keep"]):
        head += data.draw(st.integers(1, 4))
    start, found = len(messages), None
    while found is None:
        start -= data.draw(st.integers(1, 4))
        if start <= head:
            found = choose([], messages, budget, is_whole=True)
        else:
            found = choose(messages[:head], messages[start:], budget, is_whole=False)
    assert found == window(messages, **given)


def test_a_long_run_of_tools_keeps_what_it_was_asked() -> None:
    """LangChain's own function is left with the system message alone."""
    messages = [SystemMessage("s"), HumanMessage("Count all files.", id="asked")]
    for number in range(30):
        messages += [calling(str(number)), result(str(number), "x" * 100)]
    found = window(messages, max_tokens=200)
    assert ids_of(found[:2]) == [None, "asked"]
    assert found[-1] is messages[-1]
    assert isinstance(found[2], AIMessage)
    assert 100 < count_tokens_approximately(found) <= 200
    theirs = trim_messages(messages, max_tokens=200, token_counter="approximate", include_system=True, start_on="human")
    assert [message.type for message in theirs] == ["system"]


def test_what_precedes_the_newest_question_begins_with_a_question() -> None:
    messages = [HumanMessage("1"), AIMessage("2"), HumanMessage("3"), AIMessage("4"), HumanMessage("5")]
    assert window(messages, max_messages=4) == messages[2:]
    assert window(messages, max_messages=4, keep=["last"]) == messages[1:]


def test_an_edit_of_langchains_middleware_is_a_window() -> None:
    messages: list[Any] = [HumanMessage("1"), AIMessage("2"), HumanMessage("3")]
    Window(max_tokens=1).apply(messages, count_tokens=len)
    assert [message.content for message in messages] == ["3"]


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"max_tokens": -1}, "max_tokens must be a whole number of 0 or more"),
        ({"max_messages": True}, "max_messages must be a whole number of 0 or more"),
        ({"keep": "last"}, "keep must be a list of"),
        ({"keep": ["first"]}, "not 'first'"),
        ({"token_counter": 4}, "token_counter must be"),
        ({"tokens": 4}, "has no option 'tokens'"),
    ],
)
def test_options_that_say_nothing_are_refused(wrong: Any, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        window([], **wrong)
