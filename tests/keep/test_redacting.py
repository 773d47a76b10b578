"""Redaction of stored values: of the same length, of nothing else, and what is left is still the same kind of value."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from support import examples

from langgraph_pgstate.codec.values import ValueCodec
from langgraph_pgstate.keep.redacting import Redaction, blank, message_ids_of, redact_json, redact_packed, texts_of

CODEC = ValueCodec()
TEXT = "the account is DE89 3704 0044"

contents = st.one_of(
    st.text(max_size=40),
    st.lists(
        st.one_of(
            st.text(max_size=9),
            st.fixed_dictionaries({"type": st.just("text"), "text": st.text(max_size=30)}),
            st.fixed_dictionaries(
                {"type": st.just("image"), "data": st.binary(max_size=20), "size": st.integers(0, 999)}
            ),
        ),
        max_size=3,
    ),
)
arguments = st.dictionaries(
    st.text(max_size=5), st.one_of(st.text(max_size=9), st.floats(allow_nan=False), st.booleans()), max_size=3
)


@st.composite
def messages(draw: Any, id: str) -> Any:
    kind = draw(st.sampled_from([HumanMessage, SystemMessage, AIMessage, ToolMessage]))
    given: dict[str, Any] = {"id": id, "content": draw(contents), "additional_kwargs": draw(arguments)}
    if kind is AIMessage:
        given["tool_calls"] = [{"name": "look", "args": draw(arguments), "id": "c", "type": "tool_call"}]
    if kind is ToolMessage:
        given |= {"tool_call_id": "c", "artifact": draw(arguments)}
    return kind(**given)


@settings(max_examples=examples(100))
@given(messages("m1"), messages("m2"))
def test_a_message_is_blank_and_its_neighbour_is_as_it_was(first: Any, second: Any) -> None:
    _, data = CODEC.dumps("messages", {"list": [first, second], "number": 3, "within": {"deep": first}})
    assert message_ids_of(data) == {"m1", "m2"}
    found = []
    after = redact_packed(data, Redaction(frozenset({"m1"})), lambda *given: found.append(given))
    assert len(after) == len(data)
    value = CODEC.loads("msgpack", after, "it")
    assert value["list"][1] == second
    assert value["number"] == 3
    one = value["list"][0]
    assert (type(one), one.id, one.type) == (type(first), "m1", first.type)
    assert value["within"]["deep"] == one
    assert all(set(text) <= set("[erasd] x") for text in texts_of({"content": one.content}))
    if isinstance(first, AIMessage):
        assert [call["name"] for call in one.tool_calls] == ["look"]
        assert all(
            not value or set(str(value)) <= set("[erasd] x0.False") for value in one.tool_calls[0]["args"].values()
        )
    assert [id for id, _, _ in found] == ["m1", "m1"]
    # Nothing more is to be done.
    assert redact_packed(after, Redaction(frozenset({"m1"}))) == after


@settings(max_examples=examples(100))
@given(st.binary(max_size=80))
def test_any_bytes_keep_their_length(data: bytes) -> None:
    what = Redaction(frozenset({"m1", ""}), (TEXT,))
    assert len(redact_packed(data, what)) == len(data)
    message_ids_of(data)


@pytest.mark.parametrize("value", [TEXT, f"He said: {TEXT}!", [TEXT], {"a": {"b": TEXT}}, {TEXT: 1}, TEXT.encode()])
def test_a_text_is_found_wherever_it_stands(value: Any) -> None:
    type_, data = CODEC.dumps("it", value)
    after = redact_packed(data, Redaction(frozenset(), (TEXT,)))
    assert len(after) == len(data)
    assert b"DE89" not in after
    assert b"DE89" not in bytes(str(CODEC.loads(type_, after, "it")), "utf-8")


def test_a_short_text_is_left_alone_elsewhere() -> None:
    _, data = CODEC.dumps("it", {"answer": "yes", "more": [HumanMessage("yes", id="m1")]})
    after = CODEC.loads("msgpack", redact_packed(data, Redaction(frozenset({"m1"}), ("yes",))), "it")
    assert after["answer"] == "yes"
    assert after["more"][0].content == "xxx"


def test_json_is_redacted_by_id_text_name_and_where_it_was_cut() -> None:
    what = Redaction(frozenset({"m1"}), (TEXT,), frozenset({"evelyn"}))
    message = {
        "role": "human",
        "content": "hi",
        "id": "m1",
        "name": "Eve",
        "tool_calls": [{"name": "x", "args": {"a": 1}}],
    }
    assert redact_json([message, 1], what) == [
        {
            "role": "human",
            "content": "[erased]",
            "id": "m1",
            "name": "[erased]",
            "tool_calls": [{"name": "x", "args": {}}],
        },
        1,
    ]
    assert redact_json({"a": f"so {TEXT}"}, what) == {"a": "[erased]"}
    assert redact_json({"user_id": "evelyn", "x": "evelyn's"}, what) == {"user_id": "[erased]", "x": "evelyn's"}
    for preview in (json.dumps([message]), f'[{{"content":"{TEXT[:20]}'):
        assert redact_json({"$truncated": {"preview": preview, "sha256": "a", "bytes": 9}}, what) == {"$erased": True}
    same = {"$truncated": {"preview": "[]", "sha256": "a", "bytes": 9}, "b": [None, True, 1.5]}
    assert redact_json(same, what) is same
    assert blank(b"abc") == b"xxx"


@pytest.mark.parametrize(
    "said",
    [
        HumanMessage("yes", name="Eve"),
        HumanMessage([{"type": "text", "text": "yes"}]),
        {"role": "user", "content": "yes"},
        {"type": "human", "content": "yes"},
        ("user", "yes"),
    ],
)
def test_a_message_that_had_no_id_yet_is_found_by_its_whole_text(said: Any) -> None:
    what = Redaction(frozenset({"m1"}), ("yes",))
    other = {"answer": "yes", "role": "user", "text": "yes", "more": ["no", "yes"], "then": HumanMessage("yes!")}
    type_, data = CODEC.dumps("it", {"messages": [said], **other})
    after = CODEC.loads(type_, redact_packed(data, what), "it")
    assert "yes" not in str(after["messages"])
    assert "Eve" not in str(after["messages"])
    assert {key: after[key] for key in other} == other


def test_json_of_a_message_that_had_no_id_yet_is_found_by_its_whole_text() -> None:
    what = Redaction(frozenset({"m1"}), ("yes",))
    given = {"messages": [{"role": "human", "content": "yes", "name": "Eve"}, ["user", "yes"]]}
    erased = {"role": "human", "content": "[erased]", "name": "[erased]"}
    assert redact_json(given, what) == {"messages": [erased, ["user", "[erased]"]]}
    for other in ({"content": "yes"}, {"role": "human", "content": "yes!"}, ["no", "yes"], {"a": "yes"}, [["yes"], {}]):
        assert redact_json(other, what) is other
    # What an application calls an id, calls or a content may be anything.
    odd = {"id": {"a": [1]}, "type": "x", "content": ["yes", 1], "tool_calls": 3}
    assert redact_json(odd, what) is odd
