"""Leases: the right to advance a thread, held by a block of code; and who holds which."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

from langgraph_pgstate.db.database import AsyncDatabase, Database
from langgraph_pgstate.leases.manager import AsyncLeaseManager, LeaseManager
from langgraph_pgstate.operations.checkpoints.addresses import thread_id_of
from langgraph_pgstate.operations.leases import leases as operations
from langgraph_pgstate.sql import Queries
from langgraph_pgstate.types import Lease, Page


class Leases:
    """Takes leases and lists them.

    Args:
        database: Where the tables are.
        queries: The queries of their schema.
        manager: Who renews them; the saver's, so that its runs write under what is held here.
    """

    def __init__(self, database: Database, queries: Queries, manager: LeaseManager) -> None:
        self._database = database
        self._queries = queries
        self._manager = manager

    @contextmanager
    def hold(self, thread_id: str, *, on_busy: str | None = None, wait_timeout: float | None = None) -> Iterator[Lease]:
        """Hold a thread's lease in a `with` block: what it starts and writes there belongs to it.

        The lease is renewed in the background and given back at the end. Where the saver has `guard="lease"` nobody
        else writes to the thread meanwhile; without it only those are kept out who ask for the lease, too. A block
        within another one, on the same thread, shares its lease.

        Args:
            thread_id: The thread.
            on_busy: `raise` or `wait`, when somebody else holds it; as the saver was told if left out.
            wait_timeout: Seconds to wait.

        Raises:
            LeaseHeldError: If somebody else holds it.
            LeaseLostError: At the end of the block, if it was taken over in the meantime, as from a paused process.
            ThreadDeletedError: If the thread was deleted.
        """
        with self._manager.hold(thread_id_of(thread_id), on_busy, wait_timeout) as held:
            yield held.lease

    def list(self, *, limit: int = 100, cursor: str | None = None) -> Page[Lease]:
        """A page of the living leases, those that expire first at first. One round trip.

        One that is renewed between two pages may be met again.

        Args:
            limit: Leases of a page, 1,000 at most.
            cursor: Where the page begins: `next` of the one before.

        Raises:
            ConfigurationError: If an argument cannot be searched for.
        """
        return self._database.run(operations.list_leases, self._queries, operations.request_leases(limit, cursor))


class AsyncLeases:
    """Async twin of `Leases`."""

    def __init__(self, database: AsyncDatabase, queries: Queries, manager: AsyncLeaseManager) -> None:
        self._database = database
        self._queries = queries
        self._manager = manager

    @asynccontextmanager
    async def hold(
        self, thread_id: str, *, on_busy: str | None = None, wait_timeout: float | None = None
    ) -> AsyncIterator[Lease]:
        """Async twin of `Leases.hold`."""
        async with self._manager.hold(thread_id_of(thread_id), on_busy, wait_timeout) as held:
            yield held.lease

    async def list(self, *, limit: int = 100, cursor: str | None = None) -> Page[Lease]:
        """Async twin of `Leases.list`."""
        return await self._database.run(operations.list_leases, self._queries, operations.request_leases(limit, cursor))
