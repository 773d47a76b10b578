"""Schedules: stored once by name, paused and resumed, and fired once for each tick, whoever looks and whenever."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.queue import CODEC, Queue

from langgraph_pgstate import DefaultAnswer
from langgraph_pgstate.db.protocol import read
from langgraph_pgstate.errors import (
    ArgumentTypeError,
    ConfigurationError,
    NotFoundError,
    PGStateError,
    SerializationError,
)
from langgraph_pgstate.runs.inputs import open_input
from langgraph_pgstate.runs.requests import request_run
from langgraph_pgstate.schedules import firing
from langgraph_pgstate.schedules import rows as schedules
from langgraph_pgstate.schedules.types import Schedule

HOURLY = "0 * * * *"


class Clock:
    """The schedules of a queue, and how late their ticks are."""

    def __init__(self, queue: Queue) -> None:
        self.queue = queue
        self.do = queue.do

    def put(self, name: str = "s", cron: str = HOURLY, **options: Any) -> Schedule:
        given: Any = options
        run = request_run(CODEC, "graph", {"x": 1}, **schedules.options_of_runs(given))
        request = schedules.request_schedule(name, run, given, cron=cron)
        found: Schedule = self.do(schedules.put, request)
        return found

    def get(self, name: str = "s") -> Schedule:
        found: Schedule = self.do(schedules.get_existing, name)
        return found

    def change(self, name: str = "s", **changes: Any) -> Schedule:
        found: Schedule = self.do(schedules.change, CODEC, schedules.request_changes(CODEC, name, changes))  # type: ignore[arg-type]
        return found

    def sorted(self, **filters: Any) -> tuple[Schedule, ...]:
        found: tuple[Schedule, ...] = self.do(read, schedules.list_sorted(CODEC, **filters))
        return found

    def fire(self, name: str = "s") -> list[str]:
        try:
            return [run.run_id for run in self.do(firing.fire, CODEC, name)]
        except PGStateError as error:
            self.do(firing.set_error, name, str(error))
            raise

    def due(self) -> list[str]:
        found: list[str] = self.do(firing.find_due)
        return found

    def make_due(self, name: str = "s", ago: timedelta = timedelta(seconds=1)) -> datetime:
        """Let the next tick be one that came some time ago; the tick."""
        ((tick,),) = self.queue.execute(
            "UPDATE {}.schedules SET next_at = date_trunc('second', now()) - %s WHERE name = %s RETURNING next_at",
            ago,
            name,
        )
        assert isinstance(tick, datetime)
        return tick

    def ticks(self) -> list[datetime]:
        """The ticks that have runs, by what the runs are told."""
        rows = self.queue.execute("SELECT data FROM {}.run_requests ORDER BY run_id")
        told = (open_input(CODEC, data).metadata["scheduled_at"] for (data,) in rows)
        return sorted(datetime.fromisoformat(text) for text in told)


@pytest.fixture
def clock(connection: psycopg.Connection, schema: str) -> Clock:
    return Clock(Queue(connection, schema))


@pytest.fixture
def other(dsn: str, schema: str) -> Iterator[Clock]:
    with psycopg.connect(dsn, autocommit=True) as connection:
        yield Clock(Queue(connection, schema, "other"))


def test_a_tick_enqueues_a_run_that_knows_it(clock: Clock) -> None:
    made = clock.put(
        cron="30 9 * * *", timezone="Europe/Prague", priority=3, metadata={"a": 1}, config={"metadata": {"b": 2}}
    )
    assert made.next_at is not None
    assert made.next_at == made.next_ticks[0] > datetime.now(UTC)
    assert len(made.next_ticks) == 5
    assert clock.due() == clock.fire() == []
    tick = clock.make_due()
    assert clock.due() == ["s"]
    (run_id,) = clock.fire()
    assert clock.due() == clock.fire() == []
    run = clock.queue.claim_one()
    assert (run.run_id, run.thread_id) == (run_id, run_id)
    request = open_input(CODEC, run.data)
    assert (request.input, request.config) == ({"x": 1}, {"metadata": {"b": 2}})
    at = datetime.fromisoformat(request.metadata["scheduled_at"])
    assert request.metadata == {"a": 1, "schedule": "s", "scheduled_at": at.isoformat()}
    assert at == tick
    assert at.utcoffset() in (timedelta(hours=1), timedelta(hours=2))
    found = clock.get()
    assert (found.last_at, found.last_run_id, found.last_thread_id) == (tick, run_id, run_id)
    assert (found.next_at, found.last_error) == (made.next_at, None)
    assert clock.queue.execute("SELECT priority FROM {}.queue") == [(3,)]


def test_a_tick_that_was_fired_is_not_fired_again_by_a_clock_that_goes_back(clock: Clock) -> None:
    """The run's id is that of the tick."""
    clock.put()
    tick = clock.make_due()
    clock.fire()
    clock.queue.execute("UPDATE {}.schedules SET next_at = %s", tick)
    clock.fire()
    assert clock.ticks() == [tick]


