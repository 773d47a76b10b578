"""The difference between two versions of a list: runs of elements that segments already hold, and new elements.

The functions are pure: they take fingerprints and return runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

from langgraph_pgstate.codec.messages import DIGEST_SIZE

# If a list ends in this many small runs, these runs are stored again as one. Otherwise a read would need many segments.
MERGE_AT: Final = 64
# Size at which a new segment is full. A small size is good, because reading one element reads the whole segment.
SEGMENT_BYTES: Final = 64 * 1024
# A run of this size is not merged with other runs.
_SMALL_BYTES: Final = SEGMENT_BYTES // 8
# If edits and removals split a list into more runs than this, the list is stored again in full.
_MAX_RUNS: Final = 128
_MAX_RUNS_SHARE: Final = 24


@dataclass(frozen=True, slots=True)
class Run:
    """Consecutive elements held by one segment.

    Attributes:
        segment_id: Id of the segment.
        first: Index of the run's first element in the segment.
        count: Number of elements.
        size: Approximate encoded size of the elements in bytes; 0 if unknown.
    """

    segment_id: int
    first: int
    count: int
    size: int = 0


@dataclass(frozen=True, slots=True)
class Fresh:
    """Consecutive elements `[start, stop)` of the list that are not stored yet."""

    start: int
    stop: int
    size: ClassVar[int] = 0

    @property
    def count(self) -> int:
        """Number of elements."""
        return self.stop - self.start


Piece = Run | Fresh


def diff_runs(old_runs: Sequence[Run], old_digests: bytes | None, digests: bytes) -> tuple[int, list[Piece]]:
    """Return runs of an earlier list and new elements that together make up the list to store.

    Returns:
        The number of leading runs of the earlier list to keep, and pieces for the remaining elements, in order.
    """
    count = len(digests) // DIGEST_SIZE
    if not old_digests:
        return 0, [Fresh(0, count)] if count else []
    if not digests.startswith(old_digests):
        pieces = _match(old_runs, old_digests, digests)
        if sum(isinstance(piece, Run) for piece in pieces) > max(_MAX_RUNS, count // _MAX_RUNS_SHARE):
            return 0, [Fresh(0, count)]
        return 0, _merge(pieces)
    old_count = len(old_digests) // DIGEST_SIZE
    if count == old_count:
        return len(old_runs), []
    tail, size = _small_tail(old_runs)
    if count - old_count < MERGE_AT and (tail + 1 >= MERGE_AT or size >= SEGMENT_BYTES):
        kept = len(old_runs) - tail
        return kept, [Fresh(sum(run.count for run in old_runs[:kept]), count)]
    return len(old_runs), [Fresh(old_count, count)]


def _match(old_runs: Sequence[Run], old_digests: bytes, digests: bytes) -> list[Piece]:
    """Return a list as pieces: runs of elements of the earlier list, and new elements.

    Among equal elements of the earlier list, prefer the element after the previous match, or else the first.
    """
    places: dict[bytes, int] = {}
    old = [old_digests[at : at + DIGEST_SIZE] for at in range(0, len(old_digests), DIGEST_SIZE)]
    for index in range(len(old) - 1, -1, -1):
        places[old[index]] = index
    homes = [(run, run.first + offset) for run in old_runs for offset in range(run.count)]
    pieces: list[Piece] = []
    expected = 0
    for index in range(len(digests) // DIGEST_SIZE):
        digest = digests[index * DIGEST_SIZE : (index + 1) * DIGEST_SIZE]
        place = expected if expected < len(old) and old[expected] == digest else places.get(digest)
        last = pieces[-1] if pieces else None
        if place is None:
            if isinstance(last, Fresh):
                pieces[-1] = Fresh(last.start, index + 1)
            else:
                pieces.append(Fresh(index, index + 1))
            continue
        expected = place + 1
        run, position = homes[place]
        size = run.size // run.count
        if isinstance(last, Run) and last.segment_id == run.segment_id and last.first + last.count == position:
            pieces[-1] = Run(last.segment_id, last.first, last.count + 1, last.size + size)
        else:
            pieces.append(Run(run.segment_id, position, 1, size))
    return pieces


def _merge(pieces: list[Piece]) -> list[Piece]:
    """Replace the small pieces at the end by one new piece, if their number or total size reaches a limit."""
    tail, size = _small_tail(pieces)
    if tail < MERGE_AT and size < SEGMENT_BYTES:
        return pieces
    stop = sum(piece.count for piece in pieces)
    start = stop - sum(piece.count for piece in pieces[-tail:])
    return [*pieces[:-tail], Fresh(start, stop)]


def _small_tail(pieces: Sequence[Piece]) -> tuple[int, int]:
    """Return the number of small pieces at the end, and their total size in bytes."""
    tail = 0
    total = 0
    for piece in reversed(pieces):
        size = piece.size
        if size >= _SMALL_BYTES or piece.count >= MERGE_AT:
            break
        tail += 1
        total += size
    return tail, total
