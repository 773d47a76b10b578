"""Rows of the queue that cannot be read, of other versions or spoilt: they hinder no run, and no other row."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from support import GUARD_SECONDS, loop_graph, wait_until
from support_queue import Queue
from support_worker import WORKERS

from langgraph_pgstate import PGState
from tests.runs.test_webhooks import end_one, receiving, settings
from tests.runs.test_worker import working


@pytest.fixture
def state(dsn: str, schema: str) -> Iterator[PGState]:
    with PGState.open(dsn, schema=schema) as state:
        yield state


def spoil_options(state: PGState, queue: Queue) -> Callable[[], bool]:
    """Runs that are to be claimed together."""
    for thread_id in ("bad", "good"):
        state.runs.enqueue("agent", {"count": 0}, thread_id=thread_id)
    queue.execute("UPDATE {}.run_requests SET options = %s WHERE thread_id = %s", '{"retry": 5}', "bad")
    return lambda: (
        queue.execute("SELECT status, error_type FROM {}.runs ORDER BY 1")
        == [
            ("error", "langgraph_pgstate.errors.CorruptStateError"),
            ("success", None),
        ]
    )


def spoil_lost_run(state: PGState, queue: Queue) -> Callable[[], bool]:
    """Runs whose worker died."""
    for thread_id in ("bad", "good"):
        state.runs.enqueue("agent", {"count": 0}, thread_id=thread_id)
    queue.expire(*queue.claim(graphs=["agent"]))
    queue.execute("UPDATE {}.run_requests SET options = %s WHERE thread_id = %s", '{"max_attempts": "x"}', "bad")
    return lambda: queue.execute("SELECT status FROM {}.runs WHERE thread_id = 'good'") == [("success",)]


def spoil_schedule(state: PGState, queue: Queue) -> Callable[[], bool]:
    """Schedules whose ticks have come."""
    for name in ("bad", "good"):
        state.schedules.put(name, "agent", {"count": 0}, cron="0 0 1 1 *", thread_id=name)
    queue.execute("UPDATE {}.schedules SET options = '{{}}' WHERE name = 'bad'")
    queue.execute("UPDATE {}.schedules SET next_at = now() - interval '1 second'")
    return lambda: queue.execute("SELECT status FROM {}.runs WHERE thread_id = 'good'") == [("success",)]


def spoil_crashed_run(state: PGState, queue: Queue) -> Callable[[], bool]:
    """Runs that were not enqueued, and whose process died."""
    for thread_id in ("bad", "good"):
        queue.put(thread_id, f"run of {thread_id}")
        agent = "agent" if thread_id == "good" else "x" * 5000
        queue.execute(
            "INSERT INTO {}.runs (thread_id, run_id, agent, status, started_at, alive_until) "
            "VALUES (%s, %s, %s, 'running', now(), now() - interval '1 hour')",
            thread_id,
            f"run of {thread_id}",
            agent,
        )
    assert [run.thread_id for run in state.runs.adopt()] == ["good"]
    return lambda: True


SPOILS = [spoil_options, spoil_lost_run, spoil_schedule, spoil_crashed_run]


@pytest.mark.parametrize("spoil", SPOILS)
@pytest.mark.parametrize("kind", WORKERS)
async def test_a_bad_row_hinders_no_other(
    kind: type, spoil: Any, dsn: str, schema: str, state: PGState, connection: psycopg.Connection
) -> None:
    are_done = spoil(state, Queue(connection, schema))
    async with working(kind, dsn, schema, {"agent": loop_graph(1)}, poll=0.05):
        await asyncio.to_thread(wait_until, are_done, "the good row")
        run = state.runs.enqueue("agent", {"count": 0}, thread_id="later")
        assert (await asyncio.to_thread(run.wait, GUARD_SECONDS))["count"] == 1


@pytest.mark.parametrize("url", ["http://[", "http://a b", "", "http://127.0.0.1:99999/"])
def test_a_webhook_with_a_bad_url_hinders_no_other(
    url: str, dsn: str, schema: str, connection: psycopg.Connection
) -> None:
    queue = Queue(connection, schema)
    with receiving() as receiver, PGState.open(dsn, schema=schema, webhooks=settings()) as state:
        for _ in range(2):
            end_one(queue, receiver.url)
        bad = queue.execute("SELECT min(run_id) FROM {}.webhooks")[0][0]
        queue.execute("UPDATE {}.webhooks SET url = %s WHERE run_id = %s", url, bad)
        assert state.webhooks.deliver() == 1
        assert len(receiver.got) == 1
        assert queue.execute("SELECT attempts, last_error IS NULL FROM {}.webhooks") == [(1, False)]
