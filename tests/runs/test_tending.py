"""Leases that are renewed and lost, and the runs of dead workers."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

import psycopg
import pytest
from support.queue import Queue

from langgraph_pgstate import PGStateSaver
from langgraph_pgstate.runs import claiming, tending
from langgraph_pgstate.runs.ending import finish
from langgraph_pgstate.runs.queue import list_workers, put_limit, request_limit


@pytest.fixture
def queue(connection: psycopg.Connection, schema: str) -> Queue:
    return Queue(connection, schema)


def test_a_worker_that_tends_its_runs_keeps_them(queue: Queue) -> None:
    queue.do(tending.put_worker, "worker", ["default"], ["graph"], 10)
    queue.execute("UPDATE {}.workers SET seen_at = now() - interval '1 hour'")
    queue.add("t")
    run = queue.claim_one(ttl=0.5)
    assert queue.tend(run) == ({run.key}, {}, set(), {run.key})
    assert queue.execute("SELECT expires_at > now() + interval '50 seconds' FROM {}.leases") == [(True,)]
    assert queue.execute("SELECT seen_at > now() - interval '1 minute' FROM {}.workers") == [(True,)]
    assert queue.recover() == []


def test_a_worker_learns_that_runs_were_taken_from_it(queue: Queue) -> None:
    for thread_id in ("deleted", "recovered", "kept"):
        queue.add(thread_id)
    runs = {run.thread_id: run for run in queue.claim()}
    PGStateSaver(queue.connection, schema=queue.schema).delete_thread("deleted")
    queue.expire(runs["recovered"])
    queue.recover()
    assert queue.tend(*runs.values()).still == {runs["kept"].key}


def test_a_delayed_run_waits_from_the_time_it_is_due(queue: Queue) -> None:
    """Else a run of tomorrow would be reported as one that has waited for a day."""
    queue.add("t", run_after=timedelta(hours=1))
    queue.execute("UPDATE {}.queue SET enqueued_at = now() - interval '1 day', run_after = now() - interval '1 minute'")
    assert queue.do(tending.make_due) == 1
    assert queue.execute("SELECT round(extract(epoch FROM now() - enqueued_at) / 60)::integer FROM {}.queue") == [(1,)]


def test_a_worker_learns_of_a_claim_whose_answer_was_lost(queue: Queue) -> None:
    queue.add("t")
    run = queue.claim_one()
    assert queue.tend() == (set(), {}, {run.key}, set())
    assert queue.give_back(run)
    assert queue.tend() == (set(), {}, set(), set())


def test_the_run_of_a_dead_worker_is_claimed_by_another(queue: Queue) -> None:
    queue.add("t")
    behind = queue.add("t")
    run = queue.claim_one()
    queue.expire(run)
    (found,) = queue.recover()
    assert (found.run_id, found.worker_id, found.crashes, found.status) == (run.run_id, "worker", 1, "pending")
    assert queue.recover() == []
    queue.check()
    again = queue.claim_one()
    assert (again.run_id, again.attempt, again.crashes) == (run.run_id, 2, 1)
    assert again.lease.fencing_token > run.lease.fencing_token
    assert not queue.finish(run)
    assert queue.finish(again, "interrupted")
    assert not queue.finish(run)
    assert queue.run(run.run_id)[0] == "interrupted"
    assert queue.claim_one().run_id == behind


def test_a_worker_that_wakes_before_another_claims_its_run_writes_nothing(queue: Queue) -> None:
    queue.add("t")
    run = queue.claim_one()
    queue.expire(run)
    queue.recover()
    assert queue.tend(run) == (set(), {}, set(), set())
    assert not queue.finish(run)
    assert queue.run(run.run_id)[0] == "pending"
    queue.check()


def test_a_worker_that_is_known_to_be_dead_is_not_waited_for(queue: Queue) -> None:
    queue.add("t")
    run = queue.claim_one()
    assert queue.recover(is_dead=lambda worker_id: False) == []
    assert [found.run_id for found in queue.recover(is_dead=lambda worker_id: worker_id == "worker")] == [run.run_id]
    assert not queue.finish(run)


def test_a_run_that_kills_its_workers_ends_and_blocks_nobody(queue: Queue) -> None:
    queue.add("t", run_id="deadly")
    behind = queue.add("t")
    statuses = []
    for _ in range(3):
        run = queue.claim_one()
        assert run.run_id == "deadly"
        queue.expire(run)
        statuses += [found.status for found in queue.recover()]
        queue.check()
    assert statuses == ["pending", "pending", "error"]
    assert queue.run("deadly") == ("error", 3, "WorkerDied")
    assert queue.dead_letters() == ["deadly"]
    assert queue.claim_one().run_id == behind


def test_deaths_count_anew_after_each_checkpoint(queue: Queue) -> None:
    queue.put("t", "other")
    queue.add("t", run_id="r")
    crashes = []
    for makes_checkpoint in (False, False, True, False, False, False):
        run = queue.claim_one()
        if makes_checkpoint:
            queue.put("t", "r")
        queue.expire(run)
        crashes += [found.crashes for found in queue.recover()]
    assert crashes == [1, 2, 0, 1, 2, 3]
    assert queue.run("r")[0] == "error"


@pytest.mark.parametrize(("max_attempts", "deaths"), [(1, 10), (12, 12)])
def test_a_run_that_kills_a_worker_after_each_checkpoint_ends(queue: Queue, max_attempts: int, deaths: int) -> None:
    queue.add("t", run_id="r", max_attempts=max_attempts)
    statuses = []
    for _ in range(deaths):
        run = queue.claim_one()
        queue.put("t", "r")
        queue.expire(run)
        statuses += [found.status for found in queue.recover(max_crashes=1)]
    assert statuses == ["pending"] * (deaths - 1) + ["error"]
    assert queue.run("r") == ("error", deaths, "WorkerDied")
    assert queue.execute("SELECT error_message FROM {}.runs") == [(f"its worker died in attempt {deaths}",)]
    assert queue.dead_letters() == ["r"]
    queue.check()


def test_runs_that_died_together_are_claimed_alone_and_only_such_a_death_ends_them(queue: Queue) -> None:
    for name in ("a", "b"):
        queue.add(name, run_id=name)
    together = queue.claim()
    queue.expire(*together)
    # The first death is no end, whatever the limit: the other one may have killed the worker.
    assert [one.status for one in queue.recover(max_crashes=1)] == ["pending", "pending"]
    queue.add("fresh", run_id="fresh")
    assert [run.run_id for run in queue.claim(suspects=False)] == ["fresh"]
    (alone,) = queue.claim(1, suspects=True)
    assert alone.is_suspect
    queue.expire(alone)
    assert [one.status for one in queue.recover(max_crashes=1)] == ["error"]
    (other,) = queue.claim(1, suspects=True)
    queue.put(other.thread_id, other.run_id)
    queue.expire(other)
    assert [one.status for one in queue.recover(max_crashes=1)] == ["pending"]
    # It has made progress.
    assert [run.is_suspect for run in queue.claim(suspects=False)] == [False]
    queue.check()


def test_the_idlest_worker_that_accepts_it_takes_a_run_that_is_claimed_alone(queue: Queue) -> None:
    dead: set[str] = set()

    def chosen(graphs: Sequence[str] = ("graph",)) -> str | None:
        found: str | None = queue.do(claiming.choose_isolated, "default", graphs, None, dead.__contains__)
        return found

    for worker_id, name, graph in (
        ("worker", "default", "graph"),
        ("workless", "default", "graph"),
        ("other", "default", "else"),
        ("elsewhere", "others", "graph"),
        ("frozen", "default", "graph"),
    ):
        queue.do(tending.put_worker, worker_id, [name], [graph], 10)
    queue.execute("UPDATE {}.workers SET seen_at = now() - interval '11 s' WHERE worker_id = 'frozen'")
    queue.add("o", queue="others")
    queue.expire(*queue.claim(queue="others"))
    queue.recover()
    queue.add("t", run_id="t")
    assert chosen() is None
    queue.claim()
    queue.add("s", run_id="s")
    queue.expire(queue.claim_one())
    queue.recover()
    assert (chosen(), chosen(["else"])) == ("workless", None)
    dead.add("workless")
    assert chosen() == "worker"
    dead.clear()
    queue.do(tending.ask_drain, "workless")
    assert chosen() == "worker"
    # No worker waits for its runs to end while the queue is paused.
    queue.do(put_limit, request_limit("default", None, 0, None))
    assert chosen() is None
    queue.do(put_limit, request_limit("default", None, 1, None))
    assert chosen() == "worker"
    queue.do(put_limit, request_limit("default", None, None, None))
    queue.claim(1, suspects=True)
    assert chosen() is None


def test_a_run_of_a_version_is_claimed_alone_by_a_worker_of_the_version(queue: Queue) -> None:
    for worker_id, version in (("a", "1"), ("b", "2")):
        queue.do(tending.put_worker, worker_id, ["default"], ["graph"], 10, {"graph": [version]})
    queue.add("t", version="2")
    queue.expire(*queue.claim(versions={"graph": ["2"]}))
    queue.recover()
    both = {"graph": ["1", "2"]}
    assert queue.do(claiming.choose_isolated, "default", ["graph"], both, set[str]().__contains__) == "b"


@pytest.mark.parametrize(("action", "status"), [("cancel", "cancelled"), ("interrupt", "interrupted")])
def test_a_run_that_was_to_be_cancelled_ends_when_its_worker_has_died(queue: Queue, action: str, status: str) -> None:
    queue.add("t")
    run = queue.claim_one()
    assert queue.cancel("t", run.run_id, action) == "running"
    queue.expire(run)
    assert [found.status for found in queue.recover()] == [status]
    assert queue.rows() == []
    assert queue.run(run.run_id)[0] == status
    queue.check()


def test_a_run_that_was_to_be_rolled_back_is_gone_when_its_worker_has_died(queue: Queue) -> None:
    queue.add("t", run_id="r")
    run = queue.claim_one()
    queue.put("t", "r")
    queue.cancel("t", "r", "rollback")
    queue.expire(run)
    assert [found.status for found in queue.recover()] == ["cancelled"]
    assert queue.execute("SELECT 1 FROM {}.checkpoints") == queue.execute("SELECT 1 FROM {}.runs") == []
    queue.check()


def test_a_run_that_kills_its_workers_is_rolled_back_if_that_was_asked(queue: Queue) -> None:
    queue.add("t", run_id="r")
    run = queue.claim_one()
    queue.put("t", "r")
    queue.cancel("t", "r", "rollback")
    queue.expire(run)
    assert [found.status for found in queue.recover(max_crashes=1)] == ["cancelled"]
    queue.add("u", run_id="s")
    queue.expire(queue.claim_one())
    queue.cancel("u", "s", "rollback")
    assert [found.status for found in queue.recover(max_crashes=1)] == ["cancelled"]
    assert queue.execute("SELECT 1 FROM {}.runs") == queue.execute("SELECT 1 FROM {}.checkpoints") == []
    queue.check()


def test_two_sweeps_recover_a_run_once(queue: Queue) -> None:
    """Both have found it; the second finds it changed when it has the thread's row."""
    queue.add("t")
    run = queue.claim_one()
    queue.expire(run)
    lost = queue.do(find_lost)
    assert len(lost) == 1
    queue.recover()
    # Claimed again, and then the other sweep comes to it.
    again = queue.claim_one()
    lease = {"thread_id": "t", "fencing_token": run.lease.fencing_token}
    parameters = {**lease, "run_id": run.run_id, "max_crashes": 3, "max_attempts": 30}
    for is_dead in (False, True):
        assert queue.do(execute, "fence_lease", {**lease, "is_dead": is_dead}) == 0
    assert queue.do(fetch, "recover_run", parameters) == []
    # As if the worker had renewed a lease that was found expired.
    renewed = {"thread_id": "t", "fencing_token": again.lease.fencing_token}
    assert queue.do(execute, "fence_lease", {**renewed, "is_dead": False}) == 0
    assert queue.do(fetch, "recover_run", {**parameters, **renewed}) == []
    assert queue.do(finish, again.key, "success")


