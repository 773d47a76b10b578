"""Rows of the record for tests of its queries, written directly into the tables."""

from __future__ import annotations

import inspect
import json
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
from psycopg import sql

from langgraph_pgstate.db.database import AsyncDatabase, Database
from langgraph_pgstate.record.events import AsyncEvents, Events
from langgraph_pgstate.record.messages import AsyncMessages, Messages
from langgraph_pgstate.record.spans import AsyncSpans, Spans
from langgraph_pgstate.runs import AsyncRuns, Runs
from langgraph_pgstate.schema.queries import queries
from langgraph_pgstate.threads import AsyncThreads, Threads

EPOCH = datetime(2026, 3, 1, tzinfo=UTC)


def at(seconds: float) -> datetime:
    """Return a time, so many seconds after `EPOCH`."""
    return EPOCH + timedelta(seconds=seconds)


class Record:
    """Writes rows into one schema.

    Args:
        connection: In autocommit.
        schema: The schema, set up.
    """

    def __init__(self, connection: psycopg.Connection, schema: str) -> None:
        self.connection, self.schema = connection, schema

    def rows(self, query: str, *arguments: Any) -> list[tuple[Any, ...]]:
        """What a plain query answers, with the schema on `search_path`."""
        with self.connection.transaction():
            self.connection.execute(f"SET LOCAL search_path = {self.schema}")
            return self.connection.execute(query.encode(), arguments).fetchall()

    def add(self, table: str, **values: Any) -> None:
        """Return a row."""
        columns = sql.SQL(", ").join(map(sql.Identifier, values))
        plain = [json.dumps(value) if isinstance(value, dict) else value for value in values.values()]
        places = sql.SQL(", ").join([sql.Placeholder()] * len(plain))
        where = sql.Identifier(self.schema, table)
        self.connection.execute(sql.SQL("INSERT INTO {} ({}) VALUES ({})").format(where, columns, places), plain)

    def thread(self, thread_id: str = "t", updated: float = 0, **values: Any) -> None:
        """Return a thread, touched so many seconds after `EPOCH`."""
        self.add("threads", **{"thread_id": thread_id, "created_at": at(0), "updated_at": at(updated), **values})

    def checkpoint(self, checkpoint_id: str, parent: str | None = None, thread_id: str = "t", **values: Any) -> None:
        """Return a checkpoint without a state."""
        self.add(
            "checkpoints",
            **{
                "thread_id": thread_id,
                "checkpoint_ns": "",
                "checkpoint_id": checkpoint_id,
                "parent_checkpoint_id": parent,
                "segment_ids": [],
                "metadata": {},
                "state": b"",
                **values,
            },
        )

    def chain(self, ids: Iterable[str], parent: str | None = None, thread_id: str = "t") -> None:
        """Checkpoints, each the parent of the next."""
        for checkpoint_id in ids:
            self.checkpoint(checkpoint_id, parent, thread_id)
            parent = checkpoint_id

    def run(self, run_id: str = "r", started: float = 0, took: float | None = 1, **values: Any) -> None:
        """Return a run that was a success, if not said otherwise."""
        ended = None if took is None else at(started + took)
        known = {"thread_id": "t", "run_id": run_id, "status": "success", "started_at": at(started), "ended_at": ended}
        self.add("runs", **{**known, **values})

    def span(self, span_id: str, kind: str = "node", started: float = 0, took: float | None = 1, **values: Any) -> None:
        """Return a span that was a success, if not said otherwise."""
        ended = None if took is None else at(started + took)
        known = {"thread_id": "t", "run_id": "r", "span_id": span_id, "kind": kind, "name": span_id}
        known |= {"status": "success", "started_at": at(started), "ended_at": ended, "semconv_version": "1.41.1"}
        self.add("spans", **{**known, **values})

    def execution(self, key: str, started: float = 0, took: float | None = 1, **values: Any) -> None:
        """Return a tool execution that was a success, if not said otherwise."""
        ended = None if took is None else at(started + took)
        known = {"thread_id": "t", "idempotency_key": key, "tool": "pay", "status": "success", "arguments": {}}
        known |= {"started_at": at(started), "ended_at": ended, "alive_until": ended}
        self.add("tool_executions", **{**known, **values})

    def message(self, message_id: str, checkpoint_id: str, position: int, content: str = "", **values: Any) -> None:
        """Return a human's message that was added, if not said otherwise."""
        known = {"thread_id": "t", "message_id": message_id, "checkpoint_id": checkpoint_id, "checkpoint_ns": ""}
        known |= {"channel": "messages", "position": position, "change": "added", "role": "human"}
        self.add("messages", **{**known, "content": content or message_id, **values})

    def removal(self, message_id: str, checkpoint_id: str, **values: Any) -> None:
        """Return a message that was removed."""
        gone = {"change": "removed", "content": None, "role": None}
        self.message(message_id, checkpoint_id, 0, **{**gone, **values})

    def event(self, event_id: str, kind: str, created: float = 0, **values: Any) -> None:
        """Return an event."""
        known = {"thread_id": "t", "event_id": event_id, "kind": kind, "created_at": at(created)}
        self.add("events", **{**known, **values})


@dataclass
class Parts:
    """The parts of a state that read the record, of one API."""

    threads: Any
    runs: Any
    spans: Any
    messages: Any
    events: Any


PARTS = {
    Database: (Threads, Runs, Spans, Messages, Events),
    AsyncDatabase: (AsyncThreads, AsyncRuns, AsyncSpans, AsyncMessages, AsyncEvents),
}


@asynccontextmanager
async def open_parts(api: type, dsn: str, schema: str) -> AsyncIterator[Parts]:
    """Provide the parts of one api."""
    if api is Database:
        with Database.open(dsn, schema=schema, pool=False) as blocking:
            yield Parts(*(part(blocking, queries(schema)) for part in PARTS[Database]))  # type: ignore[call-arg]
        return
    async with AsyncDatabase.open(dsn, schema=schema, pool=False) as suspending:
        yield Parts(*(part(suspending, queries(schema)) for part in PARTS[AsyncDatabase]))  # type: ignore[call-arg]


async def ask(answer: Any) -> Any:
    """Return the answer of either API."""
    return await answer if inspect.isawaitable(answer) else answer


async def every_page(method: Any, *arguments: Any, **options: Any) -> list[list[Any]]:
    """Return all pages of an answer."""
    pages, cursor = [], None
    while True:
        page = await ask(method(*arguments, cursor=cursor, **options))
        pages.append(list(page.items))
        cursor = page.next
        if cursor is None:
            return pages
