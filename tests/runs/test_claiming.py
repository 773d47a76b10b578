"""Claims: leases taken with them, threads that are held elsewhere, and what they cost with many runs waiting."""

from __future__ import annotations

import json

import psycopg
import pytest
from support.queue import Queue, request

from langgraph_pgstate.leases import holding as leases
from langgraph_pgstate.runs.queue import put_limit, request_limit

WAITING = 20_000


@pytest.fixture
def queue(connection: psycopg.Connection, schema: str) -> Queue:
    return Queue(connection, schema)


def test_a_claim_takes_the_lease_of_the_thread(queue: Queue) -> None:
    queue.add("t", timeout=60)
    run = queue.claim_one()
    assert queue.execute("SELECT holder_id, fencing_token, expires_at FROM {}.leases") == [
        ("worker", run.lease.fencing_token, run.lease.expires_at)
    ]
    assert (run.lease.expires_at - run.lease.acquired_at).total_seconds() == 60
    assert run.timeout_at == run.lease.expires_at
    assert queue.run(run.run_id) == ("running", 1, None)
    queue.check()
    assert queue.claim() == []
    queue.finish(run)
    queue.add("t")
    assert queue.claim_one().lease.fencing_token > run.lease.fencing_token


def test_a_claim_that_a_crash_of_the_server_undoes_is_fenced(queue: Queue) -> None:
    queue.add("t")
    queue.finish(queue.claim_one())
    run_id = queue.add("t")
    for table in ("leases", "queue"):
        queue.execute(f"CREATE TABLE {{0}}.{table}_before AS SELECT * FROM {{0}}.{table}")
    undone = queue.claim_one()
    for table in ("leases", "queue"):
        queue.execute(f"DELETE FROM {{}}.{table}")
        queue.execute(f"INSERT INTO {{0}}.{table} SELECT * FROM {{0}}.{table}_before")
        queue.execute(f"DROP TABLE {{}}.{table}_before")
    other = Queue(queue.connection, queue.schema, "other")
    again = other.claim_one()
    assert (again.run_id, again.attempt) == (run_id, 1)
    assert not queue.finish(undone)
    assert other.finish(again)


def test_only_a_claim_without_limits_commits_without_waiting_for_the_disk(queue: Queue) -> None:
    queue.execute("SET synchronous_commit = on")
    queue.execute("CREATE TABLE {}.commits (status text, synchronous_commit text)")
    queue.execute(
        "CREATE FUNCTION {0}.note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        " INSERT INTO {0}.commits VALUES (OLD.status, current_setting('synchronous_commit')); RETURN NULL; END $$"
    )
    queue.execute("CREATE TRIGGER note AFTER UPDATE OR DELETE ON {0}.queue FOR EACH ROW EXECUTE FUNCTION {0}.note()")
    for _ in range(2):
        queue.add("t")
        queue.finish(queue.claim_one())
        queue.do(put_limit, request_limit("default", None, 1, None))
    found = queue.execute("SELECT * FROM {}.commits")
    assert found == [("pending", "off"), ("running", "on"), ("pending", "on"), ("running", "on")]


def test_a_claim_takes_what_its_worker_serves(queue: Queue) -> None:
    for name in ("a", "b"):
        queue.add(f"{name}1", graph=name)
        queue.add(f"{name}2", graph=name, queue="other")
    assert [run.thread_id for run in queue.claim(graphs=["a"])] == ["a1"]
    assert [run.thread_id for run in queue.claim(queue="other", graphs=["a", "b", "c"])] == ["a2", "b2"]
    assert queue.claim(graphs=[]) == []


def test_a_claim_takes_from_all_graphs_by_priority(queue: Queue) -> None:
    for number in range(4):
        queue.add(f"a{number}", graph="a")
    queue.add("b", graph="b", priority=1)
    assert [run.thread_id for run in queue.claim(3, graphs=["a", "b"])] == ["b", "a0", "a1"]
    assert len(queue.claim(graphs=["a", "b"])) == 2


