"""Threads: whose they are, what they are about, which were active last, which run away."""

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
    """Finds threads, changes their title and metadata, knows their branches, and keeps their interrupts.

    Lists are answered in pages, most recently touched first; `page.next` is the following page's `cursor`. A thread
    that is touched between two pages moves to the front, and may be missed by who is already past it.

    Args:
        database: Where the tables are.
        queries: The queries of their schema.
        codec: Reads states and interrupts, and stores answers; LangGraph's own serializer when left out.
        versions: Bring states that are compared up to date; without them they are compared as they are stored.
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
        """A page of threads. One round trip; with a user, a tenant or a status an index finds them.

        Args:
            user_id: Only this user's.
            tenant_id: Only this tenant's.
            agent: Only this agent's.
            status: Only `idle`, `busy`, `interrupted` or `error` ones.
            created_after: Only those that began then or later; times need a time zone.
            created_before: Only those that began earlier.
            updated_after: Only those touched then or later.
            updated_before: Only those touched last before.
            limit: Threads of a page, 1,000 at most.
            cursor: Where the page begins.

        Raises:
            ConfigurationError: If an argument cannot be searched for.
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
        """A page of threads that hold something. One round trip.

        An index finds what metadata or state contain, and equalities in `where`; of `where` with nothing but ranges
        every projection is read. The filters of `list` apply as well.

        Args:
            metadata: What a thread's metadata contain, as jsonb's `@>` has it.
            state: What its projected channels contain, like `{"booking": {"hotel": "Astoria"}}`.
            where: A condition on its projected channels, a JSON path of PostgreSQL:
                `$.booking.check_in >= "2027-03-01" && $.booking.check_in < "2027-04-01"`.
            user_id: As for `list`, like all that follow.
            tenant_id: Only this tenant's.
            agent: Only this agent's.
            status: Only those of this status.
            created_after: Only those that began then or later.
            created_before: Only those that began earlier.
            updated_after: Only those touched then or later.
            updated_before: Only those touched last before.
            limit: Threads of a page, 1,000 at most.
            cursor: Where the page begins.

        Raises:
            ConfigurationError: If an argument cannot be searched for, or `where` is no JSON path.
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
        """One thread with its newest checkpoint and its projected channels; `None` if there is none. One round trip."""
        return self._database.run(search_operations.get_thread, self._queries, thread_id_of(thread_id))

    def update_metadata(
        self, thread_id: str, metadata: Mapping[str, Any], *, expected_version: int | None = None
    ) -> Thread:
        """Merge into a thread's metadata; keys that are not named stay. Atomic; repeating it changes nothing.

        Args:
            thread_id: The thread.
            metadata: What to merge: each key replaces the one of its name, whole.
            expected_version: The version that this rests on; another one is refused.

        Returns:
            The thread as it is then.

        Raises:
            NotFoundError: If there is no such thread.
            StaleVersionError: If somebody else has changed it since. Nothing was written.
            ConfigurationError: If JSON cannot say what to merge. Nothing was written.
        """
        change = search_operations.request_change(metadata, expected_version)
        return self._database.run(search_operations.change_thread, self._queries, thread_id_of(thread_id), change)

    def set_title(self, thread_id: str, title: str | None, *, expected_version: int | None = None) -> Thread:
        """Set or take away what people call a thread. Like `update_metadata` in all else."""
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
        """A page of threads with runs of more than `steps` supersteps, the longest first. One round trip.

        Args:
            steps: How many are still all right; 25 at least.
            since: Only runs that began then or later, or so long ago at most.
            limit: Threads of a page, 1,000 at most.
            cursor: Where the page begins.

        Raises:
            ConfigurationError: If `steps` is less than 25, or another argument cannot be searched for.
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
