"""Options of enqueued runs, workers and webhooks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal, TypedDict
from uuid import UUID

from langgraph_pgstate.errors import ArgumentTypeError, ConfigurationError
from langgraph_pgstate.options import check_ttl

if TYPE_CHECKING:
    pass
import ipaddress
import os
import re
from dataclasses import field

KeySource = str | Callable[[Mapping[str, Any]], str | None]
"""Source of a run's key: a path in its config, like `configurable.user_id`, or a function of the config."""

DEFAULT_QUEUE = "default"
DEFAULT_SIZE_LIMIT = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Backoff:
    """Retries of an enqueued run: the errors after which the run is tried again, and the delays.

    Attributes:
        initial: Seconds before the second attempt.
        factor: Factor by which the delay grows with each further attempt.
        maximum: Longest delay in seconds.
        jitter: Random part of the delay, from 0 to 1, so that failed runs are not all tried again at once.
        retry_on: Exceptions after which a run is tried again, or their qualified names like `"httpx.ConnectError"`.
            Subclasses are included. By default, the exceptions after which LangGraph retries a node.
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
                raise ConfigurationError(f"Backoff.{name} must be 0 or more, not {value!r}")
        if self.jitter > 1:
            raise ConfigurationError(f"Backoff.jitter must be from 0 to 1, not {self.jitter}")
        if self.retry_on is None:
            return
        if isinstance(self.retry_on, str):
            raise ArgumentTypeError(f"Backoff.retry_on must be a list like [{self.retry_on!r}], not a string")
        names = []
        for one in self.retry_on:
            if isinstance(one, type) and issubclass(one, BaseException):
                names.append(f"{one.__module__}.{one.__qualname__}")
            elif isinstance(one, str):
                names.append(one)
            else:
                raise ArgumentTypeError(f"Backoff.retry_on must contain exceptions or their names, not {one!r}")
        object.__setattr__(self, "retry_on", tuple(names))

    def delay(self, attempt: int, jitter: float) -> float:
        """Return the seconds to wait after a failed attempt. Attempts count from 1. `jitter` must be in [0, 1)."""
        # Limit the exponent, because a float may overflow.
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
        """Return the arguments of an equal `Backoff` as a dict of JSON types."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class DefaultAnswer:
    """An answer to interrupts of an enqueued run that are not answered in time.

    Attributes:
        value: The answer; any value except `None` that the serializer can store.
        after: How long an interrupt waits before it gets this answer.
    """

    value: Any
    after: timedelta

    def __post_init__(self) -> None:
        if self.value is None:
            raise ConfigurationError("DefaultAnswer.value must not be None. Use False or {} instead")
        check_ttl("DefaultAnswer.after", self.after)


class EnqueueOptions(TypedDict, total=False):
    """Options of a run that is enqueued.

    Attributes:
        thread_id: The thread. By default, a new thread.
        run_id: The run's id. By default, a new id. A run that was enqueued under this id is not enqueued again.
        checkpoint_id: Checkpoint from which the run starts. By default, the thread's newest.
        expected_head: Checkpoint that must be the thread's newest, now and when the run begins. If the thread has
            another newest checkpoint, the run is refused. Not checked when the run is resumed.
        config: Config of the run: `configurable`, `tags`, `metadata`, `recursion_limit` and others.
        context: Context of the graph, for `Runtime.context`.
        metadata: Metadata of the run, merged into the metadata of the config.
        queue: The queue; `default` by default.
        priority: Runs of higher priority are claimed first; 0 by default.
        key: Key in the queue, such as a tenant or a user. Runs of different keys take turns, and keys have limits. By
            default, the key that the state's option `run_key` finds in the config.
        version: Version of the graph. Only workers that accept this version execute the run. By default, all workers.
        run_after: Time before which the run is not claimed, or a timedelta to wait.
        multitask_strategy: What happens if the thread has pending or running runs. `enqueue`, the default: this run
            waits for the other runs. `reject`: this run is refused. `interrupt`: the other runs end as `interrupted`,
            and keep their checkpoints. `rollback`: the other runs end, and their checkpoints are deleted.
        max_attempts: Number of attempts after which an error is final; 1 by default, because nodes need not be
            idempotent. After the death of a worker, the run is resumed in any case.
        retry: Errors after which the run is tried again, and the delays.
        timeout: Seconds that all attempts together may take, from the first claim. No limit by default.
        superstep_timeout: Seconds that a superstep may take. No limit by default.
        interrupt_before: Nodes before which the run stops, or `*`.
        interrupt_after: Nodes after which the run stops, or `*`.
        durability: When checkpoints are stored: `sync`, `async` or `exit`.
        stream_mode: Modes whose events are kept for `join`; `updates` by default. Besides LangGraph's modes, `events`
            keeps what `astream_events` yields. `[]` keeps no events.
        stream_subgraphs: Whether events of subgraphs are kept. Not by default.
        on_completion: `keep`, the default, or `delete`: the thread is deleted when the run succeeds, unless another run
            of the thread is in the queue. Status and events can be read for another minute.
        default_answer: The answer to interrupts that are not answered in time, also for runs that resume this run. None
            by default.
        webhook: URL to which the end of the run is sent, also for runs that resume this run. None by default.
        size_limit: Maximum bytes of the encoded input; 16 MB by default.
        traceparent: W3C `traceparent` of the caller, whose trace then contains the spans of the run. By default, the
            `traceparent` in `metadata` or `configurable` of the config. An invalid value is ignored.
    """

    thread_id: str | int | UUID | None
    run_id: str | UUID | None
    checkpoint_id: str | None
    expected_head: str | None
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


