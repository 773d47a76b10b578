"""Queries for the events of a thread and for handoff statistics."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from langgraph_pgstate.db.protocol import Connection
from langgraph_pgstate.filters import Moment
from langgraph_pgstate.operations.arguments import since_of, text_of, time_of
from langgraph_pgstate.operations.checkpoints.getting import MAX_ID
from langgraph_pgstate.operations.threads.paging import decode_cursor, page_of, page_size
from langgraph_pgstate.sql import Queries
from langgraph_pgstate.types import Event, HandoffStatistics, Page

_KIND = "events"


def request_events(
    thread_id: str,
    kind: str | None,
    run_id: str | None,
    limit: int,
    cursor: str | None,
    newest_first: bool = False,
) -> dict[str, Any]:
    """Validate a request for events, and return its query parameters.

    Raises:
        ConfigurationError: If an argument is invalid.
    """
    (event_id,) = decode_cursor(_KIND, cursor, (MAX_ID if newest_first else "",))
    return {
        "thread_id": thread_id,
        "kind": text_of("kind", kind),
        "run_id": text_of("run_id", run_id),
        "cursor_id": event_id,
        "page_size": page_size(limit) + 1,
        "newest_first": newest_first,
    }


async def list_events(db: Connection, queries: Queries, parameters: dict[str, Any]) -> Page[Event]:
    """Return a page of a thread's events. One round trip."""
    query = queries.list_events_newest if parameters["newest_first"] else queries.list_events
    rows = await db.fetch(query, parameters)
    return page_of(rows, parameters["page_size"] - 1, lambda row: Event(*row), _KIND, lambda item: (item.event_id,))


def request_handoffs(since: Moment | None, until: datetime | None, limit: int) -> dict[str, Any]:
    """Validate a request for handoff statistics, and return its query parameters.

    Raises:
        ConfigurationError: If an argument is invalid.
    """
    return {**since_of(since), "until": time_of("until", until), "page_size": page_size(limit)}


async def count_handoffs(db: Connection, queries: Queries, parameters: dict[str, Any]) -> tuple[HandoffStatistics, ...]:
    """Return the number and timing of handoffs by pair of agents, the most frequent first. One round trip."""
    return tuple(HandoffStatistics(*row) for row in await db.fetch(queries.count_handoffs, parameters))
