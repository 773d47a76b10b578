"""Types of the record: runs, spans, tool executions, messages, events, costs, prices, budgets and feedback."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any, Final
from uuid import UUID, uuid5


@dataclass(frozen=True, slots=True)
class ThreadStatistics:
    """Threads of one agent and status that were active in a period.

    Attributes:
        agent: The agent; `None` if it is not known.
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
    """Runs that began in a period, aggregated by the requested keys. The other keys are `None`.

    Attributes:
        agent: The agent.
        release: The release of the application.
        tenant_id: The tenant.
        user_id: The user.
        day: The day on which the runs began, in UTC.
        runs: Number of runs.
        threads: Number of their threads.
        success: Runs that succeeded.
        error: Runs that failed, or whose process died.
        timeout: Runs that took too long.
        interrupted: Runs that wait for an answer.
        cancelled: Runs that were cancelled.
        unfinished: Runs that are pending or running.
        failure_rate: `(error + timeout) / (success + error + timeout)`; `None` without such runs.
        mean_seconds: Mean duration of the last attempt of ended runs, in seconds; `None` if no run has ended.
        p50_seconds: Median of these durations.
        p95_seconds: 95th percentile of these durations.
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
    """Statistics of threads, runs and feedback over a period.

    Attributes:
        threads: Threads by agent and status, the largest group first.
        runs: Runs by the requested keys, the largest group first.
        feedback: Feedback by name, and by `agent` and `release` if requested, the largest group first.
        is_complete: Whether the statistics cover all threads, runs and feedback of the period. False if there are more
            than 100,000 of one kind, or more groups than `limit`.
    """

    threads: tuple[ThreadStatistics, ...]
    runs: tuple[RunStatistics, ...]
    feedback: tuple[FeedbackAverage, ...]
    is_complete: bool


@dataclass(frozen=True, slots=True)
class Budget:
    """Money that model calls may cost on one day, in UTC.

    Attributes:
        scope: `tenant`, `user`, `agent` or `key`.
        name: The tenant, user, agent or key. `*` is the budget of each owner without a budget of its own.
        amount: Cost at which further calls are refused, in the currency of prices.
        spent: Recorded cost of today's calls; `None` for `*`.
    """

    scope: str
    name: str
    amount: Decimal
    spent: Decimal | None


@dataclass(frozen=True, slots=True)
class Event:
    """One row of `events`: an occurrence on a thread.

    Attributes:
        thread_id: The thread.
        event_id: The event's id; ids sort by time within the thread.
        created_at: Creation time by the database's clock.
        kind: `status`, `handoff`, `interrupt`, `resume`, `answer`, `fork`, `prune`, `corrupt`, `action` or another.
        run_id: The run.
        checkpoint_ns: The namespace.
        checkpoint_id: The checkpoint.
        agent: The agent.
        payload: Details, whose keys depend on `kind`.
    """

    thread_id: str
    event_id: str
    created_at: datetime
    kind: str
    run_id: str | None
    checkpoint_ns: str | None
    checkpoint_id: str | None
    agent: str | None
    payload: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class HandoffStatistics:
    """The number and timing of handoffs from one agent to another.

    Attributes:
        source: The agent that handed off.
        target: The agent that took over.
        count: Number of handoffs.
        threads: Number of threads with such a handoff.
        mean: Mean seconds until the thread's next handoff; `None` if none followed.
        p50: Median of these seconds.
        last_at: Time of the last handoff.
    """

    source: str | None
    target: str | None
    count: int
    threads: int
    mean: float | None
    p50: float | None
    last_at: datetime


@dataclass(frozen=True, slots=True)
class Feedback:
    """A score or a comment, or both, on a run or on one of its spans.

    Attributes:
        thread_id: The thread.
        run_id: The run.
        feedback_id: The feedback's id.
        span_id: The judged span; `None` for the whole run.
        created_at: Time at which the feedback was first given.
        created_by: Name of the person or program that gave the feedback, if known.
        source: `human`, `model` or `program`.
        name: What is judged.
        score: The score, on a scale of the application; `None` for none.
        comment: The comment; `None` for none.
    """

    thread_id: str
    run_id: str
    feedback_id: str
    span_id: str | None
    created_at: datetime
    created_by: str | None
    source: str
    name: str
    score: float | None
    comment: str | None


@dataclass(frozen=True, slots=True)
class FeedbackAverage:
    """Feedback of one name, aggregated by the requested keys. The other keys are `None`.

    Attributes:
        name: What is judged.
        agent: The agent of the runs.
        model: The model that the runs, or the judged spans, called. A run of several models counts for each.
        release: The release of the application.
        count: Number of scores and comments.
        scores: Number of scores.
        mean: Mean score; `None` without scores.
        comments: Number of comments.
    """

    name: str
    agent: str | None
    model: str | None
    release: str | None
    count: int
    scores: int
    mean: float | None
    comments: int


@dataclass(frozen=True, slots=True)
class Message:
    """One row of `messages`: the addition of a chat message to a channel, its edit or its removal.

    Attributes:
        thread_id: The thread.
        message_id: The message's own id.
        checkpoint_id: The checkpoint that added, edited or removed the message.
        checkpoint_ns: That checkpoint's namespace.
        channel: The channel.
        position: Position in the channel at that checkpoint.
        change: `added`, `edited` or `removed`.
        created_at: Creation time by the database's clock.
        run_id: The run that made the change.
        role: `system`, `human`, `ai`, `tool` or another.
        agent: The message's `name`, if it has one.
        content: The text.
        tool_calls: The tool calls that the message requests.
        tool_call_id: The tool call that the message answers.
        input_tokens: Input tokens as the model reported them.
        output_tokens: Output tokens as the model reported them.
    """

    thread_id: str
    message_id: str
    checkpoint_id: str
    checkpoint_ns: str
    channel: str
    position: int
    change: str
    created_at: datetime
    run_id: str | None
    role: str | None
    agent: str | None
    content: str | None
    tool_calls: Any
    tool_call_id: str | None
    input_tokens: int | None
    output_tokens: int | None


@dataclass(frozen=True, slots=True)
class MessageHit:
    """A message found by a search.

    Attributes:
        message: The message.
        snippet: Text around the matched words, each between `«` and `»`.
        score: Rank; greater is better. Scores are comparable within one search only.
    """

    message: Message
    snippet: str
    score: float


@dataclass(frozen=True, slots=True)
class Price:
    """One row of `prices`: the price of a million tokens of a model from a given time on.

    Attributes:
        model: The model's name as the provider reports it.
        provider: The provider; empty for any.
        valid_from: Start of validity; `None` for always.
        input: Price per million input tokens.
        output: Price per million output tokens.
        cache_read: Price per million input tokens read from a cache; `None` means the same as `input`.
        reasoning: Price per million reasoning tokens; `None` means the same as `output`.
    """

    model: str
    provider: str
    valid_from: datetime | None
    input: Decimal
    output: Decimal
    cache_read: Decimal | None = None
    reasoning: Decimal | None = None


@dataclass(frozen=True, slots=True)
class Run:
    """One row of `runs`: one invocation of a graph on a thread.

    A run that is invoked again under its id keeps its row. Steps, tokens and cost are summed over all attempts. Status,
    times, error and output are those of the last attempt. Each attempt has its own root span.

    Attributes:
        thread_id: The thread.
        run_id: The run's id: the root callback's id, or the one named by the config.
        attempt: 1, plus 1 for each repeated invocation of the same run.
        status: `pending`, `running`, `interrupted`, `success`, `error`, `cancelled` or `timeout`.
        is_crashed: Whether the run's process has died. The status stays `running` until another process sets it to
            `error`.
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
        enqueued_at: Time at which the run was enqueued; `None` if it was not.
        multitask_strategy: Strategy for other runs of the thread, if the run was enqueued.
        metadata: Metadata with which the run was enqueued, if any; `None` with a serializer of the caller's own.
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
    enqueued_at: datetime | None
    multitask_strategy: str | None
    metadata: Mapping[str, Any] | None
    release: str | None

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
    """Runs of one agent, for one user, on one thread or with one model, their tokens and cost.

    Attributes:
        name: The agent, user, thread or model; `None` if it is not known.
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
    """Model calls, tokens and cost of a period.

    Attributes:
        total: All model calls together.
        by_day: Model calls by day (UTC), the first day first. Days without calls are left out.
        by_model: Model calls by provider and model, the most expensive first.
        by_agent: Runs that started in this period, by agent, the most expensive first. Empty if one model is chosen.
        by_user: Runs that started in this period, by user, the most expensive first. Empty if one model is chosen.
    """

    total: Usage
    by_day: tuple[Usage, ...]
    by_model: tuple[Usage, ...]
    by_agent: tuple[OwnerCosts, ...]
    by_user: tuple[OwnerCosts, ...]


@dataclass(frozen=True, slots=True)
class RunSums:
    """Model calls of some runs, their tokens and cost.

    Attributes:
        runs: Number of these runs, at most the newest 1,000.
        is_complete: Whether these are all runs that pass the filters.
        total: Sums of all runs. Its `runs` is the number of runs that called a model.
        by_thread: Sums by thread, the most expensive first.
        by_model: Sums by model, the most expensive first.
    """

    runs: int
    is_complete: bool
    total: OwnerCosts
    by_thread: tuple[OwnerCosts, ...]
    by_model: tuple[OwnerCosts, ...]


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


@dataclass(frozen=True, slots=True)
class Span:
    """One row of `spans`: one timed operation in a run.

    Attributes:
        thread_id: The thread.
        run_id: The run.
        span_id: The span's id, which is LangChain's callback run id.
        parent_span_id: The parent span; `None` for the run's root.
        kind: `graph`, `node`, `chain`, `llm`, `tool`, `retriever` or `memory`.
        name: Name of the node, model, tool or other runnable.
        status: `running`, `success`, `error`, `interrupted` or `cancelled`.
        started_at: Start time by the database's clock, estimated from the clock of the run's process.
        ended_at: End time; `None` while the span is running.
        checkpoint_ns: Namespace of the task in which the span ran.
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
        checkpoint_ns: Namespace of the task in which the span ran.
        checkpoint_id: The checkpoint from which its superstep started.
        step: The superstep.
        node: The node.
        agent: The agent.
        provider: The model's provider.
        model: The model.
        tool_call_id: For a tool span, the model's tool call.
        input_tokens: Input tokens of the span and the spans below it.
        output_tokens: Output tokens of the span and the spans below it.
        cost: Cost of the span and the spans below it; `None` if no span has a cost.
        error_type: Qualified name of the exception.
        error_message: The first 400 characters of the exception's message.
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
        errors: Number of spans that failed, also those that the filters leave out.
        attempts: Start times of the run's attempts.
        started_at: Start of the first span; `None` if there is none.
        ended_at: End of the span that ended last; `None` if none has ended.
        next_since: Start of the first span after this timeline; `None` if the run has at most 20,000 spans.
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
        error_rate: Share of errors among calls with an outcome, 0 to 1; `None` without such calls.
        mean: Mean seconds of a finished call; `None` if none has finished.
        p50: Median seconds of a finished call.
        p95: 95th percentile of these seconds.
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


