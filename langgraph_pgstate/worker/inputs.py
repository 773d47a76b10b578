"""Inputs of graphs: for runs that resume after a crash, with repaired tool calls and converted messages. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, Literal
from uuid import uuid4

from langchain_core.messages import AIMessage, AnyMessage, BaseMessage, ToolMessage, convert_to_messages
from langgraph.channels import BinaryOperatorAggregate
from langgraph.constants import START
from langgraph.graph.message import add_messages
from langgraph.pregel import Pregel
from langgraph.types import Command, PregelTask, StateSnapshot

from langgraph_pgstate.heavy import MANY_ELEMENTS, beside

Repair = Callable[[StateSnapshot, Any], Any]
"""A function that gets a thread's state and a new run's input, and returns the changed input."""

Step = Literal["run", "interrupted", "success"]

_REPAIRED: Final = "The call was cancelled before its result was stored. It may have taken effect."


def next_step(state: StateSnapshot, *, before: Sequence[str] | str = (), has_run: bool = False) -> Step:
    """Return the next step of a run from its newest checkpoint.

    A resumed graph would not stop at the breakpoints of this checkpoint. So a run at a breakpoint counts as
    interrupted, and is not resumed.

    Args:
        state: The state at the newest checkpoint, with pending writes.
        before: Nodes before which the run is interrupted; `*` for all nodes.
        has_run: Whether a node after which the run is interrupted made the checkpoint.
    """
    if not state.tasks:
        return "success"
    unfinished = [task for task in state.tasks if task.result is None]
    if unfinished and all(task.interrupts for task in unfinished):
        return "interrupted"
    return "interrupted" if has_run or is_among(state.tasks, before) else "run"


def is_among(tasks: Sequence[PregelTask], nodes: Sequence[str] | str) -> bool:
    """Return whether a task belongs to one of the nodes. `*` stands for all nodes except `START`."""
    return any(task.name != START if nodes == "*" else task.name in nodes for task in tasks)


def repair_tool_calls(state: StateSnapshot, input: Any) -> Any:
    """Return a run's input with results for the tool calls that an earlier run left without a result.

    Providers refuse a conversation in which a tool call has no result. Results come from the pending writes of an
    unfinished superstep. Any other call gets a message of status `error`.
    """
    values = state.values
    messages = values.get("messages") if isinstance(values, Mapping) else None
    if not isinstance(messages, list) or not isinstance(input, Mapping):
        return input
    answers = unanswered_calls(messages, state)
    if not answers:
        return input
    given = input.get("messages", [])
    return {**input, "messages": [*answers, *(given if isinstance(given, list) else [given])]}


def unanswered_calls(messages: Sequence[AnyMessage], state: StateSnapshot) -> list[BaseMessage]:
    """Return a result for each tool call without a result in the model's newest message."""
    # Take results from pending writes, because LangGraph drops these writes when a run starts with a new input.
    pending = {answer.tool_call_id: answer for task in state.tasks for answer in _tool_messages(task.result)}
    answered: set[str] = set()
    for message in reversed(messages):
        if isinstance(message, ToolMessage):
            if message.tool_call_id not in pending:
                answered.add(message.tool_call_id)
            continue
        if not isinstance(message, AIMessage):
            return []
        return [
            pending.get(call["id"] or "")
            or ToolMessage(_REPAIRED, name=call["name"], tool_call_id=call["id"] or "", status="error")
            for call in message.tool_calls
            if call["id"] not in answered
        ]
    return []


def _tool_messages(result: Any) -> list[ToolMessage]:
    messages = result.get("messages") if isinstance(result, Mapping) else None
    found = messages if isinstance(messages, list) else [messages]
    return [message for message in found if isinstance(message, ToolMessage)]


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
