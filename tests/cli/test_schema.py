"""Tables made, migrated and counted from the command line."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
from support.cli import Run, converse, words
from typer.testing import CliRunner

from langgraph_pgstate import PGStateSaver
from langgraph_pgstate.cli.app import app
from langgraph_pgstate.schema.queries import migrations

pytestmark = pytest.mark.smoke


@pytest.mark.bare
def test_setup_says_what_it_did_and_can_be_repeated(run: Run) -> None:
    assert "applied 0001_create" in words(run("setup"))
    again = words(run("setup"))
    assert "applied" not in again
    assert "up to date" in again


@pytest.mark.bare
def test_printed_sql_sets_up_an_empty_database(
    run: Run, schema: str, dsn: str, connection: psycopg.Connection[Any]
) -> None:
    script = run("setup", "--sql").output
    connection.execute(script.encode())
    assert "pending" not in words(run("status"))
    with PGStateSaver.from_conn_string(dsn, schema=schema) as saver:
        converse(saver, "one", 1)
        assert saver.get_tuple({"configurable": {"thread_id": "one"}}) is not None


def test_setup_sql_needs_no_database(schema: str) -> None:
    result = CliRunner().invoke(app, ["--dsn", "host=/nowhere", "--schema", schema, "setup", "--sql"])
    assert result.exit_code == 0
    assert f'"{schema}".checkpoints' in result.output


@pytest.mark.slow
def test_migrate_asks_before_it_goes_down(run: Run) -> None:
    run("setup")
    assert "loses data of the tables" in words(run("migrate", "--to", "0", input="n\n", code=1))
    assert "pending" not in words(run("status"))
    assert "down 0001_create" in words(run("migrate", "--to", "0", "--yes"))
    assert "pending: 0001_create" in words(run("status"))
    assert "up 0001_create" in words(run("migrate"))


def test_status_says_that_the_schema_is_newer_than_the_package(
    run: Run, schema: str, connection: psycopg.Connection[Any]
) -> None:
    run("setup")
    for version, is_additive in ((900, True), (901, False)):
        later = f"INSERT INTO {schema}.migrations (version, name, checksum, is_additive) VALUES (%s, 'later', 'x', %s)"
        connection.execute(later.encode(), [version, is_additive])
        shown = words(run("status"))
        assert f"version {version}, newer than this package, which has version {migrations()[-1].version}" in shown
        assert ("this package cannot use the schema: upgrade langgraph_pgstate" in shown) is not is_additive


@pytest.mark.slow
def test_status_counts_rows(run: Run, conversation: PGStateSaver) -> None:
    shown = words(run("status"))
    assert "threads: 2" in shown
    checkpoints = sum(1 for _ in conversation.list(None, metadata_only=True))
    assert f"checkpoints {checkpoints} " in shown


@pytest.mark.bare
def test_status_of_a_schema_that_was_never_set_up(run: Run) -> None:
    assert "not set up" in words(run("status"))
