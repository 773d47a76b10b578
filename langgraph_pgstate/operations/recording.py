"""What a recorder writes: runs, spans and events in batches. Every statement is safe to repeat and to arrive late."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from langgraph_pgstate.db.port import Port
from langgraph_pgstate.operations.addresses import Address
from langgraph_pgstate.operations.companions import Statement, is_refusal
from langgraph_pgstate.operations.maintenance import choose_dead, find_running, settle_runs
from langgraph_pgstate.sql import Queries

SEMCONV_VERSION = "1.41.1"
"""The OpenTelemetry semantic conventions whose names `attributes` has."""


@dataclass(slots=True)
class Batch:
    """Rows to write, as JSON arrays.

    Attributes:
        thread_ids: The threads they belong to, each once, sorted.
        runs: Rows of `runs`; empty for none.
        spans: Rows of `spans`; empty for none.
        events: Rows of `events`; empty for none.
        begun: Thread and id of the runs written for the first time, whose earlier attempts may have left spans running.
        ended: Thread, run and start of the runs that have ended.
        ttl: Seconds a running run is taken to be alive.
    """

    thread_ids: list[str]
    runs: str = ""
    spans: str = ""
    events: str = ""
    begun: list[tuple[str, str]] = field(default_factory=list)
    ended: list[tuple[str, str, float]] = field(default_factory=list)
    ttl: float = 15.0

    def __bool__(self) -> bool:
        return bool(self.runs or self.spans or self.events)


class Rows(Protocol):
    """Records on their way to the database."""

    batch: Batch

    @property
    def new_threads(self) -> list[str]:
        """Threads on which a run starts."""
        ...

    def __len__(self) -> int: ...


R = TypeVar("R", bound=Rows)


class Source(Protocol[R]):
    """Where rows come from. Rows that are not acknowledged come again."""

    def collect(self, everything: bool = True) -> R | None:
        """The next rows; `None` if there are none."""
        ...

    def acknowledge(self, pending: R) -> None:
        """These rows are committed."""
        ...

    def halves(self, pending: R) -> list[R]:
        """The same rows in two parts."""
        ...

    def give_up(self, pending: R, error: BaseException) -> None:
        """The database refuses these rows for what they are."""
        ...

    def own_runs(self) -> list[tuple[str, str]]:
        """Thread and id of the runs under way in this process."""
        ...

    def due_renewals(self) -> list[tuple[str, str]]:
        """The runs to say that they are alive; none while that was said not long ago."""
        ...


def fork_statement(
    queries: Queries, address: Address, parent_id: str, event_id: str, run_id: str | None, source: str
) -> Statement:
    """What notes a fork, if the checkpoint just put is not its parent's only child.

    Args:
        queries: The queries of the schema.
        address: The checkpoint.
        parent_id: Its parent.
        event_id: The event's id; the same for the same checkpoint.
        run_id: The run it belongs to, if any.
        source: What made it: `fork`, `update` or `input`.
    """
    return queries.put_fork, {
        "thread_id": address.thread_id,
        "checkpoint_ns": address.checkpoint_ns,
        "checkpoint_id": address.checkpoint_id,
        "parent_checkpoint_id": parent_id,
        "event_id": event_id,
        "run_id": run_id,
        "source": source,
    }


def statements(queries: Queries, batch: Batch) -> list[Statement]:
    """What writes a batch of one thread beside its checkpoint; the thread's row is there, its status is not touched."""
    return [*_runs(queries, batch), *_spans(queries, batch), *_events(queries, batch)]


