"""Reports of maintenance, checks, copies and upgrades of a schema."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from langgraph_pgstate.types.prune import PruneResult


@dataclass(frozen=True, slots=True)
class Problem:
    """A defect found by `check`.

    Attributes:
        thread_id: The thread.
        where: The checkpoint, segment or write.
        why: The defect.
    """

    thread_id: str
    where: str
    why: str


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of a job over many threads.

    Attributes:
        threads: Threads finished.
        total: Threads to visit, counted when the job began.
        checkpoints: Checkpoints read or written so far.
        thread_id: The last thread worked on.
    """

    threads: int
    total: int
    checkpoints: int
    thread_id: str


@dataclass(slots=True)
class CheckReport:
    """The counts and defects reported by `check`.

    Attributes:
        threads: Threads read.
        checkpoints: Checkpoints decoded.
        segments: Distinct segments read.
        writes: Rows of pending writes decoded.
        unreferenced: Segments that no checkpoint refers to. They are harmless; the thread's next prune removes them.
        problems: Defects; empty if there are none.
        orphan_writes: Rows of pending writes without a checkpoint. The checkpoint is not stored yet or was lost;
            `maintain` removes such rows later.
        types: Stored types outside LangGraph, as `module:name`, sorted. Empty unless the caller asked for them.
        others: Values of another serializer, whose types cannot be listed.
    """

    threads: int = 0
    checkpoints: int = 0
    segments: int = 0
    writes: int = 0
    unreferenced: int = 0
    problems: list[Problem] = field(default_factory=list)
    orphan_writes: int = 0
    types: tuple[str, ...] = ()
    others: int = 0

    def __add__(self, other: CheckReport) -> CheckReport:
        return CheckReport(
            self.threads + other.threads,
            self.checkpoints + other.checkpoints,
            self.segments + other.segments,
            self.writes + other.writes,
            self.unreferenced + other.unreferenced,
            self.problems + other.problems,
            self.orphan_writes + other.orphan_writes,
            tuple(sorted({*self.types, *other.types})),
            self.others + other.others,
        )


@dataclass(slots=True)
class BackfillReport:
    """The counts and problems reported by `backfill`.

    Attributes:
        threads: Threads visited.
        checkpoints: Checkpoints compared.
        filled: Checkpoints recorded.
        messages: Messages that were missing from the record.
        statuses: Threads whose status changed.
        problems: Checkpoints that could not be read.
    """

    threads: int = 0
    checkpoints: int = 0
    filled: int = 0
    messages: int = 0
    statuses: int = 0
    problems: list[Problem] = field(default_factory=list)

    def __add__(self, other: BackfillReport) -> BackfillReport:
        return BackfillReport(
            self.threads + other.threads,
            self.checkpoints + other.checkpoints,
            self.filled + other.filled,
            self.messages + other.messages,
            self.statuses + other.statuses,
            self.problems + other.problems,
        )


@dataclass(frozen=True, slots=True)
class MaintenanceReport:
    """The changes made by `maintain`.

    Attributes:
        months_made: Months for which a partition of `spans` was created, as `2026_01`.
        months_dropped: Months whose partition of `spans` was dropped.
        runs_settled: Runs that were ended because their process has died.
        guards_swept: Removed rows of outdated tombstones and long-released leases.
        expired: Deleted or pruned threads that had expired.
        orphan_writes: Removed rows of pending writes whose checkpoint was never stored.
        days_dropped: Days whose events of runs were dropped, as `2026_01_31`.
    """

    months_made: tuple[str, ...] = ()
    months_dropped: tuple[str, ...] = ()
    runs_settled: int = 0
    guards_swept: int = 0
    expired: PruneResult = PruneResult()  # noqa: RUF009
    orphan_writes: int = 0
    days_dropped: tuple[str, ...] = ()


@dataclass(slots=True)
class TransferReport:
    """The result of an import from LangGraph's own tables or an export to them.

    Attributes:
        threads: Threads visited.
        checkpoints: Checkpoints written.
        writes: Pending writes written.
        unchanged: Checkpoints that were present already and equal.
        verified: Checkpoints read from both sides afterwards and compared.
        conflicts: Threads that were continued on both sides. They are left unchanged.
        differences: Checkpoints that differ after the copy or could not be copied; empty on success.
    """

    threads: int = 0
    checkpoints: int = 0
    writes: int = 0
    unchanged: int = 0
    verified: int = 0
    conflicts: list[Problem] = field(default_factory=list)
    differences: list[Problem] = field(default_factory=list)

    def __add__(self, other: TransferReport) -> TransferReport:
        return TransferReport(
            self.threads + other.threads,
            self.checkpoints + other.checkpoints,
            self.writes + other.writes,
            self.unchanged + other.unchanged,
            self.verified + other.verified,
            self.conflicts + other.conflicts,
            self.differences + other.differences,
        )


@dataclass(slots=True)
class UpcastReport:
    """The result of upcasting checkpoints to the current state version.

    Attributes:
        threads: Threads visited.
        outdated: Checkpoints of an older version.
        upcast: Checkpoints that were upcast, or would be.
        added: By channel, the number of checkpoints in which it is added.
        changed: By channel, the number of checkpoints in which its value changes.
        removed: By channel, the number of checkpoints in which it is removed.
        problems: Checkpoints that could not be upcast, with the reason. They are left unchanged.
        dry_run: Whether nothing was written.
    """

    threads: int = 0
    outdated: int = 0
    upcast: int = 0
    added: Counter[str] = field(default_factory=Counter)
    changed: Counter[str] = field(default_factory=Counter)
    removed: Counter[str] = field(default_factory=Counter)
    problems: list[Problem] = field(default_factory=list)
    dry_run: bool = False

    def __add__(self, other: UpcastReport) -> UpcastReport:
        return UpcastReport(
            self.threads + other.threads,
            self.outdated + other.outdated,
            self.upcast + other.upcast,
            self.added + other.added,
            self.changed + other.changed,
            self.removed + other.removed,
            self.problems + other.problems,
            self.dry_run or other.dry_run,
        )


@dataclass(frozen=True, slots=True)
class TableSize:
    """The size of one table.

    Attributes:
        name: The table.
        rows: Number of rows.
        exact: Whether the rows were counted; otherwise `rows` is PostgreSQL's estimate.
        bytes: Size on disk, with indexes and TOAST.
        index_bytes: Size of the indexes alone.
    """

    name: str
    rows: int
    exact: bool
    bytes: int
    index_bytes: int


@dataclass(frozen=True, slots=True)
class ThreadSize:
    """The size of one thread, without PostgreSQL's per-row overhead.

    Attributes:
        checkpoints: Checkpoint rows.
        state_bytes: Bytes of their states.
        segments: Segment rows.
        segment_bytes: Bytes of their data.
        writes: Rows of pending writes.
        write_bytes: Bytes of their data.
    """

    checkpoints: int
    state_bytes: int
    segments: int
    segment_bytes: int
    writes: int
    write_bytes: int
