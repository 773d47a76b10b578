"""Long-term memory: what agents keep beyond a conversation."""

from typing import TYPE_CHECKING

from langgraph_pgstate._lazy import lazy_attributes

if TYPE_CHECKING:
    from langgraph_pgstate.memory.store import AsyncPGMemoryStore, PGMemoryStore
else:
    __getattr__, __dir__ = lazy_attributes(
        __name__,
        {
            "AsyncPGMemoryStore": "langgraph_pgstate.memory.store",
            "PGMemoryStore": "langgraph_pgstate.memory.store",
        },
    )

__all__ = ["AsyncPGMemoryStore", "PGMemoryStore"]
