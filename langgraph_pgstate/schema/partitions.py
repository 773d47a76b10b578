"""Partitions of spans by month and of events of runs by day."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Final, NamedTuple

from langgraph_pgstate.db.protocol import Connection, Rows
from langgraph_pgstate.errors import ConfigurationError
from langgraph_pgstate.schema.queries import (
    Queries,
    drop_partition,
    lock_partition,
    open_default,
    open_holds,
    partition,
)
from langgraph_pgstate.schema.tenancy import has_walls, make_walls, tenant_queries

_LOCK_NOT_AVAILABLE = "55P03"
_DROP_TIMEOUT: Final = "500ms"
HOLDS_KEY: Final = "holds"
"""Key of the advisory lock that is taken to put a thread under a legal hold, or to drop the spans of a month."""
_log = logging.getLogger("langgraph_pgstate")

Digest = tuple[int, int]
"""Number of spans, and the sum of their hashes. Digests of several tenants can be added."""


class Partitions(NamedTuple):
    """A table that is partitioned by time.

    Attributes:
        table: The table.
        column: The column with the time.
        missing: The query that lists the present and next periods without a partition.
        strayed: The query that lists the periods of rows in the default partition.
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
    """Create the partitions of this month and the next months. One transaction each; safe to repeat.

    Args:
        db: The connection.
        queries: The queries of the schema.
        ahead: Number of months after this one.
        strayed: Whether to also create partitions of months whose spans are in the default partition.
        lock_timeout: Maximum wait for a lock, by default unlimited. After a timeout, the default partition stores the
            spans until another call.

    Returns:
        The created months, as `2026_01`.
    """
    return await _make(db, queries, _SPANS, ahead, strayed, lock_timeout)


async def make_days(
    db: Connection, queries: Queries, ahead: int = 2, *, strayed: bool = False, lock_timeout: str | None = None
) -> list[str]:
    """Create the partitions for events of this day and the next days, as `make_months` does for spans.

    Returns:
        The created days, as `2026_01_31`.
    """
    return await _make(db, queries, _STREAMS, ahead, strayed, lock_timeout)


async def _make(
    db: Connection, queries: Queries, kind: Partitions, ahead: int, strayed: bool, lock_timeout: str | None
) -> list[str]:
    prefix = f'"{queries.schema}".{kind.table}_'
    periods = list(await db.fetch(getattr(queries, kind.missing), {"ahead": ahead, "prefix": prefix}))
    if strayed:
        periods += [row for row in await _find_strayed(db, queries, kind) if row not in periods]
    made = []
    for period, first, following in periods:
        try:
            if await _make_one(db, queries, kind, period, first, following, lock_timeout):
                made.append(period)
        except Exception as error:
            if getattr(error, "sqlstate", None) == _LOCK_NOT_AVAILABLE:
                break
            # Another session may have created the partition. This session may see it only after the conflict.
            if await find_partition(db, queries, kind.table, period) is None:
                raise
    return made


async def _find_strayed(db: Connection, queries: Queries, kind: Partitions) -> Rows:
    """Return the periods of all tenants' rows in the default partition."""
    if not await has_walls(db, queries):
        return await db.fetch(getattr(queries, kind.strayed), {})
    default = {"partition": f'"{queries.schema}".{kind.table}_default'}
    if not (await db.fetch(tenant_queries(queries.schema).has_strayed_rows, default))[0][0]:
        return []
    async with db.transaction():
        await db.script(open_default(queries.schema, kind.table))
        found = await db.fetch(getattr(queries, kind.strayed), {})
        await make_walls(db, queries)
    return found


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
        is_missing = await find_partition(db, queries, kind.table, period) is None
        if is_missing:
            is_walled = await has_walls(db, queries)
            if is_walled:
                await db.script(open_default(queries.schema, kind.table))
            for statement in partition(queries.schema, kind.table, kind.column, period, first, following):
                await db.script(statement)
            if is_walled:
                await make_walls(db, queries)
        if lock_timeout is not None:
            # Otherwise the setting would stay for the rest of a caller's transaction.
            await db.fetch(queries.set_lock_timeout, {"timeout": before})
    return is_missing


