"""The demo, end to end in a process and a directory of its own."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from langgraph_pgstate import PGStateSaver

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


def thread_of(shown: str) -> str:
    found = re.search(r"thread (demo-\d+),", shown)
    assert found
    return found.group(1)


def servers(directory: Path) -> list[str]:
    found = []
    for entry in Path("/proc").iterdir():
        try:
            line = (entry / "cmdline").read_bytes().decode(errors="replace") if entry.name.isdigit() else ""
        except OSError:
            continue
        if str(directory / ".pgstate") in line:
            found.append(line)
    return found


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    # The server of a root user runs as another one, who has to be let in.
    path = tmp_path_factory.mktemp("a demo, in a path with spaces")
    for parent in (path, *path.parents[:2]):
        parent.chmod(parent.stat().st_mode | 0o055)
    return path


@pytest.mark.slow
def test_ended_at_any_time_it_can_be_run_again(directory: Path) -> None:
    moments = {signal.SIGINT: "An agent", signal.SIGTERM: "An agent", signal.SIGKILL: "A new process"}
    for number, moment in moments.items():
        process = demo(directory)
        assert process.stdout is not None
        next(line for line in process.stdout if moment in line)
        process.send_signal(number)
        _, complaints = process.communicate(timeout=30)
        assert process.returncode == (-number if number == signal.SIGKILL else 128 + number)
        assert complaints == ""
        # Nothing can clean up after SIGKILL; the next run takes the server over, and stops it.
        assert bool(servers(directory)) == (number == signal.SIGKILL)
    again = pgstate(directory, "status")
    _, complaints = again.communicate(timeout=60)
    assert again.returncode == 0, complaints
    assert not servers(directory)


def test_kills_resumes_forks_and_weighs_twice_in_a_row(directory: Path) -> None:
    threads = []
    for turns in ("12", "1"):
        process = demo(directory, "--turns", turns)
        shown, complaints = process.communicate(timeout=60)
        assert process.returncode == 0, complaints
        assert complaints == ""
        assert "Traceback" not in shown
        threads.append(thread_of(shown))
        assert all(len(line) <= 80 for line in shown.splitlines())

        # Killed inside one tool, when the other tool of the superstep had finished.
        assert re.search(r"kill -9 \d+ +p1 is gone inside book_hotel, by SIGKILL", shown)
        assert re.search(r"pending write, the answer of\s+book_flight", shown)

        # What had finished is not begun again by the process that resumes.
        counts = {name: re.search(rf"^ +{name}((?: +[\d·]+){{4}})", shown, re.MULTILINE) for name in TOOLS}
        assert {name: found and found.group(1).split() for name, found in counts.items()} == TOOLS

        # Killed after its effect and before its receipt: the file has one line, whoever asks.
        assert re.search(r"the file has 1 line.*print_voucher,\s+running, attempt\s+1, no\s+outcome", shown, re.DOTALL)
        assert re.search(r"kill -9 \d+ +p4 is gone before the receipt, by SIGKILL", shown)
        assert re.search(r"the ledger +unknown; its check looks into the file: the line is there", shown)
        assert re.search(r"Not printed again: the file has 1 line\..*success, attempt\s+1", shown, re.DOTALL)

        # Killed with its worker, the enqueued run is finished by another one, which does not repeat what was done.
        assert re.search(r"kill -9 \d+ +p6 is gone inside book_hotel, by SIGKILL", shown)
        assert re.search(r"The run ended as success, attempt 2", shown)

        # The fork goes another way, and both are in the tree.
        assert "make it Porto" in shown
        assert "branch 1" in shown
        assert "branch 2" in shown

        less = re.search(r"(\d+) times less", shown)
        assert less
        assert int(less.group(1)) >= (5 if turns == "12" else 1)
    assert not servers(directory)
    assert int(threads[1].removeprefix("demo-")) == int(threads[0].removeprefix("demo-")) + 1

    with PGStateSaver.embedded(directory / ".pgstate") as saver:
        history = list(saver.list({"configurable": {"thread_id": threads[0]}}))
        leaves = {item.config["configurable"]["checkpoint_id"] for item in history} - {
            item.parent_config["configurable"]["checkpoint_id"] for item in history if item.parent_config
        }
        assert len(leaves) == 2
        trunk = next(item for item in history if item.metadata["process"] == "p2")
        answers = [message.name for message in trunk.checkpoint["channel_values"]["messages"] if message.type == "tool"]
        for name in ("search_flights", "book_flight", "book_hotel"):
            assert answers.count(name) == 1


TOOLS = {
    "search_flights": ["1", "1", "·", "·"],
    "book_flight": ["1", "1", "·", "·"],
    "book_hotel": ["1", "·", "1", "1"],
    "convert_currency": ["·", "·", "1", "1"],
}


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
