"""The rules for retrying an operation and waiting for a connection, without I/O except the log."""

from __future__ import annotations

import logging
import random
from typing import Final

import psycopg
from psycopg_pool import ConnectionPool, PoolClosed, PoolTimeout, TooManyRequests

from langgraph_pgstate.db.translate import (
    is_connection_loss,
    is_read_only,
    is_retryable,
    is_violation,
    reason_of,
    translate,
)
from langgraph_pgstate.errors import ConflictError, PGStateError, UnavailableError
from langgraph_pgstate.options import RetryPolicy

# Minimum number of seconds that a call waits for a connection. A pool tries to connect every second.
_MIN_SECONDS: Final = 2.0
# A write fails after this many refusals by read-only servers. After the first refusal, the pool replaces all
# connections, so a third try would not help. A psycopg_pool before 3.3 replaces only one connection per try.
_STANDBY_TRIES: Final = 2 if hasattr(ConnectionPool, "drain") else 1_000
# A pooler reports an unknown prepared statement as a protocol violation. The second try uses a new connection.
_VIOLATION_TRIES: Final = 2
# Log lost connections at most once in this many seconds.
_QUIET_SECONDS: Final = 10.0

_log = logging.getLogger("langgraph_pgstate.connections")


class Outage:
    """The period during which no connection is available, shared by all calls of one database.

    Calls wait until `timeout` seconds after the outage began, so that the calls of one run do not each wait that long.
    But each call waits long enough for one attempt to connect.

    Attributes:
        since: The monotonic time at which the outage began; `None` if there is none. A successful operation resets it.
    """

    __slots__ = ("_reported_at", "_seen_at", "_timeout", "since")

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self.since: float | None = None
        self._seen_at = 0.0
        self._reported_at = float("-inf")

    def wait_seconds(self, now: float) -> float:
        """Return the number of seconds that a call may wait from now on."""
        since = self.since
        if since is None or self._is_stale(now):
            return self._timeout
        return min(self._timeout, max(_MIN_SECONDS, since + self._timeout - now))

    def begin(self, now: float, error: Exception) -> None:
        """Record that a connection was lost or could not be made. Log the first such event of an outage."""
        if self.since is None or self._is_stale(now):
            self.since = now
            if now - self._reported_at > _QUIET_SECONDS:
                self._reported_at = now
                _log.warning("no connection to PostgreSQL, trying again: %s", reason_of(error))
        self._seen_at = now

    def _is_stale(self, now: float) -> bool:
        # The outage may be over if no attempt has failed for this long. A call reports a failure after up to `timeout`
        # seconds.
        return now - self._seen_at > 2 * self._timeout


class Tries:
    """The tries of one call.

    All waits of the call, for connections and between tries, count against one limit. The time of statements does not
    count.

    Args:
        policy: Number of tries, and the delays between tries.
        outage: The outage that the call shares with other calls.
        schema: The schema, for errors.
        began: The monotonic time at which the call began to wait.
        is_borrowed: Whether the only connection is the caller's.
        seconds: Seconds after which the call gives up, even before the outage's limit.
    """

    __slots__ = (
        "_count",
        "_deadline",
        "_is_borrowed",
        "_outage",
        "_policy",
        "_refusals",
        "_schema",
        "_seconds",
        "_violations",
        "_waiting_since",
    )

    def __init__(
        self,
        policy: RetryPolicy,
        outage: Outage,
        schema: str,
        began: float,
        is_borrowed: bool,
        seconds: float | None = None,
    ) -> None:
        self._policy, self._outage, self._schema, self._is_borrowed = policy, outage, schema, is_borrowed
        self._count = self._refusals = self._violations = 0
        self._seconds = outage.wait_seconds(began)
        self._deadline = None if seconds is None else began + seconds
        self._waiting_since = began

    @property
    def may_fail(self) -> bool:
        """Whether this try may use an unchecked connection. A failed try is cheaper than a check before each try."""
        return self._count == 0 and self._policy.attempts > 1

    def remaining(self, now: float) -> float:
        """Return the number of seconds that the call may still wait."""
        seconds = self._seconds - (now - self._waiting_since)
        return seconds if self._deadline is None else min(seconds, self._deadline - now)

    def fail(
        self,
        error: Exception,
        now: float,
        reason: Exception | None,
        connected_at: float | None = None,
        in_transaction: bool = False,
    ) -> float:
        """Record a failed try, and return the seconds to wait before the next one.

        Args:
            error: The driver's error.
            now: The monotonic time.
            reason: The error of the pool's last attempt to connect.
            connected_at: The monotonic time at which the try got a connection; `None` if it got none.
            in_transaction: Whether the try was inside the caller's transaction, which a retry cannot repeat.

        Raises:
            PGStateError: The translated error, if the operation must not be retried.
        """
        self._seconds = self.remaining(now if connected_at is None else connected_at)
        self._waiting_since = now
        final = self.translate(error, now, reason)
        self._count += 1
        self._refusals += is_read_only(error)
        self._violations += is_violation(error)
        again = self._count < self._policy.attempts and is_retryable(error) and not in_transaction
        if again and self._is_borrowed:
            # This package cannot replace the caller's own connection if it is lost, so try again only after a conflict.
            again = isinstance(final, ConflictError)
        delay = self._policy.delay(self._count, random.random())  # nosec B311 # jitter
        is_hopeless = self._refusals >= _STANDBY_TRIES or self._violations >= _VIOLATION_TRIES
        if not again or is_hopeless or delay >= self.remaining(now):
            raise final from error
        return delay

    def translate(self, error: Exception, now: float, reason: Exception | None) -> PGStateError:
        """Return the translated error. Record an outage if no connection is available."""
        is_not_connected = isinstance(error, PoolTimeout) and reason is not None
        # The pool's errors are subclasses of psycopg's OperationalError.
        is_pool_error = isinstance(error, PoolClosed | PoolTimeout | TooManyRequests)
        if is_not_connected or (isinstance(error, psycopg.Error) and not is_pool_error and is_connection_loss(error)):
            self._outage.begin(now, reason if is_not_connected and reason is not None else error)
            self._seconds = min(self._seconds, self._outage.wait_seconds(now))
        if is_not_connected and reason is not None:
            return UnavailableError(f"no connection to PostgreSQL: {reason_of(reason)}")
        return translate(error, self._schema)
