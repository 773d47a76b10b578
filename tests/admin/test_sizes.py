"""Rows and bytes, counted where that is quick."""

from __future__ import annotations

from dataclasses import astuple

import psycopg
import pytest
from support import config_of, put_arguments

from langgraph_pgstate import PGStateSaver
from langgraph_pgstate.admin import overview
from langgraph_pgstate.db.database import Database
from langgraph_pgstate.schema.queries import queries


def test_rows_are_counted_and_estimated_where_that_takes_long(
    saver: PGStateSaver, connection: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = saver.put(*put_arguments(config_of("t"), 1))
    saver.put(*put_arguments(config, 2))
    saver.put_writes(
        config_of("t") | {"configurable": {**config["configurable"], "checkpoint_id": "1"}}, [("a", 1)], "x"
    )
    database, known = Database(connection, schema=saver.schema), queries(saver.schema)
    tables = database.run(overview.list_table_sizes, known)
    counted = {table.name: (table.rows, table.exact) for table in tables}
    assert (counted["checkpoints"], counted["threads"]) == ((2, True), (1, True))
    assert database.run(overview.count_orphan_writes, known, tables) == 1
    monkeypatch.setattr(overview, "_COUNTED_BYTES", 1)
    tables = database.run(overview.list_table_sizes, known)
    assert not any(table.exact for table in tables)
    assert database.run(overview.count_orphan_writes, known, tables) is None


def test_a_thread_that_is_not_there_has_no_size(saver: PGStateSaver, connection: psycopg.Connection) -> None:
    database, known = Database(connection, schema=saver.schema), queries(saver.schema)
    saver.put(*put_arguments(config_of("t"), 1))
    here, gone = (database.run(overview.get_thread_size, known, name) for name in ("t", "nobody"))
    assert here.checkpoints == 1
    assert set(astuple(gone)) == {0}


def test_without_a_schema_there_are_no_tables(connection: psycopg.Connection) -> None:
    assert Database(connection, schema="nobodys").run(overview.list_table_sizes, queries("nobodys")) == []
