"""Ends of runs, written by their worker under the lease that it claimed with the run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from langgraph_pgstate.db.protocol import Connection
from langgraph_pgstate.errors import ConfigurationError
from langgraph_pgstate.operations.runs.cancelling import promote_and_set_status
from langgraph_pgstate.operations.runs.locking import bounded_waits
from langgraph_pgstate.operations.runs.streams import append_statements
from langgraph_pgstate.operations.threads.threads import delete_runs_of, delete_thread
from langgraph_pgstate.sql import Queries
from langgraph_pgstate.types import EventBatch, Query, RunKey

ENDS: Final = ("success", "interrupted", "error", "cancelled", "timeout")


class RunError(NamedTuple):
    """The error of a run.

    Attributes:
        type: Qualified name of the exception.
        message: Its message.
        traceback: Its traceback.
    """

    type: str
    message: str
    traceback: str | None = None


async def finish(
    db: Connection,
    queries: Queries,
    key: RunKey,
    status: str,
    error: RunError | None = None,
    retry_after: float | None = None,
    events: Sequence[EventBatch] = (),
    *,
    deletes_thread: bool = False,
) -> bool:
    """End a run, or put it back for another attempt; release its lease, and make the thread's next run ready.

    One transaction, in one round trip unless the thread is deleted; safe to repeat. Like the others below, it waits a
    moment only for a lock; see `locking.is_locked`.

    Args:
        db: The connection.
        queries: The queries of the schema.
        key: The run under its lease.
        status: `success`, `interrupted`, `error`, `cancelled` or `timeout`.
        error: Its error.
        retry_after: Seconds until the next attempt, instead of an end. The thread's other runs wait for it.
        events: Events of the run that may not be stored yet.
        deletes_thread: Whether the thread is deleted in the same transaction if the run succeeded and no other run of
            the thread is in the queue.

    Returns:
        False if the lease was lost: another worker runs the run, or has ended it. Then nothing was written. False also
        if somebody has asked to roll the run back, which is left to `roll_back`.
    """
    if status not in ENDS:
        raise ConfigurationError(f"a run ends as {', '.join(ENDS)}, not {status!r}")
    told = {
        "error_type": _text(error and error.type),
        "error_message": _text(error and error.message),
        "error_traceback": _text(error and error.traceback),
    }
    if retry_after is not None:
        later = {**told, "unused": 0, "delay": repr(retry_after)}
        return await _end_under_lease(db, queries, key, queries.requeue_run, later, events)
    end = {**told, "status": status, "rolls_back": False}
    if deletes_thread and status == "success":
        if await _end_with_thread(db, queries, key, end, events):
            return True
        # The answer to an earlier try may have been lost.
        return not await db.fetch(queries.get_run_status, _run(key))
    if await _end_under_lease(db, queries, key, queries.end_run, end, events):
        return True
    # The answer to an earlier try may have been lost.
    return bool(await db.fetch(queries.is_ended, {**_run(key), "status": status}))


async def give_back(db: Connection, queries: Queries, key: RunKey, events: Sequence[EventBatch] = ()) -> bool:
    """Give a run back to the queue, before the other runs of its thread and its queue; the attempt does not count.

    One transaction in one round trip.

    Args:
        db: The connection.
        queries: The queries of the schema.
        key: The run under its lease.
        events: Events of the run that may not be stored yet.

    Returns:
        False if the lease was lost. Then nothing was written.
    """
    nothing = {"error_type": None, "error_message": None, "error_traceback": None}
    again = {**nothing, "unused": 1, "delay": None}
    return await _end_under_lease(db, queries, key, queries.requeue_run, again, events)


async def roll_back(db: Connection, queries: Queries, key: RunKey) -> bool:
    """End a run and delete it with its checkpoints; tool executions are kept. One transaction.

    Returns:
        False if the lease was lost. Then nothing was written.
    """
    async with db.transaction():
        await db.fetch(*bounded_waits(queries))
        await db.execute(queries.release_lease, _lease(key))
        await db.fetch(queries.lock_threads_for_no_key_update, {"thread_ids": [key.thread_id]})
        end = {"status": "cancelled", "rolls_back": True}
        nothing = {"error_type": None, "error_message": None, "error_traceback": None}
        ended = await db.execute(queries.end_run, {**_run(key), **nothing, **_token(key), **end})
        if ended:
            # A put of the run that is on its way is refused: a released lease would let it pass until another is taken.
            await db.execute(queries.fence_lease, {"thread_id": key.thread_id, **_token(key), "is_dead": True})
            await delete_runs_of(db, queries, key.thread_id, [key.run_id])
            await promote_and_set_status(db, queries, key.thread_id)
    return ended > 0


async def _end_with_thread(
    db: Connection, queries: Queries, key: RunKey, end: dict[str, Any], events: Sequence[EventBatch]
) -> bool:
    async with db.transaction():
        await db.fetch(*bounded_waits(queries))
        await db.execute(queries.release_lease, _lease(key))
        # In full at once: a put that has a weaker lock may need to change the row, which would deadlock.
        await db.fetch(queries.lock_thread_for_update, {"thread_id": key.thread_id})
        for statement in append_statements(queries, events):
            await db.execute(*statement)
        ended = await db.execute(queries.end_run, {**_run(key), **_token(key), **end})
        if ended and await db.fetch(queries.is_queued, {"thread_id": key.thread_id}):
            await db.execute(queries.promote_next, {"thread_ids": [key.thread_id]})
        elif ended:
            await delete_thread(db, queries, key.thread_id)
    return ended > 0


async def _end_under_lease(
    db: Connection,
    queries: Queries,
    key: RunKey,
    query: Query,
    parameters: dict[str, Any],
    events: Sequence[EventBatch],
) -> bool:
    threads = {"thread_ids": [key.thread_id]}
    # The lease first: a guarded put shares it before it changes the thread's row. A thread's first put and a deletion
    # lock the row first; then this end gives way, before PostgreSQL looks for deadlocks.
    statements = [
        bounded_waits(queries),
        (queries.release_lease, _lease(key)),
        (queries.lock_threads_for_no_key_update, threads),
        *append_statements(queries, events),
        (query, {**_run(key), **_token(key), **parameters}),
        (queries.promote_next, threads),
    ]
    return (await db.execute_together(statements))[-2] > 0


def _run(key: RunKey) -> dict[str, Any]:
    return {"thread_id": key.thread_id, "run_id": key.run_id}


def _token(key: RunKey) -> dict[str, Any]:
    return {"fencing_token": key.fencing_token}


def _lease(key: RunKey) -> dict[str, Any]:
    return {"thread_id": key.thread_id, **_token(key), "holder_id": None}


def _text(value: str | None) -> str | None:
    # PostgreSQL's text holds neither NUL nor lone surrogates.
    return None if value is None else value.replace("\0", "").encode("utf-8", "replace").decode()
