"""The processes of a storm over the queue: runners, which are workers, and callers, which enqueue, cancel and ask."""

from __future__ import annotations

import asyncio
import inspect
import os
import random
import signal
import threading
import time
import traceback
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
from langgraph.graph import START, StateGraph
from langgraph.types import Command

from langgraph_pgstate import (
    AsyncPGState,
    AsyncPGStateSaver,
    AsyncWorker,
    Backoff,
    PGState,
    PGStateSaver,
    Worker,
)
from langgraph_pgstate.db.adapters import run_blocking
from langgraph_pgstate.errors import DatabaseError, PGStateError, ThreadBusyError, UnavailableError
from langgraph_pgstate.tools import ToolSettings
from langgraph_pgstate.worker import run_state

from ..agents import Outside
from ..journal import Journal
from ..worker import LEASE_TTL, note_puts, prepare_process, told_of
from .graph import build, draw_task, input_of

GRAPH = "agent"
DRAIN_SECONDS = 1.0
MAX_CRASHES = 10
STRATEGIES = ("enqueue", "enqueue", "enqueue", "enqueue", "reject", "interrupt", "rollback")
_LEDGER = ToolSettings(ttl_seconds=20.0, wait_seconds=10.0)
_BACKLOG = 60


@dataclass(frozen=True, slots=True)
class Spec:
    """What a process is told when it is started.

    Attributes:
        seed: Of the epoch.
        name: Of the process.
        dsn: How to connect.
        schema: The tables.
        directory: Where the journals are.
        threads: All threads.
        is_async: Whether it uses the async API.
        offset: Seconds its clock is ahead.
        die: Points at which it kills itself.
        concurrency: Runs at once, of a runner.
        tenant: Whose runs a caller enqueues, where tenants are kept apart. Runners serve all.
    """

    seed: str
    name: str
    dsn: str
    schema: str
    directory: Path
    threads: tuple[str, ...]
    is_async: bool = False
    offset: float = 0.0
    die: Mapping[str, int] = field(default_factory=dict)
    concurrency: int = 8
    tenant: str | None = None


def _enter(spec: Spec) -> Journal:
    prepare_process(spec.directory, spec.name, spec.offset)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    journal = Journal(spec.directory, spec.name, spec.die)
    if spec.offset:
        journal.note("fault", kind="clock")
    return journal


def _end_with_parent() -> None:
    while os.getppid() != 1:
        time.sleep(1)
    os._exit(1)


# Runners


def run(spec: Spec) -> None:
    """Work until SIGTERM. A worker that cannot connect ends with 0, too, and another is started."""
    journal = _enter(spec)
    for kind, prefix in ((PGStateSaver, ""), (AsyncPGStateSaver, "a")):
        note_puts(kind, prefix, journal, spec.tenant)
    options = {
        "concurrency": spec.concurrency,
        "lease_ttl": LEASE_TTL,
        "poll": 0.1,
        "drain_timeout": DRAIN_SECONDS,
        "max_crashes": MAX_CRASHES,
    }
    try:
        work = _run_async(spec, journal, options) if spec.is_async else _run_blocking(spec, journal, options)
        # `asyncio.run` would wait for nodes that block.
        code = asyncio.new_event_loop().run_until_complete(work) if spec.is_async else run_blocking(work)
    except DatabaseError as error:
        # It could not connect, or could not write its last records.
        journal.note("failed", job="work", thread="", **told_of(error))
        code = 0
    except BaseException:
        traceback.print_exc()
        code = 3
    journal.note("idle", code=code)
    os._exit(code)


async def _run_blocking(spec: Spec, journal: Journal, options: Any) -> int:
    with PGState.open(spec.dsn, schema=spec.schema, tools=_LEDGER) as state:
        graph = _graph(spec, journal, state, is_async=False)

        class Runner(Worker):
            def _begin(self, executions: Sequence[Any]) -> None:
                for execution in executions:
                    if execution.tenant == spec.tenant:
                        _note_claim(journal, execution.claimed)
                super()._begin(executions)

        runner = Runner(state, {GRAPH: graph, "neighbour": neighbour()}, **options)
        journal.note("ready", worker=runner.worker_id)
        return runner.run_forever()


async def _run_async(spec: Spec, journal: Journal, options: Any) -> int:
    async with AsyncPGState.open(spec.dsn, schema=spec.schema, tools=_LEDGER) as state:
        graph = _graph(spec, journal, state, is_async=True)

        class Runner(AsyncWorker):
            def _begin(self, executions: Sequence[Any]) -> None:
                for execution in executions:
                    if execution.tenant == spec.tenant:
                        _note_claim(journal, execution.claimed)
                super()._begin(executions)

        runner = Runner(state, {GRAPH: graph, "neighbour": neighbour()}, **options)
        journal.note("ready", worker=runner.worker_id)
        return await runner.run_forever()


