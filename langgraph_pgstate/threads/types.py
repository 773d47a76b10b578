"""Types of threads: branches, checkpoints, labels, results of prunes, and options."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal, TypedDict

from langgraph_pgstate.options import TtlStrategy
from langgraph_pgstate.scopes import Scope


class ThreadOwner(TypedDict, total=False):
    """The owner of a copy or a fork. By default, the source's owner.

    Attributes:
        metadata: All metadata of the new thread.
        user_id: The user.
        tenant_id: The tenant.
    """

    metadata: Mapping[str, Any]
    user_id: str | None
    tenant_id: str | None


class ThreadOptions(TypedDict, total=False):
    """Options of a thread that is created.

    Attributes:
        metadata: The caller's metadata.
        title: The title.
        user_id: The user.
        tenant_id: The tenant.
        agent: The graph or agent.
        ttl: Time for which the thread is kept after its last access. By default, for ever.
        ttl_strategy: What happens at expiry: `delete`, the default, or `keep_latest`, which prunes the thread.
        if_exists: `raise` an error if the thread exists (the default), or `do_nothing` and return the existing thread.
        scope: Metadata that an existing thread must contain to be returned.
    """

    metadata: Mapping[str, Any] | None
    title: str | None
    user_id: str | None
    tenant_id: str | None
    agent: str | None
    ttl: timedelta | None
    ttl_strategy: TtlStrategy
    if_exists: Literal["raise", "do_nothing"]
    scope: Scope | None


@dataclass(frozen=True, slots=True)
class LineageStep:
    """A checkpoint between the root of its branch and a given checkpoint, without its state.

    Attributes:
        thread_id: The thread.
        checkpoint_ns: The namespace.
        checkpoint_id: The checkpoint.
        parent_checkpoint_id: The parent checkpoint. The first step has a pruned parent or `None`.
        step: The superstep that made the checkpoint.
        source: `input`, `loop`, `update` or `fork`.
        created_at: Creation time by the database's clock.
        run_id: The run that made the checkpoint.
        label: The checkpoint's label, if any.
        children: Number of child checkpoints. Branches fork at a checkpoint with several children.
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
        forked_from: The last checkpoint on the path that other branches share; `None` if there is none. The checkpoint
            may have been pruned.
        is_head: Whether the leaf is the newest checkpoint, from which a run continues by default.
        step: The superstep that made the leaf.
        source: `input`, `loop`, `update` or `fork`.
        created_at: Creation time of the leaf, by the database's clock.
        run_id: The run that made the leaf.
        label: The leaf's label, if any.
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
class Hold:
    """A legal hold. Rows of the thread are not deleted until the hold ends.

    Attributes:
        thread_id: The thread.
        reason: Reason of the hold, like the number of a case.
        held_by: Name of the person who holds the thread.
        created_at: Start of the hold.
    """

    thread_id: str
    reason: str
    held_by: str
    created_at: datetime


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
        label: The checkpoint's label, if any.
        tasks: The nodes of the tasks that have written after this checkpoint. A `Send` without a recorded span gives an
            empty text.
        interrupts: Number of tasks that were interrupted after this checkpoint.
        pending: Number of interrupted tasks that have not continued.
        answered: Ids of the interrupts of this checkpoint that were answered.
        interrupted_run_id: The recorded run that was interrupted last after this checkpoint.
        subgraphs: Namespaces of subgraphs that ran after this checkpoint. At most 500 namespaces of a thread are read.
            A subgraph with `checkpointer=True` is listed only at its last call.
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
        has_newer: Whether there are newer checkpoints.
        has_older: Whether there are older checkpoints.
    """

    nodes: tuple[TreeNode, ...]
    has_newer: bool
    has_older: bool


@dataclass(frozen=True, slots=True)
class CheckpointState:
    """A checkpoint with its state. Values of the application's own types are plain data.

    Attributes:
        thread_id: The thread.
        checkpoint_ns: The namespace.
        checkpoint_id: The checkpoint.
        parent_checkpoint_id: The parent checkpoint; `None` if the parent no longer exists.
        metadata: Metadata of the checkpoint.
        values: Values of the channels, without the channels in which LangGraph stores the next tasks.
        schedule: Values of the channels with the next tasks.
        next: The nodes that run next.
        interrupts: The interrupts of tasks that ran after the checkpoint.
        errors: The errors of tasks that ran after the checkpoint.
    """

    thread_id: str
    checkpoint_ns: str
    checkpoint_id: str
    parent_checkpoint_id: str | None
    metadata: Mapping[str, Any]
    values: Mapping[str, Any]
    schedule: Mapping[str, Any]
    next: tuple[str, ...]
    interrupts: tuple[Any, ...]
    errors: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of a job over many threads.

    Attributes:
        threads: Threads finished.
        total: Threads to visit, counted when the job began.
        checkpoints: Checkpoints read, written or removed so far.
        thread_id: The last thread worked on.
    """

    threads: int
    total: int
    checkpoints: int
    thread_id: str


