"""Threads: lists, searches, titles, metadata and runaway threads."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from langgraph_pgstate.operations.checkpoints.addresses import thread_id_of
from langgraph_pgstate.operations.record import runs as runs_operations
from langgraph_pgstate.operations.threads import search as search_operations
from langgraph_pgstate.operations.threads.paging import Moment, understanding
from langgraph_pgstate.threads.branches import AsyncBranches, Branches
from langgraph_pgstate.threads.expiry import AsyncExpiry, Expiry
from langgraph_pgstate.threads.interrupts import AsyncInterrupts, Interrupts
from langgraph_pgstate.types import Page, RunawayThread, Thread


class Threads(Interrupts, Branches, Expiry):
    """Access to threads, their branches and interrupts, and their expiry.

    Lists are paged, most recently updated first; pass `page.next` as `cursor` for the next page. A thread that is
    updated between two pages moves to the front, so a later page does not show it.

    Args:
        database: The database.
        queries: The queries of its schema.
        codec: Reads states and interrupts, and stores answers; by default with LangGraph's own serializer.
        versions: Upcasts states before they are compared; by default they are compared as stored.
    """

    def list(
        self,
        *,
        user_id: str | None = None,
        tenant_id: str | None = None,
        agent: str | None = None,
        status: str | None = None,
        created_after: datetime | None = None,
        created_before: datetime | None = None,
        updated_after: datetime | None = None,
        updated_before: datetime | None = None,
        limit: int = 20,
        cursor: str | None = None,
    ) -> Page[Thread]:
        """Return a page of threads. One round trip; indexes serve the filters by user, tenant and status.

        Args:
            user_id: Only threads of this user.
            tenant_id: Only threads of this tenant.
            agent: Only threads of this agent.
            status: Only threads of this status: `idle`, `busy`, `interrupted` or `error`.
            created_after: Only threads created at this time or later; times need a time zone.
            created_before: Only threads created before this time.
            updated_after: Only threads updated at this time or later.
            updated_before: Only threads last updated before this time.
            limit: Page size, 1,000 at most.
            cursor: `next` of the previous page.

        Raises:
            ConfigurationError: If an argument is invalid.
        """
        filter = search_operations.request_threads(
            user_id=user_id,
            tenant_id=tenant_id,
            agent=agent,
            status=status,
            created_after=created_after,
            created_before=created_before,
            updated_after=updated_after,
            updated_before=updated_before,
            limit=limit,
            cursor=cursor,
        )
        return self._database.run(search_operations.list_threads, self._queries, filter)

    def search(
        self,
        *,
        metadata: Mapping[str, Any] | None = None,
        state: Mapping[str, Any] | None = None,
        where: str | None = None,
        user_id: str | None = None,
        tenant_id: str | None = None,
        agent: str | None = None,
        status: str | None = None,
        created_after: datetime | None = None,
        created_before: datetime | None = None,
        updated_after: datetime | None = None,
        updated_before: datetime | None = None,
        limit: int = 20,
        cursor: str | None = None,
    ) -> Page[Thread]:
        """Return a page of threads by their metadata or state. One round trip.

        An index serves `metadata`, `state`, and the equalities in `where`. A `where` with only range conditions reads
        every projection. The filters of `list` apply as well.

        Args:
            metadata: Only threads whose metadata contain this, as by jsonb's `@>`.
            state: Only threads whose projected channels contain this, like `{"booking": {"hotel": "Astoria"}}`.
            where: A condition on the projected channels, as a JSON path of PostgreSQL:
                `$.booking.check_in >= "2027-03-01" && $.booking.check_in < "2027-04-01"`.
            user_id: Only threads of this user.
            tenant_id: Only threads of this tenant.
            agent: Only threads of this agent.
            status: Only threads of this status.
            created_after: Only threads created at this time or later.
            created_before: Only threads created before this time.
            updated_after: Only threads updated at this time or later.
            updated_before: Only threads last updated before this time.
            limit: Page size, 1,000 at most.
            cursor: `next` of the previous page.

        Raises:
            ConfigurationError: If an argument is invalid, or `where` is not a JSON path.
        """
        filter = search_operations.request_threads(
            user_id=user_id,
            tenant_id=tenant_id,
            agent=agent,
            status=status,
            created_after=created_after,
            created_before=created_before,
            updated_after=updated_after,
            updated_before=updated_before,
            limit=limit,
            cursor=cursor,
            metadata=metadata,
            state=state,
            where=where,
        )
        with understanding("where", where):
            return self._database.run(search_operations.list_threads, self._queries, filter)

    def get(self, thread_id: str) -> Thread | None:
        """Return one thread with its head and its projected channels, or `None`. One round trip."""
        return self._database.run(search_operations.get_thread, self._queries, thread_id_of(thread_id))

    def update_metadata(
        self, thread_id: str, metadata: Mapping[str, Any], *, expected_version: int | None = None
    ) -> Thread:
        """Merge keys into a thread's metadata; other keys are kept. Atomic; repeating it changes nothing.

        Args:
            thread_id: The thread.
            metadata: The keys to merge. Each replaces the whole value of that key.
            expected_version: The version that the change is based on; any other version is refused.

        Returns:
            The changed thread.

        Raises:
            NotFoundError: If there is no such thread.
            StaleVersionError: If the version is another one. Nothing was written.
            ConfigurationError: If the metadata cannot be represented as JSON. Nothing was written.
        """
        change = search_operations.request_change(metadata, expected_version)
        return self._database.run(search_operations.change_thread, self._queries, thread_id_of(thread_id), change)

    def set_title(self, thread_id: str, title: str | None, *, expected_version: int | None = None) -> Thread:
        """Set or remove a thread's title. Otherwise like `update_metadata`."""
        change = search_operations.request_change({}, expected_version, title)
        return self._database.run(search_operations.change_thread, self._queries, thread_id_of(thread_id), change)

    def runaway(
        self,
        steps: int = runs_operations.LEAST_STEPS,
        *,
        since: Moment | None = None,
        limit: int = 20,
        cursor: str | None = None,
    ) -> Page[RunawayThread]:
        """Return a page of threads with runs of more than `steps` supersteps, the longest first. One round trip.

        Args:
            steps: The highest acceptable number of supersteps; 25 at least.
            since: Only runs that started at this time or later; a timedelta counts back from now.
            limit: Page size, 1,000 at most.
            cursor: `next` of the previous page.

        Raises:
            ConfigurationError: If `steps` is less than 25, or another argument is invalid.
        """
        parameters = runs_operations.request_runaways(steps, since, limit, cursor)
        return self._database.run(runs_operations.list_runaway_threads, self._queries, parameters)


