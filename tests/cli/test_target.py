"""The database that a command works on: named by an option or a variable, or said to be missing."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.cli import pgstate, words
from typer.testing import CliRunner

from langgraph_pgstate import PGStateSaver
from langgraph_pgstate.cli.app import app
from langgraph_pgstate.cli.target import Target
from langgraph_pgstate.errors import SchemaMissingError
from langgraph_pgstate.schema.queries import migrations

pytestmark = pytest.mark.smoke


@pytest.mark.slow
def test_an_unreachable_server_is_one_line() -> None:
    result = pgstate("--dsn", "postgresql://nobody@127.0.0.1:1/nothing", "status")
    assert result.returncode == 1
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1


def test_a_bad_schema_name_is_one_line() -> None:
    result = CliRunner().invoke(app, ["--dsn", "host=/nowhere", "--schema", "No Schema", "status"])
    assert result.exit_code == 1
    assert "must be a lower-case PostgreSQL identifier" in words(result)


def test_without_a_database_nothing_is_made(tmp_path: Path) -> None:
    result = pgstate("status", cwd=tmp_path)
    assert result.returncode == 1
    assert "contains no database: give --dsn, set PGSTATE_DSN" in result.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("command", ["status", "setup", "threads", "serve", "worker"])
@pytest.mark.parametrize("way", ["--dsn", "PGSTATE_DSN"])
def test_an_empty_dsn_is_not_the_embedded_one(
    way: str, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    if way == "PGSTATE_DSN":
        monkeypatch.setenv(way, "")
    more = ["a=json:loads"] if command in ("serve", "worker") else []
    result = CliRunner().invoke(app, [*([way, ""] if way == "--dsn" else []), command, *more])
    assert result.exit_code == 1
    assert f"{way} is empty" in words(result)
    assert not list(tmp_path.iterdir())


def test_a_malformed_dsn_is_not_shown() -> None:
    result = CliRunner().invoke(app, ["--dsn", "postgresql://u:se%cret@h/db", "status"])
    assert result.exit_code == 1
    assert "--dsn is not a usable connection string" in words(result)
    assert "se%cret" not in words(result)


@pytest.mark.slow
def test_the_option_wins_over_the_environment(
    dsn: str, schema: str, saver: PGStateSaver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGSTATE_DSN", dsn)
    version = f"version {migrations()[-1].version}"
    assert version in words(CliRunner().invoke(app, ["--schema", schema, "status"]))
    monkeypatch.setenv("PGSTATE_DSN", "postgresql://nobody@127.0.0.1:1/nothing")
    assert version in words(CliRunner().invoke(app, ["--dsn", dsn, "--schema", schema, "status"]))
    assert CliRunner().invoke(app, ["--schema", schema, "status"]).exit_code == 1


def test_a_printed_command_names_the_same_database(monkeypatch: pytest.MonkeyPatch) -> None:
    """The variable may name another one, and a shell takes `$` and blanks for something else."""
    given = Target("postgresql://one/app", "a$b")
    monkeypatch.setenv("PGSTATE_DSN", "postgresql://two/app")
    assert given.program().endswith(" --dsn ... --schema 'a$b'")
    monkeypatch.setenv("PGSTATE_DSN", "postgresql://one/app")
    assert given.program().endswith(" --schema 'a$b'")
    assert "--dsn" not in given.program()
    assert "run `pgstate --schema 'a$b' setup`" in str(SchemaMissingError("a$b"))
