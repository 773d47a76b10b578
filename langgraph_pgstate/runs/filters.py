"""Filters of lists of the queue and of schedules."""

from __future__ import annotations

from typing import TypedDict

from langgraph_pgstate.scopes import Scope


class DeadLetterFilter(TypedDict, total=False):
    """Filters of runs that failed for good.

    Attributes:
        queue: Only runs of this queue.
        graph: Only runs of this graph.
        scope: Only runs of threads whose metadata contain this.
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
        status: Only `pending` or `running` ones.
    """

    thread_id: str | None
    status: str | None
