"""The questions that applications ask all day are answered from indexes, with 10,000 threads and their record."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from psycopg import sql
from support import check_each

from langgraph_pgstate import PGStateSaver
from langgraph_pgstate.admin.gauges import read_gauges
from langgraph_pgstate.db import database
from langgraph_pgstate.db.adapters import BlockingConnection
from langgraph_pgstate.db.database import Database
from langgraph_pgstate.errors import NotFoundError
from langgraph_pgstate.record.events import Events
from langgraph_pgstate.record.messages import Messages
from langgraph_pgstate.record.spans import Spans
from langgraph_pgstate.runs import Runs
from langgraph_pgstate.schema.queries import NamedQuery, Queries, queries
from langgraph_pgstate.threads import Threads
from tests.architecture.test_sql import plan_of

THREADS = 10_000
# The arguments that each query was sent with, and sent with again.
Calls = dict[str, list[dict[str, Any]]]
# Most rows that a page, a thread or a minute can make these queries look at, here; a scan of any table is 10,000.
MOST_ROWS = 500
Crowd = tuple[psycopg.Connection, Queries, Calls]

# Every table in the order of its threads, which is no index's order but the keys'.
ROWS = """
INSERT INTO threads (thread_id, agent, user_id, tenant_id, status, created_at, updated_at, metadata)
SELECT 'thread-' || t, 'agent-' || t % 40, 'user-' || t % 500, 'tenant-' || t % 20,
    CASE WHEN t % 100 = 0 THEN 'error' ELSE 'idle' END, now(), now() - (t * 7919 % 10000) * interval '1 minute',
    jsonb_build_object('case', t % 1000)
FROM generate_series(1, 10000) AS t;
INSERT INTO projections (thread_id, checkpoint_id, state)
SELECT 'thread-' || t, 'c2', jsonb_build_object('booking', jsonb_build_object('id', t % 1000))
FROM generate_series(1, 10000) AS t;
INSERT INTO checkpoints (
    thread_id, checkpoint_ns, checkpoint_id, parent_checkpoint_id, run_id, source, step, segment_ids, metadata, state
)
SELECT 'thread-' || t, '', 'c' || c, CASE c WHEN 2 THEN 'c1' END, 'run', 'loop', c, '{}', '{}', repeat('x', 200)::bytea
FROM generate_series(1, 10000) AS t, generate_series(1, 2) AS c;
INSERT INTO runs (thread_id, run_id, status, agent, alive_until, started_at, ended_at, steps)
SELECT 'thread-' || t, 'run', CASE WHEN t % 100 = 0 THEN 'error' WHEN t % 500 = 1 THEN 'running' ELSE 'success' END,
    'agent', now() - interval '1 hour', now() - (t * 7919 % 10000) * interval '1 minute', now(),
    CASE WHEN t % 200 = 0 THEN 30 ELSE 5 END
FROM generate_series(1, 10000) AS t;
INSERT INTO spans (
    thread_id, run_id, span_id, started_at, ended_at, kind, name, status, checkpoint_id, step, tool_call_id, cost,
    semconv_version
)
SELECT 'thread-' || t, 'run', 'span-' || s, now() - (t * 7919 % 10000) * interval '1 minute', now(),
    (ARRAY['graph', 'llm', 'tool'])[s], 'name', 'success', 'c1', 2, 'call', 1, '1.41.1'
FROM generate_series(1, 10000) AS t, generate_series(1, 3) AS s;
INSERT INTO tool_executions (thread_id, idempotency_key, tool, status, run_id, checkpoint_id, started_at, arguments)
SELECT 'thread-' || t, 'key', 'pay', 'success', 'run', 'c1', now() - t * interval '1 minute', '{}'
FROM generate_series(1, 10000) AS t;
INSERT INTO messages (thread_id, message_id, checkpoint_id, checkpoint_ns, channel, position, change, role, content)
SELECT 'thread-' || t, 'm' || m, 'c' || m, '', 'messages', m, 'added', 'human', 'the words of word' || t % 1000
FROM generate_series(1, 10000) AS t, generate_series(1, 2) AS m;
INSERT INTO events (thread_id, event_id, created_at, kind, payload)
SELECT 'thread-' || t, 'e' || e, now() - (t * 7919 % 10000) * interval '1 minute',
    CASE WHEN e = 2 THEN 'handoff' ELSE 'status' END, '{"from": "a", "to": "b"}'
