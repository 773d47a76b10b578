"""Threads: lists, searches, titles, metadata and runaway threads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Unpack
from uuid import UUID

from langgraph_pgstate.db.runners import blocking
from langgraph_pgstate.filters import (
    Moment,
    SortedThreads,
    ThreadFilter,
    ThreadSelection,
    ThreadTextSearch,
    check_filters,
)
from langgraph_pgstate.operations.arguments import request_scope, understanding
from langgraph_pgstate.operations.checkpoints.requests import thread_id_of
from langgraph_pgstate.operations.record import runs as runs_operations
from langgraph_pgstate.operations.threads import creating
from langgraph_pgstate.operations.threads import search as search_operations
from langgraph_pgstate.scopes import Scope
from langgraph_pgstate.settings import ThreadOptions
from langgraph_pgstate.threads.branches import AsyncBranches, Branches
from langgraph_pgstate.threads.expiry import AsyncExpiry, Expiry
from langgraph_pgstate.threads.interrupts import AsyncInterrupts, Interrupts
from langgraph_pgstate.types import Page, RunawayThread, Thread


class AsyncThreads(AsyncInterrupts, AsyncBranches, AsyncExpiry):
    """Access to threads, their branches and interrupts, and their expiry.

    Lists are paged, most recently updated first; pass `page.next` as `cursor` for the next page. A thread that is
    updated between two pages moves to the front, so a later page does not show it.

    Args:
        database: The database.
        queries: The queries of its schema.
        codec: Reads states and interrupts, and stores answers; by default with LangGraph's own serializer.
        versions: Upcasts states before they are compared; by default they are compared as stored.
    """

    async def list(self, **filters: Unpack[ThreadFilter]) -> Page[Thread]:
        """Return a page of threads. One round trip; indexes serve the filters by user, tenant and status.

        Args:
            **filters: See `ThreadFilter`.

        Raises:
            ConfigurationError: If an argument is invalid.
        """
        check_filters(filters, ThreadFilter)
        request = search_operations.request_threads(**filters)
        return await self._database.run(search_operations.list_threads, self._queries, request)

    async def search(self, **filters: Unpack[ThreadTextSearch]) -> Page[Thread]:
        """Return a page of threads by their metadata, state or messages. One round trip.

        An index serves `metadata`, `state`, `text`, `scope`, and the equalities in `where`. A `where` with only range
        conditions reads every projection. The filters of `list` apply as well.

        Args:
            **filters: See `ThreadTextSearch`.

        Raises:
            ConfigurationError: If an argument is invalid, or `where` is not a JSON path.
        """
        request = search_operations.request_threads(**filters)
        with understanding("where", filters.get("where")):
            return await self._database.run(search_operations.list_threads, self._queries, request)

    async def sorted(self, **filters: Unpack[SortedThreads]) -> tuple[Thread, ...]:
        """Return threads in the order of a column, from an offset. One round trip.

        Indexes serve the default order, most recently updated first, and the filters by ids and metadata; other orders
        sort all threads that pass the filters. An offset reads what it leaves out; `list` and `search` have cursors.

        Args:
            **filters: See `SortedThreads`.

        Raises:
            ConfigurationError: If an argument is invalid.
        """
        request = search_operations.request_sorted(**filters)
        with understanding("where", filters.get("where")):
            return await self._database.run(search_operations.list_sorted, self._queries, request)

    async def count(self, **filters: Unpack[ThreadSelection]) -> int:
        """Return the number of threads. One round trip; reads all threads unless ids or metadata are given.

        Args:
            **filters: See `ThreadSelection`.

        Raises:
            ConfigurationError: If an argument is invalid.
        """
        request = search_operations.request_count(**filters)
        with understanding("where", filters.get("where")):
            return await self._database.run(search_operations.count_threads, self._queries, request)

    async def create(self, thread_id: str | int | UUID | None = None, **options: Unpack[ThreadOptions]) -> Thread:
        """Create a thread without checkpoints. The first checkpoint would, too: only metadata and a time to live need
        it earlier. Atomic; safe to repeat without a `thread_id`, and with `do_nothing`.

        Args:
            thread_id: The thread's id; a new one by default.
            options: See `ThreadOptions`.

        Raises:
            ThreadExistsError: If there is such a thread.
            ThreadDeletedError: If it was deleted and may not be created again yet.
            ConfigurationError: If an argument is invalid. Nothing was written.
        """
        request = creating.request_thread(thread_id, **options)
        return await self._database.run(creating.create_thread, self._queries, request)

    async def get(self, thread_id: str, *, scope: Scope | None = None) -> Thread | None:
        """Return one thread with its head and its projected channels, or `None`. One round trip.

        Args:
            thread_id: The thread.
            scope: Metadata that the thread must contain to be returned.
        """
        scoped = request_scope(scope)
        return await self._database.run(search_operations.get_thread, self._queries, thread_id_of(thread_id), scoped)

    async def update_metadata(
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
        return await self._database.run(search_operations.change_thread, self._queries, thread_id_of(thread_id), change)

    async def set_title(self, thread_id: str, title: str | None, *, expected_version: int | None = None) -> Thread:
        """Set or remove a thread's title. Otherwise like `update_metadata`."""
        change = search_operations.request_change({}, expected_version, title)
        return await self._database.run(search_operations.change_thread, self._queries, thread_id_of(thread_id), change)

    async def set_status(self, thread_id: str, status: str) -> bool:
        """Set the status of a thread whose state was changed by `graph.update_state`. One statement; safe to repeat.

        The status follows from the runs of a thread; a state that somebody else has changed may wait for nothing more.

        Args:
            thread_id: The thread.
            status: `idle`, or `interrupted` if the state has nodes that are to run next.

        Returns:
            Whether it is changed. A thread that does not exist, or that a run is on, keeps its own.

        Raises:
            ConfigurationError: If the status is neither. Nothing was written.
        """
        wanted = search_operations.request_status(status)
        return await self._database.run(search_operations.settle_thread, self._queries, thread_id_of(thread_id), wanted)

    async def runaway(
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
        return await self._database.run(runs_operations.list_runaway_threads, self._queries, parameters)


class Threads(Interrupts, Branches, Expiry):
    """Blocking twin of `AsyncThreads`."""

    list = blocking(AsyncThreads.list)
    search = blocking(AsyncThreads.search)
    sorted = blocking(AsyncThreads.sorted)
    count = blocking(AsyncThreads.count)
    create = blocking(AsyncThreads.create)
    get = blocking(AsyncThreads.get)
    update_metadata = blocking(AsyncThreads.update_metadata)
    set_title = blocking(AsyncThreads.set_title)
    set_status = blocking(AsyncThreads.set_status)
    runaway = blocking(AsyncThreads.runaway)
