"""Events of runs that workers execute: what a graph streams, whatever dies while it does."""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypedDict

import psycopg
import pytest
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage
from langgraph.config import get_stream_writer
from langgraph.graph import END, START, StateGraph
from langgraph.types import Interrupt, interrupt
from support import GUARD_SECONDS, Restartable, config_of, wait_until
from support.queue import CODEC, Queue
from support.worker import WORKERS, Place, kill, wait_for_ends, worker

from langgraph_pgstate import AsyncWorker, Backoff, PGState, Worker
from langgraph_pgstate.errors import ConfigurationError
from langgraph_pgstate.runs import streams
from langgraph_pgstate.runs.inputs import RunInput
from langgraph_pgstate.runs.types import StreamEvent
from langgraph_pgstate.worker import streaming
from langgraph_pgstate.worker.control import Control
from langgraph_pgstate.worker.streaming import RunStream, StreamWriter
from tests.worker.test_worker import graph_of, working

STEPS, TOKENS = 6, 3


@pytest.fixture
def state(dsn: str, schema: str) -> Iterator[PGState]:
    """A state to enqueue with and to follow what workers do."""
    with PGState.open(dsn, schema=schema) as state:
        yield state


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """Where the processes of a test meet."""
    return Place(tmp_path)


class Count(TypedDict):
    count: int


def counting(hook: Any = lambda count, token: None) -> Any:
    """A graph that streams tokens in each superstep."""

    def step(state: Count) -> Count:
        for token in range(TOKENS):
            get_stream_writer()([state["count"], token])
            hook(state["count"], token)
        return {"count": state["count"] + 1}

    builder = StateGraph(Count)
    builder.add_node("step", step)
    builder.add_edge(START, "step")
    builder.add_conditional_edges("step", lambda state: "step" if state["count"] < STEPS else END)
    return builder.compile()


MODES = ["custom", "updates"]
WHOLE = [
    event
    for count in range(STEPS)
    for event in [*(("custom", [count, token]) for token in range(TOKENS)), ("updates", {"step": {"count": count + 1}})]
]


def of_graph(events: list[StreamEvent]) -> list[tuple[str, Any]]:
    """What a graph has streamed, in the modes of the tests above."""
    # LangGraph marks the update of a task that it does not run again.
    for event in events:
        if event.event == "updates":
            event.data.pop("__metadata__", None)
    return [(event.event, event.data) for event in events if event.event in MODES]


def check_whole(events: list[StreamEvent]) -> None:
    """Assert that events are those of an uninterrupted run, but for those that are marked as replayed."""
    assert [event.id for event in events[:-1]] == [str(number) for number in range(1, len(events))]
    assert (events[-1].event, events[-1].data) == ("end", {"status": "success"})
    found = of_graph([event for event in events if not event.is_replayed])
    assert [one for one in WHOLE if one in found] == found
    # Only a superstep that was interrupted is streamed again, as a whole.
    everything = of_graph(events)
    assert [one for one in WHOLE if one in everything] == WHOLE
    of_supersteps = [event for event in events if event.event in MODES]
    for begin in range(0, len(WHOLE), TOKENS + 1):
        superstep = WHOLE[begin : begin + TOKENS + 1]
        first = next(event for event in of_supersteps if of_graph([event])[0] in superstep)
        assert not first.is_replayed


async def joined(run: Any, **options: Any) -> list[StreamEvent]:
    """All events of a run."""
    return await asyncio.wait_for(asyncio.to_thread(lambda: [*run.join(**options)]), 30)


