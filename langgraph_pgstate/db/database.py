"""Blocking and async access to the database: a pool or one connection, owned or borrowed, with bounded retries.

`Database` blocks and `AsyncDatabase` suspends; the two are written by hand. Both run an operation (`operations/`) on a
connection and translate psycopg's errors.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager, suppress
from typing import Any, Concatenate, ParamSpec, TypeVar

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.pq import Conninfo
from psycopg_pool import AsyncConnectionPool, ConnectionPool, PoolClosed, PoolTimeout, TooManyRequests

from langgraph_pgstate.db.adapters import (
    AsyncConnection,
    AsyncPsycopgConnection,
    BlockingConnection,
    PsycopgConnection,
    adapter_of,
    is_idle,
)
from langgraph_pgstate.db.protocol import Connection, run_blocking
from langgraph_pgstate.db.retrying import Outage, Tries
from langgraph_pgstate.db.translate import is_read_only, reason_of, refusal, translate, unknown_host
from langgraph_pgstate.errors import ArgumentTypeError, ConfigurationError, UnavailableError
from langgraph_pgstate.settings import PoolSettings, RetryPolicy

T = TypeVar("T")
P = ParamSpec("P")

__all__ = [
    "DEFAULT_PREPARE_THRESHOLD",
    "AsyncConnectionPool",
    "AsyncDatabase",
    "AsyncPsycopgConnection",
    "ConnectionPool",
    "Database",
    "Observer",
    "PsycopgConnection",
    "connection_options",
    "join",
    "join_async",
]

DEFAULT_PREPARE_THRESHOLD = 5

_DRIVER_ERRORS = (psycopg.Error, PoolClosed, PoolTimeout, TooManyRequests)
# Detects a peer that vanished silently (failover, a dropped NAT entry) within a minute, instead of after two hours.
_NETWORK = {"keepalives_idle": 30, "keepalives_interval": 10, "keepalives_count": 3, "tcp_user_timeout": 60_000}
# Seconds until another attempt to reach a host that does not answer.
_CONNECT_TIMEOUT = 10
# For a pool whose server is down: psycopg doubles the time between two attempts until it gives up, and starts again.
_RECONNECT_SECONDS = 1.0
_PAUSE_SECONDS = 0.5
_ONCE = RetryPolicy(attempts=1)
# psycopg sends BEGIN before it.
_NOTHING = b""


Observer = Callable[[Callable[..., Any]], AbstractContextManager[Any]]
"""Called with each operation that `run` runs. It runs in the context, with its waits and retries."""


class _Connector:
    """The connection factory of a blocking pool.

    Args:
        first: Is given out first.

    Attributes:
        error: The error of the last attempt to connect; `None` if it succeeded.
        callers: The calls that wait for a connection.
    """

    def __init__(self, *first: PsycopgConnection) -> None:
        self.error: Exception | None = None
        self.callers: set[Tries] = set()
        self._first = list(first)

    def connect(self, conninfo: str = "", **options: Any) -> PsycopgConnection:
        """Make a connection as `psycopg.Connection.connect` does, and store the error if that fails."""
        with suppress(IndexError):
            return self._first.pop()
        try:
            made = psycopg.Connection.connect(conninfo, **options)
        except Exception as error:
            self.error = error
            raise
        self.error = None
        return made

    def close(self) -> None:
        """Close the first connection if the pool has not taken it."""
        with suppress(IndexError):
            while True:
                self._first.pop().close()


class _AsyncConnector:
    """Async twin of `_Connector`."""

    def __init__(self, *first: AsyncPsycopgConnection) -> None:
        self.error: Exception | None = None
        self.callers: set[Tries] = set()
        self._first = list(first)

    async def connect(self, conninfo: str = "", **options: Any) -> AsyncPsycopgConnection:
        """Async twin of `_Connector.connect`."""
        with suppress(IndexError):
            return self._first.pop()
        try:
            made = await psycopg.AsyncConnection.connect(conninfo, **options)
        except Exception as error:
            self.error = error
            raise
        self.error = None
        return made

    async def close(self) -> None:
        """Async twin of `_Connector.close`."""
        with suppress(IndexError):
            while True:
                await self._first.pop().close()


def _connector_of(pool: ConnectionPool[Any] | AsyncConnectionPool[Any] | None) -> _Connector | _AsyncConnector:
    """Return a pool's connector, or an unused one if the caller made the pool."""
    connector: object = getattr(pool, "connection_class", None)
    return connector if isinstance(connector, _Connector | _AsyncConnector) else _Connector()


