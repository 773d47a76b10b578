"""Types for branches: lineage steps, branches, labels and differences between checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any


@dataclass(frozen=True, slots=True)
class LineageStep:
    """A checkpoint between the root of its branch and a given checkpoint, without its state.

    Attributes:
        thread_id: The thread.
        checkpoint_ns: The namespace.
        checkpoint_id: The checkpoint.
        parent_checkpoint_id: The parent checkpoint. For the first step, a pruned checkpoint or `None`.
        step: The superstep that made the checkpoint.
        source: `input`, `loop`, `update` or `fork`.
        created_at: Creation time by the database's clock.
        run_id: The run that made the checkpoint.
        label: The checkpoint's label, if it has one.
        children: Number of child checkpoints. More than one means that branches fork here.
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
        """The config that continues or replays the thread from this checkpoint."""
        return _config(self.thread_id, self.checkpoint_ns, self.checkpoint_id)


@dataclass(frozen=True, slots=True)
class Branch:
    """A leaf checkpoint and the path to its root.

    Attributes:
        thread_id: The thread.
        checkpoint_ns: The namespace.
        checkpoint_id: The leaf.
        path: Ids from the root to the leaf, both included.
        forked_from: The last checkpoint on the path that has other children, so that other branches share it. `None` if
            there is none. A prune may have removed it.
        is_head: Whether the leaf is the newest checkpoint. A run that names no checkpoint continues from it.
        step: The superstep that made the leaf.
        source: `input`, `loop`, `update` or `fork`.
        created_at: Creation time of the leaf, by the database's clock.
        run_id: The run that made the leaf.
        label: The leaf's label, if it has one.
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
        """The config that continues the thread from the leaf."""
        return _config(self.thread_id, self.checkpoint_ns, self.checkpoint_id)


@dataclass(frozen=True, slots=True)
class Label:
    """A name given to a checkpoint.

    Attributes:
        thread_id: The thread.
        checkpoint_ns: The namespace.
        checkpoint_id: The checkpoint.
        label: The name.
        created_at: Time of the first labelling.
    """

    thread_id: str
    checkpoint_ns: str
    checkpoint_id: str
    label: str
    created_at: datetime

    @property
    def config(self) -> dict[str, Any]:
        """The config that continues or replays the thread from the labelled checkpoint."""
        return _config(self.thread_id, self.checkpoint_ns, self.checkpoint_id)


def _config(thread_id: str, checkpoint_ns: str, checkpoint_id: str) -> dict[str, Any]:
    return {"configurable": {"thread_id": thread_id, "checkpoint_ns": checkpoint_ns, "checkpoint_id": checkpoint_id}}


@dataclass(frozen=True, slots=True)
class TreeNode:
    """A checkpoint in a tree, without its state.

    Attributes:
        checkpoint_id: The checkpoint.
        parent_checkpoint_id: The parent checkpoint; `None` for the first.
        step: The superstep that made the checkpoint.
        source: `input`, `loop`, `update` or `fork`.
        created_at: Creation time by the database's clock.
        run_id: The run that made the checkpoint.
        label: The checkpoint's label, if it has one.
        tasks: The nodes of the tasks that have written something after this checkpoint; empty for one that was sent and
            not recorded.
        interrupts: Number of tasks that were interrupted after this checkpoint.
        pending: Number of those that have not gone on.
        answered: Ids of the interrupts of this checkpoint that were answered.
        interrupted_run_id: The run that was interrupted last after this checkpoint; `None` if it was not recorded.
        subgraphs: Namespaces of the subgraphs that ran after this checkpoint and have checkpoints, of at most 500 of
            the thread; of a subgraph with a memory of its own only its last checkpoint counts.
    """

    checkpoint_id: str
    parent_checkpoint_id: str | None
    step: int | None
    source: str | None
    created_at: datetime
    run_id: str | None
    label: str | None
    tasks: tuple[str, ...]
    interrupts: int
    pending: int
    answered: tuple[str, ...]
    interrupted_run_id: str | None
    subgraphs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CheckpointTree:
    """A part of a namespace's tree of checkpoints.

    Attributes:
        nodes: The checkpoints, newest first.
        has_newer: Whether there are newer ones.
        has_older: Whether there are older ones.
    """

    nodes: tuple[TreeNode, ...]
    has_newer: bool
    has_older: bool


@dataclass(frozen=True, slots=True)
class CheckpointState:
    """A checkpoint with its state. Types that may not be built are plain data.

    Attributes:
        thread_id: The thread.
        checkpoint_ns: The namespace.
        checkpoint_id: The checkpoint.
        parent_checkpoint_id: The parent checkpoint; `None` if there is none any more.
        metadata: Its metadata.
        values: Its channels' values, without those in which LangGraph keeps what to run next.
        interrupts: The interrupts of tasks that ran after it.
        errors: The errors of tasks that ran after it.
    """

    thread_id: str
    checkpoint_ns: str
    checkpoint_id: str
    parent_checkpoint_id: str | None
    metadata: Mapping[str, Any]
    values: Mapping[str, Any]
    interrupts: tuple[Any, ...]
    errors: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class ValueChange:
    """One difference inside a value.

    Attributes:
        change: `added`, `removed` or `changed`.
        path: Keys, field names and list positions that lead to the difference; empty for the value itself. Positions
            are those of the second list, or of the first list for a removed item.
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
        channel: The channel.
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
    """The difference between the states of two checkpoints. It is false if the states are equal.

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
