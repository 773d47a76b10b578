"""Ends of runs: errors, retries and timeouts."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from langchain_core.runnables import RunnableConfig
from langgraph.config import get_stream_writer
from support import GUARD_SECONDS, wait_until
from support.worker import WORKERS

from langgraph_pgstate import AsyncWorker, Backoff, PGState, Worker
from langgraph_pgstate.checkpoints import getting
from langgraph_pgstate.errors import RunFailedError
from langgraph_pgstate.worker.executing import GraphExecutor
from langgraph_pgstate.worker.streaming import RunStream
from tests.worker.test_worker import State, graph_of, result, working


@pytest.fixture
def state(dsn: str, schema: str) -> Iterator[PGState]:
    """A state to enqueue with and to look at what workers did."""
    with PGState.open(dsn, schema=schema) as state:
        yield state


class Flaky(Exception):
    """An error that passes."""


@pytest.mark.slow
@pytest.mark.parametrize("kind", WORKERS)
async def test_errors_are_tried_again_as_the_policy_says(kind: type, dsn: str, schema: str, state: PGState) -> None:
    calls: list[Any] = []

    def first(state: State, config: RunnableConfig) -> dict[str, Any]:
        calls.append(("first", config["metadata"]["run_attempt"]))
        return {}

    def second(state: State, config: RunnableConfig) -> dict[str, Any]:
        calls.append(("second", config["metadata"]["run_attempt"]))
        if config["metadata"]["run_attempt"] < 3:
            raise Flaky(f"attempt {config['metadata']['run_attempt']}")
        return {"seen": "done"}

    async with working(kind, dsn, schema, {"agent": graph_of(first, second)}):
        policy = Backoff(initial=0.05, jitter=0, retry_on=[Flaky])
        run = state.runs.enqueue("agent", {"messages": []}, thread_id="t", max_attempts=3, retry=policy)
        assert (await result(run))["seen"] == "done"
        # What was stored is not repeated.
        assert calls == [("first", 1), ("second", 1), ("second", 2), ("second", 3)]

        for options in (
            {"max_attempts": 2, "retry": policy},
            {"max_attempts": 2, "retry": Backoff(retry_on=[KeyError])},
            {},
        ):
            run = state.runs.enqueue("agent", {"messages": []}, **options)  # type: ignore[arg-type]
            with pytest.raises(RunFailedError, match="Flaky: attempt") as failed:
                await result(run)
            assert failed.value.status == "error"
        letters = state.runs.dead_letters().items
        assert [letter.attempt for letter in letters] == [1, 1, 2]
        assert "raise Flaky" in (letters[0].error_traceback or "")
        # A dead letter goes on from its newest checkpoint when it is retried.
        calls.clear()
        last = letters[0]
        assert state.runs.retry(last.thread_id, last.run_id)
        with pytest.raises(RunFailedError):
            await result(state.runs.handle(last.thread_id, last.run_id))
        assert calls == [("second", 1)]


@pytest.mark.slow
@pytest.mark.parametrize("kind", WORKERS)
async def test_a_run_that_takes_too_long_ends_as_timeout(kind: type, dsn: str, schema: str, state: PGState) -> None:
    gate, calls = threading.Event(), []

    def block(state: State) -> dict[str, Any]:
        calls.append(1)
        gate.wait(GUARD_SECONDS)
        return {"seen": "late"}

    async with working(kind, dsn, schema, {"agent": graph_of(block)}):
        run = state.runs.enqueue("agent", {"messages": []}, thread_id="t", timeout=0.3)
        since = time.monotonic()
        with pytest.raises(RunFailedError) as failed:
            await result(run)
        assert failed.value.status == "timeout"
        assert time.monotonic() - since < GUARD_SECONDS / 2
        gate.set()
        # The node's late result is not stored, and the thread is free.
        run = state.runs.enqueue("agent", {"messages": []}, thread_id="t")
        await result(run)
        await asyncio.to_thread(wait_until, lambda: len(calls) == 2, "the second run")
    history = [*state.saver.list({"configurable": {"thread_id": "t"}})]
    assert {found.metadata["run_id"] for found in history if "seen" in found.checkpoint["channel_values"]} == {
        run.run_id
    }


async def test_a_superstep_that_takes_too_long_ends_as_timeout(dsn: str, schema: str, state: PGState) -> None:
    async def sleep(state: State) -> dict[str, Any]:
        await asyncio.sleep(30)
        return {}

    async def fail(state: State) -> dict[str, Any]:
        raise TimeoutError("mine")

    async with working(AsyncWorker, dsn, schema, {"sleep": graph_of(sleep), "fail": graph_of(fail)}):
        for graph, status in (("sleep", "timeout"), ("fail", "error")):
            with pytest.raises(RunFailedError) as failed:
                await result(state.runs.enqueue(graph, {"messages": []}, superstep_timeout=0.2))
            assert failed.value.status == status


@pytest.mark.slow
async def test_a_failed_run_is_not_tried_again_on_what_another_run_has_stored_since(
    dsn: str, schema: str, state: PGState
) -> None:
    """It would find the other run's end, and take it for its own."""
    broken = [True]

    def fail(state: State) -> dict[str, Any]:
        if broken:
            raise Flaky
        return {"seen": state["messages"][-1].content}

    async with working(Worker, dsn, schema, {"agent": graph_of(fail)}):
        first = state.runs.enqueue("agent", {"messages": ["one"]}, thread_id="t")
        with pytest.raises(RunFailedError):
            await result(first)
        second = state.runs.enqueue("agent", {"messages": ["two"]}, thread_id="t", run_after=timedelta(hours=1))
        assert not state.runs.retry("t", first.run_id)
        state.runs.cancel("t", second.run_id)
        broken.clear()
        assert state.runs.retry("t", first.run_id)
        assert (await result(first))["seen"] == "one"

        broken.append(True)
        third = state.runs.enqueue("agent", {"messages": ["three"]}, thread_id="t")
        with pytest.raises(RunFailedError):
            await result(third)
        broken.clear()
        fourth = state.runs.enqueue("agent", {"messages": ["four"]}, thread_id="t")
        assert (await result(fourth))["seen"] == "four"
        assert not state.runs.retry("t", third.run_id)
        assert third.status() == "error"


