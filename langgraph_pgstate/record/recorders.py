"""The blocking and async recorders, which write in a background thread or in a task of the event loop."""

from __future__ import annotations

import asyncio
import functools
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Generator
from contextlib import suppress
from typing import Any, TypeVar
from uuid import UUID

from langgraph.callbacks import GraphCallbackHandler
from langgraph.pregel import Pregel
from langgraph.pregel.remote import RemoteGraph

from langgraph_pgstate.codec.ids import new_entry_id
from langgraph_pgstate.db.database import AsyncDatabase, Database
from langgraph_pgstate.errors import ArgumentTypeError, PGStateError
from langgraph_pgstate.operations.admin import maintenance, orphans
from langgraph_pgstate.operations.leases import guards
from langgraph_pgstate.operations.record import journal, recording
from langgraph_pgstate.process_identity import holder_id, is_known_dead
from langgraph_pgstate.record.handler import RecordingHandler
from langgraph_pgstate.record.records import RunRecord
from langgraph_pgstate.record.tracker import Tracker
from langgraph_pgstate.settings import RecorderSettings, ThreadKeys
from langgraph_pgstate.sql import queries
from langgraph_pgstate.types import MaintenanceReport

log = logging.getLogger("langgraph_pgstate.record")
# Older journal entries belong to processes that died.
_LEFT_SECONDS = 30.0
G = TypeVar("G", bound=Any)


