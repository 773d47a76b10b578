"""The queue of ended spans, from which one process at a time exports.

The transaction that stores the end of a span also queues the span, so no ended span is missed. After the export, the
span is deleted from the queue. A span may be exported twice, with the same ids, but is never lost.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple

from langgraph_pgstate.db.protocol import Connection
from langgraph_pgstate.paging import LAST
from langgraph_pgstate.schema.queries import Queries

FORGET_AFTER: Final = timedelta(days=7)
_PAGE: Final = 200
_MOST_SPANS: Final = 256
_DROP_PAGE: Final = 1000
_log = logging.getLogger("langgraph_pgstate.otlp")

Cursor = tuple[datetime, str, str]


class Export(NamedTuple):
    """A batch in the queue: ended spans of one run. `started_ats` has the start of each span of `span_ids`."""

    thread_id: str
    export_id: str
    run_id: str
    span_ids: Sequence[str]
    started_ats: Sequence[datetime]


class EndedSpan(NamedTuple):
    """A span that has ended, with data of its run and of its parent span.

    Fields that are not listed here are as in `Span` and `Run`.

    Attributes:
        parent_started_at: Start of the parent; `None` if the parent is not in the database.
        semconv_version: Version of the names of the attributes.
        traceparent: The caller's span, if the run belongs to the caller's trace.
        error_message: `None` if content is not read.
        input: For the root of an attempt, the run's input; `None` if content is not read.
        output: For the root of an attempt, the run's output; `None` if content is not read.
    """

    thread_id: str
    run_id: str
    span_id: str
    started_at: datetime
    ended_at: datetime
    parent_span_id: str | None
    parent_started_at: datetime | None
    kind: str
    name: str
    status: str
    checkpoint_ns: str | None
    step: int | None
    node: str | None
    agent: str | None
    cost: float | None
    error_type: str | None
    attributes: dict[str, Any]
    semconv_version: str
    tenant_id: str | None
    user_id: str | None
    traceparent: str | None
    error_message: str | None = None
    input: Any = None
    output: Any = None


_ATTRIBUTES: Final = [*EndedSpan.__annotations__].index("attributes")


async def hold(db: Connection, queries: Queries, holder_id: str, endpoint: str, ttl: float) -> bool | None:
    """Become or stay the exporting process. One statement; safe to repeat.

    After `ttl` seconds, by the database's clock, another process may take over.

    Returns:
        Whether the spans of earlier runs must still be queued. `None` if another process exports.
    """
    rows = await db.fetch(queries.hold_exporter, {"holder_id": holder_id, "endpoint": endpoint, "ttl": ttl})
    return bool(rows[0][0]) if rows else None


async def release(db: Connection, queries: Queries, holder_id: str) -> None:
    """Stop being the exporting process, so that another one can take over at once. One statement; safe to repeat."""
    await db.execute(queries.release_exporter, {"holder_id": holder_id})


async def note_caught_up(db: Connection, queries: Queries, holder_id: str) -> None:
    """Store that this process has queued the spans of earlier runs, or wants none. One statement; safe to repeat."""
    await db.execute(queries.note_caught_up, {"holder_id": holder_id})


async def queue_runs(
    db: Connection, queries: Queries, since: datetime | timedelta, after: Cursor | None = None
) -> Cursor | None:
    """Queue the spans of a page of earlier runs, newest first, even if they were exported before. One statement.

    Args:
        since: Only runs that started at this time or later; a timedelta counts back from now.
        after: Result of the previous call; by default the first page.

    Returns:
        Where the next page begins; `None` if this was the last page.
    """
    started_at, thread_id, run_id = (LAST, "", "") if after is None else after
    rows = await db.fetch(
        queries.queue_runs,
        {
            "since": since if isinstance(since, datetime) else None,
            "age": since if isinstance(since, timedelta) else None,
            "cursor_started_at": started_at,
            "cursor_thread": thread_id,
            "cursor_run": run_id,
            "page_size": _PAGE,
            "most_spans": _MOST_SPANS,
        },
    )
    return None if len(rows) < _PAGE else (rows[-1][0], rows[-1][1], rows[-1][2])


async def list_exports(db: Connection, queries: Queries, most_spans: int) -> list[Export]:
    """Return the oldest batches in the queue, with about `most_spans` spans in total. One statement."""
    return [Export(*row) for row in await db.fetch(queries.list_exports, {"most_spans": most_spans})]


async def read_spans(
    db: Connection, queries: Queries, keys: Sequence[tuple[str, str, str, datetime]], *, with_content: bool
) -> list[EndedSpan]:
    """Return spans that have ended, in the order of thread, run and start. One statement.

    Args:
        keys: Thread, run, span and start of each span. Deleted spans are left out.
        with_content: Whether to read error messages, inputs and outputs. Those of a run whose serializer may encrypt
            are never read.
    """
    names = ("thread_ids", "run_ids", "span_ids", "started_ats")
    parameters = {name: [key[place] for key in keys] for place, name in enumerate(names)}
    rows = await db.fetch(queries.read_ended_spans, {**parameters, "with_content": with_content})
    return [EndedSpan(*_with_content(row)) for row in rows]


def _with_content(row: Sequence[Any]) -> list[Any]:
    """Return a row with one input and one output: the span's own, or else the run's. Log what cannot be decrypted."""
    *rest, own_input, own_output, given, returned = row
    if rest[_ATTRIBUTES] is None:
        _log.error("span %s is exported without its attributes, which cannot be decrypted", rest[2])
        rest[_ATTRIBUTES] = {}
    return [*rest, given if own_input is None else own_input, returned if own_output is None else own_output]


async def confirm(db: Connection, queries: Queries, exports: Sequence[Export]) -> None:
    """Remove exported spans from the queue. One statement; safe to repeat."""
    parameters = {
        "thread_ids": [export.thread_id for export in exports],
        "export_ids": [export.export_id for export in exports],
    }
    await db.execute(queries.delete_exports, parameters)


async def forget(db: Connection, queries: Queries) -> None:
    """Remove exporters that have not run for a week. If no exporter is left, also empty the queue. Safe to repeat."""
    await db.execute(queries.forget_exporters, {"age": FORGET_AFTER})
    while await db.execute(queries.drop_exports, {"page_size": _DROP_PAGE}) == _DROP_PAGE:
        pass
