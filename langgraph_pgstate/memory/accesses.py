"""Reads of items, gathered and written together a second later: a read itself writes nothing."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any, Final

from langgraph_pgstate.memory.namespaces import Namespace, literal

_log = logging.getLogger(__name__)

FLUSH_SECONDS: Final = 1.0
_MAX_ROWS: Final = 1000
# Items whose reads are remembered at most; further ones are not counted while the server is away.
_MAX_WAITING: Final = 100_000


class Accesses:
    """Counts of reads that wait to be written. Thread-safe.

    Args:
        schedule: Called once when reads begin to wait, so that they are written soon.
    """

    def __init__(self, schedule: Callable[[], None]) -> None:
        self._schedule, self._lock = schedule, threading.Lock()
        self._waiting: dict[tuple[Namespace, str], list[int]] = {}

    def add(self, namespace: Namespace, key: str, refreshes: bool) -> None:
        """Count a read of an item; `refreshes` lets it end later if it has a time to live."""
        with self._lock:
            is_first = not self._waiting
            if len(self._waiting) >= _MAX_WAITING:
                return
            counted = self._waiting.setdefault((namespace, key), [0, 0])
            counted[0] += 1
            counted[1] |= refreshes
        if is_first:
            self._schedule()

    def take(self) -> list[dict[str, Any]]:
        """Return the parameters of the statements that write what waits, which no longer waits then."""
        with self._lock:
            taken, self._waiting = self._waiting, {}
        # Sorted, so that two processes do not wait for each other.
        rows = sorted(taken.items())
        return [_parameters(rows[start : start + _MAX_ROWS]) for start in range(0, len(rows), _MAX_ROWS)]


def _parameters(rows: list[tuple[tuple[Namespace, str], list[int]]]) -> dict[str, Any]:
    return {
        "namespaces": [literal(namespace) for (namespace, _), _ in rows],
        "keys": [key for (_, key), _ in rows],
        "counts": [count for _, (count, _) in rows],
        "refreshed": ["true" if refreshes else "false" for _, (_, refreshes) in rows],
    }


def report(error: Exception) -> None:
    """Log that reads could not be written: on a standby they never can."""
    _log.debug("reads of memories were not counted: %r", error)