async def find_lost(db: object, queries: object) -> object:
    return await fetch(db, queries, "find_lost", {"dead_worker_ids": [], "page_size": 10})


async def fetch(db: object, queries: object, name: str, parameters: object) -> object:
    return await db.fetch(getattr(queries, name), parameters)  # type: ignore[attr-defined]


async def execute(db: object, queries: object, name: str, parameters: object) -> object:
    return await db.execute(getattr(queries, name), parameters)  # type: ignore[attr-defined]


def test_runs_that_nothing_has_made_ready_are_repaired(queue: Queue) -> None:
    ids = [queue.add("t"), queue.add("u"), queue.add("u")]
    queue.execute("UPDATE {}.queue SET is_ready = false")
    assert queue.claim() == []
    assert queue.do(tending.repair) == 2
    assert {run.run_id for run in queue.claim()} == {*ids[:2]}
    assert queue.do(tending.repair) == 0


def test_a_worker_that_was_not_seen_for_a_day_is_forgotten(queue: Queue) -> None:
    for worker_id in ("old", "new", "stopped"):
        queue.do(tending.put_worker, worker_id, ["default"], ["graph"], 10)
    queue.execute("UPDATE {}.workers SET seen_at = now() - interval '2 days' WHERE worker_id = 'old'")
    queue.do(tending.delete_worker, "stopped")
    queue.do(tending.repair)
    assert queue.execute("SELECT worker_id FROM {}.workers") == [("new",)]


def test_a_worker_is_asked_to_drain_by_name(queue: Queue) -> None:
    queue.do(tending.put_worker, "worker", ["default"], ["graph"], 10)
    assert not queue.do(tending.is_drain_asked, "worker")
    assert queue.do(tending.ask_drain, "worker", "eve")
    assert queue.do(tending.is_drain_asked, "worker")
    assert not queue.do(tending.ask_drain, "another", "eve")
    events = queue.execute("SELECT thread_id, kind, payload FROM {}.events")
    assert events == [("worker:worker", "action", {"action": "drain", "by": "eve"})]
    queue.add("t")
    queue.claim_one()
    (worker,) = queue.do(list_workers)
    assert (worker.worker_id, worker.is_alive, worker.running, worker.queues) == ("worker", True, 1, ["default"])
    assert worker.drain_asked_at is not None