class AsyncThreads(AsyncInterrupts, AsyncBranches, AsyncExpiry):
    """Async twin of `Threads`."""

    async def list(
        self,
        *,
        user_id: str | None = None,
        tenant_id: str | None = None,
        agent: str | None = None,
        status: str | None = None,
        created_after: datetime | None = None,
        created_before: datetime | None = None,
        updated_after: datetime | None = None,
        updated_before: datetime | None = None,
        limit: int = 20,
        cursor: str | None = None,
    ) -> Page[Thread]:
        """Async twin of `Threads.list`."""
        filter = search_operations.request_threads(
            user_id=user_id,
            tenant_id=tenant_id,
            agent=agent,
            status=status,
            created_after=created_after,
            created_before=created_before,
            updated_after=updated_after,
            updated_before=updated_before,
            limit=limit,
            cursor=cursor,
        )
        return await self._database.run(search_operations.list_threads, self._queries, filter)

    async def search(
        self,
        *,
        metadata: Mapping[str, Any] | None = None,
        state: Mapping[str, Any] | None = None,
        where: str | None = None,
        user_id: str | None = None,
        tenant_id: str | None = None,
        agent: str | None = None,
        status: str | None = None,
        created_after: datetime | None = None,
        created_before: datetime | None = None,
        updated_after: datetime | None = None,
        updated_before: datetime | None = None,
        limit: int = 20,
        cursor: str | None = None,
    ) -> Page[Thread]:
        """Async twin of `Threads.search`."""
        filter = search_operations.request_threads(
            user_id=user_id,
            tenant_id=tenant_id,
            agent=agent,
            status=status,
            created_after=created_after,
            created_before=created_before,
            updated_after=updated_after,
            updated_before=updated_before,
            limit=limit,
            cursor=cursor,
            metadata=metadata,
            state=state,
            where=where,
        )
        with understanding("where", where):
            return await self._database.run(search_operations.list_threads, self._queries, filter)

    async def get(self, thread_id: str) -> Thread | None:
        """Async twin of `Threads.get`."""
        return await self._database.run(search_operations.get_thread, self._queries, thread_id_of(thread_id))

    async def update_metadata(
        self, thread_id: str, metadata: Mapping[str, Any], *, expected_version: int | None = None
    ) -> Thread:
        """Async twin of `Threads.update_metadata`."""
        change = search_operations.request_change(metadata, expected_version)
        return await self._database.run(search_operations.change_thread, self._queries, thread_id_of(thread_id), change)

    async def set_title(self, thread_id: str, title: str | None, *, expected_version: int | None = None) -> Thread:
        """Async twin of `Threads.set_title`."""
        change = search_operations.request_change({}, expected_version, title)
        return await self._database.run(search_operations.change_thread, self._queries, thread_id_of(thread_id), change)

    async def runaway(
        self,
        steps: int = runs_operations.LEAST_STEPS,
        *,
        since: Moment | None = None,
        limit: int = 20,
        cursor: str | None = None,
    ) -> Page[RunawayThread]:
        """Async twin of `Threads.runaway`."""
        parameters = runs_operations.request_runaways(steps, since, limit, cursor)
        return await self._database.run(runs_operations.list_runaway_threads, self._queries, parameters)
