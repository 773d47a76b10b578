"""The nouns of forking and comparing: branches, the steps that lead to a checkpoint, labels, and differences."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any


@dataclass(frozen=True, slots=True)
class LineageStep:
    """A checkpoint on the way from the root of its branch, without its state.

    Attributes:
        thread_id: The thread.
        checkpoint_ns: The namespace.
        checkpoint_id: The checkpoint.
        parent_checkpoint_id: The one it was made from; of the first step, one that was pruned, or none.
        step: The superstep that made it.
        source: `input`, `loop`, `update` or `fork`.
        created_at: By the database's clock.
        run_id: The run that made it.
        label: What people call it.
        children: How many checkpoints were made from it; several where branches part.
    """

    thread_id: str
    checkpoint_ns: str
    checkpoint_id: str
    parent_checkpoint_id: str | None
    step: int | None
    source: str | None
    created_at: datetime
    run_id: str | None
    label: str | None
    children: int

    @property
    def config(self) -> dict[str, Any]:
        """What LangGraph calls take to go on, or replay, from here."""
        return _config(self.thread_id, self.checkpoint_ns, self.checkpoint_id)


@dataclass(frozen=True, slots=True)
class Branch:
    """A leaf checkpoint and the path to its root.

    Attributes:
        thread_id: The thread.
        checkpoint_ns: The namespace.
        checkpoint_id: The leaf.
        path: Ids from the root to the leaf, both included.
        forked_from: The last checkpoint on the path that other branches have, too, where it left its siblings; `None`
            if it has none. A prune may have removed it.
        is_head: Whether its leaf is the newest checkpoint: what runs go on from when they name none.
        step: The leaf's superstep.
        source: `input`, `loop`, `update` or `fork`: what made the leaf.
        created_at: When the leaf was made, by the database's clock.
        run_id: The run that made the leaf.
        label: What people call the leaf.
    """

    thread_id: str
    checkpoint_ns: str
    checkpoint_id: str
    path: tuple[str, ...]
    forked_from: str | None
    is_head: bool
    step: int | None
    source: str | None
    created_at: datetime
    run_id: str | None
    label: str | None

    @property
    def config(self) -> dict[str, Any]:
        """What LangGraph calls take to go on from the leaf."""
        return _config(self.thread_id, self.checkpoint_ns, self.checkpoint_id)


@dataclass(frozen=True, slots=True)
class Label:
    """What people call a checkpoint.

    Attributes:
        thread_id: The thread.
        checkpoint_ns: The namespace.
        checkpoint_id: The checkpoint.
        label: Its name.
        created_at: When it was labelled first.
    """

    thread_id: str
    checkpoint_ns: str
    checkpoint_id: str
    label: str
    created_at: datetime

    @property
    def config(self) -> dict[str, Any]:
        """What LangGraph calls take to go on, or replay, from there."""
        return _config(self.thread_id, self.checkpoint_ns, self.checkpoint_id)


def _config(thread_id: str, checkpoint_ns: str, checkpoint_id: str) -> dict[str, Any]:
    return {"configurable": {"thread_id": thread_id, "checkpoint_ns": checkpoint_ns, "checkpoint_id": checkpoint_id}}


@dataclass(frozen=True, slots=True)
class ValueChange:
    """A place where two values differ.

    Attributes:
        change: `added`, `removed` or `changed`.
        path: The way to it: keys, names of fields and places in lists; empty for the value itself. What was removed
            from a list is named by its place in the first one, else places are the second one's.
        before: What was there; `None` if it was added.
        after: What is there; `None` if it was removed.
    """

    change: str
    path: tuple[Any, ...]
    before: Any
    after: Any


@dataclass(frozen=True, slots=True)
class MessageChange:
    """A message that two lists of messages do not have alike.

    Attributes:
        change: `added`, `edited` or `removed`.
        message_id: Its id.
        position: Its place in the second list; in the first if it was removed.
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
    """A channel that two checkpoints do not have alike.

    Attributes:
        channel: The channel.
        change: `added`, `removed` or `changed`.
        before: Its value at the first checkpoint; `None` if it was added.
        after: Its value at the second; `None` if it was removed.
        messages: What became of its messages; empty for other channels, and where only their order differs.
        values: Where other values differ; for messages, only that their order does.
    """

    channel: str
    change: str
    before: Any
    after: Any
    messages: tuple[MessageChange, ...] = ()
    values: tuple[ValueChange, ...] = ()


@dataclass(frozen=True, slots=True)
class Difference:
    """How the states of two checkpoints differ. False if they do not.

    Attributes:
        first: Config of the one.
        second: Config of the other.
        channels: The channels that differ, by name. Those in which LangGraph keeps what to run next are left out.
    """

    first: Mapping[str, Any]
    second: Mapping[str, Any]
    channels: tuple[ChannelDifference, ...]

    def __bool__(self) -> bool:
        return bool(self.channels)

    def __getitem__(self, channel: str) -> ChannelDifference:
        """How one channel differs.

        Raises:
            KeyError: If it does not.
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
        """Channels that both have, with different values."""
        return tuple(item.channel for item in self.channels if item.change == "changed")
