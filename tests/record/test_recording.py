"""Rows written in batches, whatever one of them is refused for."""

from __future__ import annotations

import asyncio
import uuid
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.graph import START, MessagesState, StateGraph
from psycopg.conninfo import make_conninfo
from support import config_of, holding, loop_graph, put_arguments, wait_until
from support.recorder import config, model, recording, rows

from langgraph_pgstate.db.adapters import BlockingConnection, run_blocking
from langgraph_pgstate.record import journal
from langgraph_pgstate.record.options import RecorderSettings
from langgraph_pgstate.record.recorder import write_queue
from langgraph_pgstate.record.recorder.records import enqueued_run
from langgraph_pgstate.threads.rows import delete_runs_of
from tests.record.recorder.test_writer import NEVER, Connection, start


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


def test_a_run_whose_last_spans_died_with_its_process_leaves_no_busy_thread(
    dsn: str, schema: str, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(write_queue, "_BATCH_RECORDS", 3)
    with recording(dsn, schema, RecorderSettings(interval=NEVER)) as (saver, recorder):
        tracker, queue = recorder._tracker, recorder._queue
        saver.put(*put_arguments(config_of("t"), 1))
        root = uuid.uuid4()
        tracker.begin("chain", "graph", root, None, [], {"thread_id": "t"}, {})
        tracker.begin("chain", "node", uuid.uuid4(), root, [], {}, {})
        recorder.flush()
        assert rows(connection, schema, "threads")[0]["status"] == "busy"
        for _ in range(5):
            tracker.begin("chain", "node", uuid.uuid4(), root, [], {}, {})
        tracker.end(root, {})
        part = queue.collect()
        assert part is not None
        assert not part.is_complete
        saver._database.run(journal.write, saver._queries, [], part.journal_entry)
        assert rows(connection, schema, "runs")[0]["status"] == "success"
        assert rows(connection, schema, "threads")[0]["status"] == "idle"


def test_a_thread_whose_run_is_deleted_has_the_status_of_what_is_left(
    dsn: str, schema: str, connection: Connection
) -> None:
    with recording(dsn, schema, RecorderSettings(interval=NEVER)) as (saver, recorder):
        for thread_id, before in (("alone", 0), ("second", 1)):
            graph = recorder.record(loop_graph(1).compile(checkpointer=saver))
            for _ in range(before):
                graph.invoke(start(), config(thread_id))
            saver.put(*put_arguments(config_of(thread_id), 1))
            begun = uuid.uuid4()
            metadata = {"thread_id": thread_id, "run_id": f"died on {thread_id}"}
            recorder._tracker.begin("chain", "graph", begun, None, [], metadata, {})
            recorder._tracker.begin("chain", "node", uuid.uuid4(), begun, [], {}, {})
        recorder.flush()
        assert {row["status"] for row in rows(connection, schema, "threads")} == {"busy"}
        saver.delete_for_runs(["died on alone", "died on second"])
        assert {row["status"] for row in rows(connection, schema, "threads")} == {"idle"}


class Recorded:
    """An enqueued run in this process, of which nothing is stored before it is asked for."""

    def __init__(self, saver: Any, recorder: Any, connection: Connection) -> None:
        self._saver, self._queue, self.tracker = saver, recorder._queue, recorder._tracker
        connection.execute(
            f"INSERT INTO {saver.schema}.runs (thread_id, run_id, attempt, status, started_at, queue)"
            " VALUES ('t', 'r', 1, 'running', now(), 'default')".encode()
        )
        self.root = uuid.uuid4()
        metadata = {"thread_id": "t", "run_id": "r", "run_attempt": 1}
        enqueued_run.set(("t", "r"))
        self.tracker.begin("chain", "graph", self.root, None, [], metadata, {})
        enqueued_run.set(None)
        self.begin_node()

    def begin_node(self) -> None:
        self.tracker.begin("chain", "node", uuid.uuid4(), self.root, [], {}, {})

    def store(self) -> None:
        pending = self._queue.collect()
        assert pending is not None
        self._saver._database.run(journal.write, self._saver._queries, [], pending.journal_entry)
        self._queue.acknowledge(pending)


def left_of(connection: Connection, schema: str) -> set[str]:
    """Tables that have rows."""
    return {table for table in ("runs", "spans", "events", "journal") if rows(connection, schema, table)}


def test_a_superstep_that_a_lost_attempt_ends_late_does_not_count(
    dsn: str, schema: str, connection: Connection
) -> None:
    """It is repeated by the next attempt."""
    with recording(dsn, schema, RecorderSettings(interval=NEVER)) as (saver, recorder):
        Recorded(saver, recorder, connection).store()
        connection.execute(f"DELETE FROM {schema}.spans".encode())
        first = [("graph", None, 0, None), ("node", 1, 1, 2), ("node", 2, 3, None)]
        second = [("graph", None, 5, 9), ("node", 2, 6, 7), ("node", 3, 7, 8)]
        insert = f"""INSERT INTO {schema}.spans (thread_id, run_id, span_id, started_at, ended_at, parent_span_id, kind,
            name, status, checkpoint_ns, step, semconv_version)
            SELECT 't', 'r', %s, r.started_at + make_interval(secs => %s), r.started_at + make_interval(secs => %s), %s,
            %s, 'x', 'success', '', %s, '' FROM {schema}.runs r""".encode()
        for number, (kind, step, began, ended) in enumerate((*first, *second)):
            parent = None if kind == "graph" else "root"
            connection.execute(insert, [f"{number:016}", began, ended, parent, kind, step])
        connection.execute(f"UPDATE {schema}.runs SET attempt = 2, steps = 2".encode())

        def total() -> Any:
            given = {"thread_ids": ["t"], "run_ids": ["r"]}
            run_blocking(BlockingConnection(connection).execute(saver._queries.total_runs, given))
            return rows(connection, schema, "runs")[0]["steps"]

        assert total() == 3
        connection.execute(
            f"UPDATE {schema}.spans SET ended_at = started_at + interval '10 seconds' WHERE ended_at IS NULL".encode()
        )
        assert total() == 3


@pytest.mark.parametrize("stores_begin", [False, True])
def test_an_enqueued_run_that_was_rolled_back_stays_deleted(
    dsn: str, schema: str, connection: Connection, stores_begin: bool
) -> None:
    """Its worker's recorder may store what it has of the run after the rollback."""
    with recording(dsn, schema, RecorderSettings(interval=NEVER)) as (saver, recorder):
        run = Recorded(saver, recorder, connection)
        if stores_begin:
            run.store()
        assert left_of(connection, schema) == ({"runs", "spans", "events"} if stores_begin else {"runs"})
        saver._database.run(delete_runs_of, saver._queries, "t", ["r"])
        run.tracker.end(run.root, {}, asyncio.CancelledError())
        run.store()
    assert not left_of(connection, schema)


@pytest.mark.parametrize("stores_begin", [False, True])
def test_what_is_stored_while_a_run_is_deleted_goes_with_it(
    dsn: str, schema: str, connection: Connection, stores_begin: bool
) -> None:
    """The statements that store it began before the deletion was committed."""
    application = f"writer of {schema}"
    named = make_conninfo(dsn, application_name=application)
    with (
        recording(named, schema, RecorderSettings(interval=NEVER)) as (saver, recorder),
        holding(dsn, "SELECT 1") as other,
        ThreadPoolExecutor(1) as executor,
    ):
        run = Recorded(saver, recorder, connection)
        if stores_begin:
            run.store()
            # Then there are spans and events to store, and not the run itself.
            run.begin_node()
            run.tracker.interrupted(run.root, "c", "", [])
        run_blocking(delete_runs_of(BlockingConnection(other), saver._queries, "t", ["r"]))
        waiting = "SELECT 1 FROM pg_stat_activity WHERE application_name = %s AND wait_event_type = 'Lock'"
        stored = executor.submit(run.store)
        wait_until(lambda: connection.execute(waiting, [application]).fetchone() is not None, "the writer waits")
        other.commit()
        stored.result()
    assert not left_of(connection, schema)


def test_a_run_of_another_server_that_numbers_attempts_is_recorded(
    dsn: str, schema: str, connection: Connection
) -> None:
    """LangGraph's own server does, and its runs are not in this queue."""
    metadata = {"run_id": "r", "run_attempt": 1}
    with recording(dsn, schema) as (saver, recorder):
        graph = recorder.record(loop_graph(1).compile(checkpointer=saver))
        graph.invoke(start(), {"configurable": {"thread_id": "t"}, "metadata": metadata})
    found = [(row["run_id"], row["attempt"], row["status"]) for row in rows(connection, schema, "runs")]
    assert found == [("r", 1, "success")]


@pytest.mark.slow
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
