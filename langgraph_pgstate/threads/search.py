"""Lists and searches of threads with their filters, and changes of a thread's title and metadata."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Literal, Unpack

import orjson

from langgraph_pgstate.arguments import json_of, request_scope, several, text_of, texts_of, thread_id_of, times_of
from langgraph_pgstate.db.protocol import Connection, Read, number, read_all
from langgraph_pgstate.errors import ConfigurationError, ConflictError, NotFoundError, StaleVersionError
from langgraph_pgstate.leases.guards import refuse_archived
from langgraph_pgstate.paging import LAST, OwnerFilter, Page, check_filters, decode_cursor, read_page, sorting_of
from langgraph_pgstate.schema.queries import Queries
from langgraph_pgstate.scopes import Scope
from langgraph_pgstate.threads.types import Thread

_CHANGE_ATTEMPTS: Final = 10

_KIND = "threads"
STATUSES = ("idle", "busy", "interrupted", "error")
SORT_KEYS = ("updated_at", "created_at", "thread_id", "status")


class ThreadFilter(OwnerFilter, total=False):
    """Filters of threads. Times need a time zone.

    Attributes:
        status: Only threads of this status: `idle`, `busy`, `interrupted` or `error`.
        archived: If true, only archived threads; if false, only threads that are not archived.
        created_after: Only threads created at this time or later.
        created_before: Only threads created before this time.
        updated_after: Only threads updated at this time or later.
        updated_before: Only threads last updated before this time.
    """

    status: str | None
    archived: bool | None
    created_after: datetime | None
    created_before: datetime | None
    updated_after: datetime | None
    updated_before: datetime | None


class ThreadSearch(ThreadFilter, total=False):
    """Filters of threads by their content.

    Attributes:
        metadata: Only threads whose metadata contain this, as by jsonb's `@>`.
        state: Only threads whose projected channels contain this, like `{"booking": {"hotel": "Astoria"}}`. Projected
            channels are channels of the newest state that you chose to store as JSON.
        where: A condition on the projected channels, as a JSON path of PostgreSQL:
            `$.booking.check_in >= "2027-03-01" && $.booking.check_in < "2027-04-01"`.
        scope: Only threads whose metadata contain this. It restricts what a user may see.
    """

    metadata: Mapping[str, Any] | None
    state: Mapping[str, Any] | None
    where: str | None
    scope: Scope | None


class ThreadTextSearch(ThreadSearch, total=False):
    """Filters of threads by their content and their messages.

    Attributes:
        text: Only threads with a message that contains these words, as for `messages.search`, or whose id begins with
            `text`.
    """

    text: str | None


class ThreadSelection(ThreadSearch, total=False):
    """Filters of threads that are counted, or read by offset. `cursor` is not allowed.

    Attributes:
        ids: Only these threads.
    """

    ids: Sequence[str] | None


class SortedThreads(ThreadSelection, total=False):
    """Filters and order of threads that are read by offset.

    Attributes:
        by: The column to sort by: `updated_at` by default, `created_at`, `thread_id` or `status`.
        ascending: Whether the smallest value comes first; false by default.
        offset: Number of threads to skip.
    """

    by: Literal["updated_at", "created_at", "thread_id", "status"]
    ascending: bool
    offset: int


def list_threads(**filters: Unpack[ThreadTextSearch]) -> Read[Page[Thread]]:
    """Return a `Read` of a page of threads, most recently updated first."""
    check_filters(filters, ThreadTextSearch)
    status = filters.get("status")
    if status is not None and status not in STATUSES:
        raise ConfigurationError(f"status must be one of {', '.join(STATUSES)}, not {status!r}")
    archived = filters.get("archived")
    if archived not in (None, True, False):
        raise ConfigurationError(f"archived must be True, False or None, got {archived!r}")
    updated_at, thread_id = decode_cursor(_KIND, filters.get("cursor"), (LAST, ""))
    # The first given condition finds candidates through its index, and the other conditions filter them. An empty
    # mapping is no condition.
    content = {
        "text": text_of("text", filters.get("text") or None),
        "metadata": json_of("metadata", filters.get("metadata") or None),
        "state": json_of("state", filters.get("state") or None, is_content=True),
        "path": text_of("where", filters.get("where")),
        "scope": request_scope(filters.get("scope")),
    }
    parameters = {
        **texts_of(filters, "user_id", "tenant_id", "agent"),
        "status": status,
        "archived": archived,
        **times_of(filters, "created_after", "created_before", "updated_after", "updated_before"),
        "cursor_updated_at": updated_at,
        "cursor_id": thread_id,
        **content,
    }
    driver = next((name for name, value in content.items() if value is not None), None)
    if driver is not None:
        is_of_user = parameters["user_id"] is not None and driver != "text"
        parameters["driver"] = "user" if is_of_user else driver
    query = "list_threads" if driver is None else "search_threads"
    limit = filters.get("limit", 20)
    return read_page(query, parameters, limit, Thread, _KIND, lambda item: (item.updated_at, item.thread_id))


def list_sorted(**filters: Unpack[SortedThreads]) -> Read[tuple[Thread, ...]]:
    """Return a `Read` of threads from an offset."""
    check_filters(filters, SortedThreads)
    order = sorting_of(filters, "threads", SORT_KEYS)
    return read_all("sort_threads", {**_selection(filters), **order}, Thread)


def count_threads(**filters: Unpack[ThreadSelection]) -> Read[int]:
    """Return a `Read` of the number of threads."""
    check_filters(filters, ThreadSelection)
    return Read("count_selected_threads", _selection(filters), number)


async def get_thread(db: Connection, queries: Queries, thread_id: str, scope: list[str] | None = None) -> Thread | None:
    """Return one thread with its newest checkpoint and its projected channels, or `None`. One round trip."""
    rows = await db.fetch(queries.get_thread, {"thread_id": thread_id, "scope": scope})
    return Thread(*rows[0]) if rows else None


def _selection(filters: ThreadSelection) -> dict[str, Any]:
    if filters.get("cursor") is not None:
        raise ConfigurationError("cursor must not be given for threads that are read by offset")
    plain: Any = {name: value for name, value in filters.items() if name in ThreadSearch.__annotations__}
    ids = filters.get("ids")
    return {
        **list_threads(**plain).parameters,
        "ids": None if ids is None else [thread_id_of(id) for id in several("ids", ids)],
    }


@dataclass(frozen=True, slots=True)
class ThreadChange:
    """A validated change of a thread.

    Attributes:
        metadata: Metadata to merge, as JSON text.
        has_title: Whether the title changes.
        title: The new title.
        expected_version: The version on which the change is based; `None` for any.
    """

    metadata: str
    has_title: bool
    title: str | None
    expected_version: int | None


def request_change(metadata: Mapping[str, Any], expected_version: int | None, *titles: str | None) -> ThreadChange:
    """Validate a change of metadata, and of the title if a title is given."""
    return ThreadChange(
        json_of("metadata", metadata) or "{}",
        bool(titles),
        text_of("title", titles[0]) if titles else None,
        expected_version,
    )


async def change_thread(db: Connection, queries: Queries, thread_id: str, change: ThreadChange) -> Thread:
    """Change a thread's title or metadata. Atomic; safe to repeat.

    Raises:
        NotFoundError: If there is no such thread.
        StaleVersionError: If the thread has another version, and does not have the new values already.
    """
    parameters = {
        "thread_id": thread_id,
        "metadata": change.metadata,
        "has_title": change.has_title,
        "title": change.title,
        "expected_version": change.expected_version,
    }
    if db.keys is not None:
        return await _change_encrypted(db, queries, parameters, change)
    changed = await db.fetch(queries.update_thread, parameters)
    thread = await get_thread(db, queries, thread_id)
    if thread is None:
        raise NotFoundError(f"there is no thread {thread_id!r}")
    if changed or change.expected_version in (None, thread.version):
        return thread
    # If the connection was lost, the first attempt may have been committed.
    lacks = await db.fetch(queries.would_change_thread, parameters)
    if thread.version == (change.expected_version or 0) + 1 and not lacks[0][0]:
        return thread
    raise StaleVersionError(thread_id, change.expected_version or 0, thread.version)


async def _change_encrypted(
    db: Connection, queries: Queries, parameters: dict[str, Any], change: ThreadChange
) -> Thread:
    """Change a thread with encrypted metadata, which PostgreSQL cannot merge."""
    thread_id, given = parameters["thread_id"], orjson.loads(change.metadata)
    for _ in range(_CHANGE_ATTEMPTS):
        thread = await get_thread(db, queries, thread_id)
        if thread is None:
            raise NotFoundError(f"there is no thread {thread_id!r}")
        merged = {**thread.metadata, **given}
        is_made = merged == thread.metadata and not (change.has_title and change.title != thread.title)
        if is_made and change.expected_version in (None, thread.version, thread.version - 1):
            return thread
        if change.expected_version not in (None, thread.version):
            raise StaleVersionError(thread_id, change.expected_version or 0, thread.version)
        sent = {**parameters, "metadata": orjson.dumps(merged).decode(), "expected_version": thread.version}
        await db.fetch(queries.update_thread, sent)
    raise ConflictError(f"thread {thread_id!r} could not be changed: other calls keep changing it; try again")


def request_status(status: str) -> str:
    """Validate a status that the caller sets."""
    if status not in ("idle", "interrupted"):
        raise ConfigurationError(f"status must be 'idle' or 'interrupted', not {status!r}")
    return status


async def settle_thread(db: Connection, queries: Queries, thread_id: str, status: str) -> bool:
    """Set the status of a thread without a run, and return whether the status has changed. Safe to repeat.

    Raises:
        ThreadArchivedError: If the thread is archived.
    """
    if await db.fetch(queries.settle_thread, {"thread_id": thread_id, "status": status}):
        return True
    await refuse_archived(db, queries, thread_id)
    return False
