"""Revocation of connections that a thread or task may still be using.

Another thread or the event loop may still wait on the connection's file descriptor. If the connection were closed, the
next connection could get the same descriptor. So the socket is shut down. Waiters then find the connection lost, and
the server rolls back.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from typing import Final

import psycopg
from psycopg.pq import TransactionStatus

from langgraph_pgstate.db.adapters import AsyncPsycopgConnection, PsycopgConnection

_WAIT_SECONDS: Final = 1.0

_log = logging.getLogger(__name__)


def interrupt(connection: PsycopgConnection) -> bool:
    """Cancel the statement that another thread runs on a connection. Return whether there was such a statement.

    The server receives the request before this returns, so later statements are not cancelled.
    """
    if connection.pgconn.transaction_status != TransactionStatus.ACTIVE:
        return False
    try:
        connection.cancel_safe(timeout=_WAIT_SECONDS)
    except psycopg.Error as error:
        _log.warning("a statement could not be cancelled: %s", error)
    return True


def revoke(connection: PsycopgConnection) -> None:
    """Close a connection, even if another thread uses it, and roll back its transaction."""
    _shut_down(connection)
    # `_shut_down` wakes a thread that waits inside libpq, and that thread then releases the lock. A thread that keeps
    # the lock longer is not inside libpq, so closing the connection is safe.
    held = connection.lock.acquire(timeout=_WAIT_SECONDS)
    try:
        # Not `close()`, which may return the connection to its pool.
        connection.pgconn.finish()
    finally:
        if held:
            connection.lock.release()


async def arevoke(connection: AsyncPsycopgConnection) -> None:
    """Async twin of `revoke`."""
    _shut_down(connection)
    held = True
    try:
        # A task may wait in a COPY without the lock. Let the event loop wake the task before the connection is closed.
        await asyncio.sleep(_WAIT_SECONDS / 20)
        async with asyncio.timeout(_WAIT_SECONDS):
            await connection.lock.acquire()
    except TimeoutError:
        held = False
    try:
        connection.pgconn.finish()
    finally:
        if held:
            connection.lock.release()


def _shut_down(connection: PsycopgConnection | AsyncPsycopgConnection) -> None:
    try:
        duplicate = socket.socket(fileno=connection.pgconn.socket)
    except (psycopg.Error, OSError):
        # The connection is lost already.
        return
    try:
        duplicate.shutdown(socket.SHUT_RDWR)
    except OSError as error:
        _log.debug("the connection was lost before it was revoked: %s", error)
    finally:
        # Detach, because libpq will close the descriptor.
        duplicate.detach()
