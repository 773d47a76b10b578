"""Types of schedules: schedules, their options, and filters of lists."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal, TypedDict

from langgraph_pgstate.scopes import Scope

if TYPE_CHECKING:
    from langgraph.types import Command
from dataclasses import dataclass

from langgraph_pgstate.runs.options import EnqueueOptions


class ScheduleAccess(TypedDict, total=False):
    """Filters of the schedules that a caller may see or delete.

    Attributes:
        scope: Only schedules whose metadata contain this.
        owner_id: If a schedule has no thread, it must belong to this user of the server.
        thread_scope: If a schedule has a thread, the thread's metadata must contain this.
    """

    scope: Scope | None
    owner_id: str | None
    thread_scope: Scope | None


class ScheduleSelection(ScheduleAccess, total=False):
    """Filters of schedules that are counted.

    Attributes:
        name: Only the schedule of this name.
        graph: Only schedules of this graph.
        thread_id: Only schedules whose runs are on this thread.
        paused: Only paused schedules, or only schedules that are not paused.
        metadata: Only schedules whose metadata contain this, as by jsonb's `@>`.
    """

    name: str | None
    graph: str | None
    thread_id: str | None
    paused: bool | None
    metadata: Mapping[str, Any] | None


class SortedSchedules(ScheduleSelection, total=False):
    """Filters and order of schedules that are read by offset.

    Attributes:
        by: The column to sort by: `created_at` by default, `updated_at`, `next_at`, `end_at`, `name`, `graph` or
            `thread_id`.
        ascending: Whether the smallest value comes first; false by default.
        offset: Number of schedules to skip.
        limit: Maximum number of schedules to return, up to 1,000; 20 by default.
    """

    by: Literal["created_at", "updated_at", "next_at", "end_at", "name", "graph", "thread_id"]
    ascending: bool
    offset: int
    limit: int


class ScheduleOptions(EnqueueOptions, total=False):
    """Options of a schedule, besides those of its runs.

    Attributes:
        timezone: IANA name of the time zone of `cron`, UTC by default. When clocks change, a tick at a fixed time comes
            once. An expression with `*` for minutes or hours ticks in both of two repeated hours.
        missed: What to do about ticks for which no process enqueued a run within a minute: `skip` them (the default),
            enqueue a run for the newest tick (`once`), or for `all` ticks, at most the newest hundred.
        end_at: Time after which there are no ticks; no end by default.
        paused: Whether the schedule is paused; by default unchanged, and false for a new schedule.
        thread_ttl: How long the new threads of its runs are kept after their last activity; for ever by default.
        scope: Metadata that a schedule must contain; a schedule without them is not changed.
        owner_id: User of the server who owns the schedule; none by default.
    """

    timezone: str
    missed: Literal["skip", "once", "all"]
    end_at: datetime | None
    paused: bool | None
    thread_ttl: timedelta | None
    scope: Scope | None
    owner_id: str | None


class ScheduleChanges(ScheduleOptions, total=False):
    """Changes of a schedule.

    Attributes:
        cron: The cron expression.
        input: The input of the runs.
        command: A command instead of an input.
    """

    cron: str
    input: Any
    command: Command[Any] | None


@dataclass(frozen=True, slots=True)
class Schedule:
    """A schedule, which enqueues a run of a graph at each of its ticks.

    Attributes:
        name: Name of the schedule.
        graph: Name of the graph.
        queue: Name of the queue.
        thread_id: The thread of all its runs; `None` for a new thread for each.
        cron: Minute, hour, day of month, month and day of week of the ticks.
        timezone: Name of the time zone of `cron`.
        missed: What happens to missed ticks: `skip`, `once` or `all`.
        next_at: The next tick; `None` if the schedule is paused, or has ended.
        last_at: The last tick that was not skipped; `None` before the first.
        last_thread_id: The thread of `last_run_id`.
        last_run_id: The last run that the schedule enqueued.
        last_error: Why the run at `last_at` was refused, or why the next tick cannot be computed; `None` for no error.
        created_at: Time of creation.
        updated_at: Time of the last change, pause or resumption.
        is_paused: Whether the schedule is paused.
        end_at: Time after which there are no ticks; `None` for no end.
        thread_ttl: How long new threads of the runs are kept; `None` for ever.
        metadata: Metadata of the runs and of their new threads; with the caller's own serializer, only the part that
            `scope` names.
        user_id: The user who owns the runs, if the config named one.
        next_ticks: The next five ticks, `next_at` first; empty if there is none.
        arguments: Input or command, config, context and other arguments of the runs. `None` if they cannot be read, or
            were not requested; only `sorted` requests them.
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
    is_paused: bool
    end_at: datetime | None
    thread_ttl: timedelta | None
    metadata: Mapping[str, Any]
    user_id: str | None
    next_ticks: tuple[datetime, ...] = ()
    arguments: Mapping[str, Any] | None = None
