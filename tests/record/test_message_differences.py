"""Messages of a state and of the record, compared without a database."""

from __future__ import annotations

from typing import Any

from langchain_core.messages import AIMessage, HumanMessage

from langgraph_pgstate.arguments import Address
from langgraph_pgstate.record.message_differences import (
    Change,
    Difference,
    RecordedMessage,
    apply,
    change_of,
    distinct,
    state_message,
)


def said(*names: str) -> list[RecordedMessage]:
    return [RecordedMessage(name, name.upper().encode()) for name in names]


def changed(kind: str, name: str, position: int = 0) -> Change:
    return Change(name, "messages", kind, position, f"{kind} {name}".encode())


def test_changes_keep_the_order_of_messages() -> None:
    """What was edited stays at its place, what was added comes last, and other channels are left alone."""
    before = {"messages": said("a", "b", "c"), "other": said("x")}
    changes = [changed("added", "e", 4), changed("added", "d", 3), changed("removed", "b"), changed("edited", "c")]
    after = apply(before, changes)
    assert [one.message_id for one in after["messages"]] == ["a", "c", "d", "e"]
    assert after["messages"][1].mark == b"edited c"
    assert after["other"] == before["other"]
    assert before["messages"] == said("a", "b", "c")


def test_a_difference_names_the_first_message_and_counts_the_missing() -> None:
    stored: Any = [state_message(HumanMessage(text, id=text)) for text in ("a", "b", "c")]
    recorded = [RecordedMessage("a", stored[0].mark), RecordedMessage("b", b"another")]
    difference = Difference(Address("t", "", "1"), "messages", None, stored, recorded, [])
    assert "2 messages are recorded, the state has 3, and they differ from number 2 on" in difference.why
    assert difference.missing == 2


def test_columns_are_equal_after_a_round_trip_through_jsonb() -> None:
    """Which has no 1.0, and orders the keys of objects."""
    call = {"name": "f", "args": {"b": 1.0, "a": 2}, "id": "1"}
    message: Any = state_message(AIMessage("", id="m", name="agent", tool_calls=[call]))
    row = {**message.row, "tool_calls": [{"args": {"a": 2, "b": 1}, "id": "1", "name": "f"}]}
    columns = [row[name] for name in ("role", "agent", "content", "tool_calls", "tool_call_id")]
    assert change_of(["m", "messages", "added", 0, *columns]).mark == message.mark
    assert state_message({"role": "user"}) is None


def test_repeated_ids_are_numbered() -> None:
    assert distinct(["a", "b", "a", "a"]) == ["a", "b", "a-2", "a-3"]
