"""Long-term memory of agents, across conversations."""

from typing import TYPE_CHECKING

from langgraph_pgstate._lazy import lazy_attributes

if TYPE_CHECKING:
    from langgraph_pgstate.memory.extracting import extract_summaries, extraction
    from langgraph_pgstate.memory.notes import AsyncNotes, Notes
    from langgraph_pgstate.memory.store import AsyncPGMemoryStore, PGMemoryStore
    from langgraph_pgstate.memory.tools import memory_tools
    from langgraph_pgstate.memory.types import Cause, Caused, FoundItem, Memory, MemoryVersion, StoredItem
else:
    __getattr__, __dir__ = lazy_attributes(
        __name__,
        {
            "AsyncNotes": "langgraph_pgstate.memory.notes",
            "AsyncPGMemoryStore": "langgraph_pgstate.memory.store",
            "Cause": "langgraph_pgstate.memory.types",
            "Caused": "langgraph_pgstate.memory.types",
            "FoundItem": "langgraph_pgstate.memory.types",
            "Memory": "langgraph_pgstate.memory.types",
            "MemoryVersion": "langgraph_pgstate.memory.types",
            "Notes": "langgraph_pgstate.memory.notes",
            "PGMemoryStore": "langgraph_pgstate.memory.store",
            "StoredItem": "langgraph_pgstate.memory.types",
            "extract_summaries": "langgraph_pgstate.memory.extracting",
            "extraction": "langgraph_pgstate.memory.extracting",
            "memory_tools": "langgraph_pgstate.memory.tools",
        },
    )

__all__ = [
    "AsyncNotes",
    "AsyncPGMemoryStore",
    "Cause",
    "Caused",
    "FoundItem",
    "Memory",
    "MemoryVersion",
    "Notes",
    "PGMemoryStore",
    "StoredItem",
    "extract_summaries",
    "extraction",
    "memory_tools",
]
