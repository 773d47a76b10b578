"""Schedules: their storage, and the runs that they enqueue at their ticks."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Unpack
from uuid import NAMESPACE_URL, uuid5
from zoneinfo import ZoneInfo

from langgraph_pgstate.codec.values import ValueCodec
from langgraph_pgstate.db.protocol import Connection
from langgraph_pgstate.errors import ArgumentTypeError, ConfigurationError, NotFoundError, PGStateError
from langgraph_pgstate.filters import ScheduleSelection, SortedSchedules, check_filters
from langgraph_pgstate.operations.record.events import note_action
from langgraph_pgstate.operations.runs.enqueue import enqueue, notify
from langgraph_pgstate.operations.runs.locking import bounded_waits
from langgraph_pgstate.operations.runs.requests import (
    RunInput,
    RunRequest,
    change_request,
    merge_requests,
    name_of,
    open_request,
    read_field,
    request_run,
    thread_given,
)
from langgraph_pgstate.operations.runs.ticks import MISSED, due_ticks, first_tick, next_ticks, zone_of
from langgraph_pgstate.operations.threads.paging import (
    FIRST,
    decode_cursor,
    json_of,
    offset_of,
    page_of,
    page_size,
    text_of,
    texts_of,
    time_of,
)
from langgraph_pgstate.settings import EnqueueOptions, ScheduleChanges, ScheduleOptions, check_ttl
from langgraph_pgstate.sql import Queries
from langgraph_pgstate.types import EnqueuedRun, Page, Row, Schedule

_KIND: Final = "schedules"
_SHOWN_TICKS: Final = 5
_RUN_IDS: Final = uuid5(NAMESPACE_URL, "langgraph-pgstate:schedules")
_OF_A_TICK: Final = ("run_id", "run_after")
_OF_A_SCHEDULE: Final = ScheduleChanges.__annotations__.keys() - EnqueueOptions.__annotations__.keys()
_OF_THE_PLACE: Final = {"thread_id", "checkpoint_id"}
# The columns of `lock_schedule` between the queue and the time.
_CHANGEABLE: Final = (
    "cron",
    "timezone",
    "missed",
    "options",
    "data",
    "next_at",
    "is_paused",
    "end_at",
    "thread_ttl",
    "metadata",
)
# Options that are stored under another name.
_OPTION_OF: Final = {"answer_after": "default_answer"}
# Stands for the graph of the schedule, which does not change.
_ANY_GRAPH: Final = "-"
SORT_KEYS: Final = ("created_at", "updated_at", "next_at", "end_at", "name", "graph", "thread_id")


@dataclass(frozen=True, slots=True)
class ScheduleRequest:
    """A validated and encoded schedule.

    Attributes:
        row: The columns that are not those of its runs.
        zone: Its time zone.
        run: A run as it enqueues them; its ids are not used.
    """

    row: dict[str, Any]
    zone: ZoneInfo
    run: RunRequest


@dataclass(frozen=True, slots=True)
class ScheduleChange:
    """Validated and encoded changes of a schedule.

    Attributes:
        name: Its name.
        row: The columns that change, besides those of its runs.
        run: A run that has the new arguments and options.
        names: The arguments and options of runs that change.
        metadata: Metadata that are merged into those of its runs.
        scope: Metadata that the schedule must contain, as JSON text.
    """

    name: str
    row: dict[str, Any]
    run: RunRequest
    names: frozenset[str]
    metadata: Mapping[str, Any]
    scope: str | None


def options_of_runs(options: Mapping[str, Any]) -> Any:
    """Return the options of a schedule that are those of its runs."""
    return {name: value for name, value in options.items() if name not in _OF_A_SCHEDULE}


def request_schedule(name: str, run: RunRequest, options: ScheduleOptions, *, cron: str) -> ScheduleRequest:
    """Validate a schedule.

    Args:
        name: Its name.
        run: The run of a tick.
        options: Its options, with those that the run was made of.
        cron: The expression.

    Raises:
        ConfigurationError: If an argument is not usable, or the expression has no ticks.
    """
    row = _columns({"timezone": "UTC", "missed": "skip", **options, "cron": cron})
    zone = zone_of(row["timezone"])
    if first_tick(cron, zone, datetime.now(UTC)) is None:
        raise ConfigurationError(f"cron {cron!r} has no ticks")
    metadata = _readable(run.metadata, options.get("metadata"), options.get("scope"))
    none = {"is_paused": None, "end_at": None, "thread_ttl": None}
    given = {"name": name_of("name", name), "thread_id": thread_given(options), "metadata": json.dumps(metadata)}
    return ScheduleRequest({**none, **row, **given}, zone, run)


def request_changes(codec: ValueCodec, name: str, changes: ScheduleChanges) -> ScheduleChange:
    """Validate changes of a schedule.

    Raises:
        ConfigurationError: If one is not usable.
        SerializationError: If a value cannot be stored; it is named.
    """
    given: Any = dict(changes)
    row = _columns(given)
    run = request_run(codec, _ANY_GRAPH, given.get("input"), given.get("command"), **options_of_runs(given))
    if given.keys() & _OF_THE_PLACE:
        raise ConfigurationError("the thread of a schedule is not changed: make another one")
    names = frozenset(given) - _OF_A_SCHEDULE | {name for name in ("input", "command") if name in given}
    # The one replaces the other.
    names |= {"input", "command"} if names & {"input", "command"} else set()
    scope = json_of("scope", given.get("scope") or None)
    return ScheduleChange(name_of("name", name), row, run, names, dict(given.get("metadata") or {}), scope)


def _columns(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the columns of some options of a schedule.

    Raises:
        ConfigurationError: If one is not usable.
    """
    found: dict[str, Any] = {}
    if refused := [option for option in _OF_A_TICK if given.get(option) is not None]:
        raise ConfigurationError(f"the runs of a schedule take no {refused[0]}: each tick has a run of its own")
    if "missed" in given:
        if given["missed"] not in MISSED:
            raise ConfigurationError(f"missed is {', '.join(map(repr, MISSED))}, not {given['missed']!r}")
        found["missed"] = given["missed"]
    if "timezone" in given:
        found["timezone"] = zone_of(given["timezone"]).key
    if "cron" in given:
        first_tick(given["cron"], zone_of("UTC"), datetime.now(UTC))
        found["cron"] = given["cron"]
    if "end_at" in given:
        found["end_at"] = time_of("end_at", given["end_at"])
    if given.get("paused") is not None:
        if not isinstance(given["paused"], bool):
            raise ArgumentTypeError(f"paused is true or false, not {given['paused']!r}")
        found["is_paused"] = given["paused"]
    if "thread_ttl" in given:
        ttl = given["thread_ttl"]
        found["thread_ttl"] = None if ttl is None else check_ttl("thread_ttl", ttl)
    return found


