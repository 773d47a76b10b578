"""Executors, which run statements, sleeps, tools and liveness renewals for `ActionRunner`, blocking or async.

`ActionRunner` awaits only its executor. A blocking executor never suspends, so a blocking ledger runs the coroutine to
its end with one `send`.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import logging
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, suppress
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from langgraph_pgstate.db.adapters import run_blocking
from langgraph_pgstate.db.database import AsyncDatabase, Database
from langgraph_pgstate.db.protocol import Connection
from langgraph_pgstate.db.revoking import arevoke, interrupt, revoke
from langgraph_pgstate.db.runners import AsyncRunner, BlockingRunner, Runner
from langgraph_pgstate.errors import PGStateError, ToolSetupError
from langgraph_pgstate.operations.tools.tool_executions import renew
from langgraph_pgstate.sql import Queries

T = TypeVar("T")
P = ParamSpec("P")
Late = Callable[[Callable[[], Any]], None]
"""Called when a tool ends after its timeout, with a function that returns or raises the tool's outcome."""

# Seconds that a cancelled tool has to end before its connection is closed.
_GRACE = 1.0

_log = logging.getLogger(__name__)


class Overdue(Exception):
    """A tool did not end within its timeout."""


class Executor(Runner, Protocol):
    """A runner of statements that also calls tools, waits, and renews liveness, in blocking or async code."""

    async def call(self, function: Callable[[], Any]) -> Any:
        """Call a user's function and wait for it."""
        ...

    async def act(self, function: Callable[[], Any], seconds: float | None, late: Late) -> Any:
        """Call a tool. Raise `Overdue` after its timeout."""
        ...

    async def act_on(self, connection: Any, function: Callable[[], Any], seconds: float | None) -> Any:
        """Call a tool that works on a borrowed connection. Raise `Overdue` after its timeout.

        The timeout is wall-clock time. If this process was suspended for that long, the server may have ended the
        transaction. On return the tool cannot use the connection any more: it has ended, or the connection is closed.
        """
        ...

    async def to_the_end(self, awaitable: Awaitable[T]) -> T:
        """Wait for something even if the caller is cancelled meanwhile, any number of times."""
        ...

    async def cancelled_once(self, awaitable: Awaitable[T]) -> T:
        """Wait for something that is cancelled with the caller, but only once, and wait until it has ended."""
        ...

    def raise_if_cancelled(self) -> None:
        """Raise if the caller was cancelled and the awaited code swallowed the cancellation."""
        ...

    def alive(self, thread_id: str, key: str, intent_id: str) -> AbstractAsyncContextManager[None]:
        """Renew the liveness of an attempt while it is in progress."""
        ...

    def lend(self) -> AbstractAsyncContextManager[tuple[Any, Connection]]:
        """Return a connection with an open transaction."""
        ...


class _Pulse:
    """The attempts of one ledger in progress: by thread, intent id to key."""

    def __init__(self, ttl_seconds: float) -> None:
        self.ttl_seconds = ttl_seconds
        self._attempts: dict[str, dict[str, str]] = {}
        self._lock = threading.Lock()

    @contextmanager
    def beating(self, thread_id: str, key: str, intent_id: str) -> Iterator[None]:
        """Include an attempt in the renewals of liveness while the `with` block runs."""
        with self._lock:
            self._attempts.setdefault(thread_id, {})[intent_id] = key
        try:
            yield
        finally:
            with self._lock:
                of_thread = self._attempts[thread_id]
                del of_thread[intent_id]
                if not of_thread:
                    del self._attempts[thread_id]

    def attempts(self) -> dict[str, dict[str, str]]:
        """Return a copy of the attempts in progress."""
        with self._lock:
            return {thread_id: dict(intents) for thread_id, intents in self._attempts.items()}

    async def renew(self, runner: Runner, queries: Queries, attempts: dict[str, dict[str, str]]) -> None:
        """Renew the liveness of attempts. Errors are logged."""
        for thread_id, intents in attempts.items():
            try:
                await runner.run(renew, queries, thread_id, intents, self.ttl_seconds)
            except PGStateError as error:
                _log.warning("liveness of tool executions of thread %r could not be renewed: %s", thread_id, error)


