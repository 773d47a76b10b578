"""Many callers and workers at once, in two connections and in two processes."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import psycopg
import pytest
from support import FORK, GUARD_SECONDS, examples, holding, run_children, wait_until
from support.queue import Queue, request

from langgraph_pgstate import PGStateSaver
from langgraph_pgstate.errors import NotFoundError, ThreadBusyError
from langgraph_pgstate.runs import cancelling
from langgraph_pgstate.runs.requests import STRATEGIES


@pytest.fixture
def queue(connection: psycopg.Connection, schema: str) -> Queue:
    return Queue(connection, schema)


@pytest.fixture
def other(dsn: str, schema: str) -> Iterator[Queue]:
    with psycopg.connect(dsn, autocommit=True, application_name="other") as connection:
        yield Queue(connection, schema, "other")


def waiting(queue: Queue) -> bool:
    """Whether the other session waits for a lock."""
    found = queue.execute(
        "SELECT 1 FROM pg_stat_activity WHERE application_name = 'other' AND wait_event_type = 'Lock'"
    )
    return bool(found)


def meanwhile(queue: Queue, other: Callable[[], Any], commit: Callable[[], Any]) -> Any:
    """Let another session do something that waits for this one's transaction; what it returned."""
    with ThreadPoolExecutor(1) as executor:
        future = executor.submit(other)
        wait_until(lambda: waiting(queue), "the other session waits")
        commit()
        return future.result(GUARD_SECONDS)


def test_a_run_enqueued_while_the_last_one_ends_is_ready(dsn: str, queue: Queue, other: Queue) -> None:
    """The end has deleted its row, and has not committed, when the other decides whether the thread is free."""
    queue.add("t")
    run = queue.claim_one()
    with psycopg.connect(dsn) as mine:
        mine.execute("SELECT 1")
        assert Queue(mine, queue.schema).finish(run)
        meanwhile(queue, lambda: other.add("t"), mine.commit)
    queue.check()
    assert len(queue.claim()) == 1


def test_two_runs_enqueued_at_once_are_run_one_after_the_other(dsn: str, queue: Queue, other: Queue) -> None:
    with psycopg.connect(dsn) as mine:
        mine.execute("SELECT 1")
        Queue(mine, queue.schema).add("t")
        meanwhile(queue, lambda: other.add("t"), mine.commit)
    queue.check()
    assert [row[3] for row in queue.rows()] == [True, False]


def test_a_run_that_is_claimed_while_another_supersedes_it_is_told(dsn: str, queue: Queue, other: Queue) -> None:
    """It was pending when the other began, and runs when the other has its row."""
    queue.add("t")
    with psycopg.connect(dsn) as mine:
        mine.execute("SELECT 1")
        (run,) = Queue(mine, queue.schema).claim()
        last = meanwhile(queue, lambda: other.add("t", multitask_strategy="interrupt"), mine.commit)
    assert queue.tend(run).cancels == {run.key: "interrupt"}
    assert ("t", last, "pending", False) in queue.rows()
    queue.check()


def test_a_run_that_is_cancelled_while_it_is_claimed_is_told(dsn: str, queue: Queue, other: Queue) -> None:
    run_id = queue.add("t")
    with psycopg.connect(dsn) as mine:
        mine.execute("SELECT 1")
        (run,) = Queue(mine, queue.schema).claim()
        assert meanwhile(queue, lambda: other.cancel("t", run_id), mine.commit) == "running"
    assert queue.tend(run).cancels == {run.key: "cancel"}


@pytest.mark.parametrize("by", [None, "eve"])
def test_a_run_that_is_retried_while_somebody_discards_it_keeps_what_it_is_to_do(
    dsn: str, queue: Queue, other: Queue, by: str | None
) -> None:
    run_id = queue.add("t")
    queue.fail(queue.claim_one())
    with psycopg.connect(dsn) as mine:
        mine.execute("SELECT 1")
        assert Queue(mine, queue.schema).retry("t", run_id)
        assert not meanwhile(queue, lambda: other.do(cancelling.discard, "t", run_id, by), mine.commit)
    assert queue.requests() == {run_id}
    assert queue.claim_one().data
    queue.check()