FROM generate_series(1, 10000) AS t, generate_series(1, 3) AS e;
INSERT INTO feedback (thread_id, run_id, feedback_id, created_at, source, name, score)
SELECT 'thread-' || t, 'run', 'f' || f, now() - (t * 7919 % 10000) * interval '1 minute', 'human', 'tone', t % 5
FROM generate_series(1, 10000) AS t, generate_series(1, 2) AS f;
ANALYZE feedback, threads, projections, checkpoints, runs, spans, spans_default, tool_executions, messages, events;
"""

# Conditions on state that name no value read all there is; sums of usage may join all runs.
HOT = [
    "list_threads",
    "search_threads",
    "sort_threads",
    "count_selected_threads",
    "get_thread",
    "update_thread",
    "would_change_thread",
    "list_runs",
    "get_run",
    "list_runaway_threads",
    "list_spans",
    "list_spans_of_run",
    "list_superstep_spans",
    "list_superstep_executions",
    "get_provenance",
    "has_checkpoint",
    "get_message_outline",
    "get_messages",
    "search_messages",
    "find_hits",
    "find_step",
    "list_events",
    "list_tree",
    "count_handoffs",
    "measure_tools",
    "measure_executions",
    "list_feedback",
    "count_threads_by_status",
    "measure_runs",
    "measure_runs_with_scope",
    "average_feedback",
    "average_feedback_with_scope",
    "measure_running",
    "count_recent_runs",
    "measure_recent_calls",
    "count_recent_refusals",
    "measure_interrupts",
    "measure_unknown_effects",
    "measure_expired",
]
# Of these a plan that fits all arguments is so much worse that the server never takes to it by itself.
NEVER_GENERIC = {
    "count_threads_by_status",
    "measure_runs_with_scope",
    "average_feedback_with_scope",
}


@pytest.fixture(scope="module")
def crowd(dsn: str) -> Iterator[Crowd]:
    """The schema, and the arguments each query was sent with."""
    schema = "record_crowd"
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(f"DROP SCHEMA IF EXISTS {schema} CASCADE")
        PGStateSaver(connection, schema=schema).setup()
        connection.execute(f"SET search_path = {schema}")
        connection.execute(ROWS.encode())
        connection.execute("SET search_path = ''")
        yield connection, queries(schema), record_calls(connection, schema)
        connection.execute(f"DROP SCHEMA {schema} CASCADE")


def record_calls(connection: psycopg.Connection, schema: str) -> Calls:
    """Ask everything, and each list for its second page."""
    calls: Calls = {}

    class RecordingPort(BlockingConnection):
        async def fetch(self, query: Any, parameters: Any) -> Any:
            calls.setdefault(query.name, []).append(dict(parameters))
            return await super().fetch(query, parameters)

    def twice(method: Any, *arguments: Any, **options: Any) -> None:
        page = method(*arguments, **options)
        assert page.items, method
        assert page.next is None or method(*arguments, cursor=page.next, **options).items

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(database, "BlockingConnection", RecordingPort)
        parts = Database(connection, schema=schema), queries(schema)
        threads, runs, spans, messages = Threads(*parts), Runs(*parts), Spans(*parts), Messages(*parts)
        events = Events(*parts)
        twice(threads.list)
        twice(threads.list, user_id="user-7", limit=5)
        twice(threads.list, tenant_id="tenant-7")
        twice(threads.list, agent="agent-7")
        assert threads.tree("thread-7", "c1", limit=1).nodes
        twice(threads.list, status="error")
        twice(threads.search, metadata={"case": 7}, limit=5)
        for given in ({}, {"metadata": {"case": 7}}, {"ids": ["thread-7"], "scope": {"case": 7}}):
            assert threads.sorted(limit=5, **given)  # type: ignore[arg-type]
            # All of them are counted by reading them.
            assert not given or threads.count(**given)  # type: ignore[arg-type]
        assert threads.update_metadata("thread-7", {"case": 7}, expected_version=1).version == 1
        calls["would_change_thread"] = calls["update_thread"]
        twice(threads.runaway)
        twice(runs.list)
        twice(runs.list, thread_id="thread-7")
        twice(runs.list, status="error")
        twice(runs.failed, since=timedelta(days=1), limit=5)
        assert runs.get("thread-7", "run")
        runs.provenance({"configurable": {"thread_id": "thread-7"}})
        twice(spans.list, "thread-7", limit=2)
        assert spans.tree("thread-7", "run")
        assert spans.tools(since=timedelta(minutes=90))
        assert spans.executions(since=timedelta(minutes=90))
        assert runs.usage(since=timedelta(minutes=90))
        twice(runs.feedback.list, limit=5)
        twice(runs.feedback.list, thread_id="thread-7", limit=1)
        assert runs.analytics(("agent", "day"), since=timedelta(minutes=90)).feedback
        assert runs.analytics(since=timedelta(days=30), scope={"case": 7}).runs
        assert runs.feedback.averages("model", since=timedelta(minutes=30))
        assert Database(connection, schema=schema).run(read_gauges, queries(schema), timedelta(seconds=10))
        assert len(messages.conversation("thread-7", checkpoint_id="c2")) == 2
        with pytest.raises(NotFoundError):
            messages.conversation("thread-7", checkpoint_id="c3")
        messages.conversation("thread-7", checkpoint_id="c2")
        twice(messages.search, "word7", limit=5)
        twice(messages.search, "words", thread_id="thread-7")
        assert len(messages.find_hits("word7", ["thread-7", "thread-1007", "thread-8"])) == 2
        assert threads.find_step("thread-7", 1)
        twice(events.list, "thread-7", limit=2)
        twice(events.list, "thread-7", limit=2, newest_first=True)
        assert events.handoffs(since=timedelta(minutes=90))
    return calls


def touched_rows(node: dict[str, Any]) -> int:
    if "Scan" not in node["Node Type"] or "Relation Name" not in node:
        return 0
    keys = ("Actual Rows", "Rows Removed by Filter", "Rows Removed by Index Recheck")
    return int(sum(node.get(key, 0) for key in keys) * node.get("Actual Loops", 0))


@pytest.mark.slow
@pytest.mark.parametrize("generic", [False, True], ids=["custom", "generic"])
def test_a_question_scans_no_table(generic: bool, crowd: Crowd) -> None:
    """Planned with and without knowledge of its arguments, and counted, for an index can be walked to its end, too."""
    connection, known, calls = crowd

    def check(name: str) -> None:
        query = known.all[name]
        if query.is_planned_each_time:
            for values in calls[name]:
                check_plan(query, values, generic=False)
        elif generic and name in NEVER_GENERIC:
            check_custom(connection, query, calls[name][-1])
        else:
            check_plan(query, calls[name][-1], generic=generic)

    def check_plan(query: NamedQuery, values: dict[str, Any], *, generic: bool) -> None:
        plan = plan_of(connection, query, values, generic=generic, analyze=True)
        ran = [node for node in plan if node.get("Actual Loops", 0)]
        # A month's partition may be empty, and is scanned for want of anything cheaper.
        scanned = [node["Relation Name"] for node in ran if node["Node Type"] == "Seq Scan" and touched_rows(node)]
        assert scanned == [], values
        assert any("Relation Name" in node for node in ran)
        assert sum(map(touched_rows, ran)) <= MOST_ROWS, values

    check_each(check, HOT)


def check_custom(connection: psycopg.Connection, query: NamedQuery, values: dict[str, Any]) -> None:
    """A prepared statement is planned for its arguments after many uses, as it was at first."""
    with connection.transaction(force_rollback=True):
        connection.execute(b"PREPARE often AS " + query.text)
        call = sql.SQL("EXECUTE often({})").format(
            sql.SQL(", ").join(sql.Literal(values[name]) for name in query.parameters)
        )
        try:
            for _ in range(12):
                connection.execute(call)
            found = connection.execute(
                "SELECT generic_plans, custom_plans FROM pg_prepared_statements WHERE name = 'often'"
            ).fetchone()
        finally:
            connection.execute("DEALLOCATE often")
    assert found == (0, 12)


@pytest.mark.slow
@pytest.mark.parametrize(
    "content",
    [{"state": {"booking": {"id": 7}}}, {"where": "$.booking.id == 7"}, {"scope": {"case": 7}}, {"text": "word7"}],
)
def test_a_search_in_content_uses_its_index(content: dict[str, Any], crowd: Crowd) -> None:
    connection, known, _ = crowd
    seen: dict[str, Any] = {}

    class RecordingPort(BlockingConnection):
        async def fetch(self, query: Any, parameters: Any) -> Any:
            seen.update(parameters)
            return await super().fetch(query, parameters)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(database, "BlockingConnection", RecordingPort)
        assert len(Threads(Database(connection, schema=known.schema), known).search(**content).items) == 10
    plan = plan_of(connection, known.search_threads, seen, generic=False, analyze=True)
    if "text" in content:
        # How many threads have some words is not known in advance: reading all of so few threads may cost less.
        plan = [node for node in plan if node.get("Relation Name") == "messages"]
    assert plan
    assert sum(map(touched_rows, plan)) <= MOST_ROWS


@pytest.mark.slow
def test_sums_of_usage_read_the_calls_of_their_time(crowd: Crowd) -> None:
    connection, known, calls = crowd
    plan = plan_of(connection, known.sum_usage, calls["sum_usage"][-1], generic=False, analyze=True)
    assert sum(touched_rows(node) for node in plan if node.get("Relation Name") != "runs") <= MOST_ROWS


@pytest.mark.parametrize("generic", [False, True], ids=["custom", "generic"])
def test_statistics_of_the_ledger_go_by_time(generic: bool, crowd: Crowd) -> None:
    """Not through an index of tools, of which servers older than 18 read everything for want of a tool's name."""
    connection, known, calls = crowd
    query = known.measure_executions
    plan = plan_of(connection, query, calls[query.name][-1], generic=generic, analyze=False)
    assert {node["Index Name"] for node in plan if "Index Name" in node} == {"tool_executions_started_at_idx"}


