"""The exporter: every span, each the same however often it is sent, whatever happens to the collector or to itself."""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

import psycopg
import pytest
from support import wait_until
from support.otlp import CALLER, Collector, Reply, attributes, collecting, travel_graph
from support.otlp_child import follow
from support.recorder import config, rows

from langgraph_pgstate import Encryption, LocalMasterKey, PGState
from langgraph_pgstate.errors import ConfigurationError, UnavailableError
from langgraph_pgstate.otlp import SpanExporter
from langgraph_pgstate.otlp import exporter as exporting

QUESTION = {"messages": [("user", "What is 1 + 2?")]}


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)
    monkeypatch.setattr(exporting, "_POLL_SECONDS", 0.05)
    with collecting() as collector:
        yield collector


@pytest.fixture
def state(dsn: str, schema: str) -> Iterator[PGState]:
    with PGState.open(dsn, schema=schema) as state:
        yield state


def hold(dsn: str, schema: str, collector: Collector, **options: Any) -> SpanExporter:
    """An exporter that has registered, so that spans are queued for it."""
    exporter = SpanExporter(dsn, collector.endpoint, schema=schema, **options)
    assert exporter.export() == 0
    return exporter


def run(state: PGState, thread_id: str = "t", **more: Any) -> None:
    graph = state.record(travel_graph().compile(checkpointer=state.saver, name="travel"))
    graph.invoke(QUESTION, config(thread_id, **more))
    state.flush()


def ids(connection: psycopg.Connection, schema: str) -> set[str]:
    return {row["span_id"] for row in rows(connection, schema, "spans")}


def waiting(connection: psycopg.Connection, schema: str) -> int:
    return len(rows(connection, schema, "span_exports"))


def test_each_span_arrives_once_with_its_parent(
    dsn: str, schema: str, state: PGState, collector: Collector, connection: psycopg.Connection
) -> None:
    exporter = hold(dsn, schema, collector)
    run(state)
    stored = rows(connection, schema, "spans")
    assert exporter.export() == len(stored)
    assert collector.counts == {row["span_id"]: 1 for row in stored}
    assert waiting(connection, schema) == 0
    assert exporter.export() == 0
    found = collector.by_id
    for row in stored:
        span, parent = found[row["span_id"]], row["parent_span_id"]
        assert span.parent_span_id == (found[parent].span_id if parent else b"")
        assert span.trace_id.hex() == row["run_id"].replace("-", "")
        assert (span.end_time_unix_nano - span.start_time_unix_nano) / 1e9 == pytest.approx(
            (row["ended_at"] - row["started_at"]).total_seconds(), abs=1e-6
        )


def test_nothing_is_queued_without_an_exporter(state: PGState, schema: str, connection: psycopg.Connection) -> None:
    run(state)
    assert waiting(connection, schema) == 0


@pytest.mark.slow
def test_spans_of_a_trace_of_the_caller_are_part_of_it(
    dsn: str, schema: str, state: PGState, collector: Collector, connection: psycopg.Connection
) -> None:
    exporter = hold(dsn, schema, collector)
    run(state, "configurable", traceparent=CALLER)
    graph = state.record(travel_graph().compile(checkpointer=state.saver))
    graph.invoke(QUESTION, {**config("metadata"), "metadata": {"traceparent": CALLER}})
    run(state, "malformed", traceparent="00-zz")
    run(state, "unsampled", traceparent=CALLER[:-1] + "0")
    exporter.export()
    by_thread: dict[str, list[Any]] = {}
    for span in collector.spans:
        by_thread.setdefault(attributes(span)["session.id"], []).append(span)
    assert by_thread.keys() == {"configurable", "metadata", "malformed"}
    for thread_id in ("configurable", "metadata"):
        assert {span.trace_id.hex() for span in by_thread[thread_id]} == {CALLER[3:35]}
        roots = [span for span in by_thread[thread_id] if span.name.startswith("invoke_workflow")]
        assert [span.parent_span_id.hex() for span in roots] == [CALLER[36:52]]
    assert waiting(connection, schema) == 0


