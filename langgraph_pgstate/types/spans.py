"""Spans, span trees, and tool statistics."""

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
        span_id: The span's id, which is LangChain's callback run id.
        parent_span_id: The parent span; `None` for the run's root.
        kind: `graph`, `node`, `chain`, `llm`, `tool` or `retriever`.
        name: Name of the node, model, tool or other runnable.
        status: `running`, `success`, `error`, `interrupted` or `cancelled`.
        started_at: Start time by the database's clock, as exact as the last clock synchronization.
        ended_at: End time; `None` while the span is running.
        checkpoint_ns: Namespace of the task it ran in.
        checkpoint_id: The checkpoint from which its superstep started.
        step: The superstep.
        node: The node.
        task_id: The task.
        agent: The agent.
        provider: The model's provider, by OpenTelemetry's names.
        model: The model.
        input_tokens: Input tokens, cached ones included.
        output_tokens: Output tokens.
        cache_read_tokens: Input tokens read from the provider's cache.
        reasoning_tokens: Output tokens used for reasoning.
        cost: Cost computed from `prices`; `None` if the model has no price.
        tool_call_id: For a tool span, the model's tool call.
        error_type: Qualified name of the exception.
        error_message: Message of the exception.
        input: The input as JSON, truncated. Values that JSON cannot represent are approximated.
        output: The output, in the same form.
        attributes: Other attributes, by the names of OpenTelemetry's GenAI conventions.
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
        """Time from start to end; `None` while the span is running."""
        return self.ended_at - self.started_at if self.ended_at else None


@dataclass(frozen=True, slots=True)
class SpanNode:
    """A span and its child spans.

    Attributes:
        span: The span.
        children: The child spans, ordered by start time.
    """

    span: Span
    children: tuple[SpanNode, ...]


@dataclass(frozen=True, slots=True)
class TimelineSpan:
    """A span as a line of a timeline, without its contents.

    Attributes:
        span_id: The span.
        parent_span_id: The parent span.
        depth: Number of the span's ancestors in the timeline; 0 if the timeline is filtered.
        descendants: Number of spans below it.
        kind: As in `Span`.
        name: As in `Span`.
        status: As in `Span`.
        started_at: Start time.
        ended_at: End time; `None` while the span is running.
        checkpoint_ns: Namespace of the task it ran in.
        checkpoint_id: The checkpoint from which its superstep started.
        step: The superstep.
        node: The node.
        agent: The agent.
        provider: The model's provider.
        model: The model.
        tool_call_id: For a tool span, the model's tool call.
        input_tokens: Input tokens of the span and the spans below it.
        output_tokens: Output tokens of the same.
        cost: Cost of the same; `None` if none of them has a cost.
        error_type: Qualified name of the exception.
        error_message: The first 400 characters of its message.
    """

    span_id: str
    parent_span_id: str | None
    depth: int
    descendants: int
    kind: str
    name: str
    status: str
    started_at: datetime
    ended_at: datetime | None
    checkpoint_ns: str | None
    checkpoint_id: str | None
    step: int | None
    node: str | None
    agent: str | None
    provider: str | None
    model: str | None
    tool_call_id: str | None
    input_tokens: int
    output_tokens: int
    cost: Decimal | None
    error_type: str | None
    error_message: str | None


@dataclass(frozen=True, slots=True)
class Timeline:
    """A window of a run's spans, each below its parent.

    Attributes:
        spans: The spans of the window.
        offset: Number of spans before the window.
        total: Number of spans in the timeline.
        errors: Number of spans that failed, also if the timeline is filtered.
        attempts: Start times of the run's attempts.
        started_at: Start of the first span; `None` if there is none.
        ended_at: End of the span that ended last; `None` if none has ended.
        next_since: Start of the first span that the timeline leaves out because the run has too many.
    """

    spans: tuple[TimelineSpan, ...]
    offset: int
    total: int
    errors: int
    attempts: tuple[datetime, ...]
    started_at: datetime | None
    ended_at: datetime | None
    next_since: datetime | None


@dataclass(frozen=True, slots=True)
class ToolStatistics:
    """Call counts, errors and durations of one tool.

    Attributes:
        tool: The tool.
        calls: Number of calls.
        running: Calls without an outcome yet.
        errors: Calls that failed.
        unknown: Calls of unknown outcome, as the tool ledger records them: timed out or cut off.
        error_rate: Errors among the calls that have an outcome, 0 to 1; `None` if there is none.
        mean: Mean seconds of a finished call; `None` if none has finished.
        p50: Median seconds of a finished call.
        p95: 95th percentile of the same.
        last_at: Time of the last call.
        compensated: Calls that were compensated, as the tool ledger records them; 0 in statistics of spans.
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
    compensated: int = 0