class BlockingExecutor(BlockingRunner):
    """The blocking executor. A thread renews liveness, and ends when no attempt is in progress."""

    def __init__(self, database: Database, queries: Queries, ttl_seconds: float) -> None:
        super().__init__(database)
        self._queries = queries
        self._pulse = _Pulse(ttl_seconds)
        self._beat_lock = threading.Lock()
        self._beater: threading.Thread | None = None
        self._wake = threading.Event()

    async def call(self, function: Callable[[], Any]) -> Any:
        """Call a user's function, which must not be asynchronous."""
        answer = function()
        if inspect.isawaitable(answer):
            if inspect.iscoroutine(answer):
                answer.close()
            raise ToolSetupError("an asynchronous function needs an asynchronous ledger (AsyncPGState)")
        return answer

    async def act(self, function: Callable[[], Any], seconds: float | None, late: Late) -> Any:
        """Call a tool; with a timeout in a thread, which continues after the timeout."""
        if seconds is None:
            return await self.call(function)
        future = self._start(function)
        try:
            done = future.exception(seconds)
        except TimeoutError:
            future.add_done_callback(lambda ended: late(ended.result))
            raise Overdue from None
        if done is not None:
            raise done
        return future.result()

    async def act_on(self, connection: Any, function: Callable[[], Any], seconds: float | None) -> Any:
        """Call a tool that works on a connection; with a timeout in a thread, whose connection is closed after it."""
        if seconds is None:
            return await self.call(function)
        deadline = time.monotonic() + seconds
        future = self._start(function)
        try:
            wait([future], seconds)
            if not future.done() or time.monotonic() > deadline:
                raise Overdue
            return future.result()
        finally:
            # Also when a signal ends the wait: a tool that continues must not use a connection that others will use.
            if not future.done() and interrupt(connection):
                wait([future], _GRACE)
            if not future.done():
                revoke(connection)

    def _start(self, function: Callable[[], Any]) -> Future[Any]:
        """Call a tool in a thread of its own."""
        future: Future[Any] = Future()
        context = contextvars.copy_context()

        def work() -> None:
            try:
                future.set_result(context.run(run_blocking, self.call(function)))
            except BaseException as error:
                future.set_exception(error)

        threading.Thread(target=work, name="pgstate-tool", daemon=True).start()
        return future

    async def to_the_end(self, awaitable: Awaitable[T]) -> T:
        """Await directly, as a blocking call cannot be cancelled."""
        return await awaitable

    async def cancelled_once(self, awaitable: Awaitable[T]) -> T:
        """Await directly, as a blocking call cannot be cancelled."""
        return await awaitable

    def raise_if_cancelled(self) -> None:
        """Do nothing, as a blocking call cannot be cancelled."""

    @asynccontextmanager
    async def alive(self, thread_id: str, key: str, intent_id: str) -> AsyncIterator[None]:
        """Renew the liveness of an attempt while it is in progress."""
        with self._pulse.beating(thread_id, key, intent_id):
            self._start_beating()
            yield

    @asynccontextmanager
    async def lend(self) -> AsyncIterator[tuple[Any, Connection]]:
        """Return a connection with an open transaction."""
        with self._database.lend() as borrowed:
            yield borrowed

    def close(self) -> None:
        """Stop the thread. Attempts in progress are no longer renewed."""
        self._wake.set()
        if self._beater is not None:
            self._beater.join()

    def _start_beating(self) -> None:
        with self._beat_lock:
            if self._beater is None:
                self._beater = threading.Thread(target=self._beat, name="pgstate-tools-alive", daemon=True)
                self._beater.start()

    def _beat(self) -> None:
        while not self._wake.wait(self._pulse.ttl_seconds / 3):
            with self._beat_lock:
                attempts = self._pulse.attempts()
                if not attempts:
                    self._beater = None
                    return
            run_blocking(self._pulse.renew(self, self._queries, attempts))


