"""Notifications that wake workers, and callers that wait for the end of a run.

A commit that notifies takes a lock of the whole PostgreSQL cluster. So a process notifies workers at most every ten
milliseconds. Notifications may be lost, so workers and waiting callers also poll.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final

from langgraph_pgstate.db.database import AsyncDatabase, Database
from langgraph_pgstate.db.listening import Listener
from langgraph_pgstate.db.tenants import wake_key
from langgraph_pgstate.errors import ConfigurationError, PGStateError, UnavailableError
from langgraph_pgstate.runs import enqueue
from langgraph_pgstate.schema.queries import Queries

_INTERVAL: Final = 0.01
_ENDED: Final = "pgstate_ended"
_log = logging.getLogger("langgraph_pgstate.runs")


class Notifier:
    """A sender of notifications on the connections of a database. Thread-safe. `notify` never suspends."""

    def __init__(self, database: Database, queries: Queries) -> None:
        self._database, self._queries = database, queries
        self._lock = threading.Lock()
        self._next = 0.0
        self._is_waiting = False

    def take_turn(self) -> bool:
        """Return whether the caller must notify. False if this process has notified a moment ago, or will notify."""
        with self._lock:
            now = time.monotonic()
            is_free = not self._is_waiting and now >= self._next
            if is_free:
                self._next = now + _INTERVAL
            return is_free

    async def notify(self) -> None:
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
            try:
                timer.start()
            except RuntimeError:
                # No thread can be started.
                self._send()
        else:
            self._send()

    def _send(self) -> None:
        # Clear the flag before sending, because a run that is enqueued from now on needs another notification.
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

    def take_turn(self) -> bool:
        """Async twin of `Notifier.take_turn`."""
        now = time.monotonic()
        is_free = (self._waiting is None or self._waiting.done()) and now >= self._next
        if is_free:
            self._next = now + _INTERVAL
        return is_free

    async def notify(self) -> None:
        """Async twin of `Notifier.notify`."""
        # A pending task will notify. A cancelled task is done, and will not notify.
        if self._waiting is not None and not self._waiting.done():
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


class EndListener:
    """A listener that wakes waiting callers and readers when workers report that runs have ended. Thread-safe.

    The first `calling` opens a connection that listens until `close`. If the connection cannot listen, or no thread can
    be started, no function is called.
    """

    def __init__(self, database: Database | AsyncDatabase) -> None:
        self._database = database
        self._lock = threading.Lock()
        self._calls: dict[str | None, list[Callable[[], None]]] = {}
        self._listener: Listener | None = None

    @contextmanager
    def calling(self, run_id: str | None, call: Callable[[], None]) -> Iterator[None]:
        """Call a function in another thread whenever a worker reports the end of a run, within this context.

        The function must not block. With `None` as `run_id`, the function is never called.
        """
        key = None if run_id is None else wake_key(self._database.tenant, run_id)
        with self._lock:
            self._calls.setdefault(key, []).append(call)
            if self._listener is None:
                with suppress(ConfigurationError, UnavailableError):
                    self._listener = Listener(self._database.dsn, _ENDED, self._notice)
        try:
            yield
        finally:
            with self._lock:
                self._calls[key].remove(call)
                if not self._calls[key]:
                    del self._calls[key]

    def close(self) -> None:
        """Stop listening. A later `calling` listens again."""
        with self._lock:
            listener, self._listener = self._listener, None
        if listener is not None:
            listener.close()

    def _notice(self, payload: str) -> None:
        with self._lock:
            calls = [call for key in payload.split("\n") for call in self._calls.get(key, ())]
        for call in calls:
            call()


def on_loop(call: Callable[[], None]) -> Callable[[], None]:
    """Return a function by which any thread can make the running event loop call `call`."""
    loop = asyncio.get_running_loop()

    def schedule() -> None:
        # A closed loop raises `RuntimeError`.
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(call)

    return schedule
