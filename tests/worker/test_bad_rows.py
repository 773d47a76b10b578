"""Rows of the queue that cannot be read, of other versions or spoilt: they hinder no run, and no other row."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from support import GUARD_SECONDS, loop_graph, wait_until
from support.queue import Queue
from support.worker import WORKERS

from langgraph_pgstate import DefaultAnswer, PGState
from tests.runs.test_webhooks import end_one, receiving, settings
from tests.worker.test_worker import working


@pytest.fixture
def state(dsn: str, schema: str) -> Iterator[PGState]:
    with PGState.open(dsn, schema=schema) as state:
        yield state


BAD_OPTIONS: list[dict[str, Any]] = [
    {"retry": 5},
    {"retry": {"initial": "soon"}},
    {"timeout": "soon"},
    {"timeout": 1e300},
    {"timeout": -1},
    {"superstep_timeout": []},
    {"answer_after": "soon"},
    {"answer_after": 1e300},
    {"max_attempts": "x"},
    {"max_attempts": 1e300},
    {"priority": "high"},
    {"key": 5},
    {"owner": 5},
    {"webhook": 5},
    {"multitask_strategy": "x"},
]


def enqueue_bad(state: PGState, queue: Queue) -> Callable[[], bool]:
    """Runs with each of the options, and a good one of the least priority."""
    for thread_id in map(str, range(len(BAD_OPTIONS))):
        state.runs.enqueue("agent", {"count": 0}, thread_id=thread_id)
    state.runs.enqueue("agent", {"count": 0}, thread_id="good", priority=-1)
    return lambda: (
        queue.execute(
            "SELECT status, error_type, error_message ~ 'its options cannot be used', count(*) FROM {}.runs "
            "GROUP BY 1, 2, 3 ORDER BY 1"
        )
        == [
            ("error", "langgraph_pgstate.errors.CorruptStateError", True, len(BAD_OPTIONS)),
            ("success", None, None, 1),
        ]
    )


def spoil(queue: Queue) -> None:
    for thread_id, options in enumerate(BAD_OPTIONS):
        queue.execute(
            "UPDATE {}.run_requests SET options = options || %s WHERE thread_id = %s",
            json.dumps(options),
            str(thread_id),
        )


def spoil_options(state: PGState, queue: Queue) -> Callable[[], bool]:
    """Runs that are to be claimed together."""
    are_done = enqueue_bad(state, queue)
    spoil(queue)
    return are_done


def spoil_numbers(state: PGState, queue: Queue) -> Callable[[], bool]:
    """Runs of which a claim counts the attempts, and returns the time."""
    for thread_id in ("attempts", "time", "good"):
        state.runs.enqueue("agent", {"count": 0}, thread_id=thread_id)
    queue.execute("UPDATE {}.queue SET attempt = 2147483647 WHERE thread_id = 'attempts'")
    queue.execute("UPDATE {}.queue SET timeout_at = 'infinity' WHERE thread_id = 'time'")
    return lambda: queue.execute("SELECT status, count(*) FROM {}.runs GROUP BY 1") == [("success", 3)]


def spoil_retried(state: PGState, queue: Queue) -> Callable[[], bool]:
    """Runs that are tried again."""
    are_done = enqueue_bad(state, queue)
    for thread_id, run_id in queue.execute("SELECT thread_id, run_id FROM {}.runs"):
        state.runs.cancel(thread_id, run_id)
    spoil(queue)
    for thread_id, run_id in queue.execute("SELECT thread_id, run_id FROM {}.runs"):
        assert state.runs.retry(thread_id, run_id)
    return are_done


def spoil_lost_run(state: PGState, queue: Queue) -> Callable[[], bool]:
    """Runs whose worker died."""
    are_done = enqueue_bad(state, queue)
    queue.expire(*queue.claim(graphs=["agent"], limit=100))
    spoil(queue)
    return are_done


def spoil_cancel(state: PGState, queue: Queue) -> Callable[[], bool]:
    """Runs that are to be cancelled in an unknown way: one that nobody has claimed, and one whose worker died."""
    state.runs.enqueue("agent", {"count": 0}, thread_id="lost")
    queue.expire(*queue.claim(graphs=["agent"], limit=100))
    for thread_id in ("new", "good"):
        state.runs.enqueue("agent", {"count": 0}, thread_id=thread_id)
    queue.execute("UPDATE {}.queue SET cancel = 'x' WHERE thread_id <> 'good'")
    return lambda: (
        queue.execute("SELECT thread_id, status FROM {}.runs ORDER BY 1")
        == [("good", "success"), ("lost", "cancelled"), ("new", "cancelled")]
    )


def spoil_schedule(state: PGState, queue: Queue) -> Callable[[], bool]:
    """Schedules whose ticks have come."""
    names = [*map(str, range(len(BAD_OPTIONS))), "cron", "good"]
    for name in names:
        state.schedules.put(name, "agent", {"count": 0}, cron="0 0 1 1 *", thread_id=name)
    for name, options in enumerate(BAD_OPTIONS):
        queue.execute("UPDATE {}.schedules SET options = options || %s WHERE name = %s", json.dumps(options), str(name))
    queue.execute("UPDATE {}.schedules SET cron = 'x' WHERE name = 'cron'")
    queue.execute("UPDATE {}.schedules SET next_at = now() - interval '1 second'")
    return lambda: (
        queue.execute(
            "SELECT last_error IS NULL, next_at < now(), count(*) FROM {}.schedules GROUP BY 1, 2 ORDER BY 1, 2"
        )
        == [(False, False, len(BAD_OPTIONS)), (False, True, 1), (True, False, 1)]
        and queue.execute("SELECT thread_id, status FROM {}.runs") == [("good", "success")]
    )


def spoil_answer(state: PGState, queue: Queue) -> Callable[[], bool]:
    """Interrupted runs whose default answers are due; one was spoiled while its worker ran it."""
    for thread_id in ("bad", "good"):
        state.runs.enqueue(
            "asking", {"said": ""}, thread_id=thread_id, default_answer=DefaultAnswer("yes", timedelta(milliseconds=1))
        )
    runs = queue.claim(graphs=["asking"])
    queue.execute("UPDATE {}.run_requests SET options = options || %s WHERE thread_id = 'bad'", '{"answer_after": "x"}')
    for run in runs:
        assert queue.finish(run, "interrupted")
    return lambda: (
        queue.execute(
            "SELECT thread_id, answer_at IS NULL, answer_at > now() + interval '50 minutes' FROM {}.run_requests "
            "ORDER BY 1"
        )
        == [("bad", False, True), ("good", True, None)]
    )


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


SPOILS = [
    spoil_options,
    spoil_numbers,
    spoil_retried,
    spoil_lost_run,
    spoil_cancel,
    spoil_schedule,
    spoil_answer,
    spoil_crashed_run,
]


@pytest.mark.slow
@pytest.mark.parametrize("spoil", SPOILS)
@pytest.mark.parametrize("kind", WORKERS)
async def test_a_bad_row_hinders_no_other(
    kind: type, spoil: Any, dsn: str, schema: str, state: PGState, connection: psycopg.Connection
) -> None:
    are_done = spoil(state, Queue(connection, schema))
    async with working(kind, dsn, schema, {"agent": loop_graph(1), "asking": loop_graph(1)}, poll=0.05):
        await asyncio.to_thread(wait_until, are_done, "the good row")
        run = state.runs.enqueue("agent", {"count": 0}, thread_id="later")
        assert (await asyncio.to_thread(run.wait, GUARD_SECONDS))["count"] == 1


@pytest.mark.parametrize("how", ["x", "lost"])
@pytest.mark.parametrize("kind", WORKERS)
async def test_a_run_that_is_to_be_cancelled_in_an_unknown_way_is_cancelled(
    kind: type, how: str, dsn: str, schema: str, state: PGState, connection: psycopg.Connection
) -> None:
    queue = Queue(connection, schema)
    graphs = {"agent": loop_graph(1), "long": loop_graph(5000, lambda count: time.sleep(0.02))}
    async with working(kind, dsn, schema, graphs, poll=0.05):
        state.runs.enqueue("long", {"count": 0}, thread_id="bad", config={"recursion_limit": 10_000})
        status = "SELECT status FROM {}.runs WHERE thread_id = 'bad'"
        await asyncio.to_thread(wait_until, lambda: queue.execute(status) == [("running",)], "the run")
        queue.execute("UPDATE {}.queue SET cancel = %s WHERE thread_id = 'bad'", how)
        await asyncio.to_thread(wait_until, lambda: queue.execute(status) == [("cancelled",)], "its end")
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


def test_a_webhook_with_a_bad_number_of_attempts_hinders_no_other(
    dsn: str, schema: str, connection: psycopg.Connection
) -> None:
    queue = Queue(connection, schema)
    with receiving() as receiver, PGState.open(dsn, schema=schema, webhooks=settings()) as state:
        for _ in range(2):
            end_one(queue, receiver.url)
        queue.execute(
            "UPDATE {0}.webhooks SET attempts = 2147483647 WHERE run_id = (SELECT min(run_id) FROM {0}.webhooks)"
        )
        assert state.webhooks.deliver() == 2
