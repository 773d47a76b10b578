"""x"""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support import GUARD_SECONDS

from langgraph_pgstate import PGState, PGStateSaver
from tests.acceptance.test_examples import ENVIRONMENT, ROOT, directory

__all__ = ["directory"]

pytestmark = pytest.mark.once


def start(directory: Path, module: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", module, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=directory,
        env={**ENVIRONMENT, "PYTHONPATH": str(ROOT)},
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


@pytest.mark.long
def test_ended_at_any_time_it_can_be_run_again(directory: Path) -> None:
    moments = {signal.SIGINT: "An agent", signal.SIGTERM: "An agent", signal.SIGKILL: "A new process"}
    for number, moment in moments.items():
        process = start(directory, "examples.demo")
        assert process.stdout is not None
        next(line for line in process.stdout if moment in line)
        process.send_signal(number)
        _, complaints = process.communicate(timeout=30)
        assert process.returncode == (-number if number == signal.SIGKILL else 128 + number)
        assert complaints == ("stopped\n" if number == signal.SIGINT else "")
        # Nothing can clean up after SIGKILL; the next run takes the server over, and stops it.
        assert bool(servers(directory)) == (number == signal.SIGKILL)
    again = start(directory, "langgraph_pgstate", "status")
    _, complaints = again.communicate(timeout=60)
    assert again.returncode == 0, complaints
    assert not servers(directory)


@pytest.mark.slow
@pytest.mark.parametrize("runs", [("12",), pytest.param(("12", "1"), marks=pytest.mark.long)], ids=["once", "twice"])
def test_kills_resumes_forks_and_weighs(runs: tuple[str, ...], directory: Path) -> None:
    threads = []
    for turns in runs:
        process = start(directory, "examples.demo", "--turns", turns)
        shown, complaints = process.communicate(timeout=4 * GUARD_SECONDS)
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

        # Killed in a payment that nobody can ask about: the thread waits for a person.
        assert re.search(r"kill -9 \d+ +p6 is gone inside pay_hotel, by SIGKILL", shown)
        assert re.search(r"pay_hotel,\s+unknown,\s+attempt\s+1,\s+no\s+outcome", shown)
        assert f"/ui/threads/{thread_of(shown)}" in shown

        # Killed with its worker, the enqueued run is finished by another one, which does not repeat what was done.
        assert re.search(r"kill -9 \d+ +p8 is gone inside book_hotel, by SIGKILL", shown)
        assert re.search(r"The run ended as success, attempt 2", shown)

        # A second conversation knows what the first one has learned, and from which message.
        assert re.search(r"I know of you: Eats no meat; Never\s+flies", shown)
        learned = rf"diet +comes from thread {thread_of(shown)}-first, message “Remember, please"
        assert re.search(learned, shown)

        # The fork goes another way, and both are in the tree.
        assert "make it Porto" in shown
        assert "branch 1" in shown
        assert "branch 2" in shown

        less = re.search(r"(\d+) times less", shown)
        assert less
        assert int(less.group(1)) >= (5 if turns == "12" else 1)
    assert not servers(directory)
    numbers = [int(thread.removeprefix("demo-")) for thread in threads]
    assert numbers == list(range(numbers[0], numbers[0] + len(runs)))

    # Also the calls of tools that were killed are recorded.
    with PGState.embedded(directory / ".pgstate") as state:
        assert {"print_voucher", "pay_hotel"} <= {one.tool for one in state.spans.tools()}
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
