"""The pages of the inspector on 100,000 threads and 1,000,000 spans: time, statements and bytes of each.

    python -m benchmarks.pages [--threads 100000] [--dsn DSN]

prints a table, and writes `benchmarks/results/pages.json`. The time is that of a whole request in the server's process,
the median of nine, after one that warms the caches. Statements are those that the process sends for one request. Puts
are compared without readers, and with a process that reads pages all the time, in turns.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, Final, cast

import httpx
import psycopg
from langgraph.checkpoint.base import Checkpoint, empty_checkpoint
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import interrupt

from benchmarks.__main__ import RESULTS, put_between_marks
from langgraph_pgstate import AsyncPGState, PGState
from langgraph_pgstate.db.embedded import embedded_server
from langgraph_pgstate.server import create_app

RESULT: Final = RESULTS / "pages.json"
DOCUMENT: Final = RESULTS.parents[1] / "docs" / "inspector.md"
BEGINS: Final = "<!-- make bench-pages: begin -->"
ENDS: Final = "<!-- make bench-pages: end -->"
THREADS: Final = 100_000
SCHEMA: Final = "pgstate"
SPANS_OF_A_RUN: Final = 10
DAYS: Final = 60
BIG: Final = 10_000
APPROVALS: Final = 200
MOST_MS: Final = 200
MOST_BYTES: Final = 300_000
MOST_STATEMENTS: Final = 5


def fill(dsn: str, threads: int) -> None:
    """Fill a database with threads, one run of ten spans on each, over 60 days; and one run of 10,000 spans."""
    with PGState.open(dsn) as state:
        state.setup()
        asked, approves = _asking(state), _approving(state)
        state.flush()
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(f"SET search_path = {SCHEMA}")
        months = connection.execute(
            "SELECT DISTINCT to_char(d, 'YYYY_MM'), date_trunc('month', d), "
            "date_trunc('month', d) + interval '1 month' "
            f"FROM generate_series(now() - interval '{DAYS + 2} days', now(), '1 day') d"
        ).fetchall()
        for name, first, following in months:
            connection.execute(
                f"CREATE TABLE IF NOT EXISTS spans_{name} PARTITION OF spans "
                f"FOR VALUES FROM ('{first}') TO ('{following}')"
            )
        numbers = {"threads": threads, "days": DAYS, "big": BIG, "approvals": APPROVALS}
        for text in _FILLING:
            connection.execute(text.encode(), {**numbers, "asked": asked, "approves": approves})
        connection.execute("VACUUM ANALYZE")


def _asking(state: PGState) -> str:
    """Let a graph ask a question, and return its thread: others get the same one."""

    def ask(_: MessagesState) -> dict[str, Any]:
        interrupt({"question": "Pay 180 euros to the hotel?", "amount": 180, "hotel": "Astoria"})
        return {}

    builder = StateGraph(MessagesState).add_node("ask", ask).add_edge(START, "ask")
    graph = state.record(builder.compile(checkpointer=state.saver))
    graph.invoke({"messages": [("user", "A hotel.")]}, {"configurable": {"thread_id": "asked", "user_id": "eve"}})
    return "asked"


def _approving(state: PGState) -> str:
    """Let a graph ask for the approval of three calls, as LangChain's middleware does, and return its thread."""
    letter = "Dear guest, the room is booked. " * 20
    calls = [
        {"name": "book_hotel", "args": {"hotel": "Astoria", "nights": 2, "price": 180.5}, "description": "**Book** it"},
        {"name": "send_email", "args": {"to": "eve@example.com", "subject": "Booked", "body": letter}},
        {
            "name": "pay",
            "args": {"amount": 361, "lines": [{"sku": f"room-{night}", "price": 180.5} for night in (1, 2)]},
        },
    ]
    allowed = {"allowed_decisions": ["approve", "edit", "respond", "reject"]}

    def ask(_: MessagesState) -> dict[str, Any]:
        interrupt({"action_requests": calls, "review_configs": [allowed] * len(calls)})
        return {}

    builder = StateGraph(MessagesState).add_node("ask", ask).add_edge(START, "ask")
    graph = state.record(builder.compile(checkpointer=state.saver))
    graph.invoke({"messages": [("user", "A hotel.")]}, {"configurable": {"thread_id": "approves", "agent": "approver"}})
    return "approves"


