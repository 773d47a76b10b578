"""Filters of lists of interrupted threads."""

from __future__ import annotations

from langgraph_pgstate.paging import OwnerFilter
from langgraph_pgstate.scopes import Scope


class InterruptFilter(OwnerFilter, total=False):
    """Filters of interrupted threads.

    Attributes:
        answered: Threads with answers with which no graph was resumed yet, instead of those with unanswered interrupts.
        scope: Only threads whose metadata contain this: what the caller may see.
        scan: Read this many interrupts at most, answered ones included, in three round trips; 1,000 at most. By default
            5,000 in pages of 200.
    """

    answered: bool
    scope: Scope | None
    scan: int | None
