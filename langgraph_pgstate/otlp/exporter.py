"""The exporter of spans: a thread that reads ended spans and sends them to a collector over HTTP."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from importlib.metadata import version
from types import TracebackType
from typing import Any, Final, Self
from urllib.parse import urlsplit, urlunsplit

import requests
from google.protobuf.message import DecodeError
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult

from langgraph_pgstate.codec.ids import new_revision
from langgraph_pgstate.db.database import Database
from langgraph_pgstate.db.tenants import tenant_of
from langgraph_pgstate.encryption.keys import KeyRing
from langgraph_pgstate.encryption.options import Encryption
from langgraph_pgstate.errors import ConfigurationError, PGStateError, UnavailableError
from langgraph_pgstate.heavy import start_thread
from langgraph_pgstate.options import DEFAULT_SCHEMA, PoolSettings, check_schema_name
from langgraph_pgstate.otlp import exports
from langgraph_pgstate.otlp.spans import convert, is_exported, resource_of_process
from langgraph_pgstate.process_identity import holder_id
from langgraph_pgstate.schema.queries import queries
from langgraph_pgstate.schema.tenancy import open_database

_log = logging.getLogger("langgraph_pgstate.otlp")
_PATH: Final = "/v1/traces"
# Status codes that refuse the spans themselves. After any other code, the spans are sent again.
_REFUSALS: Final = frozenset({400, 413, 422})
_MOST_SECONDS: Final = 300.0


@dataclass(frozen=True, slots=True)
class Answer:
    """The outcome of a request to a collector.

    Attributes:
        is_taken: Whether the collector has accepted the spans.
        is_refused: Whether sending the same spans again is useless.
        retry_after: Seconds that the collector asks to wait.
    """

    is_taken: bool = False
    is_refused: bool = False
    reason: str = ""
    retry_after: float = 0.0


def endpoint_of(url: str) -> str:
    """Return the address of a collector's traces. A path without the ending `/v1/traces` gets this ending.

    Raises:
        ConfigurationError: If `url` is not an HTTP address.
    """
    try:
        parts = urlsplit(url.strip())
        is_usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_usable = False
    if not is_usable:
        raise ConfigurationError(
            f"endpoint must be the address of an OTLP collector, like http://localhost:4318, not {url!r}"
        )
    path = parts.path.rstrip("/")
    return urlunsplit(parts._replace(path=path if path.endswith(_PATH) else path + _PATH))


def without_credentials(url: str) -> str:
    """Return an address without user, password and query."""
    parts = urlsplit(url)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


class Collector:
    """A collector, over HTTP. The variables `OTEL_EXPORTER_OTLP_*` set headers, certificates and compression.

    Args:
        endpoint: Address of the collector, with the path.
        timeout: Seconds within which the collector must respond.
    """

    def __init__(self, endpoint: str, timeout: float = 10.0) -> None:
        self._session = requests.Session()
        self._session.hooks["response"].append(self._note)
        self._responses: list[requests.Response] = []
        self._exporter = OTLPSpanExporter(endpoint=endpoint, session=self._session, timeout=timeout)  # type: ignore[call-overload, unused-ignore]

    def send(self, spans: Sequence[ReadableSpan]) -> Answer:
        """Send spans, and return the outcome. The OpenTelemetry exporter retries until the timeout."""
        self._responses.clear()
        result = self._exporter.export(spans)
        # The last attempt decides. Treat a redirection as a failure, although OpenTelemetry reports a success.
        last = self._responses[-1] if self._responses else None
        if last is not None and last.history:
            last = last.history[0]
        if result is SpanExportResult.SUCCESS and (last is None or 200 <= last.status_code < 300):
            if last is not None:
                self._warn_of_rejected(last, len(spans))
            return Answer(is_taken=True)
        if last is None:
            return Answer(reason="the collector does not respond")
        reason = f"the collector responds with {last.status_code} {last.reason or ''}".rstrip()
        return Answer(False, last.status_code in _REFUSALS, reason, _seconds(last.headers.get("Retry-After")))

    def close(self) -> None:
        """Disconnect, and stop retrying a request. Safe to call from another thread."""
        self._exporter.shutdown()  # type: ignore[no-untyped-call, unused-ignore]

    def _note(self, response: requests.Response, *_: Any, **__: Any) -> None:
        self._responses.append(response)

    def _warn_of_rejected(self, response: requests.Response, sent: int) -> None:
        try:
            partial = ExportTraceServiceResponse.FromString(response.content).partial_success
        except DecodeError:
            return
        if partial.rejected_spans:
            _log.warning(
                "the collector rejects %d of %d spans: %s", partial.rejected_spans, sent, partial.error_message
            )


def _seconds(text: str | None) -> float:
    """Return the seconds in a `Retry-After` header; 0 if it holds a date or is missing."""
    return min(float(text), _MOST_SECONDS) if text is not None and text.isdecimal() else 0.0


_VERSION: Final = version("langgraph-pgstate")
_LEASE_SECONDS: Final = 30.0
_RENEW_SECONDS: Final = 10.0
_POLL_SECONDS: Final = 1.0
_STANDBY_SECONDS: Final = 5.0
_MOST_PAUSE_SECONDS: Final = 60.0
_STOP_SECONDS: Final = 5.0
# Maximum number of spans in a request, without and with content.
_BATCH: Final = 512
_CONTENT_BATCH: Final = 64
_NEVER: Final = float("-inf")
# One connection with a short timeout, so that an outage is noticed soon.
_POOL: Final = PoolSettings(min_size=1, max_size=1, timeout=5.0)


class SpanExporter:
    """An exporter of recorded spans to a collector of OpenTelemetry, in a thread of its own.

    Each span is exported after its end, at least once and always with the same ids. Waiting spans are in the database,
    so an outage delays spans but loses none. If a schema has several exporters, one of them exports. If the exporting
    process dies, another exporter takes over after about half a minute.

    Args:
        dsn: The database.
        endpoint: Address of the collector, like `http://localhost:4318`.
        schema: Schema of the tables.
        tenant: The tenant whose spans are exported. If tenants are kept apart, each needs its own exporter.
        content: Whether inputs, outputs and error messages are exported. Runs with another serializer than LangGraph's
            export no content, because that serializer may encrypt.
        since: Also export earlier runs that started at this time or later, unless the schema was exported before. A
            timedelta counts back from now. By default, only spans that end from now on are exported.
        prepare_threshold: As in `ConnectionOptions`.
        encryption: Decrypts the content; needed with `content` if the rows are encrypted.

    Raises:
        ConfigurationError: If an argument is not usable.

    Example:
        >>> with SpanExporter("postgresql://localhost/app", "http://localhost:4318"):
        ...     serve()
    """

    def __init__(
        self,
        dsn: str,
        endpoint: str,
        *,
        schema: str = DEFAULT_SCHEMA,
        tenant: str | None = None,
        content: bool = False,
        since: datetime | timedelta | None = None,
        prepare_threshold: int | None = 5,
        encryption: Encryption | None = None,
    ) -> None:
        if isinstance(since, datetime) and since.tzinfo is None:
            raise ConfigurationError(f"since must have a time zone, got {since!r}")
        self._endpoint = endpoint_of(endpoint)
        self._dsn, self._queries = dsn, queries(check_schema_name(schema))
        self._tenant = None if tenant is None else tenant_of(tenant)
        self._keys = None if encryption is None else KeyRing(encryption, self._queries, self._tenant)
        self._content, self._since, self._prepare_threshold = content, since, prepare_threshold
        # Two exporters in one process must have different ids.
        self._holder_id = f"{holder_id()}:{new_revision():014x}"
        self._collector = Collector(self._endpoint)
        self._resource = resource_of_process()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._held_until = self._retry_at = _NEVER
        self._failures = 0
        # Whether ended spans from before the first export must still be queued.
        self._is_behind = False

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def start(self) -> None:
        """Start the thread. Does not wait for the database or the collector."""
        self._thread = start_thread(self._follow, "pgstate-otlp")

    def close(self) -> None:
        """Export waiting spans, for some seconds at most, and stop. The next exporter exports the rest."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join(2 * _STOP_SECONDS)
        self._collector.close()

    def export(self) -> int:
        """Export waiting spans, and return their number. With `since`, repeat the export of all runs since that time.

        Raises:
            ConfigurationError: If another process exports.
            UnavailableError: If the collector or the database cannot be used. Spans that were not sent stay queued.
        """
        total = 0
        with self._connect() as database:
            self._hold(database)
            if self._held_until == _NEVER:
                raise ConfigurationError(
                    "another process exports the spans of this schema: that process must stop first"
                )
            try:
                self._catch_up(database)
                while (sent := self._export_next(database)) is not None:
                    total += sent
                    self._hold(database)
            finally:
                self._release(database)
        return total

    # Only the thread calls these methods.

    def _follow(self) -> None:
        while True:
            try:
                with self._connect() as database:
                    while not self._stopping.is_set():
                        self._stopping.wait(self._turn(database))
                    self._finish(database)
                return
            except PGStateError as error:
                _log.warning("spans are not exported: %s", error)
            except Exception:
                _log.exception("spans are not exported")
            if self._stopping.wait(self._pause()):
                return

    def _turn(self, database: Database) -> float:
        """Export some spans if this process is the exporting one. Return the seconds until the next turn."""
        is_behind = self._hold(database)
        if self._held_until == _NEVER:
            return _STANDBY_SECONDS
        self._is_behind = self._is_behind or is_behind
        if self._is_behind:
            self._catch_up(database)
            self._is_behind = False
        if (left := self._retry_at - time.monotonic()) > 0:
            return min(left, _RENEW_SECONDS)
        try:
            sent = self._export_next(database)
        except CollectorError as error:
            pause = max(error.retry_after, self._pause())
            self._retry_at = time.monotonic() + pause
            _log.warning("spans wait for %s: %s", without_credentials(self._endpoint), error)
            return 0.0
        self._failures = 0
        return _POLL_SECONDS if sent is None else 0.0

    def _finish(self, database: Database) -> None:
        until = time.monotonic() + _STOP_SECONDS
        if self._held_until == _NEVER:
            return
        with suppress(CollectorError):
            while time.monotonic() < until and self._export_next(database) is not None:
                pass
        self._release(database)

    def _pause(self) -> float:
        """Return the seconds to wait after a failure, twice as many each time."""
        self._failures += 1
        return min(2.0 ** (self._failures - 1), _MOST_PAUSE_SECONDS)

    # The thread calls these methods, and `export` calls them, too.

    def _connect(self) -> AbstractContextManager[Database]:
        self._held_until = _NEVER
        return open_database(
            self._dsn, self._queries, self._tenant, self._keys, pool=_POOL, prepare_threshold=self._prepare_threshold
        )

    def _hold(self, database: Database) -> bool:
        """Become or stay the exporting process. Return whether the spans of earlier runs must still be queued."""
        now = time.monotonic()
        if now < self._held_until - _LEASE_SECONDS + _RENEW_SECONDS:
            return False
        shown = without_credentials(self._endpoint)
        is_behind = database.run(exports.hold, self._queries, self._holder_id, shown, _LEASE_SECONDS)
        if is_behind is None:
            self._held_until = _NEVER
            return False
        if self._held_until == _NEVER:
            _log.info("spans are exported to %s", shown)
        self._held_until = now + _LEASE_SECONDS
        return is_behind

    def _release(self, database: Database) -> None:
        self._held_until = _NEVER
        database.run_within(1.0, exports.release, self._queries, self._holder_id)

    def _catch_up(self, database: Database) -> None:
        """Queue the spans of earlier runs, if `since` asks for them. After a crash, the next exporter starts again."""
        after: exports.Cursor | None = None
        while self._since is not None:
            after = database.run(exports.queue_runs, self._queries, self._since, after)
            if after is None:
                break
            self._hold(database)
        database.run(exports.note_caught_up, self._queries, self._holder_id)

    def _export_next(self, database: Database) -> int | None:
        """Export the oldest spans in the queue, and return their number; `None` if the queue is empty.

        Raises:
            CollectorError: If the collector does not accept the spans. They stay in the queue.
        """
        found = database.run(exports.list_exports, self._queries, _BATCH)
        if not found:
            return None
        keys = [
            (one.thread_id, one.run_id, *span)
            for one in found
            for span in zip(one.span_ids, one.started_ats, strict=False)
        ]
        size, sent = _CONTENT_BATCH if self._content else _BATCH, 0
        for start in range(0, len(keys), size):
            part = keys[start : start + size]
            rows = database.run(exports.read_spans, self._queries, part, with_content=self._content)
            spans = [span for row in rows if (span := self._convert(row)) is not None]
            if spans:
                self._send(spans)
            sent += len(spans)
            self._hold(database)
            if self._held_until == _NEVER:
                # The export took too long. Another process exports now, and will send these spans again.
                return sent
        database.run(exports.confirm, self._queries, found)
        return sent

    def _convert(self, span: exports.EndedSpan) -> ReadableSpan | None:
        """Convert a recorded span to a span of OpenTelemetry. Return `None` if the span is not exported.

        An error is only logged, so that other spans are exported.
        """
        try:
            return convert(span, self._resource, _VERSION) if is_exported(span) else None
        except Exception:
            _log.exception("span %s is exported without its contents and attributes", span.span_id)
        try:
            return convert(span._replace(input=None, output=None, attributes={}), self._resource, _VERSION)
        except Exception:
            _log.exception("span %s cannot be exported", span.span_id)
            return None

    def _send(self, spans: Sequence[ReadableSpan]) -> None:
        """Send spans. Refused spans are skipped and logged.

        Raises:
            CollectorError: If the collector does not accept spans now, or refuses every one of several spans.
        """
        refused: list[tuple[ReadableSpan, Answer]] = []
        parts = [spans]
        while parts:
            part = parts.pop()
            answer = self._collector.send(part)
            if answer.is_taken:
                continue
            if not answer.is_refused:
                raise CollectorError(answer)
            if len(part) == 1:
                refused.append((part[0], answer))
                # Keep the spans if the collector refuses all of them, because the address may be wrong.
                if len(refused) == len(spans) > 1:
                    raise CollectorError(answer)
                continue
            middle = len(part) // 2
            parts += [part[middle:], part[:middle]]
        for span, answer in refused:
            found = span.attributes or {}
            _log.error("span %s is left out: %s", found.get("pgstate.span.id"), answer.reason)


class CollectorError(UnavailableError):
    """The collector does not accept spans.

    Attributes:
        retry_after: Seconds that the collector asks to wait.
    """

    def __init__(self, answer: Answer) -> None:
        self.retry_after = answer.retry_after
        super().__init__(answer.reason)
