"""The runs of a recorder that are in progress, by thread. No I/O."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextvars import ContextVar
from typing import Final

from langgraph_pgstate.arguments import Address
from langgraph_pgstate.record.recorder.records import RunRecord

enqueued_run: Final[ContextVar[tuple[str, str] | None]] = ContextVar("enqueued_run", default=None)
"""Thread and id of the enqueued run that a worker executes here. It has a row already, unless it was deleted."""

attempt_is_lost: Final[ContextVar[Callable[[], bool]]] = ContextVar("attempt_is_lost", default=lambda: False)
"""Returns whether the attempt that a worker executes here is not its own any more; then it reports no status."""


class OpenRuns:
    """The runs in progress. Thread-safe."""

    def __init__(self) -> None:
        self._by_thread: dict[str, list[RunRecord]] = {}
        self._lock = threading.Lock()

    def add(self, run: RunRecord) -> None:
        """Add a run that begins."""
        with self._lock:
            self._by_thread.setdefault(run.thread_id, []).append(run)

    def remove(self, run: RunRecord) -> None:
        """Remove a run that has ended."""
        with self._lock:
            runs = self._by_thread.get(run.thread_id, [])
            if run in runs:
                runs.remove(run)
            if not runs:
                self._by_thread.pop(run.thread_id, None)

    def run_on(self, thread_id: str, source: str | None = None, run_id: str | None = None) -> RunRecord | None:
        """Return the run in progress on a thread, the last of several, or `None`.

        A run that has not begun may be waiting for the others, so it comes last. It begins with an input checkpoint.

        Args:
            thread_id: The thread.
            source: Source of the checkpoint that is put.
            run_id: The run that the checkpoint names, if it names one.
        """
        runs = self._of(thread_id)
        if run_id is not None and (named := [run for run in runs if run.run_id == run_id]):
            return named[-1]
        of_its_kind = [run for run in runs if run.is_begun is (source != "input")]
        return next(reversed(of_its_kind or runs), None)

    def run_putting(self, address: Address) -> RunRecord | None:
        """Return the run whose records a put has taken along, or `None`."""
        place = place_of(address)
        return next((run for run in self._of(address.thread_id) if place in run.taken), None)

    def _of(self, thread_id: str) -> list[RunRecord]:
        return list(self._by_thread.get(thread_id, ()))


def place_of(address: Address) -> tuple[str, str]:
    """Return the key under which a run keeps what a put of this checkpoint has taken along."""
    return address.checkpoint_ns, address.checkpoint_id or ""
