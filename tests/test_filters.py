"""Filters: all that a typed dictionary names are taken, and no others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from langgraph_pgstate import PGState, PGStateSaver
from langgraph_pgstate.interrupts.types import InterruptFilter
from langgraph_pgstate.record.filters import FailedRunFilter, MessageFilter, RunFilter, SpanFilter
from langgraph_pgstate.runs.queue import DeadLetterFilter, QueueFilter
from langgraph_pgstate.threads.search import ThreadFilter, ThreadSearch

CALLS: dict[str, tuple[Callable[[PGState], Callable[..., Any]], type, tuple[str, ...]]] = {
    "threads.list": (lambda state: state.threads.list, ThreadFilter, ()),
    "threads.search": (lambda state: state.threads.search, ThreadSearch, ()),
    "interrupts.threads": (lambda state: state.interrupts.threads, InterruptFilter, ()),
    "runs.list": (lambda state: state.runs.list, RunFilter, ()),
    "runs.failed": (lambda state: state.runs.failed, FailedRunFilter, ()),
    "runs.queued": (lambda state: state.runs.queued, QueueFilter, ()),
    "runs.dead_letters": (lambda state: state.runs.dead_letters, DeadLetterFilter, ()),
    "spans.list": (lambda state: state.spans.list, SpanFilter, ("t",)),
    "messages.search": (lambda state: state.messages.search, MessageFilter, ("words",)),
}


def test_every_filter_is_taken(connection: psycopg.Connection, saver: PGStateSaver) -> None:
    state = PGState(connection, schema=saver.schema)
    for name, (call, known, arguments) in CALLS.items():
        given = dict.fromkeys(known.__annotations__.keys() - {"limit", "offset", "answered", "best_first"})
        assert call(state)(*arguments, limit=1, **given).items == (), name
        # An invalid value shows that it is looked at.
        for filter in given.keys() - {"min_steps"}:
            with pytest.raises(TypeError if filter in {"metadata", "state"} else ValueError, match=filter):
                call(state)(*arguments, **{filter: object()})


@pytest.mark.parametrize("name", CALLS)
def test_an_unknown_filter_is_refused_before_anything_is_asked(name: str, dsn: str) -> None:
    closed = psycopg.connect(dsn)
    closed.close()
    call, _, arguments = CALLS[name]
    with pytest.raises(TypeError, match="not 'usr_id'"):
        call(PGState(closed))(*arguments, usr_id="ann")
