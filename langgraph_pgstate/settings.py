"""What a user may set, with its defaults and the checks of what she set."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

from langgraph_pgstate.errors import ConfigurationError

DEFAULT_SCHEMA = "pgstate"
DEFAULT_EMBEDDED_PATH = ".pgstate"
DSN_VARIABLE = "PGSTATE_DSN"

# A b-tree entry may not exceed a third of a page, 2,704 bytes; what is left is for the tuple itself.
MAX_KEY_BYTES = 2600

_SCHEMA_NAME = re.compile(r"[a-z_][a-z0-9_$]{0,62}")


@dataclass(frozen=True, slots=True)
class PoolSettings:
    """Size and patience of a connection pool.

    Attributes:
        min_size: Connections kept open.
        max_size: Connections opened at most; this many calls run at once.
        timeout: Seconds a call waits for a free connection before `UnavailableError`.
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
    """How often and how patiently an idempotent operation is tried again.

    Attributes:
        attempts: Tries in all, the first included.
        base_delay: Seconds before the second try; doubles with each further one.
        max_delay: Seconds between two tries at most.
    """

    attempts: int = 6
    base_delay: float = 0.05
    max_delay: float = 2.0

    def delay(self, attempt: int, jitter: float) -> float:
        """Seconds to wait after the failed try number `attempt` (from 1); `jitter` is random in [0, 1)."""
        ceiling = min(self.max_delay, self.base_delay * 2.0 ** (attempt - 1))
        return ceiling * (0.5 + jitter / 2)


def check_schema_name(schema: str) -> str:
    """Return `schema` if it can be written into SQL without quoting surprises.

    Raises:
        ConfigurationError: If it is not a lower-case identifier of at most 63 characters.
    """
    if not isinstance(schema, str) or not _SCHEMA_NAME.fullmatch(schema):
        raise ConfigurationError(
            f"schema {schema!r} must be a lower-case PostgreSQL identifier: a letter or underscore, "
            "then letters, digits, _ or $, 63 at most"
        )
    return schema


def dsn_from_environment(dsn: str | None = None) -> str | None:
    """The DSN to use: the argument, else `PGSTATE_DSN`, else `None` (embedded)."""
    return dsn or os.environ.get(DSN_VARIABLE) or None