def _outage_of(pool: ConnectionPool[Any] | AsyncConnectionPool[Any] | None) -> Outage:
    return Outage(PoolSettings().timeout if pool is None else pool.timeout)


def _connect_again(pool: ConnectionPool[Any]) -> None:
    """Reconnect a pool that has given up if a call is waiting; later calls reconnect it themselves."""
    if _connector_of(pool).callers:
        pool.check()


async def _connect_again_async(pool: AsyncConnectionPool[Any]) -> None:
    if _connector_of(pool).callers:
        await pool.check()


def connection_options(dsn: str, prepare_threshold: int | None, timeout: float) -> dict[str, Any]:
    """Return keyword arguments for connecting; network settings of the DSN take precedence.

    Raises:
        ConfigurationError: If the DSN cannot be parsed.
    """
    try:
        given = conninfo_to_dict(dsn)
    except psycopg.ProgrammingError as error:
        raise ConfigurationError(f"the connection string is invalid: {error}") from error
    # libpq takes whole seconds, at least two.
    network = {**_NETWORK, "connect_timeout": max(2, min(_CONNECT_TIMEOUT, int(timeout)))}
    missing = {name: value for name, value in network.items() if name not in given}
    return {"autocommit": True, "prepare_threshold": prepare_threshold, **missing}


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
    }


def _raise_if_final(error: Exception, settings: PoolSettings, deadline: float) -> None:
    """Raise the error for a failed first connection, unless another attempt may succeed in time.

    Raises:
        ConfigurationError: If no attempt can succeed.
        UnavailableError: If there is no time for another attempt.
    """
    if (refused := refusal(error) or unknown_host(error)) is not None:
        raise refused from error
    if time.monotonic() + _PAUSE_SECONDS > deadline:
        raise _no_answer(error, settings) from error


def _no_answer(error: Exception, settings: PoolSettings) -> UnavailableError:
    return UnavailableError(f"PostgreSQL did not answer within {settings.timeout:g} s: {reason_of(error)}")


def _dsn_of(
    pool: ConnectionPool[Any] | AsyncConnectionPool[Any] | None,
    connection: PsycopgConnection | AsyncPsycopgConnection | None,
) -> str:
    """Return the connection string of a pool or of a connection.

    Raises:
        ConfigurationError: If it is not known.
    """
    if connection is not None:
        info = connection.info
        return make_conninfo(info.dsn, **({"password": info.password} if info.password else {}))
    if pool is None or not isinstance(pool.conninfo, str):
        raise ConfigurationError(
            "further connections need a connection string: open the state with one, or with a pool"
        )
    known = {option.keyword.decode() for option in Conninfo.get_defaults()}
    kwargs = pool.kwargs if isinstance(pool.kwargs, dict) else {}
    return make_conninfo(pool.conninfo, **{name: value for name, value in kwargs.items() if name in known})


def _prepare_threshold_of(
    pool: ConnectionPool[Any] | AsyncConnectionPool[Any] | None,
    connection: PsycopgConnection | AsyncPsycopgConnection | None,
) -> int | None:
    """Return after how many executions the connections prepare a statement; `None` for never."""
    if connection is not None:
        return connection.prepare_threshold
    kwargs = pool.kwargs if pool is not None and isinstance(pool.kwargs, dict) else {}
    found: int | None = kwargs.get("prepare_threshold", DEFAULT_PREPARE_THRESHOLD)
    return found


