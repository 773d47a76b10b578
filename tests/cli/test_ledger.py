"""The commands `executions` and `settle`."""

from __future__ import annotations

import json
from typing import Any

import psycopg
import pytest
from support.record import Record, at
from typer.testing import CliRunner

from langgraph_pgstate import PGStateSaver
from langgraph_pgstate.cli.app import app
from langgraph_pgstate.schema.queries import queries
from langgraph_pgstate.tools import ToolLedger
from langgraph_pgstate.tools.results import reference_to

pytestmark = pytest.mark.smoke

Run = Any


@pytest.fixture
def run(dsn: str, saver: PGStateSaver, connection: psycopg.Connection, monkeypatch: pytest.MonkeyPatch) -> Run:
    """What `pgstate` prints on a terminal 140 columns wide, of a thread with four actions."""
    monkeypatch.delenv("PGSTATE_DSN", raising=False)
    monkeypatch.setenv("USER", "operator")
    monkeypatch.setattr("langgraph_pgstate.cli.output.console.made._width", 140)
    record = Record(connection, saver.schema)
    record.execution("call-1", 0, preview="paid [90]")
    record.execution("call-2", 1, None, status="unknown", tool="charge", arguments={"order": "[17]"})
    record.execution("call-3", 2, None, status="running", alive_until=at(3), attempt=2)
    record.execution("wish-4", 3, status="timeout", error_type="TimeoutError", error_message="too slow")

    def run(*arguments: str, code: int = 0) -> str:
        result = CliRunner().invoke(app, ["--dsn", dsn, "--schema", saver.schema, *arguments])
        assert result.exit_code == code, result.output + repr(result.exception)
        assert "Traceback" not in result.output
        return result.output

    return run


def keys(shown: str) -> list[str]:
    """The keys in the first column of a table."""
    return [line.split()[0] for line in shown.splitlines() if line.lstrip().startswith(("call-", "wish-"))]


def test_executions_are_listed(run: Run) -> None:
    shown = run("executions", "t")
    assert keys(shown) == ["wish-4", "call-3", "call-2", "call-1"]
    for part in ("paid [90]", '{"order":"[17]"}', "TimeoutError: too slow"):
        assert part in shown
    assert keys(run("executions", "t", "--unknown")) == ["wish-4", "call-3", "call-2"]
    assert keys(run("executions", "t", "--unknown", "--limit", "1")) == ["wish-4"]
    assert run("executions", "nobody") == "no tool executions\n"


def test_an_unknown_outcome_is_settled(run: Run, saver: PGStateSaver) -> None:
    assert run("settle", "t", "call-2", "done", "--result", "booked") == "settled call-2: success\n"
    ledger = ToolLedger(saver._database, queries(saver.schema))
    assert ledger.result(reference_to("t", "call-2")) == "booked"
    assert "settled call-3: pending" in run("settle", "t", "call-3", "retry")
    assert json.loads(run("--json", "settle", "t", "wish", "fail"))["status"] == "error"
    assert keys(run("executions", "t", "--unknown")) == []


def test_who_settles_is_recorded(run: Run, connection: psycopg.Connection, saver: PGStateSaver) -> None:
    run("settle", "t", "call-2", "fail", "--by", "Eve")
    assert "has been settled: its status is error" in " ".join(run("settle", "t", "call-2", "retry", code=1).split())
    run("settle", "t", "call-2", "retry", "--again")
    query = f"SELECT payload ->> 'by' FROM {saver.schema}.events WHERE kind = 'action' ORDER BY created_at"
    assert connection.execute(query).fetchall() == [("Eve",), ("operator",)]


def test_a_key_is_found_among_all_actions(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("langgraph_pgstate.cli.ledger._PAGE", 2)
    assert "3 actions" in run("settle", "t", "call", "done", code=1)
    assert "settled call-2" in run("settle", "t", "call-2", "done")
    assert "cannot be settled" in run("settle", "t", "call-1", "done", code=1)


@pytest.mark.parametrize(
    ("arguments", "code", "why"),
    [
        (["call-1", "done"], 1, "cannot be settled"),
        (["call", "done"], 1, "3 actions of thread 't' begin with 'call': give more of the key"),
        (["other", "done"], 1, "has no tool execution 'other'"),
        (["call-2", "failed"], 2, "is not one of done, retry, fail"),
        (["call-2", "fail", "--result", "x"], 2, "requires that DECISION is done"),
    ],
)
def test_what_cannot_be_settled_says_why(arguments: list[str], code: int, why: str, run: Run) -> None:
    assert why in " ".join(run("settle", "t", *arguments, code=code).replace("│", "").split())
