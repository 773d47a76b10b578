"""How long a thread is kept: until it expires and a sweep deletes it; and its id after that."""

from __future__ import annotations

from datetime import datetime, timedelta

from langgraph_pgstate.operations.checkpoints.addresses import thread_id_of
from langgraph_pgstate.operations.leases import guards
from langgraph_pgstate.operations.threads import expiry as expiries
from langgraph_pgstate.threads.common import AsyncThreadsBase, ThreadsBase
from langgraph_pgstate.types import PruneResult


class Expiry(ThreadsBase):
    """When threads expire, the sweep that deletes them, and ids that may be used again."""

    def set_ttl(self, thread_id: str, ttl: timedelta | None) -> datetime | None:
        """Keep a thread for so long from now, and from each time it is touched; `None`: for ever. One statement.

        It takes the place of what `expire` said, and of the state's `thread_ttl`. Answers when that is, as of now.

        Raises:
            NotFoundError: If there is no such thread.
            ConfigurationError: If `ttl` is no positive timedelta.
        """
        expiry = expiries.request_ttl(ttl)
        return self._database.run(expiries.set_expiry, self._queries, thread_id_of(thread_id), expiry)

    def expire(self, thread_id: str, *, at: datetime | None = None, after: timedelta | None = None) -> datetime | None:
        """Have a thread expire then, whatever happens to it. One statement; safe to repeat.

        It takes the place of what `set_ttl` said; `set_ttl(thread_id, None)` takes it back. A copy or a fork made from
        then on expires with it; earlier ones don't. Answers when.

        Args:
            thread_id: The thread.
            at: Then; with a time zone.
            after: So long from now.

        Raises:
            NotFoundError: If there is no such thread.
            ConfigurationError: If both or neither are given, or one is not usable. Nothing was written.
        """
        expiry = expiries.request_expiry(at, after)
        return self._database.run(expiries.set_expiry, self._queries, thread_id_of(thread_id), expiry)

    def sweep(self, *, limit: int | None = None, dry_run: bool = False) -> PruneResult:
        """Delete threads that have expired, longest ago first, with all that was recorded of them.

        Each is a transaction; any number of processes may sweep at once. What is in use stays until a later sweep: what
        was touched in the last half minute, is run by a living process, or leased; not what waits for people. No
        tombstone is left: the id may be used again at once.

        Args:
            limit: At most so many threads; all if left out.
            dry_run: Change nothing, only count.

        Returns:
            What went, or would go.

        Raises:
            ConfigurationError: If `limit` is not positive.
        """
        return self._database.run(expiries.sweep, self._queries, limit, dry_run=dry_run)

    def revive(self, thread_id: str) -> bool:
        """Let a deleted thread's id be used again, for a thread that starts afresh. Atomic; safe to repeat.

        Returns:
            Whether it had left a tombstone.
        """
        return self._database.run(guards.revive_thread, self._queries, thread_id_of(thread_id))


class AsyncExpiry(AsyncThreadsBase):
    """Async twin of `Expiry`."""

    async def set_ttl(self, thread_id: str, ttl: timedelta | None) -> datetime | None:
        """Async twin of `Threads.set_ttl`."""
        expiry = expiries.request_ttl(ttl)
        return await self._database.run(expiries.set_expiry, self._queries, thread_id_of(thread_id), expiry)

    async def expire(
        self, thread_id: str, *, at: datetime | None = None, after: timedelta | None = None
    ) -> datetime | None:
        """Async twin of `Threads.expire`."""
        expiry = expiries.request_expiry(at, after)
        return await self._database.run(expiries.set_expiry, self._queries, thread_id_of(thread_id), expiry)

    async def sweep(self, *, limit: int | None = None, dry_run: bool = False) -> PruneResult:
        """Async twin of `Threads.sweep`."""
        return await self._database.run(expiries.sweep, self._queries, limit, dry_run=dry_run)

    async def revive(self, thread_id: str) -> bool:
        """Async twin of `Threads.revive`."""
        return await self._database.run(guards.revive_thread, self._queries, thread_id_of(thread_id))
