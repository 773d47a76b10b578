"""Items of LangGraph's store, by LangGraph's client."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import psycopg
import pytest
from langgraph.graph import START, StateGraph
from langgraph.runtime import Runtime
from langgraph.store.memory import InMemoryStore
from langgraph.store.postgres import AsyncPostgresStore
from langgraph_sdk import Auth
from langgraph_sdk.client import LangGraphClient
from langgraph_sdk.errors import APIStatusError, PermissionDeniedError
from psycopg.conninfo import make_conninfo
from support.http import Steps, http, sdk, serving

from langgraph_pgstate.memory import AsyncPGMemoryStore


@pytest.fixture
async def store(dsn: str, schema: str) -> AsyncIterator[AsyncPostgresStore]:
    """LangGraph's own, in the schema of the test."""
    async with AsyncPostgresStore.from_conn_string(make_conninfo(dsn, options=f"-csearch_path={schema}")) as store:
        await store.setup()
        yield store


async def remember(state: Steps, runtime: Runtime[Any]) -> Steps:
    assert runtime.store is not None
    await runtime.store.aput(("memories",), "count", {"count": state["count"]})
    return {}


@pytest.fixture
async def client(dsn: str, schema: str, store: AsyncPostgresStore) -> AsyncIterator[LangGraphClient]:
    builder = StateGraph(Steps)
    builder.add_node("remember", remember)
    builder.add_edge(START, "remember")
    graphs = {"compiled": builder.compile(), "made": lambda: builder}
    async with serving(dsn, schema, store=store, graphs=graphs) as server, sdk(server) as client:
        yield client


async def test_items_are_stored_searched_and_deleted(client: LangGraphClient) -> None:
    for key, value in (("a", {"kind": "fact", "n": 1}), ("b", {"kind": "wish"})):
        await client.store.put_item(["users", "eve"], key, value)
    item = await client.store.get_item(["users", "eve"], "a")
    assert (item["namespace"], item["key"], item["value"]) == (["users", "eve"], "a", {"kind": "fact", "n": 1})
    found = await client.store.search_items(["users"], filter={"kind": "wish"})
    assert [item["key"] for item in found["items"]] == ["b"]
    assert await client.store.list_namespaces(prefix=["users"]) == {"namespaces": [["users", "eve"]]}
    await client.store.delete_item(["users", "eve"], "a")
    assert await client.store.get_item(["users", "eve"], "a") is None


async def test_a_read_only_server_makes_no_item_live_longer(
    dsn: str, schema: str, connection: psycopg.Connection
) -> None:
    """By default a store does so with each read."""
    place = make_conninfo(dsn, options=f"-csearch_path={schema}")
    async with AsyncPostgresStore.from_conn_string(place, ttl={"default_ttl": 10, "refresh_on_read": True}) as store:
        await store.setup()
        await store.aput(("eve",), "k", {})
        expiry = f"SELECT expires_at FROM {schema}.store"
        before = connection.execute(expiry).fetchall()
        async with serving(dsn, schema, store=store, read_only=True) as server, http(server) as client:
            reads: list[tuple[str, str, Any]] = [
                ("GET", "/store/items?namespace=eve&key=k", None),
                ("POST", "/store/items/search", {"namespace_prefix": ["eve"]}),
                ("POST", "/store/namespaces", {}),
            ]
            for method, path, body in reads:
                assert (await client.request(method, path, json=body)).status_code == 200
            for method, path, body in (
                ("GET", f"{reads[0][1]}&refresh_ttl=true", None),
                ("POST", reads[1][1], {**reads[1][2], "refresh_ttl": True}),
            ):
                refused = await client.request(method, path, json=body)
                assert (refused.status_code, "refresh_ttl" in refused.text) == (403, True)
        assert connection.execute(expiry).fetchall() == before
        async with serving(dsn, schema, store=store) as server, http(server) as client:
            assert (await client.get(reads[0][1])).status_code == 200
        assert connection.execute(expiry).fetchall() != before


async def test_a_graph_uses_the_store(client: LangGraphClient) -> None:
    for number, name in enumerate(("compiled", "made")):
        await client.runs.wait(None, name, input={"count": number})
        assert (await client.store.get_item(["memories"], "count"))["value"] == {"count": number}


async def test_what_is_invalid_is_refused(client: LangGraphClient) -> None:
    for path, body in (
        ("/store/items", {"namespace": [], "key": "a", "value": {}}),
        ("/store/items", {"namespace": ["a.b"], "key": "a", "value": {}}),
        ("/store/items", {"namespace": ["a"], "key": "a", "value": 1}),
    ):
        with pytest.raises(APIStatusError) as refused:
            await client.http.put(path, json=body)
        assert refused.value.status_code == 422


