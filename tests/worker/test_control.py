"""Settings of workers, and what their control thread does with runs that do not end as they should."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from typing import Any

import psycopg
import pytest
from support import GUARD_SECONDS, loop_graph, wait_until

from langgraph_pgstate import AsyncPGState, AsyncWorker, Backoff, PGState, Worker
from langgraph_pgstate.errors import RunFailedError, UnavailableError


@pytest.mark.slow
def test_a_run_that_is_left_each_time_ends_as_often_as_its_worker_may_die(dsn: str, schema: str) -> None:
    calls: list[int] = []

    def fail(count: int) -> None:
        calls.append(count)
        raise UnavailableError("a database of the node's own")

    graphs = {"agent": loop_graph(1, fail)}
    with PGState.open(dsn, schema=schema) as state, Worker(state, graphs, lease_ttl=0.3, poll=0.05):
        run = state.runs.enqueue("agent", {"count": 0}, thread_id="t")
        with pytest.raises(RunFailedError, match="WorkerDied"):
            run.wait(GUARD_SECONDS)
    # The first attempt has stored a checkpoint.
    assert len(calls) == 4


def count_turns(worker: Any, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A list that grows with each turn of a worker's control thread."""
    turns: list[int] = []
    turn = worker._control._turn

    def counted() -> Any:
        turns.append(1)
        return turn()

    monkeypatch.setattr(worker._control, "_turn", counted)
    return turns


async def test_a_worker_whose_event_loop_is_closed_leaves_the_runs_to_others(dsn: str, schema: str) -> None:
    """Guard: it would claim the runs and give them back, again and again."""
    graphs = {"agent": loop_graph(1)}
    loop = asyncio.new_event_loop()
    loop.close()
    async with AsyncPGState.open(dsn, schema=schema) as state, AsyncWorker(state, graphs, poll=0.05) as left:
        left._loop = loop
        run = await state.runs.enqueue("agent", {"count": 0}, thread_id="t")
        await asyncio.to_thread(wait_until, lambda: left._control.join(0.01), "the end of the worker")
        assert await state.runs.workers() == ()
        async with AsyncWorker(state, graphs):
            assert (await run.wait(GUARD_SECONDS))["count"] == 1


@pytest.mark.slow
def test_a_queue_that_fails_at_once_is_not_asked_without_a_pause(
    dsn: str, schema: str, connection: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    with PGState.open(dsn, schema=schema) as state, Worker(state, {"agent": loop_graph(1)}) as worker:
        connection.execute(f"ALTER TABLE {schema}.queue RENAME TO gone".encode())
        turns, since = count_turns(worker, monkeypatch), time.monotonic()
        time.sleep(1)
        wait_until(lambda: bool(turns), "a turn")
        assert len(turns) < 20 * (time.monotonic() - since)
        connection.execute(f"ALTER TABLE {schema}.gone RENAME TO queue".encode())
        assert state.runs.enqueue("agent", {"count": 0}, thread_id="t").wait(GUARD_SECONDS)["count"] == 1


@pytest.mark.slow
async def test_a_run_that_takes_its_time_to_stop_is_waited_for_with_pauses(
    dsn: str, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from langgraph.graph import START, StateGraph

    async def linger(state: dict[str, Any]) -> None:
        try:
            await asyncio.sleep(20)
        finally:
            await asyncio.sleep(1)

    graph = StateGraph(dict).add_node(linger).add_edge(START, "linger").compile()
    async with AsyncPGState.open(dsn, schema=schema) as state, AsyncWorker(state, {"agent": graph}) as worker:
        turns = count_turns(worker, monkeypatch)
        run = await state.runs.enqueue("agent", {}, thread_id="t", timeout=0.1)
        with pytest.raises(RunFailedError, match="timeout"):
            await run.wait(GUARD_SECONDS)
        assert len(turns) < 40


def test_failures_are_logged_with_their_tracebacks_and_a_drain_with_what_it_gives_back(
    dsn: str, schema: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "langgraph_pgstate.worker")
    gate, begun = threading.Event(), threading.Event()

    def fail(count: int) -> None:
        raise KeyError("a node's mistake")

    def wait(count: int) -> None:
        begun.set()
        gate.wait(GUARD_SECONDS)

    graphs = {"failing": loop_graph(1, fail), "waiting": loop_graph(2, wait)}
    with PGState.open(dsn, schema=schema) as state:
        with Worker(state, graphs, poll=0.05) as worker:
            policy = Backoff(initial=0.01, jitter=0, retry_on=[KeyError])
            failed = state.runs.enqueue("failing", {"count": 0}, thread_id="t", max_attempts=2, retry=policy)
            with pytest.raises(RunFailedError):
                failed.wait(GUARD_SECONDS)
            given_back = state.runs.enqueue("waiting", {"count": 0}, thread_id="u")
            assert begun.wait(GUARD_SECONDS)
            executions = worker._control._lane.executions
            asked = lambda: any(one.stop == "drain" for one in [*executions.values()])  # noqa: E731
            threading.Thread(target=lambda: (wait_until(asked, "the drain"), gate.set())).start()
        assert given_back.status() == "pending"
    first, last = (record for record in caplog.records if "failed" in record.message)
    assert (first.message, last.message) == (
        f"run {failed.run_id} of thread t failed; it is tried again in 0.0 s",
        f"run {failed.run_id} of thread t failed",
    )
    assert caplog.text.count('raise KeyError("a node\'s mistake")') == 2
    told = [
        record.message.partition(" ")[2].partition(" ")[2]
        for record in caplog.records
        if record.levelno == logging.INFO and record.message.startswith("worker")
    ]
    assert f"resumes run {failed.run_id} of thread t (attempt 2)" in caplog.messages
    assert told == [
        "runs failing, waiting from default, 10 at once",
        "drains; runs to stop: 1",
        "has stopped; runs requeued: 1",
    ]


@pytest.mark.parametrize("threshold", [None, 7])
def test_a_worker_prepares_statements_as_its_state_does(threshold: int | None, dsn: str, schema: str) -> None:
    """An older PgBouncer knows no prepared statements."""
    graphs, opened = {"agent": loop_graph(1)}, PGState.open(dsn, schema=schema, prepare_threshold=threshold)
    with opened as state, Worker(state, graphs) as worker:
        assert state.runs.enqueue("agent", {"count": 0}).wait(GUARD_SECONDS)["count"] == 1
        assert worker._control._database.prepare_threshold == (None if threshold is None else 0)
