"""Settings and options, with their defaults and checks."""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal, Required, TypedDict, cast
from uuid import UUID

from langgraph_pgstate.errors import ArgumentTypeError, ConfigurationError

if TYPE_CHECKING:
    from langgraph.checkpoint.serde.base import SerializerProtocol
    from langgraph.types import Command

AllowedTypes = Iterable[type | str | tuple[str, str]]
"""Types that may be built from stored state: classes, or names like `shop.state:Order`."""

Guard = str | Sequence[str] | None
"""Writes that a saver refuses: `"head"`, `"lease"`, both, or none."""

Upcaster = Callable[..., Mapping[str, Any]]
"""Function from the channel values of one version to those of the next; a second parameter gets the namespace."""

KeySource = str | Callable[[Mapping[str, Any]], str | None]
"""Source of a run's key: a path in its config, like `configurable.user_id`, or a function of the config."""

DEFAULT_SCHEMA = "pgstate"
DEFAULT_EMBEDDED_PATH = ".pgstate"
DSN_VARIABLE = "PGSTATE_DSN"

# A b-tree entry may not exceed a third of a page, 2,704 bytes; what is left is for the tuple itself.
MAX_KEY_BYTES = 2600

_DEFAULT_LEASE_TTL = 30.0
DEFAULT_STREAM_TTL = timedelta(days=1)
DEFAULT_QUEUE = "default"
DEFAULT_SIZE_LIMIT = 16 * 1024 * 1024
DEFAULT_CACHE_BYTES = 128 * 1024 * 1024
_DEFAULT_WAIT_TIMEOUT = 60.0
_DEFAULT_TOMBSTONES = timedelta(days=1)
MAX_LEASE_SECONDS = 366 * 24 * 3600.0

_SCHEMA_NAME = re.compile(r"[a-z_][a-z0-9_$]{0,62}")
_AGE = re.compile(r"(\d+(?:\.\d+)?)\s*([smhdw])")
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}


@dataclass(frozen=True, slots=True)
class PoolSettings:
    """Size and patience of a connection pool.

    Attributes:
        min_size: Connections kept open.
        max_size: Connections opened at most; this many calls run at once.
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


@dataclass(frozen=True, slots=True)
class Backoff:
    """Errors after which an enqueued run is tried again, and the delays between its attempts.

    Attributes:
        initial: Seconds before the second attempt.
        factor: Factor by which the delay grows with each further attempt.
        maximum: Longest delay in seconds.
        jitter: Part of the delay that is random, from 0 to 1, so that failed runs are not all tried again at once.
        retry_on: Exceptions, or their qualified names like `"httpx.ConnectError"`, after which a run is tried again; a
            name also stands for its subclasses. By default those after which LangGraph tries a node again.
    """

    initial: float = 1.0
    factor: float = 2.0
    maximum: float = 300.0
    jitter: float = 0.5
    retry_on: Sequence[type[BaseException] | str] | None = None

    def __post_init__(self) -> None:
        for name in ("initial", "factor", "maximum", "jitter"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
                raise ConfigurationError(f"Backoff.{name} must be a number that is not negative, not {value!r}")
        if self.jitter > 1:
            raise ConfigurationError(f"Backoff.jitter must be from 0 to 1, not {self.jitter}")
        if self.retry_on is None:
            return
        if isinstance(self.retry_on, str):
            raise ArgumentTypeError(f"Backoff.retry_on must be a list, not a string: use [{self.retry_on!r}]")
        names = []
        for one in self.retry_on:
            if isinstance(one, type) and issubclass(one, BaseException):
                names.append(f"{one.__module__}.{one.__qualname__}")
            elif isinstance(one, str):
                names.append(one)
            else:
                raise ArgumentTypeError(f"Backoff.retry_on has exceptions and their names, not {one!r}")
        object.__setattr__(self, "retry_on", tuple(names))

    def delay(self, attempt: int, jitter: float) -> float:
        """Return the seconds to wait after the failed attempt number `attempt` (from 1); `jitter` is in [0, 1)."""
        # Beyond this exponent any factor is beyond any maximum, and a float would overflow.
        ceiling = min(self.maximum, self.initial * self.factor ** min(attempt - 1, 64))
        return ceiling * (1 - self.jitter * jitter)

    def retries(self, error: BaseException) -> bool:
        """Return whether a run that failed with an error is tried again."""
        if self.retry_on is None:
            from langgraph.types import RetryPolicy as NodeRetryPolicy

            by_default: Any = NodeRetryPolicy().retry_on
            return bool(by_default(error))
        names = {f"{kind.__module__}.{kind.__qualname__}" for kind in type(error).__mro__}
        names |= {kind.__qualname__ for kind in type(error).__mro__ if kind.__module__ == "builtins"}
        return not names.isdisjoint(self.retry_on)

    def as_json(self) -> dict[str, Any]:
        """Return the backoff as a dict of JSON types, which are the arguments of an equal one."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class DefaultAnswer:
    """An answer that the interrupts of an enqueued run get if nobody answers them in time.

    Attributes:
        value: The answer; any value except `None` that the serializer can store.
        after: How long an interrupt waits for another answer.
    """

    value: Any
    after: timedelta

    def __post_init__(self) -> None:
        if self.value is None:
            raise ConfigurationError("an answer of None cannot be told from no answer: use False, {} or a string")
        check_ttl("DefaultAnswer.after", self.after)


