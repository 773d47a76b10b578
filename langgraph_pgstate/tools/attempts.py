"""Attempts in progress in this process, and outcomes that it could not write. Shared by all ledgers. No I/O.

A forked child inherits these entries. They are harmless there, because it has another holder id.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from langgraph_pgstate.tools.executions import Outcome

_MAX_UNRECORDED = 1000

# Changed only by single list and dict calls, which are atomic; another thread could hold a lock at a fork.
_under_way: list[str] = []
_unrecorded: dict[str, Outcome] = {}


@contextmanager
def under_way(intent_id: str) -> Iterator[None]:
    """Mark an attempt as in progress, from before its intent is sent until its outcome is recorded or given up.

    The blocks of one attempt may overlap.
    """
    _under_way.append(intent_id)
    try:
        yield
    finally:
        _under_way.remove(intent_id)


def is_under_way(intent_id: str | None) -> bool:
    """Return whether an attempt is in progress in this process."""
    return intent_id in _under_way


def keep_outcome(intent_id: str, outcome: Outcome) -> None:
    """Keep an outcome that could not be written for the action's next call. The oldest are dropped."""
    _unrecorded[intent_id] = outcome
    for oldest in list(_unrecorded)[: max(0, len(_unrecorded) - _MAX_UNRECORDED)]:
        _unrecorded.pop(oldest, None)


def kept_outcome(intent_id: str | None) -> Outcome | None:
    """Return the outcome of an attempt that could not be written, or `None`."""
    return None if intent_id is None else _unrecorded.get(intent_id)


def drop_outcome(intent_id: str) -> None:
    """Drop an outcome that was written or that no longer counts."""
    _unrecorded.pop(intent_id, None)
