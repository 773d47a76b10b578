"""Types of archives."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple


class LeftThread(NamedTuple):
    """A thread that was not archived.

    Attributes:
        thread_id: The thread.
        why: The reason, as a sentence without its subject: `is in the queue`.
    """

    thread_id: str
    why: str


@dataclass(frozen=True, slots=True)
class ArchiveReport:
    """What was archived.

    Attributes:
        threads: Threads that are in an archive now, and in the database no more.
        rows: Rows that were deleted from the database.
        bytes: Size of the objects that were stored.
        archives: Ids of the archives.
        left: Threads that stay in the database, and why.
        dry_run: Whether nothing was archived; `bytes` is then the size in the database.
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
    """What was restored.

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
    """What was deleted of archives.

    Attributes:
        threads: Archived threads that are nowhere any more.
        copies: Copies of threads that archives have no more, also of threads that are in the database.
        archives: Archives that were deleted.
        rewritten: Archives that were written in their place, with their other threads.
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
        archived_at: Time at which it was archived.
        archive_id: The archive.
        url: Where its objects are.
        user_id: The user.
        agent: The graph or agent.
        title: Its title.
        updated_at: Time of its last `put`.
    """

    thread_id: str
    archived_at: datetime
    archive_id: str
    url: str
    user_id: str | None
    agent: str | None
    title: str | None
    updated_at: datetime
