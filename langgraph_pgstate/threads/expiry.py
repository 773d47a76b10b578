"""Expiry of threads, and reuse of the ids of deleted ones."""

from __future__ import annotations

from datetime import datetime, timedelta

from langgraph_pgstate.db.runners import blocking
from langgraph_pgstate.operations.checkpoints.requests import thread_id_of
from langgraph_pgstate.operations.leases import guards
from langgraph_pgstate.operations.threads import expiry as expiries
from langgraph_pgstate.settings import TtlStrategy
from langgraph_pgstate.threads.common import AsyncThreadsBase, ThreadsBase
from langgraph_pgstate.types import PruneResult


class AsyncExpiry(AsyncThreadsBase):
    """Methods that set when threads expire, and that delete expired ones; part of `state.threads`."""

    async def set_ttl(
        self, thread_id: str, ttl: timedelta | None, *, strategy: TtlStrategy = "delete"
    ) -> datetime | None:
        """Set a thread's time to live, counted from now and again from each access; `None` for no expiry. One
        statement.

        Replaces the time set by `expire` and the default `thread_ttl`.

        Args:
            thread_id: The thread.
            ttl: The time.
            strategy: What happens then: `delete`, or `keep_latest`, which prunes all but its newest checkpoints, as
                `prune` does.

        Returns:
            The time at which the thread expires unless it is accessed.

        Raises:
            NotFoundError: If there is no such thread.
            ConfigurationError: If `ttl` is not a positive timedelta, or there is no such strategy.
        """
        expiry = expiries.request_ttl(ttl, strategy)
        return await self._database.run(expiries.set_expiry, self._queries, thread_id_of(thread_id), expiry)

    async def expire(
        self, thread_id: str, *, at: datetime | None = None, after: timedelta | None = None
    ) -> datetime | None:
        """Set a fixed time at which a thread expires, regardless of access. One statement; safe to repeat.

        Replaces the time to live set by `set_ttl`; `set_ttl(thread_id, None)` removes it. Later copies and forks of the
        thread expire with it, earlier ones do not.

        Args:
            thread_id: The thread.
            at: The time, with a time zone.
            after: The time from now.

        Returns:
            The time at which the thread expires.

        Raises:
            NotFoundError: If there is no such thread.
            ConfigurationError: If both or neither are given, or the value is invalid. Nothing was written.
        """
        expiry = expiries.request_expiry(at, after)
        return await self._database.run(expiries.set_expiry, self._queries, thread_id_of(thread_id), expiry)

    async def sweep(self, *, limit: int | None = None, dry_run: bool = False) -> PruneResult:
        """Delete expired threads and their record, or prune those with `keep_latest`, the earliest expired first.

        Each thread is one transaction; several processes may sweep at once. A thread in use stays until a later sweep.
        It is in use if it was accessed in the last half minute, is run by a live process, or is leased. A pending
        interrupt is not use. No tombstone is left, so the id can be used again at once.

        Args:
            limit: Maximum number of threads, besides those that cannot be swept; by default all.
            dry_run: Only count.

        Returns:
            The number of removed rows, and of threads: of those pruned also if nothing was to be removed.

        Raises:
            ConfigurationError: If `limit` is not positive.
        """
        return await self._database.run(expiries.sweep, self._queries, limit, dry_run=dry_run)

    async def revive(self, thread_id: str) -> bool:
        """Allow a deleted thread's id to be used for a new thread. Atomic; safe to repeat.

        Returns:
            Whether there was a tombstone.
        """
        return await self._database.run(guards.revive_thread, self._queries, thread_id_of(thread_id))


class Expiry(ThreadsBase):
    """Blocking twin of `AsyncExpiry`."""

    set_ttl = blocking(AsyncExpiry.set_ttl)
    expire = blocking(AsyncExpiry.expire)
    sweep = blocking(AsyncExpiry.sweep)
    revive = blocking(AsyncExpiry.revive)
