"""Taking a connection away from who still uses it: a thread that cannot be stopped, a task that does not end.

Closing it under them is not safe: a file descriptor that another thread or the event loop still waits for may be the
next connection's. Shutting its socket down is: whoever waits finds the connection lost, and the server rolls back.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from typing import Final

import psycopg
from psycopg.pq import TransactionStatus

from langgraph_pgstate.db.adapters import AsyncPsycopgConnection, PsycopgConnection

_PATIENCE: Final = 1.0

_log = logging.getLogger(__name__)


def interrupt(connection: PsycopgConnection) -> bool:
    """Cancel the statement that another thread has under way on a connection; whether there was one.

    When this returns, the server has been told: what is sent on the connection afterwards is not hit.
    """
    if connection.pgconn.transaction_status != TransactionStatus.ACTIVE:
        return False
    try:
        connection.cancel_safe(timeout=_PATIENCE)
    except psycopg.Error as error:
        _log.warning("a statement could not be cancelled: %s", error)
    return True


def revoke(connection: PsycopgConnection) -> None:
    """Make a connection useless for everybody, a thread that uses it just now included. Its transaction is rolled back.

    Afterwards it is closed; a pool replaces it.
    """
    _shut_down(connection)
    # Whoever waited for an answer lets go of it now. Who keeps the lock for something else is not inside of libpq.
    held = connection.lock.acquire(timeout=_PATIENCE)
    try:
        # `close()` may hand a connection back to its pool instead.
        connection.pgconn.finish()
    finally:
        if held:
            connection.lock.release()


async def arevoke(connection: AsyncPsycopgConnection) -> None:
    """Async twin of `revoke`."""
    _shut_down(connection)
    held = True
    try:
        # Who waits without the lock, for a COPY, hears of it in the next turn of the loop.
        await asyncio.sleep(_PATIENCE / 20)
        await asyncio.wait_for(connection.lock.acquire(), _PATIENCE)
    except TimeoutError:
        held = False
    try:
        connection.pgconn.finish()
    finally:
        if held:
            connection.lock.release()


def _shut_down(connection: PsycopgConnection | AsyncPsycopgConnection) -> None:
    try:
        twin = socket.socket(fileno=connection.pgconn.socket)
    except (psycopg.Error, OSError):
        # It is lost already.
        return
    try:
        twin.shutdown(socket.SHUT_RDWR)
    except OSError as error:
        _log.debug("a connection was lost before it was taken away: %s", error)
    finally:
        # The descriptor is libpq's to close.
        twin.detach()
