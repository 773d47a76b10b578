"""The nouns that cross the package's borders: what calls return besides LangGraph's own types."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class PruneResult:
    """What a prune removed, or would remove with `dry_run=True`.

    Attributes:
        threads: Threads of which at least one row went.
        checkpoints: Checkpoint rows.
        writes: Rows of pending writes.
        segments: Segments that no surviving checkpoint refers to.
        bytes: Stored size of those rows' data, before PostgreSQL's own overhead.
        dry_run: Whether nothing was changed.
    """

    threads: int = 0
    checkpoints: int = 0
    writes: int = 0
    segments: int = 0
    bytes: int = 0
    dry_run: bool = False

    def __add__(self, other: PruneResult) -> PruneResult:
        return PruneResult(
            self.threads + other.threads,
            self.checkpoints + other.checkpoints,
            self.writes + other.writes,
            self.segments + other.segments,
            self.bytes + other.bytes,
            self.dry_run or other.dry_run,
        )


@dataclass(frozen=True, slots=True)
class Thread:
    """One row of `threads`: a conversation or task.

    Attributes:
        thread_id: The thread's id.
        agent: The graph or agent that runs on it, if the config told.
        user_id: Its owner, if the config told.
        created_at: Time of the first `put`, by the database's clock.
        updated_at: Time of a recent `put`; at most a few seconds behind the newest checkpoint.
    """

    thread_id: str
    agent: str | None
    user_id: str | None
    created_at: datetime
    updated_at: datetime


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
    """

    threads: int = 0
    checkpoints: int = 0
    segments: int = 0
    writes: int = 0
    unreferenced: int = 0
    problems: list[Problem] = field(default_factory=list)

    def __add__(self, other: CheckReport) -> CheckReport:
        return CheckReport(
            self.threads + other.threads,
            self.checkpoints + other.checkpoints,
            self.segments + other.segments,
            self.writes + other.writes,
            self.unreferenced + other.unreferenced,
            self.problems + other.problems,
        )


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


@dataclass(frozen=True, slots=True)
class SchemaStatus:
    """Where a schema stands.

    Attributes:
        schema: The PostgreSQL schema.
        version: Newest applied migration, 0 if there is none.
        expected: Newest migration this package ships.
        pending: Names of the migrations still to apply.
    """

    schema: str
    version: int
    expected: int
    pending: tuple[str, ...]


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


class Query(Protocol):
    """A named statement, ready for one schema."""

    @property
    def name(self) -> str:
        """Its name in the `.sql` file."""
        ...

    @property
    def text(self) -> bytes:
        """The statement, with `$n` for its parameters."""
        ...

    @property
    def parameters(self) -> tuple[str, ...]:
        """Parameter names in placeholder order."""
        ...


Row = tuple[Any, ...]
Parameters = Mapping[str, Any]
Rows = Sequence[Row]
