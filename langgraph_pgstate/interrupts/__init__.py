"""Interrupts of threads, their answers, and the resumption of interrupted runs."""

from typing import TYPE_CHECKING

from langgraph_pgstate._lazy import lazy_attributes

if TYPE_CHECKING:
    from langgraph_pgstate.interrupts.api import AsyncInterrupts, Interrupts
else:
    __getattr__, __dir__ = lazy_attributes(
        __name__,
        {
            "AsyncInterrupts": "langgraph_pgstate.interrupts.api",
            "Interrupts": "langgraph_pgstate.interrupts.api",
        },
    )

__all__ = ["AsyncInterrupts", "Interrupts"]
