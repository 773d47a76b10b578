"""Reports of the jobs that maintain, check, copy and upgrade a schema."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from langgraph_pgstate.types.prune import PruneResult


@dataclass(frozen=True, slots=True)
class Problem:
    """Something `check` found broken.

    Attributes:
        thread_id: Thread it is in.
        where: The checkpoint, segment or write.
        why: What is wrong with it.
    """

    thread_id: str
    where: str
    why: str


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a job over many threads has come.

    Attributes:
        threads: Threads finished.
        total: Threads there were to visit when the job began.
        checkpoints: Checkpoints read or written so far.
        thread_id: The thread just worked on.
    """

    threads: int
    total: int
    checkpoints: int
    thread_id: str


@dataclass(slots=True)
class CheckReport:
    """What `check` read and what it found.

    Attributes:
        threads: Threads read.
        checkpoints: Checkpoints decoded.
        segments: Distinct segments read.
        writes: Rows of pending writes decoded.
        unreferenced: Segments no checkpoint refers to; harmless, and gone with the thread's next prune.
        problems: What is broken; empty when all is well.
        orphan_writes: Rows of pending writes without their checkpoint, which is yet to come or was lost; removed later.
        types: Stored types that are not LangGraph's own, as `module:name`, sorted; empty unless they are asked for.
        others: Values of another serializer, whose types cannot be told.
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
    """What `backfill` recorded of threads.

    Attributes:
        threads: Threads visited.
        checkpoints: Checkpoints compared.
        filled: Checkpoints recorded.
        messages: Messages that were missing there.
        statuses: Threads with a new status.
        problems: What could not be read.
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
    """What `maintain` did.

    Attributes:
        months_made: Months for whose spans a partition was made, as `2026_01`.
        months_dropped: Months whose partition was removed, with its spans.
        runs_settled: Runs that were ended because their process has died.
        guards_swept: Tombstones whose time has passed and leases long given back, which were removed.
        expired: Threads that had expired, which were deleted.
        orphan_writes: Rows of pending writes whose checkpoint never came, which were removed.
    """

    months_made: tuple[str, ...] = ()
    months_dropped: tuple[str, ...] = ()
    runs_settled: int = 0
    guards_swept: int = 0
    expired: PruneResult = PruneResult()  # noqa: RUF009
    orphan_writes: int = 0


@dataclass(slots=True)
class TransferReport:
    """What an import from LangGraph's own tables, or an export to them, did.

    Attributes:
        threads: Threads visited.
        checkpoints: Checkpoints written.
        writes: Pending writes written.
        unchanged: Checkpoints that were there already and equal.
        verified: Checkpoints read from both sides afterwards and compared.
        conflicts: Threads that went on in both places; left as they are.
        differences: What the two sides answer differently after the copy, or could not be copied; empty when all is
            well.
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
    """What bringing checkpoints up to the current version of the state changed, or would change.

    Attributes:
        threads: Threads visited.
        outdated: Checkpoints of an older version that were found.
        upcast: How many of them were brought up, or would be.
        added: By channel, in how many checkpoints it appears.
        changed: By channel, in how many its value becomes another.
        removed: By channel, in how many it disappears.
        problems: What could not be brought up, and why; it is left as it is.
        dry_run: Whether nothing was changed.
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
    """What one table takes.

    Attributes:
        name: The table.
        rows: Its rows.
        exact: Whether they were counted; else PostgreSQL's estimate.
        bytes: On disk, with indexes and TOAST.
        index_bytes: Of these, the indexes.
    """

    name: str
    rows: int
    exact: bool
    bytes: int
    index_bytes: int


@dataclass(frozen=True, slots=True)
class ThreadSize:
    """What one thread takes, before PostgreSQL's own overhead.

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
