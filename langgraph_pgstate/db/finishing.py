"""Steps on an event loop that end even if their caller is cancelled: taking, returning and closing a connection.

psycopg's pool loses a connection that is taken or returned in a cancelled task. So a step that has to wait continues in
its own task. A caller may be cancelled once (asyncio) or again at every await (anyio, Starlette).

`asyncio.wait_for` is not used. Before Python 3.12, it can hide a cancellation if the awaited future is done at the same
moment. A task in a loop would then never end, because `asyncio.run` cancels each task only once.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Generator
from contextlib import AbstractContextManager, asynccontextmanager, suppress
from types import coroutine
from typing import Any, TypeVar

from langgraph_pgstate.heavy import in_thread, in_thread_or_here

T = TypeVar("T")

# The event loop holds only weak references to tasks.
_tasks: set[asyncio.Task[Any]] = set()


async def finish(step: Coroutine[Any, Any, T]) -> T:
    """Run a step. A cancelled caller returns at once, and the step goes on."""
    task, result = _begin(step)
    if task is None:
        return result  # type: ignore[return-value]
    await asyncio.wait([task])
    return task.result()


async def complete(step: Coroutine[Any, Any, T]) -> T:
    """Run a step. A cancelled caller waits until the step has ended."""
    task, result = _begin(step)
    if task is None:
        return result  # type: ignore[return-value]
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled
    return task.result()


async def take(step: Coroutine[Any, Any, T], give_back: Callable[[T], Coroutine[Any, Any, object]]) -> T:
    """Run a step that acquires a resource. A cancelled caller returns at once, and the step is cancelled, too.

    If the step still acquires the resource, `give_back` releases the resource.
    """
    task, result = _begin(step)
    if task is None:
        return result  # type: ignore[return-value]
    try:
        await asyncio.wait([task])
    except BaseException:
        task.cancel()
        task.add_done_callback(lambda done: _give_back(done, give_back))
        raise
    return task.result()


async def pause(event: asyncio.Event, seconds: float | None = None) -> None:
    """Wait in a background task for an event, with a timeout.

    Raises:
        CancelledError: If the task is cancelled, even if an awaited call hid the cancellation.
    """
    raise_if_cancelled()
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()


def raise_if_cancelled() -> None:
    """Raise `CancelledError` in a background task if an awaited call has hidden a cancellation."""
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError


@asynccontextmanager
async def entered_in_thread(manager: AbstractContextManager[T]) -> AsyncIterator[T]:
    """Enter and leave a blocking context manager in other threads. A cancelled caller waits until it has been left.

    If no thread can be started, it is left in the calling thread.
    """

    def leave() -> Coroutine[Any, Any, object]:
        return in_thread_or_here(manager.__exit__, None, None, None)

    try:
        entered = await complete(in_thread(manager.__enter__))
    except asyncio.CancelledError:
        await complete(leave())
        raise
    try:
        yield entered
    finally:
        await complete(leave())


def _give_back(taking: asyncio.Task[T], give_back: Callable[[T], Coroutine[Any, Any, object]]) -> None:
    if not taking.cancelled() and taking.exception() is None:
        _begin(give_back(taking.result()))


def _begin(step: Coroutine[Any, Any, T]) -> tuple[asyncio.Task[T] | None, T | None]:
    """Run a step until it has to wait. Return the task that continues the step, or the result if it has ended."""
    if sys.version_info >= (3, 12):
        task = asyncio.Task(step, loop=asyncio.get_running_loop(), eager_start=True)
        if task.done():
            return None, task.result()
    else:
        try:
            waits_for = step.send(None)
        except StopIteration as stop:
            return None, stop.value
        task = asyncio.get_running_loop().create_task(_go_on(step, waits_for))
    _tasks.add(task)
    task.add_done_callback(_forget)
    return task, None


@coroutine
def _go_on(step: Coroutine[Any, Any, T], waits_for: Any) -> Generator[Any, Any, T]:
    """Drive a coroutine that already waits for a future."""
    while True:
        try:
            try:
                sent = yield waits_for
            except BaseException as error:
                waits_for = step.throw(error)
            else:
                waits_for = step.send(sent)
        except StopIteration as stop:
            result: T = stop.value
            return result


def _forget(task: asyncio.Task[Any]) -> None:
    _tasks.discard(task)
    # Retrieve the exception so that asyncio does not log it.
    if not task.cancelled():
        task.exception()