def test_putting_it_again_keeps_its_next_tick_and_its_pause(clock: Clock) -> None:
    """As an application does at each of its starts: what it missed meanwhile is still due."""
    first = clock.put()
    tick = clock.make_due()
    again = clock.put(queue="other", priority=1)
    assert (again.next_at, again.queue, again.created_at) == (tick, "other", first.created_at)
    assert again.updated_at > first.updated_at
    moved = clock.put(cron="30 * * * *")
    assert moved.next_at is not None
    assert (moved.next_at.minute, moved.next_at > tick) == (30, True)
    assert clock.put(timezone="Asia/Kathmandu", cron="30 * * * *").next_at != moved.next_at
    clock.do(schedules.pause, "s")
    assert clock.put(cron="10 * * * *").next_at is None
    assert len(clock.do(read, schedules.list_schedules()).items) == 1


def test_a_paused_schedule_does_not_tick_and_goes_on_from_now(clock: Clock) -> None:
    first = clock.put(missed="all")
    clock.make_due(ago=timedelta(days=3))
    paused = clock.do(schedules.pause, "s")
    assert (paused.next_at, paused.next_ticks) == (None, ())
    assert clock.due() == clock.fire() == []
    assert clock.do(schedules.resume, "s").next_at == first.next_at
    # Of one that is not paused nothing is changed.
    tick = clock.make_due()
    assert clock.do(schedules.resume, "s").next_at == tick


def test_a_schedule_ends(clock: Clock) -> None:
    """It is not paused: a later end lets it go on."""
    now = datetime.now(UTC)
    first = clock.put()
    assert len(clock.put(end_at=first.next_ticks[1]).next_ticks) == 2
    tick = clock.make_due()
    clock.queue.execute("UPDATE {}.schedules SET end_at = next_at")
    assert len(clock.fire()) == 1
    found = clock.get()
    assert (found.next_at, found.is_paused, found.last_at) == (None, False, tick)
    assert clock.due() == []
    assert clock.change(end_at=now - timedelta(days=1)).next_at is None
    assert clock.change(end_at=now + timedelta(days=1)).next_at == first.next_at
    assert clock.put(end_at=now - timedelta(days=1)).next_at is None
    assert clock.put().next_at == first.next_at


@pytest.mark.parametrize("missed", ["once", "all"])
def test_ticks_after_the_end_that_were_missed_are_not_made_up_for(missed: str, clock: Clock) -> None:
    clock.put(missed=missed, cron="* * * * *")
    tick = clock.make_due(ago=timedelta(minutes=5))
    clock.queue.execute("UPDATE {}.schedules SET end_at = %s", tick)
    assert len(clock.fire()) == 1
    assert clock.ticks() == [tick]


