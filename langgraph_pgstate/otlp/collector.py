"""Sending of spans to a collector over OTLP/HTTP, by OpenTelemetry's own exporter."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit, urlunsplit

import requests
from google.protobuf.message import DecodeError
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult

from langgraph_pgstate.errors import ConfigurationError

_log = logging.getLogger("langgraph_pgstate.otlp")
_PATH: Final = "/v1/traces"
# They refuse the spans themselves. Others are of the collector or of the network.
_REFUSALS: Final = frozenset({400, 413, 422})
_MOST_SECONDS: Final = 300.0


@dataclass(frozen=True, slots=True)
class Answer:
    """The outcome of a request.

    Attributes:
        is_taken: Whether the collector has the spans.
        is_refused: Whether it will never take them all.
        reason: Why it has not.
        retry_after: Seconds that it asks to wait.
    """

    is_taken: bool = False
    is_refused: bool = False
    reason: str = ""
    retry_after: float = 0.0


def endpoint_of(url: str) -> str:
    """Return the address of a collector's traces. The path `/v1/traces` is added to one without it.

    Raises:
        ConfigurationError: If it is not an address of HTTP.
    """
    try:
        parts = urlsplit(url.strip())
        is_usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_usable = False
    if not is_usable:
        raise ConfigurationError(f"an OTLP endpoint must be an address like http://localhost:4318, not {url!r}")
    path = parts.path.rstrip("/")
    return urlunsplit(parts._replace(path=path if path.endswith(_PATH) else path + _PATH))


def without_credentials(url: str) -> str:
    """Return an address without user, password and query."""
    parts = urlsplit(url)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


class Collector:
    """A collector, addressed over HTTP. Headers, certificates and compression are those of `OTEL_EXPORTER_OTLP_*`.

    Args:
        endpoint: Its address, with the path.
        timeout: Seconds that it has to answer.
    """

    def __init__(self, endpoint: str, timeout: float = 10.0) -> None:
        self._session = requests.Session()
        self._session.hooks["response"].append(self._note)
        self._responses: list[requests.Response] = []
        self._exporter = OTLPSpanExporter(endpoint=endpoint, session=self._session, timeout=timeout)  # type: ignore[call-overload, unused-ignore]

    def send(self, spans: Sequence[ReadableSpan]) -> Answer:
        """Send spans, and return the outcome. The exporter tries again until the timeout."""
        self._responses.clear()
        result = self._exporter.export(spans)
        # The last of several tries counts. The exporter takes a redirection for success.
        last = self._responses[-1] if self._responses else None
        if last is not None and last.history:
            last = last.history[0]
        if result is SpanExportResult.SUCCESS and (last is None or 200 <= last.status_code < 300):
            if last is not None:
                self._warn_of_rejected(last, len(spans))
            return Answer(is_taken=True)
        if last is None:
            return Answer(reason="it does not answer")
        reason = f"it answers {last.status_code} {last.reason or ''}".rstrip()
        return Answer(False, last.status_code in _REFUSALS, reason, _seconds(last.headers.get("Retry-After")))

    def close(self) -> None:
        """Disconnect, and give up a request that is tried again. Safe to call from another thread."""
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
    """Return a number of seconds; 0 for a date, or anything else."""
    return min(float(text), _MOST_SECONDS) if text is not None and text.isdecimal() else 0.0
