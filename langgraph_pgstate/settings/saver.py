"""Options of a saver: types, guards, owners of threads."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal, Required, TypedDict, cast

from langgraph_pgstate.errors import ArgumentTypeError, ConfigurationError
from langgraph_pgstate.settings.checks import DEFAULT_SCHEMA, check_schema_name
from langgraph_pgstate.settings.connections import ConnectionOptions, RetryPolicy

if TYPE_CHECKING:
    from langgraph.checkpoint.serde.base import SerializerProtocol


AllowedTypes = Iterable[type | str | tuple[str, str]]
"""Types that may be built from stored state: classes, or names like `shop.state:Order`."""

Guard = str | Sequence[str] | None
"""Writes that a saver refuses: `"head"`, `"lease"`, both, or none."""

Upcaster = Callable[..., Mapping[str, Any]]
"""Function from the channel values of one version to those of the next; a second parameter gets the namespace."""

DEFAULT_CACHE_BYTES = 128 * 1024 * 1024
MAX_LEASE_SECONDS = 366 * 24 * 3600.0
_DEFAULT_LEASE_TTL = 30.0
_DEFAULT_WAIT_TIMEOUT = 60.0
_DEFAULT_TOMBSTONES = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class ThreadKeys:
    """Keys of `configurable` and `metadata` that name a thread's owner; of several, the first that has a value.

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
                raise ArgumentTypeError(f"ThreadKeys.{name} is a sequence of metadata keys, not {keys!r}")


@dataclass(frozen=True, slots=True)
class GuardSettings:
    """Writes that are refused, and how long a run waits for a lease.

    Attributes:
        head: Whether a checkpoint is refused whose parent is no longer the head of its branch.
        lease: Whether a run takes a lease on its thread, without which it writes nothing.
        lease_ttl: Seconds after which a lease expires that is not renewed; renewed every third of it.
        on_busy: What a run does when another run holds the lease: `raise` or `wait`.
        wait_timeout: Seconds that it waits.
        tombstones_for: How long late writes to a deleted thread are refused; zero for not at all.
    """

    head: bool = False
    lease: bool = False
    lease_ttl: float = _DEFAULT_LEASE_TTL
    on_busy: str = "raise"
    wait_timeout: float = _DEFAULT_WAIT_TIMEOUT
    tombstones_for: timedelta = timedelta(0)

    @classmethod
    def of(cls, options: SaverOptions) -> GuardSettings:
        """Check a saver's options. With a guard, tombstones are kept for a day unless another time is given.

        Raises:
            ConfigurationError: If one is not usable.
        """
        guard = options.get("guard")
        lease_ttl = options.get("lease_ttl", _DEFAULT_LEASE_TTL)
        on_busy = options.get("on_busy", "raise")
        wait_timeout = options.get("wait_timeout", _DEFAULT_WAIT_TIMEOUT)
        tombstones_for = options.get("tombstones_for")
        if guard is not None and not isinstance(guard, str | list | tuple | set | frozenset):
            raise ArgumentTypeError(f'guard is "head", "lease" or both in a tuple, not {guard!r}')
        names = () if guard is None else (guard,) if isinstance(guard, str) else tuple(guard)
        if unknown := [name for name in names if name not in ("head", "lease")]:
            raise ConfigurationError(f'guard is "head", "lease" or both in a tuple, not {unknown[0]!r}')
        if on_busy not in ("raise", "wait"):
            raise ConfigurationError(f'on_busy is "raise" or "wait", not {on_busy!r}')
        for name, value in (("lease_ttl", lease_ttl), ("wait_timeout", wait_timeout)):
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= MAX_LEASE_SECONDS:
                raise ConfigurationError(f"{name} must be seconds, more than 0 and less than a year, not {value!r}")
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
        """Whether a deleted thread leaves a tombstone, and writes look for one."""
        return self.tombstones_for > timedelta(0)


