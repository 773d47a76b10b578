"""What happens to a record when the process, the database or the thread goes: nothing is lost, nothing comes back."""

from __future__ import annotations

import os
import signal
import threading
import uuid
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from support import FORK, GUARD_SECONDS, loop_graph, move_journal, wait_until
from support.recorder import config, recording, rows

from langgraph_pgstate import PGState, PGStateSaver
from langgraph_pgstate.db.database import Database
from langgraph_pgstate.errors import SchemaMissingError
from langgraph_pgstate.record import Recorder, journal
from langgraph_pgstate.record.options import RecorderSettings
from langgraph_pgstate.record.recorder.tracker import Tracker
from langgraph_pgstate.record.recorder.write_queue import WriteQueue

Connection = psycopg.Connection


NEVER = 1_000_000.0


def start() -> dict[str, Any]:
    return {"items": [], "count": 0}


def die(count: int) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def run_and_die(dsn: str, schema: str, at: int, interval: float, hook: bool, durability: str) -> None:
    settings = RecorderSettings(interval=interval)
    with recording(dsn, schema, settings, hook=hook) as (saver, recorder):
        graph = loop_graph(10, lambda count: die(count) if count == at else None).compile(checkpointer=saver)
        recorder.record(graph).invoke(start(), config(), durability=durability)


def run_and_hang(dsn: str, schema: str) -> None:
    with recording(dsn, schema) as (saver, recorder):
        graph = loop_graph(10, lambda count: threading.Event().wait() if count == 2 else None)
        recorder.record(graph.compile(checkpointer=saver)).invoke(start(), config())


def child(target: Callable[..., None], *arguments: Any) -> Any:
    process = FORK.Process(target=target, args=arguments, daemon=True)
    process.start()
    return process


@pytest.mark.parametrize("hook", [True, False])
def test_spans_of_a_superstep_are_there_when_its_checkpoint_is(
    hook: bool, dsn: str, schema: str, connection: Connection
) -> None:
    """Killed before the background thread moved anything: without the hook there is indeed nothing."""
    process = child(run_and_die, dsn, schema, 5, NEVER, hook, "sync")
    process.join(GUARD_SECONDS)
    assert process.exitcode == -signal.SIGKILL
    checkpoints = {row["checkpoint_id"]: row["step"] for row in rows(connection, schema, "checkpoints")}
    assert max(checkpoints.values()) == 5
    assert rows(connection, schema, "spans") == []
    move_journal(connection, schema)
    nodes = rows(connection, schema, "spans", kind="node")
    if not hook:
        assert nodes == []
        return
    ended = {span["step"] for span in nodes if span["ended_at"] is not None}
    assert ended == {1, 2, 3, 4, 5}
    assert all(checkpoints[span["checkpoint_id"]] == span["step"] - 1 for span in nodes)


@pytest.mark.slow
def test_what_runs_is_visible_and_what_died_is_settled(dsn: str, schema: str, connection: Connection) -> None:
    process = child(run_and_hang, dsn, schema)

    def is_visible() -> bool:
        there = connection.execute("SELECT to_regclass(%s)", [f"{schema}.spans"]).fetchone()[0] is not None
        return there and bool(rows(connection, schema, "spans", step=3, status="running"))

    wait_until(is_visible, "a running span")
    (run,) = rows(connection, schema, "runs")
    assert (run["status"], run["ended_at"]) == ("running", None)
    assert run["alive_until"] is not None
    wait_until(lambda: rows(connection, schema, "threads")[0]["status"] == "busy", "a busy thread")
    process.kill()
    process.join(GUARD_SECONDS)
    # Not by patience: `alive_until` is still to come.
    with recording(dsn, schema) as (saver, recorder):
        recorder.record(loop_graph(1).compile(checkpointer=saver)).invoke(start(), config())
    dead, alive = rows(connection, schema, "runs")
    assert (dead["status"], dead["error_type"], alive["status"]) == ("error", "ProcessDied", "success")
    assert dead["ended_at"] >= dead["started_at"]
    left = rows(connection, schema, "spans", run_id=dead["run_id"])
    assert {span["error_type"] for span in left if span["status"] == "error"} == {"ProcessDied"}
    assert all(span["ended_at"] is not None for span in left)
    statuses = [event["payload"]["status"] for event in rows(connection, schema, "events", run_id=dead["run_id"])]
    assert statuses == ["running", "error"]
    assert rows(connection, schema, "threads")[0]["status"] == "idle"


