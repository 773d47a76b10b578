"""Operations that enqueue the runs of schedules, at a tick or at once."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from uuid import NAMESPACE_URL, uuid5

from langgraph_pgstate.codec.values import ValueCodec
from langgraph_pgstate.db.protocol import Connection
from langgraph_pgstate.errors import ConfigurationError, EncryptionError, MissingKeysError, PGStateError
from langgraph_pgstate.paging import FIRST
from langgraph_pgstate.record.events import check_not_done, note_action
from langgraph_pgstate.runs.enqueue import enqueue, notify
from langgraph_pgstate.runs.inputs import change_input, read_field
from langgraph_pgstate.runs.locking import bounded_waits
from langgraph_pgstate.runs.requests import RunRequest
from langgraph_pgstate.runs.types import EnqueuedRun
from langgraph_pgstate.schedules.rows import not_found
from langgraph_pgstate.schedules.ticks import due_ticks, first_tick, zone_of
from langgraph_pgstate.schema.queries import Queries

_RUN_IDS: Final = uuid5(NAMESPACE_URL, "langgraph-pgstate:schedules")


async def find_due(db: Connection, queries: Queries, limit: int = 100) -> list[str]:
    """Return schedules whose next tick has come, the longest due first, but those with an error last.

    One round trip, or several.

    Skip schedules whose ticks this machine cannot compute. Such schedules stay due, and could fill each page.
    """
    found: list[str] = []
    failed, at, last = False, FIRST, ""
    while True:
        page = {"cursor_failed": failed, "cursor_at": at, "cursor_name": last, "page_size": limit}
        rows = await db.fetch(queries.find_due_schedules, page)
        for _, _, name, cron, timezone, error in rows:
            if error is None or not _is_known_to_fail(cron, timezone, error):
                found.append(name)
        if len(rows) < limit or len(found) >= limit:
            return found[:limit]
        failed, at, last = rows[-1][:3]


def _is_known_to_fail(cron: str, timezone: str, last_error: str) -> bool:
    """Return whether `last_error` says that this machine cannot compute the ticks of a schedule."""
    try:
        first_tick(cron, zone_of(timezone), datetime.now(UTC))
    except ConfigurationError as unknown:
        return last_error == str(unknown)
    return False


async def fire(db: Connection, queries: Queries, codec: ValueCodec, name: str) -> list[EnqueuedRun]:
    """Enqueue runs for the due ticks of a schedule, set the next tick, and return the runs. One transaction.

    Safe to repeat and in many processes. If the schedule or its thread is locked, no run is enqueued. A refused run is
    skipped, for example because the thread is busy. The reason is in `last_error`.

    Raises:
        ConfigurationError: If this machine cannot compute the ticks. The schedule stays due for other machines.
        EncryptionError: If the schedule cannot be decrypted. The schedule stays due. Also if a master key does not
            respond. The caller then calls `set_error`.
    """
    is_callers = db.is_in_transaction
    async with db.transaction():
        if not is_callers:
            # Another transaction that creates the thread may take long.
            await db.fetch(*bounded_waits(queries))
        rows = await db.fetch(queries.lock_due_schedule, {"name": name})
        if not rows:
            return []
        queue, thread_id, cron, timezone, missed, options, data, next_at, end_at, metadata, thread_ttl, now = rows[0]
        if thread_id is not None and not await db.fetch(queries.lock_free_threads, {"thread_ids": [thread_id]}):
            return []
        zone = zone_of(timezone)
        runs: list[EnqueuedRun] = []
        error = None
        ticks = due_ticks(cron, zone, next_at, now, missed, end_at)
        for tick in ticks:
            run_id = str(uuid5(_RUN_IDS, f"{tick.astimezone(UTC).isoformat()} {name}"))
            try:
                request = _run_of(codec, name, queue, thread_id, options, data, run_id, tick.astimezone(zone))
                runs.append(await _enqueue(db, queries, request, thread_id is None, metadata, thread_ttl))
            except MissingKeysError:
                # The caller loads the keys, and repeats the operation.
                raise
            except PGStateError as refused:
                error = str(refused)
        await db.execute(
            queries.move_schedule,
            {
                "name": name,
                "next_at": first_tick(cron, zone, now, end_at),
                "last_at": ticks[-1] if ticks else None,
                "thread_id": runs[-1].thread_id if runs else None,
                "run_id": runs[-1].run_id if runs else None,
                "error": error,
            },
        )
        if runs:
            await notify(db, queries)
    return runs


def is_of_schedule(error: PGStateError) -> bool:
    """Return whether `fire` failed because of the schedule itself, so that other schedules can be fired."""
    return isinstance(error, ConfigurationError | EncryptionError) and not error.retryable


async def set_error(db: Connection, queries: Queries, name: str, error: str) -> None:
    """Store the reason why `fire` has failed because of the schedule itself. The schedule stays due. One statement."""
    await db.execute(queries.set_schedule_error, {"name": name, "error": error})


async def trigger(
    db: Connection,
    queries: Queries,
    codec: ValueCodec,
    name: str,
    run_id: str,
    by: str | None = None,
    within: timedelta | None = None,
) -> EnqueuedRun:
    """Enqueue a run of a schedule now, in one transaction; see `AsyncSchedules.trigger`."""
    async with db.transaction():
        rows = await db.fetch(queries.get_schedule_request, {"name": name})
        if not rows:
            raise not_found(name)
        queue, thread_id, timezone, options, data, metadata, thread_ttl, now = rows[0]
        request = _run_of(codec, name, queue, thread_id, options, data, run_id, now.astimezone(zone_of(timezone)))
        place = f"schedule:{name}"
        if within is not None:
            await check_not_done(db, queries, "trigger", place, within, run_id=run_id)
        run = await _enqueue(db, queries, request, thread_id is None, metadata, thread_ttl)
        if by is not None and run.is_new:
            await note_action(db, queries, "trigger", by, run.thread_id, run.run_id, {"schedule": name})
            await note_action(db, queries, "trigger", by, place, run.run_id, {"run_thread_id": run.thread_id})
    return run


async def _enqueue(
    db: Connection,
    queries: Queries,
    request: RunRequest,
    is_new_thread: bool,
    metadata: Mapping[str, Any],
    thread_ttl: timedelta | None,
) -> EnqueuedRun:
    """Enqueue a run of a schedule. A new thread gets the schedule's metadata. Call this in a transaction."""
    if is_new_thread and (metadata or thread_ttl is not None):
        thread = {**request.owner, "title": None, "metadata": json.dumps(metadata)}
        expiry = {"ttl": thread_ttl, "ttl_strategy": "delete"}
        if db.keys is not None:
            db.keys.note_owner(request.thread_id, lambda: request.owner)
        await db.execute(queries.create_thread, {"thread_id": request.thread_id, **thread, **expiry})
    return (await enqueue(db, queries, [request]))[0]


def _run_of(
    codec: ValueCodec,
    name: str,
    queue: str,
    thread_id: str | None,
    options: str,
    data: bytes,
    run_id: str,
    at: datetime,
) -> RunRequest:
    """Return the run of one tick. The run's metadata name the schedule and the tick."""
    where = f"schedule {name!r}"
    metadata = read_field(codec, data, "metadata", where) or {}
    told = {**metadata, "schedule": name, "scheduled_at": at.isoformat()}
    data = change_input(codec, data, where, metadata=told)
    run = RunRequest.again(codec, thread_id or run_id, run_id, queue, options, data, told)
    return replace(run, strategy=run.options["multitask_strategy"])