async def write_batch(port: Port, queries: Queries, batch: Batch) -> None:
    """Write a batch: one statement for each table. A span is only written when its run is there.

    For one thread they are one transaction, but for its status; for several each is its own, so that no two batches
    ever wait for each other in a circle.
    """
    found: list[Statement] = []
    if batch.begun:
        found.append((queries.put_new_threads, {"rows": batch.runs}))
    found += _runs(queries, batch)
    found += [
        (queries.settle_attempts, {"thread_id": thread_id, "run_id": run_id}) for thread_id, run_id in batch.begun
    ]
    found += [*_spans(queries, batch), *_events(queries, batch)]
    for thread_id, run_id, since in batch.ended:
        found.append((queries.total_run, {"thread_id": thread_id, "run_id": run_id, "since": since}))
    if len(batch.thread_ids) == 1:
        # In the order in which a put writes them.
        await port.execute_together(found)
    else:
        for query, parameters in found:
            await port.execute(query, parameters)
    if batch.begun or batch.ended:
        await port.execute(queries.refresh_statuses, {"thread_ids": batch.thread_ids})


async def write_pending(
    port: Port,
    queries: Queries,
    source: Source[R],
    is_dead: Callable[[str], bool],
    holder_id: str,
    ttl: float,
    everything: bool = True,
) -> None:
    """Write all that waits, batch by batch, and say that this process is alive. What fails stays for the next time.

    Where a run starts, what dead processes left running on its thread is ended first. Rows that the database refuses
    for what they are do not keep the others back.

    Args:
        port: The connection.
        queries: The queries of the schema.
        source: Where the rows come from.
        is_dead: Whether a holder is known to be dead.
        holder_id: This process.
        ttl: Seconds it is to be taken to be alive.
        everything: Also what a put that is under way has taken.
    """
    if mine := source.due_renewals():
        await renew_runs(port, queries, mine, holder_id, ttl)
    while (pending := source.collect(everything)) is not None:
        if threads := pending.new_threads:
            own = set(source.own_runs())
            running = [run for run in await find_running(port, queries, threads) if run[:2] not in own]
            for thread_id, dead in choose_dead(running, is_dead).items():
                await settle_runs(port, queries, thread_id, dead)
        waiting = [pending]
        while waiting:
            part = waiting.pop(0)
            try:
                await write_batch(port, queries, part.batch)
            except Exception as error:
                if not is_refusal(error):
                    raise
                if len(part) == 1:
                    source.give_up(part, error)
                else:
                    waiting = [half for half in source.halves(part) if len(half)] + waiting
            else:
                source.acknowledge(part)


async def renew_runs(port: Port, queries: Queries, runs: Sequence[tuple[str, str]], holder_id: str, ttl: float) -> None:
    """Say that the process that runs these runs is alive for another `ttl` seconds. One statement; safe to repeat.

    Args:
        port: The connection.
        queries: The queries of the schema.
        runs: Thread and id of each.
        holder_id: The process.
        ttl: Seconds from now, by the database's clock.
    """
    parameters: dict[str, Any] = {
        "thread_ids": [thread_id for thread_id, _ in runs],
        "run_ids": [run_id for _, run_id in runs],
        "holder_id": holder_id,
        "ttl": ttl,
    }
    await port.execute(queries.renew_runs, parameters)


async def tell_time(port: Port, queries: Queries) -> float:
    """The database's clock, in seconds since 1970."""
    seconds: float = (await port.fetch(queries.tell_time, {}))[0][0]
    return seconds


def _runs(queries: Queries, batch: Batch) -> list[Statement]:
    if not batch.runs:
        return []
    return [(queries.put_runs, {"rows": batch.runs, "thread_ids": batch.thread_ids, "ttl": batch.ttl})]


def _spans(queries: Queries, batch: Batch) -> list[Statement]:
    if not batch.spans:
        return []
    parameters = {"rows": batch.spans, "thread_ids": batch.thread_ids, "semconv_version": SEMCONV_VERSION}
    return [(queries.put_spans, parameters)]


def _events(queries: Queries, batch: Batch) -> list[Statement]:
    if not batch.events:
        return []
    return [(queries.put_events, {"rows": batch.events, "thread_ids": batch.thread_ids})]
