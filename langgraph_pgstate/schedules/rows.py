"""Operations that store, change, list, pause and delete schedules."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final, Unpack
from zoneinfo import ZoneInfo

from langgraph_pgstate.arguments import flag_of, json_of, refuse_nul, request_scope, stored_time_of, text_of, texts_of
from langgraph_pgstate.codec.frames import content_size
from langgraph_pgstate.codec.values import ValueCodec
from langgraph_pgstate.db.protocol import Connection, Read, Row, number, read, read_all
from langgraph_pgstate.errors import ConfigurationError, NotFoundError, PGStateError
from langgraph_pgstate.options import check_ttl
from langgraph_pgstate.paging import Page, check_filters, decode_cursor, read_page, sorting_of
from langgraph_pgstate.record.events import note_action
from langgraph_pgstate.runs.arguments import name_of
from langgraph_pgstate.runs.inputs import RunInput, change_input, merge_inputs, open_input, read_field
from langgraph_pgstate.runs.options import EnqueueOptions
from langgraph_pgstate.runs.requests import RunRequest, request_run, thread_given
from langgraph_pgstate.schedules.ticks import MISSED, first_tick, next_ticks, zone_of
from langgraph_pgstate.schedules.types import (
    Schedule,
    ScheduleAccess,
    ScheduleChanges,
    ScheduleOptions,
    ScheduleSelection,
    SortedSchedules,
)
from langgraph_pgstate.schema.queries import Queries

_KIND: Final = "schedules"
_SHOWN_TICKS: Final = 5
_OF_A_TICK: Final = ("run_id", "run_after", "expected_head")
_OF_A_SCHEDULE: Final = ScheduleChanges.__annotations__.keys() - EnqueueOptions.__annotations__.keys()
_OF_THE_PLACE: Final = {"thread_id", "checkpoint_id"}
# The columns of `lock_schedule` between `queue` and `now`, in order.
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
    "owner_id",
)
# Options that are stored under another name.
_OPTION_OF: Final = {"answer_after": "default_answer"}
# The graph of encoded changes. A change does not replace the schedule's graph.
_ANY_GRAPH: Final = "-"
SORT_KEYS: Final = ("created_at", "updated_at", "next_at", "end_at", "name", "graph", "thread_id")


@dataclass(frozen=True, slots=True)
class ScheduleRequest:
    """A validated and encoded schedule.

    Attributes:
        row: The columns of the schedule, except columns with values of `run`.
        zone: Time zone of the schedule.
        run: A template of the schedule's runs. The ids are not used.
    """

    row: dict[str, Any]
    zone: ZoneInfo
    run: RunRequest


@dataclass(frozen=True, slots=True)
class ScheduleChange:
    """Validated and encoded changes of a schedule.

    Attributes:
        name: Name of the schedule.
        row: The changed columns of the schedule, except columns with values of `run`.
        run: A run with the new arguments and options.
        names: The changed arguments and options of runs.
        metadata: Metadata to merge into the metadata of the schedule's runs.
        scope: Metadata that the schedule must contain, as `request_scope` returns them.
    """

    name: str
    row: dict[str, Any]
    run: RunRequest
    names: frozenset[str]
    metadata: Mapping[str, Any]
    scope: list[str] | None


def options_of_runs(options: Mapping[str, Any]) -> Any:
    """Return the options of a schedule that apply to the runs."""
    return {name: value for name, value in options.items() if name not in _OF_A_SCHEDULE}


def request_schedule(name: str, run: RunRequest, options: ScheduleOptions, *, cron: str) -> ScheduleRequest:
    """Validate a schedule. `run` is the encoded run of a tick."""
    row = _columns({"timezone": "UTC", "missed": "skip", **options, "cron": cron})
    zone = zone_of(row["timezone"])
    if first_tick(cron, zone, datetime.now(UTC)) is None:
        raise ConfigurationError(f"cron must have a tick within 50 years, got {cron!r}")
    metadata = _readable(run.metadata, options.get("metadata"), options.get("scope"))
    none = {"is_paused": None, "end_at": None, "thread_ttl": None, "owner_id": None}
    given = {"name": name_of("name", name), "thread_id": thread_given(options), "metadata": json.dumps(metadata)}
    return ScheduleRequest({**none, **row, **given}, zone, run)


def request_changes(codec: ValueCodec, name: str, changes: ScheduleChanges) -> ScheduleChange:
    """Validate and encode changes of a schedule."""
    given: Any = dict(changes)
    row = _columns(given)
    run = request_run(codec, _ANY_GRAPH, given.get("input"), given.get("command"), **options_of_runs(given))
    if given.keys() & _OF_THE_PLACE:
        raise ConfigurationError("thread_id and checkpoint_id of a schedule cannot be changed. Create another schedule")
    names = frozenset(given) - _OF_A_SCHEDULE | {name for name in ("input", "command") if name in given}
    # A new input replaces a command, and a new command replaces an input.
    names |= {"input", "command"} if names & {"input", "command"} else set()
    scope = request_scope(given.get("scope"))
    return ScheduleChange(name_of("name", name), row, run, names, dict(given.get("metadata") or {}), scope)


def _columns(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the columns of the given options of a schedule, after a check of the options."""
    found: dict[str, Any] = {}
    if refused := [option for option in _OF_A_TICK if given.get(option) is not None]:
        raise ConfigurationError(f"{refused[0]} must not be given for a schedule, because each tick has its own run")
    if "missed" in given:
        if given["missed"] not in MISSED:
            raise ConfigurationError(f"missed must be {', '.join(map(repr, MISSED))}, not {given['missed']!r}")
        found["missed"] = given["missed"]
    if "timezone" in given:
        found["timezone"] = zone_of(given["timezone"]).key
    if "cron" in given:
        first_tick(given["cron"], zone_of("UTC"), datetime.now(UTC))
        found["cron"] = given["cron"]
    if "end_at" in given:
        found["end_at"] = stored_time_of("end_at", given["end_at"])
    if given.get("paused") is not None:
        found["is_paused"] = flag_of("paused", given["paused"])
    if "owner_id" in given:
        found["owner_id"] = text_of("owner_id", given["owner_id"])
    if "thread_ttl" in given:
        ttl = given["thread_ttl"]
        found["thread_ttl"] = None if ttl is None else check_ttl("thread_ttl", ttl)
    return found


