"""Schedules, which enqueue runs at times."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any


@dataclass(frozen=True, slots=True)
class Schedule:
    """A schedule, which enqueues a run of a graph at each of its ticks.

    Attributes:
        name: The schedule.
        graph: Name of the graph.
        queue: The queue.
        thread_id: The thread of all its runs; `None` for a new thread for each.
        cron: Minute, hour, day of month, month and day of week of the ticks.
        timezone: Name of the time zone of `cron`.
        missed: What becomes of missed ticks: `skip`, `once` or `all`.
        next_at: The next tick; `None` if the schedule is paused, or has ended.
        last_at: The last tick that was not skipped; `None` before the first.
        last_thread_id: The thread of `last_run_id`.
        last_run_id: The run that it enqueued last.
        last_error: Why a run was refused at `last_at`; `None` if none was.
        created_at: Time it was made.
        updated_at: Time it was changed, paused or resumed.
        is_paused: Whether its ticks pass.
        end_at: Time of the last tick at most; `None` if it has no end.
        thread_ttl: How long the new threads of its runs are kept; `None` for ever.
        metadata: Metadata of its runs, and of their new threads; with a serializer of the caller's own, only what
            `scope` names.
        user_id: The user whose runs they are, if the config named one.
        next_ticks: The next five ticks, `next_at` first; empty if there is none.
        arguments: Input or command, config, context and other arguments of the runs; `None` if they were not asked for,
            as only `sorted` does, or cannot be read.
    """

    name: str
    graph: str
    queue: str
    thread_id: str | None
    cron: str
    timezone: str
    missed: str
    next_at: datetime | None
    last_at: datetime | None
    last_thread_id: str | None
    last_run_id: str | None
    last_error: str | None
    created_at: datetime
    updated_at: datetime
    is_paused: bool = False
    end_at: datetime | None = None
    thread_ttl: timedelta | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    user_id: str | None = None
    next_ticks: tuple[datetime, ...] = ()
    arguments: Mapping[str, Any] | None = None
