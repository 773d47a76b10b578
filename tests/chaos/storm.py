"""A storm: processes that work on one schema, the faults that strike them, and what is known of both."""

from __future__ import annotations

import heapq
import itertools
import multiprocessing
import os
import random
import shutil
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

import psycopg

from .findings import Finding
from .journal import Journal, Line
from .worker import LEASE_TTL
from .world import World

# How often each kind of fault comes, in relation to the others.
FAULTS = {
    "kill": 10.0,
    "stop": 8.0,
    "terminate": 14.0,
    "lose": 14.0,
    "cut": 12.0,
    "delay": 4.0,
    "sever": 3.0,
    "disk": 2.0,
    "fast": 0.7,
    "immediate": 0.7,
}
PATIENCE = 90.0

CONTEXT = multiprocessing.get_context("forkserver")


def prepare_forks() -> None:
    """Have a process that has imported everything make the others, which takes them milliseconds."""
    CONTEXT.set_forkserver_preload(["chaos.worker", "chaos.queue.processes"])
    before = os.environ.get("PYTHONPATH")
    # It is not told of this process's path.
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    try:
        forkserver.ensure_running()
    finally:
        os.environ.pop("PYTHONPATH")
        if before is not None:
            os.environ["PYTHONPATH"] = before


class Storm:
    """One schema's time.

    Args:
        world: The server.
        directory: For the journals; made.
        seed: Makes the plans of processes and faults.
        schema: Name of the schema, before the seed.
        without: Kinds of faults that are left out.
        gap: Seconds between two faults, on average.
        faults: How often each kind comes, in relation to the others.

    Attributes:
        findings: What was found.
        counts: Faults by kind, once it is over.
    """

    def __init__(
        self,
        world: World,
        directory: Path,
        seed: str,
        schema: str,
        *,
        without: tuple[str, ...] = (),
        gap: float = 0.25,
        faults: Mapping[str, float] = FAULTS,
    ) -> None:
        directory.mkdir(parents=True)
        self.directory, self.seed = directory, seed
        self.findings: list[Finding] = []
        self.counts: Counter[str] = Counter()
        self._world, self._without, self._gap, self._faults = world, without, gap, faults
        self._schema = schema + "".join(letter if letter.isalnum() else "_" for letter in seed.lower())
        self._draw = random.Random(f"{seed} faults")
        self._journal = Journal(directory, "injector")
        self._workers: dict[str, Any] = {}
        self._generations: Counter[str] = Counter()
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()

    def clear(self) -> None:
        """Remove tables and journals."""
        with psycopg.connect(self._world.direct, autocommit=True) as connection:
            connection.execute(f"DROP SCHEMA {self._schema} CASCADE".encode())
        shutil.rmtree(self.directory)

    # Processes

    _exits: tuple[int, ...] = (-signal.SIGKILL, 0)

    def _start(self, slot: str) -> None:
        raise NotImplementedError

    def _launch(self, slot: str, main: Callable[[Any], None], spec: Any) -> None:
        self._workers[slot] = process = CONTEXT.Process(target=main, args=(spec,), name=spec.name, daemon=True)
        process.start()

    def _tend(self) -> None:
        """Do what is due, and start workers again that have died."""
        while self._due and self._due[0][0] <= time.monotonic():
            heapq.heappop(self._due)[2]()
        for slot, process in list(self._workers.items()):
            if not process.is_alive():
                if process.exitcode not in self._exits:
                    self._find("worker died", process)
                self._start(slot)

    def _find(self, kind: str, process: Any) -> None:
        errors = (self.directory / f"{process.name}.err").read_text(errors="replace")
        self.findings.append(Finding(kind, "", f"{process.name}, exit {process.exitcode}: {errors[-6000:]}"))

    def _later(self, seconds: float, what: Callable[[], None]) -> None:
        heapq.heappush(self._due, (time.monotonic() + seconds, next(self._numbers), what))

    def _wait(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            self._tend()
            time.sleep(min(left, 0.02))

    # Faults

    def _rage(self, faults: int) -> None:
        kinds = {kind: weight for kind, weight in self._faults.items() if kind not in self._without}
        for _ in range(faults):
            self._wait(self._draw.expovariate(1 / self._gap))
            kind = self._draw.choices(list(kinds), list(kinds.values()))[0]
            getattr(self, f"_{kind}")(kind)
        self._wait(self._gap)

    def _strike(self, kind: str, target: str | None = None) -> None:
        self._journal.note("fault", kind=kind, target=target)

    def _victim(self) -> Any:
        return self._workers[self._draw.choice(sorted(self._workers))]

    def _kill(self, kind: str) -> None:
        process = self._victim()
        self._strike(kind, process.name)
        process.kill()

    def _stop(self, kind: str) -> None:
        process = self._victim()
        self._strike(kind, process.name)
        send(process, signal.SIGSTOP)
        self._later(self._draw.choice((0.05, 0.3, 1.0, LEASE_TTL + 1.0)), lambda: send(process, signal.SIGCONT))

    def _terminate(self, kind: str) -> None:
        with psycopg.connect(self._world.direct, autocommit=True) as connection:
            query = "SELECT pid FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
            pids = [row[0] for row in connection.execute(query)]
            if pids:
                self._strike(kind)
                connection.execute("SELECT pg_terminate_backend(%s)", [self._draw.choice(sorted(pids))])

    def _lose(self, kind: str) -> None:
        self._strike(kind)
        self._world.proxy.order(kind)

    _cut = _sever = _lose

    def _delay(self, kind: str) -> None:
        self._strike(kind)
        self._world.proxy.order("delay", self._draw.choice((0.002, 0.02, 0.1)))
        self._later(self._draw.uniform(0.3, 1.0), lambda: self._world.proxy.order("delay", 0))

    def _disk(self, kind: str) -> None:
        self._strike(kind)
        self._world.disk.fill()
        self._later(self._draw.uniform(0.2, 1.2), self._free)

    def _free(self) -> None:
        # What failed because of it may be told a while later.
        self._strike("disk")
        self._world.disk.free()

    def _fast(self, kind: str) -> None:
        # A full disk would keep the server from recovering.
        self._world.disk.free()
        self._strike(kind)
        self._world.restart(kind)
        self._strike(kind)

    _immediate = _fast

    # The end

    def _files(self) -> list[Path]:
        return [self.directory / f"{process.name}.jsonl" for process in self._workers.values()]

    def _until(self, word: str) -> None:
        """Wait until every worker has said something, or has died."""
        end = time.monotonic() + PATIENCE
        for process, file in zip(list(self._workers.values()), self._files(), strict=True):
            while process.is_alive() and not (file.exists() and f'"what":"{word}"'.encode() in file.read_bytes()):
                if time.monotonic() > end:
                    self._dump(process)
                time.sleep(0.05)

    def _dump(self, process: Any) -> None:
        """Of a process that does not end, find where it stands, and kill it."""
        if process.is_alive():
            send(process, signal.SIGUSR1)
            time.sleep(0.5)
            self._find("worker hangs", process)
            process.kill()
            process.join()

    def _count(self, lines: Iterable[Line]) -> None:
        faults = [line for line in lines if line["what"] == "fault"]
        self.counts = Counter(line["kind"] for line in faults if line["kind"] not in ("cut", "lose"))
        # Said twice of what has a beginning and an end.
        for kind in ("disk", "fast", "immediate"):
            self.counts[kind] //= 2


def send(process: Any, number: int) -> None:
    """Send a signal to a process that lives."""
    if process.is_alive():
        os.kill(process.pid, number)
