"""What a worker does to the queue while another transaction holds locks for as long as it likes."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import psycopg
import pytest
from support import holding, wait_until
from support.queue import CODEC, Queue, request

from langgraph_pgstate.db.database import Database
from langgraph_pgstate.db.protocol import Connection
from langgraph_pgstate.errors import DatabaseError
from langgraph_pgstate.leases import holding as leases
from langgraph_pgstate.runs import claiming, ending, locking
from langgraph_pgstate.runs.enqueue import adopt
from langgraph_pgstate.runs.locking import LOCK_TIMEOUT, bounded_waits, is_locked
from langgraph_pgstate.runs.queue import put_limit, request_limit
from langgraph_pgstate.schedules import firing
from langgraph_pgstate.schedules import rows as schedules
from langgraph_pgstate.schema.queries import Queries


@pytest.fixture
def queue(connection: psycopg.Connection, schema: str) -> Queue:
    # What waits without limit fails.
    connection.execute("SET statement_timeout = '5s'")
    return Queue(connection, schema)


def test_crashed_runs_of_locked_threads_are_left_to_the_next_adoption(dsn: str, queue: Queue) -> None:
    for thread_id in ("t", "u"):
        queue.put(thread_id, f"run of {thread_id}")
        queue.execute(
            "INSERT INTO {}.runs (thread_id, run_id, agent, status, started_at)"
            " VALUES (%s, %s, 'graph', 'running', now())",
            thread_id,
            f"run of {thread_id}",
        )

    def adopted() -> list[str]:
        return [run.thread_id for run in queue.do(adopt, CODEC, lambda holder_id: True)]

    with holding(dsn, f"SELECT 1 FROM {queue.schema}.threads WHERE thread_id = 't' FOR UPDATE"):
        assert adopted() == ["u"]
    assert adopted() == ["t"]
    queue.check()


def test_a_locked_lease_keeps_no_other_from_being_renewed(dsn: str, queue: Queue) -> None:
    for thread_id in ("t", "u"):
        queue.add(thread_id)
    runs = queue.claim(ttl=0.5)
    with holding(dsn, f"SELECT 1 FROM {queue.schema}.leases WHERE thread_id = 't' FOR SHARE"):
        tended = queue.tend(*runs)
        assert (tended.still, tended.renewed) == ({run.key for run in runs}, {runs[1].key})
        renewed = "SELECT thread_id FROM {}.leases WHERE expires_at > now() + interval '30 seconds' ORDER BY 1"
        assert queue.execute(renewed) == [("u",)]
    queue.tend(*runs)
    assert queue.execute(renewed) == [("t",), ("u",)]


@pytest.mark.parametrize("table", ["leases", "threads", "runs"])
def test_lost_runs_of_locked_threads_are_left_to_the_next_sweep(table: str, dsn: str, queue: Queue) -> None:
    for thread_id in ("t", "u"):
        queue.add(thread_id)
    queue.expire(*queue.claim())
    with holding(dsn, f"SELECT 1 FROM {queue.schema}.{table} WHERE thread_id = 't' FOR UPDATE"):
        assert [run.thread_id for run in queue.recover()] == ["u"]
    assert [run.thread_id for run in queue.recover()] == ["t"]
    queue.check()


@pytest.mark.parametrize("has_limits", [False, True])
@pytest.mark.parametrize("lock", ["SHARE", "UPDATE"])
def test_a_locked_lease_keeps_no_other_run_from_being_claimed(
    dsn: str, queue: Queue, lock: str, has_limits: bool
) -> None:
    if has_limits:
        queue.do(put_limit, request_limit("default", None, 9, None))
    # Of the one somebody is the holder, that of the other is free.
    queue.do(leases.take, "held", "somebody", 60.0)
    queue.add("released")
    queue.finish(queue.claim_one())
    for thread_id in ("held", "released", "u"):
        queue.add(thread_id)
    arguments = queue.queries, "worker", "default", ["graph"], 2, 60.0
    with holding(dsn, f"SELECT 1 FROM {queue.schema}.leases FOR {lock}"):
        found = queue.database.run(claiming.claim, *arguments, has_limits=has_limits).runs
        assert [run.thread_id for run in found] == ["u"]
    queue.wake()
    queue.make_due()
    assert [run.thread_id for run in queue.claim()] == ["released"]
    queue.check()


def test_a_claim_waits_a_moment_only_for_a_lease_that_is_being_made(dsn: str, queue: Queue) -> None:
    queue.add("t")
    arguments = queue.queries, "worker", "default", ["graph"], 1, 60.0
    columns = "thread_id, holder_id, fencing_token, acquired_at, renewed_at, expires_at"
    making = f"INSERT INTO {queue.schema}.leases ({columns}) VALUES ('t', 'somebody', 1, now(), now(), now())"
    with holding(dsn, making):
        with pytest.raises(DatabaseError) as caught:
            queue.database.run(claiming.claim, *arguments)
        assert is_locked(caught.value)
    assert len(queue.database.run(claiming.claim, *arguments).runs) == 1


@pytest.mark.parametrize("has_limits", [False, True])
def test_a_lease_that_is_made_during_a_claim_is_not_taken(dsn: str, queue: Queue, has_limits: bool) -> None:
    if has_limits:
        queue.do(put_limit, request_limit("default", None, 9, None))
    queue.add("t")
    making = f"INSERT INTO {queue.schema}.leases VALUES ('t', 'somebody', 1, now(), now(), now() + interval '1 hour')"
    waiting, pid = "SELECT FROM pg_locks WHERE NOT granted AND pid = %s", queue.connection.info.backend_pid
    with ThreadPoolExecutor(1) as other, holding(dsn, making) as somebody:
        arguments = "worker", "default", ["graph"], 1, 60.0
        claim = other.submit(queue.do, claiming.claim, *arguments, has_limits=has_limits)
        wait_until(lambda: claim.done() or bool(somebody.execute(waiting, [pid]).fetchall()), "the claim's wait")
        somebody.commit()
        assert claim.result().runs == []
    assert queue.execute("SELECT holder_id, fencing_token FROM {}.leases") == [("somebody", 1)]
    queue.check()


def test_an_end_gives_way_to_a_put_that_locks_in_the_other_order(dsn: str, queue: Queue) -> None:
    """The first guarded put of a thread locks its row before its lease; an end locks the lease first."""
    queue.add("t")
    run = queue.claim_one()
    with psycopg.connect(dsn) as put:
        put.execute(f"SELECT 1 FROM {queue.schema}.threads WHERE thread_id = 't' FOR NO KEY UPDATE".encode())
        with pytest.raises(DatabaseError) as caught:
            queue.database.run(ending.finish, queue.queries, run.key, "success")
        # Sooner than PostgreSQL looks for deadlocks, in which the put might be the one to fail.
        assert is_locked(caught.value)
        is_sooner = "SELECT %s::interval < current_setting('deadlock_timeout')::interval"
        assert queue.execute(is_sooner, LOCK_TIMEOUT) == [(True,)]
        put.execute(f"SELECT 1 FROM {queue.schema}.leases WHERE thread_id = 't' FOR SHARE".encode())
    assert queue.finish(run)
    queue.check()


@pytest.mark.slow
def test_a_frozen_worker_keeps_no_limited_queue_and_no_schedule_locked(
    dsn: str, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(locking, "IDLE_TIMEOUT", "300ms")
    queue.do(put_limit, request_limit("default", None, 9, None))
    queue.add("t0")
    queue.finish(queue.claim_one())
    run = request("t1")
    due = schedules.request_schedule("s", run, {}, cron="0 * * * *")
    queue.do(schedules.put, due)
    queue.execute("UPDATE {}.schedules SET next_at = now()")
    for thread_id in ("t1", "t2"):
        queue.add(thread_id)

    async def claim_and_freeze(db: Connection, queries: Queries) -> None:
        async with db.transaction():
            await claiming.claim(db, queries, "frozen", "default", ["graph"], 1, 60.0, has_limits=True)
            time.sleep(1)
            assert [one.thread_id for one in queue.claim()] == ["t1", "t2"]

    async def fire_and_freeze(db: Connection, queries: Queries) -> None:
        async with db.transaction():
            await db.fetch(*bounded_waits(queries))
            assert await db.fetch(queries.lock_due_schedule, {"name": "s"})
            time.sleep(1)
            assert len(queue.do(firing.fire, CODEC, "s")) == 1

    for frozen in (claim_and_freeze, fire_and_freeze):
        with Database.open(dsn, schema=queue.schema, pool=False) as database, suppress(DatabaseError):
            database.run_once(frozen, queue.queries)
