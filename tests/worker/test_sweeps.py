"""The periodic work of a worker on the whole queue: when it is due, and what cannot be done."""

from __future__ import annotations

import logging
from datetime import timedelta

import psycopg
import pytest
from support.queue import CODEC, Queue

from langgraph_pgstate.errors import UnavailableError
from langgraph_pgstate.worker.settings import WorkerSettings
from langgraph_pgstate.worker.sweeps import Sweep, Sweeps
from tests.schedules.test_rows import Clock


def test_a_sweep_is_due_again_after_its_interval_and_stays_due_while_there_is_no_database(
    caplog: pytest.LogCaptureFixture,
) -> None:
    done: list[int] = []

    def work() -> None:
        done.append(1)
        if len(done) == 1:
            raise UnavailableError("no")
        raise ValueError("a row that is not what it should be")

    sweep = Sweep(60, work)
    with pytest.raises(UnavailableError, match="no"):
        sweep()
    assert sweep.due_at == float("-inf")
    sweep()
    sweep()
    assert len(done) == 2
    assert "a row that is not what it should be" in caplog.text


def test_what_cannot_be_done_is_logged_once_and_keeps_nothing_else_from_being_done(
    connection: psycopg.Connection, schema: str, caplog: pytest.LogCaptureFixture
) -> None:
    clock = Clock(Queue(connection, schema))
    for name, ago in (("lost", 2), ("known", 1)):
        clock.put(name)
        clock.make_due(name, timedelta(seconds=ago))
    clock.queue.execute("UPDATE {}.schedules SET timezone = 'Mars/Base' WHERE name = 'lost'")
    settings = WorkerSettings(poll=0.0)
    sweeps = Sweeps(clock.queue.database, clock.queue.queries, CODEC, ["graph"], settings, 60.0, adopts=False)
    caplog.set_level(logging.WARNING, "langgraph_pgstate.worker")
    for _ in range(2):
        # Else it would not be found again.
        clock.queue.execute("UPDATE {}.schedules SET last_error = NULL")
        for sweep in sweeps.all:
            sweep()
    assert len(clock.queue.rows()) == 1
    assert clock.get("lost").last_error is not None
    assert [record.message.partition(":")[0] for record in caplog.records] == ["fire of lost failed"]


def test_a_run_that_cannot_be_deleted_keeps_no_worker_from_its_other_work(
    connection: psycopg.Connection, schema: str, caplog: pytest.LogCaptureFixture
) -> None:
    queue = Queue(connection, schema)
    queue.add("t")
    queue.finish(queue.claim_one(), deletes_thread=True)
    queue.execute("UPDATE {}.runs SET delete_at = now()")
    key = "thread_id text, run_id text, FOREIGN KEY (thread_id, run_id) REFERENCES {0}.runs"
    queue.execute(f"CREATE TABLE {{0}}.ours ({key})")
    queue.execute("INSERT INTO {0}.ours SELECT thread_id, run_id FROM {0}.runs")
    sweeps = Sweeps(queue.database, queue.queries, CODEC, ["graph"], WorkerSettings(), 60.0, adopts=False)
    for sweep in sweeps.all:
        sweep()
    assert "runs that have deleted their threads cannot be deleted" in caplog.text
    queue.execute("DROP TABLE {}.ours")
