"""The queue of ended spans: who exports, what is read, what is removed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import psycopg
import pytest

from langgraph_pgstate.db.database import Database
from langgraph_pgstate.operations.otlp import exports
from langgraph_pgstate.sql import queries

START = datetime(2026, 11, 1, tzinfo=UTC)


@pytest.fixture
def run(dsn: str, schema: str) -> Iterator[Callable[..., Any]]:
    with Database.open(dsn, schema=schema, pool=False) as database:
        yield lambda operation, *args, **more: database.run(operation, queries(schema), *args, **more)


@pytest.fixture
def add(connection: psycopg.Connection, schema: str) -> Callable[..., None]:
    def add(run_id: str, spans: int, started_at: datetime = START) -> None:
        connection.execute(
            f"INSERT INTO {schema}.runs (thread_id, run_id, status, started_at) VALUES ('t', %s, 'success', %s)",
            [run_id, started_at],
        )
        connection.execute(
            f"INSERT INTO {schema}.spans"
            " (thread_id, run_id, span_id, started_at, ended_at, parent_span_id, kind, name, status, semconv_version)"
            " SELECT 't', %(run)s, 's' || n, %(at)s + n * interval '1 s', %(at)s + n * interval '2 s',"
            " CASE WHEN n > 1 THEN 's1' END, 'node', 'n', 'success', '1' FROM generate_series(1, %(spans)s) AS n",
            {"run": run_id, "at": started_at, "spans": spans},
        )

    return add


def test_one_process_exports_until_its_time_has_passed(
    run: Callable[..., Any], connection: psycopg.Connection, schema: str
) -> None:
    hold = partial(run, exports.hold)
    assert hold("one", "http://a", 30.0) is True
    assert hold("one", "http://b", 30.0) is False
    assert hold("two", "http://c", 30.0) is None
    connection.execute(f"UPDATE {schema}.exporters SET expires_at = now() - interval '1 s'")
    assert hold("two", "http://c", 30.0) is False
    assert hold("one", "http://a", 30.0) is None
    run(exports.release, "one")
    assert hold("one", "http://a", 30.0) is None
    run(exports.release, "two")
    assert hold("one", "http://a", 30.0) is False


def test_runs_are_queued_newest_first_in_pages_of_bounded_rows(
    run: Callable[..., Any], add: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exports, "_PAGE", 2)
    monkeypatch.setattr(exports, "_MOST_SPANS", 3)
    for number in range(5):
        add(f"r{number}", 7, START + timedelta(days=number))
    after = run(exports.queue_runs, START + timedelta(days=1))
    assert after == (START + timedelta(days=3), "t", "r3")
    after = run(exports.queue_runs, START + timedelta(days=1), after)
    assert run(exports.queue_runs, START + timedelta(days=1), after) is None
    found = run(exports.list_exports, 1000)
    assert {(one.run_id, len(one.span_ids)) for one in found} == {
        (f"r{n}", size) for n in (1, 2, 3, 4) for size in (3, 1)
    }
    assert len(found) == 12


def test_about_as_many_spans_are_listed_as_are_asked_for(run: Callable[..., Any], add: Callable[..., None]) -> None:
    for number in range(4):
        add(f"r{number}", 10)
    assert run(exports.queue_runs, timedelta(days=36500)) is None
    assert len(run(exports.list_exports, 1)) == 1
    assert len(run(exports.list_exports, 15)) == 2
    found = run(exports.list_exports, 100)
    assert len(found) == 4
    run(exports.confirm, found[:3])
    assert run(exports.list_exports, 100) == found[3:]


def test_spans_are_read_with_the_start_of_their_parent(run: Callable[..., Any], add: Callable[..., None]) -> None:
    add("r", 2)
    keys = [("t", "r", f"s{n}", START + timedelta(seconds=n)) for n in (1, 2, 3)]
    root, child = run(exports.read_spans, keys, with_content=False)
    assert (root.parent_span_id, root.parent_started_at) == (None, None)
    assert (child.parent_span_id, child.parent_started_at) == ("s1", START + timedelta(seconds=1))


def test_content_is_read_if_asked_for_and_not_of_an_encrypted_run(
    run: Callable[..., Any], add: Callable[..., None], connection: psycopg.Connection, schema: str
) -> None:
    add("r", 1)
    connection.execute(f"""UPDATE {schema}.runs SET input = '"asked"', output = '"said"'""")
    connection.execute(f"UPDATE {schema}.spans SET error_message = 'why'")
    keys = [("t", "r", "s1", START + timedelta(seconds=1))]

    def contents(with_content: bool) -> tuple[Any, ...]:
        (span,) = run(exports.read_spans, keys, with_content=with_content)
        return span.error_message, span.input, span.output

    assert contents(False) == (None, None, None)
    assert contents(True) == ("why", "asked", "said")
    connection.execute(f"UPDATE {schema}.runs SET is_encrypted = true")
    assert contents(True) == (None, None, None)


def test_only_exporters_that_are_long_gone_are_forgotten(
    run: Callable[..., Any], add: Callable[..., None], connection: psycopg.Connection, schema: str
) -> None:
    run(exports.hold, "one", "http://a", 30.0)
    add("r", 1)
    run(exports.queue_runs, START)
    run(exports.forget)
    assert len(run(exports.list_exports, 10)) == 1
    connection.execute(f"UPDATE {schema}.exporters SET expires_at = now() - interval '8 days'")
    run(exports.forget)
    assert run(exports.list_exports, 10) == []
    assert run(exports.hold, "one", "http://a", 30.0) is True