@pytest.mark.slow
@pytest.mark.parametrize("kind", WORKERS)
async def test_a_run_whose_checkpoint_is_gone_fails_instead_of_starting_on_nothing(
    kind: type, dsn: str, schema: str, state: PGState
) -> None:
    def note(state: State) -> dict[str, Any]:
        return {"seen": "ran"}

    async with working(kind, dsn, schema, {"agent": graph_of(note)}):
        await result(state.runs.enqueue("agent", {"messages": ["one"]}, thread_id="t"))
        first = state.saver.get_tuple({"configurable": {"thread_id": "t"}})
        assert first is not None
        past = first.config["configurable"]["checkpoint_id"]
        fork = state.runs.enqueue("agent", {"messages": ["two"]}, thread_id="t", checkpoint_id=past)
        assert len((await result(fork))["messages"]) == 2
    late = state.runs.enqueue("agent", {"messages": ["three"]}, thread_id="t", checkpoint_id=past)
    state.saver.prune(["t"], keep_last=1)
    async with working(kind, dsn, schema, {"agent": graph_of(note)}):
        with pytest.raises(RunFailedError, match="no longer has checkpoint"):
            await result(late)


@pytest.mark.parametrize("kind", WORKERS)
async def test_a_thread_that_its_claim_found_new_is_not_read(
    kind: type, dsn: str, schema: str, state: PGState, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: list[str] = []
    inner = getting.get_tuple

    def count(*arguments: Any) -> Any:
        reads.append(arguments[3].thread_id)
        return inner(*arguments)

    monkeypatch.setattr(getting, "get_tuple", count)

    def add(state: State) -> dict[str, Any]:
        return {"seen": f"{len(state['messages'])}"}

    async with working(kind, dsn, schema, {"agent": graph_of(add)}):
        for number, expected in enumerate((0, 1)):
            run = state.runs.enqueue("agent", {"messages": [f"message {number}"]}, thread_id="t")
            await asyncio.to_thread(wait_until, lambda run=run: run.status() == "success", "the end")
            # The second run goes on from the first one's state.
            assert (await result(run))["seen"] == str(number + 1)
            assert bool(reads) == bool(expected)


async def test_nodes_are_stopped_before_their_run_ends(
    dsn: str, schema: str, state: PGState, monkeypatch: pytest.MonkeyPatch
) -> None:
    notes: list[str] = []

    async def node(state: State) -> dict[str, Any]:
        notes.append("begun")
        get_stream_writer()("begun")
        try:
            await asyncio.sleep(GUARD_SECONDS)
        finally:
            notes.append("stopped")
        return {}

    async def refuse(stream: RunStream) -> None:
        if notes:
            raise ValueError("no room")

    finish = GraphExecutor._aexecute

    async def noted(*given: Any) -> bool:
        try:
            return await finish(*given)
        finally:
            notes.append("ended")

    monkeypatch.setattr(GraphExecutor, "_aexecute", noted)
    monkeypatch.setattr(RunStream, "wait_async", refuse)
    async with working(AsyncWorker, dsn, schema, {"agent": graph_of(node)}):
        run = state.runs.enqueue("agent", {"messages": []}, stream_mode="custom")
        with pytest.raises(RunFailedError, match="no room"):
            await result(run)
    assert notes == ["begun", "stopped", "ended"]
