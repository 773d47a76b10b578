"""Filters of lists of assistants."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypedDict

from langgraph_pgstate.scopes import Scope


class AssistantSelection(TypedDict, total=False):
    """Filters of assistants that are counted.

    Attributes:
        assistant_id: Only the assistant of this id.
        graph: Only assistants of this graph.
        name: Only assistants whose name contains this, whatever the case.
        metadata: Only assistants whose metadata contain this, as by jsonb's `@>`.
        scope: Only assistants whose metadata contain this, too: what the caller may see.
        owner_id: Only assistants of this user of the server, and those of nobody.
        others: Assistants that are not stored, but among the others: `assistant_id`, `graph`, `name`, `metadata` and
            `created_at` of each, as JSON types.
    """

    assistant_id: str | None
    graph: str | None
    name: str | None
    metadata: Mapping[str, Any] | None
    scope: Scope | None
    owner_id: str | None
    others: Sequence[Mapping[str, Any]]


class SortedAssistants(AssistantSelection, total=False):
    """Filters and order of assistants that are read by offset.

    Attributes:
        by: The column to sort by: `created_at` by default, `updated_at`, `assistant_id`, `graph` or `name`.
        ascending: Whether the least comes first; false by default.
        offset: Number of assistants that are left out.
        limit: Number of assistants at most, 1,000 at most; 20 by default.
    """

    by: Literal["created_at", "updated_at", "assistant_id", "graph", "name"]
    ascending: bool
    offset: int
    limit: int
