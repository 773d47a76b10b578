"""The state as JSON that a person edits, and what has been changed in it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from langchain_core.messages import BaseMessage, convert_to_messages, messages_from_dict
from langgraph.channels import BinaryOperatorAggregate, DeltaChannel
from langgraph.types import Overwrite

from langgraph_pgstate.inspector.messages import is_conversation
from langgraph_pgstate.langgraph_compat import is_schedule_channel
from langgraph_pgstate.server.errors import refuse
from langgraph_pgstate.server.json import to_json

_MOST: Final = 48_000
_ROOT: Final = "__root__"


def editable(values: Mapping[str, Any]) -> tuple[str, list[str]]:
    """Return the state as JSON, and the channels that are too large for it, which stay as they are."""
    shown: dict[str, Any] = {}
    left_out, left = [], _MOST
    for name, value in values.items():
        plain = _plain(value)
        size = len(json.dumps(plain, ensure_ascii=False, indent=2))
        if size <= left:
            shown[name], left = plain, left - size
        else:
            left_out.append(name)
    return json.dumps(shown, ensure_ascii=False, indent=2), left_out


def changes(written: Mapping[str, Any], values: Mapping[str, Any], graph: Any) -> dict[str, Any]:
    """Return what to update so that the channels of an edited state have the values that were written.

    Args:
        written: The edited state. Channels that are left out stay as they are.
        values: The state before.
        graph: The graph.

    Raises:
        HTTPException: 422 if messages are none.
    """
    found: dict[str, Any] = {}
    for name, value in written.items():
        if name in values and value == _plain(values[name]):
            continue
        before = values.get(name)
        holds_messages = is_conversation(before) and all(isinstance(one, BaseMessage) for one in before or ())
        new = _messages(name, value, before) if holds_messages else value
        # What was written replaces the value; a reducer would add it.
        found[name] = (
            Overwrite(new) if isinstance(graph.channels.get(name), BinaryOperatorAggregate | DeltaChannel) else new
        )
    return found


def check_channels(written: Mapping[str, Any], graph: Any) -> None:
    """Refuse channels that a graph does not have.

    Raises:
        HTTPException: 422 with their names, and those that there are.
    """
    known = [name for name in graph.channels if not is_schedule_channel(name) and name != "__start__"]
    unknown = [name for name in written if name not in known]
    if unknown and _ROOT not in known:
        there_are = ", ".join(map(repr, sorted(known)[:50]))
        raise refuse(422, f"the graph has no channel {', '.join(map(repr, unknown[:10]))}; it has {there_are}")


def _plain(value: Any) -> Any:
    """Return a value as JSON types, messages without their empty fields."""
    if isinstance(value, list) and any(isinstance(one, BaseMessage) for one in value):
        return [_plain(one) for one in value]
    if isinstance(value, BaseMessage):
        value = {name: field for name, field in value.model_dump().items() if field not in (None, "", [], {}, False)}
    return json.loads(to_json(value))


def _messages(name: str, written: Any, before: Any) -> list[BaseMessage]:
    """Return messages that were written as JSON; those that were not changed are what they were."""
    if not isinstance(written, list):
        raise refuse(422, f"{name} must be a list of messages, got {type(written).__name__}")
    known = [(_plain(one), one) for one in before]
    found = []
    for place, one in enumerate(written):
        same = next((message for plain, message in known if plain == one), None)
        try:
            found.append(_message(one) if same is None else same)
        except (ValueError, TypeError, KeyError, NotImplementedError) as error:
            why = str(error).partition("\nFor troubleshooting")[0]
            raise refuse(422, f"{name}[{place}] is no message: {why}") from None
    return found


def _message(one: Any) -> BaseMessage:
    if not isinstance(one, Mapping):
        raise TypeError(f"it must be an object with a type and a content, got {type(one).__name__}")
    if "content" not in one and "tool_calls" not in one:
        raise ValueError("it has no content")
    if "role" in one or "type" not in one:
        return convert_to_messages([dict(one)])[0]
    return messages_from_dict([{"type": one["type"], "data": {"content": "", **one}}])[0]