def test_a_thread_that_is_deleted_while_its_run_is_claimed_leaves_nothing(dsn: str, queue: Queue, other: Queue) -> None:
    queue.add("t")
    saver = PGStateSaver(other.connection, schema=queue.schema)
    with psycopg.connect(dsn) as mine:
        mine.execute("SELECT 1")
        (run,) = Queue(mine, queue.schema).claim()
        meanwhile(queue, lambda: saver.delete_thread("t"), mine.commit)
    assert queue.rows() == []
    assert queue.tend(run).still == set()
    assert queue.execute("SELECT 1 FROM {}.leases") == queue.execute("SELECT 1 FROM {}.runs") == []


def test_a_thread_that_is_deleted_while_its_first_checkpoint_is_stored_leaves_nothing(
    dsn: str, queue: Queue, other: Queue
) -> None:
    queue.add("t")
    saver = PGStateSaver(other.connection, schema=queue.schema)
    with psycopg.connect(dsn) as mine:
        mine.execute("SELECT 1")
        Queue(mine, queue.schema).put("t", "run")
        meanwhile(queue, lambda: saver.delete_thread("t"), mine.commit)
    assert queue.execute("SELECT 1 FROM {}.checkpoints") == queue.execute("SELECT 1 FROM {}.threads") == []


def test_what_is_stored_under_a_lease_while_its_thread_is_deleted_does_not_stay(
    dsn: str, queue: Queue, other: Queue
) -> None:
    """As a put does, which need not write the thread's row."""
    queue.put("t", "run")
    queue.add("t")
    queue.claim_one()
    saver = PGStateSaver(other.connection, schema=queue.schema)
    with psycopg.connect(dsn) as mine:
        writing = Queue(mine, queue.schema)
        assert writing.execute("SELECT 1 FROM {}.leases WHERE thread_id = 't' FOR SHARE") == [(1,)]
        late = '{"checkpoint_id": "late"}'
        writing.execute(
            "INSERT INTO {0}.checkpoints SELECT (jsonb_populate_record(c, %s::jsonb)).* FROM {0}.checkpoints c", late
        )
        meanwhile(queue, lambda: saver.delete_thread("t"), mine.commit)
    assert queue.execute("SELECT 1 FROM {}.checkpoints") == queue.execute("SELECT 1 FROM {}.leases") == []


def test_a_lease_that_is_renewed_while_it_is_recovered_is_kept(dsn: str, queue: Queue, other: Queue) -> None:
    queue.add("t")
    run = queue.claim_one()
    queue.expire(run)
    with psycopg.connect(dsn) as mine:
        mine.execute("SELECT 1")
        assert Queue(mine, queue.schema).tend(run).still == {run.key}
        assert other.recover() == []
    assert queue.finish(run)
    queue.check()


def test_claims_skip_what_another_claims_at_that_moment(dsn: str, queue: Queue, other: Queue) -> None:
    for number in range(4):
        queue.add(f"t{number}")
    with psycopg.connect(dsn) as mine:
        mine.execute("SELECT 1")
        first = Queue(mine, queue.schema).claim(2)
        second = other.claim(4)
        mine.commit()
    assert [run.thread_id for run in first] == ["t0", "t1"]
    assert [run.thread_id for run in second] == ["t2", "t3"]


def test_a_prune_that_holds_the_thread_delays_and_breaks_nothing(dsn: str, queue: Queue, other: Queue) -> None:
    queue.add("t")
    run = queue.claim_one()
    with holding(dsn, f"SELECT 1 FROM {queue.schema}.threads WHERE thread_id = 't' FOR UPDATE") as prune:
        assert meanwhile(queue, lambda: other.finish(run), prune.rollback)
    queue.check()


@pytest.mark.slow
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_callers_in_two_processes_race_on_one_thread(strategy: str, dsn: str, queue: Queue) -> None:
    """While a worker claims and ends runs. Nothing runs twice at once, and the thread comes to rest."""
    children, turns = 2, examples(80)
    done = FORK.Event()

    def call(number: int) -> None:
        with psycopg.connect(dsn, autocommit=True) as connection:
            mine = Queue(connection, queue.schema)
            for turn in range(turns):
                try:
                    mine.add("t", run_id=f"{number}-{turn}", multitask_strategy=strategy)
                except ThreadBusyError:
                    assert strategy == "reject"

    def work() -> None:
        with psycopg.connect(dsn, autocommit=True) as connection:
            mine = Queue(connection, queue.schema, f"worker {os.getpid()}")
            while True:
                is_last = done.is_set()
                runs = mine.claim()
                assert len(runs) <= 1
                for run in runs:
                    running = mine.execute("SELECT run_id FROM {}.queue WHERE status = 'running'")
                    assert running == [(run.run_id,)]
                    cancels = mine.tend(run).cancels
                    if cancels.get(run.key) == "rollback" or not mine.finish(
                        run, "interrupted" if cancels else "success"
                    ):
                        mine.roll_back(run)
                if is_last and not runs:
                    return

    workers = [FORK.Process(target=work) for _ in range(2)]
    for worker in workers:
        worker.start()
    try:
        assert run_children(call, [(number,) for number in range(children)]) == [""] * children
        done.set()
        for worker in workers:
            worker.join(GUARD_SECONDS)
        assert [worker.exitcode for worker in workers] == [0, 0]
    finally:
        for worker in workers:
            worker.kill()
    assert queue.rows() == []
    queue.check()
    if strategy == "enqueue":
        order = queue.execute("SELECT run_id FROM {}.runs WHERE status = 'success' ORDER BY ended_at")
        for number in range(children):
            assert [id for (id,) in order if id.startswith(f"{number}-")] == [
                f"{number}-{turn}" for turn in range(turns)
            ]


