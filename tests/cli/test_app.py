"""The console script: each command on the test server, its exit codes, and errors without a stack trace."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path

import pytest
from support import spread
from support.cli import Run, words

from langgraph_pgstate import PGStateSaver, cli
from langgraph_pgstate.cli import options, output
from langgraph_pgstate.record import runs, statistics
from langgraph_pgstate.threads import prune, search
from langgraph_pgstate.tools.interrupts import DECISIONS

pytestmark = pytest.mark.smoke


def test_help_names_every_command(run: Run) -> None:
    result = run("--help")
    for command in (
        "setup", "migrate", "status", "check", "prune", "tree", "import-langgraph", "export-langgraph",
        "threads", "runs", "trace", "tools", "cost", "diff", "label", "fork", "show", "conversation", "search",
        "events", "executions", "settle", "delete", "leases",
    ):  # fmt: skip
        assert command in result.output
        assert run(command, "--help").output.count("Usage: pgstate") <= 1


@pytest.mark.parametrize(
    ("arguments", "code", "why"),
    spread(
        [
            (["prune", "--strategy", "delte"], 2, "'delte' is not one of"),
            (["prune", "--strategy", "delete", "--keep-last", "2"], 1, "--keep-last requires"),
            (["prune", "--strategy", "delete", "--older-than", "soon"], 1, "must be a number and s, m"),
            (["--schema", "no name", "prune", "--strategy", "delete"], 1, "must be a lower-case"),
            (["--schema", "nobodys", "prune", "--strategy", "delete"], 1, "setup"),
            (["--dsn", "host=/nowhere", "prune", "--strategy", "delete"], 1, "/nowhere"),
            (["migrate", "--to", "-1"], 2, "Invalid value for '--to'"),
        ],
        unpack=True,
    ),
)
def test_what_is_wrong_is_said_before_anything_is_asked(
    arguments: list[str], code: int, why: str, run: Run, conversation: PGStateSaver
) -> None:
    """Whoever answers `y` must not find that something else was meant; and nothing goes."""
    shown = words(run(*arguments, code=code, input="y\n"))
    assert why in " ".join(shown.replace("│", "").split())
    assert "[y/N]" not in shown
    assert "threads: 2" in words(run("status"))


@pytest.mark.bare
@pytest.mark.parametrize(
    "arguments", [("tree", "one"), ("prune", "--keep-last", "1"), ("check",), ("export-langgraph", "--to", "dbname=x")]
)
def test_a_missing_schema_is_one_line(run: Run, arguments: tuple[str, ...]) -> None:
    shown = words(run(*arguments, code=1))
    assert shown.startswith("error:")
    assert "pgstate --schema" in shown
    assert "setup" in shown


@pytest.mark.parametrize("missing", ["typer", "rich"])
def test_without_its_extra_the_script_says_so(missing: str) -> None:
    blocked = f"import sys; sys.modules[{missing!r}] = None; from langgraph_pgstate.cli import main; main()"
    result = subprocess.run([sys.executable, "-c", blocked], capture_output=True, text=True, check=False)
    assert result.returncode == 2
    assert result.stderr == "pgstate needs the extra `cli` of langgraph-pgstate\n"


def test_choices_are_those_of_the_operations() -> None:
    assert (options.THREAD_STATUSES, options.RUN_STATUSES) == (search.STATUSES, runs.STATUSES)
    assert (options.USAGE_KEYS, options.STRATEGIES) == (statistics.USAGE_KEYS, prune.STRATEGIES)
    assert options.DECISIONS == DECISIONS


@pytest.mark.slow
def test_it_runs_as_a_module() -> None:
    command = [sys.executable, "-m", "langgraph_pgstate", "--version"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0
    assert result.stdout.startswith("pgstate ")


def test_ctrl_c_during_the_imports_leaves_no_stack_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "_run", interrupted)
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    with pytest.raises(SystemExit) as caught:
        cli.main()
    assert caught.value.code == 130


def test_a_file_that_cannot_be_written_is_one_line(run: Run, saver: PGStateSaver, tmp_path: Path) -> None:
    run("setup", "--audit")
    shown = words(run("audit", "export", "--to", str(tmp_path / "missing" / "file"), code=1))
    assert shown.startswith("error: [Errno 2] No such file or directory")


def test_a_terminal_without_utf_8_gets_escapes(monkeypatch: pytest.MonkeyPatch) -> None:
    written = io.BytesIO()
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", io.TextIOWrapper(written, "latin-1"))
        patch.setattr(sys, "stderr", io.StringIO())
        patch.setattr(cli, "_run", lambda: (sys.stdout.write("é → 例\n"), output.print_json({"town": "例"})))
        cli.main()
        sys.stdout.flush()
    text, document = written.getvalue().decode("latin-1").splitlines()
    assert text == "é \\u2192 \\u4f8b"
    assert json.loads(document) == {"town": "例"}


def test_a_question_is_no_part_of_the_json(run: Run, conversation: PGStateSaver) -> None:
    result = run("--json", "delete", "one", input="y\n")
    assert "Delete thread one" in result.stderr
    # The runner prints the answer on standard output, as a terminal shows it.
    assert json.loads(result.stdout.strip().removeprefix("y\n"))["threads"] == 1
