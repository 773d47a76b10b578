"""Regular maintenance: partitions of spans and of events, and runs of dead processes."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from datetime import timedelta
from typing import TYPE_CHECKING, Final, NamedTuple

from langgraph_pgstate.db.protocol import Connection
from langgraph_pgstate.errors import ConfigurationError
from langgraph_pgstate.sql import Queries, drop_partition, partition

if TYPE_CHECKING:
    from langgraph_pgstate.types import MaintenanceReport

_LOCK_NOT_AVAILABLE = "55P03"
_DROP_TIMEOUT: Final = "500ms"
_PAGE = 500

RunningRun = tuple[str, str, str | None, bool]
"""A running run: thread id, run id, holder id, and whether the holder's liveness has expired."""


class Partitions(NamedTuple):
    """A table that is partitioned by time.

    Attributes:
        table: The table.
        column: The time.
        missing: Name of the query for periods without a partition: this one and the next ones.
        strayed: Name of the query for periods of rows in the default partition.
    """

    table: str
    column: str
    missing: str
    strayed: str


_SPANS: Final = Partitions("spans", "started_at", "find_missing_months", "find_strayed_months")
_STREAMS: Final = Partitions("stream_batches", "created_at", "find_missing_days", "find_strayed_days")


async def make_months(
    db: Connection, queries: Queries, ahead: int = 2, *, strayed: bool = False, lock_timeout: str | None = None
) -> list[str]:
    """Create the partitions of this month and the next ones. One transaction each; safe to repeat.

    Args:
        db: The connection.
        queries: The queries of the schema.
        ahead: Number of months after this one.
        strayed: Also create those of months whose spans are in the default partition.
        lock_timeout: Limit of waits for locks, by default none. After it the remaining partitions are left to the next
            call, and the default partition takes the spans.

    Returns:
        The created months, as `2026_01`.
    """
    return await _make(db, queries, _SPANS, ahead, strayed, lock_timeout)


async def make_days(
    db: Connection, queries: Queries, ahead: int = 2, *, strayed: bool = False, lock_timeout: str | None = None
) -> list[str]:
    """Create the partitions for events of this day and the next ones, as `make_months` does for spans.

    Returns:
        The created days, as `2026_01_31`.
    """
    return await _make(db, queries, _STREAMS, ahead, strayed, lock_timeout)


async def _make(
    db: Connection, queries: Queries, kind: Partitions, ahead: int, strayed: bool, lock_timeout: str | None
) -> list[str]:
    prefix = f'"{queries.schema}".{kind.table}_'
    periods = list(await db.fetch(queries.all[kind.missing], {"ahead": ahead, "prefix": prefix}))
    if strayed:
        periods += [row for row in await db.fetch(queries.all[kind.strayed], {}) if row not in periods]
    made = []
    for period, first, following in periods:
        try:
            if await _make_one(db, queries, kind, period, first, following, lock_timeout):
                made.append(period)
        except Exception as error:
            if getattr(error, "sqlstate", None) == _LOCK_NOT_AVAILABLE:
                break
            # A partition created concurrently may become visible only after it caused the conflict.
            if not await _has_partition(db, queries, kind.table, period):
                raise
    return made


async def _make_one(
    db: Connection,
    queries: Queries,
    kind: Partitions,
    period: str,
    first: str,
    following: str,
    lock_timeout: str | None,
) -> bool:
    async with db.transaction():
        before = (await db.fetch(queries.get_lock_timeout, {}))[0][0]
        if lock_timeout is not None:
            await db.fetch(queries.set_lock_timeout, {"timeout": lock_timeout})
        await db.fetch(queries.take_turns, {"key": f"langgraph_pgstate.setup.{queries.schema}"})
        is_missing = not await _has_partition(db, queries, kind.table, period)
        if is_missing:
            for statement in partition(queries.schema, kind.table, kind.column, period, first, following):
                await db.script(statement)
        if lock_timeout is not None:
            # In a caller's transaction the setting would stay.
            await db.fetch(queries.set_lock_timeout, {"timeout": before})
    return is_missing


async def _has_partition(db: Connection, queries: Queries, table: str, period: str) -> bool:
    name = f'"{queries.schema}".{table}_{period}'
    return bool((await db.fetch(queries.has_partition, {"partition": name}))[0][0])


