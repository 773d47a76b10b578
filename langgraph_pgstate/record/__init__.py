"""The recorder, which writes the runs, spans and events of a graph."""

from langgraph_pgstate.record.loops import LoopRecorder
from langgraph_pgstate.record.recorders import AsyncRecorder, Recorder

__all__ = ["AsyncRecorder", "LoopRecorder", "Recorder"]
