"""Where connections come from, in both colours: a pool or one connection, owned or lent, with bounded retries.

`Database` blocks, `AsyncDatabase` suspends; they are the package's only hand-written pair. Both run an operation
(`operations/`) on a connection of their own choosing and translate what psycopg raises.
"""

from __future__ import annotations

import asyncio
import os
import random
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any, Concatenate, ParamSpec, TypeVar

import psycopg
from psycopg.conninfo import conninfo_to_dict
from psycopg_pool import AsyncConnectionPool, ConnectionPool, PoolClosed, PoolTimeout, TooManyRequests

from langgraph_pgstate.db.port import Port, run_blocking
from langgraph_pgstate.db.ports import (
    AsyncConnection,
    BlockingPort,
    Connection,
    SuspendingPort,
    is_idle,
    port_of,
)
from langgraph_pgstate.db.translate import is_connection_loss, is_retryable, refusal, translate
from langgraph_pgstate.errors import ArgumentTypeError, ConfigurationError, UnavailableError
from langgraph_pgstate.settings import PoolSettings, RetryPolicy

T = TypeVar("T")
P = ParamSpec("P")

__all__ = [
    "DEFAULT_PREPARE_THRESHOLD",
    "AsyncConnection",
    "AsyncConnectionPool",
    "AsyncDatabase",
    "Connection",
    "ConnectionPool",
    "Database",
]

DEFAULT_PREPARE_THRESHOLD = 5

_DRIVER_ERRORS = (psycopg.Error, PoolClosed, PoolTimeout, TooManyRequests)
# Who has a pool of fewer counts every connection.
_MIN_TO_CONNECT_ASIDE = 4
_ASIDE_TIMEOUT = 3
# A peer that vanished without a word (failover, a dropped NAT entry) is noticed within a minute, not after two hours.
_KEEPALIVES = {"keepalives_idle": 30, "keepalives_interval": 10, "keepalives_count": 3}


@dataclass(frozen=True, slots=True)
class Aside:
    """A connection beside those of the pool.

    Attributes:
        port: Its port.
        connection: The connection, to be closed by whoever asked for it.
        expires_at: When it has lived as long as the pool's live, by the monotonic clock.
    """

    port: Port
    connection: Any
    expires_at: float


def _options_aside(pool: ConnectionPool[Any] | AsyncConnectionPool[Any] | None, process: int) -> dict[str, Any] | None:
    """How a pool connects; `None` if that is not certain, or if it is to keep few connections, or none."""
    if pool is None or pool.closed or pool.max_size < _MIN_TO_CONNECT_ASIDE or pool.min_size == 0:
        return None
    # What else it does to a connection only the pool itself can do.
    if os.getpid() != process or not isinstance(pool.conninfo, str) or getattr(pool, "_configure", None) is not None:
        return None
    if callable(pool.kwargs):
        return None
    given = {"conninfo": pool.conninfo, **(pool.kwargs or {})}
    return {**given, "autocommit": True, "connect_timeout": _ASIDE_TIMEOUT}


def _delay_after(
    error: Exception, attempt: int, policy: RetryPolicy, schema: str, *, is_lent: bool, in_transaction: bool
) -> float:
    """Seconds to wait before the next try, after try number `attempt` failed.

    Args:
        error: What the driver raised.
        attempt: Number of the try that failed, from 1.
        policy: How often and how patiently.
        schema: For the translated error.
        is_lent: Whether the connection is the caller's: a lost one is hers to replace.
        in_transaction: Whether the try was in a transaction of hers, where a second one would not stand alone.

    Raises:
        PGStateError: The translated error, when the operation is not to be tried again.
    """
    again = attempt < policy.attempts and is_retryable(error) and not in_transaction
    if again and is_lent:
        again = not (isinstance(error, psycopg.Error) and is_connection_loss(error))
    if not again:
        raise translate(error, schema) from error
    return policy.delay(attempt, random.random())


def _connection_options(prepare_threshold: int | None) -> dict[str, Any]:
    return {"autocommit": True, "prepare_threshold": prepare_threshold, **_KEEPALIVES}


def _patience(settings: PoolSettings) -> dict[str, Any]:
    # libpq takes whole seconds, and no fewer than two.
    return {"connect_timeout": max(2, int(settings.timeout))}


