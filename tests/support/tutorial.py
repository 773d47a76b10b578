"""A reader of a page of the documents, who writes its files, changes them, and runs its commands in order.

- A block with `title="NAME"` is a file; as a diff, a change of one. `@@` separates changes of different places.
- A console block has commands, each with what it prints. Ids, times and durations may differ.
- `<!-- test: second terminal -->` before a block: its command goes on while later blocks run, until the next one is
  typed there. That one ends it as by Ctrl-C; with `, killed` it waits until it has been killed.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from support import GUARD_SECONDS, wait_until

_BLOCK = re.compile(
    r"(?:^<!-- test: (?P<marker>[^>]*?) -->\n+)?"
    r'^```(?P<language>[a-z]+)(?: title="(?P<title>[^"]+)")?\n(?P<code>.*?)^```$',
    re.MULTILINE | re.DOTALL,
)
_DIFFERS = [
    (re.compile(r"\b[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\b|\b[0-9a-f]{32}\b|\b[0-9a-f]{12}\b"), "ID"),
    (re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d(:\d\d)? \w+"), "TIME"),
    (re.compile(r"\b\d+(\.\d+)? ?m?s\b"), "DURATION"),
    (re.compile(r"worker \S+:\d+"), "worker HOST:PID"),
    (re.compile(r"[─ ]+"), " "),
]
# A command takes a second or more, so read a worker's output again.
_TRIES = 30
_READING = ("pgstate conversation", "pgstate executions", "pgstate interrupts", "cat")


@dataclass(frozen=True)
class Block:
    """A code block of a page."""

    line: int
    language: str
    title: str | None
    code: str
    marker: str


def blocks_of(page: Path) -> list[Block]:
    """Return the code blocks of a page, in order, but those that are not run."""
    text = page.read_text()
    found = [
        Block(text.count("\n", 0, one.end()) + 1, one["language"], one["title"], one["code"], one["marker"] or "")
        for one in _BLOCK.finditer(text)
    ]
    return [block for block in found if not block.marker.startswith("not run, ")]


def commands_of(block: Block) -> Iterator[tuple[str, str]]:
    """Return the commands of a console block, each with what it prints."""
    for typed in re.split(r"^\$ ", block.code, flags=re.MULTILINE)[1:]:
        command, _, printed = typed.partition("\n")
        yield command, printed


def changed(before: str, block: Block) -> str:
    """Return the text of a file after the changes of a diff."""
    for hunk in re.split(r"^@@\n", block.code, flags=re.MULTILINE):
        lines = hunk.splitlines(keepends=True)
        old = "".join(line[1:] for line in lines if line[0] != "+")
        new = "".join(line[1:] for line in lines if line[0] != "-")
        assert before.count(old) == 1, f"the change at line {block.line} does not fit {block.title}: {old!r}"
        before = before.replace(old, new)
    return before


def comparable(printed: str) -> list[str]:
    """What was printed, without what differs between two readers."""
    for pattern, name in _DIFFERS:
        printed = pattern.sub(name, printed)
    return [line.strip() for line in printed.splitlines() if line.strip() not in ("", "…")]


class Reader:
    """Types blocks in a directory.

    Args:
        directory: Where the files are written and the commands are run.
        run: Runs a command and returns what it printed.
        replace: Texts of the page by the texts that are typed instead, such as ports.
    """

    def __init__(self, directory: Path, run: Callable[[str], str], replace: dict[str, str] | None = None) -> None:
        self._directory = directory
        self._run = run
        self._replace = replace or {}
        self._second: subprocess.Popen[str] | None = None

    def type(self, block: Block) -> None:
        """Write the file, apply the change, or run the commands of a block."""
        if block.title is not None:
            file = self._directory / block.title
            text = changed(file.read_text(), block) if block.language == "diff" else block.code
            file.write_text(self._here(text))
            return
        for command, printed in commands_of(block):
            if block.marker.startswith("second terminal"):
                self._type_in_second(self._here(command), comparable(self._here(printed)), block)
            else:
                self._type(self._here(command), comparable(self._here(printed)), block)

    def close(self, *, is_killed: bool = False) -> None:
        """End the command of the second terminal."""
        if self._second is None:
            return
        if not is_killed and self._second.poll() is None:
            self._second.send_signal(signal.SIGINT)
        code = self._second.wait(GUARD_SECONDS)
        assert code == (-signal.SIGKILL if is_killed else 0), code
        self._second = None

    def _here(self, text: str) -> str:
        for shown, typed in self._replace.items():
            text = text.replace(shown, typed)
        return text

    def _type(self, command: str, expected: list[str], block: Block) -> None:
        actual: list[str] = []

        def is_as_shown() -> bool:
            actual[:] = comparable(self._run(command))
            return actual == expected

        tries = _TRIES if command.startswith(_READING) else 1
        assert any(is_as_shown() for _ in range(tries)), (f"line {block.line}: {command}", actual, expected)

    def _type_in_second(self, command: str, expected: list[str], block: Block) -> None:
        self.close(is_killed=block.marker.endswith(", killed"))
        log = self._directory / "second_terminal.log"
        with log.open("w") as file:
            self._second = subprocess.Popen(
                ["bash", "-c", f"exec {command}"],
                cwd=self._directory,
                stdout=file,
                stderr=file,
                text=True,
                env=environment(),
                # A process that a shell runs in the background ignores Ctrl-C, and its children inherit that.
                preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509
            )
        try:
            wait_until(
                lambda: comparable(log.read_text())[: len(expected)] == expected,
                f"{command} to print what line {block.line} shows",
            )
        except BaseException as error:
            error.add_note(f"it printed {log.read_text()}")
            raise


def environment() -> dict[str, str]:
    """Return the environment of a reader's shell: this one's Python, and no database but the embedded one."""
    given = {key: value for key, value in os.environ.items() if key not in ("PGSTATE_DSN", "COLUMNS")}
    return given | {"PATH": f"{Path(sys.executable).parent}:{given['PATH']}", "TZ": "UTC"}
