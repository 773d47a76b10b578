"""Types of the queue: runs, workers, limits, events of runs, and webhooks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, NamedTuple, Protocol

from langgraph_pgstate.errors import ConfigurationError
from langgraph_pgstate.leases.types import Lease


class RunKey(NamedTuple):
    """A run under one lease. After another lease is taken on the thread, writes under this lease are refused."""

    thread_id: str
    run_id: str
    fencing_token: int


@dataclass(frozen=True, slots=True)
class ClaimedRun:
    """A run that a worker has claimed, with its request.

    Attributes:
        thread_id: Id of the thread.
        run_id: Id of the run.
        queue: Name of the queue.
        graph: Name of the graph.
        queue_key: The key in the queue; empty for none.
        attempt: Number of this attempt, from 1. An attempt after which a drain requeued the run does not count.
        crashes: Number of deaths of the run's workers since its last checkpoint.
        lease: The thread's lease, taken with the claim.
        data: The encoded arguments of the graph; see `runs/inputs.py`.
        options: Retries and time limits.
        checkpoint_id: The run's newest checkpoint in the root namespace, if any.
        head_id: The thread's newest checkpoint in the root namespace, which may be of another run.
        cancel: `cancel`, `interrupt` or `rollback` if the run must end in this way, without being executed.
        timeout_at: Time of the timeout, by the database's clock.
        is_suspect: Whether the run must be alone in its worker, because an earlier worker died.
        unreadable: The error of unreadable options.
    """

    thread_id: str
    run_id: str
    queue: str
    graph: str
    queue_key: str
    attempt: int
    crashes: int
    lease: Lease
    data: bytes
    options: Mapping[str, Any]
    checkpoint_id: str | None
    head_id: str | None
    cancel: str | None
    timeout_at: datetime | None
    is_suspect: bool = False
    unreadable: Exception | None = None

    @property
    def key(self) -> RunKey:
        """The run under its lease."""
        return RunKey(self.thread_id, self.run_id, self.lease.fencing_token)

    @property
    def max_attempts(self) -> int:
        """Number of attempts after which an error is final."""
        return int(self.options.get("max_attempts", 1))


class Claims(NamedTuple):
    """The result of a claim.

    Attributes:
        runs: The claimed runs.
        has_limits: Whether the queue has limits, or runs that wait for a limit.
        has_waiting: Whether runs of the queue wait for limits of their keys.
        is_busy: Whether runs were not claimed because another worker was claiming runs of their key.
        has_suspects: Whether runs of the queue wait to be claimed alone.
    """

    runs: list[ClaimedRun]
    has_limits: bool
    has_waiting: bool
    is_busy: bool
    has_suspects: bool


class Tended(NamedTuple):
    """The result of renewing the leases of a worker's runs.

    Attributes:
        still: Runs that the worker still has. The worker has lost its other runs.
        cancels: Runs of `still` to cancel, with `cancel`, `interrupt` or `rollback`.
        unknown: Runs that the worker does not know, because the response to the claim was lost.
        renewed: Runs of `still` whose leases were renewed. The other leases were locked.
    """

    still: set[RunKey]
    cancels: dict[RunKey, str]
    unknown: set[RunKey]
    renewed: set[RunKey]


@dataclass(frozen=True, slots=True)
class Recovered:
    """A run whose worker died.

    Attributes:
        thread_id: Id of the thread.
        run_id: Id of the run.
        worker_id: Id of the worker.
        crashes: Number of deaths of the run's workers since its last checkpoint, including the last death.
        status: `pending` if another worker may claim the run. Otherwise the status of the ended run.
    """

    thread_id: str
    run_id: str
    worker_id: str | None
    crashes: int
    status: str


@dataclass(frozen=True, slots=True)
class EnqueuedRun:
    """A run that was enqueued.

    Attributes:
        thread_id: Id of the thread.
        run_id: Id of the run.
        is_new: Whether this call enqueued the run; false if the run was enqueued before.
    """

    thread_id: str
    run_id: str
    is_new: bool


@dataclass(frozen=True, slots=True)
class QueuedRun:
    """A run in the queue.

    Attributes:
        thread_id: Id of the thread.
        run_id: Id of the run.
        queue: Name of the queue.
        graph: Name of the graph.
        status: `pending` or `running`.
        is_ready: Whether the run is running or may be claimed. False if the run waits for `run_after` or for another
            run of its thread. A ready run may still wait because of `is_limited` or `is_accepted`.
        priority: The priority. Runs of higher priority are claimed first.
        key: Key in the queue, such as a user. Runs of different keys take turns.
        run_after: Time before which the run is not claimed, if any.
        enqueued_at: Time at which the run was enqueued.
        attempt: Number of attempts that began.
        crashes: Number of deaths of the run's workers since its last checkpoint.
        cancel: `cancel`, `interrupt` or `rollback` if the run must end in this way.
        worker_id: The worker that executes the run.
        claimed_at: Start of the attempt.
        timeout_at: Time of the timeout.
        version: Version of the graph; empty for any version.
        is_limited: Whether the run waits because its key is at a limit.
        is_accepted: Whether a worker that was seen in the last 30 seconds serves the queue, the graph and the version.
    """

    thread_id: str
    run_id: str
    queue: str
    graph: str
    status: str
    is_ready: bool
    priority: int
    key: str
    run_after: datetime | None
    enqueued_at: datetime
    attempt: int
    crashes: int
    cancel: str | None
    worker_id: str | None
    claimed_at: datetime | None
    timeout_at: datetime | None
    version: str
    is_limited: bool
    is_accepted: bool


@dataclass(frozen=True, slots=True)
class QueueCount:
    """Number of runs of one queue, graph, version and status.

    Attributes:
        queue: Name of the queue.
        graph: Name of the graph.
        status: `pending` or `running`.
        ready: Number of runs that are running or may be claimed.
        count: Number of all runs.
        oldest_at: Time at which the oldest run was enqueued.
        is_accepted: Whether a worker that was seen in the last 30 seconds serves the queue, the graph and the version.
        version: Version of the graph; empty for any version.
    """

    queue: str
    graph: str
    status: str
    ready: int
    count: int
    oldest_at: datetime
    is_accepted: bool
    version: str


@dataclass(frozen=True, slots=True)
class Rate:
    """A maximum number of runs that begin per period.

    Attributes:
        count: Number of attempts of runs.
        per: The period, in seconds or as a timedelta. A period begins with the first attempt after the period before.
    """

    count: int
    per: float | timedelta = 1.0

    def __post_init__(self) -> None:
        if isinstance(self.count, bool) or not isinstance(self.count, int) or not 1 <= self.count < 2**31:
            raise ConfigurationError(f"Rate.count must be a whole number, 1 or more, not {self.count!r}")
        seconds = self.per.total_seconds() if isinstance(self.per, timedelta) else self.per
        if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds < 10**9:
            raise ConfigurationError(f"Rate.per must be a number of seconds above 0, or a timedelta, not {self.per!r}")

    @property
    def seconds(self) -> float:
        """The period in seconds."""
        return self.per.total_seconds() if isinstance(self.per, timedelta) else float(self.per)


@dataclass(frozen=True, slots=True)
class QueueLimit:
    """A limit of a queue, of each key of the queue, or of one key.

    Attributes:
        queue: Name of the queue.
        key: The key; `*` for each key that has no limit of its own; `None` for the whole queue.
        concurrency: Maximum number of runs at the same time; `None` for no limit.
        rate: Maximum number of attempts that begin per period; `None` for no limit.
        running: Number of running runs under the limit.
        waiting: Number of ready runs that wait for the limit of a key.
    """

    queue: str
    key: str | None
    concurrency: int | None
    rate: Rate | None
    running: int
    waiting: int


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    """A worker.

    Attributes:
        worker_id: Id of the worker.
        started_at: Time at which the worker started.
        seen_at: Time at which the worker last stored that it is alive.
        is_alive: Whether `seen_at` is in the last 30 seconds.
        queues: The queues of the worker.
        graphs: The graphs of the worker.
        concurrency: Maximum number of runs at the same time.
        versions: The accepted versions of each graph.
        running: Number of running runs.
        drain_asked_at: Time at which the worker was asked to drain, if any.
    """

    worker_id: str
    started_at: datetime
    seen_at: datetime
    is_alive: bool
    queues: tuple[str, ...]
    graphs: tuple[str, ...]
    concurrency: int
    versions: Mapping[str, Any]
    running: int
    drain_asked_at: datetime | None


@dataclass(frozen=True, slots=True)
class StreamEvent:
    """An event of a run.

    Attributes:
        id: The event's opaque id. A reader that reconnects passes this id as `last_event_id`.
        event: The stream mode of LangGraph. Further kinds of events are `metadata` at the start of each attempt, `gap`
            in place of events that are no longer stored, `error` before the end of a failed run, and `end`.
        namespace: Namespace of the subgraph, as in `graph.stream(…, subgraphs=True)`; empty for the graph itself.
        data: For a stream mode, the data that `graph.stream` yields. Otherwise a dict: `run_id` and `attempt` in
            `metadata`; the ids `first` and `last` in `gap`; `error` and `message` in `error`; `status` in `end`
            (`deleted` if the run no longer exists).
        attempt: The attempt of the run, from 1; 0 if the attempt is unknown.
        is_replayed: Whether an earlier attempt has stored events of the same superstep.
        stored_at: Time at which the event was stored. For `error` and `end`, the time of the run's end.
    """

    id: str
    event: str
    namespace: tuple[str, ...]
    data: Any
    attempt: int
    is_replayed: bool = False
    stored_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class ThreadEvent:
    """An event of one of a thread's runs.

    Attributes:
        run_id: Id of the run.
        graph: Name of the graph.
        event: The event.
    """

    run_id: str
    graph: str
    event: StreamEvent


class RunIds(Protocol):
    """An object that names a run: a handle, or a run of a list."""

    @property
    def thread_id(self) -> str:
        """The thread."""
        ...

    @property
    def run_id(self) -> str:
        """The run."""
        ...


class EventBatch(NamedTuple):
    """Events of a run that its worker stores together.

    Attributes:
        key: The run under its lease.
        attempt: Number of the attempt.
        position: Number of events that were stored before this batch under the same lease.
        length: Number of events.
        step: Newest superstep of the events so far.
        data: The encoded events.
    """

    key: RunKey
    attempt: int
    position: int
    length: int
    step: int
    data: bytes


class StoredBatch(NamedTuple):
    """A stored batch of events.

    Attributes:
        first_seq: Number of the first event.
        last_seq: Number of the last event.
        attempt: Number of the attempt.
        replayed_step: Newest superstep of the events under earlier leases, if any.
        data: The encoded events.
        created_at: Time at which the batch was stored.
    """

    first_seq: int
    last_seq: int
    attempt: int
    replayed_step: int | None
    data: bytes
    created_at: datetime | None = None


class Wanted(NamedTuple):
    """A request for the events of a run after the event with a given number."""

    thread_id: str
    run_id: str
    after: int


class StreamPage(NamedTuple):
    """Events of a run, and its status at the same moment.

    Attributes:
        status: The run's status; `None` if the run does not exist.
        error_type: Type of the run's error.
        error_message: Message of the run's error.
        last_event: Number of the run's last event when its last attempt ended.
        batches: Batches of events, in order.
        is_full: Whether more events may be stored.
        ended_at: Time at which the run ended.
    """

    status: str | None
    error_type: str | None
    error_message: str | None
    last_event: int | None
    batches: list[StoredBatch]
    is_full: bool
    ended_at: datetime | None = None


class ThreadRun(NamedTuple):
    """A run of a followed thread.

    Attributes:
        run_id: Id of the run.
        graph: Name of the graph.
        status: Status of the run.
        started_at: Start of the last attempt, or else the time at which the run was enqueued.
        ended_at: Time at which the run ended. For a run that was cancelled while it waited for a running run, just
            after the end of that run; `None` until then.
        last_event: Number of the run's last event when its last attempt ended.
    """

    run_id: str
    graph: str
    status: str
    started_at: datetime
    ended_at: datetime | None
    last_event: int | None = None


class WantedRuns(NamedTuple):
    """A reader's request for the runs of a thread that started after a moment.

    Attributes:
        thread_id: Id of the thread.
        since: The moment. By default, the start of the run `run_id`. Without such a run, the earliest start of the runs
            that ended after `ended_since`. Without such runs, the start of the newest run.
        run_id: Id of a run of the thread.
        ended_since: A time.
    """

    thread_id: str
    since: datetime | None
    run_id: str | None
    ended_since: datetime | None = None


class ThreadPage(NamedTuple):
    """Runs of a thread that have not ended, or that started since a time.

    Attributes:
        now: Time of the read, by the database's clock.
        runs: The runs, ordered by end time. Runs that have not ended come last.
    """

    now: datetime
    runs: list[ThreadRun]


class Delivery(NamedTuple):
    """A webhook that this process has claimed, to try to deliver it once.

    Attributes:
        thread_id: Id of the thread.
        run_id: Id of the run.
        ended_at: Time at which the run ended.
        url: The URL to which the webhook is delivered.
        attempts: Number of this attempt, from 1.
        run: Columns of the run at its end.
        sent_at: Time of the claim, by the database's clock.
    """

    thread_id: str
    run_id: str
    ended_at: datetime
    url: str
    attempts: int
    run: Mapping[str, Any]
    sent_at: datetime

    @property
    def id(self) -> str:
        """The id of the delivery, the same in all attempts."""
        return f"{self.run_id}-{round(self.ended_at.timestamp() * 1_000_000)}"


@dataclass(frozen=True, slots=True)
class Webhook:
    """A webhook that could not be delivered.

    Attributes:
        thread_id: Id of the thread.
        run_id: Id of the run.
        ended_at: Time at which the run ended.
        url: The URL to which the webhook must be delivered.
        attempts: Number of attempts.
        last_error: Error of the last attempt.
    """

    thread_id: str
    run_id: str
    ended_at: datetime
    url: str
    attempts: int
    last_error: str | None
