"""Lists and searches of threads, and changes of a thread's title and metadata."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Unpack

from langgraph_pgstate.db.protocol import Connection
from langgraph_pgstate.errors import ConfigurationError, NotFoundError, StaleVersionError
from langgraph_pgstate.filters import ThreadSearch, check_filters
from langgraph_pgstate.operations.threads.paging import (
    LAST,
    decode_cursor,
    json_of,
    page_of,
    page_size,
    text_of,
    texts_of,
    times_of,
)
from langgraph_pgstate.sql import NamedQuery, Queries
from langgraph_pgstate.types import Page, Thread

_KIND = "threads"
STATUSES = ("idle", "busy", "interrupted", "error")


@dataclass(frozen=True, slots=True)
class ThreadsRequest:
    """A validated request for threads.

    Attributes:
        parameters: The query parameters.
        size: Page size.
        content: The condition that finds candidates: `metadata`, `state`, `path`, or none.
    """

    parameters: dict[str, Any]
    size: int
    content: str | None


def request_threads(**filters: Unpack[ThreadSearch]) -> ThreadsRequest:
    """Validate a request for threads.

    Raises:
        ConfigurationError: If an argument is invalid.
    """
    check_filters(filters, ThreadSearch)
    status = filters.get("status")
    if status is not None and status not in STATUSES:
        raise ConfigurationError(f"unknown thread status {status!r}: {', '.join(STATUSES)}")
    updated_at, thread_id = decode_cursor(_KIND, filters.get("cursor"), (LAST, ""))
    size = page_size(filters.get("limit", 20))
    # Every mapping contains an empty one, so that is no condition, and an index would not help.
    content = {
        "metadata": json_of("metadata", filters.get("metadata") or None),
        "state": json_of("state", filters.get("state") or None),
        "path": text_of("where", filters.get("where")),
    }
    parameters = {
        **texts_of(filters, "user_id", "tenant_id", "agent"),
        "status": status,
        **times_of(filters, "created_after", "created_before", "updated_after", "updated_before"),
        "cursor_updated_at": updated_at,
        "cursor_id": thread_id,
        "page_size": size + 1,
        **content,
    }
    return ThreadsRequest(parameters, size, next((name for name, value in content.items() if value is not None), None))


async def list_threads(db: Connection, queries: Queries, filter: ThreadsRequest) -> Page[Thread]:
    """Return a page of threads, most recently updated first. Reads no checkpoint. One round trip."""
    parameters = filter.parameters
    query: NamedQuery
    if filter.content is not None:
        query = queries.search_threads
        parameters = {**parameters, "driver": "user" if parameters["user_id"] is not None else filter.content}
    elif parameters["user_id"] is not None:
        query = queries.list_threads_of_user
    elif parameters["tenant_id"] is not None:
        query = queries.list_threads_of_tenant
    elif parameters["status"] not in (None, "idle"):
        query = queries.list_threads_with_status
    else:
        query = queries.list_threads
    rows = await db.fetch(query, parameters)
    return page_of(rows, filter.size, lambda row: Thread(*row), _KIND, lambda item: (item.updated_at, item.thread_id))


async def get_thread(db: Connection, queries: Queries, thread_id: str) -> Thread | None:
    """Return one thread with its head and its projected state, or `None`. One round trip."""
    rows = await db.fetch(queries.get_thread, {"thread_id": thread_id})
    return Thread(*rows[0]) if rows else None


@dataclass(frozen=True, slots=True)
class ThreadChange:
    """A validated change of a thread.

    Attributes:
        metadata: Metadata to merge, as JSON text.
        has_title: Whether the title changes.
        title: The new title.
        expected_version: The version that the change is based on; `None` for any.
    """

    metadata: str
    has_title: bool
    title: str | None
    expected_version: int | None


def request_change(metadata: Mapping[str, Any], expected_version: int | None, *titles: str | None) -> ThreadChange:
    """Validate a change of metadata, and of the title if one is given.

    Raises:
        ConfigurationError: If it cannot be stored.
    """
    return ThreadChange(
        json_of("metadata", metadata) or "{}",
        bool(titles),
        text_of("title", titles[0]) if titles else None,
        expected_version,
    )


async def change_thread(db: Connection, queries: Queries, thread_id: str, change: ThreadChange) -> Thread:
    """Change a thread's title or metadata. Atomic; without an actual change the version is kept, so it can be repeated.

    Raises:
        NotFoundError: If there is no such thread.
        StaleVersionError: If its version is not the expected one, and the change is not made already.
    """
    parameters = {
        "thread_id": thread_id,
        "metadata": change.metadata,
        "has_title": change.has_title,
        "title": change.title,
        "expected_version": change.expected_version,
    }
    changed = await db.fetch(queries.update_thread, parameters)
    thread = await get_thread(db, queries, thread_id)
    if thread is None:
        raise NotFoundError(f"there is no thread {thread_id!r}")
    if changed or change.expected_version in (None, thread.version):
        return thread
    # A retry after a lost connection may find that its own change is committed already.
    lacks = await db.fetch(queries.would_change_thread, parameters)
    if thread.version == (change.expected_version or 0) + 1 and not lacks[0][0]:
        return thread
    raise StaleVersionError(thread_id, change.expected_version or 0, thread.version)
