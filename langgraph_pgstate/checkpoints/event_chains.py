"""Hash chains of the events of threads, which reveal later changes of events. `setup(audit=True)` turns chains on.

Each statement that inserts events returns the keys of the events. A second statement in the same transaction appends
the events to the chains of their threads.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any, Final

import orjson

from langgraph_pgstate.codec.ids import new_revision
from langgraph_pgstate.db.protocol import Connection, Rows
from langgraph_pgstate.schema.queries import NamedQuery, Queries, Statement

KIND: Final = "audit"
"""Kind of the event that lists the entries of a chain whose events were deleted or changed."""

_PAGE: Final = 500


async def is_chained(db: Connection, queries: Queries) -> bool:
    """Return whether events are chained. The result may be a few seconds old."""
    name = f"events of {queries.schema} are chained"
    found = db.recall(name)
    if found is None:
        found = bool((await db.fetch(queries.has_chaining, {}))[0][0])
        db.remember(name, found)
    return bool(found)


def chaining(queries: Queries, events: Iterable[Sequence[Any]]) -> list[Statement]:
    """Return the statements that append events, given as `(thread_id, event_id)`, to the chains of their threads."""
    pairs = sorted({(one[0], one[1]) for one in events})
    if not pairs:
        return []
    thread_ids = [thread_id for thread_id, _ in pairs]
    return [
        (queries.open_chains, {"thread_ids": sorted({*thread_ids})}),
        (queries.chain_events, {"thread_ids": thread_ids, "event_ids": [event_id for _, event_id in pairs]}),
    ]


async def chain(db: Connection, queries: Queries, events: Iterable[Sequence[Any]]) -> None:
    """Append events to the chains of their threads, if chains are on. Call this in the inserting transaction."""
    if await is_chained(db, queries):
        for statement, parameters in chaining(queries, events):
            await db.execute(statement, parameters)


async def insert_events(db: Connection, queries: Queries, query: NamedQuery, parameters: dict[str, Any]) -> Rows:
    """Execute a statement that inserts events and returns their keys. Chain the events in the same transaction."""
    if not await is_chained(db, queries):
        return await db.fetch(query, parameters)
    async with db.transaction():
        rows = await db.fetch(query, parameters)
        await chain(db, queries, rows)
    return rows


async def release_events(db: Connection, queries: Queries, thread_id: str, event_ids: Sequence[str], why: str) -> None:
    """Record, as an event of the thread, that other events are about to be deleted or changed.

    Call this in the transaction of the change, and call `chain` for the changed events afterwards.
    """
    if not event_ids or not await is_chained(db, queries):
        return
    await db.execute(queries.open_chains, {"thread_ids": [thread_id]})
    key = {"thread_id": thread_id, "event_ids": list(event_ids)}
    numbers = sorted(row[0] for row in await db.fetch(queries.release_events, key))
    if numbers:
        payload = {"reason": why, "entries": _ranges(numbers)}
        noted = {
            **{"thread_id": thread_id, "kind": KIND, "payload": orjson.dumps(payload).decode()},
            **{"run_id": None, "checkpoint_id": None, "suffix": f"{new_revision():014x}"},
        }
        await chain(db, queries, await db.fetch(queries.add_event, noted))


async def release_runs(db: Connection, queries: Queries, thread_id: str, run_ids: Sequence[str]) -> None:
    """Record that the events of some runs are about to be deleted. Call this in the deleting transaction."""
    if await is_chained(db, queries):
        key = {"thread_id": thread_id, "run_ids": list(run_ids)}
        found = [row[0] for row in await db.fetch(queries.list_events_of_runs, key)]
        await release_events(db, queries, thread_id, found, "run deleted")


async def end_chain(db: Connection, queries: Queries, thread_id: str, why: str) -> None:
    """End a thread's chain, in the transaction that deleted events. The thread's other events begin another chain."""
    if await is_chained(db, queries):
        await db.execute(queries.open_chains, {"thread_ids": [thread_id]})
        await db.fetch(queries.end_chain, {"thread_id": thread_id, "reason": why})
        await adopt(db, queries, thread_id)


async def adopt(db: Connection, queries: Queries, thread_id: str) -> int:
    """Append the events of a thread that are in no chain, and return the number of events."""
    count, cursor = 0, ""
    while True:
        key = {"thread_id": thread_id, "cursor_id": cursor, "page_size": _PAGE}
        found = [row[0] for row in await db.fetch(queries.list_unchained, key)]
        if not found:
            return count
        await chain(db, queries, [(thread_id, event_id) for event_id in found])
        count, cursor = count + len(found), found[-1]


def _ranges(numbers: Sequence[int]) -> list[list[int]]:
    """Return ascending numbers as ranges `[first, last]` without gaps."""
    groups = groupby(enumerate(numbers), key=lambda pair: pair[1] - pair[0])
    members = [[number for _, number in group] for _, group in groups]
    return [[group[0], group[-1]] for group in members]
