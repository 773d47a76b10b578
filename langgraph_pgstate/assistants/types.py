"""Types of assistants, of their fields, and of the filters of their lists."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, TypedDict

from langgraph_pgstate.scopes import Scope


class AssistantSelection(TypedDict, total=False):
    """Filters of assistants that are counted.

    Attributes:
        assistant_id: Only the assistant of this id.
        graph: Only assistants of this graph.
        name: Only assistants whose name contains this text, in upper or lower case.
        metadata: Only assistants whose metadata contain this, as by jsonb's `@>`.
        scope: Only assistants whose metadata contain this. It restricts what a user may see.
        owner_id: Only assistants of this user of the server, and assistants without an owner.
        others: Assistants that are not stored, but are part of the results. Each has `assistant_id`, `graph`, `name`,
            `metadata` and `created_at`, as JSON types.
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
        by: The column to sort by: `created_at` (the default), `updated_at`, `assistant_id`, `graph` or `name`.
        ascending: Whether the smallest value comes first. By default, false.
        offset: Number of assistants to skip.
        limit: Maximum number of assistants, at most 1,000. By default, 20.
    """

    by: Literal["created_at", "updated_at", "assistant_id", "graph", "name"]
    ascending: bool
    offset: int
    limit: int


class AssistantFields(TypedDict, total=False):
    """Fields of an assistant.

    Attributes:
        graph: Name of the graph.
        name: Name for people, which need not be unique.
        description: Description of the assistant.
        config: Config of the assistant's runs.
        context: Context of the assistant's runs.
        metadata: The caller's metadata.
    """

    graph: str
    name: str
    description: str | None
    config: Mapping[str, Any]
    context: Any
    metadata: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Assistant:
    """A version of an assistant: a graph with a config and a context.

    Attributes:
        assistant_id: Id of the assistant.
        graph: Name of the graph.
        name: Name of the assistant, for people.
        description: Description of the assistant.
        config: Default config of the assistant's runs.
        context: Default context of the assistant's runs; `None` for none.
        metadata: The caller's metadata, which the assistant's runs get, too.
        version: Number of the version, from 1.
        created_at: Time of creation.
        updated_at: Time of the last change.
        owner_id: User of the server who owns the assistant; `None` if it has no owner.
    """

    assistant_id: str
    graph: str
    name: str
    description: str | None
    config: Mapping[str, Any]
    context: Any
    metadata: Mapping[str, Any]
    version: int
    created_at: datetime
    updated_at: datetime
    owner_id: str | None = None
