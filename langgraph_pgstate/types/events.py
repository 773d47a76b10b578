"""Events of a thread, and statistics of handoffs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any


@dataclass(frozen=True, slots=True)
class Event:
    """One row of `events`: something that happened to a thread.

    Attributes:
        thread_id: The thread.
        event_id: Sorts by time within the thread.
        created_at: By the database's clock.
        kind: `status`, `handoff`, `interrupt`, `resume`, `answer`, `fork`, `prune`, `corrupt` or another.
        run_id: The run it happened in.
        checkpoint_ns: The namespace.
        checkpoint_id: The checkpoint.
        agent: The agent.
        payload: What there is to say of it.
    """

    thread_id: str
    event_id: str
    created_at: datetime
    kind: str
    run_id: str | None
    checkpoint_ns: str | None
    checkpoint_id: str | None
    agent: str | None
    payload: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class HandoffStatistics:
    """How often one agent handed over to another.

    Attributes:
        source: Who handed over.
        target: To whom.
        count: How often.
        threads: In how many threads.
        mean: Seconds until the thread's next handoff, on average; `None` if there was never another.
        p50: The median.
        last_at: The last time.
    """

    source: str | None
    target: str | None
    count: int
    threads: int
    mean: float | None
    p50: float | None
    last_at: datetime
