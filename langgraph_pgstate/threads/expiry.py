"""Expiry of threads: setting it, extending it on access, and sweeping expired threads.

A time to live (`ttl`) counts from the last access of a thread: a put updates `expires_at` every few seconds. A sweep
deletes or prunes expired threads. A pruned thread expires again after its next access. A sweep has no credentials for
archives, so it leaves threads with copies in archives. Retention deletes first the copies, and then the thread.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from langgraph_pgstate.arguments import stored_time_of
from langgraph_pgstate.checkpoints.planning import PutPlan
from langgraph_pgstate.codec.ids import new_entry_id
from langgraph_pgstate.db.protocol import Connection
from langgraph_pgstate.db.translate import is_of_one_row
from langgraph_pgstate.errors import ConfigurationError, NotFoundError
from langgraph_pgstate.leases.guards import refuse_archived
from langgraph_pgstate.options import TtlStrategy, check_ttl, check_ttl_strategy
from langgraph_pgstate.record import journal
from langgraph_pgstate.schema.queries import Queries, Statement
from langgraph_pgstate.threads.prune import prune_thread, request_prune
from langgraph_pgstate.threads.rows import delete_thread
from langgraph_pgstate.threads.types import PruneResult

# A thread that was accessed within this time is in use. Rows of threads and runs are updated some seconds late.
_QUIET_SECONDS: Final = 30.0
_PAGE: Final = 200
_MOST_HELD: Final = 1000
_LONG_AGO: Final = datetime(1, 1, 1, tzinfo=UTC)
# Duration of the lease that a sweep takes to delete a thread. The transaction also deletes the lease.
_LEASE_SECONDS: Final = 60.0

_log = logging.getLogger("langgraph_pgstate.threads")


class ExpiryHook:
    """A hook that sets the time to live of new threads with their first checkpoint."""

    def __init__(self, queries: Queries, ttl: timedelta, strategy: str = "delete") -> None:
        self._queries = queries
        self._ttl = check_ttl("thread_ttl", ttl)
        self._strategy = check_ttl_strategy("thread_ttl_strategy", strategy)

    def before_put(self, plan: PutPlan, config: Mapping[str, Any]) -> Sequence[Statement]:
        """Return a statement for a thread's first checkpoint, and none for other checkpoints."""
        request = plan.request
        if request.parent is not None or request.address.checkpoint_ns:
            return ()
        address = request.address
        key = {"thread_id": address.thread_id, "checkpoint_id": address.checkpoint_id}
        return [(self._queries.begin_ttl, {**key, "ttl": self._ttl, "strategy": self._strategy})]

    def after_put(self, plan: PutPlan) -> None:
        """Do nothing."""


@dataclass(frozen=True, slots=True)
class Expiry:
    """The validated time at which a thread expires. Without a time, the thread never expires.

    Attributes:
        ttl: Time after the last access.
        at: Fixed time.
        after: Time from now.
        strategy: What happens at expiry: `delete` or `keep_latest`.
    """

    ttl: timedelta | None = None
    at: datetime | None = None
    after: timedelta | None = None
    strategy: TtlStrategy = "delete"


def request_ttl(ttl: timedelta | None, strategy: str = "delete") -> Expiry:
    """Validate a time to live."""
    found = check_ttl_strategy("strategy", strategy)
    return Expiry(None if ttl is None else check_ttl("ttl", ttl), strategy=found)


def request_expiry(at: datetime | None, after: timedelta | None) -> Expiry:
    """Validate a fixed time."""
    if (at is None) == (after is None):
        raise ConfigurationError("either at (a datetime) or after (a timedelta from now) must be given")
    if after is not None and (not isinstance(after, timedelta) or after < timedelta(0)):
        raise ConfigurationError(f"after must be a timedelta of 0 or more, not {after!r}")
    return Expiry(at=stored_time_of("at", at), after=after and check_ttl("after", after))


async def set_expiry(db: Connection, queries: Queries, thread_id: str, expiry: Expiry) -> datetime | None:
    """Set the expiry of a thread, and return the time at which it expires. One statement; safe to repeat.

    Raises:
        NotFoundError: If there is no such thread.
        ThreadArchivedError: If the thread is archived.
    """
    parameters = {"thread_id": thread_id, **asdict(expiry)}
    rows = await db.fetch(queries.set_expiry, parameters)
    if not rows:
        await refuse_archived(db, queries, thread_id)
        raise NotFoundError(f"there is no thread {thread_id!r}")
    found: datetime | None = rows[0][0]
    return found


async def sweep(db: Connection, queries: Queries, limit: int | None = None, *, dry_run: bool = False) -> PruneResult:
    """Delete or prune expired threads, the earliest expired first.

    One transaction for each thread; safe to repeat and to run concurrently. A thread that cannot be deleted or pruned
    is logged, and left out. Threads in use, and threads with copies in archives, stay. After a lost connection, the
    result counts only later removals.
    """
    deleted, pruned = await sweep_each(db, queries, limit, dry_run=dry_run)
    return deleted + pruned


