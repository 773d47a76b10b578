"""Webhooks: noted in the transaction of a run's end, and claimed by one process at a time."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from support import spread
from support.queue import CODEC, Queue

from langgraph_pgstate.db.protocol import read
from langgraph_pgstate.errors import ConfigurationError
from langgraph_pgstate.runs import webhook_rows as webhooks
from langgraph_pgstate.runs.requests import request_run
from langgraph_pgstate.runs.types import Delivery, Webhook
from langgraph_pgstate.runs.webhook_rows import MAX_ATTEMPTS, body_of, delay_after, webhook_of
from langgraph_pgstate.schedules import firing
from langgraph_pgstate.schedules import rows as schedules
from langgraph_pgstate.threads.rows import delete_thread

URL = "https://example.com/done?a=1"


@pytest.fixture
def queue(connection: psycopg.Connection, schema: str) -> Queue:
    return Queue(connection, schema)


@pytest.fixture
def other(dsn: str, schema: str) -> Iterator[Queue]:
    with psycopg.connect(dsn, autocommit=True) as connection:
        yield Queue(connection, schema)


def told(queue: Queue) -> list[tuple[str, str]]:
    """The runs and statuses that are to be told."""
    rows = queue.execute("SELECT run_id, run ->> 'status' FROM {}.webhooks ORDER BY ended_at, run_id")
    return [(run_id, status) for run_id, status in rows]


def due(queue: Queue, seconds: float = 60.0) -> list[Delivery]:
    found: list[Delivery] = queue.do(webhooks.claim, 10, seconds)
    return found


def fail(queue: Queue, delivery: Delivery, error: str = "it answered 500", **options: Any) -> None:
    queue.do(webhooks.end, delivery, error, **options)


def failed(queue: Queue) -> list[Webhook]:
    found: list[Webhook] = queue.do(read, webhooks.list_failed()).items
    return list(found)


@pytest.mark.parametrize("status", spread(["success", "interrupted", "error", "cancelled", "timeout"]))
def test_the_end_of_a_run_is_noted_with_it(status: str, queue: Queue) -> None:
    run_id = queue.add("t", webhook=URL, metadata={"a": 1})
    queue.add("without")
    claimed = queue.claim()
    assert told(queue) == []
    for run in claimed:
        queue.finish(run, status)
    assert told(queue) == [(run_id, status)]
    (one,) = due(queue)
    assert (one.url, one.attempts, one.run["metadata"]) == (URL, 1, {"a": 1})


def test_a_lost_lease_tells_nothing(queue: Queue) -> None:
    queue.add("t", webhook=URL)
    run = queue.claim_one()
    queue.expire(run)
    queue.recover()
    assert not queue.finish(run)
    assert told(queue) == []


def test_ends_together_and_with_their_threads_are_told(queue: Queue) -> None:
    ids = [queue.add(name, webhook=URL) for name in ("a", "b")]
    assert queue.finish_together(*queue.claim())
    last = queue.add("c", webhook=URL)
    assert queue.finish(queue.claim_one(), deletes_thread=True)
    assert queue.execute("SELECT 1 FROM {}.threads WHERE thread_id = 'c'") == []
    assert sorted(told(queue)) == sorted((id, "success") for id in (*ids, last))


def test_deleting_a_thread_deletes_what_its_webhooks_have_of_it(queue: Queue) -> None:
    for name in ("a", "b"):
        queue.add(name, webhook=URL, metadata={"a": "secret"})
        queue.finish(queue.claim_one())
    fail(queue, due(queue)[0], is_final=True)
    queue.do(delete_thread, "a")
    assert queue.execute("SELECT DISTINCT thread_id FROM {}.webhooks") == [("b",)]


@pytest.mark.parametrize("action", ["cancel", "interrupt", "rollback"])
def test_pending_and_running_runs_that_are_cancelled_are_told(action: str, queue: Queue) -> None:
    running, pending = queue.add("t", webhook=URL), queue.add("t", webhook=URL)
    run = queue.claim_one()
    status = "interrupted" if action == "interrupt" else "cancelled"
    queue.cancel("t", pending, action)
    assert told(queue) == [(pending, status)]
    queue.cancel("t", running, action)
    assert queue.roll_back(run) if action == "rollback" else queue.finish(run, status)
    assert told(queue) == [(pending, status), (running, status)]


def test_a_superseded_run_and_a_dead_letter_are_told(queue: Queue) -> None:
    first = queue.add("t", webhook=URL)
    second = queue.add("t", webhook=URL, multitask_strategy="rollback")
    assert told(queue) == [(first, "cancelled")]
    run = queue.claim_one()
    queue.expire(run)
    assert [one.status for one in queue.recover(max_crashes=2)] == ["pending"]
    assert len(told(queue)) == 1
    queue.expire(queue.claim_one())
    assert [one.status for one in queue.recover(max_crashes=2)] == ["error"]
    assert told(queue)[1:] == [(second, "error")]


def test_a_retried_run_is_told_again(queue: Queue) -> None:
    run_id = queue.add("t", webhook=URL)
    run = queue.claim_one()
    queue.fail(run, retry_after=1000)
    assert told(queue) == []
    queue.wake()
    queue.make_due()
    queue.fail(queue.claim_one())
    assert told(queue) == [(run_id, "error")]
    assert queue.retry("t", run_id)
    queue.finish(queue.claim_one())
    assert told(queue) == [(run_id, "error"), (run_id, "success")]
    first, second = due(queue)
    assert first.id != second.id


def test_runs_of_schedules_have_webhooks(queue: Queue) -> None:
    options: Any = {"webhook": URL}
    request = schedules.request_schedule("s", request_run(CODEC, "graph", **options), options, cron="0 * * * *")
    queue.do(schedules.put, request)
    queue.do(firing.trigger, CODEC, "s", "r1")
    queue.do(schedules.change, CODEC, schedules.request_changes(CODEC, "s", {"webhook": None}))
    queue.do(firing.trigger, CODEC, "s", "r2")
    for run in queue.claim():
        queue.finish(run)
    assert told(queue) == [("r1", "success")]


def test_a_webhook_is_claimed_by_one_and_after_its_time_by_another(queue: Queue, other: Queue) -> None:
    queue.add("t", webhook=URL)
    queue.finish(queue.claim_one())
    (mine,) = due(queue)
    assert due(other) == []
    queue.execute("UPDATE {}.webhooks SET deliver_after = now()")
    (theirs,) = due(other)
    assert (theirs.id, theirs.attempts, mine.attempts) == (mine.id, 2, 1)
    # Too late: the other one decides.
    queue.do(webhooks.end, mine, None)
    fail(queue, mine, is_final=True)
    assert queue.execute("SELECT attempts, last_error, deliver_after > now() FROM {}.webhooks") == [(2, None, True)]
    other.do(webhooks.end, theirs, None)
    assert told(queue) == []


def test_what_another_process_claims_is_not_waited_for(queue: Queue, dsn: str) -> None:
    for name in ("a", "b"):
        queue.add(name, webhook=URL)
        queue.finish(queue.claim_one())
    with psycopg.connect(dsn) as mine:
        mine.execute("SELECT 1")
        taken = Queue(mine, queue.schema).do(webhooks.claim, 1, 60.0)
        assert [one.thread_id for one in due(queue)] == ["b"]
        assert [one.thread_id for one in taken] == ["a"]


def test_a_failed_delivery_is_tried_later_and_in_the_end_listed(queue: Queue) -> None:
    queue.add("t", webhook=URL)
    queue.finish(queue.claim_one())
    for attempt in range(1, MAX_ATTEMPTS + 1):
        (one,) = due(queue)
        assert one.attempts == attempt
        fail(queue, one)
        assert due(queue) == []
        assert len(failed(queue)) == (attempt == MAX_ATTEMPTS)
        queue.execute("UPDATE {}.webhooks SET deliver_after = now() WHERE deliver_after IS NOT NULL")
    (lost,) = failed(queue)
    assert (lost.url, lost.attempts, lost.last_error) == (URL, MAX_ATTEMPTS, "it answered 500")
    assert [queue.do(webhooks.retry, lost) for _ in range(2)] == [True, False]
    (again,) = due(queue)
    fail(queue, again, is_final=True)
    assert [one.attempts for one in failed(queue)] == [1]
    assert queue.do(webhooks.sweep) == 0
    queue.execute("UPDATE {}.webhooks SET ended_at = ended_at - %s", webhooks.KEPT_FOR + timedelta(seconds=1))
    (old,) = failed(queue)
    assert queue.do(webhooks.sweep) == 1
    assert not queue.do(webhooks.discard, old)


def test_attempts_are_spread_over_hours() -> None:
    delays = [delay_after(attempts) for attempts in range(1, MAX_ATTEMPTS + 1)]
    assert delays[:3] == [5, 10, 20]
    assert delays[-1] is None
    assert 3600 < sum(filter(None, delays)) < 24 * 3600
    assert delays[:-1] == sorted(filter(None, delays))


def test_the_body_is_the_run_of_the_protocol(queue: Queue) -> None:
    run_id = queue.add("t", webhook=URL, metadata={"a": 1})
    queue.fail(queue.claim_one())
    (one,) = due(queue)
    body = json.loads(body_of(one))
    assert (body["run_id"], body["thread_id"], body["status"], body["metadata"]) == (run_id, "t", "error", {"a": 1})
    assert body["error"] == {"error": "ValueError", "message": "no"}
    assert body["created_at"] <= body["run_started_at"] <= body["run_ended_at"] <= body["webhook_sent_at"]
    assert "webhook" not in body
    assert run_id in one.id


@pytest.mark.parametrize(
    "url",
    [
        "example.com",
        "/done",
        "ftp://example.com",
        "https://",
        "https://eve:secret@example.com/",  # pragma: allowlist secret
        "https://example.com:99999/",
        "https://example.com/\n",
        "https://exämple.com/",
        "https://example.com/" + 2048 * "a",
        "https://[::1",
        7,
    ],
)
def test_what_is_no_url_is_refused(url: Any) -> None:
    with pytest.raises(ConfigurationError, match="webhook"):
        webhook_of(url)
    assert webhook_of(None) is None
    assert webhook_of(URL) == URL
