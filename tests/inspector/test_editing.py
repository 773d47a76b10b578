"""The form of a state: what its fields change, and that change on top of another state."""

from __future__ import annotations

import json
import operator
from collections.abc import Iterator
from copy import deepcopy
from datetime import UTC, datetime
from typing import Annotated, Any, TypedDict

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph
from langgraph.graph.message import add_messages
from starlette.exceptions import HTTPException

from langgraph_pgstate.inspector.editing import (
    Edit,
    Node,
    lost,
    merged,
    nodes,
    place_of,
    plain,
    read_edit,
    texts_of,
    updates,
)

TALK = [
    {"type": "human", "content": "A weekend in Lisbon.", "id": "h"},
    {"type": "ai", "content": "", "id": "a", "tool_calls": [{"name": "find", "args": {"n": 2, "on": True}, "id": "c"}]},
    {"type": "tool", "content": "found it", "id": "t", "tool_call_id": "c"},
]


class Basket(TypedDict, total=False):
    """A state with reducers."""

    items: Annotated[list[str], operator.add]
    total: int
    messages: Annotated[list[Any], add_messages]


def fields_in(found: list[Node]) -> Iterator[Node]:
    """The fields of nodes."""
    for node in found:
        if node.name:
            yield node
        yield from fields_in([*node.parts])


def sent(edit: Edit, form: dict[str, str] | None = None, until: int | None = None) -> dict[str, str]:
    """What a browser sends of a form that nobody has touched; it has line ends of its own."""
    found, hidden = nodes(edit, form or {}, ["unset"], until)
    visible = {one.name: one.text.replace("\r\n", "\n").replace("\r", "\n") for one in fields_in(found)}
    removed = {f"remove {one.path}": "1" for node in found for one in node.parts if one.is_removed}
    return {**visible, **hidden, **removed}


def same(state: dict[str, Any]) -> str:
    """A text that is the same of the same JSON, with its types."""
    return json.dumps(state, sort_keys=True)


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)
messages = st.lists(
    st.fixed_dictionaries({"type": st.sampled_from(["human", "ai"]), "content": st.text(max_size=6)}), max_size=3
)
states = st.dictionaries(st.sampled_from("abc"), json_values | messages, max_size=3)


@pytest.mark.slow
@given(states, states)
def test_the_fields_of_a_change_make_it_again(before: dict[str, Any], after: dict[str, Any]) -> None:
    # Channels that are left out stay.
    edit = Edit(before, {**before, **after})
    again = read_edit(before, edit.fields)
    assert same(again.written) == same(edit.written)
    # So does the form in which the change stands.
    shown = read_edit(before, sent(again))
    assert same(shown.written) == same(edit.written)
    assert shown.problems == {}


@given(states)
def test_a_form_that_nobody_has_touched_changes_nothing(before: dict[str, Any]) -> None:
    for form in ({}, {f"as_json {json.dumps([name])}": "1" for name in before}):
        assert read_edit(before, sent(Edit(before, before), form)).changes == []


