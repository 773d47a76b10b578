"""Result of a prune."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PruneResult:
    """What a prune removed, or would remove with `dry_run=True`.

    Attributes:
        threads: Threads of which at least one row went.
        checkpoints: Checkpoint rows.
        writes: Rows of pending writes, those whose checkpoint never came among them.
        segments: Segments that no surviving checkpoint refers to.
        bytes: Stored size of those rows' data, before PostgreSQL's own overhead.
        dry_run: Whether nothing was changed.
        damaged: Ids of threads that were left as they are, because a checkpoint of theirs is damaged.
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
