"""The DeltaChannels of this process's graphs, and their values.

Most checkpoints hold no value of a DeltaChannel. The channel's reducer computes the value from stored writes. Each
recorded graph makes its channels known to this module. An unknown channel that holds messages gets LangGraph's reducer
of messages. Other unknown channels get a reducer that appends.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from langchain_core.messages import BaseMessage, HumanMessage, RemoveMessage

from langgraph_pgstate.langgraph_compat import (
    REMOVE_ALL_MESSAGES,
    DeltaSnapshot,
    delta_channel_class,
    messages_delta_reducer,
)

if TYPE_CHECKING:
    from langgraph.channels.delta import DeltaChannel

# Channels by name; `None` if graphs have different reducers under this name.
_known: Final[dict[str, DeltaChannel[Any] | None]] = {}
_rules: Final[dict[str, MessageRules]] = {}


class MessageRules(NamedTuple):
    """The rules in which reducers of messages differ.

    Attributes:
        hears_remove_all: Whether a `RemoveMessage` with the id `REMOVE_ALL_MESSAGES` empties the channel.
        keeps_place: Whether a message that one write removes and adds again keeps its place.
    """

    hears_remove_all: bool
    keeps_place: bool


def learn(graph: Any) -> None:
    """Make the DeltaChannels of a compiled graph and of its subgraphs known."""
    for one in (graph, *(subgraph for _, subgraph in graph.get_subgraphs(recurse=True))):
        for name, channel in one.channels.items():
            if isinstance(channel, delta_channel_class()):
                _learn(name, channel)


def rules_of(name: str) -> MessageRules:
    """Return the rules of a channel's reducer in the last recorded graph with this channel."""
    return _rules.get(name) or _assumed_rules()


def value_of(name: str, received: Mapping[str, Any]) -> Any:
    """Return a channel's value, computed from the channel's part of `get_delta_channel_history`."""
    if (channel := _known.get(name)) is not None:
        try:
            return _replay(channel, received)
        except Exception:  # nosec B110
            # A reducer may raise any error, because application types are read as plain data.
            pass
    items = _replay(delta_channel_class()(_append), received)
    if items and all(isinstance(item, BaseMessage) for item in items):
        return _replay(delta_channel_class()(messages_delta_reducer()), received)
    return items


def _learn(name: str, channel: DeltaChannel[Any]) -> None:
    known = _known.setdefault(name, channel)
    if known is not None and known is not channel and not _is_same(known.reducer, channel.reducer):
        _known[name] = None
    if known is not channel or name not in _rules:
        rules = _probe(channel)
        if rules is not None:
            _rules[name] = rules


def _is_same(one: Any, other: Any) -> bool:
    """Return whether two reducers have the same code. A factory may make a new function for each graph."""
    code = getattr(one, "__code__", None)
    return one is other or (code is not None and code is getattr(other, "__code__", None) and not one.__closure__)


def _probe(channel: DeltaChannel[Any]) -> MessageRules | None:
    """Try a channel's reducer and return its rules, or `None` if it takes no messages."""

    def ids_after(write: Sequence[BaseMessage]) -> list[Any]:
        tried = channel.from_checkpoint(DeltaSnapshot([HumanMessage("", id="first"), HumanMessage("", id="second")]))
        tried.update([write])
        return [message.id for message in tried.get()]

    try:
        if type(channel.typ()) is not list:
            return None
        hears = ids_after([RemoveMessage(id=REMOVE_ALL_MESSAGES), HumanMessage("", id="third")]) == ["third"]
        keeps = ids_after([RemoveMessage(id="first"), HumanMessage("", id="first")]) == ["first", "second"]
    except Exception:
        return None
    return MessageRules(hears, keeps)


@cache
def _assumed_rules() -> MessageRules:
    rules = _probe(delta_channel_class()(messages_delta_reducer()))
    assert rules is not None
    return rules


def _replay(channel: DeltaChannel[Any], received: Mapping[str, Any]) -> Any:
    """Return a channel's value, computed as LangGraph does."""
    seed = received["seed"] if "seed" in received else DeltaSnapshot(channel.typ())
    replayed = channel.from_checkpoint(seed)
    replayed.replay_writes(received["writes"])
    return replayed.get()


def _append(state: Any, writes: Sequence[Any]) -> list[Any]:
    items = [*state] if isinstance(state, list | tuple) else [] if state is None else [state]
    for write in writes:
        items += write if isinstance(write, list | tuple) else [write]
    return items
