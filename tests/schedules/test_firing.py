"""Runs of schedules: one for each tick, whoever looks, and however its thread is."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from functools import partial

import psycopg
import pytest
from support import examples, holding, run_children
from support.queue import CODEC, Queue

from langgraph_pgstate import PGStateSaver
from langgraph_pgstate.errors import ConfigurationError
from langgraph_pgstate.schedules import firing
from langgraph_pgstate.schedules import rows as schedules
from langgraph_pgstate.schedules.ticks import MOST_MISSED
from tests.schedules.test_rows import Clock, clock, other

__all__ = ["clock", "other"]


def test_the_runs_of_one_thread_follow_each_other(clock: Clock) -> None:
    clock.put(thread_id="t")
    for minutes in (3, 2):
        clock.make_due(ago=timedelta(seconds=minutes))
        clock.fire()
    assert [(row[0], row[3]) for row in clock.queue.rows()] == [("t", True), ("t", False)]
    assert clock.put(config={"configurable": {"thread_id": 7}}).thread_id == "7"


def test_a_tick_whose_acknowledgement_was_lost_is_fired_once(clock: Clock) -> None:
    clock.put()
    clock.make_due()
    assert len(clock.fire()) == 1
    assert clock.fire() == []
    assert len(clock.queue.rows()) == 1


@pytest.mark.parametrize(("missed", "runs"), [("skip", 0), ("once", 1), ("all", 3)])
def test_missed_ticks_are_skipped_or_made_up_for(missed: str, runs: int, clock: Clock) -> None:
    clock.put(missed=missed, cron="0 0 * * *")
    midnight = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    if datetime.now(UTC) - midnight < timedelta(minutes=5):
        pytest.skip("the newest tick is not missed yet")
    clock.queue.execute("UPDATE {}.schedules SET next_at = %s", midnight - timedelta(days=2))
    assert len(clock.fire()) == runs
    assert clock.ticks() == [midnight - timedelta(days=days) for days in (2, 1, 0)][3 - runs :]
    found = clock.get()
    assert (found.next_at, found.last_at) == (midnight + timedelta(days=1), midnight if runs else None)


def test_years_of_ticks_become_a_hundred_runs(clock: Clock) -> None:
    clock.put(missed="all", cron="* * * * *")
    clock.make_due(ago=timedelta(days=1000))
    assert len(clock.fire()) == MOST_MISSED
    ticks = clock.ticks()
    assert ticks[-1] - ticks[0] == timedelta(minutes=MOST_MISSED - 1)
    assert datetime.now(UTC) - ticks[-1] < timedelta(minutes=2)


def test_a_new_thread_has_the_metadata_of_the_schedule(clock: Clock) -> None:
    clock.put(metadata={"owner": "eve"}, thread_ttl=timedelta(hours=1), config={"configurable": {"user_id": "eve"}})
    clock.make_due()
    (fired,) = clock.fire()
    clock.do(firing.trigger, CODEC, "s", "r1")
    rows = clock.queue.execute("SELECT thread_id, metadata, user_id, status, ttl FROM {}.threads ORDER BY thread_id")
    metadata = {"owner": "eve"}
    assert sorted(rows) == sorted((id, metadata, "eve", "busy", timedelta(hours=1)) for id in (fired, "r1"))


def test_a_schedule_is_triggered_without_its_ticks(clock: Clock) -> None:
    clock.put(thread_id="t")
    before = clock.do(schedules.pause, "s")
    run = clock.do(firing.trigger, CODEC, "s", "r1")
    assert (run.thread_id, run.run_id, run.is_new) == ("t", "r1", True)
    assert not clock.do(firing.trigger, CODEC, "s", "r1").is_new
    assert clock.get() == before
    (at,) = clock.ticks()
    assert abs(at - datetime.now(UTC)) < timedelta(minutes=1)


def test_a_refused_run_is_told_and_holds_up_no_tick(clock: Clock) -> None:
    clock.put(thread_id="t", multitask_strategy="reject")
    clock.queue.add("t")
    tick = clock.make_due()
    assert clock.fire() == []
    found = clock.get()
    assert "busy" in str(found.last_error) or "another run" in str(found.last_error)
    assert (found.last_at, found.last_run_id) == (tick, None)
    assert found.next_at is not None
    assert found.next_at > tick
    clock.queue.finish(clock.queue.claim_one())
    tick = clock.make_due()
    assert len(clock.fire()) == 1
    assert (clock.get().last_error, clock.get().last_at) == (None, tick)


@pytest.mark.parametrize("strategy", ["interrupt", "rollback"])
def test_a_tick_supersedes_the_run_before_it(strategy: str, clock: Clock) -> None:
    clock.put(thread_id="t", multitask_strategy=strategy, missed="all", cron="* * * * *")
    clock.make_due(ago=timedelta(minutes=3))
    runs = clock.fire()
    assert len(runs) >= 3
    assert [row[1:3] for row in clock.queue.rows()] == [(runs[-1], "pending")]
    clock.queue.check()


def test_a_deleted_thread_is_told(clock: Clock) -> None:
    clock.put(thread_id="t")
    saver = PGStateSaver(clock.queue.connection, schema=clock.queue.schema, tombstones_for=timedelta(days=1))
    saver.delete_thread("t")
    clock.make_due()
    assert clock.fire() == []
    assert "deleted" in str(clock.get().last_error)
    clock.queue.check()


def test_damaged_requests_are_told(clock: Clock) -> None:
    clock.put()
    clock.queue.execute("UPDATE {}.schedules SET data = 'nonsense'")
    clock.make_due()
    assert clock.fire() == []
    assert clock.get().last_error
    assert clock.due() == []


def test_a_locked_thread_or_schedule_is_left_for_later(dsn: str, clock: Clock) -> None:
    """A caller's transaction may last for ever: the control thread of a worker does not wait for it."""
    schema = clock.queue.schema
    clock.put(thread_id="t")
    clock.queue.add("t")
    clock.make_due()
    began = time.monotonic()
    for table in ("threads", "schedules"):
        with holding(dsn, f"SELECT 1 FROM {schema}.{table} FOR UPDATE"):
            assert clock.fire() == []
    # The thread is being made by another.
    clock.put("new", thread_id="new")
    clock.make_due("new")
    with psycopg.connect(dsn) as mine:
        mine.execute("SELECT 1")
        Queue(mine, schema).add("new")
        with ThreadPoolExecutor(1) as executor, pytest.raises(Exception, match="lock timeout"):
            executor.submit(clock.queue.database.run, firing.fire, clock.queue.queries, CODEC, "new").result(30)
        mine.commit()
    assert time.monotonic() - began < 20
    assert len(clock.fire()) == len(clock.fire("new")) == 1
    clock.queue.check()