_TOKENS: Final = UUID("6f1d5f0a-7c2e-4c55-9f43-6a2f1f0e7d10")


def action_token(thread_id: str, tool: str, key: str) -> str:
    """Return the UUID of an action that began on a thread. Each attempt has the same UUID, also on forks."""
    return str(uuid5(_TOKENS, f"{thread_id}\0{tool}\0{key}"))


@dataclass(frozen=True, slots=True)
class ToolExecution:
    """One row of `tool_executions`: one action of a tool.

    Attributes:
        thread_id: The thread.
        idempotency_key: Identifies the action. The same key means the same action.
        tool: The tool.
        status: `pending`, `running`, `success`, `error`, `timeout` or `unknown`.
        attempt: Number of attempts.
        agent: The agent.
        tool_call_id: The model's tool call.
        run_id: The run.
        task_id: The task.
        checkpoint_ns: Namespace of the task.
        checkpoint_id: The checkpoint from which its superstep started.
        step: The superstep.
        holder_id: The process of the current or last attempt.
        alive_until: Time until which that process counts as alive; `None` if another process, or a person, settled the
            outcome.
        started_at: Start time of the last attempt, by the database's clock.
        ended_at: Time at which the outcome was stored.
        arguments: The tool's arguments.
        preview: The beginning of the result, as text.
        error_type: Qualified name of the exception.
        error_message: Message of the exception.
        compensates: Key of the execution that this one compensates.
        compensated_at: Time at which this execution was compensated.
        origin_thread_id: The thread on which the action was first started, if a fork or a copy brought it here.
    """

    thread_id: str
    idempotency_key: str
    tool: str
    status: str
    attempt: int
    agent: str | None
    tool_call_id: str | None
    run_id: str | None
    task_id: str | None
    checkpoint_ns: str | None
    checkpoint_id: str | None
    step: int | None
    holder_id: str | None
    alive_until: datetime | None
    started_at: datetime
    ended_at: datetime | None
    arguments: Any
    preview: str | None
    error_type: str | None
    error_message: str | None
    compensates: str | None
    compensated_at: datetime | None
    origin_thread_id: str | None

    @property
    def token(self) -> str:
        """The token that the tool got from `current_execution()`.

        If the tool passes the token to another system, a search there shows whether the action was done.
        """
        return action_token(self.origin_thread_id or self.thread_id, self.tool, self.idempotency_key)


