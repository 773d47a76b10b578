"""Queries for runs, failed runs and runaway threads."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from langgraph_pgstate.db.protocol import Connection
from langgraph_pgstate.errors import ConfigurationError
from langgraph_pgstate.operations.threads.paging import (
    LAST,
    Moment,
    decode_cursor,
    page_of,
    page_size,
    since_of,
    text_of,
    time_of,
)
from langgraph_pgstate.sql import NamedQuery, Queries
from langgraph_pgstate.types import Page, Run, RunawayThread

_KIND, _RUNAWAY_KIND = "runs", "runaway threads"
STATUSES = ("pending", "running", "interrupted", "success", "error", "cancelled", "timeout")
LEAST_STEPS = 25
"""LangGraph's recursion limit was 25 supersteps for years. Runs with more are indexed."""

_MOST_STEPS = 2**31 - 1


@dataclass(frozen=True, slots=True)
class RunFilter:
    """A validated request for runs.

    Attributes:
        parameters: The query parameters.
        size: Page size.
        only_failed: Whether only failed and crashed runs are returned.
    """

    parameters: dict[str, Any]
    size: int
    only_failed: bool


def request_runs(
    *,
    thread_id: str | None = None,
    status: str | None = None,
    since: Moment | None = None,
    until: datetime | None = None,
    agent: str | None = None,
    user_id: str | None = None,
    tenant_id: str | None = None,
    min_steps: int | None = None,
    only_failed: bool = False,
    limit: int = 20,
    cursor: str | None = None,
) -> RunFilter:
    """Validate a request for runs.

    Raises:
        ConfigurationError: If an argument is invalid.
    """
    if status is not None and status not in STATUSES:
        raise ConfigurationError(f"unknown run status {status!r}: {', '.join(STATUSES)}")
    started_at, cursor_thread, cursor_run = decode_cursor(_KIND, cursor, (LAST, "", ""))
    size = page_size(limit)
    parameters = {
        "thread_id": thread_id,
        "status": status,
        **since_of(since),
        "until": time_of("until", until),
        "agent": text_of("agent", agent),
        "user_id": text_of("user_id", user_id),
        "tenant_id": text_of("tenant_id", tenant_id),
        "min_steps": min_steps,
        "cursor_started_at": started_at,
        "cursor_thread": cursor_thread,
        "cursor_run": cursor_run,
        "page_size": size + 1,
    }
    return RunFilter(parameters, size, only_failed)


async def list_runs(db: Connection, queries: Queries, filter: RunFilter) -> Page[Run]:
    """Return a page of runs, newest first. One round trip."""
    parameters = filter.parameters
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


async def get_run(db: Connection, queries: Queries, thread_id: str, run_id: str) -> Run | None:
    """Return one run, or `None`. One round trip."""
    rows = await db.fetch(queries.get_run, {"thread_id": thread_id, "run_id": run_id})
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
