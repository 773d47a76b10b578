"""Filters of lists and searches of threads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Literal

from langgraph_pgstate.paging import OwnerFilter
from langgraph_pgstate.scopes import Scope


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
