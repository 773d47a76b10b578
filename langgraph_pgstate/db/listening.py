"""Notifications of PostgreSQL. Some may be lost, so callers also poll."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

import psycopg
from psycopg import sql

from langgraph_pgstate.db.connecting import connection_options
from langgraph_pgstate.heavy import start_thread

_PAUSE_SECONDS: Final = 1.0
_CONNECT_SECONDS: Final = 10.0


class Listener:
    """A thread that calls a function whenever a notification arrives on a channel.

    The function gets the notification's payload, and must not block. The thread connects again after an outage. No
    notification arrives through a pooler that shares connections between transactions.

    Raises:
        UnavailableError: If no thread can be started.
    """

    def __init__(self, dsn: str, channel: str, call: Callable[[str], None]) -> None:
        self._dsn, self._channel, self._call = dsn, channel, call
        self._options = connection_options(dsn, None, _CONNECT_SECONDS)
        self._is_closed = threading.Event()
        self._thread = start_thread(self._listen, "pgstate-listener")

    def close(self) -> None:
        """Stop the thread. Does not wait for it."""
        self._is_closed.set()

    def _listen(self) -> None:
        while not self._is_closed.is_set():
            try:
                with psycopg.connect(self._dsn, **self._options) as connection:
                    connection.execute(sql.SQL("LISTEN {}").format(sql.Identifier(self._channel)))
                    while not self._is_closed.is_set():
                        for notification in connection.notifies(timeout=_PAUSE_SECONDS, stop_after=1):
                            self._call(notification.payload)
            except psycopg.Error:
                self._is_closed.wait(_PAUSE_SECONDS)
