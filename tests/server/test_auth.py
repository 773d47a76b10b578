"""LangGraph's `Auth`: nobody sees or changes what is not theirs, whatever the operation."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import httpx
import psycopg
import pytest
from langchain_core.runnables import RunnableConfig
from langgraph.graph import START, StateGraph
from langgraph_sdk import Auth
from langgraph_sdk.client import LangGraphClient
from langgraph_sdk.errors import (
    APIStatusError,
    AuthenticationError,
    ConflictError,
    NotFoundError,
    PermissionDeniedError,
)
from starlette.exceptions import HTTPException
from support.http import HELLO, Steps, http, sdk, serving

from langgraph_pgstate.errors import ConfigurationError
from langgraph_pgstate.scopes import admits
from langgraph_pgstate.server import AgentServer
from langgraph_pgstate.server.auth import Authority, User, scope_of

USERS = {"token-eve": {"identity": "eve", "permissions": ["write"], "team": "red"}, "token-bob": {"identity": "bob"}}


def owners() -> Auth:
    """Everybody owns the threads that they create, as LangGraph's documents show."""
    auth = Auth()

    @auth.authenticate
    async def authenticate(authorization: str | None, method: str, path: str) -> Any:
        if authorization not in USERS:
            raise Auth.exceptions.HTTPException(401, "who are you?", {"WWW-Authenticate": "Bearer"})
        return USERS[authorization]

    @auth.on.threads
    async def own(ctx: Auth.types.AuthContext, value: dict[str, Any]) -> Any:
        value.setdefault("metadata", {})["owner"] = ctx.user.identity
        return {"owner": ctx.user.identity}

    return auth


@pytest.fixture
async def server(dsn: str, schema: str) -> AsyncIterator[AgentServer]:
    async with serving(dsn, schema, auth=owners()) as server:
        yield server


@pytest.fixture
async def people(server: AgentServer) -> AsyncIterator[tuple[LangGraphClient, LangGraphClient]]:
    """Clients of Eve and Bob."""
    async with AsyncExitStack() as stack:
        eve, bob = [await stack.enter_async_context(sdk(server, {"authorization": token})) for token in USERS]
        yield eve, bob


async def test_nobody_calls_without_being_known(server: AgentServer) -> None:
    async with http(server) as client:
        for path in ("/ok", "/info", "/openapi.json"):
            assert (await client.get(path)).status_code == 200
        refused = await client.post("/threads/search", json={})
        assert (refused.status_code, refused.json()) == (401, {"detail": "who are you?"})
        assert refused.headers["WWW-Authenticate"] == "Bearer"
        # Of Studio's users, LangGraph's own server lets everybody pass who says so.
        refused = await client.post("/threads/search", json={}, headers={"x-auth-scheme": "langsmith"})
        assert refused.status_code == 401


async def test_a_thread_is_its_owners_in_every_operation(
    people: tuple[LangGraphClient, LangGraphClient],
) -> None:
    eve, bob = people
    await eve.threads.create(thread_id="t", graph_id="chat")
    run = await eve.runs.create("t", "chat", input=HELLO)
    await eve.runs.join("t", run["run_id"])
    state = await eve.threads.get_state("t")
    id = run["run_id"]
    for call in (
        bob.threads.get("t"),
        bob.threads.update("t", metadata={"owner": "bob"}),
        bob.threads.delete("t"),
        bob.threads.copy("t"),
        bob.threads.get_state("t"),
        bob.threads.get_state("t", checkpoint=state["checkpoint"]),
        bob.threads.get_state("t", checkpoint_id=state["checkpoint"]["checkpoint_id"]),  # type: ignore[arg-type]
        bob.threads.update_state("t", HELLO),
        bob.threads.get_history("t"),
        bob.runs.create("t", "chat", input=HELLO),
        bob.runs.wait("t", "chat", input=HELLO),
        bob.runs.list("t"),
        bob.runs.get("t", id),
        bob.runs.join("t", id),
        bob.runs.cancel("t", id),
        bob.runs.cancel_many(thread_id="t", run_ids=[id]),
        bob.runs.delete("t", id),
        bob.runs.create_batch([{"assistant_id": "chat", "thread_id": "t"}]),  # type: ignore[typeddict-item]
    ):
        with pytest.raises(httpx.HTTPStatusError) as refused:
            await call
        assert refused.value.response.status_code == 404
    for name, options in (("create", {}), ("create", {"if_exists": "do_nothing"})):
        with pytest.raises(ConflictError):
            await getattr(bob.threads, name)(thread_id="t", **options)
    with pytest.raises(ConflictError):
        await bob.runs.create("t", "chat", input=HELLO, if_not_exists="create")
    assert await bob.threads.search() == []
    assert await bob.threads.search(ids=["t"]) == []
    assert await bob.threads.search(metadata={"owner": "eve"}) == []
    assert await bob.threads.count() == 0
    assert await bob.threads.prune(["t"]) == {"pruned_count": 0}
    assert await bob.threads.prune(["t"], strategy="keep_latest") == {"pruned_count": 0}
    assert await eve.threads.get_state("t") == state
    assert [one["run_id"] for one in await eve.runs.list("t")] == [id]
    assert [one["thread_id"] for one in await eve.threads.search(metadata={"graph_id": "chat"})] == ["t"]


