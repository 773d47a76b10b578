"""Options of connections, pools that report why they cannot connect, and the DSN of a pool."""

from __future__ import annotations

import asyncio
import logging
import os
import queue
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final

import psycopg
from psycopg.conninfo import make_conninfo
from psycopg.pq import Conninfo
from psycopg_pool import AsyncConnectionPool, ConnectionPool, PoolTimeout

from langgraph_pgstate.db.adapters import AsyncPsycopgConnection, PsycopgConnection
from langgraph_pgstate.db.dsn import read_dsn
from langgraph_pgstate.db.finishing import complete, raise_if_cancelled
from langgraph_pgstate.db.translate import reason_of, refusal, unknown_host
from langgraph_pgstate.errors import ConfigurationError, UnavailableError
from langgraph_pgstate.options import PoolSettings

DEFAULT_PREPARE_THRESHOLD = 5
# With these options, libpq detects a vanished server within a minute. By default, this can take two hours.
_NETWORK = {"keepalives_idle": 30, "keepalives_interval": 10, "keepalives_count": 3, "tcp_user_timeout": 60_000}
# Maximum number of seconds to wait for a host to accept a connection.
_CONNECT_TIMEOUT = 10
# psycopg doubles the delay after each failed attempt to connect. After this many seconds, psycopg calls
# `_connect_again`, which starts with a short delay again.
_RECONNECT_SECONDS = 1.0
_PAUSE_SECONDS = 0.5
# Beginnings of the errors of a loop, or of its executor, that cannot start a thread. Python has no class for them.
_NO_THREAD: Final = ("can't start new thread", "can't create new thread", "cannot schedule new futures")
_OWN: Final = "_pgstate_own"
_POOL_NAME: Final = "pgstate"
_pool_log: Final = logging.getLogger("psycopg.pool")


class _Reported(logging.Filter):
    """Removes psycopg's log lines about failed attempts to connect, except at the level DEBUG.

    `Outage` logs one line for all attempts of an outage.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether a record is logged."""
        if record.levelno > logging.WARNING or _pool_log.isEnabledFor(logging.DEBUG):
            return True
        about = record.args[0] if isinstance(record.args, tuple) and record.args else None
        return about != _POOL_NAME and not hasattr(about, _OWN)


_pool_log.addFilter(_Reported())


class Connector:
    """The connection factory of a blocking pool. Its first call returns the connection `first`, if given.

    Attributes:
        error: The error of the last attempt to connect; `None` if it succeeded.
        callers: A token for each call that waits for a connection.
    """

    def __init__(self, *first: PsycopgConnection) -> None:
        self.error: Exception | None = None
        self.callers: set[object] = set()
        self._first = [*first]
        for one in first:
            setattr(one, _OWN, True)

    def connect(self, conninfo: str = "", **options: Any) -> PsycopgConnection:
        """Connect as `psycopg.Connection.connect` does, and store the error if there is one."""
        with suppress(IndexError):
            return self._first.pop()
        try:
            made = psycopg.Connection.connect(conninfo, **options)
        except Exception as error:
            self.error = error
            raise
        self.error = None
        setattr(made, _OWN, True)
        return made

    def close(self) -> None:
        """Close the first connection if the pool has not taken it."""
        while self._first:
            self._first.pop().close()


async def connect_async(conninfo: str, **options: Any) -> AsyncPsycopgConnection:
    """Connect as `psycopg.AsyncConnection.connect` does. Raise `OperationalError` also if no thread can be started."""
    try:
        return await psycopg.AsyncConnection.connect(conninfo, **options)
    except RuntimeError as error:
        # The event loop looks up the host's address in a thread.
        if not str(error).startswith(_NO_THREAD):
            raise
        raise psycopg.OperationalError(f"the host's address cannot be looked up: {error}") from error


class AsyncConnector:
    """Async twin of `Connector`."""

    def __init__(self, *first: AsyncPsycopgConnection) -> None:
        self.error: Exception | None = None
        self.callers: set[object] = set()
        self._first = [*first]
        for one in first:
            setattr(one, _OWN, True)

    async def connect(self, conninfo: str = "", **options: Any) -> AsyncPsycopgConnection:
        """Async twin of `Connector.connect`."""
        with suppress(IndexError):
            return self._first.pop()
        try:
            made = await connect_async(conninfo, **options)
        except Exception as error:
            self.error = error
            raise
        self.error = None
        setattr(made, _OWN, True)
        return made

    async def close(self) -> None:
        """Async twin of `Connector.close`."""
        while self._first:
            await self._first.pop().close()


def connector_of(pool: ConnectionPool[Any] | AsyncConnectionPool[Any] | None) -> Connector | AsyncConnector:
    """Return a pool's connector; an unused connector if the caller made the pool."""
    connector: object = getattr(pool, "connection_class", None)
    return connector if isinstance(connector, Connector | AsyncConnector) else Connector()


