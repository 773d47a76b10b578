"""Assistants: graphs with a config and a context of their own."""

from typing import TYPE_CHECKING

from langgraph_pgstate._lazy import lazy_attributes

if TYPE_CHECKING:
    from langgraph_pgstate.assistants.api import Assistants, AsyncAssistants
else:
    __getattr__, __dir__ = lazy_attributes(
        __name__,
        {
            "Assistants": "langgraph_pgstate.assistants.api",
            "AsyncAssistants": "langgraph_pgstate.assistants.api",
        },
    )

__all__ = ["Assistants", "AsyncAssistants"]
