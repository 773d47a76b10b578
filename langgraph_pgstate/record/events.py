"""Events of a thread, and statistics of handoffs."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from langgraph_pgstate.arguments import Moment, identifier, json_of, since_of, text_of, thread_id_of, time_of
from langgraph_pgstate.checkpoints.event_chains import insert_events
from langgraph_pgstate.codec.ids import new_revision
from langgraph_pgstate.db.database import AsyncDatabase, Database
from langgraph_pgstate.db.protocol import MAX_TEXT, Connection, Read, read_all
from langgraph_pgstate.db.runners import BlockingRunner, blocking
from langgraph_pgstate.errors import AlreadyDoneError
from langgraph_pgstate.paging import Page, decode_cursor, page_size, read_page
from langgraph_pgstate.record.types import Event, HandoffStatistics
from langgraph_pgstate.schema.queries import Queries

_KIND = "events"


def list_events(
    thread_id: str,
    kind: str | None = None,
    run_id: str | None = None,
    limit: int = 100,
    cursor: str | None = None,
    newest_first: bool = False,
) -> Read[Page[Event]]:
    """Return a `Read` of a page of a thread's events.

    Raises:
        ConfigurationError: If an argument is invalid.
    """
    (event_id,) = decode_cursor(_KIND, cursor, (MAX_TEXT if newest_first else "",))
    parameters = {
        "thread_id": thread_id,
        "kind": text_of("kind", kind),
        "run_id": text_of("run_id", run_id),
        "cursor_id": event_id,
        "newest_first": newest_first,
    }
    return read_page("list_events", parameters, limit, Event, _KIND, lambda item: (item.event_id,))


def count_handoffs(since: Moment | None, until: datetime | None, limit: int) -> Read[tuple[HandoffStatistics, ...]]:
    """Return a `Read` of the number and timing of handoffs by pair of agents, the most frequent first.

    Raises:
        ConfigurationError: If an argument is invalid.
    """
    times = {**since_of(since), "until": time_of("until", until)}
    return read_all("count_handoffs", {**times, "page_size": page_size(limit)}, HandoffStatistics)


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
        "payload": json_of("payload", payload, is_content=True),
        "run_id": text_of("run_id", run_id),
        "checkpoint_id": text_of("checkpoint_id", checkpoint_id),
        "suffix": f"{new_revision():014x}",
    }


async def add_event(db: Connection, queries: Queries, parameters: dict[str, Any]) -> None:
    """Record an event. One transaction; safe to repeat with the same parameters."""
    await insert_events(db, queries, queries.add_event, parameters)


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
    """Record a person's action, as an event of the kind `action`. Call this in the transaction of the action.

    Args:
        action: What was done: `cancel`, `retry`, `settle` or another.
        by: Name of the person.
        thread_id: The thread; `schedule:NAME` or `worker:ID` for an action that belongs to no thread.
        details: Facts about the action, as JSON types.
    """
    payload = {**(details or {}), "action": action, "by": identifier("by", by)}
    await add_event(db, queries, request_event(thread_id, "action", payload, run_id, checkpoint_id))


async def check_not_done(
    db: Connection,
    queries: Queries,
    action: str,
    thread_id: str,
    within: timedelta,
    *,
    checkpoint_id: str | None = None,
    run_id: str | None = None,
) -> None:
    """Raise an error if a person has already done an action. Call this before `note_action`, in one transaction.

    The action is locked until the transaction ends. If two persons do the same at once, the second person waits for the
    first and is refused.

    Args:
        within: Time within which an earlier action counts.
        checkpoint_id: Only actions on this checkpoint; by default all actions on the thread.
        run_id: The run that the action makes. An earlier action that made this run does not count.

    Raises:
        AlreadyDoneError: If a person has done the action.
    """
    await db.fetch(queries.lock_action, {"key": f"{action} {thread_id}"})
    key = {"action": action, "thread_id": thread_id, "within": within}
    rows = await db.fetch(queries.find_action, {**key, "checkpoint_id": checkpoint_id, "run_id": run_id})
    if rows:
        raise AlreadyDoneError(thread_id, *rows[0])


class AsyncEvents:
    """The events of threads, `state.events`."""

    def __init__(self, database: AsyncDatabase, queries: Queries) -> None:
        self._database = database
        self._queries = queries

    async def list(
        self,
        thread_id: str,
        *,
        kind: str | None = None,
        run_id: str | None = None,
        newest_first: bool = False,
        limit: int = 100,
        cursor: str | None = None,
    ) -> Page[Event]:
        """Return a page of a thread's events, oldest first by default. One round trip.

        Args:
            thread_id: The thread.
            kind: Only events of this kind: `status`, `handoff`, `interrupt`, `resume`, `fork`, `prune` or another.
            run_id: Only events of this run.
            newest_first: Whether the newest comes first.
            limit: Page size, 1,000 at most.
            cursor: `next` of the previous page.

        Raises:
            ConfigurationError: If an argument is invalid.
        """
        events = list_events(thread_id_of(thread_id), kind, run_id, limit, cursor, newest_first)
        return await self._database.read(self._queries, events)

    async def add(
        self,
        thread_id: str,
        kind: str,
        payload: Mapping[str, Any],
        *,
        run_id: str | None = None,
        checkpoint_id: str | None = None,
    ) -> None:
        """Record an event, such as a person's action. One statement, or one transaction if events are chained.

        Args:
            thread_id: The thread. The thread need not exist, so that its deletion can be recorded.
            kind: The kind of the event. `action` is a person's action in the server's pages.
            payload: Details, as JSON types.
            run_id: The run.
            checkpoint_id: The checkpoint in the root namespace.

        Raises:
            ConfigurationError: If an argument is invalid. Nothing was written.
        """
        parameters = request_event(thread_id, kind, payload, run_id, checkpoint_id)
        await self._database.run(add_event, self._queries, parameters)

    async def handoffs(
        self, *, since: Moment | None = timedelta(days=30), until: datetime | None = None, limit: int = 1000
    ) -> tuple[HandoffStatistics, ...]:
        """Return the number and timing of handoffs by pair of agents, the most frequent pair first.

        Args:
            since: Only handoffs from this time on; a timedelta counts back from now; `None` for all.
            until: Only handoffs before this time.
            limit: Maximum number of pairs.

        Raises:
            ConfigurationError: If an argument is invalid.
        """
        return await self._database.read(self._queries, count_handoffs(since, until, limit))


class Events:
    """Blocking twin of `AsyncEvents`."""

    def __init__(self, database: Database, queries: Queries) -> None:
        self._database = BlockingRunner(database)
        self._queries = queries

    list = blocking(AsyncEvents.list)
    add = blocking(AsyncEvents.add)
    handoffs = blocking(AsyncEvents.handoffs)
