"""A graph of three nodes through the queue, and by `graph.invoke` in place; a graph whose worker is killed."""

from __future__ import annotations

import asyncio
import os
import signal
import statistics
import time
from contextlib import ExitStack
from multiprocessing.connection import Connection, wait
from typing import Any, TypedDict

from langgraph.graph import END, START, StateGraph

from benchmarks.measure import OURS, CaseResult, MismatchError, Plan
from benchmarks.queue.processes import PATIENCE, SPAWN
from benchmarks.server import Server
from langgraph_pgstate import AsyncPGState, AsyncWorker, PGState

INVOKED = "invoke"
_GRAPH = "three"
_STEPS = 400
_STEP_SECONDS = 0.1


class _State(TypedDict):
    count: int


def three_nodes() -> StateGraph[Any, Any, Any, Any]:
    """A graph of three nodes that count."""
    graph = StateGraph(_State)
    names = ("first", "second", "third")
    for name in names:
        graph.add_node(name, lambda state: {"count": state["count"] + 1})
    for before, after in zip((START, *names), (*names, END), strict=True):
        graph.add_edge(before, after)
    return graph


def _slow(steps: Connection) -> StateGraph[Any, Any, Any, Any]:
    """A graph whose supersteps tell their process and the time, and then take a while."""

    async def step(state: _State) -> _State:
        steps.send((os.getpid(), state["count"], time.monotonic()))
        await asyncio.sleep(_STEP_SECONDS)
        return {"count": state["count"] + 1}

    graph = StateGraph(_State)
    graph.add_node("step", step)
    graph.add_edge(START, "step")
    graph.add_conditional_edges("step", lambda state: "step" if state["count"] < _STEPS else END)
    return graph


def _work(dsn: str, steps: Connection | None, ready: Connection) -> None:
    async def main() -> None:
        async with AsyncPGState.open(dsn) as state:
            graph = three_nodes() if steps is None else _slow(steps)
            async with AsyncWorker(state, {_GRAPH: graph}):
                ready.send(None)
                await asyncio.Event().wait()

    asyncio.run(main())


class Worker:
    """A worker in a process, which is running."""

    def __init__(self, dsn: str, *, is_slow: bool) -> None:
        self.steps, sender = SPAWN.Pipe(duplex=False)
        ready, told = SPAWN.Pipe(duplex=False)
        self.process = SPAWN.Process(target=_work, args=(dsn, sender if is_slow else None, told), daemon=True)
        self.process.start()
        sender.close()
        told.close()
        if not ready.poll(PATIENCE):
            raise TimeoutError("the worker does not start")
        ready.recv()

    def close(self) -> None:
        """Kill the process, and reap it."""
        self.process.kill()
        self.process.join()


def run_through(server: Server, plan: Plan) -> CaseResult:
    """One run at a time, by turns."""
    result = CaseResult("graph", "A graph of three nodes: through the queue, and by graph.invoke in place")
    result.notes.append(
        "From the call until the state is there: `enqueue` and `wait` with a worker in another process, or `invoke` of "
        "the recorded graph. Each on a thread of its own, one after the other; the median of a round."
    )
    metric = result.metric("time", "one run of a three-node graph", "ms")
    with ExitStack() as stack:
        dsn = stack.enter_context(server.database("queue"))
        state = stack.enter_context(PGState.open(dsn))
        state.setup()
        graph = state.record(three_nodes().compile(checkpointer=state.saver))
        stack.callback(Worker(dsn, is_slow=False).close)

        def invoke(thread_id: str) -> Any:
            return graph.invoke({"count": 0}, {"configurable": {"thread_id": thread_id}})

        def enqueue(thread_id: str) -> Any:
            return state.runs.enqueue(_GRAPH, {"count": 0}, thread_id=thread_id).wait(PATIENCE)

        calls = {INVOKED: invoke, OURS: enqueue}
        for number in range(plan.rounds + 1):
            taken: dict[str, list[float]] = {name: [] for name in calls}
            for turn in range(plan.pick(20, 5)):
                for name in plan.shuffled([*calls]):
                    start = time.perf_counter()
                    found = calls[name](f"{name}-{number}-{turn}")
                    taken[name].append(time.perf_counter() - start)
                    if found["count"] != 3:
                        raise MismatchError(f"graph: {name} has counted {found}")
            if number:
                for name, seconds in taken.items():
                    metric.add(name, statistics.median(seconds) * 1000)
    return result


def run_killed(server: Server, plan: Plan) -> CaseResult:
    """Two workers; the one that runs the graph is killed in a superstep."""
    result = CaseResult("kill", "From SIGKILL of a worker until the next superstep begins in another")
    result.notes.append(
        "Workers with their defaults: leases of 12 seconds, a sweep every 2. Reaped: the process that started the "
        "worker takes note of its death, as a supervisor does, so that its process id is gone."
    )
    for is_reaped in (False, True):
        what = "reaped" if is_reaped else "not reaped"
        metric = result.metric(what, f"SIGKILL to the next superstep elsewhere, {what}", "s")
        for _ in range(plan.pick(3, 1)):
            metric.add(OURS, _kill_one(server, is_reaped=is_reaped))
    return result


def _kill_one(server: Server, *, is_reaped: bool) -> float:
    with server.database("queue") as dsn, ExitStack() as stack:
        state = stack.enter_context(PGState.open(dsn))
        state.setup()
        workers = [Worker(dsn, is_slow=True) for _ in range(2)]
        for worker in workers:
            stack.callback(worker.close)
        state.runs.enqueue(_GRAPH, {"count": 0}, thread_id="killed")
        pid, _, _ = _step_of(workers, count=5)
        (victim,) = [worker for worker in workers if worker.process.pid == pid]
        (other,) = [worker for worker in workers if worker is not victim]
        killed_at = time.monotonic()
        os.kill(pid, signal.SIGKILL)
        if is_reaped:
            os.waitpid(pid, 0)
        _, count, began_at = _step_of([other], count=0)
        # The superstep before the one that is running may not be stored yet.
        if count < 4:
            raise MismatchError(f"kill: superstep {count} was repeated")
        return began_at - killed_at


def _step_of(workers: list[Worker], count: int) -> tuple[int, int, float]:
    """The first superstep that some workers tell, from a count on."""
    while True:
        found: list[Any] = wait([worker.steps for worker in workers], PATIENCE)
        if not found:
            raise TimeoutError("no worker begins a superstep")
        for pipe in found:
            told = pipe.recv()
            if told[1] >= count:
                return told  # type: ignore[no-any-return]