def a_running_run(connection: Connection, schema: str, run_id: str, holder_id: str, seconds: int) -> None:
    connection.execute(
        f"INSERT INTO {schema}.runs (thread_id, run_id, status, holder_id, alive_until, started_at)"
        " VALUES ('t', %s, 'running', %s, now() + make_interval(secs => %s), now() - interval '1 hour')".encode(),
        [run_id, holder_id, seconds],
    )


def test_a_holder_elsewhere_is_taken_at_its_word(dsn: str, schema: str, connection: Connection) -> None:
    """Of a process on another machine nothing is known but until when it wanted to be taken for alive."""
    with recording(dsn, schema) as (saver, recorder):
        a_running_run(connection, schema, "alive", "elsewhere/1/2/3/4/5", 60)
        a_running_run(connection, schema, "late", "elsewhere/1/2/3/4/5", -1)
        with PGState.open(dsn, schema=schema) as state:
            assert [state.maintain().runs_settled for _ in range(2)] == [1, 0]
        found = {run["run_id"]: run["status"] for run in rows(connection, schema, "runs")}
        assert found == {"alive": "running", "late": "error"}
        recorder.record(loop_graph(1).compile(checkpointer=saver)).invoke(start(), config())
    assert rows(connection, schema, "runs", run_id="alive")[0]["status"] == "running"


def test_a_run_that_takes_long_says_that_it_is_alive(dsn: str, schema: str, connection: Connection) -> None:
    goes_on = threading.Event()
    graph = loop_graph(1, lambda count: goes_on.wait(GUARD_SECONDS))
    with recording(dsn, schema, RecorderSettings(ttl=0.6, interval=0.05)) as (saver, recorder):
        running = threading.Thread(
            target=recorder.record(graph.compile(checkpointer=saver)).invoke, args=(start(), config())
        )
        running.start()
        wait_until(lambda: bool(rows(connection, schema, "runs")), "the run's row")
        wait_until(lambda: recorder._queue.waiting == 0, "all of the start")
        wait_until(lambda: not any(run.is_changed for run in recorder._queue._runs.values()), "all of the run")
        first = rows(connection, schema, "runs")[0]["alive_until"]
        # Guard: a note promises no more than its recorder's own patience.
        assert first < datetime.now(UTC) + timedelta(seconds=5)
        wait_until(lambda: rows(connection, schema, "runs")[0]["alive_until"] > first, "a renewal")
        goes_on.set()
        running.join()
    assert rows(connection, schema, "runs")[0]["status"] == "success"


def test_an_attempt_after_a_crash_ends_what_the_first_left(dsn: str, schema: str, connection: Connection) -> None:
    with recording(dsn, schema) as (saver, recorder):
        a_running_run(connection, schema, "run-1", "elsewhere/1/2/3/4/5", 60)
        connection.execute(
            f"INSERT INTO {schema}.spans (thread_id, run_id, span_id, started_at, kind, name, status, semconv_version)"
            " VALUES ('t', 'run-1', 'left', now() - interval '1 hour', 'node', 'n', 'running', '')".encode()
        )
        graph = recorder.record(loop_graph(1).compile(checkpointer=saver))
        graph.invoke(start(), {**config(), "metadata": {"run_id": "run-1"}})
    (run,) = rows(connection, schema, "runs")
    assert (run["attempt"], run["status"]) == (2, "success")
    assert rows(connection, schema, "spans", span_id="left")[0]["error_type"] == "ProcessDied"