# Placeholders are psycopg's; a percent sign is written twice.
_FILLING: Final = (
    """
    INSERT INTO threads (thread_id, agent, user_id, tenant_id, created_at, updated_at, status, title, metadata)
    SELECT 'thread-' || t, 'agent-' || t %% 8, 'user-' || t %% 1000, 'tenant-' || t %% 20,
        now() - t * (%(days)s * interval '1 day' / %(threads)s) - interval '5 min',
        now() - t * (%(days)s * interval '1 day' / %(threads)s),
        CASE WHEN t %% 100 = 0 THEN 'error' WHEN t %% 100 = 1 THEN 'interrupted' ELSE 'idle' END,
        CASE WHEN t %% 3 = 0 THEN 'Trip ' || t END, jsonb_build_object('topic', 'topic ' || t %% 50)
    FROM generate_series(1, %(threads)s::integer) AS t
    """,
    """
    INSERT INTO runs (
        thread_id, run_id, status, agent, user_id, tenant_id, started_at, ended_at, first_started_at, steps,
        input_tokens, output_tokens, cost, error_type, error_message, error_traceback, queue, enqueued_at, input, output
    )
    SELECT 'thread-' || t, 'run-' || t, CASE WHEN t %% 100 = 0 THEN 'error' WHEN t %% 100 = 1 THEN 'interrupted'
            ELSE 'success' END, 'agent-' || t %% 8, 'user-' || t %% 1000, 'tenant-' || t %% 20, s,
        s + interval '9 s', s, 4, 3000, 300, 0.012, CASE WHEN t %% 100 = 0 THEN 'builtins.ValueError' END,
        CASE WHEN t %% 100 = 0 THEN 'no such hotel' END,
        CASE WHEN t %% 100 = 0 THEN repeat('File "agent.py"' || E'\\n', 40) END,
        CASE WHEN t %% 2 = 0 THEN 'default' END, CASE WHEN t %% 2 = 0 THEN s END,
        jsonb_build_object('messages', jsonb_build_array(repeat('Find me a hotel. ', 20))),
        jsonb_build_object('messages', jsonb_build_array(repeat('Here is a hotel. ', 60)))
    FROM (
        SELECT t, now() - t * (%(days)s * interval '1 day' / %(threads)s) AS s
        FROM generate_series(1, %(threads)s::integer) AS t
    ) AS n
    """,
    """
    INSERT INTO spans (
        thread_id, run_id, span_id, parent_span_id, kind, name, status, started_at, ended_at, step, node, agent,
        provider, model, input_tokens, output_tokens, cost, tool_call_id, error_type, error_message, input, output,
        semconv_version
    )
    SELECT 'thread-' || t, 'run-' || t, 'span-' || t || '-' || k,
        CASE WHEN k > 0 THEN 'span-' || t || '-' || CASE WHEN k %% 3 = 1 THEN 0 ELSE k - (k - 1) %% 3 END END,
        (ARRAY['graph', 'node', 'llm', 'tool', 'node', 'llm', 'tool', 'node', 'llm', 'chain'])[k + 1],
        (ARRAY['agent', 'think', 'gpt', 'search', 'think', 'gpt', 'pay', 'answer', 'gpt', 'parse'])[k + 1],
        CASE WHEN t %% 100 = 0 AND k = 6 THEN 'error' ELSE 'success' END,
        s + k * interval '0.9 s', s + k * interval '0.9 s' + CASE WHEN k = 0 THEN interval '9 s' ELSE
            (0.1 + random()) * interval '0.7 s' END,
        k / 3, 'node', 'agent-' || t %% 8,
        CASE WHEN k IN (2, 5, 8) THEN 'openai' END, CASE WHEN k IN (2, 5, 8) THEN 'gpt-' || t %% 5 END,
        CASE WHEN k IN (2, 5, 8) THEN 1000 END, CASE WHEN k IN (2, 5, 8) THEN 100 END,
        CASE WHEN k IN (2, 5, 8) THEN 0.001 * (1 + t %% 5) END, CASE WHEN k IN (3, 6) THEN 'call-' || k END,
        CASE WHEN t %% 100 = 0 AND k = 6 THEN 'builtins.ValueError' END,
        CASE WHEN t %% 100 = 0 AND k = 6 THEN 'no such hotel' END,
        CASE WHEN k > 0 THEN jsonb_build_object('text', repeat('lorem ', 15)) END,
        CASE WHEN k > 0 THEN jsonb_build_object('text', repeat('ipsum ', 15)) END, '1.41.1'
    FROM (
        SELECT t, now() - t * (%(days)s * interval '1 day' / %(threads)s) AS s
        FROM generate_series(1, %(threads)s::integer) AS t
    ) AS n, generate_series(0, 9) AS k
    """,
    """
    INSERT INTO runs (thread_id, run_id, status, agent, started_at, ended_at, steps)
    VALUES ('thread-1', 'big', 'success', 'agent-1', now() - interval '1 h', now() - interval '40 min', 2500)
    """,
    """
    INSERT INTO spans (
        thread_id, run_id, span_id, parent_span_id, kind, name, status, started_at, ended_at, input_tokens,
        output_tokens, cost, semconv_version
    )
    SELECT 'thread-1', 'big', 'big-' || k,
        CASE WHEN k > 1 THEN 'big-' || CASE WHEN k %% 4 = 2 THEN 1 ELSE k - 1 - (k + 1) %% 4 END END,
        CASE WHEN k = 1 THEN 'graph' ELSE (ARRAY['llm', 'tool', 'node', 'chain'])[k %% 4 + 1] END, 'step ' || k %% 12,
        CASE WHEN k %% 500 = 0 THEN 'error' ELSE 'success' END,
        now() - interval '1 h' + k * interval '0.1 s', now() - interval '1 h' + k * interval '0.1 s' + interval '0.3 s',
        100, 10, 0.0005, '1.41.1'
    FROM generate_series(1, %(big)s::integer) AS k
    """,
    """
    INSERT INTO tool_executions (
        thread_id, idempotency_key, tool, status, agent, tool_call_id, run_id, started_at, ended_at, alive_until,
        arguments, preview
    )
    SELECT 'thread-' || t, 'key-' || k, CASE k WHEN 1 THEN 'search' ELSE 'pay' END,
        CASE WHEN t %% 200 = 0 AND k = 2 THEN 'unknown' ELSE 'success' END, 'agent-' || t %% 8, 'call-' || k * 3,
        'run-' || t, s, s + random() * interval '2 s', s, jsonb_build_object('amount', t, 'hotel', 'Astoria'), 'booked'
    FROM (
        SELECT t, now() - t * (%(days)s * interval '1 day' / %(threads)s) AS s
        FROM generate_series(1, %(threads)s::integer) AS t
    ) AS n, generate_series(1, 2) AS k
    """,
    """
    INSERT INTO checkpoints (
        thread_id, checkpoint_ns, checkpoint_id, parent_checkpoint_id, run_id, source, step, created_at, segment_ids,
        metadata, state
    )
    SELECT 'thread-' || t, '', c.checkpoint_id, c.parent_checkpoint_id, 'run-' || t, c.source, c.step,
        now() - t * (%(days)s * interval '1 day' / %(threads)s), c.segment_ids, c.metadata, c.state
    FROM generate_series(1, %(threads)s::integer) AS t, checkpoints c WHERE c.thread_id = %(asked)s
    """,
    """
    INSERT INTO segments (thread_id, segment_id, data)
    SELECT 'thread-' || t, g.segment_id, g.data
    FROM generate_series(1, %(threads)s::integer) AS t, segments g WHERE g.thread_id = %(asked)s
    """,
    """
    INSERT INTO checkpoints (
        thread_id, checkpoint_ns, checkpoint_id, parent_checkpoint_id, run_id, source, step, created_at, segment_ids,
        metadata, state
    )
    SELECT 'thread-' || t, '', left(c.checkpoint_id, 30) || 'ffffff', c.checkpoint_id, 'run-' || t, 'loop', 1,
        now() - t * (%(days)s * interval '1 day' / %(threads)s), c.segment_ids, c.metadata, c.state
    FROM generate_series(1, %(threads)s::integer) AS t, (
        SELECT * FROM checkpoints WHERE thread_id = %(asked)s ORDER BY checkpoint_id DESC LIMIT 1
    ) AS c WHERE t %% 100 <> 1
    """,
    """
    INSERT INTO writes (thread_id, checkpoint_ns, checkpoint_id, task_id, idx, task_path, run_id, created_at, data)
    SELECT 'thread-' || t, '', w.checkpoint_id, w.task_id, w.idx, w.task_path, 'run-' || t,
        now() - t * (%(days)s * interval '1 day' / %(threads)s), w.data
    FROM generate_series(1, %(threads)s::integer) AS t, writes w WHERE w.thread_id = %(asked)s AND t %% 20 = 1
    """,
    """
    INSERT INTO messages (
        thread_id, message_id, checkpoint_id, checkpoint_ns, channel, position, change, created_at, run_id, role,
        content
    )
    SELECT 'thread-' || t, 'm' || k, (SELECT min(c.checkpoint_id) FROM checkpoints c WHERE c.thread_id = %(asked)s), '',
        'messages', k, 'added', now() - t * (%(days)s * interval '1 day' / %(threads)s), 'run-' || t,
        CASE k WHEN 1 THEN 'human' ELSE 'ai' END, 'a hotel for number ' || t
    FROM generate_series(1, %(threads)s::integer) AS t, generate_series(1, 2) AS k
    """,
    """
    INSERT INTO threads (thread_id, agent, user_id, created_at, updated_at, status)
    SELECT 'approval-' || n, 'approver', 'eve', now(), now(), 'interrupted'
    FROM generate_series(1, %(approvals)s::integer) AS n
    """,
    """
    INSERT INTO checkpoints (
        thread_id, checkpoint_ns, checkpoint_id, parent_checkpoint_id, run_id, source, step, created_at, segment_ids,
        metadata, state
    )
    SELECT 'approval-' || n, '', c.checkpoint_id, c.parent_checkpoint_id, 'run', c.source, c.step, now(), c.segment_ids,
        c.metadata, c.state
    FROM generate_series(1, %(approvals)s::integer) AS n, checkpoints c WHERE c.thread_id = %(approves)s
    """,
    """
    INSERT INTO segments (thread_id, segment_id, data)
    SELECT 'approval-' || n, g.segment_id, g.data
    FROM generate_series(1, %(approvals)s::integer) AS n, segments g WHERE g.thread_id = %(approves)s
    """,
    """
    INSERT INTO writes (thread_id, checkpoint_ns, checkpoint_id, task_id, idx, task_path, run_id, created_at, data)
    SELECT 'approval-' || n, '', w.checkpoint_id, w.task_id, w.idx, w.task_path, 'run', now() - n * interval '1 s',
        w.data
    FROM generate_series(1, %(approvals)s::integer) AS n, writes w WHERE w.thread_id = %(approves)s
    """,
    """
    INSERT INTO run_requests (thread_id, run_id, options, data)
    SELECT 'thread-' || t, 'run-' || t, '{"graph": "agent"}', '\\x00' FROM generate_series(1, %(threads)s::integer) AS t
    WHERE t %% 100 = 0
    """,
    """
    INSERT INTO queue (thread_id, run_id, queue, graph, status, is_ready, number, position, enqueued_at)
    SELECT 'thread-' || t, 'waiting-' || t, 'default', 'agent', 'pending', true, 0, t, now() - t * interval '1 s'
    FROM generate_series(1, %(threads)s::integer / 20) AS t
    """,
    """
    INSERT INTO workers (worker_id, queues, graphs, concurrency)
    SELECT 'host/1/' || w, ARRAY['default'], ARRAY['agent'], 20 FROM generate_series(1, 10) AS w
    """,
    """
    INSERT INTO memories (
        namespace, key, version, value, created_at, updated_at, is_large, is_waiting, is_unindexed, kind, user_id,
        valid_from, changed_by, thread_id, run_id, message_id
    )
    SELECT ARRAY['memories', 'user', 'user-' || u], 'key-' || k, 2,
        jsonb_build_object('content', 'Prefers hotel number ' || k || ' of city ' || u, 'metadata', '{}'::jsonb), s, s,
        false, false, false, (ARRAY['fact', 'preference', 'interaction'])[k %% 3 + 1], 'user-' || u, s, 'agent',
        'thread-' || u, 'run-' || u, 'm1'
    FROM (
        SELECT u, k, now() - (u + k) * interval '1 min' AS s
        FROM generate_series(1, %(threads)s::integer / 50) AS u, generate_series(1, 50) AS k
    ) AS n
    """,
    """
    INSERT INTO memory_versions (namespace, key, version, value, kind, user_id, valid_from, valid_to, is_deleted)
    SELECT m.namespace, m.key, 1, '{"content": "Prefers no hotel", "metadata": {}}', m.kind, m.user_id,
        m.valid_from - interval '1 d', m.valid_from, false
    FROM memories m
    """,
    """
    INSERT INTO schedules (name, graph, queue, cron, timezone, missed, options, data, next_at)
    SELECT 'schedule-' || n, 'agent', 'default', '0 9 * * *', 'UTC', 'skip', '{}', '\\x00', now() + n * interval '1 h'
    FROM generate_series(1, 20) AS n
    """,
)

