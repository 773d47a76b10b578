"""The attempts of this process, whichever of its ledgers, threads or event loops makes them. No I/O.

A forked child inherits these notes. They do no harm there: its holder id is another one.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from langgraph_pgstate.operations.tools.tool_executions import Outcome

_MAX_UNRECORDED = 1000

# Changed only by single calls of set and dict, which are atomic: a lock could be held by another thread at a fork.
_under_way: set[str] = set()
_unrecorded: dict[str, Outcome] = {}


@contextmanager
def under_way(intent_id: str) -> Iterator[None]:
    """Count an attempt as under way, from before its intent is sent until its outcome is recorded or given up."""
    _under_way.add(intent_id)
    try:
        yield
    finally:
        _under_way.discard(intent_id)


def is_under_way(intent_id: str | None) -> bool:
    """Tell whether an attempt is being made in this process."""
    return intent_id in _under_way


def keep_outcome(intent_id: str, outcome: Outcome) -> None:
    """Keep an outcome that could not be written, for whoever asks for the action next. The oldest are forgotten."""
    _unrecorded[intent_id] = outcome
    for oldest in list(_unrecorded)[: max(0, len(_unrecorded) - _MAX_UNRECORDED)]:
        _unrecorded.pop(oldest, None)


def kept_outcome(intent_id: str | None) -> Outcome | None:
    """Return the outcome of an attempt if it could not be written, else `None`."""
    return None if intent_id is None else _unrecorded.get(intent_id)


def drop_outcome(intent_id: str) -> None:
    """Forget an outcome that was written, or that no longer counts."""
    _unrecorded.pop(intent_id, None)
