"""Settings of workers, and what their control thread does with runs that do not end as they should."""

from __future__ import annotations

from typing import Any

import pytest
from support import loop_graph

from langgraph_pgstate import PGState, Worker
from langgraph_pgstate.errors import ArgumentTypeError, ConfigurationError, RunFailedError, UnavailableError
from langgraph_pgstate.runs.control import WorkerSettings


@pytest.mark.parametrize(
    "options",
    [
        {"concurrency": 0},
        {"concurrency": True},
        {"queues": "default"},
        {"queues": []},
        {"lease_ttl": 0},
        {"poll": "1"},
        {"drain_timeout": -1},
    ],
)
def test_unusable_options_are_refused(options: Any) -> None:
    with pytest.raises((ConfigurationError, ArgumentTypeError)):
        WorkerSettings.of(options)


def test_what_is_left_out_has_a_default() -> None:
    assert WorkerSettings.of({"queues": ["one"], "poll": 1}) == WorkerSettings(queues=("one",), poll=1)


def test_a_run_that_is_left_each_time_ends_as_often_as_its_worker_may_die(dsn: str, schema: str) -> None:
    calls: list[int] = []

    def fail(count: int) -> None:
        calls.append(count)
        raise UnavailableError("a database of the node's own")

    graphs = {"agent": loop_graph(1, fail)}
    with PGState.open(dsn, schema=schema) as state, Worker(state, graphs, lease_ttl=0.3, poll=0.05):
        run = state.runs.enqueue("agent", {"count": 0}, thread_id="t")
        with pytest.raises(RunFailedError, match="WorkerDied"):
            run.wait(20)
    # The first attempt has stored a checkpoint.
    assert len(calls) == 4
