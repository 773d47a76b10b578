"""A worker: a process that runs agents as its part of the plan says, and writes down what it was told."""

from __future__ import annotations

import asyncio
import faulthandler
import functools
import inspect
import os
import random
import signal
import sys
import time
import traceback
import uuid
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
from langgraph.types import Command
from psycopg_pool import AsyncConnectionPool, ConnectionPool

from langgraph_pgstate import AsyncPGState, AsyncPGStateSaver, PGState, PGStateSaver
from langgraph_pgstate.db.adapters import run_blocking
from langgraph_pgstate.errors import AlreadyAnsweredError, NotFoundError, ToolOutcomeUnknownError, ToolTimeoutError
from langgraph_pgstate.tools import ToolSettings

from .agents import BLOCKING, DEEDS, TOOLS, Outside, Profile, build, message_of
from .journal import Journal, digest
from .operators import Operator
from .world import encryption_of

# Longer than any process is stopped, but for the lease: that is to be lost at times.
LEASE_TTL = 2.0
_LEDGER = ToolSettings(ttl_seconds=20.0, wait_seconds=10.0)
_LANES = 2
_CANCELS = {True: ("anyio", "asyncio", "task", "abandon"), False: ("interrupt", "abandon")}
_RESUMES_AT_MOST = 8


@dataclass(frozen=True, slots=True)
class Spec:
    """What a worker is told when it is started.

    Attributes:
        seed: Of the epoch: what makes the plan of all workers.
        name: Of the worker and its generation.
        role: `agent`, `operator`, or `recover`, which brings all threads to their end.
        dsn: How to connect.
        schema: The tables.
        directory: Where the journals are.
        threads: All threads.
        is_async: Whether it uses the async API.
        offset: Seconds its clock is ahead.
        die: Points at which it kills itself.
        cancels: How many of its runs are cancelled.
        tenant: The tenant whose rows it works on, where tenants are kept apart.
        is_encrypted: Whether all content is encrypted.
    """

    seed: str
    name: str
    role: str
    dsn: str
    schema: str
    directory: Path
    threads: tuple[str, ...]
    is_async: bool = False
    offset: float = 0.0
    die: Mapping[str, int] = field(default_factory=dict)
    cancels: float = 0.0
    tenant: str | None = None
    is_encrypted: bool = False


def prepare_process(directory: Path, name: str, offset: float) -> None:
    """Write this process's errors to a file of its own, and shift its clock."""
    errors = open(directory / f"{name}.err", "w", buffering=1)  # noqa: SIM115
    os.dup2(errors.fileno(), 2)
    sys.stderr = errors
    faulthandler.register(signal.SIGUSR1, file=errors)
    shift_clock(offset)


def main(spec: Spec) -> None:
    """Work until the file `stop` appears; wait for the file `leave` before the connections are closed."""
    prepare_process(spec.directory, spec.name, spec.offset)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    worker = Worker(spec)
    if spec.is_async:
        asyncio.run(worker.live())
    else:
        run_blocking(worker.live())
    # An interrupt may have left an executor's thread that nobody can end.
    os._exit(0)


def shift_clock(offset: float) -> None:
    """Have this process's clock differ, as far as it is read through the module `time`, as ids of checkpoints are."""
    if offset:
        seconds, nanoseconds = time.time, time.time_ns
        time.time = lambda: seconds() + offset
        time.time_ns = lambda: nanoseconds() + int(offset * 1e9)