class AsyncExecutor(AsyncRunner):
    """The async executor. A task renews liveness, and ends when no attempt is in progress."""

    def __init__(self, database: AsyncDatabase, queries: Queries, ttl_seconds: float) -> None:
        super().__init__(database)
        self._queries = queries
        self._pulse = _Pulse(ttl_seconds)
        self._beater: asyncio.Task[None] | None = None

    async def call(self, function: Callable[[], Any]) -> Any:
        """Call a user's function, asynchronous or not."""
        answer = function()
        return await answer if inspect.isawaitable(answer) else answer

    async def act(self, function: Callable[[], Any], seconds: float | None, late: Late) -> Any:
        """Call a tool, and cancel it after its timeout."""
        if seconds is None:
            return await self.call(function)
        task = asyncio.ensure_future(self.call(function))
        try:
            done, _ = await asyncio.wait({task}, timeout=seconds)
        except asyncio.CancelledError:
            task.cancel()
            with suppress(BaseException):
                await asyncio.wait({task})
            raise
        if done:
            return task.result()
        task.cancel()
        await asyncio.wait({task}, timeout=1.0)
        if task.done() and not task.cancelled() and task.exception() is None:
            # It ended just before it was cancelled.
            return task.result()
        raise Overdue

    async def act_on(self, connection: Any, function: Callable[[], Any], seconds: float | None) -> Any:
        """Call a tool that works on a connection. After its timeout, cancel it and close the connection."""
        if seconds is None:
            return await self.call(function)
        deadline = time.monotonic() + seconds
        task = asyncio.ensure_future(self.call(function))
        # Retrieve the exception so that asyncio does not log it.
        task.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
        try:
            await asyncio.wait({task}, timeout=seconds)
            if not task.done() or time.monotonic() > deadline:
                raise Overdue
            return task.result()
        finally:
            if not task.done():
                await self.to_the_end(self._take_away(connection, task))

    async def _take_away(self, connection: Any, task: asyncio.Future[Any]) -> None:
        # psycopg cancels the statement of a task that is cancelled.
        task.cancel()
        await asyncio.wait({task}, timeout=_GRACE)
        if not task.done():
            await arevoke(connection)

    async def to_the_end(self, awaitable: Awaitable[T]) -> T:
        """Wait for something even if the caller is cancelled meanwhile, any number of times."""
        return await _join(asyncio.ensure_future(awaitable), cancels=False)

    async def cancelled_once(self, awaitable: Awaitable[T]) -> T:
        """Wait for something that is cancelled with the caller, but only once, and wait until it has ended.

        anyio cancels a task in every iteration of the event loop until it ends. A second cancellation makes psycopg
        close the connection during a statement, which the server may still commit.
        """
        return await _join(asyncio.ensure_future(awaitable), cancels=True)

    def raise_if_cancelled(self) -> None:
        """Raise if the caller was cancelled and the awaited code swallowed the cancellation."""
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise asyncio.CancelledError

    @asynccontextmanager
    async def alive(self, thread_id: str, key: str, intent_id: str) -> AsyncIterator[None]:
        """Renew the liveness of an attempt while it is in progress."""
        with self._pulse.beating(thread_id, key, intent_id):
            if self._beater is None or self._beater.done():
                # The task outlives this call, so it gets a context of its own.
                context = contextvars.Context()
                self._beater = asyncio.get_running_loop().create_task(self._beat(), context=context)
            yield

    def lend(self) -> AbstractAsyncContextManager[tuple[Any, Connection]]:
        """Return a connection with an open transaction."""
        return self._database.lend()

    async def close(self) -> None:
        """Stop the task. Attempts in progress are no longer renewed."""
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
            await self._pulse.renew(self, self._queries, attempts)


class OffloadingExecutor(AsyncExecutor):
    """An async executor over a blocking database, for a blocking ledger in a graph that runs on an event loop."""

    def __init__(self, executor: BlockingExecutor) -> None:
        self._blocking = executor

    @property
    def is_borrowed(self) -> bool:
        """Whether the only connection is one of the caller's."""
        return self._blocking.is_borrowed

    async def run(
        self, operation: Callable[Concatenate[Connection, P], Awaitable[T]], /, *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Run an operation on the database in a worker thread. It cannot be cancelled; the caller waits for it."""
        return await self.to_the_end(asyncio.to_thread(self._blocking._database.run, operation, *args, **kwargs))

    @asynccontextmanager
    async def alive(self, thread_id: str, key: str, intent_id: str) -> AsyncIterator[None]:
        """Renew the liveness of an attempt while it is in progress."""
        async with self._blocking.alive(thread_id, key, intent_id):
            yield

    def lend(self) -> AbstractAsyncContextManager[tuple[Any, Connection]]:
        """Raise, because a blocking connection would block the event loop."""
        raise ToolSetupError(
            "a transactional tool in a graph that runs on an event loop needs an asynchronous ledger (AsyncPGState)"
        )


async def _join(task: asyncio.Future[T], *, cancels: bool) -> T:
    """Wait until a task has ended, and only then raise the caller's cancellation."""
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
