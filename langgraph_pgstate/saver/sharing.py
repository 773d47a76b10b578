"""Work that several tasks ask for at once, done for all of them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable


class Shared:
    """Idempotent work, of which each key's is under way once at a time.

    Who asks while it is under way has it done once more, from the beginning, before anyone returns. All return at once,
    in the order in which they asked: LangGraph's Agent Server deletes for a run twice at once, and answers "Run not
    found" if its second deletion returns first.
    """

    def __init__(self) -> None:
        self._tasks: dict[Hashable, asyncio.Task[None]] = {}
        self._asked: set[Hashable] = set()

    async def do(self, key: Hashable, work: Callable[[], Awaitable[None]]) -> None:
        """Have the work of a key done. Cancelling one caller cancels neither the work nor another caller.

        Raises:
            BaseException: Whatever the work raises, for each caller.
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
