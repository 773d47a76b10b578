"""Metrics of a process and of its database, for Prometheus."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext, suppress
from datetime import timedelta
from functools import partial
from types import TracebackType
from typing import Any, Final, NamedTuple

from prometheus_client import Counter, Histogram, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector, CollectorRegistry

from langgraph_pgstate import __version__
from langgraph_pgstate.admin.gauges import GAUGES, read_gauges
from langgraph_pgstate.admin.types import Gauge
from langgraph_pgstate.checkpoints import getting, listing, sending, writes
from langgraph_pgstate.errors import ConfigurationError, LeaseError, StaleHeadError, UnavailableError
from langgraph_pgstate.heavy import start_thread
from langgraph_pgstate.options import RetryPolicy
from langgraph_pgstate.schema.queries import Queries
from langgraph_pgstate.schema.tenancy import open_database
from langgraph_pgstate.state import AsyncPGState, PGState, core_of

_log = logging.getLogger("langgraph_pgstate.metrics")

DEFAULT_INTERVAL: Final = 15.0
DEFAULT_TIMEOUT: Final = 5.0
_ONCE: Final = RetryPolicy(attempts=1)
_BUCKETS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_OPERATIONS: Final[dict[Callable[..., Any], str]] = {
    sending.put: "put",
    writes.put_writes: "put_writes",
    getting.get_tuple: "get",
    listing.list_page: "list",
}
# Names of the gauges, with psycopg's names and a description.
_POOL: Final = {
    "pool_connections": ("pool_size", "Connections of the pool."),
    "pool_idle_connections": ("pool_available", "Connections of the pool that are not in use."),
    "pool_max_connections": ("pool_max", "Connections that the pool may have."),
    "pool_waiting_requests": ("requests_waiting", "Calls that wait for a connection of the pool."),
}
_POOL_COUNTERS: Final = {
    "pool_requests": ("requests_num", 1.0, "Calls that have asked the pool for a connection."),
    "pool_errors": ("requests_errors", 1.0, "Calls that have got no connection from the pool."),
    "pool_wait_seconds": ("requests_wait_ms", 0.001, "Time for which calls have waited for a connection of the pool."),
}


class Snapshot(NamedTuple):
    """A reading of a database's numbers.

    Attributes:
        gauges: The numbers; `None` if the reading failed.
        seconds: Duration of the reading.
        at: End of the reading, by the process's clock, in seconds since 1970.
    """

    gauges: list[Gauge] | None
    seconds: float
    at: float


_UNREADABLE: Final = Snapshot(None, 0.0, 0.0)


class GaugeReader:
    """A reader of a database's numbers, which reads at most once per interval for all concurrent scrapes.

    The reader has its own thread and connection, so that a scrape does not wait for the pool or a busy event loop.

    Args:
        dsn: The connection string.
        queries: The queries of the schema.
        interval: Seconds for which a reading is returned again.
        timeout: Seconds that a reading may take before scrapes give up. Also the time limit of each statement.
        tenant: The tenant whose rows are counted; `None` if tenants are not kept apart.
    """

    def __init__(self, dsn: str, queries: Queries, interval: float, timeout: float, tenant: str | None = None) -> None:
        if interval < 0 or timeout <= 0:
            wanted = "interval must be 0 seconds or more and timeout more than 0 seconds"
            raise ConfigurationError(f"{wanted}, got {interval!r} and {timeout!r}")
        self._dsn, self._queries, self._interval, self._timeout = dsn, queries, interval, timeout
        self._tenant = tenant
        self._lock = threading.Lock()
        self._reading: Future[Snapshot] | None = None
        self._began = 0.0
        self._error = ""

    def wait(self) -> Snapshot:
        """Return the last reading, or wait for the reading in progress."""
        reading, seconds = self._ask()
        with suppress(TimeoutError):
            return reading.result(seconds)
        return _UNREADABLE

    async def wait_async(self) -> Snapshot:
        """Async twin of `wait`."""
        reading, seconds = self._ask()
        if reading.done():
            return reading.result()
        with suppress(TimeoutError):
            # Keep the reading running after a timeout, because other scrapes also wait for it.
            async with asyncio.timeout(seconds):
                return await asyncio.shield(asyncio.wrap_future(reading))
        return _UNREADABLE

    def _ask(self) -> tuple[Future[Snapshot], float]:
        """Return the current reading, which may be in progress, and the seconds to wait."""
        with self._lock:
            now = time.monotonic()
            if self._reading is None or (self._reading.done() and now >= self._began + self._interval):
                reading: Future[Snapshot] = Future()
                try:
                    start_thread(partial(self._read, reading), "pgstate-metrics")
                except UnavailableError:
                    reading.set_result(_UNREADABLE)
                    return reading, 0.0
                self._reading, self._began = reading, now
            return self._reading, max(0.0, self._began + self._timeout - now)

    def _read(self, reading: Future[Snapshot]) -> None:
        began = time.monotonic()
        gauges: list[Gauge] | None = None
        error = ""
        try:
            options: Any = {"pool": False, "prepare_threshold": None, "retry": _ONCE}
            with open_database(self._dsn, self._queries, self._tenant, None, **options) as database:
                gauges = database.run(read_gauges, self._queries, timedelta(seconds=self._timeout))
        except Exception as raised:
            error = str(raised)
        if error and error != self._error:
            _log.warning("the metrics of the database cannot be read: %s", error)
        self._error = error
        reading.set_result(Snapshot(gauges, time.monotonic() - began, time.time()))


class OperationMetrics:
    """Durations of a saver's operations, and refused writes. The `observer` of a database."""

    def __init__(self) -> None:
        self.durations = Histogram(
            "pgstate_operation_duration_seconds",
            "Time of a saver's operation on the database, with waits for connections and retries.",
            ["operation"],
            buckets=_BUCKETS,
            registry=None,
        )
        self.refused = Counter(
            "pgstate_refused_writes",
            "Writes that were refused because of another run on the thread.",
            ["error"],
            registry=None,
        )
        self._observed = {operation: self.durations.labels(operation=name) for operation, name in _OPERATIONS.items()}

    def __call__(self, operation: Callable[..., Any]) -> AbstractContextManager[Any]:
        """Return a context in which an operation is measured."""
        observed = self._observed.get(operation)
        return nullcontext() if observed is None else _Measured(observed, self.refused)


