"""Sessions of the test server that are used again: a new one reads the catalogs first, which takes longer than a test.

`DISCARD ALL` resets a closed session, as behind a pooler. The next connection gets it.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict
from psycopg.pq import ExecStatus, PGconn, PipelineStatus, TransactionStatus
from psycopg.pq.abc import PGconn as Session

_MOST = 10
# Parameters of the connection that do not name the server.
_NETWORK = {"connect_timeout", "tcp_user_timeout", "keepalives_idle", "keepalives_interval", "keepalives_count"}


class Sessions:
    """Sessions that wait to be used again.

    Args:
        dsn: The server. Sessions of another database, role or name, and those through a proxy, are not kept.
    """

    def __init__(self, dsn: str) -> None:
        self._target = _target_of(dsn)
        self._kept: dict[tuple[int, str], list[Session]] = defaultdict(list)
        # The session that a closed connection has instead.
        self._ended = PGconn.connect_start(b"host=127.0.0.1 port=1")
        self._ended.finish()

    def take(self, conninfo: str) -> Session | None:
        """Return a waiting session, if there is one."""
        # A forked child has its parent's sessions in its memory.
        kept = self._kept[os.getpid(), conninfo]
        while kept:
            session = kept.pop()
            # A test may have ended it.
            if session.exec_(b"").status == ExecStatus.EMPTY_QUERY:
                return session
            session.finish()
        return None

    def mark(self, connection: Any, conninfo: str) -> None:
        """Remember a connection whose session may be kept when it is closed."""
        if _target_of(conninfo) == self._target:
            connection._kept_as = os.getpid(), conninfo

    def keep(self, connection: Any) -> None:
        """Take the session from a connection that is about to be closed, unless it is in use."""
        key, session = getattr(connection, "_kept_as", None), connection.pgconn
        is_idle = session.transaction_status == TransactionStatus.IDLE
        if key is None or key[0] != os.getpid() or not is_idle or session.pipeline_status != PipelineStatus.OFF:
            return
        if len(self._kept[key]) < _MOST and session.exec_(b"DISCARD ALL").status == ExecStatus.COMMAND_OK:
            while session.notifies():
                pass
            connection.pgconn = self._ended
            self._kept[key].append(session)

    def close(self) -> None:
        """End the waiting sessions."""
        for kept in self._kept.values():
            while kept:
                kept.pop().finish()


@contextmanager
def kept_sessions(dsn: str) -> Iterator[None]:
    """Keep the sessions that are closed within the block."""
    sessions = Sessions(dsn)
    connect = psycopg.BaseConnection._connect_gen.__func__  # type: ignore[attr-defined]
    close, close_async = psycopg.Connection.close, psycopg.AsyncConnection.close

    def connect_again(cls: Any, conninfo: str = "", **options: Any) -> Any:
        kept = sessions.take(conninfo)
        connection = (yield from connect(cls, conninfo, **options)) if kept is None else cls(kept)
        sessions.mark(connection, conninfo)
        return connection

    def keep(connection: Any) -> None:
        # The connection may be returned to a pool.
        if not getattr(getattr(connection, "_pool", None), "close_returns", False):
            sessions.keep(connection)
        close(connection)

    async def keep_async(connection: Any) -> None:
        if not getattr(getattr(connection, "_pool", None), "close_returns", False):
            sessions.keep(connection)
        await close_async(connection)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(psycopg.BaseConnection, "_connect_gen", classmethod(connect_again))
        patch.setattr(psycopg.Connection, "close", keep)
        patch.setattr(psycopg.AsyncConnection, "close", keep_async)
        yield
    sessions.close()


def _target_of(conninfo: str) -> dict[str, Any]:
    return {name: value for name, value in conninfo_to_dict(conninfo).items() if name not in _NETWORK}
