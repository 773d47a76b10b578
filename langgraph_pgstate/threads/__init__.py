"""Threads: who talks to which agent; their interrupts; branches, forks and differences; expiry.

`Threads` and `AsyncThreads` are each put together from a class for each topic.
"""

from langgraph_pgstate.threads.threads import AsyncThreads, Threads

__all__ = ["AsyncThreads", "Threads"]
