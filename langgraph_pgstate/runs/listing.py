"""Lists of runs in the queue and of dead letters."""

from __future__ import annotations

from typing import Any, Final, Unpack

from langgraph_pgstate.arguments import request_scope, texts_of, thread_id_of
from langgraph_pgstate.db.protocol import Connection
from langgraph_pgstate.errors import ConfigurationError
from langgraph_pgstate.paging import FIRST, LAST, Page, check_filters, decode_cursor, page_of, page_size
from langgraph_pgstate.record.types import Run
from langgraph_pgstate.runs.filters import DeadLetterFilter, QueueFilter
from langgraph_pgstate.runs.types import QueueCount, QueuedRun, WorkerStatus
from langgraph_pgstate.schema.queries import Queries

_KIND: Final = "queued runs"
_DEAD_KIND: Final = "dead letters"


def request_queue(**filters: Unpack[QueueFilter]) -> dict[str, Any]:
    """Validate a request for runs in the queue, and return its query parameters.

    Raises:
        ConfigurationError: If an argument is invalid.
    """
    check_filters(filters, QueueFilter)
    thread_id, status = filters.get("thread_id"), filters.get("status")
    if status not in (None, "pending", "running"):
        raise ConfigurationError(f"the status of a run in the queue is 'pending' or 'running', not {status!r}")
    return {
        "thread_id": None if thread_id is None else thread_id_of(thread_id),
        "status": status,
        **_page_of_runs(filters, _KIND, FIRST),
    }


async def list_queue(db: Connection, queries: Queries, parameters: dict[str, Any]) -> Page[QueuedRun]:
    """Return a page of the runs in the queue, oldest first. One round trip; reads the whole queue."""
    rows = await db.fetch(queries.list_queue, parameters)
    return page_of(
        rows,
        parameters["page_size"] - 1,
        lambda row: QueuedRun(*row),
        _KIND,
        lambda item: (item.enqueued_at, item.thread_id, item.run_id),
    )


async def count_queue(db: Connection, queries: Queries) -> tuple[QueueCount, ...]:
    """Return the number of runs in the queue, by queue, graph and status. One round trip; reads the whole queue."""
    return tuple(QueueCount(*row) for row in await db.fetch(queries.count_queue, {}))


def request_dead_letters(**filters: Unpack[DeadLetterFilter]) -> dict[str, Any]:
    """Validate a request for dead letters, and return its query parameters.

    Raises:
        ConfigurationError: If an argument is invalid.
    """
    check_filters(filters, DeadLetterFilter)
    return _page_of_runs(filters, _DEAD_KIND, LAST)


def _page_of_runs(filters: DeadLetterFilter, kind: str, first: str) -> dict[str, Any]:
    """Return the parameters that both lists have."""
    at, cursor_thread, cursor_run = decode_cursor(kind, filters.get("cursor"), (first, "", ""))
    return {
        **texts_of(filters, "queue", "graph"),
        "scope": request_scope(filters.get("scope")),
        "cursor_at": at,
        "cursor_thread": cursor_thread,
        "cursor_run": cursor_run,
        "page_size": page_size(filters.get("limit", 20)) + 1,
    }


async def list_dead_letters(db: Connection, queries: Queries, parameters: dict[str, Any]) -> Page[Run]:
    """Return a page of runs that failed for good and can be retried, newest first. One round trip."""
    rows = await db.fetch(queries.list_dead_letters, parameters)
    return page_of(
        rows,
        parameters["page_size"] - 1,
        lambda row: Run(*row),
        _DEAD_KIND,
        lambda item: (item.started_at, item.thread_id, item.run_id),
    )


async def list_workers(db: Connection, queries: Queries, limit: int = 100) -> tuple[WorkerStatus, ...]:
    """Return the workers, those seen last first, with the number of runs of each. One round trip."""
    rows = await db.fetch(queries.list_workers, {"page_size": page_size(limit)})
    return tuple(WorkerStatus(*row) for row in rows)
