"""Legal holds: threads whose rows must not be deleted until the hold ends.

Holds and deletions lock the thread's row. A deletion checks for holds after it has locked the row, so a hold never
begins during a deletion.
"""

from __future__ import annotations

import logging
from datetime import datetime
from typing import Final

from langgraph_pgstate.arguments import identifier, is_line, thread_id_of
from langgraph_pgstate.db.protocol import Connection, Read
from langgraph_pgstate.errors import ConfigurationError, NotFoundError, ThreadArchivedError, ThreadHeldError
from langgraph_pgstate.paging import Page, decode_cursor, read_page
from langgraph_pgstate.record.events import note_action
from langgraph_pgstate.schema.partitions import HOLDS_KEY
from langgraph_pgstate.schema.queries import Queries
from langgraph_pgstate.threads.types import Hold

_LONGEST_REASON: Final = 200
_KIND: Final = "holds"
_log = logging.getLogger("langgraph_pgstate")


def reason_of(reason: str) -> str:
    """Return a validated reason."""
    text = identifier("reason", reason).strip()
    if len(text) > _LONGEST_REASON or not is_line(text):
        raise ConfigurationError(
            f"a reason must have 1 to {_LONGEST_REASON} printable characters on one line, not {reason!r}"
        )
    return text


async def hold(db: Connection, queries: Queries, thread_id: str, reason: str, by: str) -> Hold:
    """Hold a thread, and return the new or existing hold with the reason. One transaction; safe to repeat.

    Raises:
        NotFoundError: If there is no such thread, or the thread is being deleted from its archive.
    """
    key = {"thread_id": thread_id, "reason": reason}
    async with db.transaction():
        # A deletion of a month of spans locks no rows of threads. Such a deletion waits for this lock instead.
        await db.fetch(queries.lock_action, {"key": HOLDS_KEY})
        if not await db.fetch(queries.lock_thread_for_update, {"thread_id": thread_id}):
            raise NotFoundError(f"there is no thread {thread_id!r}")
        if await db.fetch(queries.find_stub_without_archive, {"thread_id": thread_id}):
            raise NotFoundError(
                f"thread {thread_id!r} is being deleted from its archive: repeat the deletion, or first restore it"
            )
        if await db.execute(queries.put_hold, {**key, "held_by": by}):
            await note_action(db, queries, "hold", by, thread_id, details={"reason": reason})
        holds = await holds_of(db, queries, thread_id)
    return next(one for one in holds if one.reason == reason)


async def release(
    db: Connection, queries: Queries, thread_id: str, reason: str, by: str, since: datetime | None = None
) -> bool:
    """End a hold, and return whether there was one. One transaction; safe to repeat."""
    async with db.transaction():
        key = {"thread_id": thread_id, "reason": reason, "since": since}
        ended = await db.execute(queries.delete_hold, key) > 0
        if ended:
            # Policies of retention have skipped the held thread, and must visit it again.
            await db.execute(queries.visit_again, {})
            await note_action(db, queries, "release", by, thread_id, details={"reason": reason})
    return ended


def list_holds(thread_id: str | None, limit: int, cursor: str | None) -> Read[Page[Hold]]:
    """Return a `Read` of a page of holds, of one thread or of all, by thread."""
    cursor_thread, cursor_reason = decode_cursor(_KIND, cursor, ("", ""))
    parameters = {
        "thread_id": None if thread_id is None else thread_id_of(thread_id),
        "cursor_thread": cursor_thread,
        "cursor_reason": cursor_reason,
    }
    return read_page("list_holds", parameters, limit, Hold, _KIND, lambda one: (one.thread_id, one.reason))


async def holds_of(db: Connection, queries: Queries, thread_id: str) -> tuple[Hold, ...]:
    """Return the holds of a thread, oldest first. Call this in a transaction that has locked the thread's row."""
    return tuple(Hold(*row) for row in await db.fetch(queries.list_holds_of, {"thread_id": thread_id}))


async def refuse_held(db: Connection, queries: Queries, thread_id: str) -> None:
    """Check that rows of a thread may be deleted. Call this first in the transaction that deletes them.

    Raises:
        ThreadHeldError: If a hold protects the thread.
        ThreadArchivedError: If the thread's rows are in an archive.
    """
    await keep_source(db, queries, thread_id)
    await check_not_held(db, queries, thread_id)


async def check_not_held(db: Connection, queries: Queries, thread_id: str) -> None:
    """Check that no hold protects a thread, which may be archived. One statement.

    Raises:
        ThreadHeldError: If a hold protects the thread.
    """
    if holds := await holds_of(db, queries, thread_id):
        raise ThreadHeldError(thread_id, holds[0].held_by, holds[0].reason, holds[0].created_at)


async def keep_source(db: Connection, queries: Queries, thread_id: str) -> None:
    """Block the deletion and the erasure of a thread until the transaction ends.

    Raises:
        ThreadArchivedError: If the thread's rows are in an archive.
    """
    rows = await db.fetch(queries.keep_labels, {"thread_id": thread_id})
    if rows and rows[0][2] is not None:
        raise ThreadArchivedError(*rows[0])


async def is_kept(db: Connection, queries: Queries, thread_id: str, what: str) -> bool:
    """Return whether a hold protects a thread. Log the hold with `what`, such as "not pruned".

    Call this in a transaction that has locked the thread's row.
    """
    holds = await holds_of(db, queries, thread_id)
    if holds:
        _log.warning("%s: thread %r is held by %s (%s)", what, thread_id, holds[0].held_by, holds[0].reason)
    return bool(holds)