class Recorder(RecordingHandler):
    """A LangGraph callback handler that records runs and writes them in a background thread.

    A span's row is written within a second of its start, and its end in the same batch or a later one. The end of a run
    is committed to the journal before the run returns. `flush`, `catch_up` and `close` move everything into the tables.
    If the recorder is also the saver's hook, records of a superstep are committed in the transaction of its checkpoint.
    If the database is unavailable, graphs continue; rows stay queued and are written later.

    Args:
        database: The database. On a single connection of the caller's, nothing runs in the background: the rows of a
            run are written when the run ends.
        settings: Recorder settings.
        keys: Config keys that name a thread's user, tenant and agent; use the saver's.

    Example:
        >>> recorder = Recorder(database)
        >>> graph = recorder.record(builder.compile(checkpointer=saver))
    """

    def __init__(
        self, database: Database, settings: RecorderSettings | None = None, *, keys: ThreadKeys | None = None
    ) -> None:
        self._database = database
        self._is_borrowed = database.is_borrowed
        self._settings = settings or RecorderSettings()
        self._queries = queries(database.schema)
        self._tracker = Tracker(self._settings, keys, has_writer=not self._is_borrowed)
        self._turn = threading.Condition()
        self._thread: threading.Thread | None = None
        self._asked = 0
        self._done = 0
        self._error: PGStateError | None = None
        self._is_idle = False
        self._recovered_at: float | None = None
        self._is_closed = False
        # These shadow the methods; see `_Awaited`.
        self.on_chain_start = _Awaited(self._on_chain_start)  # type: ignore[assignment, method-assign]
        self.on_chain_end = _Awaited(self._on_chain_end)  # type: ignore[method-assign]
        self.on_chain_error = _Awaited(self._on_chain_error)  # type: ignore[method-assign]

    def record(self, graph: G) -> G:
        """Return the graph with this recorder attached.

        Raises:
            ConfigurationError: If the graph is remote or cannot take callbacks.
        """
        return _bind(graph, self)

    def learn_clock(self) -> None:
        """Read the database's clock, so that the first run is dated by it. One round trip.

        Otherwise a run that continues in a process whose clock is behind would seem older than its first attempt.

        Raises:
            PGStateError: If the database does not respond.
        """
        before = time.time()
        self._tracker.set_offset(self._database.run(recording.tell_time, self._queries), before, time.time())

    def flush(self, patience: float | None = None) -> None:
        """Write all queued rows and wait until they are written.

        Args:
            patience: Maximum seconds to wait; by default that of the settings.

        Raises:
            PGStateError: If the rows could not be written. They stay queued and are tried again.
        """
        if not self._tracker.is_busy:
            return
        if self._write(self._settings.patience if patience is None else patience):
            error, self._error = self._error, None
            if error is None:
                return
            raise error
        raise PGStateError(f"{self._tracker.waiting} spans and events are not written yet; the database is slow")

    def catch_up(self) -> None:
        """Bring the tables up to date for a reader: write queued rows, and recover those of dead processes.

        Recovery runs at most once a second. Errors are logged, and the rows are tried again.
        """
        seconds = self._due_recovery()
        if seconds is not None:
            with suppress(PGStateError):
                self.recover(seconds)
        if self._tracker.has_news:
            with suppress(PGStateError):
                self.flush()

    def recover(self, seconds: float = 0.0) -> int:
        """Move journal entries of other processes that are at least this old into the tables.

        Safe to repeat, and safe while the other process moves the same entries.

        Returns:
            The number of entries.
        """
        return self._database.run(journal.recover, self._queries, seconds, is_known_dead, self._tracker.own_runs())

    def close(self) -> None:
        """Write all queued rows and stop the thread. Rows that could not be written are lost; their number is logged.

        Raises:
            PGStateError: If some rows could not be written.
        """
        try:
            if not self._is_closed:
                self.flush()
        except PGStateError:
            log.warning("%d spans and events were not written", self._tracker.waiting)
            raise
        finally:
            with self._turn:
                self._is_closed = True
                self._turn.notify_all()
            if self._thread is not None:
                self._thread.join(self._settings.patience)

    def maintain(self, *, months: int = 2, drop_older_than: int | None = None) -> MaintenanceReport:
        """Create partitions, end the runs of dead processes, and optionally drop old spans. Safe to repeat.

        Also removes outdated tombstones, and pending writes that are older than a day and have no checkpoint.

        Args:
            months: Number of months ahead for which partitions are created.
            drop_older_than: Drop the spans of months that lie entirely more than this many months before the current
                one.
        """
        made = self._database.run(maintenance.make_months, self._queries, months, strayed=True)
        dropped = []
        if drop_older_than is not None:
            dropped = self._database.run(maintenance.drop_months, self._queries, drop_older_than)
        self.recover()
        settled, after = 0, ("", "")
        while page := self._database.run(maintenance.list_running, self._queries, after):
            after = page[-1][:2]
            for thread_id, dead in maintenance.choose_dead(page, is_known_dead).items():
                settled += len(self._database.run(maintenance.settle_runs, self._queries, thread_id, dead))
        swept = self._database.run(guards.sweep, self._queries)
        orphaned = self._database.run(orphans.sweep, self._queries)
        return MaintenanceReport(tuple(made), tuple(dropped), settled, swept, orphan_writes=orphaned)

    def _on_chain_start(self, *args: Any, run_id: UUID, **kwargs: Any) -> Awaitable[None]:
        RecordingHandler.on_chain_start(self, *args, run_id=run_id, **kwargs)
        span = self._tracker.find(run_id) if _in_loop() is not None else None
        return _NOTHING if span is None or span.parent is not None else _Mark(span.run)

    def _on_chain_end(self, outputs: Any, *, run_id: UUID, **kwargs: Any) -> Awaitable[None]:
        return self._wait_for(self._tracker.end(run_id, outputs))

    def _on_chain_error(self, error: BaseException, *, run_id: UUID, **kwargs: Any) -> Awaitable[None]:
        return self._wait_for(self._tracker.end(run_id, error=error))

    def _wait_for(self, run: RunRecord | None) -> Awaitable[None]:
        """Write the end of a run. On an event loop, do so in another thread and return an awaitable for it."""
        if run is None:
            self._ended(None)
        elif run.is_awaited and not self._is_borrowed:
            return _Later(lambda: asyncio.to_thread(self._note_end, run))
        else:
            self._note_end(run)
        return _NOTHING

    def _ended(self, run: RunRecord | None) -> None:
        if run is not None:
            if self._is_borrowed or _in_loop():
                # The event loop must not block; the thread writes the rows soon.
                self._write(0)
            else:
                self._note_end(run)
        elif self._tracker.waiting >= self._settings.queue_size and not _in_loop():
            self._write(self._settings.patience)

    def _note_end(self, run: RunRecord) -> None:
        """Commit the remaining rows of a run to the journal. On an error or timeout they are left to the writer."""
        patience = self._settings.patience
        pending = None if self._is_borrowed else self._tracker.take(run, everything=True)
        if pending is None or not pending.is_complete:
            self._write(patience)
            return
        entry = journal.entry_of(run.key, new_entry_id(), pending.journal_entry)
        until = time.monotonic() + patience
        try:
            self._database.run_within(
                patience, journal.put_entry, self._queries, entry, lambda: until - time.monotonic()
            )
        except PGStateError as error:
            log.warning("%d spans and events are not written yet: %s", self._tracker.waiting, error)
        else:
            self._tracker.note(run.key[0])
            self._tracker.acknowledge(pending)
        finally:
            self._started()

    def _started(self) -> None:
        if self._is_borrowed:
            # Only the caller uses its connection; no background thread may.
            return
        if self._thread is None or not self._thread.is_alive():
            with self._turn:
                if (self._thread is None or not self._thread.is_alive()) and not self._is_closed:
                    self._thread = threading.Thread(target=self._work, name="pgstate-recorder", daemon=True)
                    self._thread.start()
        elif self._is_idle:
            # A busy thread looks again after its interval.
            with self._turn:
                self._turn.notify_all()

    def _write(self, patience: float) -> bool:
        """Make the thread write all queued rows, and return whether it finished in time."""
        if self._is_borrowed:
            self._error = self._write_now(True)
            return True
        self._started()
        with self._turn:
            self._asked += 1
            mine = self._asked
            self._turn.notify_all()
            return patience > 0 and self._turn.wait_for(lambda: self._done >= mine or self._is_closed, patience)

    def _work(self) -> None:
        while not self._is_closed:
            with self._turn:
                if self._asked == self._done and not self._wait():
                    continue
                asked = self._asked
                everything = asked > self._done
                if not everything and (self._is_closed or not self._tracker.is_busy):
                    continue
            self._error = self._write_now(everything) or (None if everything else self._error)
            with self._turn:
                self._done = asked
                self._turn.notify_all()

    def _wait(self) -> bool:
        """Wait until rows are due. Return false if there was nothing to do before the wait."""
        # Set before checking, so that a concurrent `_started` notifies.
        self._is_idle = True
        if not self._tracker.is_busy:
            if not self._is_closed:
                self._turn.wait()
            self._is_idle = False
            return False
        self._is_idle = False
        if not self._is_closed:
            self._turn.wait(self._settings.interval)
        return True

    def _write_now(self, everything: bool) -> PGStateError | None:
        tracker = self._tracker
        try:
            if tracker.is_clock_due:
                before = time.time()
                tracker.set_clock(self._database.run(recording.tell_time, self._queries), before, time.time())
                self.recover(_LEFT_SECONDS)
            self._database.run(
                recording.write_pending,
                self._queries,
                tracker,
                is_known_dead,
                holder_id(),
                self._settings.ttl,
                everything,
            )
        except PGStateError as error:
            log.warning("%d spans and events are not written yet: %s", tracker.waiting, error)
            return error
        except Exception as error:
            log.exception("%d spans and events are not written yet", tracker.waiting)
            return PGStateError(str(error))
        return None


