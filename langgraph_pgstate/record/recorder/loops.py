"""A callback handler for graphs that are compiled before an event loop exists."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, TypeVar
from uuid import UUID

from langgraph.callbacks import GraphCallbackHandler

from langgraph_pgstate.options import ThreadKeys
from langgraph_pgstate.record.recorder.handler import RecordingHandler, attach

G = TypeVar("G", bound=Any)


class LoopRecorder(GraphCallbackHandler):
    """A handler that forwards every callback to the recorder of the current event loop.

    A server imports a graph once and runs it on several loops, each with its own connections and recorder. A callback
    from another thread, such as that of a blocking node, goes to the recorder that has the parent span. Without a
    recorder, callbacks do nothing.

    Args:
        here: Returns the recorder of the running event loop, or `None`.
        everywhere: Returns all recorders of the process.
    """

    run_inline = True

    def __init__(
        self, here: Callable[[], RecordingHandler | None], everywhere: Callable[[], Iterable[RecordingHandler]]
    ) -> None:
        self._here = here
        self._everywhere = everywhere

    def __getattribute__(self, name: str) -> Any:
        """Return the callback of the current recorder.

        LangChain looks callbacks up by name for each call, and then decides whether to await them.
        """
        if not name.startswith("on_"):
            return super().__getattribute__(name)
        recorder = self._here()
        return partial(self._find_by_span, name) if recorder is None else getattr(recorder, name)

    def note_owner(self, run_id: UUID, metadata: Mapping[str, Any] | None, labels: Mapping[str, Any]) -> None:
        """Forward to the recorder of the current event loop."""
        recorder = self._here()
        if recorder is not None:
            recorder.note_owner(run_id, metadata, labels)

    @property
    def thread_keys(self) -> ThreadKeys | None:
        """Config keys of the current recorder that name a thread's user, tenant and agent."""
        recorder = self._here()
        return None if recorder is None else recorder.thread_keys

    def record(self, graph: G) -> G:
        """Return the graph with this recorder attached.

        Raises:
            ConfigurationError: If the graph is remote or cannot take callbacks.
        """
        return attach(graph, self)

    def _find_by_span(self, name: str, /, *args: Any, **kwargs: Any) -> Any:
        ids = [kwargs.get("run_id"), kwargs.get("parent_run_id")]
        # The callbacks of interrupts and resumptions pass the run id in an event object.
        ids += [getattr(event, "run_id", None) for event in args[:1]]
        for recorder in self._everywhere():
            if any(recorder.is_recording(id) for id in ids):
                return getattr(recorder, name)(*args, **kwargs)
        return None
