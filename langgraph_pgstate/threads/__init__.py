"""Threads: search, metadata, interrupts, branches, forks, differences and expiry.

`Threads` and `AsyncThreads` each combine one class per topic.
"""

from langgraph_pgstate.threads.threads import AsyncThreads, Threads

__all__ = ["AsyncThreads", "Threads"]
