"""Differences between two states: which words differ, and what is shown of texts that are no versions of each other."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage

from langgraph_pgstate.checkpoints.types import ChannelDifference, Difference, MessageChange, ValueChange
from langgraph_pgstate.inspector.differences import changes_of, words_of


def edited(before: Any, after: Any) -> Any:
    """The parts of a message that was edited."""
    message = MessageChange("edited", "m", 3, before, after)
    channel = ChannelDifference("messages", "changed", [before], [after], (message,))
    ((change,), left_out) = changes_of(Difference({}, {}, (channel,)), 10)
    assert (change.place, change.change, left_out) == ("[3]", "edited", 0)
    return change.parts


def changed(before: Any, after: Any) -> Any:
    """The only part of a value that was changed."""
    channel = ChannelDifference("a", "changed", before, after, (), (ValueChange("changed", (), before, after),))
    ((change,), _) = changes_of(Difference({}, {}, (channel,)), 10)
    (part,) = change.parts
    return part


@pytest.mark.parametrize(
    ("before", "after", "removed", "added"),
    [
        ("a room in Lisbon", "a room in Porto", ["Lisbon"], ["Porto"]),
        ("refunded 480 EUR in five days", "refunded 479.50 EUR in three days", ["480", "five"], ["479.50", "three"]),
        ("the hotel", "the hotel, or two", [], [", or two"]),
        ("told by a long mail to all", "told to all", ["by a long mail"], []),
        ("keep\nthis line", "keep\nthat line", ["this"], ["that"]),
        ("1", "2", ["1"], ["2"]),
    ],
)
def test_the_words_that_differ_are_known(before: str, after: str, removed: list[str], added: list[str]) -> None:
    words = words_of(before, after)
    assert words is not None
    for kind, expected in (("removed", removed), ("added", added)):
        assert [text.strip() for name, text in words if name == kind] == expected
    assert "".join(text for kind, text in words if kind != "added") == before
    assert "".join(text for kind, text in words if kind != "removed") == after


def test_texts_that_are_not_alike_have_no_marks() -> None:
    assert (
        words_of("A weekend in Lisbon with a hotel by the river.", "Nobody answers this telephone at night, sorry")
        is None
    )
    part = changed("A weekend in Lisbon with a hotel by the river.", "Nobody answers this telephone at night, sorry")
    assert (part.words, part.before[:9], part.after[:6]) == (None, "A weekend", "Nobody")


def test_of_long_texts_only_what_is_beside_a_difference_is_shown() -> None:
    text = "Here is a sentence of a long text. " * 400
    part = changed(f"{text}It costs 5 euros. {text}", f"{text}It costs 7 euros. {text}")
    assert [kind for kind, _ in part.words] == ["same", "removed", "added", "same"]
    assert sum(len(text) for _, text in part.words) < 300
    assert part.is_whole
    # Where more words lie between the first and the last difference than are compared, both texts are shown.
    assert words_of(f"x {text}", f"{text} y") is None


def test_of_an_edited_message_only_fields_that_differ_are_shown() -> None:
    usage: Any = {"input_tokens": 3, "output_tokens": 4, "total_tokens": 7}
    (content, tokens) = edited(
        AIMessage("It costs 5 euros in all.", id="m", usage_metadata=usage),
        AIMessage("It costs 7 euros in all.", id="m"),
    )
    assert (content.name, content.words[1:3]) == ("", (("removed", "5"), ("added", "7")))
    assert (tokens.name, tokens.after, '"input_tokens": 3' in tokens.before) == ("usage_metadata", None, True)
    # A text in parts is a text.
    (content,) = edited(HumanMessage([{"type": "text", "text": "Two nights"}]), HumanMessage("Three nights"))
    assert (content.is_text, content.words[:2]) == (True, (("removed", "Two"), ("added", "Three")))
    call = {"name": "pay", "args": {"amount": 5}, "id": "c"}
    (calls,) = edited(
        AIMessage("", id="m", tool_calls=[call]), AIMessage("", id="m", tool_calls=[{**call, "args": {"amount": 7}}])
    )
    assert (calls.before, calls.after) == ("→ pay(amount=5)", "→ pay(amount=7)")


def test_a_message_that_was_added_has_its_text_its_calls_and_its_other_fields() -> None:
    call = {"name": "pay", "args": {"amount": 5}, "id": "c"}
    message = MessageChange("added", "m", 0, None, AIMessage("Paid.", id="m", name="boss", tool_calls=[call]))
    channel = ChannelDifference("messages", "changed", [], [], (message,))
    ((change,), _) = changes_of(Difference({}, {}, (channel,)), 10)
    assert (change.role, [part.after for part in change.parts]) == ("ai", ["Paid.", "→ pay(amount=5)"])
    assert dict(change.facts) == {"id": '"m"', "name": '"boss"'}


def test_a_string_that_looks_like_a_number_has_quotes() -> None:
    assert [text for _, text in changed("5", 5).words] == ['"5"', "5"]
    assert [text for _, text in changed("5", "7").words] == ['"5"', '"7"']
    assert [text for _, text in changed("five", "seven").words] == ["five", "seven"]


def test_a_page_of_differences_has_a_bounded_size() -> None:
    values = tuple(ValueChange("changed", (f"{n}",), f"{n} " * 3000, f"{n}-" * 3000) for n in range(300))
    channel = ChannelDifference("a", "changed", {}, {}, (), values)
    found, left_out = changes_of(Difference({}, {}, (channel,)), 100)
    assert (len(found), left_out) == (100, 200)
    assert sum(len(part.before) + len(part.after) for one in found for part in one.parts) < 60_000
    assert not any(part.is_whole for one in found for part in one.parts)
