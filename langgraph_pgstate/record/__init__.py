"""The recorder: a graph's runs, spans and events, beside its checkpoints."""

from langgraph_pgstate.record.loops import LoopRecorder
from langgraph_pgstate.record.recorders import AsyncRecorder, Recorder

__all__ = ["AsyncRecorder", "LoopRecorder", "Recorder"]
