"""Times, numbers and ids as texts."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest

from langgraph_pgstate.inspector import formatting

NOW = datetime(2027, 1, 31, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("age", "text"),
    [
        (timedelta(seconds=2), "now"),
        (timedelta(seconds=-2), "now"),
        (timedelta(seconds=59), "59 s ago"),
        (timedelta(seconds=61), "1 min ago"),
        (timedelta(hours=25), "1 d ago"),
        (timedelta(days=800), "2 y ago"),
        (timedelta(hours=-2), "in 2 h"),
    ],
)
def test_ages(age: timedelta, text: str) -> None:
    assert formatting.ago(NOW - age, NOW) == text


def test_exact_times_are_in_utc() -> None:
    assert formatting.exact(datetime.fromisoformat("2027-01-31T13:00:00.123456+01:00")) == "2027-01-31 12:00:00.123 UTC"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, ""),
        (0.0123, "12.3 ms"),
        (0.9999, "1 s"),
        (4.05, "4.05 s"),
        (timedelta(seconds=90), "1 min 30 s"),
        (119.6, "2 min"),
        (7500, "2 h 5 min"),
        (7200, "2 h"),
    ],
)
def test_durations(value: Any, text: str) -> None:
    assert formatting.duration(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, ""),
        (Decimal(0), "0.00"),
        (Decimal("1234.5"), "1,234.50"),
        (Decimal("0.00012345"), "0.000123"),
        (Decimal("0.0405"), "0.0405"),
        (0.5, "0.50"),
    ],
)
def test_amounts(value: Any, text: str) -> None:
    assert formatting.money(value) == text


@pytest.mark.parametrize(
    ("value", "text"), [(None, ""), (812, "812 B"), (4096, "4.1 KB"), (5_200_000, "5.2 MB"), (7 * 10**12, "7,000.0 GB")]
)
def test_sizes(value: int | None, text: str) -> None:
    assert formatting.size(value) == text


def test_counts_and_ids() -> None:
    assert formatting.plural(1, "thread") == "1 thread"
    assert formatting.plural(2000, "thread") == "2,000 threads"
    assert formatting.plural(2, "entry", "entries") == "2 entries"
    assert (formatting.number(None), formatting.number(12345)) == ("", "12,345")
    assert (formatting.short(None), formatting.short("abc")) == ("", "abc")
    assert formatting.short("1f0aaaaa-0000-6000-8000-123456789abc") == "…123456789abc"


def test_texts_are_cut_to_one_line() -> None:
    assert formatting.cut("a\n b  c", 10) == "a b c"
    assert formatting.cut("x" * 10, 10) == "x" * 10
    assert formatting.cut("x" * 11, 10) == "x" * 9 + "…"
    assert len(formatting.cut("y " * 10**6, 10)) <= 10


def test_texts_of_persons_do_not_turn_what_is_around_them() -> None:
    assert formatting.clipped("שלום <b>", 20) == "<bdi>שלום &lt;b&gt;</bdi>"


def test_workers_are_named_by_host_and_process() -> None:
    id = f"build-7/{'b' * 36}/4026531836/1234/99887/{'c' * 32}:1"
    assert formatting.worker(id) == "build-7:1234"
    assert formatting.worker("gpu-worker-7") == "gpu-worker-7"
    assert formatting.worker("a-long-name-of-a-host.example.internal-0042") == "a-long-name-of-…le.internal-0042"
    assert len(formatting.worker("x" * 200)) == 32


def test_folded_values_show_what_they_begin_with() -> None:
    assert formatting.peek({"a": None, "b": 1, "c": "x", "d": True, "e": 2}) == "b: 1, c: x, d: True"
    assert formatting.peek(["a", [], 2.5]) == "a, 2.5"
    assert len(formatting.peek(["x" * 10**6])) == 160
