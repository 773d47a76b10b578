"""Queries for spans, span trees and tool statistics."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Unpack

from langgraph_pgstate.db.database import AsyncDatabase, Database
from langgraph_pgstate.db.runners import BlockingRunner, blocking
from langgraph_pgstate.filters import Moment, SpanFilter
from langgraph_pgstate.operations.checkpoints.requests import identifier, thread_id_of
from langgraph_pgstate.operations.record import spans as spans_operations
from langgraph_pgstate.operations.record import statistics, timelines
from langgraph_pgstate.sql import Queries
from langgraph_pgstate.types import Page, Span, SpanNode, Timeline, ToolStatistics


class AsyncSpans:
    """Read access to `spans` and to statistics of tools.

    Args:
        database: The database.
        queries: The queries of its schema.
    """

    def __init__(self, database: AsyncDatabase, queries: Queries) -> None:
        self._database = database
        self._queries = queries

    async def list(self, thread_id: str, **filters: Unpack[SpanFilter]) -> Page[Span]:
        """Return a page of a thread's spans, oldest first. One round trip.

        Args:
            thread_id: The thread.
            **filters: See `SpanFilter`.

        Raises:
            ConfigurationError: If an argument is invalid.
        """
        parameters = spans_operations.request_spans(thread_id_of(thread_id), **filters)
        return await self._database.run(spans_operations.list_spans, self._queries, parameters)

    async def tree(self, thread_id: str, run_id: str) -> tuple[SpanNode, ...]:
        """Return the spans of a run as trees, children ordered by start time. Empty if the run has no spans.

        There is one root, unless a parent was never recorded or the run was invoked several times. Each attempt has its
        own root.
        """
        key = thread_id_of(thread_id), identifier("run_id", run_id)
        return await self._database.run(spans_operations.get_tree, self._queries, *key)

    async def get(self, thread_id: str, run_id: str, span_id: str) -> Span | None:
        """Return one span, or `None`. Of the roots of several attempts it is the newest. One round trip."""
        key = thread_id_of(thread_id), identifier("run_id", run_id), identifier("span_id", span_id)
        return await self._database.run(timelines.get_span, self._queries, *key)

    async def timeline(
        self,
        thread_id: str,
        run_id: str,
        *,
        offset: int = 0,
        limit: int = 200,
        kind: str | None = None,
        status: str | None = None,
        since: datetime | None = None,
    ) -> Timeline:
        """Return a window of a run's spans as lines of a tree, each below its parent, without contents. Two round
        trips.

        Args:
            thread_id: The thread.
            run_id: The run.
            offset: Number of spans before the window.
            limit: Size of the window, 1,000 at most.
            kind: Only spans of this kind.
            status: Only spans of this status.
            since: Only spans that started at this time or later: `next_since` of a timeline, which has 20,000 spans at
                most.

        Raises:
            ConfigurationError: If an argument is invalid.
        """
        request = timelines.request_timeline(
            thread_id_of(thread_id),
            identifier("run_id", run_id),
            offset=offset,
            limit=limit,
            kind=kind,
            status=status,
            since=since,
        )
        return await self._database.run(timelines.get_timeline, self._queries, request)

    async def tools(
        self,
        *,
        since: Moment | None = timedelta(days=30),
        until: datetime | None = None,
        agent: str | None = None,
        newest: int | None = None,
        limit: int = 1000,
    ) -> tuple[ToolStatistics, ...]:
        """Return calls, durations and error rate by tool, the most called first. Reads all tool calls of that time.

        Args:
            since: Only calls that started at this time or later; a timedelta counts back from now; `None` for all.
            until: Only calls that started before this time.
            agent: Only calls of this agent.
            newest: Read this many of the newest calls at most.
            limit: Maximum number of tools.

        Raises:
            ConfigurationError: If an argument is invalid.
        """
        parameters = statistics.request_statistics(since, until, agent, limit, newest)
        return await self._database.run(statistics.measure_tools, self._queries, parameters)

    async def executions(
        self,
        *,
        since: Moment | None = timedelta(days=30),
        until: datetime | None = None,
        agent: str | None = None,
        newest: int | None = None,
        limit: int = 1000,
    ) -> tuple[ToolStatistics, ...]:
        """Return the same as `tools` from the tool ledger, where an action counts once regardless of its attempts."""
        parameters = statistics.request_statistics(since, until, agent, limit, newest)
        return await self._database.run(statistics.measure_executions, self._queries, parameters)


class Spans:
    """Blocking twin of `AsyncSpans`."""

    def __init__(self, database: Database, queries: Queries) -> None:
        self._database = BlockingRunner(database)
        self._queries = queries

    list = blocking(AsyncSpans.list)
    tree = blocking(AsyncSpans.tree)
    get = blocking(AsyncSpans.get)
    timeline = blocking(AsyncSpans.timeline)
    tools = blocking(AsyncSpans.tools)
    executions = blocking(AsyncSpans.executions)
