"""Options of the saver and of its connections, with their defaults and checks."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal, Required, TypedDict, cast

from langgraph_pgstate.errors import ArgumentTypeError, ConfigurationError

if TYPE_CHECKING:
    from langgraph.checkpoint.serde.base import SerializerProtocol

    from langgraph_pgstate.encryption import Encryption

DEFAULT_SCHEMA = "pgstate"
# A b-tree entry has at most 2,704 bytes, a third of a page. The entry's header takes some of the bytes.
MAX_KEY_BYTES = 2600

TtlStrategy = Literal["delete", "keep_latest"]
"""What happens to an expired thread: it is deleted, or all but its newest checkpoints are pruned."""
_SCHEMA_NAME = re.compile(r"[a-z_][a-z0-9_$]{0,62}")
_AGE = re.compile(r"(\d+(?:\.\d+)?)\s*([smhdw])")
# Names of settings classes in an option's annotation.
_SETTINGS = re.compile(r"(?:Settings|Policy|Keys)\b")
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}


def check_options(owner: type, options: Mapping[str, Any], known: type) -> None:
    """Refuse options that the typed dictionary `known` does not have, and settings of another type.

    Raises:
        ArgumentTypeError: If an option is unknown or has another type.
    """
    for name, value in options.items():
        if name not in known.__annotations__:
            raise ArgumentTypeError(
                f"{owner.__name__} has no option {name!r}; its options are {', '.join(sorted(known.__annotations__))}"
            )
        # Compare names, because most classes of settings are imported later.
        expected = getattr(known.__annotations__[name], "__forward_arg__", "")
        kinds = {"None"} if value is None else {kind.__name__ for kind in type(value).__mro__}
        if _SETTINGS.search(expected) and kinds.isdisjoint(expected.split(" | ")):
            raise ArgumentTypeError(f"{name} must be {expected.replace(' | ', ' or ')}, not {type(value).__name__}")


def age(text: str) -> timedelta:
    """Read an age like `30d`, `12h`, `90m` or `2w`.

    Raises:
        ConfigurationError: If the text is not an age.
    """
    match = _AGE.fullmatch(text.strip().lower())
    if match is None:
        raise ConfigurationError(f"the age must be a number and s, m, h, d or w, like 30d or 12h, not {text!r}")
    try:
        return timedelta(seconds=float(match.group(1)) * _UNITS[match.group(2)])
    except OverflowError:
        raise ConfigurationError(f"the age must be less than {timedelta.max.days + 1:,} days, not {text!r}") from None


def check_ttl(name: str, ttl: Any) -> timedelta:
    """Return a validated time to live."""
    if not isinstance(ttl, timedelta) or not timedelta(0) < ttl <= timedelta(days=366_000):
        raise ConfigurationError(f"{name} must be a timedelta of more than 0 and less than 1,000 years, not {ttl!r}")
    return ttl


def check_ttl_strategy(name: str, strategy: Any) -> TtlStrategy:
    """Return a validated strategy for expired threads."""
    if strategy not in ("delete", "keep_latest"):
        raise ConfigurationError(f"{name} must be 'delete' or 'keep_latest', not {strategy!r}")
    return "delete" if strategy == "delete" else "keep_latest"


def check_lasting(url: str) -> str:
    """Return a URL. Refuse a URL that names the memory of this process."""
    if url.strip().lower().startswith("memory:"):
        raise ConfigurationError(
            f"the URL must name a bucket or a folder, not {url!r}, which is lost when the process ends"
        )
    return url


def check_schema_name(schema: str) -> str:
    """Return the name of a schema, if SQL needs no quotes for it.

    Raises:
        ConfigurationError: If the name is not a lower-case identifier of at most 63 characters, or is PostgreSQL's own.
    """
    if not isinstance(schema, str) or not _SCHEMA_NAME.fullmatch(schema):
        raise ConfigurationError(
            f"schema {schema!r} must be a lower-case PostgreSQL identifier: a letter or underscore, "
            "then letters, digits, _ or $, 63 at most"
        )
    if schema.startswith("pg_") or schema == "information_schema":
        raise ConfigurationError(f"schema {schema!r} is PostgreSQL's own: name another, such as 'pgstate'")
    return schema


DEFAULT_EMBEDDED_PATH = ".pgstate"
DSN_VARIABLE = "PGSTATE_DSN"


def dsn_from_environment(environment: Mapping[str, str]) -> str | None:
    """Return the connection string in `PGSTATE_DSN`; `None` if the variable is not set. Refuse an empty value."""
    dsn = environment.get(DSN_VARIABLE)
    if dsn is not None and not dsn.strip():
        raise ConfigurationError(
            f"{DSN_VARIABLE} is empty: set it to a connection string, or unset it to use the embedded PostgreSQL"
        )
    return dsn


@dataclass(frozen=True, slots=True)
class PoolSettings:
    """Size and timeout of a connection pool.

    Attributes:
        min_size: Connections kept open.
        max_size: Maximum number of connections, and of concurrent calls. If all connections are in use, one more is
            opened for a moment to renew leases and the liveness of tool executions.
        timeout: Seconds that a call waits for connections, in all attempts together, before `UnavailableError`. Also
            seconds to wait for the server when a pool is opened. In an outage, this time begins with the first failed
            call, so that a run does not wait again in each call. Each call waits at least two seconds.
        max_idle: Seconds for which an unused connection above `min_size` stays open.
        max_lifetime: Seconds after which a connection is replaced, so that a failover and new credentials take effect.
    """

    min_size: int = 1
    max_size: int = 10
    timeout: float = 30.0
    max_idle: float = 300.0
    max_lifetime: float = 1800.0

    @classmethod
    def of(cls, pool: PoolSettings | bool | int) -> PoolSettings | None:
        """Return the settings of the argument `pool`; `None` for one connection."""
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
    """Number of attempts of an idempotent operation, and the delays between attempts.

    The delays count against `PoolSettings.timeout` (30 seconds without a pool). A write that a read-only server refuses
    is tried once more, on a new connection.

    Attributes:
        attempts: Maximum number of attempts.
        base_delay: Seconds before the second attempt. The delay doubles with each further attempt.
        max_delay: Maximum number of seconds between two attempts.
    """

    attempts: int = 6
    base_delay: float = 0.05
    max_delay: float = 2.0

    def delay(self, attempt: int, jitter: float) -> float:
        """Return the seconds to wait after failed attempt number `attempt`, from 1. `jitter` is random in [0, 1)."""
        ceiling = min(self.max_delay, self.base_delay * 2.0 ** (attempt - 1))
        return ceiling * (0.5 + jitter / 2)


class ConnectionOptions(TypedDict, total=False):
    """Options of connections that are opened from a connection string.

    Attributes:
        pool: Pool settings, a maximum size, `True` for 1 to 10 connections (the default), `False` for one connection.
        prepare_threshold: Number of executions after which a statement is prepared on its connection. `None` prepares
            no statement, for poolers that do not support prepared statements.
    """

    pool: PoolSettings | bool | int
    prepare_threshold: int | None


AllowedTypes = Iterable[type | str | tuple[str, str]]
"""Types that may be built from stored state: classes, or names like `shop.state:Order`."""

Guard = str | Sequence[str] | None
"""Writes that a saver refuses: `"head"`, `"lease"`, both, or none."""

Upcaster = Callable[..., Mapping[str, Any]]
"""Function that converts channel values to the next version. A second parameter gets the namespace."""

DEFAULT_CACHE_BYTES = 128 * 1024 * 1024
MAX_LEASE_SECONDS = 366 * 24 * 3600.0
_DEFAULT_LEASE_TTL = 30.0
_DEFAULT_WAIT_TIMEOUT = 60.0
_DEFAULT_TOMBSTONES = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class ThreadKeys:
    """Keys of `configurable` and `metadata` that name a thread's owner. The first key with a value counts.

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
                raise ArgumentTypeError(f"ThreadKeys.{name} must be a sequence of metadata keys, not {keys!r}")


