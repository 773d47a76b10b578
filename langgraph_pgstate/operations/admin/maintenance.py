"""What has to be done now and then: partitions for the coming months, old ones away, runs of dead processes ended."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from langgraph_pgstate.db.protocol import Connection
from langgraph_pgstate.errors import ConfigurationError
from langgraph_pgstate.sql import Queries, drop_partition, spans_partition

_LOCK_NOT_AVAILABLE = "55P03"
_PAGE = 500

RunningRun = tuple[str, str, str | None, bool]
"""A running run: its thread, its id, its holder, and whether the time has passed until when that was to be alive."""


async def make_months(
    db: Connection, queries: Queries, ahead: int = 2, *, strayed: bool = False, lock_timeout: str | None = None
) -> list[str]:
    """Make the partitions of this month and the coming ones. Each is one transaction; safe to repeat.

    Args:
        db: The connection.
        queries: The queries of the schema.
        ahead: Months beyond this one.
        strayed: Also those of months whose spans are in the default partition.
        lock_timeout: How long to wait for other sessions; when it is over the rest is left to the next time, and the
            default partition takes the spans. For ever if left out.

    Returns:
        The months made, as `2026_01`.
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
            # What another session made meanwhile may be seen only after it got in the way.
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
            # In a caller's transaction it would stay.
            await db.fetch(queries.set_lock_timeout, {"timeout": before})
    return is_missing


async def _has_month(db: Connection, queries: Queries, month: str) -> bool:
    partition = f'"{queries.schema}".spans_{month}'
    return bool((await db.fetch(queries.has_partition, {"partition": partition}))[0][0])


async def drop_months(db: Connection, queries: Queries, older_than: int) -> list[str]:
    """Remove the partitions that are wholly older than some months before this one, with their spans.

    Each is one transaction; safe to repeat.

    Returns:
        The months dropped, as `2026_01`.

    Raises:
        ConfigurationError: If `older_than` is not positive.
    """
    if older_than < 1:
        raise ConfigurationError(f"spans of at least 1 month are kept, not {older_than}")
    table = f'"{queries.schema}".spans'
    rows = await db.fetch(queries.list_old_months, {"table": table, "months": older_than})
    months = [row[0].removeprefix("spans_") for row in rows]
    for month in months:
        async with db.transaction():
            await db.script(drop_partition(queries.schema, month))
    return months


async def find_running(db: Connection, queries: Queries, thread_ids: Sequence[str]) -> list[RunningRun]:
    """The running runs of some threads."""
    return [(*row,) for row in await db.fetch(queries.find_running, {"thread_ids": list(thread_ids)})]


async def list_running(db: Connection, queries: Queries, after: tuple[str, str] = ("", "")) -> list[RunningRun]:
    """A page of all running runs, beyond a key; empty at the end."""
    parameters = {"cursor_thread_id": after[0], "cursor_run_id": after[1], "page_size": _PAGE}
    return [(*row,) for row in await db.fetch(queries.list_running, parameters)]


def choose_dead(running: Sequence[RunningRun], is_dead: Callable[[str], bool]) -> dict[str, list[RunningRun]]:
    """Those of some running runs whose process has died, by thread; the last field says that it is known to be dead.

    Args:
        running: Running runs.
        is_dead: Whether a holder is known to be dead.
    """
    dead: dict[str, list[RunningRun]] = {}
    for thread_id, run_id, holder_id, has_expired in running:
        known = holder_id is not None and is_dead(holder_id)
        if has_expired or known:
            dead.setdefault(thread_id, []).append((thread_id, run_id, holder_id, known))
    return dead


async def settle_runs(db: Connection, queries: Queries, thread_id: str, dead: Sequence[RunningRun]) -> list[str]:
    """End the runs of dead processes and their spans as `error`, type `ProcessDied`. One transaction; safe to repeat.

    A run whose process has said meanwhile that it is alive stays.

    Returns:
        The runs that were still running.
    """
    parameters = {
        "thread_id": thread_id,
        "run_ids": [run_id for _, run_id, _, _ in dead],
        "holder_ids": [holder_id or "" for _, _, holder_id, _ in dead],
        "known_dead": [run_id for _, run_id, _, known in dead if known],
    }
    # Once they have ended nobody comes back for the rest.
    async with db.transaction():
        settled = [row[0] for row in await db.fetch(queries.settle_runs, parameters)]
        if settled:
            # What was spent until then counts, whether or not another attempt follows.
            await db.execute(queries.total_runs, {"thread_ids": [thread_id] * len(settled), "run_ids": settled})
            await db.execute(queries.refresh_statuses, {"thread_ids": [thread_id]})
    return settled
