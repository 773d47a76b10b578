"""Cancelling, retrying and discarding of runs, and what becomes of the queue when threads and runs are deleted."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
from support.queue import Queue

from langgraph_pgstate import PGState, PGStateSaver
from langgraph_pgstate.admin.api import Admin
from langgraph_pgstate.errors import ConfigurationError, NotFoundError
from langgraph_pgstate.runs import cancelling, outcomes


@pytest.fixture
def queue(connection: psycopg.Connection, schema: str) -> Queue:
    return Queue(connection, schema)


@pytest.mark.parametrize(("action", "status"), [("cancel", "cancelled"), ("interrupt", "interrupted")])
def test_a_pending_run_ends_at_once(queue: Queue, action: str, status: str) -> None:
    first, second = queue.add("t"), queue.add("t")
    assert queue.cancel("t", first, action) == status
    assert queue.cancel("t", first, action) == status
    queue.check()
    assert queue.claim_one().run_id == second
    assert first in queue.requests()


def test_a_run_behind_another_is_cancelled(queue: Queue) -> None:
    first, second, third = (queue.add("t") for _ in range(3))
    assert queue.cancel("t", second) == "cancelled"
    queue.check()
    queue.finish(queue.claim_one())
    assert queue.claim_one().run_id == third
    assert queue.run(first)[0] == "success"


def test_a_rolled_back_run_is_gone(queue: Queue) -> None:
    queue.add("t", run_id="r")
    assert queue.cancel("t", "r", "rollback") == "cancelled"
    assert queue.execute("SELECT 1 FROM {}.runs") == []
    assert queue.thread("t") == "idle"
    with pytest.raises(NotFoundError):
        queue.cancel("t", "r")


def test_the_worker_of_a_running_run_is_asked(queue: Queue) -> None:
    run_id = queue.add("t")
    run = queue.claim_one()
    assert queue.cancel("t", run_id) == "running"
    assert queue.tend(run).cancels == {run.key: "cancel"}
    assert queue.cancel("t", run_id, "rollback") == "running"
    assert queue.tend(run).cancels == {run.key: "rollback"}
    # A drain may give it back before it has seen that. It ends, because nobody may claim it (a paused queue).
    assert queue.give_back(run)
    assert queue.execute("SELECT 1 FROM {}.queue") == queue.execute("SELECT 1 FROM {}.runs") == []
    queue.check()


@pytest.mark.parametrize("later", ["cancel", "interrupt"])
@pytest.mark.parametrize("state", ["running", "given back"])
def test_a_rollback_is_not_weakened_by_a_later_request(queue: Queue, later: str, state: str) -> None:
    queue.add("t", run_id="r")
    run = queue.claim_one()
    queue.put("t", "r")
    queue.cancel("t", "r", "rollback")
    if state == "running":
        queue.cancel("t", "r", later)
        queue.add("t", multitask_strategy="interrupt")
        assert queue.tend(run).cancels == {run.key: "rollback"}
    else:
        assert queue.give_back(run)
        with pytest.raises(NotFoundError):
            queue.cancel("t", "r", later)
        assert queue.execute("SELECT 1 FROM {}.checkpoints") == queue.execute("SELECT 1 FROM {}.runs") == []
    queue.check()


def test_of_cancel_and_interrupt_the_first_counts(queue: Queue) -> None:
    """The worker has seen it, and may be about to end the run so."""
    for first, later in (("cancel", "interrupt"), ("interrupt", "cancel")):
        run_id = queue.add("t")
        run = queue.claim_one()
        queue.cancel("t", run_id, first)
        queue.cancel("t", run_id, later)
        assert queue.tend(run).cancels == {run.key: first}
        queue.give_back(run)
        assert queue.cancel("t", run_id, later) == {"cancel": "cancelled", "interrupt": "interrupted"}[first]


def test_a_run_that_has_ended_keeps_its_status(queue: Queue) -> None:
    run_id = queue.add("t")
    queue.finish(queue.claim_one())
    assert queue.cancel("t", run_id) == "success"
    assert queue.run(run_id)[0] == "success"


def test_what_cannot_be_cancelled_is_named(queue: Queue) -> None:
    run_id = queue.add("t")
    with pytest.raises(ConfigurationError, match="'stop'"):
        queue.cancel("t", run_id, "stop")
    with pytest.raises(NotFoundError):
        queue.cancel("t", "other")
    with pytest.raises(NotFoundError):
        queue.cancel("u", run_id)
    queue.execute("INSERT INTO {}.runs (thread_id, run_id, status, started_at) VALUES ('t', 'plain', 'running', now())")
    with pytest.raises(NotFoundError):
        queue.cancel("t", "plain")


@pytest.mark.parametrize("what", [cancelling.cancel, cancelling.retry, cancelling.discard, outcomes.get_status])
def test_a_run_that_does_not_exist_is_an_error(queue: Queue, what: Any) -> None:
    run_id = queue.add("t")
    queue.execute("INSERT INTO {}.runs (thread_id, run_id, status, started_at) VALUES ('t', 'plain', 'error', now())")
    for key in (("t", "other"), ("u", run_id), ("t", "plain")):
        if (what, key) == (outcomes.get_status, ("t", "plain")):
            assert queue.do(what, *key) == "error"
            continue
        with pytest.raises(NotFoundError):
            queue.do(what, *key)


def test_a_run_without_key_and_version_is_retried(queue: Queue) -> None:
    run_id = queue.add("t", key=None, version=None)
    queue.fail(queue.claim_one())
    assert queue.retry("t", run_id)
    assert queue.claim_one().run_id == run_id


def test_a_dead_letter_is_retried(queue: Queue) -> None:
    run_id = queue.add("t", priority=3, key="k", max_attempts=2)
    queue.fail(queue.claim_one())
    before = queue.put("t", run_id)
    queue.add("t")
    # The other run is about to store what this one would go on from.
    assert not queue.retry("t", run_id)
    queue.finish(queue.claim_one(), "cancelled")
    assert queue.retry("t", run_id)
    assert not queue.retry("t", run_id)
    assert queue.dead_letters() == []
    assert queue.run(run_id) == ("pending", 0, None)
    queue.check()
    run = queue.claim_one()
    assert (run.run_id, run.attempt, run.max_attempts, run.checkpoint_id) == (run_id, 1, 2, before)
    assert queue.execute("SELECT priority, key FROM {}.queue") == [(3, "k")]
    queue.finish(run)
    assert not queue.retry("t", run_id)


def test_a_discarded_dead_letter_is_history(queue: Queue) -> None:
    run_id = queue.add("t")
    run = queue.claim_one()
    assert not queue.do(cancelling.discard, "t", run_id)
    queue.fail(run)
    assert queue.do(cancelling.discard, "t", run_id)
    assert not queue.do(cancelling.discard, "t", run_id)
    assert not queue.retry("t", run_id)
    assert queue.dead_letters() == []
    assert queue.run(run_id)[0] == "error"


def test_nothing_of_a_deleted_thread_stays_in_the_queue(queue: Queue) -> None:
    queue.add("t")
    queue.add("t")
    queue.add("u")
    saver = PGStateSaver(queue.connection, schema=queue.schema)
    run, _ = queue.claim()
    saver.delete_thread("t")
    assert {row[0] for row in queue.rows()} == {"u"}
    assert len(queue.requests()) == 1
    assert not queue.finish(run)
    assert queue.execute("SELECT 1 FROM {}.runs WHERE thread_id = 't'") == []
    queue.check()


def test_a_deleted_run_is_taken_from_its_worker(queue: Queue) -> None:
    queue.add("t", run_id="r")
    behind = queue.add("t")
    run = queue.claim_one()
    queue.put("t", "r")
    saver = PGStateSaver(queue.connection, schema=queue.schema)
    saver.delete_for_runs(["r"])
    assert queue.execute("SELECT 1 FROM {}.checkpoints") == []
    assert queue.tend(run).still == set()
    # Its late writes are refused, as those of any lost lease.
    assert queue.execute("SELECT fencing_token FROM {}.leases") == [(run.lease.fencing_token + 1,)]
    assert queue.claim_one().run_id == behind
    queue.check()


def test_copies_and_forks_have_no_queue(queue: Queue) -> None:
    queue.put("t", "other")
    queue.add("t")
    PGStateSaver(queue.connection, schema=queue.schema).copy_thread("t", "u")
    PGState(queue.connection, schema=queue.schema).threads.fork("t", to="v")
    assert [row[0] for row in queue.rows()] == ["t"]
    assert queue.thread("u") == queue.thread("v") == "idle"


def test_a_thread_does_not_expire_before_its_runs(queue: Queue) -> None:
    state = PGState(queue.connection, schema=queue.schema)
    queue.put("t", "other")
    run_id = queue.add("t")
    queue.execute("UPDATE {}.threads SET expires_at = now() - interval '1 day', updated_at = now() - interval '1 day'")
    assert state.threads.sweep().threads == 0
    queue.cancel("t", run_id)
    assert state.threads.sweep().threads == 1
    assert queue.requests() == set()


def test_a_damaged_request_is_found_by_a_check(queue: Queue) -> None:
    queue.add("t", run_id="r")
    admin = Admin(queue.database)
    assert admin.check(deep=True).problems == []
    queue.execute("UPDATE {}.run_requests SET data = set_byte(data, 20, 255 - get_byte(data, 20))")
    assert ["request of run 'r'" in problem.where for problem in admin.check(deep=True).problems] == [True]


def test_maintenance_settles_no_run_of_the_queue(queue: Queue) -> None:
    """Another worker goes on with it."""
    queue.add("t")
    run = queue.claim_one()
    queue.execute("UPDATE {}.runs SET holder_id = 'dead', alive_until = now() - interval '1 hour'")
    PGState(queue.connection, schema=queue.schema).maintain()
    assert queue.run(run.run_id) == ("running", 1, None)
    assert queue.finish(run)


def test_who_cancels_retries_and_discards_is_an_event_of_the_thread(queue: Queue) -> None:
    """Only of what was done, and together with it."""
    for _ in range(2):
        run_id = queue.add("t", run_id="r")
        queue.do(cancelling.cancel, "t", run_id, "cancel", "eve")
    assert queue.do(cancelling.retry, "t", "r", "adam")
    assert not queue.do(cancelling.retry, "t", "r", "adam")
    queue.fail(queue.claim_one())
    assert queue.do(cancelling.discard, "t", "r", "eve")
    assert not queue.do(cancelling.discard, "t", "r", "eve")
    events = queue.execute("SELECT payload ->> 'action', run_id, payload ->> 'by' FROM {}.events ORDER BY event_id")
    assert events == [("cancel", "r", "eve"), ("retry", "r", "adam"), ("discard", "r", "eve")]
    queue.check()