@dataclass(frozen=True, slots=True)
class GuardSettings:
    """Writes that are refused, and how long a run waits for a lease.

    Attributes:
        head: Whether a checkpoint is refused if its parent is no longer the head of the branch.
        lease: Whether a run takes a lease on its thread. Writes of a run without the lease are refused.
        lease_ttl: Seconds after which a lease expires. A live process renews the lease three times in this period.
        on_busy: What a run does when another run holds the lease: `raise` or `wait`.
        wait_timeout: Seconds that a run waits for the lease.
        tombstones_for: How long late writes to a deleted thread are refused. Zero refuses none.
    """

    head: bool = False
    lease: bool = False
    lease_ttl: float = _DEFAULT_LEASE_TTL
    on_busy: str = "raise"
    wait_timeout: float = _DEFAULT_WAIT_TIMEOUT
    tombstones_for: timedelta = timedelta(0)

    @classmethod
    def of(cls, options: SaverOptions) -> GuardSettings:
        """Return the settings of a saver's options. With a guard, tombstones are kept for a day by default."""
        guard = options.get("guard")
        lease_ttl = options.get("lease_ttl", _DEFAULT_LEASE_TTL)
        on_busy = options.get("on_busy", "raise")
        wait_timeout = options.get("wait_timeout", _DEFAULT_WAIT_TIMEOUT)
        tombstones_for = options.get("tombstones_for")
        if guard is not None and not isinstance(guard, str | list | tuple | set | frozenset):
            raise ArgumentTypeError(f'guard must be "head", "lease" or both in a tuple, not {guard!r}')
        names = () if guard is None else (guard,) if isinstance(guard, str) else tuple(guard)
        if unknown := [name for name in names if name not in ("head", "lease")]:
            raise ConfigurationError(f'guard must be "head", "lease" or both in a tuple, not {unknown[0]!r}')
        if on_busy not in ("raise", "wait"):
            raise ConfigurationError(f'on_busy must be "raise" or "wait", not {on_busy!r}')
        for name, value in (("lease_ttl", lease_ttl), ("wait_timeout", wait_timeout)):
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= MAX_LEASE_SECONDS:
                raise ConfigurationError(f"{name} must be a number of seconds above 0 and below a year, not {value!r}")
        if tombstones_for is None:
            tombstones_for = _DEFAULT_TOMBSTONES if names else timedelta(0)
        if not isinstance(tombstones_for, timedelta) or tombstones_for < timedelta(0):
            raise ConfigurationError(f"tombstones_for must be a timedelta that is not negative, not {tombstones_for!r}")
        return cls("head" in names, "lease" in names, float(lease_ttl), on_busy, float(wait_timeout), tombstones_for)

    @property
    def is_on(self) -> bool:
        """Whether any write is guarded."""
        return self.head or self.lease or self.keeps_tombstones

    @property
    def keeps_tombstones(self) -> bool:
        """Whether deleted threads leave tombstones, for which writes look."""
        return self.tombstones_for > timedelta(0)