def test_contents_are_exported_only_if_asked_for_and_never_beside_a_serializer_that_may_encrypt(
    dsn: str, schema: str, collector: Collector
) -> None:
    from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

    from langgraph_pgstate.record.options import RecorderSettings

    class Sealing(JsonPlusSerializer):
        """A serializer of the caller's own."""

    with PGState.open(dsn, schema=schema) as state:
        hold(dsn, schema, collector)
        run(state, "open")
    with PGState.open(dsn, schema=schema, serde=Sealing(), recording=RecorderSettings(content=True)) as state:
        run(state, "sealed")
    plain = SpanExporter(dsn, collector.endpoint, schema=schema)
    told = SpanExporter(dsn, collector.endpoint, schema=schema, content=True, since=timedelta(hours=1))
    plain.export()
    assert "It is 3." not in str(collector.requests)
    assert "1 + 2" not in str(collector.requests)
    collector.requests.clear()
    told.export()
    said = {attributes(span)["session.id"] for span in collector.spans if "It is 3." in str(span)}
    assert said == {"open"}
    assert {attributes(span)["session.id"] for span in collector.spans} == {"open", "sealed"}


def test_a_collector_that_fails_delays_spans_and_loses_none(
    dsn: str, schema: str, state: PGState, collector: Collector, connection: psycopg.Connection
) -> None:
    exporter = hold(dsn, schema, collector)
    run(state)
    for status in (503, 429, 401, 404, 500, 302):
        collector.replies = [Reply(status, {"Retry-After": "20"})]
        with pytest.raises(UnavailableError, match=str(status)):
            exporter.export()
        assert waiting(connection, schema) > 0
    collector.stop()
    exporter._collector = exporting.Collector(exporter._endpoint, timeout=0.5)
    with pytest.raises(UnavailableError, match="does not respond"):
        exporter.export()
    collector.start()
    exporter.export()
    assert collector.by_id.keys() == ids(connection, schema)


def test_a_span_that_the_collector_refuses_does_not_keep_the_others(
    dsn: str,
    schema: str,
    state: PGState,
    collector: Collector,
    connection: psycopg.Connection,
    caplog: pytest.LogCaptureFixture,
) -> None:
    exporter = hold(dsn, schema, collector)
    run(state)
    refused = rows(connection, schema, "spans")[3]["span_id"]
    collector.refuses = {refused}
    exporter.export()
    assert collector.by_id.keys() == ids(connection, schema) - {refused}
    assert waiting(connection, schema) == 0
    assert [record.message for record in caplog.records if refused in record.message]


def test_an_address_that_refuses_every_span_loses_none(
    dsn: str, schema: str, state: PGState, collector: Collector, connection: psycopg.Connection
) -> None:
    exporter = hold(dsn, schema, collector)
    run(state)
    collector.refuses = ids(connection, schema)
    with pytest.raises(UnavailableError, match="400"):
        exporter.export()
    collector.refuses = set()
    exporter.export()
    assert collector.by_id.keys() == ids(connection, schema)