async def test_all_pending_runs_are_cancelled_only_if_they_are_the_callers(
    people: tuple[LangGraphClient, LangGraphClient],
) -> None:
    runs = []
    for client in people:
        thread = await client.threads.create()
        runs.append(await client.runs.create(thread["thread_id"], "chat", input=HELLO, after_seconds=60))
    await people[0].runs.cancel_many(status="all")
    statuses = [
        (await client.runs.get(run["thread_id"], run["run_id"]))["status"]
        for client, run in zip(people, runs, strict=True)
    ]
    assert statuses == ["interrupted", "pending"]


async def test_a_stateless_run_is_its_callers(people: tuple[LangGraphClient, LangGraphClient]) -> None:
    eve, bob = people
    run = await eve.runs.create(None, "chat", input=HELLO)
    with pytest.raises(NotFoundError):
        await bob.runs.get(run["thread_id"], run["run_id"])
    assert await eve.runs.join(run["thread_id"], run["run_id"])


async def test_a_graph_knows_the_user(dsn: str, schema: str) -> None:
    def tell(state: Steps, config: RunnableConfig) -> Steps:
        configurable = config["configurable"]
        user = configurable["langgraph_auth_user"]
        return {"answer": f"{user['identity']} of {user['team']}, {configurable['langgraph_auth_permissions']}"}

    builder = StateGraph(Steps)
    builder.add_node("tell", tell)
    builder.add_edge(START, "tell")
    given: Any = {"configurable": {"user_id": "bob", "langgraph_auth_user": {"identity": "bob"}}}
    async with serving(dsn, schema, auth=owners(), graphs={"telling": builder}) as server:
        async with sdk(server, {"authorization": "token-eve"}) as eve:
            values: Any = await eve.runs.wait("t", "telling", input={}, if_not_exists="create", config=given)
        assert values == {"answer": "eve of red, ['write']"}
        assert server.service is not None
        thread = await server.service.state.threads.get("t")
        assert thread is not None
        assert thread.user_id == "eve"


async def test_the_most_specific_handler_decides(dsn: str, schema: str) -> None:
    auth = Auth()
    seen: list[tuple[str, str, str]] = []

    @auth.authenticate
    async def authenticate(headers: dict[bytes, bytes], other: int = 1) -> str:
        return headers[b"authorization"].decode()

    def note(name: str, result: Any) -> Any:
        async def handler(ctx: Auth.types.AuthContext, value: Any) -> Any:
            seen.append((name, ctx.resource, ctx.action))
            return result

        return handler

    auth.on(note("all", False))
    auth.on(resources="assistants", actions="search")(note("assistants.search", {"created_by": {"$eq": "system"}}))
    auth.on(resources="assistants")(note("assistants", {"created_by": "eve"}))
    auth.on.threads.create(note("threads.create", True))
    async with serving(dsn, schema, auth=auth) as server, sdk(server, {"authorization": "eve"}) as client:
        assert await client.threads.create()
        with pytest.raises(PermissionDeniedError):
            await client.threads.search()
        assert await client.assistants.count() == 4
        with pytest.raises(NotFoundError):
            await client.assistants.get("chat")
    assert seen == [
        ("threads.create", "threads", "create"),
        ("all", "threads", "search"),
        ("assistants.search", "assistants", "search"),
        ("assistants", "assistants", "read"),
    ]


OTHERS = {"thread_id": "t", "user_id": "eve", "tenant_id": "red", "agent": "x", "lc_agent_name": "x", "run_id": "x"}


