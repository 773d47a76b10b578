"""Runners: a blocking and an async database behind one protocol, for code that both APIs share.

Shared code awaits only its runner. A blocking runner never suspends, so `run_blocking` can run shared code to its end.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import suppress
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from langgraph_pgstate.db.adapters import run_blocking
from langgraph_pgstate.db.database import AsyncDatabase, Database
from langgraph_pgstate.db.protocol import Connection, Read
from langgraph_pgstate.encryption.keys import KeyRing
from langgraph_pgstate.errors import BlockingCallError
from langgraph_pgstate.heavy import in_thread

T = TypeVar("T")
P = ParamSpec("P")


def blocking(method: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]) -> Callable[Concatenate[Any, P], T]:
    """Return the blocking twin of an async method that awaits only its object's runner."""

    @wraps(method)
    def run(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return run_blocking(method(self, *args, **kwargs))

    return run


def iterating(
    method: Callable[Concatenate[Any, P], AsyncIterator[T]],
) -> Callable[Concatenate[Any, P], Iterator[T]]:
    """Return the blocking twin of an async generator method that awaits only its object's runner."""

    @wraps(method)
    def run(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> Iterator[T]:
        items = method(self, *args, **kwargs)
        while True:
            try:
                item = run_blocking(anext(items))
            except StopAsyncIteration:
                return
            yield item

    return run


def wait_on_loop(loop: asyncio.AbstractEventLoop | None, coroutine: Coroutine[Any, Any, T], name: str, owner: str) -> T:
    """Run a coroutine on the event loop of another thread, and wait for the result.

    Args:
        loop: The loop; `None` if it is not known.
        coroutine: The coroutine.
        name: Name of the async method, for errors.
        owner: Name of the async class, for errors.

    Raises:
        BlockingCallError: If the calling thread runs the loop, or the loop does not run.
    """
    try:
        running = asyncio.get_running_loop()
    except RuntimeError:
        running = None
    if loop is None or running is loop or not loop.is_running():
        coroutine.close()
        twin = owner.removeprefix("Async")
        if running is None:
            raise BlockingCallError(
                f"{name} needs the event loop of this {owner}, which is not running; in a program without an event "
                f"loop, use {twin}"
            )
        raise BlockingCallError(f"{name} must not block the thread of its event loop: await {name}(...), or use {twin}")
    return asyncio.run_coroutine_threadsafe(coroutine, loop).result()


class Runner(Protocol):
    """A database, blocking or async, as shared code uses it. See `Database` for its methods."""

    @property
    def keys(self) -> KeyRing | None:
        """The data keys by which content is encrypted; `None` for none."""
        ...

    @property
    def tenant(self) -> str | None:
        """The only tenant whose rows operations see; `None` if tenants are not kept apart."""
        ...

    @property
    def is_borrowed(self) -> bool:
        """Whether the only connection belongs to the caller, who may also use it between calls."""
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
        """Return the result of a function. On an event loop, a slow function runs as in `heavy.compute`."""
        ...

    async def wait_for(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Return the result of a function that waits for something other than the database.

        On an event loop, the function runs in a thread. A cancelled caller waits until the function has ended.
        """
        ...

    async def sleep(self, seconds: float) -> None:
        """Sleep."""
        ...


class BlockingRunner:
    """The runner over a blocking database. Its methods never suspend."""

    def __init__(self, database: Database) -> None:
        self.database = database

    @property
    def keys(self) -> KeyRing | None:
        """The data keys by which content is encrypted; `None` for none."""
        return self.database.keys

    @property
    def tenant(self) -> str | None:
        """The only tenant whose rows the operations see."""
        return self.database.tenant

    @property
    def is_borrowed(self) -> bool:
        """Whether the only connection belongs to the caller."""
        return self.database.is_borrowed

    async def run(
        self, operation: Callable[Concatenate[Connection, P], Awaitable[T]], /, *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Run an operation without suspending."""
        return self.database.run(operation, *args, **kwargs)

    async def read(self, queries: Any, what: Read[T]) -> T:
        """Run a reading statement without suspending."""
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
        """Return the result of a function."""
        return function(*args, **kwargs)

    async def wait_for(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Return the result of a function."""
        return function(*args, **kwargs)

    async def sleep(self, seconds: float) -> None:
        """Sleep without suspending."""
        time.sleep(seconds)  # noqa: ASYNC251


class AsyncRunner:
    """The runner over an async database."""

    def __init__(self, database: AsyncDatabase) -> None:
        self.database = database

    @property
    def keys(self) -> KeyRing | None:
        """The data keys by which content is encrypted; `None` for none."""
        return self.database.keys

    @property
    def tenant(self) -> str | None:
        """The only tenant whose rows the operations see."""
        return self.database.tenant

    @property
    def is_borrowed(self) -> bool:
        """Whether the only connection belongs to the caller."""
        return self.database.is_borrowed

    async def run(
        self, operation: Callable[Concatenate[Connection, P], Awaitable[T]], /, *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Run an operation."""
        return await self.database.run(operation, *args, **kwargs)

    async def read(self, queries: Any, what: Read[T]) -> T:
        """Run a reading statement."""
        return await self.database.read(queries, what)

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
        """Return the result of a function. A slow function runs outside the event loop."""
        return await self.database.compute(weighed, function, *args, **kwargs)

    async def wait_for(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Return the result of a function that runs in a thread.

        A cancelled caller waits until the function has ended, and can then undo the work of the function.
        """
        working = asyncio.ensure_future(in_thread(function, *args, **kwargs))
        try:
            return await asyncio.shield(working)
        except asyncio.CancelledError:
            while not working.done():
                with suppress(asyncio.CancelledError):
                    await asyncio.wait([working])
            # Retrieve the exception so that asyncio does not log it.
            if not working.cancelled():
                working.exception()
            raise

    async def sleep(self, seconds: float) -> None:
        """Sleep."""
        await asyncio.sleep(seconds)
