"""The nouns that cross the package's borders: what calls return besides LangGraph's own types."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any, Generic, Protocol, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class PruneResult:
    """What a prune removed, or would remove with `dry_run=True`.

    Attributes:
        threads: Threads of which at least one row went.
        checkpoints: Checkpoint rows.
        writes: Rows of pending writes, those whose checkpoint never came among them.
        segments: Segments that no surviving checkpoint refers to.
        bytes: Stored size of those rows' data, before PostgreSQL's own overhead.
        dry_run: Whether nothing was changed.
        damaged: Ids of threads that were left as they are, because a checkpoint of theirs is damaged.
    """

    threads: int = 0
    checkpoints: int = 0
    writes: int = 0
    segments: int = 0
    bytes: int = 0
    dry_run: bool = False
    damaged: tuple[str, ...] = ()

    def __add__(self, other: PruneResult) -> PruneResult:
        return PruneResult(
            self.threads + other.threads,
            self.checkpoints + other.checkpoints,
            self.writes + other.writes,
            self.segments + other.segments,
            self.bytes + other.bytes,
            self.dry_run or other.dry_run,
            self.damaged + other.damaged,
        )


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
class ToolExecution:
    """One row of `tool_executions`: one intended effect.

    Attributes:
        thread_id: The thread.
        idempotency_key: What the action is; the same key is the same action.
        tool: The tool.
        status: `pending`, `running`, `success`, `error`, `timeout` or `unknown`.
        attempt: How often it was begun.
        agent: The agent.
        tool_call_id: The model's tool call.
        run_id: The run.
        task_id: The task.
        checkpoint_ns: Namespace of the task.
        checkpoint_id: The checkpoint its superstep started from.
        step: The superstep.
        holder_id: The process that runs it, or ran it last.
        alive_until: Until when that process may be taken to be alive.
        started_at: Time of the last attempt's intent, by the database's clock.
        ended_at: Time of its outcome.
        arguments: What the tool was called with.
        preview: The beginning of its result, as text.
        error_type: Qualified name of the exception.
        error_message: Its message.
        compensates: Key of the execution that this one takes back.
        compensated_at: When this one was taken back.
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


@dataclass(frozen=True, slots=True)
class CompensationReport:
    """What `compensate` took back, and what it could not. All are the original executions, newest first.

    Attributes:
        compensated: Taken back now.
        failed: With the error of each compensation that failed; they are tried again by the next call.
        uncovered: Successes of tools for which no compensation is registered.
        unsettled: Executions whose outcome is unknown or still to come; nothing was done about them.
        elsewhere: Executions that came along with a fork or a copy; the thread they were made on takes them back.
    """

    compensated: tuple[ToolExecution, ...] = ()
    failed: tuple[tuple[ToolExecution, Exception], ...] = ()
    uncovered: tuple[ToolExecution, ...] = ()
    unsettled: tuple[ToolExecution, ...] = ()
    elsewhere: tuple[ToolExecution, ...] = ()

    @property
    def is_complete(self) -> bool:
        """Whether nothing is left on this thread that anybody would have to look at."""
        return not (self.failed or self.uncovered or self.unsettled)


@dataclass(frozen=True, slots=True)
class Message:
    """One row of `messages`: a chat message where it was added to its channel, its edit, or its removal.

    Attributes:
        thread_id: The thread.
        message_id: The message's own id.
        checkpoint_id: The checkpoint it appeared (was edited, was removed) in.
        checkpoint_ns: That checkpoint's namespace.
        channel: The channel it is in.
        position: Its place in the channel at that checkpoint.
        change: `added`, `edited` or `removed`.
        created_at: By the database's clock.
        run_id: The run that made it.
        role: `system`, `human`, `ai`, `tool` or another.
        agent: Who said it, if it has a name.
        content: Its text.
        tool_calls: What it asks tools to do.
        tool_call_id: The tool call it answers.
        input_tokens: As the model counted them.
        output_tokens: Likewise.
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
class Event:
    """One row of `events`: something that happened to a thread.

    Attributes:
        thread_id: The thread.
        event_id: Sorts by time within the thread.
        created_at: By the database's clock.
        kind: `status`, `handoff`, `interrupt`, `resume`, `answer`, `fork`, `prune`, `corrupt` or another.
        run_id: The run it happened in.
        checkpoint_ns: The namespace.
        checkpoint_id: The checkpoint.
        agent: The agent.
        payload: What there is to say of it.
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
class Question:
    """What a graph asked with `interrupt()` and waits to be told.

    Attributes:
        interrupt_id: LangGraph's id of it; what an answer names when several wait.
        value: What was asked; types that may not be built come as plain data.
        asked_at: Since when it waits, by the database's clock.
        response_schema: JSON Schema of the answer, if the graph gave one.
        task_id: The task that waits.
        run_id: The run that asked, if it is known.
        error: Why the question cannot be read; its id is empty then, and its value `None`.
    """

    interrupt_id: str
    value: Any
    asked_at: datetime
    response_schema: Any
    task_id: str
    run_id: str | None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """What somebody has answered to a question.

    Attributes:
        thread_id: The thread.
        checkpoint_id: The checkpoint at which it waited.
        interrupt_id: The question.
        value: The answer.
        answered_by: Who, if they said so.
        answered_at: When, by the database's clock.
    """

    thread_id: str
    checkpoint_id: str
    interrupt_id: str
    value: Any
    answered_by: str | None
    answered_at: datetime