@dataclass(frozen=True, slots=True)
class PruneResult:
    """The counts of rows that a prune removed, or would remove with `dry_run=True`.

    Attributes:
        threads: Threads that lost at least one row.
        checkpoints: Checkpoint rows.
        writes: Rows of pending writes, including those whose checkpoint was never stored.
        segments: Segments that no remaining checkpoint refers to.
        bytes: Stored size of these rows, without PostgreSQL's per-row overhead.
        dry_run: Whether nothing was removed.
        damaged: Ids of threads that were left unchanged because a checkpoint is damaged.
        held: Ids of threads that a hold protected.
        archived: Ids of threads that the call names and that are archived, and so were left unchanged.
    """

    threads: int = 0
    checkpoints: int = 0
    writes: int = 0
    segments: int = 0
    bytes: int = 0
    dry_run: bool = False
    damaged: tuple[str, ...] = ()
    held: tuple[str, ...] = ()
    archived: tuple[str, ...] = ()

    def __add__(self, other: PruneResult) -> PruneResult:
        return PruneResult(
            self.threads + other.threads,
            self.checkpoints + other.checkpoints,
            self.writes + other.writes,
            self.segments + other.segments,
            self.bytes + other.bytes,
            self.dry_run or other.dry_run,
            self.damaged + other.damaged,
            self.held + other.held,
            self.archived + other.archived,
        )


@dataclass(frozen=True, slots=True)
class Thread:
    """One row of `threads`: a conversation or task.

    Attributes:
        thread_id: The thread's id.
        agent: The graph or agent that runs on the thread, if the config named one.
        user_id: The user, if the config named one.
        created_at: Time of the first `put`, by the database's clock.
        updated_at: Time of a recent `put`, at most a few seconds before the newest checkpoint.
        tenant_id: The tenant, if the config named one.
        status: `idle`, `busy`, `interrupted` or `error`. Without a recorder, always `idle`.
        title: The thread's title.
        metadata: The caller's metadata. Updates are merged into it.
        version: Number of updates of title and metadata, starting at 1.
        expires_at: Time after which a sweep deletes or prunes the thread; `None` for never. A pruned thread has `None`
            until the next access.
        ttl_strategy: What happens at expiry: `delete`, or `keep_latest`, which prunes the thread.
        forked_from_thread_id: For a fork, the source.
        forked_from_checkpoint_id: For a fork, the checkpoint of the source from which the fork starts.
        archived_at: Time of the archiving, after which only this row is in the database; `None` if not archived.
        is_held: Whether a legal hold protects the thread's rows from deletion.
        head_checkpoint_id: Newest checkpoint in the root namespace. Set only when a single thread is read.
        state: Projected channels. Set only when a single thread is read.
    """

    thread_id: str
    agent: str | None
    user_id: str | None
    created_at: datetime
    updated_at: datetime
    tenant_id: str | None
    status: str
    title: str | None
    metadata: Mapping[str, Any]
    version: int
    expires_at: datetime | None
    ttl_strategy: str
    forked_from_thread_id: str | None
    forked_from_checkpoint_id: str | None
    archived_at: datetime | None = None
    is_held: bool = False
    head_checkpoint_id: str | None = None
    state: Mapping[str, Any] | None = None