def test_a_change_between_collecting_and_acknowledging_is_written_too(
    dsn: str, schema: str, connection: Connection
) -> None:
    with recording(dsn, schema) as (saver, recorder):
        tracker, queue = recorder._tracker, recorder._queue
        root = uuid.uuid4()
        tracker.begin("chain", "graph", root, None, [], {"thread_id": "t"}, {})
        tracker.begin("chain", "node", uuid.uuid4(), root, [], {}, {})
        first = queue.collect()
        assert first is not None
        tracker.end(root, {})
        saver._database.run(journal.write, saver._queries, [], first.journal_entry)
        queue.acknowledge(first)
        recorder.flush()
    assert rows(connection, schema, "spans")[0]["status"] == rows(connection, schema, "runs")[0]["status"] == "success"


def test_a_put_that_comes_to_nothing_leaves_its_spans_in_the_queue(
    dsn: str, schema: str, connection: Connection
) -> None:
    with recording(dsn, schema) as (_, recorder):
        tracker, queue = recorder._tracker, recorder._queue
        root = uuid.uuid4()
        tracker.begin("chain", "graph", root, None, [], {"thread_id": "t"}, {})
        assert queue.take(tracker.runs.run_on("t")) is not None
        tracker.end(root, {})
        recorder.flush()
    assert rows(connection, schema, "spans")[0]["status"] == "success"


def begin(tracker: Tracker, parent: uuid.UUID | None, name: str, step: int | None = None, **more: Any) -> uuid.UUID:
    id = uuid.uuid4()
    placed = {} if step is None else {"langgraph_step": step, "langgraph_checkpoint_ns": f"{name}:1"}
    tracker.begin("chain", name, id, parent, [], {"thread_id": "t", **placed, **more}, {})
    return id


def taken(tracker: Tracker, queue: WriteQueue, namespace: str, step: int) -> list[str]:
    pending = queue.take(tracker.runs.run_on("t"), put=(namespace, step))
    if pending is None:
        return []
    queue.acknowledge(pending)
    return [span.name for span, _ in pending.spans]


def test_a_thread_that_is_deleted_while_it_runs_does_not_come_back(
    dsn: str, schema: str, connection: Connection
) -> None:
    with recording(dsn, schema, RecorderSettings(interval=NEVER)) as (_saver, recorder):

        def clear(count: int) -> None:
            if count == 3:
                recorder.flush()
                for table in ("threads", "runs", "spans", "events"):
                    connection.execute(f"DELETE FROM {schema}.{table}".encode())

        graph = loop_graph(3, clear).compile()
        graph.with_config(callbacks=[recorder]).invoke({"items": [], "count": 3}, config())
    assert [rows(connection, schema, table) for table in ("runs", "spans", "events", "threads")] == [[], [], [], []]


@pytest.mark.bare
def test_a_database_that_fails_breaks_no_graph_and_loses_nothing(dsn: str, schema: str, connection: Connection) -> None:
    with Database.open(dsn, schema=schema) as database:
        recorder = Recorder(database, RecorderSettings(interval=NEVER))
        result = recorder.record(loop_graph(3).compile()).invoke(start(), config())
        assert result["count"] == 3
        with pytest.raises(SchemaMissingError):
            recorder.flush()
        assert recorder._queue.waiting > 0
        PGStateSaver(connection, schema=schema).setup()
        recorder.flush()
        recorder.close()
    assert len(rows(connection, schema, "spans", kind="node")) == 3
    assert rows(connection, schema, "runs")[0]["status"] == "success"


@pytest.mark.bare
def test_what_could_not_be_written_is_said_at_the_end(dsn: str, schema: str) -> None:
    with Database.open(dsn, schema=schema) as database:
        recorder = Recorder(database, RecorderSettings(interval=NEVER))
        recorder.record(loop_graph(1).compile()).invoke(start(), config())
        with pytest.raises(SchemaMissingError):
            recorder.close()


def test_what_has_begun_is_in_the_tables_within_a_second() -> None:
    """Not timed: a writer comes once in an interval, and leaves to its next turn what is younger than half of one.

    The rest of the second is for the write itself.
    """
    assert 2 * RecorderSettings().interval < 1
