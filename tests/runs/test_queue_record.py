"""The record of enqueued runs: the queue writes status, attempt, end and error, and the recorder the rest."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import psycopg
import pytest
from support import loop_graph, move_journal
from support.queue import CODEC, Queue

from langgraph_pgstate import PGState
from langgraph_pgstate.runs.inputs import open_input

INPUT = {"items": [], "count": 0}


@pytest.fixture
def queue(connection: psycopg.Connection, schema: str) -> Queue:
    return Queue(connection, schema)


def invoke(queue: Queue, state: PGState, steps: int = 2, fails: bool = False) -> Any:
    """Claim the next run and run it recorded, as a worker does; it is not ended."""

    def hook(count: int) -> None:
        if fails and count == 1:
            raise ValueError("no")

    run = queue.claim_one()
    graph = state.record(loop_graph(steps, hook).compile(checkpointer=state.saver))
    config: Any = {
        "run_id": UUID(run.run_id),
        "configurable": {"thread_id": run.thread_id, "run_id": run.run_id},
        "metadata": {"run_id": run.run_id},
    }
    given = open_input(CODEC, run.data).input if run.checkpoint_id is None else None
    try:
        graph.invoke(given, config)
    except ValueError:
        assert fails
    return run


@pytest.mark.parametrize("is_recorded_first", [True, False])
def test_the_end_is_the_queues_and_the_rest_the_recorders(is_recorded_first: bool, dsn: str, queue: Queue) -> None:
    with PGState.open(dsn, schema=queue.schema) as state:
        handle = state.runs.enqueue("graph", INPUT, thread_id="t")
        queued = state.runs.get("t", handle.run_id)
        assert queued is not None
        run = invoke(queue, state)
        if is_recorded_first:
            state.flush()
            found = state.runs.get("t", handle.run_id)
            assert found is not None
            assert (found.status, found.attempt, found.ended_at, found.is_crashed) == ("running", 1, None, False)
        assert queue.finish(run)
        state.flush()
        found = state.runs.get("t", handle.run_id)
        assert found is not None
        assert (found.status, found.attempt, found.steps, found.error_type) == ("success", 1, 2, None)
        assert found.ended_at is not None
        assert found.started_at > queued.started_at
        assert found.first_checkpoint_id is not None
        assert found.output == {"items": ["item 0", "item 1"], "count": 2}
        assert queue.thread("t") == "idle"
        assert len(state.spans.list("t").items) > 2
    queue.check()


def test_attempts_of_a_run_are_one_row(dsn: str, queue: Queue) -> None:
    with PGState.open(dsn, schema=queue.schema) as state:
        handle = state.runs.enqueue("graph", INPUT, thread_id="t", max_attempts=2)
        run = invoke(queue, state, fails=True)
        assert queue.fail(run, retry_after=0.0)
        state.flush()
        found = state.runs.get("t", handle.run_id)
        assert found is not None
        assert (found.status, found.attempt, found.error_type) == ("pending", 1, "ValueError")
        assert queue.thread("t") == "busy"
        queue.make_due()
        run = invoke(queue, state)
        assert run.attempt == 2
        queue.finish(run)
        state.flush()
        (found,) = state.runs.list(thread_id="t").items
        assert (found.status, found.attempt, found.error_type) == ("success", 2, None)
        assert handle.wait()["items"] == ["item 0", "item 1"]
    queue.check()


def test_an_error_that_the_recorder_saw_is_told_by_the_queue_alone(dsn: str, queue: Queue) -> None:
    """The recorder writes what its process saw; what becomes of the run is decided under its lease."""
    with PGState.open(dsn, schema=queue.schema) as state:
        handle = state.runs.enqueue("graph", INPUT, thread_id="t")
        run = invoke(queue, state, fails=True)
        state.flush()
        assert handle.status() == "running"
        assert queue.thread("t") == "busy"
        queue.give_back(run)
        state.flush()
        move_journal(queue.connection, queue.schema)
        assert handle.status() == "pending"
        queue.check()


def test_a_clock_that_is_behind_does_not_hide_the_start(dsn: str, queue: Queue) -> None:
    with PGState.open(dsn, schema=queue.schema) as state:
        state.runs.enqueue("graph", INPUT, thread_id="t")
        queue.execute("UPDATE {}.runs SET started_at = now() + interval '5 seconds'")
        run = invoke(queue, state)
        queue.finish(run)
        state.flush()
        (found,) = state.runs.list(thread_id="t").items
        assert (found.status, found.steps) == ("success", 2)
    assert queue.execute("SELECT first_started_at = started_at FROM {}.runs") == [(True,)]


def test_a_run_in_the_queue_that_has_no_process_has_not_crashed(dsn: str, queue: Queue) -> None:
    with PGState.open(dsn, schema=queue.schema) as state:
        state.runs.enqueue("graph", INPUT, thread_id="t")
        run = invoke(queue, state)
        state.flush()
        queue.execute("UPDATE {}.runs SET alive_until = now() - interval '1 second'")
        (crashed,) = state.runs.failed().items
        assert crashed.is_crashed
        queue.expire(run)
        queue.recover()
        assert state.runs.failed().items == ()
        assert queue.execute("SELECT 1 FROM {}.stuck_runs") == queue.execute("SELECT 1 FROM {}.failed_runs") == []
        for _ in range(3):
            queue.expire(queue.claim_one())
            queue.recover()
        (dead,) = state.runs.failed().items
        assert (dead.status, dead.error_type, dead.is_crashed) == ("error", "WorkerDied", True)
