"""Spans, the trees they form, and statistics of tools."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any


@dataclass(frozen=True, slots=True)
class Span:
    """One row of `spans`: one timed operation in a run.

    Attributes:
        thread_id: The thread.
        run_id: The run.
        span_id: The span; LangChain's callback run id.
        parent_span_id: The span it happened in; `None` for the run's root.
        kind: `graph`, `node`, `chain`, `llm`, `tool` or `retriever`.
        name: What was run.
        status: `running`, `success`, `error`, `interrupted` or `cancelled`.
        started_at: By the database's clock, within the error of its last synchronisation.
        ended_at: `None` while it runs.
        checkpoint_ns: Namespace of the task it ran in.
        checkpoint_id: The checkpoint its superstep started from.
        step: The superstep.
        node: The node.
        task_id: The task.
        agent: The agent.
        provider: The model's provider, by OpenTelemetry's names.
        model: The model.
        input_tokens: Tokens read, cached ones included.
        output_tokens: Tokens written.
        cache_read_tokens: Tokens read from the provider's cache.
        reasoning_tokens: Tokens of reasoning among the output.
        cost: From `prices`; `None` if the model has no price.
        tool_call_id: Of a tool span, the model's tool call.
        error_type: Qualified name of the exception.
        error_message: Its message.
        input: As near as JSON comes, truncated.
        output: Likewise.
        attributes: The rest, by OpenTelemetry's GenAI names.
    """

    thread_id: str
    run_id: str
    span_id: str
    parent_span_id: str | None
    kind: str
    name: str
    status: str
    started_at: datetime
    ended_at: datetime | None
    checkpoint_ns: str | None
    checkpoint_id: str | None
    step: int | None
    node: str | None
    task_id: str | None
    agent: str | None
    provider: str | None
    model: str | None
    input_tokens: int | None
    output_tokens: int | None
    cache_read_tokens: int | None
    reasoning_tokens: int | None
    cost: Decimal | None
    tool_call_id: str | None
    error_type: str | None
    error_message: str | None
    input: Any
    output: Any
    attributes: Mapping[str, Any]

    @property
    def duration(self) -> timedelta | None:
        """How long it took; `None` while it runs."""
        return self.ended_at - self.started_at if self.ended_at else None


@dataclass(frozen=True, slots=True)
class SpanNode:
    """A span and what happened in it.

    Attributes:
        span: The span.
        children: Those it is the parent of, by the time they started.
    """

    span: Span
    children: tuple[SpanNode, ...]


@dataclass(frozen=True, slots=True)
class ToolStatistics:
    """How one tool did.

    Attributes:
        tool: The tool.
        calls: Times it was called.
        running: Calls without an outcome yet.
        errors: Calls that failed.
        unknown: Calls of which nobody knows whether they took effect, as the ledger has them: timed out, or cut off.
        error_rate: Errors among the calls that have an outcome, 0 to 1; `None` if there is none.
        mean: Seconds a finished call took, on average; `None` if none has finished.
        p50: The median.
        p95: 95 of 100 calls took no longer.
        last_at: When it was last called.
    """

    tool: str
    calls: int
    running: int
    errors: int
    unknown: int
    error_rate: float | None
    mean: float | None
    p50: float | None
    p95: float | None
    last_at: datetime
