"""What deleted model calls cost today."""

from __future__ import annotations

import psycopg
import pytest

from langgraph_pgstate.db.database import Database
from langgraph_pgstate.record import budgets
from langgraph_pgstate.record.budgets import Owner, request_budget
from langgraph_pgstate.schema.queries import queries
from langgraph_pgstate.threads import rows as threads


@pytest.mark.parametrize("deletes", ["thread", "run", "nothing"])
def test_what_was_deleted_counts(connection: psycopg.Connection, schema: str, deletes: str) -> None:
    database, given = Database(connection, schema=schema), queries(schema)

    def spend(thread_id: str) -> None:
        connection.execute(
            f"INSERT INTO {schema}.runs (thread_id, run_id, attempt, status, user_id, started_at)"
            f" VALUES ('{thread_id}', 'r-{thread_id}', 1, 'success', 'a', now());"
            f"INSERT INTO {schema}.spans (thread_id, run_id, span_id, started_at, kind, name, status, cost,"
            f" semconv_version) SELECT '{thread_id}', 'r-{thread_id}', '{thread_id}-' || c,"
            " now() - make_interval(days => d), 'llm', 'm', 'success', c, '1'"
            " FROM (VALUES (1, 0), (2, 0), (4, 1)) AS v (c, d)".encode()
        )
        if deletes == "thread":
            database.run(threads.delete_thread, given, thread_id)
        elif deletes == "run":
            connection.execute(
                f"INSERT INTO {schema}.checkpoints (thread_id, checkpoint_ns, checkpoint_id, run_id, state,"
                f" metadata, segment_ids) VALUES ('{thread_id}', '', 'c', 'r-{thread_id}', '', '{{}}', '{{}}')".encode()
            )
            assert database.run(threads.delete_for_runs, given, [f"r-{thread_id}"]) == [thread_id]

    spend("before any budget")
    database.run(budgets.put_budget, given, request_budget(5, user="a"))
    read = lambda *known: database.run(budgets.read_spending, given, [Owner("user", "a")], lambda: known)  # noqa: E731
    before = 0 if deletes != "nothing" else 3
    assert read().budgets[Owner("user", "a")][1] == before
    spend("t")
    assert read().budgets[Owner("user", "a")][1] == before + 3
    assert read("t-2").budgets[Owner("user", "a")][1] == before + 1, "a call that its process counts, counts once"
    kept = f"SELECT count(*) FROM {schema}.deleted_costs".encode()
    assert connection.execute(kept).fetchall() == [(0 if deletes == "nothing" else 2,)]
    connection.execute(f"UPDATE {schema}.deleted_costs SET started_at = started_at - interval '1 day'".encode())
    database.run(budgets.forget_deleted_costs, given)
    assert connection.execute(kept).fetchall() == [(0,)]
