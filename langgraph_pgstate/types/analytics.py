"""Statistics of threads and runs over a time."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal

from langgraph_pgstate.types.feedback import FeedbackAverage


@dataclass(frozen=True, slots=True)
class ThreadStatistics:
    """Threads of one agent and status that were active in a time.

    Attributes:
        agent: The agent; `None`: not known.
        status: `idle`, `busy`, `interrupted` or `error`.
        threads: Number of threads.
        mean_seconds: Mean time from creation to the last activity, in seconds.
        last_at: Last activity.
    """

    agent: str | None
    status: str
    threads: int
    mean_seconds: float
    last_at: datetime


@dataclass(frozen=True, slots=True)
class RunStatistics:
    """Runs that began in a time, aggregated by the requested keys. The other keys are `None`.

    Attributes:
        agent: The agent.
        release: The release of the application.
        tenant_id: The tenant.
        user_id: The user.
        day: The day on which the runs began, in UTC.
        runs: Number of runs.
        threads: Number of threads that they are of.
        success: Runs that ended as `success`; the following likewise.
        error: Runs that failed, or whose process died.
        timeout: Runs that took too long.
        interrupted: Runs that wait for an answer.
        cancelled: Runs that were cancelled.
        unfinished: Runs that are pending or running.
        failure_rate: Errors and timeouts among those that ended as success, error or timeout, 0 to 1; `None` without
            any.
        mean_seconds: Mean duration of the last attempt of runs that have ended, in seconds; `None` without any.
        p50_seconds: Median of the same.
        p95_seconds: 95th percentile of the same.
        steps: Supersteps.
        input_tokens: Tokens read by models.
        output_tokens: Tokens written by models.
        cost: Cost in the currency of `prices`.
    """

    agent: str | None
    release: str | None
    tenant_id: str | None
    user_id: str | None
    day: date | None
    runs: int
    threads: int
    success: int
    error: int
    timeout: int
    interrupted: int
    cancelled: int
    unfinished: int
    failure_rate: float | None
    mean_seconds: float | None
    p50_seconds: float | None
    p95_seconds: float | None
    steps: int
    input_tokens: int
    output_tokens: int
    cost: Decimal


@dataclass(frozen=True, slots=True)
class Analytics:
    """Statistics of threads and runs over a time.

    Attributes:
        threads: Threads by agent and status, most first.
        runs: Runs by the requested keys, most first.
        feedback: Feedback by name and by those of the requested keys that it has, most first.
        is_complete: Whether all threads, runs and feedback of the time were read; false if there were more than
            100,000 of one, of which the newest count, or more groups than `limit`.
    """

    threads: tuple[ThreadStatistics, ...]
    runs: tuple[RunStatistics, ...]
    feedback: tuple[FeedbackAverage, ...]
    is_complete: bool
