"""An overview of the database: table sizes, migrations, maintenance, and the slowest statements."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from langgraph_pgstate.admin.types import (
    DatabaseOverview,
    MaintenanceNote,
    MeasuredTable,
    SlowStatement,
    TableSize,
    ThreadSize,
)
from langgraph_pgstate.db.protocol import Connection
from langgraph_pgstate.schema.queries import Queries, extension_queries, migrations
from langgraph_pgstate.schema.tenancy import has_walls
from langgraph_pgstate.schema.types import AppliedMigration

_NOTES: Final = 400
_STATEMENTS: Final = 20
# SQLSTATEs of a view pg_stat_statements that cannot be read or has another version.
_NOT_THERE: Final = ("42501", "55000", "42P01", "42703")
_STATEMENT_LENGTH: Final = 600


async def get_overview(db: Connection, queries: Queries) -> DatabaseOverview:
    """Return an overview of the database. Five statements; sizes are exact, numbers of rows are estimates."""
    schema = f'"{queries.schema}"'
    version, now, size, is_standby, statistics = (await db.fetch(queries.describe_server, {}))[0]
    tables = await db.fetch(queries.measure_tables, {"schema": schema})
    applied = await db.fetch(queries.list_migrations, {})
    notes = await db.fetch(queries.list_maintenance, {"page_size": _NOTES})
    known = {version for version, *_ in applied}
    return DatabaseOverview(
        schema=queries.schema,
        server_version=version,
        is_standby=is_standby,
        now=now,
        size=size,
        tables=tuple(MeasuredTable(*row) for row in tables),
        migrations=tuple(AppliedMigration(number, name, at) for number, name, _, at, _ in applied),
        pending=tuple(f"{one.version:04d}_{one.name}" for one in migrations() if one.version not in known),
        maintenance=tuple(MaintenanceNote(*row) for row in notes),
        statements=None if statistics is None else await _slowest(db, queries, statistics),
    )


async def _slowest(db: Connection, queries: Queries, schema: str) -> tuple[SlowStatement, ...] | None:
    """Return the statements that took the most time; `None` if pg_stat_statements is not loaded or not readable."""
    parameters = {"length": _STATEMENT_LENGTH, "tables": f'"{queries.schema}".', "page_size": _STATEMENTS}
    try:
        rows = await db.fetch(extension_queries(schema).list_slow_statements, parameters)
    except Exception as error:
        # This is psycopg's own error, because errors are translated only after the operation.
        if db.is_in_transaction or getattr(error, "sqlstate", None) not in _NOT_THERE:
            raise
        return None
    return tuple(SlowStatement(*row) for row in rows)


# If the tables are larger, use PostgreSQL's estimates instead of counting rows.
_COUNTED_BYTES: Final = 256 * 1024 * 1024


async def get_server_version(db: Connection, queries: Queries) -> str:
    """Return the server's version, like `18.1`."""
    version: str = (await db.fetch(queries.get_server_version, {}))[0][0]
    return version


async def list_table_sizes(db: Connection, queries: Queries) -> list[TableSize]:
    """Return the schema's tables with rows and bytes; empty if there is no such schema."""
    rows = await db.fetch(queries.list_table_sizes, {"schema": f'"{queries.schema}"'})
    exact: dict[str, int] = {}
    is_small = sum(row[1] for row in rows) < _COUNTED_BYTES and "threads" in {row[0] for row in rows}
    # If tables keep tenants apart, rows can be counted only for one tenant.
    if is_small and (db.tenant is not None or not await has_walls(db, queries)):
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
    """Return the size of one thread; all zero if the thread does not exist."""
    return ThreadSize(*(await db.fetch(queries.get_thread_size, {"thread_id": thread_id}))[0])
