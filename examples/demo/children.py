"""The child processes of the demo: start them, read their events, kill them."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from examples.demo.child import Job
from langgraph_pgstate.errors import PGStateError

_PATIENCE_SECONDS: Final = 180.0
_ROOT: Final = Path(__file__).parents[2]


class DemoError(PGStateError):
    """The demo failed."""


@dataclass(slots=True)
class ToolRuns:
    """Numbers of tool calls that began and finished in a process, from its events."""

    begun: Counter[str] = field(default_factory=Counter)
    finished: Counter[str] = field(default_factory=Counter)

    @property
    def inside(self) -> Counter[str]:
        """Tools that began and did not finish."""
        return self.begun - self.finished


class Child:
    """A process that runs the agent."""

    def __init__(self, process: subprocess.Popen[str], name: str) -> None:
        self._process, self.name = process, name
        self.runs = ToolRuns()

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    def events(self) -> Iterator[dict[str, Any]]:
        """Return its events until it ends.

        Raises:
            DemoError: If it reports an error, or ends with one.
        """
        assert self._process.stdout is not None
        for line in self._process.stdout:
            event: dict[str, Any] = json.loads(line)
            if event["what"] == "error":
                raise DemoError(f"process {self.name} failed: {event['message']}")
            if event["what"] == "tool":
                (self.runs.begun if event["phase"] == "begin" else self.runs.finished)[event["name"]] += 1
            yield event
        if code := self._process.wait():
            raise DemoError(f"process {self.name} ended with code {code}: {self._last_words()}")

    def kill(self) -> str:
        """Kill it with SIGKILL, which no process can catch.

        Returns:
            How the process ended, from the operating system.
        """
        self._process.send_signal(signal.SIGKILL)
        code = self._process.wait()
        return signal.Signals(-code).name if code < 0 else f"code {code}"

    def _last_words(self) -> str:
        assert self._process.stderr is not None
        lines = self._process.stderr.read().strip().splitlines()
        return lines[-1] if lines else "it said nothing"


@contextmanager
def started(job: Job) -> Iterator[Child]:
    """Start a process with a job, and end it with the `with` block."""
    process = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-m", "examples.demo.child"],
        cwd=_ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
        start_new_session=True,  # Ctrl-C reaches only the parent, which ends its children
    )
    guard = threading.Timer(_PATIENCE_SECONDS, process.kill)
    guard.daemon = True
    guard.start()
    try:
        assert process.stdin is not None
        # The DSN may have a password, and other users can read a command line.
        process.stdin.write(job.to_json() + "\n")
        process.stdin.flush()
        yield Child(process, job.process)
    finally:
        guard.cancel()
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream is not None:
                stream.close()
