"""Runners: a blocking and an async database behind one protocol, for code that both APIs share.

Such code awaits nothing but its runner. A blocking runner never suspends, so `run_blocking` runs it to its end.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from langgraph_pgstate.db.adapters import run_blocking
from langgraph_pgstate.db.database import AsyncDatabase, Database
from langgraph_pgstate.db.protocol import Connection, Read

T = TypeVar("T")
P = ParamSpec("P")


def blocking(method: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]) -> Callable[Concatenate[Any, P], T]:
    """Return a blocking method made of an async one, which awaits nothing but the runner of its object."""

    @wraps(method)
    def run(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return run_blocking(method(self, *args, **kwargs))

    return run


class Runner(Protocol):
    """A runner, blocking or async."""

    @property
    def is_borrowed(self) -> bool:
        """Whether the only connection is the caller's, who may also use it between calls."""
        ...

    async def run(
        self, operation: Callable[Concatenate[Connection, P], Awaitable[T]], /, *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Run an idempotent operation as `Database.run` does."""
        ...

    async def run_within(
        self,
        seconds: float,
        operation: Callable[Concatenate[Connection, P], Awaitable[T]],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        """Run an idempotent operation as `Database.run_within` does."""
        ...

    async def run_apart(
        self,
        seconds: float,
        operation: Callable[Concatenate[Connection, P], Awaitable[T]],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        """Run an idempotent operation as `Database.run_apart` does."""
        ...

    async def compute(self, weighed: Any, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Return what a function returns, as `heavy.compute` does if there is an event loop."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Sleep."""
        ...


class BlockingRunner:
    """A runner on a blocking database."""

    def __init__(self, database: Database) -> None:
        self.database = database

    @property
    def is_borrowed(self) -> bool:
        """Whether the only connection is the caller's."""
        return self.database.is_borrowed

    async def run(
        self, operation: Callable[Concatenate[Connection, P], Awaitable[T]], /, *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Run an operation without suspending."""
        return self.database.run(operation, *args, **kwargs)

    async def read(self, queries: Any, what: Read[T]) -> T:
        """Run a statement that reads without suspending."""
        return self.database.read(queries, what)

    async def run_within(
        self,
        seconds: float,
        operation: Callable[Concatenate[Connection, P], Awaitable[T]],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        """Run an operation without suspending."""
        return self.database.run_within(seconds, operation, *args, **kwargs)

    async def run_apart(
        self,
        seconds: float,
        operation: Callable[Concatenate[Connection, P], Awaitable[T]],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        """Run an operation without suspending."""
        return self.database.run_apart(seconds, operation, *args, **kwargs)

    async def compute(self, weighed: Any, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Return what a function returns."""
        return function(*args, **kwargs)

    async def sleep(self, seconds: float) -> None:
        """Sleep without suspending."""
        time.sleep(seconds)  # noqa: ASYNC251


class AsyncRunner:
    """A runner on an async database."""

    def __init__(self, database: AsyncDatabase) -> None:
        self.database = database

    @property
    def is_borrowed(self) -> bool:
        """Whether the only connection is the caller's."""
        return self.database.is_borrowed

    async def run(
        self, operation: Callable[Concatenate[Connection, P], Awaitable[T]], /, *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Run an operation."""
        return await self.database.run(operation, *args, **kwargs)

    async def run_within(
        self,
        seconds: float,
        operation: Callable[Concatenate[Connection, P], Awaitable[T]],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        """Run an operation."""
        return await self.database.run_within(seconds, operation, *args, **kwargs)

    async def run_apart(
        self,
        seconds: float,
        operation: Callable[Concatenate[Connection, P], Awaitable[T]],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        """Run an operation."""
        return await self.database.run_apart(seconds, operation, *args, **kwargs)

    async def compute(self, weighed: Any, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Return what a function returns, beside the event loop if it takes milliseconds."""
        return await self.database.compute(weighed, function, *args, **kwargs)

    async def sleep(self, seconds: float) -> None:
        """Sleep."""
        await asyncio.sleep(seconds)
