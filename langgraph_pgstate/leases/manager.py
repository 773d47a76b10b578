"""Acquisition, renewal and release of leases, for runs and for blocks of code."""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
import time
from collections.abc import AsyncIterator, Coroutine, Iterator, Mapping
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager, suppress
from contextvars import Context
from functools import partial
from types import TracebackType
from typing import Any, Final, TypeVar

from langgraph_pgstate.call_site import CallSite
from langgraph_pgstate.db.adapters import run_blocking
from langgraph_pgstate.db.database import AsyncDatabase, Database
from langgraph_pgstate.db.finishing import complete, pause
from langgraph_pgstate.db.runners import AsyncRunner, BlockingRunner
from langgraph_pgstate.errors import LeaseLostError, PGStateError, UnavailableError
from langgraph_pgstate.heavy import in_thread_or_here, start_thread
from langgraph_pgstate.langgraph_compat import unwind_when_cancelled
from langgraph_pgstate.leases.checking import LeaseCheck, raise_lost
from langgraph_pgstate.leases.registry import HeldLease, Run
from langgraph_pgstate.leases.taking import LeaseTaker
from langgraph_pgstate.options import GuardSettings
from langgraph_pgstate.schema.queries import Queries

T = TypeVar("T")

# Seconds for which `close` waits for pending releases.
_CLOSE_SECONDS: Final = 3.0

_NOT_YET: Final = "lease %d could not be released yet, and expires if no later attempt succeeds: %s"

_log = logging.getLogger("langgraph_pgstate.leases")


