"""Schedules, their options, and filters of lists."""

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
        scope: Only schedules whose metadata contain these items.
        owner_id: Only schedules of this user of the server. Schedules with a thread are not filtered.
        thread_scope: Only schedules of threads whose metadata contain these items. Schedules without a thread are not
            filtered.
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
        metadata: Only schedules whose metadata contain these items, as by jsonb's `@>`.
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
    """Options of a schedule and of its runs.

    Attributes:
        timezone: IANA name of the time zone of `cron`, UTC by default. When clocks change, a tick at a fixed time comes
            once. An expression with `*` for minutes or hours ticks in both of two repeated hours.
        missed: What happens to ticks that are more than a minute late. `skip`, the default: no run is enqueued. `once`:
            a run is enqueued for the newest tick. `all`: runs are enqueued for the newest hundred ticks.
        end_at: Time after which there are no ticks. No end by default.
        paused: Whether the schedule is paused. By default, the schedule stays as it is. A new schedule is not paused.
        thread_ttl: How long new threads of the runs are kept after their last activity. For ever by default.
        scope: Change the schedule only if its metadata contain these items.
        owner_id: User of the server who owns the schedule. None by default.
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
    """A schedule that enqueues a run of a graph at each tick.

    Attributes:
        name: Name of the schedule.
        graph: Name of the graph.
        queue: Name of the queue.
        thread_id: The thread of all runs; `None` if each run has a new thread.
        cron: Minute, hour, day of month, month and day of week of the ticks.
        timezone: Name of the time zone of `cron`.
        missed: What happens to missed ticks: `skip`, `once` or `all`.
        next_at: The next tick; `None` if the schedule is paused or has ended.
        last_at: The last tick that was not skipped, if any.
        last_thread_id: The thread of `last_run_id`.
        last_run_id: The last run that the schedule enqueued.
        last_error: Why the run at `last_at` was refused, or why a machine cannot fire the schedule.
        created_at: Time of creation.
        updated_at: Time of the last change, pause or resumption.
        is_paused: Whether the schedule is paused.
        end_at: Time after which there are no ticks; `None` for no end.
        thread_ttl: How long new threads of the runs are kept; `None` for ever.
        metadata: Metadata of the runs and of their new threads. If the caller has a serializer of its own, only the
            keys of `scope`.
        user_id: The user who owns the runs, if the config names a user.
        next_ticks: At most five ticks, beginning with `next_at`.
        arguments: Input or command, config, context and other arguments of the runs. Only `sorted` returns them.
            `None` if the arguments cannot be read.
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
