"""Keyword arguments that filter lists of runs, spans, feedback and messages."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from langgraph_pgstate.arguments import Moment
from langgraph_pgstate.paging import OwnerFilter, PageFilter
from langgraph_pgstate.scopes import Scope


class FailedRunFilter(OwnerFilter, total=False):
    """Filters of failed runs.

    Attributes:
        since: Only runs that started at this time or later; a timedelta counts back from now.
        until: Only runs that started before this time.
        min_steps: Only runs of at least this many supersteps.
        scope: Only runs of threads whose metadata contain this. Use it to limit what a caller sees.
        by: Sort key, the greatest first: `started_at` (default), `cost`, `duration` or `tokens`. The last three sort
            only the newest 10,000 runs that pass the other filters. The duration of a running run counts until now.
        model: Only runs that called this model, among the first 2,000 in the order of `by`. Needs a `by` other than
            `started_at`.
    """

    since: Moment | None
    until: datetime | None
    min_steps: int | None
    scope: Scope | None
    by: Literal["started_at", "cost", "duration", "tokens"] | None
    model: str | None


class RunFilter(FailedRunFilter, total=False):
    """Filters of runs.

    Attributes:
        thread_id: Only runs of this thread.
        status: Only runs of this status: `pending`, `running`, `interrupted`, `success`, `error`, `cancelled` or
            `timeout`.
        offset: Number of runs to skip.
    """

    thread_id: str | None
    status: str | None
    offset: int


class SpanFilter(PageFilter, total=False):
    """Filters of a thread's spans.

    Attributes:
        run_id: Only spans of this run.
        kind: Only spans of this kind: `graph`, `node`, `chain`, `llm`, `tool`, `retriever` or `memory`.
        name: Only spans of this name.
        status: Only spans of this status.
    """

    run_id: str | None
    kind: str | None
    name: str | None
    status: str | None


class FeedbackFilter(PageFilter, total=False):
    """Filters of feedback.

    Attributes:
        thread_id: Only feedback on runs of this thread.
        run_id: Only feedback on this run of the thread.
        name: Only feedback of this name.
        source: Only feedback of this source: `human`, `model` or `program`.
        since: Only feedback given at this time or later; a timedelta counts back from now.
    """

    thread_id: str | None
    run_id: str | None
    name: str | None
    source: str | None
    since: Moment | None


class MessageFilter(PageFilter, total=False):
    """Filters of a search in messages.

    Attributes:
        user_id: Only messages in this user's threads.
        tenant_id: Only messages in this tenant's threads.
        thread_id: Only messages in this thread.
        best_first: Whether to sort by the score of the match, the best first, instead of by time.
    """

    user_id: str | None
    tenant_id: str | None
    thread_id: str | None
    best_first: bool
