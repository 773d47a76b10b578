"""Workers that claim runs from the queue, and execute the runs in threads or on an event loop."""

from __future__ import annotations

import asyncio
import logging
import signal
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self, Unpack

from langgraph_pgstate.errors import PGStateError, UnavailableError
from langgraph_pgstate.heavy import in_thread, in_thread_or_here, start_thread
from langgraph_pgstate.options import check_options
from langgraph_pgstate.record.projections import check_projectable_in
from langgraph_pgstate.runs.options import WorkerOptions
from langgraph_pgstate.state import core_of
from langgraph_pgstate.worker.control import Control
from langgraph_pgstate.worker.executing import RunExecution, run_outcome
from langgraph_pgstate.worker.graphs import graph_sources
from langgraph_pgstate.worker.inputs import repair_tool_calls
from langgraph_pgstate.worker.parts import Part, Parts
from langgraph_pgstate.worker.settings import WorkerSettings, check_followers
from langgraph_pgstate.worker.streaming import StreamWriter

if TYPE_CHECKING:
    from langgraph_pgstate.state import AsyncPGState, PGState

_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
# Seconds between two searches for memories without an embedding.
_INDEX_SECONDS = 60.0
# Seconds between two checks whether the control thread has ended, if no thread can be started to wait for it.
_JOIN_SECONDS = 0.05

log = logging.getLogger("langgraph_pgstate.worker")


class _Worker:
    """The common part of `Worker` and `AsyncWorker`."""

    _saver: Any

    def _prepare(self, state: PGState | AsyncPGState, graphs: Mapping[str, Any], options: WorkerOptions) -> None:
        check_options(type(self), options, WorkerOptions)
        settings = WorkerSettings.of(options)
        sources, core = graph_sources(graphs), core_of(state)
        check_followers(settings.followed_by, sources)
        check_projectable_in((one.graph for one in sources.values()), core.project)
        repair = options.get("repair", repair_tool_calls)
        database = core.database
        connecting = database.dsn, database.tenant, database.prepare_threshold, core.queries
        self._writer = StreamWriter(*connecting, core.codec, database.keys)
        self._all = Parts(state, sources, settings, repair, self._writer)
        self._saver = self._all.own.saver
        self._tenant, self._lock = database.tenant, threading.Lock()
        # Parts by tenant, if the worker serves all tenants.
        self._parts: dict[str, Part] = {}
        self._memory: Any = state.memory if core.memory.get("index") else None
        self._signals = 0
        self._last_signal: int | None = None
        self._control = Control(
            *connecting,
            [*sources],
            settings,
            state.recorder().settings,
            self._begin,
            self._interrupt,
            self._all.check_tenants,
            self._forget,
            core.codec,
            state.webhooks.settings,
            adopts=options.get("adopt", False),
            keys=database.keys,
        )

    @property
    def worker_id(self) -> str:
        """The id of this worker, which holds the leases of its runs."""
        return self._control.worker_id

    @property
    def exit_code(self) -> int:
        """The exit code for a supervisor: 0 after a drain, 128 plus the signal's number after a second signal."""
        return 128 + self._last_signal if self._signals > 1 and self._last_signal is not None else 0

    def stop(self) -> None:
        """Ask the worker to drain; do not wait. A second call stops the worker at once. Safe in a signal handler."""
        self._signals += 1
        if self._signals > 1:
            self._control.force()
        else:
            self._control.drain()

    def _signalled(self, number: int, _: Any = None) -> None:
        self._last_signal = number
        self.stop()

    def _start(self, *, once: bool = False) -> None:
        self._control.start(once=once)
        if self._memory is not None:
            # Use a daemon thread, so that the interpreter can exit while an embedding model does not respond.
            start_thread(self._index, "pgstate-index")

    def _index(self) -> None:
        """Embed memories without an embedding, at intervals, until the worker has ended."""
        with suppress(PGStateError):
            while not self._control.join(_INDEX_SECONDS):
                try:
                    self._reindex()
                except Exception as error:
                    # The embedding model may be unavailable.
                    log.warning("memories could not be embedded: %s", error)

    def _reindex(self) -> None:
        raise NotImplementedError

    def _memories(self) -> list[Any]:
        """Return the memory of each tenant with an open part, or else the memory of the state."""
        with self._lock:
            parts = [*self._parts.values()]
        return [part.state.memory for part in parts] if self._control.serves_tenants else [self._memory]

    def _part_of(self, execution: RunExecution) -> Part:
        """Return the `Part` of a run's tenant."""
        tenant = execution.tenant
        if tenant is None or tenant == self._tenant:
            return self._all.own
        with self._lock:
            found = self._parts.get(tenant)
            if found is None:
                found = self._parts[tenant] = self._all.open(tenant)
            return found

    def _failed(self, execution: RunExecution, error: BaseException) -> None:
        """Report a run that cannot be executed."""
        execution.has_raised = True
        self._control.report(execution, run_outcome(execution, error))

    def _give_back(self, execution: RunExecution) -> None:
        """Requeue a run whose code cannot begin."""
        execution.ask("drain", 0.0)
        self._control.report(execution, run_outcome(execution, asyncio.CancelledError()))

    def _forget(self, tenant: str) -> None:
        """Close the part of a tenant that has no runs."""
        with self._lock:
            part = self._parts.pop(tenant, None)
        if part is not None:
            try:
                self._close_part(part)
            except UnavailableError:
                # No thread can be started. The part is closed later, at the latest with the worker.
                with self._lock:
                    self._parts.setdefault(tenant, part)

    def _close_part(self, part: Part) -> None:
        raise NotImplementedError

    def _begin(self, executions: Sequence[RunExecution]) -> None:
        raise NotImplementedError

    def _interrupt(self, execution: RunExecution) -> bool:
        raise NotImplementedError