def _graph(spec: Spec, journal: Journal, state: Any, *, is_async: bool) -> Any:
    """Return the graph of the storm, or a factory that makes it with the ledger of the run's tenant."""
    outside = Outside(spec.directory / "outside", journal)
    if spec.tenant is None:
        return build(journal, outside, state.tools, is_async=is_async)
    return lambda: build(journal, outside, run_state().tools, is_async=is_async)


def neighbour() -> Any:
    """Return a graph that stores who executes it, for other tenants with threads of the same ids."""

    def tell(state: dict[str, Any]) -> dict[str, Any]:
        return {"tenant": run_state().tenant}

    return StateGraph(dict).add_node(tell).add_edge(START, "tell").compile()


def _note_claim(journal: Journal, claimed: Any) -> None:
    ids = {"run": claimed.run_id, "thread": claimed.thread_id, "attempt": claimed.attempt}
    journal.note("claim", token=claimed.lease.fencing_token, **ids)
    journal.point("after a claim")


# Callers


def call(spec: Spec) -> None:
    """Enqueue and ask until the file `stop` appears."""
    caller = Caller(spec, _enter(spec))
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        if spec.is_async:
            asyncio.run(caller.live_async())
        else:
            run_blocking(caller.live())
    except UnavailableError as error:
        caller.journal.note("failed", job="connect", thread="", **told_of(error))
    os._exit(0)