class AsyncRecorder(RecordingHandler):
    """Async twin of `Recorder`: a task of the event loop writes. Bound to the event loop of the first run."""

    def __init__(
        self, database: AsyncDatabase, settings: RecorderSettings | None = None, *, keys: ThreadKeys | None = None
    ) -> None:
        self._database = database
        self._is_borrowed = database.is_borrowed
        self._settings = settings or RecorderSettings()
        self._queries = queries(database.schema)
        self._tracker = Tracker(self._settings, keys, has_writer=not self._is_borrowed)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()
        self._writing = asyncio.Lock()
        self._is_idle = False
        self._is_urgent = False
        self._recovered_at: float | None = None
        self._is_closed = False
        # These shadow the methods; see `_Awaited`.
        self.on_chain_end = _Awaited(self._on_chain_end)  # type: ignore[method-assign]
        self.on_chain_error = _Awaited(self._on_chain_error)  # type: ignore[method-assign]

    def record(self, graph: G) -> G:
        """Async twin of `Recorder.record`; not a coroutine."""
        return _bind(graph, self)

    async def learn_clock(self) -> None:
        """Async twin of `Recorder.learn_clock`."""
        # Blocking runs in other threads write on this loop, too.
        self._loop = self._loop or asyncio.get_running_loop()
        before = time.time()
        self._tracker.set_offset(await self._database.run(recording.tell_time, self._queries), before, time.time())

    async def flush(self, patience: float | None = None) -> None:
        """Async twin of `Recorder.flush`."""
        if not self._tracker.is_busy:
            return
        try:
            error = await asyncio.wait_for(
                self._write_now(True), self._settings.patience if patience is None else patience
            )
        except TimeoutError:
            error = PGStateError(f"{self._tracker.waiting} spans and events are not written yet; the database is slow")
        if error is not None:
            raise error

    async def catch_up(self) -> None:
        """Async twin of `Recorder.catch_up`."""
        seconds = self._due_recovery()
        if seconds is not None:
            with suppress(PGStateError):
                await self.recover(seconds)
        if self._tracker.has_news:
            with suppress(PGStateError):
                await self.flush()

    async def recover(self, seconds: float = 0.0) -> int:
        """Async twin of `Recorder.recover`."""
        return await self._database.run(
            journal.recover, self._queries, seconds, is_known_dead, self._tracker.own_runs()
        )

    async def close(self) -> None:
        """Async twin of `Recorder.close`."""
        try:
            if not self._is_closed:
                await self.flush()
        except PGStateError:
            log.warning("%d spans and events were not written", self._tracker.waiting)
            raise
        finally:
            self._is_closed = True
            self._wake.set()
            if self._task is not None:
                with suppress(asyncio.CancelledError):
                    self._task.cancel()
                    await self._task

    async def maintain(self, *, months: int = 2, drop_older_than: int | None = None) -> MaintenanceReport:
        """Async twin of `Recorder.maintain`."""
        made = await self._database.run(maintenance.make_months, self._queries, months, strayed=True)
        dropped = []
        if drop_older_than is not None:
            dropped = await self._database.run(maintenance.drop_months, self._queries, drop_older_than)
        await self.recover()
        settled, after = 0, ("", "")
        while page := await self._database.run(maintenance.list_running, self._queries, after):
            after = page[-1][:2]
            for thread_id, dead in maintenance.choose_dead(page, is_known_dead).items():
                settled += len(await self._database.run(maintenance.settle_runs, self._queries, thread_id, dead))
        swept = await self._database.run(guards.sweep, self._queries)
        orphaned = await self._database.run(orphans.sweep, self._queries)
        return MaintenanceReport(tuple(made), tuple(dropped), settled, swept, orphan_writes=orphaned)

    def _on_chain_end(self, outputs: Any, *, run_id: UUID, **kwargs: Any) -> Awaitable[None]:
        return self._wait_for(self._tracker.end(run_id, outputs))

    def _on_chain_error(self, error: BaseException, *, run_id: UUID, **kwargs: Any) -> Awaitable[None]:
        return self._wait_for(self._tracker.end(run_id, error=error))

    def _wait_for(self, run: RunRecord | None) -> Awaitable[None]:
        """Return an awaitable for the end of a chain: it writes the run's rows, or waits for space in the queue."""
        if run is None and self._tracker.waiting < self._settings.queue_size:
            return _NOTHING
        here = _in_loop()
        if here is not None and here is self._loop:
            return _Later(self._flush_patiently) if run is None else _Later(lambda: self._note_end(run))
        if run is None or self._loop is None or not self._loop.is_running():
            self._ended(run)
            return _NOTHING
        # A blocking run beside the loop, or a run on another loop.
        noting = asyncio.run_coroutine_threadsafe(self._note_end(run), self._loop)
        if here is not None:
            return _Later(lambda: asyncio.shield(asyncio.wrap_future(noting)))
        with suppress(TimeoutError):
            noting.result(self._settings.patience)
        return _NOTHING

    async def _flush_patiently(self) -> None:
        # The error is logged; it must not fail the graph.
        with suppress(PGStateError):
            await self.flush()

    async def _note_end(self, run: RunRecord) -> None:
        """Async twin of `Recorder._note_end`."""
        if self._is_borrowed:
            await self._write_now(True)
            return
        try:
            await self._put_end(run)
        except asyncio.CancelledError:
            # The writer is not cancelled with the run: make it write at once.
            self._is_urgent = True
            self._notify()
            raise
        finally:
            self._started()

    async def _put_end(self, run: RunRecord) -> None:
        patience = self._settings.patience
        pending = self._tracker.take(run, everything=True)
        if pending is None or not pending.is_complete:
            await self._flush_patiently()
            return
        entry = journal.entry_of(run.key, new_entry_id(), pending.journal_entry)
        until = time.monotonic() + patience
        try:
            await self._database.run_within(
                patience, journal.put_entry, self._queries, entry, lambda: until - time.monotonic()
            )
        except PGStateError as error:
            log.warning("%d spans and events are not written yet: %s", self._tracker.waiting, error)
        else:
            self._tracker.note(run.key[0])
            self._tracker.acknowledge(pending)

    def _ended(self, run: RunRecord | None) -> None:
        if run is not None:
            self._notify()

    def _started(self) -> None:
        if self._is_borrowed:
            return
        loop = _in_loop()
        if (self._task is None or self._task.done()) and loop is not None and not self._is_closed:
            self._loop = loop
            self._task = loop.create_task(self._work(), name="pgstate-recorder")
        elif self._is_idle:
            # A busy task looks again after its interval.
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
            # As in `Recorder._wait`.
            self._is_idle = True
            if not self._tracker.is_busy:
                await self._wake.wait()
                self._is_idle = False
                self._wake.clear()
                continue
            self._is_idle = False
            self._wake.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), self._settings.interval)
            # A concurrent wake-up can hide a cancellation.
            if not self._is_closed:
                is_urgent, self._is_urgent = self._is_urgent, False
                await self._write_now(is_urgent)

    async def _write_now(self, everything: bool) -> PGStateError | None:
        tracker = self._tracker
        try:
            async with self._writing:
                if tracker.is_clock_due:
                    before = time.time()
                    tracker.set_clock(await self._database.run(recording.tell_time, self._queries), before, time.time())
                    await self.recover(_LEFT_SECONDS)
                await self._database.run(
                    recording.write_pending,
                    self._queries,
                    tracker,
                    is_known_dead,
                    holder_id(),
                    self._settings.ttl,
                    everything,
                )
        except PGStateError as error:
            log.warning("%d spans and events are not written yet: %s", tracker.waiting, error)
            return error
        except Exception as error:
            log.exception("%d spans and events are not written yet", tracker.waiting)
            return PGStateError(str(error))
        return None


