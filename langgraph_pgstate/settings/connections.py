"""Pools and retries of connections, and where the embedded database is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypedDict

from langgraph_pgstate.errors import ConfigurationError

DEFAULT_EMBEDDED_PATH = ".pgstate"
DSN_VARIABLE = "PGSTATE_DSN"


def dsn_from_environment(environment: Mapping[str, str]) -> str | None:
    """Return the connection string that `PGSTATE_DSN` names; `None` if it is not set.

    Raises:
        ConfigurationError: If it is set, but empty.
    """
    dsn = environment.get(DSN_VARIABLE)
    if dsn is not None and not dsn.strip():
        raise ConfigurationError(
            f"{DSN_VARIABLE} is empty: set it to a connection string, or unset it to use the embedded PostgreSQL"
        )
    return dsn


@dataclass(frozen=True, slots=True)
class PoolSettings:
    """Size and patience of a connection pool.

    Attributes:
        min_size: Connections kept open.
        max_size: Connections opened at most; this many calls run at once. If they keep all of them, one more is opened
            for a moment to renew leases and the liveness of tool executions.
        timeout: Seconds a call waits for connections in all, however often it is tried, before `UnavailableError`; and
            seconds to wait for the server when a pool is opened. In an outage the calls that follow the first one
            count from when it began, and wait two seconds at least: a run fails once, not once for each of its calls.
        max_idle: Seconds an unused connection above `min_size` stays open.
        max_lifetime: Seconds after which a connection is replaced: failover and new credentials are noticed.
    """

    min_size: int = 1
    max_size: int = 10
    timeout: float = 30.0
    max_idle: float = 300.0
    max_lifetime: float = 1800.0

    @classmethod
    def of(cls, pool: PoolSettings | bool | int) -> PoolSettings | None:
        """Read the `pool=` argument: settings, a maximal size, `True` for the defaults, `False` for one connection."""
        if isinstance(pool, PoolSettings):
            return pool
        if pool is True:
            return cls()
        if pool is False:
            return None
        if pool < 1:
            raise ConfigurationError(f"pool must be at least 1 connection, not {pool}")
        return cls(max_size=pool)


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Number of tries of an idempotent operation, and the delays between them.

    The delays are part of the time that `PoolSettings.timeout` allows (30 seconds without a pool). A write that is
    refused because the server only reads is tried once more, on a new connection.

    Attributes:
        attempts: Tries in all, the first included.
        base_delay: Seconds before the second try; doubles with each further one.
        max_delay: Seconds between two tries at most.
    """

    attempts: int = 6
    base_delay: float = 0.05
    max_delay: float = 2.0

    def delay(self, attempt: int, jitter: float) -> float:
        """Return the seconds to wait after the failed try number `attempt` (from 1); `jitter` is random in [0, 1)."""
        ceiling = min(self.max_delay, self.base_delay * 2.0 ** (attempt - 1))
        return ceiling * (0.5 + jitter / 2)


class ConnectionOptions(TypedDict, total=False):
    """Options of connections that are opened from a connection string.

    Attributes:
        pool: Pool settings, a maximal size, `True` for 1 to 10 connections (the default), `False` for one connection.
        prepare_threshold: Executions of a statement after which it is prepared on its connection; `None` never
            prepares, for poolers that don't track prepared statements.
    """

    pool: PoolSettings | bool | int
    prepare_threshold: int | None
