"""Operations that cancel, retry or discard runs."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, Final

from langgraph_pgstate.arguments import time_of
from langgraph_pgstate.db.protocol import Connection, Parameters, Query, Rows
from langgraph_pgstate.errors import AlreadyDoneError, ConfigurationError, NotFoundError
from langgraph_pgstate.leases.guards import refuse_archived
from langgraph_pgstate.record.events import note_action
from langgraph_pgstate.schema.queries import Queries
from langgraph_pgstate.threads.holds import is_kept
from langgraph_pgstate.threads.rows import delete_runs_of

ACTIONS: Final = ("cancel", "interrupt", "rollback")
SUPERSEDING: Final = ("interrupt", "rollback")
_STATUSES: Final = {"cancel": "cancelled", "interrupt": "interrupted"}


def how_to_cancel(stored: str | None) -> str | None:
    """Return the action to cancel a run from the column `cancel`. An unknown action counts as `cancel`."""
    return stored if stored is None or stored in ACTIONS else "cancel"


async def cancel(
    db: Connection,
    queries: Queries,
    thread_id: str,
    run_id: str,
    action: str = "cancel",
    by: str | None = None,
    unless_retried_after: datetime | None = None,
) -> str:
    """Cancel a run in one transaction, and return the run's status; see `AsyncRuns.cancel`.

    The event that names the person `by` is stored only if this call changes how the run will end.
    """
    if action not in ACTIONS:
        raise ConfigurationError(f"action must be one of {', '.join(map(repr, ACTIONS))}, not {action!r}")
    key = {"thread_id": thread_id, "run_id": run_id}
    after = time_of("unless_retried_after", unless_retried_after)
    async with db.transaction():
        await db.fetch(queries.lock_threads_for_no_key_update, {"thread_ids": [thread_id]})
        retries = [] if after is None else await db.fetch(queries.find_retry, {**key, "after": after})
        if retries:
            raise AlreadyDoneError(thread_id, *retries[0])
        rows = await db.fetch(queries.lock_queued, key)
        if rows:
            await _end(db, queries, thread_id, rows, action)
            if by is not None and _changes(rows[0], action):
                await note_action(db, queries, "cancel", by, thread_id, run_id, {"how": action})
        found = await db.fetch(queries.get_run_status, key)
    # The rollback of a pending run has deleted its row.
    return "cancelled" if rows and not found else await _status_of(db, queries, found, key)


def _changes(row: Sequence[Any], action: str) -> bool:
    """Return whether an action changes how the run of a row of `lock_queued` will end."""
    _, status, asked = row
    return status == "pending" or asked is None or (action == "rollback" and asked != action)


async def _status_of(db: Connection, queries: Queries, rows: Rows, key: dict[str, str]) -> str:
    """Return the status of an enqueued run from the rows of `get_run_status`."""
    if not rows or not rows[0][3]:
        await refuse_archived(db, queries, key["thread_id"])
        raise NotFoundError(f"thread {key['thread_id']!r} has no enqueued run {key['run_id']!r}")
    return str(rows[0][0])


async def supersede(db: Connection, queries: Queries, thread_id: str, action: str) -> None:
    """End the runs of a thread in the queue, except runs that are enqueued for later.

    Call this in a transaction that has locked the thread's row.
    """
    rows = await db.fetch(queries.lock_queued, {"thread_id": thread_id, "run_id": None})
    if rows:
        await _end(db, queries, thread_id, rows, action)


async def _end(db: Connection, queries: Queries, thread_id: str, rows: Sequence[Sequence[Any]], action: str) -> None:
    running = [run_id for run_id, status, _ in rows if status == "running"]
    pending: dict[str, list[str]] = {}
    for run_id, status, stored in rows:
        if status == "pending":
            asked = how_to_cancel(stored)
            # A requeued run keeps an earlier action. Only a rollback replaces the earlier action.
            pending.setdefault(action if asked is None or action == "rollback" else asked, []).append(run_id)
    if running:
        await db.execute(queries.ask_cancel, {"thread_id": thread_id, "run_ids": running, "cancel": action})
    for how, run_ids in pending.items():
        is_deleted = how == "rollback" and not await is_kept(
            db, queries, thread_id, f"runs {', '.join(run_ids)} end as interrupted, and are not rolled back"
        )
        if is_deleted:
            await db.execute(queries.put_webhooks, {"thread_id": thread_id, "run_ids": run_ids})
            await delete_runs_of(db, queries, thread_id, run_ids)
        else:
            end = {"thread_id": thread_id, "run_ids": run_ids, "status": _STATUSES.get(how, "interrupted")}
            await db.execute(queries.end_pending, end)
    if pending:
        await promote_and_set_status(db, queries, thread_id)


async def promote_and_set_status(db: Connection, queries: Queries, thread_id: str) -> None:
    """Make a thread's next run ready and set the thread's status, after the thread's queue has changed.

    Call this in a transaction that has locked the thread's row.
    """
    await db.execute(queries.promote_next, {"thread_ids": [thread_id]})
    await db.execute(queries.set_thread_status, {"thread_id": thread_id})


async def retry(
    db: Connection,
    queries: Queries,
    thread_id: str,
    run_id: str,
    by: str | None = None,
    within: timedelta | None = None,
) -> bool:
    """Enqueue an ended run again, and return whether the run was enqueued; see `AsyncRuns.retry`.

    One round trip. With `by`, one transaction of several round trips, which also stores an event.
    """
    threads, key = {"thread_ids": [thread_id]}, {"thread_id": thread_id, "run_id": run_id}
    statements: list[tuple[Query, Parameters]] = [
        (queries.lock_threads_for_no_key_update, threads),
        (queries.retry_run, {**key, "within": within}),
        (queries.promote_next, threads),
        (queries.set_thread_status, {"thread_id": thread_id}),
    ]
    if by is None:
        is_enqueued = (await db.execute_together(statements))[1] > 0
    else:
        async with db.transaction():
            is_enqueued = (await db.execute_together(statements))[1] > 0
            if is_enqueued:
                await note_action(db, queries, "retry", by, thread_id, run_id)
    if not is_enqueued:
        await _status_of(db, queries, await db.fetch(queries.get_run_status, key), key)
    return is_enqueued


async def discard(db: Connection, queries: Queries, thread_id: str, run_id: str, by: str | None = None) -> bool:
    """Delete the request of an ended run, and return whether there was a request; see `AsyncRuns.discard`.

    One round trip. With `by`, one transaction of several round trips, which also stores an event. The lock of the
    thread's row keeps other transactions from retrying the run at the same time.
    """
    key = {"thread_id": thread_id, "run_id": run_id}
    statements: list[tuple[Query, Parameters]] = [
        (queries.lock_threads_for_no_key_update, {"thread_ids": [thread_id]}),
        (queries.discard_request, key),
    ]
    if by is None:
        is_discarded = (await db.execute_together(statements))[1] > 0
    else:
        async with db.transaction():
            is_discarded = (await db.execute_together(statements))[1] > 0
            if is_discarded:
                await note_action(db, queries, "discard", by, thread_id, run_id)
    if not is_discarded:
        await _status_of(db, queries, await db.fetch(queries.get_run_status, key), key)
    return is_discarded
