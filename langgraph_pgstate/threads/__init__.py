"""Threads: search, metadata, branches, forks, differences and expiry."""

from typing import TYPE_CHECKING

from langgraph_pgstate._lazy import lazy_attributes

if TYPE_CHECKING:
    from langgraph_pgstate.threads.api import AsyncThreads, Threads
else:
    __getattr__, __dir__ = lazy_attributes(
        __name__,
        {
            "AsyncThreads": "langgraph_pgstate.threads.api",
            "Threads": "langgraph_pgstate.threads.api",
        },
    )

__all__ = ["AsyncThreads", "Threads"]