async def drop_months(db: Connection, queries: Queries, older_than: int) -> list[str]:
    """Drop the partitions that are entirely older than some months before this one, with their spans.

    One transaction each; safe to repeat.

    Returns:
        The dropped months, as `2026_01`.

    Raises:
        ConfigurationError: If `older_than` is not positive.
    """
    if older_than < 1:
        raise ConfigurationError(f"spans must be kept for at least 1 month, not {older_than}")
    table = f'"{queries.schema}".spans'
    rows = await db.fetch(queries.list_old_months, {"table": table, "months": older_than})
    months = [row[0].removeprefix("spans_") for row in rows]
    for month in months:
        async with db.transaction():
            await db.script(drop_partition(queries.schema, "spans", month))
    return months


async def drop_days(db: Connection, queries: Queries, ttl: timedelta) -> list[str]:
    """Drop the events of days that ended at least `ttl` ago, but those of days with events of a run in the queue.

    One transaction each; safe to repeat. A day that another transaction is reading is left to the next call.

    Returns:
        The dropped days, as `2026_01_31`.

    Raises:
        ConfigurationError: If `ttl` is negative.
    """
    if ttl < timedelta(0):
        raise ConfigurationError(f"stream_ttl must not be negative, but is {ttl}")
    table = f'"{queries.schema}".stream_batches'
    rows = await db.fetch(queries.list_old_days, {"table": table, "seconds": repr(ttl.total_seconds())})
    dropped = []
    for (name,) in rows:
        day = name.removeprefix("stream_batches_")
        try:
            async with db.transaction():
                # Readers of all other days wait for this lock.
                await db.fetch(queries.set_lock_timeout, {"timeout": _DROP_TIMEOUT})
                await db.script(drop_partition(queries.schema, "stream_batches", day))
        except Exception as error:
            if getattr(error, "sqlstate", None) != _LOCK_NOT_AVAILABLE:
                raise
            break
        dropped.append(day)
    return dropped


async def find_running(db: Connection, queries: Queries, thread_ids: Sequence[str]) -> list[RunningRun]:
    """Return the running runs of some threads."""
    return [(*row,) for row in await db.fetch(queries.find_running, {"thread_ids": list(thread_ids)})]


async def list_running(db: Connection, queries: Queries, after: tuple[str, str] = ("", "")) -> list[RunningRun]:
    """Return a page of all running runs after a key; empty at the end."""
    parameters = {"cursor_thread_id": after[0], "cursor_run_id": after[1], "page_size": _PAGE}
    return [(*row,) for row in await db.fetch(queries.list_running, parameters)]


def choose_dead(running: Sequence[RunningRun], is_dead: Callable[[str], bool]) -> dict[str, list[RunningRun]]:
    """Return the runs whose process has died, by thread. Their last field is true if that is known for certain.

    Args:
        running: Running runs.
        is_dead: Returns whether a holder is known to be dead.
    """
    dead: dict[str, list[RunningRun]] = {}
    for thread_id, run_id, holder_id, has_expired in running:
        known = holder_id is not None and is_dead(holder_id)
        if has_expired or known:
            dead.setdefault(thread_id, []).append((thread_id, run_id, holder_id, known))
    return dead


async def settle_runs(db: Connection, queries: Queries, thread_id: str, dead: Sequence[RunningRun]) -> list[str]:
    """End the runs of dead processes and their spans as `error`, type `ProcessDied`. One transaction; safe to repeat.

    A run whose process has renewed its liveness meanwhile stays.

    Returns:
        The runs that were still running.
    """
    parameters = {
        "thread_id": thread_id,
        "run_ids": [run_id for _, run_id, _, _ in dead],
        "holder_ids": [holder_id or "" for _, _, holder_id, _ in dead],
        "known_dead": [run_id for _, run_id, _, known in dead if known],
    }
    # One transaction: an ended run is not found again, so nothing may be left to do.
    async with db.transaction():
        settled = [row[0] for row in await db.fetch(queries.settle_runs, parameters)]
        if settled:
            # The tokens and cost so far count, whether or not another attempt follows.
            await db.execute(queries.total_runs, {"thread_ids": [thread_id] * len(settled), "run_ids": settled})
            await db.execute(queries.refresh_thread_statuses, {"thread_ids": [thread_id]})
    return settled


async def note(db: Connection, queries: Queries, seconds: float, report: MaintenanceReport) -> None:
    """Store what maintenance did, and how large the tables are now. One statement."""
    parameters = {
        "seconds": seconds,
        "report": json.dumps(asdict(report)),
        "schema": f'"{queries.schema}"',
    }
    await db.execute(queries.note_maintenance, parameters)
