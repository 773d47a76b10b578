"""The graphs that are served, by LangGraph's client."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from uuid import NAMESPACE_DNS, uuid4

import pytest
from langchain_core.runnables import RunnableConfig
from langgraph.graph import START, StateGraph
from langgraph.runtime import Runtime
from langgraph_sdk import Auth
from langgraph_sdk.client import LangGraphClient
from langgraph_sdk.errors import NotFoundError
from langgraph_sdk.runtime import ServerRuntime
from support.http import Steps, sdk, serving


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
    assert made[0] == {"graph_id": "made", "assistant_id": made[1]["assistant_id"]}
    assert made[1]["thread_id"] == "t"


@dataclass
class Settings:
    """A context that has defaults, and takes no other keys."""

    model: str = "small"
    words: int = 1


def telling(seen: list[Any]) -> Any:
    """A graph that keeps its contexts, what the server says of the run, and what is configurable."""

    def tell(state: Steps, config: RunnableConfig, runtime: Runtime[Settings]) -> Steps:
        configurable = {name: config["configurable"].get(name) for name in ("model", "words", "other")}
        seen.append((runtime.context, configurable, runtime.server_info))
        return {"count": 1}

    return StateGraph(Steps, context_schema=Settings).add_node("tell", tell).add_edge(START, "tell")


@pytest.mark.slow
async def test_a_context_has_the_defaults_of_its_schema_and_what_is_configurable(dsn: str, schema: str) -> None:
    seen: list[Any] = []
    async with serving(dsn, schema, graphs={"graph": telling(seen)}) as server, sdk(server) as client:
        configured = await client.assistants.create("graph", config={"configurable": {"model": "a", "words": 7}})
        with_context = await client.assistants.create("graph", context={"model": "b", "words": 7})
        runs: list[tuple[str, dict[str, Any], Settings, dict[str, Any]]] = [
            ("graph", {}, Settings(), {}),
            ("graph", {"context": {"model": "c", "other": 1}}, Settings("c"), {"model": "c", "other": 1}),
            ("graph", {"config": {"configurable": {"model": "d", "other": 1}}}, Settings("d"), {"other": 1}),
        ]
        for one in (configured, with_context):
            id, model = one["assistant_id"], "a" if one is configured else "b"
            runs.append((id, {}, Settings(model, 7), {"model": model, "words": 7}))
            runs.append((id, {"context": {"model": "e"}}, Settings("e", 7), {"model": "e", "words": 7}))
            runs.append((id, {"config": {"configurable": {"words": 8}}}, Settings(model, 8), {"words": 8}))
        for assistant, given, context, configurable in runs:
            await client.runs.wait(None, assistant, input={}, **given)
            found, known, info = seen.pop()
            assert found == context
            assert {**known, **configurable} == known
            expected = assistant if assistant != "graph" else (await client.assistants.get("graph"))["assistant_id"]
            assert (info.assistant_id, info.graph_id, info.user) == (expected, "graph", None)


@pytest.mark.slow
async def test_nodes_and_factories_know_the_user(dsn: str, schema: str) -> None:
    auth = Auth()

    @auth.authenticate
    async def authenticate(authorization: str | None) -> Any:
        return {"identity": str(authorization), "role": "cook"}

    seen: list[Any] = []
    made: list[tuple[str, Any, Any]] = []

    def make(runtime: ServerRuntime[Settings]) -> Any:
        run = runtime.execution_runtime
        made.append((runtime.access_context, runtime.ensure_user()["identity"], None if run is None else run.context))
        return telling(seen)

    async with (
        serving(dsn, schema, graphs={"made": make}, auth=auth) as server,
        sdk(server, {"authorization": "eve"}) as eve,
    ):
        await eve.threads.create(thread_id="t")
        given: Any = {"configurable": {"user_id": "adam", "model": "x", "langgraph_auth_user": {"identity": "adam"}}}
        await eve.runs.wait("t", "made", input={}, config=given)
        await eve.threads.update_state("t", {"count": 2})
        await eve.threads.get_state("t")
        await eve.assistants.get_graph("made")
    [(context, _, info)] = seen
    assert context == Settings("x")
    assert (info.user.identity, info.user["role"], info.user.display_name) == ("eve", "cook", "eve")
    assert made[0] == ("threads.create_run", "eve", {"model": "x"})
    assert {access for access, _, _ in made} == {
        "threads.create_run",
        "threads.update",
        "threads.read",
        "assistants.read",
    }
    assert {(identity, run) for access, identity, run in made[1:]} == {("eve", None)}


@pytest.mark.slow
async def test_a_state_is_read_and_changed_by_the_graph_of_its_assistant(dsn: str, schema: str) -> None:
    def make(config: RunnableConfig, runtime: ServerRuntime) -> Any:
        builder = StateGraph(Steps)
        # Without the config of the assistant there is no such node.
        builder.add_node(config["configurable"]["node"], lambda state: {"count": 1})
        return builder.add_edge(START, config["configurable"]["node"])

    async with serving(dsn, schema, graphs={"made": make}) as server, sdk(server) as client:
        ids = []
        for node in ("first", "second"):
            as_context: Any = {"context": {"node": node}}
            given = as_context if node == "first" else {"config": {"configurable": {"node": node}}}
            ids.append((await client.assistants.create("made", **given))["assistant_id"])
        for thread, id in zip(("first", "second"), ids, strict=True):
            await client.runs.wait(thread, id, input={}, if_not_exists="create")
            await client.threads.update_state(thread, {"count": 5}, as_node=thread)
            assert (await client.threads.get_state(thread))["values"] == {"count": 5}
            assert len(await client.threads.get_history(thread)) == 4
            assert thread in str(await client.assistants.get_graph(ids[thread == "second"]))
        found = await client.threads.search()
        assert [one["values"] for one in found] == [{"count": 5}] * 2
