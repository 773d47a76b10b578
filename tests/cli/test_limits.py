"""The commands `limits` and `budgets`."""

from __future__ import annotations

import json
from typing import Any

import pytest
from langgraph.graph import START, StateGraph
from support import wait_until
from typer.testing import CliRunner

from langgraph_pgstate import PGState, Worker
from langgraph_pgstate.cli.app import app
from langgraph_pgstate.cli.limits import read_rate
from langgraph_pgstate.errors import ConfigurationError
from langgraph_pgstate.runs.types import Rate


@pytest.fixture
def run(dsn: str, schema: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """What `pgstate` prints."""
    monkeypatch.setattr("langgraph_pgstate.cli.output.console._width", 140)

    def run(*arguments: str, code: int = 0) -> str:
        result = CliRunner().invoke(app, ["--dsn", dsn, "--schema", schema, *arguments])
        assert result.exit_code == code, result.output + repr(result.exception)
        return result.output

    return run


def test_limits_are_set_listed_and_removed(run: Any) -> None:
    assert "no limits" in run("limits")
    run("limits", "default", "--concurrency", "5")
    shown = run("limits", "default", "--key", "*", "--concurrency", "1", "--rate", "60/1m")
    assert [line.split() for line in shown.splitlines() if line.startswith("  default")] == [
        ["default", "5", "0"],
        ["default", "*", "1", "60", "in", "60", "s", "0", "0"],
    ]
    run("limits", "default", "--remove")
    (told,) = run("--json", "limits").splitlines()
    assert json.loads(told)["concurrency"] == 1
    assert json.loads(told)["rate"] == {"count": 60, "per": 60.0}
    assert "QUEUE must be given" in run("limits", "--concurrency", "1", code=1)
    assert "--remove" in run("limits", "default", code=1)


def test_a_run_that_waits_for_its_key_names_it(run: Any, dsn: str, schema: str) -> None:
    graph = StateGraph(dict).add_node("node", lambda state: None).add_edge(START, "node")
    run("limits", "default", "--key", "acme", "--concurrency", "0")
    run("enqueue", "agent", "{}", "--key", "acme")
    with PGState.open(dsn, schema=schema) as state, Worker(state, {"agent": graph}):
        wait_until(lambda: "key acme is at its limit" in run("runs", "--queued"), "a run that waits")


@pytest.mark.slow
def test_budgets_are_set_listed_and_removed(run: Any) -> None:
    assert "no budgets" in run("budgets")
    run("budgets", "user", "*", "--amount", "0.50")
    shown = run("budgets", "user", "ada", "--amount", "500.0")
    assert [line.split() for line in shown.splitlines() if line.startswith("  user")] == [
        ["user", "*", "0.5"],
        ["user", "ada", "500", "0"],
    ]
    run("budgets", "user", "*", "--remove")
    (told,) = run("--json", "budgets").splitlines()
    assert json.loads(told) == {"scope": "user", "name": "ada", "amount": 500, "spent": 0}
    for wrong in (["user"], ["user", "ada"], ["nobody", "ada", "--remove"], ["user", "a", "--amount", "1", "--remove"]):
        run("budgets", *wrong, code=1)
    assert "tenant, user, agent or key" in run("budgets", "nobody", "ada", "--remove", code=1)


def test_a_rate_is_a_number_and_a_time() -> None:
    assert read_rate("60/1m").seconds == 60
    assert read_rate("5/s") == Rate(5, read_rate("1/1s").per)
    for wrong in ("60", "x/m", "0/m", "5/"):
        with pytest.raises(ConfigurationError):
            read_rate(wrong)
