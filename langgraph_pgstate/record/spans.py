"""Spans: what happened in a run, as a list or a tree, and how tools did."""

from __future__ import annotations

from datetime import datetime, timedelta

from langgraph_pgstate.db.database import AsyncDatabase, Database
from langgraph_pgstate.operations.checkpoints.addresses import identifier, thread_id_of
from langgraph_pgstate.operations.record import spans as spans_operations
from langgraph_pgstate.operations.record import statistics
from langgraph_pgstate.operations.threads.paging import Moment
from langgraph_pgstate.sql import Queries
from langgraph_pgstate.types import Page, Span, SpanNode, ToolStatistics


class Spans:
    """Answers questions about spans.

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
        run_id: str | None = None,
        kind: str | None = None,
        name: str | None = None,
        status: str | None = None,
        limit: int = 100,
        cursor: str | None = None,
    ) -> Page[Span]:
        """A page of a thread's spans, oldest first. One round trip.

        Args:
            thread_id: The thread.
            run_id: Only this run's.
            kind: Only `graph`, `node`, `chain`, `llm`, `tool` or `retriever`.
            name: Only those of this name.
            status: Only those of this status.
            limit: Spans of a page, 1,000 at most.
            cursor: Where the page begins: `next` of the one before.

        Raises:
            ConfigurationError: If an argument cannot be searched for.
        """
        parameters = spans_operations.request_spans(
            thread_id_of(thread_id), run_id=run_id, kind=kind, name=name, status=status, limit=limit, cursor=cursor
        )
        return self._database.run(spans_operations.list_spans, self._queries, parameters)

    def tree(self, thread_id: str, run_id: str) -> tuple[SpanNode, ...]:
        """The trace of a run: its spans as trees, children by the time they started. Empty if it has none.

        There is one root, unless a parent was never recorded, or the run was invoked several times: then each attempt
        has its own.
        """
        key = thread_id_of(thread_id), identifier("run_id", run_id)
        return self._database.run(spans_operations.get_tree, self._queries, *key)

    def tools(
        self,
        *,
        since: Moment | None = timedelta(days=30),
        until: datetime | None = None,
        agent: str | None = None,
        limit: int = 1000,
    ) -> tuple[ToolStatistics, ...]:
        """Tools by calls, seconds and error rate, the most called first. Reads the tool calls of that time.

        Args:
            since: Only calls that began then or later, or so long ago at most; `None` for all.
            until: Only calls that began earlier.
            agent: Only this agent's.
            limit: At most so many tools.

        Raises:
            ConfigurationError: If an argument cannot be searched for.
        """
        parameters = statistics.request_statistics(since, until, agent, limit)
        return self._database.run(statistics.measure_tools, self._queries, parameters)

    def executions(
        self,
        *,
        since: Moment | None = timedelta(days=30),
        until: datetime | None = None,
        agent: str | None = None,
        limit: int = 1000,
    ) -> tuple[ToolStatistics, ...]:
        """The same by the ledger of tool executions: an action counts once, however often it was tried."""
        parameters = statistics.request_statistics(since, until, agent, limit)
        return self._database.run(statistics.measure_executions, self._queries, parameters)


class AsyncSpans:
    """Async twin of `Spans`."""

    def __init__(self, database: AsyncDatabase, queries: Queries) -> None:
        self._database = database
        self._queries = queries

    async def list(
        self,
        thread_id: str,
        *,
        run_id: str | None = None,
        kind: str | None = None,
        name: str | None = None,
        status: str | None = None,
        limit: int = 100,
        cursor: str | None = None,
    ) -> Page[Span]:
        """Async twin of `Spans.list`."""
        parameters = spans_operations.request_spans(
            thread_id_of(thread_id), run_id=run_id, kind=kind, name=name, status=status, limit=limit, cursor=cursor
        )
        return await self._database.run(spans_operations.list_spans, self._queries, parameters)

    async def tree(self, thread_id: str, run_id: str) -> tuple[SpanNode, ...]:
        """Async twin of `Spans.tree`."""
        key = thread_id_of(thread_id), identifier("run_id", run_id)
        return await self._database.run(spans_operations.get_tree, self._queries, *key)

    async def tools(
        self,
        *,
        since: Moment | None = timedelta(days=30),
        until: datetime | None = None,
        agent: str | None = None,
        limit: int = 1000,
    ) -> tuple[ToolStatistics, ...]:
        """Async twin of `Spans.tools`."""
        parameters = statistics.request_statistics(since, until, agent, limit)
        return await self._database.run(statistics.measure_tools, self._queries, parameters)

    async def executions(
        self,
        *,
        since: Moment | None = timedelta(days=30),
        until: datetime | None = None,
        agent: str | None = None,
        limit: int = 1000,
    ) -> tuple[ToolStatistics, ...]:
        """Async twin of `Spans.executions`."""
        parameters = statistics.request_statistics(since, until, agent, limit)
        return await self._database.run(statistics.measure_executions, self._queries, parameters)
