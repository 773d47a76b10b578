"""An overview of the database: tables, migrations, maintenance, and its slowest statements."""

from __future__ import annotations

from typing import Final

from langgraph_pgstate.admin.types import DatabaseOverview, MaintenanceNote, MeasuredTable, SlowStatement
from langgraph_pgstate.db.protocol import Connection
from langgraph_pgstate.schema.queries import Queries, extension_queries, migrations
from langgraph_pgstate.schema.types import AppliedMigration

_NOTES: Final = 400
_STATEMENTS: Final = 20
# The view cannot be read, or is of another version.
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
    """Return the statements that took the most time; `None` if the extension is not loaded or not readable."""
    parameters = {"length": _STATEMENT_LENGTH, "tables": f'"{queries.schema}".', "page_size": _STATEMENTS}
    try:
        rows = await db.fetch(extension_queries(schema).list_slow_statements, parameters)
    except Exception as error:
        # Operations see the driver's errors.
        if db.is_in_transaction or getattr(error, "sqlstate", None) not in _NOT_THERE:
            raise
        return None
    return tuple(SlowStatement(*row) for row in rows)