def test_a_run_of_a_thread_that_is_held_elsewhere_is_put_off(queue: Queue) -> None:
    held = [queue.add(f"held{number}") for number in range(5)]
    free = queue.add("free")
    taken = [queue.do(leases.take, f"held{number}", "somebody", 60.0) for number in range(5)]
    # All five are before it.
    assert [run.run_id for run in queue.claim(2)] == [free]
    behind = queue.add("held0")
    queue.check()
    assert queue.claim() == []
    for lease in taken:
        queue.do(leases.release, lease.thread_id, lease.fencing_token)
    queue.wake()
    assert queue.make_due() == 5
    assert {run.run_id for run in queue.claim()} == {*held}
    assert ("held0", behind, "pending", False) in queue.rows()


def test_an_expired_lease_is_taken_over(queue: Queue) -> None:
    lease = queue.do(leases.take, "t", "somebody", 0.001)
    queue.add("t")
    queue.execute("UPDATE {}.leases SET expires_at = now() - interval '1 second'")
    assert queue.claim_one().lease.fencing_token > lease.fencing_token


def test_the_claim_tells_the_checkpoints_of_the_run_and_of_the_thread(queue: Queue) -> None:
    other = queue.put("t", "other")
    queue.add("t", run_id="r")
    run = queue.claim_one()
    assert (run.checkpoint_id, run.head_id) == (None, other)
    own = queue.put("t", "r")
    queue.give_back(run)
    assert [(run.checkpoint_id, run.head_id) for run in queue.claim()] == [(own, own)]


def test_the_database_allows_one_ready_run_of_a_thread(queue: Queue) -> None:
    queue.add("t")
    queue.add("t")
    with pytest.raises(psycopg.errors.UniqueViolation):
        queue.execute("UPDATE {}.queue SET is_ready = true, number = 0")
    with pytest.raises(psycopg.errors.CheckViolation):
        queue.execute("UPDATE {}.queue SET is_ready = true")
    queue.claim_one()
    with pytest.raises(psycopg.errors.CheckViolation):
        queue.execute("UPDATE {}.queue SET status = 'running'")


@pytest.mark.slow
def test_a_claim_reads_no_run_that_cannot_be_claimed(queue: Queue) -> None:
    """Neither those behind the first, nor those of one busy thread, nor those for later."""
    queue.execute(
        "INSERT INTO {}.queue (thread_id, run_id, queue, graph, is_ready, number, position)"
        " SELECT 'big' || i, 'r' || i, 'default', 'graph', true, 0, i FROM generate_series(1, %s) AS i",
        WAITING,
    )
    queue.execute(
        "INSERT INTO {}.queue (thread_id, run_id, queue, graph, number)"
        " SELECT 'one', 'r' || i, 'default', 'graph', i FROM generate_series(1, %s) AS i",
        WAITING,
    )
    queue.execute(
        "INSERT INTO {}.queue (thread_id, run_id, queue, graph, run_after)"
        " SELECT 'later' || i, 'r' || i, 'default', 'graph', now() + interval '1 day' FROM generate_series(1, %s) AS i",
        WAITING,
    )
    queue.execute("ANALYZE {}.queue")
    parameters = {
        "worker_id": "w",
        "queue": "default",
        "graphs": "{graph,other}",
        "versions": '{"",""}',
        "limit": 10,
        "ttl": "60",
        "suspects": "false",
        "lock_timeout": "1s",
    }
    pages = queue.explain("claim_runs", parameters)
    # Thirty pages for each run, of the indexes above all; the tables have thousands.
    assert pages < 600
    # One run of a thread that has 20,000.
    keys = {"thread_ids": "{one}", "run_ids": "{r7}", "fencing_tokens": "{1}", "status": "success", "rolls_back": False}
    nothing = {"error_type": None, "error_message": None, "error_traceback": None}
    assert queue.explain("end_runs", {**keys, **nothing}) < 60
    assert queue.explain("promote_next", {"thread_ids": "{one,big1}"}) < 60
    assert queue.explain("find_due", {"page_size": 100}) < 20
    one = json.dumps([request("one").row])
    assert queue.explain("enqueue_runs", {"rows": one, "data": '{"\\\\x00"}'}) < 120


def test_more_runs_than_one_statement_claims(queue: Queue) -> None:
    queue.enqueue(*(request(f"t{number:03}") for number in range(130)))
    assert [run.thread_id for run in queue.claim(115)] == [f"t{number:03}" for number in range(115)]
    assert len(queue.claim(115)) == 15
