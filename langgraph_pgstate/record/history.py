"""Queries for runs, their usage of models, and the provenance of checkpoints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final, Unpack

from langgraph_pgstate.arguments import Moment, address_of, identifier, request_scope, thread_id_of
from langgraph_pgstate.db.database import AsyncDatabase, Database
from langgraph_pgstate.db.runners import BlockingRunner, blocking
from langgraph_pgstate.paging import Page
from langgraph_pgstate.record import runs as runs_operations
from langgraph_pgstate.record import spans as spans_operations
from langgraph_pgstate.record import statistics
from langgraph_pgstate.record.filters import FailedRunFilter, RunFilter
from langgraph_pgstate.record.types import Analytics, Costs, Provenance, Run, RunSums, Usage
from langgraph_pgstate.schema.queries import Queries
from langgraph_pgstate.scopes import Scope

_DAY: Final = timedelta(days=1)
_MONTH: Final = timedelta(days=30)


class AsyncRunHistory:
    """Recorded runs, read-only. Lists are paged, newest first; pass `page.next` as `cursor` for the next page."""

    def __init__(self, database: AsyncDatabase, queries: Queries) -> None:
        self._database = database
        self._queries = queries

    async def list(self, **filters: Unpack[RunFilter]) -> Page[Run]:
        """Return a page of runs. One round trip.

        Indexes make three lists fast: the newest runs, runs of a thread, and runs of a status other than `success`.

        Args:
            **filters: See `RunFilter`.

        Raises:
            ConfigurationError: If an argument is invalid.
        """
        return await self._database.read(self._queries, runs_operations.list_runs(**filters))

    async def failed(self, **filters: Unpack[FailedRunFilter]) -> Page[Run]:
        """Return a page of runs that failed or whose process died, by default of the last day.

        A run whose process died has the status `running` until another run of the thread, or `maintain`, sets it to
        `error`.

        Args:
            **filters: See `FailedRunFilter`.

        Raises:
            ConfigurationError: If an argument is invalid.
        """
        given: FailedRunFilter = {"since": _DAY, **filters}
        return await self._database.read(self._queries, runs_operations.list_runs(only_failed=True, **given))

    async def sums(self, *, only_failed: bool = False, **filters: Unpack[RunFilter]) -> RunSums:
        """Return the cost of the model calls of runs, by thread and by model. One round trip.

        The newest 1,000 runs that pass the filters are summed. With `model=`, only calls of that model are summed.

        Args:
            only_failed: Only runs that failed or whose process died.
            **filters: See `RunFilter`. Sums are returned for the `limit` most expensive threads and the `limit` most
                expensive models, by default 5 each. `by` and `cursor` are ignored.

        Raises:
            ConfigurationError: If an argument is invalid.
        """
        found = runs_operations.sum_runs(only_failed=only_failed, **filters)
        return await self._database.read(self._queries, found)

    async def get(self, thread_id: str, run_id: str, *, scope: Scope | None = None) -> Run | None:
        """Return one run, or `None` if it does not exist. One round trip.

        Args:
            thread_id: The thread.
            run_id: The run.
            scope: Metadata that the thread must contain. Runs of other threads are not found.

        Raises:
            ConfigurationError: If an argument is invalid.
        """
        key = thread_id_of(thread_id), identifier("run_id", run_id), request_scope(scope)
        return await self._database.run(runs_operations.get_run, self._queries, *key)

    async def usage(
        self,
        by: str | Sequence[str] = ("agent", "model"),
        *,
        since: Moment | None = timedelta(days=30),
        until: datetime | None = None,
        limit: int = 1000,
    ) -> tuple[Usage, ...]:
        """Return model calls, tokens and cost, the most expensive first. Reads all model calls of the period.

        Args:
            by: One or several of `agent`, `model`, `tenant`, `user` and `day`.
            since: Only calls that started at this time or later; a timedelta counts back from now; `None` for all.
            until: Only calls that started before this time.
            limit: Maximum number of rows, 1,000 at most.

        Raises:
            ConfigurationError: If a key is unknown or an argument is invalid.
        """
        return await self._database.read(self._queries, statistics.sum_usage(by, since, until, limit))

    async def costs(
        self,
        *,
        since: Moment | None = timedelta(days=30),
        until: datetime | None = None,
        agent: str | None = None,
        model: str | None = None,
        user_id: str | None = None,
        tenant_id: str | None = None,
        scope: Scope | None = None,
        limit: int = 20,
    ) -> Costs:
        """Return model calls, tokens and cost by day, agent, model and user. Reads all calls and runs of the period.

        Args:
            since: Only calls that started at this time or later; a timedelta counts back from now; `None` for all.
            until: Only calls that started before this time.
            agent: Only calls in runs of this agent, also calls of its helpers. `usage` counts each agent for itself.
            model: Only calls of this model.
            user_id: Only calls for this user.
            tenant_id: Only calls for this tenant.
            scope: Only calls of threads whose metadata contain this.
            limit: Number of agents, models and users, 1,000 at most.

        Raises:
            ConfigurationError: If an argument is invalid.
        """
        parameters = statistics.request_costs(
            since=since,
            until=until,
            agent=agent,
            model=model,
            user_id=user_id,
            tenant_id=tenant_id,
            scope=scope,
            limit=limit,
        )
        return await self._database.run(statistics.sum_costs, self._queries, parameters)

    async def analytics(
        self,
        by: str | Sequence[str] = "agent",
        *,
        since: Moment | None = _MONTH,
        until: datetime | None = None,
        agent: str | None = None,
        user_id: str | None = None,
        tenant_id: str | None = None,
        scope: Scope | None = None,
        limit: int = 1000,
    ) -> Analytics:
        """Return statistics of a period: threads by status, outcomes, durations and cost of runs, and feedback.

        Three round trips. Each reads at most 100,000 rows, the newest; `is_complete` is false if there were more.

        Args:
            by: One or several of `agent`, `release`, `tenant`, `user` and `day`, by which runs are grouped. Threads are
                always grouped by agent and status.
            since: Only threads, runs and feedback of this time or later; a timedelta counts back from now; `None` for
                all.
            until: Only threads, runs and feedback before this time.
            agent: Only data of this agent.
            user_id: Only data of this user.
            tenant_id: Only data of this tenant.
            scope: Only data of threads whose metadata contain this.
            limit: Maximum number of rows of each kind, 1,000 at most.

        Raises:
            ConfigurationError: If a key is unknown or an argument is invalid.
        """
        request = statistics.request_analytics(by, since, until, limit, agent, user_id, tenant_id, scope)
        return await self._database.run(statistics.analyze, self._queries, request)

    async def provenance(self, config: Mapping[str, Any]) -> Provenance | None:
        """Return the origin of a checkpoint, or `None` if there is no such checkpoint.

        Args:
            config: Names the thread and optionally a namespace and a checkpoint; by default the newest checkpoint.

        Raises:
            ConfigurationError: If the config names no thread.
        """
        return await self._database.run(spans_operations.get_provenance, self._queries, address_of(config))


class RunHistory:
    """Blocking twin of `AsyncRunHistory`."""

    def __init__(self, database: Database, queries: Queries) -> None:
        self._database = BlockingRunner(database)
        self._queries = queries

    list = blocking(AsyncRunHistory.list)
    failed = blocking(AsyncRunHistory.failed)
    sums = blocking(AsyncRunHistory.sums)
    get = blocking(AsyncRunHistory.get)
    usage = blocking(AsyncRunHistory.usage)
    costs = blocking(AsyncRunHistory.costs)
    analytics = blocking(AsyncRunHistory.analytics)
    provenance = blocking(AsyncRunHistory.provenance)