PAGES: Final = {
    "threads": "/ui/threads",
    "threads of a user": "/ui/threads?user=user-7",
    "threads with an error": "/ui/threads?status=error",
    "thread": "/ui/threads/asked",
    "state of a thread": "/ui/threads/asked?view=state",
    "changes of a thread": "/ui/threads/asked?view=changes",
    "who did what on a thread": "/ui/threads/asked?view=events",
    "runs": "/ui/runs",
    "failed runs": "/ui/runs?status=failed",
    "runs of an agent": "/ui/runs?agent=agent-3",
    "runs by cost": "/ui/runs?by=cost&since=7d",
    "runs by duration": "/ui/runs?by=duration&since=7d",
    "runs by tokens": "/ui/runs?by=tokens&since=7d",
    "runs of a user by cost": "/ui/runs?user=user-7&by=cost&since=30d",
    "runs of a model by cost": "/ui/runs?model=gpt-3&by=cost",
    "runs of a model by tokens": "/ui/runs?model=gpt-3&by=tokens&since=7d",
    "run": "/ui/runs/thread-100/run-100",
    "run of 10,000 spans": "/ui/runs/thread-1/big",
    "its last spans": "/ui/runs/thread-1/big?offset=9900",
    "one span": "/ui/runs/thread-1/big?span=big-77",
    "interrupts": "/ui/interrupts?user=user-1",
    "approvals": "/ui/interrupts?agent=approver",
    "tools": "/ui/tools",
    "one tool": "/ui/tools?tool=pay",
    "one action": "/ui/tools/thread-200/key-2",
    "queue": "/ui/queue",
    "dead letters": "/ui/queue?show=dead",
    "schedules": "/ui/queue?show=schedules",
    "memories": "/ui/memory",
    "memories of a user": "/ui/memory?user=user-7",
    "memories with a text": "/ui/memory?user=user-7&q=hotel",
    "a memory": "/ui/memory/memories~2Fuser~2Fuser-7/key-3",
    "what a run has kept": "/ui/memory?thread=thread-7&run=run-7",
    "cost of 30 days": "/ui/costs",
    "cost of 90 days": "/ui/costs?since=90d",
    "cost of a user": "/ui/costs?user=user-7",
    "database": "/ui/database",
}


