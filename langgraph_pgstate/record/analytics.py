"""Statistics of threads, runs and feedback over a period."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Final, NamedTuple

from langgraph_pgstate.arguments import Moment
from langgraph_pgstate.db.protocol import Connection, Parameters
from langgraph_pgstate.errors import ConfigurationError
from langgraph_pgstate.record.feedback import FEEDBACK_KEYS, MOST_ROWS, average_feedback
from langgraph_pgstate.record.types import Analytics, FeedbackAverage, RunStatistics, ThreadStatistics
from langgraph_pgstate.schema.queries import Queries
from langgraph_pgstate.scopes import Scope

ANALYTICS_KEYS: Final = ("agent", "release", "tenant", "user", "day")


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
