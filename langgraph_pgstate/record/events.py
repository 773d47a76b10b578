"""Events: what happened to a thread, and how agents hand over to one another."""

from __future__ import annotations

from datetime import datetime, timedelta

from langgraph_pgstate.db.database import AsyncDatabase, Database
from langgraph_pgstate.operations.checkpoints.addresses import thread_id_of
from langgraph_pgstate.operations.record import events as operations
from langgraph_pgstate.operations.threads.paging import Moment
from langgraph_pgstate.sql import Queries
from langgraph_pgstate.types import Event, HandoffStatistics, Page


class Events:
    """Answers questions about events.

    Args:
        database: Where the tables are.
        queries: The queries of their schema.
    """

    def __init__(self, database: Database, queries: Queries) -> None:
        self._database = database
        self._queries = queries

    def list(
        self,
        thread_id: str,
        *,
        kind: str | None = None,
        run_id: str | None = None,
        limit: int = 100,
        cursor: str | None = None,
    ) -> Page[Event]:
        """A page of what happened to a thread, oldest first. One round trip.

        Args:
            thread_id: The thread.
            kind: Only `status`, `handoff`, `interrupt`, `resume`, `fork`, `prune` or another kind.
            run_id: Only in this run.
            limit: Events of a page, 1,000 at most.
            cursor: Where the page begins: `next` of the one before.

        Raises:
            ConfigurationError: If an argument cannot be searched for.
        """
        parameters = operations.request_events(thread_id_of(thread_id), kind, run_id, limit, cursor)
        return self._database.run(operations.list_events, self._queries, parameters)

    def handoffs(
        self, *, since: Moment | None = timedelta(days=30), until: datetime | None = None, limit: int = 1000
    ) -> tuple[HandoffStatistics, ...]:
        """Who hands over to whom, how often, and how long until the next handoff; the most frequent first.

        Args:
            since: Only handoffs then or later, or so long ago at most; `None` for all.
            until: Only earlier ones.
            limit: At most so many pairs of agents.

        Raises:
            ConfigurationError: If an argument cannot be searched for.
        """
        parameters = operations.request_handoffs(since, until, limit)
        return self._database.run(operations.count_handoffs, self._queries, parameters)


class AsyncEvents:
    """Async twin of `Events`."""

    def __init__(self, database: AsyncDatabase, queries: Queries) -> None:
        self._database = database
        self._queries = queries

    async def list(
        self,
        thread_id: str,
        *,
        kind: str | None = None,
        run_id: str | None = None,
        limit: int = 100,
        cursor: str | None = None,
    ) -> Page[Event]:
        """Async twin of `Events.list`."""
        parameters = operations.request_events(thread_id_of(thread_id), kind, run_id, limit, cursor)
        return await self._database.run(operations.list_events, self._queries, parameters)

    async def handoffs(
        self, *, since: Moment | None = timedelta(days=30), until: datetime | None = None, limit: int = 1000
    ) -> tuple[HandoffStatistics, ...]:
        """Async twin of `Events.handoffs`."""
        parameters = operations.request_handoffs(since, until, limit)
        return await self._database.run(operations.count_handoffs, self._queries, parameters)
