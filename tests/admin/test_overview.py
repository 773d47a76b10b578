"""The overview of the database, and what maintenance leaves in it."""

from __future__ import annotations

import psycopg
from support import config_of, put_arguments

from langgraph_pgstate import AsyncPGState, PGState
from langgraph_pgstate.admin import overview
from langgraph_pgstate.db.database import Database
from langgraph_pgstate.schema.queries import migrations, queries


async def test_both_apis_say_what_the_database_holds_and_what_maintenance_did(dsn: str, schema: str) -> None:
    with PGState.open(dsn, schema=schema) as state:
        state.setup()
        state.saver.put(*put_arguments(config_of("t"), 1))
        report = state.maintain(months=3)
        found = state.overview()
    assert found.schema == schema
    assert not found.is_standby
    assert [one.version for one in found.migrations] == [one.version for one in migrations()]
    assert found.pending == ()
    (note,) = found.maintenance
    assert note.report["months_made"] == list(report.months_made)
    assert note.seconds > 0
    tables = {one.name: one for one in found.tables}
    # Partitions count as their table.
    assert tables["spans"].partitions >= 4
    assert not any(name.startswith("spans_") for name in tables)
    assert note.sizes["checkpoints"] == tables["checkpoints"].bytes > tables["checkpoints"].index_bytes > 0
    assert found.size > sum(one.bytes for one in found.tables)
    async with AsyncPGState.open(dsn, schema=schema) as suspending:
        await suspending.maintain()
        again = await suspending.overview()
    assert [one.maintained_at for one in again.maintenance][1:] == [note.maintained_at]


def test_an_extension_that_is_not_loaded_is_said_to_be_away(
    dsn: str, schema: str, connection: psycopg.Connection
) -> None:
    """The tests' servers may have the files of pg_stat_statements, but do not load it."""
    database, known = Database(connection, schema=schema), queries(schema)
    there = connection.execute(
        "SELECT count(*) FROM pg_available_extensions WHERE name = 'pg_stat_statements'"
    ).fetchone()
    if there and there[0]:
        connection.execute("CREATE EXTENSION IF NOT EXISTS pg_stat_statements")
    try:
        assert database.run(overview.get_overview, known).statements is None
    finally:
        connection.execute("DROP EXTENSION IF EXISTS pg_stat_statements")


def test_statements_on_the_schema_are_listed_by_their_time(schema: str, connection: psycopg.Connection) -> None:
    """A table with the view's columns stands for the extension, which a server loads only at its start."""
    connection.execute(f"CREATE SCHEMA {schema}_statistics")
    connection.execute(
        f"""
        CREATE TABLE {schema}_statistics.pg_stat_statements AS
        SELECT (SELECT oid FROM pg_database WHERE datname = current_database()) AS dbid, query, 2::bigint AS calls,
            ms::double precision AS total_exec_time, ms / 2.0::double precision AS mean_exec_time,
            ms::double precision AS max_exec_time, 5::bigint AS rows
        FROM (VALUES
            ('SELECT 1   FROM "{schema}".runs', 10),
            ('SELECT 2 FROM "{schema}".spans', 30),
            ('SELECT 3 FROM others', 99)
        ) AS v (query, ms)
        """
    )
    found = Database(connection, schema=schema).run(overview._slowest, queries(schema), f"{schema}_statistics")
    assert found is not None
    assert [(one.text, one.total_ms, one.calls) for one in found] == [
        (f'SELECT 2 FROM "{schema}".spans', 30.0, 2),
        (f'SELECT 1 FROM "{schema}".runs', 10.0, 2),
    ]
    connection.execute(f"DROP SCHEMA {schema}_statistics CASCADE")
