"""Time limits of supersteps in blocking workers, which cannot cancel what blocks."""

from __future__ import annotations

import time

import pytest
from support import GUARD_SECONDS, loop_graph, wait_until

from langgraph_pgstate import Backoff, PGState, Worker
from langgraph_pgstate.errors import RunFailedError
from tests.worker.test_left import OPTIONS, Blocking, state

__all__ = ["state"]


@pytest.mark.slow
@pytest.mark.parametrize("attempts", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_a_superstep_that_blocks_ends_its_run_in_time_and_the_next_one_waits_for_its_thread(
    attempts: int, dsn: str, schema: str, state: PGState
) -> None:
    node = Blocking()
    with Worker(state, {"agent": node.graph}, **OPTIONS):
        began_at = time.monotonic()
        retry = Backoff(initial=0.01, jitter=0, retry_on=[TimeoutError])
        run = state.runs.enqueue("agent", {}, thread_id="t", superstep_timeout=0.3, max_attempts=attempts, retry=retry)
        later = state.runs.enqueue("agent", {}, thread_id="t")
        if attempts == 1:
            with pytest.raises(RunFailedError, match="timeout"):
                run.wait(GUARD_SECONDS)
        else:
            wait_until(lambda: node.times == 1 and run.status() == "pending", "an attempt that has ended")
        assert not node.released.is_set()
        time.sleep(1.5)
        assert (node.times, later.status()) == (1, "pending")
        node.released.set()
        if attempts == 2:
            run.wait(GUARD_SECONDS)
        later.wait(GUARD_SECONDS)
        assert time.monotonic() - began_at < GUARD_SECONDS
    assert (node.most, node.times) == (1, 2 if attempts == 1 else 3)


@pytest.mark.slow
def test_a_superstep_has_all_of_its_time_in_each_round(dsn: str, schema: str, state: PGState) -> None:
    graph = loop_graph(6, lambda count: time.sleep(0.2))
    with Worker(state, {"agent": graph}, **OPTIONS):
        run = state.runs.enqueue("agent", {"count": 0}, superstep_timeout=0.8)
        assert run.wait(GUARD_SECONDS)["count"] == 6
