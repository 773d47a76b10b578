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
        agent: The graph or agent that runs on it, if the config named one.
        user_id: The user, if the config named one.
        created_at: Time of the first `put`, by the database's clock.
        updated_at: Time of a recent `put`; at most a few seconds behind the newest checkpoint.
        tenant_id: The tenant, if the config named one.
        status: `idle`, `busy`, `interrupted` or `error`. The recorder maintains it; without one it is `idle`.
        title: The thread's title.
        metadata: The caller's metadata. Updates are merged into it.
        version: Number of updates of title and metadata, starting at 1.
        expires_at: Time after which maintenance deletes or prunes the thread unless it is in use; `None` for never, or
            not before it is accessed again.
        ttl_strategy: What happens then: `delete`, or `keep_latest`, which prunes all but its newest checkpoints.
        forked_from_thread_id: The thread it was forked from, if any.
        forked_from_checkpoint_id: The checkpoint of that thread it starts from.
        head_checkpoint_id: Newest checkpoint in the root namespace. Set only when a single thread is read.
        state: Projected channels. Set only when a single thread is read.
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
    ttl_strategy: str = "delete"
    forked_from_thread_id: str | None = None
    forked_from_checkpoint_id: str | None = None
    head_checkpoint_id: str | None = None
    state: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class RunawayThread:
    """A thread with runs that took too many supersteps.

    Attributes:
        thread_id: The thread.
        agent: Agent of the longest of these runs.
        user_id: User of the longest of these runs.
        run_id: The longest of these runs.
        runs: Number of such runs.
        most_steps: Supersteps of the longest run.
        last_started_at: Start time of the latest run.
        cost: Total cost of these runs.
    """

    thread_id: str
    agent: str | None
    user_id: str | None
    run_id: str
    runs: int
    most_steps: int
    last_started_at: datetime
    cost: Decimal
