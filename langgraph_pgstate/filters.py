"""Filters of lists and searches, each a typed dictionary, taken as `**filters: Unpack[...]`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Literal, TypedDict

from langgraph_pgstate.errors import ArgumentTypeError
from langgraph_pgstate.scopes import Scope

Moment = datetime | timedelta
"""A time, or an age by the database's clock."""


class PageFilter(TypedDict, total=False):
    """The part of a list that is returned.

    Attributes:
        limit: Page size, 1,000 at most; by default 20, or 100 for spans.
        cursor: `next` of the previous page.
    """

    limit: int
    cursor: str | None


class OwnerFilter(PageFilter, total=False):
    """The owner of what is returned.

    Attributes:
        user_id: Only what belongs to this user.
        tenant_id: Only what belongs to this tenant.
        agent: Only what belongs to this agent.
    """

    user_id: str | None
    tenant_id: str | None
    agent: str | None


class ThreadFilter(OwnerFilter, total=False):
    """Filters of threads. Times need a time zone.

    Attributes:
        status: Only threads of this status: `idle`, `busy`, `interrupted` or `error`.
        created_after: Only threads created at this time or later.
        created_before: Only threads created before this time.
        updated_after: Only threads updated at this time or later.
        updated_before: Only threads last updated before this time.
    """

    status: str | None
    created_after: datetime | None
    created_before: datetime | None
    updated_after: datetime | None
    updated_before: datetime | None


class ThreadSearch(ThreadFilter, total=False):
    """Filters of threads by their content.

    Attributes:
        metadata: Only threads whose metadata contain this, as by jsonb's `@>`.
        state: Only threads whose projected channels contain this, like `{"booking": {"hotel": "Astoria"}}`.
        where: A condition on the projected channels, as a JSON path of PostgreSQL:
            `$.booking.check_in >= "2027-03-01" && $.booking.check_in < "2027-04-01"`.
        scope: Only threads whose metadata contain this, too: what the caller may see.
    """

    metadata: Mapping[str, Any] | None
    state: Mapping[str, Any] | None
    where: str | None
    scope: Scope | None


class ThreadTextSearch(ThreadSearch, total=False):
    """Filters of threads by their content and their messages.

    Attributes:
        text: Only threads with a message that contains these words, as for `messages.search`, or whose id begins so.
    """

    text: str | None


class ThreadSelection(ThreadSearch, total=False):
    """Filters of threads that are counted, or read by offset; without `cursor`.

    Attributes:
        ids: Only these threads.
    """

    ids: Sequence[str] | None


class SortedThreads(ThreadSelection, total=False):
    """Filters and order of threads that are read by offset.

    Attributes:
        by: The column to sort by: `updated_at` by default, `created_at`, `thread_id` or `status`.
        ascending: Whether the least comes first; false by default.
        offset: Number of threads that are left out.
    """

    by: Literal["updated_at", "created_at", "thread_id", "status"]
    ascending: bool
    offset: int


class DeadLetterFilter(TypedDict, total=False):
    """Filters of runs that failed for good.

    Attributes:
        queue: Only runs of this queue.
        graph: Only runs of this graph.
        scope: Only runs of threads whose metadata contain this.
        limit: Page size, 1,000 at most; 20 by default.
        cursor: `next` of the previous page.
    """

    queue: str | None
    graph: str | None
    scope: Scope | None
    limit: int
    cursor: str | None


class QueueFilter(DeadLetterFilter, total=False):
    """Filters of runs in the queue.

    Attributes:
        thread_id: Only runs of this thread.
        status: Only `pending` or `running` ones.
    """

    thread_id: str | None
    status: str | None


class ScheduleAccess(TypedDict, total=False):
    """Filters of the schedules that a caller may see or delete.

    Attributes:
        scope: Only schedules whose metadata contain this.
        owner_id: Of schedules without a thread only those of this user of the server.
        thread_scope: Of schedules with a thread only those whose thread's metadata contain this.
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
        paused: Only paused schedules, or only others.
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
        ascending: Whether the least comes first; false by default.
        offset: Number of schedules that are left out.
        limit: Number of schedules at most, 1,000 at most; 20 by default.
    """

    by: Literal["created_at", "updated_at", "next_at", "end_at", "name", "graph", "thread_id"]
    ascending: bool
    offset: int
    limit: int