@dataclass(frozen=True, slots=True)
class RecorderSettings:
    """Contents and timing of what a recorder writes.

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
        release: Release of the application, noted with its runs. A run with `release` in its metadata has that one.
    """

    content: bool = True
    limit: int = 4096
    redact: Callable[[str, Any], Any] | None = None
    interval: float = 0.4
    queue_size: int = 10_000
    patience: float = 10.0
    ttl: float = 15.0
    release: str | None = None

    def __post_init__(self) -> None:
        for name in ("limit", "interval", "queue_size", "patience", "ttl"):
            if getattr(self, name) <= 0:
                raise ConfigurationError(f"{name} must be more than 0, not {getattr(self, name)}")


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


class ConnectionOptions(TypedDict, total=False):
    """Options of connections that are opened from a connection string.

    Attributes:
        pool: Pool settings, a maximal size, `True` for 1 to 10 connections (the default), `False` for one connection.
        prepare_threshold: Executions of a statement after which it is prepared on its connection; `None` never
            prepares, for poolers that don't track prepared statements.
    """

    pool: PoolSettings | bool | int
    prepare_threshold: int | None


class OpenSaverOptions(SaverOptions, ConnectionOptions, total=False):
    """Options of a saver and of its connections."""


class ThreadOptions(TypedDict, total=False):
    """Options of a thread that is created.

    Attributes:
        metadata: The caller's metadata.
        title: Its title.
        user_id: The user.
        tenant_id: The tenant.
        agent: The graph or agent.
        ttl: Time for which it is kept after it was accessed last; for ever by default.
        if_exists: `raise` an error if there is a thread under the id, the default, or `do_nothing` and return that one.
        scope: Metadata that a thread which exists must contain to be returned.
    """

    metadata: Mapping[str, Any] | None
    title: str | None
    user_id: str | None
    tenant_id: str | None
    agent: str | None
    ttl: timedelta | None
    if_exists: Literal["raise", "do_nothing"]
    scope: Mapping[str, Any] | None


def _is_header(name: Any, value: Any) -> bool:
    if not isinstance(name, str) or not isinstance(value, str):
        return False
    return re.fullmatch(r"[\w!#$%&'*+.^`|~-]+", name, re.ASCII) is not None and value.isascii() and value.isprintable()


@dataclass(frozen=True, slots=True)
class WebhookSettings:
    """Delivery of webhooks.

    Attributes:
        secret: Secret with which they are signed; unsigned without. What follows `whsec_` is base64.
        allowed_networks: Networks that are not public, but that webhooks may be delivered to, like `10.1.0.0/16`.
        timeout: Seconds that a receiver has to answer.
        headers: Headers that each request has, whatever its URL.
        allowed_hosts: The hosts that webhooks may be delivered to; `*.example.com` stands for all hosts below that one.
            All hosts by default.
        allowed_ports: The ports that they may be delivered to; all by default.
        require_https: Whether URLs must be those of HTTPS.
    """

    secret: str | None = field(default=None, repr=False)
    allowed_networks: Sequence[str] = ()
    timeout: float = 10.0
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    allowed_hosts: Sequence[str] = ()
    allowed_ports: Sequence[int] = ()
    require_https: bool = False

    def __post_init__(self) -> None:
        if self.secret is not None and not (isinstance(self.secret, str) and self.secret):
            raise ConfigurationError("WebhookSettings.secret must be text, and not empty")
        timeout = self.timeout
        if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not 0 < timeout <= 300:
            raise ConfigurationError(f"WebhookSettings.timeout must be seconds, more than 0, not {timeout!r}")
        _ = self.networks
        if not isinstance(self.headers, Mapping) or not all(_is_header(*one) for one in self.headers.items()):
            raise ConfigurationError("WebhookSettings.headers are names and values of HTTP, in ASCII")
        for name, kind in (("allowed_hosts", str), ("allowed_ports", int)):
            given = getattr(self, name)
            if isinstance(given, str) or not isinstance(given, Sequence) or not all(type(one) is kind for one in given):
                raise ArgumentTypeError(f"WebhookSettings.{name} is a list, not {given!r}")
        if not isinstance(self.require_https, bool):
            raise ArgumentTypeError(f"WebhookSettings.require_https is true or false, not {self.require_https!r}")

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> WebhookSettings:
        """Return the settings that `PGSTATE_WEBHOOK_SECRET` and `PGSTATE_WEBHOOK_NETWORKS` (with commas) name.

        Raises:
            ConfigurationError: If they are not usable.
        """
        given = os.environ if environment is None else environment
        networks = given.get("PGSTATE_WEBHOOK_NETWORKS", "").split(",")
        named = [one.strip() for one in networks if one.strip()]
        return cls(given.get("PGSTATE_WEBHOOK_SECRET") or None, tuple(named))

    @property
    def networks(self) -> tuple[ipaddress.IPv4Network | ipaddress.IPv6Network, ...]:
        """The networks that are not public, but allowed.

        Raises:
            ConfigurationError: If one is not usable.
        """
        if isinstance(self.allowed_networks, str):
            raise ArgumentTypeError("WebhookSettings.allowed_networks is a list of networks, not text")
        try:
            return tuple(ipaddress.ip_network(one) for one in self.allowed_networks)
        except ValueError as error:
            raise ConfigurationError(f"WebhookSettings.allowed_networks: {error}") from None

    @property
    def claim_seconds(self) -> float:
        """Seconds after which another process delivers what this one has claimed, and not noted."""
        return 2 * self.timeout + 30


