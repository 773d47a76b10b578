"""Regular maintenance: partitions of spans, and runs of dead processes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from langgraph_pgstate.db.protocol import Connection
from langgraph_pgstate.errors import ConfigurationError
from langgraph_pgstate.sql import Queries, drop_partition, spans_partition

_LOCK_NOT_AVAILABLE = "55P03"
_PAGE = 500

RunningRun = tuple[str, str, str | None, bool]
"""A running run: thread id, run id, holder id, and whether the holder's liveness has expired."""


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
    prefix = f'"{queries.schema}".spans_'
    months = list(await db.fetch(queries.find_missing_months, {"months": ahead, "prefix": prefix}))
    if strayed:
        months += [row for row in await db.fetch(queries.find_strayed_months, {}) if row not in months]
    made = []
    for month, first, following in months:
        try:
            if await _make_month(db, queries, month, first, following, lock_timeout):
                made.append(month)
        except Exception as error:
            if getattr(error, "sqlstate", None) == _LOCK_NOT_AVAILABLE:
                break
            # A partition created concurrently may become visible only after it caused the conflict.
            if not await _has_month(db, queries, month):
                raise
    return made


async def _make_month(
    db: Connection, queries: Queries, month: str, first: str, following: str, lock_timeout: str | None
) -> bool:
    async with db.transaction():
        before = (await db.fetch(queries.get_lock_timeout, {}))[0][0]
        if lock_timeout is not None:
            await db.fetch(queries.set_lock_timeout, {"timeout": lock_timeout})
        await db.fetch(queries.take_turns, {"key": f"langgraph_pgstate.setup.{queries.schema}"})
        is_missing = not await _has_month(db, queries, month)
        if is_missing:
            await db.script(spans_partition(queries.schema, month, first, following))
        if lock_timeout is not None:
            # In a caller's transaction the setting would stay.
            await db.fetch(queries.set_lock_timeout, {"timeout": before})
    return is_missing


async def _has_month(db: Connection, queries: Queries, month: str) -> bool:
    partition = f'"{queries.schema}".spans_{month}'
    return bool((await db.fetch(queries.has_partition, {"partition": partition}))[0][0])


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
            await db.script(drop_partition(queries.schema, month))
    return months


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
            await db.execute(queries.refresh_statuses, {"thread_ids": [thread_id]})
    return settled
