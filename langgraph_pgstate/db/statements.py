"""Statements sent straight through libpq, without a cursor.

A cursor looks up how to adapt each parameter, counts what to prepare and copies its answer: on the path of a put that
costs a tenth of the whole, and more once other work has used the processor's caches. What is sent here is of a few
plain types; rows are read as a cursor reads them.
"""

from __future__ import annotations

import hashlib
import select
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from functools import partial
from typing import Any, Final, TypeVar

import psycopg
from psycopg import errors, generators
from psycopg.adapt import Transformer
from psycopg.pq import DiagnosticField, ExecStatus, PipelineStatus, TransactionStatus

from langgraph_pgstate.types import Parameters, Query, Rows

T = TypeVar("T")

_TEXT, _BINARY = 0, 1
# Beyond these a cursor does it: psycopg forgets the least used of what it has prepared.
_MAX_PREPARED: Final = 64
# As plain numbers: comparing with members of an enumeration takes longer.
_DONE: Final = (int(ExecStatus.COMMAND_OK), int(ExecStatus.TUPLES_OK))
_FAILED: Final = int(ExecStatus.FATAL_ERROR)
IDLE, _NO_PIPELINE = int(TransactionStatus.IDLE), int(PipelineStatus.OFF)
OPEN: Final = (int(TransactionStatus.INTRANS), int(TransactionStatus.INERROR))
_ROLLBACK: Final = b"ROLLBACK"
_SQLSTATE: Final = DiagnosticField.SQLSTATE
# Where a connection keeps what it has prepared.
_PREPARED: Final = "_pgstate_prepared"
# Already prepared, by another user of the same connection: the name says the text.
_TAKEN: Final = "42P05"
# What was prepared is gone (DISCARD ALL), or no longer fits its tables.
_OUTDATED: Final = ("26000", "0A000")


class _Prepared:
    """The statements that a connection has prepared, shared by all savers that use it.

    Attributes:
        counts: How often each text was sent before it was prepared.
        names: Name of each text that is prepared.
    """

    __slots__ = ("_given", "counts", "names")

    def __init__(self) -> None:
        self.counts: dict[bytes, int] = {}
        self.names: dict[bytes, bytes] = {}
        self._given = 0

    def new_name(self, text: bytes) -> bytes:
        """Return a name that this connection has never prepared.

        PgBouncer (1.21 and later) closes a connection that uses a name twice, even if the server knows it no more. The
        name also identifies the text, for a pooler that keeps what another client has prepared.
        """
        self._given += 1
        return b"_pgstate_%s_%d" % (hashlib.sha256(text).hexdigest()[:32].encode(), self._given)


