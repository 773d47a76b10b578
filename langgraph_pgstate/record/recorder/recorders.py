"""The blocking and async recorders, which write in a background thread or in a task of the event loop."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Collection
from concurrent.futures import CancelledError
from contextlib import AbstractContextManager, suppress
from contextvars import Context
from functools import partial
from typing import Any, TypeVar
from uuid import UUID

from langgraph_pgstate.db.adapters import run_blocking
from langgraph_pgstate.db.connecting import bounded_dsn
from langgraph_pgstate.db.database import AsyncDatabase, Database
from langgraph_pgstate.db.finishing import pause
from langgraph_pgstate.db.runners import AsyncRunner, BlockingRunner
from langgraph_pgstate.errors import PGStateError, UnavailableError
from langgraph_pgstate.heavy import in_thread, in_thread_or_here, start_thread
from langgraph_pgstate.langgraph_compat import close_waiting_callbacks, is_callback_awaited
from langgraph_pgstate.options import RetryPolicy, ThreadKeys
from langgraph_pgstate.record.budgets import Owner, Spending, read_spending
from langgraph_pgstate.record.options import RecorderSettings
from langgraph_pgstate.record.recorder.awaiting import NOTHING, Awaited, Later, Mark
from langgraph_pgstate.record.recorder.budgets import READ_SECONDS, BudgetGuard, Budgets
from langgraph_pgstate.record.recorder.handler import RecordingHandler, attach
from langgraph_pgstate.record.recorder.records import RunRecord
from langgraph_pgstate.record.recorder.tracker import Tracker
from langgraph_pgstate.record.recorder.write_queue import WriteQueue
from langgraph_pgstate.record.recorder.writer import Writer
from langgraph_pgstate.schema.queries import queries
from langgraph_pgstate.schema.tenancy import open_database

_log = logging.getLogger("langgraph_pgstate.record")
G = TypeVar("G", bound=Any)


class _RecorderBase(RecordingHandler):
    """The base of both recorders: the queue, the writer, and the callbacks with which a run may end."""

    def __init__(
        self,
        database: Database | AsyncDatabase,
        settings: RecorderSettings,
        keys: ThreadKeys | None,
        is_encrypted: bool,
    ) -> None:
        self._owner = database
        self._is_borrowed = database.is_borrowed
        self.settings = settings
        self._queue = WriteQueue(settings, has_writer=not self._is_borrowed)
        self._tracker = Tracker(self._queue, keys, is_encrypted)
        runner = BlockingRunner(database) if isinstance(database, Database) else AsyncRunner(database)
        self._writer = Writer(runner, queries(database.schema), self._queue)
        self._budgets = Budgets(runner, queries(database.schema))
        self._guard = BudgetGuard(self._check_budget)
        self._is_idle = False
        self._is_closed = False
        # These attributes replace methods, so that LangChain awaits the callbacks; see `Awaited`.
        self.on_chain_end = Awaited(self._on_chain_end)  # type: ignore[method-assign]
        self.on_chain_error = Awaited(self._on_chain_error)  # type: ignore[method-assign]

    def own_runs(self) -> list[tuple[str, str]]:
        """Return thread and run id of the runs in progress."""
        return self._queue.own_runs()

    def record(self, graph: G) -> G:
        """Return the graph with this recorder attached. Does not wait.

        Raises:
            ConfigurationError: If the graph is remote or cannot take callbacks.
        """
        # Put the guard first. Otherwise a refused call would have a span.
        return attach(graph, self._guard, self)

    def _check_budget(self, span_id: UUID | None, id: UUID, model: str) -> Awaitable[None]:
        """Refuse a model call if a budget of its run is used up.

        Raises:
            BudgetExceededError: If a budget is used up. On an event loop, it may be raised only by awaiting the result.
        """
        span = None if span_id is None else self._tracker.find(span_id)
        if span is None:
            return NOTHING
        admit = partial(self._admit, span.run, id, model)
        if self._budgets.is_known(span.run):
            admit()
            return NOTHING
        return self._read_budgets(span.run, admit)

    def _admit(self, run: RunRecord, id: UUID, model: str) -> None:
        error = self._budgets.admit(run, id, model)
        if error is not None:
            self._tracker.refused(run, error)
            close_waiting_callbacks()
            raise error

    def _read_budgets(self, run: RunRecord, admit: Callable[[], None]) -> Awaitable[None]:
        """Read the spending, then admit the call or refuse it."""
        raise NotImplementedError

    def _on_chain_end(self, outputs: Any, *, run_id: UUID, **kwargs: Any) -> Awaitable[None]:
        return self._wait_for(self._tracker.end(run_id, outputs))

    def _on_chain_error(self, error: BaseException, *, run_id: UUID, **kwargs: Any) -> Awaitable[None]:
        return self._wait_for(self._tracker.end(run_id, error=error))

    def _wait_for(self, run: RunRecord | None) -> Awaitable[None]:
        """Return what the callback at the end of a chain awaits. `run` is given if a run has ended."""
        raise NotImplementedError


class Recorder(_RecorderBase):
    """A LangGraph callback handler that records runs and writes them in a background thread.

    A span's row is written within a second of its start. The end of a run is committed to the journal before the run
    returns. `flush`, `catch_up` and `close` move everything into the tables. If the recorder is also the saver's hook,
    records of a superstep are committed with the checkpoint. If the database is unavailable, graphs continue, and rows
    are written later.

    Args:
        database: The database. On a single connection of the caller's, nothing runs in the background: the rows of a
            run are written when the run ends.
        settings: What is written, and when; by default `RecorderSettings()`.
        keys: Config keys that name a thread's user, tenant and agent; use the saver's.
        is_encrypted: Whether the state's serializer may encrypt. If so, no content of the spans is exported.

    Example:
        >>> recorder = Recorder(database)
        >>> graph = recorder.record(builder.compile(checkpointer=saver))
    """

    def __init__(
        self,
        database: Database,
        settings: RecorderSettings | None = None,
        *,
        keys: ThreadKeys | None = None,
        is_encrypted: bool = False,
    ) -> None:
        super().__init__(database, settings or RecorderSettings(), keys, is_encrypted)
        self._turn = threading.Condition()
        self._thread: threading.Thread | None = None
        self._asked = 0
        self._done = 0
        self._error: PGStateError | None = None
        self.on_chain_start = Awaited(self._on_chain_start)  # type: ignore[assignment, method-assign]

    def learn_clock(self) -> None:
        """Read the database's clock, which dates the runs. One round trip.

        Without this call, the process's clock dates the first run, which may then seem to begin before an earlier
        attempt.

        Raises:
            PGStateError: If the database does not respond.
        """
        run_blocking(self._writer.learn_clock())

    def flush(self, seconds: float | None = None) -> None:
        """Write all queued rows and wait until they are written.

        Args:
            seconds: Maximum seconds to wait; by default the timeout of the settings.

        Raises:
            PGStateError: If the rows could not be written. They stay queued and are tried again.
        """
        if not self._queue.is_busy:
            return
        if self._write(self.settings.timeout if seconds is None else seconds):
            error, self._error = self._error, None
            if error is None:
                return
            raise error
        reason = "the recorder is closed" if self._is_closed else "the database is slow"
        raise PGStateError(f"{self._queue.waiting} spans and events are not written yet; {reason}")

    def catch_up(self) -> None:
        """Write queued rows, and rows that dead processes left in the journal, so that a reader sees them.

        The journal is read at most once a second. Errors are not raised, and the rows are tried again.
        """
        if time.monotonic() >= self._writer.recovers_at:
            run_blocking(self._writer.recover_again())
        if self._queue.has_news:
            with suppress(PGStateError):
                self.flush()

    def recover(self, seconds: float = 0.0) -> int:
        """Move journal entries that are at least `seconds` old into the tables, and return their number.

        Safe to repeat, and safe while another process moves the same entries.
        """
        return run_blocking(self._writer.recover(seconds))

    def close(self) -> None:
        """Write all queued rows and stop the thread. Rows that could not be written are lost; their number is logged.

        Raises:
            PGStateError: If some rows could not be written.
        """
        try:
            if not self._is_closed and not self._owner.is_forked:
                self.flush()
        except PGStateError:
            _log.warning("%d spans and events were not written", self._queue.waiting)
            raise
        finally:
            with self._turn:
                self._is_closed = True
                self._turn.notify_all()
            if self._thread is not None and self._thread.is_alive():
                self._thread.join(self.settings.timeout)

    def _read_budgets(self, run: RunRecord, admit: Callable[[], None]) -> Awaitable[None]:
        def read() -> None:
            run_blocking(self._budgets.read(run))
            admit()

        if _in_loop() is not None and not self._is_borrowed and is_callback_awaited():
            return Later(lambda: in_thread(read))
        read()
        return NOTHING

    def _on_chain_start(self, *args: Any, run_id: UUID, **kwargs: Any) -> Awaitable[None]:
        RecordingHandler.on_chain_start(self, *args, run_id=run_id, **kwargs)
        span = self._tracker.find(run_id) if _in_loop() is not None else None
        return NOTHING if span is None or span.parent is not None else Mark(span.run)

    def _wait_for(self, run: RunRecord | None) -> Awaitable[None]:
        """Write the end of a run. On an event loop, do so in another thread and return an awaitable for it."""
        if run is None:
            self._ended(None)
        elif run.is_awaited and not self._is_borrowed:
            return Later(lambda: in_thread_or_here(self._write_end, run))
        else:
            self._write_end(run)
        return NOTHING

    def _ended(self, run: RunRecord | None) -> None:
        if run is not None:
            if self._is_borrowed or _in_loop():
                # Do not wait, because the event loop must not block. The background thread writes the rows soon.
                self._write(0)
            else:
                self._write_end(run)
        elif self._queue.waiting >= self.settings.queue_size and not _in_loop():
            self._write(self.settings.timeout)

    def _write_end(self, run: RunRecord) -> None:
        """Commit the remaining rows of a run. On an error or timeout the background thread writes them later."""
        try:
            if self._is_borrowed or not run_blocking(self._writer.write_end(run)):
                self._write(self.settings.timeout)
        finally:
            self._started()

    def _started(self) -> None:
        # If no thread can be started, the next callback tries again.
        with suppress(UnavailableError):
            self._start()

    def _start(self) -> None:
        """Start or wake the thread.

        Raises:
            UnavailableError: If no thread can be started.
        """
        if self._is_borrowed:
            # Start no background thread, because it must not use the caller's connection.
            return
        if self._thread is None or not self._thread.is_alive():
            with self._turn:
                if (self._thread is None or not self._thread.is_alive()) and not self._is_closed:
                    self._thread = start_thread(self._work, "pgstate-recorder")
        elif self._is_idle:
            # Wake an idle thread. A busy thread checks the queue after its interval.
            with self._turn:
                self._turn.notify_all()

    def _write(self, timeout: float) -> bool:
        """Make the thread write all queued rows, and return whether it finished in time."""
        if self._is_borrowed:
            self._error = run_blocking(self._writer.write(True))
            return True
        try:
            self._start()
        except UnavailableError:
            # No thread can be started: the process has too many or, from Python 3.12 on, is about to exit.
            if timeout <= 0:
                return False
            with self._turn:
                self._error = run_blocking(self._writer.write(True))
            return True
        with self._turn:
            self._asked += 1
            mine = self._asked
            self._turn.notify_all()
            if timeout > 0:
                self._turn.wait_for(lambda: self._done >= mine or self._is_closed, timeout)
            return self._done >= mine

    def _work(self) -> None:
        while not self._is_closed:
            with self._turn:
                if self._asked == self._done and not self._wait():
                    continue
                asked = self._asked
                include_recent = asked > self._done
                if not include_recent and (self._is_closed or not self._queue.is_busy):
                    continue
            self._error = run_blocking(self._writer.write(include_recent)) or (None if include_recent else self._error)
            with self._turn:
                self._done = asked
                self._turn.notify_all()

    def _wait(self) -> bool:
        """Wait for the write interval, and return true. If the queue is idle, wait for work, and return false.

        A flush ends either wait.
        """
        # Set the flag before the check. Otherwise work that arrives after the check would not wake this thread.
        self._is_idle = True
        if not self._queue.is_busy:
            if not self._is_closed:
                self._turn.wait()
            self._is_idle = False
            return False
        self._is_idle = False
        if not self._is_closed:
            self._turn.wait(self.settings.interval)
        return True


class AsyncRecorder(_RecorderBase):
    """Async twin of `Recorder`. A task on the event loop of the first run writes the rows."""

    def __init__(
        self,
        database: AsyncDatabase,
        settings: RecorderSettings | None = None,
        *,
        keys: ThreadKeys | None = None,
        is_encrypted: bool = False,
    ) -> None:
        super().__init__(database, settings or RecorderSettings(), keys, is_encrypted)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()
        self._writing = asyncio.Lock()
        self._is_urgent = False

    @property
    def _is_loop_running(self) -> bool:
        # In a forked child, nothing runs the copy of the loop.
        return self._loop is not None and self._loop.is_running() and not self._owner.is_forked

    def write_at_exit(self) -> None:
        """Write all queued rows on a new connection. Call it after the event loop has ended.

        Raises:
            PGStateError: If the rows could not be written.
        """
        if not self._queue.has_news or self._is_borrowed:
            return
        with self._open_apart(self.settings.timeout) as database:
            writer = Writer(BlockingRunner(database), queries(self._owner.schema), self._queue)
            if (error := run_blocking(writer.write(True))) is not None:
                raise error

    async def learn_clock(self) -> None:
        """Async twin of `Recorder.learn_clock`."""
        # Blocking runs in other threads write their rows on this loop, too.
        self._loop = self._loop or asyncio.get_running_loop()
        await self._writer.learn_clock()

    async def flush(self, seconds: float | None = None) -> None:
        """Async twin of `Recorder.flush`."""
        if not self._queue.is_busy:
            return
        try:
            async with asyncio.timeout(self.settings.timeout if seconds is None else seconds):
                error = await self._write_now(True)
        except TimeoutError:
            error = PGStateError(f"{self._queue.waiting} spans and events are not written yet; the database is slow")
        if error is not None:
            raise error

    async def catch_up(self) -> None:
        """Async twin of `Recorder.catch_up`."""
        if time.monotonic() >= self._writer.recovers_at:
            await self._writer.recover_again()
        if self._queue.has_news:
            with suppress(PGStateError):
                await self.flush()

    async def recover(self, seconds: float = 0.0) -> int:
        """Async twin of `Recorder.recover`."""
        return await self._writer.recover(seconds)

    async def close(self) -> None:
        """Async twin of `Recorder.close`."""
        try:
            if not self._is_closed:
                await self.flush()
        except PGStateError:
            _log.warning("%d spans and events were not written", self._queue.waiting)
            raise
        finally:
            self._is_closed = True
            self._wake.set()
            if self._task is not None:
                with suppress(asyncio.CancelledError):
                    self._task.cancel()
                    await self._task

    def _wait_for(self, run: RunRecord | None) -> Awaitable[None]:
        """Return what the callback at the end of a chain awaits.

        At the end of a run, the run's rows are written first. If the queue is full, all queued rows are written first.
        A blocking run in another thread waits in this method.
        """
        if run is None and self._queue.waiting < self.settings.queue_size:
            return NOTHING
        here = _in_loop()
        if here is not None and here is self._loop:
            return Later(self._flush_patiently) if run is None else Later(lambda: self._write_end(run))
        if run is None or not self._is_loop_running:
            self._ended(run)
            return NOTHING
        # The caller is a blocking run in another thread, or a run on another loop.
        assert self._loop is not None
        writing = asyncio.run_coroutine_threadsafe(self._write_end(run), self._loop)
        if here is not None:
            return Later(lambda: asyncio.shield(asyncio.wrap_future(writing)))
        with suppress(TimeoutError):
            writing.result(self.settings.timeout)
        return NOTHING

    def _read_budgets(self, run: RunRecord, admit: Callable[[], None]) -> Awaitable[None]:
        async def read() -> None:
            await self._budgets.read(run)
            admit()

        here = _in_loop()
        is_own = here is not None and (self._loop is None or here is self._loop)
        is_awaited = here is not None and is_callback_awaited()
        if is_own and is_awaited:
            return Later(read)
        if is_own or not self._is_loop_running:
            # The event loop of the recorder's connections does not run, or waits for this call.
            if not self._is_borrowed:
                run_blocking(self._budgets.read(run, self._read_spending_apart))
            admit()
            return NOTHING
        # The caller is a blocking run in another thread, or a run on another loop.
        assert self._loop is not None
        reading = asyncio.run_coroutine_threadsafe(read(), self._loop)
        if is_awaited:
            return Later(lambda: asyncio.shield(asyncio.wrap_future(reading)))
        try:
            reading.result(self.settings.timeout)
        except (CancelledError, TimeoutError):
            # The recorder's event loop has ended meanwhile. The last known costs decide.
            admit()
        return NOTHING

    async def _read_spending_apart(self, owners: Collection[Owner], counted: Callable[[], Collection[str]]) -> Spending:
        """Read the spending on a new blocking connection. Never suspends."""
        with self._open_apart(READ_SECONDS) as database:
            return database.run(read_spending, queries(self._owner.schema), owners, counted)

    def _open_apart(self, seconds: float) -> AbstractContextManager[Database]:
        """Open a blocking connection, for calls that cannot use the event loop."""
        owner, dsn = self._owner, bounded_dsn(self._owner.dsn, seconds)
        return open_database(dsn, queries(owner.schema), owner.tenant, owner.keys, pool=False, retry=RetryPolicy(1))

    async def _flush_patiently(self) -> None:
        # The error is logged. The graph must not fail.
        with suppress(PGStateError):
            await self.flush()

    async def _write_end(self, run: RunRecord) -> None:
        """Async twin of `Recorder._write_end`."""
        if self._is_borrowed:
            await self._write_now(True)
            return
        try:
            if not await self._writer.write_end(run):
                await self._flush_patiently()
        except asyncio.CancelledError:
            # Only the run is cancelled. The background task writes the rows at once.
            self._is_urgent = True
            self._notify()
            raise
        finally:
            self._started()

    def _ended(self, run: RunRecord | None) -> None:
        if run is not None:
            self._notify()

    def _started(self) -> None:
        if self._is_borrowed:
            return
        loop = _in_loop()
        if (self._task is None or self._task.done()) and loop is not None and not self._is_closed:
            self._loop = loop
            self._task = loop.create_task(self._work(), name="pgstate-recorder", context=Context())
        elif self._is_idle:
            # Wake an idle task. A busy task checks the queue after its interval.
            self._notify()

    def _notify(self) -> None:
        if self._loop is None:
            return
        if _in_loop() is self._loop:
            self._wake.set()
        else:
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._wake.set)

    async def _work(self) -> None:
        while not self._is_closed:
            # The flag is set before the check, as in `Recorder._wait`.
            self._is_idle = True
            if not self._queue.is_busy:
                await pause(self._wake)
                self._is_idle = False
                self._wake.clear()
                continue
            self._is_idle = False
            self._wake.clear()
            await pause(self._wake, self.settings.interval)
            if not self._is_closed:
                is_urgent, self._is_urgent = self._is_urgent, False
                await self._write_now(is_urgent)

    async def _write_now(self, include_recent: bool) -> PGStateError | None:
        async with self._writing:
            return await self._writer.write(include_recent)


def _in_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
