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
            are those of the second list; for a removed item, those of the first list.
        before: The value at the first checkpoint; `None` if the value was added.
        after: The value at the second checkpoint; `None` if the value was removed.
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
        position: Position in the second list; for a removed message, position in the first list.
        before: The message in the first list; `None` if the message was added.
        after: The message in the second list; `None` if the message was removed.
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
        messages: Changed messages. Empty if the channel holds no messages, or only their order differs.
        values: Changes of other values. For messages, a change of order.
    """

    channel: str
    change: str
    before: Any
    after: Any
    messages: tuple[MessageChange, ...] = ()
    values: tuple[ValueChange, ...] = ()


@dataclass(frozen=True, slots=True)
class Difference:
    """The difference between the states of two checkpoints. False in a condition if the states are equal.

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
