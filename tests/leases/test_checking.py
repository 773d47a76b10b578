"""A holder that cannot renew its lease: code of its run begins nothing after the last confirmed end."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest
from langchain_core.language_models import GenericFakeChatModel
from langchain_core.tools import StructuredTool
from langgraph.func import entrypoint, task
from langgraph.graph import START, StateGraph
from support import APIS, FORK, GUARD_SECONDS, Gate, config_of, crossed, invoke, loop_graph, open_saver, wait_until

from langgraph_pgstate import PGState, PGStateSaver
from langgraph_pgstate.errors import LeaseHeldError, LeaseLostError
from langgraph_pgstate.leases.checking import LeaseCheck
from langgraph_pgstate.leases.registry import HeldLease, confirmed_end
from langgraph_pgstate.process_identity import lease_clock

TTL = 1.0
GUARD = {"guard": "lease", "lease_ttl": TTL}


@contextmanager
def swallowing(dsn: str) -> Iterator[Gate]:
    """A line to the server that can swallow what is sent."""
    gate = Gate(dsn)
    try:
        yield gate
    finally:
        gate.close()


def wait_until_free(dsn: str, schema: str, thread_id: str) -> float:
    """Wait until a lease has ended by the clock of the database; the time by `lease_clock`."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        query = f"SELECT 1 FROM {schema}.leases WHERE thread_id = %s AND expires_at > now()".encode()
        wait_until(lambda: not connection.execute(query, [thread_id]).fetchall(), "a lease that has ended")
    return lease_clock()


