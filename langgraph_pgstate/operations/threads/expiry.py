"""How long threads are kept: set, counted anew with what happens to them, and swept when it is over.

A time to live (`ttl`) runs from the last time a thread was touched: the put that touches the thread's row, every few
seconds while it lives, moves `expires_at` along. A fixed time does not move. A sweep deletes what has expired as
`delete_thread` does, thread by thread, each in a transaction of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from langgraph_pgstate.codec.ids import new_entry_id
from langgraph_pgstate.db.protocol import Connection
from langgraph_pgstate.errors import ConfigurationError, NotFoundError
from langgraph_pgstate.operations.checkpoints.planning import PutPlan
from langgraph_pgstate.operations.record import journal
from langgraph_pgstate.operations.record.put_hook import Statement
from langgraph_pgstate.operations.threads.paging import time_of
from langgraph_pgstate.operations.threads.threads import delete_thread
from langgraph_pgstate.settings import check_ttl
from langgraph_pgstate.sql import Queries
from langgraph_pgstate.types import PruneResult

# What was touched so recently is in use, whatever was said: its row is touched every few seconds only, and a run's is
# written a moment after it has begun.
_QUIET_SECONDS: Final = 30.0
_PAGE: Final = 200
_LONG_AGO: Final = datetime(1, 1, 1, tzinfo=UTC)
# As long as a sweep's transaction may take; the lease goes with it.
_LEASE_SECONDS: Final = 60.0


class ExpiryHook:
    """A hook that gives new threads their time to live, with their first checkpoint.

    Args:
        queries: The queries of the schema.
        ttl: How long a thread is kept after it was touched last.

    Raises:
        ConfigurationError: If that is no positive time.
    """

    def __init__(self, queries: Queries, ttl: timedelta) -> None:
        self._queries = queries
        self._ttl = check_ttl("thread_ttl", ttl)

    def before_put(self, plan: PutPlan, config: Mapping[str, Any]) -> Sequence[Statement]:
        """A statement for a thread's first checkpoint, none for any other."""
        request = plan.request
        if request.parent is not None or request.address.checkpoint_ns:
            return ()
        address = request.address
        key = {"thread_id": address.thread_id, "checkpoint_id": address.checkpoint_id}
        return [(self._queries.begin_ttl, {**key, "ttl": self._ttl})]

    def after_put(self, plan: PutPlan) -> None:
        """Nothing more."""


@dataclass(frozen=True, slots=True)
class Expiry:
    """When a thread is to expire, checked: at most one of the three.

    Attributes:
        ttl: So long after it was touched last.
        at: Then.
        after: So long from now.
    """

    ttl: timedelta | None = None
    at: datetime | None = None
    after: timedelta | None = None


def request_ttl(ttl: timedelta | None) -> Expiry:
    """Check a time to live.

    Raises:
        ConfigurationError: If it is no positive timedelta.
    """
    return Expiry(None if ttl is None else check_ttl("ttl", ttl))


def request_expiry(at: datetime | None, after: timedelta | None) -> Expiry:
    """Check a fixed time.

    Raises:
        ConfigurationError: If both or neither are given, or one is not usable.
    """
    if (at is None) == (after is None):
        raise ConfigurationError("say when the thread expires: at=, a time, or after=, a timedelta from now")
    if after is not None and (not isinstance(after, timedelta) or after < timedelta(0)):
        raise ConfigurationError(f"after must be a timedelta that is not negative, not {after!r}")
    return Expiry(at=time_of("at", at), after=after and check_ttl("after", after))


async def set_expiry(db: Connection, queries: Queries, thread_id: str, expiry: Expiry) -> datetime | None:
    """Say when a thread expires; never, if nothing is said. One statement; safe to repeat.

    Returns:
        When.

    Raises:
        NotFoundError: If there is no such thread.
    """
    parameters = {"thread_id": thread_id, "ttl": expiry.ttl, "at": expiry.at, "after": expiry.after}
    rows = await db.fetch(queries.set_expiry, parameters)
    if not rows:
        raise NotFoundError(f"there is no thread {thread_id!r}")
    found: datetime | None = rows[0][0]
    return found


async def sweep(db: Connection, queries: Queries, limit: int | None = None, *, dry_run: bool = False) -> PruneResult:
    """Delete threads whose time has passed, longest ago first. Each is one transaction; safe to repeat, and at once.

    What is in use stays until a later sweep: what was touched half a minute ago, what a living process runs, and what
    somebody holds the lease of.

    Args:
        db: The connection.
        queries: The queries of the schema.
        limit: At most so many threads; all if left out.
        dry_run: Only count.

    Returns:
        What went, or would go; after a lost connection, what went since.

    Raises:
        ConfigurationError: If `limit` is not positive.
    """
    if limit is not None and (type(limit) is not int or limit < 1):
        raise ConfigurationError(f"limit must be at least 1 thread, not {limit!r}")
    result = PruneResult(dry_run=dry_run)
    at, thread_id, left = _LONG_AGO, "", limit
    while left is None or left > 0:
        size = _PAGE if left is None else min(_PAGE, left)
        page = await _list_expired(db, queries, at, thread_id, size)
        if dry_run and page:
            result += await _count(db, queries, [id for _, id in page])
        for _, id in page if not dry_run else ():
            result += await delete_expired(db, queries, id)
        left = None if left is None else left - len(page)
        if len(page) < size:
            break
        at, thread_id = page[-1]
    return result


async def delete_expired(db: Connection, queries: Queries, thread_id: str) -> PruneResult:
    """Delete a thread, if its time has passed and it is not in use. One transaction; safe to repeat, and at once.

    Its row and its lease are held meanwhile: another sweeper passes, who comes for the lease waits and begins afresh.
    No tombstone is left: whoever the thread was kept for may come back.

    Returns:
        What went; nothing, if it was left.
    """
    # A run that has begun may be there only.
    await journal.write(db, queries, [thread_id])
    key = {"thread_id": thread_id}
    taking = {**key, "holder_id": f"sweep-{new_entry_id()}", "ttl": _LEASE_SECONDS, "free_tokens": []}
    async with db.transaction():
        if not await db.fetch(queries.hold_expired, {**key, "quiet": _QUIET_SECONDS}):
            return PruneResult()
        if not any(row[0] for row in await db.fetch(queries.take_lease, taking)):
            return PruneResult()
        return await delete_thread(db, queries, thread_id)


async def _list_expired(
    db: Connection, queries: Queries, at: datetime, thread_id: str, size: int
) -> list[tuple[datetime, str]]:
    parameters = {"cursor_at": at, "cursor_id": thread_id, "quiet": _QUIET_SECONDS, "page_size": size}
    return [(row[0], row[1]) for row in await db.fetch(queries.list_expired, parameters)]


async def _count(db: Connection, queries: Queries, thread_ids: Sequence[str]) -> PruneResult:
    threads, checkpoints, writes, segments, size = (
        await db.fetch(queries.count_thread, {"thread_ids": list(thread_ids)})
    )[0]
    return PruneResult(threads, checkpoints, writes, segments, size, dry_run=True)
