"""Enqueueing: what is written, order of a thread and of keys, idempotence, and the strategies of double-texting."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from support.queue import CODEC, Queue, request

from langgraph_pgstate import PGStateSaver
from langgraph_pgstate.errors import ConfigurationError, NotFoundError, ThreadBusyError, ThreadDeletedError
from langgraph_pgstate.runs.enqueue import _refusal, adopt
from langgraph_pgstate.runs.inputs import open_input
from langgraph_pgstate.runs.requests import RunRequest, request_run


@pytest.fixture
def queue(connection: psycopg.Connection, schema: str) -> Queue:
    return Queue(connection, schema)


@pytest.mark.parametrize("quotes", ['""', "»«", "«»"])
def test_a_refusal_is_known_in_each_language_of_the_server(quotes: str) -> None:
    found = _refusal(
        psycopg.errors.InvalidTextRepresentation(f'{quotes[0]}pgstate-queue:["busy", "t", "r", 1]{quotes[1]}')
    )
    assert isinstance(found, ThreadBusyError)


def test_a_run_is_in_the_queue_and_in_the_record(queue: Queue) -> None:
    run_id = queue.add("t", config={"configurable": {"user_id": "u"}}, metadata={"tenant_id": "a"})
    assert queue.rows() == [("t", run_id, "pending", True)]
    assert queue.run(run_id) == ("pending", 0, None)
    assert queue.thread("t") == "busy"
    assert queue.execute("SELECT agent, user_id, tenant_id, queue FROM {}.runs") == [("graph", "u", "a", "default")]
    assert queue.execute("SELECT agent, user_id, tenant_id FROM {}.threads") == [("graph", "u", "a")]
    queue.check()


def test_what_it_is_to_do_comes_back_as_it_was_given(queue: Queue) -> None:
    run_id = queue.add(
        "t", input={"messages": ["hi"]}, config={"tags": ["a"]}, context={"k": 1}, interrupt_before=["n"]
    )
    run = queue.claim_one()
    found = open_input(CODEC, run.data)
    assert (run.run_id, run.attempt, run.checkpoint_id) == (run_id, 1, None)
    assert (found.input, found.command, found.config, found.context) == (
        {"messages": ["hi"]},
        None,
        {"tags": ["a"]},
        {"k": 1},
    )
    assert (found.interrupt_before, found.on_completion, found.durability) == (["n"], "keep", None)


def test_a_run_is_enqueued_once_under_its_id(queue: Queue) -> None:
    one = request("t", run_id="r")
    assert [run.is_new for run in queue.enqueue(one)] == [True]
    assert [run.is_new for run in queue.enqueue(one)] == [False]
    assert [run.is_new for run in queue.enqueue(request("t", run_id="s"), one)] == [True, False]
    run = queue.claim_one()
    assert [run.is_new for run in queue.enqueue(one)] == [False]
    queue.finish(run)
    assert [run.is_new for run in queue.enqueue(one)] == [False]
    assert [row[1] for row in queue.rows()] == ["s"]
    queue.check()


def test_a_run_id_without_a_thread_names_the_same_thread_again(queue: Queue) -> None:
    (first,) = queue.enqueue(request(run_id="r"))
    assert queue.enqueue(request(run_id="r"))[0] == type(first)(first.thread_id, "r", False)


def test_an_id_of_another_thread_or_of_a_run_that_was_not_enqueued_is_refused(queue: Queue) -> None:
    queue.add("t", run_id="r")
    with pytest.raises(ConfigurationError, match="thread 't' already has a run"):
        queue.add("u", run_id="r")
    queue.execute("INSERT INTO {}.runs (thread_id, run_id, status, started_at) VALUES ('t', 'plain', 'error', now())")
    with pytest.raises(ConfigurationError, match="was not enqueued"):
        queue.add("t", run_id="plain")
    assert queue.execute("SELECT thread_id FROM {}.threads") == [("t",)]


def test_the_id_of_a_run_whose_checkpoints_a_fork_has_is_refused_on_the_fork(queue: Queue) -> None:
    """Guard: LangGraph takes a run with the id of the newest checkpoint's run for this run, and ignores its input."""
    saver = PGStateSaver(queue.connection, schema=queue.schema)
    queue.put("t", "r")
    saver.copy_thread("t", "copy")
    saver.delete_thread("t")
    with pytest.raises(ConfigurationError, match="thread 'copy' has checkpoints of a run 'r'"):
        queue.add("copy", run_id="r")
    assert queue.add("copy", run_id="another") == "another"


def test_a_crashed_run_of_an_application_is_adopted(queue: Queue) -> None:
    queue.execute(
        "INSERT INTO {}.runs (thread_id, run_id, status, started_at, alive_until, attempt)"
        " VALUES ('t', 'plain', 'running', now() - interval '1 hour', now() - interval '1 hour', 1)"
    )
    checkpoint_id = queue.put("t", "plain")
    one = request_run(CODEC, "graph", thread_id="t", run_id="plain", adopts=True)
    assert [run.is_new for run in queue.enqueue(one)] == [True]
    assert [run.is_new for run in queue.enqueue(one)] == [False]
    assert queue.run("plain") == ("pending", 0, None)
    assert queue.claim_one().checkpoint_id == checkpoint_id
    queue.check()