@pytest.mark.slow
async def test_metadata_do_not_decide_whose_run_is_recorded(
    server: AgentServer,
    people: tuple[LangGraphClient, LangGraphClient],
    connection: psycopg.Connection,
    schema: str,
) -> None:
    connection.execute(f"SET search_path = {schema}")
    eve, bob = people
    await eve.threads.create(thread_id="t")
    await bob.threads.create(thread_id="u", metadata={**OTHERS})
    config: Any = {"configurable": OTHERS, "metadata": OTHERS}
    assistant = await bob.assistants.create("chat", metadata={**OTHERS}, config=config)
    other = await bob.assistants.create("chat", context={**OTHERS})
    for chosen in ("chat", assistant["assistant_id"], other["assistant_id"]):
        await bob.runs.wait("u", chosen, input=HELLO, metadata={**OTHERS}, config=config)
    await bob.runs.wait(None, "chat", input=HELLO, metadata={**OTHERS}, config=config, on_completion="keep")
    started = {"assistant_id": "chat", "input": HELLO, "metadata": OTHERS, "config": config}
    async with http(server, {"authorization": "token-bob"}) as client:
        command = {"id": 1, "method": "run.start", "params": started}
        run_id = (await client.post("/threads/u/commands", json=command)).json()["result"]["run_id"]
    await bob.runs.join("u", run_id)
    daily: Any = {"schedule": "0 9 * * *", "input": HELLO, "metadata": {**OTHERS}, "config": config}
    crons: list[Any] = [
        await bob.crons.create_for_thread("u", "chat", **daily),
        await bob.crons.create(assistant["assistant_id"], on_run_completed="keep", **daily),
    ]
    await bob.crons.update(crons[0]["cron_id"], metadata={**OTHERS}, config=config)
    assert server.service is not None
    for cron in crons:
        handle = await server.service.state.schedules.trigger(cron["cron_id"])
        await handle.wait()
    await server.service.state.flush()
    found = connection.execute("SELECT thread_id, user_id, tenant_id, agent FROM runs").fetchall()
    assert len(found) == 7
    assert {row[1:] for row in found} == {("bob", None, "chat")}
    assert "t" not in {row[0] for row in found}
    assert connection.execute("SELECT count(*) FROM threads WHERE tenant_id IS NOT NULL").fetchone() == (0,)
    assert connection.execute("SELECT count(*) FROM spans WHERE thread_id = 't' OR agent = 'x'").fetchone() == (0,)


async def test_a_tenant_is_that_of_the_user(dsn: str, schema: str, connection: psycopg.Connection) -> None:
    auth = Auth()

    @auth.authenticate
    async def authenticate(authorization: str | None) -> Any:
        return {"identity": "eve", "tenant_id": "acme"}

    async with serving(dsn, schema, auth=auth) as server, sdk(server) as client:
        await client.threads.create(thread_id="t")
        config: Any = {"configurable": {"tenant_id": "other", "owner": "other"}}
        await client.runs.wait("t", "chat", input=HELLO, config=config)
        assert server.service is not None
        await server.service.state.flush()
    assert connection.execute(f"SELECT user_id, tenant_id FROM {schema}.runs").fetchall() == [("eve", "acme")]


async def test_a_handler_may_put_the_owner_into_a_search(dsn: str, schema: str) -> None:
    auth = Auth()

    @auth.authenticate
    async def authenticate(authorization: str | None) -> str:
        return authorization or ""

    @auth.on.threads
    async def own(ctx: Auth.types.AuthContext, value: Any) -> None:
        value["metadata"] = {**(value.get("metadata") or {}), "owner": ctx.user.identity}

    async with serving(dsn, schema, auth=auth) as server:
        for user in ("eve", "bob"):
            async with http(server, {"authorization": user}) as client:
                await client.post("/threads", json={"thread_id": user})
        async with http(server, {"authorization": "bob"}) as client:
            for body in ({}, {"metadata": {"owner": "bob"}}):
                found = (await client.post("/threads/search", json=body)).json()
                assert [thread["thread_id"] for thread in found] == ["bob"]
                assert (await client.post("/threads/count", json=body)).json() == 1
            assert (await client.post("/threads/search", json={"metadata": {"owner": "eve"}})).json() == []
            assert sum(one["threads"] for one in (await client.get("/analytics")).json()["threads"]) == 1
            assert (await client.get("/threads/eve/runs")).status_code == 404


