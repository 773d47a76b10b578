"""Assistants, which are graphs with a config and a context of their own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any


@dataclass(frozen=True, slots=True)
class Assistant:
    """A version of an assistant: a graph with a config and a context.

    Attributes:
        assistant_id: The assistant.
        graph: Name of the graph.
        name: Its name, for people.
        description: Its description.
        config: Config of its runs, under what each of them gives.
        context: Context of its runs, in the same way; `None` for none.
        metadata: The caller's metadata, those of its runs, too.
        version: Number of the version, from 1.
        created_at: Time it was made.
        updated_at: Time of its last change.
        owner_id: User of the server who made it; `None` if it is nobody's.
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
