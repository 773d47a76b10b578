"""Runs by both APIs: enqueueing, also in the caller's transaction, waiting, cancelling, retrying, answers."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from operator import add
from typing import Annotated, Any, TypedDict

import psycopg
import pytest
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.graph import StateGraph
from langgraph.types import Command, interrupt
from support import GUARD_SECONDS, holding, loop_graph, wait_until
from support.queue import CODEC, STATES, Queue, call, open_state

from langgraph_pgstate import DefaultAnswer, PGState
from langgraph_pgstate.errors import (
    AlreadyAnsweredError,
    ConfigurationError,
    NotFoundError,
    PGStateError,
    RunCancelledError,
    RunFailedError,
    RunTimeoutError,
    ThreadBusyError,
)
from langgraph_pgstate.interrupts import answers
from langgraph_pgstate.interrupts.types import Answer
from langgraph_pgstate.runs.inputs import open_input


@pytest.fixture
def queue(connection: psycopg.Connection, schema: str) -> Queue:
    return Queue(connection, schema)


def run_here(queue: Queue, graph: Any, status: str = "success") -> None:
    """Run the next run as a worker does, without any of its care."""
    run = queue.claim_one()
    request = open_input(CODEC, run.data)
    config = {"configurable": {"thread_id": run.thread_id, "run_id": run.run_id}, "metadata": {"run_id": run.run_id}}
    graph.invoke(request.command or request.input, config)
    queue.finish(run, status)


@pytest.mark.parametrize("api", STATES)
async def test_a_caller_waits_for_the_state_that_the_run_leaves(api: type, dsn: str, schema: str, queue: Queue) -> None:
    async with open_state(api, dsn, schema) as state:
        handle = await call(state.runs.enqueue, "graph", {"items": [], "count": 0}, thread_id="t")
        assert (handle.thread_id, handle.is_new, await call(handle.status)) == ("t", True, "pending")
        with pytest.raises(RunTimeoutError, match="still pending"):
            await call(handle.wait, 0.05)
        graph = loop_graph(2).compile(checkpointer=PGState(queue.connection, schema=schema).saver)
        worker = threading.Thread(target=run_here, args=(queue, graph))
        worker.start()
        assert await call(handle.wait, 30) == {"items": ["item 0", "item 1"], "count": 2}
        worker.join()
        assert await call(state.runs.handle("t", handle.run_id).status) == "success"
        # The thread goes on, and the end of this run stays as it was.
        again = await call(state.runs.enqueue, "graph", {"items": [], "count": 0}, thread_id="t")
        run_here(queue, graph)
        assert len((await call(again.wait))["items"]) == 4
        assert len((await call(handle.wait))["items"]) == 2
        # A run with nothing to do leaves the state that it found, as `graph.invoke` returns it.
        idle = await call(state.runs.enqueue, "graph", thread_id="t")
        run_here(queue, graph)
        await call(state.runs.enqueue, "graph", {"items": [], "count": 0}, thread_id="t")
        run_here(queue, graph)
        assert len((await call(idle.wait))["items"]) == 4


@pytest.mark.parametrize("api", STATES)
async def test_other_ends_are_raised(api: type, dsn: str, schema: str, queue: Queue) -> None:
    async with open_state(api, dsn, schema) as state:
        handles = [await call(state.runs.enqueue, "graph", {}, thread_id=f"t{number}") for number in range(4)]
        runs = {run.thread_id: run for run in queue.claim()}
        queue.fail(runs["t0"])
        queue.finish(runs["t1"], "timeout")
        queue.finish(runs["t2"], "interrupted")
        assert await call(handles[3].cancel) == "running"
        queue.roll_back(runs["t3"])
        with pytest.raises(RunFailedError, match="ValueError: no") as raised:
            await call(handles[0].wait)
        assert (raised.value.status, raised.value.error_type) == ("error", "ValueError")
        with pytest.raises(RunFailedError, match="'timeout'"):
            await call(handles[1].wait)
        assert await call(handles[2].wait) == {}
        with pytest.raises(RunCancelledError):
            await call(handles[3].wait)
        with pytest.raises(NotFoundError):
            await call(handles[3].status)
        cancelled = await call(state.runs.enqueue, "graph", {})
        assert await call(cancelled.cancel) == "cancelled"
        with pytest.raises(RunCancelledError):
            await call(cancelled.wait)


@pytest.mark.parametrize("api", STATES)
@pytest.mark.parametrize("autocommit", [True, False])
async def test_a_run_is_enqueued_in_the_callers_transaction(
    api: type, autocommit: bool, dsn: str, schema: str, queue: Queue
) -> None:
    kind: Any = psycopg.Connection if api is PGState else psycopg.AsyncConnection
    async with open_state(api, dsn, schema) as state:
        connection = await call(kind.connect, dsn, autocommit=autocommit)
        for number, end in enumerate(("rollback", "commit")):
            if autocommit:
                await call(connection.execute, "BEGIN")
            await call(state.runs.enqueue, "graph", {}, thread_id=f"t{number}", connection=connection)
            await call(state.runs.enqueue_batch, [{"graph": "graph", "input": {}}], connection=connection)
            assert queue.rows() == []
            # The caller's own statements are planned as before.
            found = await call(connection.execute, "SHOW enable_seqscan")
            assert await call(found.fetchone) == ("on",)
            await call(getattr(connection, end))
            assert len(queue.rows()) == 2 * number
        if autocommit:
            await call(state.runs.enqueue, "graph", {}, connection=connection)
            assert len(queue.rows()) == 3
        await call(connection.close)
        queue.check()


@pytest.mark.parametrize("api", STATES)
async def test_a_refusal_leaves_the_callers_transaction_usable(api: type, dsn: str, schema: str, queue: Queue) -> None:
    kind: Any = psycopg.Connection if api is PGState else psycopg.AsyncConnection
    queue.add("t")
    async with open_state(api, dsn, schema) as state:
        connection = await call(kind.connect, dsn)
        with pytest.raises(ThreadBusyError):
            await call(
                state.runs.enqueue, "graph", {}, thread_id="t", multitask_strategy="reject", connection=connection
            )
        await call(state.runs.enqueue, "graph", {}, thread_id="u", connection=connection)
        await call(connection.commit)
        await call(connection.close)
    assert [row[0] for row in queue.rows()] == ["t", "u"]


@pytest.mark.parametrize("api", STATES)
async def test_a_batch_is_enqueued_at_once(api: type, dsn: str, schema: str, queue: Queue) -> None:
    async with open_state(api, dsn, schema) as state:
        assert await call(state.runs.enqueue_batch, []) == []
        runs = [{"graph": "graph", "input": number, "thread_id": "t", "run_id": f"r{number}"} for number in range(3)]
        handles = await call(state.runs.enqueue_batch, runs)
        assert [(handle.run_id, handle.is_new) for handle in handles] == [(f"r{number}", True) for number in range(3)]
        assert [row[1] for row in queue.rows()] == ["r0", "r1", "r2"]
        with pytest.raises(ConfigurationError, match="must name its graph"):
            await call(state.runs.enqueue_batch, [{"input": 1}])
    queue.check()


@pytest.mark.parametrize("api", STATES)
async def test_a_state_that_knows_its_graphs_refuses_others(api: type, dsn: str, schema: str, queue: Queue) -> None:
    async with open_state(api, dsn, schema, graphs=["graph"]) as state:
        with pytest.raises(ConfigurationError, match="no graph 'other'"):
            await call(state.runs.enqueue, "other", {})
        await call(state.runs.enqueue, "graph", {})
    assert len(queue.rows()) == 1


def ask(state: dict[str, Any]) -> dict[str, Any]:
    return {"items": [interrupt("go on?")], "count": 9}


@pytest.mark.parametrize("api", STATES)
async def test_an_answer_enqueues_the_resumption(api: type, dsn: str, schema: str, queue: Queue) -> None:
    graph = asking(queue)
    async with open_state(api, dsn, schema) as state:
        handle = await call(
            state.runs.enqueue, "graph", {"items": [], "count": 0}, thread_id="t", context={"a": 1}, priority=4
        )
        run_here(queue, graph, "interrupted")
        values = await call(handle.wait)
        assert [one.value for one in values.pop("__interrupt__")] == ["go on?"]
        assert values == {"items": [], "count": 0}
        assert isinstance(await call(state.interrupts.answer, "t", "yes", by="me"), Command)
        ((_, run_id, status, is_ready),) = queue.rows()
        assert (run_id == handle.run_id, status, is_ready) == (False, "pending", True)
        assert queue.execute("SELECT priority, queue FROM {}.queue") == [(4, "default")]
        run = queue.claim_one()
        assert open_input(CODEC, run.data).context == {"a": 1}
        queue.give_back(run)
        run_here(queue, graph)
        assert await call(state.runs.wait, "t", run_id) == {"items": ["yes"], "count": 9}
    assert queue.requests() == set()
    queue.check()


@pytest.mark.parametrize("api", STATES)
async def test_an_answer_is_not_for_the_next_interrupt_of_the_task(
    api: type, dsn: str, schema: str, queue: Queue
) -> None:
    """Guard: the run that a client has enqueued with an answer, after which the same task asks something else."""
    graph = asking(queue, ask_twice)
    async with open_state(api, dsn, schema) as state:
        await call(state.runs.enqueue, "graph", {"items": [], "count": 0}, thread_id="t", default_answer=DENY)
        run_here(queue, graph, "interrupted")
        (asked,) = (await call(state.interrupts.threads)).items
        (first,) = asked.interrupts
        other = await call(state.runs.enqueue, "graph", command=Command(resume="yes"), thread_id="t")
        let_pass(queue, timedelta(days=3))
        assert answer_by_default(queue) == []
        # The next sweep has time for other threads.
        assert queue.do(answers.find_due_defaults, ["graph"]) == []
        with pytest.raises(ThreadBusyError, match=other.run_id):
            await call(state.interrupts.answer, "t", "no", by="eve", interrupt_id=first.interrupt_id)
        assert await call(state.interrupts.answers, "t") == ()
        await call(state.runs.enqueue, "graph", thread_id="t", run_after=timedelta(hours=1))
        run_here(queue, graph, "interrupted")
        # The interrupt was read before the other run asked again.
        late = answers.request_answer(CODEC, "no", "eve", first.interrupt_id)
        assert queue.do(answers._put_answer, CODEC, ("t", asked.checkpoint_id), first, late) is False
        (second,) = await call(state.interrupts.list, "t")
        assert second.value == "really?"
        resuming = await call(state.interrupts.answer_run, "t", "no", interrupt_id=second.interrupt_id)
        run_here(queue, graph)
        assert (await call(resuming.wait))["items"] == ["yes", "no"]
    queue.check()


@pytest.mark.parametrize("api", STATES)
async def test_an_answer_to_a_run_that_was_not_enqueued_enqueues_nothing(
    api: type, dsn: str, schema: str, queue: Queue
) -> None:
    asking(queue).invoke({"items": [], "count": 0}, {"configurable": {"thread_id": "t"}})
    async with open_state(api, dsn, schema) as state:
        await call(state.interrupts.answer, "t", "yes")
    assert queue.rows() == []


@pytest.mark.parametrize("api", STATES)
async def test_an_answer_returns_the_run_that_resumes(api: type, dsn: str, schema: str, queue: Queue) -> None:
    graph = asking(queue)
    async with open_state(api, dsn, schema) as state:
        handle = await call(state.runs.enqueue, "graph", {"items": [], "count": 0}, thread_id="t")
        run_here(queue, graph, "interrupted")
        resuming = await call(state.interrupts.answer_run, "t", "yes", by="me")
        assert [row[1] for row in queue.rows()] == [resuming.run_id] != [handle.run_id]
        (given,) = await call(state.interrupts.answers, "t")
        assert (given.run_id, given.answered_by, given.is_default) == (resuming.run_id, "me", False)
        with pytest.raises(AlreadyAnsweredError, match="by me"):
            await call(state.interrupts.answer_run, "t", "no")
        run_here(queue, graph)
        assert await call(resuming.wait) == {"items": ["yes"], "count": 9}
        graph.invoke({"items": [], "count": 0}, {"configurable": {"thread_id": "plain"}})
        with pytest.raises(ConfigurationError, match="was not enqueued"):
            await call(state.interrupts.answer_run, "plain", "yes")
        assert await call(state.interrupts.answers, "plain") == ()


def answer_by_default(queue: Queue, thread_id: str = "t") -> list[Answer]:
    """Give the default answers that are due, as a worker does."""
    found: list[Answer] = []
    for key in queue.do(answers.find_due_defaults, ["graph"]):
        assert key[0] == thread_id
        try:
            found += queue.do(answers.answer_by_default, CODEC, *key)
        except PGStateError:
            queue.do(answers.postpone_default, *key)
            raise
    return found


def let_pass(queue: Queue, time: timedelta) -> None:
    """Let time pass for interrupts and their default answers."""
    queue.execute("UPDATE {}.run_requests SET answer_at = answer_at - %s", time)
    queue.execute("UPDATE {}.writes SET created_at = created_at - %s", time)


DENY = DefaultAnswer("deny", after=timedelta(days=3))


@pytest.mark.parametrize("api", STATES)
async def test_an_interrupt_without_an_answer_in_time_gets_the_default(
    api: type, dsn: str, schema: str, queue: Queue
) -> None:
    graph = asking(queue)
    async with open_state(api, dsn, schema) as state:
        await call(state.runs.enqueue, "graph", {"items": [], "count": 0}, thread_id="t", default_answer=DENY)
        run_here(queue, graph, "interrupted")
        let_pass(queue, timedelta(days=2))
        assert answer_by_default(queue) == []
        let_pass(queue, timedelta(days=1))
        assert queue.do(answers.find_due_defaults, ["other"]) == []
        (given,) = answer_by_default(queue)
        assert (given.value, given.answered_by, given.is_default) == ("deny", None, True)
        assert answer_by_default(queue) == []
        assert [row[1] for row in queue.rows()] == [given.run_id]
        (event,) = (await call(state.events.list, "t", kind="answer")).items
        assert event.payload == {"interrupt_id": given.interrupt_id, "by": None, "is_default": True}
        (stored,) = await call(state.interrupts.answers, "t")
        assert (stored.is_default, stored.run_id) == (True, given.run_id)
        with pytest.raises(AlreadyAnsweredError, match="by default") as raised:
            await call(state.interrupts.answer, "t", "yes", by="eve")
        assert raised.value.is_default
        run_here(queue, graph)
        assert await call(state.runs.wait, "t", given.run_id) == {"items": ["deny"], "count": 9}
    queue.check()


def test_an_answer_in_time_wins(queue: Queue) -> None:
    state, graph = PGState(queue.connection, schema=queue.schema), asking(queue)
    state.runs.enqueue("graph", {"items": [], "count": 0}, thread_id="t", default_answer=DENY)
    run_here(queue, graph, "interrupted")
    run = state.interrupts.answer_run("t", "yes", by="eve")
    let_pass(queue, timedelta(days=4))
    assert answer_by_default(queue) == []
    assert queue.execute("SELECT 1 FROM {}.run_requests WHERE answer_at IS NOT NULL") == []
    run_here(queue, graph)
    assert run.wait()["items"] == ["yes"]


@pytest.mark.slow
def test_of_a_default_and_an_answer_at_the_same_time_one_is_given(dsn: str, queue: Queue) -> None:
    """In both orders, and without one waiting for the other for ever."""
    state, graph = PGState(queue.connection, schema=queue.schema), asking(queue)
    winners = []
    for number in range(12):
        thread_id = f"t{number}"
        state.runs.enqueue("graph", {"items": [], "count": 0}, thread_id=thread_id, default_answer=DENY)
        run_here(queue, graph, "interrupted")
        let_pass(queue, timedelta(days=3))
        barrier = threading.Barrier(3)

        def answer(thread_id: str = thread_id, barrier: threading.Barrier = barrier) -> str:
            with PGState.open(dsn, schema=queue.schema) as other:
                other.interrupts.list(thread_id)
                barrier.wait(GUARD_SECONDS)
                try:
                    other.interrupts.answer(thread_id, "yes", by="eve")
                except AlreadyAnsweredError as error:
                    return "refused" if error.is_default else "?"
                return "eve"

        def default(thread_id: str = thread_id, barrier: threading.Barrier = barrier) -> str:
            with psycopg.connect(dsn, autocommit=True) as connection:
                mine = Queue(connection, queue.schema)
                mine.execute("SELECT 1")
                barrier.wait(GUARD_SECONDS)
                return "default" if answer_by_default(mine, thread_id) else "none"

        with ThreadPoolExecutor(3) as executor:
            found = {one.result(60) for one in [executor.submit(work) for work in (answer, default, default)]}
        assert found in ({"eve", "none"}, {"refused", "default", "none"})
        winners.append(found)
        assert len(queue.rows()) == 1
        assert len(state.events.list(thread_id, kind="answer").items) == 1
        run_here(queue, graph)
    assert answer_by_default(queue) == []
    queue.check()


def test_a_default_answer_waits_for_a_locked_thread(dsn: str, queue: Queue) -> None:
    state, graph = PGState(queue.connection, schema=queue.schema), asking(queue)
    state.runs.enqueue("graph", {"items": [], "count": 0}, thread_id="t", default_answer=DENY)
    run_here(queue, graph, "interrupted")
    let_pass(queue, timedelta(days=3))
    with holding(dsn, f"SELECT 1 FROM {queue.schema}.threads FOR UPDATE"):
        assert answer_by_default(queue) == []
    assert len(answer_by_default(queue)) == 1


def test_a_default_answer_is_not_for_the_interrupt_of_another_run(queue: Queue) -> None:
    """The thread has gone on with a new input, whose run has none."""
    state, graph = PGState(queue.connection, schema=queue.schema), asking(queue)
    state.runs.enqueue("graph", {"items": [], "count": 0}, thread_id="t", default_answer=DENY)
    run_here(queue, graph, "interrupted")
    state.runs.enqueue("graph", {"items": [], "count": 0}, thread_id="t")
    run_here(queue, graph, "interrupted")
    let_pass(queue, timedelta(days=9))
    assert answer_by_default(queue) == []
    assert len(state.interrupts.list("t")) == 1


def test_a_run_that_is_cancelled_when_it_is_retried_gets_no_default_answer(queue: Queue) -> None:
    """One that is interrupted again gets it."""
    state, graph = PGState(queue.connection, schema=queue.schema), asking(queue)
    run = state.runs.enqueue("graph", {"items": [], "count": 0}, thread_id="t", default_answer=DENY)
    run_here(queue, graph, "interrupted")
    let_pass(queue, timedelta(days=3))
    assert run.status() == "interrupted"
    assert state.runs.retry("t", run.run_id)
    assert answer_by_default(queue) == []
    claimed = queue.claim_one()
    queue.finish(claimed, "interrupted")
    assert state.runs.retry("t", run.run_id)
    assert run.cancel() == "cancelled"
    assert answer_by_default(queue) == []
    assert queue.execute("SELECT 1 FROM {}.run_requests WHERE answer_at IS NOT NULL") == []
    assert state.runs.retry("t", run.run_id)
    queue.finish(queue.claim_one(), "interrupted")
    assert len(answer_by_default(queue)) == 1
    queue.check()


def test_each_of_several_interrupts_waits_as_long(queue: Queue) -> None:
    """One is answered in time; the run that resumes raises the other again, which began to wait before."""
    state = PGState(queue.connection, schema=queue.schema)
    graph = asking_twice(queue)
    state.runs.enqueue("graph", {"items": [], "count": 0}, thread_id="t", default_answer=DENY)
    run_here(queue, graph, "interrupted")
    first, second = state.interrupts.list("t")
    let_pass(queue, timedelta(days=2))
    state.interrupts.answer_run("t", "yes", interrupt_id=first.interrupt_id)
    run_here(queue, graph, "interrupted")
    assert answer_by_default(queue) == []
    let_pass(queue, timedelta(days=1))
    (given,) = answer_by_default(queue)
    assert given.interrupt_id == second.interrupt_id
    run_here(queue, graph)
    assert sorted(state.runs.wait("t", given.run_id or "")["items"]) == ["deny", "yes"]


def test_an_interrupt_that_came_later_waits_longer(queue: Queue) -> None:
    state = PGState(queue.connection, schema=queue.schema)
    graph = asking_twice(queue, again=True)
    state.runs.enqueue("graph", {"items": [], "count": 0}, thread_id="t", default_answer=DENY)
    run_here(queue, graph, "interrupted")
    (first,) = (one for one in state.interrupts.list("t") if one.value == "one")
    let_pass(queue, timedelta(days=2))
    state.interrupts.answer_run("t", "yes", interrupt_id=first.interrupt_id)
    run_here(queue, graph, "interrupted")
    assert {one.value for one in state.interrupts.list("t")} == {"two", "one again"}
    let_pass(queue, timedelta(days=1))
    assert len(answer_by_default(queue)) == 1
    run_here(queue, graph, "interrupted")
    assert [one.value for one in state.interrupts.list("t")] == ["one again"]
    let_pass(queue, timedelta(days=1))
    assert answer_by_default(queue) == []
    let_pass(queue, timedelta(days=1))
    (given,) = answer_by_default(queue)
    run_here(queue, graph)
    assert sorted(state.runs.wait("t", given.run_id or "")["items"]) == ["deny", "yes, deny"]


def test_an_answer_locks_the_thread_first_as_a_default_does(dsn: str, queue: Queue) -> None:
    """In the other order the two could wait for each other."""
    state, graph = PGState(queue.connection, schema=queue.schema), asking(queue)
    state.runs.enqueue("graph", {"items": [], "count": 0}, thread_id="t", default_answer=DENY)
    run_here(queue, graph, "interrupted")
    waits = "SELECT pid FROM pg_stat_activity WHERE application_name = 'answer' AND wait_event_type = 'Lock'"
    locks = "SELECT 1 FROM pg_locks WHERE relation = '{}.answers'::regclass AND mode = 'RowExclusiveLock'"
    with (
        ThreadPoolExecutor(1) as executor,
        PGState.open(f"{dsn}&application_name=answer", schema=queue.schema) as other,
    ):
        with holding(dsn, f"SELECT 1 FROM {queue.schema}.threads FOR UPDATE"):
            given = executor.submit(other.interrupts.answer_run, "t", "yes")
            wait_until(lambda: bool(queue.execute(waits)), "the answer waits")
            assert queue.execute(locks) == []
        assert given.result(30).status() == "pending"


def test_a_default_answer_that_cannot_be_read_is_tried_again_later(queue: Queue) -> None:
    state, graph = PGState(queue.connection, schema=queue.schema), asking(queue)
    state.runs.enqueue("graph", {"items": [], "count": 0}, thread_id="t", default_answer=DENY)
    run_here(queue, graph, "interrupted")
    let_pass(queue, timedelta(days=3))
    ((data,),) = queue.execute("SELECT data FROM {}.run_requests")
    queue.execute("UPDATE {}.run_requests SET data = 'damaged'")
    with pytest.raises(PGStateError):
        answer_by_default(queue)
    queue.execute("UPDATE {}.run_requests SET data = %s", data)
    assert answer_by_default(queue) == []
    let_pass(queue, timedelta(hours=1))
    assert len(answer_by_default(queue)) == 1


def test_a_refused_run_leaves_an_interrupt_as_it_is(queue: Queue) -> None:
    """Another run of the thread waits behind it; only that one, when it runs, goes on from the interrupt."""
    state, graph = PGState(queue.connection, schema=queue.schema), asking(queue)
    state.runs.enqueue("graph", {"items": [], "count": 0}, thread_id="t")
    run_here(queue, graph, "interrupted")
    before = state.interrupts.list("t")
    assert len(before) == 1
    resuming = state.interrupts.answer_run("t", "yes")
    with pytest.raises(ThreadBusyError):
        state.runs.enqueue("graph", {"items": [], "count": 0}, thread_id="t", multitask_strategy="reject")
    (given,) = state.interrupts.answers("t")
    assert given.run_id == resuming.run_id
    run_here(queue, graph)
    assert resuming.wait()["items"] == ["yes"]
    queue.check()


@pytest.mark.parametrize("strategy", ["cancel", "interrupt", "rollback"])
def test_a_run_that_ends_before_it_begins_leaves_an_interrupt_as_it_is(strategy: str, queue: Queue) -> None:
    state, graph = PGState(queue.connection, schema=queue.schema), asking(queue)
    state.runs.enqueue("graph", {"items": [], "count": 0}, thread_id="t")
    run_here(queue, graph, "interrupted")
    state.runs.enqueue("graph", {"items": [], "count": 0}, thread_id="t").cancel(strategy)
    assert queue.thread("t") == "interrupted"
    assert len(state.interrupts.list("t")) == 1


def asking_twice(queue: Queue, again: bool = False) -> Any:
    """A graph of which two tasks ask at once, one of them twice if told so."""

    def one(state: Any) -> dict[str, Any]:
        first = interrupt("one")
        return {"items": [f"{first}, {interrupt('one again')}" if again else first]}

    builder = StateGraph(Collected).add_node(one).add_node("two", lambda state: {"items": [interrupt("two")]})
    for name in ("one", "two"):
        builder.add_edge("__start__", name)
    return builder.compile(checkpointer=PGState(queue.connection, schema=queue.schema).saver)


class Collected(TypedDict, total=False):
    items: Annotated[list[str], add]
    count: int


def ask_twice(state: dict[str, Any]) -> dict[str, Any]:
    return {"items": [interrupt("go on?"), interrupt("really?")], "count": 9}


@pytest.mark.parametrize("api", STATES)
async def test_a_run_that_asks_again_in_the_same_superstep_leaves_its_interrupt(
    api: type, dsn: str, schema: str, queue: Queue
) -> None:
    """It makes no checkpoint of its own."""
    graph = asking(queue, ask_twice)
    async with open_state(api, dsn, schema) as state:
        for command in (None, Command(resume="yes")):
            input = {"items": [], "count": 0} if command is None else None
            handle = await call(state.runs.enqueue, "graph", input, command=command, thread_id="t")
            run_here(queue, graph, "interrupted")
        values = await call(handle.wait)
        assert [one.value for one in values.pop("__interrupt__")] == ["really?"]
        assert values == {"items": [], "count": 0}


@pytest.mark.parametrize("api", STATES)
async def test_what_a_run_was_enqueued_with_stays_when_it_has_ended(
    api: type, dsn: str, schema: str, queue: Queue
) -> None:
    async with open_state(api, dsn, schema) as state:
        given: Any = {"multitask_strategy": "interrupt", "metadata": {"a": [1], "b": None}}
        handle = await call(state.runs.enqueue, "graph", {}, thread_id="t", **given)
        other = await call(state.runs.enqueue, "graph", {}, thread_id="t")
        queue.finish(queue.claim_one())
        found = await call(state.runs.get, "t", handle.run_id)
        assert {name: getattr(found, name) for name in given} == given
        assert found.enqueued_at is not None
        plain = await call(state.runs.get, "t", other.run_id)
        assert (plain.multitask_strategy, plain.metadata) == ("enqueue", None)
        page = await call(state.runs.list, thread_id="t", offset=1)
        assert [run.run_id for run in page.items] == [handle.run_id]


@pytest.mark.parametrize("api", STATES)
async def test_metadata_that_a_serializer_may_encrypt_stay_out_of_the_record(api: type, dsn: str, schema: str) -> None:
    class Own(JsonPlusSerializer):
        """A serializer of the caller's own."""

    async with open_state(api, dsn, schema, serde=Own()) as state:
        handle = await call(state.runs.enqueue, "graph", {}, metadata={"secret": 1})
        assert (await call(state.runs.get, handle.thread_id, handle.run_id)).metadata is None


def asking(queue: Queue, ask: Callable[[dict[str, Any]], dict[str, Any]] = ask) -> Any:
    """A graph that asks."""
    builder = loop_graph(1)
    builder.nodes.clear()
    builder.edges.clear()
    builder.branches.clear()
    builder.add_node("ask", ask)  # type: ignore[call-overload]
    builder.add_edge("__start__", "ask")
    return builder.compile(checkpointer=PGState(queue.connection, schema=queue.schema).saver)