class LeaseManager(LeaseTaker):
    """The leases of a saver's blocking runs. A thread renews the leases.

    The database must not be a connection in a caller's transaction, because the thread also uses the database.
    """

    def __init__(self, database: Database, queries: Queries, settings: GuardSettings) -> None:
        super().__init__(BlockingRunner(database), queries, settings)
        # Callbacks of the garbage collector wake the thread. Such callbacks must not take a lock, but may call
        # `SimpleQueue.put`.
        self._wake: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def begin(self, thread_id: str, config: Mapping[str, Any], call_site: CallSite | None = None) -> None:
        """Take the lease for a run that is about to read a thread, unless the run already has the lease.

        Reads outside of runs take no lease.

        Raises:
            LeaseHeldError: If another process or run holds the lease.
            LeaseLostError: If the run had the lease and lost it.
            ThreadDeletedError: If the thread was deleted.
        """
        call_site = call_site or CallSite.here()
        run = self._run(config)
        if run is None:
            return
        held = self._find(thread_id, run)
        if held is not None and not held.has_ended:
            self._follow(held, run, call_site)
            return
        held = self._take(thread_id, run, True, self._deadline(None, None), call_site)
        check = self._follow(held, run, call_site)
        # LangGraph pushes its own callbacks later, so this callback is called last.
        if isinstance(call_site.exits, ExitStack):
            call_site.exits.callback(self._end, held)
        elif call_site.exits is not None:
            call_site.exits.push_async_exit(partial(self._end_apart, held, check))
            unwind_when_cancelled(call_site.exits)

    def release_failed_read(self, call_site: CallSite | None) -> None:
        """Release the lease of a failed read, as soon as the lease is taken. Does not wait for the release."""
        if call_site is not None:
            self._note_failed_read(call_site)
            self._start()
            self._wake.put(True)

    def release_failed_start(self, thread_id: str, config: Mapping[str, Any]) -> None:
        """Release the lease of a run that failed before it began. Does not wait for the release."""
        if (held := self._entering(thread_id, config)) is not None:
            held.end()
            self._wake.put(True)

    @contextmanager
    def writing(self, thread_id: str, config: Mapping[str, Any]) -> Iterator[HeldLease]:
        """Provide the lease for a write: the run's lease, the enclosing block's lease, or a lease for this write alone.

        Raises:
            LeaseHeldError: If another process or run holds the lease.
            LeaseLostError: If the lease was lost.
            ThreadDeletedError: If the thread was deleted.
        """
        run = self._run(config)
        held = self._find(thread_id, run)
        is_own = held is None and run is None
        if held is None:
            held = self._take(thread_id, run, False, self._deadline(None, None))
        elif self._thread is None:
            self._start()
        try:
            yield held
        except LeaseLostError:
            held.lose()
            raise
        finally:
            if is_own:
                self._release(held)

    @contextmanager
    def hold(
        self, thread_id: str, on_busy: str | None = None, wait_timeout: float | None = None
    ) -> Iterator[HeldLease]:
        """Hold a lease for a block of code and the runs that it starts.

        Raises:
            LeaseHeldError: If another process or run holds the lease.
            LeaseLostError: At the end of the block, if the lease was lost meanwhile.
            ThreadDeletedError: If the thread was deleted.
        """
        deadline = self._deadline(on_busy, wait_timeout)
        around = self._around_here(thread_id)
        held = around.check() if around is not None else self._take(thread_id, None, True, deadline)
        try:
            with self._around(held):
                yield held
        except BaseException:
            if around is None and not self._leave_to_threads(held):
                with suppress(PGStateError):
                    self._release(held)
            raise
        is_left = around is not None or self._leave_to_threads(held)
        if held.is_stopped or (not is_left and not self._release(held) and not held.is_deleted):
            raise LeaseLostError(thread_id, held.lease.fencing_token)

    def close(self) -> None:
        """Release all leases and stop the thread. Waits a few seconds at most for a slow server."""
        deadline = time.monotonic() + _CLOSE_SECONDS
        with self._book:
            held = list(self._held)
        # Leases of code that still runs in threads are kept until they expire.
        for one in (one for one in held if not one.work.has_threads):
            if time.monotonic() < deadline:
                with suppress(PGStateError):
                    self._release(one)
        for thread_id, holder in self._list_unconfirmed():
            if time.monotonic() < deadline:
                with suppress(PGStateError):
                    run_blocking(self._release_by_holder(thread_id, holder))
        thread, self._thread = self._thread, None
        if thread is not None:
            self._wake.put(True)
            thread.join(_CLOSE_SECONDS)

    def _take(
        self, thread_id: str, run: Run | None, is_read_first: bool, deadline: float, call_site: CallSite | None = None
    ) -> HeldLease:
        call_site = call_site or CallSite.here()
        return run_blocking(self._take_lease(thread_id, run, is_read_first, deadline, call_site))

    def _end(self, held: HeldLease) -> None:
        try:
            self._release(held)
        except PGStateError as error:
            _log.warning(_NOT_YET, held.lease.fencing_token, error)

    async def _end_apart(
        self,
        held: HeldLease,
        check: LeaseCheck | None,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None or not self._leave_to_threads(held):
            held.end()
            try:
                await in_thread_or_here(self._end, held)
            finally:
                # If the caller is cancelled before the thread begins, the renewing thread releases the lease.
                self._wake.put(True)
        raise_lost(check, error)

    def _release(self, held: HeldLease) -> bool:
        return run_blocking(self._release_surely(held))

    async def _release_surely(self, held: HeldLease) -> bool:
        """Release a lease. If that fails, the renewing thread tries again until the lease expires."""
        try:
            return await self._release_lease(held)
        except BaseException:
            self._start()
            self._wake.put(True)
            raise

    def _start(self) -> None:
        with self._book:
            if self._has_work and (self._thread is None or not self._thread.is_alive()):
                try:
                    self._thread = start_thread(self._work, "pgstate-leases")
                except UnavailableError as error:
                    # The next acquisition or write tries again. Until then, a lease lasts for its time to live.
                    _log.warning("leases are not renewed now: %s", error)

    def _note_end(self, _: Any) -> None:
        # Without leases, no thread takes items from the queue, which would grow.
        if self._has_work:
            self._wake.put(True)

    def _work(self) -> None:
        # `_start` holds the lock until it has stored this thread.
        with self._book:
            me = threading.current_thread()
        while self._thread is me:
            with suppress(queue.Empty):
                self._wake.get(timeout=self._pause)
            run_blocking(self._renew_leases(self._release_surely))
            with self._book:
                if not self._has_work and self._thread is me:
                    self._thread = None


class AsyncLeaseManager(LeaseTaker):
    """Async twin of `LeaseManager`. A task of the event loop renews the leases."""

    def __init__(self, database: AsyncDatabase, queries: Queries, settings: GuardSettings) -> None:
        super().__init__(AsyncRunner(database), queries, settings)
        self._database = database
        self._loop: asyncio.AbstractEventLoop | None = None
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        # Tasks that continue after their caller is cancelled. The event loop has only weak references to its tasks.
        self._tasks: set[asyncio.Task[Any]] = set()

    async def begin(self, thread_id: str, config: Mapping[str, Any], call_site: CallSite | None = None) -> None:
        """Async twin of `LeaseManager.begin`."""
        call_site = call_site or CallSite.here()
        run = self._run(config)
        if run is None:
            return
        held = self._find(thread_id, run)
        if held is not None and not held.has_ended:
            self._follow(held, run, call_site)
            return
        held = await self._take(thread_id, run, True, self._deadline(None, None), call_site)
        check = self._follow(held, run, call_site)
        if isinstance(call_site.exits, AsyncExitStack):
            call_site.exits.push_async_exit(partial(self._exit, held, check))
            unwind_when_cancelled(call_site.exits)
        elif call_site.exits is not None:
            call_site.exits.callback(self._end_from_thread, held, asyncio.get_running_loop())

    def release_failed_read(self, call_site: CallSite | None) -> None:
        """Async twin of `LeaseManager.release_failed_read`. Call it on the event loop."""
        if call_site is not None:
            self._note_failed_read(call_site)
            if call_site.taken is not None and not call_site.taken.is_returned:
                self._give_back(call_site.taken)

    def release_failed_start(self, thread_id: str, config: Mapping[str, Any]) -> None:
        """Async twin of `LeaseManager.release_failed_start`. Call it on the event loop."""
        if (held := self._entering(thread_id, config)) is not None:
            self._give_back(held)

    @asynccontextmanager
    async def writing(self, thread_id: str, config: Mapping[str, Any]) -> AsyncIterator[HeldLease]:
        """Async twin of `LeaseManager.writing`."""
        run = self._run(config)
        held = self._find(thread_id, run)
        is_own = held is None and run is None
        if held is None:
            held = await self._take(thread_id, run, False, self._deadline(None, None))
        try:
            yield held
        except LeaseLostError:
            held.lose()
            raise
        finally:
            if is_own:
                await asyncio.shield(self._give_back(held))

    @asynccontextmanager
    async def hold(
        self, thread_id: str, on_busy: str | None = None, wait_timeout: float | None = None
    ) -> AsyncIterator[HeldLease]:
        """Async twin of `LeaseManager.hold`."""
        deadline = self._deadline(on_busy, wait_timeout)
        around = self._around_here(thread_id)
        held = around.check() if around is not None else await self._take(thread_id, None, True, deadline)
        try:
            with self._around(held):
                yield held
        except BaseException:
            if around is None and not self._leave_to_threads(held):
                with suppress(PGStateError):
                    await asyncio.shield(self._give_back(held))
            raise
        is_left = around is not None or self._leave_to_threads(held)
        if held.is_stopped or (not is_left and not await asyncio.shield(self._give_back(held)) and not held.is_deleted):
            raise LeaseLostError(thread_id, held.lease.fencing_token)

    async def close(self) -> None:
        """Async twin of `LeaseManager.close`. A cancellation does not shorten it."""
        await complete(self._close())

    async def _close(self) -> None:
        deadline = time.monotonic() + _CLOSE_SECONDS
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task], timeout=_CLOSE_SECONDS)
        with self._book:
            held = list(self._held)
        # Leases of code that still runs in threads are kept until they expire.
        for one in (one for one in held if not one.work.has_threads):
            self._give_back(one)
        self._release_unconfirmed()
        while self._tasks and (left := deadline - time.monotonic()) > 0:
            await asyncio.wait([*self._tasks], timeout=left)
        for late in self._tasks:
            late.cancel()

    async def _take(
        self, thread_id: str, run: Run | None, is_read_first: bool, deadline: float, call_site: CallSite | None = None
    ) -> HeldLease:
        """Take a lease. If the caller is cancelled, the sent statement goes on, and the taken lease is released."""
        call_site = call_site or CallSite.here()
        taking = self._keep(self._take_apart(thread_id, run, is_read_first, deadline, call_site))
        try:
            return await asyncio.shield(taking)
        except asyncio.CancelledError:
            self.release_failed_read(call_site)
            if call_site.taken is None and not call_site.is_pending:
                taking.cancel()
            raise

    async def _take_apart(
        self, thread_id: str, run: Run | None, is_read_first: bool, deadline: float, call_site: CallSite
    ) -> HeldLease:
        held = await self._take_lease(thread_id, run, is_read_first, deadline, call_site)
        if held.has_ended:
            self._give_back(held)
        return held

    async def _exit(
        self,
        held: HeldLease,
        check: LeaseCheck | None,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None or not self._leave_to_threads(held):
            await self._end(held)
        raise_lost(check, error)

    async def _end(self, held: HeldLease) -> None:
        try:
            await asyncio.shield(self._give_back(held))
        except PGStateError as error:
            _log.warning(_NOT_YET, held.lease.fencing_token, error)

    def _end_from_thread(self, held: HeldLease, loop: asyncio.AbstractEventLoop) -> None:
        held.end()
        # A blocking run calls this method on another thread, so it may wait for the event loop.
        if loop.is_running() and not self._database.is_forked:
            asyncio.run_coroutine_threadsafe(self._end(held), loop).result()

    def _give_back(self, held: HeldLease) -> asyncio.Task[bool]:
        """Release a lease in its own task. If that fails, the renewing task tries again until the lease expires."""
        held.end()
        held.is_returned = True
        return self._keep(self._release_lease(held))

    def _release_unconfirmed(self) -> None:
        for thread_id, holder in self._list_unconfirmed():
            self._keep(self._release_by_holder(thread_id, holder))

    def _keep(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._drop)
        return task

    def _drop(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        # Retrieve the exception so that asyncio does not log it.
        if not task.cancelled():
            task.exception()

    def _start(self) -> None:
        if self._has_work and (self._task is None or self._task.done()):
            self._loop = asyncio.get_running_loop()
            self._task = self._loop.create_task(self._work(), name="pgstate-leases", context=Context())

    def _note_end(self, _: Any) -> None:
        if self._loop is not None:
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._wake.set)

    async def _work(self) -> None:
        me = asyncio.current_task()
        while self._task is me:
            await pause(self._wake, self._pause)
            self._wake.clear()
            await self._renew_leases(lambda held: asyncio.shield(self._give_back(held)))
            if not self._has_work and self._task is me:
                self._task = None
