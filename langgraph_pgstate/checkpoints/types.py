"""Types of the differences between two checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class ValueChange:
    """One difference inside a value.

    Attributes:
        change: `added`, `removed` or `changed`.
        path: Keys, field names and list positions that lead to the difference; empty for the value itself. Positions
            are in the second list, or in the first list for a removed item.
        before: The first value; `None` if it was added.
        after: The second value; `None` if it was removed.
    """

    change: str
    path: tuple[Any, ...]
    before: Any
    after: Any


@dataclass(frozen=True, slots=True)
class MessageChange:
    """A message that differs between two lists of messages.

    Attributes:
        change: `added`, `edited` or `removed`.
        message_id: The message's id.
        position: Position in the second list; in the first list if the message was removed.
        before: The message in the first list; `None` if it was added.
        after: The message in the second list; `None` if it was removed.
    """

    change: str
    message_id: str | None
    position: int
    before: Any
    after: Any


@dataclass(frozen=True, slots=True)
class ChannelDifference:
    """A channel that differs between two checkpoints.

    Attributes:
        channel: Name of the channel.
        change: `added`, `removed` or `changed`.
        before: Value at the first checkpoint; `None` if the channel was added.
        after: Value at the second checkpoint; `None` if the channel was removed.
        messages: Changed messages. Empty for channels without messages and when only the order differs.
        values: Differences inside other values. For messages, only a difference of order.
    """

    channel: str
    change: str
    before: Any
    after: Any
    messages: tuple[MessageChange, ...] = ()
    values: tuple[ValueChange, ...] = ()


@dataclass(frozen=True, slots=True)
class Difference:
    """The difference between the states of two checkpoints. In a condition, it counts as false if the states are equal.

    Attributes:
        first: Config of the first checkpoint.
        second: Config of the second checkpoint.
        channels: The channels that differ, sorted by name. LangGraph's scheduling channels are left out.
    """

    first: Mapping[str, Any]
    second: Mapping[str, Any]
    channels: tuple[ChannelDifference, ...]

    def __bool__(self) -> bool:
        return bool(self.channels)

    def __getitem__(self, channel: str) -> ChannelDifference:
        """Return the difference of one channel.

        Raises:
            KeyError: If the channel does not differ.
        """
        for item in self.channels:
            if item.channel == channel:
                return item
        raise KeyError(channel)

    @property
    def added(self) -> tuple[str, ...]:
        """Channels that only the second checkpoint has."""
        return tuple(item.channel for item in self.channels if item.change == "added")

    @property
    def removed(self) -> tuple[str, ...]:
        """Channels that only the first checkpoint has."""
        return tuple(item.channel for item in self.channels if item.change == "removed")

    @property
    def changed(self) -> tuple[str, ...]:
        """Channels that both checkpoints have, with different values."""
        return tuple(item.channel for item in self.channels if item.change == "changed")