def _readable(metadata: Any, given: Any, scope: Any) -> dict[str, Any]:
    """Return the metadata that may be stored in clear text: all, or what a caller must see of them."""
    if metadata is None:
        metadata = {name: given[name] for name in scope or () if name in (given or {})}
    return dict(metadata)


async def put(db: Connection, queries: Queries, request: ScheduleRequest) -> Schedule:
    """Store a schedule, or replace the one of the same name. Three round trips; safe to repeat.

    It stays paused if it is and the request does not say otherwise. The next tick is kept unless the expression or the
    time zone is another one.
    """
    now = (await db.fetch(queries.get_time, {}))[0][0]
    run, row = request.run, request.row
    await db.execute(
        queries.put_schedule,
        {
            **row,
            "graph": run.graph,
            "queue": run.queue,
            "options": json.dumps({**run.options, "multitask_strategy": run.strategy}),
            "data": run.data,
            "next_at": first_tick(row["cron"], request.zone, now, row["end_at"]),
        },
    )
    return await get_existing(db, queries, row["name"])


async def change(db: Connection, queries: Queries, codec: ValueCodec, change: ScheduleChange) -> Schedule:
    """Change a schedule; what is not named stays. One transaction; safe to repeat.

    The next tick is kept unless the expression or the time zone is another one, or there was none.

    Raises:
        NotFoundError: If there is none of this name, or it is out of scope.
        PGStateError: If its arguments cannot be read.
    """
    where = f"schedule {change.name!r}"
    async with db.transaction():
        rows = await db.fetch(queries.lock_schedule, {"name": change.name, "scope": change.scope})
        if not rows:
            raise _not_found(change.name)
        queue, *old, now = rows[0]
        stored = dict(zip(_CHANGEABLE, old, strict=True))
        run, names, row = change.run, change.names, {**stored, **change.row}
        data = merge_requests(stored["data"], run.data, names - {"metadata"}, where)
        if change.metadata:
            metadata = {**(read_field(codec, data, "metadata", where) or {}), **change.metadata}
            data = change_request(codec, data, where, metadata=metadata)
        readable = _readable(run.metadata, change.metadata, json.loads(change.scope or "{}"))
        options = json.loads(stored["options"])
        newer = {"webhook": None, **run.options, "multitask_strategy": run.strategy}
        options |= {name: newer[name] for name in newer if _OPTION_OF.get(name, name) in names}
        if "config" in names:
            options["owner"] = {**options.get("owner", {}), "user_id": run.owner["user_id"]}
        zone, next_at = zone_of(row["timezone"]), stored["next_at"]
        if next_at is None or (row["cron"], row["timezone"]) != (stored["cron"], stored["timezone"]):
            next_at = first_tick(row["cron"], zone, now)
        has_ended = row["end_at"] is not None and next_at is not None and next_at > row["end_at"]
        await db.execute(
            queries.change_schedule,
            {
                **row,
                "name": change.name,
                "queue": run.queue if "queue" in names else queue,
                "options": json.dumps(options),
                "data": data,
                "next_at": None if row["is_paused"] or has_ended else next_at,
                "metadata": json.dumps({**stored["metadata"], **readable}),
            },
        )
        return await get_existing(db, queries, change.name)


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


