"""Workers that execute the runs of the queue."""

from typing import TYPE_CHECKING

from langgraph_pgstate._lazy import lazy_attributes

if TYPE_CHECKING:
    from langgraph_pgstate.worker.parts import run_state
    from langgraph_pgstate.worker.worker import AsyncWorker, Worker
else:
    __getattr__, __dir__ = lazy_attributes(
        __name__,
        {
            "AsyncWorker": "langgraph_pgstate.worker.worker",
            "Worker": "langgraph_pgstate.worker.worker",
            "run_state": "langgraph_pgstate.worker.parts",
        },
    )

__all__ = ["AsyncWorker", "Worker", "run_state"]