def test_the_callers_transaction_takes_the_runs_back(dsn: str, clock: Clock) -> None:
    clock.put()
    tick = clock.make_due()
    with psycopg.connect(dsn) as mine:
        mine.execute("SELECT 1")
        assert len(Clock(Queue(mine, clock.queue.schema)).fire()) == 1
        mine.rollback()
    assert clock.queue.rows() == []
    assert clock.get().next_at == tick


@pytest.mark.slow
def test_eight_schedulers_in_two_processes_fire_each_tick_once(dsn: str, clock: Clock) -> None:
    """They race for the same schedules, of which a few are due at a time."""
    rounds, at_once = examples(40), 3
    clock.queue.execute("CREATE TABLE {}.fired (name text, run_id text)")

    def fire() -> None:
        with psycopg.connect(dsn, autocommit=True) as connection:
            mine = Clock(Queue(connection, clock.queue.schema))
            while not mine.queue.execute("SELECT 1 FROM {}.fired WHERE name = 'end'"):
                for name in mine.due():
                    for run_id in mine.fire(name):
                        mine.queue.execute("INSERT INTO {}.fired VALUES (%s, %s)", name, run_id)

    def schedulers() -> None:
        with ThreadPoolExecutor(4) as executor:
            for future in [executor.submit(fire) for _ in range(4)]:
                future.result(50)

    def time_passes() -> None:
        with psycopg.connect(dsn, autocommit=True) as connection:
            mine = Clock(Queue(connection, clock.queue.schema))
            try:
                for number in range(rounds):
                    for name in [f"s{number}-{each}" for each in range(at_once)]:
                        mine.put(name, cron="* * * * *", missed="all", thread_id="t" if name.endswith("2") else None)
                        mine.make_due(name, timedelta(minutes=3))
                    while mine.due():
                        time.sleep(0.002)
            finally:
                mine.queue.execute("INSERT INTO {}.fired VALUES ('end', '')")

    assert run_children(lambda work: work(), [(schedulers,), (schedulers,), (time_passes,)]) == ["", "", ""]
    fired = clock.queue.execute(
        "SELECT name, count(*), count(DISTINCT run_id) FROM {}.fired WHERE name <> 'end' GROUP BY name"
    )
    assert len(fired) == rounds * at_once
    # The first tick, and those of the three minutes since; four if another one came meanwhile.
    assert {count for _, count, _ in fired} <= {4, 5}
    assert [name for name, count, distinct in fired if count != distinct] == []
    assert clock.queue.execute("SELECT count(*) FROM {}.runs") == [(sum(count for _, count, _ in fired),)]
    clock.queue.check()


def test_schedules_that_cannot_be_fired_here_keep_no_other_from_being_found(clock: Clock) -> None:
    """More than are found at once, all due for longer."""
    for number in range(7):
        clock.put(f"unknown{number}")
    clock.put("known")
    clock.queue.execute("UPDATE {}.schedules SET timezone = 'Mars/Olympus' WHERE name <> 'known'")
    clock.queue.execute("UPDATE {}.schedules SET next_at = now() - interval '1 hour' WHERE name <> 'known'")
    clock.make_due("known")
    find = partial(clock.do, firing.find_due, 3)
    for told in (3, 6, 7):
        for name in find():
            if name == "known":
                break
            with pytest.raises(ConfigurationError, match="timezone must be"):
                clock.fire(name)
        ((noted,),) = clock.queue.execute("SELECT count(*) FROM {}.schedules WHERE last_error LIKE 'timezone must%%'")
        assert noted == told
    assert find() == ["known"]
    assert len(clock.fire("known")) == 1
    assert find() == []
