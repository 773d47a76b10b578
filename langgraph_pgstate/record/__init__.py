"""The recorder, which writes the runs, spans and events of a graph."""

from typing import TYPE_CHECKING

from langgraph_pgstate._lazy import lazy_attributes

if TYPE_CHECKING:
    from langgraph_pgstate.record.loops import LoopRecorder
    from langgraph_pgstate.record.recorders import AsyncRecorder, Recorder
else:
    __getattr__, __dir__ = lazy_attributes(
        __name__,
        {
            "AsyncRecorder": "langgraph_pgstate.record.recorders",
            "LoopRecorder": "langgraph_pgstate.record.loops",
            "Recorder": "langgraph_pgstate.record.recorders",
        },
    )

__all__ = ["AsyncRecorder", "LoopRecorder", "Recorder"]
