"""Queries for runs, failed runs and runaway threads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Unpack

from langgraph_pgstate.arguments import Moment, request_scope, since_of, text_of, texts_of, thread_id_of, times_of
from langgraph_pgstate.db.protocol import Connection
from langgraph_pgstate.errors import ConfigurationError
from langgraph_pgstate.paging import LAST, Page, check_filters, decode_cursor, offset_of, page_of, page_size
from langgraph_pgstate.record.filters import FailedRunFilter, RunFilter
from langgraph_pgstate.record.types import OwnerCosts, Run, RunawayThread, RunSums
from langgraph_pgstate.schema.queries import NamedQuery, Queries

_KIND, _RUNAWAY_KIND = "runs", "runaway threads"
STATUSES = ("pending", "running", "interrupted", "success", "error", "cancelled", "timeout")
LEAST_STEPS = 25
"""LangGraph's recursion limit was 25 supersteps for years. Runs with more are indexed."""

_MOST_STEPS = 2**31 - 1
_HIGHEST = 1e300
ORDERS = ("started_at", "cost", "duration", "tokens")
RANKED = 10_000
"""Newest runs that are sorted by cost, duration or tokens. These change at each superstep: an index costs too much."""

_RANKED_WITH_MODEL = 2000
SUMMED = 1000
"""Newest runs whose model calls are summed: each is looked up in the spans."""


@dataclass(frozen=True, slots=True)
class RunsRequest:
    """A validated request for runs.

    Attributes:
        parameters: The query parameters.
        size: Page size.
        only_failed: Whether only failed and crashed runs are returned.
        by: What the runs are sorted by.
    """

    parameters: dict[str, Any]
    size: int
    only_failed: bool
    by: str = ORDERS[0]


def request_runs(*, only_failed: bool = False, **filters: Unpack[RunFilter]) -> RunsRequest:
    """Validate a request for runs.

    Raises:
        ConfigurationError: If an argument is invalid.
    """
    check_filters(filters, FailedRunFilter if only_failed else RunFilter)
    status, thread_id = filters.get("status"), filters.get("thread_id")
    if status is not None and status not in STATUSES:
        raise ConfigurationError(f"unknown run status {status!r}: {', '.join(STATUSES)}")
    by, model = filters.get("by") or ORDERS[0], text_of("model", filters.get("model"))
    if by not in ORDERS:
        raise ConfigurationError(f"runs are sorted by {', '.join(ORDERS)}, not {by!r}")
    is_ranked = by != ORDERS[0]
    if model is not None and not is_ranked:
        raise ConfigurationError(f"model= needs by= {', '.join(ORDERS[1:])}")
    first = (_HIGHEST if is_ranked else LAST, "", "")
    value, cursor_thread, cursor_run = decode_cursor(_kind(by), filters.get("cursor"), first)
    size, offset = page_size(filters.get("limit", 20)), offset_of(filters.get("offset", 0))
    parameters = {
        "thread_id": None if thread_id is None else thread_id_of(thread_id),
        "status": status,
        **since_of(filters.get("since")),
        **times_of(filters, "until"),
        **texts_of(filters, "user_id", "tenant_id", "agent"),
        "min_steps": filters.get("min_steps"),
        "scope": request_scope(filters.get("scope")),
        "cursor_thread": cursor_thread,
        "cursor_run": cursor_run,
        "page_size": size + 1,
        "offset": offset,
    }
    if is_ranked:
        most = size + 1 + offset if model is None else _RANKED_WITH_MODEL
        parameters |= {"by": by, "model": model, "cursor_value": value, "only_failed": only_failed}
        parameters |= {"newest": RANKED, "most": most}
    else:
        parameters["cursor_started_at"] = value
    return RunsRequest(parameters, size, only_failed, by)


def _kind(by: str) -> str:
    return _KIND if by == ORDERS[0] else f"{_KIND} by {by}"


