"""Runs, model usage, and the provenance of a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any

from langgraph_pgstate.types.spans import Span
from langgraph_pgstate.types.tools import ToolExecution


@dataclass(frozen=True, slots=True)
class Run:
    """One row of `runs`: one invocation of a graph on a thread.

    A run that is invoked again under its id, by a server's retry or after a crash, keeps its row. Steps, tokens and
    cost are summed over all attempts; a repeated superstep counts twice. Status, times, error and output are those of
    the last attempt; so is the input, if it had one. The spans of all attempts are kept, each under its own root span.

    Attributes:
        thread_id: The thread.
        run_id: The run's id: the root callback's id, or the one named by the config.
        attempt: 1, plus 1 for each repeated invocation of the same run.
        status: `pending`, `running`, `interrupted`, `success`, `error`, `cancelled` or `timeout`.
        is_crashed: Whether the run's process has died. The row's status is `running`, or `error` of type `ProcessDied`
            or `WorkerDied` once it was settled.
        agent: The graph or agent.
        tenant_id: The tenant, if the config named one.
        user_id: The user, if the config named one.
        started_at: Start time by the database's clock.
        ended_at: End time; `None` while the run is running.
        first_checkpoint_id: First checkpoint of the run in the root namespace.
        last_checkpoint_id: Newest checkpoint of the run in the root namespace.
        steps: Number of checkpointed supersteps in the root namespace.
        input_tokens: Sum over the run's LLM spans.
        output_tokens: Sum over the run's LLM spans.
        cost: Sum over the run's spans, in the currency of `prices`.
        error_type: Qualified name of the exception.
        error_message: Message of the exception.
        error_traceback: Traceback of the exception.
        input: The input as JSON, truncated. Values that JSON cannot represent are approximated.
        output: The output, in the same form.
        enqueued_at: Time it was enqueued; `None` if it was not.
        multitask_strategy: What it did to other runs of its thread when it was enqueued; `None` if it was not.
        metadata: Metadata it was enqueued with; `None` for none, and with a serializer of the caller's own.
        release: Release of the application, if the run's metadata or `RecorderSettings` named one.
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
    enqueued_at: datetime | None = None
    multitask_strategy: str | None = None
    metadata: Mapping[str, Any] | None = None
    release: str | None = None

    @property
    def duration(self) -> timedelta | None:
        """Time from start to end; `None` while the run is running."""
        return self.ended_at - self.started_at if self.ended_at else None


@dataclass(frozen=True, slots=True)
class Usage:
    """Model calls, tokens and cost, aggregated by the requested keys. The other keys are `None`.

    Attributes:
        agent: The agent.
        provider: The model's provider; set with `model`.
        model: The model.
        tenant_id: The tenant.
        user_id: The user.
        day: The day, in UTC.
        calls: Model calls.
        input_tokens: Input tokens, cached ones included.
        output_tokens: Output tokens.
        cache_read_tokens: Input tokens read from a provider's cache.
        reasoning_tokens: Output tokens used for reasoning.
        cost: Cost in the currency of `prices`. Calls without a price add nothing.
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
class OwnerCosts:
    """Runs of one agent or for one user, their tokens and cost.

    Attributes:
        name: The agent or user; `None` if the config named none.
        runs: Number of runs.
        input_tokens: Input tokens.
        output_tokens: Output tokens.
        cost: Cost in the currency of `prices`.
    """

    name: str | None
    runs: int
    input_tokens: int
    output_tokens: int
    cost: Decimal


@dataclass(frozen=True, slots=True)
class Costs:
    """Model calls, tokens and cost of a time.

    Attributes:
        total: All model calls together.
        by_day: Model calls by day (UTC), the first day first. Days without calls are left out.
        by_model: Model calls by provider and model, the most expensive first.
        by_agent: Runs that started in this time, by agent, the most expensive first. Empty for the calls of one model.
        by_user: The same by user.
    """

    total: Usage
    by_day: tuple[Usage, ...]
    by_model: tuple[Usage, ...]
    by_agent: tuple[OwnerCosts, ...]
    by_user: tuple[OwnerCosts, ...]


@dataclass(frozen=True, slots=True)
class Provenance:
    """The origin of a checkpoint: its run, spans, tool executions and branch.

    Attributes:
        thread_id: The thread.
        checkpoint_ns: The namespace.
        checkpoint_id: The checkpoint.
        parent_checkpoint_id: The parent checkpoint.
        source: `input`, `loop`, `update` or `fork`.
        step: The superstep that made the checkpoint.
        created_at: Creation time by the database's clock.
        run: The run that made the checkpoint, if it was recorded.
        spans: Spans of that superstep, subgraphs included, ordered by start time.
        executions: Tool executions that began in that superstep.
        cost: Cost of the superstep.
        depth: Number of ancestors.
        forked_from: The nearest ancestor with other children; `None` if there is none.
        run_ids: The runs that made the branch, oldest first.
        branch_cost: Total cost of these runs.
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