def _forked() -> ConfigurationError:
    """Return the error for connections shared by two processes after a fork: each would read the other's results."""
    return ConfigurationError(
        "this saver was made before a fork, and its connections belong to the parent process; make one saver in each "
        "process, after the fork"
    )


def _finish_unless_idle(connection: PsycopgConnection | AsyncPsycopgConnection, *, is_borrowed: bool) -> None:
    """Close an owned connection that an interrupted call has left in use; the next call opens another."""
    if not is_borrowed and not is_idle(connection):
        connection.pgconn.finish()


class Database:
    """Runner of operations on blocking connections. Thread-safe; with a pool, calls run concurrently.

    Attributes:
        observer: Measures operations; `None` if nobody does.
    """

    observer: Observer | None = None

    def __init__(
        self,
        source: PsycopgConnection | ConnectionPool[Any] | Callable[[], PsycopgConnection],
        *,
        schema: str,
        retry: RetryPolicy | None = None,
    ) -> None:
        self.schema = schema
        self._retry = retry or RetryPolicy()
        self._pool = source if isinstance(source, ConnectionPool) else None
        self._outage = _outage_of(self._pool)
        self._connector = _connector_of(self._pool)
        self._connect = None if isinstance(source, ConnectionPool | psycopg.Connection) else source
        if self._pool is None and not isinstance(source, psycopg.Connection) and not callable(source):
            raise ArgumentTypeError(
                f"a psycopg Connection or ConnectionPool is needed, not {type(source).__name__}"
                " (AsyncPGStateSaver takes the asynchronous ones)"
            )
        self._single = BlockingConnection(source) if isinstance(source, psycopg.Connection) else None
        self._lock = threading.Lock()
        self._process = os.getpid()

    @classmethod
    @contextmanager
    def open(
        cls,
        dsn: str,
        *,
        schema: str,
        pool: PoolSettings | bool | int = True,
        prepare_threshold: int | None = DEFAULT_PREPARE_THRESHOLD,
        retry: RetryPolicy | None = None,
    ) -> Iterator[Database]:
        """Connect, and disconnect at the end of the block.

        Raises:
            ConfigurationError: If the DSN cannot be parsed, or the server refuses it (password, role, database).
            UnavailableError: If the server does not answer within the pool's timeout.
        """
        settings = PoolSettings.of(pool)
        options = connection_options(dsn, prepare_threshold, (settings or PoolSettings()).timeout)
        if settings is None:
            database = cls(lambda: psycopg.Connection.connect(dsn, **options), schema=schema, retry=retry)
            try:
                try:
                    database.run(_ping)
                except UnavailableError as error:
                    raise unknown_host(error.__cause__) or error from error.__cause__
                yield database
            finally:
                database._connect = None
                if database._single is not None:
                    database._single.connection.close()
            return
        # Connect once first, because a pool retries in the background until its timeout, whatever the error.
        deadline = time.monotonic() + settings.timeout
        while True:
            try:
                first = psycopg.Connection.connect(dsn, **options)
                break
            except psycopg.Error as error:
                _raise_if_final(error, settings, deadline)
            time.sleep(_PAUSE_SECONDS)
        connector = _Connector(first)
        connections: ConnectionPool[Any] = ConnectionPool(
            dsn,
            connection_class=connector,  # type: ignore[arg-type]
            reconnect_failed=_connect_again,
            **_pool_options(settings, options),
        )
        try:
            try:
                connections.open(wait=True, timeout=max(2.0, deadline - time.monotonic()))
            except PoolTimeout as error:
                raise _no_answer(connector.error or error, settings) from error
            finally:
                connector.close()
            yield cls(connections, schema=schema, retry=retry)
        finally:
            connections.close()

    @property
    def dsn(self) -> str:
        """The connection string of its server, for further connections. It may have a password."""
        return _dsn_of(self._pool, None if self._single is None else self._single.connection)

    @property
    def prepare_threshold(self) -> int | None:
        """Number of executions after which its connections prepare a statement, for further connections."""
        return _prepare_threshold_of(self._pool, None if self._single is None else self._single.connection)

    @property
    def pool_statistics(self) -> dict[str, int]:
        """Return what psycopg's pool has counted, as its `get_stats` describes; empty without a pool."""
        return {} if self._pool is None else self._pool.get_stats()

    @property
    def is_borrowed(self) -> bool:
        """Whether the only connection is the caller's, who may also use it between calls."""
        return self._pool is None and self._connect is None

    def run(
        self,
        operation: Callable[Concatenate[Connection, P], Awaitable[T]],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        """Run an idempotent operation, and retry it if the connection is lost or a transaction conflicts.

        Nothing is retried inside the caller's transaction.

        Raises:
            PGStateError: The translated driver error.
        """
        if self.observer is None:
            return self._run(None, operation, *args, **kwargs)
        with self.observer(operation):
            return self._run(None, operation, *args, **kwargs)

    def run_within(
        self,
        seconds: float,
        operation: Callable[Concatenate[Connection, P], Awaitable[T]],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        """Run an idempotent operation as `run` does, and wait at most `seconds` for connections in total.

        Raises:
            PGStateError: The translated driver error.
        """
        return self._run(seconds, operation, *args, **kwargs)

    def _run(
        self,
        seconds: float | None,
        operation: Callable[Concatenate[Connection, P], Awaitable[T]],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        tries = Tries(self._retry, self._outage, self.schema, time.monotonic(), self.is_borrowed, seconds)
        while True:
            try:
                db, switched = self._acquire(tries)
                tries.in_transaction = self.is_borrowed and db.is_in_transaction
                try:
                    result = run_blocking(operation(db, *args, **kwargs))
                except psycopg.Error as error:
                    self._discard_read_only(db.connection, error)
                    raise
                finally:
                    self._release(db.connection, switched)
                self._outage.end()
                return result
            except _DRIVER_ERRORS as error:
                delay = tries.fail(error, time.monotonic(), self._connector.error)
            time.sleep(delay)

    def run_once(
        self,
        operation: Callable[Concatenate[Connection, P], Awaitable[T]],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        """Run an operation without retrying it."""
        tries = Tries(_ONCE, self._outage, self.schema, time.monotonic(), self.is_borrowed)
        try:
            db, switched = self._acquire(tries)
            try:
                result = run_blocking(operation(db, *args, **kwargs))
            except psycopg.Error as error:
                self._discard_read_only(db.connection, error)
                raise
            finally:
                self._release(db.connection, switched)
        except _DRIVER_ERRORS as error:
            raise tries.translate(error, time.monotonic(), self._connector.error) from error
        self._outage.end()
        return result

    @contextmanager
    def lend(self) -> Iterator[tuple[PsycopgConnection, Connection]]:
        """Yield a connection in a transaction, so that the caller's statements and this package's are atomic together.

        The transaction is committed at the end of the block, and rolled back if the block raises. Inside the caller's
        transaction it is a savepoint. Nothing is retried. Exceptions of the block are not translated.

        Raises:
            PGStateError: If no connection is available or the commit fails; translated.
        """
        tries = Tries(_ONCE, self._outage, self.schema, time.monotonic(), self.is_borrowed)
        try:
            db, switched = self._acquire(tries)
        except _DRIVER_ERRORS as error:
            raise tries.translate(error, time.monotonic(), self._connector.error) from error
        try:
            raised = False
            try:
                with db.connection.transaction():
                    try:
                        yield db.connection, db
                    except BaseException:
                        raised = True
                        raise
            except _DRIVER_ERRORS as error:
                self._discard_read_only(db.connection, error)
                if raised:
                    raise
                raise translate(error, self.schema) from error
        finally:
            self._release(db.connection, switched)

    def _acquire(self, tries: Tries) -> tuple[BlockingConnection, bool]:
        """Return a connection in autocommit mode, and whether it was switched to that mode.

        psycopg implements autocommit on the client, so switching needs no round trip. Inside the caller's transaction
        nothing is switched, because the caller commits.
        """
        if os.getpid() != self._process:
            raise _forked()
        if self._pool is not None:
            db = self._acquire_pooled(self._pool, tries)
        else:
            self._lock.acquire()
            try:
                if self._single is None or (self._connect is not None and self._single.connection.closed):
                    assert self._connect is not None
                    self._single = BlockingConnection(self._connect())
            except BaseException:
                self._lock.release()
                raise
            db = self._single
        tries.connected(time.monotonic())
        connection = db.connection
        switched = not connection.autocommit and is_idle(connection)
        if switched:
            connection.autocommit = True
        return db, switched

    def _acquire_pooled(self, pool: ConnectionPool[Any], tries: Tries) -> BlockingConnection:
        callers = self._connector.callers
        while True:
            callers.add(tries)
            try:
                db = adapter_of(pool.getconn(tries.remaining(time.monotonic())), BlockingConnection)
            finally:
                callers.discard(tries)
            if tries.may_fail:
                return db
            # After an outage every idle connection of the pool is lost.
            is_good = False
            try:
                is_good = run_blocking(db.is_good())
            finally:
                if not is_good:
                    pool.putconn(db.connection)
            if is_good:
                return db

    def _release(self, connection: PsycopgConnection, switched: bool) -> None:
        try:
            if switched and is_idle(connection):
                connection.autocommit = False
        finally:
            if self._pool is not None:
                self._pool.putconn(connection)
            else:
                _finish_unless_idle(connection, is_borrowed=self.is_borrowed)
                self._lock.release()

    def _discard_read_only(self, connection: PsycopgConnection, error: Exception) -> None:
        """Close a connection whose server has refused to write, and make the pool replace its other connections."""
        if self.is_borrowed or not is_read_only(error):
            return
        # `close()` may return the connection to its pool instead.
        connection.pgconn.finish()
        if self._pool is not None and hasattr(self._pool, "drain"):
            self._pool.drain()


def join(connection: PsycopgConnection, schema: str) -> Database:
    """Return a database on a caller's connection, whose operations are part of the caller's transaction.

    Unless the connection is in autocommit mode, its transaction is opened now if it is not open; the caller commits it.
    """
    database = Database(connection, schema=schema)
    if not connection.autocommit and is_idle(connection):
        connection.execute(_NOTHING)
    return database


async def join_async(connection: AsyncPsycopgConnection, schema: str) -> AsyncDatabase:
    """Async twin of `join`."""
    database = AsyncDatabase(connection, schema=schema)
    if not connection.autocommit and is_idle(connection):
        await connection.execute(_NOTHING)
    return database


class AsyncDatabase:
    """Async twin of `Database`. Bound to the event loop in which it was opened."""

    observer: Observer | None = None

    def __init__(
        self,
        source: AsyncPsycopgConnection | AsyncConnectionPool[Any] | Callable[[], Awaitable[AsyncPsycopgConnection]],
        *,
        schema: str,
        retry: RetryPolicy | None = None,
    ) -> None:
        self.schema = schema
        self._retry = retry or RetryPolicy()
        self._pool = source if isinstance(source, AsyncConnectionPool) else None
        self._outage = _outage_of(self._pool)
        self._connector = _connector_of(self._pool)
        self._connect = None if isinstance(source, AsyncConnectionPool | psycopg.AsyncConnection) else source
        if self._pool is None and not isinstance(source, psycopg.AsyncConnection) and not callable(source):
            raise ArgumentTypeError(
                f"a psycopg AsyncConnection or AsyncConnectionPool is needed, not {type(source).__name__}"
                " (PGStateSaver takes the blocking ones)"
            )
        self._single = AsyncConnection(source) if isinstance(source, psycopg.AsyncConnection) else None
        self._lock = asyncio.Lock()
        # The event loop holds only weak references to tasks.
        self._returns: set[asyncio.Task[None]] = set()
        self._process = os.getpid()

    @classmethod
    @asynccontextmanager
    async def open(
        cls,
        dsn: str,
        *,
        schema: str,
        pool: PoolSettings | bool | int = True,
        prepare_threshold: int | None = DEFAULT_PREPARE_THRESHOLD,
        retry: RetryPolicy | None = None,
    ) -> AsyncIterator[AsyncDatabase]:
        """Async twin of `Database.open`."""
        settings = PoolSettings.of(pool)
        options = connection_options(dsn, prepare_threshold, (settings or PoolSettings()).timeout)
        if settings is None:
            database = cls(lambda: psycopg.AsyncConnection.connect(dsn, **options), schema=schema, retry=retry)
            try:
                try:
                    await database.run(_ping)
                except UnavailableError as error:
                    raise unknown_host(error.__cause__) or error from error.__cause__
                yield database
            finally:
                database._connect = None
                if database._single is not None:
                    await database._single.connection.close()
            return
        deadline = time.monotonic() + settings.timeout
        while True:
            try:
                first = await psycopg.AsyncConnection.connect(dsn, **options)
                break
            except psycopg.Error as error:
                _raise_if_final(error, settings, deadline)
            await asyncio.sleep(_PAUSE_SECONDS)
        connector = _AsyncConnector(first)
        connections: AsyncConnectionPool[Any] = AsyncConnectionPool(
            dsn,
            connection_class=connector,  # type: ignore[arg-type]
            reconnect_failed=_connect_again_async,
            **_pool_options(settings, options),
        )
        try:
            try:
                await connections.open(wait=True, timeout=max(2.0, deadline - time.monotonic()))
            except PoolTimeout as error:
                raise _no_answer(connector.error or error, settings) from error
            finally:
                await connector.close()
            yield cls(connections, schema=schema, retry=retry)
        finally:
            await connections.close()

    @property
    def dsn(self) -> str:
        """Async twin of `Database.dsn`."""
        return _dsn_of(self._pool, None if self._single is None else self._single.connection)

    @property
    def prepare_threshold(self) -> int | None:
        """Async twin of `Database.prepare_threshold`."""
        return _prepare_threshold_of(self._pool, None if self._single is None else self._single.connection)

    @property
    def pool_statistics(self) -> dict[str, int]:
        """Async twin of `Database.pool_statistics`."""
        return {} if self._pool is None else self._pool.get_stats()

    @property
    def is_borrowed(self) -> bool:
        """Async twin of `Database.is_borrowed`."""
        return self._pool is None and self._connect is None

    async def run(
        self,
        operation: Callable[Concatenate[Connection, P], Awaitable[T]],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        """Async twin of `Database.run`."""
        if self.observer is None:
            return await self._run(None, operation, *args, **kwargs)
        with self.observer(operation):
            return await self._run(None, operation, *args, **kwargs)

    async def run_within(
        self,
        seconds: float,
        operation: Callable[Concatenate[Connection, P], Awaitable[T]],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        """Async twin of `Database.run_within`."""
        return await self._run(seconds, operation, *args, **kwargs)

    async def _run(
        self,
        seconds: float | None,
        operation: Callable[Concatenate[Connection, P], Awaitable[T]],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        tries = Tries(self._retry, self._outage, self.schema, time.monotonic(), self.is_borrowed, seconds)
        while True:
            try:
                db, switched = await self._acquire(tries)
                tries.in_transaction = self.is_borrowed and db.is_in_transaction
                try:
                    result = await operation(db, *args, **kwargs)
                except psycopg.Error as error:
                    await self._discard_read_only(db.connection, error)
                    raise
                finally:
                    await self._release(db.connection, switched)
                self._outage.end()
                return result
            except _DRIVER_ERRORS as error:
                delay = tries.fail(error, time.monotonic(), self._connector.error)
            await asyncio.sleep(delay)

    async def run_once(
        self,
        operation: Callable[Concatenate[Connection, P], Awaitable[T]],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        """Async twin of `Database.run_once`."""
        tries = Tries(_ONCE, self._outage, self.schema, time.monotonic(), self.is_borrowed)
        try:
            db, switched = await self._acquire(tries)
            try:
                result = await operation(db, *args, **kwargs)
            except psycopg.Error as error:
                await self._discard_read_only(db.connection, error)
                raise
            finally:
                await self._release(db.connection, switched)
        except _DRIVER_ERRORS as error:
            raise tries.translate(error, time.monotonic(), self._connector.error) from error
        self._outage.end()
        return result

    @asynccontextmanager
    async def lend(self) -> AsyncIterator[tuple[AsyncPsycopgConnection, Connection]]:
        """Async twin of `Database.lend`."""
        tries = Tries(_ONCE, self._outage, self.schema, time.monotonic(), self.is_borrowed)
        try:
            db, switched = await self._acquire(tries)
        except _DRIVER_ERRORS as error:
            raise tries.translate(error, time.monotonic(), self._connector.error) from error
        try:
            raised = False
            try:
                async with db.connection.transaction():
                    try:
                        yield db.connection, db
                    except BaseException:
                        raised = True
                        raise
            except _DRIVER_ERRORS as error:
                await self._discard_read_only(db.connection, error)
                if raised:
                    raise
                raise translate(error, self.schema) from error
        finally:
            await self._release(db.connection, switched)

    async def _acquire(self, tries: Tries) -> tuple[AsyncConnection, bool]:
        """Async twin of `Database._acquire`."""
        if os.getpid() != self._process:
            raise _forked()
        if self._pool is not None:
            db = await self._acquire_pooled(self._pool, tries)
        else:
            await self._lock.acquire()
            try:
                if self._single is None or (self._connect is not None and self._single.connection.closed):
                    assert self._connect is not None
                    self._single = AsyncConnection(await self._connect())
            except BaseException:
                self._lock.release()
                raise
            db = self._single
        tries.connected(time.monotonic())
        connection = db.connection
        switched = not connection.autocommit and is_idle(connection)
        if switched:
            try:
                # Waits if the caller is using the connection, and may be cancelled then.
                await connection.set_autocommit(True)
            except BaseException:
                await self._release(connection, switched=connection.autocommit)
                raise
        return db, switched

    async def _acquire_pooled(self, pool: AsyncConnectionPool[Any], tries: Tries) -> AsyncConnection:
        callers = self._connector.callers
        while True:
            callers.add(tries)
            try:
                db = adapter_of(await pool.getconn(tries.remaining(time.monotonic())), AsyncConnection)
            finally:
                callers.discard(tries)
            if tries.may_fail:
                return db
            is_good = False
            try:
                is_good = await db.is_good()
            finally:
                if not is_good:
                    await self._release(db.connection, switched=False)
            if is_good:
                return db

    async def _release(self, connection: AsyncPsycopgConnection, switched: bool) -> None:
        if not switched and is_idle(connection):
            # Does not wait: no holder of a pool's lock waits while holding it.
            await self._return(connection, switched)
            return
        # A rollback or switch has to wait: shield it, because the caller may be cancelled, even repeatedly.
        returning = asyncio.create_task(self._return(connection, switched))
        self._returns.add(returning)
        returning.add_done_callback(self._returns.discard)
        await asyncio.shield(returning)

    async def _return(self, connection: AsyncPsycopgConnection, switched: bool) -> None:
        try:
            if switched and is_idle(connection):
                await connection.set_autocommit(False)
        finally:
            if self._pool is not None:
                await self._pool.putconn(connection)
            else:
                _finish_unless_idle(connection, is_borrowed=self.is_borrowed)
                self._lock.release()

    async def _discard_read_only(self, connection: AsyncPsycopgConnection, error: Exception) -> None:
        if self.is_borrowed or not is_read_only(error):
            return
        connection.pgconn.finish()
        if self._pool is not None and hasattr(self._pool, "drain"):
            await self._pool.drain()


async def _ping(db: Connection) -> None:
    # The server answers an empty query, too.
    await db.script("")
