"""Outcomes of runs, and the runs that resume interrupted ones."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
from langgraph.types import Command
from support.queue import CODEC, Queue

from langgraph_pgstate.errors import NotFoundError, RunCancelledError, RunFailedError
from langgraph_pgstate.runs import outcomes
from langgraph_pgstate.runs.inputs import open_input


@pytest.fixture
def queue(connection: psycopg.Connection, schema: str) -> Queue:
    return Queue(connection, schema)


def outcome(queue: Queue, run_id: str, **options: Any) -> Any:
    return queue.do(outcomes.get_outcome, CODEC, None, "t", run_id, **options)


def test_the_outcome_is_the_state_at_the_last_checkpoint_of_the_run(queue: Queue) -> None:
    queue.add("t", run_id="r")
    assert outcome(queue, "r") == ("pending", {})
    run = queue.claim_one()
    assert outcome(queue, "r") == ("running", {})
    queue.put("t", "r")
    queue.finish(run)
    status, values = outcome(queue, "r")
    queue.put("t", "later")
    assert (status, [*values]) == ("success", ["value"])
    assert outcome(queue, "r") == (status, values)


def test_a_run_without_a_checkpoint_leaves_the_state_that_it_found(queue: Queue) -> None:
    for run_id in ("first", "own", "idle"):
        queue.add("t", run_id=run_id)
        run = queue.claim_one()
        if run_id == "own":
            queue.put("t", run_id)
        queue.finish(run)
    assert outcome(queue, "first") == ("success", {})
    assert outcome(queue, "idle") == outcome(queue, "own")
    assert outcome(queue, "own")[1]


def test_other_ends_are_raised(queue: Queue) -> None:
    queue.add("t", run_id="failed")
    queue.fail(queue.claim_one())
    with pytest.raises(RunFailedError, match="ValueError: no"):
        outcome(queue, "failed")
    queue.add("t", run_id="cancelled")
    queue.cancel("t", "cancelled")
    with pytest.raises(RunCancelledError):
        outcome(queue, "cancelled")
    with pytest.raises(NotFoundError):
        outcome(queue, "unknown")
    with pytest.raises(RunCancelledError):
        outcome(queue, "rolled back", is_known=True)
    with pytest.raises(NotFoundError):
        queue.do(outcomes.get_status, "t", "unknown")


def test_a_resumption_has_the_options_of_the_interrupted_run(queue: Queue) -> None:
    queue.add(
        "t",
        run_id="r",
        queue="other",
        priority=3,
        key="k",
        context={"a": 1},
        max_attempts=5,
        metadata={"team": "sales"},
    )
    queue.finish(queue.claim_one(queue="other"), "interrupted")
    command: Any = Command(resume="yes")
    found = queue.do(outcomes.resumption, CODEC, "t", "r", "new", command)
    assert (found.run_id, found.queue, found.priority, found.key) == ("new", "other", 3, "k")
    assert found.options["max_attempts"] == 5
    request = open_input(CODEC, found.data)
    assert (request.input, request.command and request.command.resume, request.context) == (None, "yes", {"a": 1})
    assert found.metadata == {"team": "sales"}
    assert queue.do(outcomes.resumption, CODEC, "t", "unknown", "new", command) is None
    assert queue.do(outcomes.resumption, CODEC, "t", None, "new", command) is None
