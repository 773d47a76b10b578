"""Settings of workers, and what their control thread does with runs that do not end as they should."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from support import GUARD_SECONDS, loop_graph, wait_until

from langgraph_pgstate import AsyncPGState, AsyncWorker, Backoff, PGState, Worker
from langgraph_pgstate.db.database import Database
from langgraph_pgstate.errors import RunFailedError, UnavailableError
from langgraph_pgstate.operations.runs import ending


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


@contextmanager
def counted_ends(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[str, int | None]]]:
    """The calls that end runs, with the number of runs that they have ended; `None` for those that failed."""
    calls: list[tuple[str, int | None]] = []
    run = Database.run

    def counted(database: Any, operation: Any, *arguments: Any, **options: Any) -> Any:
        if operation not in (ending.finish, ending.finish_together):
            return run(database, operation, *arguments, **options)
        number: int | None = None
        try:
            found = run(database, operation, *arguments, **options)
            number = len(arguments[1]) if operation is ending.finish_together else 1
        finally:
            calls.append((operation.__name__, number))
        return found

    monkeypatch.setattr(Database, "run", counted)
    yield calls


def end_after(worker: Any, monkeypatch: pytest.MonkeyPatch, can_end: Callable[[int], bool]) -> None:
    """Have a worker end no runs until a number of reported ones may be ended."""
    control = worker._control
    end_reported = control._end_reported

    def end() -> None:
        # None of them: those that come now are ended in the next turn.
        if number := len(control._reports):
            while not can_end(number):
                time.sleep(0.01)
                number = len(control._reports)
            end_reported()

    monkeypatch.setattr(control, "_end_reported", end)


def test_runs_that_have_ended_meanwhile_are_ended_in_one_transaction(
    dsn: str, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    barrier = threading.Barrier(8)
    graphs = {"agent": loop_graph(1, lambda count: barrier.wait(GUARD_SECONDS) and None)}
    with (
        PGState.open(dsn, schema=schema) as state,
        Worker(state, graphs, concurrency=8) as worker,
        counted_ends(monkeypatch) as calls,
    ):
        end_after(worker, monkeypatch, lambda number: number == 8)
        runs = state.runs.enqueue_batch([{"graph": "agent", "input": {"count": 0}}] * 8)
        for run in runs:
            assert run.wait(GUARD_SECONDS)["count"] == 1
    assert calls == [("finish_together", 8)]


def test_runs_that_end_together_let_the_next_of_their_keys_begin_at_once(
    dsn: str, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    barrier = threading.Barrier(2)
    graphs = {"agent": loop_graph(1, lambda count: barrier.wait(GUARD_SECONDS) and None)}
    with (
        PGState.open(dsn, schema=schema) as state,
        Worker(state, graphs, concurrency=4, poll=30) as worker,
        counted_ends(monkeypatch) as calls,
    ):
        state.runs.limit("default", key="*", concurrency=1)
        end_after(worker, monkeypatch, lambda number: number == 2)
        runs = state.runs.enqueue_batch(
            [{"graph": "agent", "input": {"count": 0}, "key": key} for _ in range(3) for key in ("a", "b")]
        )
        for run in runs:
            run.wait(GUARD_SECONDS)
        assert [name for name, _ in calls].count("finish_together") == 3


def test_a_locked_thread_keeps_no_later_runs_from_ending_together(
    dsn: str, schema: str, connection: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    barrier = threading.Barrier(2)
    graphs = {"alone": loop_graph(1), "pair": loop_graph(1, lambda count: barrier.wait(GUARD_SECONDS) and None)}
    is_locked = threading.Event()
    with PGState.open(dsn, schema=schema) as state, counted_ends(monkeypatch) as calls, ExitStack() as stack:
        worker = Worker(state, graphs, concurrency=4)
        # The locked run is one of three.
        end_after(worker, monkeypatch, lambda number: is_locked.is_set() and number in (1, 3))
        stack.enter_context(worker)
        locked = state.runs.enqueue("alone", {"count": 0}, thread_id="t")
        wait_until(lambda: bool(worker._control._reports), "its outcome")
        with psycopg.connect(dsn) as caller:
            caller.execute(f"SELECT 1 FROM {schema}.threads WHERE thread_id = 't' FOR UPDATE".encode())
            is_locked.set()
            for _ in range(3):
                for run in state.runs.enqueue_batch([{"graph": "pair", "input": {"count": 0}}] * 2):
                    run.wait(GUARD_SECONDS)
            failed = [name for name, number in calls if name == "finish_together" and number is None]
            assert len(failed) <= 1
            assert locked.status() == "running"
        locked.wait(GUARD_SECONDS)


def test_a_thread_that_a_caller_has_locked_delays_no_run_of_another(
    dsn: str, schema: str, connection: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []
    gate, is_renewed = threading.Event(), threading.Event()

    def linger(count: int) -> None:
        calls.append(count)
        is_renewed.wait(GUARD_SECONDS)

    def renewed_at() -> Any:
        query = f"SELECT renewed_at FROM {schema}.leases WHERE thread_id = 'u'"
        return connection.execute(query.encode()).fetchone()

    graphs = {"short": loop_graph(1, lambda count: gate.wait(GUARD_SECONDS) and None), "long": loop_graph(1, linger)}
    with (
        PGState.open(dsn, schema=schema) as state,
        counted_ends(monkeypatch) as ends,
        Worker(state, graphs, lease_ttl=4, poll=0.05),
    ):
        short = state.runs.enqueue("short", {"count": 0}, thread_id="t")
        long = state.runs.enqueue("long", {"count": 0}, thread_id="u")
        state.runs.enqueue("short", {"count": 0}, thread_id="t", run_after=timedelta(seconds=0.5))
        wait_until(lambda: short.status() == "running" and bool(calls), "both runs")
        with psycopg.connect(dsn) as caller:
            behind = state.runs.enqueue("short", {"count": 0}, thread_id="t", connection=caller)
            gate.set()
            wait_until(lambda: len(ends) > 1, "attempts to end the run")
            # Another run is begun meanwhile, and the lease of one that runs is kept.
            before = renewed_at()
            state.runs.enqueue("short", {"count": 0}, thread_id="v").wait(GUARD_SECONDS)
            wait_until(lambda: renewed_at() != before, "a lease that is renewed")
            is_renewed.set()
            long.wait(GUARD_SECONDS)
            assert calls == [0]
            assert short.status() == "running"
        assert short.wait(GUARD_SECONDS)["count"] == 1
        behind.wait(GUARD_SECONDS)


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
            executions = worker._control._executions
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
    assert f"goes on with run {failed.run_id} of thread t (attempt 2)" in caplog.messages
    assert told == [
        "runs failing, waiting from default, 10 at once",
        "drains; runs to stop: 1",
        "has stopped; runs given back: 1",
    ]


@pytest.mark.parametrize("threshold", [None, 7])
def test_a_worker_prepares_statements_as_its_state_does(threshold: int | None, dsn: str, schema: str) -> None:
    """An older PgBouncer knows no prepared statements."""
    graphs, opened = {"agent": loop_graph(1)}, PGState.open(dsn, schema=schema, prepare_threshold=threshold)
    with opened as state, Worker(state, graphs) as worker:
        assert state.runs.enqueue("agent", {"count": 0}).wait(GUARD_SECONDS)["count"] == 1
        assert worker._control._database.prepare_threshold == (None if threshold is None else 0)
