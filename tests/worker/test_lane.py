"""A lane of a worker, whose turns the test makes."""

from __future__ import annotations

import psycopg
from support.queue import CODEC, Queue

from langgraph_pgstate.record.options import RecorderSettings
from langgraph_pgstate.worker.lane import Duties, Lane
from langgraph_pgstate.worker.settings import WorkerSettings


def test_a_run_that_was_left_to_the_sweep_is_left_by_the_next_lane_of_its_tenant(
    connection: psycopg.Connection, schema: str
) -> None:
    """Lanes are closed after ten idle seconds, and leases may last longer."""
    queue = Queue(connection, schema)
    queue.add("t")
    duties = Duties(
        "worker",
        queue.queries,
        CODEC,
        ["graph"],
        {},
        WorkerSettings(lease_ttl=60.0),
        RecorderSettings(),
        begin=lambda _: None,
        interrupt=lambda _: True,
        wake=lambda: None,
        wake_webhooks=lambda _: None,
        adopts=False,
    )
    for number in (1, 0):
        duties.lanes[None] = lane = Lane(duties, queue.database)
        lane.open()
        assert lane.turn()
        assert lane.claim(1)
        assert len(lane.executions) == number
        for execution in [*lane.executions.values()]:
            lane._leave_to_sweep(execution)
        lane.close()
    assert queue.execute("SELECT status FROM {}.queue") == [("running",)]