def _connect_again(pool: ConnectionPool[Any]) -> None:
    """Reconnect a pool that has given up, if a call waits for the pool. Otherwise the next call reconnects the pool."""
    if connector_of(pool).callers:
        pool.check()


async def _connect_again_async(pool: AsyncConnectionPool[Any]) -> None:
    if connector_of(pool).callers:
        await pool.check()


def connection_options(dsn: str, prepare_threshold: int | None, timeout: float) -> dict[str, Any]:
    """Return keyword arguments for connecting. Network settings in the DSN take precedence.

    Raises:
        ConfigurationError: If the DSN cannot be used, or the threshold is not a number.
    """
    is_number = isinstance(prepare_threshold, int) and not isinstance(prepare_threshold, bool)
    if prepare_threshold is not None and not (is_number and prepare_threshold >= 0):
        raise ConfigurationError(f"prepare_threshold must be a whole number or None, not {prepare_threshold!r}")
    given = read_dsn(dsn)
    # libpq accepts whole seconds, at least two.
    network = {**_NETWORK, "connect_timeout": max(2, min(_CONNECT_TIMEOUT, int(timeout)))}
    missing = {name: value for name, value in network.items() if name not in given}
    # Always use UTF-8, because the encoding in the DSN or in `PGCLIENTENCODING` may lack characters.
    return {"autocommit": True, "prepare_threshold": prepare_threshold, **missing, "client_encoding": "utf8"}


def _pool_options(settings: PoolSettings, options: dict[str, Any]) -> dict[str, Any]:
    return {
        "kwargs": options,
        "min_size": min(settings.min_size, settings.max_size),
        "max_size": settings.max_size,
        "timeout": settings.timeout,
        "max_idle": settings.max_idle,
        "max_lifetime": settings.max_lifetime,
        "reconnect_timeout": _RECONNECT_SECONDS,
        "open": False,
        "name": _POOL_NAME,
    }


def _raise_if_final(error: Exception, settings: PoolSettings, deadline: float) -> None:
    """Raise the error for a failed first connection, unless another attempt may succeed in time."""
    if (refused := refusal(error) or unknown_host(error)) is not None:
        raise refused from error
    if time.monotonic() + _PAUSE_SECONDS > deadline:
        raise _no_answer(error, settings) from error


def _no_answer(error: Exception, settings: PoolSettings) -> UnavailableError:
    return UnavailableError(f"PostgreSQL did not respond within {settings.timeout:g} s: {reason_of(error)}")


@contextmanager
def open_pool(dsn: str, settings: PoolSettings, options: dict[str, Any]) -> Iterator[ConnectionPool[Any]]:
    """Open a pool, and close it at the end of the block.

    A first connection is made before the pool, so that a permanent error is raised at once. The pool itself would retry
    until its timeout.

    Raises:
        ConfigurationError: If the server refuses the connection (password, role, database) or its host is unknown.
        UnavailableError: If the server does not respond within the pool's timeout.
    """
    process, deadline = os.getpid(), time.monotonic() + settings.timeout
    while True:
        try:
            first = psycopg.Connection.connect(dsn, **options)
            break
        except psycopg.Error as error:
            _raise_if_final(error, settings, deadline)
        time.sleep(_PAUSE_SECONDS)
    connector = Connector(first)
    pool = _BlockingPool(
        dsn,
        connection_class=connector,  # type: ignore[arg-type]
        reconnect_failed=_connect_again,
        **_pool_options(settings, options),
    )
    try:
        try:
            pool.open(wait=True, timeout=max(2.0, deadline - time.monotonic()))
        except PoolTimeout as error:
            raise _no_answer(connector.error or error, settings) from error
        finally:
            connector.close()
        yield pool
    finally:
        # In a forked child, closing the pool would end the parent's sessions.
        if os.getpid() == process:
            pool.close()


class _MustWaitError(Exception):
    """No connection of the pool is idle."""


class _BlockingPool(ConnectionPool[Any]):
    """A pool that loses no connection when a signal handler raises during a wait.

    psycopg's pool would later give a connection to the call that the exception has ended. Signal handlers run only in
    the main thread, so calls in the main thread let another thread wait for the connection.
    """

    _starts_threads = True

    def getconn(self, timeout: float | None = None) -> Any:
        """Obtain a connection as `ConnectionPool.getconn` does."""
        try:
            return super().getconn(timeout)
        except _MustWaitError:
            pass
        wait = _Wait(self, timeout)
        thread = threading.Thread(target=wait.run, name=f"{self.name}-wait", daemon=True)
        try:
            try:
                thread.start()
            except RuntimeError:
                # No thread can be started: the process has too many, or the interpreter is about to exit.
                self._starts_threads = False
                try:
                    return super().getconn(timeout)
                finally:
                    self._starts_threads = True
            error, connection = wait.results.get()
        except BaseException:
            wait.abandon()
            raise
        if error is not None:
            raise error
        return connection

    def _get_ready_connection(self, timeout: float | None) -> Any:
        """Return an idle connection. Called under the pool's lock, before the caller waits."""
        found = super()._get_ready_connection(timeout)
        if found is None and self._starts_threads and threading.current_thread() is threading.main_thread():
            raise _MustWaitError
        return found


