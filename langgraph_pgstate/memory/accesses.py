"""Counts of reads of items. Counts are written a second later, so that a read itself writes nothing."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from itertools import chain
from typing import Any, Final

from langgraph_pgstate.memory.namespaces import Namespace, literal

_log = logging.getLogger(__name__)

FLUSH_SECONDS: Final = 1.0
_MAX_ROWS: Final = 1000
_READ_ONLY: Final = "25006"
# Maximum number of items whose counts wait to be written. At this number, further reads are not counted.
_MAX_WAITING: Final = 100_000

Reads = list[tuple[tuple[Namespace, str], list[int]]]
"""Items, each with its number of reads, and 1 if a read extends the item's time to live."""


class Accesses:
    """Counts of reads that wait to be written. Thread-safe.

    Args:
        schedule: Schedules the write of the counts. Called when the first read is added.
    """

    def __init__(self, schedule: Callable[[], None]) -> None:
        self._schedule, self._lock = schedule, threading.Lock()
        self._waiting: dict[tuple[Namespace, str], list[int]] = {}
        self._is_scheduled = self._is_closed = False

    def add(self, namespace: Namespace, key: str, refreshes: bool, count: int = 1) -> None:
        """Count reads of an item. If `refreshes`, the reads also extend the item's time to live."""
        with self._lock:
            if self._is_closed or len(self._waiting) >= _MAX_WAITING:
                return
            counted = self._waiting.setdefault((namespace, key), [0, 0])
            counted[0] += count
            counted[1] |= refreshes
            is_scheduled, self._is_scheduled = self._is_scheduled, True
        if not is_scheduled:
            try:
                self._schedule()
            except RuntimeError:
                # No thread can be started. The next read tries again.
                self._is_scheduled = False

    def take(self) -> list[Reads]:
        """Remove and return the waiting counts, in batches."""
        with self._lock:
            taken, self._waiting, self._is_scheduled = self._waiting, {}, False
        # Sort the items. Processes that write items in different orders could deadlock.
        rows = sorted(taken.items())
        return [rows[start : start + _MAX_ROWS] for start in range(0, len(rows), _MAX_ROWS)]

    def give_back(self, batches: list[Reads], error: BaseException | None) -> None:
        """Put back counts that could not be written, or not yet. Drop counts of a standby, which never writes."""
        _log.debug("reads of memories were not counted: %r", error)
        if getattr(error, "sqlstate", None) != _READ_ONLY:
            for (namespace, key), (count, refreshes) in chain.from_iterable(batches):
                self.add(namespace, key, bool(refreshes), count)

    def close(self) -> None:
        """Stop counting."""
        with self._lock:
            self._waiting, self._is_closed = {}, True


def parameters_of(reads: Reads) -> dict[str, Any]:
    """Return the parameters of the statement that writes reads."""
    return {
        "namespaces": [literal(namespace) for (namespace, _), _ in reads],
        "keys": [key for (_, key), _ in reads],
        "counts": [count for _, (count, _) in reads],
        "refreshed": ["true" if refreshes else "false" for _, (_, refreshes) in reads],
    }
