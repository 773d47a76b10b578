"""Types of the queue: runs, workers, limits, events of runs, and webhooks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, NamedTuple, Protocol

from langgraph_pgstate.errors import ConfigurationError
from langgraph_pgstate.leases.types import Lease


class RunKey(NamedTuple):
    """A run under one lease. Once another lease is taken on its thread, nothing more is written under this one."""

    thread_id: str
    run_id: str
    fencing_token: int


@dataclass(frozen=True, slots=True)
class ClaimedRun:
    """A run that a worker has claimed, with its request.

    Attributes:
        thread_id: The thread.
        run_id: The run.
        queue: The queue.
        graph: Name of the graph.
        queue_key: Its key in the queue; empty for none.
        attempt: Number of this attempt, from 1. An attempt of a run that was requeued does not count.
        crashes: Deaths of its workers since it last made a checkpoint.
        lease: The thread's lease, taken with the claim.
        data: The arguments of the graph, encoded; see `open_input`.
        options: Retries and time limits.
        checkpoint_id: The run's newest checkpoint in the root namespace; `None` if it has none.
        head_id: The thread's newest checkpoint in the root namespace; another run's if it differs.
        cancel: `cancel`, `interrupt` or `rollback` if the run is to end so, without being run.
        timeout_at: Time at which it has run too long, by the database's clock.
        is_suspect: Whether its last worker died, so that it is to be alone in this one.
        unreadable: Why its options cannot be used; `None` if they can.
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
        has_limits: Whether the queue has limits, or runs that wait for one.
        has_waiting: Whether runs of the queue wait for limits of their keys.
        is_busy: Whether runs were left because another worker had just claimed runs of their key.
        has_suspects: Whether runs of the queue wait to be claimed alone.
    """

    runs: list[ClaimedRun]
    has_limits: bool
    has_waiting: bool
    is_busy: bool
    has_suspects: bool


class Tended(NamedTuple):
    """The answer to a renewal of the leases of a worker's runs.

    Attributes:
        still: Runs that are still the worker's. The others were lost: another worker may run them, or the thread was
            deleted.
        cancels: How runs of `still` are to be cancelled: `cancel`, `interrupt` or `rollback`.
        unknown: Runs that were claimed for the worker although it does not know: the answer to its claim was lost.
        renewed: Runs of `still` whose leases were renewed. Those of others were locked.
    """

    still: set[RunKey]
    cancels: dict[RunKey, str]
    unknown: set[RunKey]
    renewed: set[RunKey]


@dataclass(frozen=True, slots=True)
class Recovered:
    """A run whose worker died.

    Attributes:
        thread_id: The thread.
        run_id: The run.
        worker_id: The worker.
        crashes: Deaths of its workers since it last made a checkpoint, this one included.
        status: `pending` if another worker may claim it; otherwise how it ended.
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
        thread_id: The thread.
        run_id: The run.
        is_new: Whether this call enqueued it; false if it was enqueued before under the same id.
    """

    thread_id: str
    run_id: str
    is_new: bool


@dataclass(frozen=True, slots=True)
class QueuedRun:
    """A run in the queue.

    Attributes:
        thread_id: The thread.
        run_id: The run.
        queue: The queue.
        graph: Name of the graph.
        status: `pending` or `running`.
        is_ready: Whether a worker may claim it, or runs it; false if it waits for its time or for its thread. A ready
            run may wait for a limit, see `is_limited`, or for a worker that accepts it, see `is_accepted`.
        priority: Its priority; higher is claimed first.
        key: Runs of different keys take turns.
        run_after: Time before which it is not claimed; `None` for at once.
        enqueued_at: Time it was enqueued.
        attempt: Attempts that began.
        crashes: Deaths of its workers since it last made a checkpoint.
        cancel: How it is to be cancelled, if that was asked for.
        worker_id: The worker that runs it.
        claimed_at: Start of the attempt.
        timeout_at: Time at which it has run too long.
        version: Version of the graph; empty for any.
        is_limited: Whether it waits because its key is at its limit.
        is_accepted: Whether a worker that was seen in the last 30 seconds serves its queue, its graph and its version.
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
        queue: The queue.
        graph: The graph.
        status: `pending` or `running`.
        ready: Runs that a worker may claim, or runs; the others wait for their time or for their thread.
        count: All runs.
        oldest_at: Time the oldest was enqueued.
        is_accepted: Whether a worker that was seen in the last 30 seconds serves the queue, the graph and the version.
        version: Version of the graph; empty for any.
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
    """A number of runs that begin in a time at most.

    Attributes:
        count: Number of runs, counted by their attempts.
        per: The time: seconds or a timedelta. It begins with the first run after the time before has passed.
    """

    count: int
    per: float | timedelta = 1.0

    def __post_init__(self) -> None:
        if isinstance(self.count, bool) or not isinstance(self.count, int) or not 1 <= self.count < 2**31:
            raise ConfigurationError(f"Rate.count must be a whole number, 1 or more, not {self.count!r}")
        seconds = self.per.total_seconds() if isinstance(self.per, timedelta) else self.per
        if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds < 10**9:
            raise ConfigurationError(f"Rate.per must be seconds or a timedelta, more than 0, not {self.per!r}")

    @property
    def seconds(self) -> float:
        """The time in seconds."""
        return self.per.total_seconds() if isinstance(self.per, timedelta) else float(self.per)


