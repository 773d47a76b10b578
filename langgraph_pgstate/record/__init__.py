"""The record of runs: their spans, messages, events, costs and feedback."""

from typing import TYPE_CHECKING

from langgraph_pgstate._lazy import lazy_attributes

if TYPE_CHECKING:
    from langgraph_pgstate.record.recorder.handler import LoopRecorder
    from langgraph_pgstate.record.recorder.recorders import AsyncRecorder, Recorder
    from langgraph_pgstate.record.windows import Window, window
else:
    __getattr__, __dir__ = lazy_attributes(
        __name__,
        {
            "AsyncRecorder": "langgraph_pgstate.record.recorder.recorders",
            "LoopRecorder": "langgraph_pgstate.record.recorder.handler",
            "Recorder": "langgraph_pgstate.record.recorder.recorders",
            "Window": "langgraph_pgstate.record.windows",
            "window": "langgraph_pgstate.record.windows",
        },
    )

__all__ = ["AsyncRecorder", "LoopRecorder", "Recorder", "Window", "window"]
