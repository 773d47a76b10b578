"""Blocking and async access to the database: a pool or one connection, owned or borrowed, with bounded retries."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from concurrent.futures import Future
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager, nullcontext
from contextvars import ContextVar
from typing import Any, Concatenate, ParamSpec, TypeVar

import psycopg
from psycopg_pool import AsyncConnectionPool, ConnectionPool, PoolClosed, PoolTimeout, TooManyRequests

from langgraph_pgstate import heavy
from langgraph_pgstate.db.adapters import (
    AsyncConnection,
    AsyncPsycopgConnection,
    BlockingConnection,
    PsycopgConnection,
    adapter_of,
    is_idle,
    run_blocking,
)
from langgraph_pgstate.db.connecting import (
    DEFAULT_PREPARE_THRESHOLD,
    AsyncConnector,
    Connector,
    connect_async,
    connection_options,
    connector_of,
    dsn_of,
    open_pool,
    open_pool_async,
    prepare_threshold_of,
)
from langgraph_pgstate.db.finishing import complete, finish, take
from langgraph_pgstate.db.owning import Opening
from langgraph_pgstate.db.protocol import Connection, Read, read
from langgraph_pgstate.db.retrying import Outage, Tries
from langgraph_pgstate.db.translate import is_interrupt, is_read_only, translate, unknown_host
from langgraph_pgstate.encryption.keys import HeldKeys, KeyRing, call_async, call_blocking
from langgraph_pgstate.errors import (
    ArgumentTypeError,
    ConfigurationError,
    MissingKeysError,
    ToolSetupError,
    UnavailableError,
)
from langgraph_pgstate.options import PoolSettings, RetryPolicy

T = TypeVar("T")
P = ParamSpec("P")

__all__ = [
    "AsyncConnectionPool",
    "AsyncDatabase",
    "AsyncKeyLoader",
    "AsyncPsycopgConnection",
    "ConnectionPool",
    "Database",
    "KeyLoader",
    "Observer",
    "PsycopgConnection",
    "join",
    "join_async",
]

_DRIVER_ERRORS = (psycopg.Error, PoolClosed, PoolTimeout, TooManyRequests)
_ONCE = RetryPolicy(attempts=1)
# Timeout in seconds of the extra connection on which a data key is stored while the caller's transaction is open.
_OUTSIDE_SECONDS = 30.0
# Seconds to wait for a connection that loads data keys, before a new one is opened.
_BUSY_SECONDS = 1.0
# A statement that does nothing. psycopg sends BEGIN before it, which opens a transaction.
_NOTHING = b""

Observer = Callable[[Callable[..., Any]], AbstractContextManager[Any]]
"""Called with each operation of `run`. The operation runs in the returned context, with its waits and retries."""


Check = Callable[[Connection], Awaitable[None]]
"""A function that raises unless the tables keep tenants apart."""


def _in_use() -> PoolTimeout:
    return PoolTimeout("the only connection is in use")


# For each transaction in which the present code runs: the lock of its connection; nothing after its end. Tasks that
# outlive it keep a copy of the context.
_lent: ContextVar[tuple[list[Any], ...]] = ContextVar("pgstate_lent", default=())


@contextmanager
def _lending(lock: Any) -> Iterator[None]:
    """Remember that the code of this block runs in a transaction of a connection."""
    lent = [lock]
    token = _lent.set((*_lent.get(), lent))
    try:
        yield
    finally:
        lent.clear()
        _lent.reset(token)


def _refuse_lent(lock: Any, busy_seconds: float | None) -> None:
    """Refuse to wait without a limit for a connection in whose transaction the calling code runs.

    Raises:
        ToolSetupError: If the call would wait for itself.
    """
    if busy_seconds is None and any(lock in lent for lent in _lent.get()):
        raise ToolSetupError(
            "a transactional tool uses the only connection, so its code cannot call this package through the same "
            "connection: give a pool"
        )


def _outage_of(pool: ConnectionPool[Any] | AsyncConnectionPool[Any] | None) -> Outage:
    return Outage(PoolSettings().timeout if pool is None else pool.timeout)


def _least(seconds: float | None, other: float | None) -> float | None:
    return min((one for one in (seconds, other) if one is not None), default=None)


class _Connected:
    """The common part of both databases: facts about the connections and the process that opened them.

    Attributes:
        owner: The object that closes the connections, which must live as long as the database.
        tenant: The only tenant whose rows operations see and write; `None` if tables do not keep tenants apart.
        known_tenants: Tenants for which a check found that the tables keep tenants apart.
        keys: The data keys by which content is encrypted; `None` for none.
        key_seconds: Seconds that a blocking call waits for data keys; `None` for no limit. After a timeout, a thread
            continues to load the keys.
    """

    owner: object = None
    tenant: str | None = None
    keys: KeyRing | None = None
    key_seconds: float | None = None
    _connector: Connector | AsyncConnector
    known_tenants: frozenset[str] = frozenset()
    _check: Check | None = None
    _is_checked: bool = True

    @property
    def dsn(self) -> str:
        """The connection string, for further connections. It may contain a password."""
        raise NotImplementedError

    def __init__(self) -> None:
        self._process = os.getpid()

    @property
    def whole(self) -> Any:
        """The database without a tenant over the same connections."""
        return self

    @property
    def is_forked(self) -> bool:
        """Whether this object is a copy in a forked child. Its connections belong to the parent."""
        return os.getpid() != self._process

    def check_process(self) -> None:
        """Raise in a forked child, because two processes with one connection would read each other's results."""
        if os.getpid() != self._process:
            raise ConfigurationError(
                "this saver was made before a fork, and its connections belong to the parent process; make a saver in "
                "each process, after the fork"
            )

    def _walled(
        self, operation: Callable[Concatenate[Connection, P], Awaitable[T]]
    ) -> Callable[Concatenate[Connection, P], Awaitable[T]]:
        """Return an operation that first checks that the tables keep tenants apart, unless this is known."""
        if self._is_checked or self._check is None:
            return operation
        check = self._check

        async def checked(db: Connection, /, *args: P.args, **kwargs: P.kwargs) -> T:
            await check(db)
            self._note_checked()
            return await operation(db, *args, **kwargs)

        return checked

    def _note_checked(self) -> None:
        """Remember that the tables keep tenants apart."""

    def _is_away(self, busy_seconds: float | None, tries: Tries | None) -> bool:
        """Return whether a call got no connection because the server does not respond, and may wait longer."""
        has_time = busy_seconds is not None and tries is not None and tries.remaining(time.monotonic()) > 0
        return has_time and self._connector.error is not None

    def _check_busy(self, error: UnavailableError) -> None:
        """Raise the error unless other calls use all connections."""
        if not isinstance(error.__cause__, PoolTimeout) or self._connector.error is not None:
            raise error


