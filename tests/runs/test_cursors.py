"""Places of readers, without a database."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from support.queue import CODEC

from langgraph_pgstate.errors import ConfigurationError, NotFoundError
from langgraph_pgstate.runs.cursors import Cursor, ThreadCursor
from langgraph_pgstate.runs.types import StreamPage, ThreadPage, ThreadRun, WantedRuns


def test_a_reader_that_is_not_behind_waits_its_turn() -> None:
    cursor = Cursor(CODEC, "t", "r", None)
    assert cursor.is_behind
    assert [*cursor.take(StreamPage("running", None, None, None, [], False))] == []
    assert (cursor.is_behind, cursor.has_ended) == (False, False)


def page(status: str | None, last_event: int | None = None) -> StreamPage:
    return StreamPage(status, None, None, last_event, [], False)


def test_an_end_comes_after_a_gap_and_names_the_last_event() -> None:
    cursor = Cursor(CODEC, "t", "r", "3")
    found = [*cursor.take(page("success", 5))]
    assert [(event.id, event.event, event.data) for event in found] == [
        ("5", "gap", {"first": "4", "last": "5"}),
        ("5.end", "end", {"status": "success"}),
    ]
    assert cursor.has_ended
    (end,) = Cursor(CODEC, "t", "r", "3").take(page(None))
    assert end.data == {"status": "deleted"}


@pytest.mark.parametrize(
    ("last_event_id", "expected"),
    [
        ("5", ["5.error", "5.end"]),
        ("5.error", ["5.end"]),
        ("5.end", []),
        # The run was tried again since.
        ("3.end", ["5", "5.error", "5.end"]),
    ],
)
def test_no_end_comes_twice(last_event_id: str, expected: list[str]) -> None:
    cursor = Cursor(CODEC, "t", "r", last_event_id)
    assert [event.id for event in cursor.take(page("error", 5))] == expected
    assert cursor.has_ended


def test_an_end_that_was_deleted_does_not_come_twice() -> None:
    cursor = Cursor(CODEC, "t", "r", "5.end")
    assert [*cursor.take(page(None))] == []
    assert cursor.has_ended


def test_a_run_that_goes_on_after_its_end_ends_again() -> None:
    cursor = Cursor(CODEC, "t", "r", "5.end")
    assert [*cursor.take(page("running", 5))] == []
    assert [event.id for event in cursor.take(page("success", 5))] == ["5.end"]


def test_a_place_that_does_not_exist_is_refused() -> None:
    with pytest.raises(NotFoundError):
        [*Cursor(CODEC, "t", "r", None).take(page(None))]
    with pytest.raises(ConfigurationError, match="has no event 9 yet"):
        [*Cursor(CODEC, "t", "r", "9").take(page("running", 5))]
    for wrong in ("x", "r:x", "12"):
        with pytest.raises(ConfigurationError, match="last_event_id"):
            ThreadCursor(CODEC, "t", wrong)
    with pytest.raises(ConfigurationError, match="last_event_id"):
        Cursor(CODEC, "t", "r", "x")


def test_runs_of_a_thread_are_followed_until_each_end_was_reported() -> None:
    now = datetime(2026, 1, 1, tzinfo=UTC)

    def runs(status: str, ended_at: datetime | None) -> ThreadPage:
        return ThreadPage(now, [ThreadRun("r1", "graph", status, now - timedelta(minutes=5), ended_at)])

    cursor = ThreadCursor(CODEC, "t")
    assert cursor.is_behind
    assert cursor.wanted == WantedRuns("t", None, None, None)
    assert [*cursor.take(runs("running", None))] == []
    wanted: Any = cursor.wanted
    assert (wanted.thread_id, wanted.run_id) == ("t", "r1")
    ended = page("success")
    assert [found.event.event for found in cursor.take(ended)] == ["end"]
    assert [*cursor.take(runs("success", now))] == []
    assert isinstance(cursor.wanted, WantedRuns)


@pytest.mark.parametrize("given", ["r0:12", "{uuid}:12", "ffffffff-ffff-7fff-bfff-ffffffffffff:12"])
def test_after_a_run_that_was_rolled_back_come_the_runs_that_ended_since(given: str) -> None:
    now = datetime.now(UTC)
    made = int((now - timedelta(minutes=5)).timestamp() * 1000)
    is_dated = given.startswith("{")
    given = given.format(uuid=UUID(int=(made << 80) | (7 << 76) | (2 << 62)))
    times = {"earlier": -6, "first": -3, "second": -2}
    ended = [
        ThreadRun(name, "graph", "success", now + timedelta(minutes=at - 1), now + timedelta(minutes=at))
        for name, at in times.items()
    ]
    page_of_runs = ThreadPage(now, [*ended, ThreadRun("third", "graph", "running", now, None)])
    cursor, found = ThreadCursor(CODEC, "t", given), []
    for _ in range(3):
        assert [*cursor.take(page_of_runs)] == []
        if isinstance(cursor.wanted, WantedRuns):
            break
        found.append(cursor.wanted.run_id)
        if found[-1] == "third":
            break
        assert [event.event.event for event in cursor.take(page("success"))] == ["end"]
    # Other ids have no time, or a wrong one.
    assert found == (["first", "second", "third"] if is_dated else ["third"])