def test_a_schedule_is_changed_in_parts(clock: Clock) -> None:
    made = clock.put(metadata={"a": 1}, priority=3, context={"c": 1}, max_attempts=2, missed="once")
    assert clock.change(context={"c": 2}).next_at == made.next_at
    changed = clock.change(cron="30 * * * *", metadata={"b": 2}, priority=4, paused=True)
    assert (changed.next_at, changed.is_paused, changed.metadata, changed.missed) == (
        None,
        True,
        {"a": 1, "b": 2},
        "once",
    )
    going = clock.change(paused=False, input={"x": 2})
    assert going.next_at is not None
    assert going.next_at.minute == 30
    clock.make_due()
    clock.fire()
    run = clock.queue.claim_one()
    request = open_input(CODEC, run.data)
    assert (request.input, request.context, run.options["max_attempts"]) == ({"x": 2}, {"c": 2}, 2)
    assert request.metadata == {"a": 1, "b": 2, "schedule": "s", "scheduled_at": request.metadata["scheduled_at"]}
    assert clock.queue.execute("SELECT priority, graph FROM {}.queue") == [(4, "graph")]
    with pytest.raises(NotFoundError):
        clock.change("other", paused=True)
    for refused in ({"thread_id": "t"}, {"cron": "nonsense"}, {"timezone": "Mars"}, {"run_id": "r"}, {"nonsense": 1}):
        with pytest.raises(ConfigurationError):
            clock.change(**refused)


def test_what_a_caller_may_not_see_is_neither_found_nor_changed(clock: Clock) -> None:
    for name, owner in (("a", "eve"), ("b", "adam"), ("c", "eve")):
        clock.put(name, metadata={"owner": owner, "name": name}, thread_id=name)
    scope = {"owner": "eve"}
    assert [one.name for one in clock.sorted(scope=scope, by="name", ascending=True)] == ["a", "c"]
    assert [one.name for one in clock.sorted(by="name")] == ["c", "b", "a"]
    assert [one.name for one in clock.sorted(limit=1, offset=1)] == ["b"]
    assert clock.sorted(scope=scope, name="b") == clock.sorted(scope=scope, metadata={"owner": "adam"}) == ()
    assert [one.name for one in clock.sorted(thread_id="b")] == ["b"]
    assert clock.do(read, schedules.count(scope=scope)) == 2
    assert clock.do(read, schedules.count(paused=True)) == 0
    with pytest.raises(NotFoundError):
        clock.change("b", paused=True, scope=scope)
    assert not clock.do(schedules.delete, "b", ['{"owner": "eve"}'])
    assert clock.do(schedules.delete, "a", ['{"owner": "eve"}'])
    found = clock.sorted(name="b")[0]
    assert found.arguments is not None
    assert (found.arguments["input"], found.arguments["metadata"]["name"]) == ({"x": 1}, "b")
    with pytest.raises(ConfigurationError, match="by must be one of"):
        schedules.list_sorted(CODEC, by="data")  # type: ignore[arg-type]


def test_schedules_are_listed_by_name_and_deleted(clock: Clock) -> None:
    for name in ("b", "a", "č", "B"):
        clock.put(name)
    first = clock.do(read, schedules.list_schedules(limit=3))
    rest = clock.do(read, schedules.list_schedules(limit=3, cursor=first.next))
    assert [one.name for one in (*first.items, *rest.items)] == ["B", "a", "b", "č"]
    assert rest.next is None
    assert clock.do(read, schedules.list_schedules(graph="other")).items == ()
    clock.make_due("a")
    assert [clock.do(schedules.delete, "a") for _ in range(2)] == [True, False]
    assert clock.do(schedules.get, "a") is None
    assert clock.fire("a") == []
    for missing in (schedules.pause, schedules.resume):
        with pytest.raises(NotFoundError, match="no schedule 'a'"):
            clock.do(missing, "a")
    with pytest.raises(NotFoundError, match="no schedule 'a'"):
        clock.do(firing.trigger, CODEC, "a", "r")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"name": ""}, "name"),
        ({"cron": "nonsense"}, "it has 1 fields"),
        # It would be parsed for minutes, on the event loop of a server.
        ({"cron": "0-59," * 300 + "0 * * * *"}, "got 1,509"),
        # One that is stored, but cannot be read, would fail whoever lists schedules.
        ({"end_at": datetime.fromisoformat("9999-12-31T23:59:59-14:00")}, "years 2 to 9998"),
        ({"end_at": datetime.fromisoformat("0001-01-01T00:00:00+14:00")}, "years 2 to 9998"),
        ({"timezone": "Mars/Olympus"}, "timezone must be"),
        ({"missed": "some"}, "'skip', 'once', 'all'"),
        ({"run_id": "r"}, "run_id must not be given"),
        ({"run_after": timedelta(1)}, "run_after must not be given"),
        ({"priority": "high"}, "priority"),
        ({"nonsense": 1}, "must not have 'nonsense'"),
        ({"default_answer": "deny"}, "DefaultAnswer"),
    ],
)
def test_what_cannot_be_scheduled_is_refused_at_once(options: dict[str, Any], message: str, clock: Clock) -> None:
    with pytest.raises(ConfigurationError, match=message):
        clock.put(**options)
    assert clock.do(read, schedules.list_schedules()).items == ()