class EnqueueOptions(TypedDict, total=False):
    """Options of a run that is enqueued.

    Attributes:
        thread_id: The thread; a new one by default.
        run_id: The run's id; a new one by default. A run that was enqueued under this id is not enqueued again.
        checkpoint_id: Checkpoint from which the run starts; the thread's newest by default.
        config: Config of the run: `configurable`, `tags`, `metadata`, `recursion_limit` and others.
        context: Context of the graph, for `Runtime.context`.
        metadata: Metadata of the run, merged into that of the config.
        queue: The queue; `default` by default.
        priority: Runs of higher priority are claimed first; 0 by default.
        key: Runs of different keys take turns, and keys have limits: a tenant, a user. By default what `run_key` of the
            state names.
        version: Version of the graph: only workers that accept it run the run. Empty by default, for all workers.
        run_after: Time before which the run is not claimed, or the time that it waits.
        multitask_strategy: What happens if the thread has pending or running runs. `enqueue`, the default: this run
            waits for them. `reject`: it is refused. `interrupt`: they end as `interrupted`, and keep their checkpoints.
            `rollback`: they end, and their checkpoints are deleted.
        max_attempts: Number of attempts after which an error is final; 1 by default, because nodes need not be
            idempotent. A run whose worker died goes on from its newest checkpoint however many there were.
        retry: Errors after which it is tried again, and delays.
        timeout: Seconds that the run may take over all attempts, from the first claim; no limit by default.
        superstep_timeout: Seconds that a superstep may take; no limit by default.
        interrupt_before: Nodes before which the run stops, or `*`.
        interrupt_after: Nodes after which the run stops, or `*`.
        durability: When checkpoints are stored: `sync`, `async` or `exit`.
        stream_mode: Modes of LangGraph whose events are kept for `join`, one or several; `updates` by default. `[]`
            keeps none.
        stream_subgraphs: Whether events of subgraphs are kept, too; not by default.
        on_completion: `keep` the thread, the default, or `delete` it when the run succeeds, unless another run of the
            thread is in the queue.
        default_answer: The answer that its interrupts get if nobody answers them in time; none by default. The runs
            that resume it have the same.
        webhook: URL that is told when the run ends, however it does, and when a run that resumes it ends. None by
            default.
        size_limit: Bytes that the encoded input may have; 16 MB by default.
        traceparent: W3C `traceparent` of the caller; the spans of the run are exported as part of its trace. By default
            that of the config, as `metadata` or `configurable`. One that cannot be read is ignored.
    """

    thread_id: str | int | UUID | None
    run_id: str | UUID | None
    checkpoint_id: str | None
    config: Mapping[str, Any] | None
    context: Any
    metadata: Mapping[str, Any] | None
    queue: str
    priority: int
    key: str
    version: str
    run_after: datetime | timedelta | None
    multitask_strategy: Literal["enqueue", "reject", "interrupt", "rollback"]
    max_attempts: int
    retry: Backoff | None
    timeout: float | timedelta | None
    superstep_timeout: float | timedelta | None
    interrupt_before: Sequence[str] | Literal["*"] | None
    interrupt_after: Sequence[str] | Literal["*"] | None
    durability: Literal["sync", "async", "exit"] | None
    stream_mode: str | Sequence[str] | None
    stream_subgraphs: bool
    on_completion: Literal["keep", "delete"]
    default_answer: DefaultAnswer | None
    webhook: str | None
    size_limit: int
    traceparent: str | None


