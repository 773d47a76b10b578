"""Threads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from typing import Any


@dataclass(frozen=True, slots=True)
class Thread:
    """One row of `threads`: a conversation or task.

    Attributes:
        thread_id: The thread's id.
        agent: The graph or agent that runs on it, if the config told.
        user_id: Its owner, if the config told.
        created_at: Time of the first `put`, by the database's clock.
        updated_at: Time of a recent `put`; at most a few seconds behind the newest checkpoint.
        tenant_id: Its tenant, if the config told.
        status: `idle`, `busy`, `interrupted` or `error`; kept by the recorder, `idle` without one.
        title: What a person calls it.
        metadata: The user's own; updates merge into it.
        version: Counts updates of title and metadata, from 1.
        expires_at: When it may be removed, if ever: a sweep then does, unless it is in use.
        forked_from_thread_id: The thread it was forked off, if it was.
        forked_from_checkpoint_id: The checkpoint of that thread it starts from.
        head_checkpoint_id: Its newest checkpoint in the root namespace; only when one thread is asked for.
        state: Its projected channels; only when one thread is asked for.
    """

    thread_id: str
    agent: str | None
    user_id: str | None
    created_at: datetime
    updated_at: datetime
    tenant_id: str | None = None
    status: str = "idle"
    title: str | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    version: int = 1
    expires_at: datetime | None = None
    forked_from_thread_id: str | None = None
    forked_from_checkpoint_id: str | None = None
    head_checkpoint_id: str | None = None
    state: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class RunawayThread:
    """A thread with runs of too many supersteps.

    Attributes:
        thread_id: The thread.
        agent: Of the longest of these runs.
        user_id: Likewise.
        run_id: The longest of these runs.
        runs: How many such runs it has.
        most_steps: Supersteps of the longest.
        last_started_at: When the last of them began.
        cost: What they cost together.
    """

    thread_id: str
    agent: str | None
    user_id: str | None
    run_id: str
    runs: int
    most_steps: int
    last_started_at: datetime
    cost: Decimal
