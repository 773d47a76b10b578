"""Statements sent straight through libpq, without a cursor.

A cursor looks up how to adapt each parameter, counts what to prepare and copies its answer: on the path of a put that
costs a tenth of the whole, and more once other work has used the processor's caches. What is sent here is of a few
plain types; rows are read as a cursor reads them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Generator
from typing import Any, Final

import psycopg
from psycopg import errors, generators
from psycopg.adapt import Transformer
from psycopg.pq import DiagnosticField, ExecStatus, PipelineStatus, TransactionStatus

from langgraph_pgstate.types import Parameters, Query, Rows

_TEXT, _BINARY = 0, 1
# Beyond these a cursor does it: psycopg forgets the least used of what it has prepared.
_MAX_PREPARED: Final = 64
# As plain numbers: comparing with members of an enumeration takes longer.
_DONE: Final = (int(ExecStatus.COMMAND_OK), int(ExecStatus.TUPLES_OK))
_IDLE, _NO_PIPELINE = int(TransactionStatus.IDLE), int(PipelineStatus.OFF)
_SQLSTATE: Final = DiagnosticField.SQLSTATE
# Already prepared, by another user of the same connection: the name says the text.
_TAKEN: Final = "42P05"
# What was prepared is gone (DISCARD ALL), or no longer fits its tables.
_OUTDATED: Final = ("26000", "0A000")


class Statements:
    """The statements of one connection, prepared once they were sent often enough.

    Args:
        connection: A connection of either colour. Its `prepare_threshold` says what often enough is.
    """

    __slots__ = ("_connection", "_counts", "_names", "_transformer")

    def __init__(self, connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> None:
        self._connection = connection
        self._transformer = Transformer(connection)
        self._counts: dict[bytes, int] = {}
        self._names: dict[bytes, bytes] = {}

    @property
    def is_direct(self) -> bool:
        """Whether a statement sent now is a transaction of its own, in an encoding that is known."""
        pgconn = self._connection.pgconn
        return (
            self._connection.autocommit
            and pgconn.transaction_status == _IDLE
            and pgconn.pipeline_status == _NO_PIPELINE
            and pgconn.parameter_status(b"client_encoding") == b"UTF8"
        )

    def execute(self, query: Query, parameters: Parameters) -> Generator[Any, Any, int | None]:
        """Run a statement, for the connection's `wait`.

        Returns:
            How many rows it touched; `None` if nothing was sent, or nothing done: then a cursor has to do it.

        Raises:
            psycopg.Error: What the server says.
        """
        answer = yield from self._answer(query, parameters)
        return None if answer is None else answer.command_tuples or 0

    def fetch(self, query: Query, parameters: Parameters) -> Generator[Any, Any, Rows | None]:
        """Run a statement, for the connection's `wait`.

        Returns:
            Its rows; `None` as `execute` does.

        Raises:
            psycopg.Error: What the server says.
        """
        answer = yield from self._answer(query, parameters)
        if answer is None:
            return None
        transformer = self._transformer
        transformer.set_pgresult(answer)
        rows: Rows = transformer.load_rows(0, answer.ntuples, tuple)
        # Else the connection keeps the last state that was read over it.
        transformer.set_pgresult(None)
        answer.clear()
        return rows

    def _answer(self, query: Query, parameters: Parameters) -> Generator[Any, Any, Any]:
        arguments = _encode(query, parameters)
        if arguments is None:
            return None
        values, formats = arguments
        pgconn = self._connection.pgconn
        text = query.text
        name = self._names.get(text)
        if name is None and self._is_worth_preparing(text):
            if len(self._names) >= _MAX_PREPARED:
                return None
            name = b"_pgstate_" + hashlib.sha256(text).hexdigest()[:32].encode()
            pgconn.send_prepare(name, text)
            answer = (yield from generators.execute(pgconn))[-1]
            if answer.status not in _DONE and _code(answer) != _TAKEN:
                raise errors.error_from_result(answer)
            self._names[text] = name
        if name is None:
            pgconn.send_query_params(text, values, None, formats, _BINARY)
        else:
            pgconn.send_query_prepared(name, values, formats, _BINARY)
        answer = (yield from generators.execute(pgconn))[-1]
        if answer.status in _DONE:
            return answer
        if _code(answer) in _OUTDATED:
            self._names.clear()
            return None
        raise errors.error_from_result(answer)

    def _is_worth_preparing(self, text: bytes) -> bool:
        threshold = self._connection.prepare_threshold
        if threshold is None:
            return False
        count = self._counts[text] = self._counts.get(text, 0) + 1
        return count > threshold


def array_literal(items: list[Any]) -> str:
    """A one-dimensional array of integers or of strings as PostgreSQL's text."""
    if items and type(items[0]) is str:
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
