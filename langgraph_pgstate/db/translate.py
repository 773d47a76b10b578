"""Translation of psycopg's errors into this package's, and questions about errors."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import Any, Final

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
    TenantError,
    UnavailableError,
)

# SQLSTATEs: 08 (connection), 57P (the server is stopping or has to end this session), 53300 (too many connections),
# 25P03 (the session was idle in a transaction for too long).
_UNAVAILABLE_CODES = ("08", "57P", "53300", "25P03")
# Messages of servers and poolers for temporary conditions. A failed attempt to connect has no SQLSTATE.
_TEMPORARY = (
    *("starting up", "shutting down", "recovery", "not yet accepting", "system is not accepting", "too many"),
    *("remaining connection slots", "timeout", "pause failed", "server down", "server_login_retry", "terminat"),
    *("no more connections allowed", "connections exceeded", "resources exhaustion", "out of memory", "disconnect"),
)
# Messages of permanent refusals. Any other message counts as temporary, because it may be in another language.
_PERMANENT = (
    *("authentication failed", "auth failed", "password", "does not exist", "no such", "not found", "pg_hba.conf"),
    *("not permitted", "not allowed", "denied", "rejected", "not currently accepting", "disabled", "required"),
    *("unsupported", "unrecognized", "invalid", "no credentials", "no pool", "config"),
)
# Messages if no server responded, and another attempt would fail again.
_UNKNOWN_HOST = ("Name or service not known", "nodename nor servname", "Name does not resolve", "No such host is known")
_NO_TLS = ("certificate", "does not support SSL", "SSL was required")
# PgBouncer gives this SQLSTATE whenever it closes a connection. The client is at fault only if the message contains one
# of `_CLIENT_ERRORS`.
_PROTOCOL_VIOLATION = "08P01"
_CLIENT_ERRORS = ("prepared statement", "packet", "pkt")
_READ_ONLY = "25006"
# Prefixes of psycopg's message when no connection was made.
_NOT_CONNECTED = ("connection failed", "connection is bad", "connection timeout expired", "failed to resolve host")
_SEVERAL = "Multiple connection attempts failed"
# A duplicate key means a race: two processes drew the same segment id, or ran setup at the same time.
_CONFLICTS = (pg.SerializationFailure, pg.DeadlockDetected, pg.UniqueViolation)
# Classes of SQLSTATE: 22 (data), 23 (constraints) and 54 (limits).
_REFUSALS: Final = ("22", "23", "54")


def translate(error: Exception, schema: str) -> PGStateError:
    """Return the error to raise for an error of psycopg or its pool."""
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
    if isinstance(error, pg.ObjectNotInPrerequisiteState) and error.diag.constraint_name == "pgstate_tenant":
        return TenantError(f"{message}: run `pgstate tenancy` or move_to_tenants (the application may keep running)")
    if _is_of_tenants(error):
        return TenantError(
            f"the tables in schema {schema!r} keep tenants apart, but no tenant is named, or the row belongs to "
            "another tenant: name the tenant by tenant=..., or by state.for_tenant(...)"
        )
    if isinstance(error, pg.UndefinedColumn):
        return SchemaError(
            f"the tables in schema {schema!r} do not match this version of langgraph_pgstate ({message}): "
            f"run `pgstate --schema {shlex.quote(schema)} migrate`, or call saver.setup(). If this changes nothing, "
            "the tables were changed by hand: compare them with `pgstate setup --sql`."
        )
    if isinstance(error, _CONFLICTS):
        return ConflictError(message, code)
    if is_read_only(error):
        return UnavailableError(
            f"PostgreSQL refuses to write ({message}): the server is a standby or no longer the primary, or the "
            "session is read-only. To reach the primary, name every server in the DSN, with "
            "target_session_attrs=read-write",
            code,
        )
    if not code and str(error).startswith(_NOT_CONNECTED):
        return UnavailableError(f"no connection to PostgreSQL: {reason_of(error)}")
    if is_connection_loss(error):
        return UnavailableError(f"the connection to PostgreSQL was lost: {message}", code)
    if isinstance(error, pg.UntranslatableCharacter):
        return ConfigurationError(
            f"the database cannot store a character of the value: {message}. Use a database whose encoding is UTF8"
        )
    if isinstance(error, pg.ProgramLimitExceeded):
        return ConfigurationError(f"a value exceeds a limit of PostgreSQL: {message}")
    return DatabaseError(message, code)


def _is_of_tenants(error: psycopg.Error) -> bool:
    """Return whether a statement was refused because no tenant was set, or its row belongs to another tenant."""
    if isinstance(error, pg.InvalidColumnReference):
        # If tables keep tenants apart, their keys begin with the tenant. An ON CONFLICT without the tenant fits no key.
        return "ON CONFLICT" in _first_line(error)
    if isinstance(error, pg.InsufficientPrivilege):
        return error.diag.constraint_name == "pgstate_tenant" or "row-level security" in _first_line(error)
    return isinstance(error, pg.NotNullViolation) and error.diag.column_name == "pgstate_tenant"


def rolled_back(connection: Any, error: BaseException | None, schema: str) -> DatabaseError | None:
    """Return the error to raise if the database has rolled a transaction back by itself, else `None`."""
    lost: DatabaseError | None = None
    for cause in _causes(error):
        found = translate(cause, schema) if isinstance(cause, psycopg.Error) else None
        if isinstance(found, ConflictError) and is_rollback(found):
            return found
        lost = lost or (found if isinstance(found, UnavailableError) else None)
    if not connection.closed:
        return None
    return lost or UnavailableError("the connection to PostgreSQL was lost")


def failed_here(error: Exception, schema: str) -> DatabaseError | None:
    """Return the error to raise if a statement failed by itself, and not because of an earlier failure."""
    found = None if isinstance(error, pg.InFailedSqlTransaction) else translate(error, schema)
    return found if isinstance(found, DatabaseError) and isinstance(error, psycopg.Error) else None


def is_rollback(error: DatabaseError) -> bool:
    """Return whether an error is a serialization failure or a deadlock, after which the transaction may be retried."""
    return error.sqlstate in ("40001", "40P01")


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


def refusal(error: Exception) -> ConfigurationError | None:
    """Return the error to raise if a connection was refused permanently, else `None`.

    Permanent reasons are a wrong password, an unknown role or database, and a certificate.
    """
    if not isinstance(error, psycopg.OperationalError) or error.sqlstate:
        return None
    reasons = _reasons(error)
    if not all(map(_is_permanent, reasons)):
        return None
    return ConfigurationError(f"PostgreSQL refuses the connection: {_summary(reasons[-1])}")


def unknown_host(error: BaseException | None) -> ConfigurationError | None:
    """Return the error to raise if no host name of a DSN can be resolved. For the first connection only."""
    reasons = _reasons(error)
    if not all(any(words in reason for words in _UNKNOWN_HOST) for reason in reasons):
        return None
    return ConfigurationError(f"PostgreSQL cannot be reached: {_summary(reasons[-1])}")


def reason_of(error: Exception) -> str:
    """Return the reason why a connection could not be made, in one line."""
    return "; ".join(dict.fromkeys(map(_summary, _reasons(error))))


def _reasons(error: BaseException | None) -> list[str]:
    """Return the message about each server that was tried."""
    text = str(error)
    last, several, each = text.partition(_SEVERAL)
    return each.split("\n- ")[1:] if several else [last]


def _is_permanent(reason: str) -> bool:
    _, fatal, answer = reason.partition("FATAL:")
    if not fatal:
        return any(words in reason for words in _NO_TLS)
    return any(words in answer for words in _PERMANENT) and not any(words in answer for words in _TEMPORARY)


def _summary(reason: str) -> str:
    _, fatal, answer = reason.partition("FATAL:")
    text = answer if fatal else reason
    for prefix in _NOT_CONNECTED:
        text = text.removeprefix(prefix + ": ")
    return text.strip().splitlines()[0] if text.strip() else "no reason is known"


def is_connection_loss(error: psycopg.Error) -> bool:
    """Return whether the connection failed, rather than the statement."""
    code = error.sqlstate or ""
    if is_violation(error):
        return False
    if code.startswith(_UNAVAILABLE_CODES):
        return True
    # Failures that libpq itself notices have no code. psycopg usually raises an OperationalError, and a DatabaseError
    # if libpq reports the failure as a statement's result.
    own = isinstance(error, psycopg.OperationalError | psycopg.InterfaceError) or type(error) is psycopg.DatabaseError
    return own and not code


def is_violation(error: Exception) -> bool:
    """Return whether the client violated the protocol, for example by a statement that a pooler does not know."""
    if not isinstance(error, psycopg.Error) or error.sqlstate != _PROTOCOL_VIOLATION:
        return False
    severity = error.diag.severity_nonlocalized or error.diag.severity
    return severity == "ERROR" or any(words in _first_line(error) for words in _CLIENT_ERRORS)


def is_read_only(error: BaseException) -> bool:
    """Return whether a write was refused because the session or the server is read-only."""
    return isinstance(error, psycopg.Error) and error.sqlstate == _READ_ONLY


def is_interrupt(error: BaseException) -> bool:
    """Return whether an error is a `KeyboardInterrupt` or `CancelledError`, or was raised during one."""
    raised: BaseException | None = error
    while isinstance(raised, Exception):
        raised = raised.__context__
    return raised is not None


def is_retryable(error: Exception) -> bool:
    """Return whether an idempotent operation may be retried after an error."""
    if isinstance(error, _CONFLICTS) or is_read_only(error) or is_violation(error):
        return True
    if isinstance(error, PoolClosed | PoolTimeout | TooManyRequests):
        # The pool has already waited until its timeout.
        return False
    return isinstance(error, psycopg.Error) and is_connection_loss(error) and refusal(error) is None


def _first_line(error: psycopg.Error) -> str:
    text = error.diag.message_primary or str(error)
    return text.strip().splitlines()[0] if text.strip() else type(error).__name__


def is_refusal(error: BaseException) -> bool:
    """Return whether the database refuses a statement because of its data, so that a retry would fail, too."""
    return (getattr(error, "sqlstate", None) or "").startswith(_REFUSALS)


def is_of_one_row(error: Exception) -> bool:
    """Return whether an operation failed because of its row, so that other rows can still be processed."""
    if isinstance(error, PGStateError):
        return not error.retryable
    # Errors of the database have an attribute `sqlstate`. Other errors are this package's, about a malformed row.
    return is_refusal(error) or not hasattr(error, "sqlstate")
