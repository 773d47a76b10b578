"""Schedules, which enqueue runs at times."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime


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
        next_at: The next tick; `None` if the schedule is paused.
        last_at: The last tick that was not skipped; `None` before the first.
        last_thread_id: The thread of `last_run_id`.
        last_run_id: The run that it enqueued last.
        last_error: Why a run was refused at `last_at`; `None` if none was.
        created_at: Time it was made.
        updated_at: Time it was changed, paused or resumed.
        next_ticks: The next five ticks, `next_at` first; empty if the schedule is paused.
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
    next_ticks: tuple[datetime, ...] = ()
