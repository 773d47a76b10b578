"""Workers in child processes, graphs that log their steps and can be paused, and rows of the queue."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import psycopg

from langgraph_pgstate import AsyncPGState, PGState
from langgraph_pgstate.runs import RunHandle
from langgraph_pgstate.worker import AsyncWorker, Worker
from support import FORK, GUARD_SECONDS, loop_graph, wait_until

WORKERS = [Worker, AsyncWorker]
STEPS = 4


class Place:
    """A directory with files in which processes log their steps, and by which they are paused.

    Args:
        directory: The directory.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._notes = directory / "notes"

    def note(self, what: str) -> None:
        """Add a line, which names the process."""
        with self._notes.open("a") as file:
            file.write(f"{what} {os.getpid()}\n")

    def notes(self) -> list[tuple[str, int]]:
        """Return all lines so far, with their processes."""
        lines = self._notes.read_text().splitlines() if self._notes.exists() else []
        return [(what, int(pid)) for what, pid in (line.rsplit(" ", 1) for line in lines)]

    def hold(self, what: str) -> None:
        """Make `pause` wait from now on."""
        (self.directory / f"hold {what}").touch()

    def release(self, what: str) -> None:
        """Let paused processes continue."""
        (self.directory / f"hold {what}").unlink()

    def pause(self, what: str) -> None:
        """Log a step, wait while the place is held, and log the end of the wait."""
        self.note(f"begin {what}")
        while (self.directory / f"hold {what}").exists():
            time.sleep(0.005)
        self.note(f"end {what}")

    def graph(self, steps: int = STEPS) -> Any:
        """Return a graph that logs each of its supersteps, and pauses in it."""
        return loop_graph(steps, lambda count: self.pause(f"step {count}"))

    def wait_for(self, what: str, times: int = 1) -> int:
        """Wait until a step was logged a number of times. Return the process that logged it last."""
        found: list[int] = []

        def has_come() -> bool:
            found[:] = [pid for note, pid in self.notes() if note == what]
            return len(found) >= times

        wait_until(has_come, f"{what} in {self.notes()}")
        return found[-1]


def enqueue(state: PGState, graph: str = "agent", input: Any = None, **options: Any) -> RunHandle:
    """Enqueue a run, by default of a graph that counts."""
    given = {"count": 0} if input is None and "command" not in options else input
    return state.runs.enqueue(graph, given, **options)


def runs(connection: psycopg.Connection, schema: str) -> list[tuple[Any, ...]]:
    """Thread, status and attempt of all runs, in the order of their threads."""
    query = f"SELECT thread_id, status, attempt FROM {schema}.runs ORDER BY thread_id, started_at"
    return connection.execute(query.encode()).fetchall()


def wait_for_ends(connection: psycopg.Connection, schema: str) -> None:
    """Wait until the queue is empty."""
    query = f"SELECT 1 FROM {schema}.queue LIMIT 1".encode()
    wait_until(lambda: not connection.execute(query).fetchall(), "an empty queue")


def work(
    kind: type,
    dsn: str,
    schema: str,
    graphs: dict[str, Any],
    method: str = "run_forever",
    opened: dict[str, Any] | None = None,
    **options: Any,
) -> int:
    """Run a worker of either API in this process, on a state opened with options. Return its exit code."""
    options = {"poll": 0.05, **options}
    if kind is Worker:
        with PGState.open(dsn, schema=schema, **(opened or {})) as state:
            return getattr(Worker(state, graphs, **options), method)()

    async def main() -> int:
        async with AsyncPGState.open(dsn, schema=schema, **(opened or {})) as state:
            return await getattr(AsyncWorker(state, graphs, **options), method)()

    # `asyncio.run` would wait for blocking nodes.
    return asyncio.new_event_loop().run_until_complete(main())


def kill(process: BaseProcess) -> None:
    """Kill a worker and reap it, so that others see its death without waiting for its leases to expire."""
    os.kill(process.pid or 0, signal.SIGKILL)
    process.join(GUARD_SECONDS)


def stop(process: BaseProcess) -> None:
    """Stop a worker with SIGSTOP, all threads of which may take a moment on a busy machine."""
    os.kill(process.pid or 0, signal.SIGSTOP)
    tasks = Path(f"/proc/{process.pid}/task")
    states = lambda: {(one / "stat").read_text().rpartition(")")[2].split()[0] for one in tasks.iterdir()}  # noqa: E731
    wait_until(lambda: states() == {"T"}, "a process that is stopped")


@contextmanager
def worker(
    kind: type, dsn: str, schema: str, graphs: dict[str, Any], method: str = "run_forever", **options: Any
) -> Iterator[BaseProcess]:
    """Provide a worker in a child process, which is killed at the end if it still runs."""

    def main() -> None:
        # A graph's own threads are not waited for, as in the CLI.
        os._exit(work(kind, dsn, schema, graphs, method, **options))

    process = FORK.Process(target=main, daemon=True)
    process.start()
    try:
        yield process
    finally:
        if process.is_alive():
            os.kill(process.pid or 0, signal.SIGCONT)
            process.kill()
        process.join(GUARD_SECONDS)
