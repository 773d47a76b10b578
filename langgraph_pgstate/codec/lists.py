"""What of a list is new: a list as runs of elements that segments already hold, and elements still to be written.

The decisions here are pure; fingerprints come in, runs go out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from langgraph_pgstate.codec.messages import DIGEST_SIZE

# When this many small trailing runs have gathered they are written again as one, so that a list of 1,000 messages is
# read from about four dozen segments instead of 1,000. Merging at 8 and at 64 halved the reads for a third more WAL.
MERGE_AT: Final = 64
# A segment is read whole even when one of its elements is wanted.
SEGMENT_BYTES: Final = 64 * 1024
# A run of this size is worth a reference of its own.
_SMALL_BYTES: Final = SEGMENT_BYTES // 8
# A list in more runs than this (edits and removals split them) is written afresh.
_MAX_RUNS: Final = 128
_MAX_RUNS_SHARE: Final = 24


@dataclass(frozen=True, slots=True)
class Run:
    """Consecutive elements held by one segment.

    Attributes:
        segment_id: The segment.
        first: Index of the run's first element in the segment.
        count: Number of elements.
        size: Their encoded bytes, roughly; 0 when unknown.
    """

    segment_id: int
    first: int
    count: int
    size: int = 0


@dataclass(frozen=True, slots=True)
class Fresh:
    """Consecutive elements of the list that are to be written: `[start, stop)`."""

    start: int
    stop: int

    @property
    def count(self) -> int:
        """Number of elements."""
        return self.stop - self.start


Piece = Run | Fresh


def arrange(old_runs: tuple[Run, ...], old_digests: bytes | None, digests: bytes) -> list[Piece]:
    """Cover a list by runs of an earlier one and fresh elements.

    Args:
        old_runs: Where the earlier list's elements are.
        old_digests: Their fingerprints; `None` if they are not known.
        digests: The fingerprints of the list to store.

    Returns:
        Pieces in order, which together are exactly the list.
    """
    count = len(digests) // DIGEST_SIZE
    if old_digests is None or not old_digests:
        return [Fresh(0, count)] if count else []
    if digests.startswith(old_digests):
        old_count = len(old_digests) // DIGEST_SIZE
        pieces: list[Piece] = list(old_runs)
        if count > old_count:
            pieces.append(Fresh(old_count, count))
    else:
        pieces = _match(old_runs, old_digests, digests)
        if sum(isinstance(piece, Run) for piece in pieces) > max(_MAX_RUNS, count // _MAX_RUNS_SHARE):
            return [Fresh(0, count)]
    return _merge(pieces)


def _match(old_runs: tuple[Run, ...], old_digests: bytes, digests: bytes) -> list[Piece]:
    """Find each element in the earlier list, preferring the one after the last that was found."""
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
    """Fuse the small pieces at the end into one to be written, once they are many or large together."""
    tail = 0
    size = 0
    for piece in reversed(pieces):
        piece_size = piece.size if isinstance(piece, Run) else 0
        if piece.count >= MERGE_AT or piece_size >= _SMALL_BYTES:
            break
        tail += 1
        size += piece_size
    if tail < MERGE_AT and size < SEGMENT_BYTES:
        return pieces
    stop = sum(piece.count for piece in pieces)
    start = stop - sum(piece.count for piece in pieces[-tail:])
    return [*pieces[:-tail], Fresh(start, stop)]
