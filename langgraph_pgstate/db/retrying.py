"""When an operation is tried again, and how long it waits for a connection. Nothing here does I/O or reads a clock."""

from __future__ import annotations

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
from langgraph_pgstate.settings import RetryPolicy

# Enough for one attempt to connect: a pool without connections makes one in each second.
_LEAST_SECONDS: Final = 2.0
# The second try of a write has a new connection: where that cannot write either, no other can. A pool that cannot
# replace all of its connections at once (before psycopg_pool 3.3) replaces one for each try.
_STANDBY_TRIES: Final = 2 if hasattr(ConnectionPool, "drain") else 1_000
# A new connection does not have whatever was prepared, or forgotten, on the first.
_VIOLATION_TRIES: Final = 2


class Outage:
    """The time in which no connection can be had, shared by all calls of one database.

    The first call to meet an outage waits `timeout` seconds. Calls that follow it count from the same moment, so that
    the calls of one run do not each wait as long; each waits long enough for one attempt to connect.

    Args:
        timeout: Seconds.
    """

    __slots__ = ("_met_at", "_since", "_timeout")

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self._since: float | None = None
        self._met_at = 0.0

    def patience(self, now: float) -> float:
        """Return the seconds that a call may wait from now on."""
        since = self._since
        if since is None or self._is_forgotten(now):
            return self._timeout
        return min(self._timeout, max(_LEAST_SECONDS, since + self._timeout - now))

    def meet(self, now: float) -> None:
        """Note that a connection was lost, or could not be had."""
        if self._since is None or self._is_forgotten(now):
            self._since = now
        self._met_at = now

    def end(self) -> None:
        """Note that an operation was done."""
        self._since = None

    def _is_forgotten(self, now: float) -> bool:
        # Nobody has tried for so long that it may be over; a call that waits takes up to `timeout` to meet it again.
        return now - self._met_at > 2 * self._timeout


class Tries:
    """The tries of one call.

    All that the call waits, for connections and between its tries, is counted against one time, however often it
    tries. What its statements take is not.

    Args:
        deadline: When the call gives up, by the monotonic clock, if it is not to wait as long as others may.

    Attributes:
        in_transaction: Whether the last try was in a transaction of the caller's, where a second one would not stand
            alone.
    """

    __slots__ = (
        "_count",
        "_deadline",
        "_is_borrowed",
        "_outage",
        "_patience",
        "_policy",
        "_refusals",
        "_schema",
        "_violations",
        "_waits_since",
        "in_transaction",
    )

    def __init__(
        self,
        policy: RetryPolicy,
        outage: Outage,
        schema: str,
        now: float,
        *,
        is_borrowed: bool,
        deadline: float | None = None,
    ) -> None:
        self._policy, self._outage, self._schema, self._is_borrowed = policy, outage, schema, is_borrowed
        self._count = self._refusals = self._violations = 0
        self._patience = outage.patience(now)
        self._deadline = deadline
        self._waits_since: float | None = now
        self.in_transaction = False

    @property
    def may_fail(self) -> bool:
        """Whether a connection that was lost meanwhile is found out by trying: that costs least where it is rare."""
        return self._count == 0 and self._policy.attempts > 1

    def remaining(self, now: float) -> float:
        """Return the seconds for which the call may still wait."""
        seconds = self._patience if self._waits_since is None else self._patience - (now - self._waits_since)
        return seconds if self._deadline is None else min(seconds, self._deadline - now)

    def connected(self, now: float) -> None:
        """Note that the call has a connection: from now on it does not wait."""
        self._patience, self._waits_since = self.remaining(now), None

    def fail(self, error: Exception, now: float, reason: Exception | None) -> float:
        """Return the seconds to wait before the next try.

        Args:
            error: What the driver raised.
            now: The monotonic time.
            reason: Why the pool's last attempt to connect failed.

        Raises:
            PGStateError: The translated error, when the operation is not to be tried again.
        """
        self._patience, self._waits_since = self.remaining(now), now
        final = self.translate(error, now, reason)
        self._count += 1
        self._refusals += is_read_only(error)
        self._violations += is_violation(error)
        again = self._count < self._policy.attempts and is_retryable(error) and not self.in_transaction
        if again and self._is_borrowed:
            # The caller's connection is the caller's to replace.
            again = isinstance(final, ConflictError)
        delay = self._policy.delay(self._count, random.random())
        is_tried = self._refusals >= _STANDBY_TRIES or self._violations >= _VIOLATION_TRIES
        if not again or is_tried or delay >= self._patience:
            raise final from error
        return delay

    def translate(self, error: Exception, now: float, reason: Exception | None) -> PGStateError:
        """Return the translated error, and note whether it means that no connection can be had."""
        is_unmade = isinstance(error, PoolTimeout) and reason is not None
        # The pool's errors are psycopg's operational ones, too.
        is_pools = isinstance(error, PoolClosed | PoolTimeout | TooManyRequests)
        if is_unmade or (isinstance(error, psycopg.Error) and not is_pools and is_connection_loss(error)):
            self._outage.meet(now)
            self._patience = min(self._patience, self._outage.patience(now))
        if is_unmade and reason is not None:
            return UnavailableError(f"no connection to PostgreSQL: {reason_of(reason)}")
        return translate(error, self._schema)
