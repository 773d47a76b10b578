"""Requests to a collector: addresses, headers, and every kind of answer."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTracePartialSuccess,
    ExportTraceServiceResponse,
)
from otlp.test_spans import converted
from support.otlp import Collector as Receiver
from support.otlp import Reply, collecting

from langgraph_pgstate.errors import ConfigurationError
from langgraph_pgstate.otlp.exporter import Collector, endpoint_of, without_credentials


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)
    with collecting() as receiver:
        yield receiver


@pytest.fixture
def collector(receiver: Receiver) -> Collector:
    return Collector(endpoint_of(receiver.endpoint))


@pytest.fixture
def hasty(receiver: Receiver) -> Collector:
    """One that tries nothing again: the first pause would be longer than its timeout."""
    return Collector(endpoint_of(receiver.endpoint), timeout=0.5)


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ("http://localhost:4318", "http://localhost:4318/v1/traces"),
        ("http://localhost:4318/v1/traces", "http://localhost:4318/v1/traces"),
        ("https://cloud.langfuse.com/api/public/otel/", "https://cloud.langfuse.com/api/public/otel/v1/traces"),
        (" http://[::1]:4318?key=a ", "http://[::1]:4318/v1/traces?key=a"),
    ],
)
def test_an_address_gets_the_path_of_traces(given: str, found: str) -> None:
    assert endpoint_of(given) == found


@pytest.mark.parametrize(
    "given", ["", "localhost:4318", "grpc://localhost:4317", "http://", "http://h:99999", "http://["]
)
def test_what_is_no_address_is_refused(given: str) -> None:
    with pytest.raises(ConfigurationError, match="address"):
        endpoint_of(given)


def test_credentials_are_not_shown() -> None:
    # pragma: allowlist nextline secret
    assert without_credentials("https://key:secret@host:1/v1/traces?token=a") == "https://host:1/v1/traces"


def test_spans_arrive_with_the_headers_of_the_environment(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Basic%20abc")
    collector = Collector(endpoint_of(receiver.endpoint))
    assert collector.send([converted()]).is_taken
    assert receiver.headers[0]["authorization"] == "Basic abc"
    assert [span.name for span in receiver.spans] == ["think"]


@pytest.mark.parametrize("status", [400, 413, 422])
def test_spans_can_be_refused(receiver: Receiver, collector: Collector, status: int) -> None:
    receiver.replies = [Reply(status)]
    answer = collector.send([converted()])
    assert (answer.is_taken, answer.is_refused) == (False, True)
    assert str(status) in answer.reason


@pytest.mark.parametrize("status", [301, 401, 403, 404, 408, 429, 500, 502, 503, 504])
def test_any_other_answer_is_of_the_collector(receiver: Receiver, hasty: Collector, status: int) -> None:
    receiver.replies = [Reply(status, {"Retry-After": "7", "Location": f"{receiver.endpoint}/v1/traces"})]
    answer = hasty.send([converted()])
    assert (answer.is_taken, answer.is_refused, answer.retry_after) == (False, False, 7.0)
    assert str(status) in answer.reason


@pytest.mark.slow
def test_spans_that_are_taken_when_they_are_sent_again_are_taken(receiver: Receiver) -> None:
    receiver.replies = [Reply(503)]
    assert Collector(endpoint_of(receiver.endpoint)).send([converted()]).is_taken
    assert len(receiver.asked) == 2


@pytest.mark.parametrize("text", ["-1", "Wed, 21 Oct 2026 07:28:00 GMT", "nan", "1e9"])
def test_a_time_to_wait_that_is_no_number_is_none(receiver: Receiver, hasty: Collector, text: str) -> None:
    receiver.replies = [Reply(500, {"Retry-After": text})]
    assert hasty.send([converted()]).retry_after == 0.0


@pytest.mark.slow
def test_a_collector_that_is_away_or_too_slow_does_not_answer(receiver: Receiver, hasty: Collector) -> None:
    receiver.replies = [Reply(seconds=1.0), Reply(seconds=1.0)]
    assert hasty.send([converted()]).reason == "the collector does not respond"
    receiver.stop()
    assert hasty.send([converted()]).reason == "the collector does not respond"


def test_what_a_collector_rejects_of_a_request_is_logged(
    receiver: Receiver, collector: Collector, caplog: pytest.LogCaptureFixture
) -> None:
    partial = ExportTracePartialSuccess(rejected_spans=1, error_message="too old")
    receiver.replies = [Reply(body=ExportTraceServiceResponse(partial_success=partial).SerializeToString())]
    assert collector.send([converted()]).is_taken
    assert "rejects 1 of 1 spans: too old" in caplog.text
    receiver.replies = [Reply(body=b"<html>")]
    assert collector.send([converted()]).is_taken
