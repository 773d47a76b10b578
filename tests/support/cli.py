"""Commands run in this process and in child processes, and their output."""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from langchain_core.messages import HumanMessage

from examples.demo.agent import FIRST_WISH, build_agent, follow_up, offline_model
from langgraph_pgstate.cli import main
from support import FORK, GUARD_SECONDS
from support.record import EPOCH

Run = Any
# Times in a record are seconds after its epoch; this one is of the last hour.
NOW = (datetime.now(UTC) - EPOCH).total_seconds() - 1800
PRAGUE, FAILED = "0198f0aa-7ee7-7284-ab5f-cc8e3a352424", "0198f0aa-7ee8-7284-ab5f-2d3e8a711907"


def words(result: Any) -> str:
    """Return printed text without line breaks."""
    return " ".join(result.output.split())


def lines(shown: str, *words: str) -> list[str]:
    """Return the lines that hold some words, with single blanks."""
    found = [" ".join(line.split()) for line in shown.splitlines()]
    return [line for line in found if all(word in line for word in words)]


def converse(saver: Any, thread_id: str, turns: int) -> None:
    graph = build_agent(offline_model(), saver, lambda *_: None, hotel_seconds=0)
    config: Any = {"configurable": {"thread_id": thread_id}}
    graph.invoke({"messages": [HumanMessage(FIRST_WISH)]}, config)
    for turn in range(2, turns + 1):
        graph.invoke({"messages": [HumanMessage(follow_up(turn))]}, config)


class Forked:
    """`pgstate` in a child of this process, which has imported everything: it starts in milliseconds.

    It has the methods of `subprocess.Popen` that tests use.
    """

    def __init__(self, *arguments: str, cwd: Path | None = None) -> None:
        self._output = [os.memfd_create(name) for name in ("stdout", "stderr")]
        self._process = FORK.Process(target=self._run, args=(arguments, cwd), daemon=True)
        self._process.start()

    def __enter__(self) -> Forked:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.is_alive():
            self._process.kill()
        self._process.join()
        for file in self._output:
            os.close(file)

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def send_signal(self, number: int) -> None:
        assert self._process.pid is not None
        os.kill(self._process.pid, number)

    def wait(self, timeout: float = GUARD_SECONDS) -> int | None:
        self._process.join(timeout)
        assert not self._process.is_alive(), "the process goes on"
        return self.returncode

    def communicate(self, timeout: float = GUARD_SECONDS) -> tuple[str, str]:
        """Return its standard output and standard error, after its end."""
        self.wait(timeout)
        return self.printed, self.said

    @property
    def pid(self) -> int | None:
        return self._process.pid

    @property
    def printed(self) -> str:
        """Its standard output so far."""
        return self._read(0)

    @property
    def said(self) -> str:
        """Its standard error so far."""
        return self._read(1)

    def _read(self, number: int) -> str:
        file = self._output[number]
        # The child shares the position.
        return os.pread(file, os.fstat(file).st_size, 0).decode()

    def _run(self, arguments: Sequence[str], directory: Path | None) -> None:
        for number, file in enumerate(self._output, 1):
            os.dup2(file, number)
        sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")
        # Remove pytest's handlers, which write elsewhere.
        logging.getLogger().handlers.clear()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.environ.pop("PGSTATE_DSN", None)
        # A daemon cannot have processes of their own; the command can.
        multiprocessing.current_process().daemon = False
        os.chdir(directory or ".")
        sys.argv = ["pgstate", *arguments]
        main()


def pgstate(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run a command in a new process."""
    with Forked(*arguments, cwd=cwd) as process:
        printed, said = process.communicate()
        assert process.returncode is not None
        return subprocess.CompletedProcess(["pgstate", *arguments], process.returncode, printed, said)
