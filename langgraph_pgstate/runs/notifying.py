"""Notifications that wake workers, at most one in ten milliseconds.

PostgreSQL takes one lock for the whole cluster when a transaction that notifies commits, so that many of them would
wait for one another. A notification is only a hint: workers poll, too.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from typing import Final

from langgraph_pgstate.db.database import AsyncDatabase, Database
from langgraph_pgstate.errors import PGStateError
from langgraph_pgstate.operations.runs import enqueue
from langgraph_pgstate.sql import Queries

_INTERVAL: Final = 0.01
_log = logging.getLogger("langgraph_pgstate.runs")


class Notifier:
    """Sends notifications on the connections of a database. Thread-safe."""

    def __init__(self, database: Database, queries: Queries) -> None:
        self._database, self._queries = database, queries
        self._lock = threading.Lock()
        self._next = 0.0
        self._is_waiting = False

    def notify(self) -> None:
        """Notify now, or in a few milliseconds if this process has just notified. Raises nothing."""
        with self._lock:
            if self._is_waiting:
                return
            now = time.monotonic()
            wait = self._next - now
            self._next = max(now, self._next) + _INTERVAL
            self._is_waiting = wait > 0
        if wait > 0:
            timer = threading.Timer(wait, self._send)
            timer.daemon = True
            timer.start()
        else:
            self._send()

    def _send(self) -> None:
        # Before it is sent: a run that is enqueued from now on needs another notification.
        self._is_waiting = False
        try:
            self._database.run_once(enqueue.notify, self._queries)
        except PGStateError as error:
            _log.debug("workers were not notified: %s", error)


class AsyncNotifier:
    """Async twin of `Notifier`."""

    def __init__(self, database: AsyncDatabase, queries: Queries) -> None:
        self._database, self._queries = database, queries
        self._next = 0.0
        self._waiting: asyncio.Task[None] | None = None

    async def notify(self) -> None:
        """Async twin of `Notifier.notify`."""
        if self._waiting is not None:
            return
        now = time.monotonic()
        wait = self._next - now
        self._next = max(now, self._next) + _INTERVAL
        if wait > 0:
            self._waiting = asyncio.create_task(self._send_later(wait))
        else:
            await self._send()

    async def _send_later(self, wait: float) -> None:
        await asyncio.sleep(wait)
        self._waiting = None
        await self._send()

    async def _send(self) -> None:
        try:
            await self._database.run_once(enqueue.notify, self._queries)
        except PGStateError as error:
            _log.debug("workers were not notified: %s", error)
