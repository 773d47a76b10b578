"""Drawings and JSON schemas of graphs, by LangGraph's client."""

from __future__ import annotations

from langgraph.graph import START, StateGraph
from langgraph_sdk.client import LangGraphClient
from support.http import sdk, serving


async def test_a_graph_is_drawn(client: LangGraphClient) -> None:
    plain = await client.assistants.get_graph("asking")
    assert [node["id"] for node in plain["nodes"]] == ["__start__", "count", "approval", "__end__"]
    for depth in (True, 1):
        deep = await client.assistants.get_graph("asking", xray=depth)
        assert "approval:ask" in [node["id"] for node in deep["nodes"]]


async def test_a_graph_has_schemas(client: LangGraphClient) -> None:
    schemas = await client.assistants.get_schemas("chat")
    for name in ("input_schema", "output_schema", "state_schema"):
        assert [*schemas[name]["properties"]] == ["messages"]  # type: ignore[literal-required]
    assert [*(schemas["context_schema"] or {})["properties"]] == ["seconds"]
    subgraphs = await client.assistants.get_subgraphs("asking", recurse=True)
    assert [*subgraphs] == ["approval"]
    assert await client.assistants.get_subgraphs("asking", namespace="approval") == subgraphs
    assert await client.assistants.get_subgraphs("asking", namespace="none") == {}


async def test_types_without_a_schema_leave_it_out(dsn: str, schema: str) -> None:
    class Opaque:
        """Nothing that pydantic knows."""

    builder = StateGraph(dict)
    builder.add_node("pass", lambda state: state)
    builder.add_edge(START, "pass")
    builder.context_schema = Opaque  # type: ignore[assignment]
    async with serving(dsn, schema, graphs={"opaque": builder}) as server, sdk(server) as client:
        assert (await client.assistants.get_schemas("opaque"))["context_schema"] is None
