"""What a list shares with its predecessor: pieces that cover it exactly, few of them, and no merge for ever."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from langgraph_pgstate.checkpoints.planning import MERGE_AT, SEGMENT_BYTES, Fresh, diff_runs
from langgraph_pgstate.codec.messages import DIGEST_SIZE
from langgraph_pgstate.codec.states import Run
from tests.codec.test_values import QUICK

pytestmark = [pytest.mark.smoke, pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")]


# Lists.


@st.composite
def known_list(draw: st.DrawFn) -> tuple[tuple[Run, ...], bytes]:
    """A stored list: runs over segments, and fingerprints drawn from few, so that elements repeat."""
    counts = draw(st.lists(st.integers(1, 12), max_size=20))
    runs = tuple(
        Run(draw(st.integers(1, 4)) * 1000 + number, draw(st.integers(0, 3)), count, count * draw(st.integers(0, 9000)))
        for number, count in enumerate(counts)
    )
    marks = draw(st.lists(st.integers(0, 30), min_size=sum(counts), max_size=sum(counts)))
    return runs, digests_of(marks)


def pieces_of(runs: tuple[Run, ...], old: bytes | None, digests: bytes) -> list[Run | Fresh]:
    """A list as `diff_runs` covers it, from its first element on."""
    kept, rest = diff_runs(runs, old, digests)
    return [*runs[:kept], *rest]


def digests_of(marks: list[int]) -> bytes:
    return b"".join(mark.to_bytes(DIGEST_SIZE, "big") for mark in marks)


def places_of(runs: tuple[Run, ...], digests: bytes) -> dict[tuple[int, int], bytes]:
    places = [(run.segment_id, run.first + offset) for run in runs for offset in range(run.count)]
    return {place: digests[at * DIGEST_SIZE : (at + 1) * DIGEST_SIZE] for at, place in enumerate(places)}


@QUICK
@given(known_list(), st.one_of(st.lists(st.integers(0, 40), max_size=60), st.none()), st.lists(st.integers(0, 99)))
def test_an_arrangement_covers_the_list_exactly(
    known: tuple[tuple[Run, ...], bytes], marks: list[int] | None, appended: list[int]
) -> None:
    """Pieces in order are the list: each run's elements have the fingerprints asked for, the rest is to be written."""
    runs, old = known
    digests = (old if marks is None else digests_of(marks)) + digests_of(appended)
    places = places_of(runs, old)
    at = 0
    for piece in pieces_of(runs, old, digests):
        assert piece.count > 0
        if isinstance(piece, Fresh):
            assert piece.start == at
        else:
            for offset in range(piece.count):
                wanted = digests[(at + offset) * DIGEST_SIZE : (at + offset + 1) * DIGEST_SIZE]
                assert places[piece.segment_id, piece.first + offset] == wanted
        at += piece.count
    assert at * DIGEST_SIZE == len(digests)


def test_nothing_known_means_everything_is_written() -> None:
    """A cold cache costs bytes, not truth."""
    assert diff_runs((Run(1, 0, 3),), None, digests_of([1, 2, 3])) == (0, [Fresh(0, 3)])
    assert diff_runs((), b"", b"") == (0, [])


def test_an_unchanged_list_writes_nothing() -> None:
    """Also when some of its elements are equal."""
    runs = (Run(1, 0, 3, 30), Run(2, 5, 2, 20))
    assert diff_runs(runs, digests_of([1, 1, 2, 1, 1]), digests_of([1, 1, 2, 1, 1])) == (2, [])


def grow(steps: int, size: int, at_once: int = 1) -> tuple[int, int, int]:
    """Append to a list so often; how many runs it has at most, elements written in all, and its length."""
    ids = iter(range(10**9))
    runs: tuple[Run, ...] = ()
    digests = b""
    most = written = 0
    for step in range(steps):
        longer = digests + digests_of([*range(step * at_once, (step + 1) * at_once)])
        new: list[Run] = []
        for piece in pieces_of(runs, digests, longer):
            if isinstance(piece, Fresh):
                written += piece.count
                new.append(Run(next(ids), 0, piece.count, piece.count * size))
            else:
                new.append(piece)
        runs, digests = tuple(new), longer
        most = max(most, len(runs))
    return most, written, steps * at_once


@pytest.mark.parametrize("at_once", [1, 2, 3])
def test_a_long_conversation_is_read_from_few_segments(at_once: int) -> None:
    """Appends of small messages leave a few dozen runs at any time, and write each message a few times at most."""
    most, written, length = grow(1000, 600, at_once)
    assert most <= MERGE_AT + length // MERGE_AT
    assert written <= 7 * length


def test_large_elements_are_not_merged_for_ever() -> None:
    """Elements larger than a segment are written once."""
    _, written, length = grow(200, 100_000)
    assert written == length


def test_a_merge_waits_for_enough_small_runs() -> None:
    """One run fewer than the threshold stays as it is."""
    runs = tuple(Run(number, 0, 1, 10) for number in range(MERGE_AT - 2))
    old = digests_of([*range(MERGE_AT - 2)])
    assert diff_runs(runs, old, old + digests_of([99])) == (len(runs), [Fresh(MERGE_AT - 2, MERGE_AT - 1)])
    runs += (Run(50, 0, 1, 10),)
    old += digests_of([50])
    assert diff_runs(runs, old, old + digests_of([99])) == (0, [Fresh(0, MERGE_AT)])
    # What is many by itself is left alone, and leaves alone.
    many = digests_of([*range(100, 100 + MERGE_AT)])
    assert diff_runs(runs, old, old + many) == (len(runs), [Fresh(MERGE_AT - 1, 2 * MERGE_AT - 1)])
    # An edit at the beginning makes of the first run a fresh element; with one more there are enough.
    edited = digests_of([98]) + old[DIGEST_SIZE:]
    assert diff_runs(runs, old, edited) == (0, [Fresh(0, 1), *runs[1:]])
    assert diff_runs(runs, old, edited + digests_of([99])) == (0, [Fresh(0, MERGE_AT)])


def test_a_merge_waits_for_enough_bytes() -> None:
    """Few runs, each just small enough to be merged, are so when they are a segment's worth together."""
    large, small = Run(1, 0, 3, SEGMENT_BYTES), [Run(number, 0, 1, SEGMENT_BYTES // 8 - 1) for number in range(2, 11)]
    for count, expected in ((8, (9, [Fresh(11, 12)])), (9, (1, [Fresh(3, 13)]))):
        old = digests_of([*range(3 + count)])
        assert diff_runs((large, *small[:count]), old, old + digests_of([99])) == expected
