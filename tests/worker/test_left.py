"""Code that a run leaves behind, and workers that cannot renew: no other run of the thread begins beside it."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from langgraph.graph import START, StateGraph
from support import GUARD_SECONDS, Gate, loop_graph, wait_until
from support.worker import WORKERS

from langgraph_pgstate import AsyncPGState, AsyncWorker, Backoff, PGState
from langgraph_pgstate.errors import RunCancelledError, RunFailedError
from langgraph_pgstate.process_identity import lease_clock
from tests.worker.test_worker import working

# Longer than a lease lasts without being renewed.
OPTIONS = {"lease_ttl": 1.0, "poll": 0.05}


class Blocking:
    """A graph whose node blocks in each attempt until it is released, and notes how many are in it at once."""

    def __init__(self) -> None:
        self.begun, self.released = threading.Event(), threading.Event()
        self.inside = self.most = self.times = 0
        self._lock = threading.Lock()

    def block(self, state: dict[str, Any]) -> None:
        with self._lock:
            self.inside += 1
            self.times += 1
            self.most = max(self.most, self.inside)
        self.begun.set()
        self.released.wait(GUARD_SECONDS)
        with self._lock:
            self.inside -= 1

    @property
    def graph(self) -> Any:
        return StateGraph(dict).add_node(self.block).add_edge(START, "block").compile()


@pytest.fixture
def state(dsn: str, schema: str) -> Iterator[PGState]:
    with PGState.open(dsn, schema=schema) as state:
        yield state


@pytest.mark.parametrize(
    "how", ["cancel", *(pytest.param(one, marks=pytest.mark.slow) for one in ("rollback", "interrupt", "timeout"))]
)
async def test_the_next_run_of_a_thread_waits_for_the_thread_that_a_cancelled_one_has_left_behind(
    how: str, dsn: str, schema: str, state: PGState
) -> None:
    node = Blocking()
    async with working(AsyncWorker, dsn, schema, {"agent": node.graph}, **OPTIONS):
        given: dict[str, Any] = {"timeout": 0.5} if how == "timeout" else {}
        first = state.runs.enqueue("agent", {}, thread_id="t", **given)
        await asyncio.to_thread(node.begun.wait, GUARD_SECONDS)
        if how == "cancel":
            state.runs.cancel("t", first.run_id)
        strategy = how if how in ("interrupt", "rollback") else "enqueue"
        second = state.runs.enqueue("agent", {}, thread_id="t", multitask_strategy=strategy)
        if how != "rollback":
            await asyncio.to_thread(wait_until, lambda: first.status() not in ("pending", "running"), "the end")
        await asyncio.sleep(1.5)
        assert node.times == 1
        assert second.status() == "pending"
        node.released.set()
        await asyncio.to_thread(second.wait, GUARD_SECONDS)
    assert (node.most, node.times) == (1, 2)
    if how == "timeout":
        with pytest.raises(RunFailedError, match="timeout"):
            first.wait(GUARD_SECONDS)
    elif how in ("cancel", "interrupt"):
        assert first.status() == {"cancel": "cancelled", "interrupt": "interrupted"}[how]


# What is left behind is not the same: a thread's run in one, and a thread of a run that has ended in the other.
@pytest.mark.slow
@pytest.mark.parametrize("kind", WORKERS, ids=["blocking", "event loop"])
async def test_the_next_run_waits_no_longer_than_the_drain_timeout(
    kind: type, dsn: str, schema: str, state: PGState
) -> None:
    node = Blocking()
    async with working(kind, dsn, schema, {"agent": node.graph}, drain_timeout=1.0, **OPTIONS):
        first = state.runs.enqueue("agent", {}, thread_id="t")
        await asyncio.to_thread(node.begun.wait, GUARD_SECONDS)
        state.runs.cancel("t", first.run_id)
        state.runs.enqueue("agent", {}, thread_id="t")
        await asyncio.to_thread(wait_until, lambda: node.times == 2, "the next run")
        with pytest.raises(RunCancelledError):
            await asyncio.to_thread(first.wait, GUARD_SECONDS)
        node.released.set()


@pytest.mark.slow
async def test_a_run_whose_nodes_fail_waits_for_those_beside_them(dsn: str, schema: str, state: PGState) -> None:
    node, failed = Blocking(), threading.Event()

    def fail(state: dict[str, Any]) -> None:
        node.begun.wait(GUARD_SECONDS)
        if not failed.is_set():
            failed.set()
            raise KeyError("once")

    graph = StateGraph(dict).add_node(node.block).add_node(fail)
    graph.add_edge(START, "block").add_edge(START, "fail")
    async with working(AsyncWorker, dsn, schema, {"agent": graph.compile()}, **OPTIONS):
        retry = Backoff(initial=0.01, jitter=0, retry_on=[KeyError])
        run = state.runs.enqueue("agent", {}, thread_id="t", max_attempts=2, retry=retry)
        await asyncio.to_thread(wait_until, lambda: run.status() == "pending" and failed.is_set(), "a failed attempt")
        await asyncio.sleep(1.5)
        assert node.times == 1
        node.released.set()
        await asyncio.to_thread(run.wait, GUARD_SECONDS)
    assert node.most == 1


@pytest.mark.slow
@pytest.mark.parametrize("kind", WORKERS)
async def test_no_superstep_begins_behind_a_line_that_swallows_once_another_worker_has_the_run(
    kind: type, dsn: str, schema: str, state: PGState, connection: psycopg.Connection
) -> None:
    begun: dict[str, list[float]] = {"behind": [], "beside": []}
    gate, has_begun = Gate(dsn), threading.Event()

    def stepping(where: str) -> Any:
        def step(count: int) -> None:
            begun[where].append(lease_clock())
            if where == "beside":
                has_begun.set()
            elif count == 2:
                gate.swallows = True
                has_begun.wait(GUARD_SECONDS)
            time.sleep(0.05)

        return loop_graph(20, step)

    try:
        async with working(kind, gate.dsn, schema, {"agent": stepping("behind")}, **OPTIONS):
            run = state.runs.enqueue("agent", {"count": 0}, config={"recursion_limit": 1000})
            await asyncio.to_thread(wait_until, lambda: gate.swallows, "a line that swallows")
            try:
                async with working(kind, dsn, schema, {"agent": stepping("beside")}, **OPTIONS):
                    assert (await asyncio.to_thread(run.wait, GUARD_SECONDS))["count"] == 20
                assert len(begun["behind"]) >= 3
                assert max(begun["behind"]) < min(begun["beside"])
            finally:
                # Its worker would not stop.
                gate.heal()
    finally:
        gate.close()


@pytest.mark.slow
async def test_an_async_node_is_cancelled_when_its_worker_cannot_renew(dsn: str, schema: str, state: PGState) -> None:
    gate, cancelled = Gate(dsn), asyncio.Event()

    async def wait(state: dict[str, Any]) -> None:
        gate.swallows = True
        try:
            await asyncio.sleep(GUARD_SECONDS)
        except asyncio.CancelledError:
            cancelled.set()
            raise

    graph = StateGraph(dict).add_node(wait).add_edge(START, "wait").compile()
    try:
        async with (
            AsyncPGState.open(gate.dsn, schema=schema) as behind,
            AsyncWorker(behind, {"agent": graph}, **OPTIONS),
        ):
            state.runs.enqueue("agent", {}, max_attempts=1)
            try:
                await asyncio.wait_for(cancelled.wait(), GUARD_SECONDS / 2)
            finally:
                gate.heal()
    finally:
        gate.close()