@pytest.mark.slow
def test_an_answer_that_is_lost_sends_the_same_spans_again(
    dsn: str, schema: str, state: PGState, collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The collector has taken them, and the exporter does not know."""
    exporter = hold(dsn, schema, collector)
    run(state)
    collector.replies = [Reply(200, seconds=1.5)]
    exporter._collector = exporting.Collector(exporter._endpoint, timeout=0.5)
    with pytest.raises(UnavailableError):
        exporter.export()
    wait_until(lambda: bool(collector.spans), "the collector has taken the spans")
    exporter.export()
    assert min(collector.counts.values()) >= 2
    assert collector.by_id


def test_a_follower_exports_what_ends_and_stops_within_a_moment(
    dsn: str, schema: str, state: PGState, collector: Collector, connection: psycopg.Connection
) -> None:
    with SpanExporter(dsn, collector.endpoint, schema=schema):
        wait_until(lambda: bool(rows(connection, schema, "exporters")), "it has registered")
        run(state)
        wait_until(lambda: collector.counts.keys() == ids(connection, schema), "all spans arrived")
        run(state, "late")
    assert collector.by_id.keys() == ids(connection, schema)
    (row,) = rows(connection, schema, "exporters")
    assert row["expires_at"] <= datetime.now(row["expires_at"].tzinfo)


def test_of_two_followers_one_exports_and_the_other_takes_over(
    dsn: str,
    schema: str,
    state: PGState,
    collector: Collector,
    connection: psycopg.Connection,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(exporting, "_STANDBY_SECONDS", 0.05)
    with collecting() as other:
        first = SpanExporter(dsn, collector.endpoint, schema=schema)
        first.start()
        wait_until(lambda: bool(rows(connection, schema, "exporters")), "the first has registered")
        with SpanExporter(dsn, other.endpoint, schema=schema):
            run(state, "one")
            wait_until(lambda: bool(collector.spans), "the first has exported")
        with pytest.raises(ConfigurationError, match="another"):
            SpanExporter(dsn, other.endpoint, schema=schema).export()
        assert other.spans == []
        with SpanExporter(dsn, other.endpoint, schema=schema):
            first.close()
            run(state, "two")
            wait_until(lambda: bool(other.spans), "the second has taken over")
    assert {attributes(span)["session.id"] for span in collector.spans} == {"one"}
    assert {attributes(span)["session.id"] for span in other.spans} == {"two"}


@pytest.mark.slow
def test_a_collector_that_is_down_and_killed_exporters_lose_no_span(
    dsn: str, schema: str, state: PGState, collector: Collector, connection: psycopg.Connection
) -> None:
    context = multiprocessing.get_context("spawn")

    def begin() -> Any:
        process = context.Process(target=follow, args=(dsn, schema, collector.endpoint))
        process.start()
        return process

    process = begin()
    wait_until(lambda: bool(rows(connection, schema, "exporters")), "it has registered")
    run(state, "before")
    wait_until(lambda: bool(collector.spans), "the first spans arrived")
    collector.stop()
    run(state, "down")
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    run(state, "nobody")
    collector.replies = [Reply(200, seconds=0.3) for _ in range(3)]
    collector.start()
    process = begin()
    wait_until(lambda: len(collector.asked) > 1, "it sends")
    # Between the spans' arrival and their removal from the queue, or before, or after.
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    process = begin()
    wait_until(lambda: collector.counts.keys() == ids(connection, schema), "all spans arrived")
    wait_until(lambda: waiting(connection, schema) == 0, "the queue is empty")
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    assert collector.by_id.keys() == ids(connection, schema)


@pytest.mark.slow
def test_a_transaction_that_commits_late_loses_no_span(
    dsn: str, schema: str, state: PGState, collector: Collector, connection: psycopg.Connection
) -> None:
    """Whoever remembers a position passes over what began before it and commits after it."""
    exporter = hold(dsn, schema, collector)
    run(state)
    queued = rows(connection, schema, "span_exports")
    first = queued[0]["span_ids"][0]
    with psycopg.connect(dsn) as late:
        late.execute(f"DELETE FROM {schema}.span_exports WHERE export_id = %s", [queued[0]["export_id"]])
        late.commit()
        late.execute(
            f"INSERT INTO {schema}.span_exports SELECT (x.r).* FROM (SELECT ROW(%s, %s, %s, now(), %s, %s)"
            f"::{schema}.span_exports AS r) AS x",
            [queued[0][name] for name in ("thread_id", "export_id", "run_id", "span_ids", "started_ats")],
        )
        run(state, "later")
        exporter.export()
        assert first not in collector.counts
        late.commit()
    exporter.export()
    assert first in collector.counts
    assert collector.by_id.keys() == ids(connection, schema)


def test_since_exports_earlier_runs_and_again(
    dsn: str, schema: str, state: PGState, collector: Collector, connection: psycopg.Connection
) -> None:
    run(state, "old")
    connection.execute(f"UPDATE {schema}.runs SET started_at = started_at - interval '2 days'")
    run(state, "recent")
    exporter = SpanExporter(dsn, collector.endpoint, schema=schema, since=timedelta(days=1))
    exporter.export()
    assert {attributes(span)["session.id"] for span in collector.spans} == {"recent"}
    exporter.export()
    assert set(collector.counts.values()) == {2}
    assert collector.by_id
    SpanExporter(dsn, collector.endpoint, schema=schema, since=timedelta(days=3)).export()
    assert collector.by_id.keys() == ids(connection, schema)


def test_a_follower_asks_for_earlier_runs_once(
    dsn: str, schema: str, state: PGState, collector: Collector, connection: psycopg.Connection
) -> None:
    run(state)
    for _ in range(2):
        with SpanExporter(dsn, collector.endpoint, schema=schema, since=timedelta(days=1)):
            wait_until(lambda: collector.counts.keys() == ids(connection, schema), "all spans arrived")
    assert set(collector.counts.values()) == {1}


def test_an_exporter_asks_for_earlier_runs_if_the_one_before_died_before_it_did(
    dsn: str, schema: str, state: PGState, collector: Collector, connection: psycopg.Connection
) -> None:
    run(state)
    dead = SpanExporter(dsn, collector.endpoint, schema=schema, since=timedelta(days=1))
    with dead._connect() as database:
        dead._hold(database)
    connection.execute(f"UPDATE {schema}.exporters SET expires_at = now() - interval '1 second'".encode())
    with SpanExporter(dsn, collector.endpoint, schema=schema, since=timedelta(days=1)):
        wait_until(lambda: set(collector.counts) == ids(connection, schema), "the spans of earlier runs")


@pytest.mark.slow
def test_a_follower_that_lost_the_database_asks_again_for_earlier_runs(
    dsn: str,
    schema: str,
    state: PGState,
    collector: Collector,
    connection: psycopg.Connection,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run(state)
    failures = iter([UnavailableError("the connection was lost")])
    ask = exporting.exports.queue_runs

    async def fail_once(*arguments: Any, **options: Any) -> Any:
        for error in failures:
            raise error
        return await ask(*arguments, **options)

    monkeypatch.setattr(exporting.exports, "queue_runs", fail_once)
    with SpanExporter(dsn, collector.endpoint, schema=schema, since=timedelta(days=1)):
        wait_until(lambda: set(collector.counts) == ids(connection, schema), "the spans of earlier runs")


def test_attempts_of_a_run_are_roots_of_their_own(
    dsn: str, schema: str, state: PGState, collector: Collector, connection: psycopg.Connection
) -> None:
    exporter = hold(dsn, schema, collector)
    run_id = "0197a2b0-0000-7000-8000-000000000001"
    graph = state.record(travel_graph().compile(checkpointer=state.saver))
    for _ in range(2):
        graph.invoke(QUESTION, {**config(), "run_id": run_id})
    state.flush()
    exporter.export()
    stored = [row for row in rows(connection, schema, "spans") if row["parent_span_id"] is None]
    assert len(stored) == 2
    roots = [span for span in collector.spans if not span.parent_span_id]
    assert len({span.span_id for span in roots}) == 2
    assert {span.trace_id.hex() for span in collector.spans} == {run_id.replace("-", "")}
    known = {span.span_id for span in collector.spans}
    assert {span.parent_span_id for span in collector.spans} <= known | {b""}
    children = [span for span in collector.spans if span.parent_span_id in {root.span_id for root in roots}]
    by_start = sorted(roots, key=lambda span: span.start_time_unix_nano)
    for child in children:
        newest = [root for root in by_start if root.start_time_unix_nano <= child.start_time_unix_nano][-1]
        assert child.parent_span_id == newest.span_id


def test_a_run_whose_process_died_is_exported_when_that_is_known(
    dsn: str, schema: str, state: PGState, collector: Collector, connection: psycopg.Connection
) -> None:
    exporter = hold(dsn, schema, collector)
    connection.execute(
        f"INSERT INTO {schema}.runs (thread_id, run_id, status, started_at, alive_until)"
        " VALUES ('t', 'r', 'running', now() - interval '1 hour', now() - interval '1 minute')"
    )
    connection.execute(
        f"INSERT INTO {schema}.spans (thread_id, run_id, span_id, started_at, kind, name, status, semconv_version)"
        " VALUES ('t', 'r', 's', now() - interval '1 hour', 'node', 'n', 'running', '1')"
    )
    assert exporter.export() == 0
    state.maintain()
    assert exporter.export() == 1
    (span,) = collector.spans
    assert attributes(span)["error.type"] == "ProcessDied"


def test_an_outage_of_the_database_ends_nothing(
    dsn: str, schema: str, state: PGState, collector: Collector, connection: psycopg.Connection
) -> None:
    named = f"{dsn}{'&' if '?' in dsn else '?'}application_name={schema}_otlp"
    with SpanExporter(named, collector.endpoint, schema=schema):
        wait_until(lambda: bool(rows(connection, schema, "exporters")), "it has registered")
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = %s", [f"{schema}_otlp"]
        )
        run(state)
        wait_until(lambda: collector.counts.keys() == ids(connection, schema), "all spans arrived")


def test_contents_that_cannot_be_converted_do_not_keep_other_spans(
    dsn: str, schema: str, state: PGState, collector: Collector, connection: psycopg.Connection
) -> None:
    exporter = hold(dsn, schema, collector, content=True)
    run(state)
    connection.execute(f"""UPDATE {schema}.spans SET input = '{{"$messages": 1}}' WHERE kind = 'llm'""")
    exporter.export()
    assert collector.by_id.keys() == ids(connection, schema)


LOST = "DELETE FROM {}.data_keys WHERE scope = 'thread:lost'"
DAMAGED = """UPDATE {}.spans SET attributes = '{{"pgstate_encrypted": "pgs1:AAAA"}}' WHERE thread_id = 'lost'"""


@pytest.mark.parametrize("damage", [LOST, DAMAGED])
def test_contents_that_cannot_be_decrypted_do_not_keep_other_spans(
    damage: str, dsn: str, schema: str, collector: Collector, connection: psycopg.Connection
) -> None:
    def encryption() -> Encryption:
        return Encryption(LocalMasterKey(bytes(range(32))), scope="thread")

    with PGState.open(dsn, schema=schema, encryption=encryption()) as state:
        hold(dsn, schema, collector)
        for thread_id in ("lost", "other"):
            run(state, thread_id)
    connection.execute(damage.format(schema).encode())
    SpanExporter(dsn, collector.endpoint, schema=schema, content=True, encryption=encryption()).export()
    assert collector.by_id.keys() == ids(connection, schema)
    assert waiting(connection, schema) == 0


def test_an_endpoint_must_be_an_address() -> None:
    with pytest.raises(ConfigurationError, match="address"):
        SpanExporter("", "localhost:4318")


def test_a_moment_needs_a_time_zone() -> None:
    with pytest.raises(ConfigurationError, match="time zone"):
        SpanExporter("", "http://localhost", since=datetime(2026, 1, 1))


def test_an_exporter_that_is_gone_for_a_week_is_forgotten_with_what_waits(
    dsn: str, schema: str, state: PGState, collector: Collector, connection: psycopg.Connection
) -> None:
    hold(dsn, schema, collector)
    run(state)
    state.maintain()
    assert waiting(connection, schema) > 0
    connection.execute(f"UPDATE {schema}.exporters SET expires_at = now() - interval '8 days'")
    state.maintain()
    assert rows(connection, schema, "exporters") == []
    assert waiting(connection, schema) == 0