@pytest.fixture
def allowed(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Times just before checks that allowed work, by `lease_clock`. A busy machine may begin the work later."""
    times: list[float] = []
    check = HeldLease.check_confirmed

    def note(held: HeldLease) -> None:
        asked_at = lease_clock()
        check(held)
        times.append(asked_at)

    monkeypatch.setattr(HeldLease, "check_confirmed", note)
    return times


@pytest.mark.slow
@pytest.mark.parametrize("api", APIS)
async def test_no_superstep_begins_after_the_end_of_a_lease_that_cannot_be_renewed(
    api: type, dsn: str, schema: str, allowed: list[float]
) -> None:
    begun: list[float] = []
    swallowed = threading.Event()

    def step(count: int) -> None:
        begun.append(allowed.pop())
        if count == 2:
            gate.swallows = True
            swallowed.set()
        time.sleep(0.02)

    with swallowing(dsn) as gate:
        async with open_saver(api, gate.dsn, schema, **GUARD) as saver:
            graph = loop_graph(10_000, step).compile(checkpointer=saver)
            config = {**config_of("t"), "recursion_limit": 20_000}
            running = asyncio.create_task(invoke(graph, saver, {"count": 0}, config))
            await asyncio.to_thread(swallowed.wait, GUARD_SECONDS)
            free = await asyncio.to_thread(wait_until_free, dsn, schema, "t")
            async with open_saver(PGStateSaver, dsn, schema, **GUARD) as other:
                with other.lease_manager.hold("t"):
                    await asyncio.sleep(0.3)
            # Its saver would not close.
            gate.heal()
            with pytest.raises(LeaseLostError):
                await asyncio.wait_for(running, GUARD_SECONDS)
    assert len(begun) > 3
    assert max(begun) < free


@pytest.mark.slow
async def test_a_node_that_awaits_is_cancelled_at_the_end_of_its_lease(dsn: str, schema: str) -> None:
    ended: list[float] = []

    async def wait(state: dict[str, Any]) -> None:
        gate.swallows = True
        try:
            await asyncio.sleep(GUARD_SECONDS)
        finally:
            ended.append(lease_clock())
            gate.heal()

    with swallowing(dsn) as gate:
        async with open_saver(APIS[1], gate.dsn, schema, **GUARD) as saver:
            graph = StateGraph(dict).add_node(wait).add_edge(START, "wait").compile(checkpointer=saver)
            with pytest.raises(LeaseLostError):
                await graph.ainvoke({}, config_of("t"))
            assert ended[0] < wait_until_free(dsn, schema, "t")
        caller = asyncio.current_task()
        assert caller is not None
        assert not caller.cancelling()


@pytest.mark.slow
async def test_no_task_of_one_superstep_begins_after_the_end(dsn: str, schema: str, allowed: list[float]) -> None:
    begun: list[float] = []

    @task
    async def one(number: int) -> None:
        begun.append(allowed.pop())
        await asyncio.sleep(0.02)

    @entrypoint()
    async def flow(number: int) -> None:
        gate.swallows = True
        for index in range(number):
            # Whatever the code of the superstep does about errors.
            with suppress(LeaseLostError):
                await one(index)

    with swallowing(dsn) as gate:
        async with open_saver(APIS[1], gate.dsn, schema, **GUARD) as saver:
            flow.checkpointer = saver
            running = asyncio.create_task(flow.ainvoke(1000, config_of("t")))
            while not begun:
                await asyncio.sleep(0.01)
            free = await asyncio.to_thread(wait_until_free, dsn, schema, "t")
            gate.heal()
            with pytest.raises(LeaseLostError):
                await asyncio.wait_for(running, GUARD_SECONDS)
    assert begun
    assert max(begun) < free


@pytest.mark.slow
def test_a_process_that_was_stopped_begins_nothing_when_it_wakes(
    dsn: str, schema: str, tmp_path: Any, allowed: list[float]
) -> None:
    notes = tmp_path / "notes"

    def step(count: int) -> None:
        with notes.open("a") as file:
            file.write(f"{allowed.pop()}\n")
        time.sleep(0.02)

    def work() -> None:
        with PGState.open(dsn, schema=schema, **GUARD) as state, suppress(LeaseLostError):
            graph = loop_graph(10_000, step).compile(checkpointer=state.saver)
            graph.invoke({"count": 0}, {**config_of("t"), "recursion_limit": 20_000})

    process = FORK.Process(target=work, daemon=True)
    process.start()
    try:
        wait_until(lambda: notes.exists() and len(notes.read_text().splitlines()) > 3, "some supersteps")
        os.kill(process.pid or 0, signal.SIGSTOP)
        free = wait_until_free(dsn, schema, "t")
        with PGState.open(dsn, schema=schema, **GUARD) as state, state.leases.hold("t"):
            os.kill(process.pid or 0, signal.SIGCONT)
            process.join(GUARD_SECONDS)
        assert process.exitcode == 0
        assert max(map(float, notes.read_text().split())) < free
    finally:
        process.kill()


def test_a_lease_ends_here_before_it_ends_in_the_database() -> None:
    """The request of a renewal takes time, and clocks run at different speeds."""
    asked_at = lease_clock() - 60
    held = HeldLease(None, confirmed_end(asked_at, 1.0), is_read_first=True)  # type: ignore[arg-type]
    assert held.confirmed_until < asked_at + 1.0
    assert not held.is_confirmed
    held.confirm(asked_at, 120.0)
    assert held.is_confirmed
    held.confirm(asked_at, 1.0)
    assert held.is_confirmed, "an answer that comes late says nothing against a later one"


def test_no_tool_and_no_model_begins_after_the_end() -> None:
    """In a node that has begun before it."""
    begun: list[str] = []
    tool = StructuredTool.from_function(lambda: begun.append("tool"), name="pay", description="Pay.")
    model = GenericFakeChatModel(messages=iter(["hello"]))
    held = HeldLease(SimpleNamespace(thread_id="t", fencing_token=1), lease_clock() - 1, is_read_first=True)  # type: ignore[arg-type]
    for begin in (tool, model):
        with pytest.raises(LeaseLostError):
            begin.invoke({} if begin is tool else "Hello.", {"callbacks": [LeaseCheck(held)]})
    assert begun == []


@pytest.mark.slow
@pytest.mark.parametrize(("api", "is_held"), crossed(APIS, [False, True]))
async def test_a_cancelled_run_keeps_its_lease_for_a_thread_that_it_leaves_behind(
    api: type, is_held: bool, dsn: str, schema: str
) -> None:
    begun, gate = threading.Event(), threading.Event()

    def block(state: dict[str, Any]) -> None:
        begun.set()
        gate.wait(GUARD_SECONDS)

    def quick(state: dict[str, Any]) -> None:
        pass

    async with open_saver(api, dsn, schema, **GUARD) as saver:
        graph = StateGraph(dict).add_node(block).add_edge(START, "block").compile(checkpointer=saver)
        other = StateGraph(dict).add_node(quick).add_edge(START, "quick").compile(checkpointer=saver)

        async def run() -> None:
            if not is_held:
                await graph.ainvoke({}, config_of("t"))
            elif api is PGStateSaver:
                with saver.lease_manager.hold("t"):
                    await graph.ainvoke({}, config_of("t"))
            else:
                async with saver.lease_manager.hold("t"):
                    await graph.ainvoke({}, config_of("t"))

        running = asyncio.create_task(run())
        await asyncio.to_thread(begun.wait, GUARD_SECONDS)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        # Longer than the lease would last without being renewed.
        until = time.monotonic() + 1.5 * TTL
        while time.monotonic() < until:
            with pytest.raises(LeaseHeldError):
                await other.ainvoke({}, config_of("t"))
            await asyncio.sleep(0.1)
        gate.set()
        deadline = time.monotonic() + GUARD_SECONDS
        while True:
            try:
                await other.ainvoke({}, config_of("t"))
                break
            except LeaseHeldError:
                assert time.monotonic() < deadline
                await asyncio.sleep(0.02)
