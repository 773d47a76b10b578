"""Four strategies on threads in four situations, with callers in two processes that race on each of them."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.runnables import RunnableConfig
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.types import interrupt
from support import run_children, wait_until
from support.worker import Place, wait_for_ends, worker

from langgraph_pgstate import AsyncWorker, PGState
from langgraph_pgstate.errors import ThreadBusyError
from langgraph_pgstate.runs.requests import STRATEGIES

SITUATIONS = ("pending", "running", "interrupted", "in a tool")
THREADS = [f"{strategy}, {situation}" for strategy in STRATEGIES for situation in SITUATIONS]
FIRST = "first"


def graph_of(place: Place) -> Any:
    """A chat whose first message says where it stops: in the model, in a tool, or at an interrupt."""

    async def stop(what: str) -> None:
        place.note(f"stopped {what}")
        while (place.directory / "hold stops").exists():
            await asyncio.sleep(0.01)

    async def model(state: MessagesState, config: RunnableConfig) -> Any:
        messages, run = state["messages"], config["metadata"]["run_id"]
        thread = config["metadata"]["thread_id"]
        calls = [call["id"] for one in messages if isinstance(one, AIMessage) for call in one.tool_calls]
        assert set(calls) == {one.tool_call_id for one in messages if isinstance(one, ToolMessage)}, "a strict provider"
        place.note(f"begin {thread}/{run}")
        try:
            said = str(messages[-1].content)
            if said == "running":
                await stop(thread)
            await asyncio.sleep(0.002)
        finally:
            place.note(f"end {thread}/{run}")
        if said == "in a tool":
            return {"messages": [AIMessage("", tool_calls=[{"name": "work", "args": {}, "id": f"call {run}"}])]}
        if said == "interrupted":
            return {"messages": [AIMessage("ask")]}
        return {"messages": [AIMessage(f"heard {said}")]}

    async def tools(state: MessagesState, config: RunnableConfig) -> Any:
        await stop(config["metadata"]["thread_id"])
        call: Any = state["messages"][-1]
        return {"messages": [ToolMessage("done", tool_call_id=call.tool_calls[0]["id"])]}

    def ask(state: MessagesState) -> Any:
        interrupt("sure?")

    def route(state: MessagesState) -> str:
        last = state["messages"][-1]
        return "tools" if getattr(last, "tool_calls", None) else "ask" if last.content == "ask" else END

    builder = StateGraph(MessagesState)
    for node in (model, tools, ask):
        builder.add_node(node)
    builder.add_edge(START, "model")
    builder.add_conditional_edges("model", route, ["tools", "ask", END])
    builder.add_edge("tools", "model")
    return builder


def call(dsn: str, schema: str, process: int, callers: int, place: Place) -> None:
    """Have several callers enqueue a run on each thread at once; note what was accepted."""
    together = threading.Barrier(callers)

    def race(number: int) -> None:
        for thread in THREADS:
            run_id = f"{thread} {process}.{number}"
            strategy: Any = thread.partition(",")[0]
            together.wait()
            with suppress(ThreadBusyError):
                state.runs.enqueue(
                    "chat",
                    {"messages": [HumanMessage(run_id, id=run_id)]},
                    thread_id=thread,
                    run_id=run_id,
                    multitask_strategy=strategy,
                )
                place.note(f"accepted {run_id}")

    with PGState.open(dsn, schema=schema) as state, ThreadPoolExecutor(callers) as executor:
        list(executor.map(race, range(callers)))


@pytest.mark.parametrize(
    "callers",
    [pytest.param(3, marks=pytest.mark.slow), pytest.param(50, marks=[pytest.mark.long, pytest.mark.timeout(900)])],
)
def test_callers_race_in_every_situation(
    callers: int, dsn: str, schema: str, connection: psycopg.Connection, tmp_path: Path
) -> None:
    place = Place(tmp_path)
    place.hold("stops")
    graphs = {"chat": graph_of(place)}
    with PGState.open(dsn, schema=schema) as state, worker(AsyncWorker, dsn, schema, graphs, concurrency=32):
        for thread in THREADS:
            situation = thread.partition(", ")[2]
            queue = "later" if situation == "pending" else "default"
            given = {"messages": [HumanMessage(situation, id=FIRST)]}
            state.runs.enqueue("chat", given, thread_id=thread, run_id=f"{thread} {FIRST}", queue=queue)
        stopping = [thread for thread in THREADS if thread.endswith(("running", "tool"))]
        for thread in stopping:
            place.wait_for(f"stopped {thread}")
        asked = f"SELECT count(*) FROM {schema}.runs WHERE status = 'interrupted'".encode()
        wait_until(lambda: connection.execute(asked).fetchone() == (len(STRATEGIES),), "the interrupts")
        assert run_children(call, [(dsn, schema, number, callers, place) for number in range(2)]) == ["", ""]
        place.release("stops")
        with worker(AsyncWorker, dsn, schema, graphs, concurrency=32, queues=["default", "later"]):
            wait_for_ends(connection, schema)
        query = f"SELECT run_id, status FROM {schema}.runs".encode()
        found = dict(connection.execute(query).fetchall())
        accepted = {note.removeprefix("accepted ") for note, _ in place.notes() if note.startswith("accepted")}
        for thread in THREADS:
            check(thread, place, found, {run for run in accepted if run.startswith(f"{thread} ")}, 2 * callers)
            messages = messages_of(state, thread)
            heard = [str(one.content).removeprefix("heard ") for one in messages if isinstance(one, AIMessage)]
            succeeded = {run for run, status in found.items() if run.startswith(f"{thread} ") and status == "success"}
            of_callers = [one for one in heard if one.startswith(f"{thread} ")]
            # What has succeeded is in the state, once, and of what was rolled back nothing.
            kept = {run for run in found if run in of_callers and found[run] == "interrupted"}
            assert sorted(of_callers) == sorted((succeeded | kept) - {f"{thread} {FIRST}"})
            if thread.startswith("rollback") and not thread.endswith("interrupted"):
                assert FIRST not in [one.id for one in messages]


def check(thread: str, place: Place, found: dict[str, str], accepted: set[str], callers: int) -> None:
    """Assert what became of the runs of a thread."""
    strategy, _, situation = thread.partition(", ")
    assert most_at_once(place, thread) == 1
    first = found.get(f"{thread} {FIRST}")
    ended = {run: found.get(run) for run in accepted}
    was_busy = situation != "interrupted"
    if strategy == "reject" and was_busy:
        assert (first, accepted) == ("success", set())
    elif strategy == "reject":
        assert first == "interrupted"
        assert set(ended.values()) == {"success"}
    elif strategy == "enqueue":
        assert (first, len(accepted)) == ("success" if was_busy else "interrupted", callers)
        assert set(ended.values()) == {"success"}
    elif strategy == "interrupt":
        assert (first, len(accepted)) == ("interrupted", callers)
        assert set(ended.values()) <= {"success", "interrupted"}
    else:
        assert (first, len(accepted)) == (None if was_busy else "interrupted", callers)
        assert set(ended.values()) <= {"success", None}
    assert strategy == "reject" or "success" in ended.values()


def most_at_once(place: Place, thread: str) -> int:
    """The number of runs of a thread that were in the model at once, at most."""
    running, most = set[str](), 0
    for note, _ in place.notes():
        what, _, run = note.partition(" ")
        if run.startswith(f"{thread}/"):
            running.add(run) if what == "begin" else running.discard(run)
            most = max(most, len(running))
    return most


def messages_of(state: PGState, thread: str) -> list[Any]:
    """The messages of a thread."""
    found = state.saver.get_tuple({"configurable": {"thread_id": thread}})
    return [] if found is None else list(found.checkpoint["channel_values"]["messages"])
