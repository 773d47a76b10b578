"""Graphs as assistants, by LangGraph's client."""

from __future__ import annotations

from typing import Any
from uuid import NAMESPACE_DNS, uuid4

import pytest
from langchain_core.runnables import RunnableConfig
from langgraph.graph import START, StateGraph
from langgraph.runtime import Runtime
from langgraph_sdk import Auth
from langgraph_sdk.client import LangGraphClient
from langgraph_sdk.errors import BadRequestError, ConflictError, NotFoundError, PermissionDeniedError
from support_http import Settings, Steps, sdk, serving


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


async def test_assistants_of_ones_own_have_versions(client: LangGraphClient) -> None:
    part = client.assistants
    made = await part.create("chat", {"tags": ["x"], "configurable": {"seconds": 1}}, name="mine", metadata={"m": 1})
    id = made["assistant_id"]
    assert (made["context"], made["version"], made["graph_id"]) == ({"seconds": 1}, 1, "chat")
    changed = await part.update(id, context={"seconds": 2}, metadata={"n": 2})
    assert (changed["config"], changed["context"]) == ({"configurable": {"seconds": 2}}, {"seconds": 2})
    assert (changed["version"], changed["metadata"]) == (2, {"m": 1, "n": 2})
    assert [one["version"] for one in await part.get_versions(id)] == [2, 1]
    assert (await part.set_latest(id, 1))["context"] == {"seconds": 1}
    assert await part.get(id) == (await part.search(metadata={"m": 1}))[0]
    assert [one["name"] for one in await part.search(graph_id="chat", sort_by="name", sort_order="asc")] == [
        "chat",
        "mine",
    ]
    assert await part.count() == 5
    assert await part.create("chat", assistant_id=id, if_exists="do_nothing") == await part.get(id)
    with pytest.raises(ConflictError):
        await part.create("chat", assistant_id=id)
    with pytest.raises(NotFoundError):
        await part.create("nothing")
    with pytest.raises(BadRequestError):
        await part.create("chat", {"configurable": {"a": 1}}, context={"b": 1})
    with pytest.raises(PermissionDeniedError):
        await part.update("chat", name="other")
    await part.delete(id)
    gone = (part.get(id), part.delete(id), part.update(id, name="x"), part.set_latest(id, 1), part.get_versions(id))
    for call in gone:
        with pytest.raises(NotFoundError):
            await call


async def test_a_run_has_the_config_and_the_context_of_its_assistant(dsn: str, schema: str) -> None:
    told: list[Any] = []

    def tell(state: Steps, config: RunnableConfig, runtime: Runtime[Any]) -> Steps:
        told.append(({name: config["configurable"].get(name) for name in ("a", "b", "seconds")}, runtime.context))
        return {"count": 1}

    builder = StateGraph(Steps, context_schema=Settings)
    builder.add_node("tell", tell)
    builder.add_edge(START, "tell")
    async with serving(dsn, schema, graphs={"graph": builder.compile()}) as server, sdk(server) as client:
        made = await client.assistants.create("graph", {"configurable": {"a": 1, "b": 1}}, metadata={"m": 1})
        id = made["assistant_id"]
        thread = (await client.threads.create())["thread_id"]
        await client.runs.wait(thread, id, input={}, config={"configurable": {"b": 2}}, context={"seconds": 3})
        (run,) = await client.runs.list(thread)
        assert (run["assistant_id"], run["metadata"]["m"]) == (id, 1)
        assert (await client.threads.get(thread))["metadata"]["assistant_id"] == id
        await client.assistants.update(id, context={"seconds": 4})
        await client.runs.wait(thread, id, input={})
        cron: Any = await client.crons.create(id, schedule="0 9 * * *")
        assert (cron["assistant_id"], cron["payload"]["context"]) == (id, {"seconds": 4})
        await client.assistants.delete(id, delete_threads=True)
        assert await client.crons.search() == []
        with pytest.raises(NotFoundError):
            await client.threads.get(thread)
        with pytest.raises(NotFoundError):
            await client.runs.create(None, id, input={})
    first, second = told
    assert first == ({"a": 1, "b": 2, "seconds": None}, {"seconds": 3})
    assert second == ({"a": None, "b": None, "seconds": 4}, {"seconds": 4})


async def test_assistants_of_others_are_neither_seen_nor_run(dsn: str, schema: str) -> None:
    auth = Auth()

    @auth.authenticate
    async def authenticate(authorization: str | None) -> str:
        return str(authorization)

    @auth.on
    async def own(ctx: Auth.types.AuthContext, value: dict) -> dict:
        value.setdefault("metadata", {})["owner"] = ctx.user.identity
        return {"owner": ctx.user.identity}

    async with (
        serving(dsn, schema, auth=auth) as server,
        sdk(server, {"authorization": "eve"}) as eve,
        sdk(server, {"authorization": "adam"}) as adam,
    ):
        id = (await eve.assistants.create("chat", name="mine"))["assistant_id"]
        assert [one["assistant_id"] for one in await eve.assistants.search()] == [id]
        assert await adam.assistants.search() == []
        assert await adam.assistants.count() == 0
        for call in (
            adam.assistants.get(id),
            adam.assistants.update(id, name="x"),
            adam.assistants.delete(id),
            adam.assistants.get_versions(id),
            adam.assistants.set_latest(id, 1),
            adam.runs.create(None, id, input={}),
            adam.crons.create(id, schedule="0 9 * * *"),
        ):
            with pytest.raises(NotFoundError):
                await call
        with pytest.raises(ConflictError):
            await adam.assistants.create("chat", assistant_id=id, if_exists="do_nothing")
        assert (await eve.assistants.get(id))["version"] == 1


async def test_an_assistant_with_crons_of_others_is_not_deleted(dsn: str, schema: str) -> None:
    auth = Auth()

    @auth.authenticate
    async def authenticate(authorization: str | None) -> str:
        return str(authorization)

    @auth.on.crons
    async def own(ctx: Auth.types.AuthContext, value: dict) -> dict:
        if ctx.user.identity == "guest":
            raise Auth.exceptions.HTTPException(403)
        value.setdefault("metadata", {})["owner"] = ctx.user.identity
        return {"owner": ctx.user.identity}

    async with (
        serving(dsn, schema, auth=auth) as server,
        sdk(server, {"authorization": "eve"}) as eve,
        sdk(server, {"authorization": "adam"}) as adam,
        sdk(server, {"authorization": "guest"}) as guest,
    ):
        id = (await eve.assistants.create("chat"))["assistant_id"]
        await eve.crons.create(id, schedule="0 9 * * *")
        theirs: dict = await adam.crons.create(id, schedule="0 9 * * *")  # type: ignore[assignment]
        for client in (eve, adam, guest):
            with pytest.raises(ConflictError, match="schedules of others"):
                await client.assistants.delete(id)
        assert (await eve.assistants.get(id))["assistant_id"] == id
        assert (await eve.crons.count(), await adam.crons.count()) == (1, 1)
        await adam.crons.delete(theirs["cron_id"])
        with pytest.raises(ConflictError):
            await guest.assistants.delete(id)
        await eve.assistants.delete(id)
        assert await eve.crons.count() == 0
        await guest.assistants.delete((await eve.assistants.create("chat"))["assistant_id"])