@contextmanager
def counting() -> Iterator[list[str]]:
    """Note the statements that this process sends while the block runs."""
    from langgraph_pgstate.db import adapters

    sent: list[str] = []
    names = ("fetch", "execute", "execute_together", "script")
    before = {name: getattr(adapters.AsyncConnection, name) for name in names}

    def noting(name: str) -> Any:
        async def call(self: Any, first: Any, *rest: Any) -> Any:
            several = first if name == "execute_together" else [(first, None)]
            sent.extend(getattr(query, "name", "script") for query, _ in several)
            return await before[name](self, first, *rest)

        return call

    try:
        for name in names:
            setattr(adapters.AsyncConnection, name, noting(name))
        yield sent
    finally:
        for name in names:
            setattr(adapters.AsyncConnection, name, before[name])


@asynccontextmanager
async def client_of(dsn: str) -> AsyncIterator[httpx.AsyncClient]:
    """A client of pages on a database, of a person who may act: the pages have their forms."""
    server = create_app(lambda: AsyncPGState.open(dsn), {}, inspector=True, worker=False)
    async with server.lifespan():
        transport = httpx.ASGITransport(server, raise_app_exceptions=False)
        cookies = {"pgstate_person": "Eve"}
        given: dict[str, Any] = {"transport": transport, "base_url": "http://localhost", "cookies": cookies}
        async with httpx.AsyncClient(**given, timeout=120) as client:
            yield client


