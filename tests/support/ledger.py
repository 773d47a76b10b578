"""Ledgers of both APIs through one interface, and graphs whose tools leave traces."""

from __future__ import annotations

import asyncio
import inspect
import selectors
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any

import psycopg
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.tools import BaseTool
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode

from langgraph_pgstate import AsyncPGStateSaver, PGStateSaver, RetryPolicy
from langgraph_pgstate.schema.queries import queries
from langgraph_pgstate.tools import AsyncToolLedger, ToolLedger, ToolSettings

LEDGERS = [ToolLedger, AsyncToolLedger]


@contextmanager
def open_ledger(dsn: str, schema: str, **options: Any) -> Iterator[tuple[PGStateSaver, ToolLedger]]:
    """Provide a blocking saver and a blocking ledger on the same pool."""
    with PGStateSaver.from_conn_string(dsn, schema=schema) as saver:
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
        ledger = AsyncToolLedger(saver._database, queries(schema), **options)
        try:
            yield saver, ledger
        finally:
            await ledger.close()


class Bench:
    """A saver and a ledger of one API, and methods that run graphs on them."""

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
        """Return a `ToolNode` on the ledger."""
        wrap = {"awrap_tool_call": self.ledger} if self.is_async else {"wrap_tool_call": self.ledger}
        return ToolNode(tools, **wrap, **options)

    def agent(self, tools: list[Any], *answers: AIMessage, **options: Any) -> Any:
        """Return a graph whose model says these answers one after the other, with a tool node."""
        return agent_graph(self.tool_node(tools, **options), *answers).compile(checkpointer=self.saver)


@asynccontextmanager
async def open_bench(api: type, dsn: str, schema: str, **options: Any) -> AsyncIterator[Bench]:
    """Provide a bench of either API; by default patient enough to fail and quick enough to notice the dead."""
    options.setdefault("settings", ToolSettings(ttl_seconds=2.0, wait_seconds=30.0))
    if api is ToolLedger:
        with open_ledger(dsn, schema, **options) as pair:
            yield Bench(*pair)
    else:
        async with open_async_ledger(dsn, schema, **options) as pair:
            yield Bench(*pair)


def agent_graph(tools: ToolNode | BaseTool | Any, *answers: AIMessage) -> StateGraph[Any, Any, Any, Any]:
    """Return a model that says the answer number n when n were said before, and a tool node."""

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
    """Return a model's answer that calls tools: `(id, name, arguments)` each."""
    return AIMessage("", tool_calls=[{"id": id, "name": name, "args": args} for id, name, args in tool_calls])


def thread(thread_id: str = "t", **more: Any) -> dict[str, Any]:
    """Return a config."""
    return {"configurable": {"thread_id": thread_id, **more}}


def ask(text: str = "go") -> dict[str, Any]:
    """Return a turn's input."""
    return {"messages": [HumanMessage(text)]}


def tool_of(bench: Bench, name: str, function: Callable[..., Any]) -> Any:
    """Return a tool of the bench's API from a blocking function."""
    from langchain_core.tools import StructuredTool

    if not bench.is_async:
        return StructuredTool.from_function(function, name=name, description=name)

    async def suspending(**kwargs: Any) -> Any:
        return function(**kwargs)

    from langchain_core.tools.base import create_schema_from_function

    schema = create_schema_from_function(name, function)
    return StructuredTool.from_function(coroutine=suspending, name=name, description=name, args_schema=schema)


class Line:
    """A TCP proxy before the server whose connections break when they are told to.

    Attributes:
        dsn: Connection string of the proxy.
        is_down: While true every connection is closed, and no new one is made.
        fault: Called with the bytes that a client sends. Returns `lose` to forward them and break the connection
            before the response, `cut` to break it at once, or `None`. May be called in several threads.
        latency: Seconds by which responses of the server are delayed.
    """

    def __init__(self, dsn: str, application: str = "ledger") -> None:
        info = psycopg.conninfo.conninfo_to_dict(dsn)
        host, port = str(info.get("host", "")), str(info.get("port", 5432))
        self._target: Any = f"{host}/.s.PGSQL.{port}" if host.startswith("/") else (host or "127.0.0.1", int(port))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._is_down = False
        self.fault: Callable[[bytes], str | None] = lambda data: None
        self.latency = 0.0
        changed = {"host": "127.0.0.1", "port": self._listener.getsockname()[1], "sslmode": "disable"}
        self.dsn = psycopg.conninfo.make_conninfo(dsn, **changed, gssencmode="disable", application_name=application)
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def is_down(self) -> bool:
        return self._is_down

    @is_down.setter
    def is_down(self, value: bool) -> None:
        with self._lock:
            self._is_down = value
            for each in self._open if value else ():
                with suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Take no more connections, and break those there are."""
        self.is_down = True
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                threading.Thread(target=self._forward, args=(client,), daemon=True).start()

    def _forward(self, client: socket.socket) -> None:
        family = socket.AF_UNIX if isinstance(self._target, str) else socket.AF_INET
        with client, socket.socket(family) as server, suppress(OSError):
            with self._lock:
                if self._is_down:
                    return
                self._open |= {client}
            try:
                server.connect(self._target)
                self._copy(client, server)
            finally:
                with self._lock:
                    self._open.discard(client)

    def _copy(self, client: socket.socket, server: socket.socket) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(client, selectors.EVENT_READ)
            selector.register(server, selectors.EVENT_READ)
            is_losing = False
            while True:
                for key, _ in selector.select():
                    is_client = key.fileobj is client
                    data = key.fileobj.recv(65536)  # type: ignore[union-attr]
                    if not data or (is_losing and not is_client):
                        return
                    fault = self.fault(data) if is_client else None
                    if fault == "cut":
                        return
                    is_losing = is_losing or fault == "lose"
                    if not is_client and self.latency:
                        time.sleep(self.latency)
                    (server if is_client else client).sendall(data)


@asynccontextmanager
async def open_on_line(
    api: type, dsn: str, schema: str, retry: RetryPolicy | None = None, pool: bool = True, **options: Any
) -> AsyncIterator[tuple[Bench, Line]]:
    """Provide a bench whose ledger, but not its saver, is connected through a line that may break.

    A pool takes its time to connect again after an outage; one connection does so at once.
    """
    line = Line(dsn)
    settings = {"retry": retry or RetryPolicy(attempts=2), "pool": pool}
    options.setdefault("settings", ToolSettings(ttl_seconds=2.0, wait_seconds=30.0))
    try:
        if api is ToolLedger:
            with (
                PGStateSaver.from_conn_string(dsn, schema=schema) as saver,
                PGStateSaver.from_conn_string(line.dsn, schema=schema, **settings) as other,
            ):
                ledger = ToolLedger(other._database, queries(schema), **options)
                yield Bench(saver, ledger), line
                line.is_down = False
                ledger.close()
        else:
            async with (
                AsyncPGStateSaver.from_conn_string(dsn, schema=schema) as asaver,
                AsyncPGStateSaver.from_conn_string(line.dsn, schema=schema, **settings) as aother,
            ):
                aledger = AsyncToolLedger(aother._database, queries(schema), **options)
                yield Bench(asaver, aledger), line
                line.is_down = False
                await aledger.close()
    finally:
        line.close()
