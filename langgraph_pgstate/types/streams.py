"""Events of runs that are followed while they run, or afterwards."""

from __future__ import annotations

from dataclasses import dataclass
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
    """

    id: str
    event: str
    namespace: tuple[str, ...]
    data: Any
    attempt: int
    is_replayed: bool = False


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
    """

    first_seq: int
    last_seq: int
    attempt: int
    replayed_step: int | None
    data: bytes


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
    """

    status: str | None
    error_type: str | None
    error_message: str | None
    last_event: int | None
    batches: list[StoredBatch]
    is_full: bool
