"""The queue of ended spans: who exports, what is read, what is removed."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import psycopg
import pytest

from langgraph_pgstate.codec.values import ValueCodec
from langgraph_pgstate.db.database import Database
from langgraph_pgstate.db.protocol import Connection
from langgraph_pgstate.otlp import exports
from langgraph_pgstate.runs.claiming import claim
from langgraph_pgstate.runs.enqueue import enqueue
from langgraph_pgstate.runs.requests import request_run
from langgraph_pgstate.runs.tending import recover
from langgraph_pgstate.schema.queries import Queries, queries
from langgraph_pgstate.threads.rows import delete_runs_of, delete_thread

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
    assert hold("one", "http://a", 30.0) is True
    run(exports.note_caught_up, "two")
    assert hold("one", "http://a", 30.0) is True
    run(exports.note_caught_up, "one")
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


def span_of(connection: psycopg.Connection, schema: str, run_id: str) -> None:
    """A span of a run that has not ended."""
    connection.execute(
        f"INSERT INTO {schema}.spans (thread_id, run_id, span_id, started_at, kind, name, status, semconv_version)"
        " VALUES ('t', %s, 'open', now() - interval '1 hour', 'node', 'n', 'running', '1')",
        [run_id],
    )


def test_spans_of_a_run_that_lost_its_worker_are_queued(
    run: Callable[..., Any], connection: psycopg.Connection, schema: str
) -> None:
    run(exports.hold, "one", "http://a", 30.0)
    run(enqueue, [request_run(ValueCodec(None), "graph", {"x": 1}, thread_id="t", run_id="r")])
    run(claim, "worker", "default", ["graph"], 1, 12.0)
    span_of(connection, schema, "r")
    # It was alone when its worker died.
    connection.execute(f"UPDATE {schema}.queue SET is_suspect = true")
    run(recover, 1, 1, lambda worker_id: True)
    (found,) = run(exports.list_exports, 10)
    assert (found.run_id, found.span_ids) == ("r", ["open"])


def test_spans_of_an_attempt_that_was_cut_off_are_queued(
    run: Callable[..., Any], connection: psycopg.Connection, schema: str
) -> None:
    run(exports.hold, "one", "http://a", 30.0)
    connection.execute(
        f"INSERT INTO {schema}.runs (thread_id, run_id, status, started_at, attempt)"
        " VALUES ('t', 'r', 'running', now(), 2)"
    )
    span_of(connection, schema, "r")
    run(execute, "settle_attempts", {"thread_ids": ["t"], "run_ids": ["r"]})
    (found,) = run(exports.list_exports, 10)
    assert found.span_ids == ["open"]


def test_a_span_is_queued_when_it_ends_and_not_when_its_end_is_written_again(
    run: Callable[..., Any], connection: psycopg.Connection, schema: str
) -> None:
    run(exports.hold, "one", "http://a", 30.0)
    connection.execute(
        f"INSERT INTO {schema}.runs (thread_id, run_id, status, started_at) VALUES ('t', 'r', 'running', now())"
    )

    def write(ended_at: float | None) -> int:
        row = {"thread_id": "t", "run_id": "r", "span_id": "s", "kind": "node", "name": "n", "status": "success"}
        rows = json.dumps([{**row, "started_at": START.timestamp(), "ended_at": ended_at}])
        run(execute, "put_spans", {"thread_ids": ["t"], "rows": rows, "semconv_version": "1"})
        return len(run(exports.list_exports, 10))

    assert [write(at) for at in (None, START.timestamp() + 1, START.timestamp() + 2)] == [0, 1, 1]


async def execute(db: Connection, known: Queries, name: str, parameters: dict[str, Any]) -> None:
    await db.execute(known.all[name], parameters)


@pytest.mark.parametrize("delete", [delete_thread, delete_runs_of])
def test_what_is_deleted_is_not_exported(run: Callable[..., Any], add: Callable[..., None], delete: Any) -> None:
    add("r", 1)
    run(exports.queue_runs, START)
    assert run(exports.list_exports, 10) != []
    run(delete, "t", *([["r"]] if delete is delete_runs_of else []))
    assert run(exports.list_exports, 10) == []


@pytest.mark.slow
def test_waiting_spans_are_found_by_index(connection: psycopg.Connection, schema: str) -> None:
    """Also in a thread with many spans, of which few are asked for."""
    connection.execute(
        f"INSERT INTO {schema}.span_exports (thread_id, export_id, run_id, span_ids, started_ats)"
        " SELECT 't', 'e' || n, 'r', '{s}', '{2026-11-01}' FROM generate_series(1, 20000) AS n"
    )
    connection.execute(
        f"INSERT INTO {schema}.spans"
        " (thread_id, run_id, span_id, started_at, ended_at, kind, name, status, semconv_version)"
        " SELECT 't', 'r', 's' || n, '2026-11-01', '2026-11-01', 'node', 'n', 'success', '1'"
        " FROM generate_series(1, 20000) AS n"
    )
    connection.execute(
        f"INSERT INTO {schema}.runs (thread_id, run_id, status, started_at)"
        " SELECT 't', 'r' || n, 'success', '2026-11-01' FROM generate_series(1, 20000) AS n"
    )
    connection.execute(f"ANALYZE {schema}.span_exports, {schema}.spans, {schema}.runs")
    known = queries(schema)
    keys = {"thread_ids": ["t"], "run_ids": ["r"], "span_ids": ["s7"], "started_ats": [START]}
    for query, parameters in (
        (known.list_exports, {"most_spans": 512}),
        (known.read_ended_spans, {**keys, "with_content": True}),
        (known.delete_exports, {"thread_ids": ["t"], "export_ids": ["e7"]}),
    ):
        text = query.text.decode()
        for place, name in reversed([*enumerate(query.parameters, 1)]):
            text = text.replace(f"${place}", f"%({name})s")
        explained = f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {text}"
        plan = connection.execute(explained.encode(), parameters).fetchall()[0][0][0]
        assert plan["Plan"]["Shared Hit Blocks"] + plan["Plan"]["Shared Read Blocks"] < 150, query.name
