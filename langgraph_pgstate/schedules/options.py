"""Options of schedules."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal

from langgraph_pgstate.scopes import Scope

if TYPE_CHECKING:
    from langgraph.types import Command
from langgraph_pgstate.runs.options import EnqueueOptions


class ScheduleOptions(EnqueueOptions, total=False):
    """Options of a schedule, besides those of its runs.

    Attributes:
        timezone: IANA name of the time zone of `cron`, UTC by default. Where clocks are changed, each tick comes once.
        missed: What becomes of ticks at which nobody enqueued runs for a minute: `skip` them, the default; enqueue one
            run, for the newest (`once`); or `all`, the newest hundred at most.
        end_at: Time of the last tick at most; no end by default.
        paused: Whether its ticks pass; by default it stays as it is, and a new one is not paused.
        thread_ttl: How long the new threads of its runs are kept after they were touched last; for ever by default.
        scope: Metadata that a schedule which is changed must contain: what the caller may see.
        owner_id: User of the server whose it is; nobody by default.
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
        cron: Its expression.
        input: The input of its runs.
        command: A command instead of an input.
    """

    cron: str
    input: Any
    command: Command[Any] | None
