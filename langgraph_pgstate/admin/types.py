"""Types of reports on the database."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from datetime import datetime
from operator import add
from typing import Any, NamedTuple

from langgraph_pgstate.keep.types import PolicyReport
from langgraph_pgstate.record.types import Problem
from langgraph_pgstate.schema.types import AppliedMigration


@dataclass(frozen=True, slots=True)
class MeasuredTable:
    """A table with its partitions.

    Attributes:
        name: The table.
        bytes: Bytes on disk, with indexes.
        index_bytes: Bytes of the indexes.
        rows: PostgreSQL's estimate of the rows.
        dead_rows: PostgreSQL's estimate of the dead rows.
        partitions: Number of partitions.
        vacuumed_at: Time of the last vacuum; `None` for never.
        analyzed_at: Time of the last analyze; `None` for never.
    """

    name: str
    bytes: int
    index_bytes: int
    rows: int
    dead_rows: int
    partitions: int
    vacuumed_at: datetime | None
    analyzed_at: datetime | None


@dataclass(frozen=True, slots=True)
class MaintenanceNote:
    """The result of one call of `maintain`.

    Attributes:
        maintained_at: Time of the call's end.
        seconds: Duration of the call.
        report: A `MaintenanceReport` as a mapping.
        sizes: Bytes of each table, with indexes and partitions.
    """

    maintained_at: datetime
    seconds: float
    report: Mapping[str, Any]
    sizes: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class SlowStatement:
    """A statement, as counted by pg_stat_statements.

    Attributes:
        text: The first 600 characters of the statement, without values.
        calls: Number of calls.
        total_ms: Milliseconds of all calls.
        mean_ms: Milliseconds of a call.
        max_ms: Milliseconds of the longest call.
        rows: Rows returned or changed by all calls.
    """

    text: str
    calls: int
    total_ms: float
    mean_ms: float
    max_ms: float
    rows: int


@dataclass(frozen=True, slots=True)
class DatabaseOverview:
    """An overview of the database.

    Attributes:
        schema: The PostgreSQL schema of the tables.
        server_version: The server's version, like `18.1`.
        is_standby: Whether the server is a read-only standby.
        now: The time of the server.
        size: Bytes of the whole database.
        tables: The tables of the schema, the largest first.
        migrations: The migrations that were applied.
        pending: Names of the migrations still to apply.
        maintenance: The last 400 calls of `maintain`, newest first.
        statements: The statements on the schema's tables that took the most time; `None` if the extension
            pg_stat_statements is missing or not readable.
    """

    schema: str
    server_version: str
    is_standby: bool
    now: datetime
    size: int
    tables: tuple[MeasuredTable, ...]
    migrations: tuple[AppliedMigration, ...]
    pending: tuple[str, ...]
    maintenance: tuple[MaintenanceNote, ...]
    statements: tuple[SlowStatement, ...] | None


class Gauge(NamedTuple):
    """A number for monitoring.

    Attributes:
        name: Name of the gauge.
        labels: Labels of the number.
        value: The number.
    """

    name: str
    labels: Mapping[str, str]
    value: float


@dataclass(slots=True)
class CheckReport:
    """The counts and defects reported by `check`.

    Attributes:
        threads: Threads read.
        checkpoints: Checkpoints decoded.
        segments: Distinct segments read.
        writes: Rows of pending writes decoded.
        unreferenced: Segments without a checkpoint. They are harmless. The thread's next prune removes them.
        problems: The defects.
        orphan_writes: Rows of pending writes without a checkpoint. `maintain` removes such rows after a day.
        types: Stored types outside LangGraph, as `module:name`, sorted. Empty without `types=True`.
        others: Number of values of another serializer, whose types cannot be listed.
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
class TransferReport:
    """The result of an import from LangGraph's own tables or an export to them.

    Attributes:
        threads: Threads visited.
        checkpoints: Checkpoints written.
        writes: Pending writes written.
        unchanged: Equal checkpoints that the target already had.
        verified: Checkpoints that were read from both sides and compared.
        conflicts: Threads that were continued on both sides. These threads are left unchanged.
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


@dataclass(frozen=True, slots=True)
class ItemDifference:
    """An item that was not copied, or differs between both sides.

    Attributes:
        namespace: Labels of the namespace, joined by dots.
        key: Key of the item.
        why: The reason.
    """

    namespace: str
    key: str
    why: str


@dataclass(slots=True)
class MemoryTransferReport:
    """The result of an import of items from LangGraph's own store or an export to it.

    Attributes:
        items: Items of the source.
        written: Items written. An item that changed meanwhile and was written again counts twice.
        verified: Items that were equal on both sides afterwards.
        with_vectors: Verified items whose embeddings were copied. Other items are embedded later.
        newer: Items that were not written because the target's items were stored later.
        expired: Items that had expired and were left out.
        left: Items stored in the source since the last pass began. To copy these items, stop the programs that write,
            and repeat the call.
        differences: Items that differ or could not be copied; empty on success.
    """

    items: int = 0
    written: int = 0
    verified: int = 0
    with_vectors: int = 0
    newer: int = 0
    expired: int = 0
    left: int = 0
    differences: list[ItemDifference] = field(default_factory=list)


@dataclass(slots=True)
class UpcastReport:
    """The result of upcasting checkpoints to the current state version.

    Attributes:
        threads: Threads visited.
        outdated: Checkpoints of an older version.
        upcast: Checkpoints that were upcast. With `dry_run`, checkpoints to upcast.
        added: Number of checkpoints that gain a channel, by channel.
        changed: Number of checkpoints in which a channel's value changes, by channel.
        removed: Number of checkpoints that lose a channel, by channel.
        problems: Checkpoints that could not be upcast, with the reason. These checkpoints are left unchanged.
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
        exact: Whether the rows were counted. If false, `rows` is PostgreSQL's estimate.
        bytes: Size on disk, with indexes and TOAST.
        index_bytes: Size of the indexes alone.
    """

    name: str
    rows: int
    exact: bool
    bytes: int
    index_bytes: int


@dataclass(frozen=True, slots=True)
class SchemaSizes:
    """The sizes of the tables of a schema.

    Attributes:
        server_version: The server's version, like `18.1`.
        tables: The tables; empty if there is no such schema.
        orphan_writes: Number of pending writes without a checkpoint; `None` if the tables are too large to count.
    """

    server_version: str
    tables: tuple[TableSize, ...]
    orphan_writes: int | None


@dataclass(frozen=True, slots=True)
class ThreadSize:
    """The size of one thread, without PostgreSQL's per-row overhead.

    Attributes:
        checkpoints: Checkpoint rows.
        state_bytes: Bytes of the states.
        segments: Segment rows.
        segment_bytes: Bytes of the segments.
        writes: Rows of pending writes.
        write_bytes: Bytes of the pending writes.
    """

    checkpoints: int
    state_bytes: int
    segments: int
    segment_bytes: int
    writes: int
    write_bytes: int


@dataclass(frozen=True, slots=True)
class MaintenanceReport:
    """The changes made by `maintain`.

    Attributes:
        months_made: Months for which a partition of `spans` was created, as `2026_01`.
        months_dropped: Months whose partition of `spans` was dropped.
        runs_settled: Runs that were ended because the process had died.
        guards_swept: Removed rows of outdated tombstones and leases.
        orphan_writes: Removed rows of pending writes without a checkpoint.
        days_dropped: Days whose events of runs were dropped, as `2026_01_31`.
        memories_expired: Deleted memories that had expired.
        policies: Reports of the policies of retention. `ttl` is the policy of threads with a time to live.
    """

    months_made: tuple[str, ...] = ()
    months_dropped: tuple[str, ...] = ()
    runs_settled: int = 0
    guards_swept: int = 0
    orphan_writes: int = 0
    days_dropped: tuple[str, ...] = ()
    memories_expired: int = 0
    policies: tuple[PolicyReport, ...] = ()

    def __add__(self, other: MaintenanceReport) -> MaintenanceReport:
        """Return the sum of two reports."""
        mine, others = ([getattr(one, field.name) for field in fields(MaintenanceReport)] for one in (self, other))
        return MaintenanceReport(*map(add, mine, others))


class RotationProgress(NamedTuple):
    """The progress of a rotation of data keys.

    Attributes:
        table: The table that is read; empty during the wait.
        rows: Number of rows read in this pass.
        values: Number of values encrypted again.
        waits: Seconds to wait until all processes use the new keys.
    """

    table: str
    rows: int
    values: int
    waits: float = 0.0


@dataclass(slots=True)
class RotationReport:
    """The result of a rotation of data keys.

    Attributes:
        keys: Number of new data keys; 0 if the call has continued a stopped rotation.
        rows: Number of rows read in the last pass.
        values: Number of values encrypted again.
        retired: Number of data keys that were retired, because no row needs them.
        left: Number of old data keys that are not retired yet.
        problems: Values that do not decrypt. Before they are restored or deleted, their data keys are not retired, and
            their scopes get no newer keys.
    """

    keys: int = 0
    rows: int = 0
    values: int = 0
    retired: int = 0
    left: int = 0
    problems: list[Problem] = field(default_factory=list)


class KeyCounts(NamedTuple):
    """The numbers of data keys that a master key has wrapped.

    Attributes:
        master_id: The master key.
        current: Keys that encrypt new content.
        replaced: Keys under which older content may still be encrypted.
        retired: Keys that no row needs, but archives and dumps may need.
        destroyed: Keys that were destroyed.
    """

    master_id: str
    current: int
    replaced: int
    retired: int
    destroyed: int
