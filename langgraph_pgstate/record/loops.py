"""A callback handler for graphs that are made before there is an event loop: it finds its recorder when called."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, TypeVar

from langgraph.callbacks import GraphCallbackHandler

from langgraph_pgstate.record.handler import RecordingHandler
from langgraph_pgstate.record.recorders import _bind

G = TypeVar("G", bound=Any)


class LoopRecorder(GraphCallbackHandler):
    """Hands every callback to the recorder of the event loop it comes from.

    A server imports a graph once and runs it on several loops, each with connections and a recorder of its own. What
    comes from another thread, from a blocking node for instance, goes to the recorder that has the span above it.
    Where nobody records, callbacks do nothing.

    Args:
        here: Tells the recorder of the running event loop; `None` without either.
        everywhere: Tells all recorders of the process.
    """

    run_inline = True

    def __init__(
        self, here: Callable[[], RecordingHandler | None], everywhere: Callable[[], Iterable[RecordingHandler]]
    ) -> None:
        self._here = here
        self._everywhere = everywhere

    def __getattribute__(self, name: str) -> Any:
        """Callbacks are looked up by name just before they are called, and awaited or not by what is found then."""
        if not name.startswith("on_"):
            return super().__getattribute__(name)
        recorder = self._here()
        return partial(self._find_by_span, name) if recorder is None else getattr(recorder, name)

    def record(self, graph: G) -> G:
        """The same graph, recorded.

        Raises:
            ConfigurationError: If the graph runs elsewhere, or cannot be given callbacks.
        """
        return _bind(graph, self)

    def _find_by_span(self, name: str, /, *args: Any, **kwargs: Any) -> Any:
        ids = [kwargs.get("run_id"), kwargs.get("parent_run_id")]
        # An interrupt and a resumption are objects of their own.
        ids += [getattr(event, "run_id", None) for event in args[:1]]
        for recorder in self._everywhere():
            if any(recorder.is_recording(id) for id in ids):
                return getattr(recorder, name)(*args, **kwargs)
        return None
