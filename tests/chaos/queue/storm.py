"""Storms over the queue: runners and callers on a fresh schema, faults, and the verifier at the end."""

from __future__ import annotations

import heapq
import os
import random
import signal
import time
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg

from langgraph_pgstate import PGState, PGStateSaver

from ..findings import Finding
from ..injector import POINTS
from ..storm import FAULTS, PATIENCE, Storm, prepare_forks, send
from ..verifier import check_leases
from ..worker import LEASE_TTL
from ..world import World
from . import processes
from .graph import draw_task, input_of
from .processes import DRAIN_SECONDS, Spec
from .verifier import Verifier

_FAULTS = {**FAULTS, "drain": 6.0}
_POINTS = (*POINTS, "after a claim")
_RUNNERS, _CALLERS = 4, 2
_THREADS = 12
# Seconds from the end of a lease until a sweep has put its run back: a sweep is due every two seconds, and a process
# that is to make it may be stopped for a second longer than a lease.
_SWEPT_WITHIN = 2.0 + LEASE_TTL + 1.0 + 5.0
_LOOK_SECONDS = 0.25
_NEIGHBOURS = ("east", "west")
_LOST = """
SELECT q.thread_id, q.run_id, extract(epoch FROM now() - l.expires_at)::float8
FROM {0}.queue q LEFT JOIN {0}.leases l ON l.thread_id = q.thread_id AND l.fencing_token = q.fencing_token
WHERE q.status = 'running' AND (l.expires_at IS NULL OR l.expires_at < now())
"""