class SaverOptions(TypedDict, total=False):
    """Options of a saver and of a state.

    Attributes:
        schema: PostgreSQL schema of the tables; `pgstate` by default.
        serde: Serializer of values; LangGraph's own by default. A serializer that is passed here decides for itself
            which types it builds. With any but LangGraph's own, a state stores no chat messages in a table of their
            own: what a serializer encrypts must not stand beside it in clear text.
        allowed_types: Types that are built beyond LangGraph's own and data types (dataclasses, pydantic models, enums,
            named tuples, attrs classes, subclasses of the standard library's values) of modules that this process has
            imported: classes, or names like `"shop.state:Order"`, whose modules are imported now. A class that is
            allowed is called, whatever it does. `["*"]` allows all types and trusts whoever can write to the database.
        strict: Whether only LangGraph's own types and `allowed_types` are built, as with
            `LANGGRAPH_STRICT_MSGPACK=true`.
        retry: How operations are repeated when a connection is lost.
        thread_keys: Keys of `configurable` and `metadata` that name a thread's tenant, user and agent.
        state_version: Version of the state that this program's graph has; checkpoints carry it. A checkpoint without
            one counts as version 1.
        upcasters: By version, the function that makes channel values of that version from those of the version before,
            like `{2: rename_user, 3: split_name}`. They are applied when older checkpoints are read; nothing is
            rewritten until the thread goes on. A function with a second parameter gets the subgraph's namespace,
            without task ids, and is called for checkpoints of subgraphs, too.
        on_corrupt: `"raise"` for a damaged checkpoint, or `"previous"` to go on from its nearest good ancestor, with
            an entry in the log and an event of the thread.
        guard: Writes that are refused: `"head"`, a checkpoint whose branch another process has advanced since it was
            read; `"lease"`, whatever a run writes without its thread's lease, which it takes when it starts; or both
            in a tuple. By default none, as in LangGraph.
        lease_ttl: Seconds after which a lease expires that is not renewed; a live process renews it.
        on_busy: What a run does when another holds the lease: `"raise"` or `"wait"`.
        wait_timeout: Seconds that it waits.
        tombstones_for: How long late writes to a deleted thread are refused, and its id not used again unless it is
            revived: a day with a guard, not at all without one, by default.
        cache_bytes: Memory for what was written and read last, so that it need not be fetched again: 128 MB by
            default; 0 for none, which costs each put a round trip more.
    """

    schema: str
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
    cache_bytes: int


class OpenSaverOptions(SaverOptions, ConnectionOptions, total=False):
    """Options of a saver and of its connections."""


class DatabaseOptions(ConnectionOptions, total=False):
    """Options that `Database.open` takes.

    Attributes:
        schema: PostgreSQL schema of the tables.
        retry: How operations are repeated when a connection is lost.
    """

    schema: Required[str]
    retry: RetryPolicy | None


def schema_of(options: SaverOptions) -> str:
    """Return the schema that some options name.

    Raises:
        ConfigurationError: If it is not usable.
    """
    return check_schema_name(options.get("schema", DEFAULT_SCHEMA))


def database_options(options: SaverOptions) -> DatabaseOptions:
    """Return those of some options that `Database.open` takes.

    Raises:
        ConfigurationError: If the schema is not usable.
    """
    taken = {name: value for name, value in options.items() if name in DatabaseOptions.__annotations__}
    return cast("DatabaseOptions", {**taken, "schema": schema_of(options)})


def check_allowed_types(
    allowed: AllowedTypes, option: str = "allowed_types"
) -> tuple[type | tuple[str, str], ...] | Literal[True]:
    """Return types that may be built as classes or `(module, name)`; `True` for `"*"`, which stands for all.

    Raises:
        ConfigurationError: If one is neither a class nor named like `shop.state:Order`.
    """
    if isinstance(allowed, str) or not isinstance(allowed, Iterable):
        raise ConfigurationError(f"{option} is a list of classes and of names like shop.state:Order, not {allowed!r}")
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
            raise ConfigurationError(f"{option} names types like shop.state:Order, not {one!r}")
    return tuple(found)
