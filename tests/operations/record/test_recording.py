"""Rows written in batches, whatever one of them is refused for."""

from __future__ import annotations

import asyncio
import uuid
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.graph import START, MessagesState, StateGraph
from support import loop_graph
from support_recorder import config, model, recording, rows

from langgraph_pgstate.operations.record import journal
from langgraph_pgstate.operations.threads.threads import delete_runs_of
from langgraph_pgstate.settings import RecorderSettings
from tests.record.test_writer import NEVER, Connection, start


def test_what_is_late_reopens_nothing(dsn: str, schema: str, connection: Connection) -> None:
    """A batch whose answer was lost is sent again after later ones."""
    with recording(dsn, schema) as (saver, recorder):
        tracker, queue = recorder._tracker, recorder._queue
        root = uuid.uuid4()
        tracker.begin("chain", "graph", root, None, [], {"thread_id": "t"}, {})
        tracker.begin("chain", "node", uuid.uuid4(), root, [], {}, {})
        first = queue.collect()
        tracker.end(root, {})
        last = queue.collect()
        assert first is not None
        assert last is not None
        for pending in (last, first):
            saver._database.run(journal.write, saver._queries, [], pending.journal_entry)
        queue.acknowledge(last)
        assert not queue.is_busy
    found = rows(connection, schema, "spans") + rows(connection, schema, "runs")
    assert [row["status"] for row in found] == ["success", "cancelled", "success"]


@pytest.mark.parametrize("is_first", [True, False], ids=["before anything was stored", "after its begin was stored"])
def test_an_enqueued_run_that_was_rolled_back_stays_deleted(
    dsn: str, schema: str, connection: Connection, is_first: bool
) -> None:
    """Its worker's recorder may store what it has of the run after the rollback."""
    with recording(dsn, schema, RecorderSettings(interval=NEVER)) as (saver, recorder):
        connection.execute(
            f"INSERT INTO {schema}.runs (thread_id, run_id, attempt, status, started_at, queue)"
            " VALUES ('t', 'r', 1, 'running', now(), 'default')".encode()
        )
        tracker, queue = recorder._tracker, recorder._queue

        def store() -> None:
            pending = queue.collect()
            assert pending is not None
            saver._database.run(journal.write, saver._queries, [], pending.journal_entry)
            queue.acknowledge(pending)

        root, metadata = uuid.uuid4(), {"thread_id": "t", "run_id": "r", "run_attempt": 1}
        tracker.begin("chain", "graph", root, None, [], metadata, {})
        tracker.begin("chain", "node", uuid.uuid4(), root, [], {}, {})
        if not is_first:
            store()
        saver._database.run(delete_runs_of, saver._queries, "t", ["r"])
        tracker.end(root, {}, asyncio.CancelledError())
        store()
    tables = ("runs", "spans", "events", "journal")
    assert {table: rows(connection, schema, table) for table in tables} == {table: [] for table in tables}


def test_many_spans_are_several_batches_and_one_total(dsn: str, schema: str, connection: Connection) -> None:
    """The end of a run is written with the last of its spans, or its sums would lack some."""
    asked = model()

    def think(state: MessagesState) -> Any:
        for _ in range(1200):
            asked.invoke("hello")
        return {"messages": [AIMessage("done")]}

    graph = StateGraph(MessagesState)
    graph.add_node("think", think)
    graph.add_edge(START, "think")
    with recording(dsn, schema, RecorderSettings(interval=NEVER), hook=False) as (_, recorder):
        recorder.record(graph.compile()).invoke({"messages": [HumanMessage("x")]}, config())
    assert len(rows(connection, schema, "spans", kind="llm")) == 1200
    assert rows(connection, schema, "runs")[0]["input_tokens"] == 120_000


def test_a_row_that_is_refused_does_not_keep_the_others_back(dsn: str, schema: str, connection: Connection) -> None:
    with recording(dsn, schema) as (_saver, recorder):
        connection.execute(f"ALTER TABLE {schema}.spans ADD CHECK (step <> 2)".encode())
        recorder._queue.settings = RecorderSettings(interval=NEVER)
        recorder.record(loop_graph(3).compile()).invoke(start(), config())
    assert [span["step"] for span in rows(connection, schema, "spans", kind="node")] == [1, 3]
    assert rows(connection, schema, "runs")[0]["status"] == "success"