@pytest.mark.parametrize("kind", WORKERS)
async def test_events_are_those_that_the_graph_streams(kind: type, dsn: str, schema: str, state: PGState) -> None:
    class Conversation(TypedDict):
        messages: list[Any]

    def answer(state: Conversation) -> Conversation:
        model = GenericFakeChatModel(messages=iter([AIMessage("one two three", id="m")]))
        return {"messages": [model.invoke(state["messages"])]}

    inner = StateGraph(Conversation)
    inner.add_node("answer", answer)
    inner.add_edge(START, "answer")
    outer = StateGraph(Conversation)
    outer.add_node("begin", lambda state: get_stream_writer()({"progress": 0.5}))
    outer.add_node("agent", inner.compile())
    outer.add_edge(START, "begin")
    outer.add_edge("begin", "agent")
    graph = outer.compile()
    modes: Any = ["values", "updates", "custom", "messages", "tasks", "checkpoints", "debug"]
    async with working(kind, dsn, schema, {"agent": graph}):
        for subgraphs in (False, True):
            expected = [
                (chunk if subgraphs else ((), *chunk))
                for chunk in graph.stream({"messages": []}, stream_mode=modes, subgraphs=subgraphs)
            ]
            run = state.runs.enqueue("agent", {"messages": []}, stream_mode=modes, stream_subgraphs=subgraphs)
            start, *events, end = await joined(run)
            assert (start.event, start.data) == ("metadata", {"run_id": run.run_id, "attempt": 1})
            assert (end.event, end.data) == ("end", {"status": "success"})

            def plain(found: list[Any]) -> list[Any]:
                """Without namespaces' ids, in the modes whose events do not tell the thread."""
                return [
                    (
                        tuple(part.split(":")[0] for part in namespace),
                        mode,
                        (data[0], data[1]["langgraph_node"]) if mode == "messages" else data,
                    )
                    for namespace, mode, data in found
                    if mode in ("values", "updates", "custom", "messages")
                ]

            found = [(event.namespace, event.event, event.data) for event in events]
            assert plain(found) == plain(expected)
            assert {mode for _, mode, _ in found} == set(modes)
            chunks = [event.data for event in events if event.event == "messages"]
            assert "".join(chunk.content for chunk, _ in chunks) == "one two three"
            assert {event.attempt for event in events} == {1}
            assert not any(event.is_replayed for event in events)


@pytest.mark.parametrize("kind", WORKERS)
async def test_the_mode_events_has_what_the_graph_does(kind: type, dsn: str, schema: str, state: PGState) -> None:
    class Words(TypedDict):
        words: str

    def answer(state: Words) -> Words:
        model = GenericFakeChatModel(messages=iter([AIMessage("one two", id="m")]))
        return {"words": str(model.invoke(state["words"]).content)}

    graph = StateGraph(Words).add_node(answer).add_edge(START, "answer").compile()
    async with working(kind, dsn, schema, {"agent": graph}):
        run = state.runs.enqueue("agent", {"words": "Hello."}, stream_mode=["events", "updates"])
        start, *events, end = await joined(run)
    assert [(event.data["event"], event.data["name"]) for event in events if event.event == "events"] == [
        ("on_chain_start", "agent"),
        ("on_chain_start", "answer"),
        ("on_chat_model_start", "GenericFakeChatModel"),
        *[("on_chat_model_stream", "GenericFakeChatModel")] * 3,
        ("on_chat_model_end", "GenericFakeChatModel"),
        # A blocking worker's nodes are not streamed.
        *([("on_chain_stream", "answer")] if kind is AsyncWorker else []),
        ("on_chain_end", "answer"),
        ("on_chain_end", "agent"),
    ]
    # Its end comes before its superstep's.
    assert [event.event for event in events[-3:]] == ["events", "updates", "events"]
    assert (start.event, end.data) == ("metadata", {"status": "success"})