@dataclass(frozen=True, slots=True)
class WaitingThread:
    """A thread that waits for answers.

    Attributes:
        thread_id: The thread.
        checkpoint_id: The checkpoint it waits at.
        since: When the oldest of its open questions was asked.
        questions: What has no answer yet, oldest first.
        answers: What is answered already and not yet picked up.
        user_id: Whose it is, if the config told.
        tenant_id: Its tenant, if the config told.
        agent: The agent that asked, if the config told.
        title: What a person calls it.
    """

    thread_id: str
    checkpoint_id: str
    since: datetime
    questions: tuple[Question, ...]
    answers: tuple[Answer, ...]
    user_id: str | None
    tenant_id: str | None
    agent: str | None
    title: str | None


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """A part of a longer answer.

    Attributes:
        items: What it holds, in order.
        next: Pass it as `cursor=` for the following page; `None` at the end.
    """

    items: tuple[T, ...]
    next: str | None


@dataclass(frozen=True, slots=True)
class MessageHit:
    """A message that a search found.

    Attributes:
        message: The message.
        snippet: Its text around the words that were found, each between `«` and `»`.
        score: How well it fits; greater is better. Only to be compared within one search.
    """

    message: Message
    snippet: str
    score: float


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


@dataclass(frozen=True, slots=True)
class HandoffStatistics:
    """How often one agent handed over to another.

    Attributes:
        source: Who handed over.
        target: To whom.
        count: How often.
        threads: In how many threads.
        mean: Seconds until the thread's next handoff, on average; `None` if there was never another.
        p50: The median.
        last_at: The last time.
    """

    source: str | None
    target: str | None
    count: int
    threads: int
    mean: float | None
    p50: float | None
    last_at: datetime


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


@dataclass(frozen=True, slots=True)
class Price:
    """One row of `prices`: what a million tokens of a model cost, from a time on.

    Attributes:
        model: The model's name, as the provider says it.
        provider: The provider; empty for any.
        valid_from: From when on; `None` for ever.
        input: Per million tokens read.
        output: Per million tokens written.
        cache_read: Per million tokens read from a cache; as `input` if left out.
        reasoning: Per million tokens of reasoning; as `output` if left out.
    """

    model: str
    provider: str
    valid_from: datetime | None
    input: Decimal
    output: Decimal
    cache_read: Decimal | None = None
    reasoning: Decimal | None = None


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to advance a thread, as it was when it was read.

    Attributes:
        thread_id: The thread.
        holder_id: Who holds it: host, boot, namespace of process ids, process id, start time, and a number of its own.
        fencing_token: Its number; every later lease of the thread has a higher one.
        acquired_at: Since when, by the database's clock.
        renewed_at: When the holder last said that it is alive.
        expires_at: Until when, unless it is renewed.
    """

    thread_id: str
    holder_id: str
    fencing_token: int
    acquired_at: datetime
    renewed_at: datetime
    expires_at: datetime


@dataclass(frozen=True, slots=True)
class MaintenanceReport:
    """What `maintain` did.

    Attributes:
        months_made: Months for whose spans a partition was made, as `2026_01`.
        months_dropped: Months whose partition was removed, with its spans.
        runs_settled: Runs that were ended because their process has died.
        guards_swept: Tombstones whose time has passed and leases long given back, which were removed.
        expired: Threads that had expired, which were deleted.
        orphan_writes: Rows of pending writes whose checkpoint never came, which were removed.
    """

    months_made: tuple[str, ...] = ()
    months_dropped: tuple[str, ...] = ()
    runs_settled: int = 0
    guards_swept: int = 0
    expired: PruneResult = PruneResult()
    orphan_writes: int = 0


@dataclass(frozen=True, slots=True)
class Problem:
    """Something `check` found broken.

    Attributes:
        thread_id: Thread it is in.
        where: The checkpoint, segment or write.
        why: What is wrong with it.
    """

    thread_id: str
    where: str
    why: str


@dataclass(slots=True)
class CheckReport:
    """What `check` read and what it found.

    Attributes:
        threads: Threads read.
        checkpoints: Checkpoints decoded.
        segments: Distinct segments read.
        writes: Rows of pending writes decoded.
        unreferenced: Segments no checkpoint refers to; harmless, and gone with the thread's next prune.
        problems: What is broken; empty when all is well.
        orphan_writes: Rows of pending writes without their checkpoint, which is yet to come or was lost; removed later.
        types: Stored types that are not LangGraph's own, as `module:name`, sorted; empty unless they are asked for.
        others: Values of another serializer, whose types cannot be told.
    """

    threads: int = 0
    checkpoints: int = 0
    segments: int = 0
    writes: int = 0
    unreferenced: int = 0
    problems: list[Problem] = field(default_factory=list)
    orphan_writes: int = 0
    types: tuple[str, ...] = ()
    others: int = 0

    def __add__(self, other: CheckReport) -> CheckReport:
        return CheckReport(
            self.threads + other.threads,
            self.checkpoints + other.checkpoints,
            self.segments + other.segments,
            self.writes + other.writes,
            self.unreferenced + other.unreferenced,
            self.problems + other.problems,
            self.orphan_writes + other.orphan_writes,
            tuple(sorted({*self.types, *other.types})),
            self.others + other.others,
        )


@dataclass(slots=True)
class BackfillReport:
    """What `backfill` recorded of threads.

    Attributes:
        threads: Threads visited.
        checkpoints: Checkpoints compared.
        filled: Checkpoints recorded.
        messages: Messages that were missing there.
        statuses: Threads with a new status.
        problems: What could not be read.
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
class Progress:
    """How far a job over many threads has come.

    Attributes:
        threads: Threads finished.
        total: Threads there were to visit when the job began.
        checkpoints: Checkpoints read or written so far.
        thread_id: The thread just worked on.
    """

    threads: int
    total: int
    checkpoints: int
    thread_id: str


