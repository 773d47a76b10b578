"""The examples, each in a process of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.once


ENVIRONMENT = {key: value for key, value in os.environ.items() if key not in ("PGSTATE_DSN", "COLUMNS")}


def demo(directory: Path, *arguments: str) -> subprocess.Popen[str]:
    return pgstate(directory, "demo", *arguments)


def pgstate(directory: Path, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "langgraph_pgstate", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=directory,
        env=ENVIRONMENT,
        # A suite that a shell runs in the background has inherited that Ctrl-C is ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509
    )


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    # The server of a root user runs as another one, who has to be let in.
    path = tmp_path_factory.mktemp("a demo, in a path with spaces")
    for parent in (path, *path.parents[:2]):
        parent.chmod(parent.stat().st_mode | 0o055)
    return path


def run_twice(directory: Path, example: str) -> list[subprocess.CompletedProcess[str]]:
    command = [sys.executable, str(Path(__file__).parents[2] / "examples" / example)]
    return [
        subprocess.run(command, capture_output=True, text=True, cwd=directory, check=False, env=ENVIRONMENT)
        for _ in range(2)
    ]


def test_the_example_is_killed_and_resumes(directory: Path) -> None:
    runs = run_twice(directory, "kill_and_resume.py")
    assert [run.returncode for run in runs] == [-signal.SIGKILL, 0]
    assert runs[0].stdout.split("\n") == ["booking the flight", "booking the hotel", ""]
    assert runs[1].stdout.split("\n") == ["booking the hotel", "{'booked': ['flight', 'hotel']}", ""]
    assert runs[1].stderr == ""


def test_the_example_charges_once_and_is_recorded(directory: Path) -> None:
    runs = run_twice(directory, "record_and_ledger.py")
    assert [run.returncode for run in runs] == [0, 0], runs[0].stderr + runs[1].stderr
    assert ["the card is charged" in run.stdout for run in runs] == [True, False]
    assert ["    tool charge: success" in run.stdout for run in runs] == [True, False]
    for run in runs:
        assert "tool: 90 euros charged for order 17\nai: Order 17 is paid." in run.stdout
        assert "graph LangGraph: success\n  node agent: success" in run.stdout
        assert run.stdout.endswith("charge: success, attempt 1, 90 euros charged for order 17\n")