@pytest.mark.parametrize("kind", WORKERS)
async def test_modes_are_checked_and_may_be_none(kind: type, dsn: str, schema: str, state: PGState) -> None:
    for wrong in ("update", ["values", "nothing"]):
        with pytest.raises(ConfigurationError, match="stream_mode"):
            state.runs.enqueue("agent", {"count": 0}, stream_mode=wrong)
    async with working(kind, dsn, schema, {"agent": counting()}):
        none = await joined(state.runs.enqueue("agent", {"count": 0}, stream_mode=[]))
        assert [event.event for event in none] == ["end"]
        default = await joined(state.runs.enqueue("agent", {"count": 0}))
        assert [event.event for event in default] == ["metadata", *["updates"] * STEPS, "end"]
        one = await joined(state.runs.enqueue("agent", {"count": 0}, stream_mode="values"))
        assert [event.data for event in one[1:-1]] == [{"count": count} for count in range(STEPS + 1)]


@pytest.mark.parametrize("kind", WORKERS)
@pytest.mark.parametrize("mode", ["updates", "values", "custom"])
async def test_an_interrupt_is_an_event_and_an_end(
    kind: type, mode: str, dsn: str, schema: str, state: PGState
) -> None:
    def ask(state: Any) -> Any:
        interrupt("sure?")

    async with working(kind, dsn, schema, {"agent": graph_of(ask)}):
        run = state.runs.enqueue("agent", {"messages": []}, stream_mode=mode)  # type: ignore[arg-type]
        events = await joined(run)
        assert events[-1].data == {"status": "interrupted"}
        told = [one.value for event in events[1:-1] for one in event.data.get("__interrupt__", ())]
        assert told == ([] if mode == "custom" else ["sure?"])
        stopped = state.runs.enqueue("agent", {"messages": []}, interrupt_before=["ask"], stream_mode=mode)
        assert (await joined(stopped))[-1].data == {"status": "interrupted"}


@pytest.mark.slow
@pytest.mark.parametrize("kind", WORKERS)
async def test_each_attempt_begins_with_metadata(kind: type, dsn: str, schema: str, state: PGState) -> None:
    failures = iter([True, True, False])

    def fail(count: int, token: int) -> None:
        if (count, token) == (2, 1) and next(failures):
            raise ValueError("no")

    async with working(kind, dsn, schema, {"agent": counting(fail)}):
        policy = Backoff(initial=0.05, jitter=0, retry_on=[ValueError])
        run = state.runs.enqueue("agent", {"count": 0}, stream_mode=MODES, max_attempts=2, retry=policy)
        events = await joined(run)
        assert [event.data["attempt"] for event in events if event.event == "metadata"] == [1, 2]
        assert [event.event for event in events[-2:]] == ["error", "end"]
        assert events[-2].data == {"error": "ValueError", "message": "no"}
        again = [event for event in events if event.attempt == 2 and event.event == "custom"]
        assert [(event.data, event.is_replayed) for event in again] == [([2, 0], True), ([2, 1], True)]
        # Numbers go on when it is retried by hand.
        assert state.runs.retry(run.thread_id, run.run_id)
        rest = await joined(run, last_event_id=events[-1].id)
        check_whole([*events[:-2], *rest])


@pytest.mark.slow
@pytest.mark.parametrize("kind", WORKERS)
def test_a_stream_goes_on_when_its_producer_is_killed(kind: type, place: Place, dsn: str, schema: str) -> None:
    graphs = {"agent": counting(lambda count, token: place.pause(f"{count} {token}"))}
    place.hold("2 1")
    with PGState.open(dsn, schema=schema) as state, worker(kind, dsn, schema, graphs) as first:
        run = state.runs.enqueue("agent", {"count": 0}, thread_id="t", stream_mode=MODES)
        live = run.join()
        events = []
        while not events or events[-1].data != [2, 1]:
            events.append(next(live))
        # It is stored beside the next superstep, which may be ahead of it.
        wait_until(lambda: state.saver.get_tuple(config_of("t")).metadata["step"] == 2, "the checkpoint before")
        kill(first)
        place.release("2 1")
        with worker(kind, dsn, schema, graphs):
            events += live
        check_whole(events)
        replayed = [event.data for event in events if event.is_replayed]
        assert replayed == [*([2, token] for token in range(TOKENS)), {"step": {"count": 3}}]
        assert [*run.join()] == events