async def measure(dsn: str, rounds: int = 9) -> dict[str, dict[str, Any]]:
    """Return milliseconds, statements and bytes of each page."""
    found: dict[str, dict[str, Any]] = {}
    async with client_of(dsn) as client:
        for name, path in PAGES.items():
            with counting() as sent:
                answer = await client.get(path)
            if answer.status_code != 200:
                found[name] = {"status": answer.status_code}
                continue
            # The recorder looks for the journals of dead processes once a second.
            names = [one for one in sent if one != "find_entries"]
            times = []
            for _ in range(rounds):
                begun = time.perf_counter()
                answer = await client.get(path)
                times.append((time.perf_counter() - begun) * 1000)
            found[name] = {
                "ms": round(statistics.median(times), 1),
                "slowest_ms": round(max(times), 1),
                "statements": len(names),
                "bytes": len(answer.content),
            }
    return found


async def put_times(dsn: str, seconds: float) -> list[float]:
    """Return the milliseconds of puts, made one after another for some seconds."""
    times = []
    async with AsyncPGState.open(dsn) as state:
        config: Any = {"configurable": {"thread_id": f"put-{time.time_ns()}", "checkpoint_ns": ""}}
        until, step = time.monotonic() + seconds, 0
        while time.monotonic() < until:
            checkpoint = {**empty_checkpoint(), "channel_values": {"a": step}, "channel_versions": {"a": step + 1}}
            begun = time.perf_counter()
            metadata: Any = {"source": "loop", "step": step}
            config = await state.saver.aput(config, cast("Checkpoint", checkpoint), metadata, {"a": step + 1})
            times.append((time.perf_counter() - begun) * 1000)
            step += 1
    return times


