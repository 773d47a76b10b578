"""Gathering of calls on an event loop. Many small calls become a few large calls."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Generic, TypeVar

C = TypeVar("C")
R = TypeVar("R")


class Gathering(Generic[C, R]):
    """A runner of calls. It runs simultaneous calls together.

    If a caller is cancelled while its call waits, the call is dropped. Calls that run together are not cancelled.

    Args:
        run: Runs calls, and returns the result of each call. If several calls fail together, each call is run again
            alone, except after a retryable error.
        names: Returns the names of a call. Calls with a common name run one after another, in their order. The number
            of names is the size of the call.
        most: Maximum total size of calls that run together. A larger call runs alone.
        patience: Maximum seconds for which new calls wait for calls in progress. With 0, only calls in the same
            iteration of the event loop run together.
    """

    def __init__(
        self,
        run: Callable[[list[C]], Awaitable[Sequence[R]]],
        names: Callable[[C], Iterable[Hashable]],
        *,
        most: int,
        patience: float,
    ) -> None:
        self._run, self._names, self._most, self._patience = run, names, most, patience
        self._waiting: list[tuple[C, asyncio.Future[R]]] = []
        self._tasks: set[asyncio.Task[None]] = set()
        # The timer that ends the wait of new calls for calls in progress. `None` while no new call waits.
        self._waited_for: asyncio.TimerHandle | None = None
        self._is_beginning = False

    async def __call__(self, call: C) -> R:
        """Run a call, maybe together with other calls, and return its result."""
        if self._patience and self._waited_for is None and not self._waiting:
            with self._waiting_for():
                return (await self._run([call]))[0]
        future: asyncio.Future[R] = asyncio.get_running_loop().create_future()
        self._waiting.append((call, future))
        self._begin()
        return await future

    @contextmanager
    def _waiting_for(self) -> Iterator[None]:
        """Make new calls wait until the block ends, at most for `patience`."""
        timer = None
        if self._patience:
            timer = self._waited_for = asyncio.get_running_loop().call_later(self._patience, self._go_on)
        try:
            yield
        finally:
            if timer is not None and self._waited_for is timer:
                timer.cancel()
                self._go_on()

    def _go_on(self) -> None:
        self._waited_for = None
        self._begin()

    def _begin(self) -> None:
        if self._waiting and self._waited_for is None and not self._is_beginning:
            self._is_beginning = True
            # The calls run in their own task, because a caller may be cancelled.
            task = asyncio.get_running_loop().create_task(self._work(), name="pgstate-gathered")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _work(self) -> None:
        self._is_beginning = False
        taken = self._take()
        with self._waiting_for():
            if not self._patience:
                self._begin()
            if taken:
                await self._run_all(taken)

    def _take(self) -> list[tuple[C, asyncio.Future[R]]]:
        """Remove and return the first waiting calls that may run together."""
        taken: list[tuple[C, asyncio.Future[R]]] = []
        left: list[tuple[C, asyncio.Future[R]]] = []
        named: set[Hashable] = set()
        size = 0
        for one in self._waiting:
            if one[1].done():
                continue
            names = {*self._names(one[0])}
            if left or (taken and size + len(names) > self._most) or not named.isdisjoint(names):
                left.append(one)
                continue
            taken.append(one)
            named |= names
            size += len(names)
        self._waiting = left
        return taken

    async def _run_all(self, taken: Sequence[tuple[C, asyncio.Future[R]]]) -> None:
        try:
            results = await self._run([call for call, _ in taken])
        except Exception as error:
            if len(taken) > 1 and not getattr(error, "retryable", False):
                for one in taken:
                    await self._run_all([one])
                return
            for _, future in taken:
                if not future.done():
                    future.set_exception(error)
        except BaseException:
            for _, future in taken:
                future.cancel()
            raise
        else:
            for (_, future), result in zip(taken, results, strict=True):
                if not future.done():
                    future.set_result(result)
