"""The connection protocol over psycopg's connections, blocking and async."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, nullcontext, suppress
from typing import Any, Final, TypeVar

import psycopg
from psycopg.pq import PipelineStatus
from psycopg.rows import tuple_row

from langgraph_pgstate.db.statements import IDLE, OPEN, Statements, array_literal, within
from langgraph_pgstate.types import Parameters, Query, Rows

T = TypeVar("T")

PsycopgConnection = psycopg.Connection[Any]
AsyncPsycopgConnection = psycopg.AsyncConnection[Any]

# Not SQL of ours, and without a table: what psycopg itself sends around a transaction.
_BEGIN, _COMMIT = b"BEGIN", b"COMMIT"
# A process that stands still in the middle of a transaction (SIGSTOP, a frozen machine, a blocked event loop) must not
# keep others from its rows: the server ends its session, and it finds its connection lost when it wakes.
_NOT_FOR_EVER: Final = b"SET LOCAL idle_in_transaction_session_timeout = '10s'"
_PORT: Final = "_pgstate_port"
# How often a wait looks whether the thread was interrupted.
_LOOK_SECONDS: Final = 0.1
# A connection whose server takes longer for an empty statement is taken to be lost.
_PATIENCE: Final = 3.0
_MAX_CURSORS: Final = 64


class BlockingConnection:
    """A psycopg connection as operations use it: its coroutines never suspend."""

    __slots__ = ("_cursors", "_statements", "connection")

    def __init__(self, connection: PsycopgConnection) -> None:
        self.connection = connection
        self._statements = Statements(connection)
        self._cursors: dict[bytes, psycopg.RawCursor[Any]] = {}

    @property
    def is_in_transaction(self) -> bool:
        """As `Connection` says."""
        return in_transaction(self.connection)

    async def fetch(self, query: Query, parameters: Parameters) -> Rows:
        """As `Connection` says; without a cursor where nothing speaks against it."""
        with self.connection.lock:
            answer = self.connection.wait(self._statements.answer(query, parameters))
        if answer is not None:
            return self._statements.rows(answer)
        cursor = self._execute(query, parameters)
        rows = cursor.fetchall()
        _free_result(cursor)
        return rows

    async def execute(self, query: Query, parameters: Parameters) -> int:
        """As `Connection` says; without a cursor where nothing speaks against it."""
        with self.connection.lock:
            answer = self.connection.wait(self._statements.answer(query, parameters))
        if answer is not None:
            return answer.command_tuples or 0
        # In a pipeline of the caller's the answer comes when it is synchronized; the end of an inner one does that.
        with self.connection.pipeline() if is_in_pipeline(self.connection) else nullcontext():
            cursor = self._execute(query, parameters)
        return cursor.rowcount

    def _execute(self, query: Query, parameters: Parameters) -> psycopg.RawCursor[Any]:
        text = query.text
        cursor = self._cursors.get(text)
        if cursor is None:
            cursor = psycopg.RawCursor(self.connection, row_factory=tuple_row)
            _remember(self._cursors, text, cursor)
        prepare = False if self._statements.is_outdated else None
        return cursor.execute(text, _arguments(query, parameters), prepare=prepare, binary=True)

    async def execute_within(self, seconds: float, query: Query, parameters: Parameters) -> int:
        """As `Connection` says."""
        try:
            with self.connection.lock:
                work = within(seconds, self._statements.answer(query, parameters))
                answer = self.connection.wait(work, _LOOK_SECONDS)
        except psycopg.OperationalError:
            # Of a statement that was given up the answer may still come.
            self.connection.pgconn.finish()
            raise
        if answer is not None:
            return answer.command_tuples or 0
        return self._execute(query, parameters).rowcount

    async def execute_together(self, statements: Sequence[tuple[Query, Parameters]]) -> list[int]:
        """As `Connection` says; a pipeline, without cursors where nothing speaks against it."""
        connection = self.connection
        with connection.lock:
            touched = connection.wait(self._statements.execute_together(statements, _BEGIN, _COMMIT))
        if touched is not None:
            return touched
        # Only an explicit BEGIN makes a pipeline one transaction on every server. Inside of one a savepoint, at two
        # round trips more, keeps an error from ending what is the caller's.
        begins = not in_transaction(connection)
        frame = psycopg.RawCursor(connection)
        cursors = []
        sent: set[bytes] = set()
        refused: psycopg.Error | None = None
        try:
            with nullcontext() if begins else connection.transaction():
                try:
                    with connection.pipeline() as pipeline:
                        try:
                            if begins:
                                frame.execute(_BEGIN, prepare=False)
                            for query, parameters in statements:
                                # A cursor holds one answer.
                                if query.text in sent:
                                    self._cursors.pop(query.text, None)
                                sent.add(query.text)
                                cursors.append(self._execute(query, parameters))
                            if begins:
                                frame.execute(_COMMIT, prepare=False)
                        except psycopg.Error as error:
                            # Were it raised here, psycopg would warn that ending an aborted pipeline fails, too.
                            refused = error
                            with suppress(psycopg.Error):
                                pipeline.sync()
                except psycopg.Error as error:
                    raise refused or error from None
                if refused is not None:
                    raise refused
        except BaseException:
            if begins and in_transaction(connection):
                # psycopg's own rollback forgets statements that the server skipped instead of preparing.
                connection.rollback()
            raise
        return [max(0, cursor.rowcount) for cursor in cursors]

    async def is_good(self) -> bool:
        """Return whether this connection is still good, asking the server if in doubt; if not, it is closed."""
        if not self._statements.has_news:
            return True
        try:
            with self.connection.lock:
                self.connection.wait(within(_PATIENCE, self._statements.ping()), _LOOK_SECONDS)
        except psycopg.Error:
            self.connection.pgconn.finish()
            return False
        return True

    async def script(self, text: str) -> None:
        """As `Connection` says."""
        self.connection.cursor().execute(text.encode(), prepare=False)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[None]:
        """As `Connection` says."""
        begins = not in_transaction(self.connection)
        with self.connection.transaction():
            if begins:
                self.connection.execute(_NOT_FOR_EVER, prepare=False)
            yield


class AsyncConnection:
    """An async psycopg connection as operations use it."""

    __slots__ = ("_cursors", "_statements", "connection")

    def __init__(self, connection: AsyncPsycopgConnection) -> None:
        self.connection = connection
        self._statements = Statements(connection)
        self._cursors: dict[bytes, psycopg.AsyncRawCursor[Any]] = {}

    @property
    def is_in_transaction(self) -> bool:
        """As `Connection` says."""
        return in_transaction(self.connection)

    async def fetch(self, query: Query, parameters: Parameters) -> Rows:
        """As `Connection` says; without a cursor where nothing speaks against it."""
        async with self.connection.lock:
            answer = await self.connection.wait(self._statements.answer(query, parameters))
        if answer is not None:
            return self._statements.rows(answer)
        cursor = await self._execute(query, parameters)
        rows = await cursor.fetchall()
        _free_result(cursor)
        return rows

    async def execute(self, query: Query, parameters: Parameters) -> int:
        """As `Connection` says; without a cursor where nothing speaks against it."""
        async with self.connection.lock:
            answer = await self.connection.wait(self._statements.answer(query, parameters))
        if answer is not None:
            return answer.command_tuples or 0
        async with self.connection.pipeline() if is_in_pipeline(self.connection) else nullcontext():
            cursor = await self._execute(query, parameters)
        return cursor.rowcount

    async def _execute(self, query: Query, parameters: Parameters) -> psycopg.AsyncRawCursor[Any]:
        text = query.text
        cursor = self._cursors.get(text)
        if cursor is None:
            cursor = psycopg.AsyncRawCursor(self.connection, row_factory=tuple_row)
            _remember(self._cursors, text, cursor)
        prepare = False if self._statements.is_outdated else None
        return await cursor.execute(text, _arguments(query, parameters), prepare=prepare, binary=True)

    async def execute_within(self, seconds: float, query: Query, parameters: Parameters) -> int:
        """As `Connection` says."""
        try:
            async with self.connection.lock:
                work = within(seconds, self._statements.answer(query, parameters))
                answer = await self.connection.wait(work, _LOOK_SECONDS)
        except psycopg.OperationalError:
            # Of a statement that was given up the answer may still come.
            self.connection.pgconn.finish()
            raise
        if answer is not None:
            return answer.command_tuples or 0
        return (await self._execute(query, parameters)).rowcount

    async def execute_together(self, statements: Sequence[tuple[Query, Parameters]]) -> list[int]:
        """As `Connection` says; a pipeline, without cursors where nothing speaks against it."""
        connection = self.connection
        async with connection.lock:
            touched = await connection.wait(self._statements.execute_together(statements, _BEGIN, _COMMIT))
        if touched is not None:
            return touched
        begins = not in_transaction(connection)
        frame = psycopg.AsyncRawCursor(connection)
        cursors = []
        sent: set[bytes] = set()
        refused: psycopg.Error | None = None
        try:
            async with nullcontext() if begins else connection.transaction():
                try:
                    async with connection.pipeline() as pipeline:
                        try:
                            if begins:
                                await frame.execute(_BEGIN, prepare=False)
                            for query, parameters in statements:
                                # A cursor holds one answer.
                                if query.text in sent:
                                    self._cursors.pop(query.text, None)
                                sent.add(query.text)
                                cursors.append(await self._execute(query, parameters))
                            if begins:
                                await frame.execute(_COMMIT, prepare=False)
                        except psycopg.Error as error:
                            # Were it raised here, psycopg would warn that ending an aborted pipeline fails, too.
                            refused = error
                            with suppress(psycopg.Error):
                                await pipeline.sync()
                except psycopg.Error as error:
                    raise refused or error from None
                if refused is not None:
                    raise refused
        except BaseException:
            if begins and in_transaction(connection):
                await connection.rollback()
            raise
        return [max(0, cursor.rowcount) for cursor in cursors]

    async def is_good(self) -> bool:
        """Async twin of `BlockingConnection.is_good`."""
        if not self._statements.has_news:
            return True
        try:
            async with self.connection.lock:
                await self.connection.wait(within(_PATIENCE, self._statements.ping()), _LOOK_SECONDS)
        except psycopg.Error:
            self.connection.pgconn.finish()
            return False
        return True

    async def script(self, text: str) -> None:
        """As `Connection` says."""
        await self.connection.cursor().execute(text.encode(), prepare=False)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[None]:
        """As `Connection` says."""
        begins = not in_transaction(self.connection)
        async with self.connection.transaction():
            if begins:
                await self.connection.execute(_NOT_FOR_EVER, prepare=False)
            yield


def adapter_of(connection: Any, kind: type[T]) -> T:
    """The adapter of a pool's connection; kept, because a cursor that meets its query again is half as expensive.

    The connection keeps it itself: whoever has it has it alone. A connection that several savers are given is another
    matter: each waits for its own calls only, and has an adapter of its own.
    """
    home = connection.__dict__
    if _PORT not in home:
        home[_PORT] = kind(connection)  # type: ignore[call-arg]
    found: T = home[_PORT]
    return found


def _remember(cursors: dict[bytes, T], text: bytes, cursor: T) -> None:
    # A connection that serves many schemas must not collect the cursors of all.
    if len(cursors) >= _MAX_CURSORS:
        cursors.clear()
    cursors[text] = cursor


def _free_result(cursor: psycopg.RawCursor[Any] | psycopg.AsyncRawCursor[Any]) -> None:
    # Else a connection keeps the last state that was read over it.
    if cursor.pgresult is not None:
        cursor.pgresult.clear()


def _arguments(query: Query, parameters: Parameters) -> list[Any]:
    """A query's parameters in placeholder order, with lists as array literals.

    psycopg looks at every element of a list to find its type; the statements say the type already, and a put has
    five lists (0.04 against 0.2 ms).
    """
    arguments = []
    for name in query.parameters:
        value = parameters[name]
        arguments.append(array_literal(value) if type(value) is list else value)
    return arguments


def is_idle(connection: PsycopgConnection | AsyncPsycopgConnection) -> bool:
    """Whether no transaction is open on a connection."""
    return connection.pgconn.transaction_status == IDLE


def in_transaction(connection: PsycopgConnection | AsyncPsycopgConnection) -> bool:
    """Whether a transaction is open on a connection, or has failed."""
    return connection.pgconn.transaction_status in OPEN


def is_in_pipeline(connection: PsycopgConnection | AsyncPsycopgConnection) -> bool:
    """Return whether the caller has put a connection into pipeline mode."""
    return connection.pgconn.pipeline_status != PipelineStatus.OFF
