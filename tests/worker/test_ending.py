"""Ends of runs: many in one transaction, and none that waits for a thread which somebody has locked."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from support import GUARD_SECONDS, loop_graph, wait_until

from langgraph_pgstate import PGState, Worker
from langgraph_pgstate.db.database import Database
from langgraph_pgstate.runs import ending
from langgraph_pgstate.saver import common
from langgraph_pgstate.worker.ending import Ender


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


def end_after(monkeypatch: pytest.MonkeyPatch, can_end: Callable[[int], bool]) -> None:
    """Have workers end no runs until a number of reported ones may be ended."""
    end_reported = Ender.end_reported

    def end(ender: Ender, database: Database) -> None:
        # None of them: those that come now are ended in the next turn.
        if number := ender.reported:
            while not can_end(number):
                time.sleep(0.01)
                number = ender.reported
            end_reported(ender, database)

    monkeypatch.setattr(Ender, "end_reported", end)


@pytest.mark.slow
def test_runs_that_have_ended_meanwhile_are_ended_in_one_transaction(
    dsn: str, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    barrier = threading.Barrier(8)
    graphs = {"agent": loop_graph(1, lambda count: barrier.wait(GUARD_SECONDS) and None)}
    with (
        PGState.open(dsn, schema=schema) as state,
        Worker(state, graphs, concurrency=8),
        counted_ends(monkeypatch) as calls,
    ):
        end_after(monkeypatch, lambda number: number == 8)
        runs = state.runs.enqueue_batch([{"graph": "agent", "input": {"count": 0}}] * 8)
        for run in runs:
            assert run.wait(GUARD_SECONDS)["count"] == 1
    assert calls == [("finish_together", 8)]


@pytest.mark.slow
def test_runs_that_end_together_let_the_next_of_their_keys_begin_at_once(
    dsn: str, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    barrier = threading.Barrier(2)
    graphs = {"agent": loop_graph(1, lambda count: barrier.wait(GUARD_SECONDS) and None)}
    with (
        PGState.open(dsn, schema=schema) as state,
        Worker(state, graphs, concurrency=4, poll=30),
        counted_ends(monkeypatch) as calls,
    ):
        state.runs.limit("default", key="*", concurrency=1)
        end_after(monkeypatch, lambda number: number == 2)
        runs = state.runs.enqueue_batch(
            [{"graph": "agent", "input": {"count": 0}, "key": key} for _ in range(3) for key in ("a", "b")]
        )
        for run in runs:
            run.wait(GUARD_SECONDS)
        assert [name for name, _ in calls].count("finish_together") == 3


@pytest.mark.slow
def test_a_locked_thread_keeps_no_later_runs_from_ending_together(
    dsn: str, schema: str, connection: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    barrier = threading.Barrier(2)
    graphs = {"alone": loop_graph(1), "pair": loop_graph(1, lambda count: barrier.wait(GUARD_SECONDS) and None)}
    is_locked = threading.Event()
    with PGState.open(dsn, schema=schema) as state, counted_ends(monkeypatch) as calls, ExitStack() as stack:
        worker = Worker(state, graphs, concurrency=4)
        # The locked run is one of three.
        end_after(monkeypatch, lambda number: is_locked.is_set() and number in (1, 3))
        stack.enter_context(worker)
        locked = state.runs.enqueue("alone", {"count": 0}, thread_id="t")
        wait_until(lambda: bool(worker._control._lane.ender.reported), "its outcome")
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


@pytest.mark.slow
def test_a_thread_that_a_caller_has_locked_delays_no_run_of_another(
    dsn: str, schema: str, connection: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(common, "_TOUCH_SECONDS", 2 * GUARD_SECONDS)
    calls: list[int] = []
    gate, is_renewed = threading.Event(), threading.Event()

    def linger(count: int) -> None:
        calls.append(count)
        is_renewed.wait(GUARD_SECONDS)

    def stored() -> int:
        query = f"SELECT count(*) FROM {schema}.checkpoints WHERE thread_id = 't'"
        return connection.execute(query.encode()).fetchone()[0]  # type: ignore[index]

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
        # The first put of a run waits for whoever has locked the thread's row, and so does one a few seconds later.
        wait_until(lambda: short.status() == "running" and bool(calls) and stored() > 0, "both runs")
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
