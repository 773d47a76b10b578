"""Queries for the events of a thread and for handoff statistics."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from langgraph_pgstate.db.database import AsyncDatabase, Database
from langgraph_pgstate.db.runners import BlockingRunner, blocking
from langgraph_pgstate.filters import Moment
from langgraph_pgstate.operations.checkpoints.requests import thread_id_of
from langgraph_pgstate.operations.record import events as operations
from langgraph_pgstate.operations.record.new_events import add_event, request_event
from langgraph_pgstate.sql import Queries
from langgraph_pgstate.types import Event, HandoffStatistics, Page


class AsyncEvents:
    """Read access to `events`.

    Args:
        database: The database.
        queries: The queries of its schema.
    """

    def __init__(self, database: AsyncDatabase, queries: Queries) -> None:
        self._database = database
        self._queries = queries

    async def list(
        self,
        thread_id: str,
        *,
        kind: str | None = None,
        run_id: str | None = None,
        newest_first: bool = False,
        limit: int = 100,
        cursor: str | None = None,
    ) -> Page[Event]:
        """Return a page of a thread's events, oldest first by default. One round trip.

        Args:
            thread_id: The thread.
            kind: Only events of this kind: `status`, `handoff`, `interrupt`, `resume`, `fork`, `prune` or another.
            run_id: Only events of this run.
            newest_first: Whether the newest comes first.
            limit: Page size, 1,000 at most.
            cursor: `next` of the previous page.

        Raises:
            ConfigurationError: If an argument is invalid.
        """
        parameters = operations.request_events(thread_id_of(thread_id), kind, run_id, limit, cursor, newest_first)
        return await self._database.run(operations.list_events, self._queries, parameters)

    async def add(
        self,
        thread_id: str,
        kind: str,
        payload: Mapping[str, Any],
        *,
        run_id: str | None = None,
        checkpoint_id: str | None = None,
    ) -> None:
        """Record an event, such as what a person did. One statement.

        Args:
            thread_id: The thread. It need not exist: so a deletion can be recorded.
            kind: The kind, a word; `action` is that of persons who used the pages of the server.
            payload: Details; JSON, in clear text.
            run_id: The run.
            checkpoint_id: The checkpoint in the root namespace.

        Raises:
            ConfigurationError: If an argument is invalid. Nothing was written.
        """
        parameters = request_event(thread_id, kind, payload, run_id, checkpoint_id)
        await self._database.run(add_event, self._queries, parameters)

    async def handoffs(
        self, *, since: Moment | None = timedelta(days=30), until: datetime | None = None, limit: int = 1000
    ) -> tuple[HandoffStatistics, ...]:
        """Return the number and timing of handoffs by pair of agents, the most frequent pair first.

        Args:
            since: Only handoffs from this time on; a timedelta counts back from now; `None` for all.
            until: Only handoffs before this time.
            limit: Maximum number of pairs.

        Raises:
            ConfigurationError: If an argument is invalid.
        """
        parameters = operations.request_handoffs(since, until, limit)
        return await self._database.run(operations.count_handoffs, self._queries, parameters)


class Events:
    """Blocking twin of `AsyncEvents`."""

    def __init__(self, database: Database, queries: Queries) -> None:
        self._database = BlockingRunner(database)
        self._queries = queries

    list = blocking(AsyncEvents.list)
    add = blocking(AsyncEvents.add)
    handoffs = blocking(AsyncEvents.handoffs)
