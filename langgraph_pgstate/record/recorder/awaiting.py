"""Callbacks that LangChain's async managers await, and its blocking managers call."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Generator
from typing import Any

from langgraph_pgstate.record.recorder.records import RunRecord


async def _coroutine() -> None:
    """Make `inspect.iscoroutinefunction` accept `Awaited`."""


class Awaited(functools.partial[Any]):
    """A callback that LangChain's async managers await and its blocking managers call.

    It looks like a coroutine function, so that async managers await it: `inspect.iscoroutinefunction` accepts a partial
    of a coroutine function. But it returns an awaitable that is no coroutine. Blocking managers, which LangGraph uses
    for conditional edges even on an event loop, would run a coroutine in another thread and block the loop.
    """

    _callback: Callable[..., Awaitable[None]]

    def __new__(cls, callback: Callable[..., Awaitable[None]]) -> Awaited:
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


class Mark:
    """An awaitable that sets `is_awaited` of a run."""

    def __init__(self, run: RunRecord) -> None:
        self._run = run

    def __await__(self) -> Generator[Any, None, None]:
        self._run.is_awaited = True
        return
        yield


class Later:
    """An awaitable that calls `begin` when awaited, and not before."""

    def __init__(self, begin: Callable[[], Awaitable[None]]) -> None:
        self._begin = begin

    def __await__(self) -> Generator[Any, None, None]:
        return self._begin().__await__()


NOTHING = _Nothing()