@pytest.mark.slow
def test_workers_in_two_processes_claim_each_run_once(dsn: str, queue: Queue) -> None:
    queue.enqueue(*[request(f"t{number % 40}") for number in range(200)])
    queue.execute("CREATE TABLE {}.claims (run_id text)")

    def work() -> None:
        with psycopg.connect(dsn, autocommit=True) as connection:
            mine = Queue(connection, queue.schema, f"worker {os.getpid()}")
            left = 1
            while left:
                for run in mine.claim(7):
                    mine.execute("INSERT INTO {}.claims VALUES (%s)", run.run_id)
                    assert mine.finish(run)
                ((left,),) = mine.execute("SELECT count(*) FROM {}.queue")

    assert run_children(work, [(), ()]) == ["", ""]
    assert queue.execute("SELECT count(*), count(DISTINCT run_id) FROM {}.claims") == [(200, 200)]
    assert queue.execute("SELECT count(*) FROM {}.runs WHERE status = 'success'") == [(200,)]
    queue.check()


@pytest.mark.slow
def test_everything_at_once_comes_to_rest(dsn: str, queue: Queue) -> None:
    """Enqueueing, claiming, giving back, failing, cancelling, dying, recovering and deleting, on four threads."""
    stop = threading.Event()
    errors: list[BaseException] = []

    def repeatedly(act: Callable[[Queue, int], Any]) -> threading.Thread:
        def loop() -> None:
            try:
                with psycopg.connect(dsn, autocommit=True) as connection:
                    mine = Queue(connection, queue.schema, f"worker {threading.get_ident()}")
                    number = 0
                    while not stop.is_set():
                        act(mine, number)
                        number += 1
            except BaseException as error:
                errors.append(error)

        thread = threading.Thread(target=loop)
        thread.start()
        return thread

    def enqueue(mine: Queue, number: int) -> None:
        strategy = ("enqueue", "enqueue", "interrupt", "rollback")[number % 4]
        mine.add(f"t{number % 5}", multitask_strategy=strategy, key=str(number % 3))

    def work(mine: Queue, number: int) -> None:
        for run in mine.claim(3):
            {
                0: lambda run=run: mine.finish(run),
                1: lambda run=run: mine.give_back(run),
                2: lambda run=run: mine.fail(run, 0.001),
                3: lambda run=run: mine.expire(run),
                4: lambda run=run: mine.roll_back(run),
            }[number % 5]()

    def sweep(mine: Queue, number: int) -> None:
        mine.recover()
        mine.make_due()

    def operate(mine: Queue, number: int) -> None:
        for thread_id, run_id, *_ in mine.rows()[:2]:
            with suppress(NotFoundError):
                mine.cancel(thread_id, run_id, ("cancel", "interrupt", "rollback")[number % 3])
        if number % 7 == 0:
            PGStateSaver(mine.connection, schema=mine.schema).delete_thread(f"t{number % 5}")

    threads = [repeatedly(act) for act in (enqueue, work, work, sweep, operate)]
    stop.wait(examples(16))
    stop.set()
    for thread in threads:
        thread.join(GUARD_SECONDS)
    assert errors == []
    queue.check()
    for _ in range(100):
        queue.execute("UPDATE {}.leases SET expires_at = now()")
        queue.recover()
        queue.wake()
        queue.make_due()
        for run in queue.claim(100):
            queue.finish(run, "cancelled" if run.cancel else "success")
        queue.check()
        if not queue.rows():
            break
    assert queue.rows() == []
