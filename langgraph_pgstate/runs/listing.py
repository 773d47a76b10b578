"""Lists of queued runs, dead letters and workers."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final, TypedDict, Unpack

from langgraph_pgstate.arguments import request_scope, texts_of, thread_id_of
from langgraph_pgstate.db.protocol import Connection, Read
from langgraph_pgstate.errors import ConfigurationError
from langgraph_pgstate.paging import FIRST, LAST, Page, check_filters, decode_cursor, page_size, read_page
from langgraph_pgstate.record.types import Run
from langgraph_pgstate.runs.types import QueueCount, QueuedRun, WorkerStatus
from langgraph_pgstate.schema.queries import Queries
from langgraph_pgstate.scopes import Scope

_KIND: Final = "queued runs"
_DEAD_KIND: Final = "dead letters"


def list_queue(**filters: Unpack[QueueFilter]) -> Read[Page[QueuedRun]]:
    """Return a `Read` of a page of the runs in the queue, oldest first. The whole queue is read."""
    check_filters(filters, QueueFilter)
    thread_id, status = filters.get("thread_id"), filters.get("status")
    if status not in (None, "pending", "running"):
        raise ConfigurationError(f"status must be 'pending' or 'running', not {status!r}")
    parameters = {
        "thread_id": None if thread_id is None else thread_id_of(thread_id),
        "status": status,
        **_filters_of(filters, _KIND, FIRST),
    }

    def position(item: QueuedRun) -> tuple[datetime, str, str]:
        return item.enqueued_at, item.thread_id, item.run_id

    return read_page("list_queue", parameters, filters.get("limit", 20), QueuedRun, _KIND, position)


async def count_queue(db: Connection, queries: Queries) -> tuple[QueueCount, ...]:
    """Return the number of runs by queue, graph, version and status. One round trip; reads the whole queue."""
    return tuple(QueueCount(*row) for row in await db.fetch(queries.count_queue, {}))


def list_dead_letters(**filters: Unpack[DeadLetterFilter]) -> Read[Page[Run]]:
    """Return a `Read` of a page of runs that failed for good and can be retried, newest first."""
    check_filters(filters, DeadLetterFilter)
    parameters, limit = _filters_of(filters, _DEAD_KIND, LAST), filters.get("limit", 20)

    def position(item: Run) -> tuple[datetime, str, str]:
        return item.started_at, item.thread_id, item.run_id

    return read_page("list_dead_letters", parameters, limit, Run, _DEAD_KIND, position)


def _filters_of(filters: DeadLetterFilter, kind: str, first: str) -> dict[str, Any]:
    """Return the query parameters that both lists have."""
    at, cursor_thread, cursor_run = decode_cursor(kind, filters.get("cursor"), (first, "", ""))
    position = {"cursor_at": at, "cursor_thread": cursor_thread, "cursor_run": cursor_run}
    return {**texts_of(filters, "queue", "graph"), "scope": request_scope(filters.get("scope")), **position}


async def list_workers(db: Connection, queries: Queries, limit: int = 100) -> tuple[WorkerStatus, ...]:
    """Return the workers, the last seen first, with the number of runs of each. One round trip."""
    rows = await db.fetch(queries.list_workers, {"page_size": page_size(limit)})
    return tuple(WorkerStatus(*row) for row in rows)


class DeadLetterFilter(TypedDict, total=False):
    """Filters of runs that failed for good.

    Attributes:
        queue: Only runs of this queue.
        graph: Only runs of this graph.
        scope: Only runs of threads whose metadata contain these items.
        limit: Page size, 1,000 at most; 20 by default.
        cursor: `next` of the previous page.
    """

    queue: str | None
    graph: str | None
    scope: Scope | None
    limit: int
    cursor: str | None


class QueueFilter(DeadLetterFilter, total=False):
    """Filters of runs in the queue.

    Attributes:
        thread_id: Only runs of this thread.
        status: Only `pending`, or only `running` runs.
    """

    thread_id: str | None
    status: str | None
