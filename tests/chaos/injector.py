"""An epoch: workers on a fresh schema, the faults that strike them, and the verifier at the end."""

from __future__ import annotations

import heapq
import random
import signal
import time
from dataclasses import replace
from pathlib import Path

import psycopg
from support import config_of, put_arguments

from langgraph_pgstate import PGStateSaver

from .findings import Finding
from .storm import CONTEXT, PATIENCE, Storm, prepare_forks
from .verifier import Verifier, check_leases
from .worker import LEASE_TTL, Spec, main
from .world import World

# Kinds that are not drawn: workers are started so.
OF_WORKERS = ("clock", "cancel", "point")
POINTS = (
    "before a put",
    "after a put",
    "before writes",
    "after writes",
    "before an effect",
    "after an effect",
    "in a node",
)
_AGENTS, _COPIES = 4, 3
_NEIGHBOUR = "neighbour"


class Epoch(Storm):
    """One schema's time: calm, storm, recovery, judgement.

    Args:
        world: The server.
        directory: For the journals; made.
        seed: Makes the plans of workers and faults.
        without: Kinds of faults that are left out.
        gap: Seconds between two faults, on average.
        threads: How many there are, beside forks and copies of them.
    """

    def __init__(
        self,
        world: World,
        directory: Path,
        seed: str,
        *,
        without: tuple[str, ...] = (),
        gap: float = 0.25,
        threads: int = 10,
    ) -> None:
        super().__init__(world, directory, seed, "chaos_", without=without, gap=gap)
        self.verifier: Verifier | None = None
        bases = [f"{seed}-{number}" for number in range(threads)]
        copies = [f"{base}~{number}" for base in bases for number in range(1, _COPIES + 1)]
        self._threads = (*bases * 2 * _COPIES, *copies)

    def run(self, faults: int, calm: int = 20) -> None:
        """Live through it.

        Args:
            faults: How many are injected, at least.
            calm: Runs that end before, without faults and operators, in which nothing may fail.
        """
        with psycopg.connect(self._world.direct, autocommit=True) as connection:
            connection.execute("CREATE TABLE IF NOT EXISTS public.bookings (thread_id text, key text, booked_by text)")
            connection.execute("GRANT ALL ON public.bookings TO PUBLIC")
        with psycopg.connect(self._world.calm, autocommit=True) as connection:
            tenancy = None if self._world.tenant is None else "rls"
            PGStateSaver(connection, schema=self._schema).setup(tenancy=tenancy)
        if self._world.tenant is not None:
            self._settle_neighbour()
        self._world.disk.prepare(self._schema)
        prepare_forks()
        for slot in range(_AGENTS):
            self._start(f"agent{slot}")
        try:
            self._until("ready")
            end = time.monotonic() + PATIENCE
            while sum(file.read_bytes().count(b'"what":"end"') for file in self._files()) < calm:
                if time.monotonic() > end:
                    raise AssertionError("the agents do not run")
                self._wait(0.1)
            self._journal.note("storm")
            (self.directory / "storm").touch()
            self._start("operator0")
            self._rage(faults)
        finally:
            self._end()
        with psycopg.connect(self._world.judge, autocommit=True) as connection:
            self.verifier = Verifier(connection, self._schema, self.seed, self.directory, self._world)
            self.findings += self.verifier.verify()
            self._count(self.verifier.lines)
        if self._world.tenant is not None:
            self._check_neighbour()

    # Another tenant, whose threads have the same ids

    def _settle_neighbour(self) -> None:
        with PGStateSaver.from_conn_string(self._world.calm, schema=self._schema, tenant=_NEIGHBOUR) as saver:
            for thread in sorted({*self._threads}):
                saver.put(*put_arguments(config_of(thread), 1, a=_NEIGHBOUR))

    def _check_neighbour(self) -> None:
        with PGStateSaver.from_conn_string(self._world.calm, schema=self._schema, tenant=_NEIGHBOUR) as saver:
            found = {one.config["configurable"]["thread_id"]: one.checkpoint for one in saver.list(None)}
        for thread in sorted({*self._threads, *found}):
            values = found[thread]["channel_values"] if thread in found else None
            if values != {"a": _NEIGHBOUR} or thread not in self._threads:
                self.findings.append(Finding("crossing", thread, f"the other tenant has {values}"))

    # Workers

    def _start(self, slot: str) -> None:
        generation = self._generations[slot]
        self._generations[slot] += 1
        name = f"{slot}.{generation}"
        draw = random.Random(f"{self.seed} start {name}")
        spec = Spec(
            self.seed,
            name,
            slot.rstrip("0123456789"),
            self._world.dsn,
            self._schema,
            self.directory,
            self._threads,
            is_async=int(slot[-1]) % 2 == 1 if slot != "operator0" else generation % 2 == 1,
            cancels=0.0 if "cancel" in self._without else 0.12,
            tenant=self._world.tenant,
            is_encrypted=self._world.is_encrypted,
        )
        if generation and "clock" not in self._without and draw.random() < 0.25:
            spec = replace(spec, offset=draw.choice((-90.0, -30.0, 30.0, 300.0)))
        if generation and "point" not in self._without and draw.random() < 0.4:
            spec = replace(spec, die={draw.choice(POINTS): draw.randint(1, 60)})
        self._launch(slot, main, spec)

    # The end

    def _end(self) -> None:
        """Stop the faults, let the workers come to rest, look at the leases, and bring all threads to their end."""
        while self._due:
            heapq.heappop(self._due)[2]()
        self._journal.note("quiet")
        (self.directory / "stop").touch()
        self._until("idle")
        time.sleep(LEASE_TTL + 1.0)
        with psycopg.connect(self._world.direct, autocommit=True) as connection:
            self.findings += check_leases(connection, self._schema)
        (self.directory / "leave").touch()
        for process in self._workers.values():
            process.join(PATIENCE)
            self._dump(process)
            if process.exitcode not in (-signal.SIGKILL, 0):
                self._find("worker died", process)
        spec = Spec(
            self.seed,
            "recover.0",
            "recover",
            self._world.calm,
            self._schema,
            self.directory,
            tuple(sorted({*self._threads})),
            tenant=self._world.tenant,
            is_encrypted=self._world.is_encrypted,
        )
        process = CONTEXT.Process(target=main, args=(spec,), name=spec.name, daemon=True)
        process.start()
        process.join(PATIENCE)
        self._dump(process)
        if process.exitcode:
            self._find("worker died", process)
