"""Types of erasures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

Kind = Literal["user", "thread", "message"]
"""What is erased."""


@dataclass(frozen=True, slots=True)
class Kept:
    """A thread of which something stays.

    Attributes:
        thread_id: The thread.
        why: Why, like who holds it.
    """

    thread_id: str
    why: str


@dataclass(slots=True)
class Erasure:
    """The report of `privacy.erase`, or of its dry run.

    Attributes:
        kind: `user`, `thread` or `message`.
        erasure_id: Its id; `None` of a dry run.
        dry_run: Whether nothing was written.
        counts: Rows that were deleted, by table; of those that were redacted, the name of the table with ` redacted`.
        kept: Threads of which something stays: those that are held or in use. A later call erases them.
        receipt: The receipt; `None` as long as something stays, and of a dry run.
    """

    kind: Kind
    erasure_id: str | None = None
    dry_run: bool = False
    counts: dict[str, int] = field(default_factory=dict)
    kept: list[Kept] = field(default_factory=list)
    receipt: Mapping[str, Any] | None = None

    @property
    def is_complete(self) -> bool:
        """Whether nothing stays."""
        return not self.kept

    @property
    def rows(self) -> int:
        """The number of rows that were deleted or redacted."""
        return sum(self.counts.values())


@dataclass(frozen=True, slots=True)
class StoredErasure:
    """An erasure in the database.

    Attributes:
        erasure_id: Its id.
        kind: `user`, `thread` or `message`.
        started_at: When it began.
        ended_at: When it ended; `None`: something stays, or its process died. The same call goes on with it.
        counts: Rows that were deleted or redacted, by table.
        receipt: The receipt, once it has ended.
    """

    erasure_id: str
    kind: Kind
    started_at: datetime
    ended_at: datetime | None
    counts: Mapping[str, int]
    receipt: Mapping[str, Any] | None
