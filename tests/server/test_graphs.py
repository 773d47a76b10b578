"""The graphs that are served, by LangGraph's client."""

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
