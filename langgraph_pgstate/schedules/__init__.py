"""Schedules that enqueue runs at the times of cron expressions."""

from typing import TYPE_CHECKING

from langgraph_pgstate._lazy import lazy_attributes

if TYPE_CHECKING:
    from langgraph_pgstate.schedules.api import AsyncSchedules, Schedules
else:
    __getattr__, __dir__ = lazy_attributes(
        __name__,
        {
            "AsyncSchedules": "langgraph_pgstate.schedules.api",
            "Schedules": "langgraph_pgstate.schedules.api",
        },
    )

__all__ = ["AsyncSchedules", "Schedules"]
