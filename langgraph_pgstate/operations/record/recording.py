"""What a recorder writes: the journal of its threads, and what is in no journal yet."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

from langgraph_pgstate.db.protocol import Connection
from langgraph_pgstate.operations.record import journal
from langgraph_pgstate.operations.record.journal_entry import JournalEntry
from langgraph_pgstate.sql import Queries


class Rows(Protocol):
    """Records on their way to the database."""

    journal_entry: JournalEntry
    is_complete: bool


R = TypeVar("R", bound=Rows)


class Source(Protocol[R]):
    """Where rows come from. Rows that are not acknowledged come again."""

    def collect(self, everything: bool = True) -> R | None:
        """The next rows that are in no journal; `None` if there are none."""
        ...

    def acknowledge(self, pending: R) -> None:
        """These rows are committed."""
        ...

    def noted(self) -> dict[str, int]:
        """The threads that have something in the journal, each with a number that changes when more is added."""
        ...

    def moved(self, noted: dict[str, int]) -> None:
        """What these threads had in the journal is in the tables."""
        ...

    def own_runs(self) -> list[tuple[str, str]]:
        """Thread and id of the runs under way in this process."""
        ...

    def due_renewals(self) -> list[tuple[str, str]]:
        """The runs to say that they are alive; none while that was said not long ago."""
        ...


async def write_pending(
    db: Connection,
    queries: Queries,
    source: Source[R],
    is_dead: Callable[[str], bool],
    holder_id: str,
    ttl: float,
    everything: bool = True,
) -> None:
    """Write all that waits, and say that this process is alive. What fails stays for the next time.

    Args:
        db: The connection.
        queries: The queries of the schema.
        source: Where the rows come from.
        is_dead: Whether a holder is known to be dead.
        holder_id: This process.
        ttl: Seconds it is to be taken to be alive.
        everything: Also what has come in just now, and what a put that is under way has taken.
    """
    if mine := source.due_renewals():
        await renew_runs(db, queries, mine, holder_id, ttl)
    while True:
        # Rows first: what they build on is in the journal by then, or in the tables.
        pending = source.collect(everything)
        noted = source.noted()
        if pending is None and not noted:
            return
        more = None if pending is None else pending.journal_entry
        await journal.write(db, queries, list(noted), more, is_dead, source.own_runs())
        source.moved(noted)
        if pending is None:
            return
        source.acknowledge(pending)
        if pending.is_complete:
            # What has come in meanwhile is for the next time: who waits must not run after those who add.
            return


async def renew_runs(
    db: Connection, queries: Queries, runs: Sequence[tuple[str, str]], holder_id: str, ttl: float
) -> None:
    """Say that the process that runs these runs is alive for another `ttl` seconds. One statement; safe to repeat.

    Args:
        db: The connection.
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
    await db.execute(queries.renew_runs, parameters)


async def tell_time(db: Connection, queries: Queries) -> float:
    """The database's clock, in seconds since 1970."""
    seconds: float = (await db.fetch(queries.tell_time, {}))[0][0]
    return seconds