@pytest.mark.parametrize("name", ["list_threads", "search_threads"])
def test_lists_of_threads_read_no_state(name: str, crowd: Crowd) -> None:
    connection, known, calls = crowd
    for values in calls[name]:
        plan = plan_of(connection, known.all[name], values, generic=False, analyze=False)
        assert {node["Relation Name"] for node in plan if "Relation Name" in node} <= {
            "threads",
            "projections",
            "holds",
        }


@pytest.mark.parametrize("view", ["provenance", "conversations"])
def test_a_view_of_one_thread_reads_one_thread(view: str, crowd: Crowd) -> None:
    connection, known, _ = crowd
    text = f'SELECT * FROM "{known.schema}".{view} WHERE thread_id = $1'
    plan = plan_of(
        connection, NamedQuery("view", "", text.encode(), ("id",)), {"id": "thread-7"}, generic=True, analyze=True
    )
    assert sum(map(touched_rows, plan)) <= 50


def test_the_count_of_rows_would_notice_a_scan(crowd: Crowd) -> None:
    """The tests above rest on it."""
    connection, known, _ = crowd
    text = f'SELECT * FROM "{known.schema}".threads ORDER BY title LIMIT $1'
    query = NamedQuery("scan", "", text.encode(), ("size",))
    assert sum(map(touched_rows, plan_of(connection, query, {"size": 5}, generic=False, analyze=True))) > MOST_ROWS
