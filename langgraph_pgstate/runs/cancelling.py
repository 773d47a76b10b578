"""Cancelling, retrying and discarding of runs."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, Final

from langgraph_pgstate.arguments import time_of
from langgraph_pgstate.db.protocol import Connection, Parameters, Query, Rows
from langgraph_pgstate.errors import AlreadyDoneError, ConfigurationError, NotFoundError
from langgraph_pgstate.record.events import note_action
from langgraph_pgstate.schema.queries import Queries
from langgraph_pgstate.threads.holds import is_kept
from langgraph_pgstate.threads.rows import delete_runs_of

ACTIONS: Final = ("cancel", "interrupt", "rollback")
SUPERSEDING: Final = ("interrupt", "rollback")
_STATUSES: Final = {"cancel": "cancelled", "interrupt": "interrupted"}


def how_to_cancel(stored: str | None) -> str | None:
    """Return the action of a stored request to cancel a run: `cancel` for an unknown action, `None` for no request."""
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
    """Cancel a run. A pending run ends at once; for a running run, its worker is asked to end it. One transaction.

    Args:
        db: The connection.
        queries: The queries of the schema.
        thread_id: Id of the thread.
        run_id: Id of the run.
        action: `cancel` ends the run as `cancelled`, `interrupt` as `interrupted`; both keep checkpoints. `rollback`
            deletes the run with its checkpoints. If several actions are asked for before the run has ended, `rollback`
            prevails if it is one of them, otherwise the first action.
        by: Name of the person who cancels it. It is stored in an event, unless another person has requested the same
            action before.
        unless_retried_after: Refuse the action if a person has retried the run after this time, by the database's
            clock.

    Returns:
        The run's status; `running` if its worker was asked. A run that has ended keeps its status.

    Raises:
        NotFoundError: If there is no such run, or it was not enqueued.
        ConfigurationError: If the action is unknown, or the time has no time zone.
        AlreadyDoneError: If a person has retried the run after `unless_retried_after`. Nothing was written.
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
    # A pending run that was rolled back no longer exists.
    return "cancelled" if rows and not found else _status_of(found, key)


def _changes(row: Sequence[Any], action: str) -> bool:
    """Return whether an action changes how the run of a `lock_queued` row will end."""
    _, status, asked = row
    return status == "pending" or asked is None or (action == "rollback" and asked != action)


def _status_of(rows: Rows, key: dict[str, str]) -> str:
    """Return the status of an enqueued run from the rows of `get_run_status`.

    Raises:
        NotFoundError: If there is no such run, or it was not enqueued.
    """
    if not rows or not rows[0][3]:
        raise NotFoundError(f"thread {key['thread_id']!r} has no enqueued run {key['run_id']!r}")
    return str(rows[0][0])


async def supersede(db: Connection, queries: Queries, thread_id: str, action: str) -> None:
    """End the pending and running runs of a thread that are not enqueued for later. Call it in a transaction that has
    locked the thread's row.
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
            # A requeued run may still have an earlier request to cancel it. The earlier request prevails, except over a
            # rollback.
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
    """Make a thread's next run ready, and set the thread's status, after its queue has changed. Call it in a
    transaction that has locked the thread's row.
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
    """Enqueue a run again that ended without success. Its attempts are counted anew.

    It resumes from its newest checkpoint. With `by`, an event that names this person is stored, too. One round trip, or
    one transaction with `by`; safe to repeat.

    Returns:
        Whether the run was enqueued. False if it succeeded, was discarded, or is in the queue. Also false if it has
        checkpoints and another run has continued its thread, or is about to. Also false if another run of the thread
        was enqueued or began within the time `within`.

    Raises:
        NotFoundError: If there is no such run, or it was not enqueued.
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
        _status_of(await db.fetch(queries.get_run_status, key), key)
    return is_enqueued


async def discard(db: Connection, queries: Queries, thread_id: str, run_id: str, by: str | None = None) -> bool:
    """Delete the request of an ended run, so that it is no dead letter and cannot be retried. Its record is kept.

    With `by`, an event that names this person is stored, too. One round trip, or one transaction with `by`; safe to
    repeat. The call waits for other changes of the thread's queue, so that a run which is retried at the same time
    keeps its request.

    Returns:
        Whether there was a request; false if the run has not ended, has succeeded, or was discarded before.

    Raises:
        NotFoundError: If there is no such run, or it was not enqueued.
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
        _status_of(await db.fetch(queries.get_run_status, key), key)
    return is_discarded
