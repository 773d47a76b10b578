"""The commands on the test server, and two conversations for them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from support_cli import Run, converse
from typer.testing import CliRunner

from langgraph_pgstate import PGStateSaver
from langgraph_pgstate.cli.app import app


@pytest.fixture
def run(dsn: str, schema: str, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run `pgstate` on the test server, in this process."""
    monkeypatch.delenv("PGSTATE_DSN", raising=False)

    def run(*arguments: str, code: int = 0, input: str | None = None) -> Any:
        result = CliRunner().invoke(app, ["--dsn", dsn, "--schema", schema, *arguments], input=input)
        assert result.exit_code == code, result.output + repr(result.exception)
        assert "Traceback" not in result.output
        return result

    return run


@pytest.fixture
def conversation(saver: PGStateSaver) -> PGStateSaver:
    """Two threads, `one` and `two`, with a few turns each."""
    converse(saver, "one", 3)
    converse(saver, "two", 1)
    return saver


@pytest.fixture
def upstream_schema(dsn: str, schema: str, connection: psycopg.Connection[Any]) -> Iterator[str]:
    """A schema for the tables of LangGraph's own saver."""
    name = f"{schema}_upstream"
    connection.execute(f'CREATE SCHEMA "{name}"')
    yield name
    connection.execute(f'DROP SCHEMA "{name}" CASCADE')
