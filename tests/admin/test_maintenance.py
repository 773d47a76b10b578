"""Months of partitions, made ahead and dropped; runs of dead processes, settled."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import psycopg
import pytest
from support import loop_graph
from support.queue import Queue
from support.recorder import config, recording, rows

from langgraph_pgstate import PGState
from langgraph_pgstate.db.database import Database
from langgraph_pgstate.errors import ConfigurationError
from langgraph_pgstate.runs import streams
from langgraph_pgstate.schema.partitions import drop_days, list_old_days, make_days, make_months
from langgraph_pgstate.schema.queries import queries
from tests.record.recorder.test_writer import Connection, start
from tests.runs.test_streams import batch


def months(connection: Connection, schema: str, table: str = "spans") -> set[str]:
    query = "SELECT inhrelid::regclass::text FROM pg_inherits WHERE inhparent = %s::regclass"
    return {row[0].split(".")[-1] for row in connection.execute(query, [f"{schema}.{table}"]).fetchall()}


def test_months_are_made_ahead_moved_out_of_the_default_and_dropped(
    dsn: str, schema: str, connection: Connection
) -> None:
    with PGState.open(dsn, schema=schema) as state:
        this_month = connection.execute("SELECT to_char(now() AT TIME ZONE 'UTC', '\"spans_\"YYYY_MM')").fetchone()[0]
        made = months(connection, schema)
        assert len(made) == 4
        assert {this_month, "spans_default"} <= made
        connection.execute(
            f"INSERT INTO {schema}.spans (thread_id, run_id, span_id, started_at, kind, name, status, semconv_version)"
            " SELECT 't', 'r', n::text, '2020-05-05', 'node', 'n', 'success', '' FROM generate_series(1, 10) n".encode()
        )
        report = state.maintain(months=3)
        assert len(report.months_made) == 2
        assert "2020_05" in report.months_made
        assert len(rows(connection, schema, "spans_2020_05")) == len(rows(connection, schema, "spans")) == 10
        assert state.maintain(months=3).months_made == ()
        assert state.maintain(drop_older_than=1200).months_dropped == ()
        assert state.maintain(drop_older_than=12).months_dropped == ("2020_05",)
        assert rows(connection, schema, "spans") == []
        assert this_month in months(connection, schema)
        with pytest.raises(ConfigurationError):
            state.maintain(drop_older_than=0)


@pytest.mark.slow
def test_days_of_events_are_made_ahead_and_dropped_unless_a_run_in_the_queue_has_some(
    connection: Connection, schema: str
) -> None:
    queue = Queue(connection, schema)
    for thread_id in ("a", "b"):
        queue.add(thread_id)
    ended, running = sorted(queue.claim(), key=lambda run: run.thread_id)
    queue.do(streams.append, [batch(ended, 0, "x"), batch(running, 0, "y")])
    queue.finish(ended)

    def days() -> set[str]:
        return months(connection, schema, "stream_batches")

    made = days()
    assert len(made) == 4
    for thread_id, day in (("a", "2020-05-05"), ("b", "2020-05-06")):
        move = "UPDATE {}.stream_batches SET created_at = %s::date + interval '23 hours' WHERE thread_id = %s"
        queue.execute(move, day, thread_id)
    assert queue.do(make_days, strayed=True) == ["2020_05_05", "2020_05_06"]
    assert queue.execute("SELECT count(*) FROM {}.stream_batches_2020_05_06") == [(1,)]
    assert queue.do(drop_days, queue.do(list_old_days, timedelta(days=36500))) == []
    with psycopg.connect(connection.info.dsn) as other:
        other.execute(f"SELECT count(*) FROM {schema}.stream_batches".encode())
        assert queue.do(drop_days, queue.do(list_old_days, timedelta(days=2))) == []
    assert queue.do(drop_days, queue.do(list_old_days, timedelta(days=2))) == ["2020_05_05"]
    queue.finish(running)
    assert queue.do(drop_days, queue.do(list_old_days, timedelta(days=2))) == ["2020_05_06"]
    assert days() == made
    # Its runs know what was.
    assert queue.execute("SELECT last_event FROM {}.runs") == [(1,), (1,)]
    with pytest.raises(ConfigurationError):
        queue.do(list_old_days, timedelta(seconds=-1))


@pytest.mark.slow
def test_setup_leaves_months_for_later_that_others_hold_up(dsn: str, schema: str, connection: Connection) -> None:
    with recording(dsn, schema) as (saver, recorder):
        for month in months(connection, schema) - {"spans_default"}:
            connection.execute(f"DROP TABLE {schema}.{month}".encode())
        with psycopg.connect(dsn) as other:
            other.execute(f"SELECT count(*) FROM {schema}.spans".encode())
            saver.setup()
        assert months(connection, schema) == {"spans_default"}
        saver.setup()
        assert len(months(connection, schema)) == 4
        recorder.record(loop_graph(1).compile(checkpointer=saver)).invoke(start(), config())


def test_setup_in_a_callers_transaction_leaves_her_lock_timeout(dsn: str, schema: str, connection: Connection) -> None:
    with recording(dsn, schema), connection.transaction():
        for month in months(connection, schema) - {"spans_default"}:
            connection.execute(f"DROP TABLE {schema}.{month}".encode())
        connection.execute("SET LOCAL lock_timeout = '7s'")
        database = Database(connection, schema=schema)
        assert len(database.run(make_months, queries(schema), lock_timeout="200ms")) == 3
        assert connection.execute("SHOW lock_timeout").fetchone() == ("7s",)


async def refresh(db: Any, named: Any) -> None:
    await db.execute(named.refresh_thread_statuses, {"thread_ids": ["t"]})


def test_ends_that_two_processes_store_at_once_leave_no_busy_thread_behind(
    dsn: str, schema: str, connection: Connection
) -> None:
    """Neither transaction sees the other's end, and both processes die before they refresh the status again."""
    with PGState.open(dsn, schema=schema) as state:
        state.record(loop_graph(1).compile(checkpointer=state.saver)).invoke(start(), config())
        state.flush()
        run = f"INSERT INTO {schema}.runs (thread_id, run_id, attempt, status, started_at, alive_until)"
        for name in ("a", "b"):
            connection.execute(f"{run} VALUES ('t', '{name}', 1, 'running', now(), now() + '1 hour')".encode())
        Queue(connection, schema).do(refresh)
        assert rows(connection, schema, "threads")[0]["status"] == "busy"
        with psycopg.connect(dsn) as one, psycopg.connect(dsn) as other:
            for mine, name in ((one, "a"), (other, "b")):
                end = "UPDATE {}.runs SET status = 'success', ended_at = now(), alive_until = NULL WHERE run_id = %s"
                mine.execute(end.replace("{}", schema).encode(), [name])
                Queue(mine, schema).do(refresh)
        assert rows(connection, schema, "threads")[0]["status"] == "busy"
        state.maintain()
        assert rows(connection, schema, "threads")[0]["status"] == "idle"


def test_maintenance_leaves_threads_busy_whose_runs_go_on(connection: Connection, dsn: str, schema: str) -> None:
    queue = Queue(connection, schema)
    queue.add("pending")
    with PGState.open(dsn, schema=schema) as state:
        for thread_id in ("running", "left"):
            state.record(loop_graph(1).compile(checkpointer=state.saver)).invoke(start(), config(thread_id))
        state.threads.create("bare")
        state.flush()
        queue.execute("UPDATE {}.threads SET status = 'busy'")
        queue.execute(
            "UPDATE {}.runs SET status = 'running', ended_at = NULL, alive_until = now() + interval '1 hour'"
            " WHERE thread_id = 'running'"
        )
        state.maintain()
    found = {row["thread_id"]: row["status"] for row in rows(connection, schema, "threads")}
    assert found == {"bare": "idle", "left": "idle", "pending": "busy", "running": "busy"}
