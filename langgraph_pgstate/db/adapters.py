"""The connection protocol over psycopg's connections, blocking and async."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Generator, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext, suppress
from functools import partial
from typing import Any, Final, ParamSpec, TypeVar

import psycopg
from psycopg.pq import PipelineStatus
from psycopg.rows import tuple_row

from langgraph_pgstate.db.contents import Contents
from langgraph_pgstate.db.protocol import MAX_TEXT, Parameters, Query, Rows
from langgraph_pgstate.db.statements import ADAPTERS, BEGIN, COMMIT, IDLE, OPEN, Statements, array_literal, within
from langgraph_pgstate.db.tenants import SETTING, naming
from langgraph_pgstate.encryption.keys import KeyRing
from langgraph_pgstate.errors import ConfigurationError, EncryptedError
from langgraph_pgstate.heavy import HEAVY_BYTES, beside

T = TypeVar("T")
P = ParamSpec("P")

PsycopgConnection = psycopg.Connection[Any]
AsyncPsycopgConnection = psycopg.AsyncConnection[Any]

# A process can stop inside a transaction, for example on a frozen machine. This timeout then ends the session, which
# releases the locks.
_IDLE_TIMEOUT: Final = b"SET LOCAL idle_in_transaction_session_timeout = '10s'"
_ADAPTER: Final = "_pgstate_adapter"
# psycopg waits for the server in steps of this many seconds. After each step, it checks time limits (`within`) and
# Ctrl-C.
_CHECK_SECONDS: Final = 0.1
# Seconds to wait for the response to an empty statement. Without a response, the connection counts as lost.
_PING_SECONDS: Final = 3.0
_MAX_CURSORS: Final = 64
# Seconds for which `recall` returns a remembered fact about the database.
_KNOWN_SECONDS: Final = 10.0
# `give_way` waits for this many iterations of the event loop. With `stream_eager`, LangGraph needs five iterations to
# start the first node after the put of a run's input.
_TURNS: Final = 5


class _RawCursor(psycopg.RawCursor[Any]):
    adapters = ADAPTERS


class _AsyncRawCursor(psycopg.AsyncRawCursor[Any]):
    adapters = ADAPTERS


class _Facts:
    """Facts about a database that are kept for a few seconds."""

    __slots__ = ("_found",)

    def __init__(self) -> None:
        self._found: dict[str, tuple[Any, float]] = {}

    def recall(self, name: str) -> Any:
        """Return a fact; `None` if it is unknown or too old."""
        value, at = self._found.get(name, (None, 0.0))
        return value if time.monotonic() - at < _KNOWN_SECONDS else None

    def remember(self, name: str, value: Any) -> None:
        """Store a fact."""
        self._found[name] = value, time.monotonic()


class _Adapter:
    """A psycopg connection for operations. The subclasses say how a blocking and an async connection wait."""

    __slots__ = ("_cursors", "_facts", "_names_tenant", "_statements", "connection", "keys")

    _cursor: type[psycopg.RawCursor[Any] | psycopg.AsyncRawCursor[Any]]

    def __init__(self, connection: Any) -> None:
        self.connection = connection
        self.keys: KeyRing | None = None
        self._statements = Statements(connection)
        # Whether this adapter is inside a transaction in which it has set the tenant.
        self._names_tenant = False
        self._facts = _Facts()
        self._cursors: dict[bytes, Any] = {}

    async def _wait(self, work: Generator[Any, Any, T]) -> T:
        """Run a generator that communicates with the server, while no other caller uses the connection."""
        raise NotImplementedError

    async def _done(self, result: Any) -> Any:
        """Return the result of a call of psycopg."""
        raise NotImplementedError

    def _entered(self, block: Any) -> AbstractAsyncContextManager[Any]:
        """Return a context manager of psycopg for `async with`."""
        raise NotImplementedError

    async def give_way(self) -> None:
        """See `Connection`."""
        raise NotImplementedError

    async def compute(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """See `Connection`."""
        raise NotImplementedError

    @property
    def max_text(self) -> str:
        """See `Connection`."""
        return _max_text_of(self.connection)

    def recall(self, name: str) -> Any:
        """See `Connection`."""
        return self._facts.recall(name)

    def remember(self, name: str, value: Any) -> None:
        """See `Connection`."""
        self._facts.remember(name, value)

    @property
    def is_in_transaction(self) -> bool:
        """See `Connection`."""
        return self.connection.pgconn.transaction_status in OPEN

    @property
    def tenant(self) -> str | None:
        """The tenant that each transaction sets first, so that only this tenant's rows are visible; `None` for none."""
        return self._statements.tenant

    @tenant.setter
    def tenant(self, tenant: str | None) -> None:
        self._statements.tenant = tenant

    async def fetch(self, query: Query, parameters: Parameters) -> Rows:
        """See `Connection`. Uses a cursor only if `Statements` cannot run the statement."""
        contents = query.contents
        if contents is not None and self.keys is not None:
            parameters = await self._sealed(contents, self.keys, parameters)
        answer = await self._wait(self._statements.answer(query, parameters))
        if answer is not None:
            _note_places(contents, answer)
            rows = self._statements.rows(answer)
        else:
            rows = await self._fetch_all(await self._execute_walled(query, parameters), contents)
        return rows if contents is None or not rows else await self._opened(contents, rows, parameters)

    async def _fetch_all(self, cursor: Any, contents: Contents | None) -> Rows:
        """Return the rows of a cursor, and free its result."""
        rows: Rows = await self._done(cursor.fetchall())
        _note_places(contents, cursor.pgresult)
        _free_result(cursor)
        return rows

    async def _sealed(self, contents: Contents, keys: KeyRing, parameters: Parameters) -> Parameters:
        """Return parameters with encrypted content. An event loop encrypts large content in a thread."""
        if _size_of(parameters.values()) > HEAVY_BYTES:
            return await self.compute(contents.seal, keys, parameters)
        return contents.seal(keys, parameters)

    async def _all_sealed(self, statements: Sequence[tuple[Query, Parameters]]) -> Sequence[tuple[Query, Parameters]]:
        """Return statements with encrypted content, if there are keys."""
        if self.keys is None:
            return statements
        if sum(_size_of(parameters.values()) for query, parameters in statements if query.contents) > HEAVY_BYTES:
            return await self.compute(_seal_all, self.keys, statements)
        return _seal_all(self.keys, statements)

    async def _opened(self, contents: Contents, rows: Rows, parameters: Parameters) -> Rows:
        """Return rows with decrypted content. An event loop decrypts large content in a thread."""
        if self.keys is None:
            await self._refuse_encrypted(contents, rows)
            return rows
        if sum(map(_size_of, rows)) > HEAVY_BYTES:
            return await self.compute(contents.open, self.keys, rows, parameters)
        return contents.open(self.keys, rows, parameters)

    async def _refuse_encrypted(self, contents: Contents, rows: Rows) -> None:
        """Raise `EncryptedError` if a program without keys reads encrypted text. Plain text costs no round trip."""
        if ids := contents.key_ids(rows):
            for row in await self.fetch(contents.keys_query, {"key_ids": [*ids]}):
                raise EncryptedError(ids[row[0]])

    async def execute(self, query: Query, parameters: Parameters) -> int:
        """See `Connection`. Uses a cursor only if `Statements` cannot run the statement."""
        if query.contents is not None and self.keys is not None:
            parameters = await self._sealed(query.contents, self.keys, parameters)
        answer = await self._wait(self._statements.answer(query, parameters))
        if answer is not None:
            return answer.command_tuples or 0
        # In the caller's pipeline, results arrive only with the next sync. The end of an inner pipeline is a sync.
        is_in_pipeline = self.connection.pgconn.pipeline_status != PipelineStatus.OFF
        async with self._entered(self.connection.pipeline() if is_in_pipeline else nullcontext()):
            cursor = await self._execute_walled(query, parameters)
        affected: int = cursor.rowcount
        return affected

    async def _execute_walled(self, query: Query, parameters: Parameters) -> Any:
        """Run a statement with a cursor, in a transaction that sets the tenant, if any."""
        if self.tenant is None or self._names_tenant:
            return await self._execute(query, parameters)
        if not self.is_in_transaction:
            return (await self._execute_together([(query, parameters)]))[0]
        await self.name_tenant()
        return await self._execute(query, parameters)

    async def name_tenant(self) -> None:
        """Set the tenant in the open transaction, if there is a tenant."""
        if self.tenant is not None:
            cursor = self._cursor(self.connection)
            _free_result(await self._done(cursor.execute(naming(self.tenant), prepare=False)))

    async def _execute(self, query: Query, parameters: Parameters) -> Any:
        _check_encoding(self.connection)
        text = self._statements.form_of(query)
        cursor = self._cursors.get(text)
        if cursor is None:
            if len(self._cursors) >= _MAX_CURSORS:
                # Limit the memory of a connection that serves many schemas.
                self._cursors.clear()
            cursor = self._cursors[text] = self._cursor(self.connection, row_factory=tuple_row)
        prepare = False if query.is_planned_each_time or self._statements.is_outdated else None
        return await self._done(cursor.execute(text, _arguments(query, parameters), prepare=prepare, binary=True))

    async def execute_within(self, seconds: float, query: Query, parameters: Parameters) -> int:
        """See `Connection`."""
        if query.contents is not None and self.keys is not None:
            parameters = await self._sealed(query.contents, self.keys, parameters)
        try:
            answer = await self._wait(within(seconds, self._statements.answer(query, parameters)))
        except psycopg.OperationalError:
            # Close the connection, because the response to the abandoned statement may still arrive.
            self.connection.pgconn.finish()
            raise
        if answer is not None:
            return answer.command_tuples or 0
        affected: int = (await self._execute_walled(query, parameters)).rowcount
        return affected

    async def execute_together(self, statements: Sequence[tuple[Query, Parameters]]) -> list[int]:
        """See `Connection`. Uses a pipeline, and cursors only if `Statements` cannot run a statement."""
        statements = await self._all_sealed(statements)
        answers = await self._wait(self._statements.execute_together(statements))
        if answers is not None:
            return [answer.command_tuples or 0 for answer in answers]
        return [max(0, cursor.rowcount) for cursor in await self._execute_together(statements)]

    async def fetch_together(
        self, statements: Sequence[tuple[Query, Parameters]], after_commit: tuple[Query, Parameters] | None = None
    ) -> Rows:
        """See `Connection`. Uses a pipeline, and cursors only if `Statements` cannot run a statement.

        With cursors, `after_commit` takes one more round trip.
        """
        contents, plain = statements[-1][0].contents, statements[-1][1]
        statements = await self._all_sealed(statements)
        answers = await self._wait(self._statements.execute_together(statements, after_commit))
        if answers is not None:
            _note_places(contents, answers[-1])
            rows = self._statements.rows(answers[-1])
        else:
            rows = await self._fetch_all((await self._execute_together(statements))[-1], contents)
            if after_commit is not None:
                with suppress(psycopg.Error):
                    await self._execute_walled(*after_commit)
        return rows if contents is None else await self._opened(contents, rows, plain)

    async def fetch_readable(self, statements: Sequence[tuple[Query, Parameters]]) -> Rows:
        """See `Connection`."""
        keys, (query, plain) = self.keys, statements[-1]
        contents = query.contents
        if keys is None or contents is None:
            return await self.fetch_together(statements)
        opening = partial(_open_result, contents, keys, self._statements, plain)
        sealed = await self._all_sealed(statements)
        answers = await self._wait(self._statements.execute_together(sealed, before_commit=opening))
        if answers is not None:
            rows: Rows = answers[-1]
            return rows
        async with self.transaction():
            return await self.fetch_together(statements)

    async def _execute_together(self, statements: Sequence[tuple[Query, Parameters]]) -> list[Any]:
        connection = self.connection
        # Only an explicit BEGIN makes a pipeline one transaction on every server. Inside the caller's transaction, use
        # a savepoint. Otherwise an error would abort the caller's transaction.
        begins = not self.is_in_transaction
        framing = self._cursor(connection)
        cursors = []
        sent: set[bytes] = set()
        refused: psycopg.Error | None = None
        try:
            async with self._entered(nullcontext() if begins else connection.transaction()):
                try:
                    async with self._entered(connection.pipeline()) as pipeline:
                        try:
                            if begins:
                                await self._done(framing.execute(BEGIN, prepare=False))
                            if self.tenant is not None:
                                await self._done(framing.execute(SETTING.text, [self.tenant], prepare=False))
                            for query, parameters in statements:
                                # A cursor holds only one result, so do not use a cursor twice in a pipeline.
                                text = self._statements.form_of(query)
                                if text in sent:
                                    self._cursors.pop(text, None)
                                sent.add(text)
                                cursors.append(await self._execute(query, parameters))
                            if begins:
                                await self._done(framing.execute(COMMIT, prepare=False))
                        except psycopg.Error as error:
                            # Raise the error after the pipeline has ended. Otherwise psycopg would log a warning.
                            refused = error
                            with suppress(psycopg.Error):
                                await self._done(pipeline.sync())
                except psycopg.Error as error:
                    raise refused or error from None
                if refused is not None:
                    raise refused
        except BaseException:
            if begins and self.is_in_transaction:
                # `rollback` also clears psycopg's list of prepared statements. The server may have skipped some of the
                # statements.
                await self._done(connection.rollback())
            raise
        return cursors

    async def is_good(self) -> bool:
        """Return whether the connection works; close it if not. Takes a round trip only if there is unread data."""
        if not self._statements.has_unread_data:
            return True
        try:
            await self._wait(within(_PING_SECONDS, self._statements.ping()))
        except psycopg.Error:
            self.connection.pgconn.finish()
            return False
        return True

    async def script(self, text: str) -> None:
        """See `Connection`."""
        await self._done(self.connection.cursor().execute(text.encode(), prepare=False))

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[None]:
        """See `Connection`."""
        begins = not self.is_in_transaction
        async with self._entered(self.connection.transaction()):
            if begins:
                await self._done(self.connection.execute(_IDLE_TIMEOUT, prepare=False))
            if self.tenant is None or self._names_tenant:
                yield
                return
            await self.name_tenant()
            self._names_tenant = True
            try:
                yield
            finally:
                self._names_tenant = False


