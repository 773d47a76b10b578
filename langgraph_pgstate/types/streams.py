"""Events of runs that are followed while they run, or afterwards."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple, Protocol

from langgraph_pgstate.types.queue import RunKey


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