async def test_a_handler_may_put_the_owner_into_searches_of_all_kinds(dsn: str, schema: str) -> None:
    """Also below another key, which a client may have in its search."""
    auth = Auth()

    @auth.authenticate
    async def authenticate(authorization: str | None) -> str:
        return authorization or ""

    @auth.on
    async def own(ctx: Auth.types.AuthContext, value: dict[str, Any]) -> None:
        value.setdefault("metadata", {}).setdefault("acl", {})["owner"] = ctx.user.identity

    daily = {"assistant_id": "chat", "schedule": "0 9 * * *", "input": HELLO}
    async with serving(dsn, schema, auth=auth, worker=False) as server:
        for user in ("eve", "bob"):
            async with http(server, {"authorization": user}) as client:
                for path, body in (
                    ("/threads", {"thread_id": user}),
                    ("/assistants", {"graph_id": "chat"}),
                    ("/runs/crons", daily),
                    (f"/threads/{user}/runs/crons", daily),
                ):
                    assert (await client.post(path, json=body)).is_success
        async with http(server, {"authorization": "bob"}) as client:
            for what, count in (("threads", 1), ("assistants", 1), ("runs/crons", 2)):
                for metadata in ({}, {"acl": {}}, {"acl": {"owner": "bob"}}, {"acl": {"owner": "eve"}}):
                    found = (await client.post(f"/{what}/search", json={"metadata": metadata})).json()
                    owners = [one["metadata"]["acl"]["owner"] for one in found]
                    assert {*owners} <= {"bob"}, (what, metadata)
                    assert len(owners) in ((0, count) if metadata == {"acl": {"owner": "eve"}} else (count,))
                    assert (await client.post(f"/{what}/count", json={"metadata": metadata})).json() == len(owners)


async def test_an_identity_with_nul_is_no_other_users(dsn: str, schema: str) -> None:
    """Names with NUL cannot be in a header, but in a token. PostgreSQL's JSON has no NUL."""
    auth = Auth()

    @auth.authenticate
    async def authenticate(authorization: str | None) -> str:
        return json.loads(authorization or "")

    @auth.on
    async def own(ctx: Auth.types.AuthContext, value: dict[str, Any]) -> dict[str, str]:
        value.setdefault("metadata", {})["owner"] = ctx.user.identity
        return {"owner": ctx.user.identity}

    async with serving(dsn, schema, auth=auth, worker=False) as server:
        async with http(server, {"authorization": '"ann"'}) as ann:
            await ann.post("/threads", json={"thread_id": "t"})
        for name in ("ann\0", "a\0nn", "ann\ud800"):
            async with http(server, {"authorization": json.dumps(name)}) as other:
                for method, path in (("GET", "/threads/t"), ("DELETE", "/threads/t"), ("POST", "/threads/search")):
                    response = await other.request(method, path)
                    assert response.status_code == 401, (name, response.text)


async def test_errors_of_handlers_let_nobody_in(dsn: str, schema: str) -> None:
    auth = Auth()

    @auth.authenticate
    async def authenticate(authorization: str | None) -> Any:
        if authorization == "broken":
            raise RuntimeError("secret")
        if authorization == "starlette":
            raise HTTPException(418, "teapot")
        if authorization == "guest":
            return {"identity": "guest", "is_authenticated": False}
        return {"nobody": authorization} if authorization == "nobody" else authorization

    @auth.on
    async def decide(ctx: Auth.types.AuthContext, value: Any) -> Any:
        return {"owner": {"$like": "e"}} if ctx.user.identity == "bob" else "yes"

    async with serving(dsn, schema, auth=auth) as server:
        tokens = {"broken": 500, "starlette": 418, "nobody": 500, "guest": 401, "bob": 500, "eve": 500}
        for token, status in tokens.items():
            async with http(server, {"authorization": token}) as client:
                answered = await client.post("/threads/search", json={})
                assert answered.status_code == status, token
                assert "secret" not in answered.text


def test_an_auth_that_cannot_authenticate_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="must have an authentication handler"):
        Authority(Auth())
    auth = Auth()

    @auth.authenticate
    async def authenticate(token: str) -> str:
        return token

    with pytest.raises(ConfigurationError, match="not 'token'"):
        Authority(auth)
    with pytest.raises(ConfigurationError, match=r"langgraph_sdk\.Auth"):
        Authority(object())  # type: ignore[arg-type]


def test_a_user_is_a_string_an_object_or_a_mapping() -> None:
    class Account:
        identity = "eve"
        permissions = ("read",)

    for given in ("eve", Account(), {"identity": "eve", "team": "red"}):
        user = User(given)
        assert (user.identity, user.display_name, user.is_authenticated) == ("eve", "eve", True)
        assert user["identity"] == "eve"
        assert "permissions" in [*user]
    assert (user["team"], user.team, "team" in user) == ("red", "red", True)
    with pytest.raises(AttributeError):
        _ = user.age
    numbered = User({"identity": 7})
    assert (numbered.identity, numbered["identity"], numbered.display_name) == ("7", "7", "7")
    for bad in ("", {"identity": True}, {"identity": 1.5}, None):
        with pytest.raises(TypeError):
            User(bad)


