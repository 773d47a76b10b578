"""Later work on indexes of embeddings.

Items of large namespaces are put into approximate indexes. Other namespaces are searched exactly. Items that an index
lacks are embedded: items older than the index, and items for which a model failed.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any, Final

from langgraph_pgstate.db.protocol import Connection, Packed, Row, Rows
from langgraph_pgstate.db.runners import Runner
from langgraph_pgstate.errors import PGStateError
from langgraph_pgstate.memory.embedding import Vector, packed, packed_array
from langgraph_pgstate.memory.indexes import OpenIndex, statements_of, stored_indexes
from langgraph_pgstate.memory.namespaces import literal
from langgraph_pgstate.schema.queries import Queries

_log = logging.getLogger(__name__)

LARGE_SIZE: Final = 10_000
"""Minimum number of items of a namespace that is searched approximately."""
_BATCH: Final = 500
_LOCK_TIMEOUT: Final = "500ms"
_PAGE: Final = 200


async def move_large_namespaces(runner: Runner, queries: Queries, size: int = LARGE_SIZE) -> int:
    """Put the items of namespaces that have become large into the approximate indexes. Return their number.

    Transactions are small, so that puts and searches continue. A namespace is searched exactly until all its items are
    in the indexes. Later items are searched exactly until the next call. Safe to stop and to repeat.
    """
    await runner.run(find_large, queries, size)
    return await move_waiting(runner, queries)


async def move_waiting(runner: Runner, queries: Queries) -> int:
    """Put waiting items of known large namespaces into the approximate indexes. Return their number.

    Unlike `move_large_namespaces`, do not search for new large namespaces, because that reads all items.
    """
    run, moved = runner.run, 0
    for namespace, is_ready in await run(list_unmoved, queries):
        indexes, after = await run(stored_indexes, queries), ""
        while keys := await run(mark_some, queries, indexes, namespace, after, is_ready):
            moved, after = moved + len(keys), max(keys)
        if is_ready:
            continue
        try:
            await run(finish_namespace, queries, namespace)
        except PGStateError as error:
            if not error.retryable:
                raise
            # Another transaction has locked the table. The next call tries again.
            _log.info("namespace %s is searched exactly for now: %s", ".".join(namespace), error)
    return moved


async def find_large(db: Connection, queries: Queries, size: int) -> None:
    """Register namespaces that have become large. Later items of these namespaces are marked as waiting."""
    await db.execute(queries.find_large_namespaces, {"large_size": size})


async def list_unmoved(db: Connection, queries: Queries) -> list[tuple[tuple[str, ...], bool]]:
    """Return large namespaces with items outside the indexes, and whether each is searched approximately."""
    return [(tuple(row[0]), row[1]) for row in await db.fetch(queries.list_unmoved_namespaces, {})]


async def mark_some(
    db: Connection, queries: Queries, indexes: Sequence[OpenIndex], namespace: Sequence[str], after: str, is_ready: bool
) -> list[str]:
    """Put the next items of a namespace into the indexes, and return their keys. One transaction."""
    named, mark = literal(namespace), queries.mark_waiting_memories if is_ready else queries.mark_memories
    async with db.transaction():
        rows = await db.fetch(mark, {"namespace": named, "after": after, "count": _BATCH})
        keys = [row[0] for row in rows]
        for one in indexes:
            await db.execute(one.query("mark_vectors"), {"namespace": named, "keys": keys})
    return keys


async def finish_namespace(db: Connection, queries: Queries, namespace: Sequence[str]) -> bool:
    """Make searches of a namespace approximate if all its items are in the indexes. One transaction.

    Wait for puts that began before the namespace was registered: they do not mark their items as waiting for indexes.
    """
    named = {"namespace": literal(namespace)}
    async with db.transaction():
        await db.fetch(queries.set_lock_timeout, {"timeout": _LOCK_TIMEOUT})
        await db.execute(statements_of(queries.schema).lock_memories, {})
        if await db.fetch(queries.has_unmarked, named):
            return False
        await db.execute(queries.set_ready, named)
        return True


async def begin(db: Connection, queries: Queries, names: Sequence[str]) -> Any | None:
    """Return the server's time, for `finish`; `None` if no item needs embeddings."""
    if not await db.fetch(queries.is_indexing_needed, {"names": [*names]}):
        return None
    return (await db.fetch(queries.get_time, {}))[0][0]


async def claim(db: Connection, queries: Queries, names: Sequence[str], indexer: str) -> bool:
    """Claim the work of embedding for one call, or renew the claim. Return whether the call has the claim."""
    return await db.execute(queries.claim_indexing, {"names": [*names], "indexer": indexer}) == len(names)


async def release(db: Connection, queries: Queries, indexer: str) -> None:
    """Release the claim. Safe to repeat."""
    await db.execute(queries.release_indexing, {"indexer": indexer})


async def list_missing(db: Connection, queries: Queries, index: OpenIndex, after: Row | None) -> Rows:
    """Return the next items that an index lacks, in order. One round trip."""
    namespace, key = ("{}", "") if after is None else (literal(after[0]), after[1])
    return await db.fetch(
        index.query("list_unembedded"),
        {"namespace": namespace, "key": key, "all": not index.is_complete, "count": _PAGE},
    )


async def add(
    db: Connection,
    queries: Queries,
    index: OpenIndex,
    rows: Rows,
    numbers: Sequence[int],
    fields: Sequence[str],
    vectors: Sequence[Vector],
) -> None:
    """Store the embeddings of items that have not changed meanwhile. One statement; safe to repeat."""
    parameters: Mapping[str, Any] = {
        "namespaces": [literal(row[0]) for row in rows],
        "keys": [row[1] for row in rows],
        "versions": [row[2] for row in rows],
        "numbers": [*numbers],
        "fields": [*fields],
        "embeddings": Packed(packed_array([packed(one, index.index.dims) for one in vectors], index.type_number)),
    }
    await db.execute(index.query("add_vectors"), parameters)


async def finish(db: Connection, queries: Queries, names: Sequence[str], until: Any) -> None:
    """Mark indexes as complete, so that searches use them, and items as indexed. One transaction; safe to repeat."""
    await db.execute_together(
        [
            (queries.complete_memory_indexes, {"names": [*names]}),
            (queries.settle_unindexed, {"names": [*names], "until": until.isoformat()}),
        ]
    )