class Statements:
    """The statements of one connection, prepared once they were sent often enough.

    Args:
        connection: A psycopg connection, blocking or async. Its `prepare_threshold` says what often enough is.
    """

    __slots__ = ("_connection", "_prepared", "_transformer")

    def __init__(self, connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> None:
        self._connection = connection
        self._transformer = Transformer(connection)
        self._prepared: _Prepared = connection.__dict__.setdefault(_PREPARED, _Prepared())

    @property
    def is_direct(self) -> bool:
        """Whether a statement sent now is a transaction of its own, in an encoding that is known."""
        pgconn = self._connection.pgconn
        return (
            pgconn.transaction_status == IDLE
            and pgconn.pipeline_status == _NO_PIPELINE
            and pgconn.parameter_status(b"client_encoding") == b"UTF8"
        )

    @property
    def has_news(self) -> bool:
        """Whether the server has said something unasked: the end of the session, most of the time."""
        try:
            return _is_readable(self._connection.pgconn.socket)
        except (psycopg.OperationalError, OSError, ValueError):
            return True

    @property
    def is_outdated(self) -> bool:
        """Return whether a statement could be sent straight, but none is prepared: the server may have forgotten all.

        psycopg before 3.3.5 does not notice a `DISCARD ALL`, and its cursors go on to use what they had prepared.
        """
        return self.is_direct and not self._prepared.names

    def rows(self, answer: Any) -> Rows:
        """The rows of an answer, which is freed."""
        transformer = self._transformer
        transformer.set_pgresult(answer)
        rows: Rows = transformer.load_rows(0, answer.ntuples, tuple)
        # Else the connection keeps the last state that was read over it.
        transformer.set_pgresult(None)
        answer.clear()
        return rows

    def execute_together(
        self, statements: Sequence[tuple[Query, Parameters]], begin: bytes, end: bytes
    ) -> Generator[Any, Any, list[int] | None]:
        """Run statements as one transaction in one round trip, for the connection's `wait`.

        Args:
            statements: Queries with their parameters.
            begin: What begins the transaction.
            end: What ends it.

        Returns:
            How many rows each touched; `None` if nothing was sent, or nothing done: then cursors have to do it.

        Raises:
            psycopg.Error: What the server says of the first that failed. Nothing was done.
        """
        if not self.is_direct:
            return None
        pipeline = _Pipeline(self._connection.pgconn)
        pipeline.add(begin, None)
        preparing: dict[bytes, bytes] = {}
        for query, parameters in statements:
            arguments = _encode(query, parameters)
            if arguments is None:
                return None
            text = query.text
            name = self._prepared.names.get(text) or preparing.get(text)
            if name is None and self._is_worth_preparing(text):
                if len(self._prepared.names) + len(preparing) >= _MAX_PREPARED:
                    return None
                name = preparing[text] = self._prepared.new_name(text)
                pipeline.prepare(name, text)
            pipeline.add(text, name, *arguments)
        pipeline.add(end, None)
        error = yield from pipeline.run()
        # What was prepared stays so, whatever became of the transaction.
        self._prepared.names.update((text, preparing[text]) for text in pipeline.prepared)
        if error is None:
            return pipeline.touched[1:-1]
        code = _code(error)
        if code in _OUTDATED:
            self._prepared.names.clear()
        elif code == _TAKEN:
            self._prepared.names.update(preparing)
        else:
            raise errors.error_from_result(error)
        return None

    def answer(self, query: Query, parameters: Parameters) -> Generator[Any, Any, Any]:
        """Run a statement, for the connection's `wait`.

        Returns:
            The server's answer; `None` if nothing was sent, or nothing done: then a cursor has to do it.

        Raises:
            psycopg.Error: What the server says.
        """
        arguments = _encode(query, parameters) if self.is_direct else None
        if arguments is None:
            return None
        pgconn = self._connection.pgconn
        text = query.text
        if text not in self._prepared.names and self._is_worth_preparing(text):
            if len(self._prepared.names) >= _MAX_PREPARED:
                return None
            yield from self.prepare(text)
        self._send(text, *arguments)
        answer = (yield from generators.execute(pgconn))[-1]
        if answer.status in _DONE:
            return answer
        if _code(answer) in _OUTDATED:
            self._prepared.names.clear()
            return None
        raise errors.error_from_result(answer)

    def prepare(self, text: bytes) -> Generator[Any, Any, None]:
        """Have a statement prepared unless it is, for the connection's `wait`.

        Raises:
            psycopg.Error: What the server says.
        """
        if text in self._prepared.names:
            return
        name = self._prepared.new_name(text)
        self._connection.pgconn.send_prepare(name, text)
        answer = (yield from generators.execute(self._connection.pgconn))[-1]
        if answer.status not in _DONE and _code(answer) != _TAKEN:
            raise errors.error_from_result(answer)
        self._prepared.names[text] = name

    def ping(self) -> Generator[Any, Any, None]:
        """Wait for an answer to an empty statement, for the connection's `wait`.

        Raises:
            psycopg.Error: If the connection is lost.
        """
        self._connection.pgconn.send_query_params(b"", None)
        answer = (yield from generators.execute(self._connection.pgconn))[-1]
        if answer.status == _FAILED:
            raise errors.error_from_result(answer)

    def _send(self, text: bytes, values: list[bytes | None], formats: list[int]) -> None:
        name = self._prepared.names.get(text)
        if name is None:
            self._connection.pgconn.send_query_params(text, values, None, formats, _BINARY)
        else:
            self._connection.pgconn.send_query_prepared(name, values, formats, _BINARY)

    def _is_worth_preparing(self, text: bytes) -> bool:
        threshold = self._connection.prepare_threshold
        if threshold is None:
            return False
        count = self._prepared.counts[text] = self._prepared.counts.get(text, 0) + 1
        return count > threshold


def _is_readable(socket: int) -> bool:
    if not hasattr(select, "poll"):
        return bool(select.select([socket], [], [], 0)[0])
    poll = select.poll()
    poll.register(socket, select.POLLIN)
    return bool(poll.poll(0))


def within(seconds: float, work: Generator[Any, Any, T]) -> Generator[Any, Any, T]:
    """The same work, for a connection's `wait`, given up after a time.

    Raises:
        psycopg.OperationalError: If the time is up.
    """
    until = time.monotonic() + seconds
    try:
        waits_for = next(work)
        while True:
            is_ready = yield waits_for
            if time.monotonic() > until:
                raise psycopg.OperationalError(f"the server did not answer within {seconds:g} s")
            waits_for = work.send(is_ready)
    except StopIteration as stop:
        found: T = stop.value
        return found


class _Pipeline:
    """Statements that are sent in one go.

    Attributes:
        touched: After it has run, how many rows each statement touched, in the order they were added.
        prepared: After it has run or failed, the texts that the server knows by name now.
    """

    __slots__ = ("_expected", "_pgconn", "_sending", "prepared", "touched")

    def __init__(self, pgconn: Any) -> None:
        self._pgconn = pgconn
        self._sending: list[Callable[[], None]] = []
        # Of each answer to come: the text that is prepared, `None` for a statement that is run.
        self._expected: list[bytes | None] = []
        self.touched: list[int] = []
        self.prepared: list[bytes] = []

    def add(
        self,
        text: bytes,
        name: bytes | None,
        values: list[bytes | None] | None = None,
        formats: list[int] | None = None,
    ) -> None:
        """Run a statement, by its name if it has one."""
        if name is None:
            self._sending.append(partial(self._pgconn.send_query_params, text, values, None, formats, _BINARY))
        else:
            self._sending.append(partial(self._pgconn.send_query_prepared, name, values, formats, _BINARY))
        self._expected.append(None)

    def prepare(self, name: bytes, text: bytes) -> None:
        """Let a statement be known by a name from here on."""
        self._sending.append(partial(self._pgconn.send_prepare, name, text))
        self._expected.append(text)

    def run(self) -> Generator[Any, Any, Any]:
        """Send everything and take the answers. What was not committed by then is rolled back.

        Returns:
            The first answer that is an error; `None` if there is none.
        """
        pgconn = self._pgconn
        pgconn.enter_pipeline_mode()
        is_through = False
        answers: list[Any] = []
        try:
            for send in self._sending:
                send()
            pgconn.pipeline_sync()
            # Takes answers in, too, so that neither side waits for the other to read.
            yield from generators.send(pgconn)
            while len(answers) <= len(self._expected):
                answers.append((yield from generators.fetch_many(pgconn))[-1])
            is_through = True
        except psycopg.OperationalError as error:
            for answer in (*answers, *_take_buffered(pgconn)):
                if answer.status == _FAILED and _code(answer):
                    # The server's last words say why it has ended the session; what libpq says itself has no code.
                    raise errors.error_from_result(answer) from error
            raise
        finally:
            if not is_through:
                # Lost, or nobody waits for it any more: what was sent cannot be taken back.
                pgconn.finish()
        pgconn.exit_pipeline_mode()
        if pgconn.transaction_status in OPEN:
            pgconn.send_query_params(_ROLLBACK, None)
            yield from generators.execute(pgconn)
        for text, answer in zip(self._expected, answers, strict=False):
            if answer.status == _FAILED:
                return answer
            if text is None:
                self.touched.append(answer.command_tuples or 0)
            else:
                self.prepared.append(text)
        return None


def _take_buffered(pgconn: Any) -> Iterator[Any]:
    """Yield the answers that have come, after reading more has failed."""
    was_none = False
    while not pgconn.is_busy():
        answer = pgconn.get_result()
        if answer is None and was_none:
            return
        was_none = answer is None
        if answer is not None:
            yield answer


def array_literal(items: list[Any]) -> str:
    """A one-dimensional array of integers or of strings as PostgreSQL's text."""
    if items and type(items[0]) is int:
        # As Python writes a list of them, which takes half of the time.
        return "{" + str(items)[1:-1] + "}"
    if items and isinstance(items[0], str):
        quoted = [item.replace("\\", "\\\\").replace('"', '\\"') for item in items]
        return '{"' + '","'.join(quoted) + '"}'
    return "{" + ",".join(map(str, items)) + "}"


def _encode(query: Query, parameters: Parameters) -> tuple[list[bytes | None], list[int]] | None:
    """A query's parameters in libpq's text or binary format; `None` if one is of a type that psycopg knows better.

    The statement says of which type each is, so nothing need be sent along.
    """
    values: list[bytes | None] = []
    formats = []
    for name in query.parameters:
        value = parameters[name]
        kind = type(value)
        format = _TEXT
        if kind is str or kind is list:
            try:
                value = (value if kind is str else array_literal(value)).encode()
            except UnicodeEncodeError:
                return None
            if b"\0" in value:
                # libpq would end the text there.
                return None
        elif kind is bytes:
            format = _BINARY
        elif kind is int:
            value = b"%d" % value
        elif kind is bool:
            value = b"t" if value else b"f"
        elif value is not None:
            return None
        values.append(value)
        formats.append(format)
    return values, formats


def _code(answer: Any) -> str:
    found: bytes | None = answer.error_field(_SQLSTATE)
    return (found or b"").decode()