@dataclass(slots=True)
class TransferReport:
    """What an import from LangGraph's own tables, or an export to them, did.

    Attributes:
        threads: Threads visited.
        checkpoints: Checkpoints written.
        writes: Pending writes written.
        unchanged: Checkpoints that were there already and equal.
        verified: Checkpoints read from both sides afterwards and compared.
        conflicts: Threads that went on in both places; left as they are.
        differences: What the two sides answer differently after the copy, or could not be copied; empty when all is
            well.
    """

    threads: int = 0
    checkpoints: int = 0
    writes: int = 0
    unchanged: int = 0
    verified: int = 0
    conflicts: list[Problem] = field(default_factory=list)
    differences: list[Problem] = field(default_factory=list)

    def __add__(self, other: TransferReport) -> TransferReport:
        return TransferReport(
            self.threads + other.threads,
            self.checkpoints + other.checkpoints,
            self.writes + other.writes,
            self.unchanged + other.unchanged,
            self.verified + other.verified,
            self.conflicts + other.conflicts,
            self.differences + other.differences,
        )


@dataclass(frozen=True, slots=True)
class SchemaStatus:
    """Where a schema stands.

    Attributes:
        schema: The PostgreSQL schema.
        version: Newest applied migration, 0 if there is none.
        expected: Newest migration this package ships.
        pending: Names of the migrations still to apply.
    """

    schema: str
    version: int
    expected: int
    pending: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TableSize:
    """What one table takes.

    Attributes:
        name: The table.
        rows: Its rows.
        exact: Whether they were counted; else PostgreSQL's estimate.
        bytes: On disk, with indexes and TOAST.
        index_bytes: Of these, the indexes.
    """

    name: str
    rows: int
    exact: bool
    bytes: int
    index_bytes: int


@dataclass(frozen=True, slots=True)
class ThreadSize:
    """What one thread takes, before PostgreSQL's own overhead.

    Attributes:
        checkpoints: Checkpoint rows.
        state_bytes: Bytes of their states.
        segments: Segment rows.
        segment_bytes: Bytes of their data.
        writes: Rows of pending writes.
        write_bytes: Bytes of their data.
    """

    checkpoints: int
    state_bytes: int
    segments: int
    segment_bytes: int
    writes: int
    write_bytes: int


class Query(Protocol):
    """A named statement, ready for one schema."""

    @property
    def name(self) -> str:
        """Its name in the `.sql` file."""
        ...

    @property
    def text(self) -> bytes:
        """The statement, with `$n` for its parameters."""
        ...

    @property
    def parameters(self) -> tuple[str, ...]:
        """Parameter names in placeholder order."""
        ...


Row = tuple[Any, ...]
Parameters = Mapping[str, Any]
Rows = Sequence[Row]


@dataclass(slots=True)
class UpcastReport:
    """What bringing checkpoints up to the current version of the state changed, or would change.

    Attributes:
        threads: Threads visited.
        outdated: Checkpoints of an older version that were found.
        upcast: How many of them were brought up, or would be.
        added: By channel, in how many checkpoints it appears.
        changed: By channel, in how many its value becomes another.
        removed: By channel, in how many it disappears.
        problems: What could not be brought up, and why; it is left as it is.
        dry_run: Whether nothing was changed.
    """

    threads: int = 0
    outdated: int = 0
    upcast: int = 0
    added: Counter[str] = field(default_factory=Counter)
    changed: Counter[str] = field(default_factory=Counter)
    removed: Counter[str] = field(default_factory=Counter)
    problems: list[Problem] = field(default_factory=list)
    dry_run: bool = False

    def __add__(self, other: UpcastReport) -> UpcastReport:
        return UpcastReport(
            self.threads + other.threads,
            self.outdated + other.outdated,
            self.upcast + other.upcast,
            self.added + other.added,
            self.changed + other.changed,
            self.removed + other.removed,
            self.problems + other.problems,
            self.dry_run or other.dry_run,
        )