def request_sorted(**filters: Unpack[SortedSchedules]) -> dict[str, Any]:
    """Validate a request for schedules by offset, and return its query parameters.

    Raises:
        ConfigurationError: If an argument is invalid.
    """
    check_filters(filters, SortedSchedules)
    by, ascending = filters.get("by", SORT_KEYS[0]), filters.get("ascending", False)
    if by not in SORT_KEYS:
        raise ConfigurationError(f"schedules are sorted by {', '.join(SORT_KEYS)}, not {by!r}")
    if not isinstance(ascending, bool):
        raise ArgumentTypeError(f"ascending must be true or false, not {ascending!r}")
    place = {"offset": offset_of(filters.get("offset", 0)), "page_size": page_size(filters.get("limit", 20))}
    return {**_selection(filters), "by": by, "ascending": ascending, **place}


def request_count(**filters: Unpack[ScheduleSelection]) -> dict[str, Any]:
    """Validate a request for the number of schedules, and return its query parameters.

    Raises:
        ConfigurationError: If an argument is invalid.
    """
    check_filters(filters, ScheduleSelection)
    return _selection(filters)


def _selection(filters: ScheduleSelection) -> dict[str, Any]:
    return {
        **texts_of(filters, "name", "graph", "thread_id"),
        "is_paused": filters.get("paused"),
        "metadata": json_of("metadata", filters.get("metadata") or None),
        "scope": json_of("scope", filters.get("scope") or None),
    }


async def list_sorted(
    db: Connection, queries: Queries, codec: ValueCodec, parameters: dict[str, Any]
) -> tuple[Schedule, ...]:
    """Return schedules from an offset, with the arguments of their runs. One round trip."""
    rows = await db.fetch(queries.sort_schedules, parameters)
    return tuple(replace(_shown(row[:-1]), arguments=_arguments(codec, row[0], row[-1])) for row in rows)


async def count(db: Connection, queries: Queries, parameters: dict[str, Any]) -> int:
    """Return the number of schedules. One round trip; reads all."""
    return int((await db.fetch(queries.sort_schedules_count, parameters))[0][0])


async def pause(db: Connection, queries: Queries, name: str, by: str | None = None) -> Schedule:
    """Pause a schedule, with an event if it is known who does it. One transaction; safe to repeat.

    Raises:
        NotFoundError: If there is none of this name.
    """
    async with db.transaction():
        await db.execute(queries.set_next_tick, {"name": name, "next_at": None, "is_paused": True})
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
        for _, *old, now in await db.fetch(queries.lock_schedule, {"name": name, "scope": None}):
            stored = dict(zip(_CHANGEABLE, old, strict=True))
            if stored["is_paused"]:
                first = first_tick(stored["cron"], zone_of(stored["timezone"]), now, stored["end_at"])
                await db.execute(queries.set_next_tick, {"name": name, "next_at": first, "is_paused": False})
        found = await get_existing(db, queries, name)
        if by is not None:
            await note_action(db, queries, "resume", by, f"schedule:{name}")
    return found


async def delete(db: Connection, queries: Queries, name: str, scope: str | None = None) -> bool:
    """Delete a schedule, and return whether there was one in scope. Its runs stay. One round trip; safe to repeat."""
    return await db.execute(queries.delete_schedule, {"name": name, "scope": scope}) > 0


