"""A collector of OpenTelemetry over HTTP, and a graph whose runs have spans of every kind."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from langchain_core.messages import AIMessage
from langchain_core.retrievers import BaseRetriever
from langchain_core.tools import tool
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from support.recorder import USAGE, Model

CALLER = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@dataclass
class Reply:
    """The response of a collector."""

    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    seconds: float = 0.0


class Collector:
    """A collector that stores received spans. It responds with `replies` first, then 200."""

    def __init__(self, port: int = 0) -> None:
        self.replies: list[Reply] = []
        self.refuses: set[str] = set()
        self.requests: list[ExportTraceServiceRequest] = []
        self.headers: list[dict[str, str]] = []
        self.asked: list[float] = []
        self.port = port
        self._server: ThreadingHTTPServer | None = None

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Listen, on the same port each time."""
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                collector._take(self)

            def log_message(self, *arguments: Any) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", self.port), Handler)
        self.port = self._server.server_port
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def stop(self) -> None:
        """Refuse connections."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None

    def _take(self, handler: BaseHTTPRequestHandler) -> None:
        self.asked.append(time.monotonic())
        assert handler.path == "/v1/traces"
        request = ExportTraceServiceRequest.FromString(handler.rfile.read(int(handler.headers["Content-Length"])))
        reply = self.replies.pop(0) if self.replies else Reply()
        if any(attributes(span)["pgstate.span.id"] in self.refuses for span in spans_of([request])):
            reply = Reply(400)
        time.sleep(reply.seconds)
        if reply.status == 200:
            self.requests.append(request)
            self.headers.append(dict(handler.headers))
        body = reply.body or ExportTraceServiceResponse().SerializeToString()
        handler.send_response(reply.status)
        for name, value in {**reply.headers, "Content-Length": str(len(body))}.items():
            handler.send_header(name, value)
        handler.end_headers()
        handler.wfile.write(body)

    @property
    def spans(self) -> list[Span]:
        """All spans that arrived, in their order."""
        return spans_of(list(self.requests))

    @property
    def by_id(self) -> dict[str, Span]:
        """The spans by their recorded id. Raise if two with one id differ."""
        found: dict[bytes, bytes] = {}
        for span in self.spans:
            assert found.setdefault(span.span_id, span.SerializeToString(deterministic=True)) == (
                span.SerializeToString(deterministic=True)
            ), span
        return {str(attributes(span)["pgstate.span.id"]): span for span in self.spans}

    @property
    def counts(self) -> Counter[str]:
        """How often each span arrived."""
        return Counter(str(attributes(span)["pgstate.span.id"]) for span in self.spans)


def spans_of(requests: Sequence[ExportTraceServiceRequest]) -> list[Span]:
    return [
        span
        for request in requests
        for resource in request.resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    ]


def attributes(span: Any) -> dict[str, Any]:
    """Return the attributes of a span or a resource as Python values."""
    return {one.key: _value(one.value) for one in span.attributes}


def _value(value: AnyValue) -> Any:
    kind = value.WhichOneof("value")
    return [_value(one) for one in value.array_value.values] if kind == "array_value" else getattr(value, str(kind))


@contextmanager
def collecting() -> Iterator[Collector]:
    """Provide a collector that listens."""
    collector = Collector()
    collector.start()
    try:
        yield collector
    finally:
        collector.stop()


@tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


class Library(BaseRetriever):
    """A retriever that finds nothing."""

    def _get_relevant_documents(self, query: str, *, run_manager: Any) -> list[Any]:
        return []


def travel_graph() -> StateGraph[Any, Any, Any, Any]:
    """Return a graph with a model that calls a tool, and a retriever."""

    def think(state: MessagesState) -> dict[str, Any]:
        said = state["messages"][-1]
        call = {"name": "add", "args": {"a": 1, "b": 2}, "id": "call-1"}
        answer = AIMessage(
            "" if said.type == "human" else "It is 3.",
            tool_calls=[call] if said.type == "human" else [],
            usage_metadata=USAGE,  # type: ignore[arg-type]
            response_metadata={"model_name": "gpt-x-2026", "finish_reason": "stop", "id": "resp-1"},
        )
        return {"messages": [Model(messages=iter([answer])).invoke(state["messages"])]}

    def look(state: MessagesState) -> dict[str, Any]:
        Library().invoke("trains to Prague")
        return {}

    builder = StateGraph(MessagesState)
    builder.add_node(think)
    builder.add_node(look)
    builder.add_node("tools", ToolNode([add]))
    builder.add_edge(START, "think")
    builder.add_edge("tools", "look")
    builder.add_edge("look", "think")
    builder.add_conditional_edges("think", lambda state: "tools" if state["messages"][-1].tool_calls else "__end__")
    return builder
