"""What a worker's claimer remembers of limits, and versions that a worker accepts."""

from __future__ import annotations

import time
from typing import Any

import psycopg
import pytest
from support import GUARD_SECONDS, loop_graph, wait_until
from support.queue import STATES, Queue, call, open_state
from support.worker import Place, enqueue, kill, wait_for_ends, worker

from langgraph_pgstate import AsyncWorker, PGState, Rate, Worker
from langgraph_pgstate.db.database import Database
from langgraph_pgstate.runs.queue import put_limit, request_limit
from langgraph_pgstate.schema.queries import queries
from langgraph_pgstate.worker.claims import Claimer


def test_an_ended_run_lets_the_next_of_its_key_be_claimed_at_once(connection: psycopg.Connection, schema: str) -> None:
    queue, database = Queue(connection, schema), Database(connection, schema=schema)
    claimer = Claimer(queries(schema), "worker", ["graph"], {}, ttl=60, poll=60)
    queue.do(put_limit, request_limit("default", "*", 1, None))
    for number in range(3):
        queue.add(f"t{number}", key="k")
    for number in range(3):
        (run,) = claimer.claim(database, "default", 10)
        assert run.thread_id == f"t{number}"
        assert claimer.claim(database, "default", 10) == []
        queue.finish(run)
        claimer.ended(run)


def test_what_another_worker_ended_is_found_after_a_while(connection: psycopg.Connection, schema: str) -> None:
    queue, database = Queue(connection, schema), Database(connection, schema=schema)
    claimer = Claimer(queries(schema), "worker", ["graph"], {}, ttl=60, poll=0.05)
    queue.do(put_limit, request_limit("default", "*", 1, None))
    queue.add("t0", key="k")
    queue.add("t1", key="k")
    (run,) = claimer.claim(database, "default", 10)
    assert claimer.claim(database, "default", 10) == []
    queue.finish(run)
    time.sleep(0.06)
    assert [one.thread_id for one in claimer.claim(database, "default", 10)] == ["t1"]


def test_a_new_worker_finds_what_waits_below_its_limit(connection: psycopg.Connection, schema: str) -> None:
    queue, database = Queue(connection, schema), Database(connection, schema=schema)
    queue.do(put_limit, request_limit("default", "*", 1, None))
    queue.add("t0", key="k")
    queue.add("t1", key="k")
    (run,) = queue.claim()
    queue.finish(run)
    assert queue.claim() == []
    claimer = Claimer(queries(schema), "worker", ["graph"], {}, ttl=60, poll=60)
    assert [one.thread_id for one in claimer.claim(database, "default", 10)] == ["t1"]


def test_a_claim_is_tried_again_soon_when_another_worker_claims(
    dsn: str, connection: psycopg.Connection, schema: str
) -> None:
    queue, database = Queue(connection, schema), Database(connection, schema=schema)
    claimer = Claimer(queries(schema), "worker", ["graph"], {}, ttl=60, poll=60)
    queue.do(put_limit, request_limit("default", None, 9, None))
    queue.add("t0")
    (run,) = claimer.claim(database, "default", 10)
    queue.finish(run)
    queue.add("t1")
    with psycopg.connect(dsn) as other:
        other.execute(f"SELECT 1 FROM {schema}.queue_keys FOR UPDATE".encode())
        assert claimer.claim(database, "default", 10) == []
        assert claimer.due_at < time.monotonic() + 1
    assert [one.thread_id for one in claimer.claim(database, "default", 10)] == ["t1"]
    assert claimer.due_at == float("inf")


def test_a_run_goes_to_workers_of_its_version(connection: psycopg.Connection, schema: str) -> None:
    queue = Queue(connection, schema)
    for version in ("", "1", "2"):
        queue.add(f"t{version}", version=version)
    assert [run.thread_id for run in queue.claim(versions={"graph": ["2"], "other": ["1"]})] == ["t", "t2"]
    assert queue.claim() == []
    (run,) = queue.claim(versions={"graph": ["1"]})
    queue.give_back(run)
    assert queue.claim() == []
    (run,) = queue.claim(versions={"graph": ["1"]})
    queue.fail(run)
    assert queue.retry("t1", run.run_id)
    assert queue.claim() == []
    assert [run.thread_id for run in queue.claim(versions={"graph": ["1"]})] == ["t1"]


@pytest.mark.parametrize("api", STATES)
async def test_a_run_that_no_worker_accepts_is_shown_and_blocks_nobody(api: type, dsn: str, schema: str) -> None:
    graphs = {"agent": loop_graph(1)}
    kind = Worker if api is PGState else AsyncWorker
    async with open_state(api, dsn, schema) as state:
        await call(state.runs.enqueue, "agent", {"count": 0}, thread_id="old", version="1", priority=9)
        run = await call(state.runs.enqueue, "agent", {"count": 0}, thread_id="new", version="2")
        opened = kind(state, graphs, versions={"agent": "2"}, poll=0.05, concurrency=1)
        async with opened if api is not PGState else _Entered(opened):
            assert (await call(run.wait, GUARD_SECONDS))["count"] == 1
            (left,) = (await call(state.runs.queued)).items
            assert (left.thread_id, left.version, left.is_accepted) == ("old", "1", False)
            (counted,) = await call(state.runs.counts)
            assert (counted.version, counted.is_accepted) == ("1", False)


class _Entered:
    """A blocking context manager in an async one."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    async def __aenter__(self) -> Any:
        return await call(self.inner.__enter__)

    async def __aexit__(self, *error: Any) -> None:
        await call(self.inner.__exit__, *error)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [Worker, AsyncWorker])
def test_workers_keep_limits_and_a_killed_one_frees_its_slots(
    kind: type, dsn: str, schema: str, connection: psycopg.Connection, tmp_path: Any
) -> None:
    place = Place(tmp_path)
    place.hold("step 0")
    graphs = {"agent": place.graph(1)}
    with PGState.open(dsn, schema=schema) as state:
        state.runs.limit("default", concurrency=2)
        state.runs.limit("default", key="*", concurrency=1)
        for number in range(6):
            enqueue(state, thread_id=f"t{number}", key="a" if number < 4 else f"k{number}")
        with worker(kind, dsn, schema, graphs) as first:
            wait_until(lambda: len(place.notes()) == 2, "two runs")
            with worker(kind, dsn, schema, graphs):
                time.sleep(0.3)
                assert len(place.notes()) == 2
                kill(first)
                place.wait_for("begin step 0", 4)
                (limit, each) = state.runs.limits()
                assert (limit.running, each.running) == (2, 2)
                place.release("step 0")
                wait_for_ends(connection, schema)
    found = connection.execute(f"SELECT status, count(*) FROM {schema}.runs GROUP BY status".encode()).fetchall()
    assert found == [("success", 6)]


@pytest.mark.slow
def test_a_rate_delays_runs_and_loses_none(dsn: str, schema: str) -> None:
    with PGState.open(dsn, schema=schema, run_key="configurable.user_id") as state:
        state.runs.limit("default", key="*", rate=Rate(2, per=0.7))
        config = {"configurable": {"user_id": "ada"}}
        handles = [enqueue(state, config=config) for _ in range(5)]
        began = time.monotonic()
        with Worker(state, {"agent": loop_graph(1)}, poll=0.05):
            assert [handle.wait(GUARD_SECONDS)["count"] for handle in handles] == [1] * 5
        assert time.monotonic() - began > 1.3
