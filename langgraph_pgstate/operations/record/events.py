"""Queries for the events of a thread and for handoff statistics."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from langgraph_pgstate.codec.ids import new_revision
from langgraph_pgstate.db.protocol import Connection
from langgraph_pgstate.filters import Moment
from langgraph_pgstate.operations.checkpoints.getting import MAX_ID
from langgraph_pgstate.operations.checkpoints.requests import identifier, thread_id_of
from langgraph_pgstate.operations.threads.paging import (
    decode_cursor,
    json_of,
    page_of,
    page_size,
    since_of,
    text_of,
    time_of,
)
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


def request_event(
    thread_id: str, kind: str, payload: Mapping[str, Any], run_id: str | None, checkpoint_id: str | None
) -> dict[str, Any]:
    """Validate an event, and return its query parameters.

    Raises:
        ConfigurationError: If an argument is invalid.
    """
    return {
        "thread_id": thread_id_of(thread_id),
        "kind": identifier("kind", kind),
        "payload": json_of("payload", payload),
        "run_id": text_of("run_id", run_id),
        "checkpoint_id": text_of("checkpoint_id", checkpoint_id),
        "suffix": f"{new_revision():014x}",
    }


async def add_event(db: Connection, queries: Queries, parameters: dict[str, Any]) -> None:
    """Record an event. One statement; safe to repeat with the same parameters."""
    await db.execute(queries.add_event, parameters)


def request_handoffs(since: Moment | None, until: datetime | None, limit: int) -> dict[str, Any]:
    """Validate a request for handoff statistics, and return its query parameters.

    Raises:
        ConfigurationError: If an argument is invalid.
    """
    return {**since_of(since), "until": time_of("until", until), "page_size": page_size(limit)}


async def count_handoffs(db: Connection, queries: Queries, parameters: dict[str, Any]) -> tuple[HandoffStatistics, ...]:
    """Return the number and timing of handoffs by pair of agents, the most frequent first. One round trip."""
    return tuple(HandoffStatistics(*row) for row in await db.fetch(queries.count_handoffs, parameters))


async def note_action(
    db: Connection,
    queries: Queries,
    action: str,
    by: str,
    thread_id: str,
    run_id: str | None = None,
    details: Mapping[str, Any] | None = None,
    checkpoint_id: str | None = None,
) -> None:
    """Record what a person did: an event of the kind `action`. One statement, for the transaction of the action.

    Args:
        db: The connection.
        queries: The queries of the schema.
        action: What was done: `cancel`, `retry`, `settle` or another.
        by: Name of the person.
        thread_id: The thread; `schedule:NAME` or `worker:ID` for what belongs to none.
        run_id: The run.
        details: Facts about it, as JSON types.
        checkpoint_id: The checkpoint.
    """
    payload = {**(details or {}), "action": action, "by": identifier("by", by)}
    await add_event(db, queries, request_event(thread_id, "action", payload, run_id, checkpoint_id))