def test_values_that_cannot_be_stored_are_named(clock: Clock) -> None:
    with pytest.raises(SerializationError, match="context"):
        clock.put(context=lambda: None)
    with pytest.raises(ConfigurationError, match="after must be"):
        DefaultAnswer("deny", timedelta(0))
    with pytest.raises(ConfigurationError, match="None"):
        DefaultAnswer(None, timedelta(1))
    with pytest.raises(ArgumentTypeError):
        clock.put(timezone=7)


@pytest.mark.slow
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    steps=st.lists(st.tuples(st.integers(1, 150), st.sampled_from(["fire", "other", "both", "pause", "put", "none"])))
)
def test_however_it_is_polled_paused_and_put_each_tick_has_one_run(
    steps: list[tuple[int, str]], clock: Clock, other: Clock
) -> None:
    """Time passes by moving the next tick, and all that was fired, back."""
    clock.queue.execute("DELETE FROM {}.schedules")
    for table in ("queue", "run_requests", "runs"):
        clock.queue.execute(f"DELETE FROM {{}}.{table}")
    clock.put(cron="* * * * *", missed="all")
    expected: set[datetime] = set()
    for minutes, step in steps:
        ((now, next_at),) = clock.queue.execute(
            "UPDATE {}.schedules SET next_at = date_trunc('minute', now()) - make_interval(mins => %s)"
            " RETURNING date_trunc('minute', now()), next_at",
            minutes % 7,
        )
        if step in ("fire", "other", "both"):
            found = [one.fire() for one in {"fire": [clock], "other": [other], "both": [clock, other]}[step]]
            assert all(not late for late in found[1:])
            while next_at <= now:
                expected.add(next_at)
                next_at += timedelta(minutes=1)
        elif step == "put":
            clock.put(cron="* * * * *", missed="all")
        elif step == "pause":
            clock.do(schedules.pause, "s")
            assert clock.fire() == []
            clock.do(schedules.resume, "s")
            assert clock.fire() == []
    found_ticks = clock.ticks()
    assert len(found_ticks) == len(set(found_ticks))
    # A minute may have passed while it fired.
    assert expected <= set(found_ticks)
    assert len(set(found_ticks) - expected) <= 1


def test_who_pauses_resumes_and_triggers_is_an_event(clock: Clock) -> None:
    clock.put()
    # Of several persons, the first has an event.
    for person in ("eve", "adam"):
        clock.do(schedules.pause, "s", person)
    for person in ("adam", "eve"):
        clock.do(schedules.resume, "s", person)
    run = clock.do(firing.trigger, CODEC, "s", "run-1", "eve")
    with pytest.raises(NotFoundError):
        clock.do(schedules.pause, "nothing", "eve")
    found = clock.queue.execute(
        "SELECT thread_id, payload ->> 'action', run_id, payload ->> 'by' FROM {}.events ORDER BY event_id"
    )
    assert found[:2] == [
        ("schedule:s", "pause", None, "eve"),
        ("schedule:s", "resume", None, "adam"),
    ]
    assert {*found[2:]} == {
        (run.thread_id, "trigger", "run-1", "eve"),
        ("schedule:s", "trigger", "run-1", "eve"),
    }
