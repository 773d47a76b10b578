"""Handlers that return drawings and JSON schemas of assistants' graphs."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from typing import Any

from langgraph.graph.state import CompiledStateGraph
from langgraph.pregel import Pregel
from pydantic import TypeAdapter

from langgraph_pgstate.server.assistants import Chosen, choose_by_path
from langgraph_pgstate.server.errors import refuse
from langgraph_pgstate.server.graphs import Graph
from langgraph_pgstate.server.service import Call


async def get_graph(call: Call) -> dict[str, Any]:
    """Return the drawing of a graph.

    `xray` is `true`, `false` or a number of levels.
    """
    xray = (call.query("xray") or "false").lower()
    depth: int | bool = call.number("xray", 0) or False if xray.isdecimal() else xray == "true"
    if depth is False and xray != "false":
        raise refuse(422, f"xray must be true, false or a number of levels from 1, not {xray!r}")
    wanted = await choose_by_path(call)
    async with _opened(call, wanted) as graph:
        return (await graph.aget_graph(xray=depth)).to_json()


async def get_schemas(call: Call) -> dict[str, Any]:
    """Return the JSON schemas of a graph.

    Types that have no JSON schema are left out.
    """
    wanted = await choose_by_path(call)
    async with _opened(call, wanted) as graph:
        return {"graph_id": wanted.graph, **_schemas(graph)}


async def get_subgraphs(call: Call) -> dict[str, Any]:
    """Return the JSON schemas of a graph's subgraphs, by namespace."""
    wanted = await choose_by_path(call)
    name = wanted.graph
    namespace = call.request.path_params.get("namespace")
    async with _opened(call, wanted) as graph:
        found = graph.aget_subgraphs(namespace=namespace, recurse=call.flag("recurse"))
        return {ns: {"graph_id": name, **_schemas(one)} async for ns, one in found if isinstance(one, Pregel)}


def _opened(call: Call, wanted: Chosen) -> AbstractAsyncContextManager[Graph]:
    config = wanted.config_of({})
    configurable = {**config.get("configurable", {}), "assistant_id": wanted.assistant_id}
    return call.graph(wanted.graph, {**config, "configurable": configurable}, "assistants.read")


def _schemas(graph: Graph) -> dict[str, Any]:
    context = _schema(graph.get_context_jsonschema)
    return {
        "input_schema": _schema(graph.get_input_jsonschema),
        "output_schema": _schema(graph.get_output_jsonschema),
        "state_schema": _schema(lambda: _state_schema(graph)),
        # Older clients read the context's schema under this name.
        "config_schema": context or {},
        "context_schema": context,
    }


def _schema(make: Any) -> Any:
    """Return a JSON schema; `None` if the types have no schema."""
    try:
        return make()
    except Exception:
        # pydantic raises various errors for types that it does not know.
        return None


def _state_schema(graph: Graph) -> Any:
    if isinstance(graph, CompiledStateGraph):
        return TypeAdapter(graph.builder.state_schema).json_schema()
    return graph.copy({"output_channels": graph.stream_channels_list}).get_output_jsonschema()
