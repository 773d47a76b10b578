"""Threads and tasks that code on an event loop starts, and that may outlive this code.

A cancelled task ends at once, but a thread that it has started continues to the end of its function. Threads of
`loop.run_in_executor` are followed, as of `asyncio.to_thread` and of LangChain's blocking tools and nodes. Threads of
`threading` and `anyio.to_thread` are not followed.
"""

from __future__ import annotations

import asyncio
import contextvars
import gc
import threading
from asyncio import AbstractEventLoop
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Executor, Future
from contextlib import contextmanager
from typing import Any, TypeVar

from langgraph_pgstate.langgraph_compat import current_run

T = TypeVar("T")

# Runs of LangGraph and the work that follows them, by `id(run)`. The run is kept, so that its id is not used again.
_runs: dict[int, tuple[Any, StartedWork]] = {}
_works: contextvars.ContextVar[tuple[StartedWork, ...]] = contextvars.ContextVar("pgstate_started_work", default=())


class StartedWork:
    """Threads of executors, and tasks, that one piece of code started on an event loop.

    The code's context refers to its `StartedWork`, and tasks and threads inherit the context. Threads and tasks of an
    inner `StartedWork` also belong to the outer `StartedWork`.

    Example:
        >>> work = StartedWork()
        >>> task = work.start(call_the_tool())
        >>> task.cancel()
        >>> await work.ended()  # the tool's threads have ended, too
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._is_stopped = self._has_waited = self._has_begun = self._has_refused = False
        self._threads: set[_Thread] = set()

    def start(self, coroutine: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run a coroutine as a task, and follow the threads and tasks that it starts."""
        loop = asyncio.get_running_loop()
        _follow(loop)
        context = contextvars.copy_context()
        context.run(_works.set, (*_works.get(), self))
        task = loop.create_task(coroutine, context=context)
        # The event loop calls `_note_wait` when the task waits for the first time.
        loop.call_soon(self._note_wait)
        return task

    def follow_run(self, run: Any, loop: AbstractEventLoop) -> bool:
        """Follow the threads that the nodes of a LangGraph run start. Return false if the run is followed already."""
        _follow(loop)
        is_new = id(run) not in _runs
        _runs.setdefault(id(run), (run, self))
        return is_new

    def forget_run(self, run: Any) -> None:
        """Stop following threads of a run."""
        _runs.pop(id(run), None)

    def stop(self) -> bool:
        """Refuse functions that no thread has begun, and all later functions. Return whether a thread is running."""
        with self._lock:
            self._is_stopped = True
            threads = list(self._threads)
        running = [thread for thread in threads if not thread.refuse()]
        return bool(running)

    @property
    def has_threads(self) -> bool:
        """Whether a thread is running or waiting to run."""
        with self._lock:
            return bool(self._threads)

    @property
    def was_refused(self) -> bool:
        """Whether the work has done nothing, because its first thread was refused."""
        return self._has_refused and not self._has_begun

    def tasks(self) -> set[asyncio.Task[Any]]:
        """Return the work's tasks on this event loop that have not ended, without the calling task."""
        others = asyncio.all_tasks() - {asyncio.current_task()}
        return {task for task in others if self in _works_of(task)}

    async def threads_ended(self) -> None:
        """Wait until no thread is running."""
        while True:
            with self._lock:
                ends = [asyncio.wrap_future(thread.ended) for thread in self._threads]
            if not ends:
                return
            await asyncio.wait(ends)

    async def ended(self) -> None:
        """Wait until no thread and no task is running."""
        while True:
            await self.threads_ended()
            if not (tasks := self.tasks()):
                return
            await asyncio.wait(tasks)

    def when_threads_ended(self, function: Callable[[], Any]) -> None:
        """Call a function when no thread is left, perhaps at once, from any thread. No event loop is needed."""
        with self._lock:
            thread = next(iter(self._threads), None)
        if thread is None:
            function()
        else:
            thread.ended.add_done_callback(lambda _: self.when_threads_ended(function))

    def _note_wait(self) -> None:
        self._has_waited = True

    def _add(self, thread: _Thread) -> None:
        with self._lock:
            # If the task has waited before this thread, the task has already done other work.
            self._has_begun |= self._has_waited
            self._threads.add(thread)
            is_stopped = self._is_stopped
        if is_stopped:
            thread.refuse()

    def _remove(self, thread: _Thread) -> None:
        with self._lock:
            self._threads.discard(thread)


