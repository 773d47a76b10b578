"""Types of archives, policies, exported files and erasures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final, Literal, NamedTuple, TypedDict

TTL: Final = "ttl"
"""Name of the policy for threads with their own time to live."""

ARCHIVED: Final = "is archived already"
"""The reason for which a call leaves a thread that an earlier call has archived."""

Kind = Literal["user", "thread", "message"]
"""What is erased."""


class LeftThread(NamedTuple):
    """A thread that was not archived. `why` is the reason, without a subject: `is in the queue`."""

    thread_id: str
    why: str

    @property
    def is_archived(self) -> bool:
        """Whether an earlier call has archived the thread."""
        return self.why == ARCHIVED


@dataclass(frozen=True, slots=True)
class ArchiveReport:
    """The result of archiving threads.

    Attributes:
        threads: Number of archived threads.
        rows: Number of rows that were deleted from the database.
        bytes: Size of the stored objects; in a dry run, of the rows in the database.
        archives: Ids of the archives.
        left: Threads that were not archived, with reasons.
        dry_run: Whether threads were only counted.
    """

    threads: int = 0
    rows: int = 0
    bytes: int = 0
    archives: tuple[str, ...] = ()
    left: tuple[LeftThread, ...] = ()
    dry_run: bool = False

    def __add__(self, other: ArchiveReport) -> ArchiveReport:
        return ArchiveReport(
            self.threads + other.threads,
            self.rows + other.rows,
            self.bytes + other.bytes,
            self.archives + other.archives,
            self.left + other.left,
            self.dry_run or other.dry_run,
        )


@dataclass(frozen=True, slots=True)
class RestoreReport:
    """The result of restoring threads.

    Attributes:
        threads: Threads that were restored.
        rows: Rows that were stored.
        unchanged: Threads that were in the database already, with the same rows.
    """

    threads: int = 0
    rows: int = 0
    unchanged: int = 0

    def __add__(self, other: RestoreReport) -> RestoreReport:
        return RestoreReport(self.threads + other.threads, self.rows + other.rows, self.unchanged + other.unchanged)


@dataclass(frozen=True, slots=True)
class DeletionReport:
    """The result of deleting threads from archives.

    Attributes:
        threads: Number of archived threads that were completely deleted.
        copies: Number of deleted copies, including copies of threads that are in the database.
        archives: Number of deleted archives.
        rewritten: Number of archives that were written again without the deleted threads.
    """

    threads: int = 0
    copies: int = 0
    archives: int = 0
    rewritten: int = 0

    def __add__(self, other: DeletionReport) -> DeletionReport:
        return DeletionReport(
            self.threads + other.threads,
            self.copies + other.copies,
            self.archives + other.archives,
            self.rewritten + other.rewritten,
        )


@dataclass(frozen=True, slots=True)
class ArchivedThread:
    """A thread in an archive.

    Attributes:
        thread_id: The thread.
        archived_at: Time at which the thread was archived.
        archive_id: The archive.
        url: URL of the archive's objects.
        user_id: User of the thread.
        agent: Graph or agent of the thread.
        title: Title of the thread.
        updated_at: Time of the thread's last `put`.
    """

    thread_id: str
    archived_at: datetime
    archive_id: str
    url: str
    user_id: str | None
    agent: str | None
    title: str | None
    updated_at: datetime


class PolicyFields(TypedDict, total=False):
    """Filters and ages of a policy. The age of a thread is the time since its last activity.

    Attributes:
        agent: Only threads of this agent.
        tenant_id: Only threads of this tenant.
        user_id: Only threads of this user.
        status: Only threads of this status: `idle`, `busy`, `interrupted` or `error`.
        metadata: Only threads whose metadata contain this.
        content_after: Age at which spans, messages and ended runs lose their inputs, outputs, texts and tool calls.
            States are not changed.
        prune_after: Age at which checkpoints are pruned, as `saver.prune` does.
        keep_last: Number of newest checkpoints that a prune keeps in each namespace; 1 by default.
        archive_after: Age at which threads are archived.
        archive_to: URL of the archive.
        delete_after: Age at which threads are deleted, also from archives.
    """

    agent: str | None
    tenant_id: str | None
    user_id: str | None
    status: str | None
    metadata: Mapping[str, Any] | None
    content_after: timedelta | None
    prune_after: timedelta | None
    keep_last: int
    archive_after: timedelta | None
    archive_to: str | None
    delete_after: timedelta | None


@dataclass(frozen=True, slots=True)
class Policy:
    """A stored policy of how long threads are kept. `PolicyFields` describes its filters and ages.

    The policy `ttl` stands for threads with their own time to live. It is listed only while there are such threads, and
    has no filters or ages.

    Attributes:
        created_at: Time at which the policy was first stored.
        updated_at: Time at which the policy was last changed.
        version: Number of times that the policy was stored.
        applied_at: Time at which the policy was last applied to all threads; `None` if this version was not.
        last_error: Why threads were left at the last application, such as an archive that cannot be reached; `None` if
            none was left.
    """

    name: str
    agent: str | None
    tenant_id: str | None
    user_id: str | None
    status: str | None
    metadata: Mapping[str, Any] | None
    content_after: timedelta | None
    prune_after: timedelta | None
    keep_last: int
    archive_after: timedelta | None
    archive_to: str | None
    delete_after: timedelta | None
    created_at: datetime
    updated_at: datetime
    version: int = 1
    applied_at: datetime | None = None
    last_error: str | None = None


@dataclass(frozen=True, slots=True)
class PolicyReport:
    """The result of applying a policy, or of its dry run.

    Attributes:
        name: The policy.
        contents: Number of spans, messages and runs whose contents were removed.
        checkpoints: Number of pruned checkpoints.
        archived: Number of archived threads.
        deleted: Number of deleted threads.
        bytes: Size of the removed data. An archived thread counts with the size of its archive, in a dry run with that
            of its rows.
        held: Threads that were not changed because a hold protects them.
        dry_run: Whether nothing was changed.
        is_whole: Whether the policy visited all threads; false if the time ended first, or threads cannot be archived.
        problems: Why threads were left, such as an archive that cannot be reached. Only the log names the threads.
    """

    name: str
    contents: int = 0
    checkpoints: int = 0
    archived: int = 0
    deleted: int = 0
    bytes: int = 0
    held: tuple[str, ...] = ()
    dry_run: bool = False
    is_whole: bool = True
    problems: tuple[str, ...] = ()

    def __add__(self, other: PolicyReport) -> PolicyReport:
        return PolicyReport(
            self.name,
            self.contents + other.contents,
            self.checkpoints + other.checkpoints,
            self.archived + other.archived,
            self.deleted + other.deleted,
            self.bytes + other.bytes,
            tuple(dict.fromkeys(self.held + other.held)),
            self.dry_run or other.dry_run,
            self.is_whole and other.is_whole,
            tuple(dict.fromkeys(self.problems + other.problems)),
        )


class ExportedFile(NamedTuple):
    """A file that was written for analysts.

    Attributes:
        kind: Kind of its rows: `runs`, `spans`, `messages`, `tool_executions` or `usage`.
        month: Month of its rows, like `2026-01`.
        url: URL of the file.
        rows: Number of rows.
        bytes: Its size.
    """

    kind: str
    month: str
    url: str
    rows: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Kept:
    """A thread that was not completely erased. `why` is the reason, such as the person who holds it."""

    thread_id: str
    why: str


@dataclass(slots=True)
class Erasure:
    """The report of `privacy.erase`, or of its dry run.

    Attributes:
        kind: `user`, `thread` or `message`.
        erasure_id: Id of the erasure; `None` for a dry run.
        dry_run: Whether nothing was written.
        counts: Number of deleted rows by table. Redacted rows are counted under the table's name with ` redacted`.
        kept: Threads that are held or in use, and were not completely erased. A later call erases them.
        receipt: The receipt; `None` if threads were kept, and for a dry run.
    """

    kind: Kind
    erasure_id: str | None = None
    dry_run: bool = False
    counts: dict[str, int] = field(default_factory=dict)
    kept: list[Kept] = field(default_factory=list)
    receipt: Mapping[str, Any] | None = None

    @property
    def is_complete(self) -> bool:
        """Whether no thread was kept."""
        return not self.kept

    @property
    def rows(self) -> int:
        """The number of rows that were deleted or redacted."""
        return sum(self.counts.values())


@dataclass(frozen=True, slots=True)
class StoredErasure:
    """An erasure in the database.

    Attributes:
        erasure_id: Id of the erasure.
        kind: `user`, `thread` or `message`.
        started_at: Time at which the erasure began.
        ended_at: Time at which it ended; `None` if threads were kept, or the process died. The next call of `erase`
            with the same arguments continues the erasure.
        counts: Number of deleted or redacted rows, by table.
        receipt: The receipt; `None` until the erasure has ended.
    """

    erasure_id: str
    kind: Kind
    started_at: datetime
    ended_at: datetime | None
    counts: Mapping[str, int]
    receipt: Mapping[str, Any] | None
