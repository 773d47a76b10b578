"""Events of runs as they are stored: numbered without gaps, each once, and none by a worker that has lost its run."""

from __future__ import annotations

import threading
from typing import Any

import psycopg
import pytest
from langchain_core.messages import AIMessageChunk
from langgraph.types import Interrupt
from support.queue import CODEC, Queue

from langgraph_pgstate.errors import CorruptStateError
from langgraph_pgstate.runs import streams
from langgraph_pgstate.runs.types import ClaimedRun, EventBatch, StoredBatch, StreamPage, Wanted
from langgraph_pgstate.threads.rows import delete_for_runs, delete_thread


@pytest.fixture
def queue(connection: psycopg.Connection, schema: str) -> Queue:
    return Queue(connection, schema)


def batch(run: ClaimedRun, position: int, *data: Any, step: int = 0, attempt: int = 1) -> EventBatch:
    """A batch of custom events."""
    events = [streams.encode_event(CODEC, "custom", ("sub",), one, step) for one in data]
    return EventBatch(run.key, attempt, position, len(events), step, streams.encode_batch(events))


def page(queue: Queue, run: ClaimedRun, after: int = 0, size: int = 100) -> StreamPage:
    (found,) = queue.do(streams.read, [Wanted(run.thread_id, run.run_id, after)], size)
    return found


def numbered(queue: Queue, run: ClaimedRun, after: int = 0) -> list[tuple[int, Any, bool]]:
    """Number, data and replay of a run's events."""
    return [
        (number, data, is_replayed)
        for stored in page(queue, run, after).batches
        for number, _, _, data, is_replayed in streams.decode_batch(CODEC, stored, "")
    ]


def test_batches_are_numbered_one_after_the_other(queue: Queue) -> None:
    for thread_id in ("a", "b"):
        queue.add(thread_id)
    first, second = sorted(queue.claim(), key=lambda run: run.thread_id)
    assert queue.do(streams.append, [batch(first, 0, "x", "y"), batch(second, 0, "z"), batch(first, 2, "u")]) == (
        {first.key, second.key},
        set(),
    )
    assert queue.do(streams.append, [batch(first, 3, "v")])[0] == {first.key}
    assert [one[:2] for one in numbered(queue, first)] == [(1, "x"), (2, "y"), (3, "u"), (4, "v")]
    assert [one[:2] for one in numbered(queue, second)] == [(1, "z")]
    # A page has whole batches.
    assert [one[0] for one in numbered(queue, first, 1)] == [1, 2, 3, 4]
    assert [one[0] for one in numbered(queue, first, 3)] == [4]
    assert page(queue, first, size=2).is_full
    assert not page(queue, first, size=4).is_full


def test_a_batch_whose_acknowledgement_was_lost_is_stored_once(queue: Queue) -> None:
    queue.add("t")
    run = queue.claim_one()
    first, second = batch(run, 0, "x", "y"), batch(run, 2, "z")
    for given in ([first], [first], [first, second], [second], [first, second]):
        assert queue.do(streams.append, given) == ({run.key}, set())
    assert queue.finish(run, events=[first, second])
    assert [one[:2] for one in numbered(queue, run)] == [(1, "x"), (2, "y"), (3, "z")]


def test_a_worker_that_lost_its_run_stores_nothing(queue: Queue) -> None:
    queue.add("t")
    lost = queue.claim_one()
    queue.do(streams.append, [batch(lost, 0, "x")])
    queue.expire(lost)
    assert queue.recover()
    assert queue.do(streams.append, [batch(lost, 1, "late")]) == (set(), {lost.key})
    again = queue.claim_one()
    # Where the next attempt begins.
    late = [batch(lost, 0, "late")]
    assert queue.do(streams.append, late) == (set(), {lost.key})
    assert not queue.finish(lost, events=late)
    queue.database.run(_execute_together, streams.append_statements(queue.queries, late))
    assert queue.do(streams.append, [batch(again, 0, "y")]) == ({again.key}, set())
    assert [one[:2] for one in numbered(queue, again)] == [(1, "x"), (2, "y")]


async def _execute_together(db: Any, statements: Any) -> None:
    await db.execute_together(statements)


def test_a_run_that_another_transaction_has_locked_is_left_for_later(queue: Queue, dsn: str) -> None:
    for thread_id in ("a", "b"):
        queue.add(thread_id)
    locked, free = sorted(queue.claim(), key=lambda run: run.thread_id)
    given = [batch(locked, 0, "x"), batch(free, 0, "y")]
    with psycopg.connect(dsn) as other:
        other.execute(f"SELECT 1 FROM {queue.schema}.queue WHERE thread_id = 'a' FOR UPDATE".encode())
        assert queue.do(streams.append, given) == ({free.key}, set())
    assert queue.do(streams.append, given) == ({locked.key, free.key}, set())
    assert len(numbered(queue, locked)) == len(numbered(queue, free)) == 1


def test_two_transactions_that_store_one_batch_store_it_once(queue: Queue, dsn: str) -> None:
    """As a checkpoint's and the writer's do: the second one waits, and sees what the first one has stored."""
    queue.add("t")
    run = queue.claim_one()
    given = batch(run, 0, "x", "y")
    with psycopg.connect(dsn, autocommit=True) as one, psycopg.connect(dsn, autocommit=True) as two:
        first, second = Queue(one, queue.schema), Queue(two, queue.schema)
        with one.transaction():
            first.database.run(_execute_together, streams.append_statements(queue.queries, [given]))
            late = threading.Thread(
                target=second.database.run,
                args=(_execute_together, streams.append_statements(queue.queries, [given, batch(run, 2, "z")])),
            )
            late.start()
            late.join(0.3)
            assert late.is_alive()
        late.join()
    assert [one[:2] for one in numbered(queue, run)] == [(1, "x"), (2, "y"), (3, "z")]