async def _coroutine() -> None:
    """Make `inspect.iscoroutinefunction` accept `_Awaited`."""


class _Awaited(functools.partial[Any]):
    """A callback that LangChain's async managers await and its blocking managers call.

    The async managers await a callback if `inspect.iscoroutinefunction` is true, which looks through a partial. The
    blocking managers call it and run a returned coroutine in another thread while the event loop is blocked. LangGraph
    uses them even inside an event loop, for the function of a conditional edge. The awaitable returned here is no
    coroutine.
    """

    _callback: Callable[..., Awaitable[None]]

    def __new__(cls, callback: Callable[..., Awaitable[None]]) -> _Awaited:
        self = super().__new__(cls, _coroutine)
        self._callback = callback
        return self

    def __call__(self, /, *args: Any, **kwargs: Any) -> Awaitable[None]:
        return self._callback(*args, **kwargs)


class _Nothing:
    """An awaitable that is already done."""

    def __await__(self) -> Generator[Any, None, None]:
        return
        yield


class _Mark:
    """An awaitable that marks a run as one whose callbacks are awaited."""

    def __init__(self, run: RunRecord) -> None:
        self._run = run

    def __await__(self) -> Generator[Any, None, None]:
        self._run.is_awaited = True
        return
        yield


class _Later:
    """An awaitable that starts when it is awaited."""

    def __init__(self, begin: Callable[[], Awaitable[None]]) -> None:
        self._begin = begin

    def __await__(self) -> Generator[Any, None, None]:
        return self._begin().__await__()


_NOTHING = _Nothing()


def _bind(graph: G, handler: GraphCallbackHandler) -> G:
    if isinstance(graph, RemoteGraph):
        raise ArgumentTypeError("a RemoteGraph runs on another server; record it there")
    if not isinstance(graph, Pregel):
        raise ArgumentTypeError(f"a compiled graph or an @entrypoint is needed, not {type(graph).__name__}")
    bound: G = graph.with_config(callbacks=[handler])
    return bound


def _in_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
