"""Graphs as assistants, by LangGraph's client."""

from __future__ import annotations

from typing import Any
from uuid import NAMESPACE_DNS, uuid4

import pytest
from langgraph.graph import START, StateGraph
from langgraph_sdk.client import LangGraphClient
from langgraph_sdk.errors import NotFoundError
from support_http import Steps, sdk, serving


async def test_a_graph_is_an_assistant_under_its_name_and_its_id(client: LangGraphClient) -> None:
    [found] = await client.assistants.search(graph_id="chat")
    assert found == await client.assistants.get("chat") == await client.assistants.get(found["assistant_id"])
    # The id that LangGraph's own server gives the graph.
    assert found["assistant_id"] == "eb6db400-e3c8-5d06-a834-015cb89efe69" != NAMESPACE_DNS
    assert (found["name"], found["version"], found["metadata"]) == ("chat", 1, {"created_by": "system"})
    for unknown in ("nothing", str(uuid4())):
        with pytest.raises(NotFoundError):
            await client.assistants.get(unknown)


async def test_assistants_are_searched_and_counted(client: LangGraphClient) -> None:
    async def names(**filters: Any) -> list[str]:
        return [one["name"] for one in await client.assistants.search(**filters)]

    assert await names() == ["asking", "chat", "failing", "slow"]
    assert await names(sort_by="name", sort_order="desc", limit=2, offset=1) == ["failing", "chat"]
    assert await names(name="CHA") == ["chat"]
    assert await names(metadata={"created_by": "eve"}) == []
    assert await client.assistants.search(name="slow", select=["graph_id"]) == [{"graph_id": "slow"}]
    assert await client.assistants.count() == 4
    assert await client.assistants.count(graph_id="none") == 0
    page: Any = await client.assistants.search(limit=3, response_format="object")
    assert (len(page["assistants"]), page["next"]) == (3, "3")


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


async def test_a_factory_makes_the_graph_for_each_call(dsn: str, schema: str) -> None:
    made = []

    async def make(config: Any) -> Any:
        made.append(config["configurable"])
        builder = StateGraph(Steps)
        builder.add_node("count", lambda state: {"count": 1})
        builder.add_edge(START, "count")
        return builder

    async with serving(dsn, schema, graphs={"made": make}) as server, sdk(server) as client:
        assert await client.assistants.get_graph("made")
        assert await client.runs.wait("t", "made", input={}, if_not_exists="create") == {"count": 1}
        assert (await client.threads.get_state("t"))["values"] == {"count": 1}
    assert made[0] == {"graph_id": "made"}
    assert made[1]["thread_id"] == "t"


async def test_types_without_a_schema_leave_it_out(dsn: str, schema: str) -> None:
    class Opaque:
        """Nothing that pydantic knows."""

    builder = StateGraph(dict)
    builder.add_node("pass", lambda state: state)
    builder.add_edge(START, "pass")
    builder.context_schema = Opaque  # type: ignore[assignment]
    async with serving(dsn, schema, graphs={"opaque": builder}) as server, sdk(server) as client:
        assert (await client.assistants.get_schemas("opaque"))["context_schema"] is None
