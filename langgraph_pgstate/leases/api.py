"""The API that holds the lease of a thread during a block of code, and lists leases."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import datetime
from typing import Final

from langgraph_pgstate.arguments import thread_id_of
from langgraph_pgstate.db.database import AsyncDatabase, Database
from langgraph_pgstate.db.protocol import Read
from langgraph_pgstate.db.runners import BlockingRunner, blocking
from langgraph_pgstate.leases.manager import AsyncLeaseManager, LeaseManager
from langgraph_pgstate.leases.types import Lease
from langgraph_pgstate.paging import FIRST, Page, decode_cursor, read_page
from langgraph_pgstate.schema.queries import Queries

_KIND: Final = "leases"


def list_leases(limit: int, cursor: str | None) -> Read[Page[Lease]]:
    """Return a `Read` of a page of live leases, the earliest to expire first."""
    at, thread_id = decode_cursor(_KIND, cursor, (FIRST, ""))
    return read_page("list_leases", {"cursor_at": at, "cursor_id": thread_id}, limit, Lease, _KIND, _position)


def _position(lease: Lease) -> tuple[datetime, str]:
    return lease.expires_at, lease.thread_id


class AsyncLeases:
    """Methods that hold and list the leases of threads; `state.leases`.

    `manager` must be the saver's, so that runs with the saver write under the held leases.
    """

    def __init__(self, database: AsyncDatabase, queries: Queries, manager: AsyncLeaseManager) -> None:
        self._database = database
        self._queries = queries
        self._manager = manager

    @asynccontextmanager
    async def hold(
        self, thread_id: str, *, on_busy: str | None = None, wait_timeout: float | None = None
    ) -> AsyncIterator[Lease]:
        """Hold a thread's lease during a `with` block. Runs and writes in the block use this lease.

        The lease is renewed in the background and released at the end. If the saver has `guard="lease"`, no other
        process or run can write to the thread meanwhile. Without this guard, only callers that also request the lease
        are excluded. A nested block on the same thread shares the lease.

        Args:
            thread_id: The thread.
            on_busy: What to do if the lease is held: `raise` or `wait`; by default the saver's setting.
            wait_timeout: Maximum seconds to wait; by default the saver's setting.

        Raises:
            LeaseHeldError: If another process or run holds the lease.
            LeaseLostError: At the end of the block, if the lease was taken over, for example because the process was
                paused.
            ThreadDeletedError: If the thread was deleted.
        """
        async with self._manager.hold(thread_id_of(thread_id), on_busy, wait_timeout) as held:
            yield held.lease

    async def list(self, *, limit: int = 100, cursor: str | None = None) -> Page[Lease]:
        """Return a page of the live leases, the earliest to expire first. One round trip.

        A lease renewed between two pages can appear on both.

        Args:
            limit: Page size, 1,000 at most.
            cursor: `next` of the previous page.

        Raises:
            ConfigurationError: If an argument is invalid.
        """
        return await self._database.read(self._queries, list_leases(limit, cursor))


class Leases:
    """Blocking twin of `AsyncLeases`."""

    def __init__(self, database: Database, queries: Queries, manager: LeaseManager) -> None:
        self._database = BlockingRunner(database)
        self._queries = queries
        self._manager = manager

    @contextmanager
    def hold(self, thread_id: str, *, on_busy: str | None = None, wait_timeout: float | None = None) -> Iterator[Lease]:
        """Blocking twin of `AsyncLeases.hold`."""
        with self._manager.hold(thread_id_of(thread_id), on_busy, wait_timeout) as held:
            yield held.lease

    list = blocking(AsyncLeases.list)
