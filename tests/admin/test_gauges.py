"""Numbers for monitoring, of rows of every kind that is counted."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest
from support.record import Record, ask

from langgraph_pgstate.admin import gauges
from langgraph_pgstate.admin.gauges import GAUGES, read_gauges
from langgraph_pgstate.db.database import AsyncDatabase, Database
from langgraph_pgstate.schema.queries import queries


@pytest.fixture(params=[Database, AsyncDatabase], ids=["blocking", "async"])
async def database(request: pytest.FixtureRequest, dsn: str, schema: str) -> AsyncIterator[Any]:
    """A database of either API."""
    if request.param is Database:
        with Database.open(dsn, schema=schema, pool=False) as blocking:
            yield blocking
        return
    async with AsyncDatabase.open(dsn, schema=schema, pool=False) as suspending:
        yield suspending


async def read(database: Any, schema: str) -> dict[str, float]:
    """Every number, by its name with its labels."""
    found = {}
    for name, labels, value in await ask(database.run(read_gauges, queries(schema), timedelta(seconds=10))):
        found[f"{name}{{{','.join(labels.values())}}}" if labels else name] = value
    return found


async def test_numbers_of_the_database(database: Any, record: Record) -> None:
    fill(record)
    found = await read(database, record.schema)
    expected = {
        "queue_runs{default,pending}": 2,
        "queue_runs{default,delayed}": 1,
        "queue_runs{default,running}": 1,
        "queue_unaccepted_runs{default,chat}": 0,
        "queue_unaccepted_runs{default,other}": 1,
        "queue_workers{default}": 1,
        "queue_worker_slots{default}": 4,
        "running_runs": 2,
        "stuck_runs": 1,
        "recent_runs{travel,error}": 1,
        "recent_runs{travel,running}": 2,
        "recent_refused_runs{LeaseHeldError}": 1,
        "recent_model_calls{travel,large}": 2,
        "recent_model_tokens{travel,large,input}": 30,
        "recent_model_tokens{travel,large,output}": 3,
        "recent_model_cost{travel,large}": 0.5,
        "recent_unpriced_model_calls{travel,large}": 1,
        "interrupted_threads": 1,
        "unknown_effects{pay}": 2,
        "journal_entries": 1,
        "expired_threads": 1,
        "pending_webhooks": 2,
        "recent_failed_webhooks": 1,
        "pending_span_exports": 1,
    }
    assert {name: found[name] for name in expected} == expected
    ages = {
        "queue_oldest_run_seconds{default,pending}": 120,
        "queue_oldest_run_seconds{default,running}": 60,
        "oldest_running_run_seconds": 1800,
        "oldest_interrupt_seconds": 7200,
        "oldest_unknown_effect_seconds{pay}": 900,
        "oldest_journal_entry_seconds": 30,
        "oldest_expired_thread_seconds": 600,
        "oldest_pending_webhook_seconds": 300,
        "oldest_pending_span_export_seconds": 40,
    }
    assert {name: found[name] // 10 * 10 for name in ages} == ages
    assert {f"{name}" for name in GAUGES} <= {name.partition("{")[0] for name in found}


async def test_an_empty_database_has_numbers_too(database: Any, record: Record) -> None:
    found = await read(database, record.schema)
    assert set(found.values()) == {0}
    assert {"running_runs", "interrupted_threads", "journal_entries", "expired_threads"} <= found.keys()


async def test_no_more_than_a_number_of_rows_is_counted(
    database: Any, record: Record, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(record)
    monkeypatch.setattr(gauges, "MOST_ROWS", 1)
    found = await read(database, record.schema)
    counts = ("queue_runs", "running_runs", "recent_runs", "recent_model_calls", "unknown_effects", "journal_entries")
    assert [sum(value for name, value in found.items() if name.partition("{")[0] == count) for count in counts] == [
        1
    ] * 6


async def test_rare_agents_are_summed_up(database: Any, record: Record) -> None:
    record.connection.execute(f"SET search_path = {record.schema}")
    record.connection.execute(
        """
        INSERT INTO threads (thread_id) VALUES ('a');
        INSERT INTO runs (thread_id, run_id, agent, status, started_at)
        SELECT 'a', 'r' || n, 'agent' || n % 60, 'success', now() FROM generate_series(1, 110) n;
        INSERT INTO spans (
            thread_id, run_id, span_id, kind, name, status, started_at, agent, model, input_tokens, semconv_version
        ) SELECT 'a', 'r1', n::text, 'llm', 'm', 'success', now(), 'agent' || n % 60, 'm', 1, '1'
        FROM generate_series(1, 110) n
        """
    )
    found = await read(database, record.schema)
    runs = {name: value for name, value in found.items() if name.startswith("recent_runs{")}
    assert (len(runs), sum(runs.values()), runs["recent_runs{other,success}"]) == (51, 110, 10)
    tokens = {name: value for name, value in found.items() if name.endswith("input}")}
    assert (len(tokens), sum(tokens.values()), tokens["recent_model_tokens{other,other,input}"]) == (51, 110, 10)


def fill(record: Record) -> None:
    """Rows of every kind that is counted."""
    record.connection.execute(f"SET search_path = {record.schema}")
    record.connection.execute(
        """
        INSERT INTO threads (thread_id, status, updated_at, expires_at) VALUES
            ('a', 'interrupted', now() - interval '2 hours', NULL),
            ('b', 'idle', now(), now() - interval '10 minutes'), ('c', 'error', now(), now() + interval '1 hour');
        INSERT INTO queue (
            thread_id, run_id, queue, graph, status, is_ready, number, enqueued_at, run_after, claimed_at
        ) VALUES
            ('q1', 'r', 'default', 'chat', 'pending', true, 0, now() - interval '2 minutes', NULL, NULL),
            ('q2', 'r', 'default', 'other', 'pending', true, 0, now(), NULL, NULL),
            ('q3', 'r', 'default', 'chat', 'pending', false, NULL, now(), now() + interval '1 day', NULL),
            ('q4', 'r', 'default', 'chat', 'running', true, 0, now() - interval '1 day', NULL, now() - interval '60s');
        INSERT INTO workers (worker_id, seen_at, queues, graphs, concurrency) VALUES
            ('w', now(), '{default}', '{chat}', 4), ('dead', now() - interval '1 hour', '{default}', '{other}', 4);
        INSERT INTO runs (thread_id, run_id, agent, status, started_at, alive_until) VALUES
            ('a', 'r1', 'travel', 'running', now() - interval '30 minutes', now() - interval '1 minute'),
            ('a', 'r2', 'travel', 'running', now(), now() + interval '1 minute'),
            ('a', 'r3', 'travel', 'error', now() - interval '59 minutes', NULL),
            ('a', 'r4', 'travel', 'success', now() - interval '61 minutes', NULL);
        INSERT INTO spans (
            thread_id, run_id, span_id, kind, name, status, started_at, ended_at, agent, model, input_tokens,
            output_tokens, cost, semconv_version
        ) VALUES
            ('a', 'r3', 's1', 'llm', 'm', 'success', now(), now(), 'travel', 'large', 10, 1, 0.5, '1'),
            ('a', 'r3', 's2', 'llm', 'm', 'success', now(), now(), 'travel', 'large', 20, 2, NULL, '1'),
            ('a', 'r3', 's3', 'tool', 'm', 'success', now(), now(), 'travel', NULL, NULL, NULL, NULL, '1'),
            ('a', 'r3', 's4', 'llm', 'm', 'success', now() - interval '2 hours', now(), 'a', 'b', 1, 1, NULL, '1');
        INSERT INTO events (thread_id, event_id, kind, created_at, payload) VALUES
            ('a', '1', 'refused', now(), '{"error_type": "LeaseHeldError"}'),
            ('a', '2', 'refused', now() - interval '2 hours', '{"error_type": "LeaseHeldError"}'),
            ('a', '3', 'status', now(), '{}');
        INSERT INTO tool_executions (
            thread_id, idempotency_key, tool, status, started_at, alive_until, arguments
        ) VALUES
            ('a', '1', 'pay', 'unknown', now(), NULL, '{}'),
            ('a', '2', 'pay', 'running', now() - interval '15 minutes', now() - interval '1 minute', '{}'),
            ('a', '3', 'pay', 'success', now(), NULL, '{}'), ('a', '4', 'pay', 'error', now(), NULL, '{}');
        INSERT INTO journal (thread_id, entry_id, created_at, data)
            VALUES ('a', '1', now() - interval '30 seconds', '');
        INSERT INTO webhooks (thread_id, run_id, ended_at, url, run, deliver_after) VALUES
            ('a', 'r1', now() - interval '5 minutes', 'http://a', '{}', now() + interval '1 hour'),
            ('a', 'r2', now(), 'http://a', '{}', now()), ('a', 'r3', now(), 'http://a', '{}', NULL),
            ('a', 'r4', now() - interval '25 hours', 'http://a', '{}', NULL);
        INSERT INTO span_exports (thread_id, export_id, run_id, created_at, span_ids, started_ats)
            VALUES ('a', '1', 'r1', now() - interval '40 seconds', '{}', '{}');
        """
    )
    record.connection.execute("SET search_path = DEFAULT")
