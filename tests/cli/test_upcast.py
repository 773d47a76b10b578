"""The command `upcast`."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from langgraph_pgstate import PGStateSaver
from langgraph_pgstate.cli.app import app
from tests.checkpoints.test_versions import BIG, graph_one
from tests.cli.test_interrupts import UPCASTERS, Run
from tests.interrupts.test_api import config_of


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


def test_upcast(run: Run, saver: PGStateSaver) -> None:
    for name in ("a", "b"):
        graph_one(saver).invoke({"user": "Ada", "log": ["begun"], "untouched": BIG}, config_of(name))
    dry = run("upcast", "--to", "2", "--upcasters", "the_app:upcasters", "--dry-run")
    assert "read 2 threads: 6 checkpoints of another version, 6 would be rewritten in version 2" in dry
    rows = [line.split() for line in dry.splitlines()]
    assert ["name", "4"] in rows
    assert ["user", "4"] in rows
    assert "3 were rewritten" in run("upcast", "--to", "2", "--upcasters", "the_app:upcasters", "--thread", "a")
    assert "3 were rewritten" in run("upcast", "--to", "2", "--upcasters", "the_app:upcasters")
    assert "0 checkpoints" in run("upcast", "--to", "2", "--upcasters", "the_app:upcasters")
    for flags in ((), ("--dry-run",)):
        arguments = ("upcast", "--to", "2", "--upcasters", "the_app:upcasters", "--thread", "a", "--thread", "nope")
        assert "there is no thread 'nope'" in run(*arguments, *flags, code=1)
    # What the application alone can read is drawn without its values.
    assert len(run("tree", "a").splitlines()) >= 3


def test_what_cannot_be_upcast_is_listed(run: Run, saver: PGStateSaver) -> None:
    graph_one(saver).invoke({"user": "Ada", "log": ["begun"], "untouched": BIG}, config_of("a"))
    shown = run("upcast", "--to", "2", "--upcasters", "the_app:failing", code=1)
    assert "3 checkpoints could not be rewritten" in shown
    assert "KeyError" in shown
    for wrong, why in (
        ("the_app:number", "must name a dict"),
        ("the_app", "module"),
        ("nowhere:x", "cannot be imported"),
    ):
        assert why in run("upcast", "--to", "2", "--upcasters", wrong, code=1)
    assert "without a gap" in " ".join(run("upcast", "--to", "3", "--upcasters", "the_app:upcasters", code=1).split())