@dataclass(frozen=True, slots=True)
class QueueLimit:
    """A limit of a queue, of each of its keys, or of one key.

    Attributes:
        queue: The queue.
        key: The key; `*` for each key that has no limit of its own; `None` for the whole queue.
        concurrency: Runs that run at once at most; `None` for no limit.
        rate: Attempts that begin in a time at most; `None` for no limit.
        running: Runs under the limit that run now.
        waiting: Ready runs that were found to exceed it, and wait. Those of a whole queue are not counted.
    """

    queue: str
    key: str | None
    concurrency: int | None
    rate: Rate | None
    running: int
    waiting: int


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    """A worker, as it has stored itself.

    Attributes:
        worker_id: The worker.
        started_at: Time it started.
        seen_at: Time it was last alive.
        is_alive: Whether that was in the last 30 seconds.
        queues: The queues that it serves.
        graphs: The graphs that it runs.
        concurrency: Number of runs that it runs at once at most.
        versions: The versions of each graph that it accepts.
        running: Number of runs that it runs.
        drain_asked_at: Time it was asked to drain; `None` if it was not.
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
        id: Its id, after which a stream can be joined again. Ids of a run are opaque.
        event: The stream mode of LangGraph; or `metadata` at the start of each attempt, `gap` in place of events that
            are no longer stored, `error` before the end of a run that failed, and `end`.
        namespace: The subgraph that it is of, as `graph.stream(…, subgraphs=True)` has it; empty for the graph itself.
        data: What `graph.stream` yields in that mode; `(message, metadata)` in mode `messages`. Otherwise a dict:
            `run_id` and `attempt`; `first` and `last` id of a gap; `error` and `message`; `status`,
            which is `deleted` if the run no longer exists.
        attempt: The attempt of the run, from 1; 0 if none is known.
        is_replayed: Whether an earlier attempt has had events of the same superstep, which this one repeats.
        stored_at: Time at which it was stored; of the last events, that of the run's end.
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
        run_id: The run.
        graph: Name of its graph.
        event: The event.
    """

    run_id: str
    graph: str
    event: StreamEvent


class RunIds(Protocol):
    """Anything that names a run: a handle, or a run of a list."""

    @property
    def thread_id(self) -> str:
        """The thread."""
        ...

    @property
    def run_id(self) -> str:
        """The run."""
        ...


class EventBatch(NamedTuple):
    """Events of a run that its worker writes together.

    Attributes:
        key: The run under its lease.
        attempt: The attempt.
        position: Number of events that were written before them under this lease.
        length: Number of events.
        step: Newest superstep that events so far are of.
        data: The encoded events.
    """

    key: RunKey
    attempt: int
    position: int
    length: int
    step: int
    data: bytes


class StoredBatch(NamedTuple):
    """A batch of events that is stored.

    Attributes:
        first_seq: Number of the first event.
        last_seq: Number of the last event.
        attempt: The attempt.
        replayed_step: Newest superstep that events under earlier leases are of; `None` if there are none.
        data: The encoded events.
        created_at: Time at which it was stored.
    """

    first_seq: int
    last_seq: int
    attempt: int
    replayed_step: int | None
    data: bytes
    created_at: datetime | None = None


class Wanted(NamedTuple):
    """The events of a run after a number."""

    thread_id: str
    run_id: str
    after: int


class StreamPage(NamedTuple):
    """Events of a run, and its status at the same moment.

    Attributes:
        status: The run's status; `None` if it does not exist.
        error_type: Its error.
        error_message: Message of the error.
        last_event: Number of its last event when it last left a worker.
        batches: Batches of events, in order.
        is_full: Whether there may be more.
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
    """A run of a thread that is followed.

    Attributes:
        run_id: The run.
        graph: Name of its graph.
        status: Its status.
        started_at: Time at which its last attempt started, or it was enqueued.
        ended_at: Time at which it ended.
        last_event: Number of its last event, over all attempts, if it has ended and has some.
    """

    run_id: str
    graph: str
    status: str
    started_at: datetime
    ended_at: datetime | None
    last_event: int | None = None


class WantedRuns(NamedTuple):
    """The runs of a thread since a time, or since the start of a run, or since the start of its newest run.

    Attributes:
        thread_id: The thread.
        since: The time.
        run_id: The run.
        ended_since: Without `since`: since the start of the first run that ended after this time.
    """

    thread_id: str
    since: datetime | None
    run_id: str | None
    ended_since: datetime | None = None


class ThreadPage(NamedTuple):
    """Runs of a thread: those that have not ended, and those that started since a time.

    Attributes:
        now: Time at which they were read, by the database's clock.
        runs: The runs, by the times of their ends; those that have not ended come last.
    """

    now: datetime
    runs: list[ThreadRun]


class Delivery(NamedTuple):
    """A webhook that this process has claimed, to deliver it once.

    Attributes:
        thread_id: The thread.
        run_id: The run.
        ended_at: Time at which the run ended.
        url: Where it is delivered to.
        attempts: Number of this attempt, from 1.
        run: Columns of the run, as it ended.
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
        thread_id: The thread.
        run_id: The run.
        ended_at: Time at which the run ended.
        url: Where it was to be delivered to.
        attempts: Number of attempts.
        last_error: Why the last one failed.
    """

    thread_id: str
    run_id: str
    ended_at: datetime
    url: str
    attempts: int
    last_error: str | None
