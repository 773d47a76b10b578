"""Enqueued runs: the queue, the events of runs, limits and webhooks."""

from typing import TYPE_CHECKING

from langgraph_pgstate._lazy import lazy_attributes

if TYPE_CHECKING:
    from langgraph_pgstate.runs.api import AsyncRuns, Runs
    from langgraph_pgstate.runs.handles import AsyncRunHandle, RunHandle
    from langgraph_pgstate.runs.webhooks import AsyncWebhooks, Webhooks
else:
    __getattr__, __dir__ = lazy_attributes(
        __name__,
        {
            "AsyncRunHandle": "langgraph_pgstate.runs.handles",
            "AsyncRuns": "langgraph_pgstate.runs.api",
            "AsyncWebhooks": "langgraph_pgstate.runs.webhooks",
            "RunHandle": "langgraph_pgstate.runs.handles",
            "Runs": "langgraph_pgstate.runs.api",
            "Webhooks": "langgraph_pgstate.runs.webhooks",
        },
    )

__all__ = ["AsyncRunHandle", "AsyncRuns", "AsyncWebhooks", "RunHandle", "Runs", "Webhooks"]
