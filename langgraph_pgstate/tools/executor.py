"""Executors: they run statements, call tools, wait and renew attempts for `ActionRunner`, blocking or async.

`ActionRunner` awaits only its executor. A blocking executor never suspends, so a blocking ledger runs the coroutine to
its end with one `send`.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import logging
import os
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from concurrent.futures import Future, wait
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    asynccontextmanager,
    contextmanager,
    suppress,
)
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from langgraph_pgstate.db.adapters import run_blocking
from langgraph_pgstate.db.database import AsyncDatabase, Database
from langgraph_pgstate.db.protocol import Connection
from langgraph_pgstate.db.revoking import arevoke, interrupt, revoke
from langgraph_pgstate.db.runners import AsyncRunner, BlockingRunner, Runner
from langgraph_pgstate.encryption.keys import HeldKeys
from langgraph_pgstate.errors import MissingKeysError, PGStateError, ToolSetupError, UnavailableError
from langgraph_pgstate.heavy import in_thread, start_thread
from langgraph_pgstate.schema.queries import Queries
from langgraph_pgstate.started_work import StartedWork, not_followed
from langgraph_pgstate.tools.executions import Intent, renew_all

T = TypeVar("T")
P = ParamSpec("P")

# Seconds to wait for the end of a cancelled tool. Afterwards, the caller stops waiting, and the tool's connection is
# closed.
_GRACE = 1.0

_log = logging.getLogger(__name__)


class Overdue(Exception):
    """A tool did not end within its timeout."""


class Unstarted(Exception):
    """No code of a tool has run: blocking code called an asynchronous function, or no thread could be started.

    Attributes:
        error: The error to raise.
    """

    def __init__(self, error: PGStateError) -> None:
        super().__init__(str(error))
        self.error = error


class Rest(Protocol):
    """A tool for which no caller waits any more."""

    @property
    def is_over(self) -> bool:
        """Whether all code of the tool has ended."""
        ...

    @property
    def was_refused(self) -> bool:
        """Whether the tool only asked for an OS thread, and no thread has begun to run its code."""
        ...

    def outcome(self) -> Any:
        """Return or raise the tool's outcome, once it is over. Raise `CancelledError` if a cancellation ended it."""
        ...


class Abandoned(Exception):
    """The caller of a tool stopped waiting before the tool returned, because it was cancelled or the time was over.

    Attributes:
        error: The reason: `Overdue`, or the caller's cancellation.
        rest: The tool, which may still run.
    """

    def __init__(self, error: BaseException, rest: Rest) -> None:
        super().__init__(error)
        self.error, self.rest = error, rest