class QueueStorm(Storm):
    """One schema's time: calm, storm, the end of all runs, judgement.

    Args:
        world: The server.
        directory: For the journals; made.
        seed: Makes the plans of processes and faults.
        options: See `Storm`.
    """

    # SIGTERM ends a process that is not a worker yet, or no longer; and a second one a worker that drains.
    _exits = (-signal.SIGKILL, -signal.SIGTERM, 128 + signal.SIGTERM, 0)

    def __init__(self, world: World, directory: Path, seed: str, **options: Any) -> None:
        super().__init__(world, directory, seed, "queue_", **{"faults": _FAULTS, **options})
        self.verifier: Verifier | None = None
        self._threads = tuple(f"{seed}-{number}" for number in range(_THREADS))
        self._draining: dict[str, float] = {}
        self._looked_at = 0.0
        self._lost_since: dict[str, float] = {}
        self._disturbed_at = 0.0
        self._able_since: dict[str, float] = {}
        self.longest_lost = 0.0

    def run(self, faults: int, calm: int = 20) -> None:
        """Live through it.

        Args:
            faults: How many are injected, at least.
            calm: Runs that are claimed before, without faults, in which nothing may fail.
        """
        self._prepare()
        for number in range(_CALLERS):
            self._start(f"caller{number}")
        try:
            self._until("ready")
            end = time.monotonic() + PATIENCE
            while self._count_claims() < calm:
                if time.monotonic() > end:
                    raise AssertionError("the runners do not run")
                self._wait(0.1)
            self._journal.note("storm")
            (self.directory / "storm").touch()
            self._rage(faults)
        finally:
            self._end()
        self._judge()

    def _prepare(self) -> None:
        with psycopg.connect(self._world.direct, autocommit=True) as connection:
            connection.execute("CREATE TABLE IF NOT EXISTS public.orders (run_id text)")
            connection.execute("GRANT ALL ON public.orders TO PUBLIC")
        with psycopg.connect(self._world.calm, autocommit=True) as connection:
            tenancy = None if self._world.tenant is None else "rls"
            PGStateSaver(connection, schema=self._schema).setup(tenancy=tenancy)
        self._world.disk.prepare(self._schema)
        prepare_forks()
        for number in range(_RUNNERS):
            self._start(f"runner{number}")
        if self._world.tenant is not None:
            self._enqueue_of_neighbours()

    def _enqueue_of_neighbours(self) -> None:
        """Enqueue runs of other tenants on threads of the same ids, which the storm's workers run as well."""
        with PGState.open(self._world.calm, schema=self._schema) as state:
            for name in _NEIGHBOURS:
                runs = state.for_tenant(name).runs
                for thread in self._threads:
                    for seconds in range(0, 30, 3):
                        after = timedelta(seconds=seconds)
                        runs.enqueue("neighbour", {}, thread_id=thread, run_after=after, max_attempts=20)

    def _check_neighbours(self) -> None:
        with PGState.open(self._world.calm, schema=self._schema) as state:
            for name in _NEIGHBOURS:
                one = state.for_tenant(name)
                for thread in self._threads:
                    found = one.saver.get_tuple({"configurable": {"thread_id": thread}})
                    values = None if found is None else found.checkpoint["channel_values"].get("__root__")
                    statuses = {run.status for run in one.runs.list(thread_id=thread, limit=100).items}
                    if values != {"tenant": name} or statuses != {"success"}:
                        self.findings.append(Finding("crossing", thread, f"tenant {name} has {values}, {statuses}"))

    def _judge(self) -> None:
        if self._world.tenant is not None:
            self._check_neighbours()
        with psycopg.connect(self._world.judge, autocommit=True) as connection:
            self.verifier = Verifier(connection, self._schema, self.directory, self._world.tenant)
            self.findings += self.verifier.verify()
            self._count(self.verifier.lines)

    def _count_claims(self) -> int:
        return sum(file.read_bytes().count(b'"what":"claim"') for file in self._files() if file.exists())

    def _start(self, slot: str) -> None:
        if slot.startswith("caller") and (self.directory / "stop").exists():
            return
        generation = self._generations[slot]
        self._generations[slot] += 1
        name = f"{slot}.{generation}"
        draw = random.Random(f"{self.seed} start {name}")
        world = self._world
        is_async = int(slot[-1]) % 2 == 1
        spec = Spec(self.seed, name, world.dsn, self._schema, self.directory, self._threads, is_async)
        spec = replace(spec, tenant=world.tenant)
        if generation and "clock" not in self._without and draw.random() < 0.25:
            spec = replace(spec, offset=draw.choice((-90.0, -30.0, 30.0, 300.0)))
        if generation and "point" not in self._without and slot.startswith("runner") and draw.random() < 0.4:
            spec = replace(spec, die={draw.choice(_POINTS): draw.randint(1, 60)})
        self._draining.pop(slot, None)
        self._launch(slot, processes.run if slot.startswith("runner") else processes.call, spec)

    def _drain(self, kind: str) -> None:
        slot = self._draw.choice([slot for slot in sorted(self._workers) if slot.startswith("runner")])
        self._strike(kind, self._workers[slot].name)
        send(self._workers[slot], signal.SIGTERM)
        self._draining.setdefault(slot, time.monotonic())

    def _strike(self, kind: str, target: str | None = None) -> None:
        super()._strike(kind, target)
        if kind in ("fast", "immediate"):
            self._disturbed_at = time.monotonic()

    def _tend(self) -> None:
        super()._tend()
        now = time.monotonic()
        for slot, since in list(self._draining.items()):
            # Connections that were cut are noticed late.
            if self._workers[slot].is_alive() and now > since + DRAIN_SECONDS + LEASE_TTL + 25.0:
                self._dump(self._workers[slot])
        if now > self._looked_at + _LOOK_SECONDS:
            self._looked_at = now
            self._look()

    def _note_able(self) -> None:
        """Note since when each runner has been able to recover runs: it is ready, and neither stopped nor draining."""
        now = time.monotonic()
        runners = {slot: process for slot, process in self._workers.items() if slot.startswith("runner")}
        self._able_since = {
            process.name: self._able_since.get(process.name, now)
            for slot, process in runners.items()
            if slot not in self._draining and _goes_on(process) and self._is_ready(process)
        }

    def _is_ready(self, process: Any) -> bool:
        file = self.directory / f"{process.name}.jsonl"
        return file.exists() and b'"what":"ready"' in file.read_bytes()

    def _look(self) -> None:
        """Find runs that have been without a living lease for too long, although some runner could recover them."""
        self._note_able()
        try:
            with psycopg.connect(self._world.judge, autocommit=True, connect_timeout=2) as connection:
                rows = connection.execute(_LOST.format(self._schema).encode()).fetchall()
        except psycopg.Error:
            self._disturbed_at = time.monotonic()
            return
        now = time.monotonic()
        self._lost_since = {run: self._lost_since.get(run, now) for _, run, _ in rows}
        for thread, run, age in rows:
            # After a restart all leases may have expired, and all processes have to connect again.
            since = max(self._disturbed_at, min(self._able_since.values(), default=now))
            lost_for = min(age if age is not None else now - self._lost_since[run], now - since)
            self.longest_lost = max(self.longest_lost, lost_for)
            if lost_for > _SWEPT_WITHIN:
                self.findings.append(Finding("run without a lease", thread, f"run {run} for {lost_for:.1f} seconds"))
                self._lost_since[run] = now + 3600

    def _end(self) -> None:
        """Stop the faults and the callers, wait until the queue is empty, and drain the runners."""
        while self._due:
            heapq.heappop(self._due)[2]()
        self._journal.note("quiet")
        (self.directory / "stop").touch()
        end = time.monotonic() + PATIENCE
        while self._left() and time.monotonic() < end:
            self._wait(0.2)
        for process in self._workers.values():
            if process.is_alive():
                os.kill(process.pid, signal.SIGTERM)
        for process in self._workers.values():
            process.join(PATIENCE)
            self._dump(process)
            if process.exitcode not in self._exits:
                self._find("worker died", process)
        time.sleep(LEASE_TTL + 1.0)
        with psycopg.connect(self._world.judge, autocommit=True) as connection:
            self.findings += check_leases(connection, self._schema)

    def _left(self) -> int:
        """The number of runs in the queue."""
        with psycopg.connect(self._world.direct, autocommit=True) as connection:
            found = connection.execute(f"SELECT count(*) FROM {self._schema}.queue".encode()).fetchone()
        assert found is not None
        return int(found[0])