@contextmanager
def not_followed() -> Iterator[None]:
    """Do not follow the threads and tasks that code starts in this block."""
    token = _works.set(())
    try:
        yield
    finally:
        _works.reset(token)


class _Thread:
    """One function that was given to an executor.

    Attributes:
        ended: Done when the function has ended, or cannot begin any more. It cannot be cancelled.

    Raises:
        CancelledError: If the work was stopped.
    """

    def __init__(self, works: tuple[StartedWork, ...]) -> None:
        self.ended: Future[None] = Future()
        self.ended.set_running_or_notify_cancel()
        self._works = works
        self._lock = threading.Lock()
        self._has_begun = self._is_refused = False
        for work in works:
            work._add(self)
        if self._is_refused:
            raise asyncio.CancelledError("the function was not started, because its caller was stopped")

    def begin(self) -> None:
        """Remember that a thread runs the function, or raise `CancelledError` if the function was refused."""
        with self._lock:
            if not self._is_refused:
                self._has_begun = True
                for work in self._works:
                    work._has_begun = True
                return
        raise asyncio.CancelledError("the function was not run, because its caller was stopped before")

    def refuse(self) -> bool:
        """Keep the function from beginning. Return whether it has not begun."""
        with self._lock:
            if self._has_begun or self._is_refused:
                return self._is_refused
            self._is_refused = True
            for work in self._works:
                work._has_refused = True
        self.end()
        return True

    def end(self) -> None:
        """Remember that the function has ended."""
        for work in self._works:
            work._remove(self)
        self.ended.set_result(None)


class _Submitted(_Thread):
    """One function that was given to the caller's own executor."""

    future: Future[Any] | None = None

    def refuse(self) -> bool:
        """Keep the function from beginning. Return whether it has not begun."""
        return super().refuse() if self.future is None else self.future.cancel()


class _Submitting(Executor):
    """The caller's own executor. Functions are not wrapped, because a process pool must pickle them."""

    def __init__(self, executor: Executor, works: tuple[StartedWork, ...]) -> None:
        self._executor, self._works = executor, works

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        """Submit a function."""
        thread = _Submitted(self._works)
        thread.begin()
        try:
            future = self._executor.submit(fn, *args, **kwargs)
        except BaseException:
            thread.end()
            raise
        future.add_done_callback(lambda _: thread.end())
        thread.future = future
        return future


def _follow(loop: AbstractEventLoop) -> None:
    """Make an event loop follow the threads that a `StartedWork` starts."""
    original = loop.run_in_executor
    if getattr(original, "is_followed", False):
        return

    def run_in_executor(executor: Executor | None, func: Callable[..., Any], *args: Any) -> Any:
        works = _current_works()
        if not works:
            return original(executor, func, *args)
        if executor is not None:
            return original(_Submitting(executor, works), func, *args)
        thread = _Thread(works)

        def followed() -> Any:
            thread.begin()
            try:
                return func(*args)
            finally:
                thread.end()

        try:
            future = original(None, followed)
        except BaseException:
            thread.refuse()
            raise
        # A function in the executor's queue never begins if its future is cancelled.
        future.add_done_callback(lambda _: thread.refuse())
        return future

    run_in_executor.is_followed = True  # type: ignore[attr-defined]
    loop.run_in_executor = run_in_executor  # type: ignore[method-assign, assignment]


def _current_works() -> tuple[StartedWork, ...]:
    works = _works.get()
    if _runs:
        _, work = _runs.get(id(current_run()), (None, None))
        if work is not None and work not in works:
            return *works, work
    return works


def _works_of(task: asyncio.Task[Any]) -> tuple[StartedWork, ...]:
    # Python 3.11 has no `get_context`.
    if hasattr(task, "get_context"):
        return tuple(task.get_context().get(_works, ()))
    context = next((item for item in gc.get_referents(task) if isinstance(item, contextvars.Context)), None)
    return () if context is None else context.get(_works, ())
