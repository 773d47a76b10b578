"""Rows and bytes of the tables and of a thread."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from langgraph_pgstate.admin.types import TableSize, ThreadSize
from langgraph_pgstate.db.protocol import Connection
from langgraph_pgstate.schema.queries import Queries

# Counting reads every row; larger tables are estimated by PostgreSQL.
_COUNTED_BYTES: Final = 256 * 1024 * 1024


async def get_server_version(db: Connection, queries: Queries) -> str:
    """Return the server's version, like `18.1`."""
    version: str = (await db.fetch(queries.get_server_version, {}))[0][0]
    return version


async def list_table_sizes(db: Connection, queries: Queries) -> list[TableSize]:
    """Return the schema's tables with their rows and bytes; empty if there is no such schema."""
    rows = await db.fetch(queries.list_table_sizes, {"schema": f'"{queries.schema}"'})
    exact: dict[str, int] = {}
    if rows and sum(row[1] for row in rows) < _COUNTED_BYTES and "threads" in {row[0] for row in rows}:
        exact = dict(await db.fetch(queries.count_rows, {}))
    return [
        TableSize(name, exact.get(name, int(estimate)), name in exact, total, indexes)
        for name, total, indexes, estimate in rows
    ]


async def count_orphan_writes(db: Connection, queries: Queries, tables: Sequence[TableSize]) -> int | None:
    """Return the number of pending writes without a checkpoint, or `None` if the tables are too large to count."""
    if not any(table.name == "writes" and table.exact for table in tables):
        return None
    count: int = (await db.fetch(queries.count_all_orphan_writes, {}))[0][0]
    return count


async def get_thread_size(db: Connection, queries: Queries, thread_id: str) -> ThreadSize:
    """Return the size of one thread; all zero if there is none."""
    return ThreadSize(*(await db.fetch(queries.get_thread_size, {"thread_id": thread_id}))[0])