def test_numbers_go_on_after_a_worker_of_an_older_version(queue: Queue) -> None:
    """It counts no events in the queue; while a new version is deployed, both work."""
    queue.add("t")
    old = queue.claim_one()
    queue.do(streams.append, [batch(old, 0, "x", "y", step=4)])
    queue.give_back(old)
    queue.execute("UPDATE {}.queue SET last_event = 0, streamed = 0, replayed_step = NULL")
    again = queue.claim_one()
    queue.do(streams.append, [batch(again, 0, "z", step=4)])
    assert numbered(queue, again) == [(1, "x", False), (2, "y", False), (3, "z", True)]


def test_events_of_a_superstep_that_an_earlier_attempt_had_are_replayed(queue: Queue) -> None:
    queue.add("t", max_attempts=3)
    first = queue.claim_one()
    queue.do(streams.append, [batch(first, 0, "1", step=1), batch(first, 1, "2", step=2)])
    assert queue.give_back(first)
    second = queue.claim_one()
    queue.do(streams.append, [batch(second, 0, "2", step=2), batch(second, 1, "3", step=3)])
    queue.expire(second)
    queue.recover()
    third = queue.claim_one()
    queue.do(streams.append, [batch(third, 0, "3", step=3)])
    queue.do(streams.append, [batch(third, 1, "4", step=4)])
    assert numbered(queue, third) == [
        (1, "1", False),
        (2, "2", False),
        (3, "2", True),
        (4, "3", False),
        (5, "3", True),
        (6, "4", False),
    ]


@pytest.mark.parametrize("end", ["finish", "retry_after", "give_back", "recover"])
def test_numbers_go_on_after_events_were_dropped(queue: Queue, end: str) -> None:
    queue.add("t")
    run = queue.claim_one()
    last = [batch(run, 1, "y")]
    queue.do(streams.append, [batch(run, 0, "x")])
    if end == "finish":
        assert queue.finish(run, "error", events=last)
        assert queue.retry("t", run.run_id)
    elif end == "retry_after":
        assert queue.finish(run, "error", retry_after=0.0, events=last)
        queue.wake()
        queue.make_due()
    elif end == "give_back":
        assert queue.do(streams.append, last)
        assert queue.give_back(run)
    else:
        queue.do(streams.append, last)
        queue.expire(run)
        queue.recover()
    assert page(queue, run).last_event == 2
    queue.execute("DELETE FROM {}.stream_batches")
    again = queue.claim_one()
    queue.do(streams.append, [batch(again, 0, "z")])
    assert [one[:2] for one in numbered(queue, again)] == [(3, "z")]


def test_runs_that_end_together_end_with_their_last_events(queue: Queue) -> None:
    for thread_id in ("a", "b", "c"):
        queue.add(thread_id)
    first, second, silent = sorted(queue.claim(), key=lambda run: run.thread_id)
    queue.do(streams.append, [batch(first, 0, "x")])
    assert queue.finish_together(second, silent, first, events=[batch(second, 0, "z"), batch(first, 1, "y")])
    assert [page(queue, run).last_event for run in (first, second, silent)] == [2, 1, None]
    assert [one[:2] for one in numbered(queue, first)] == [(1, "x"), (2, "y")]
    assert [one[:2] for one in numbered(queue, second)] == [(1, "z")]


@pytest.mark.parametrize("way", ["thread", "run", "rollback"])
def test_what_is_deleted_leaves_no_events(queue: Queue, way: str) -> None:
    queue.add("t")
    run = queue.claim_one()
    queue.do(streams.append, [batch(run, 0, "x")])
    if way == "thread":
        queue.do(delete_thread, "t")
    elif way == "run":
        queue.do(delete_for_runs, [run.run_id])
    else:
        queue.cancel("t", run.run_id, "rollback")
        assert queue.roll_back(run)
    assert queue.execute("SELECT 1 FROM {}.stream_batches") == []
    assert page(queue, run) == StreamPage(None, None, None, None, [], False)
    assert queue.do(streams.append, [batch(run, 1, "late")]) == (set(), {run.key})


def test_an_event_is_read_as_it_was_yielded() -> None:
    chunk, metadata = AIMessageChunk("a"), {"langgraph_step": 1}
    given: list[tuple[str, Any]] = [
        ("messages", (chunk, metadata)),
        ("updates", {"__interrupt__": (Interrupt("sure?", id="1"),)}),
        ("values", {"x": [1, None, "ü"]}),
        ("custom", 2**70),
    ]
    events = [streams.encode_event(CODEC, mode, (), data, 1) for mode, data in given]
    stored = StoredBatch(5, 8, 1, None, streams.encode_batch(events))
    found = [*streams.decode_batch(CODEC, stored, "events")]
    assert found == [(number, mode, (), data, False) for number, (mode, data) in enumerate(given, 5)]
    for damaged in (stored._replace(last_seq=9), stored._replace(data=stored.data[:-1] + b"?")):
        with pytest.raises(CorruptStateError, match="events"):
            [*streams.decode_batch(CODEC, damaged, "events")]


def test_data_that_cannot_be_stored_does_not_end_the_run(caplog: pytest.LogCaptureFixture) -> None:
    event = streams.encode_event(CODEC, "custom", (), lambda: 1, 1)
    ((_, _, _, data, _),) = streams.decode_batch(CODEC, StoredBatch(1, 1, 1, None, streams.encode_batch([event])), "")
    assert data.startswith("<function")
    assert "cannot be stored" in caplog.text