class Worker(_Worker):
    """A worker that executes runs in OS threads.

    Each run has a lease on its thread. A run that has lost its lease stores nothing. A blocking node cannot be
    cancelled. If a run is stopped, the worker waits at most `drain_timeout` for the superstep boundary. Later results
    are not stored. A run that exceeds `timeout` or `superstep_timeout` ends at once. Other runs of the thread wait at
    most `drain_timeout` for the node.

    Args:
        state: The state whose queue the worker serves. The state must stay open until the worker is closed.
        graphs: Graphs by name, or factories that make a graph for each run. Compile graphs without a checkpointer, or
            with the state's saver.
        options: See `WorkerOptions`.

    Raises:
        ConfigurationError: If a graph or an option is not usable.

    Example:
        >>> with Worker(state, {"agent": graph}):
        ...     state.runs.enqueue("agent", {"messages": []}, thread_id="trip-1").wait()
    """

    def __init__(self, state: PGState, graphs: Mapping[str, Any], **options: Unpack[WorkerOptions]) -> None:
        self._closing: list[threading.Thread] = []
        self._prepare(state, graphs, options)

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            # The control thread may have started, and Python does not call `__exit__` after an error in `__enter__`.
            self._control.drain()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def run_forever(self) -> int:
        """Work until SIGTERM or SIGINT, then drain. A second signal stops the worker at once.

        Call this in the main thread.

        Returns:
            The exit code for a supervisor.

        Raises:
            PGStateError: If the database cannot be used when the worker starts.
        """
        return self._run(once=False)

    def run_until_idle(self) -> int:
        """Work until no run can be claimed. Does not wait for delayed runs or runs of other workers."""
        return self._run(once=True)

    def drain(self) -> None:
        """Stop claiming runs, requeue running runs at their next superstep boundaries, and wait for the end."""
        self._control.drain()
        self._control.join()

    def close(self) -> None:
        """Drain and stop. Safe to repeat."""
        self.drain()
        for tenant in [*self._parts]:
            self._forget(tenant)
        for part in [*self._parts.values()]:
            part.close()
        for thread in self._closing:
            thread.join()
        self._writer.close()
        self._saver.lease_manager.close()

    def _run(self, *, once: bool) -> int:
        is_main = threading.current_thread() is threading.main_thread()
        before = {number: signal.signal(number, self._signalled) for number in _SIGNALS} if is_main else {}
        try:
            self._start(once=once)
            # Wait with a timeout, so that Python can call signal handlers.
            while not self._control.join(0.5):
                pass
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
            self.close()
        return self.exit_code

    def _begin(self, executions: Sequence[RunExecution]) -> None:
        for execution in executions:
            name = f"pgstate-run-{execution.key.run_id}"
            try:
                start_thread(partial(self._work, execution), name)
            except UnavailableError as error:
                log.warning("run %s of thread %s is requeued: %s", execution.key.run_id, execution.key.thread_id, error)
                self._control.rest()
                self._give_back(execution)

    def _interrupt(self, execution: RunExecution) -> bool:
        return False

    def _reindex(self) -> None:
        for memory in self._memories():
            memory.reindex()

    def _close_part(self, part: Part) -> None:
        # Close the part in another thread, because the control thread must renew leases.
        thread = start_thread(part.close, "pgstate-close")
        self._closing = [*(one for one in self._closing if one.is_alive()), thread]

    def _work(self, execution: RunExecution) -> None:
        try:
            executor = self._part_of(execution).executor
        except Exception as error:
            self._failed(execution, error)
            return
        self._control.report(execution, executor.execute(execution))