ITEM: dict[str, Any] = {"namespace": ["a"], "key": "b", "value": {}}
REFUSED = [
    ("PUT", "/store/items", {**ITEM, "namespace": ["langgraph"]}),
    ("PUT", "/store/items", {**ITEM, "key": "\ud800"}),
    ("POST", "/store/items/search", {"namespace_prefix": ["a"], "filter": {"c": {"$like": 1}}}),
]
OF_POSTGRESQL = [
    ("PUT", "/store/items", {**ITEM, "value": {"c": "\ud800"}}),
    ("PUT", "/store/items", {**ITEM, "value": {"c": float("nan")}}),
    ("PUT", "/store/items", {**ITEM, "ttl": 1e300}),
    ("POST", "/store/namespaces", {"max_depth": 2**70}),
]
OF_MEMORY = [("PUT", "/store/items", {**ITEM, "ttl": 5})]


async def test_what_the_store_cannot_do_is_refused(dsn: str, schema: str, store: AsyncPostgresStore) -> None:
    """Guard: translating its errors, without which each is an internal one."""
    for one, more in ((store, OF_POSTGRESQL), (InMemoryStore(), OF_MEMORY)):
        async with serving(dsn, schema, store=one, worker=False) as server, http(server) as client:
            assert (await client.put("/store/items", json={**ITEM, "value": {"c": 1}})).status_code == 204
            for method, path, body in (REFUSED if one is store else REFUSED[::2]) + more:
                kind = {"content-type": "application/json"}
                refused = await client.request(method, path, content=json.dumps(body), headers=kind)
                assert (refused.status_code, refused.json()["detail"][:17]) == (422, "the store refuses"), body
            assert (await client.get("/store/items?namespace=a&key=%00b")).status_code == 422


async def test_unknown_operators_of_a_filter_are_refused(client: LangGraphClient) -> None:
    await client.store.put_item(["a"], "k", {"n": 2})
    assert len((await client.store.search_items(["a"], filter={"n": {"$gte": 1, "$ne": 3}}))["items"]) == 1
    for unknown in ({"$or": [{"n": 2}]}, {"n": {"$in": [2]}}):
        with pytest.raises(APIStatusError, match=r"\$or|\$in") as refused:
            await client.store.search_items(["a"], filter=unknown)
        assert refused.value.status_code == 422


async def test_without_another_store_there_is_the_states_memory(dsn: str, schema: str) -> None:
    async with serving(dsn, schema) as server, sdk(server) as client:
        await client.store.put_item(["a"], "b", {"x": 1})
        assert (await client.store.get_item(["a"], "b"))["value"] == {"x": 1}
        assert server.service is not None
        assert isinstance(server.service.store, AsyncPGMemoryStore)


async def test_a_handler_changes_the_namespace(dsn: str, schema: str, store: AsyncPostgresStore) -> None:
    auth = Auth()

    @auth.authenticate
    async def authenticate(authorization: str) -> str:
        return authorization

    @auth.on.store
    async def scope(ctx: Auth.types.AuthContext, value: Any) -> None:
        value["namespace"] = (ctx.user.identity, *(value["namespace"] or ()))

    @auth.on.store.delete
    async def keep(ctx: Auth.types.AuthContext, value: Any) -> Any:
        return {"namespace": {"$contains": "nobody"}}

    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(serving(dsn, schema, store=store, auth=auth))
        eve, bob = [await stack.enter_async_context(sdk(server, {"authorization": name})) for name in ("eve", "bob")]
        await eve.store.put_item(["notes"], "a", {"by": "eve"})
        assert (await eve.store.get_item(["notes"], "a"))["namespace"] == ["eve", "notes"]
        assert await bob.store.get_item(["notes"], "a") is None
        assert (await bob.store.search_items([]))["items"] == []
        assert await bob.store.list_namespaces() == {"namespaces": []}
        assert await eve.store.list_namespaces() == {"namespaces": [["eve", "notes"]]}
        with pytest.raises(PermissionDeniedError):
            await eve.store.delete_item(["notes"], "a")


async def test_an_item_is_named_by_its_key(dsn: str, schema: str) -> None:
    async with serving(dsn, schema, store=InMemoryStore()) as server, http(server) as client:
        found = await client.get("/store/items", params={"namespace": "a"})
        assert (found.status_code, found.json()) == (422, {"detail": "key must not be empty"})
