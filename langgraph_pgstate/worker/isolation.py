"""Runs that are alone in this process: several workers in one process give way to each other."""

from __future__ import annotations

import os
import threading
from typing import Final


class Isolation:
    """The workers of this process that run something, and the one whose run is alone. Thread-safe."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget all workers, with a new lock, for another thread may hold this one."""
        self._lock = threading.Lock()
        self._busy: set[object] = set()
        self._alone: object = None

    def enter(self, worker: object) -> bool:
        """Remember that a worker begins to run something. Return false if another one has a run that is alone."""
        with self._lock:
            if self._alone not in (None, worker):
                return False
            self._busy.add(worker)
            return True

    def enter_alone(self, worker: object) -> bool:
        """Remember that a worker begins a run that is alone. Return false if another one runs something."""
        with self._lock:
            if self._alone not in (None, worker) or self._busy - {worker}:
                return False
            self._busy.add(worker)
            self._alone = worker
            return True

    def leave(self, worker: object) -> None:
        """Remember that a worker runs nothing. Safe to repeat."""
        with self._lock:
            self._busy.discard(worker)
            if self._alone is worker:
                self._alone = None


ISOLATION: Final = Isolation()
# A child of this process runs none of its runs.
os.register_at_fork(after_in_child=ISOLATION.reset)