def test_each_value_is_a_field_of_its_type() -> None:
    before = {"note": "x", "count": 1, "plan": {"ok": True, "hotels": ["a"]}, "messages": TALK, "empty": None}
    found = {one.name: one.text for one in fields_in(nodes(Edit(before, before), {}, ["booking"], None)[0])}
    assert found == {
        'text ["messages",0,"content"]': "A weekend in Lisbon.",
        'number ["messages",1,"tool_calls",0,"args","n"]': "2",
        'boolean ["messages",1,"tool_calls",0,"args","on"]': "true",
        'text ["messages",2,"content"]': "found it",
        'text ["note"]': "x",
        'number ["count"]': "1",
        'boolean ["plan","ok"]': "true",
        'json ["plan","hotels"]': '[\n  "a"\n]',
        'json ["empty"]': "null",
        'any ["booking"]': "",
    }
    given = {
        'number ["messages",1,"tool_calls",0,"args","n"]': "3",
        'text ["messages",0,"content"]': "A week in Porto.",
        'remove ["messages",2]': "1",
        'add ["messages"]': "Hurry.",
        'role ["messages"]': "ai",
        'any ["booking"]': "Astoria",
    }
    edit = read_edit(before, {**found, **given})
    call = {"name": "find", "args": {"n": 3, "on": True}, "id": "c"}
    assert edit.written == {
        **before,
        "messages": [
            {**TALK[0], "content": "A week in Porto."},
            {**TALK[1], "tool_calls": [call]},
            {"type": "ai", "content": "Hurry."},
        ],
        "booking": "Astoria",
    }
    assert [place_of(one, edit.after) for one in edit.changes] == [
        "message 1 (human)",
        "message 2 (ai) find n",
        "message 4 (ai)",
        "",
        "message 3 (tool)",
    ]
    assert [texts_of(one) for one in edit.changes][2:] == [(None, "Hurry."), (None, "Astoria"), ("found it", None)]
    # A form that shows it again: the message that was added is a message of it.
    again = read_edit(before, sent(edit) | {'text ["messages",3,"content"]': "Hurry up."})
    assert again.written["messages"][-1] == {"type": "ai", "content": "Hurry up."}
    assert again.removed == {("messages", 2)}


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({'number ["count"]': "two"}, "count must be JSON"),
        ({'number ["count"]': "true"}, "count must be a number"),
        ({'json ["plan"]': "{"}, "plan must be JSON"),
        ({'text ["count"]': "2"}, "is no longer a text"),
        ({"json []": "[1]"}, "must be a JSON object"),
    ],
)
def test_what_cannot_be_read_stays_as_it_was_typed(fields: dict[str, str], problem: str) -> None:
    before = {"count": 1, "plan": {"a": {}}}
    edit = read_edit(before, fields)
    assert edit.after == before
    ((name, why),) = edit.problems.items()
    assert problem in why
    if "as_json" not in name and name != "json []":
        form = {**fields, 'as_json ["plan"]': "1"}
        shown = {one.name: one for one in fields_in(nodes(edit, form, [], None)[0])}
        assert name.startswith("text") or shown[name].text == fields[name]


@pytest.mark.parametrize(
    "name",
    [
        *('text ["none"]', 'text ["plan","none"]', 'json ["messages",9]', 'remove ["plan"]', 'remove ["messages",-1]'),
        *("text [", 'text {"a":1}[', "text [true]", 'add ["plan"]', 'remove ["messages",3]', "remove []"),
    ],
)
def test_fields_of_other_places_are_refused(name: str) -> None:
    with pytest.raises(HTTPException, match=r"place|entry|must be a list of messages"):
        read_edit({"plan": {"a": {}}, "messages": TALK}, {name: '"x"'})


def test_a_large_state_is_shown_in_part_and_stays_whole() -> None:
    talk = [{"type": "human", "content": f"message {number} " + "x" * 1000, "id": str(number)} for number in range(200)]
    before = {"large": "x" * 100_000, "small": 1, "messages": talk}
    edit = Edit(before, before)
    (shown, large, _, _), hidden = nodes(edit, {}, ["unset"], None)
    assert (large.kind, hidden) == ("large", {})
    assert shown.parts[-1].title == "199"
    assert shown.hidden + len(shown.parts) == 200
    assert len(list(fields_in([shown]))) <= 120
    # What was changed in another part is carried.
    fields = sent(edit) | {'text ["messages",199,"content"]': "other", 'remove ["messages",198]': "1"}
    (older, *_), hidden = nodes(read_edit(before, fields), {}, [], shown.hidden)
    assert older.parts[-1].title == str(shown.hidden - 1)
    assert older.later == 200 - shown.hidden
    assert hidden == {'text ["messages",199,"content"]': "other", 'remove ["messages",198]': "1"}


def test_very_many_changes_are_few_fields() -> None:
    before = {"plan": {str(number): {"a": [1] * 100} for number in range(100)}, "messages": TALK}
    after = {"plan": {str(number): {"a": [2] * 100} for number in range(100)}, "messages": TALK}
    edit = Edit(before, after, frozenset({("messages", 0)}))
    assert len(edit.fields) == 101
    assert read_edit(before, edit.fields) == edit