class WorkerOptions(TypedDict, total=False):
    """Options of a worker.

    Attributes:
        concurrency: Maximum number of runs at the same time; 10 by default.
        queues: Queues from which runs are claimed, in this order; `default` by default.
        versions: Accepted versions: one version for all graphs, or a mapping from graphs to one or several versions.
            Runs without a version are always accepted.
        lease_ttl: Seconds after which another worker can take a run if this worker dies; 12 by default.
        poll: Seconds between two searches for runs without a notification; 0.5 by default.
        drain_timeout: Seconds in which runs must reach a superstep boundary after the worker is stopped, or after a
            blocking run is cancelled; 30 by default. Other runs of the thread wait at most this long for code that
            cannot be stopped.
        max_crashes: A run ends as `error` after this number of deaths of its workers in a row without a new checkpoint;
            3 by default. A run that makes checkpoints ends as `error` if its worker dies after ten times this number of
            attempts, or after `max_attempts` if that is more. If the last worker also executed other runs, the run is
            requeued instead, to be executed alone.
        adopt: Whether crashed runs of a plain `graph.invoke` of the worker's graphs are taken over. Not by default.
        followed_by: A mapping from graphs to following graphs. When a run of a graph succeeds, a run of the following
            graph is enqueued in the same transaction, unless the thread is deleted. The input has the `thread_id` and
            the `run_id` of the first run. The following run has the first run's owner, queue and key, and a new thread,
            which is deleted after success. The following graph must be idempotent, because a run has up to five
            attempts.
        repair: Called as `repair(state, input)` before a run with an input starts on a thread that has a state. Returns
            the input to use. By default, tool calls without a result get a result in the channel `messages`. `None`
            turns this off.
    """

    concurrency: int
    queues: Sequence[str]
    versions: str | Mapping[str, str | Sequence[str]]
    lease_ttl: float
    poll: float
    drain_timeout: float
    max_crashes: int
    adopt: bool
    followed_by: Mapping[str, str]
    repair: Callable[[Any, Any], Any] | None


@dataclass(frozen=True, slots=True)
class WebhookSettings:
    """Settings of the delivery of webhooks.

    Attributes:
        secret: Secret with which webhooks are signed. The part after `whsec_` is base64. Without a secret, webhooks are
            not signed.
        allowed_networks: Private networks to which webhooks may be delivered, like `10.1.0.0/16`.
        timeout: Seconds in which a receiver must respond.
        headers: Headers of every request.
        allowed_hosts: Hosts to which webhooks may be delivered. All by default. `*.example.com` stands for all
            subdomains of `example.com`.
        allowed_ports: Ports to which webhooks may be delivered. All by default.
        require_https: Whether URLs must begin with `https://`.
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
            raise ConfigurationError("WebhookSettings.secret must be text that is not empty")
        timeout = self.timeout
        if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not 0 < timeout <= 300:
            raise ConfigurationError(f"WebhookSettings.timeout must be above 0, at most 300 seconds, not {timeout!r}")
        _ = self.networks
        if not isinstance(self.headers, Mapping) or not all(_is_header(*one) for one in self.headers.items()):
            raise ConfigurationError("WebhookSettings.headers must be names and values of HTTP headers, in ASCII")
        for name, kind in (("allowed_hosts", str), ("allowed_ports", int)):
            given = getattr(self, name)
            if isinstance(given, str) or not isinstance(given, Sequence) or not all(type(one) is kind for one in given):
                raise ArgumentTypeError(f"WebhookSettings.{name} must be a list, not {given!r}")
        if not isinstance(self.require_https, bool):
            raise ArgumentTypeError(f"WebhookSettings.require_https must be true or false, not {self.require_https!r}")

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> WebhookSettings:
        """Return the settings of `PGSTATE_WEBHOOK_SECRET` and `PGSTATE_WEBHOOK_NETWORKS` (separated by commas).

        Raises:
            ConfigurationError: If a network is invalid.
        """
        given = os.environ if environment is None else environment
        networks = given.get("PGSTATE_WEBHOOK_NETWORKS", "").split(",")
        named = [one.strip() for one in networks if one.strip()]
        return cls(given.get("PGSTATE_WEBHOOK_SECRET") or None, tuple(named))

    @property
    def networks(self) -> tuple[ipaddress.IPv4Network | ipaddress.IPv6Network, ...]:
        """The private networks that are allowed.

        Raises:
            ConfigurationError: If a network is invalid.
        """
        if isinstance(self.allowed_networks, str):
            raise ArgumentTypeError("WebhookSettings.allowed_networks must be a list of networks, not text")
        try:
            return tuple(ipaddress.ip_network(one) for one in self.allowed_networks)
        except ValueError as error:
            raise ConfigurationError(
                f"WebhookSettings.allowed_networks must be networks like '10.1.0.0/16': {error}"
            ) from None

    @property
    def claim_seconds(self) -> float:
        """Seconds after which another process may deliver a claimed webhook without a stored outcome."""
        return 2 * self.timeout + 30


def _is_header(name: Any, value: Any) -> bool:
    if not isinstance(name, str) or not isinstance(value, str):
        return False
    return re.fullmatch(r"[\w!#$%&'*+.^`|~-]+", name, re.ASCII) is not None and value.isascii() and value.isprintable()