async def trigger(
    db: Connection, queries: Queries, codec: ValueCodec, name: str, run_id: str, by: str | None = None
) -> EnqueuedRun:
    """Enqueue a run of a schedule now, also if it is paused, with an event if it is known who does it.

    Its ticks stay. One transaction; idempotent with the run's id.

    Raises:
        NotFoundError: If there is none of this name.
        PGStateError: As `enqueue` does.
    """
    async with db.transaction():
        rows = await db.fetch(queries.get_schedule_request, {"name": name})
        if not rows:
            raise _not_found(name)
        queue, thread_id, timezone, options, data, metadata, thread_ttl, now = rows[0]
        request = _run_of(codec, name, queue, thread_id, options, data, run_id, now.astimezone(zone_of(timezone)))
        run = await _enqueue(db, queries, request, thread_id is None, metadata, thread_ttl)
        if by is not None:
            await note_action(db, queries, "trigger", by, run.thread_id, run.run_id, {"schedule": name})
    return run


async def find_due(db: Connection, queries: Queries, limit: int = 100) -> list[str]:
    """Return schedules whose next tick has come, the longest due first. One round trip, or several.

    Left out are those whose time zone this machine does not know, once `fire` has noted that, so that they keep no other
    schedule from being found.
    """
    found: list[str] = []
    at, last = FIRST, ""
    while True:
        page = {"cursor_at": at, "cursor_name": last, "page_size": limit}
        rows = await db.fetch(queries.find_due_schedules, page)
        found += [name for _, name, timezone, error in rows if not _is_known_to_fail(timezone, error)]
        if len(rows) < limit or len(found) >= limit:
            return found[:limit]
        at, last = rows[-1][:2]


def _is_known_to_fail(timezone: str, last_error: str | None) -> bool:
    """Return whether it is noted that this machine does not know the time zone of a schedule."""
    try:
        zone_of(timezone)
    except ConfigurationError as unknown:
        return last_error == str(unknown)
    return False


async def fire(db: Connection, queries: Queries, codec: ValueCodec, name: str) -> list[EnqueuedRun]:
    """Enqueue runs for the ticks of a schedule that have come, and set its next tick. One transaction.

    Safe to repeat and in many processes: one of them does it. Nothing is done if another transaction has locked the
    schedule or its thread. A run that is refused, because its thread is busy for example, is left out: `last_error`
    tells why.

    Returns:
        The runs.

    Raises:
        ConfigurationError: If this machine does not know the schedule's time zone. `last_error` tells it, and the
            schedule stays due, for a worker on another machine.
    """
    try:
        return await _fire(db, queries, codec, name)
    except ConfigurationError as unknown:
        await db.execute(queries.set_schedule_error, {"name": name, "error": str(unknown)})
        raise


async def _fire(db: Connection, queries: Queries, codec: ValueCodec, name: str) -> list[EnqueuedRun]:
    is_callers = db.is_in_transaction
    async with db.transaction():
        if not is_callers:
            # The thread may be about to be made.
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


async def _enqueue(
    db: Connection,
    queries: Queries,
    request: RunRequest,
    is_new_thread: bool,
    metadata: Mapping[str, Any],
    thread_ttl: timedelta | None,
) -> EnqueuedRun:
    """Enqueue the run of a tick, on a new thread that has the schedule's metadata. Call it in a transaction."""
    if is_new_thread and (metadata or thread_ttl is not None):
        thread = {**request.owner, "title": None, "metadata": json.dumps(metadata), "ttl": thread_ttl}
        await db.execute(queries.create_thread, {"thread_id": request.thread_id, **thread})
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
    try:
        ticks = next_ticks(found.cron, zone_of(found.timezone), found.next_at, _SHOWN_TICKS)
    except ConfigurationError:
        # This machine does not know its time zone. Other schedules are shown all the same.
        return found
    return replace(found, next_ticks=tuple(tick for tick in ticks if found.end_at is None or tick <= found.end_at))


def _arguments(codec: ValueCodec, name: str, data: bytes) -> Mapping[str, Any] | None:
    try:
        found = open_request(codec, data, f"schedule {name!r}")
    except PGStateError:
        # Another one that can be read is not kept from the caller.
        return None
    fields = {field: getattr(found, field) for field in RunInput.__dataclass_fields__}
    return {field: value for field, value in fields.items() if value is not None}


def _not_found(name: str) -> NotFoundError:
    return NotFoundError(f"there is no schedule {name!r}")
