"""Filters of lists of schedules."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypedDict

from langgraph_pgstate.scopes import Scope


class ScheduleAccess(TypedDict, total=False):
    """Filters of the schedules that a caller may see or delete.

    Attributes:
        scope: Only schedules whose metadata contain this.
        owner_id: Of schedules without a thread only those of this user of the server.
        thread_scope: Of schedules with a thread only those whose thread's metadata contain this.
    """

    scope: Scope | None
    owner_id: str | None
    thread_scope: Scope | None


class ScheduleSelection(ScheduleAccess, total=False):
    """Filters of schedules that are counted.

    Attributes:
        name: Only the schedule of this name.
        graph: Only schedules of this graph.
        thread_id: Only schedules whose runs are on this thread.
        paused: Only paused schedules, or only others.
        metadata: Only schedules whose metadata contain this, as by jsonb's `@>`.
    """

    name: str | None
    graph: str | None
    thread_id: str | None
    paused: bool | None
    metadata: Mapping[str, Any] | None


class SortedSchedules(ScheduleSelection, total=False):
    """Filters and order of schedules that are read by offset.

    Attributes:
        by: The column to sort by: `created_at` by default, `updated_at`, `next_at`, `end_at`, `name`, `graph` or
            `thread_id`.
        ascending: Whether the least comes first; false by default.
        offset: Number of schedules that are left out.
        limit: Number of schedules at most, 1,000 at most; 20 by default.
    """

    by: Literal["created_at", "updated_at", "next_at", "end_at", "name", "graph", "thread_id"]
    ascending: bool
    offset: int
    limit: int