class BlockingConnection(_Adapter):
    """A blocking psycopg connection for operations. Its coroutines never suspend."""

    __slots__ = ()

    connection: PsycopgConnection
    _cursor = _RawCursor

    async def _wait(self, work: Generator[Any, Any, T]) -> T:
        with self.connection.lock:
            return self.connection.wait(work, _CHECK_SECONDS)

    async def _done(self, result: Any) -> Any:
        return result

    @asynccontextmanager
    async def _entered(self, block: Any) -> AsyncIterator[Any]:
        with block as entered:
            yield entered

    async def give_way(self) -> None:
        """See `Connection`."""

    async def compute(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """See `Connection`."""
        return function(*args, **kwargs)


class AsyncConnection(_Adapter):
    """An async psycopg connection for operations."""

    __slots__ = ()

    connection: AsyncPsycopgConnection
    _cursor = _AsyncRawCursor

    async def _wait(self, work: Generator[Any, Any, T]) -> T:
        async with self.connection.lock:
            return await self.connection.wait(work, _CHECK_SECONDS)

    async def _done(self, result: Any) -> Any:
        return await result

    def _entered(self, block: Any) -> AbstractAsyncContextManager[Any]:
        entered: AbstractAsyncContextManager[Any] = block
        return entered

    async def give_way(self) -> None:
        """See `Connection`."""
        for _ in range(_TURNS):
            await asyncio.sleep(0)

    async def compute(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """See `Connection`."""
        return await beside(function, *args, **kwargs)


def run_blocking(operation: Awaitable[T]) -> T:
    """Run an operation on a blocking connection to its end. Raise `RuntimeError` if the operation suspends."""
    coroutine: Coroutine[Any, Any, T] = operation  # type: ignore[assignment]
    try:
        coroutine.send(None)
    except StopIteration as stop:
        result: T = stop.value
        return result
    coroutine.close()
    raise RuntimeError(f"an operation must await only its connection, but {coroutine!r} suspended")


def adapter_of(connection: Any, kind: type[T]) -> T:
    """Return the adapter of a pool's connection.

    The adapter is stored on the connection, so that later calls use its cursors again. A pooled connection serves one
    call at a time. A connection without a pool may serve calls of several savers at once, so each saver makes its own
    adapter.
    """
    attributes = connection.__dict__
    if _ADAPTER not in attributes:
        attributes[_ADAPTER] = kind(connection)  # type: ignore[call-arg]
    found: T = attributes[_ADAPTER]
    return found


def _note_places(contents: Contents | None, result: Any) -> None:
    """Store the positions of the columns of a statement's results in its `Contents`."""
    if contents is not None and contents.places is None:
        contents.places = {(result.fname(place) or b"").decode(): place for place in range(result.nfields)}


def _open_result(contents: Contents, keys: KeyRing, statements: Statements, plain: Parameters, result: Any) -> Rows:
    """Return the rows of a result with decrypted content."""
    _note_places(contents, result)
    return contents.open(keys, statements.rows(result), plain)


def _seal_all(keys: KeyRing, statements: Sequence[tuple[Query, Parameters]]) -> list[tuple[Query, Parameters]]:
    """Return statements with encrypted content."""
    return [
        (query, parameters if query.contents is None else query.contents.seal(keys, parameters))
        for query, parameters in statements
    ]


def _size_of(values: Iterable[Any]) -> int:
    """Return the number of bytes of the strings among some values."""
    return sum(len(value) for value in values if isinstance(value, str | bytes))


def _check_encoding(connection: PsycopgConnection | AsyncPsycopgConnection) -> None:
    """Refuse a caller's connection with the client encoding SQL_ASCII, because text would arrive as bytes."""
    if connection.pgconn.parameter_status(b"client_encoding") == b"SQL_ASCII":
        raise ConfigurationError(
            "the connection's client_encoding must be UTF8, got SQL_ASCII, the default for SQL_ASCII databases: "
            "connect with client_encoding=utf8"
        )


def _max_text_of(connection: PsycopgConnection | AsyncPsycopgConnection) -> str:
    server = (connection.pgconn.parameter_status(b"server_encoding") or b"UTF8").decode()
    for encoding in (server.replace("WIN", "cp"), connection.info.encoding):
        if encoding.replace("-", "").upper() in ("UTF8", "SQL_ASCII"):
            continue
        try:
            return b"\xff".decode(encoding)
        except (LookupError, UnicodeDecodeError):
            # The last character that all encodings have.
            return "\x7f"
    return MAX_TEXT


def _free_result(cursor: psycopg.RawCursor[Any] | psycopg.AsyncRawCursor[Any]) -> None:
    # Without this, the cursor would keep its last result in memory, such as a large state.
    if cursor.pgresult is not None:
        cursor.pgresult.clear()


def _arguments(query: Query, parameters: Parameters) -> list[Any]:
    """Return a query's parameters in placeholder order, with lists as array literals.

    psycopg would inspect every element of a list to find its type, although the statements state the type.
    """
    arguments = []
    for name in query.parameters:
        value = parameters[name]
        arguments.append(array_literal(value) if type(value) is list else value)
    return arguments


def is_idle(connection: PsycopgConnection | AsyncPsycopgConnection) -> bool:
    """Return whether no transaction is open on a connection."""
    return connection.pgconn.transaction_status == IDLE