class AssistantSelection(TypedDict, total=False):
    """Filters of assistants that are counted.

    Attributes:
        assistant_id: Only the assistant of this id.
        graph: Only assistants of this graph.
        name: Only assistants whose name contains this, whatever the case.
        metadata: Only assistants whose metadata contain this, as by jsonb's `@>`.
        scope: Only assistants whose metadata contain this, too: what the caller may see.
        owner_id: Only assistants of this user of the server, and those of nobody.
        others: Assistants that are not stored, but among the others: `assistant_id`, `graph`, `name`, `metadata` and
            `created_at` of each, as JSON types.
    """

    assistant_id: str | None
    graph: str | None
    name: str | None
    metadata: Mapping[str, Any] | None
    scope: Scope | None
    owner_id: str | None
    others: Sequence[Mapping[str, Any]]


class SortedAssistants(AssistantSelection, total=False):
    """Filters and order of assistants that are read by offset.

    Attributes:
        by: The column to sort by: `created_at` by default, `updated_at`, `assistant_id`, `graph` or `name`.
        ascending: Whether the least comes first; false by default.
        offset: Number of assistants that are left out.
        limit: Number of assistants at most, 1,000 at most; 20 by default.
    """

    by: Literal["created_at", "updated_at", "assistant_id", "graph", "name"]
    ascending: bool
    offset: int
    limit: int


class InterruptFilter(OwnerFilter, total=False):
    """Filters of interrupted threads.

    Attributes:
        answered: Threads with answers with which no graph was resumed yet, instead of those with unanswered interrupts.
        scope: Only threads whose metadata contain this: what the caller may see.
        scan: Read this many interrupts at most, answered ones included, in three round trips; 1,000 at most. By default
            5,000 in pages of 200.
    """

    answered: bool
    scope: Scope | None
    scan: int | None


class FailedRunFilter(OwnerFilter, total=False):
    """Filters of failed runs.

    Attributes:
        since: Only runs that started at this time or later; a timedelta counts back from now.
        until: Only runs that started before this time.
        min_steps: Only runs of at least this many supersteps.
        scope: Only runs of threads whose metadata contain this: what the caller may see.
        by: What the runs are sorted by, the greatest first: `started_at` by default, `cost`, `duration` or `tokens`.
            By these three, of the newest 10,000 runs that pass the filters. A run that is running lasts until now.
        model: Only runs that called this model, of the 2,000 first ones; not with `by="started_at"`.
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
        status: Only runs of this status: `pending`, `running`, `interrupted`, `success`, `error` or `cancelled`.
        offset: Number of runs that are left out.
    """

    thread_id: str | None
    status: str | None
    offset: int


class SpanFilter(PageFilter, total=False):
    """Filters of a thread's spans.

    Attributes:
        run_id: Only spans of this run.
        kind: Only spans of this kind: `graph`, `node`, `chain`, `llm`, `tool` or `retriever`.
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
        thread_id: Only on runs of this thread.
        run_id: Only on this run of the thread.
        name: Only of this name.
        source: Only of this source: `human`, `model` or `program`.
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
        user_id: Only in this user's threads.
        tenant_id: Only in this tenant's threads.
        thread_id: Only in this thread.
        best_first: Sort by score instead of time.
    """

    user_id: str | None
    tenant_id: str | None
    thread_id: str | None
    best_first: bool


def check_filters(filters: Mapping[str, Any], known: type) -> None:
    """Refuse filters that a typed dictionary does not have.

    Raises:
        ArgumentTypeError: If there is one, with its name.
    """
    for name in filters:
        if name not in known.__annotations__:
            raise ArgumentTypeError(f"there is no filter {name!r} here, but {', '.join(sorted(known.__annotations__))}")