class AsyncWorker(_Worker):
    """Async twin of `Worker`, which executes runs as tasks of the event loop.

    A stopped run is cancelled at once. Only a drain waits for the superstep boundary. OS threads of `def` nodes may go
    on after the cancellation. Other runs of the thread wait at most `drain_timeout` for these OS threads.
    """

    def __init__(self, state: AsyncPGState, graphs: Mapping[str, Any], **options: Unpack[WorkerOptions]) -> None:
        self._prepare(state, graphs, options)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closing: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        try:
            await in_thread(self._start)
        except BaseException:
            # The control thread may have started, and Python does not call `__aexit__` after an error in `__aenter__`.
            self._control.drain()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def run_forever(self) -> int:
        """Async twin of `Worker.run_forever`."""
        return await self._run(once=False)

    async def run_until_idle(self) -> int:
        """Async twin of `Worker.run_until_idle`."""
        return await self._run(once=True)

    async def drain(self) -> None:
        """Async twin of `Worker.drain`."""
        self._control.drain()
        await self._joined()

    async def close(self) -> None:
        """Async twin of `Worker.close`."""
        await self.drain()
        for tenant in [*self._parts]:
            self._forget(tenant)
        # Let the event loop start the tasks that the control thread has scheduled.
        await asyncio.sleep(0)
        await asyncio.gather(*self._closing, return_exceptions=True)
        await in_thread_or_here(self._writer.close)
        await self._saver.lease_manager.close()

    async def _joined(self) -> None:
        """Wait until the control thread has ended."""
        try:
            await in_thread(self._control.join)
        except UnavailableError:
            while not self._control.join(0):  # noqa: ASYNC110
                await asyncio.sleep(_JOIN_SECONDS)

    async def _run(self, *, once: bool) -> int:
        loop = self._loop = asyncio.get_running_loop()
        is_main = threading.current_thread() is threading.main_thread()
        for number in _SIGNALS if is_main else ():
            loop.add_signal_handler(number, self._signalled, number)
        try:
            await in_thread(self._start, once=once)
            await self._joined()
        finally:
            for number in _SIGNALS if is_main else ():
                loop.remove_signal_handler(number)
            await self.close()
        return self.exit_code

    def _begin(self, executions: Sequence[RunExecution]) -> None:
        try:
            self._on_loop(self._create_tasks, executions)
        except RuntimeError:
            # The event loop is closed, so this worker can execute no run. Other workers get the runs.
            self._control.drain()
            for execution in executions:
                self._give_back(execution)

    def _interrupt(self, execution: RunExecution) -> bool:
        try:
            self._on_loop(self._cancel_task, execution)
        except RuntimeError:
            return False
        return True

    def _reindex(self) -> None:
        for memory in self._memories():
            memory.wait(memory.reindex(), "reindex")

    def _close_part(self, part: Part) -> None:
        with suppress(RuntimeError):
            self._on_loop(self._create_closing, part)

    def _create_closing(self, part: Part) -> None:
        task = asyncio.get_running_loop().create_task(part.aclose())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    def _on_loop(self, call: Any, argument: Any) -> None:
        assert self._loop is not None
        self._loop.call_soon_threadsafe(call, argument)

    def _create_tasks(self, executions: Sequence[RunExecution]) -> None:
        for execution in executions:
            execution.task = execution.held.work.start(self._work(execution))
            execution.task.set_name(execution.key.run_id)

    def _cancel_task(self, execution: RunExecution) -> None:
        if execution.task is not None:
            execution.task.cancel()

    async def _work(self, execution: RunExecution) -> None:
        try:
            executor = self._part_of(execution).executor
        except Exception as error:
            self._failed(execution, error)
            return
        self._control.report(execution, await executor.aexecute(execution))