class Caller:
    """One process that enqueues runs, and notes what it is told about them."""

    def __init__(self, spec: Spec, journal: Journal) -> None:
        self.spec, self.journal = spec, journal
        self._draw = random.Random(f"{spec.seed} {spec.name}")
        self._known: list[tuple[str, str]] = []
        self._state: Any = None

    async def live(self) -> None:
        """Work with the blocking API."""
        with PGState.open(self.spec.dsn, schema=self.spec.schema, tenant=self.spec.tenant) as state:
            await self._work(state)

    async def live_async(self) -> None:
        """Work with the async API."""
        async with AsyncPGState.open(self.spec.dsn, schema=self.spec.schema, tenant=self.spec.tenant) as state:
            await self._work(state)

    async def _do(self, function: Any, *arguments: Any, **options: Any) -> Any:
        answer = function(*arguments, **options)
        return await answer if inspect.isawaitable(answer) else answer

    async def _work(self, state: Any) -> None:
        self._state = state
        self.journal.note("ready")
        jobs = {
            self._enqueue: 12,
            self._enqueue_again: 1,
            self._cancel: 2,
            self._retry: 2,
            self._discard: 0.3,
            self._wait: 3,
            self._answer: 2,
            self._look: 2,
        }
        while not (self.spec.directory / "stop").exists():
            job = self._draw.choices(list(jobs), list(jobs.values()))[0]
            try:
                await job()
            except Exception as error:
                self.journal.note("failed", job=job.__name__.strip("_"), thread="", **told_of(error))
            await self._sleep(self._draw.uniform(0.0, 0.1))
        self.journal.note("idle")

    async def _sleep(self, seconds: float) -> None:
        if self.spec.is_async:
            await asyncio.sleep(seconds)
        else:
            time.sleep(seconds)

    def _one(self) -> tuple[str, str] | None:
        """A run that was enqueued lately."""
        return self._draw.choice(self._known[-20:]) if self._known else None

    async def _enqueue(self) -> None:
        counts = await self._do(self._state.runs.counts)
        if sum(one.count for one in counts) > _BACKLOG:
            return
        draw = self._draw
        thread, run_id = draw.choice(self.spec.threads), str(uuid.UUID(int=draw.getrandbits(128)))
        task = draw_task(draw, f"{self.spec.name}-{draw.getrandbits(32):08x}")
        strategy = draw.choice(STRATEGIES)
        options: dict[str, Any] = {
            "multitask_strategy": strategy,
            "max_attempts": draw.choice((1, 1, 3)),
            "retry": Backoff(0.05, jitter=0.0, retry_on=[_error_name(), "langgraph_pgstate.errors.ToolBusyError"]),
            "priority": draw.choice((0, 0, 5)),
            "key": draw.choice(("", "a", "b")),
            "durability": draw.choice(("async", "async", "sync", "exit")),
        }
        if draw.random() < 0.15:
            options["run_after"] = timedelta(seconds=draw.uniform(0.0, 1.0))
        if draw.random() < 0.1:
            options["timeout"] = draw.choice((0.2, 5.0))
        told = {name: options[name] for name in ("max_attempts", "durability", "timeout") if name in options}
        pays = not self.spec.is_async and draw.random() < 0.3
        self.journal.note(
            "enqueue", run=run_id, thread=thread, strategy=strategy, task=task, pays=pays, later="run_after" in options,
            **told,
        )  # fmt: skip
        options |= {"thread_id": thread, "run_id": run_id}
        self._known.append((thread, run_id))
        if pays:
            with psycopg.connect(self.spec.dsn) as connection:
                connection.execute("INSERT INTO public.orders (run_id) VALUES (%s)", [run_id])
                self._state.runs.enqueue(GRAPH, input_of(task), connection=connection, **options)
                if draw.random() < 0.2:
                    connection.rollback()
                    self.journal.note("withdrawn", run=run_id)
                    return
            self.journal.note("enqueued", run=run_id, thread=thread, new=True)
            return
        for _ in range(20):
            # A caller that has no answer asks again under the same id.
            try:
                handle = await self._do(self._state.runs.enqueue, GRAPH, input_of(task), **options)
                break
            except UnavailableError:
                await self._sleep(0.1)
            except ThreadBusyError:
                self.journal.note("refused", run=run_id, thread=thread)
                return
        else:
            return
        self.journal.note("enqueued", run=run_id, thread=thread, new=handle.is_new)

    async def _enqueue_again(self) -> None:
        """Repeat an id with another input, which is not looked at."""
        if (one := self._one()) and any(
            run.run_id == one[1] for run in (await self._do(self._state.runs.queued, thread_id=one[0])).items
        ):
            # The run may be rolled back meanwhile, and the id be free again.
            task = draw_task(self._draw, f"never-{self._draw.getrandbits(32):08x}")
            options = {"thread_id": one[0], "run_id": one[1], "multitask_strategy": "rollback"}
            self.journal.note("again", run=one[1], thread=one[0])
            handle = await self._do(self._state.runs.enqueue, GRAPH, input_of(task), **options)
            self.journal.note("repeated", run=one[1], thread=one[0], new=handle.is_new)

    async def _cancel(self) -> None:
        if one := self._one():
            action = self._draw.choice(("cancel", "interrupt", "rollback"))
            self.journal.note("cancel", run=one[1], thread=one[0], action=action)
            status = await self._do(self._state.runs.cancel, *one, action)
            self.journal.note("cancelled", run=one[1], thread=one[0], action=action, status=status)

    async def _retry(self) -> None:
        letters = (await self._do(self._state.runs.dead_letters, limit=5)).items
        if letters:
            letter = self._draw.choice(letters)
            self.journal.note("retry", run=letter.run_id, thread=letter.thread_id)
            done = await self._do(self._state.runs.retry, letter.thread_id, letter.run_id)
            self.journal.note("retried", run=letter.run_id, thread=letter.thread_id, done=done)

    async def _discard(self) -> None:
        letters = (await self._do(self._state.runs.dead_letters, limit=5)).items
        if letters:
            letter = self._draw.choice(letters)
            self.journal.note("discard", run=letter.run_id, thread=letter.thread_id)
            await self._do(self._state.runs.discard, letter.thread_id, letter.run_id)

    async def _answer(self) -> None:
        """Answer an interrupt, which wakes its run, or resume it by a command."""
        waiting = (await self._do(self._state.interrupts.threads, limit=5)).items
        if not waiting:
            return
        thread = self._draw.choice(waiting).thread_id
        self.journal.note("answer", thread=thread)
        if self._draw.random() < 0.5:
            await self._do(self._state.interrupts.answer, thread, "yes", by=self.spec.name)
        else:
            run_id = str(uuid.UUID(int=self._draw.getrandbits(128)))
            strategy = self._draw.choice(("enqueue", "reject"))
            self.journal.note("enqueue", run=run_id, thread=thread, strategy=strategy, task=None)
            options = {"thread_id": thread, "run_id": run_id, "multitask_strategy": strategy}
            await self._do(self._state.runs.enqueue, GRAPH, command=Command(resume="yes"), **options)
            self.journal.note("enqueued", run=run_id, thread=thread, new=True)

    async def _wait(self) -> None:
        if one := self._one():
            found: dict[str, Any] = {}
            asked_at = time.monotonic()
            try:
                values = await self._do(self._state.runs.wait, *one, timeout=2.0)
                found = {"told": "interrupted" if "__interrupt__" in values else "end"}
            except PGStateError as error:
                found = {"told": type(error).__name__, "status": getattr(error, "status", None)}
            self.journal.note("told", run=one[1], thread=one[0], asked_at=asked_at, **found)

    async def _look(self) -> None:
        if one := self._one():
            asked_at = time.monotonic()
            status = await self._do(self._state.runs.status, *one)
            self.journal.note("told", run=one[1], thread=one[0], asked_at=asked_at, told="status", status=status)


def _error_name() -> str:
    from .graph import PlannedError

    return f"{PlannedError.__module__}.{PlannedError.__qualname__}"
