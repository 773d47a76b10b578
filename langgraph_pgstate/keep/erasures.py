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
