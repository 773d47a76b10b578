"""Assistants, by LangGraph's client."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_core.runnables import RunnableConfig
from langgraph.graph import START, StateGraph
from langgraph.runtime import Runtime
from langgraph_sdk import Auth
from langgraph_sdk.client import LangGraphClient
from langgraph_sdk.errors import BadRequestError, ConflictError, NotFoundError, PermissionDeniedError
from support.http import Settings, Steps, sdk, serving


async def test_assistants_are_searched_and_counted(client: LangGraphClient) -> None:
    async def names(**filters: Any) -> list[str]:
        return [one["name"] for one in await client.assistants.search(**filters)]

    assert sorted(await names()) == ["asking", "chat", "failing", "slow"]
    assert await names(sort_by="name", sort_order="asc") == ["asking", "chat", "failing", "slow"]
    assert await names(sort_by="name", limit=2, offset=1) == ["failing", "chat"]
    assert await names(name="CHA") == ["chat"]
    assert await names(metadata={"created_by": "eve"}) == []
    assert await client.assistants.search(name="slow", select=["graph_id"]) == [{"graph_id": "slow"}]
    assert await client.assistants.count() == 4
    assert await client.assistants.count(graph_id="none") == 0
    page: Any = await client.assistants.search(limit=3, response_format="object")
    assert (len(page["assistants"]), page["next"]) == (3, "3")
    # The newest come first, as on LangGraph's own server.
    for name in ("b", "a", "c"):
        await client.assistants.create("chat", name=name)
    assert await names(limit=3) == await names(limit=3, sort_by="created_at") == ["c", "a", "b"]


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
    assert first == ({"a": 1, "b": 2, "seconds": 3}, {"a": 1, "b": 2, "seconds": 3})
    assert second == ({"a": None, "b": None, "seconds": 4}, {"seconds": 4})


async def test_threads_that_are_held_stay_when_their_assistant_goes(dsn: str, schema: str) -> None:
    async with serving(dsn, schema, worker=False) as server, sdk(server) as client:
        id = (await client.assistants.create("chat"))["assistant_id"]
        made = [(await client.threads.create(metadata={"assistant_id": id}))["thread_id"] for _ in range(3)]
        assert server.service is not None
        for held in made[:2]:
            await server.service.state.threads.hold(held, "case", by="eve")
        with pytest.raises(ConflictError, match="held by eve"):
            await client.threads.delete(made[0])
        with pytest.raises(ConflictError, match="held by eve"):
            await client.assistants.delete(id, delete_threads=True)
        assert {one["thread_id"] for one in await client.threads.search()} == {*made[:2]}
        with pytest.raises(NotFoundError):
            await client.assistants.get(id)


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

    @auth.on.assistants
    async def everybody(ctx: Auth.types.AuthContext, value: dict) -> bool:
        return True

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
