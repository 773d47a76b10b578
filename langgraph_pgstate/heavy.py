"""Blocking functions and slow computations, run in threads so that the event loop goes on.

A process has two threads for computations. With more threads, the loop would wait longer for the GIL.
"""

from __future__ import annotations

import asyncio
import contextvars
import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from typing import Any, Final, ParamSpec, TypeVar
from weakref import WeakKeyDictionary

from langgraph_pgstate.errors import UnavailableError

T = TypeVar("T")
P = ParamSpec("P")

HEAVY_BYTES: Final = 256 * 1024
"""More bytes than this are encoded or decoded in a thread, because that takes milliseconds."""
MANY_ELEMENTS: Final = 250
"""More elements of a list than this are encoded and compared in a thread."""
MANY_COMPARED: Final = 1000
"""More elements of a list than this are decoded or compared in a thread."""
MANY_VALUES: Final = 1000
"""More values than this are encoded in a thread. Lists, objects and their items count."""
_ATOMS: Final = frozenset({int, float, bool, type(None)})
_THREADS: Final = 2


class TooHeavyError(Exception):
    """Work on the event loop would take too long, and was given up. The work has changed nothing."""


# Executors by process id. A forked child does not have the parent's threads.
_executors: dict[int, ThreadPoolExecutor] = {}
_turns: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = WeakKeyDictionary()


def start_thread(function: Callable[[], object], name: str) -> threading.Thread:
    """Start a daemon thread. At exit, the interpreter does not wait for it, as it would for an executor's thread.

    Raises:
        UnavailableError: If no thread can be started: the process has too many, or the interpreter is about to exit.
    """
    thread = threading.Thread(target=function, name=name, daemon=True)
    start(thread)
    return thread


def start(thread: threading.Thread) -> None:
    """Start a thread.

    Raises:
        UnavailableError: As `start_thread` does.
    """
    try:
        thread.start()
    except RuntimeError as error:
        raise UnavailableError(f"no thread can be started: {error}") from error


async def in_thread(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run a function in a thread, as `asyncio.to_thread` does, and return its result.

    If the caller is cancelled, a function that has begun goes on to its end. One that has not begun is never called.

    Raises:
        UnavailableError: If no thread can be started. The function is then not called, also not later.
    """
    try:
        running = _begin(None, function, *args, **kwargs)
    except RuntimeError as error:
        raise UnavailableError(f"no thread can be started: {error}") from error
    return await running


async def in_thread_or_here(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run a function in a thread, or in the calling thread if no thread can be started, and return its result."""
    try:
        running = _begin(None, function, *args, **kwargs)
    except RuntimeError:
        return function(*args, **kwargs)
    return await running


def _begin(executor: Executor | None, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> asyncio.Future[T]:
    """Give a function to an executor. If the executor cannot start a thread, raise `RuntimeError`.

    The executor queues a function before it starts a thread, so that another thread may take the function although
    `submit` raises. The function is then not called, or its result is returned.
    """
    work, context = Future[T](), contextvars.copy_context()

    def run() -> T:
        if not work.set_running_or_notify_cancel():
            raise asyncio.CancelledError
        try:
            result = context.run(function, *args, **kwargs)
        except BaseException as error:
            work.set_exception(error)
            raise
        work.set_result(result)
        return result

    try:
        return asyncio.get_running_loop().run_in_executor(executor, run)
    except RuntimeError:
        if work.cancel():
            raise
        return asyncio.wrap_future(work)


async def beside(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run a function in a thread, in the caller's context, and return its result.

    If no thread can be started, the function runs in the calling thread.

    An event loop submits no more functions than there are threads. It submits the next function when it has taken a
    result, so that results do not fill the memory. If the caller is cancelled, the function still runs to its end.
    """
    pid = os.getpid()
    executor = _executors.get(pid) or _executors.setdefault(pid, ThreadPoolExecutor(_THREADS, "pgstate-heavy"))
    loop = asyncio.get_running_loop()
    turns = _turns.get(loop) or _turns.setdefault(loop, asyncio.Semaphore(_THREADS))
    async with turns:
        try:
            running = _begin(executor, function, *args, **kwargs)
        except RuntimeError:
            return function(*args, **kwargs)
        return await running


async def compute(weighed: Any, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Return the result of a function, which runs in a thread if `weighed` is heavy."""
    return await beside(function, *args, **kwargs) if is_heavy(weighed) else function(*args, **kwargs)


def has_many_values(value: Any) -> bool:
    """Return whether a value holds so many values that encoding it is slow.

    The lengths of strings do not count. One call encodes a long string, and stops the event loop even in a thread.
    """
    return is_heavy(value, size=sys.maxsize)


def is_heavy(value: Any, *, size: int = HEAVY_BYTES) -> bool:
    """Return whether encoding or decoding a value is slow enough to run in a thread. Reads a part of a large value."""
    return min(room_beside(value, size, MANY_VALUES)) < 0


def room_beside(value: Any, size: int, count: int) -> tuple[int, int]:
    """Subtract the lengths of a value's strings from `size`, and the number of lists, objects and items from `count`.

    Return both limits. If one of them is negative, the value exceeds this limit, and was not read to the end.
    """
    left = [value]
    while left:
        one = left.pop()
        kind = type(one)
        if kind is str or kind is bytes:
            size -= len(one)
        elif kind in _ATOMS:
            continue
        else:
            inner = one.values() if kind is dict else one if kind is list or kind is tuple else _fields_of(one)
            count -= 1 + len(inner)
            if count >= 0:
                left += inner
        if count < 0 or size < 0:
            break
    return size, count


def _fields_of(value: Any) -> list[Any]:
    slots = [getattr(value, name, None) for name in getattr(type(value), "__slots__", ())]
    return [*getattr(value, "__dict__", {}).values(), *slots]
