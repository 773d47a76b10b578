"""Months of partitions, made ahead and dropped; runs of dead processes, settled."""

from __future__ import annotations

import psycopg
import pytest
from support import loop_graph
from support_recorder import config, recording, rows

from langgraph_pgstate.db.database import Database
from langgraph_pgstate.errors import ConfigurationError
from langgraph_pgstate.operations.admin import maintenance
from langgraph_pgstate.sql import queries
from tests.record.test_writer import Connection, start


def months(connection: Connection, schema: str) -> set[str]:
    query = "SELECT inhrelid::regclass::text FROM pg_inherits WHERE inhparent = %s::regclass"
    return {row[0].split(".")[-1] for row in connection.execute(query, [f"{schema}.spans"]).fetchall()}


def test_months_are_made_ahead_moved_out_of_the_default_and_dropped(
    dsn: str, schema: str, connection: Connection
) -> None:
    with recording(dsn, schema) as (_, recorder):
        this_month = connection.execute("SELECT to_char(now() AT TIME ZONE 'UTC', '\"spans_\"YYYY_MM')").fetchone()[0]
        made = months(connection, schema)
        assert len(made) == 4
        assert {this_month, "spans_default"} <= made
        connection.execute(
            f"INSERT INTO {schema}.spans (thread_id, run_id, span_id, started_at, kind, name, status, semconv_version)"
            " SELECT 't', 'r', n::text, '2020-05-05', 'node', 'n', 'success', '' FROM generate_series(1, 10) n".encode()
        )
        report = recorder.maintain(months=3)
        assert len(report.months_made) == 2
        assert "2020_05" in report.months_made
        assert len(rows(connection, schema, "spans_2020_05")) == len(rows(connection, schema, "spans")) == 10
        assert recorder.maintain(months=3).months_made == ()
        assert recorder.maintain(drop_older_than=1200).months_dropped == ()
        assert recorder.maintain(drop_older_than=12).months_dropped == ("2020_05",)
        assert rows(connection, schema, "spans") == []
        assert this_month in months(connection, schema)
        with pytest.raises(ConfigurationError):
            recorder.maintain(drop_older_than=0)


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
        assert len(database.run(maintenance.make_months, queries(schema), lock_timeout="200ms")) == 3
        assert connection.execute("SHOW lock_timeout").fetchone() == ("7s",)