@pytest.mark.slow
@pytest.mark.parametrize("kind", WORKERS)
def test_nothing_is_lost_whenever_producers_are_killed(kind: type, place: Place, dsn: str, schema: str) -> None:
    """What is not streamed again has been stored with the checkpoint that is not repeated."""
    graphs = {"agent": counting(lambda count, token: time.sleep(0.05))}
    chance = random.Random(5)
    with PGState.open(dsn, schema=schema) as state:
        found = [state.runs.enqueue("agent", {"count": 0}, stream_mode=MODES) for _ in range(4)]
        live = found[0].join()
        for _ in range(3):
            with worker(kind, dsn, schema, graphs, max_crashes=100) as process:
                wait_until(lambda: any(run.status() == "running" for run in found), "a running run")
                time.sleep(chance.uniform(0.05, 0.25))
                kill(process)
        with worker(kind, dsn, schema, graphs, max_crashes=100):
            check_whole([*live])
            for run in found[1:]:
                check_whole([*run.join()])


@pytest.mark.slow
@pytest.mark.parametrize("kind", WORKERS)
@pytest.mark.parametrize("end", ["interrupted", "success"])
def test_a_worker_that_dies_before_its_runs_end_is_stored_leaves_its_last_events_to_the_next(
    kind: type, end: str, dsn: str, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ask(state: Any) -> Any:
        if end == "interrupted":
            interrupt("sure?")
        return {"seen": "done"}

    graphs = {"agent": graph_of(ask)}
    with PGState.open(dsn, schema=schema) as state:
        run = state.runs.enqueue("agent", {"messages": []}, stream_mode=["values", "updates"])
        with monkeypatch.context() as patch:
            patch.setattr(Control, "report", lambda *report: os.kill(os.getpid(), signal.SIGKILL))
            with worker(kind, dsn, schema, graphs) as first:
                first.join(GUARD_SECONDS)
                assert not first.is_alive()
        with worker(kind, dsn, schema, graphs):
            events = [*run.join()]
    assert events[-1].data == {"status": end}
    last = [event for event in events if event.attempt == 2][1:-1]
    asked = (Interrupt(value="sure?", id=last[0].data["__interrupt__"][0].id),) if end == "interrupted" else ()
    if end == "interrupted":
        assert [event.data for event in last] == [{"__interrupt__": asked}, {"messages": [], "__interrupt__": asked}]
    else:
        assert [event.data for event in last] == [{"messages": [], "seen": "done"}]
        assert [event.data for event in events if event.event == "updates"] == [{"ask": {"seen": "done"}}]


@pytest.mark.slow
@pytest.mark.parametrize("kind", WORKERS)
def test_a_stream_goes_on_after_a_restart_of_the_server(
    kind: type,
    place: Place,
    server: Restartable,
) -> None:
    schema = f"streams_{kind.__name__.lower()}"
    place.hold("2 1")
    with PGState.open(server.dsn, schema=schema) as state:
        state.setup()
        graphs = {"agent": counting(lambda count, token: place.pause(f"{count} {token}"))}
        with worker(kind, server.dsn, schema, graphs):
            run = state.runs.enqueue("agent", {"count": 0}, thread_id="t", stream_mode=MODES)
            live = run.join()
            events = [next(live)]
            place.wait_for("begin 2 1")
            server.stop()
            server.start()
            place.release("2 1")
            events += live
            check_whole(events)
            with psycopg.connect(server.dsn, autocommit=True) as connection:
                wait_for_ends(connection, schema)


@pytest.mark.parametrize("kind", WORKERS)
async def test_events_are_stored_with_the_checkpoint_that_ends_their_superstep(
    kind: type, dsn: str, schema: str, state: PGState, connection: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that is killed before its writer's turn has lost none."""
    monkeypatch.setattr(StreamWriter, "_write", lambda self, database: None)
    held = threading.Event()

    def wait(count: int, token: int) -> None:
        if (count, token) == (3, 0):
            held.wait(GUARD_SECONDS)

    async with working(kind, dsn, schema, {"agent": counting(wait)}):
        run = state.runs.enqueue("agent", {"count": 0}, stream_mode=MODES, durability="sync")
        live = run.join()
        try:
            events = await asyncio.wait_for(asyncio.to_thread(lambda: [next(live) for _ in range(13)]), 20)
            assert of_graph(events) == WHOLE[:12]
        finally:
            held.set()
        await joined(run)


@pytest.mark.slow
@pytest.mark.parametrize("kind", WORKERS)
async def test_events_without_a_checkpoint_do_not_wait_for_one(
    kind: type, dsn: str, schema: str, state: PGState
) -> None:
    """What a task has finished is read while another one of its superstep still runs."""
    held = threading.Event()
    builder = StateGraph(Count)
    # Not before the input's checkpoint is stored.
    builder.add_node("quick", lambda state: time.sleep(0.3))
    builder.add_node("slow", lambda state: held.wait(GUARD_SECONDS) and None)
    builder.add_edge(START, "quick")
    builder.add_edge(START, "slow")
    async with working(kind, dsn, schema, {"agent": builder.compile()}):
        live = state.runs.enqueue("agent", {"count": 0}, stream_mode="updates").join()
        try:
            events = await asyncio.wait_for(asyncio.to_thread(lambda: [next(live) for _ in range(2)]), 20)
            assert [event.data for event in events[1:]] == [{"quick": None}]
        finally:
            held.set()
        assert [event.data for event in await asyncio.to_thread(lambda: [*live])][:-1] == [{"slow": None}]


def test_events_after_which_a_checkpoint_is_expected_wait_for_it(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streaming, "_CHECKPOINT_SECONDS", 3600)
    queue.add("t")
    wake = threading.Event()
    stream = RunStream(CODEC, queue.claim_one(), RunInput(stream_mode=["updates", "custom", "values"]), wake)

    def store() -> None:
        assert stream.is_due
        wake.clear()
        stream.send(1)
        stream.note_commit(1)
        assert not stream.is_due

    # The metadata.
    store()
    stream.take(("updates", {"step": 1}))
    assert not stream.is_due
    assert not wake.is_set()
    stream.take(("custom", "token"))
    assert wake.is_set()
    store()
    # The graph waits when it is full, so that no checkpoint would come.
    while not stream._is_full:
        assert not stream.is_due
        stream.take(("values", "x" * 100_000))
    assert wake.is_set()
    store()
    monkeypatch.setattr(streaming, "_CHECKPOINT_SECONDS", 0)
    stream.take(("updates", {"step": 1}))
    store()


def test_the_writer_leaves_them_to_the_checkpoint(queue: Queue, dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streaming, "_CHECKPOINT_SECONDS", 3600)
    monkeypatch.setattr(StreamWriter, "_work", lambda self: None)
    queue.add("t")
    writer = StreamWriter(dsn, None, None, queue.queries, CODEC)
    stream = writer.open(queue.claim_one(), RunInput(stream_mode=["updates", "custom"]))
    writer._write(queue.database)
    assert stream.freeze() == []
    stream.take(("updates", {"step": 1}))
    writer._write(queue.database)
    assert len(stream.freeze()) == 1
    stream.take(("custom", "token"))
    writer._write(queue.database)
    assert stream.freeze() == []


def test_writes_that_store_no_events_note_none_as_stored(
    queue: Queue, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Writes may have the `id` that a failed put had."""
    monkeypatch.setattr(streaming, "id", lambda _: 1, raising=False)
    monkeypatch.setattr(StreamWriter, "_work", lambda self: None)
    queue.add("t")
    writer = StreamWriter(dsn, None, None, queue.queries, CODEC)
    stream = writer.open(queue.claim_one(), RunInput(stream_mode=["updates"]))
    address = SimpleNamespace(thread_id="t")
    put: Any = SimpleNamespace(request=SimpleNamespace(address=address))
    writes: Any = SimpleNamespace(address=address)
    assert writer.before_put(put, {})
    assert not writer.before_writes(writes)
    writer.after_writes(writes)
    assert len(stream.freeze()) == 1
    assert writer.before_put(put, {})
    writer.after_put(put)
    assert stream.freeze() == []


@pytest.mark.slow
def test_the_writer_looks_for_late_events_and_rests_without_streams(
    queue: Queue, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    writes = 0
    write = StreamWriter._write

    def counted(self: StreamWriter, database: Any) -> None:
        nonlocal writes
        writes += 1
        write(self, database)

    monkeypatch.setattr(StreamWriter, "_write", counted)
    queue.add("t")
    writer = StreamWriter(dsn, None, None, queue.queries, CODEC)
    stream = writer.open(queue.claim_one(), RunInput(stream_mode=["updates"]))
    try:
        # It looks for events that have waited for a checkpoint.
        wait_until(lambda: writes > 3, "the writer looks for events")
        stream.close()
        wait_until(lambda: not writer._streams, "the stream is taken off")
        time.sleep(0.2)
        before = writes
        time.sleep(0.5)
        assert writes == before
    finally:
        writer.close()


def test_the_writer_is_woken_once_it_has_a_new_stream(queue: Queue, dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first event of a stream may have woken it before."""
    monkeypatch.setattr(StreamWriter, "_work", lambda self: None)
    monkeypatch.setattr(RunStream, "_add", lambda *args: None)
    queue.add("t")
    writer = StreamWriter(dsn, None, None, queue.queries, CODEC)
    writer.open(queue.claim_one(), RunInput(stream_mode=["updates"]))
    assert writer._wake.is_set()


def test_a_run_that_was_lost_does_not_take_the_place_of_the_next_one(
    queue: Queue, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its code may be held up before its first superstep, while its worker executes another run of the thread."""
    monkeypatch.setattr(StreamWriter, "_work", lambda self: None)
    queue.add("t")
    run = queue.claim_one()
    lost = replace(run, lease=replace(run.lease, fencing_token=run.lease.fencing_token - 1))
    writer = StreamWriter(dsn, None, None, queue.queries, CODEC)
    present = writer.open(run, RunInput(stream_mode=["custom"]))
    late = writer.open(lost, RunInput(stream_mode=["custom"]))
    late.take(("custom", "late"))
    assert late.freeze() == []
    present.take(("custom", "token"))
    writer._write(queue.database)
    assert present.freeze() == []
    assert writer._streams == {"t": present}


def test_only_what_a_transaction_has_is_noted_as_stored(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread may take up events between what a transaction takes and its note of it."""
    queue.add("t")
    stream = RunStream(CODEC, queue.claim_one(), RunInput(stream_mode=["custom"]), threading.Event())
    freeze = RunStream.freeze

    def interrupted(self: RunStream) -> Any:
        monkeypatch.setattr(RunStream, "freeze", freeze)
        found = self.freeze()
        self.take(("custom", "token"))
        self.freeze()
        return found

    monkeypatch.setattr(RunStream, "freeze", interrupted)
    assert len(stream.send(1)) == 1
    stream.note_commit(1)
    assert [(one.position, one.length) for one in stream.freeze()] == [(1, 1)]


def test_runs_without_events_are_not_kept_by_the_writer(queue: Queue, dsn: str) -> None:
    queue.add("t")
    writer = StreamWriter(dsn, None, None, queue.queries, CODEC)
    writer.open(queue.claim_one(), RunInput(stream_mode=[]))
    assert not writer._streams
    assert writer._thread is None


def test_a_graph_waits_while_too_much_is_not_stored(queue: Queue) -> None:
    queue.add("t")
    run = queue.claim_one()
    wake = threading.Event()
    stream = RunStream(CODEC, run, RunInput(stream_mode=["custom"]), wake)
    piece = "x" * 100_000
    count = 0
    while not stream._is_full:
        stream.take(("custom", piece))
        count += 1
    assert 10 <= count <= 11
    assert wake.is_set()

    async def wait_twice() -> None:
        blocked = threading.Thread(target=stream.wait)
        blocked.start()
        waiting = asyncio.create_task(stream.wait_async())
        cancelled = asyncio.create_task(stream.wait_async())
        await asyncio.sleep(0.1)
        assert blocked.is_alive()
        assert not waiting.done()
        cancelled.cancel()
        first = stream.freeze()[0]
        await asyncio.to_thread(stream.note_stored, first.length)
        # One piece is not enough for what was one too many, two are.
        await asyncio.to_thread(stream.note_stored, stream.freeze()[1].position + stream.freeze()[1].length)
        await asyncio.wait_for(waiting, GUARD_SECONDS)
        await asyncio.to_thread(blocked.join, GUARD_SECONDS)
        assert not blocked.is_alive()

    asyncio.run(wait_twice())
    # A run that was lost waits for nothing.
    while not stream._is_full:
        stream.take(("custom", piece))
    stream.end()
    stream.wait()
    asyncio.run(stream.wait_async())
    stored = stream.freeze()
    assert queue.do(streams.append, stored)[0] == {run.key}


@pytest.fixture
def queue(connection: psycopg.Connection, schema: str) -> Queue:
    return Queue(connection, schema)


def test_batches_never_change_and_are_taken_off_once_stored(queue: Queue) -> None:
    queue.add("t")
    stream = RunStream(CODEC, queue.claim_one(), RunInput(stream_mode=["custom"]), threading.Event())
    (first,) = stream.freeze()
    stream.take(("custom", 1))
    assert stream.freeze()[0] == first
    assert [(one.position, one.length) for one in stream.send(1)] == [(0, 1), (1, 1)]
    stream.take(("custom", 2))
    # A transaction that has failed leaves all; its number may be used again.
    stream.note_commit(2)
    assert len(stream.freeze()) == 3
    stream.note_commit(1)
    assert [(one.position, one.length) for one in stream.freeze()] == [(2, 1)]
    stream.note_commit(1)
    assert len(stream.freeze()) == 1
    stream.close()
    stream.take(("custom", 3))
    assert stream.freeze() == []
    assert stream.is_done


def test_a_batch_is_of_the_superstep_of_its_events(queue: Queue) -> None:
    """A superstep whose events nobody has had is not replayed by the next attempt."""
    queue.add("t")
    stream = RunStream(CODEC, queue.claim_one(), RunInput(stream_mode=["updates"]), threading.Event())
    stream.take(("checkpoints", {"metadata": {"step": 0}}))
    stream.take(("updates", {"first": 1}))
    stream.take(("checkpoints", {"metadata": {"step": 1}}))
    stream.freeze()
    stream.take(("updates", {"second": 2}))
    assert [one.step for one in stream.freeze()] == [1, 2]


@pytest.mark.slow
@pytest.mark.parametrize("kind", [Worker, AsyncWorker])
async def test_the_commits_of_a_worker_are_few_however_many_runs_stream(
    kind: type, dsn: str, schema: str, state: PGState, monkeypatch: pytest.MonkeyPatch
) -> None:
    writes: list[float] = []
    write = StreamWriter._write

    def counted(self: StreamWriter, database: Any) -> None:
        writes.append(time.monotonic())
        write(self, database)

    monkeypatch.setattr(StreamWriter, "_write", counted)
    graph = counting(lambda count, token: time.sleep(0.02))
    async with working(kind, dsn, schema, {"agent": graph}, concurrency=10):
        found = [state.runs.enqueue("agent", {"count": 0}, stream_mode=MODES) for _ in range(10)]
        for run in found:
            check_whole(await joined(run))
    # The last one is at the close.
    assert min(after - before for before, after in itertools.pairwise(writes[:-1])) >= 0.049