@pytest.mark.parametrize(
    ("filters", "metadata", "is_seen"),
    [
        ({"owner": "eve"}, {"owner": "eve", "more": 1}, True),
        ({"owner": "eve"}, {"owner": "bob"}, False),
        ({"owner": "eve"}, {}, False),
        ({"owner": {"$eq": "eve"}}, {"owner": "eve"}, True),
        ({"team": {"$contains": "eve"}}, {"team": ["ann", "eve"]}, True),
        ({"team": {"$contains": ["eve", "bob"]}}, {"team": ["bob", "ann", "eve"]}, True),
        ({"team": {"$contains": ["eve", "bob"]}}, {"team": ["eve"]}, False),
        ({"team": {"$contains": "eve"}}, {"team": "eve"}, False),
        ({"a": 1, "b": 2}, {"a": 1}, False),
        ({"a": 1}, {"a": True}, False),
        ({}, {}, True),
    ],
)
def test_filters(filters: Any, metadata: Any, is_seen: bool) -> None:
    assert admits(scope_of(filters), metadata) is is_seen


@pytest.mark.parametrize(
    "filters", [{"readers": ["bob"]}, {"readers": {"$eq": ("bob",)}}, {"$or": [{"readers": {"bob"}}]}]
)
def test_a_list_as_a_filter_is_refused_with_the_form_to_use(filters: Any) -> None:
    with pytest.raises(TypeError, match=r"write {'readers': {'\$contains': \['bob'\]}}.*\$or"):
        scope_of(filters)


async def test_a_wrong_token_is_the_sdks_error(server: AgentServer) -> None:
    async with sdk(server, {"authorization": "token-mallory"}) as mallory:
        with pytest.raises(AuthenticationError, match="who are you"):
            await mallory.threads.create()
        with pytest.raises(APIStatusError):
            await mallory.assistants.search()


async def test_nobody_commands_the_thread_of_somebody_else(people: Any) -> None:
    eve, bob = people
    await eve.threads.create(thread_id="t")
    started = {"id": 1, "method": "run.start", "params": {"assistant_id": "asking", "input": {"count": 0}}}
    run = (await eve.http.client.post("/threads/t/commands", json=started)).json()["result"]
    await eve.runs.join("t", run["run_id"])
    asked = (await eve.threads.get_state("t"))["interrupts"][0]["id"]
    commands: dict[str, Any] = {
        "run.start": {"assistant_id": "asking", "input": {"count": 0}},
        "input.respond": {"interrupt_id": asked, "response": "yes"},
        "input.inject": {"message": {"role": "user", "content": "x"}},
        "state.get": {},
        "state.listCheckpoints": {},
        "state.fork": {"checkpoint_id": "c"},
        "agent.getTree": {},
    }
    for method, params in commands.items():
        body = {"id": 1, "method": method, "params": params}
        answered = (await bob.http.client.post("/threads/t/commands", json=body)).json()
        assert (answered["type"], "result" in answered) == ("error", False), method
    assert len(await eve.runs.list("t")) == 1
    assert (await eve.threads.get("t"))["status"] == "interrupted"


async def test_metadata_that_a_handler_replaces_are_those_that_count(dsn: str, schema: str) -> None:
    auth = Auth()

    @auth.authenticate
    async def authenticate(authorization: str) -> str:
        return authorization

    @auth.on.threads
    async def own(ctx: Auth.types.AuthContext, value: dict[str, Any]) -> Any:
        value["metadata"] = {**(value.get("metadata") or {}), "owner": ctx.user.identity}
        return {"owner": ctx.user.identity}

    async with (
        serving(dsn, schema, auth=auth, worker=False) as server,
        sdk(server, {"authorization": "eve"}) as eve,
        sdk(server, {"authorization": "bob"}) as bob,
    ):
        await eve.threads.create(thread_id="t", metadata={"owner": "bob"})
        changed = await eve.threads.update("t", metadata={"owner": "bob", "x": 1})
        assert changed["metadata"] == {"owner": "eve", "x": 1}
        assert await bob.threads.search() == []
    async with serving(dsn, schema, auth=auth, worker=False) as server, http(server, {"authorization": "*"}) as star:
        assert (await star.post("/threads/search", json={})).status_code == 401
