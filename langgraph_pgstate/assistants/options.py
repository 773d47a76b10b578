"""Fields of assistants."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypedDict

if TYPE_CHECKING:
    pass


class AssistantFields(TypedDict, total=False):
    """Fields of an assistant.

    Attributes:
        graph: Name of the graph.
        name: Its name, for people; need not be unique.
        description: Its description.
        config: Config of its runs.
        context: Context of its runs.
        metadata: The caller's metadata.
    """

    graph: str
    name: str
    description: str | None
    config: Mapping[str, Any]
    context: Any
    metadata: Mapping[str, Any]