def test_the_changes_of_two_are_both_made() -> None:
    before = {"messages": TALK, "plan": {"city": "Lisbon", "nights": 2}, "note": "n", "count": 1}
    mine = read_edit(
        before,
        {
            'text ["messages",0,"content"]': "mine",
            'remove ["messages",2]': "1",
            'add ["messages"]': "Hurry.",
            'number ["plan","nights"]': "3",
            'number ["count"]': "2",
        },
    )
    theirs: Any = deepcopy(before)
    theirs["messages"] = [{"type": "system", "content": "Be brief.", "id": "s"}, *theirs["messages"]]
    theirs["messages"][2]["tool_calls"] = []
    theirs |= {"plan": {"city": "Porto", "nights": 2}, "count": 5, "new": "theirs"}
    found = merged(mine, theirs)
    assert found.before == theirs
    assert [(one.get("id"), one["content"]) for one in found.written["messages"]] == [
        *(("s", "Be brief."), ("h", "mine"), ("a", ""), (None, "Hurry.")),
    ]
    assert found.written["messages"][2]["tool_calls"] == []
    assert found.written["plan"] == {"city": "Porto", "nights": 3}
    # What both have changed is the person's own; the rest is theirs.
    assert (found.written["count"], found.written["new"], found.written["note"]) == (2, "theirs", "n")
    assert read_edit(theirs, found.fields).written == found.written
    assert lost(mine, theirs) == []
    without = {**theirs, "messages": theirs["messages"][2:]}
    assert [one.path for one in lost(mine, without)] == [("messages", 0, "content")]
    assert [one["content"] for one in merged(mine, without).written["messages"]] == ["", "Hurry."]


@pytest.mark.parametrize("added", [{}, {"id": "x"}])
def test_messages_that_two_have_added_are_both_kept_unless_they_are_one(added: dict[str, Any]) -> None:
    before = {"messages": TALK}

    def version(text: str) -> Any:
        return {"messages": [*TALK, {"type": "human", "content": text, **added}]}

    mine = Edit(before, version("Hurry."))
    texts = [one["content"] for one in merged(mine, version("Wait.")).written["messages"][len(TALK) :]]
    assert texts == (["Hurry."] if added else ["Wait.", "Hurry."])
    same_text = merged(mine, version("Hurry.")).written["messages"]
    assert [one["content"] for one in same_text[len(TALK) :]] == ["Hurry."]


@pytest.mark.slow
@given(states, states, states)
def test_a_change_is_made_on_top_of_any_state(
    before: dict[str, Any], after: dict[str, Any], theirs: dict[str, Any]
) -> None:
    edit = Edit(before, {**before, **after})
    found = merged(edit, theirs)
    assert same(read_edit(theirs, found.fields).written) == same(found.written)
    assert same(merged(edit, before).written) == same(edit.written)
    assert merged(Edit(before, before), theirs).changes == []


def test_lists_with_a_reducer_become_what_was_written() -> None:
    builder = StateGraph(Basket).add_node("buy", lambda state: {}).add_edge(START, "buy")
    graph = builder.compile(checkpointer=InMemorySaver())
    config: Any = {"configurable": {"thread_id": "t"}}
    said = [HumanMessage("Hello", id="h"), AIMessage("Hi", id="a")]
    graph.invoke({"items": ["tea", "milk"], "total": 2, "messages": said}, config)
    values = graph.get_state(config).values
    written = plain(values)
    assert written["messages"][0] == {"type": "human", "content": "Hello", "id": "h"}
    assert updates(written, values, graph) == {}
    written["items"].remove("tea")
    written["messages"].pop()
    changed = updates(written, values, graph)
    assert changed.keys() == {"items", "messages"}
    graph.update_state(config, changed)
    assert graph.get_state(config).values == {"items": ["milk"], "total": 2, "messages": said[:1]}
    # Channels that were left out stay.
    assert updates({}, values, graph) == {}


def test_what_is_beside_a_change_keeps_its_type() -> None:
    builder = StateGraph(Basket).add_node("buy", lambda state: {}).add_edge(START, "buy")
    when = datetime(2026, 1, 1, tzinfo=UTC)
    values = {"plan": {"when": when, "city": "Lisbon", "dates": (when, "x")}}
    written = read_edit(plain(values), {'text ["plan","city"]': "Porto", 'json ["plan","dates",1]': '"y"'}).written
    changed = updates(written, values, builder.compile())
    assert changed == {"plan": {"when": when, "city": "Porto", "dates": (when, "y")}}