class SaverOptions(TypedDict, total=False):
    """Options of a saver and of a state.

    Attributes:
        schema: PostgreSQL schema of the tables; `pgstate` by default.
        tenant: The only tenant whose rows are seen and written, in tables that keep tenants apart; see
            `setup(tenancy="rls")`.
        serde: Serializer of values. By default, LangGraph's own. Another serializer decides which types it builds, and
            may encrypt values, so a state copies no chat messages in clear text.
        allowed_types: Further types that may be built: classes, or names like `"shop.state:Order"`, whose modules are
            imported now. LangGraph's own types are always built. Unless `strict` is set, data types of imported modules
            are built, too: dataclasses, pydantic models, enums, named tuples, attrs classes, subclasses of the standard
            library's values. Building a value calls its class. `["*"]` allows all types, and trusts everyone who can
            write to the database.
        strict: Whether only LangGraph's own types and `allowed_types` are built, as with
            `LANGGRAPH_STRICT_MSGPACK=true`.
        retry: How operations are repeated after a lost connection.
        thread_keys: Keys of `configurable` and `metadata` that name a thread's tenant, user and agent.
        state_version: Version of this program's state, stored with each checkpoint. A checkpoint without a version
            counts as version 1.
        upcasters: Functions by target version, like `{2: rename_user, 3: split_name}`. Each function converts channel
            values of the version before, when an older checkpoint is read. A function with two parameters is called for
            checkpoints of subgraphs, too, and gets the subgraph's namespace without task ids.
        on_corrupt: `"raise"` for a damaged checkpoint, or `"previous"` to continue from the nearest good ancestor, and
            to log the damage and store an event.
        guard: `"head"` refuses a checkpoint if another process has advanced the branch since it was read. `"lease"`
            makes a run take the thread's lease at its start, and refuses writes of a run without the lease. A tuple
            sets both. By default, no write is refused, as in LangGraph.
        lease_ttl: Seconds after which a lease expires that is not renewed.
        on_busy: What a run does when another run holds the lease: `"raise"` or `"wait"`.
        wait_timeout: Seconds that a run waits for the lease.
        tombstones_for: How long late writes to a deleted thread are refused. During this time, the id cannot be used
            again unless the thread is revived. By default, a day with a guard, and zero without a guard.
        encryption: Encrypts content; see `Encryption`. By default, nothing is encrypted.
        cache_bytes: Memory for a cache of the values that were written and read last. By default, 128 MB. With 0, each
            put takes one more round trip.
    """

    schema: str
    tenant: str | None
    serde: SerializerProtocol | None
    allowed_types: AllowedTypes
    strict: bool
    retry: RetryPolicy | None
    thread_keys: ThreadKeys | None
    state_version: int | None
    upcasters: Mapping[int, Upcaster] | None
    on_corrupt: str
    guard: Guard
    lease_ttl: float
    on_busy: str
    wait_timeout: float
    tombstones_for: timedelta | None
    encryption: Encryption | None
    cache_bytes: int


