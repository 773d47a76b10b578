"""Result of a prune."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PruneResult:
    """The counts of rows that a prune removed, or would remove with `dry_run=True`.

    Attributes:
        threads: Threads that lost at least one row.
        checkpoints: Checkpoint rows.
        writes: Rows of pending writes, including those whose checkpoint was never stored.
        segments: Segments that no remaining checkpoint refers to.
        bytes: Stored size of the data of these rows, without PostgreSQL's per-row overhead.
        dry_run: Whether nothing was removed.
        damaged: Ids of threads that were left unchanged because one of their checkpoints is damaged.
    """

    threads: int = 0
    checkpoints: int = 0
    writes: int = 0
    segments: int = 0
    bytes: int = 0
    dry_run: bool = False
    damaged: tuple[str, ...] = ()

    def __add__(self, other: PruneResult) -> PruneResult:
        return PruneResult(
            self.threads + other.threads,
            self.checkpoints + other.checkpoints,
            self.writes + other.writes,
            self.segments + other.segments,
            self.bytes + other.bytes,
            self.dry_run or other.dry_run,
            self.damaged + other.damaged,
        )