async def sweep_each(
    db: Connection,
    queries: Queries,
    limit: int | None = None,
    *,
    dry_run: bool = False,
    is_copied: bool | None = False,
) -> tuple[PruneResult, PruneResult]:
    """Sweep as `sweep` does, and return two results: of the deleted threads, and of the pruned threads.

    With `is_copied=None`, a dry run also counts threads with copies in archives.
    """
    if limit is not None and (type(limit) is not int or limit < 1):
        raise ConfigurationError(f"limit must be at least 1 thread, not {limit!r}")
    deleted = pruned = PruneResult(dry_run=dry_run)
    at, thread_id, left = _LONG_AGO, "", limit
    while left is None or left > 0:
        size = _PAGE if left is None else min(_PAGE, left)
        page = await _list_expired(db, queries, at, thread_id, size, is_copied)
        if dry_run and page:
            deleted += await _count(db, queries, [id for _, id, strategy in page if strategy == "delete"])
        failed = 0
        for _, id, strategy in page:
            try:
                if strategy != "delete" and dry_run:
                    pruned += await _prune(db, queries, id, dry_run=True)
                elif strategy != "delete":
                    pruned += await end_expired(db, queries, id)
                elif not dry_run:
                    deleted += await end_expired(db, queries, id)
            except Exception as error:
                if not is_of_one_row(error):
                    raise
                failed += 1
                _log.error("thread %r has expired and cannot be deleted or pruned: %s", id, error)
        left = None if left is None else left - len(page) + failed
        if len(page) < size:
            break
        at, thread_id, _ = page[-1]
    return deleted, pruned


async def list_held(db: Connection, queries: Queries) -> list[str]:
    """Return the first thousand expired threads that a hold protects. One round trip."""
    return [row[0] for row in await db.fetch(queries.list_held_expired, {"page_size": _MOST_HELD})]


async def list_copied(
    db: Connection, queries: Queries, after: tuple[datetime, str] | None, size: int
) -> list[tuple[datetime, str]]:
    """Return the expiry and id of a page of expired threads that have copies in archives. One round trip."""
    page = await _list_expired(db, queries, *(after or (_LONG_AGO, "")), size, True)
    return [(at, thread_id) for at, thread_id, _ in page]


async def end_expired(
    db: Connection, queries: Queries, thread_id: str, policy: tuple[str, timedelta] | None = None
) -> PruneResult:
    """Delete or prune a thread if it has expired and is not in use.

    One transaction; safe to repeat and to run concurrently. With a policy of retention (name and time), the thread is
    deleted if the policy selects the thread and the thread was idle for this time. Other sweeps skip the locked row. A
    caller that waits for the lease starts a new thread afterwards.

    Returns:
        The removed rows; none if the thread was kept.
    """
    # Move journal entries first, because the start of a run may be only there.
    await journal.write(db, queries, [thread_id])
    key = {"thread_id": thread_id}
    taking = {**key, "holder_id": f"sweep-{new_entry_id()}", "ttl": _LEASE_SECONDS, "free_tokens": []}
    async with db.transaction():
        if policy is None:
            held = await db.fetch(queries.hold_expired, {**key, "quiet": _QUIET_SECONDS})
        else:
            held = await db.fetch(queries.hold_idle, {**key, "name": policy[0], "after": policy[1]})
        if not held:
            return PruneResult()
        ((strategy, is_leased),) = held
        if strategy != "delete":
            if is_leased:
                return PruneResult()
            result = await _prune(db, queries, thread_id)
            await db.execute(queries.end_expiry, key)
            return result
        if not any(row[0] for row in await db.fetch(queries.take_lease, taking)):
            return PruneResult()
        return await delete_thread(db, queries, thread_id)


async def _prune(db: Connection, queries: Queries, thread_id: str, *, dry_run: bool = False) -> PruneResult:
    request = request_prune([thread_id], "keep_latest", 1, None, dry_run)
    return replace(await prune_thread(db, queries, request, thread_id), threads=1)


async def _list_expired(
    db: Connection, queries: Queries, at: datetime, thread_id: str, size: int, is_copied: bool | None
) -> list[tuple[datetime, str, str]]:
    cursor = {"cursor_at": at, "cursor_id": thread_id}
    parameters = {**cursor, "quiet": _QUIET_SECONDS, "is_copied": is_copied, "page_size": size}
    return [(row[0], row[1], row[2]) for row in await db.fetch(queries.list_expired, parameters)]


async def _count(db: Connection, queries: Queries, thread_ids: Sequence[str]) -> PruneResult:
    threads, checkpoints, writes, segments, size = (
        await db.fetch(queries.count_thread, {"thread_ids": list(thread_ids)})
    )[0]
    return PruneResult(threads, checkpoints, writes, segments, size, dry_run=True)
