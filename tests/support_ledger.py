"""Ledgers of both colours through one face, and graphs whose tools leave traces."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.tools import BaseTool
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode

from langgraph_pgstate import AsyncPGStateSaver, PGStateSaver
from langgraph_pgstate.sql import queries
from langgraph_pgstate.tools import AsyncToolLedger, ToolLedger, ToolSettings

LEDGERS = [ToolLedger, AsyncToolLedger]


@contextmanager
def open_ledger(dsn: str, schema: str, **options: Any) -> Iterator[tuple[PGStateSaver, ToolLedger]]:
    """A blocking saver and a blocking ledger on the same pool."""
    with PGStateSaver.from_conn_string(dsn, schema=schema) as saver:
        saver.setup()
        ledger = ToolLedger(saver._database, queries(schema), **options)
        try:
            yield saver, ledger
        finally:
            ledger.close()


@asynccontextmanager
async def open_async_ledger(
    dsn: str, schema: str, **options: Any
) -> AsyncIterator[tuple[AsyncPGStateSaver, AsyncToolLedger]]:
    """Async twin of `open_ledger`."""
    async with AsyncPGStateSaver.from_conn_string(dsn, schema=schema) as saver:
        await saver.setup()
        ledger = AsyncToolLedger(saver._database, queries(schema), **options)
        try:
            yield saver, ledger
        finally:
            await ledger.close()


class Bench:
    """A saver, a ledger, and how to run a graph on them in their own colour."""

    def __init__(self, saver: Any, ledger: Any) -> None:
        self.saver, self.ledger = saver, ledger
        self.is_async = isinstance(ledger, AsyncToolLedger)

    async def do(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call a method of the ledger."""
        if self.is_async:
            answer = function(*args, **kwargs)
            return await answer if inspect.isawaitable(answer) else answer
        return await asyncio.to_thread(function, *args, **kwargs)

    async def invoke(self, graph: Any, *args: Any, **kwargs: Any) -> Any:
        """Run a graph."""
        if self.is_async:
            return await graph.ainvoke(*args, **kwargs)
        return await asyncio.to_thread(graph.invoke, *args, **kwargs)

    def tool_node(self, tools: list[Any], **options: Any) -> ToolNode:
        """A `ToolNode` on the ledger."""
        wrap = {"awrap_tool_call": self.ledger} if self.is_async else {"wrap_tool_call": self.ledger}
        return ToolNode(tools, **wrap, **options)

    def agent(self, tools: list[Any], *answers: AIMessage, **options: Any) -> Any:
        """A graph whose model says these answers one after the other, with a tool node."""
        return agent_graph(self.tool_node(tools, **options), *answers).compile(checkpointer=self.saver)


@asynccontextmanager
async def open_bench(colour: type, dsn: str, schema: str, **options: Any) -> AsyncIterator[Bench]:
    """A bench of either colour; by default patient enough to fail and quick enough to notice the dead."""
    options.setdefault("settings", ToolSettings(ttl_seconds=2.0, wait_seconds=30.0))
    if colour is ToolLedger:
        with open_ledger(dsn, schema, **options) as pair:
            yield Bench(*pair)
    else:
        async with open_async_ledger(dsn, schema, **options) as pair:
            yield Bench(*pair)


def agent_graph(tools: ToolNode | BaseTool | Any, *answers: AIMessage) -> StateGraph[Any, Any, Any, Any]:
    """A model that says the answer number n when n were said before, and a tool node."""

    def agent(state: MessagesState) -> dict[str, Any]:
        said = sum(isinstance(message, AIMessage) for message in state["messages"])
        return {
            "messages": [answers[said].model_copy(update={"id": None})] if said < len(answers) else [AIMessage("done")]
        }

    def route(state: MessagesState) -> str:
        last = state["messages"][-1]
        return "tools" if isinstance(last, AIMessage) and last.tool_calls else END

    builder = StateGraph(MessagesState)
    builder.add_node("agent", agent)
    builder.add_node("tools", tools)
    builder.add_edge(START, "agent")
    builder.add_conditional_edges("agent", route, ["tools", END])
    builder.add_edge("tools", "agent")
    return builder


def calls(*tool_calls: tuple[str, str, dict[str, Any]]) -> AIMessage:
    """A model's answer that calls tools: `(id, name, arguments)` each."""
    return AIMessage("", tool_calls=[{"id": id, "name": name, "args": args} for id, name, args in tool_calls])


def thread(thread_id: str = "t", **more: Any) -> dict[str, Any]:
    """A config."""
    return {"configurable": {"thread_id": thread_id, **more}}


def ask(text: str = "go") -> dict[str, Any]:
    """A turn's input."""
    return {"messages": [HumanMessage(text)]}


def tool_of(bench: Bench, name: str, function: Callable[..., Any]) -> Any:
    """A tool of the bench's colour from a blocking function."""
    from langchain_core.tools import StructuredTool

    if not bench.is_async:
        return StructuredTool.from_function(function, name=name, description=name)

    async def suspending(**kwargs: Any) -> Any:
        return function(**kwargs)

    from langchain_core.tools.base import create_schema_from_function

    schema = create_schema_from_function(name, function)
    return StructuredTool.from_function(coroutine=suspending, name=name, description=name, args_schema=schema)