class Executor(Runner, Protocol):
    """A runner of statements that also calls tools, waits, and renews attempts, in blocking or async code.

    Attributes:
        queries: The queries of the ledger's schema.
    """

    queries: Queries

    async def run_or_stop(
        self,
        operation: Callable[Concatenate[Connection, Queries, P], Awaitable[T]],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        """Run an operation on the ledger's tables. An error ends the run, because a model cannot handle it."""
        try:
            return await self.run(operation, self.queries, *args, **kwargs)
        except PGStateError as error:
            error.is_final = True
            raise

    async def call(self, function: Callable[[], Any]) -> Any:
        """Call a user's function and wait for it."""
        ...

    async def act(self, function: Callable[[], Any], seconds: float | None, *, is_blocking: bool = False) -> Any:
        """Call a tool. Raise `Abandoned` if the caller is cancelled, or after the timeout.

        If `is_blocking`, an event loop runs the tool in a thread. If that thread cannot be started, raise `Unstarted`.
        """
        ...

    async def act_on(self, connection: Any, function: Callable[[], Any], seconds: float | None) -> Any:
        """Call a tool that works on a borrowed connection. Raise `Abandoned` as `act` does.

        A tool that ends after the timeout also counts as abandoned, because the server may have ended the transaction,
        for example while this process was suspended. After the return of this method, the tool cannot use the
        connection any more: the tool has ended, or the connection is closed.
        """
        ...

    def when_over(
        self, rest: Rest, tool: str, conclude: Callable[[], Coroutine[Any, Any, Any]], let_go: Callable[[], Any]
    ) -> None:
        """Run `conclude` and then `let_go` in the background when an abandoned tool has ended.

        If the event loop is closed before, `conclude` is not run.
        """
        ...

    async def to_the_end(self, awaitable: Awaitable[T]) -> T:
        """Wait for an awaitable, even if the caller is cancelled meanwhile any number of times."""
        ...

    async def cancelled_once(self, awaitable: Awaitable[T]) -> T:
        """Wait until an awaitable has ended. If the caller is cancelled, cancel the awaitable once."""
        ...

    def raise_if_cancelled(self) -> None:
        """Raise if the caller was cancelled and the awaited code swallowed the cancellation."""
        ...

    def alive(self, intent: Intent) -> AbstractContextManager[None]:
        """Renew `alive_until` of an attempt during a `with` block. The blocks of one attempt may overlap."""
        ...

    def lend(self) -> AbstractAsyncContextManager[tuple[Any, Connection]]:
        """Return a connection with an open transaction."""
        ...

    async def load_keys(self, error: MissingKeysError, held: HeldKeys | None) -> HeldKeys:
        """Load the encryption keys that a statement on a lent connection lacked; see `Database.load_keys`."""
        ...


# The attempts in progress in this process, for all its ledgers. There is no lock, because `os.fork` could copy a lock
# that is held. Each change is a single list call, which is atomic. Entries that a forked child inherits are harmless,
# because the child has another holder id.
_under_way: list[str] = []


@contextmanager
def under_way(intent_id: str) -> Iterator[None]:
    """Mark an attempt as in progress, from before its intent is sent until its outcome is recorded or given up.

    The `with` blocks of one attempt may overlap.
    """
    _under_way.append(intent_id)
    try:
        yield
    finally:
        _under_way.remove(intent_id)


def is_under_way(intent_id: str | None) -> bool:
    """Return whether an attempt is in progress in this process."""
    return intent_id in _under_way


class _Pulse:
    """The attempts in progress of one ledger, by thread and intent id, and its abandoned tools."""

    def __init__(self, ttl_seconds: float) -> None:
        self.ttl_seconds = ttl_seconds
        self._attempts: dict[str, dict[str, tuple[str, int]]] = {}
        self._abandoned: list[str] = []
        self._changed = threading.Condition()
        self._process = os.getpid()

    @contextmanager
    def beating(self, intent: Intent) -> Iterator[None]:
        """Renew an attempt while the `with` block runs."""
        self._count(intent, 1)
        try:
            yield
        finally:
            self._count(intent, -1)

    def _count(self, intent: Intent, change: int) -> None:
        with self._changed:
            of_thread = self._attempts.setdefault(intent.thread_id, {})
            blocks = of_thread.get(intent.intent_id, ("", 0))[1] + change
            if blocks:
                of_thread[intent.intent_id] = intent.idempotency_key, blocks
            else:
                del of_thread[intent.intent_id]
            if not of_thread:
                del self._attempts[intent.thread_id]

    def abandon(self, tool: str) -> Callable[[], None]:
        """Count a tool as abandoned until the returned function is called."""
        with self._changed:
            self._abandoned.append(tool)

        def end() -> None:
            with self._changed:
                self._abandoned.remove(tool)
                self._changed.notify_all()

        return end

    def abandoned(self, seconds: float = 0) -> list[str]:
        """Return the abandoned tools of this process that still run, after waiting up to `seconds` for their end."""
        if self._process != os.getpid():
            # This process is a forked child. The abandoned tools run only in its parent.
            return []
        with self._changed:
            self._changed.wait_for(lambda: not self._abandoned, seconds)
            return sorted(self._abandoned)

    def attempts(self) -> dict[str, dict[str, str]]:
        """Return a copy of the attempts in progress."""
        with self._changed:
            return {
                thread_id: {intent_id: key for intent_id, (key, _) in intents.items()}
                for thread_id, intents in self._attempts.items()
            }

    async def renew(self, runner: Runner, queries: Queries, attempts: dict[str, dict[str, str]]) -> None:
        """Renew `alive_until` of attempts, even if other calls use all connections. Errors are logged."""
        try:
            await runner.run_apart(self.ttl_seconds / 6, renew_all, queries, attempts, self.ttl_seconds)
        except PGStateError as error:
            threads = ", ".join(map(repr, attempts))
            _log.warning("alive_until of tool executions of threads %s could not be renewed: %s", threads, error)


class _RestOfThread:
    """An abandoned tool in its own OS thread."""

    def __init__(self, future: Future[Any]) -> None:
        self.future = future

    @property
    def is_over(self) -> bool:
        return self.future.done()

    @property
    def was_refused(self) -> bool:
        return False

    def outcome(self) -> Any:
        return self.future.result()


class _RestOfTask:
    """An abandoned tool in a task, with the OS threads and tasks that it started."""

    def __init__(self, task: asyncio.Task[Any], work: StartedWork) -> None:
        self.work = work
        self._task = task
        self._is_cancelled = False

    @property
    def is_over(self) -> bool:
        return self._task.done() and not self.work.has_threads and not self.work.tasks()

    @property
    def was_refused(self) -> bool:
        return self.work.was_refused

    def outcome(self) -> Any:
        if self._is_cancelled and (self._task.cancelled() or self._task.exception() is not None):
            # A cancelled tool counts as cancelled, even if it raises another exception.
            raise asyncio.CancelledError
        return self._task.result()

    async def stop(self) -> None:
        """Cancel the task, and wait a while for its end."""
        if not self._task.done():
            self._is_cancelled = True
            self._task.cancel()
            await asyncio.wait({self._task}, timeout=_GRACE)

    async def end(self) -> None:
        """Wait until the task and its OS threads have ended. Cancel the task if it does more than wait for a thread."""
        if not self._is_cancelled:
            await self.work.threads_ended()
            # Now that the thread has ended, let the task use the thread's result and return.
            await asyncio.wait({self._task}, timeout=_GRACE)
            await self.stop()
        await asyncio.wait({self._task})
        await self.work.ended()


class BlockingExecutor(BlockingRunner, Executor):
    """The blocking executor. While attempts are in progress, a background thread renews them."""

    def __init__(self, database: Database, queries: Queries, ttl_seconds: float) -> None:
        super().__init__(database)
        self.queries = queries
        self._pulse = _Pulse(ttl_seconds)
        self._beat_lock = threading.Lock()
        self._beater: threading.Thread | None = None
        self._wake = threading.Event()

    async def call(self, function: Callable[[], Any]) -> Any:
        """Call a user's function, which must not be asynchronous."""
        answer = function()
        if inspect.isawaitable(answer):
            error = ToolSetupError("an asynchronous function needs an asynchronous ledger (AsyncPGState)")
            if inspect.iscoroutine(answer):
                answer.close()
                raise Unstarted(error)
            raise error
        return answer

    async def act(self, function: Callable[[], Any], seconds: float | None, *, is_blocking: bool = False) -> Any:
        """Call a tool. With a timeout, it runs in an OS thread that continues after the timeout."""
        if seconds is None:
            return await self.call(function)
        future = self._start(function)
        try:
            wait([future], seconds)
        except BaseException as error:
            # A signal handler raised this exception.
            raise Abandoned(error, _RestOfThread(future)) from error
        if not future.done():
            raise Abandoned(Overdue(), _RestOfThread(future))
        return future.result()

    async def act_on(self, connection: Any, function: Callable[[], Any], seconds: float | None) -> Any:
        """Call a tool that works on a connection. With a timeout, the tool runs in an OS thread.

        If it still runs after the timeout, its statement is cancelled. If it runs on, its connection is closed.
        """
        if seconds is None:
            return await self.call(function)
        deadline = time.monotonic() + seconds
        future = self._start(function)
        error: BaseException = Overdue()
        try:
            wait([future], seconds)
        except BaseException as signalled:
            error = signalled
        else:
            if future.done() and time.monotonic() <= deadline:
                return future.result()
        # A tool that runs on must not use the connection, which other calls will use.
        if not future.done() and interrupt(connection):
            wait([future], _GRACE)
        if not future.done():
            revoke(connection)
        raise Abandoned(error, _RestOfThread(future))

    def when_over(
        self, rest: Rest, tool: str, conclude: Callable[[], Coroutine[Any, Any, Any]], let_go: Callable[[], Any]
    ) -> None:
        """Run `conclude` and then `let_go` in the OS thread of an abandoned tool, at the tool's end."""
        assert isinstance(rest, _RestOfThread)
        end = self._pulse.abandon(tool)
        context = contextvars.copy_context()

        def work() -> None:
            try:
                context.run(run_blocking, conclude())
            finally:
                let_go()
                end()

        rest.future.add_done_callback(lambda _: work())

    def _start(self, function: Callable[[], Any]) -> Future[Any]:
        """Call a tool in its own OS thread."""
        future: Future[Any] = Future()
        context = contextvars.copy_context()

        def work() -> None:
            try:
                future.set_result(context.run(run_blocking, self.call(function)))
            except BaseException as error:
                future.set_exception(error)

        try:
            start_thread(work, "pgstate-tool")
        except UnavailableError as error:
            raise Unstarted(_final(error)) from error
        return future

    async def to_the_end(self, awaitable: Awaitable[T]) -> T:
        """Await directly, because a blocking call cannot be cancelled."""
        return await awaitable

    async def cancelled_once(self, awaitable: Awaitable[T]) -> T:
        """Await directly, because a blocking call cannot be cancelled."""
        return await awaitable

    def raise_if_cancelled(self) -> None:
        """Do nothing, because a blocking call cannot be cancelled."""

    @contextmanager
    def alive(self, intent: Intent) -> Iterator[None]:
        """Renew `alive_until` of an attempt during a `with` block. The blocks of one attempt may overlap."""
        with self._pulse.beating(intent):
            self._start_beating()
            yield

    @asynccontextmanager
    async def lend(self) -> AsyncIterator[tuple[Any, Connection]]:
        """Return a connection with an open transaction."""
        with self.database.lend() as borrowed:
            yield borrowed

    async def load_keys(self, error: MissingKeysError, held: HeldKeys | None) -> HeldKeys:
        """Load the encryption keys that a statement on a lent connection lacked."""
        return self.database.load_keys(error, held)

    def close(self, seconds: float) -> None:
        """Wait up to `seconds` for abandoned tools, then stop the thread. Attempts are no longer renewed."""
        _report(self._pulse.abandoned(seconds))
        self._wake.set()
        if self._beater is not None:
            self._beater.join()

    def _start_beating(self) -> None:
        with self._beat_lock:
            if self._beater is None:
                try:
                    self._beater = start_thread(self._beat, "pgstate-tools-alive")
                except UnavailableError as error:
                    raise _final(error) from error.__cause__

    def _beat(self) -> None:
        while not self._wake.wait(self._pulse.ttl_seconds / 3):
            with self._beat_lock:
                attempts = self._pulse.attempts()
                if not attempts:
                    self._beater = None
                    return
            run_blocking(self._pulse.renew(self, self.queries, attempts))


class AsyncExecutor(AsyncRunner, Executor):
    """The async executor. While attempts are in progress, a background asyncio task renews them."""

    def __init__(self, database: AsyncDatabase, queries: Queries, ttl_seconds: float) -> None:
        super().__init__(database)
        self.queries = queries
        self._pulse = _Pulse(ttl_seconds)
        self._background: set[asyncio.Task[None]] = set()
        self._beater: asyncio.Task[None] | None = None

    async def call(self, function: Callable[[], Any]) -> Any:
        """Call a user's function, asynchronous or not."""
        answer = function()
        return await answer if inspect.isawaitable(answer) else answer

    async def act(self, function: Callable[[], Any], seconds: float | None, *, is_blocking: bool = False) -> Any:
        """Call a tool. If it is abandoned, cancel it, unless it waits for a thread: threads cannot be cancelled."""
        work = StartedWork()
        task = work.start(self.call(function))
        # Retrieve the exception so that asyncio does not log it.
        task.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
        rest = _RestOfTask(task, work)
        error: BaseException = Overdue()
        try:
            done, _ = await asyncio.wait({task}, timeout=seconds)
        except asyncio.CancelledError as cancelled:
            error = cancelled
        else:
            if done and is_blocking and work.was_refused:
                raise Unstarted(_final(UnavailableError("no thread can be started for the tool")))
            if done:
                return task.result()
        if not work.stop():
            await rest.stop()
        if isinstance(error, Overdue) and task.done() and not task.cancelled() and task.exception() is None:
            # The tool ended just before it was cancelled.
            return task.result()
        raise Abandoned(error, rest)

    async def act_on(self, connection: Any, function: Callable[[], Any], seconds: float | None) -> Any:
        """Call a tool that works on a connection. When it is abandoned, cancel it and close the connection."""
        deadline = None if seconds is None else time.monotonic() + seconds
        work = StartedWork()
        task = work.start(self.call(function))
        # Retrieve the exception so that asyncio does not log it.
        task.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
        rest = _RestOfTask(task, work)
        error: BaseException = Overdue()
        try:
            done, _ = await asyncio.wait({task}, timeout=seconds)
        except asyncio.CancelledError as cancelled:
            error = cancelled
        else:
            if done and (deadline is None or time.monotonic() <= deadline):
                return task.result()
        work.stop()
        # This cancels the tool's task. psycopg then also cancels the statement that the task has sent.
        await rest.stop()
        if not rest.is_over:
            await arevoke(connection)
        raise Abandoned(error, rest)

    def when_over(
        self, rest: Rest, tool: str, conclude: Callable[[], Coroutine[Any, Any, Any]], let_go: Callable[[], Any]
    ) -> None:
        """Run `conclude` and then `let_go` when an abandoned tool is over, in a task."""
        assert isinstance(rest, _RestOfTask)
        end = self._pulse.abandon(tool)

        def have_ended() -> None:
            let_go()
            end()

        async def work() -> None:
            try:
                await rest.end()
                await conclude()
            except asyncio.CancelledError:
                _log.warning("the event loop of %s is closed while the tool runs: the outcome will be unknown", tool)
                # No other call in this process may begin the action before the tool's threads have ended.
                rest.work.when_threads_ended(have_ended)
                raise
            except BaseException:
                have_ended()
                raise
            have_ended()

        task = asyncio.get_running_loop().create_task(work(), name=f"pgstate-tool {tool}")
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def to_the_end(self, awaitable: Awaitable[T]) -> T:
        """Wait for an awaitable, even if the caller is cancelled meanwhile any number of times."""
        return await _join(asyncio.ensure_future(awaitable), cancels=False)

    async def cancelled_once(self, awaitable: Awaitable[T]) -> T:
        """Wait until an awaitable has ended. If the caller is cancelled, cancel the awaitable once.

        anyio cancels a task in every iteration of the event loop until the task ends. At a second cancellation during
        a statement, psycopg would close the connection, although the server may still commit the statement.
        """
        return await _join(asyncio.ensure_future(awaitable), cancels=True)

    def raise_if_cancelled(self) -> None:
        """Raise if the caller was cancelled and the awaited code swallowed the cancellation."""
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise asyncio.CancelledError

    @contextmanager
    def alive(self, intent: Intent) -> Iterator[None]:
        """Renew `alive_until` of an attempt during a `with` block. The blocks of one attempt may overlap."""
        with self._pulse.beating(intent):
            if self._beater is None or self._beater.done():
                # Give the task a new context, because the task outlives this call.
                context = contextvars.Context()
                self._beater = asyncio.get_running_loop().create_task(self._beat(), context=context)
            yield

    def lend(self) -> AbstractAsyncContextManager[tuple[Any, Connection]]:
        """Return a connection with an open transaction."""
        return self.database.lend()

    async def load_keys(self, error: MissingKeysError, held: HeldKeys | None) -> HeldKeys:
        """Load the encryption keys that a statement on a lent connection lacked."""
        return await self.database.load_keys(error, held)

    async def close(self, seconds: float) -> None:
        """Wait up to `seconds` for abandoned tools, then stop the task. Attempts are no longer renewed."""
        if self._background:
            await asyncio.wait(self._background, timeout=seconds)
        _report(self._pulse.abandoned())
        if self._beater is not None:
            self._beater.cancel()
            with suppress(asyncio.CancelledError):
                await self._beater

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(self._pulse.ttl_seconds / 3)
            attempts = self._pulse.attempts()
            if not attempts:
                self._beater = None
                return
            await self._pulse.renew(self, self.queries, attempts)


class OffloadingExecutor(AsyncExecutor):
    """An async executor over a blocking database, for a blocking ledger in a graph that runs on an event loop."""

    def __init__(self, executor: BlockingExecutor) -> None:
        self._blocking = executor
        self.queries = executor.queries
        self._pulse = executor._pulse
        self._background = set()

    @property
    def is_borrowed(self) -> bool:
        """Whether the only connection belongs to the caller."""
        return self._blocking.is_borrowed

    async def run(
        self, operation: Callable[Concatenate[Connection, P], Awaitable[T]], /, *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Run an operation on the database in a worker thread. It cannot be cancelled; the caller waits for it."""
        # If a tool calls a second tool and is stopped, the first tool may begin no more threads. This thread may still
        # begin, because it writes the second tool's outcome.
        with not_followed():
            return await self.to_the_end(in_thread(self._blocking.database.run, operation, *args, **kwargs))

    async def run_apart(
        self,
        seconds: float,
        operation: Callable[Concatenate[Connection, P], Awaitable[T]],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        """Run an operation on the database in a worker thread as `run` does."""
        run = self._blocking.database.run_apart
        with not_followed():
            return await self.to_the_end(in_thread(run, seconds, operation, *args, **kwargs))

    @contextmanager
    def alive(self, intent: Intent) -> Iterator[None]:
        """Renew `alive_until` of an attempt during a `with` block. The blocks of one attempt may overlap."""
        with self._blocking.alive(intent):
            yield

    def lend(self) -> AbstractAsyncContextManager[tuple[Any, Connection]]:
        """Raise, because a blocking connection would block the event loop."""
        raise ToolSetupError(
            "a transactional tool in a graph that runs on an event loop needs an asynchronous ledger (AsyncPGState)"
        )


def _final(error: UnavailableError) -> UnavailableError:
    """Let an error end the run, because a model cannot handle it."""
    error.is_final = True
    return error


async def _join(task: asyncio.Future[T], *, cancels: bool) -> T:
    """Wait until a task has ended. Only then raise the caller's cancellation."""
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError as error:
            if cancels and cancelled is None:
                task.cancel()
            cancelled = error
    if cancelled is None:
        return task.result()
    if not task.cancelled():
        # Retrieve the exception so that asyncio does not log it.
        task.exception()
    raise cancelled


def _report(abandoned: list[str]) -> None:
    if abandoned:
        _log.warning(
            "the ledger is closed while tools run whose callers have stopped waiting: %s. If the database is closed "
            "before a tool ends, the outcome of the tool will be unknown",
            ", ".join(abandoned),
        )