class _Wait:
    """A wait for a pooled connection in another thread.

    Attributes:
        results: Receives one pair of an error and a connection, one of which is `None`.
    """

    def __init__(self, pool: _BlockingPool, timeout: float | None) -> None:
        self.results: queue.SimpleQueue[tuple[Exception | None, Any]] = queue.SimpleQueue()
        self._pool, self._timeout = pool, timeout
        self._lock, self._is_abandoned = threading.Lock(), False

    def run(self) -> None:
        """Wait for a connection."""
        try:
            connection = self._pool.getconn(self._timeout)
        except Exception as error:
            self.results.put((error, None))
            return
        with self._lock:
            if not self._is_abandoned:
                self.results.put((None, connection))
                return
        self._pool.putconn(connection)

    def abandon(self) -> None:
        """Return the connection to the pool, now or when it arrives."""
        with self._lock:
            self._is_abandoned = True
        with suppress(queue.Empty):
            _, connection = self.results.get_nowait()
            if connection is not None:
                self._pool.putconn(connection)


class _TasksUntilCancelled:
    """The task queue of a pool's worker. If the worker was cancelled, `get` raises."""

    def __init__(self, queue: asyncio.Queue[Any]) -> None:
        self._queue = queue

    async def get(self) -> Any:
        raise_if_cancelled()
        return await self._queue.get()


class _AsyncPool(AsyncConnectionPool[Any]):
    """A pool whose tasks end when they are cancelled, so that `asyncio.run` returns even if the pool is not closed."""

    @classmethod
    async def worker(cls, q: Any) -> None:
        """Run maintenance tasks until cancelled. psycopg's own worker may miss a cancellation."""
        await super().worker(_TasksUntilCancelled(q))  # type: ignore[arg-type]

    async def schedule_task(self, task: Any, delay: float) -> None:
        """Run a maintenance task later. psycopg's own scheduler may hide a cancellation."""
        asyncio.get_running_loop().call_later(delay, _run_task, task)


def _run_task(task: Any) -> None:
    pool = task.pool()
    if pool is not None and not pool.closed:
        pool.run_task(task)


async def open_pool_async(dsn: str, settings: PoolSettings, options: dict[str, Any]) -> AsyncConnectionPool[Any]:
    """Open a pool as `open_pool` does; the caller closes it."""
    deadline = time.monotonic() + settings.timeout
    while True:
        try:
            first = await connect_async(dsn, **options)
            break
        except psycopg.Error as error:
            _raise_if_final(error, settings, deadline)
        await asyncio.sleep(_PAUSE_SECONDS)
    connector = AsyncConnector(first)
    pool = _AsyncPool(
        dsn,
        connection_class=connector,  # type: ignore[arg-type]
        reconnect_failed=_connect_again_async,
        **_pool_options(settings, options),
    )
    try:
        try:
            await pool.open(wait=True, timeout=max(2.0, deadline - time.monotonic()))
        except PoolTimeout as error:
            raise _no_answer(connector.error or error, settings) from error
        finally:
            await connector.close()
    except BaseException:
        await complete(pool.close())
        raise
    return pool


def bounded_dsn(dsn: str, seconds: float) -> str:
    """Return a connection string that limits the wait for a server that does not respond."""
    return make_conninfo(dsn, connect_timeout=max(2, int(seconds)), tcp_user_timeout=int(seconds * 1000))


def dsn_of(
    pool: ConnectionPool[Any] | AsyncConnectionPool[Any] | None,
    connection: PsycopgConnection | AsyncPsycopgConnection | None,
) -> str:
    """Return the connection string of a pool or of a connection. Raise `ConfigurationError` if it is not known."""
    if connection is not None:
        info = connection.info
        return make_conninfo(info.dsn, **({"password": info.password} if info.password else {}))
    if pool is None or not isinstance(pool.conninfo, str):
        raise ConfigurationError("this call opens more connections: open the state with a connection string or a pool")
    known = {option.keyword.decode() for option in Conninfo.get_defaults()}
    kwargs = pool.kwargs if isinstance(pool.kwargs, dict) else {}
    return make_conninfo(pool.conninfo, **{name: value for name, value in kwargs.items() if name in known})


def prepare_threshold_of(
    pool: ConnectionPool[Any] | AsyncConnectionPool[Any] | None,
    connection: PsycopgConnection | AsyncPsycopgConnection | None,
) -> int | None:
    """Return the number of executions after which connections prepare a statement; `None` for never."""
    if connection is not None:
        return connection.prepare_threshold
    kwargs = pool.kwargs if pool is not None and isinstance(pool.kwargs, dict) else {}
    found: int | None = kwargs.get("prepare_threshold", DEFAULT_PREPARE_THRESHOLD)
    return found