@dataclass(frozen=True, slots=True)
class CompensationReport:
    """The outcome of `compensate`. All fields hold original executions, newest first.

    Attributes:
        compensated: Executions compensated by this call.
        failed: Executions whose compensation failed, each with its error. The next call tries again.
        uncovered: Successful executions of tools without a registered compensation.
        unsettled: Executions whose outcome is unknown or still to come. They are left unchanged.
        elsewhere: Executions that began on another thread, before this thread was forked or copied from it. Compensate
            them there.
    """

    compensated: tuple[ToolExecution, ...] = ()
    failed: tuple[tuple[ToolExecution, Exception], ...] = ()
    uncovered: tuple[ToolExecution, ...] = ()
    unsettled: tuple[ToolExecution, ...] = ()
    elsewhere: tuple[ToolExecution, ...] = ()

    @property
    def is_complete(self) -> bool:
        """Whether no execution of this thread needs a person's attention."""
        return not (self.failed or self.uncovered or self.unsettled)


@dataclass(frozen=True, slots=True)
class Problem:
    """A defect found by `check`.

    Attributes:
        thread_id: The thread.
        where: The checkpoint, segment or write.
        why: The defect.
    """

    thread_id: str
    where: str
    why: str


@dataclass(slots=True)
class BackfillReport:
    """The counts and problems reported by `backfill`.

    Attributes:
        threads: Threads visited.
        checkpoints: Checkpoints compared.
        filled: Checkpoints whose missing messages were recorded.
        messages: Messages that were missing from the record.
        statuses: Threads whose status changed.
        problems: Checkpoints that could not be read.
    """

    threads: int = 0
    checkpoints: int = 0
    filled: int = 0
    messages: int = 0
    statuses: int = 0
    problems: list[Problem] = field(default_factory=list)

    def __add__(self, other: BackfillReport) -> BackfillReport:
        return BackfillReport(
            self.threads + other.threads,
            self.checkpoints + other.checkpoints,
            self.filled + other.filled,
            self.messages + other.messages,
            self.statuses + other.statuses,
            self.problems + other.problems,
        )


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


@dataclass(slots=True)
class AuditReport:
    """The result of `audit.verify`.

    Attributes:
        threads: Threads whose chains were read.
        events: Entries of the chains.
        explained: Entries whose event was deleted or redacted, as a later event of the chain records.
        before: Events that are in no chain because they are older than the audit.
        ended: Exported entries whose thread was deleted or erased after the export.
        problems: Events that were removed, changed or inserted.
    """

    threads: int = 0
    events: int = 0
    explained: int = 0
    before: int = 0
    ended: int = 0
    problems: list[Problem] = field(default_factory=list)

    def __iadd__(self, other: AuditReport) -> AuditReport:
        self.threads += other.threads
        self.events += other.events
        self.explained += other.explained
        self.before += other.before
        self.ended += other.ended
        self.problems += other.problems
        return self
