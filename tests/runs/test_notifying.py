"""Notifications that wake workers, and those that wake who waits for a run."""

from __future__ import annotations

import asyncio
import time

import psycopg
import pytest
from support import GUARD_SECONDS, counted, usual, wait_until
from support.queue import STATES, Queue, call, open_state

from langgraph_pgstate.db.database import AsyncDatabase
from langgraph_pgstate.runs import ending, following, handles
from langgraph_pgstate.runs.notifying import AsyncNotifier


@pytest.fixture
def queue(connection: psycopg.Connection, schema: str) -> Queue:
    return Queue(connection, schema)


@pytest.mark.parametrize("api", STATES)
async def test_workers_that_listen_are_notified_a_hundred_times_a_second_at_most(
    api: type, dsn: str, schema: str, queue: Queue
) -> None:
    with psycopg.connect(dsn, autocommit=True) as listener:
        listener.execute("LISTEN pgstate_queue")
        async with open_state(api, dsn, schema) as state:
            started = time.monotonic()
            for _ in range(30):
                await call(state.runs.enqueue, "graph", {})
            seconds = time.monotonic() - started
            await asyncio.sleep(0.1)
            assert len(queue.rows()) == 30
        found = [*listener.notifies(timeout=0.2)]
    assert 1 <= len(found) <= seconds * 100 + 3


@pytest.mark.parametrize("api", STATES)
async def test_the_notification_of_a_run_takes_no_round_trip(api: type, dsn: str, schema: str, queue: Queue) -> None:
    with counted(dsn) as proxy, psycopg.connect(dsn, autocommit=True) as listener:
        listener.execute("LISTEN pgstate_queue")
        async with open_state(api, proxy.dsn, schema) as state:
            trips = []
            for _ in range(12):
                before = proxy.count
                await call(state.runs.enqueue, "graph", {})
                trips.append(proxy.count - before)
                # Not within the interval of the last one.
                await asyncio.sleep(0.02)
            assert usual(trips[6:]) == 1
        assert len([*listener.notifies(timeout=GUARD_SECONDS, stop_after=12)]) == 12


async def test_a_notification_that_was_cancelled_is_followed_by_others(dsn: str, schema: str, queue: Queue) -> None:
    with psycopg.connect(dsn, autocommit=True) as listener:
        listener.execute("LISTEN pgstate_queue")
        async with AsyncDatabase.open(dsn, schema=schema) as database:
            notifier = AsyncNotifier(database, queue.queries)
            notifier._next = time.monotonic() + 0.1
            await notifier.notify()
            assert notifier._waiting is not None
            notifier._waiting.cancel()
            await asyncio.sleep(0.2)
            await notifier.notify()
        assert len([*listener.notifies(timeout=0.5, stop_after=1)]) == 1


def is_listening(queue: Queue) -> bool:
    query = "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND query = %s AND state = 'idle'"
    return bool(queue.connection.execute(query, ['LISTEN "pgstate_ended"']).fetchall())


@pytest.mark.parametrize("api", STATES)
@pytest.mark.parametrize("how", ["wait", "join"])
async def test_who_waits_for_a_run_is_woken_when_it_ends(
    api: type, how: str, dsn: str, schema: str, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A poll would come too late."""
    monkeypatch.setattr(handles, "_FIRST_PAUSE", 600.0)
    monkeypatch.setattr(following, "_PAUSE", 600.0)
    queue.add("other")
    run_id = queue.add("t")
    async with open_state(api, dsn, schema) as state:
        handle = state.runs.handle("t", run_id)

        async def follow() -> object:
            if how == "wait":
                return await call(handle.wait, GUARD_SECONDS)
            if api is STATES[0]:
                return await asyncio.to_thread(lambda: [event.event for event in handle.join()][-1])
            return [event.event async for event in handle.join()][-1]

        waiting = asyncio.create_task(follow())
        await asyncio.to_thread(wait_until, lambda: is_listening(queue), "somebody who listens")
        for run in queue.claim():
            # The end of another run wakes nobody.
            assert not waiting.done()
            queue.finish(run)
            queue.do(ending.notify, [run.run_id])
            await asyncio.sleep(0.1)
        assert await asyncio.wait_for(waiting, GUARD_SECONDS) == ({} if how == "wait" else "end")
        assert state.runs._end_listener._calls == {}


def test_a_notification_of_many_ends_is_not_too_long(queue: Queue) -> None:
    queue.do(ending.notify, ["r" * 40] * 200)
    queue.do(ending.notify, ["r" * 9000])
