"""Runs: which failed, what they cost, and what led to a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from langgraph_pgstate.db.database import AsyncDatabase, Database
from langgraph_pgstate.operations.checkpoints.addresses import address_of, identifier, thread_id_of
from langgraph_pgstate.operations.record import runs as runs_operations
from langgraph_pgstate.operations.record import spans as spans_operations
from langgraph_pgstate.operations.record import statistics
from langgraph_pgstate.operations.threads.paging import Moment
from langgraph_pgstate.sql import Queries
from langgraph_pgstate.types import Page, Provenance, Run, Usage


class Runs:
    """Answers questions about runs. Lists come in pages, newest first; `page.next` is the following page's `cursor`.

    Args:
        database: Where the tables are.
        queries: The queries of their schema.
    """

    def __init__(self, database: Database, queries: Queries) -> None:
        self._database = database
        self._queries = queries

    def list(
        self,
        *,
        thread_id: str | None = None,
        status: str | None = None,
        since: Moment | None = None,
        until: datetime | None = None,
        agent: str | None = None,
        user_id: str | None = None,
        tenant_id: str | None = None,
        min_steps: int | None = None,
        limit: int = 20,
        cursor: str | None = None,
    ) -> Page[Run]:
        """A page of runs. One round trip; an index orders them, finds those of a thread and those of a rare status.

        Args:
            thread_id: Only this thread's.
            status: Only `pending`, `running`, `interrupted`, `success`, `error` or `cancelled` ones.
            since: Only those that began then or later, or so long ago at most.
            until: Only those that began earlier.
            agent: Only this agent's.
            user_id: Only this user's.
            tenant_id: Only this tenant's.
            min_steps: Only those of so many supersteps or more.
            limit: Runs of a page, 1,000 at most.
            cursor: Where the page begins.

        Raises:
            ConfigurationError: If an argument cannot be searched for.
        """
        filter = runs_operations.request_runs(
            thread_id=None if thread_id is None else thread_id_of(thread_id),
            status=status,
            since=since,
            until=until,
            agent=agent,
            user_id=user_id,
            tenant_id=tenant_id,
            min_steps=min_steps,
            limit=limit,
            cursor=cursor,
        )
        return self._database.run(runs_operations.list_runs, self._queries, filter)

    def failed(
        self,
        *,
        since: Moment = timedelta(days=1),
        until: datetime | None = None,
        agent: str | None = None,
        user_id: str | None = None,
        tenant_id: str | None = None,
        min_steps: int | None = None,
        limit: int = 20,
        cursor: str | None = None,
    ) -> Page[Run]:
        """A page of runs that failed, or whose process died before they ended; of the last day if not said otherwise.

        Takes what `list` takes. A run whose process died is `running` by its row until another run or `maintain`
        settles it as `error`; `is_crashed` tells, before and after.
        """
        filter = runs_operations.request_runs(
            only_failed=True,
            since=since,
            until=until,
            agent=agent,
            user_id=user_id,
            tenant_id=tenant_id,
            min_steps=min_steps,
            limit=limit,
            cursor=cursor,
        )
        return self._database.run(runs_operations.list_runs, self._queries, filter)

    def get(self, thread_id: str, run_id: str) -> Run | None:
        """One run; `None` if there is none. One round trip."""
        key = thread_id_of(thread_id), identifier("run_id", run_id)
        return self._database.run(runs_operations.get_run, self._queries, *key)

    def usage(
        self,
        by: str | Sequence[str] = ("agent", "model"),
        *,
        since: Moment | None = timedelta(days=30),
        until: datetime | None = None,
        limit: int = 1000,
    ) -> tuple[Usage, ...]:
        """Model calls, tokens and money, the most expensive first. One round trip; reads the model calls of that time.

        Args:
            by: One or several of `agent`, `model`, `tenant`, `user` and `day`.
            since: Only calls that began then or later, or so long ago at most; `None` for all.
            until: Only calls that began earlier.
            limit: At most so many rows, 1,000 at most.

        Raises:
            ConfigurationError: If a key is another, or an argument cannot be searched for.
        """
        parameters = statistics.request_usage(by, since, until, limit)
        return self._database.run(statistics.sum_usage, self._queries, parameters)

    def provenance(self, config: Mapping[str, Any]) -> Provenance | None:
        """What led to a checkpoint: its run, the superstep's spans and tool executions, its cost and its branch.

        Args:
            config: Names the thread, and may name a namespace and a checkpoint; else it is the newest.

        Returns:
            `None` if there is no such checkpoint.

        Raises:
            ConfigurationError: If the config names no thread.
        """
        return self._database.run(spans_operations.get_provenance, self._queries, address_of(config))


class AsyncRuns:
    """Async twin of `Runs`."""

    def __init__(self, database: AsyncDatabase, queries: Queries) -> None:
        self._database = database
        self._queries = queries

    async def list(
        self,
        *,
        thread_id: str | None = None,
        status: str | None = None,
        since: Moment | None = None,
        until: datetime | None = None,
        agent: str | None = None,
        user_id: str | None = None,
        tenant_id: str | None = None,
        min_steps: int | None = None,
        limit: int = 20,
        cursor: str | None = None,
    ) -> Page[Run]:
        """Async twin of `Runs.list`."""
        filter = runs_operations.request_runs(
            thread_id=None if thread_id is None else thread_id_of(thread_id),
            status=status,
            since=since,
            until=until,
            agent=agent,
            user_id=user_id,
            tenant_id=tenant_id,
            min_steps=min_steps,
            limit=limit,
            cursor=cursor,
        )
        return await self._database.run(runs_operations.list_runs, self._queries, filter)

    async def failed(
        self,
        *,
        since: Moment = timedelta(days=1),
        until: datetime | None = None,
        agent: str | None = None,
        user_id: str | None = None,
        tenant_id: str | None = None,
        min_steps: int | None = None,
        limit: int = 20,
        cursor: str | None = None,
    ) -> Page[Run]:
        """Async twin of `Runs.failed`."""
        filter = runs_operations.request_runs(
            only_failed=True,
            since=since,
            until=until,
            agent=agent,
            user_id=user_id,
            tenant_id=tenant_id,
            min_steps=min_steps,
            limit=limit,
            cursor=cursor,
        )
        return await self._database.run(runs_operations.list_runs, self._queries, filter)

    async def get(self, thread_id: str, run_id: str) -> Run | None:
        """Async twin of `Runs.get`."""
        key = thread_id_of(thread_id), identifier("run_id", run_id)
        return await self._database.run(runs_operations.get_run, self._queries, *key)

    async def usage(
        self,
        by: str | Sequence[str] = ("agent", "model"),
        *,
        since: Moment | None = timedelta(days=30),
        until: datetime | None = None,
        limit: int = 1000,
    ) -> tuple[Usage, ...]:
        """Async twin of `Runs.usage`."""
        parameters = statistics.request_usage(by, since, until, limit)
        return await self._database.run(statistics.sum_usage, self._queries, parameters)

    async def provenance(self, config: Mapping[str, Any]) -> Provenance | None:
        """Async twin of `Runs.provenance`."""
        return await self._database.run(spans_operations.get_provenance, self._queries, address_of(config))
