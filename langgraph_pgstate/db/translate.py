"""psycopg's errors, said in this package's words."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
from psycopg import errors as pg
from psycopg_pool import PoolClosed, PoolTimeout, TooManyRequests

from langgraph_pgstate.errors import (
    ConfigurationError,
    ConflictError,
    DatabaseError,
    PGStateError,
    SchemaError,
    SchemaMissingError,
    UnavailableError,
)

# Classes 08 (connection), 57P (the server is stopping or was told to end this session), 53300 (too many connections),
# 25P03 (the session stood still in a transaction, and was ended).
_UNAVAILABLE_CODES = ("08", "57P", "53300", "25P03")
# What a server that is alive says of a state that passes; libpq gives no code for a connection that was not made.
_PASSING = ("starting up", "shutting down", "recovery", "not yet accepting", "too many", "remaining connection slots")
# A key that is taken is another process that was faster: two that agreed on a segment's id, or that set up at once.
_CONFLICTS = (pg.SerializationFailure, pg.DeadlockDetected, pg.UniqueViolation)


def translate(error: Exception, schema: str) -> PGStateError:
    """The error to raise for a driver's error.

    Args:
        error: What psycopg or its pool raised.
        schema: The schema the operation worked in, for errors about missing tables.
    """
    if isinstance(error, PoolTimeout | TooManyRequests):
        return UnavailableError(f"no connection to PostgreSQL within the pool's timeout: {error}")
    if isinstance(error, PoolClosed):
        return UnavailableError(f"the connection pool is closed: {error}")
    if not isinstance(error, psycopg.Error):
        return DatabaseError(str(error))
    if (refused := refusal(error)) is not None:
        return refused
    code = error.sqlstate
    message = _first_line(error)
    if isinstance(error, pg.UndefinedTable | pg.InvalidSchemaName):
        return SchemaMissingError(schema)
    if isinstance(error, pg.UndefinedColumn):
        return SchemaError(
            f"the tables in schema {schema!r} are not those of this langgraph_pgstate ({message}): "
            f"run `pgstate --schema {schema} migrate`, or call saver.setup()."
        )
    if isinstance(error, _CONFLICTS):
        return ConflictError(message, code)
    if is_connection_loss(error):
        return UnavailableError(f"the connection to PostgreSQL was lost: {message}", code)
    if isinstance(error, pg.ProgramLimitExceeded):
        return ConfigurationError(f"a value exceeds a limit of PostgreSQL: {message}")
    return DatabaseError(message, code)


def rolled_back(connection: Any, error: BaseException | None, schema: str) -> DatabaseError | None:
    """Return the error to raise if a transaction came to nothing through no fault of its statements, else `None`.

    Args:
        connection: The connection that the transaction was on.
        error: What was raised in the transaction, with what caused it; `None` if nothing was.
        schema: The schema the ledger works in.
    """
    lost: DatabaseError | None = None
    for cause in _causes(error):
        found = translate(cause, schema) if isinstance(cause, psycopg.Error) else None
        if isinstance(found, ConflictError) and is_rollback(found):
            return found
        lost = lost or (found if isinstance(found, UnavailableError) else None)
    if not connection.closed:
        return None
    return lost or UnavailableError("the connection to PostgreSQL was lost")


def is_rollback(error: DatabaseError) -> bool:
    """Whether the server rolled a transaction back so that it is tried again: a serialization failure, a deadlock."""
    return error.sqlstate in ("40001", "40P01")


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


def refusal(error: Exception) -> ConfigurationError | None:
    """The error to raise if the server answered no to a connection, and waiting does not change that; else `None`.

    A wrong password, an unknown role or database. A server that cannot be reached, is starting or has no connection
    left is worth waiting for.
    """
    if not isinstance(error, psycopg.OperationalError) or error.sqlstate:
        return None
    _, fatal, answer = str(error).partition("FATAL:")
    if not fatal or any(words in answer for words in _PASSING):
        return None
    return ConfigurationError(f"PostgreSQL refuses the connection: {answer.strip().splitlines()[0]}")


def is_connection_loss(error: psycopg.Error) -> bool:
    """Whether the connection, rather than the statement, is what failed."""
    code = error.sqlstate or ""
    if code.startswith(_UNAVAILABLE_CODES):
        return True
    # libpq's own failures (reset, SSL drop, refused) come as OperationalError without a code.
    return isinstance(error, psycopg.OperationalError | psycopg.InterfaceError) and not code


def is_retryable(error: Exception) -> bool:
    """Whether an idempotent operation that failed so may simply be tried again."""
    if isinstance(error, _CONFLICTS):
        return True
    if isinstance(error, PoolClosed | PoolTimeout | TooManyRequests):
        # The pool has waited as long as it was told to.
        return False
    return isinstance(error, psycopg.Error) and is_connection_loss(error) and refusal(error) is None


def _first_line(error: psycopg.Error) -> str:
    text = error.diag.message_primary or str(error)
    return text.strip().splitlines()[0] if text.strip() else type(error).__name__
