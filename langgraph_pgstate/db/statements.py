"""Statements that are sent through libpq directly, without a cursor.

The overhead of a cursor takes a tenth of a put's time. Parameters that are sent here have a few plain types. Rows are
loaded as a cursor loads rows.
"""

from __future__ import annotations

import hashlib
import json
import select
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, Final, TypeVar

import psycopg
from psycopg import errors, generators
from psycopg.adapt import AdaptersMap, Dumper, Transformer
from psycopg.postgres import register_default_adapters
from psycopg.pq import DiagnosticField, ExecStatus, Format, PipelineStatus, TransactionStatus
from psycopg.types.array import register_all_arrays
from psycopg.types.json import set_json_loads

from langgraph_pgstate.db.protocol import Packed, Parameters, Query, Rows
from langgraph_pgstate.db.tenants import SETTING, tenant_form

T = TypeVar("T")

_TEXT, _BINARY = 0, 1
# Maximum number of prepared statements of a connection, because each takes memory on the server.
_MAX_PREPARED: Final = 64
# Plain integers, because comparing with enum members takes longer.
_DONE: Final = (int(ExecStatus.COMMAND_OK), int(ExecStatus.TUPLES_OK))
_FAILED, _SYNCED = int(ExecStatus.FATAL_ERROR), int(ExecStatus.PIPELINE_SYNC)
IDLE, _NO_PIPELINE = int(TransactionStatus.IDLE), int(PipelineStatus.OFF)
OPEN: Final = (int(TransactionStatus.INTRANS), int(TransactionStatus.INERROR))
BEGIN, COMMIT, _ROLLBACK = b"BEGIN", b"COMMIT", b"ROLLBACK"
_SQLSTATE: Final = DiagnosticField.SQLSTATE
# Attribute of a connection that holds its prepared statements.
_PREPARED: Final = "_pgstate_prepared"
# The SQLSTATE if a statement of this name is prepared already. The name stands for only one text, so use the statement.
_DUPLICATE: Final = "42P05"
# The SQLSTATEs if a prepared statement no longer exists (DISCARD ALL), or if its tables have changed.
_OUTDATED: Final = ("26000", "0A000")


class _Prepared:
    """The prepared statements of a connection, shared by all savers that use it.

    Attributes:
        counts: Number of times each text was sent before it was prepared.
        names: Name of each prepared text, the oldest first.
    """

    __slots__ = ("_name_count", "counts", "names")

    def __init__(self) -> None:
        self.counts: dict[bytes, int] = {}
        self.names: dict[bytes, bytes] = {}
        self._name_count = 0

    def new_name(self, text: bytes) -> bytes:
        """Return a name that this connection has never used for a prepared statement.

        PgBouncer (1.21 and later) closes a connection that uses a name again, even if the statement was dropped. The
        name also identifies the text, for poolers that share prepared statements between clients.
        """
        self._name_count += 1
        return b"_pgstate_%s_%d" % (hashlib.sha256(text).hexdigest()[:32].encode(), self._name_count)

    def make_room(self, needed: int) -> Iterator[bytes]:
        """Forget the oldest texts until `needed` more can be prepared. Yield the names that the caller must drop."""
        while self.names and len(self.names) + needed > _MAX_PREPARED:
            text = next(iter(self.names))
            self.counts[text] = 0
            yield self.names.pop(text)


class _PackedDumper(Dumper):
    """Sends a value unchanged and without a type, so that the statement's type applies."""

    format = Format.BINARY

    def dump(self, obj: bytes) -> bytes:
        """Return the value."""
        return obj


def _own_adapters() -> AdaptersMap:
    adapters = AdaptersMap(types=psycopg.adapters.types)
    register_default_adapters(adapters)
    register_all_arrays(adapters)
    set_json_loads(json.loads, adapters)
    adapters.register_dumper(Packed, _PackedDumper)
    return adapters


# The program may change the adapters of psycopg, or of its connection: `set_json_loads`, loaders of timestamps.
ADAPTERS: Final = _own_adapters()


