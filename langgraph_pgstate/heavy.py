"""Slow computations, run in threads so that the event loop goes on.

A process has two such threads. With more threads, the loop would wait longer for the GIL.
"""

from __future__ import annotations

import asyncio
import contextvars
import os
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, ParamSpec, TypeVar
from weakref import WeakKeyDictionary

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


async def beside(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run a function in a thread, in the caller's context, and return its result.

    An event loop submits no more functions than there are threads. It submits the next function when it has taken a
    result, so that results do not fill the memory. If the caller is cancelled, the function still runs to its end.
    """
    pid, context = os.getpid(), contextvars.copy_context()
    executor = _executors.get(pid) or _executors.setdefault(pid, ThreadPoolExecutor(_THREADS, "pgstate-heavy"))
    loop = asyncio.get_running_loop()
    turns = _turns.get(loop) or _turns.setdefault(loop, asyncio.Semaphore(_THREADS))
    async with turns:
        return await loop.run_in_executor(executor, lambda: context.run(function, *args, **kwargs))


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