async def find_partition(db: Connection, queries: Queries, table: str, period: str) -> int | None:
    """Return the number (oid) of a partition, or `None` if it does not exist. One round trip."""
    name = f'"{queries.schema}".{table}_{period}'
    found: int | None = (await db.fetch(queries.find_partition, {"partition": name}))[0][0]
    return found


async def list_old_months(db: Connection, queries: Queries, older_than: int) -> list[str]:
    """Return the months whose spans may be dropped, as `2026_01`.

    The `older_than` months before this one are kept. A month with spans of a thread that is under a legal hold is left
    out, with a warning.
    """
    if older_than < 1:
        raise ConfigurationError(f"the number of months of kept spans must be 1 or more, got {older_than}")
    table = f'"{queries.schema}".spans'
    rows = await db.fetch(queries.list_old_months, {"table": table, "months": older_than})
    months = [name.removeprefix("spans_") for (name,) in rows]
    return [month for month in months if not await _is_held(db, queries, month)]


async def digest_month(db: Connection, queries: Queries, month: str) -> Digest:
    """Return a digest of a month's spans, or of the spans of `db.tenant` if it is set. One round trip."""
    ((count, total),) = await db.fetch(queries.digest_spans_of_month, {"month": month})
    return count, int(total)


async def drop_months(
    db: Connection, queries: Queries, months: Sequence[str], expected: Mapping[str, Digest] | None = None
) -> list[str]:
    """Drop the spans of some months. One transaction each; safe to repeat.

    A month with spans of a thread that is under a legal hold, of any tenant, is kept, with a warning.

    Args:
        db: The connection.
        queries: The queries of the schema.
        months: The months, as `2026_01`.
        expected: Result of `digest_month` by month. A month with other spans is kept, with a warning.

    Returns:
        The dropped months, except those that another call has dropped.
    """
    dropped = []
    is_walled = bool(months) and await has_walls(db, queries)
    for month in months:
        async with db.transaction():
            # With this lock, a new hold waits until the spans of this month are dropped.
            await db.fetch(queries.lock_action, {"key": HOLDS_KEY})
            if await find_partition(db, queries, "spans", month) is None:
                continue
            if is_walled:
                await db.script(open_holds(queries.schema))
            is_kept = await _is_held(db, queries, month, of_all_tenants=is_walled)
            if expected is not None and not is_kept:
                await db.script(lock_partition(queries.schema, "spans", month))
                if is_kept := await digest_month(db, queries, month) != expected[month]:
                    _log.warning("the spans of %s are kept: some were stored or changed after the export", month)
            if not is_kept:
                await db.script(drop_partition(queries.schema, "spans", month))
                dropped.append(month)
            if is_walled:
                await make_walls(db, queries)
    return dropped


async def _is_held(db: Connection, queries: Queries, month: str, *, of_all_tenants: bool = False) -> bool:
    walled = tenant_queries(queries.schema).has_held_spans_of_tenants
    query = walled if of_all_tenants else queries.has_held_spans
    is_held: bool = (await db.fetch(query, {"month": month}))[0][0]
    if is_held:
        _log.warning("the spans of %s are kept: one of their threads is under a legal hold", month)
    return is_held


async def list_old_days(db: Connection, queries: Queries, ttl: timedelta) -> list[str]:
    """Return days that ended at least `ttl` ago, as `2026_01_31`, without days with events of a run in the queue."""
    if ttl < timedelta(0):
        raise ConfigurationError(f"stream_ttl must not be negative, got {ttl}")
    table = f'"{queries.schema}".stream_batches'
    rows = await db.fetch(queries.list_old_days, {"table": table, "seconds": repr(ttl.total_seconds())})
    return [name.removeprefix("stream_batches_") for (name,) in rows]


async def drop_days(db: Connection, queries: Queries, days: Sequence[str]) -> list[str]:
    """Drop the events of some days, and return the dropped days. One transaction each; safe to repeat.

    A day that another transaction is reading is left to the next call.
    """
    dropped = []
    for day in days:
        try:
            async with db.transaction():
                # Wait only shortly for the lock, because readers of all days wait behind this statement.
                await db.fetch(queries.set_lock_timeout, {"timeout": _DROP_TIMEOUT})
                await db.script(drop_partition(queries.schema, "stream_batches", day))
        except Exception as error:
            if getattr(error, "sqlstate", None) != _LOCK_NOT_AVAILABLE:
                raise
            break
        dropped.append(day)
    return dropped