class OpenSaverOptions(SaverOptions, ConnectionOptions, total=False):
    """Options of a saver and of its connections."""


class DatabaseOptions(ConnectionOptions, total=False):
    """Options that `Database.open` takes.

    Attributes:
        schema: PostgreSQL schema of the tables.
        retry: How operations are repeated after a lost connection.
    """

    schema: Required[str]
    retry: RetryPolicy | None


def schema_of(options: SaverOptions) -> str:
    """Return the validated schema that some options name."""
    return check_schema_name(options.get("schema", DEFAULT_SCHEMA))


def database_options(options: SaverOptions) -> DatabaseOptions:
    """Return the options that `Database.open` takes."""
    taken = {name: value for name, value in options.items() if name in DatabaseOptions.__annotations__}
    return cast("DatabaseOptions", {**taken, "schema": schema_of(options)})


def check_allowed_types(
    allowed: AllowedTypes, option: str = "allowed_types"
) -> tuple[type | tuple[str, str], ...] | Literal[True]:
    """Return the allowed types as classes or pairs `(module, name)`; `True` for `["*"]`, which allows all types.

    Raises:
        ConfigurationError: If a type is neither a class nor a name like `shop.state:Order`.
    """
    if isinstance(allowed, str) or not isinstance(allowed, Iterable):
        raise ConfigurationError(
            f"{option} must be a list of classes and of names like shop.state:Order, not {allowed!r}"
        )
    given = list(allowed)
    if given == ["*"]:
        return True
    found: list[type | tuple[str, str]] = []
    for one in given:
        pair = tuple(one.split(":", 1)) if isinstance(one, str) else one
        if isinstance(pair, tuple) and len(pair) == 2 and all(isinstance(part, str) and part for part in pair):
            found.append((pair[0], pair[1]))
        elif isinstance(one, type):
            found.append(one)
        else:
            raise ConfigurationError(f"{option} must name types like shop.state:Order, not {one!r}")
    return tuple(found)