class _Measured:
    """A context that measures one operation."""

    __slots__ = ("_began", "_observed", "_refused")

    def __init__(self, observed: Histogram, refused: Counter) -> None:
        self._observed, self._refused = observed, refused
        self._began = 0.0

    def __enter__(self) -> None:
        self._began = time.perf_counter()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._observed.observe(time.perf_counter() - self._began)
        if isinstance(error, StaleHeadError | LeaseError):
            self._refused.labels(error=type(error).__name__).inc()


class Metrics(Collector):
    """The metrics of a state and of its database, for a registry of `prometheus_client`.

    Operations of the state are measured from now on. Collecting the metrics reads the database, at most once in
    `interval` seconds.

    Args:
        state: The state.
        interval: Seconds for which a reading of the database is returned again.
        timeout: Seconds that a collection waits for the database, before `pgstate_database_up` becomes 0.

    Raises:
        ConfigurationError: If an argument is invalid, or the state's pool has no connection string.

    Example:
        >>> prometheus_client.REGISTRY.register(Metrics(state))
    """

    def __init__(
        self, state: PGState | AsyncPGState, *, interval: float = DEFAULT_INTERVAL, timeout: float = DEFAULT_TIMEOUT
    ) -> None:
        core = core_of(state)
        self._database = core.database
        self._reader = GaugeReader(core.database.dsn, core.queries, interval, timeout, core.database.tenant)
        observer = self._database.observer
        self._operations = observer if isinstance(observer, OperationMetrics) else OperationMetrics()
        self._database.observer = self._operations
        self._process = ProcessCollector(registry=None)

    @property
    def registry(self) -> CollectorRegistry:
        """A new registry with these metrics and metrics of the process: memory, processor time, open files."""
        registry = CollectorRegistry()
        registry.register(self)
        registry.register(self._process)
        return registry

    def describe(self) -> Iterable[Metric]:
        """Return nothing, because a description would read the database."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics. Blocks for at most `timeout` seconds."""
        yield from self._families(self._reader.wait())

    async def expose(self, accept: str = "") -> tuple[bytes, str]:
        """Return all metrics, including metrics of the process, as text, and the content type.

        Args:
            accept: The request's `Accept` header, which chooses the format of Prometheus or of OpenMetrics.
        """
        snapshot = await self._reader.wait_async()
        encode, content_type = choose_encoder(accept)
        return encode(_Collected([*self._families(snapshot), *self._process.collect()])), content_type

    def _families(self, snapshot: Snapshot) -> Iterator[Metric]:
        build = GaugeMetricFamily(
            "pgstate_build_info", "1; the label is the version of the package.", labels=["version"]
        )
        build.add_metric([__version__], 1.0)
        yield build
        yield _gauge("pgstate_database_up", "1 if the database could be read, else 0.", snapshot.gauges is not None)
        if snapshot.gauges is not None:
            yield _gauge(
                "pgstate_database_read_duration_seconds", "Time that reading the database took.", snapshot.seconds
            )
            yield _gauge(
                "pgstate_database_read_timestamp_seconds",
                "Time at which the database was read, in seconds since 1970.",
                snapshot.at,
            )
            yield from _gauges(snapshot.gauges)
        yield from self._operations.durations.collect()
        yield from self._operations.refused.collect()
        statistics = self._database.pool_statistics
        if not statistics:
            return
        for name, (key, text) in _POOL.items():
            yield _gauge(f"pgstate_{name}", text, statistics.get(key, 0))
        for name, (key, factor, text) in _POOL_COUNTERS.items():
            yield CounterMetricFamily(f"pgstate_{name}", text, value=statistics.get(key, 0) * factor)


class _Collected(Collector):
    """Metrics that were collected before."""

    def __init__(self, families: list[Metric]) -> None:
        self._families = families

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterable[Metric]:
        return self._families


def _gauge(name: str, text: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, text, value=float(value))


def _gauges(gauges: list[Gauge]) -> Iterator[Metric]:
    families: dict[str, GaugeMetricFamily] = {}
    for name, labels, value in gauges:
        if name not in families:
            families[name] = GaugeMetricFamily(f"pgstate_{name}", GAUGES[name], labels=[*labels])
        families[name].add_metric([*labels.values()], float(value))
    yield from families.values()
