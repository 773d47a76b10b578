"""Statistics of tools, model usage, threads, runs and feedback in a period, over many threads."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple

from langgraph_pgstate.arguments import Moment, request_scope, since_of, text_of, texts_of, time_of
from langgraph_pgstate.db.protocol import Connection, Parameters, Read, read_all
from langgraph_pgstate.errors import ConfigurationError
from langgraph_pgstate.paging import page_size
from langgraph_pgstate.record.feedback import FEEDBACK_KEYS, MOST_ROWS, average_feedback
from langgraph_pgstate.record.types import (
    Analytics,
    Costs,
    FeedbackAverage,
    OwnerCosts,
    RunStatistics,
    ThreadStatistics,
    ToolStatistics,
    Usage,
)
from langgraph_pgstate.schema.queries import Queries
from langgraph_pgstate.scopes import Scope

USAGE_KEYS = ("agent", "model", "tenant", "user", "day")
ANALYTICS_KEYS: Final = ("agent", "release", "tenant", "user", "day")
_COST_FILTERS = ("agent", "model", "user_id", "tenant_id")


def measure_tools(
    query: str,
    since: Moment | None,
    until: datetime | None,
    agent: str | None,
    limit: int,
    newest: int | None = None,
) -> Read[tuple[ToolStatistics, ...]]:
    """Return a `Read` of calls, errors and durations of each tool, the most called first.

    Args:
        query: `measure_tools` to read spans, or `measure_executions` to read the tool ledger.

    Raises:
        ConfigurationError: If an argument is invalid.
    """
    if newest is not None and (isinstance(newest, bool) or not isinstance(newest, int) or newest < 1):
        raise ConfigurationError(f"newest must be a whole number, 1 or more, not {newest!r}")
    given = {"agent": text_of("agent", agent), "page_size": page_size(limit), "newest": newest}
    return read_all(query, {**since_of(since), "until": time_of("until", until), **given}, ToolStatistics)


def sum_usage(
    by: str | Sequence[str], since: Moment | None, until: datetime | None, limit: int
) -> Read[tuple[Usage, ...]]:
    """Return a `Read` of tokens and cost, grouped by the keys in `by`, the most expensive group first.

    Raises:
        ConfigurationError: If a key is not in `USAGE_KEYS`, or another argument is invalid.
    """
    keys = [by] if isinstance(by, str) else list(by)
    if unknown := [key for key in keys if key not in USAGE_KEYS]:
        raise ConfigurationError(f"by must be one or several of {', '.join(USAGE_KEYS)}, got {unknown[0]!r}")
    times = {**since_of(since), "until": time_of("until", until)}
    return read_all("sum_usage", {"by": keys, **times, "page_size": page_size(limit)}, Usage)


def request_costs(
    *,
    since: Moment | None,
    until: datetime | None,
    agent: str | None,
    model: str | None,
    user_id: str | None,
    tenant_id: str | None,
    scope: Scope | None,
    limit: int,
) -> dict[str, Any]:
    """Check the arguments of `costs`, and return the query parameters.

    Raises:
        ConfigurationError: If an argument is invalid.
    """
    texts = texts_of({"agent": agent, "model": model, "user_id": user_id, "tenant_id": tenant_id}, *_COST_FILTERS)
    times = {**since_of(since), "until": time_of("until", until)}
    return {**times, **texts, "scope": request_scope(scope), "page_size": page_size(limit)}


async def sum_costs(db: Connection, queries: Queries, parameters: dict[str, Any]) -> Costs:
    """Return the cost of model calls, in total and by day, model, agent and user. Two round trips."""
    query = queries.sum_costs
    if parameters["scope"] is not None:
        query = queries.sum_costs_with_scope
    elif any(parameters[name] is not None for name in ("agent", "user_id", "tenant_id")):
        query = queries.sum_costs_of_owner
    parts: dict[str, list[Usage]] = {}
    for part, provider, model, day, *sums in await db.fetch(query, parameters):
        parts.setdefault(part, []).append(Usage(None, provider, model, None, None, day, *sums))
    owners: dict[str, list[OwnerCosts]] = {}
    if parameters["model"] is None:
        for part, *row in await db.fetch(queries.sum_owner_costs, parameters):
            owners.setdefault(part, []).append(OwnerCosts(*row))
    return Costs(
        parts["all"][0],
        tuple(parts.get("day", ())),
        tuple(parts.get("model", ())),
        tuple(owners.get("agent", ())),
        tuple(owners.get("user", ())),
    )


class AnalyticsRequest(NamedTuple):
    """The checked arguments of `analyze`. The `by` in `parameters` has only keys that feedback has."""

    by: list[str]
    parameters: Parameters


def request_analytics(
    by: str | Sequence[str],
    since: Moment | None,
    until: datetime | None,
    limit: int,
    agent: str | None,
    user_id: str | None,
    tenant_id: str | None,
    scope: Scope | None,
) -> AnalyticsRequest:
    """Check the arguments of `analyze`, and return them with the parameters of its queries.

    Raises:
        ConfigurationError: If a key is not in `ANALYTICS_KEYS`, or another argument is invalid.
    """
    keys = [by] if isinstance(by, str) else list(by)
    if unknown := [key for key in keys if key not in ANALYTICS_KEYS]:
        raise ConfigurationError(f"by must be one or several of {', '.join(ANALYTICS_KEYS)}, got {unknown[0]!r}")
    common = [key for key in keys if key in FEEDBACK_KEYS]
    average = average_feedback(common, since, until, limit, agent, user_id, tenant_id, scope)
    return AnalyticsRequest(keys, average.parameters)


async def analyze(db: Connection, queries: Queries, request: AnalyticsRequest) -> Analytics:
    """Return statistics of a period. Three statements; each reads at most the newest `MOST_ROWS` rows."""
    parameters = request.parameters
    has_scope = parameters["scope"] is not None
    threads = await db.fetch(queries.count_threads_by_status, parameters)
    measure = queries.measure_runs_with_scope if has_scope else queries.measure_runs
    runs = await db.fetch(measure, {**parameters, "by": request.by})
    average = queries.average_feedback_with_scope if has_scope else queries.average_feedback
    averages = await db.fetch(average, parameters)
    found = (threads, runs, averages)
    return Analytics(
        tuple(ThreadStatistics(*row[:-1]) for row in threads),
        tuple(RunStatistics(*row[:-1]) for row in runs),
        tuple(FeedbackAverage(*row[:-1]) for row in averages),
        all(not rows or (rows[0][-1] < MOST_ROWS and len(rows) < parameters["page_size"]) for rows in found),
    )