def _finish_unless_idle(connection: PsycopgConnection | AsyncPsycopgConnection, *, is_borrowed: bool) -> None:
    """Close an owned connection that an interrupted call left in use. The next call opens a new connection."""
    if not is_borrowed and not is_idle(connection):
        connection.pgconn.finish()


class Database(_Connected):
    """Runner of operations on blocking connections. Thread-safe; with a pool, calls run concurrently.

    Attributes:
        observer: Measures operations; `None` for no measuring.
        is_borrowed: Whether the only connection belongs to the caller, who may also use it between calls.
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
        self._connector = connector_of(self._pool)
        self._connect = None if isinstance(source, ConnectionPool | psycopg.Connection) else source
        if self._pool is None and not isinstance(source, psycopg.Connection) and not callable(source):
            raise ArgumentTypeError(
                f"connection must be a psycopg Connection or ConnectionPool, not {type(source).__name__}"
                " (AsyncPGStateSaver takes asynchronous connections)"
            )
        self._single = BlockingConnection(source) if isinstance(source, psycopg.Connection) else None
        self.is_borrowed = self._single is not None
        self._lock = threading.Lock()
        super().__init__()

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
            ConfigurationError: If the DSN cannot be parsed, or the server refuses the connection (password, role,
                database).
            UnavailableError: If the server does not respond within the pool's timeout.
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
                database._connect, database._retry = None, _ONCE
                # In a forked child, closing the connection would end the parent's session.
                if database._single is not None and not database.is_forked:
                    database._single.connection.close()
            return
        with open_pool(dsn, settings, options) as connections:
            yield cls(connections, schema=schema, retry=retry)

    def for_tenant(self, tenant: str, check: Check | None = None) -> Database:
        """Return a database over the same connections whose operations see and write only the rows of one tenant.

        `check` is called before the first operation.
        """
        return _TenantDatabase(self, tenant, check)

    @property
    def dsn(self) -> str:
        """The connection string, for further connections. It may contain a password."""
        return dsn_of(self._pool, None if self._single is None else self._single.connection)

    @property
    def prepare_threshold(self) -> int | None:
        """Number of executions after which connections prepare a statement, for further connections."""
        return prepare_threshold_of(self._pool, None if self._single is None else self._single.connection)

    @property
    def pool_statistics(self) -> dict[str, int]:
        """The statistics of psycopg's pool (`get_stats`); empty without a pool."""
        return {} if self._pool is None else self._pool.get_stats()

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
            return self._run(None, None, operation, *args, **kwargs)
        with self.observer(operation):
            return self._run(None, None, operation, *args, **kwargs)

    def read(self, queries: Any, what: Read[T]) -> T:
        """Run a statement that reads, as `run` does."""
        return self.run(read, queries, what)

    def run_within(
        self,
        seconds: float,
        operation: Callable[Concatenate[Connection, P], Awaitable[T]],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        """Run an idempotent operation as `run` does, and wait at most `seconds` for connections in total."""
        return self._run(seconds, None, operation, *args, **kwargs)

    def run_apart(
        self,
        seconds: float,
        operation: Callable[Concatenate[Connection, P], Awaitable[T]],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        """Run an operation as `run` does. If other calls use all connections for `seconds`, open an extra connection.

        For operations that must be done in time, such as the renewal of leases. If no extra connection can be opened,
        wait for a connection as `run` does.
        """
        with nullcontext() if self.observer is None else self.observer(operation):
            try:
                return self._run(None, seconds, operation, *args, **kwargs)
            except UnavailableError as error:
                self._check_busy(error)
            held: HeldKeys | None = None
            while True:
                try:
                    dsn = self.dsn
                    extra = psycopg.Connection.connect(dsn, **connection_options(dsn, None, seconds))
                except (ConfigurationError, psycopg.Error):
                    # The caller's pool computes its DSN, or the server allows no more connections.
                    return self._run(None, None, operation, *args, **kwargs)
                try:
                    with extra as connection:
                        db = BlockingConnection(connection)
                        db.tenant, db.keys = self.tenant, held or self.keys
                        return run_blocking(self._walled(operation)(db, *args, **kwargs))
                except MissingKeysError as error:
                    held = self.load_keys(error, held)
                except psycopg.Error as error:
                    raise translate(error, self.schema) from error

    def _run(
        self,
        seconds: float | None,
        busy_seconds: float | None,
        operation: Callable[Concatenate[Connection, P], Awaitable[T]],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        began = time.monotonic()
        if self._check is not None:
            operation = self._walled(operation)
        # Without a time limit, make a `Tries` only after a failure. The first try usually succeeds.
        is_limited = seconds is not None or busy_seconds is not None or self._outage.since is not None
        tries = self._tries(self._retry, began, seconds) if is_limited or self._retry.attempts <= 1 else None
        held: HeldKeys | None = None
        while True:
            connected_at, in_transaction = None, False
            try:
                db, switched = self._acquire(tries, busy_seconds)
                try:
                    db.keys = held or self.keys
                    connected_at, in_transaction = time.monotonic(), self.is_borrowed and db.is_in_transaction
                    result = run_blocking(operation(db, *args, **kwargs))
                except BaseException as error:
                    self._discard(db.connection, error)
                    raise
                finally:
                    self._release(db.connection, switched)
                self._outage.since = None
                return result
            except MissingKeysError as error:
                held = self.load_keys(error, held)
                continue
            except _DRIVER_ERRORS as error:
                tries = tries or self._tries(self._retry, began, seconds)
                delay = tries.fail(error, time.monotonic(), self._connector.error, connected_at, in_transaction)
            time.sleep(delay)

    def load_keys(self, error: MissingKeysError, held: HeldKeys | None) -> HeldKeys:
        """Load the data keys that an operation has missed, and return all keys that the operation then holds.

        Raises:
            MissingKeysError: `error`, if there is no key ring, or the operation misses keys again and again.
            EncryptionError: If a key cannot be loaded, or not within `key_seconds`.
        """
        keys = self.keys
        if keys is None:
            raise error
        held = held or HeldKeys(keys)
        if self.key_seconds is None:
            run_blocking(held.load_missed(KeyLoader(self), error))
            return held

        def load() -> None:
            run_blocking(keys.load(KeyLoader(self), error.wanted))

        keys.load_beside(load, error.wanted, self.key_seconds)
        held.hold_missed(error)
        return held

    def run_outside(self, operation: Callable[[Connection], Awaitable[T]]) -> T:
        """Run an operation in its own transaction. If the caller's transaction is open, use a new connection."""
        single = self._single
        if not self.is_borrowed or single is None or not single.is_in_transaction:
            return self._run(None, None, operation)
        try:
            with psycopg.Connection.connect(self.dsn, **connection_options(self.dsn, None, _OUTSIDE_SECONDS)) as own:
                db = BlockingConnection(own)
                db.tenant = self.tenant
                return run_blocking(operation(db))
        except psycopg.Error as error:
            raise translate(error, self.schema) from error

    def run_once(
        self,
        operation: Callable[Concatenate[Connection, P], Awaitable[T]],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        """Run an operation without retries, except to load missing data keys."""
        held: HeldKeys | None = None
        while True:
            try:
                return self._run_once(held, operation, *args, **kwargs)
            except MissingKeysError as error:
                held = self.load_keys(error, held)

    def _run_once(
        self,
        held: HeldKeys | None,
        operation: Callable[Concatenate[Connection, P], Awaitable[T]],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        operation = self._walled(operation)
        tries = self._tries(_ONCE, time.monotonic())
        try:
            db, switched = self._acquire(tries)
            try:
                db.keys = held or self.keys
                result = run_blocking(operation(db, *args, **kwargs))
            except BaseException as error:
                self._discard(db.connection, error)
                raise
            finally:
                self._release(db.connection, switched)
        except _DRIVER_ERRORS as error:
            raise tries.translate(error, time.monotonic(), self._connector.error) from error
        self._outage.since = None
        return result

    @contextmanager
    def lend(self) -> Iterator[tuple[PsycopgConnection, Connection]]:
        """Yield a connection in a transaction that the caller's statements share with this package's statements.

        The transaction is committed at the end of the block, and rolled back if the block raises. If the caller has
        begun a transaction on its own connection, a savepoint is used instead. There are no retries. Exceptions of the
        block are not translated.

        Raises:
            PGStateError: If no connection is available or the commit fails.
        """
        tries = self._tries(_ONCE, time.monotonic())
        try:
            db, switched = self._acquire(tries)
        except _DRIVER_ERRORS as error:
            raise tries.translate(error, time.monotonic(), self._connector.error) from error
        try:
            raised = False
            try:
                with db.connection.transaction():
                    run_blocking(self._walled(_nothing)(db))
                    run_blocking(db.name_tenant())
                    try:
                        with _lending(self._lock):
                            yield db.connection, db
                    except BaseException:
                        raised = True
                        raise
            except BaseException as error:
                self._discard(db.connection, error)
                if raised or not isinstance(error, _DRIVER_ERRORS):
                    raise
                raise translate(error, self.schema) from error
        finally:
            self._release(db.connection, switched)

    def _tries(self, policy: RetryPolicy, began: float, seconds: float | None = None) -> Tries:
        return Tries(policy, self._outage, self.schema, began, self.is_borrowed, seconds)

    def _acquire(self, tries: Tries | None, busy_seconds: float | None = None) -> tuple[BlockingConnection, bool]:
        """Return a connection in autocommit mode, and whether it was switched to that mode.

        Switching needs no round trip, because psycopg implements autocommit on the client. The mode is not switched
        inside the caller's transaction, because the caller commits.

        Args:
            tries: The tries of the call, which limit the wait; `None` for a first try. A first try waits for the pool's
                timeout, and its connection is not checked.
            busy_seconds: Maximum number of seconds to wait while other calls use all connections.
        """
        self.check_process()
        if self._pool is None:
            db = self.acquire_single(busy_seconds)
        else:
            db = self._acquire_pooled(self._pool, tries, busy_seconds)
        db.tenant, db.keys = self.tenant, self.keys
        connection = db.connection
        switched = not connection.autocommit and is_idle(connection)
        if switched:
            connection.autocommit = True
        return db, switched

    def _acquire_pooled(
        self, pool: ConnectionPool[Any], tries: Tries | None, busy_seconds: float | None
    ) -> BlockingConnection:
        callers, caller = self._connector.callers, object()
        while True:
            callers.add(caller)
            try:
                seconds = busy_seconds if tries is None else _least(tries.remaining(time.monotonic()), busy_seconds)
                db = adapter_of(pool.getconn(seconds), BlockingConnection)
            except PoolTimeout:
                if not self._is_away(busy_seconds, tries):
                    raise
                continue
            finally:
                callers.discard(caller)
            if tries is None or tries.may_fail:
                return db
            # An outage may have broken the pool's idle connections, so test the connection.
            is_good = False
            try:
                is_good = run_blocking(db.is_good())
            finally:
                if not is_good:
                    pool.putconn(db.connection)
            if is_good:
                return db

    def acquire_single(self, busy_seconds: float | None) -> BlockingConnection:
        """Return the only connection, locked for a call."""
        _refuse_lent(self._lock, busy_seconds)
        if not self._lock.acquire(timeout=-1 if busy_seconds is None else busy_seconds):
            raise _in_use()
        try:
            if self._single is None or (self._connect is not None and self._single.connection.closed):
                assert self._connect is not None
                self._single = BlockingConnection(self._connect())
        except BaseException:
            self._lock.release()
            raise
        return self._single

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

    def _discard(self, connection: PsycopgConnection, error: BaseException) -> None:
        """Close a connection that must not be used again after an error.

        After an interrupt (`KeyboardInterrupt`, `CancelledError`), psycopg may miscount the connection's transactions.
        If a server has refused to write, close the pool's idle connections, too: they may lead to the same server.
        """
        refuses = is_read_only(error)
        if self.is_borrowed or not (refuses or is_interrupt(error)):
            return
        # Not `close()`, which may return the connection to its pool.
        connection.pgconn.finish()
        if refuses and self._pool is not None and hasattr(self._pool, "drain"):
            self._pool.drain()


def join(connection: PsycopgConnection, like: Database) -> Database:
    """Return a database whose operations are part of the caller's transaction, with the schema and tenant of `like`.

    If the connection is not in autocommit mode, a transaction is opened, which the caller commits.
    """
    database = Database(connection, schema=like.schema)
    database.keys = like.whole.keys
    if not connection.autocommit and is_idle(connection):
        connection.execute(_NOTHING)
    return database if like.tenant is None else database.for_tenant(like.tenant, like._check)


async def join_async(connection: AsyncPsycopgConnection, like: AsyncDatabase) -> AsyncDatabase:
    """Async twin of `join`."""
    database = AsyncDatabase(connection, schema=like.schema)
    database.keys = like.whole.keys
    if not connection.autocommit and is_idle(connection):
        await connection.execute(_NOTHING)
    return database if like.tenant is None else database.for_tenant(like.tenant, like._check)


class AsyncDatabase(_Connected):
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
        self._connector = connector_of(self._pool)
        self._connect = None if isinstance(source, AsyncConnectionPool | psycopg.AsyncConnection) else source
        if self._pool is None and not isinstance(source, psycopg.AsyncConnection) and not callable(source):
            raise ArgumentTypeError(
                f"connection must be a psycopg AsyncConnection or AsyncConnectionPool, not {type(source).__name__}"
                " (PGStateSaver takes blocking connections)"
            )
        self._single = AsyncConnection(source) if isinstance(source, psycopg.AsyncConnection) else None
        self.is_borrowed = self._single is not None
        self._lock = asyncio.Lock()
        super().__init__()

    @classmethod
    def open(
        cls,
        dsn: str,
        *,
        schema: str,
        pool: PoolSettings | bool | int = True,
        prepare_threshold: int | None = DEFAULT_PREPARE_THRESHOLD,
        retry: RetryPolicy | None = None,
    ) -> Opening[AsyncDatabase]:
        """Async twin of `Database.open`."""

        async def open() -> AsyncDatabase:
            settings = PoolSettings.of(pool)
            options = connection_options(dsn, prepare_threshold, (settings or PoolSettings()).timeout)
            if settings is not None:
                return cls(await open_pool_async(dsn, settings, options), schema=schema, retry=retry)
            database = cls(lambda: connect_async(dsn, **options), schema=schema, retry=retry)
            try:
                await database.run(_ping)
            except UnavailableError as error:
                raise unknown_host(error.__cause__) or error from error.__cause__
            except BaseException:
                await database._disconnect()
                raise
            return database

        # Not an async generator, because `asyncio.run` at its end closes all open generators at once.
        return Opening(open, cls._disconnect)

    async def _disconnect(self) -> None:
        # In a forked child, closing the connections would end the parent's sessions.
        if self.is_forked:
            return
        if self._pool is not None:
            await complete(self._pool.close())
            return
        self._connect, self._retry = None, _ONCE
        if self._single is not None:
            await self._single.connection.close()

    def for_tenant(self, tenant: str, check: Check | None = None) -> AsyncDatabase:
        """Async twin of `Database.for_tenant`."""
        return _AsyncTenantDatabase(self, tenant, check)

    @property
    def dsn(self) -> str:
        """Async twin of `Database.dsn`."""
        return dsn_of(self._pool, None if self._single is None else self._single.connection)

    @property
    def prepare_threshold(self) -> int | None:
        """Async twin of `Database.prepare_threshold`."""
        return prepare_threshold_of(self._pool, None if self._single is None else self._single.connection)

    @property
    def pool_statistics(self) -> dict[str, int]:
        """Async twin of `Database.pool_statistics`."""
        return {} if self._pool is None else self._pool.get_stats()

    async def run(
        self,
        operation: Callable[Concatenate[Connection, P], Awaitable[T]],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        """Async twin of `Database.run`."""
        if self.observer is None:
            return await self._run(None, None, operation, *args, **kwargs)
        with self.observer(operation):
            return await self._run(None, None, operation, *args, **kwargs)

    async def read(self, queries: Any, what: Read[T]) -> T:
        """Async twin of `Database.read`."""
        return await self.run(read, queries, what)

    async def run_within(
        self,
        seconds: float,
        operation: Callable[Concatenate[Connection, P], Awaitable[T]],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        """Async twin of `Database.run_within`."""
        return await self._run(seconds, None, operation, *args, **kwargs)

    async def run_apart(
        self,
        seconds: float,
        operation: Callable[Concatenate[Connection, P], Awaitable[T]],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        """Async twin of `Database.run_apart`."""
        with nullcontext() if self.observer is None else self.observer(operation):
            try:
                return await self._run(None, seconds, operation, *args, **kwargs)
            except UnavailableError as error:
                self._check_busy(error)
            held: HeldKeys | None = None
            while True:
                try:
                    dsn = self.dsn
                    extra = await connect_async(dsn, **connection_options(dsn, None, seconds))
                except (ConfigurationError, psycopg.Error):
                    return await self._run(None, None, operation, *args, **kwargs)
                try:
                    async with extra as connection:
                        db = AsyncConnection(connection)
                        db.tenant, db.keys = self.tenant, held or self.keys
                        return await self._walled(operation)(db, *args, **kwargs)
                except MissingKeysError as error:
                    held = await self.load_keys(error, held)
                except psycopg.Error as error:
                    raise translate(error, self.schema) from error

    async def _run(
        self,
        seconds: float | None,
        busy_seconds: float | None,
        operation: Callable[Concatenate[Connection, P], Awaitable[T]],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        began = time.monotonic()
        if self._check is not None:
            operation = self._walled(operation)
        is_limited = seconds is not None or busy_seconds is not None or self._outage.since is not None
        tries = self._tries(self._retry, began, seconds) if is_limited or self._retry.attempts <= 1 else None
        held: HeldKeys | None = None
        while True:
            connected_at, in_transaction = None, False
            try:
                db, switched = await self._acquire(tries, busy_seconds)
                try:
                    db.keys = held or self.keys
                    connected_at, in_transaction = time.monotonic(), self.is_borrowed and db.is_in_transaction
                    result = await operation(db, *args, **kwargs)
                except BaseException as error:
                    await self._discard(db.connection, error)
                    raise
                finally:
                    await self._release(db.connection, switched)
                self._outage.since = None
                return result
            except MissingKeysError as error:
                held = await self.load_keys(error, held)
                continue
            except _DRIVER_ERRORS as error:
                tries = tries or self._tries(self._retry, began, seconds)
                delay = tries.fail(error, time.monotonic(), self._connector.error, connected_at, in_transaction)
            await asyncio.sleep(delay)

    async def load_keys(self, error: MissingKeysError, held: HeldKeys | None) -> HeldKeys:
        """Async twin of `Database.load_keys`."""
        if self.keys is None:
            raise error
        held = held or HeldKeys(self.keys)
        await held.load_missed(AsyncKeyLoader(self), error)
        return held

    async def run_outside(self, operation: Callable[[Connection], Awaitable[T]]) -> T:
        """Async twin of `Database.run_outside`."""
        single = self._single
        if not self.is_borrowed or single is None or not single.is_in_transaction:
            return await self._run(None, None, operation)
        options = connection_options(self.dsn, None, _OUTSIDE_SECONDS)
        try:
            async with await connect_async(self.dsn, **options) as own:
                db = AsyncConnection(own)
                db.tenant = self.tenant
                return await operation(db)
        except psycopg.Error as error:
            raise translate(error, self.schema) from error

    async def compute(self, weighed: Any, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Return the result of a function, as `heavy.compute` does."""
        return await heavy.compute(weighed, function, *args, **kwargs)

    async def run_once(
        self,
        operation: Callable[Concatenate[Connection, P], Awaitable[T]],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        """Async twin of `Database.run_once`."""
        held: HeldKeys | None = None
        while True:
            try:
                return await self._run_once(held, operation, *args, **kwargs)
            except MissingKeysError as error:
                held = await self.load_keys(error, held)

    async def _run_once(
        self,
        held: HeldKeys | None,
        operation: Callable[Concatenate[Connection, P], Awaitable[T]],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        operation = self._walled(operation)
        tries = self._tries(_ONCE, time.monotonic())
        try:
            db, switched = await self._acquire(tries)
            try:
                db.keys = held or self.keys
                result = await operation(db, *args, **kwargs)
            except BaseException as error:
                await self._discard(db.connection, error)
                raise
            finally:
                await self._release(db.connection, switched)
        except _DRIVER_ERRORS as error:
            raise tries.translate(error, time.monotonic(), self._connector.error) from error
        self._outage.since = None
        return result

    @asynccontextmanager
    async def lend(self) -> AsyncIterator[tuple[AsyncPsycopgConnection, Connection]]:
        """Async twin of `Database.lend`."""
        tries = self._tries(_ONCE, time.monotonic())
        try:
            db, switched = await self._acquire(tries)
        except _DRIVER_ERRORS as error:
            raise tries.translate(error, time.monotonic(), self._connector.error) from error
        try:
            raised = False
            try:
                async with db.connection.transaction():
                    await self._walled(_nothing)(db)
                    await db.name_tenant()
                    try:
                        with _lending(self._lock):
                            yield db.connection, db
                    except BaseException:
                        raised = True
                        raise
            except BaseException as error:
                await self._discard(db.connection, error)
                if raised or not isinstance(error, _DRIVER_ERRORS):
                    raise
                raise translate(error, self.schema) from error
        finally:
            await self._release(db.connection, switched)

    def _tries(self, policy: RetryPolicy, began: float, seconds: float | None = None) -> Tries:
        return Tries(policy, self._outage, self.schema, began, self.is_borrowed, seconds)

    async def _acquire(self, tries: Tries | None, busy_seconds: float | None = None) -> tuple[AsyncConnection, bool]:
        """Async twin of `Database._acquire`."""
        self.check_process()
        if self._pool is None:
            db = await self.acquire_single(busy_seconds)
        else:
            db = await self._acquire_pooled(self._pool, tries, busy_seconds)
        db.tenant, db.keys = self.tenant, self.keys
        connection = db.connection
        switched = not connection.autocommit and is_idle(connection)
        if switched:
            try:
                # While the caller uses the connection, psycopg waits here, and this task may be cancelled.
                await connection.set_autocommit(True)
            except BaseException:
                await self._release(connection, switched=connection.autocommit)
                raise
        return db, switched

    async def _acquire_pooled(
        self, pool: AsyncConnectionPool[Any], tries: Tries | None, busy_seconds: float | None
    ) -> AsyncConnection:
        callers, caller = self._connector.callers, object()
        while True:
            callers.add(caller)
            try:
                seconds = busy_seconds if tries is None else _least(tries.remaining(time.monotonic()), busy_seconds)
                db = adapter_of(await take(pool.getconn(seconds), pool.putconn), AsyncConnection)
            except PoolTimeout:
                if not self._is_away(busy_seconds, tries):
                    raise
                continue
            finally:
                callers.discard(caller)
            if tries is None or tries.may_fail:
                return db
            is_good = False
            try:
                is_good = await db.is_good()
            finally:
                if not is_good:
                    await self._release(db.connection, switched=False)
            if is_good:
                return db

    async def acquire_single(self, busy_seconds: float | None) -> AsyncConnection:
        """Async twin of `Database.acquire_single`."""
        _refuse_lent(self._lock, busy_seconds)
        try:
            async with asyncio.timeout(busy_seconds):
                await self._lock.acquire()
        except TimeoutError:
            raise _in_use() from None
        try:
            if self._single is None or (self._connect is not None and self._single.connection.closed):
                assert self._connect is not None
                self._single = AsyncConnection(await self._connect())
        except BaseException:
            self._lock.release()
            raise
        return self._single

    def _release(self, connection: AsyncPsycopgConnection, switched: bool) -> Coroutine[Any, Any, None]:
        return finish(self._return(connection, switched))

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

    async def _discard(self, connection: AsyncPsycopgConnection, error: BaseException) -> None:
        refuses = is_read_only(error)
        if self.is_borrowed or not (refuses or is_interrupt(error)):
            return
        connection.pgconn.finish()
        if refuses and self._pool is not None and hasattr(self._pool, "drain"):
            await finish(self._pool.drain())


class KeyLoader:
    """Functions with which a key ring loads data keys, on a blocking database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def run(self, operation: Callable[..., Awaitable[T]], /, *args: Any) -> T:
        """Run an operation without suspending."""
        return self._database.run_apart(_BUSY_SECONDS, operation, *args)

    async def run_outside(self, operation: Callable[..., Awaitable[T]], /, *args: Any) -> T:
        """Run an operation in its own transaction without suspending."""
        return self._database.run_outside(lambda db: operation(db, *args))

    async def call(self, function: Callable[[], Any]) -> Any:
        """Return the result of a function of a master key."""
        return await call_blocking(function)

    async def wait(self, future: Future[None]) -> None:
        """Wait until another OS thread has loaded the key."""
        future.result()


class AsyncKeyLoader:
    """Async twin of `KeyLoader`."""

    def __init__(self, database: AsyncDatabase) -> None:
        self._database = database

    async def run(self, operation: Callable[..., Awaitable[T]], /, *args: Any) -> T:
        """Run an operation."""
        return await self._database.run_apart(_BUSY_SECONDS, operation, *args)

    async def run_outside(self, operation: Callable[..., Awaitable[T]], /, *args: Any) -> T:
        """Run an operation in its own transaction."""
        return await self._database.run_outside(lambda db: operation(db, *args))

    async def call(self, function: Callable[[], Any]) -> Any:
        """Return the result of a function of a master key, which runs in an OS thread."""
        return await call_async(function)

    async def wait(self, future: Future[None]) -> None:
        """Wait until another task has loaded the key. A cancellation of this task does not cancel the other task."""
        await asyncio.shield(asyncio.wrap_future(future))


class _OfTenant(_Connected):
    """The common part of both databases of a tenant, which share connections, locks and outages with `base`."""

    base: Any

    def _share(self, base: Any, tenant: str, check: Check | None) -> None:
        base = getattr(base, "base", base)
        self.__dict__.update(base.__dict__)
        # Keep `base` referenced, because its owner closes the connections.
        self.base, self.tenant, self._check = base, tenant, check
        self.keys = None if base.keys is None else base.keys.of_tenant(tenant)

    @property
    def whole(self) -> Any:
        """The database without a tenant over the same connections."""
        return self.base

    @property
    def _is_checked(self) -> bool:  # type: ignore[override]
        return self.tenant in self.base.known_tenants

    def _note_checked(self) -> None:
        self.base.known_tenants |= {self.tenant}

    @property
    def observer(self) -> Observer | None:
        """The present observer of `base`."""
        found: Observer | None = self.base.observer
        return found

    @observer.setter
    def observer(self, observer: Observer | None) -> None:
        self.base.observer = observer

    @property
    def dsn(self) -> str:
        """The connection string of `base`."""
        return str(self.base.dsn)

    @property
    def prepare_threshold(self) -> int | None:
        """The prepare threshold of `base`."""
        found: int | None = self.base.prepare_threshold
        return found

    def acquire_single(self, busy_seconds: float | None) -> Any:
        """Return the only connection of `base`, locked for a call."""
        return self.base.acquire_single(busy_seconds)


class _TenantDatabase(_OfTenant, Database):
    """A database of a tenant, over the connections of `base`."""

    def __init__(self, base: Database, tenant: str, check: Check | None) -> None:
        self._share(base, tenant, check)


class _AsyncTenantDatabase(_OfTenant, AsyncDatabase):
    """Async twin of `_TenantDatabase`."""

    def __init__(self, base: AsyncDatabase, tenant: str, check: Check | None) -> None:
        self._share(base, tenant, check)


async def _ping(db: Connection) -> None:
    # An empty query shows whether the server responds.
    await db.script("")


async def _nothing(db: Connection) -> None:
    """Do nothing."""
