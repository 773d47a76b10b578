"""Assistants: each graph is one, under its name and under a UUID made of it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from langchain_core.runnables import RunnableConfig
from langgraph.graph.state import CompiledStateGraph
from langgraph.pregel import Pregel
from pydantic import TypeAdapter

from langgraph_pgstate.operations.runs.webhooks import assistant_id_of
from langgraph_pgstate.runs.graphs import GraphSource
from langgraph_pgstate.saver import AsyncPGStateSaver
from langgraph_pgstate.server.auth import Scope, contains
from langgraph_pgstate.server.errors import missing
from langgraph_pgstate.server.json import answer, selected
from langgraph_pgstate.types import Thread

if TYPE_CHECKING:
    from starlette.responses import Response

    from langgraph_pgstate.server.bodies import AssistantCount
    from langgraph_pgstate.server.service import Call

Graph = Pregel[Any, Any, Any, Any]


class Assistants:
    """The graphs that are served.

    Args:
        sources: The graphs by name.
        saver: Reads and writes their states.
    """

    def __init__(self, sources: Mapping[str, GraphSource], saver: AsyncPGStateSaver) -> None:
        self._sources, self._saver = sources, saver
        self._ids = {assistant_id_of(name): name for name in sources}
        self._created_at = datetime.now(UTC)

    def resolve(self, assistant_id: str) -> str:
        """Return the graph's name of an assistant.

        Raises:
            HTTPException: 404 if there is no such assistant.
        """
        name = self._ids.get(assistant_id, assistant_id)
        if name not in self._sources:
            raise missing("assistant", assistant_id)
        return name

    def id_of(self, name: str) -> str:
        """Return the id of a graph's assistant."""
        return assistant_id_of(name)

    def describe(self, name: str) -> dict[str, Any]:
        """Return a graph's assistant."""
        return {
            "assistant_id": self.id_of(name),
            "graph_id": name,
            "name": name,
            "description": None,
            "config": {},
            "context": {},
            "metadata": {"created_by": "system"},
            "version": 1,
            "created_at": self._created_at,
            "updated_at": self._created_at,
        }

    def search(self, wanted: AssistantCount, scope: Scope | None) -> list[dict[str, Any]]:
        """Return the assistants that fulfil some conditions."""
        return [
            one
            for one in map(self.describe, self._sources)
            if (wanted.graph_id in (None, one["graph_id"]))
            and (wanted.name or "").lower() in one["name"].lower()
            and contains(one["metadata"], {**(wanted.metadata or {}), **(scope or {})})
        ]

    def named(self, metadata: Mapping[str, Any]) -> str | None:
        """Return the name of the graph that a thread's metadata name, if it is one of these."""
        name = metadata.get("graph_id")
        return name if isinstance(name, str) and name in self._sources else None

    def graph_of(self, thread: Thread) -> str | None:
        """Return the name of the graph that runs on a thread, if it is one of these."""
        return self.named(thread.metadata) or self.named({"graph_id": thread.agent})

    @asynccontextmanager
    async def open(self, name: str) -> AsyncIterator[Graph]:
        """Provide a graph with the saver."""
        async with self._sources[name].aopen({"configurable": {"graph_id": name}}) as graph:
            yield graph.copy({"checkpointer": self._saver})


async def search(call: Call) -> Response:
    """Answer a page of assistants."""
    wanted = call.body
    value = {"graph_id": wanted.graph_id, "metadata": {}, "limit": wanted.limit, "offset": wanted.offset}
    found = call.service.assistants.search(wanted, await call.authorize("assistants", "search", value))
    found.sort(key=lambda one: str(one[wanted.sort_by or "name"]), reverse=wanted.sort_order == "desc")
    page = found[wanted.offset : wanted.offset + wanted.limit]
    headers = page_headers(wanted.offset, len(page), len(found) > wanted.offset + len(page))
    return answer([selected(one, wanted.select) for one in page], headers=headers)


async def count(call: Call) -> int:
    """Answer the number of assistants."""
    value = {"graph_id": call.body.graph_id, "metadata": {}, "limit": 0, "offset": 0}
    return len(call.service.assistants.search(call.body, await call.authorize("assistants", "search", value)))


async def get(call: Call) -> dict[str, Any]:
    """Answer one assistant."""
    return call.service.assistants.describe(await _named(call))


async def get_graph(call: Call) -> dict[str, Any]:
    """Answer the drawing of a graph."""
    xray = call.query("xray") or "false"
    depth: int | bool = int(xray) if xray.isdecimal() else call.flag("xray")
    async with call.service.assistants.open(await _named(call)) as graph:
        return (await graph.aget_graph(xray=depth)).to_json()


async def get_schemas(call: Call) -> dict[str, Any]:
    """Answer the JSON schemas of a graph."""
    name = await _named(call)
    async with call.service.assistants.open(name) as graph:
        return {"graph_id": name, **_schemas(graph)}


async def get_subgraphs(call: Call) -> dict[str, Any]:
    """Answer the JSON schemas of a graph's subgraphs, by namespace."""
    name = await _named(call)
    namespace = call.request.path_params.get("namespace")
    async with call.service.assistants.open(name) as graph:
        found = graph.aget_subgraphs(namespace=namespace, recurse=call.flag("recurse"))
        return {ns: {"graph_id": name, **_schemas(one)} async for ns, one in found if isinstance(one, Pregel)}


def page_headers(offset: int, count: int, has_more: bool) -> dict[str, str]:
    """Return the headers of a page: where the next one begins, and how many items are known of."""
    following = offset + count
    if not has_more:
        return {"X-Pagination-Total": str(following)}
    return {"X-Pagination-Next": str(following), "X-Pagination-Total": str(following + 1)}


async def _named(call: Call) -> str:
    """Return the graph's name of the assistant that the path names, if the caller may see it."""
    assistant_id = call.path("assistant_id")
    scope = await call.authorize("assistants", "read", {"assistant_id": assistant_id})
    name = call.service.assistants.resolve(assistant_id)
    if not contains(call.service.assistants.describe(name)["metadata"], scope or {}):
        raise missing("assistant", assistant_id)
    return name


def _schemas(graph: Graph) -> dict[str, Any]:
    context = _schema(graph.get_context_jsonschema)
    return {
        "input_schema": _schema(graph.get_input_jsonschema),
        "output_schema": _schema(graph.get_output_jsonschema),
        "state_schema": _schema(lambda: _state_schema(graph)),
        # Older clients know the context by this name.
        "config_schema": context or {},
        "context_schema": context,
    }


def _schema(make: Any) -> Any:
    """Return a JSON schema; `None` if the types have none."""
    try:
        return make()
    except Exception:
        # pydantic raises errors of many types for types that it does not know.
        return None


def _state_schema(graph: Graph) -> Any:
    if isinstance(graph, CompiledStateGraph):
        return TypeAdapter(graph.builder.state_schema).json_schema()
    return graph.copy({"output_channels": graph.stream_channels_list}).get_output_jsonschema()


def config_at(thread_id: str, **configurable: Any) -> RunnableConfig:
    """Return the config of a thread, or of one of its checkpoints."""
    return {"configurable": {**configurable, "thread_id": thread_id}}