def _check_dsn(dsn: str) -> None:
    try:
        conninfo_to_dict(dsn)
    except psycopg.ProgrammingError as error:
        raise ConfigurationError(f"the connection string is not understood: {error}") from error


def _raise_if_refused(error: psycopg.Error) -> None:
    if (refused := refusal(error)) is not None:
        raise refused from error


def _forked() -> ConfigurationError:
    """What refuses connections that a fork left in two processes: each would read the other's answers."""
    return ConfigurationError(
        "this saver was made before a fork, and its connections belong to the parent process; make one saver in each "
        "process, after the fork"
    )


class Database:
    """Runs operations on blocking connections. Safe to call from many threads; with a pool they run at once."""

    def __init__(
        self,
        source: Connection | ConnectionPool[Any] | Callable[[], Connection],
        *,
        schema: str,
        retry: RetryPolicy | None = None,
    ) -> None:
        self.schema = schema
        self._retry = retry or RetryPolicy()
        self._pool = source if isinstance(source, ConnectionPool) else None
        self._connect = None if isinstance(source, ConnectionPool | psycopg.Connection) else source
        if self._pool is None and not isinstance(source, psycopg.Connection) and not callable(source):
            raise ArgumentTypeError(
                f"a psycopg Connection or ConnectionPool is needed, not {type(source).__name__}"
                " (AsyncPGStateSaver takes the asynchronous ones)"
            )
        self._single = BlockingPort(source) if isinstance(source, psycopg.Connection) else None
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
        """Connect, and disconnect at the end.

        Raises:
            ConfigurationError: If the DSN is not understood, or the server refuses it (password, role, database).
            UnavailableError: If the server does not answer within the pool's timeout.
        """
        _check_dsn(dsn)
        options = _connection_options(prepare_threshold)
        settings = PoolSettings.of(pool)
        if settings is None:
            database = cls(lambda: psycopg.Connection.connect(dsn, **options), schema=schema, retry=retry)
            try:
                database.run(_ping)
                yield database
            finally:
                database._connect = None
                if database._single is not None:
                    database._single.connection.close()
            return
        # A pool tries in the background until its timeout, and keeps the reason to itself.
        try:
            psycopg.Connection.connect(dsn, **options, **_patience(settings)).close()
        except psycopg.Error as error:
            _raise_if_refused(error)
        connections = ConnectionPool(
            dsn,
            kwargs=options,
            min_size=min(settings.min_size, settings.max_size),
            max_size=settings.max_size,
            timeout=settings.timeout,
            max_idle=settings.max_idle,
            max_lifetime=settings.max_lifetime,
            open=False,
        )
        try:
            connections.open(wait=True, timeout=settings.timeout)
            yield cls(connections, schema=schema, retry=retry)
        except PoolTimeout as error:
            raise UnavailableError(f"PostgreSQL did not answer within {settings.timeout:g} s: {error}") from error
        finally:
            connections.close()

    @property
    def is_lent(self) -> bool:
        """Whether all there is is one connection of the caller's, who uses it herself between calls."""
        return self._pool is None and self._connect is None

    def run(
        self,
        operation: Callable[Concatenate[Port, P], Awaitable[T]],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        """Run an idempotent operation, again if the connection is lost or a transaction loses a race.

        Nothing is retried inside a caller's transaction.

        Raises:
            PGStateError: The driver's error, translated.
        """
        attempt = 0
        is_lent, in_transaction = self.is_lent, False
        while True:
            try:
                port, switched = self._acquire()
                in_transaction = is_lent and port.is_in_transaction
                try:
                    return run_blocking(operation(port, *args, **kwargs))
                finally:
                    self._release(port.connection, switched)
            except _DRIVER_ERRORS as error:
                attempt += 1
                delay = _delay_after(
                    error, attempt, self._retry, self.schema, is_lent=is_lent, in_transaction=in_transaction
                )
            time.sleep(delay)
            self._discard_dead()

    def run_once(
        self,
        operation: Callable[Concatenate[Port, P], Awaitable[T]],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        """Run an operation that must not be repeated."""
        try:
            port, switched = self._acquire()
            try:
                return run_blocking(operation(port, *args, **kwargs))
            finally:
                self._release(port.connection, switched)
        except _DRIVER_ERRORS as error:
            raise translate(error, self.schema) from error

    @contextmanager
    def lend(self) -> Iterator[tuple[Connection, Port]]:
        """A connection inside of a transaction, for somebody's statements beside ours: both, or neither.

        Committed at the end of the block, rolled back if it raises; a savepoint inside of a caller's transaction.
        Nothing is repeated. What the block raises is raised as it is.

        Raises:
            PGStateError: If no connection could be had, or the commit failed; translated.
        """
        try:
            port, switched = self._acquire()
        except _DRIVER_ERRORS as error:
            raise translate(error, self.schema) from error
        try:
            raised = False
            try:
                with port.connection.transaction():
                    try:
                        yield port.connection, port
                    except BaseException:
                        raised = True
                        raise
            except _DRIVER_ERRORS as error:
                if raised:
                    raise
                raise translate(error, self.schema) from error
        finally:
            self._release(port.connection, switched)

    def connect_aside(self) -> Aside | None:
        """A connection beside the pool's, made as the pool makes its own; `None` if there is no pool of some.

        Raises:
            PGStateError: If it could not be made; translated.
        """
        options = _options_aside(self._pool, self._process)
        if self._pool is None or options is None:
            return None
        try:
            connection = self._pool.connection_class.connect(**options)
        except _DRIVER_ERRORS as error:
            raise translate(error, self.schema) from error
        return Aside(BlockingPort(connection), connection, time.monotonic() + self._pool.max_lifetime)

    def _acquire(self) -> tuple[BlockingPort, bool]:
        """A connection on which one statement is one transaction and one round trip, and whether it was switched to be.

        psycopg keeps autocommit on the client's side, so switching it costs nothing. Inside a caller's transaction
        nothing is switched: her commit decides.
        """
        if os.getpid() != self._process:
            raise _forked()
        if self._pool is not None:
            port = port_of(self._pool.getconn(), BlockingPort)
        else:
            self._lock.acquire()
            try:
                if self._single is None or (self._connect is not None and self._single.connection.closed):
                    assert self._connect is not None
                    self._single = BlockingPort(self._connect())
            except BaseException:
                self._lock.release()
                raise
            port = self._single
        connection = port.connection
        switched = not connection.autocommit and is_idle(connection)
        if switched:
            connection.autocommit = True
        return port, switched

    def _release(self, connection: Connection, switched: bool) -> None:
        try:
            if switched and is_idle(connection):
                connection.autocommit = False
        finally:
            if self._pool is not None:
                self._pool.putconn(connection)
            else:
                self._lock.release()

    def _discard_dead(self) -> None:
        # After an outage every idle connection of the pool is dead; without this each retry would meet another one.
        if self._pool is not None and not self._pool.closed:
            self._pool.check()


class AsyncDatabase:
    """Asynchronous twin of `Database`. Bound to the event loop it was opened in."""

    def __init__(
        self,
        source: AsyncConnection | AsyncConnectionPool[Any] | Callable[[], Awaitable[AsyncConnection]],
        *,
        schema: str,
        retry: RetryPolicy | None = None,
    ) -> None:
        self.schema = schema
        self._retry = retry or RetryPolicy()
        self._pool = source if isinstance(source, AsyncConnectionPool) else None
        self._connect = None if isinstance(source, AsyncConnectionPool | psycopg.AsyncConnection) else source
        if self._pool is None and not isinstance(source, psycopg.AsyncConnection) and not callable(source):
            raise ArgumentTypeError(
                f"a psycopg AsyncConnection or AsyncConnectionPool is needed, not {type(source).__name__}"
                " (PGStateSaver takes the blocking ones)"
            )
        self._single = SuspendingPort(source) if isinstance(source, psycopg.AsyncConnection) else None
        self._lock = asyncio.Lock()
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
        _check_dsn(dsn)
        options = _connection_options(prepare_threshold)
        settings = PoolSettings.of(pool)
        if settings is None:
            database = cls(lambda: psycopg.AsyncConnection.connect(dsn, **options), schema=schema, retry=retry)
            try:
                await database.run(_ping)
                yield database
            finally:
                database._connect = None
                if database._single is not None:
                    await database._single.connection.close()
            return
        try:
            await (await psycopg.AsyncConnection.connect(dsn, **options, **_patience(settings))).close()
        except psycopg.Error as error:
            _raise_if_refused(error)
        connections = AsyncConnectionPool(
            dsn,
            kwargs=options,
            min_size=min(settings.min_size, settings.max_size),
            max_size=settings.max_size,
            timeout=settings.timeout,
            max_idle=settings.max_idle,
            max_lifetime=settings.max_lifetime,
            open=False,
        )
        try:
            await connections.open(wait=True, timeout=settings.timeout)
            yield cls(connections, schema=schema, retry=retry)
        except PoolTimeout as error:
            raise UnavailableError(f"PostgreSQL did not answer within {settings.timeout:g} s: {error}") from error
        finally:
            await connections.close()

    @property
    def is_lent(self) -> bool:
        """Async twin of `Database.is_lent`."""
        return self._pool is None and self._connect is None

    async def run(
        self,
        operation: Callable[Concatenate[Port, P], Awaitable[T]],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        """Async twin of `Database.run`."""
        attempt = 0
        is_lent, in_transaction = self.is_lent, False
        while True:
            try:
                port, switched = await self._acquire()
                in_transaction = is_lent and port.is_in_transaction
                try:
                    return await operation(port, *args, **kwargs)
                finally:
                    await self._release(port.connection, switched)
            except _DRIVER_ERRORS as error:
                attempt += 1
                delay = _delay_after(
                    error, attempt, self._retry, self.schema, is_lent=is_lent, in_transaction=in_transaction
                )
            await asyncio.sleep(delay)
            await self._discard_dead()

    async def run_once(
        self,
        operation: Callable[Concatenate[Port, P], Awaitable[T]],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        """Async twin of `Database.run_once`."""
        try:
            port, switched = await self._acquire()
            try:
                return await operation(port, *args, **kwargs)
            finally:
                await self._release(port.connection, switched)
        except _DRIVER_ERRORS as error:
            raise translate(error, self.schema) from error

    @asynccontextmanager
    async def lend(self) -> AsyncIterator[tuple[AsyncConnection, Port]]:
        """Async twin of `Database.lend`."""
        try:
            port, switched = await self._acquire()
        except _DRIVER_ERRORS as error:
            raise translate(error, self.schema) from error
        try:
            raised = False
            try:
                async with port.connection.transaction():
                    try:
                        yield port.connection, port
                    except BaseException:
                        raised = True
                        raise
            except _DRIVER_ERRORS as error:
                if raised:
                    raise
                raise translate(error, self.schema) from error
        finally:
            await self._release(port.connection, switched)

    async def connect_aside(self) -> Aside | None:
        """Async twin of `Database.connect_aside`."""
        options = _options_aside(self._pool, self._process)
        if self._pool is None or options is None:
            return None
        try:
            connection = await self._pool.connection_class.connect(**options)
        except _DRIVER_ERRORS as error:
            raise translate(error, self.schema) from error
        return Aside(SuspendingPort(connection), connection, time.monotonic() + self._pool.max_lifetime)

    async def _acquire(self) -> tuple[SuspendingPort, bool]:
        """Async twin of `Database._acquire`."""
        if os.getpid() != self._process:
            raise _forked()
        if self._pool is not None:
            port = port_of(await self._pool.getconn(), SuspendingPort)
        else:
            await self._lock.acquire()
            try:
                if self._single is None or (self._connect is not None and self._single.connection.closed):
                    assert self._connect is not None
                    self._single = SuspendingPort(await self._connect())
            except BaseException:
                self._lock.release()
                raise
            port = self._single
        connection = port.connection
        switched = not connection.autocommit and is_idle(connection)
        if switched:
            try:
                # Waits where the caller uses her connection, too, and may be cancelled there.
                await connection.set_autocommit(True)
            except BaseException:
                await self._release(connection, switched=False)
                raise
        return port, switched

    async def _release(self, connection: AsyncConnection, switched: bool) -> None:
        try:
            if switched and is_idle(connection):
                await connection.set_autocommit(False)
        finally:
            if self._pool is not None:
                await self._pool.putconn(connection)
            else:
                self._lock.release()

    async def _discard_dead(self) -> None:
        if self._pool is not None and not self._pool.closed:
            await self._pool.check()


async def _ping(port: Port) -> None:
    # An empty message is answered, too.
    await port.script("")