def _readable(metadata: Any, given: Any, scope: Any) -> dict[str, Any]:
    """Return the metadata to store in clear text. If the serializer may encrypt, only keys of the scope are stored."""
    if metadata is None:
        names = {name for one in ([scope] if isinstance(scope, Mapping) else scope or ()) for name in one}
        metadata = {name: given[name] for name in names if name in (given or {})}
    # LangGraph strips NULs from the metadata of runs, which could turn a text into the name of another owner.
    refuse_nul("metadata", given or {})
    return dict(metadata)


async def put(db: Connection, queries: Queries, request: ScheduleRequest) -> Schedule:
    """Store a schedule, or replace the schedule of this name. Three round trips; safe to repeat."""
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
    """Change the named fields of a schedule. One transaction; safe to repeat."""
    where = f"schedule {change.name!r}"
    async with db.transaction():
        rows = await db.fetch(queries.lock_schedule, {"name": change.name, "scope": change.scope})
        if not rows:
            raise not_found(change.name)
        queue, *old, now = rows[0]
        stored = dict(zip(_CHANGEABLE, old, strict=True))
        run, names, row = change.run, change.names, {**stored, **change.row}
        data = merge_inputs(stored["data"], run.data, names - {"metadata"}, where)
        if change.metadata:
            metadata = {**(read_field(codec, data, "metadata", where) or {}), **change.metadata}
            data = change_input(codec, data, where, metadata=metadata)
        readable = _readable(run.metadata, change.metadata, [json.loads(one) for one in change.scope or ()])
        options = json.loads(stored["options"])
        newer = {"webhook": None, **run.options, "multitask_strategy": run.strategy}
        options |= {name: newer[name] for name in newer if _OPTION_OF.get(name, name) in names}
        if "config" in names:
            named = {name: run.owner[name] for name in ("user_id", "tenant_id")}
            options["owner"] = {**options.get("owner", {}), **named}
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
    """Return the schedule of a name, or `None`. One round trip."""
    found = await read(db, queries, list_schedules(name=name, limit=1))
    return found.items[0] if found.items else None


async def get_existing(db: Connection, queries: Queries, name: str) -> Schedule:
    """Return the schedule of a name, or raise `NotFoundError`. One round trip."""
    found = await get(db, queries, name)
    if found is None:
        raise not_found(name)
    return found


def list_schedules(
    *, name: str | None = None, graph: str | None = None, limit: int = 20, cursor: str | None = None
) -> Read[Page[Schedule]]:
    """Return a `Read` of a page of schedules, by name."""
    (after,) = decode_cursor(_KIND, cursor, ("",))
    parameters = {"name": text_of("name", name), "graph": text_of("graph", graph), "cursor_name": after}
    return read_page("list_schedules", parameters, limit, lambda *row: _shown(row), _KIND, lambda item: (item.name,))


