"""Operations by which a worker ends, requeues or rolls back a run, under the lease of the claim."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from langgraph_pgstate.db.protocol import Connection, Query
from langgraph_pgstate.db.tenants import wake_key
from langgraph_pgstate.errors import ConfigurationError, PGStateError
from langgraph_pgstate.runs.cancelling import how_to_cancel, promote_and_set_status
from langgraph_pgstate.runs.enqueue import enqueue
from langgraph_pgstate.runs.locking import bounded_waits, is_locked
from langgraph_pgstate.runs.requests import RunRequest
from langgraph_pgstate.runs.streams import append_statements
from langgraph_pgstate.runs.types import EventBatch, RunKey
from langgraph_pgstate.schema.queries import Queries
from langgraph_pgstate.threads.holds import is_kept
from langgraph_pgstate.threads.rows import delete_runs_of, delete_thread

ENDS: Final = ("success", "interrupted", "error", "cancelled", "timeout")
# Seconds for which a run that has deleted its thread is kept, so that readers learn of its end.
_OUTLIVING_SECONDS: Final = 60.0
# Limits of the ids in a notification. PostgreSQL allows 8,000 bytes.
_MOST_IDS, _LONGEST_ID = 100, 40

log = logging.getLogger("langgraph_pgstate.worker")


class RunError(NamedTuple):
    """The error of a run.

    Attributes:
        type: Qualified name of the exception.
        message: Message of the exception.
        traceback: Traceback of the exception.
    """

    type: str
    message: str
    traceback: str | None = None

    def as_ascii(self) -> RunError:
        """Return the error in ASCII, for a database whose encoding lacks some characters of the error."""
        plain = [None if part is None else part.encode("ascii", "backslashreplace").decode() for part in self]
        return RunError(plain[0] or "", plain[1] or "", plain[2])


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
    keep_for: float | None = None,
    then: RunRequest | None = None,
) -> bool:
    """End a run, or requeue the run for another attempt. Release the lease, and make the thread's next run ready.

    One transaction, usually in one round trip; safe to repeat. The functions of this module wait only a moment for a
    lock, and fail as `is_locked` describes.

    Args:
        status: `success`, `interrupted`, `error`, `cancelled` or `timeout`.
        retry_after: Requeue the run instead of ending it. The next attempt begins after this many seconds. The other
            runs of the thread wait.
        events: Events of the run that are not known to be stored.
        deletes_thread: Whether to delete the thread in the same transaction if the run succeeded and no other run of
            the thread is in the queue. The run and its events stay for a minute, until `sweep`.
        keep_for: Seconds for which to renew the lease instead of releasing it, because code of the run still runs.
            Meanwhile no run of the thread is claimed.
        then: A run of another thread to enqueue in the same transaction. If this run is refused, the run `key` ends
            anyway.

    Returns:
        False if the lease was lost, so that nothing was written. Also false if the run must be rolled back; then call
        `roll_back`.
    """
    if status not in ENDS:
        raise ConfigurationError(f"status must be one of {', '.join(ENDS)}, not {status!r}")
    if then is not None:
        async with db.transaction():
            ended = await finish(db, queries, key, status, error, events=events, keep_for=keep_for)
            if ended:
                await _follow(db, queries, then)
            return ended
    if retry_after is not None:
        given = {**_error_row(error), "unused": 0, "delay": repr(retry_after)}
        return await _requeue(db, queries, key, given, events, keep_for)
    if deletes_thread and status == "success":
        if await _finish_with_thread(db, queries, key, events):
            return True
    elif await _finish(db, queries, [key], status, events, error, keep_for):
        return True
    # An earlier call may have ended the run, although its response was lost.
    return bool(await db.fetch(queries.is_ended, {**_run(key), "status": status}))


async def _follow(db: Connection, queries: Queries, then: RunRequest) -> None:
    try:
        await enqueue(db, queries, [then])
    except PGStateError as error:
        if error.retryable:
            raise
        log.warning("run %s of %s is not enqueued after another one: %s", then.run_id, then.graph, error)


async def finish_together(
    db: Connection, queries: Queries, keys: Sequence[RunKey], status: str, events: Sequence[EventBatch] = ()
) -> bool:
    """End runs of different threads with one status, as `finish` does. One transaction in one round trip.

    Returns:
        False if some runs were not ended. Then call `finish` for each run.
    """
    return await _finish(db, queries, keys, status, events) == len(keys)


async def give_back(
    db: Connection,
    queries: Queries,
    key: RunKey,
    events: Sequence[EventBatch] = (),
    *,
    keep_for: float | None = None,
) -> bool:
    """Requeue a run, ahead of the other runs of its thread and its queue. The attempt does not count.

    A run that must be cancelled ends instead. One transaction in one round trip, for such a run two transactions. For
    `events` and `keep_for`, see `finish`.

    Returns:
        False if the lease was lost, so that nothing was written.
    """
    return await _requeue(db, queries, key, {**_error_row(None), "unused": 1, "delay": None}, events, keep_for)


async def roll_back(db: Connection, queries: Queries, key: RunKey) -> bool:
    """End a run and delete it with its checkpoints. Tool executions are kept. One transaction.

    If the thread has a hold (`threads.holds`), the run ends as `interrupted` instead, and nothing is deleted.

    Returns:
        False if the lease was lost, so that nothing was written.
    """
    async with db.transaction():
        await db.fetch(*bounded_waits(queries))
        await db.execute(queries.release_leases, _keys([key]))
        await db.fetch(queries.lock_threads_for_no_key_update, {"thread_ids": [key.thread_id]})
        if await is_kept(db, queries, key.thread_id, f"run {key.run_id!r} ends as interrupted, and is not rolled back"):
            ended = await db.execute(queries.end_runs, _end([key], "interrupted", rolls_back=True))
            if ended:
                await promote_and_set_status(db, queries, key.thread_id)
            return ended > 0
        ended = await db.execute(queries.end_runs, _end([key], "cancelled", rolls_back=True))
        if ended:
            # Increase the fencing token, so that checkpoints which the run stores late are refused. The token of a
            # released lease is valid until another lease is taken.
            lease = {"thread_id": key.thread_id, "fencing_token": key.fencing_token}
            await db.execute(queries.fence_lease, {**lease, "is_dead": True})
            await delete_runs_of(db, queries, key.thread_id, [key.run_id])
            await promote_and_set_status(db, queries, key.thread_id)
    return ended > 0


async def sweep(db: Connection, queries: Queries, limit: int = 100) -> int:
    """Delete the rows and events of runs that deleted their threads a minute ago. Safe to repeat and in many processes.

    One transaction for each run. Locked runs are left to the next call.

    Returns:
        The number of runs that were found, deleted or not; at most `limit`.

    Raises:
        PGStateError: If a run cannot be deleted. The other runs are deleted.
    """
    rows = await db.fetch(queries.find_outlived, {"page_size": limit})
    failed: Exception | None = None
    for thread_id, run_id in rows:
        try:
            async with db.transaction():
                await db.fetch(*bounded_waits(queries))
                await db.fetch(queries.lock_threads_for_no_key_update, {"thread_ids": [thread_id]})
                if await db.fetch(queries.hold_outlived, {"thread_id": thread_id, "run_id": run_id}):
                    # Delete also records of the run that were stored after the deletion of its thread.
                    await delete_runs_of(db, queries, thread_id, [run_id])
        except Exception as error:
            if not is_locked(error):
                failed = failed or error
    if failed is not None:
        raise failed
    return len(rows)


async def notify(db: Connection, queries: Queries, run_ids: Sequence[str]) -> None:
    """Wake callers that wait for ended runs. One statement. Callers also poll, because a notification may be lost."""
    ids = [wake_key(db.tenant, run_id) for run_id in run_ids if len(run_id) <= _LONGEST_ID][:_MOST_IDS]
    await db.fetch(queries.notify_ended, {"run_ids": "\n".join(ids)})


async def _finish_with_thread(db: Connection, queries: Queries, key: RunKey, events: Sequence[EventBatch]) -> bool:
    async with db.transaction():
        await db.fetch(*bounded_waits(queries))
        await db.execute(queries.release_leases, _keys([key]))
        # Take the deletion's lock at once. With a weaker lock, two transactions could hold the lock, and wait for each
        # other.
        await db.fetch(queries.lock_thread_for_update, {"thread_id": key.thread_id})
        for statement in append_statements(queries, events):
            await db.execute(*statement)
        ended = await db.execute(queries.end_runs, _end([key], "success"))
        if ended and await db.fetch(queries.is_queued, {"thread_id": key.thread_id}):
            await db.execute(queries.promote_next, {"thread_ids": [key.thread_id]})
        elif ended and await is_kept(db, queries, key.thread_id, "not deleted with the end of its run"):
            await db.execute(queries.set_thread_status, {"thread_id": key.thread_id})
        elif ended:
            await db.execute(queries.delete_run_later, {**_run(key), "seconds": _OUTLIVING_SECONDS})
            await delete_thread(db, queries, key.thread_id, keeps_ends=True)
    return ended > 0


async def _finish(
    db: Connection,
    queries: Queries,
    keys: Sequence[RunKey],
    status: str,
    events: Sequence[EventBatch],
    error: RunError | None = None,
    keep_for: float | None = None,
) -> int:
    return await _under_leases(db, queries, keys, queries.end_runs, _end(keys, status, error), events, keep_for)


async def _requeue(
    db: Connection,
    queries: Queries,
    key: RunKey,
    parameters: dict[str, Any],
    events: Sequence[EventBatch],
    keep_for: float | None,
) -> bool:
    """Requeue a run, or end the run if it must be cancelled, because a paused queue would keep it."""
    given = {**_run(key), "fencing_token": key.fencing_token, **parameters}
    if await _under_leases(db, queries, [key], queries.requeue_run, given, events, keep_for):
        return True
    rows = await db.fetch(queries.get_cancel, {**_run(key), "fencing_token": key.fencing_token})
    if not rows:
        return False
    if (how := how_to_cancel(rows[0][0])) == "rollback":
        return await roll_back(db, queries, key)
    status = "interrupted" if how == "interrupt" else "cancelled"
    return await _finish(db, queries, [key], status, events, keep_for=keep_for) > 0


async def _under_leases(
    db: Connection,
    queries: Queries,
    keys: Sequence[RunKey],
    query: Query,
    parameters: dict[str, Any],
    events: Sequence[EventBatch],
    keep_for: float | None = None,
) -> int:
    """Release or renew leases, store events, run a statement, and make the next runs of the threads ready.

    Returns:
        The number of rows that the statement affected.
    """
    threads = {"thread_ids": [key.thread_id for key in keys]}
    # Lock the lease before the thread's row. Deletions and the first put of a thread lock the row first, so a deadlock
    # is possible. The short lock timeout then ends this transaction.
    lease = queries.release_leases if keep_for is None else queries.renew_leases
    statements = [
        bounded_waits(queries),
        (lease, _keys(keys) | ({} if keep_for is None else {"ttl": keep_for})),
        (queries.lock_threads_for_no_key_update, threads),
        *append_statements(queries, events),
        (query, parameters),
        (queries.promote_next, threads),
    ]
    return (await db.execute_together(statements))[-2]


def _end(
    keys: Sequence[RunKey], status: str, error: RunError | None = None, *, rolls_back: bool = False
) -> dict[str, Any]:
    runs = {"run_ids": [key.run_id for key in keys]}
    return {**_keys(keys), **runs, **_error_row(error), "status": status, "rolls_back": rolls_back}


def _keys(keys: Sequence[RunKey]) -> dict[str, Any]:
    return {"thread_ids": [key.thread_id for key in keys], "fencing_tokens": [key.fencing_token for key in keys]}


def _error_row(error: RunError | None) -> dict[str, Any]:
    return {
        "error_type": _text(error and error.type),
        "error_message": _text(error and error.message),
        "error_traceback": _text(error and error.traceback),
    }


def _run(key: RunKey) -> dict[str, Any]:
    return {"thread_id": key.thread_id, "run_id": key.run_id}


def _text(value: str | None) -> str | None:
    # PostgreSQL's text holds neither NUL nor lone surrogates.
    return None if value is None else value.replace("\0", "").encode("utf-8", "replace").decode()
