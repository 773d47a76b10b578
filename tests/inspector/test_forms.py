"""Forms of answers: what each kind of question offers, and the answer that a sent form gives."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.record import at

from langgraph_pgstate.inspector.fields import FormError
from langgraph_pgstate.inspector.forms import answer_of, asked_of, form_of, parsed, said, title_of
from langgraph_pgstate.interrupts.types import PendingInterrupt

MAIL = {"name": "send_email", "args": {"to": "eve", "copies": 2, "urgent": False, "tags": ["a"]}}
ALL = ["approve", "edit", "respond", "reject"]


def asked(value: Any, schema: Any = None) -> PendingInterrupt:
    """An interrupt."""
    return PendingInterrupt("i", value, at(0), schema, "task", None)


def batch(*requests: dict[str, Any]) -> PendingInterrupt:
    """A request of LangChain's middleware that allows every decision."""
    configs = [{"action_name": one["name"], "allowed_decisions": ALL} for one in requests]
    return asked({"action_requests": list(requests), "review_configs": configs})


@pytest.mark.parametrize(
    ("schema", "offered"),
    [
        (None, []),
        ({"type": "boolean"}, [("Yes", "true"), ("No", "false")]),
        ({"enum": ["a", 2, None]}, [("a", '"a"'), ("2", "2")]),
        ({"oneOf": [{"const": 1, "title": "One"}, {"const": 2}]}, [("One", "1"), ("2", "2")]),
    ],
)
def test_a_schema_that_lists_answers_offers_them(schema: Any, offered: list[tuple[str, str]]) -> None:
    form = form_of(asked("Go on?", schema))
    assert (form.question, [*form.choices]) == ("Go on?", offered)
    for _, choice in form.choices:
        assert answer_of(form, {"choice": choice}) == parsed(choice)


@pytest.mark.parametrize(
    ("fields", "decision"),
    [
        ({"decision-0": "approve"}, {"type": "approve"}),
        ({"decision-0": "reject"}, {"type": "reject"}),
        ({"decision-0": "reject", "reject-0": "no"}, {"type": "reject", "message": "no"}),
        ({"decision-0": "respond", "respond-0": "later"}, {"type": "respond", "message": "later"}),
        (
            {"decision-0": "edit", "argument-0-1": "3", "more-0": '{"bcc": null}'},
            {
                "type": "edit",
                "edited_action": {"name": "send_email", "args": {**MAIL["args"], "copies": 3, "bcc": None}},
            },
        ),
    ],
)
def test_decisions_have_the_form_of_the_middleware(fields: dict[str, str], decision: dict[str, Any]) -> None:
    form = form_of(batch(MAIL))
    assert title_of(form) == 'send_email(to="eve", copies=2, urgent=false, tags=["a"])'
    assert answer_of(form, fields) == {"decisions": [decision]}
    call = form_of(asked({"type": "tool_approval", **MAIL}, {"oneOf": [_schema(name) for name in ALL]}))
    assert answer_of(call, fields) == decision


def _schema(name: str) -> dict[str, Any]:
    return {"properties": {"type": {"const": name}}}


def test_all_calls_of_an_interrupt_are_decided_at_once() -> None:
    form = form_of(batch(MAIL, {"name": "drop", "args": {}}))
    assert answer_of(form, {"decision-0": "approve", "decision-1": "reject"}) == {
        "decisions": [{"type": "approve"}, {"type": "reject"}]
    }
    with pytest.raises(FormError, match="for drop"):
        answer_of(form, {"decision-0": "approve"})


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({}, "choose one of"),
        ({"decision-0": "delete"}, "choose one of"),
        ({"decision-0": "respond"}, "enter the result of the call of"),
        ({"decision-0": "edit", "argument-0-1": "two"}, "must be JSON"),
        ({"decision-0": "edit", "argument-0-1": "true"}, "must be a number"),
        ({"decision-0": "edit", "argument-0-1": "NaN"}, "must be JSON"),
        ({"decision-0": "edit", "argument-0-2": "1"}, "must be true or false"),
        ({"decision-0": "edit", "more-0": "[]"}, "must be a JSON object"),
        ({"decision-0": "approve", "argument-0-0": "adam"}, "were edited"),
        ({"answer": " "}, "must not be empty"),
        ({"choice": "{"}, "must be JSON"),
    ],
)
def test_a_form_without_an_answer_says_what_is_missing(fields: dict[str, str], reason: str) -> None:
    with pytest.raises(FormError, match=reason):
        answer_of(form_of(batch(MAIL)), fields)


def test_agent_inbox_gets_its_own_answers() -> None:
    config = {"allow_accept": True, "allow_edit": True, "allow_respond": True, "allow_ignore": False}
    form = form_of(asked([{"action_request": {"action": "mail", "args": {"n": 1}}, "config": config}]))
    assert form.reviews[0].decisions == ("accept", "edit", "response")
    assert answer_of(form, {"decision-0": "accept"}) == [{"type": "accept", "args": None}]
    assert answer_of(form, {"decision-0": "response", "respond-0": "no"}) == [{"type": "response", "args": "no"}]
    edited = answer_of(form, {"decision-0": "edit", "argument-0-0": "2"})
    assert edited == [{"type": "edit", "args": {"action": "mail", "args": {"n": 2}}}]


def test_the_ledger_gets_its_own_answers() -> None:
    form = form_of(asked({"type": "tool_outcome_unknown", "key": "k", "id": "i", "tool": "pay", "question": "Paid?"}))
    assert (form.question, form.key) == ("Paid?", "k")
    assert answer_of(form, {"decision-0": "retry"}) == {"i": "retry"}
    assert answer_of(form, {"decision-0": "done", "result": "7"}) == {"i": {"decision": "done", "result": 7}}


def test_an_answer_is_json_or_else_text() -> None:
    deep = "[" * 100_000
    assert [parsed(text) for text in ("true", '{"a": 1}', "yes", deep)] == [True, {"a": 1}, "yes", deep]
    assert (said({"decisions": []}), said({"tags": ["a"]})) == ('{"decisions":[]}', '{"tags":["a"]}')
    assert said({"decisions": [{"type": "reject", "message": "no"}, {"type": "approve"}]}) == "reject “no”, approve"
    assert asked_of({"a": 1}) != asked_of({"a": 2})


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)


@pytest.mark.slow
@given(st.dictionaries(st.text(min_size=1, max_size=5), json_values, min_size=1, max_size=4), st.data())
def test_edited_arguments_keep_their_types(arguments: dict[str, Any], data: st.DataObject) -> None:
    form = form_of(batch({"name": "tool", "args": arguments}))
    fields = form.reviews[0].fields
    # A browser sends its own line ends.
    sent = {
        f"argument-0-{place}": one.text.replace("\r", "\n").replace("\n", "\r\n") for place, one in enumerate(fields)
    }
    (decision,) = answer_of(form, {"decision-0": "edit", **sent})["decisions"]
    assert repr(decision["edited_action"]["args"]) == repr(arguments)
    place = data.draw(st.integers(0, len(fields) - 1))
    one = fields[place]
    text = {"text": "other", "number": "7", "boolean": "true", "json": "null"}[one.kind]
    (decision,) = answer_of(form, {"decision-0": "edit", **sent, f"argument-0-{place}": text})["decisions"]
    value = decision["edited_action"]["args"][one.name]
    assert one.kind == "json" or type(value) is type(one.value)
