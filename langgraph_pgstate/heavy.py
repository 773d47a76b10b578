"""Work that takes milliseconds, run in threads so that the event loop goes on.

A process has two such threads: more of them would make the loop wait longer for the GIL.
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
"""Encoding or decoding more bytes than this takes milliseconds; moving the work to a thread takes an eighth of one."""
MANY_ELEMENTS: Final = 250
"""Encoding and comparing more elements of a list than this takes a millisecond."""
MANY_COMPARED: Final = 1000
"""Decoding or comparing more elements of a list than this takes milliseconds."""
MANY_VALUES: Final = 1000
"""Encoding more values than this takes milliseconds, if they are messages. Lists, objects and their items count."""
_ATOMS: Final = frozenset({int, float, bool, type(None)})
_THREADS: Final = 2


class TooHeavyError(Exception):
    """Work was begun on the event loop but would take too long there. The work has changed nothing."""


# Executors by process id, because a forked child has no threads of its parent.
_executors: dict[int, ThreadPoolExecutor] = {}
_turns: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = WeakKeyDictionary()


async def beside(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run a function in a thread, in the caller's context, and return its result.

    An event loop submits only as many functions as there are threads. It submits the next one when it has taken a
    result, so that results do not fill the memory while the loop is busy. If the caller is cancelled, the function
    still runs to its end, and its result is dropped.
    """
    pid, context = os.getpid(), contextvars.copy_context()
    executor = _executors.get(pid) or _executors.setdefault(pid, ThreadPoolExecutor(_THREADS, "pgstate-heavy"))
    loop = asyncio.get_running_loop()
    turns = _turns.get(loop) or _turns.setdefault(loop, asyncio.Semaphore(_THREADS))
    async with turns:
        return await loop.run_in_executor(executor, lambda: context.run(function, *args, **kwargs))


async def compute(weighed: Any, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Return the result of a function. If the weighed values are heavy, the function runs in a thread."""
    return await beside(function, *args, **kwargs) if is_heavy(weighed) else function(*args, **kwargs)


def has_many_values(value: Any) -> bool:
    """Return whether a value holds so many values that encoding it takes milliseconds. Lengths of strings do not count.

    A thread would not help with a long string: it is encoded by one call, which stops the event loop in any case.
    """
    return is_heavy(value, size=sys.maxsize)


def is_heavy(value: Any, *, size: int = HEAVY_BYTES) -> bool:
    """Return whether encoding or decoding a value takes milliseconds. Reads only a part of a large value."""
    return min(room_beside(value, size, MANY_VALUES)) < 0


def room_beside(value: Any, size: int, count: int) -> tuple[int, int]:
    """Return what remains of two limits, `size` and `count`, after a value was counted.

    The lengths of strings are subtracted from `size`; the number of lists, objects and items is subtracted from
    `count`. If a result is negative, the value exceeds this limit, and the rest of the value was not read.
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
