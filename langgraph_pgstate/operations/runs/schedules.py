"""Schedules: their storage, and the runs that they enqueue at their ticks."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final, Literal
from uuid import NAMESPACE_URL, uuid5
from zoneinfo import ZoneInfo

from langgraph_pgstate.codec.values import ValueCodec
from langgraph_pgstate.db.protocol import Connection
from langgraph_pgstate.errors import ConfigurationError, NotFoundError, PGStateError
from langgraph_pgstate.operations.record.events import note_action
from langgraph_pgstate.operations.runs.enqueue import enqueue, notify
from langgraph_pgstate.operations.runs.locking import bounded_waits
from langgraph_pgstate.operations.runs.requests import (
    RunRequest,
    change_request,
    name_of,
    read_field,
    thread_given,
)
from langgraph_pgstate.operations.runs.ticks import MISSED, due_ticks, first_tick, next_ticks, zone_of
from langgraph_pgstate.operations.threads.paging import decode_cursor, page_of, page_size, text_of
from langgraph_pgstate.settings import EnqueueOptions
from langgraph_pgstate.sql import Queries
from langgraph_pgstate.types import EnqueuedRun, Page, Row, Schedule

_KIND: Final = "schedules"
_SHOWN_TICKS: Final = 5
_RUN_IDS: Final = uuid5(NAMESPACE_URL, "langgraph-pgstate:schedules")
_OF_A_TICK: Final = ("run_id", "run_after")


@dataclass(frozen=True, slots=True)
class ScheduleRequest:
    """A validated and encoded schedule.

    Attributes:
        name: Its name.
        thread_id: The thread of its runs; `None` for a new one for each.
        cron: When it ticks.
        zone: The time zone of `cron`.
        missed: What becomes of missed ticks.
        run: A run as it enqueues them; its ids are not used.
    """

    name: str
    thread_id: str | None
    cron: str
    zone: ZoneInfo
    missed: str
    run: RunRequest


def request_schedule(
    name: str,
    run: RunRequest,
    options: EnqueueOptions,
    *,
    cron: str,
    timezone: str,
    missed: Literal["skip", "once", "all"],
) -> ScheduleRequest:
    """Validate a schedule.

    Args:
        name: Its name.
        run: The run of a tick.
        options: The options that the run was made of.
        cron: The expression.
        timezone: Its time zone.
        missed: What becomes of missed ticks.

    Raises:
        ConfigurationError: If an argument is not usable, or the expression has no ticks.
    """
    if refused := [option for option in _OF_A_TICK if options.get(option) is not None]:
        raise ConfigurationError(f"the runs of a schedule take no {refused[0]}: each tick has a run of its own")
    if missed not in MISSED:
        raise ConfigurationError(f"missed is {', '.join(map(repr, MISSED))}, not {missed!r}")
    zone = zone_of(timezone)
    if first_tick(cron, zone, datetime.now(UTC)) is None:
        raise ConfigurationError(f"cron {cron!r} has no ticks")
    return ScheduleRequest(name_of("name", name), thread_given(options), cron, zone, missed, run)


async def put(db: Connection, queries: Queries, request: ScheduleRequest) -> Schedule:
    """Store a schedule, or replace the one of the same name. Three round trips; safe to repeat.

    A paused schedule stays paused. The next tick is kept unless the expression or the time zone is another one.
    """
    now = (await db.fetch(queries.get_time, {}))[0][0]
    run = request.run
    await db.execute(
        queries.put_schedule,
        {
            "name": request.name,
            "graph": run.graph,
            "queue": run.queue,
            "thread_id": request.thread_id,
            "cron": request.cron,
            "timezone": request.zone.key,
            "missed": request.missed,
            "options": json.dumps({**run.options, "multitask_strategy": run.strategy}),
            "data": run.data,
            "next_at": first_tick(request.cron, request.zone, now),
        },
    )
    return await get_existing(db, queries, request.name)


async def get(db: Connection, queries: Queries, name: str) -> Schedule | None:
    """Return a schedule, or `None`. One round trip."""
    found = await list_schedules(db, queries, request_schedules(name=name, limit=1))
    return found.items[0] if found.items else None


async def get_existing(db: Connection, queries: Queries, name: str) -> Schedule:
    """Return a schedule. One round trip.

    Raises:
        NotFoundError: If there is none of this name.
    """
    found = await get(db, queries, name)
    if found is None:
        raise _not_found(name)
    return found


def request_schedules(
    *, name: str | None = None, graph: str | None = None, limit: int = 20, cursor: str | None = None
) -> dict[str, Any]:
    """Validate a request for schedules, and return its query parameters.

    Raises:
        ConfigurationError: If an argument is invalid.
    """
    (after,) = decode_cursor(_KIND, cursor, ("",))
    return {
        "name": text_of("name", name),
        "graph": text_of("graph", graph),
        "cursor_name": after,
        "page_size": page_size(limit) + 1,
    }


async def list_schedules(db: Connection, queries: Queries, parameters: dict[str, Any]) -> Page[Schedule]:
    """Return a page of schedules by name. One round trip."""
    rows = await db.fetch(queries.list_schedules, parameters)
    return page_of(rows, parameters["page_size"] - 1, _shown, _KIND, lambda item: (item.name,))


async def pause(db: Connection, queries: Queries, name: str, by: str | None = None) -> Schedule:
    """Pause a schedule, with an event if it is known who does it. One transaction; safe to repeat.

    Raises:
        NotFoundError: If there is none of this name.
    """
    async with db.transaction():
        await db.execute(queries.set_next_tick, {"name": name, "next_at": None})
        found = await get_existing(db, queries, name)
        if by is not None:
            await note_action(db, queries, "pause", by, f"schedule:{name}")
    return found


async def resume(db: Connection, queries: Queries, name: str, by: str | None = None) -> Schedule:
    """Resume a schedule from now on, if it is paused, with an event if it is known who does it. One transaction; safe
    to repeat.

    Raises:
        NotFoundError: If there is none of this name.
    """
    async with db.transaction():
        for cron, timezone, next_at, now in await db.fetch(queries.lock_schedule, {"name": name}):
            if next_at is None:
                first = first_tick(cron, zone_of(timezone), now)
                await db.execute(queries.set_next_tick, {"name": name, "next_at": first})
        found = await get_existing(db, queries, name)
        if by is not None:
            await note_action(db, queries, "resume", by, f"schedule:{name}")
    return found


async def delete(db: Connection, queries: Queries, name: str) -> bool:
    """Delete a schedule, and return whether there was one. Its runs stay. One round trip; safe to repeat."""
    return await db.execute(queries.delete_schedule, {"name": name}) > 0


async def trigger(
    db: Connection, queries: Queries, codec: ValueCodec, name: str, run_id: str, by: str | None = None
) -> EnqueuedRun:
    """Enqueue a run of a schedule now, also if it is paused, with an event if it is known who does it.

    Its ticks stay. Idempotent with the run's id.

    Raises:
        NotFoundError: If there is none of this name.
        PGStateError: As `enqueue` does.
    """
    rows = await db.fetch(queries.get_schedule_request, {"name": name})
    if not rows:
        raise _not_found(name)
    queue, thread_id, timezone, options, data, now = rows[0]
    request = _run_of(codec, name, queue, thread_id, options, data, run_id, now.astimezone(zone_of(timezone)))
    if by is None:
        return (await enqueue(db, queries, [request]))[0]
    async with db.transaction():
        run = (await enqueue(db, queries, [request]))[0]
        await note_action(db, queries, "trigger", by, run.thread_id, run.run_id, {"schedule": name})
    return run


async def find_due(db: Connection, queries: Queries, limit: int = 100) -> list[str]:
    """Return schedules whose next tick has come, the longest due first. One round trip."""
    return [row[0] for row in await db.fetch(queries.find_due_schedules, {"page_size": limit})]


async def fire(db: Connection, queries: Queries, codec: ValueCodec, name: str) -> list[EnqueuedRun]:
    """Enqueue runs for the ticks of a schedule that have come, and set its next tick. One transaction.

    Safe to repeat and in many processes: one of them does it. Nothing is done if another transaction has locked the
    schedule or its thread. A run that is refused, because its thread is busy for example, is left out: `last_error`
    tells why.

    Returns:
        The runs.
    """
    is_callers = db.is_in_transaction
    async with db.transaction():
        if not is_callers:
            # The thread may be about to be made.
            await db.fetch(*bounded_waits(queries))
        rows = await db.fetch(queries.lock_due_schedule, {"name": name})
        if not rows:
            return []
        queue, thread_id, cron, timezone, missed, options, data, next_at, now = rows[0]
        if thread_id is not None and not await db.fetch(queries.lock_free_threads, {"thread_ids": [thread_id]}):
            return []
        zone = zone_of(timezone)
        runs: list[EnqueuedRun] = []
        error = None
        ticks = due_ticks(cron, zone, next_at, now, missed)
        for tick in ticks:
            run_id = str(uuid5(_RUN_IDS, f"{tick.astimezone(UTC).isoformat()} {name}"))
            try:
                request = _run_of(codec, name, queue, thread_id, options, data, run_id, tick.astimezone(zone))
                runs += await enqueue(db, queries, [request])
            except PGStateError as refused:
                error = str(refused)
        await db.execute(
            queries.move_schedule,
            {
                "name": name,
                "next_at": first_tick(cron, zone, now),
                "last_at": ticks[-1] if ticks else None,
                "thread_id": runs[-1].thread_id if runs else None,
                "run_id": runs[-1].run_id if runs else None,
                "error": error,
            },
        )
        if runs:
            await notify(db, queries)
    return runs


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
    """Return the run of one tick, whose metadata names the schedule and the tick."""
    where = f"schedule {name!r}"
    metadata = read_field(codec, data, "metadata", where) or {}
    told = {**metadata, "schedule": name, "scheduled_at": at.isoformat()}
    run = RunRequest.again(
        thread_id or run_id, run_id, queue, options, change_request(codec, data, where, metadata=told)
    )
    return replace(run, strategy=run.options["multitask_strategy"])


def _shown(row: Row) -> Schedule:
    found = Schedule(*row)
    if found.next_at is None:
        return found
    return replace(found, next_ticks=next_ticks(found.cron, zone_of(found.timezone), found.next_at, _SHOWN_TICKS))


def _not_found(name: str) -> NotFoundError:
    return NotFoundError(f"there is no schedule {name!r}")
