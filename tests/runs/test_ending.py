"""Ends of runs, written under their lease: final ones, further attempts, given back runs, and rollbacks."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import psycopg
import pytest
from support import holding
from support.queue import Queue

from langgraph_pgstate.errors import ConfigurationError, DatabaseError
from langgraph_pgstate.leases import holding as leases
from langgraph_pgstate.runs import ending, tending
from tests.runs.test_streams import batch


@pytest.fixture
def queue(connection: psycopg.Connection, schema: str) -> Queue:
    return Queue(connection, schema)


@pytest.mark.parametrize(
    ("status", "thread"),
    [
        ("success", "idle"),
        ("interrupted", "interrupted"),
        ("error", "error"),
        ("timeout", "error"),
        ("cancelled", "idle"),
    ],
)
def test_a_run_ends_and_its_thread_is_free(queue: Queue, status: str, thread: str) -> None:
    run_id = queue.add("t")
    run = queue.claim_one()
    assert queue.finish(run, status)
    assert queue.rows() == []
    assert queue.run(run_id)[:2] == (status, 1)
    assert queue.thread("t") == thread
    assert queue.execute("SELECT ended_at IS NOT NULL, alive_until FROM {}.runs") == [(True, None)]
    assert queue.execute("SELECT holder_id FROM {}.leases") == [(None,)]
    # What succeeded cannot be repeated; the rest can.
    assert queue.requests() == (set() if status == "success" else {run_id})
    queue.check()


def test_an_end_that_is_written_twice_is_the_same(queue: Queue) -> None:
    queue.add("t")
    run = queue.claim_one()
    assert queue.finish(run)
    assert queue.finish(run)
    assert not queue.finish(run, "cancelled")
    assert queue.run(run.run_id)[0] == "success"


def test_an_unknown_end_is_refused(queue: Queue) -> None:
    queue.add("t")
    with pytest.raises(ConfigurationError):
        queue.finish(queue.claim_one(), "running")


def test_runs_end_together_as_each_would_alone(queue: Queue) -> None:
    first = queue.add("t0")
    queue.finish(queue.claim_one(), "interrupted")
    runs = [queue.add(thread_id) for thread_id in ("t2", "t0", "t1")]
    behind = queue.add("t1")
    claimed = queue.claim()
    assert queue.finish_together(*claimed)
    assert queue.finish_together(*claimed) is False
    assert [queue.run(run_id)[0] for run_id in runs] == ["success"] * 3
    assert queue.rows() == [("t1", behind, "pending", True)]
    # The interrupted run of a thread that has gone on cannot be resumed any more.
    assert (queue.requests(), queue.run(first)[0]) == ({behind}, "interrupted")
    assert [queue.thread(thread_id) for thread_id in ("t0", "t1", "t2")] == ["idle", "busy", "idle"]
    assert queue.execute("SELECT DISTINCT holder_id FROM {}.leases") == [(None,)]
    queue.check()


def test_runs_that_are_lost_or_rolled_back_are_left_out_when_others_end_together(queue: Queue) -> None:
    for thread_id in ("kept", "lost", "rolled back"):
        queue.add(thread_id)
    kept, lost, back = sorted(queue.claim(), key=lambda run: run.thread_id)
    queue.expire(lost)
    queue.do(leases.take, "lost", "somebody", 60.0)
    queue.cancel(back.thread_id, back.run_id, "rollback")
    assert not queue.finish_together(kept, lost, back)
    assert [queue.run(run.run_id)[0] for run in (kept, lost, back)] == ["success", "running", "running"]
    assert queue.execute("SELECT holder_id FROM {}.leases WHERE thread_id = 'lost'") == [("somebody",)]
    assert [queue.finish(run) for run in (kept, lost, back)] == [True, False, False]


def test_an_error_that_postgresql_cannot_store_is_stored_without_what_it_cannot(queue: Queue) -> None:
    from langgraph_pgstate.runs.ending import RunError

    queue.add("t")
    run = queue.claim_one()
    assert queue.finish(run, "error", error=RunError("E", "a\0b\ud800", "at\0"))
    assert queue.execute("SELECT error_message, error_traceback FROM {}.runs") == [("ab?", "at")]


def test_a_failed_run_waits_for_its_next_attempt_before_the_others_of_its_thread(queue: Queue) -> None:
    first, second = queue.add("t"), queue.add("t")
    run = queue.claim_one()
    assert queue.fail(run, retry_after=60.0)
    assert not queue.fail(run, retry_after=60.0)
    assert queue.run(first) == ("pending", 1, "ValueError")
    assert queue.claim() == []
    queue.check()
    queue.wake()
    assert queue.make_due() == 1
    run = queue.claim_one()
    assert (run.run_id, run.attempt) == (first, 2)
    assert queue.fail(run)
    assert queue.claim_one().run_id == second
    assert queue.run(first) == ("error", 2, "ValueError")
    assert queue.dead_letters() == [first]
    queue.check()


def test_a_run_that_is_given_back_is_first_again_and_has_used_no_attempt(queue: Queue) -> None:
    for number in range(3):
        queue.add(f"t{number}")
    behind = queue.add("t0")
    first, second = queue.claim(2)
    assert queue.give_back(second)
    assert queue.give_back(first)
    assert not queue.give_back(first)
    queue.check()
    assert queue.run(first.run_id) == ("pending", 0, None)
    assert {run.run_id for run in queue.claim(2)} == {first.run_id, second.run_id}
    assert ("t0", behind, "pending", False) in queue.rows()


def test_the_time_of_a_run_is_counted_over_its_attempts(queue: Queue) -> None:
    queue.add("t", timeout=60)
    run = queue.claim_one()
    queue.give_back(run)
    assert queue.claim_one().timeout_at == run.timeout_at


@pytest.mark.parametrize("what", ["finish", "retry", "give_back", "roll_back"])
@pytest.mark.parametrize("how", ["taken over", "deleted"])
def test_a_worker_that_lost_its_lease_writes_nothing(queue: Queue, what: str, how: str) -> None:
    queue.add("t")
    run = queue.claim_one()
    if how == "deleted":
        queue.execute("DELETE FROM {}.leases")
    else:
        queue.expire(run)
        queue.do(leases.take, "t", "somebody", 60.0)
    held = queue.execute("SELECT holder_id, fencing_token FROM {}.leases")
    write = {
        "finish": lambda: queue.finish(run),
        "retry": lambda: queue.fail(run, 1.0),
        "give_back": lambda: queue.give_back(run),
        "roll_back": lambda: queue.roll_back(run),
    }[what]
    assert not write()
    assert queue.execute("SELECT holder_id, fencing_token FROM {}.leases") == held
    assert queue.run(run.run_id)[0] == "running"


def test_a_rollback_leaves_the_thread_as_it_was(queue: Queue) -> None:
    before = queue.put("t", "other")
    queue.add("t", run_id="r")
    run = queue.claim_one()
    queue.put("t", "r")
    behind = queue.add("t")
    assert queue.roll_back(run)
    assert not queue.roll_back(run)
    assert queue.execute("SELECT checkpoint_id FROM {}.checkpoints") == [(before,)]
    assert queue.execute("SELECT run_id FROM {}.runs") == [(behind,)]
    assert queue.claim_one().run_id == behind
    queue.check()


@pytest.mark.parametrize("is_given_back", [False, True])
def test_a_put_that_arrives_after_the_rollback_is_refused(queue: Queue, is_given_back: bool) -> None:
    """It was on its way when the run was cancelled; no other lease is taken yet."""
    queue.add("t", run_id="r")
    run = queue.claim_one()
    if is_given_back:
        queue.give_back(run)
        queue.cancel("t", "r", "rollback")
    else:
        queue.roll_back(run)
    hold = {"thread_id": "t", "checkpoint_ns": "", "holds_thread": False, "held_id": None, "own_id": "c"}
    with pytest.raises(DatabaseError, match="pgstate-guard:lease"):
        queue.do(fetch, "hold_for_write", {**hold, "fencing_token": run.lease.fencing_token})


async def fetch(db: Any, queries: Any, name: str, parameters: dict[str, Any]) -> Any:
    return await db.fetch(getattr(queries, name), parameters)


@pytest.mark.parametrize("status", ["success", "cancelled"])
def test_a_run_that_is_to_be_rolled_back_ends_in_no_other_way(queue: Queue, status: str) -> None:
    """Its worker may not have read it yet."""
    queue.add("t", run_id="r")
    run = queue.claim_one()
    queue.put("t", "r")
    behind = queue.add("t", multitask_strategy="rollback")
    assert not queue.finish(run, status)
    assert queue.roll_back(run)
    assert queue.execute("SELECT checkpoint_id FROM {}.checkpoints") == []
    assert queue.claim_one().run_id == behind
    queue.check()


def test_nothing_waits_for_the_next_attempt_of_a_run_that_is_to_be_cancelled(queue: Queue) -> None:
    queue.add("t", run_id="r")
    run = queue.claim_one()
    assert queue.cancel("t", "r", "interrupt") == "running"
    assert queue.fail(run, retry_after=300)
    assert queue.run("r")[0] == "interrupted"
    queue.check()


def test_a_success_forgets_what_interrupted_runs_of_its_thread_were_to_do(queue: Queue) -> None:
    """The thread has gone on from them."""
    for status in ("interrupted", "error"):
        queue.add("t", run_id=status)
        queue.finish(queue.claim_one(), status)
    queue.add("u", run_id="elsewhere")
    queue.finish(queue.claim_one(), "interrupted")
    queue.add("t")
    queue.finish(queue.claim_one())
    assert queue.requests() == {"error", "elsewhere"}


def rows_of(queue: Queue, thread_id: str) -> dict[str, int]:
    """The number of rows that each table has of a thread."""
    tables = queue.execute(
        "SELECT table_name FROM information_schema.columns WHERE table_schema = %s AND column_name = 'thread_id'"
        " AND is_updatable = 'YES'",
        queue.schema,
    )
    counts = {
        table: queue.execute(f"SELECT count(*) FROM {{}}.{table} WHERE thread_id = %s", thread_id)[0][0]
        for (table,) in tables
    }
    return {table: count for table, count in counts.items() if count}


def test_a_thread_is_deleted_with_the_end_of_its_run(dsn: str, queue: Queue) -> None:
    queue.add("t")
    run = queue.claim_one()
    queue.put("t", run.run_id)
    before = rows_of(queue, "t")
    # The deletion must wait: then the run has not ended, either, and nothing is lost with the worker.
    with holding(dsn, f"SELECT 1 FROM {queue.schema}.checkpoints FOR UPDATE"):
        with pytest.raises(DatabaseError):
            queue.database.run(ending.finish, queue.queries, run.key, "success", deletes_thread=True)
        assert queue.run(run.run_id)[0] == "running"
    assert rows_of(queue, "t") == before
    assert queue.finish(run, deletes_thread=True)
    assert rows_of(queue, "t") == {"runs": 1}
    assert queue.finish(run, deletes_thread=True)
    assert queue.do(ending.sweep) == 0, "its readers have a minute"
    outlive(queue)
    # A recorder that was late.
    queue.execute(
        "INSERT INTO {}.spans (thread_id, run_id, span_id, started_at, kind, name, status, semconv_version)"
        " VALUES ('t', %s, 's', now(), 'llm', 'm', 'success', '1')",
        run.run_id,
    )
    with holding(dsn, f"SELECT 1 FROM {queue.schema}.runs FOR UPDATE"):
        assert queue.do(ending.sweep) == 1
    assert queue.run(run.run_id)[0] == "success"
    queue.add("t2")
    assert [queue.do(ending.sweep) for _ in range(2)] == [1, 0]
    assert rows_of(queue, "t") == {}
    assert rows_of(queue, "t2") != {}


def outlive(queue: Queue) -> None:
    """Let the minute pass that is left to readers of runs that have deleted their threads."""
    queue.execute("UPDATE {}.runs SET delete_at = now() WHERE delete_at IS NOT NULL")


def test_a_run_that_cannot_be_deleted_keeps_no_other_from_being(queue: Queue) -> None:
    for thread in "tu":
        queue.add(thread)
        assert queue.finish(queue.claim_one(), deletes_thread=True)
    key = "thread_id text, run_id text, FOREIGN KEY (thread_id, run_id) REFERENCES {0}.runs"
    queue.execute(f"CREATE TABLE {{0}}.ours ({key})")
    queue.execute("INSERT INTO {0}.ours SELECT thread_id, run_id FROM {0}.runs WHERE thread_id = 't'")
    outlive(queue)
    with pytest.raises(DatabaseError, match="ours"):
        queue.do(ending.sweep)
    assert queue.execute("SELECT thread_id FROM {}.runs") == [("t",)]
    queue.execute("DROP TABLE {}.ours")
    assert [queue.do(ending.sweep) for _ in range(2)] == [1, 0]


def test_runs_that_delete_their_thread_one_after_another_keep_their_events(queue: Queue) -> None:
    for _ in range(2):
        queue.add("t")
        run = queue.claim_one()
        assert queue.finish(run, deletes_thread=True, events=[batch(run, 0, "a", "b")])
    found = "SELECT count(*), count(DISTINCT run_id) FROM {}."
    assert queue.execute(f"{found}runs") == queue.execute(f"{found}stream_batches") == [(2, 2)]
    assert queue.execute("SELECT count(*) FROM {}.threads") == [(0,)]
    outlive(queue)
    queue.do(tending.repair)
    assert rows_of(queue, "t") == {}


@pytest.mark.parametrize("delay", [None, timedelta(hours=1)])
def test_a_thread_with_another_run_is_not_deleted(queue: Queue, delay: timedelta | None) -> None:
    queue.add("t")
    behind = queue.add("t", run_after=delay)
    run = queue.claim_one()
    assert queue.finish(run, deletes_thread=True)
    assert queue.run(run.run_id)[0] == "success"
    queue.check()
    if delay is not None:
        queue.wake()
        queue.make_due()
    last = queue.claim_one()
    assert last.run_id == behind
    assert queue.finish(last, deletes_thread=True)
    assert rows_of(queue, "t") == {"runs": 1}


@pytest.mark.parametrize("status", ["error", "interrupted", "cancelled"])
def test_a_thread_is_kept_if_its_run_did_not_succeed(queue: Queue, status: str) -> None:
    queue.add("t")
    assert queue.finish(queue.claim_one(), status, deletes_thread=True)
    assert queue.thread("t") in ("error", "interrupted", "idle")


def test_a_worker_that_lost_its_lease_deletes_nothing(queue: Queue) -> None:
    queue.add("t")
    run = queue.claim_one()
    queue.expire(run)
    queue.recover()
    assert not queue.finish(run, deletes_thread=True)
    assert queue.run(run.run_id)[0] == "pending"
