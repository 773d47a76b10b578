"""The server over ASGI, with LangGraph's own client, and graphs to serve."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import httpx
import uvicorn
from langchain_core.language_models import GenericFakeChatModel
from langchain_core.messages import AIMessage
from langgraph.config import get_stream_writer
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.types import interrupt
from langgraph_sdk.client import LangGraphClient
from typing_extensions import TypedDict

from langgraph_pgstate import AsyncPGState
from langgraph_pgstate.server import AgentServer, create_app

ANSWER = "Prague has a river."
CHANNELS = ("values", "updates", "messages", "tools", "lifecycle", "input", "checkpoints", "tasks", "custom")
HELLO: dict[str, Any] = {"messages": [{"role": "user", "content": "Hello.", "id": "human-1"}]}


class Steps(TypedDict, total=False):
    """The state of `counting`."""

    count: int
    answer: str


class Settings(TypedDict, total=False):
    """The context of `chat`."""

    seconds: float


async def speak(state: MessagesState) -> dict[str, Any]:
    """Answer by a model that streams words."""
    model = GenericFakeChatModel(messages=iter([AIMessage(ANSWER, id=f"ai-{len(state['messages'])}")]))
    return {"messages": [await model.ainvoke(state["messages"])]}


def chat() -> Any:
    """Return a graph that answers a message."""
    builder = StateGraph(MessagesState, context_schema=Settings)
    builder.add_node("speak", speak)
    builder.add_edge(START, "speak").add_edge("speak", END)
    return builder.compile()


def asking() -> Any:
    """Return a graph with a subgraph that asks a person."""

    def ask(state: Steps) -> Steps:
        return {"answer": str(interrupt({"question": "Go on?"}))}

    inner = StateGraph(Steps)
    inner.add_node("ask", ask)
    inner.add_edge(START, "ask").add_edge("ask", END)
    builder = StateGraph(Steps)
    builder.add_node("count", lambda state: {"count": state.get("count", 0) + 1})
    builder.add_node("approval", inner.compile())
    builder.add_edge(START, "count").add_edge("count", "approval").add_edge("approval", END)
    return builder.compile()


def slow() -> Any:
    """Return a graph of supersteps that take a while: `count` of them."""

    async def wait(state: Steps) -> Steps:
        await asyncio.sleep(0.05)
        return {"count": state.get("count", 0) - 1}

    builder = StateGraph(Steps)
    builder.add_node("wait", wait)
    builder.add_edge(START, "wait")
    builder.add_conditional_edges("wait", lambda state: "wait" if state["count"] > 0 else END, ["wait", END])
    return builder.compile()


def stuck() -> Any:
    """Return a graph whose only superstep takes a minute."""

    async def wait(state: Steps) -> Steps:
        await asyncio.sleep(60)
        return {"count": 0}

    return StateGraph(Steps).add_node("wait", wait).add_edge(START, "wait").compile()


def large() -> Any:
    """Return a graph that streams more than the buffers of a connection take."""

    def write(state: Steps) -> Steps:
        for _ in range(100):
            get_stream_writer()("x" * 200_000)
        return {"count": 0}

    return StateGraph(Steps).add_node("write", write).add_edge(START, "write").compile()


def failing() -> Any:
    """Return a graph that fails."""

    def fail(state: Steps) -> Steps:
        raise ValueError("no such hotel")

    builder = StateGraph(Steps)
    builder.add_node("fail", fail)
    builder.add_edge(START, "fail").add_edge("fail", END)
    return builder.compile()


def graphs() -> dict[str, Any]:
    """Return all of them, by name."""
    return {"chat": chat(), "asking": asking(), "slow": slow(), "failing": failing()}


@asynccontextmanager
async def serving(dsn: str, schema: str, **options: Any) -> AsyncIterator[AgentServer]:
    """Provide a server that runs."""
    given = options.pop("graphs", None) or graphs()
    server = create_app(lambda: AsyncPGState.open(dsn, schema=schema), given, **options)
    async with server.lifespan():
        yield server


def http(server: Any, headers: Mapping[str, str] | None = None, prefix: str = "") -> httpx.AsyncClient:
    """Return a client of a server's bytes."""
    transport = httpx.ASGITransport(server, raise_app_exceptions=False)
    return httpx.AsyncClient(transport=transport, base_url=f"http://test{prefix}", headers=headers, timeout=60)


@asynccontextmanager
async def listening(server: Any, port: int = 0) -> AsyncIterator[str]:
    """Provide the address of an application that uvicorn serves on this loop; it runs already."""
    config = uvicorn.Config(server, host="127.0.0.1", port=port, lifespan="off", log_level="error", ws="none")
    uvicorn_server = uvicorn.Server(config)
    listener = socket.create_server(("127.0.0.1", port), reuse_port=True)
    address = f"http://127.0.0.1:{listener.getsockname()[1]}"
    # Without its handlers of signals, which are the test runner's.
    running = asyncio.create_task(uvicorn_server._serve([listener]))
    try:
        while not uvicorn_server.started:
            await asyncio.sleep(0.01)
        yield address
    finally:
        uvicorn_server.should_exit = True
        await running


@asynccontextmanager
async def sdk(
    server: Any, headers: Mapping[str, str] | None = None, prefix: str = ""
) -> AsyncIterator[LangGraphClient]:
    """LangGraph's client of a server."""
    async with http(server, headers, prefix) as client:
        yield LangGraphClient(client)


async def until_running(client: LangGraphClient, thread_id: str, run_id: str) -> None:
    """Wait until a run runs."""
    async with asyncio.timeout(60):
        while (await client.runs.get(thread_id, run_id))["status"] != "running":
            await asyncio.sleep(0.02)