def read_pages(dsn: str) -> None:
    """Read pages until this process is ended."""

    async def read() -> None:
        async with client_of(dsn) as client:
            while True:
                for name in ("threads", "cost of 30 days", "tools", "run of 10,000 spans", "queue", "interrupts"):
                    await client.get(PAGES[name])

    asyncio.run(read())


def compare_puts(dsn: str, rounds: int = 5, seconds: float = 2.0) -> dict[str, float]:
    """Return the median milliseconds of a put without readers, and with one process that reads pages all the time."""
    found: dict[str, list[float]] = {"alone": [], "while pages are read": []}
    for number in range(rounds * 2):
        reader = None
        if number % 2:
            reader = multiprocessing.get_context("spawn").Process(target=read_pages, args=(dsn,), daemon=True)
            reader.start()
            time.sleep(3)
        times = asyncio.run(put_times(dsn, seconds))
        found["while pages are read" if reader else "alone"].append(statistics.median(times))
        if reader is not None:
            reader.kill()
            reader.join()
    return {name: round(statistics.median(times), 2) for name, times in found.items()}


def table(result: dict[str, Any]) -> str:
    """Return the result as a table in Markdown."""
    lines = ["| page | median | statements | size |", "|---|---:|---:|---:|"]
    for name, page in result["pages"].items():
        lines.append(f"| {name} | {page['ms']:.1f} ms | {page['statements']} | {page['bytes'] / 1000:.0f} KB |")
    puts = result["put_ms"]
    lines += [
        "",
        f"{result['threads']:,} threads, {result['spans']:,} spans. A put takes {puts['alone']} ms, and "
        f"{puts['while pages are read']} ms while another process reads pages all the time.",
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Fill a database, and measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=THREADS)
    parser.add_argument("--dsn", help="a database of yours; it is filled unless it has threads")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="pgstate-pages-") as directory:
        if options.dsn:
            _work(options.dsn, options.threads)
        else:
            with embedded_server(Path(directory) / "data") as dsn:
                _work(dsn, options.threads)


def _work(dsn: str, threads: int) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        known = connection.execute("SELECT to_regclass('pgstate.threads')").fetchone()
        count = connection.execute("SELECT count(*) FROM pgstate.threads").fetchone() if known and known[0] else None
    if count is None or count[0] < threads:
        begun = time.monotonic()
        fill(dsn, threads)
        print(f"filled in {time.monotonic() - begun:.0f} s")
    pages = asyncio.run(measure(dsn))
    puts = compare_puts(dsn)
    found = {"threads": threads, "spans": threads * SPANS_OF_A_RUN, "pages": pages, "put_ms": puts}
    RESULT.write_text(json.dumps(found, indent=2) + "\n")
    print(table(found))
    if threads == THREADS:
        put_between_marks(DOCUMENT, BEGINS, ENDS, table(found))
    for name, one in pages.items():
        if "ms" not in one:
            print(f"{name}: answered {one['status']}")
        elif one["ms"] > MOST_MS or one["bytes"] > MOST_BYTES or one["statements"] > MOST_STATEMENTS:
            print(f"{name}: more than {MOST_MS} ms, {MOST_BYTES:,} bytes or {MOST_STATEMENTS} statements")


if __name__ == "__main__":
    main()
