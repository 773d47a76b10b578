"""Metrics: what they say of a database and of a process, shared by scrapes, and without waiting for a dead server."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import CollectorRegistry
from support import config_of, put_arguments, wait_until
from support.record import Record

from langgraph_pgstate import AsyncPGState, PGState
from langgraph_pgstate.admin.gauges import GAUGES
from langgraph_pgstate.errors import ConfigurationError, StaleHeadError
from langgraph_pgstate.metrics import Metrics
from tests.admin.test_gauges import fill


def values(metrics: Metrics) -> dict[str, float]:
    """Every sample of what a scrape gets, by its name with its labels."""
    found = {}
    for family in metrics.collect():
        for sample in family.samples:
            labels = ",".join(sample.labels.values())
            found[f"{sample.name}{{{labels}}}" if labels else sample.name] = sample.value
    return found


def test_a_scrape_has_the_numbers_of_the_database(dsn: str, record: Record) -> None:
    fill(record)
    with PGState.open(dsn, schema=record.schema, pool=False) as state:
        found = values(Metrics(state))
    assert found["pgstate_database_up"] == 1
    assert found["pgstate_queue_runs{default,pending}"] == 2
    assert {f"pgstate_{name}" for name in GAUGES} <= {name.partition("{")[0] for name in found}


async def test_operations_of_either_api_are_measured(dsn: str, schema: str) -> None:
    with PGState.open(dsn, schema=schema, guard="head", pool=2) as state:
        metrics = Metrics(state)
        assert Metrics(state)._operations is metrics._operations
        config = state.saver.put(*put_arguments(config_of("t"), 0))
        state.saver.put_writes(config, [("a", 1)], "task")
        state.saver.get_tuple(config)
        list(state.saver.list(config))
        state.saver.put(*put_arguments(config, 1))
        with pytest.raises(StaleHeadError):
            state.saver.put(*put_arguments(config, 2))
        found = values(metrics)
        names = ("put", "put_writes", "get", "list")
        counts = [found[f"pgstate_operation_duration_seconds_count{{{name}}}"] for name in names]
        assert counts == [3, 1, 1, 1]
        assert 0 < found["pgstate_operation_duration_seconds_sum{put}"] < 60
        assert found["pgstate_refused_writes_total{StaleHeadError}"] == 1
        assert found["pgstate_pool_max_connections"] == 2
        assert found["pgstate_pool_requests_total"] >= 6
        assert found["pgstate_pool_waiting_requests"] == 0
    async with AsyncPGState.open(dsn, schema=schema, pool=False) as suspending:
        metrics = Metrics(suspending)
        config = await suspending.saver.aput(*put_arguments(config_of("u"), 0))
        await suspending.saver.aget_tuple(config)
        text, content_type = await metrics.expose()
    assert content_type.startswith("text/plain")
    families = {family.name: family for family in text_string_to_metric_families(text.decode())}
    counted = {
        sample.labels["operation"]: sample.value
        for sample in families["pgstate_operation_duration_seconds"].samples
        if sample.name.endswith("_count")
    }
    assert counted == {"put": 1, "get": 1, "put_writes": 0, "list": 0}
    assert "process_resident_memory_bytes" in families
    # There is no pool.
    assert "pgstate_pool_connections" not in families
    openmetrics, content_type = await metrics.expose("application/openmetrics-text; version=1.0.0")
    assert content_type.startswith("application/openmetrics-text")
    assert openmetrics.endswith(b"# EOF\n")


def test_metrics_fit_a_registry_beside_others(dsn: str, schema: str) -> None:
    with PGState.open(dsn, schema=schema, pool=False) as state:
        metrics = Metrics(state)
        registry = CollectorRegistry()
        registry.register(metrics)
        names = [family.name for family in registry.collect()]
        assert len(names) == len(set(names))
        assert all(name.startswith("pgstate_") for name in names)
        assert {"process_cpu_seconds", *names} <= {family.name for family in metrics.registry.collect()}
        with pytest.raises(ConfigurationError, match="interval"):
            Metrics(state, interval=-1)


def test_scrapes_at_once_share_one_reading(dsn: str, schema: str) -> None:
    with PGState.open(dsn, schema=schema, pool=False) as state:
        metrics = Metrics(state, interval=60, timeout=60)
        with psycopg.connect(dsn) as holding, ThreadPoolExecutor(8) as threads:
            # The reading waits for this lock.
            holding.execute(f"LOCK TABLE {schema}.queue IN ACCESS EXCLUSIVE MODE")
            scrapes = [threads.submit(values, metrics) for _ in range(8)]
            time.sleep(0.2)
            readers = [thread for thread in threading.enumerate() if thread.name == "pgstate-metrics"]
            holding.rollback()
            found = [scrape.result() for scrape in scrapes]
        assert len(readers) == 1
        assert len({one["pgstate_database_read_timestamp_seconds"] for one in found}) == 1
        with psycopg.connect(dsn, autocommit=True) as connection:
            Record(connection, schema).thread("t", status="interrupted")
        # Of the last minute.
        assert values(metrics)["pgstate_interrupted_threads"] == 0
        assert values(Metrics(state))["pgstate_interrupted_threads"] == 1


async def test_what_was_read_is_answered_again_without_waiting(dsn: str, schema: str) -> None:
    with PGState.open(dsn, schema=schema, pool=False) as state:
        metrics = Metrics(state, interval=600, timeout=600)
        first = values(metrics)["pgstate_database_read_timestamp_seconds"]
        # A scrape that comes later than a reading may take.
        metrics._reader._began -= 601
        metrics._reader._interval = 6000
        text, _ = await metrics.expose()
    families = {family.name: family for family in text_string_to_metric_families(text.decode())}
    assert families["pgstate_database_read_timestamp_seconds"].samples[0].value == first


def test_a_reading_that_cannot_begin_is_tried_again(dsn: str, schema: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with PGState.open(dsn, schema=schema, pool=False) as state:
        metrics = Metrics(state)
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", fail)
            assert values(metrics)["pgstate_database_up"] == 0
        assert values(metrics)["pgstate_database_up"] == 1


@contextmanager
def frozen(connection: psycopg.Connection, schema: str) -> Iterator[None]:
    """A database whose reader gets no answer, and whose process is stopped: not even a timeout is noticed there."""
    with psycopg.connect(connection.info.dsn, password=connection.info.password) as holding:
        holding.execute(f"LOCK TABLE {schema}.queue IN ACCESS EXCLUSIVE MODE")
        yield
        holding.rollback()


@pytest.mark.slow
async def test_a_scrape_does_not_wait_for_a_server_that_does_not_answer(
    dsn: str, schema: str, connection: psycopg.Connection
) -> None:
    with PGState.open(dsn, schema=schema, pool=False) as state:
        metrics = Metrics(state, interval=0, timeout=1.0)
        wait_until(lambda: values(metrics)["pgstate_database_up"] == 1, "a first reading")
        stopped: list[int] = []
        with frozen(connection, schema):
            waiting = asyncio.create_task(metrics.expose())
            while not stopped:
                await asyncio.sleep(0.01)
                stopped += [row[0] for row in connection.execute(_BLOCKED)]
            for pid in stopped:
                os.kill(pid, signal.SIGSTOP)
            try:
                text, _ = await waiting
                # The next scrape does not wait at all: the reading goes on, and no other is begun.
                assert metrics._reader._ask()[1] == 0
                again = values(metrics)
                readers = [thread for thread in threading.enumerate() if thread.name == "pgstate-metrics"]
            finally:
                for pid in stopped:
                    os.kill(pid, signal.SIGCONT)
        assert len(stopped) == 1
        assert b"pgstate_database_up 0.0" in text
        assert b"pgstate_operation_duration_seconds_count" in text
        assert b"pgstate_interrupted_threads" not in text
        assert again["pgstate_database_up"] == 0
        assert len(readers) == 1
        wait_until(lambda: values(metrics)["pgstate_database_up"] == 1, "a reading")


_BLOCKED = "SELECT pid FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query ~ 'queue o'"


def test_a_statement_that_takes_too_long_is_ended_by_the_server(
    dsn: str, schema: str, connection: psycopg.Connection, caplog: pytest.LogCaptureFixture
) -> None:
    with PGState.open(dsn, schema=schema, pool=False) as state:
        metrics = Metrics(state, interval=0, timeout=0.2)
        with frozen(connection, schema):
            assert values(metrics)["pgstate_database_up"] == 0
            wait_until(lambda: not connection.execute(_BLOCKED).fetchall(), "the statement's end")
        # The thread that has read it logs it a moment later.
        wait_until(lambda: "cannot be read" in caplog.text, "the line of the log")


@pytest.mark.bare
def test_a_database_without_tables_is_told(dsn: str, schema: str) -> None:
    with PGState.open(dsn, schema=schema, pool=False) as state:
        assert values(Metrics(state))["pgstate_database_up"] == 0


def test_without_metrics_nothing_is_measured(dsn: str, schema: str) -> None:
    with PGState.open(dsn, schema=schema, pool=False) as state:
        assert state._database.observer is None
        Metrics(state)
        observed: Any = state._database.observer
        # Other operations are not.
        with observed(len) as nothing:
            assert nothing is None
