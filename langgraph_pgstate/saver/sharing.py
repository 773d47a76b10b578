"""Work that several tasks request at once and that runs once for all of them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable


class Shared:
    """Idempotent work that runs at most once at a time for each key.

    A request during a run makes the work run once more, from the beginning, before any caller returns. All callers then
    return in the order of their requests: LangGraph's Agent Server deletes twice at once for a run, and answers "Run
    not found" if its second deletion returns first.
    """

    def __init__(self) -> None:
        self._tasks: dict[Hashable, asyncio.Task[None]] = {}
        self._asked: set[Hashable] = set()

    async def do(self, key: Hashable, work: Callable[[], Awaitable[None]]) -> None:
        """Run the work of a key. Cancelling one caller cancels neither the work nor another caller.

        Raises:
            BaseException: The exception of the work, for each caller.
        """
        self._asked.add(key)
        task = self._tasks.get(key)
        if task is None:
            task = self._tasks[key] = asyncio.get_running_loop().create_task(self._work(key, work))
        await asyncio.shield(task)

    async def _work(self, key: Hashable, work: Callable[[], Awaitable[None]]) -> None:
        try:
            while key in self._asked:
                self._asked.discard(key)
                await work()
        finally:
            self._asked.discard(key)
            del self._tasks[key]
