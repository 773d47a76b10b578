"""Runs of graphs: their history, the queue, and the workers that run what is enqueued."""

from typing import TYPE_CHECKING

from langgraph_pgstate._lazy import lazy_attributes

if TYPE_CHECKING:
    from langgraph_pgstate.runs.assistants import Assistants, AsyncAssistants
    from langgraph_pgstate.runs.handles import AsyncRunHandle, RunHandle
    from langgraph_pgstate.runs.runs import AsyncRuns, Runs
    from langgraph_pgstate.runs.schedules import AsyncSchedules, Schedules
    from langgraph_pgstate.runs.webhooks import AsyncWebhooks, Webhooks
    from langgraph_pgstate.runs.worker import AsyncWorker, Worker
else:
    __getattr__, __dir__ = lazy_attributes(
        __name__,
        {
            "Assistants": "langgraph_pgstate.runs.assistants",
            "AsyncAssistants": "langgraph_pgstate.runs.assistants",
            "AsyncRunHandle": "langgraph_pgstate.runs.handles",
            "AsyncRuns": "langgraph_pgstate.runs.runs",
            "AsyncSchedules": "langgraph_pgstate.runs.schedules",
            "AsyncWebhooks": "langgraph_pgstate.runs.webhooks",
            "AsyncWorker": "langgraph_pgstate.runs.worker",
            "RunHandle": "langgraph_pgstate.runs.handles",
            "Runs": "langgraph_pgstate.runs.runs",
            "Schedules": "langgraph_pgstate.runs.schedules",
            "Webhooks": "langgraph_pgstate.runs.webhooks",
            "Worker": "langgraph_pgstate.runs.worker",
        },
    )

__all__ = [
    "Assistants",
    "AsyncAssistants",
    "AsyncRunHandle",
    "AsyncRuns",
    "AsyncSchedules",
    "AsyncWebhooks",
    "AsyncWorker",
    "RunHandle",
    "Runs",
    "Schedules",
    "Webhooks",
    "Worker",
]