def _goes_on(process: Any) -> bool:
    """Return whether a process lives and is not stopped."""
    try:
        return (
            process.is_alive()
            and "T" not in Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0]
        )
    except OSError:
        return False


class Thousand(QueueStorm):
    """A thousand runs of twenty supersteps on four workers, of which one is killed every second.

    Meanwhile the server is restarted every 20 seconds, a twentieth of the backends is terminated every five, and a
    worker is stopped every three.

    Args:
        world: The server.
        directory: For the journals; made.
        seed: Makes the plan of faults.
        runs: Number of runs, five on each thread.
        steps: Number of supersteps of each.
    """

    def __init__(self, world: World, directory: Path, seed: str, runs: int = 1000, steps: int = 20) -> None:
        super().__init__(world, directory, seed, without=("clock", "point"))
        self._runs, self._steps = runs, steps

    def run(self, faults: int = 0, calm: int = 0) -> None:
        """Live through it.

        Args:
            faults: Not used: there are faults as long as there are runs.
            calm: Not used.
        """
        self._prepare()
        try:
            self._until("ready")
            self._enqueue()
            self._journal.note("storm")
            (self.directory / "storm").touch()
            second = 0
            while self._left_now():
                second += 1
                self._kill("kill")
                if second % 3 == 0:
                    self._stop("stop")
                if second % 5 == 0:
                    self._terminate_some()
                if second % 20 == 0:
                    self._fast("fast" if second % 40 else "immediate")
                self._wait(1.0)
        finally:
            self._end()
        self._judge()

    def _enqueue(self) -> None:
        draw = random.Random(self.seed)
        tasks = [draw_task(draw, f"{self.seed}-{number}", self._steps) for number in range(self._runs)]
        with PGState.open(self._world.direct, schema=self._schema) as state:
            for first in range(0, self._runs, 100):
                requests: list[Any] = []
                for number in range(first, min(first + 100, self._runs)):
                    ids = {"thread_id": f"{self.seed}-{number // 5}", "run_id": f"run-{number}"}
                    requests.append({"graph": processes.GRAPH, "input": input_of(tasks[number]), **ids})
                    told = {"run": ids["run_id"], "thread": ids["thread_id"], "strategy": "enqueue"}
                    self._journal.note("enqueue", task=tasks[number], **told)
                for handle in state.runs.enqueue_batch(requests):
                    self._journal.note("enqueued", run=handle.run_id, thread=handle.thread_id, new=True)

    def _terminate_some(self) -> None:
        with psycopg.connect(self._world.direct, autocommit=True) as connection:
            query = """
                SELECT pg_terminate_backend(pid) FROM pg_stat_activity
                WHERE backend_type = 'client backend' AND pid <> pg_backend_pid() AND random() < 0.05
            """
            for _ in connection.execute(query).fetchall():
                self._strike("terminate")

    def _left_now(self) -> int:
        try:
            return self._left()
        except psycopg.Error:
            return 1