def list_sorted(codec: ValueCodec, **filters: Unpack[SortedSchedules]) -> Read[tuple[Schedule, ...]]:
    """Return a `Read` of schedules from an offset, with the arguments of their runs."""
    check_filters(filters, SortedSchedules)
    parameters = {**_selection(filters), **sorting_of(filters, "schedules", SORT_KEYS)}

    def shown(*row: Any) -> Schedule:
        return replace(_shown(row[:-1]), arguments=_arguments(codec, row[0], row[-1]))

    found = read_all("sort_schedules", parameters, shown)
    return replace(found, weigh=lambda rows: sum(content_size(row[-1]) for row in rows))


def count(**filters: Unpack[ScheduleSelection]) -> Read[int]:
    """Return a `Read` of the number of schedules."""
    check_filters(filters, ScheduleSelection)
    return Read("count_selected_schedules", _selection(filters), number)


def _selection(filters: ScheduleSelection) -> dict[str, Any]:
    return {
        **texts_of(filters, "name", "graph", "thread_id"),
        "is_paused": filters.get("paused"),
        "metadata": json_of("metadata", filters.get("metadata") or None),
        **request_access(filters),
    }


def request_access(access: ScheduleAccess) -> dict[str, Any]:
    """Return query parameters for the schedules that a caller may see or delete."""
    return {
        **texts_of(access, "owner_id"),
        "scope": request_scope(access.get("scope")),
        "thread_scope": request_scope(access.get("thread_scope")),
    }


async def pause(db: Connection, queries: Queries, name: str, by: str | None = None) -> Schedule:
    """Pause a schedule. If `by` names a person and the schedule was not paused, an event is stored.

    One transaction; safe to repeat.
    """
    async with db.transaction():
        stored = await _lock(db, queries, name)
        if not stored["is_paused"]:
            await db.execute(queries.set_next_tick, {"name": name, "next_at": None, "is_paused": True})
            if by is not None:
                await note_action(db, queries, "pause", by, f"schedule:{name}")
        return await get_existing(db, queries, name)


async def resume(db: Connection, queries: Queries, name: str, by: str | None = None) -> Schedule:
    """Resume a paused schedule. If `by` names a person and the schedule was paused, an event is stored.

    One transaction; safe to repeat.
    """
    async with db.transaction():
        stored = await _lock(db, queries, name)
        if stored["is_paused"]:
            first = first_tick(stored["cron"], zone_of(stored["timezone"]), stored["now"], stored["end_at"])
            await db.execute(queries.set_next_tick, {"name": name, "next_at": first, "is_paused": False})
            if by is not None:
                await note_action(db, queries, "resume", by, f"schedule:{name}")
        return await get_existing(db, queries, name)


async def _lock(db: Connection, queries: Queries, name: str) -> dict[str, Any]:
    """Lock a schedule until the transaction ends. Return the columns by name, with the current time."""
    rows = await db.fetch(queries.lock_schedule, {"name": name, "scope": None})
    if not rows:
        raise not_found(name)
    return dict(zip(("queue", *_CHANGEABLE, "now"), rows[0], strict=True))


async def delete(db: Connection, queries: Queries, name: str, scope: list[str] | None = None) -> bool:
    """Delete a schedule, and return whether a schedule was deleted. One round trip; safe to repeat."""
    return await db.execute(queries.delete_schedule, {"name": name, "scope": scope}) > 0


def _shown(row: Row) -> Schedule:
    found = Schedule(*row)
    if found.next_at is None:
        return found
    try:
        ticks = next_ticks(found.cron, zone_of(found.timezone), found.next_at, _SHOWN_TICKS)
    except ConfigurationError:
        # This machine does not know the time zone, so show the schedule without next ticks.
        return found
    return replace(found, next_ticks=tuple(tick for tick in ticks if found.end_at is None or tick <= found.end_at))


def _arguments(codec: ValueCodec, name: str, data: bytes) -> Mapping[str, Any] | None:
    try:
        found = open_input(codec, data, f"schedule {name!r}")
    except PGStateError:
        # Unreadable arguments of one schedule must not hide other schedules.
        return None
    fields = {field: getattr(found, field) for field in RunInput.__dataclass_fields__}
    return {field: value for field, value in fields.items() if value is not None}


def not_found(name: str) -> NotFoundError:
    """Return the error for a schedule that does not exist."""
    return NotFoundError(f"there is no schedule {name!r}")
