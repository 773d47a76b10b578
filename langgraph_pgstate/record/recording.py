"""Writing of a recorder's rows into the tables, from the journal and from memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

from langgraph_pgstate.checkpoints.journal_entry import JournalEntry
from langgraph_pgstate.db.protocol import Connection
from langgraph_pgstate.record import journal
from langgraph_pgstate.schema.queries import Queries


class PendingRows(Protocol):
    """Rows that are in no journal yet. `is_complete` says whether no row was left out."""

    journal_entry: JournalEntry
    is_complete: bool


R = TypeVar("R", bound=PendingRows)


class RowSource(Protocol[R]):
    """A source of rows, such as a `WriteQueue`. Rows that are not acknowledged are collected again."""

    def collect(self, include_recent: bool = True) -> R | None:
        """Return the next rows that are in no journal, or `None` if there are none."""
        ...

    def acknowledge(self, pending: R) -> None:
        """Remove committed rows."""
        ...

    def journaled_threads(self) -> dict[str, int]:
        """Return the threads with journal entries, each with a number that changes when entries are added."""
        ...

    def note_moved(self, threads: dict[str, int]) -> None:
        """Remember that the journal entries of these threads were moved to the tables."""
        ...

    def own_runs(self) -> list[tuple[str, str]]:
        """Return thread and id of the runs in progress in this process."""
        ...

    def due_renewals(self) -> list[tuple[str, str]]:
        """Return the runs whose `alive_until` must be renewed now."""
        ...


async def write_pending(
    db: Connection,
    queries: Queries,
    source: RowSource[R],
    is_dead: Callable[[str], bool],
    holder_id: str,
    ttl: float,
    include_recent: bool = True,
) -> None:
    """Write all pending rows, and renew `alive_until` of this process's runs. Rows that fail are kept for a later call.

    With `include_recent`, also write recent rows and rows of a put in progress.
    """
    if mine := source.due_renewals():
        await renew_runs(db, queries, mine, holder_id, ttl)
    while True:
        # Collect rows before the journal is read. Otherwise a collected row could depend on a newer journal entry that
        # was not read.
        pending = source.collect(include_recent)
        threads = source.journaled_threads()
        if pending is None and not threads:
            return
        more = None if pending is None else pending.journal_entry
        await journal.write(db, queries, list(threads), more, is_dead, source.own_runs())
        source.note_moved(threads)
        if pending is None:
            return
        source.acknowledge(pending)
        if pending.is_complete:
            # Leave rows that arrived meanwhile to the next call. Otherwise the caller could wait forever.
            return


async def renew_runs(
    db: Connection, queries: Queries, runs: Sequence[tuple[str, str]], holder_id: str, ttl: float
) -> None:
    """Set `alive_until` of a process's runs to `ttl` seconds from now. One statement; safe to repeat."""
    parameters: dict[str, Any] = {
        "thread_ids": [thread_id for thread_id, _ in runs],
        "run_ids": [run_id for _, run_id in runs],
        "holder_id": holder_id,
        "ttl": ttl,
    }
    await db.execute(queries.renew_runs, parameters)


async def tell_time(db: Connection, queries: Queries) -> float:
    """Return the database's clock, in seconds since 1970."""
    seconds: float = (await db.fetch(queries.tell_time, {}))[0][0]
    return seconds