def test_crashed_runs_of_graphs_without_a_name_are_left_with_a_warning(
    queue: Queue, caplog: pytest.LogCaptureFixture
) -> None:
    for thread_id, graph in (("named", "graph"), ("nameless", None)):
        queue.put(thread_id, f"run of {thread_id}")
        queue.execute(
            "INSERT INTO {}.runs (thread_id, run_id, agent, status, started_at) VALUES (%s, %s, %s, 'running', now())",
            thread_id,
            f"run of {thread_id}",
            graph,
        )
    assert queue.do(adopt, CODEC, lambda holder_id: True, ["other"]) == []
    assert caplog.messages == []
    assert [run.thread_id for run in queue.do(adopt, CODEC, lambda holder_id: True)] == ["named"]
    assert "because their graphs have no name: 1" in caplog.messages[0]


def test_the_runs_of_a_thread_are_run_in_their_order(queue: Queue) -> None:
    ids = [queue.add("t") for _ in range(2)] + [run.run_id for run in queue.enqueue(*[request("t") for _ in range(3)])]
    assert [row[3] for row in queue.rows()] == [True, False, False, False, False]
    done = []
    while runs := queue.claim():
        assert len(runs) == 1
        queue.check()
        queue.finish(runs[0])
        done.append(runs[0].run_id)
    assert done == ids


def test_higher_priorities_are_claimed_first(queue: Queue) -> None:
    for priority in (0, 5, -5, 5):
        queue.add(f"t{priority}", priority=priority)
    queue.add("u", priority=5)
    assert [run.thread_id for run in queue.claim()] == ["t5", "u", "t0", "t-5"]


@pytest.mark.parametrize("at_once", [True, False])
def test_a_key_with_many_runs_delays_another_by_one_run(queue: Queue, at_once: bool) -> None:
    def enqueue(requests: Sequence[RunRequest]) -> None:
        for some in [requests] if at_once else [[one] for one in requests]:
            queue.enqueue(*some)

    enqueue([request(f"a{number}", key="a") for number in range(30)])
    queue.claim(7)
    queue.add("b", key="b")
    assert "b" in [run.thread_id for run in queue.claim(2)]
    enqueue([request(f"c{number}", key="c") for number in range(5)])
    # Another 21 of "a" are waiting.
    claimed = [run.thread_id[0] for run in queue.claim(10)]
    assert {*claimed[:2]} == {*claimed[2:4]} == {*claimed[4:6]} == {"a", "c"}
    assert claimed.count("c") == 5


def test_a_key_with_many_runs_of_one_thread_delays_nobody(queue: Queue) -> None:
    queue.enqueue(*[request("t", key="a") for _ in range(20)])
    queue.add("u", key="a")
    assert [run.thread_id for run in queue.claim()] == ["t", "u"]


def test_runs_without_keys_are_claimed_in_their_order_over_threads(queue: Queue) -> None:
    for number in range(5):
        queue.add(f"t{number}")
    assert [run.thread_id for run in queue.claim(2)] == ["t0", "t1"]
    queue.add("t5")
    assert [run.thread_id for run in queue.claim()] == ["t2", "t3", "t4", "t5"]


def test_a_run_for_later_waits_and_holds_up_nobody(queue: Queue) -> None:
    later = queue.add("t", run_after=timedelta(hours=1))
    past = queue.add("u", run_after=datetime.now(UTC) - timedelta(hours=1))
    assert [run.run_id for run in queue.claim()] == [past]
    now = queue.add("t")
    run = queue.claim_one()
    assert run.run_id == now
    assert queue.make_due() == 0
    queue.wake()
    assert queue.make_due() == 1
    # The thread is busy with the other.
    assert queue.claim() == []
    queue.check()
    queue.finish(run)
    assert queue.claim_one().run_id == later


def test_runs_that_are_due_at_once_keep_their_order(queue: Queue) -> None:
    second = queue.add("t", run_after=timedelta(hours=2))
    first = queue.add("t", run_after=timedelta(hours=1))
    queue.execute("UPDATE {}.queue SET run_after = run_after - interval '3 hours'")
    assert queue.make_due() == 2
    queue.check()
    assert [row[1] for row in queue.rows()] == [first, second]


def test_reject_refuses_a_busy_thread(queue: Queue) -> None:
    other = queue.add("t")
    for _ in range(2):
        with pytest.raises(ThreadBusyError) as raised:
            queue.add("t", multitask_strategy="reject")
        assert (raised.value.thread_id, raised.value.run_id) == ("t", other)
        run = queue.claim(1)
    assert queue.finish(run[0]) if run else True
    assert len(queue.rows()) <= 1
    queue.check()


def test_reject_does_not_count_runs_for_later_nor_the_run_itself(queue: Queue) -> None:
    queue.add("t", run_after=timedelta(hours=1))
    one = request("t", run_id="r", multitask_strategy="reject")
    assert [run.is_new for run in queue.enqueue(one)] == [True]
    assert [run.is_new for run in queue.enqueue(one)] == [False]


