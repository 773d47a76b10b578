"""Events of a thread, and statistics of handoffs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any


@dataclass(frozen=True, slots=True)
class Event:
    """One row of `events`: an occurrence on a thread.

    Attributes:
        thread_id: The thread.
        event_id: The event's id; ids sort by time within the thread.
        created_at: Creation time by the database's clock.
        kind: `status`, `handoff`, `interrupt`, `resume`, `answer`, `fork`, `prune`, `corrupt`, `action` or another.
        run_id: The run.
        checkpoint_ns: The namespace.
        checkpoint_id: The checkpoint.
        agent: The agent.
        payload: Details, whose keys depend on `kind`.
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
    """The number and timing of handoffs from one agent to another.

    Attributes:
        source: The agent that handed off.
        target: The agent that took over.
        count: Number of handoffs.
        threads: Number of threads with such a handoff.
        mean: Mean seconds until the thread's next handoff; `None` if there was never another.
        p50: Median of the same.
        last_at: Time of the last handoff.
    """

    source: str | None
    target: str | None
    count: int
    threads: int
    mean: float | None
    p50: float | None
    last_at: datetime