class Worker:
    """One process's connections, graphs and share of the plan."""

    def __init__(self, spec: Spec) -> None:
        self.spec = spec
        self.is_async = spec.is_async
        self.draw = random.Random(f"{spec.seed} {spec.name}")
        self.journal = Journal(spec.directory, spec.name, spec.die)
        self.outside = Outside(spec.directory / "outside", self.journal)
        self._states: dict[tuple[str | None, bool], Any] = {}
        self._graphs: dict[Profile, Any] = {}
        self._is_armed = False
        for kind, prefix in ((PGStateSaver, ""), (AsyncPGStateSaver, "a")):
            note_puts(kind, prefix, self.journal, spec.tenant)
        signal.signal(signal.SIGALRM, self._interrupt)

    async def call(self, target: Any, name: str, *args: Any, **options: Any) -> Any:
        """Call a method in the worker's API."""
        method = getattr(target, f"a{name}", None) if self.is_async else None
        answer = (method or getattr(target, name))(*args, **options)
        return await answer if inspect.isawaitable(answer) else answer

    async def live(self) -> None:
        """Connect, work, wait, disconnect."""
        options: dict[str, Any] = {"kwargs": {"autocommit": True, "prepare_threshold": 3}, "timeout": 8, "open": False}
        kind = AsyncConnectionPool if self.is_async else ConnectionPool
        self._encryption = encryption_of(self.spec.is_encrypted)
        self.pool: Any = kind(self.spec.dsn, min_size=2, max_size=8, **options)
        await self.call(self.pool, "open")
        self.journal.note("ready")
        if self.spec.offset:
            self.journal.note("fault", kind="clock")
        role: Callable[[], Coroutine[Any, Any, None]]
        role = {"agent": self._work, "operator": Operator(self).work, "recover": self._recover}[self.spec.role]
        if self.is_async and self.spec.role == "agent":
            await asyncio.gather(*(role() for _ in range(_LANES)))
        else:
            await role()
        self.journal.note("idle")
        while self.spec.role != "recover" and not (self.spec.directory / "leave").exists():
            await self.sleep(0.05)
        for (_, is_recorded), state in self._states.items():
            await self.call(state if is_recorded else state.lease_manager, "close")
        await self.call(self.pool, "close")

    async def sleep(self, seconds: float) -> None:
        """Sleep in the worker's API."""
        if self.is_async:
            await asyncio.sleep(seconds)
        else:
            time.sleep(seconds)

    @property
    def is_over(self) -> bool:
        """Whether no more is to be begun."""
        return (self.spec.directory / "stop").exists() or os.getppid() == 1

    def state(self, guard: str | None, is_recorded: bool = True) -> Any:
        """The `PGState` with a guard, or the saver alone."""
        if (guard, is_recorded) not in self._states:
            # Of workers that wait for a lease and workers that do not, both are there.
            busy = "wait" if len(self.spec.name) % 2 else "raise"
            options: dict[str, Any] = {"guard": guard, "lease_ttl": LEASE_TTL, "on_busy": busy, "wait_timeout": 3.0}
            options["encryption"] = self._encryption
            if is_recorded:
                kind: Any = AsyncPGState if self.is_async else PGState
                options["tools"] = _LEDGER
            else:
                kind = AsyncPGStateSaver if self.is_async else PGStateSaver
            self._states[guard, is_recorded] = kind(
                self.pool, schema=self.spec.schema, tenant=self.spec.tenant, **options
            )
        return self._states[guard, is_recorded]

    def profile(self, thread_id: str) -> Profile:
        """How a thread is run."""
        return Profile.of(self.spec.seed, thread_id)

    def saver(self, profile: Profile) -> Any:
        """The saver of a profile."""
        state = self.state(profile.guard, profile.is_recorded)
        return state.saver if profile.is_recorded else state

    def graph(self, profile: Profile) -> Any:
        """The compiled graph of a profile."""
        if profile not in self._graphs:
            state = self.state(profile.guard, profile.is_recorded)
            ledger = state.tools if profile.is_recorded else None
            builder = build(profile, self.journal, self.outside, ledger, is_async=self.is_async)
            graph = builder.compile(checkpointer=self.saver(profile))
            self._graphs[profile] = state.record(graph) if profile.is_recorded else graph
        return self._graphs[profile]

    # What an agent's worker does

    async def _work(self) -> None:
        jobs = {self._turn: 10, self._go_on: 4, self._fork: 1, self._update: 1, self._look: 2, self._roll_back: 0.5}
        if self.is_async and self.spec.cancels:
            jobs[self._leave] = 8
        while not self.is_over:
            job = self.draw.choices(list(jobs), list(jobs.values()))[0]
            thread_id = self.draw.choice(self.spec.threads)
            await self.attempt(job.__name__.strip("_"), thread_id, job(thread_id))

    async def attempt(self, name: str, thread_id: str, work: Awaitable[Any]) -> None:
        """Do something that a fault may make fail, and note how."""
        try:
            await work
        except Exception as error:
            self.journal.note("failed", job=name, thread=thread_id, **told_of(error))

    def _config(self, thread_id: str) -> dict[str, Any]:
        run_id = str(uuid.UUID(int=self.draw.getrandbits(128)))
        return {"configurable": {"thread_id": thread_id}, "metadata": {"run_id": run_id}}

    def _task(self) -> dict[str, Any]:
        turn = f"{self.spec.name}-{self.draw.getrandbits(32):08x}"
        names = [self.draw.choice(TOOLS) for _ in range(self.draw.randint(1, 3))]
        calls = [
            (name, f"{turn}.{name}" if self.draw.random() < 0.5 else f"{turn}.{n}") for n, name in enumerate(names)
        ]
        # The same order twice in one message is one action, where a key says so.
        calls += calls[:1] * (self.draw.random() < 0.3)
        return {"turn": turn, "do": self.draw.choice(DEEDS), "calls": calls, "width": self.draw.randint(1, 3)}

    async def _turn(self, thread_id: str) -> None:
        task = self._task()
        await self.run(thread_id, message_of(task), self._config(thread_id), turn=task["turn"], do=task["do"])

    async def _go_on(self, thread_id: str) -> bool:
        """Answer what a thread asks, or resume it; false if it waits for nothing."""
        profile, config = self.profile(thread_id), self._config(thread_id)
        state = await self.call(self.graph(profile), "get_state", config)
        if not state.next:
            return False
        given: Any = None
        if state.interrupts:
            answers = {one.id: self._answer_to(thread_id, one.value) for one in state.interrupts}
            self.journal.note("answer", thread=thread_id, answers=answers)
            given = Command(resume=answers)
            if profile.is_recorded and self.draw.random() < 0.5:
                interrupts = self.state(profile.guard).interrupts
                for id, value in answers.items():
                    # Somebody may have answered and died, or may just have been faster.
                    with suppress(AlreadyAnsweredError, NotFoundError):
                        await self.call(interrupts, "answer", thread_id, value, by=self.spec.name, interrupt_id=id)
                given = await self.call(interrupts, "resume", thread_id) or given
        await self.run(thread_id, given, config)
        return True

    def _answer_to(self, thread_id: str, asked: Any) -> str:
        if asked.get("type") == "tool_outcome_unknown":
            return "done" if self.outside.has_happened(thread_id, asked["tool"], asked["key"]) else "retry"
        return f"{self.draw.getrandbits(32):08x}"

    async def _leave(self, thread_id: str) -> None:
        """Cancel a run while one of its tools blocks a thread, and go on at once."""
        if not (self.spec.directory / "storm").exists():
            return
        task = self._task()
        task |= {"do": "tools", "calls": [(self.draw.choice(BLOCKING), f"{task['turn']}.slow")]}
        about = {"turn": task["turn"], "do": task["do"]}
        await self.run(thread_id, message_of(task), self._config(thread_id), "thread", **about)
        await self._go_on(thread_id)

    async def _past(self, thread_id: str) -> Any:
        """One of a thread's last states."""
        graph, config = self.graph(self.profile(thread_id)), self._config(thread_id)
        if self.is_async:
            history = [state async for state in graph.aget_state_history(config, limit=6)]
        else:
            history = list(graph.get_state_history(config, limit=6))
        return self.draw.choice(history) if history else None

    async def _fork(self, thread_id: str) -> None:
        past = await self._past(thread_id)
        if past is not None:
            config = {**self._config(thread_id), "configurable": past.config["configurable"]}
            self.journal.note("fork", thread=thread_id, id=past.config["configurable"]["checkpoint_id"])
            task = self._task()
            given = message_of(task) if self.draw.random() < 0.5 or not past.next else None
            await self.run(thread_id, given, config, **({"turn": task["turn"]} if given else {}))

    async def _update(self, thread_id: str) -> None:
        past = await self._past(thread_id)
        if past is not None:
            self.journal.note("fork", thread=thread_id, id=past.config["configurable"]["checkpoint_id"])
            note = f"update {self.draw.getrandbits(32):08x}"
            config = await self.call(
                self.graph(self.profile(thread_id)), "update_state", past.config, {"notes": [note]}, "finish"
            )
            self.journal.note("updated", thread=thread_id, id=config["configurable"]["checkpoint_id"], note=note)

    async def _look(self, thread_id: str) -> None:
        past = await self._past(thread_id)
        if past is not None and past.config["configurable"].get("checkpoint_id"):
            config = past.config
            state = await self.call(self.graph(self.profile(thread_id)), "get_state", config)
            if state.metadata is not None:
                self.note_state(thread_id, config, state.values, "looked")
                self.note_state(thread_id, config, past.values, "history")

    async def _roll_back(self, thread_id: str) -> None:
        profile = self.profile(thread_id)
        # State that others built on a removed run by deltas cannot be rebuilt; a guard refuses what follows it.
        if profile.is_delta or profile.guard is not None:
            return
        config, task = self._config(thread_id), self._task()
        run_id = config["metadata"]["run_id"]
        await self.run(thread_id, message_of(task), config, turn=task["turn"])
        self.journal.note("op", op="rollback", thread=thread_id, id=run_id, run=run_id)
        await self.call(self.saver(profile), "delete_for_runs", [run_id])
        self.journal.note("done", op="rollback", id=run_id)

    def note_state(self, thread_id: str, config: Any, values: Any, how: str) -> None:
        """Note a state as LangGraph returned it."""
        names = config["configurable"]
        if not names.get("checkpoint_ns"):
            self.journal.note("state", thread=thread_id, id=names["checkpoint_id"], digest=digest(values), how=how)

    # One run

    async def run(
        self, thread_id: str, given: Any, config: dict[str, Any], cancel: str | None = None, **more: Any
    ) -> None:
        """Run a graph once, perhaps to be cancelled, and note what the caller is told."""
        profile, run_id = self.profile(thread_id), config["metadata"]["run_id"]
        if cancel is None and self.draw.random() < self.spec.cancels:
            cancel = self.draw.choice(_CANCELS[self.is_async])
        cancel = cancel if (self.spec.directory / "storm").exists() else None
        after = self.draw.choice((0.0005, 0.002, 0.01, 0.03, 0.1))
        durability = self.draw.choice(("async", "async", "async", "sync", "exit"))
        self.journal.note("run", run=run_id, thread=thread_id, cancel=cancel, durability=durability, **more)
        if cancel:
            # Before it: another process may meet what it has left while this one still unwinds.
            self.journal.note("aimed", kind=f"cancel by {cancel}")
        work = self._stream(self.graph(profile), thread_id, given, config, durability, cancel == "abandon")
        told, error = "error", {}
        try:
            told = await self._cancelling(cancel, after, work, more.get("turn"))
        except ToolTimeoutError as raised:
            error = told_of(raised)
        except (asyncio.CancelledError, KeyboardInterrupt, TimeoutError) as raised:
            told = "cancelled"
            error = {} if cancel else told_of(raised)
        except Exception as raised:
            error = told_of(raised)
            if isinstance(raised, ToolOutcomeUnknownError):
                await self.attempt("settle", thread_id, self._settle(profile, raised))
        if cancel and told == "cancelled":
            self.journal.note("fault", kind=f"cancel by {cancel}")
        self.journal.note("end", run=run_id, thread=thread_id, told=told, **error)

    async def _stream(
        self, graph: Any, thread_id: str, given: Any, config: Any, durability: str, is_abandoned: bool
    ) -> str:
        """Run a graph; how it ended."""
        options = {"stream_mode": ["checkpoints", "updates"], "durability": durability}
        told, parts = "success", self.draw.randint(1, 4) if is_abandoned else -1

        def take(mode: str, part: Any) -> bool:
            nonlocal told, parts
            if mode == "updates" and "__interrupt__" in part:
                told = "interrupted"
            if mode == "checkpoints":
                self.note_state(thread_id, part["config"], part["values"], "streamed")
            parts -= 1
            return parts == 0

        if self.is_async:
            async for mode, part in graph.astream(given, config, **options):
                if take(mode, part):
                    return "cancelled"
        else:
            for mode, part in graph.stream(given, config, **options):
                if take(mode, part):
                    return "cancelled"
        return told

    async def _cancelling(
        self, cancel: str | None, after: float, work: Coroutine[Any, Any, str], turn: str | None
    ) -> str:
        """Await the work; cancel it after some seconds if that is so."""
        if cancel == "anyio":
            told = "cancelled"
            with anyio.move_on_after(after):
                told = await work
            return told
        if cancel == "asyncio":
            async with asyncio.timeout(after):
                return await work
        if cancel == "task":
            task = asyncio.create_task(work)
            await asyncio.wait([task], timeout=after)
            task.cancel()
            return await task
        if cancel == "thread":
            task = asyncio.create_task(work)
            while not task.done() and f"{turn}.slow" not in self.outside.blocking:
                await asyncio.sleep(0.002)
            task.cancel()
            return await task
        if cancel == "interrupt":
            with self._alarm(after):
                return await work
        return await work

    @contextmanager
    def _alarm(self, after: float) -> Iterator[None]:
        self._is_armed = True
        signal.setitimer(signal.ITIMER_REAL, after)
        try:
            yield
        finally:
            self._is_armed = False
            signal.setitimer(signal.ITIMER_REAL, 0)

    def _interrupt(self, *_: Any) -> None:
        if self._is_armed:
            self._is_armed = False
            raise KeyboardInterrupt

    async def _settle(self, profile: Profile, error: ToolOutcomeUnknownError) -> None:
        """Say, as a person who has looked, what became of an action."""
        happened = self.outside.has_happened(error.thread_id, error.tool, error.idempotency_key)
        word = "done" if happened else "retry"
        ledger = self.state(profile.guard).tools
        await self.call(ledger, "settle", error.thread_id, error.idempotency_key, word)
        self.journal.note("settled", thread=error.thread_id, tool=error.tool, key=error.idempotency_key, word=word)

    # After all faults

    async def _recover(self) -> None:
        """Bring every thread to its end, as the next workers would."""
        for thread_id in self.spec.threads:
            for _ in range(_RESUMES_AT_MOST):
                try:
                    if not await self._go_on(thread_id):
                        break
                except Exception as error:
                    self.journal.note("failed", job="recover", thread=thread_id, **told_of(error))
                    if not isinstance(error, ToolTimeoutError):
                        break


