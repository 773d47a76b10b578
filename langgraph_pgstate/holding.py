"""Which leases this process holds, and for which of its runs.

Whether a write is let through is decided in the database, by the number of a lease. What is known here only decides
when a lease is taken, renewed and given back: a mistake costs time, never data.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import queue
import threading
import time
import weakref
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Final

from langgraph_pgstate.db.database import AsyncDatabase, Database
from langgraph_pgstate.errors import (
    ConfigurationError,
    LeaseHeldError,
    LeaseLostError,
    PGStateError,
)
from langgraph_pgstate.holders import holder_id, is_known_dead
from langgraph_pgstate.operations import leases
from langgraph_pgstate.operations.addresses import configurable_of
from langgraph_pgstate.origins import RUNTIME, Origin, run_of
from langgraph_pgstate.settings import GuardSettings
from langgraph_pgstate.sql import Queries
from langgraph_pgstate.types import Lease

log = logging.getLogger("langgraph_pgstate.leases")

_FIRST_DELAY, _LONGEST_DELAY = 0.02, 0.5
# How long a run that its own task may have left is waited for: an event loop closes an abandoned generator a bit later.
_CLOSING: Final = 1.0

# Of all savers of this process: two must never take a lease under one name.
_numbers = itertools.count(1)
# What `hold` has taken around the code that runs now, by keeper and thread.
_surrounding: ContextVar[Mapping[tuple[int, str], Held]] = ContextVar("langgraph_pgstate_leases", default={})  # noqa: B039


@dataclass(slots=True, eq=False)
class Held:
    """A lease that this process has taken.

    Attributes:
        lease: As it was when it was taken.
        is_read_first: Whether it was taken before the state was read that is written with it.
        run: The run that has taken it; none where a block of code has.
        starter: The task or thread in which that run started. It may be done while its stream is read in another.
        loop: The run's loop, where it is known.
        renewed_at: When it was renewed last, by this process's own clock.
        is_lost: Whether it is known to have been taken over.
        is_deleted: Whether its own holder has deleted the thread, and the lease with it.
    """

    lease: Lease
    is_read_first: bool
    run: _Run | None = None
    starter: asyncio.Task[Any] | threading.Thread | None = None
    loop: weakref.ref[Any] | None = None
    renewed_at: float = field(default_factory=time.monotonic)
    is_lost: bool = False
    is_deleted: bool = False

    def is_over(self, asker: object = None) -> bool:
        """Whether the run that has taken it has ended, as far as its objects tell. A suspended stream has not.

        Args:
            asker: The task or thread that wants to start another.
        """
        if self.run is None:
            return False
        if self.run.is_gone:
            return True
        if self.loop is None:
            return _is_done(self.starter)
        loop = self.loop()
        if loop is None:
            return True
        # LangGraph sets it when a loop is entered; one that failed before that is never left either. Nobody gets out of
        # an entry by suspending it: who is done, or starts another, has failed there.
        is_entered = not hasattr(type(loop), "updated_channels") or "updated_channels" in vars(loop)
        return not is_entered and self.may_be_left(asker)

    def may_be_left(self, asker: object) -> bool:
        """Whether the task or thread that started it is done, or is the one that asks."""
        return self.starter is asker or _is_done(self.starter)

    def check(self) -> Held:
        """The lease, unless it is known to be lost.

        Raises:
            LeaseLostError: If it is.
        """
        if self.is_lost:
            raise LeaseLostError(self.lease.thread_id, self.lease.fencing_token)
        return self

    def is_renewal_due(self, ttl: float) -> bool:
        """Whether a third of its time has gone since it was renewed; if so, the caller renews it."""
        now = time.monotonic()
        if now - self.renewed_at < ttl / 3:
            return False
        self.renewed_at = now
        return True


@dataclass(slots=True, eq=False)
class _Run:
    """A run of this process.

    Attributes:
        key: What tells it from others; kept, so that no other gets its identity.
        holder_id: Under which it takes leases.
        sign: Something that goes when the run goes, if there is such a thing.
        leases: What it has taken, by thread; lost ones stay, so that it does not take them again.
    """

    key: Any
    holder_id: str
    sign: weakref.ref[Any] | None
    leases: dict[str, Held] = field(default_factory=dict)

    @property
    def is_gone(self) -> bool:
        return self.sign is not None and self.sign() is None

    @property
    def is_over(self) -> bool:
        if self.sign is None:
            return bool(self.leases) and all(held.is_over() for held in self.leases.values())
        return self.is_gone


def _is_done(starter: asyncio.Task[Any] | threading.Thread | None) -> bool:
    if isinstance(starter, threading.Thread):
        return not starter.is_alive()
    return starter is None or starter.done()


class _Book:
    """The leases of one saver by run. No I/O."""

    def __init__(self, settings: GuardSettings) -> None:
        self._settings = settings
        self._runs: dict[int, _Run] = {}
        self._held: set[Held] = set()
        self._book = threading.RLock()

    def _next_holder(self) -> str:
        return f"{holder_id()}:{next(_numbers)}"

    def _run(self, config: Mapping[str, Any]) -> _Run | None:
        key = run_of(config)
        if key is None:
            return None
        with self._book:
            run = self._runs.get(id(key))
            # Its caller may give the object that tells a run from others to a later one, too.
            if run is None or run.is_gone:
                writer = getattr(configurable_of(config)[RUNTIME], "stream_writer", None)
                try:
                    sign = None if writer is None else weakref.ref(writer, self._note_end)
                except TypeError:
                    sign = None
                run = self._runs[id(key)] = _Run(key, self._next_holder(), sign)
            return run

    def _find(self, thread_id: str, run: _Run | None) -> Held | None:
        """The lease under which a run, or the code around, may write to a thread."""
        if run is not None and (held := run.leases.get(thread_id)) is not None:
            return held.check()
        around = _surrounding.get().get((id(self), thread_id))
        if around is None:
            return None
        if run is not None:
            run.leases[thread_id] = around
        return around.check()

    def _others(self, thread_id: str, run: _Run | None) -> list[Held]:
        with self._book:
            held = [*self._held]
        return [one for one in held if one.lease.thread_id == thread_id and one.run not in (None, run)]

    def _free_tokens(self, thread_id: str, run: _Run | None, origin: Origin) -> list[int]:
        """Leases of this process that may be taken over at once: their runs are over."""
        others = self._others(thread_id, run)
        return [other.lease.fencing_token for other in others if other.is_over(origin.starter)]

    def _explain(self, error: LeaseHeldError, run: _Run | None, origin: Origin, since: float) -> LeaseHeldError | None:
        """What the caller is told who cannot have a lease; `None` if the run that has it may just be closing."""
        for other in self._others(error.thread_id, run):
            if other.lease.fencing_token == error.fencing_token:
                is_task = isinstance(other.starter, asyncio.Task)
                if is_task and other.may_be_left(origin.starter) and time.monotonic() < since + _CLOSING:
                    return None
                return error.of_own_run(other.starter is origin.starter)
        return error

    def _note_taken(self, lease: Lease, run: _Run | None, is_read_first: bool, origin: Origin) -> Held:
        with self._book:
            if run is None:
                held = Held(lease, is_read_first)
            else:
                loop = None if origin.loop is None else weakref.ref(origin.loop)
                new = Held(lease, is_read_first, run, origin.starter, loop)
                # Two of its tasks may have asked at once, and were given the same lease.
                held = run.leases.setdefault(lease.thread_id, new)
            self._held.add(held)
        return held

    def note_deleted(self, thread_id: str) -> None:
        """A thread was deleted by the code that runs now. Where it holds the lease, it has not lost it."""
        held = _surrounding.get().get((id(self), thread_id))
        if held is not None and not held.is_lost:
            held.is_deleted = True
            self._note_gone(held)

    def _note_gone(self, held: Held) -> None:
        with self._book:
            self._held.discard(held)
            # A lost one stays known, so that its run does not take it again.
            if held.run is not None and not held.is_lost and held.run.leases.get(held.lease.thread_id) is held:
                del held.run.leases[held.lease.thread_id]

    def _note_end(self, _: Any) -> None:
        """A run has ended. Called wherever the garbage collector happens to be: it may wait for nothing."""

    def _survey(self) -> tuple[list[Held], list[Held]]:
        """The leases to be renewed, and those to be given back because their runs are over."""
        with self._book:
            self._runs = {key: run for key, run in self._runs.items() if not run.is_over}
            self._held = {held for held in self._held if not held.is_lost}
            over = [held for held in self._held if held.is_over()]
            return list(self._held.difference(over)), over

    def _note_renewed(self, asked: list[Held], still: set[tuple[str, int]]) -> None:
        for held in asked:
            if (held.lease.thread_id, held.lease.fencing_token) in still:
                held.renewed_at = time.monotonic()
            else:
                log.warning(
                    "lease %d of thread %r was lost: it was taken over, or its thread deleted",
                    held.lease.fencing_token,
                    held.lease.thread_id,
                )
                held.is_lost = True

    def _patience(self, on_busy: str | None, wait_timeout: float | None) -> float:
        """Until when to wait for a lease, by `time.monotonic`."""
        settings = self._settings
        if on_busy not in (None, "raise", "wait"):
            raise ConfigurationError(f'on_busy is "raise" or "wait", not {on_busy!r}')
        if (on_busy or settings.on_busy) == "raise":
            return 0.0
        return time.monotonic() + (settings.wait_timeout if wait_timeout is None else wait_timeout)

    @contextmanager
    def _around(self, held: Held) -> Iterator[None]:
        token = _surrounding.set({**_surrounding.get(), (id(self), held.lease.thread_id): held})
        try:
            yield
        finally:
            _surrounding.reset(token)


def _next_delay(delay: float, deadline: float, since: float) -> float:
    now = time.monotonic()
    return max(0.0, min(delay, (deadline if now < deadline else since + _CLOSING) - now))


class LeaseKeeper(_Book):
    """Takes leases for blocking runs, renews them in a thread of its own, and gives them back.

    Args:
        database: Where the tables are. Not a connection inside somebody's transaction: leases are renewed beside it.
        queries: The queries of their schema.
        settings: How long a lease lasts, and how long to wait for one.
    """

    def __init__(self, database: Database, queries: Queries, settings: GuardSettings) -> None:
        super().__init__(settings)
        self._database = database
        self._queries = queries
        # Unlike a lock's, its `put` may be called from a garbage collector's callback.
        self._wake: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def begin(self, thread_id: str, config: Mapping[str, Any], origin: Origin | None = None) -> None:
        """A run is about to read a thread: it takes its lease, unless it has it. Anybody else reads freely.

        Raises:
            LeaseHeldError: If somebody else holds it.
            LeaseLostError: If it had it and lost it.
            ThreadDeletedError: If the thread was deleted.
        """
        origin = origin or Origin.here()
        run = self._run(config)
        if run is None or self._find(thread_id, run) is not None:
            return
        held = self._take(thread_id, run, True, self._patience(None, None), origin)
        # LangGraph's own come after this one, so it is the last to be called.
        if isinstance(origin.exits, ExitStack):
            origin.exits.callback(self._end, held)
        elif origin.exits is not None:
            origin.exits.push_async_callback(asyncio.to_thread, self._end, held)

    @contextmanager
    def writing(self, thread_id: str, config: Mapping[str, Any]) -> Iterator[Held]:
        """The lease for a write: the run's, that of the code around, or one for this write alone.

        Raises:
            LeaseHeldError: If somebody else holds it.
            LeaseLostError: If it was lost.
            ThreadDeletedError: If the thread was deleted.
        """
        run = self._run(config)
        held = self._find(thread_id, run)
        is_own = held is None and run is None
        if held is None:
            held = self._take(thread_id, run, False, self._patience(None, None))
        try:
            yield held
        except LeaseLostError:
            held.is_lost = True
            raise
        finally:
            if is_own:
                self._release(held)

    @contextmanager
    def hold(self, thread_id: str, on_busy: str | None = None, wait_timeout: float | None = None) -> Iterator[Held]:
        """Hold a lease for a block of code, and for the runs that it starts.

        Raises:
            LeaseHeldError: If somebody else holds it.
            LeaseLostError: If it was lost in the meantime; at the end of the block.
            ThreadDeletedError: If the thread was deleted.
        """
        deadline = self._patience(on_busy, wait_timeout)
        around = _surrounding.get().get((id(self), thread_id))
        held = around.check() if around is not None else self._take(thread_id, None, True, deadline)
        try:
            with self._around(held):
                yield held
        except BaseException:
            if around is None:
                with suppress(PGStateError):
                    self._release(held)
            raise
        if around is None and not self._release(held) and not held.is_deleted:
            raise LeaseLostError(thread_id, held.lease.fencing_token)

    def close(self) -> None:
        """Give back what is held, and end the thread."""
        with self._book:
            held = list(self._held)
        for one in held:
            with suppress(PGStateError):
                self._release(one)
        thread, self._thread = self._thread, None
        if thread is not None:
            self._wake.put(True)
            thread.join(self._settings.lease_ttl)

    def _take(
        self, thread_id: str, run: _Run | None, is_read_first: bool, deadline: float, origin: Origin | None = None
    ) -> Held:
        origin, since = origin or Origin.here(), time.monotonic()
        holder = run.holder_id if run is not None else self._next_holder()
        dead: list[int] = []
        delay = _FIRST_DELAY
        while True:
            free = [*self._free_tokens(thread_id, run, origin), *dead]
            try:
                lease = self._database.run(
                    leases.take, self._queries, thread_id, holder, self._settings.lease_ttl, free
                )
            except LeaseHeldError as error:
                if error.fencing_token not in dead and is_known_dead(error.holder_id or ""):
                    dead.append(error.fencing_token or 0)
                    continue
                if time.monotonic() >= deadline and (found := self._explain(error, run, origin, since)) is not None:
                    raise found from None
            else:
                held = self._note_taken(lease, run, is_read_first, origin)
                self._start()
                return held
            time.sleep(_next_delay(delay, deadline, since))
            delay = min(delay * 2, _LONGEST_DELAY)

    def _end(self, held: Held) -> None:
        try:
            self._release(held)
        except PGStateError as error:
            log.warning("lease %d is not given back, it expires: %s", held.lease.fencing_token, error)

    def _release(self, held: Held) -> bool:
        lease = held.lease
        try:
            if held.is_lost:
                return False
            return self._database.run(leases.release, self._queries, lease.thread_id, lease.fencing_token)
        finally:
            # Only now: until then others can tell that it is over.
            self._note_gone(held)

    def _start(self) -> None:
        with self._book:
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._work, name="pgstate-leases", daemon=True)
                self._thread.start()

    def _note_end(self, _: Any) -> None:
        self._wake.put(True)

    def _work(self) -> None:
        me = threading.current_thread()
        while self._thread is me:
            with suppress(queue.Empty):
                self._wake.get(timeout=self._settings.lease_ttl / 3)
            try:
                mine, over = self._survey()
                for held in over:
                    self._release(held)
                due = [held for held in mine if held.is_renewal_due(self._settings.lease_ttl)]
                keys = [(held.lease.thread_id, held.lease.fencing_token) for held in due]
                self._note_renewed(due, self._database.run(leases.renew, self._queries, keys, self._settings.lease_ttl))
            except PGStateError as error:
                log.warning("leases could not be renewed, they expire unless it is possible soon: %s", error)
            with self._book:
                if not self._held and self._thread is me:
                    self._thread = None


class AsyncLeaseKeeper(_Book):
    """Asynchronous twin of `LeaseKeeper`: a task of the event loop renews."""

    def __init__(self, database: AsyncDatabase, queries: Queries, settings: GuardSettings) -> None:
        super().__init__(settings)
        self._database = database
        self._queries = queries
        self._loop: asyncio.AbstractEventLoop | None = None
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def begin(self, thread_id: str, config: Mapping[str, Any], origin: Origin | None = None) -> None:
        """Async twin of `LeaseKeeper.begin`."""
        origin = origin or Origin.here()
        run = self._run(config)
        if run is None or self._find(thread_id, run) is not None:
            return
        held = await self._take(thread_id, run, True, self._patience(None, None), origin)
        if isinstance(origin.exits, AsyncExitStack):
            origin.exits.push_async_callback(self._end, held)
        elif origin.exits is not None:
            origin.exits.callback(self._end_from_thread, held, asyncio.get_running_loop())

    @asynccontextmanager
    async def writing(self, thread_id: str, config: Mapping[str, Any]) -> AsyncIterator[Held]:
        """Async twin of `LeaseKeeper.writing`."""
        run = self._run(config)
        held = self._find(thread_id, run)
        is_own = held is None and run is None
        if held is None:
            held = await self._take(thread_id, run, False, self._patience(None, None))
        try:
            yield held
        except LeaseLostError:
            held.is_lost = True
            raise
        finally:
            if is_own:
                await self._release(held)

    @asynccontextmanager
    async def hold(
        self, thread_id: str, on_busy: str | None = None, wait_timeout: float | None = None
    ) -> AsyncIterator[Held]:
        """Async twin of `LeaseKeeper.hold`."""
        deadline = self._patience(on_busy, wait_timeout)
        around = _surrounding.get().get((id(self), thread_id))
        held = around.check() if around is not None else await self._take(thread_id, None, True, deadline)
        try:
            with self._around(held):
                yield held
        except BaseException:
            if around is None:
                with suppress(PGStateError):
                    await self._release(held)
            raise
        if around is None and not await self._release(held) and not held.is_deleted:
            raise LeaseLostError(thread_id, held.lease.fencing_token)

    async def close(self) -> None:
        """Async twin of `LeaseKeeper.close`."""
        with self._book:
            held = list(self._held)
        for one in held:
            with suppress(PGStateError):
                await self._release(one)
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    async def _take(
        self, thread_id: str, run: _Run | None, is_read_first: bool, deadline: float, origin: Origin | None = None
    ) -> Held:
        origin, since = origin or Origin.here(), time.monotonic()
        holder = run.holder_id if run is not None else self._next_holder()
        dead: list[int] = []
        delay = _FIRST_DELAY
        while True:
            free = [*self._free_tokens(thread_id, run, origin), *dead]
            try:
                lease = await self._database.run(
                    leases.take, self._queries, thread_id, holder, self._settings.lease_ttl, free
                )
            except LeaseHeldError as error:
                if error.fencing_token not in dead and is_known_dead(error.holder_id or ""):
                    dead.append(error.fencing_token or 0)
                    continue
                if time.monotonic() >= deadline and (found := self._explain(error, run, origin, since)) is not None:
                    raise found from None
            else:
                held = self._note_taken(lease, run, is_read_first, origin)
                self._start()
                return held
            await asyncio.sleep(_next_delay(delay, deadline, since))
            delay = min(delay * 2, _LONGEST_DELAY)

    async def _end(self, held: Held) -> None:
        try:
            await self._release(held)
        except PGStateError as error:
            log.warning("lease %d is not given back, it expires: %s", held.lease.fencing_token, error)

    def _end_from_thread(self, held: Held, loop: asyncio.AbstractEventLoop) -> None:
        # A blocking run on another thread; its reads and writes wait for the loop in the same way.
        if loop.is_running():
            asyncio.run_coroutine_threadsafe(self._end(held), loop).result()

    async def _release(self, held: Held) -> bool:
        lease = held.lease
        try:
            if held.is_lost:
                return False
            return await self._database.run(leases.release, self._queries, lease.thread_id, lease.fencing_token)
        finally:
            # Only now: until then others can tell that it is over.
            self._note_gone(held)

    def _start(self) -> None:
        if self._task is None or self._task.done():
            self._loop = asyncio.get_running_loop()
            self._task = self._loop.create_task(self._work(), name="pgstate-leases")

    def _note_end(self, _: Any) -> None:
        if self._loop is not None:
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._wake.set)

    async def _work(self) -> None:
        me = asyncio.current_task()
        while self._task is me:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), self._settings.lease_ttl / 3)
            self._wake.clear()
            try:
                mine, over = self._survey()
                for held in over:
                    await self._release(held)
                due = [held for held in mine if held.is_renewal_due(self._settings.lease_ttl)]
                keys = [(held.lease.thread_id, held.lease.fencing_token) for held in due]
                self._note_renewed(
                    due, await self._database.run(leases.renew, self._queries, keys, self._settings.lease_ttl)
                )
            except PGStateError as error:
                log.warning("leases could not be renewed, they expire unless it is possible soon: %s", error)
            if not self._held and self._task is me:
                self._task = None