def test_reject_counts_a_run_that_was_not_enqueued(queue: Queue, saver: PGStateSaver) -> None:
    with queue.connection.transaction():
        queue.execute(
            "INSERT INTO {}.leases (thread_id, holder_id, fencing_token, expires_at)"
            " VALUES ('t', 'somebody', 1, now() + interval '1 minute')"
        )
    with pytest.raises(ThreadBusyError, match="not enqueued") as raised:
        queue.add("t", multitask_strategy="reject")
    assert raised.value.run_id is None
    assert queue.rows() == []


def test_nothing_of_a_refused_batch_is_enqueued(queue: Queue) -> None:
    queue.add("t")
    with pytest.raises(ThreadBusyError):
        queue.enqueue(request("u"), request("t", multitask_strategy="reject"))
    assert [row[0] for row in queue.rows()] == ["t"]
    assert queue.execute("SELECT thread_id FROM {}.threads") == [("t",)]


@pytest.mark.parametrize("strategy", ["reject", "interrupt", "rollback"])
def test_a_strategy_needs_a_thread_of_its_own_in_a_batch(queue: Queue, strategy: str) -> None:
    with pytest.raises(ConfigurationError, match="multitask_strategy must be 'enqueue'"):
        queue.enqueue(request("t"), request("t", multitask_strategy=strategy))
    assert queue.rows() == []


def test_interrupt_ends_pending_runs_and_asks_the_running_one_to_end(queue: Queue) -> None:
    running, pending, later = queue.add("t"), queue.add("t"), queue.add("t", run_after=timedelta(hours=1))
    run = queue.claim_one()
    last = queue.add("t", multitask_strategy="interrupt")
    assert queue.run(pending) == ("interrupted", 0, None)
    assert queue.tend(run).cancels == {run.key: "interrupt"}
    assert {row[1] for row in queue.rows()} == {running, later, last}
    assert queue.claim() == []
    queue.check()
    queue.finish(run, "interrupted")
    assert queue.claim_one().run_id == last
    assert pending in queue.requests()


def test_rollback_deletes_pending_runs_and_their_checkpoints(queue: Queue) -> None:
    before = queue.put("t", "other")
    queue.add("t", run_id="begun")
    run = queue.claim_one()
    queue.put("t", "begun")
    assert queue.fail(run, retry_after=60.0)
    queue.add("t", run_id="pending")
    last = queue.add("t", multitask_strategy="rollback")
    assert queue.rows() == [("t", last, "pending", True)]
    assert queue.execute("SELECT checkpoint_id FROM {}.checkpoints") == [(before,)]
    assert queue.execute("SELECT run_id FROM {}.runs") == [(last,)]
    assert queue.requests() == {last}
    queue.check()


def test_a_superseding_run_that_is_enqueued_again_supersedes_nothing(queue: Queue) -> None:
    one = request("t", run_id="r", multitask_strategy="rollback")
    queue.enqueue(one)
    later = queue.add("t")
    assert [run.is_new for run in queue.enqueue(one)] == [False]
    assert [row[1] for row in queue.rows()] == ["r", later]


def test_a_deleted_thread_takes_no_runs_until_it_is_revived(queue: Queue) -> None:
    saver = PGStateSaver(queue.connection, schema=queue.schema, guard="head")
    queue.put("t", "other")
    saver.delete_thread("t")
    for options in ({}, {"run_id": "r"}):
        with pytest.raises(ThreadDeletedError):
            queue.add("t", **options)
    assert queue.execute("SELECT 1 FROM {}.threads") == []


def test_a_run_is_enqueued_within_the_transaction_of_the_caller(queue: Queue) -> None:
    with queue.connection.transaction(force_rollback=True):
        queue.add("t")
    assert queue.rows() == []
    assert queue.execute("SELECT 1 FROM {}.threads") == queue.execute("SELECT 1 FROM {}.runs") == []


@pytest.mark.parametrize("strategy", ["enqueue", "rollback"])
def test_a_checkpoint_that_does_not_exist_is_refused_before_anything_is_written(queue: Queue, strategy: Any) -> None:
    known = queue.put("t", "other")
    waiting = queue.add("t", checkpoint_id=known)
    options = {"multitask_strategy": strategy, "checkpoint_id": known}
    for thread_id, checkpoint_id in (("t", "1f0"), ("u", known)):
        with pytest.raises(NotFoundError, match=rf"thread '{thread_id}' has no checkpoint '{checkpoint_id}'"):
            queue.add(thread_id, **{**options, "checkpoint_id": checkpoint_id})
    with pytest.raises(NotFoundError):
        queue.add("t", config={"configurable": {"checkpoint_id": known, "checkpoint_ns": "sub"}})
    assert [row[1] for row in queue.rows()] == [waiting]
    assert queue.execute("SELECT thread_id FROM {}.threads") == [("t",)]
    # A call that is repeated is answered as before, whatever became of the checkpoint.
    queue.execute("DELETE FROM {}.checkpoints")
    assert not queue.enqueue(request("t", run_id=waiting, checkpoint_id=known))[0].is_new
