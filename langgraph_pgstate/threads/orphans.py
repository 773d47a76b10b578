"""Pending writes whose checkpoint was never stored, because the process was killed between the two.

Writes may be stored before their checkpoint, so a missing one proves nothing. Such writes are removed when they are a
day old by the database's clock, and no live run or lease of their thread may still store the checkpoint.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Final

from langgraph_pgstate.checkpoints.reading import is_old_format
from langgraph_pgstate.codec.states import decode_state
from langgraph_pgstate.db.protocol import Connection
from langgraph_pgstate.errors import CorruptStateError
from langgraph_pgstate.record import journal
from langgraph_pgstate.schema.queries import Queries

# A put is retried for minutes; a suspended machine continues hours later.
_ORPHAN_AGE: Final = timedelta(days=1)
_THREAD_PAGE: Final = 200


async def sweep_thread(
    db: Connection, queries: Queries, thread_id: str, older_than: timedelta | None = None, *, dry_run: bool = False
) -> tuple[int, int]:
    """Remove the orphaned writes of one thread, in one statement. Safe to repeat, and while runs append.

    Writes with pending sends of a child stay: a checkpoint of a format before 4 has them among its parent's writes.

    Args:
        db: The connection.
        queries: The queries of the schema.
        thread_id: The thread.
        older_than: Minimum age, if that is more than a day.
        dry_run: Only count.

    Returns:
        Number and bytes of the removed rows.
    """
    parameters: dict[str, Any] = {"thread_id": thread_id, "older_than": max(_ORPHAN_AGE, older_than or _ORPHAN_AGE)}
    children = await db.fetch(queries.get_children_of_orphans, parameters)
    parameters["kept_ids"] = [parent_id for parent_id, *state in children if _may_be_old(thread_id, *state[:2])]
    query = queries.count_orphan_writes if dry_run else queries.sweep_orphan_writes
    rows, size = (await db.fetch(query, parameters))[0]
    return rows, size


async def sweep(db: Connection, queries: Queries) -> int:
    """Remove the orphaned writes of all threads. Page by page, one statement per thread; safe to repeat.

    Returns:
        The number of removed rows.
    """
    gone, cursor = 0, ""
    while True:
        page: dict[str, Any] = {"cursor_id": cursor, "page_size": _THREAD_PAGE, "older_than": _ORPHAN_AGE}
        found = await db.fetch(queries.find_orphan_writes, page)
        for thread_id, has_orphans in found:
            cursor = thread_id
            if has_orphans:
                # The liveness of a run may be in the journal only.
                await journal.write(db, queries, [thread_id])
                gone += (await sweep_thread(db, queries, thread_id))[0]
        if len(found) < _THREAD_PAGE:
            return gone


def _may_be_old(thread_id: str, data: bytes, segment_ids: Sequence[int]) -> bool:
    try:
        return is_old_format(decode_state(data, segment_ids, f"thread {thread_id!r}"))
    except CorruptStateError:
        return True