class ScheduleOptions(EnqueueOptions, total=False):
    """Options of a schedule, besides those of its runs.

    Attributes:
        timezone: IANA name of the time zone of `cron`, UTC by default. Where clocks are changed, each tick comes once.
        missed: What becomes of ticks at which nobody enqueued runs for a minute: `skip` them, the default; enqueue one
            run, for the newest (`once`); or `all`, the newest hundred at most.
        end_at: Time of the last tick at most; no end by default.
        paused: Whether its ticks pass; by default it stays as it is, and a new one is not paused.
        thread_ttl: How long the new threads of its runs are kept after they were touched last; for ever by default.
        scope: Metadata that a schedule which is changed must contain: what the caller may see.
    """

    timezone: str
    missed: Literal["skip", "once", "all"]
    end_at: datetime | None
    paused: bool | None
    thread_ttl: timedelta | None
    scope: Mapping[str, Any] | None


class ScheduleChanges(ScheduleOptions, total=False):
    """Changes of a schedule.

    Attributes:
        cron: Its expression.
        input: The input of its runs.
        command: A command instead of an input.
    """

    cron: str
    input: Any
    command: Command[Any] | None


class AssistantFields(TypedDict, total=False):
    """Fields of an assistant.

    Attributes:
        graph: Name of the graph.
        name: Its name, for people; need not be unique.
        description: Its description.
        config: Config of its runs.
        context: Context of its runs.
        metadata: The caller's metadata.
    """

    graph: str
    name: str
    description: str | None
    config: Mapping[str, Any]
    context: Any
    metadata: Mapping[str, Any]


class WorkerOptions(TypedDict, total=False):
    """Options of a worker.

    Attributes:
        concurrency: Runs at once; 10 by default.
        queues: Queues from which runs are claimed, the first one first; `default` by default.
        versions: Versions that are accepted besides runs without one: a version of all graphs, or by graph a version or
            several. None by default.
        lease_ttl: Seconds after which a run goes to another worker if this one dies; 12 by default.
        poll: Seconds between two looks for runs; 0.5 by default. Notifications are faster where they arrive.
        drain_timeout: Seconds that runs have to come to a superstep boundary when the worker is stopped, or when a run
            that blocks is cancelled; 30 by default.
        max_crashes: Deaths of a run's workers without a new checkpoint after which it ends as `error`; 3 by default. It
            also ends so if its worker dies after ten times as many attempts, or `max_attempts` if these are more.
        adopt: Whether crashed runs of a plain `graph.invoke` of the worker's graphs are taken over; not by default.
        repair: Called as `repair(state, input)` before a run with an input starts on a thread that has a state; returns
            the input to use. By default tool calls without a result get one in the channel `messages`. `None` for not
            at all.
    """

    concurrency: int
    queues: Sequence[str]
    versions: str | Mapping[str, str | Sequence[str]]
    lease_ttl: float
    poll: float
    drain_timeout: float
    max_crashes: int
    adopt: bool
    repair: Callable[[Any, Any], Any] | None


class DatabaseOptions(ConnectionOptions, total=False):
    """Options that `Database.open` takes.

    Attributes:
        schema: PostgreSQL schema of the tables.
        retry: How operations are repeated when a connection is lost.
    """

    schema: Required[str]
    retry: RetryPolicy | None


def check_options(owner: type, options: Mapping[str, Any], known: type) -> None:
    """Refuse options that a typed dictionary does not have.

    Raises:
        ArgumentTypeError: If there is one, with its name.
    """
    for name in options:
        if name not in known.__annotations__:
            raise ArgumentTypeError(
                f"{owner.__name__} has no option {name!r}; it has {', '.join(sorted(known.__annotations__))}"
            )


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


def age(text: str) -> timedelta:
    """Read an age like `30d`, `12h`, `90m` or `2w`.

    Raises:
        ConfigurationError: If it is not one.
    """
    match = _AGE.fullmatch(text.strip().lower())
    if match is None:
        raise ConfigurationError(f"{text!r} is no age: write a number and s, m, h, d or w, like 30d or 12h")
    try:
        return timedelta(seconds=float(match.group(1)) * _UNITS[match.group(2)])
    except OverflowError:
        raise ConfigurationError(f"{text!r} is longer than any calendar") from None


def check_ttl(name: str, ttl: Any) -> timedelta:
    """Return a time to live that is usable.

    Raises:
        ConfigurationError: If it is no timedelta, not positive, or longer than PostgreSQL's clock goes.
    """
    if not isinstance(ttl, timedelta) or not timedelta(0) < ttl <= timedelta(days=366_000):
        raise ConfigurationError(f"{name} must be a timedelta of more than 0 and less than 1,000 years, not {ttl!r}")
    return ttl


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