async def list_runs(db: Connection, queries: Queries, filter: RunsRequest) -> Page[Run]:
    """Return a page of runs, newest first, or the greatest first. One round trip."""
    parameters = filter.parameters
    if filter.by != ORDERS[0]:
        ranked = await db.fetch(queries.rank_runs, parameters)
        values = {(row[0], row[1]): row[-1] for row in ranked}
        return page_of(
            ranked,
            filter.size,
            lambda row: Run(*row[:-1]),
            _kind(filter.by),
            lambda item: (values[item.thread_id, item.run_id], item.thread_id, item.run_id),
        )
    query: NamedQuery
    if filter.only_failed:
        query = queries.list_runs_failed
    elif parameters["thread_id"] is not None:
        query = queries.list_runs_of_thread
    elif parameters["status"] not in (None, "success"):
        query = queries.list_runs_with_status
    else:
        query = queries.list_runs
    rows = await db.fetch(query, parameters)
    return page_of(
        rows, filter.size, lambda row: Run(*row), _KIND, lambda item: (item.started_at, item.thread_id, item.run_id)
    )


def request_sums(*, only_failed: bool = False, **filters: Unpack[RunFilter]) -> dict[str, Any]:
    """Validate a request for sums of runs, and return its query parameters.

    Raises:
        ConfigurationError: If an argument is invalid.
    """
    given: RunFilter = {"limit": 5, **filters, "by": "cost", "cursor": None}
    request = request_runs(only_failed=only_failed, **given)
    return {**request.parameters, "newest": SUMMED, "page_size": request.size}


async def sum_runs(db: Connection, queries: Queries, parameters: dict[str, Any]) -> RunSums:
    """Return the sums of the newest runs that pass filters, by thread and by model. One round trip."""
    parts: dict[str, list[OwnerCosts]] = {}
    count = 0
    for part, name, runs, input_tokens, output_tokens, cost, count in await db.fetch(queries.sum_runs, parameters):  # noqa: B007
        parts.setdefault(part, []).append(OwnerCosts(name, runs, input_tokens, output_tokens, cost))
    (total,) = parts["all"]
    by = tuple(tuple(parts.get(part, ())) for part in ("thread", "model"))
    return RunSums(count, count < parameters["newest"], total, *by)


async def get_run(
    db: Connection, queries: Queries, thread_id: str, run_id: str, scope: list[str] | None = None
) -> Run | None:
    """Return one run, or `None` if there is none in scope. One round trip."""
    rows = await db.fetch(queries.get_run, {"thread_id": thread_id, "run_id": run_id, "scope": scope})
    return Run(*rows[0]) if rows else None


def request_runaways(steps: int, since: Moment | None, limit: int, cursor: str | None) -> dict[str, Any]:
    """Validate a request for runaway threads, and return its query parameters.

    Raises:
        ConfigurationError: If `steps` is less than `LEAST_STEPS`, or another argument is invalid.
    """
    if steps < LEAST_STEPS:
        raise ConfigurationError(f"steps must be {LEAST_STEPS} or more, not {steps}")
    cursor_steps, cursor_thread = decode_cursor(_RUNAWAY_KIND, cursor, (_MOST_STEPS, ""))
    return {
        "steps": steps,
        **since_of(since),
        "cursor_steps": cursor_steps,
        "cursor_thread": cursor_thread,
        "page_size": page_size(limit) + 1,
    }


async def list_runaway_threads(db: Connection, queries: Queries, parameters: dict[str, Any]) -> Page[RunawayThread]:
    """Return a page of threads with runs of too many supersteps, the longest first. One round trip."""
    rows = await db.fetch(queries.list_runaway_threads, parameters)
    return page_of(
        rows,
        parameters["page_size"] - 1,
        lambda row: RunawayThread(*row),
        _RUNAWAY_KIND,
        lambda item: (item.most_steps, item.thread_id),
    )
