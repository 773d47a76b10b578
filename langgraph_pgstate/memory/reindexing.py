"""Embedding of items that an index lacks: items older than the index, and items for which a model failed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from langgraph_pgstate.db.protocol import Connection, Packed, Row, Rows
from langgraph_pgstate.memory.embedding import Vector, packed, packed_array
from langgraph_pgstate.memory.indexes import OpenIndex
from langgraph_pgstate.memory.namespaces import literal
from langgraph_pgstate.schema.queries import Queries

_BATCH: Final = 200


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
        {"namespace": namespace, "key": key, "all": not index.is_complete, "count": _BATCH},
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
