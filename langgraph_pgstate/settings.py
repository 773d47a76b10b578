"""What a user may set, with its defaults and the checks of what she set."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

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


@dataclass(frozen=True, slots=True)
class RecorderSettings:
    """What a recorder writes, and when.

    Attributes:
        content: Whether inputs, outputs and payloads are written at all.
        limit: Bytes of JSON that an input or output may have; what is longer is cut, with its size and hash kept.
        redact: Called as `redact(kind, value)` with everything that came from the application before it is written,
            and what it returns is written instead. The kind is `input`, `output`, `error` or `payload`; the value is
            JSON (an error: a dict of `message` and `traceback`). It runs in the background, in another thread.
        interval: Seconds between two batches; what has begun is visible after that.
        queue_size: Spans and events that wait to be written; when there are more, the graph waits.
        patience: Seconds that the end of a run, and a full queue, wait for the database. Nothing is dropped after it.
        ttl: Seconds a running run is taken to be alive after its process last said so; said every third of it.
    """

    content: bool = True
    limit: int = 4096
    redact: Callable[[str, Any], Any] | None = None
    interval: float = 0.2
    queue_size: int = 10_000
    patience: float = 10.0
    ttl: float = 15.0

    def __post_init__(self) -> None:
        for name in ("limit", "interval", "queue_size", "patience", "ttl"):
            if getattr(self, name) <= 0:
                raise ConfigurationError(f"{name} must be more than 0, not {getattr(self, name)}")


@dataclass(frozen=True, slots=True)
class ThreadKeys:
    """Keys of `configurable` and `metadata` that say whose a thread is; of several the first that has a value.

    Attributes:
        tenant: Keys of the tenant.
        user: Keys of the user.
        agent: Keys of the agent or graph.
    """

    tenant: tuple[str, ...] = ("tenant_id",)
    user: tuple[str, ...] = ("user_id", "owner", "langgraph_auth_user_id")
    agent: tuple[str, ...] = ("agent", "graph_id", "assistant_id")

    def __post_init__(self) -> None:
        for name in ("tenant", "user", "agent"):
            keys = getattr(self, name)
            if isinstance(keys, str) or not all(isinstance(key, str) for key in keys):
                raise ConfigurationError(f"ThreadKeys.{name} is a sequence of metadata keys, not {keys!r}")


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
