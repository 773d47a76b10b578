"""Threads: who talks to which agent; the inbox of those that wait; branches, forks and differences; retention.

One class a colour, put together from a room for each topic.
"""

from langgraph_pgstate.threads.threads import AsyncThreads, Threads

__all__ = ["AsyncThreads", "Threads"]
