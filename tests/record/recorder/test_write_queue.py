"""Rows that wait to be written."""

from __future__ import annotations

import pytest
from support import loop_graph
from support.recorder import config, recording, recording_async, rows

from langgraph_pgstate.record.options import RecorderSettings
from langgraph_pgstate.record.recorder.tracker import Tracker
from langgraph_pgstate.record.recorder.write_queue import WriteQueue
from tests.record.recorder.test_writer import NEVER, Connection, begin, start, taken


@pytest.mark.parametrize("has_writer", [True, False])
def test_what_nobody_else_would_write_soon_a_put_takes_along(has_writer: bool) -> None:
    queue = WriteQueue(RecorderSettings(interval=1e-9 if has_writer else NEVER), has_writer=has_writer)
    tracker = Tracker(queue)
    root = begin(tracker, None, "graph")
    begin(tracker, root, "running", 1)
    tracker.end(begin(tracker, root, "ahead", 6), {})
    assert taken(tracker, queue, "", 0) == ["graph", "running", "ahead"]


def test_a_full_queue_makes_the_graph_wait_and_drops_nothing(dsn: str, schema: str, connection: Connection) -> None:
    waiting = []
    settings = RecorderSettings(queue_size=10, interval=NEVER)
    with recording(dsn, schema, settings, hook=False) as (saver, recorder):
        graph = loop_graph(60, lambda count: waiting.append(recorder._queue.waiting))
        recorder.record(graph.compile(checkpointer=saver)).invoke(start(), {**config(), "recursion_limit": 100})
    assert max(waiting) < 20
    assert len(rows(connection, schema, "spans", kind="node")) == 60


async def test_a_full_queue_makes_an_asynchronous_graph_wait(dsn: str, schema: str, connection: Connection) -> None:
    waiting = []
    settings = RecorderSettings(queue_size=10, interval=NEVER)
    async with recording_async(dsn, schema, settings, hook=False) as (saver, recorder):
        graph = loop_graph(60, lambda count: waiting.append(recorder._queue.waiting))
        limited = {**config(), "recursion_limit": 100}
        await recorder.record(graph.compile(checkpointer=saver)).ainvoke(start(), limited)
    assert max(waiting) < 20
    assert len(rows(connection, schema, "spans", kind="node")) == 60
