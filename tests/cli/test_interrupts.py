"""The commands about people: `interrupted` and `answer`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from langgraph_pgstate import PGStateSaver
from langgraph_pgstate.cli.app import app
from langgraph_pgstate.interrupts import Interrupts
from langgraph_pgstate.runs import Runs
from langgraph_pgstate.schema.queries import queries
from tests.interrupts.test_api import asking, config_of, fanned_out

Run = Any


UPCASTERS = """
def rename(values):
    if "user" in values:
        values["name"] = values.pop("user")
    return values

def broken(values):
    return {"name": values["nobody"]}

upcasters = {2: rename}
failing = {2: broken}
number = 7
"""


@pytest.fixture
def run(dsn: str, saver: PGStateSaver, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    """What `pgstate` prints on a terminal 140 columns wide, from a directory with an application in it."""
    monkeypatch.delenv("PGSTATE_DSN", raising=False)
    monkeypatch.setenv("USER", "operator")
    monkeypatch.setattr("langgraph_pgstate.cli.output.console.made._width", 140)
    (tmp_path / "the_app.py").write_text(UPCASTERS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))

    def run(*arguments: str, code: int = 0) -> str:
        result = CliRunner().invoke(app, ["--dsn", dsn, "--schema", saver.schema, *arguments])
        assert result.exit_code == code, result.output + repr(result.exception)
        assert "Traceback" not in result.output
        return result.output

    return run


def test_the_inbox_and_an_answer(run: Run, saver: PGStateSaver) -> None:
    assert run("interrupts") == "no interrupted threads\n"
    graph = asking(saver, "book the [hotel]?")
    graph.invoke({"said": []}, config_of("trip", user_id="eve", agent="travel"))
    graph.invoke({"said": []}, config_of("other"))
    shown = run("interrupts", "--user", "eve")
    (question,) = graph.get_state(config_of("trip")).interrupts
    for word in ("trip", "eve", "travel", question.id, "  book the [hotel]?"):
        assert word in shown
    assert "other" not in shown
    assert "answered" in run("answer", "trip", '{"ok": true}')
    assert "operator" in run("answer", "trip", "no", code=1)
    assert "trip" not in run("interrupts")
    assert '{"ok":true}' in run("interrupts", "--answered")
    assert "has no pending interrupt" in run("answer", "unknown", "yes", code=1)
    assert "answered" in run("answer", "other", "7", "--text", "--by", "bob")
    interrupts = Interrupts(saver._database, queries(saver.schema), Runs(saver._database, queries(saver.schema)))
    (answer,) = interrupts.answers("other")
    assert (answer.value, answer.answered_by) == ("7", "bob")
    assert graph.invoke(interrupts.resume("trip"), config_of("trip"))["said"] == ["{'ok': True}"]


def test_several_questions_of_one_thread(run: Run, saver: PGStateSaver) -> None:
    graph = fanned_out(saver)
    graph.invoke({"said": []}, config_of("many"))
    ids = [question.id for question in graph.get_state(config_of("many")).interrupts]
    shown = run("interrupts")
    assert all(id in shown for id in ids)
    assert shown.count("many") == 1
    assert "several" in run("answer", "many", "yes", code=1)
    assert "still waits for 2 answers" in run("answer", "many", "yes", "--interrupt", ids[0][:10])
    assert "has no pending interrupt" in run("answer", "many", "yes", "--interrupt", "nonsense", code=1)