class _OwnAdapters:
    """A connection with `ADAPTERS`."""

    adapters = ADAPTERS

    def __init__(self, connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> None:
        self.connection = connection


class Statements:
    """The statements of one connection.

    Args:
        connection: A psycopg connection, blocking or async. A statement is prepared after it was sent as many times as
            the connection's `prepare_threshold` says.

    Attributes:
        tenant: The tenant that each transaction sets first; `None` for none.
    """

    __slots__ = ("_connection", "_prepared", "_transformer", "tenant")

    def __init__(self, connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> None:
        self.tenant: str | None = None
        self._connection = connection
        self._transformer = Transformer(_OwnAdapters(connection))
        self._prepared: _Prepared = connection.__dict__.setdefault(_PREPARED, _Prepared())

    @property
    def is_direct(self) -> bool:
        """Whether a statement would run in its own transaction, outside a pipeline, with client encoding UTF-8."""
        pgconn = self._connection.pgconn
        return (
            pgconn.transaction_status == IDLE
            and pgconn.pipeline_status == _NO_PIPELINE
            and pgconn.parameter_status(b"client_encoding") == b"UTF8"
        )

    @property
    def has_unread_data(self) -> bool:
        """Whether unread data has arrived from the server. Usually it reports the end of the session."""
        try:
            return _is_readable(self._connection.pgconn.socket)
        except (psycopg.OperationalError, OSError, ValueError):
            return True

    @property
    def is_outdated(self) -> bool:
        """Whether cursors must not prepare statements, because the server may have dropped all (`DISCARD ALL`).

        psycopg before 3.3.5 does not notice a `DISCARD ALL`. Its cursors would use statements that no longer exist.
        """
        return self.is_direct and not self._prepared.names

    def form_of(self, query: Query) -> bytes:
        """Return the text of a statement as it is sent."""
        return query.text if self.tenant is None else tenant_form(query.text)

    def rows(self, answer: Any) -> Rows:
        """Return the rows of a result and free it."""
        transformer = self._transformer
        transformer.set_pgresult(answer)
        rows: Rows = transformer.load_rows(0, answer.ntuples, tuple)
        # Without this, the connection would keep its last result in memory, such as a large state.
        transformer.set_pgresult(None)
        answer.clear()
        return rows

    def execute_together(
        self,
        statements: Sequence[tuple[Query, Parameters]],
        after_commit: tuple[Query, Parameters] | None = None,
        *,
        is_alone: bool = False,
        before_commit: Callable[[Any], Any] | None = None,
    ) -> Generator[Any, Any, list[Any] | None]:
        """Run statements as one transaction in one round trip. A generator for the connection's `wait`.

        Args:
            statements: Queries with their parameters.
            after_commit: A statement that runs after the transaction. Its failure is ignored.
            is_alone: Whether there is only one statement, which needs no explicit transaction.
            before_commit: Called with the last result. The transaction is committed in a second round trip, or rolled
                back if the call raises. The result of the call replaces the last result.

        Returns:
            The result of each statement; `None` if nothing was done and the caller must use cursors.

        Raises:
            psycopg.Error: The error of the first statement that failed. The transaction was rolled back.
        """
        if not self.is_direct:
            return None
        pipeline = _Pipeline(self._connection.pgconn)
        preparing: dict[bytes, bytes] = {}
        tenant = self.tenant
        if not is_alone:
            pipeline.add(BEGIN, None)
        if tenant is not None:
            statements = [(SETTING, {"tenant": tenant}), *statements]
        for query, parameters in statements:
            arguments = _encode(query, parameters)
            if arguments is None:
                return None
            text = self.form_of(query)
            name = self._prepared.names.get(text) or preparing.get(text)
            if name is None and self._is_worth_preparing(query, text):
                for old_name in self._prepared.make_room(len(preparing) + 1):
                    pipeline.drop(old_name)
                name = preparing[text] = self._prepared.new_name(text)
                pipeline.prepare(name, text)
            pipeline.add(text, name, *arguments)
        if not is_alone and before_commit is None:
            pipeline.add(COMMIT, None)
        if after_commit is not None:
            query, parameters = after_commit
            arguments = _encode(query, parameters)
            if arguments is None:
                return None
            if tenant is None:
                pipeline.add_optional(query.text, *arguments)
            else:
                # The server runs these two statements as one transaction, which ends at the sync.
                pipeline.add_optional(SETTING.text, [tenant.encode()], [_TEXT])
                pipeline.add_optional(self.form_of(query), *arguments)
        error = yield from pipeline.run(is_left_open=before_commit is not None)
        # Prepared statements survive a rollback, so remember them even after an error.
        self._prepared.names.update((text, preparing[text]) for text in pipeline.prepared)
        if error is None:
            begun = 1 if tenant is None else 2
            if is_alone:
                return pipeline.results[-1:]
            if before_commit is None:
                return pipeline.results[begun:-1]
            found = yield from self._end(before_commit, pipeline.results[-1])
            return [*pipeline.results[begun:-1], found]
        code = _code(error)
        if code in _OUTDATED:
            self._prepared.names.clear()
        elif code == _DUPLICATE:
            self._prepared.names.update(preparing)
        else:
            raise errors.error_from_result(error)
        return None

    def _end(self, before_commit: Callable[[Any], T], answer: Any) -> Generator[Any, Any, T]:
        """Call `before_commit`, and commit; roll back if the call raises. Return the result of the call."""
        pgconn = self._connection.pgconn
        try:
            found = before_commit(answer)
        except BaseException:
            pgconn.send_query_params(_ROLLBACK, None)
            yield from generators.execute(pgconn)
            raise
        pgconn.send_query_params(COMMIT, None)
        ended = (yield from generators.execute(pgconn))[-1]
        if ended.status == _FAILED:
            raise errors.error_from_result(ended)
        return found

    def answer(self, query: Query, parameters: Parameters) -> Generator[Any, Any, Any]:
        """Run a statement. A generator for the connection's `wait`.

        Returns:
            The result; `None` if nothing was done and the caller must use a cursor.

        Raises:
            psycopg.Error: The server's error.
        """
        if self.tenant is not None:
            return (yield from self._answer_tenant(query, parameters, self.tenant))
        arguments = _encode(query, parameters) if self.is_direct else None
        if arguments is None:
            return None
        pgconn, names, text = self._connection.pgconn, self._prepared.names, query.text
        if text not in names and self._is_worth_preparing(query, text):
            yield from self._prepare(text)
        values, formats = arguments
        if text in names:
            pgconn.send_query_prepared(names[text], values, formats, _BINARY)
        else:
            pgconn.send_query_params(text, values, None, formats, _BINARY)
        answer = (yield from generators.execute(pgconn))[-1]
        if answer.status in _DONE:
            return answer
        if _code(answer) in _OUTDATED:
            names.clear()
            return None
        raise errors.error_from_result(answer)

    def _answer_tenant(self, query: Query, parameters: Parameters, tenant: str) -> Generator[Any, Any, Any]:
        """Send a statement together with the statement that sets the tenant.

        There is no BEGIN, because the server runs all statements up to a sync as one transaction.
        """
        names = self._prepared.names
        setting, name = names.get(SETTING.text), names.get(self.form_of(query))
        if setting is None or name is None:
            answers = yield from self.execute_together([(query, parameters)], is_alone=True)
            return None if answers is None else answers[0]
        arguments = _encode(query, parameters) if self.is_direct else None
        if arguments is None:
            return None
        send = self._connection.pgconn.send_query_prepared
        sending = (
            partial(send, setting, [tenant.encode()], [_TEXT], _BINARY),
            partial(send, name, *arguments, _BINARY),
        )
        answers = yield from _exchange(self._connection.pgconn, sending)
        if answers[0].status in _DONE and answers[1].status in _DONE:
            return answers[1]
        error = answers[0] if answers[0].status == _FAILED else answers[1]
        if _code(error) in _OUTDATED:
            names.clear()
            return None
        raise errors.error_from_result(error)

    def _prepare(self, text: bytes) -> Generator[Any, Any, None]:
        pgconn, name = self._connection.pgconn, self._prepared.new_name(text)
        sending = [_dropping(pgconn, old_name) for old_name in self._prepared.make_room(1)]
        answers = yield from _exchange(pgconn, [*sending, partial(pgconn.send_prepare, name, text)])
        for answer in answers:
            if answer.status == _FAILED:
                if _code(answer) in _OUTDATED:
                    self._prepared.names.clear()
                    return
                if _code(answer) != _DUPLICATE:
                    raise errors.error_from_result(answer)
        self._prepared.names[text] = name

    def ping(self) -> Generator[Any, Any, None]:
        """Send an empty statement and wait for its result. A generator for the connection's `wait`.

        Raises:
            psycopg.Error: If the connection is lost.
        """
        self._connection.pgconn.send_query_params(b"", None)
        answer = (yield from generators.execute(self._connection.pgconn))[-1]
        if answer.status == _FAILED:
            raise errors.error_from_result(answer)

    def _is_worth_preparing(self, query: Query, text: bytes) -> bool:
        threshold, counts = self._connection.prepare_threshold, self._prepared.counts
        if threshold is None or query.is_planned_each_time:
            return False
        count = counts[text] = counts.get(text, 0) + 1
        return count > threshold


def _is_readable(socket: int) -> bool:
    if not hasattr(select, "poll"):
        return bool(select.select([socket], [], [], 0)[0])
    poll = select.poll()
    poll.register(socket, select.POLLIN)
    return bool(poll.poll(0))


def within(seconds: float, work: Generator[Any, Any, T]) -> Generator[Any, Any, T]:
    """Run a generator for a connection's `wait` with a time limit.

    Raises:
        psycopg.OperationalError: If the time is up.
    """
    until = time.monotonic() + seconds
    try:
        waits_for = next(work)
        while True:
            is_ready = yield waits_for
            if time.monotonic() > until:
                raise psycopg.OperationalError(f"the server did not respond within {seconds:g} s")
            waits_for = work.send(is_ready)
    except StopIteration as stop:
        found: T = stop.value
        return found


class _Pipeline:
    """Statements that are sent together in libpq's pipeline mode.

    Attributes:
        results: After `run`, the results of the statements that are not optional, in order.
        prepared: After `run`, the texts that are now prepared, even if a statement failed.
    """

    __slots__ = ("_expected", "_pgconn", "_sending", "prepared", "results")

    def __init__(self, pgconn: Any) -> None:
        self._pgconn = pgconn
        self._sending: list[Callable[[], None]] = []
        # For each expected result: the text of a statement to prepare, `None` for an execution, `b""` for the removal
        # of a prepared statement.
        self._expected: list[bytes | None] = []
        self.results: list[Any] = []
        self.prepared: list[bytes] = []

    def add(
        self,
        text: bytes,
        name: bytes | None,
        values: list[bytes | None] | None = None,
        formats: list[int] | None = None,
    ) -> None:
        """Add a statement, by its prepared name if there is one."""
        if name is None:
            self._sending.append(partial(self._pgconn.send_query_params, text, values, None, formats, _BINARY))
        else:
            self._sending.append(partial(self._pgconn.send_query_prepared, name, values, formats, _BINARY))
        self._expected.append(None)

    def add_optional(self, text: bytes, values: list[bytes | None], formats: list[int]) -> None:
        """Add a statement whose result is ignored. Only optional statements may follow."""
        self._sending.append(partial(self._pgconn.send_query_params, text, values, None, formats, _BINARY))

    def prepare(self, name: bytes, text: bytes) -> None:
        """Add the preparation of a statement under a name."""
        self._sending.append(partial(self._pgconn.send_prepare, name, text))
        self._expected.append(text)

    def drop(self, name: bytes) -> None:
        """Add the removal of a prepared statement. Its result is not kept."""
        self._sending.append(_dropping(self._pgconn, name))
        self._expected.append(b"")

    def run(self, *, is_left_open: bool = False) -> Generator[Any, Any, Any]:
        """Send all statements, as `_exchange` does, and read the results.

        Return the first result that is an error; `None` if there is none.
        """
        answers = yield from _exchange(self._pgconn, self._sending, is_left_open=is_left_open)
        for text, answer in zip(self._expected, answers, strict=False):
            if answer.status == _FAILED:
                return answer
            if text is None:
                self.results.append(answer)
            elif text:
                self.prepared.append(text)
        return None


def _dropping(pgconn: Any, name: bytes) -> Callable[[], None]:
    """Return a function that sends the removal of a prepared statement."""
    if psycopg.capabilities.has_send_close_prepared():
        return partial(pgconn.send_close_prepared, name)
    return partial(pgconn.send_query_params, b"DEALLOCATE " + name, None)


def _exchange(
    pgconn: Any, sending: Iterable[Callable[[], None]], *, is_left_open: bool = False
) -> Generator[Any, Any, list[Any]]:
    """Send statements in pipeline mode. Return their results, and last the result of the sync.

    An open transaction is then rolled back, unless `is_left_open` is true and no statement has failed.
    """
    pgconn.enter_pipeline_mode()
    is_complete = False
    answers: list[Any] = []
    try:
        for send in sending:
            send()
        pgconn.pipeline_sync()
        # This call also reads results. Without reading, client and server could wait for each other forever.
        yield from generators.send(pgconn)
        # Read up to the result of the sync. The sync commits an optional statement, so the error may come just before.
        while not answers or answers[-1].status != _SYNCED:
            answers.append((yield from generators.fetch_many(pgconn))[-1])
        is_complete = True
    except psycopg.OperationalError as error:
        for answer in (*answers, *_take_buffered(pgconn)):
            if answer.status == _FAILED and _code(answer):
                # Errors with a code come from the server. Such an error says why the server ended the session.
                raise errors.error_from_result(answer) from error
        raise
    finally:
        if not is_complete:
            # The connection is lost, or the caller was interrupted. Sent statements cannot be taken back, so close the
            # connection.
            pgconn.finish()
    pgconn.exit_pipeline_mode()
    if pgconn.transaction_status in OPEN and not (is_left_open and all(one.status != _FAILED for one in answers)):
        pgconn.send_query_params(_ROLLBACK, None)
        yield from generators.execute(pgconn)
    return answers


def _take_buffered(pgconn: Any) -> Iterator[Any]:
    """Yield the results that had arrived before reading failed."""
    was_none = False
    while not pgconn.is_busy():
        answer = pgconn.get_result()
        if answer is None and was_none:
            return
        was_none = answer is None
        if answer is not None:
            yield answer


def array_literal(items: list[Any]) -> str:
    """Return a one-dimensional array of integers or strings in PostgreSQL's text format."""
    if items and type(items[0]) is int:
        # `str` of the whole list is faster than `str` of each item.
        return "{" + str(items)[1:-1] + "}"
    if items and isinstance(items[0], str):
        quoted = [item.replace("\\", "\\\\").replace('"', '\\"') for item in items]
        return '{"' + '","'.join(quoted) + '"}'
    return "{" + ",".join(map(str, items)) + "}"


def _encode(query: Query, parameters: Parameters) -> tuple[list[bytes | None], list[int]] | None:
    """Return a query's parameters in libpq's text or binary format; `None` if a parameter needs psycopg's adapters.

    The statement states the type of each parameter, so no types are sent.
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
                # libpq would truncate the text at a NUL.
                return None
        elif kind is bytes or kind is Packed:
            format = _BINARY
        elif kind is int:
            value = b"%d" % value
        elif kind is bool:
            value = b"t" if value else b"f"
        elif kind is float:
            # PostgreSQL can read numbers in Python's form, including infinities and NaN.
            value = b"%a" % value
        elif value is not None:
            return None
        values.append(value)
        formats.append(format)
    return values, formats


def _code(answer: Any) -> str:
    found: bytes | None = answer.error_field(_SQLSTATE)
    return (found or b"").decode()