def told_of(error: BaseException) -> dict[str, Any]:
    """What a line says of an error."""
    more = {name: getattr(error, name) for name in ("tool", "idempotency_key", "sqlstate") if hasattr(error, name)}
    frames = [f"{Path(one.filename).name}:{one.lineno}" for one in traceback.extract_tb(error.__traceback__)[-5:]]
    more |= {"frames": frames, "cause": repr(error.__cause__)[:300]}
    return {"error": type(error).__name__, "of": type(error).__module__, "text": str(error)[:300], **more}


def note_puts(kind: type, prefix: str, journal: Journal, tenant: str | None) -> None:
    """Have a saver's class note each checkpoint and each task's writes of a tenant before and after they are stored."""

    def place(config: Any, id: str) -> dict[str, Any]:
        names = config["configurable"]
        return {"thread": names["thread_id"], "ns": names.get("checkpoint_ns", ""), "id": id}

    def run_of(config: Any) -> str | None:
        return (config.get("metadata") or {}).get("run_id")

    def putting(config: Any, checkpoint: Any, metadata: Any, versions: Any) -> dict[str, Any]:
        line = place(config, checkpoint["id"])
        parent, values = config["configurable"].get("checkpoint_id"), digest(checkpoint["channel_values"])
        journal.note("try", **line, parent=parent, digest=values, run=run_of(config), step=metadata["step"])
        journal.point("before a put")
        return line

    def writing(config: Any, writes: Any, task_id: str, task_path: str = "") -> dict[str, Any]:
        line = {**place(config, config["configurable"]["checkpoint_id"]), "task": task_id}
        digests = [(channel, digest(value)) for channel, value in writes]
        journal.note("write", **line, run=run_of(config), writes=digests)
        journal.point("before writes")
        return {**line, "channels": [channel for channel, _ in writes]}

    def has_put(line: dict[str, Any]) -> None:
        journal.note("ack", **line)
        journal.point("after a put")

    def has_written(line: dict[str, Any]) -> None:
        journal.note("written", **line)
        journal.point("after writes")

    for name, before, after in (("put", putting, has_put), ("put_writes", writing, has_written)):
        setattr(kind, prefix + name, _between(getattr(kind, prefix + name), before, after, tenant))


def _between(method: Any, before: Callable[..., Any], after: Callable[[Any], None], tenant: str | None) -> Any:
    """The method, with something done before it and, when it has answered, after it, if it is of the tenant."""

    # LangGraph looks at the names of its parameters.
    @functools.wraps(method)
    def blocking(self: Any, *args: Any, **named: Any) -> Any:
        if self._database.tenant != tenant:
            return method(self, *args, **named)
        line = before(*args, **named)
        answer = method(self, *args, **named)
        after(line)
        return answer

    @functools.wraps(method)
    async def suspending(self: Any, *args: Any, **named: Any) -> Any:
        if self._database.tenant != tenant:
            return await method(self, *args, **named)
        line = before(*args, **named)
        answer = await method(self, *args, **named)
        after(line)
        return answer

    return suspending if inspect.iscoroutinefunction(method) else blocking
