"""What a run's tasks still do after it has ended is no run of its own."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import anyio
import psycopg
import pytest
from langchain_core.language_models.fake_chat_models import FakeListChatModel
from langchain_core.messages import AIMessage
from langchain_core.tools import tool
from langgraph.graph import START, MessagesState, StateGraph
from support_ledger import ask, thread

from langgraph_pgstate import AsyncPGState


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
        ended.wait(30)
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
