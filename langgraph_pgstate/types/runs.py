"""Runs, their usage of models, and the provenance of a checkpoint."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any

from langgraph_pgstate.types.spans import Span
from langgraph_pgstate.types.tools import ToolExecution


@dataclass(frozen=True, slots=True)
class Run:
    """One row of `runs`: one invocation of a graph on a thread.

    A run that is invoked again under its id, as by a server's retry or after a crash, keeps its row: steps, tokens and
    cost are those of all its attempts, a superstep begun twice counting twice; status, times, error, input and output
    are those of the last. The spans of all attempts stay, each attempt under a root of its own.

    Attributes:
        thread_id: The thread.
        run_id: The run; the root callback's id, or the one the config names.
        attempt: 1, and one more each time the same run is invoked again.
        status: `pending`, `running`, `interrupted`, `success`, `error` or `cancelled`.
        is_crashed: Whether whoever ran it has died: it is `running` by its row, or was settled since as `error` of type
            `ProcessDied`.
        agent: The graph or agent.
        tenant_id: The tenant, if the config told.
        user_id: The user, if the config told.
        started_at: By the database's clock.
        ended_at: `None` while it runs.
        first_checkpoint_id: The first checkpoint it made, in the root namespace.
        last_checkpoint_id: The newest it made.
        steps: Supersteps it has checkpointed in the root namespace.
        input_tokens: Sum over its LLM spans.
        output_tokens: Sum over its LLM spans.
        cost: Sum over its spans, in the currency of `prices`.
        error_type: Qualified name of the exception.
        error_message: Its message.
        error_traceback: Its traceback.
        input: What it was invoked with, as near as JSON comes, truncated.
        output: What it returned, likewise.
    """

    thread_id: str
    run_id: str
    attempt: int
    status: str
    is_crashed: bool
    agent: str | None
    tenant_id: str | None
    user_id: str | None
    started_at: datetime
    ended_at: datetime | None
    first_checkpoint_id: str | None
    last_checkpoint_id: str | None
    steps: int
    input_tokens: int
    output_tokens: int
    cost: Decimal
    error_type: str | None
    error_message: str | None
    error_traceback: str | None
    input: Any
    output: Any

    @property
    def duration(self) -> timedelta | None:
        """How long it took; `None` while it runs."""
        return self.ended_at - self.started_at if self.ended_at else None


@dataclass(frozen=True, slots=True)
class Usage:
    """Calls of models, tokens and money, summed up by what was asked for; the other keys are `None`.

    Attributes:
        agent: The agent.
        provider: The model's provider; set with `model`.
        model: The model.
        tenant_id: The tenant.
        user_id: The user.
        day: The day, in UTC.
        calls: Model calls.
        input_tokens: Tokens read, cached ones included.
        output_tokens: Tokens written.
        cache_read_tokens: Tokens read from providers' caches.
        reasoning_tokens: Tokens of reasoning among the output.
        cost: In the currency of `prices`; calls without a price count nothing.
        unpriced: Calls whose model had no price.
    """

    agent: str | None
    provider: str | None
    model: str | None
    tenant_id: str | None
    user_id: str | None
    day: date | None
    calls: int
    input_tokens: int
    output_tokens: int
    cache_read_tokens: int
    reasoning_tokens: int
    cost: Decimal
    unpriced: int


@dataclass(frozen=True, slots=True)
class Provenance:
    """What led to a checkpoint.

    Attributes:
        thread_id: The thread.
        checkpoint_ns: The namespace.
        checkpoint_id: The checkpoint.
        parent_checkpoint_id: The one it was made from.
        source: `input`, `loop`, `update` or `fork`.
        step: The superstep that made it.
        created_at: By the database's clock.
        run: The run that made it, if it was recorded.
        spans: What happened in that superstep, by the time it started, subgraphs included.
        executions: The tool executions that began in it.
        cost: Of the superstep.
        depth: Ancestors it has.
        forked_from: The nearest ancestor that other checkpoints were made from, too; `None` if there is none.
        run_ids: The runs that made its branch, oldest first.
        branch_cost: Of these runs, each in full.
    """

    thread_id: str
    checkpoint_ns: str
    checkpoint_id: str
    parent_checkpoint_id: str | None
    source: str | None
    step: int | None
    created_at: datetime
    run: Run | None
    spans: tuple[Span, ...]
    executions: tuple[ToolExecution, ...]
    cost: Decimal
    depth: int
    forked_from: str | None
    run_ids: tuple[str, ...]
    branch_cost: Decimal
