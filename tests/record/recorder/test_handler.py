"""Callbacks of LangChain and LangGraph, whatever graph or agent makes them."""

from __future__ import annotations

import asyncio
import operator
import threading
from typing import Annotated, Any, TypedDict

import anyio
import psycopg
import pytest
from langchain_core.language_models.fake_chat_models import FakeListChatModel
from langchain_core.messages import AIMessage
from langchain_core.tools import tool
from langgraph.func import entrypoint, task
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.types import Send
from support import GUARD_SECONDS
from support.ledger import ask, thread
from support.recorder import config, model, recording, rows

from langgraph_pgstate import AsyncPGState
from tests.record.recorder.test_recorders import Connection, add, hello, simple

pytestmark = pytest.mark.smoke


class Fan(TypedDict):
    items: Annotated[list[str], operator.add]


def test_parallel_tasks_are_spans_of_their_own(dsn: str, schema: str, connection: Connection) -> None:
    graph = StateGraph(Fan)
    graph.add_node("work", lambda state: {"items": [state["items"][0]]})
    graph.add_conditional_edges(START, lambda state: [Send("work", {"items": [str(n)]}) for n in range(5)])
    with recording(dsn, schema) as (saver, recorder):
        recorder.record(graph.compile(checkpointer=saver)).invoke({"items": []}, config())
    spans = rows(connection, schema, "spans", kind="node", node="work")
    assert len({span["task_id"] for span in spans}) == len(spans) == 5
    assert {span["input"]["items"][0] for span in spans} == set("01234")


def test_the_functional_api_is_recorded(dsn: str, schema: str, connection: Connection) -> None:
    @task
    def double(number: int) -> int:
        return number * 2

    with recording(dsn, schema) as (saver, recorder):

        @entrypoint(checkpointer=saver)
        def workflow(numbers: list[int]) -> int:
            return sum(future.result() for future in [double(number) for number in numbers])

        assert recorder.record(workflow).invoke([1, 2, 3], config()) == 12
    kinds = [(span["kind"], span["node"], span["checkpoint_ns"]) for span in rows(connection, schema, "spans")]
    assert kinds[:2] == [("graph", None, None), ("node", "workflow", "")]
    assert kinds[2:] == [("node", "double", "")] * 3


@pytest.mark.parametrize("bound", [False, True])
async def test_a_run_is_recorded_on_its_thread_whatever_its_metadata_say(
    bound: bool, dsn: str, schema: str, connection: Connection
) -> None:
    graph = StateGraph(MessagesState)
    graph.add_node("speak", lambda state: {"messages": [AIMessage("Hello.")]})
    graph.add_edge(START, "speak")
    # An update of the state is a run if the node has several writers.
    graph.add_conditional_edges("speak", lambda _: END)
    other: Any = {"metadata": {"thread_id": "other"}}
    async with AsyncPGState.open(dsn, schema=schema) as state:
        recorded: Any = state.record(graph.compile(checkpointer=state.saver)).with_config(other if bound else None)
        for n in range(2):
            await recorded.ainvoke({"messages": []}, {"configurable": {"thread_id": f"t-{n}"}, **other})
        recorded = recorded.with_config({"configurable": {"thread_id": "t-2"}})
        async for _ in recorded.astream({"messages": []}, other):
            pass
        async for _ in state.record(recorded).astream_events({"messages": []}, other, version="v2"):
            pass
        at: Any = {"configurable": {"thread_id": "t-0"}, **other}
        await recorded.aupdate_state(at, {"messages": []})
        await asyncio.to_thread(recorded.update_state, at, {"messages": []})
    on = ["t-0", "t-1", "t-2", "t-2", "t-0", "t-0"]
    assert [run["thread_id"] for run in rows(connection, schema, "runs")] == on
    assert {span["thread_id"] for span in rows(connection, schema, "spans")} == {"t-0", "t-1", "t-2"}


def test_a_recorder_works_as_a_plain_callback_and_without_a_thread(
    dsn: str, schema: str, connection: Connection
) -> None:
    def work(state: MessagesState) -> Any:
        return {"messages": [AIMessage("done")]}

    with recording(dsn, schema, hook=False) as (saver, recorder):
        simple(saver, work).invoke(hello(), {**config(), "callbacks": [recorder]})
        simple(None, work).invoke(hello(), {"callbacks": [recorder]})
    with_thread, without = rows(connection, schema, "runs")
    assert with_thread["thread_id"] == "t"
    assert without["thread_id"] == without["run_id"]
    assert [thread["thread_id"] for thread in rows(connection, schema, "threads")] == ["t"]


def test_an_agent_of_langchain_is_recorded(dsn: str, schema: str, connection: Connection) -> None:
    agents = pytest.importorskip("langchain.agents")
    call = {"name": "add", "args": {"a": 1, "b": 2}, "id": "call-1"}
    asked = model(AIMessage("", tool_calls=[call]), AIMessage("three"))
    with recording(dsn, schema) as (saver, recorder):
        graph = recorder.record(agents.create_agent(asked, [add], name="adder", checkpointer=saver))
        graph.invoke(hello(), config())
    spans = rows(connection, schema, "spans")
    assert {span["agent"] for span in spans} == {"adder"}
    assert [span["kind"] for span in spans if span["kind"] in ("llm", "tool")] == ["llm", "tool", "llm"]
    assert rows(connection, schema, "runs")[0]["agent"] == "adder"


@pytest.mark.parametrize("how", ["task", "anyio"])
async def test_a_tool_that_starts_after_its_run_was_cancelled_is_no_run(
    dsn: str, schema: str, connection: psycopg.Connection, how: str
) -> None:
    """A thread cannot be cancelled, and the graph does not wait for it."""
    begun, ended, done = threading.Event(), threading.Event(), threading.Event()
    model = FakeListChatModel(responses=["hello"])

    @tool
    def charge(order: str) -> str:
        """Charge a card, after asking a model."""
        model.invoke("may I?")
        return "charged"

    def node(state: MessagesState) -> dict[str, Any]:
        begun.set()
        ended.wait(GUARD_SECONDS)
        charge.invoke({"order": "o1"})
        done.set()
        return {"messages": [AIMessage("done")]}

    async def until(event: threading.Event) -> None:
        async with asyncio.timeout(60):
            while not event.is_set():
                await asyncio.sleep(0.005)

    async with AsyncPGState.open(dsn, schema=schema) as state:
        builder = StateGraph(MessagesState)
        builder.add_node("node", node)
        builder.add_edge(START, "node")
        graph = state.record(builder.compile(checkpointer=state.saver))
        if how == "anyio":
            with anyio.CancelScope() as scope:

                async def cancel() -> None:
                    await until(begun)
                    scope.cancel()

                cancelling = asyncio.create_task(cancel())
                await graph.ainvoke(ask(), thread())
            await cancelling
            assert scope.cancelled_caught
        else:
            running = asyncio.create_task(graph.ainvoke(ask(), thread()))
            await until(begun)
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
        ended.set()
        await until(done)
        await state.flush()
    runs = connection.execute(f"SELECT agent, status FROM {schema}.runs").fetchall()
    assert runs == [(None, "cancelled")]
