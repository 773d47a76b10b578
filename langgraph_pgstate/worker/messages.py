"""Conversion of long lists of messages in inputs of graphs, in a thread."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from uuid import uuid4

from langchain_core.messages import convert_to_messages
from langgraph.channels import BinaryOperatorAggregate
from langgraph.graph.message import add_messages
from langgraph.pregel import Pregel
from langgraph.types import Command

from langgraph_pgstate.heavy import MANY_ELEMENTS, beside


async def with_messages(graph: Pregel[Any, Any, Any, Any], given: Any) -> Any:
    """Return an input or update with long lists of messages converted to message objects with ids.

    LangGraph would convert the messages on the event loop, and block the loop for 30 ms for a thousand messages.
    """
    values = given.update if isinstance(given, Command) else given
    if not isinstance(values, dict):
        return given
    long = {name: items for name, items in values.items() if type(items) is list and len(items) > MANY_ELEMENTS}
    long = {name: items for name, items in long.items() if _adds_messages(graph.channels.get(name))}
    if not long:
        return given
    values = {**values, **await beside(lambda: {name: _messages(items) for name, items in long.items()})}
    return replace(given, update=values) if isinstance(given, Command) else values


def _adds_messages(channel: Any) -> bool:
    return isinstance(channel, BinaryOperatorAggregate) and channel.operator is add_messages


def _messages(items: list[Any]) -> list[Any]:
    try:
        found = convert_to_messages(items)
    except Exception:
        # The graph raises the error.
        return items
    for message in found:
        if message.id is None:
            message.id = str(uuid4())
    return [*found]
