"""The application: alone, mounted in another one, and what it refuses before any handler."""

from __future__ import annotations

import asyncio
import json
import operator
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any, TypedDict

import psycopg
import pytest
from fastapi import FastAPI
from langgraph.channels.delta import DeltaChannel
from langgraph.graph import START, StateGraph
from support import GUARD_SECONDS
from support.http import HELLO, chat, graphs, http, sdk, serving, until_running

from langgraph_pgstate import AsyncPGState
from langgraph_pgstate.errors import ConfigurationError
from langgraph_pgstate.server import AgentServer, create_app
from langgraph_pgstate.server import app as app_module
from langgraph_pgstate.worker.state_config import load_state_config


class Notes(TypedDict):
    """A state of which checkpoints hold differences."""

    notes: Annotated[list[str], DeltaChannel(operator.add)]


async def test_it_is_mounted_in_an_application_that_shares_its_state(dsn: str, schema: str) -> None:
    """The host has a lifespan of its own, and the pool."""
    mounted: list[AgentServer] = []

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with AsyncPGState.open(dsn, schema=schema) as state:
            server = create_app(state, {"chat": chat()})
            async with server.lifespan():
                app.mount("/agents", server)
                mounted.append(server)
                yield
                assert server.service is not None
                assert server.service.state is state

    app = FastAPI(lifespan=lifespan)
    async with app.router.lifespan_context(app), sdk(app, prefix="/agents") as client:
        await client.runs.wait("t", "chat", input=HELLO, if_not_exists="create")
        assert await client.threads.count() == 1
    assert mounted[0].service is None


async def test_its_lifespan_is_that_of_an_application_without_one(dsn: str, schema: str) -> None:
    server = create_app(lambda: AsyncPGState.open(dsn, schema=schema), {"chat": chat()})
    app = FastAPI(lifespan=server.lifespan)
    app.mount("/agents", server)
    async with http(app) as client:
        refused = await client.get("/agents/info")
        assert (refused.status_code, refused.headers["Retry-After"]) == (503, "1")
        async with app.router.lifespan_context(app):
            assert (await client.get("/agents/info")).status_code == 200
        assert (await client.get("/agents/info")).status_code == 503


async def test_operations_are_below_the_prefix(dsn: str, schema: str) -> None:
    async with serving(dsn, schema, prefix="/agents") as server:
        async with http(server) as client:
            assert (await client.get("/ok")).status_code == 404
        async with sdk(server, prefix="/agents") as client_of_it:
            await client_of_it.runs.wait("t", "chat", input=HELLO, if_not_exists="create")


async def test_what_is_no_json_is_refused(dsn: str, schema: str) -> None:
    async with serving(dsn, schema, max_body_size=3000, max_body_values=1000) as server, http(server) as client:
        for content, kind, status in (
            (b'{"limit": 1}', "application/json; charset=utf-8", 200),
            (b'{"limit": 1}', "text/plain", 415),
            (b'{"limit": 1}', "", 415),
            (b'{"limit":', "application/json", 422),
            (b"[" * 900, "application/json", 422),
            ('{"limit": 1}'.encode("utf-16"), "application/json", 422),
            # pydantic writes values of 255 levels, and fails.
            (b'{"a":' * 200 + b"1" + b"}" * 200, "application/json", 200),
            (b'{"a":' * 160 + b"[" * 41 + b"]" * 41 + b"}" * 160, "application/json", 422),
            (b" " * 3001, "application/json", 413),
            (b'{"ids": [' + b"1," * 1000 + b"1]}", "application/json", 413),
        ):
            answered = await client.post("/threads/search", content=content, headers={"content-type": kind})
            assert answered.status_code == status, content[:20]
            assert status == 200 or answered.json()["detail"]


@pytest.mark.parametrize("option", ["max_body_size", "max_body_values"])
@pytest.mark.parametrize("most", [0, -1, "1", True])
def test_limits_of_bodies_are_numbers(option: str, most: Any) -> None:
    with pytest.raises(ConfigurationError, match=f"{option} must be a number from 1"):
        create_app(lambda: AsyncPGState.open(""), {"chat": chat()}, **{option: most})  # type: ignore[typeddict-item]


async def test_other_origins_are_allowed_by_name(dsn: str, schema: str) -> None:
    cors = {"allow_origins": ["https://smith.langchain.com"], "allow_methods": ["*"], "allow_headers": ["*"]}
    async with serving(dsn, schema, cors=cors) as server, http(server) as client:
        for origin, allowed in (("https://smith.langchain.com", True), ("https://example.com", False)):
            asked = {"origin": origin, "access-control-request-method": "POST"}
            preflight = await client.options("/threads/search", headers=asked)
            assert (preflight.status_code == 200) is allowed
            answered = await client.get("/info", headers={"origin": origin})
            assert (answered.headers.get("access-control-allow-origin") == origin) is allowed
            assert not allowed or "Content-Location" in answered.headers["access-control-expose-headers"]


@pytest.mark.slow
async def test_without_a_worker_runs_wait_for_one_elsewhere(dsn: str, schema: str) -> None:
    async with serving(dsn, schema, worker=False) as first, sdk(first) as client:
        run = await client.runs.create("t", "chat", input=HELLO, if_not_exists="create")
        await asyncio.sleep(0.3)
        assert (await client.runs.get("t", run["run_id"]))["status"] == "pending"
        async with serving(dsn, schema, worker={"concurrency": 1}):
            assert await client.runs.join("t", run["run_id"])


@pytest.mark.slow
async def test_a_server_that_stops_gives_its_runs_to_another(dsn: str, schema: str) -> None:
    """The client's answer breaks off, so that it asks another server at the `Location`."""
    async with serving(dsn, schema, worker=False) as other, sdk(other) as client:
        async with serving(dsn, schema) as server, http(server) as waiting:
            body = {"assistant_id": "slow", "input": {"count": 60}, "if_not_exists": "create"}
            asked = asyncio.create_task(waiting.post("/threads/t/runs/wait", json=body))
            async with asyncio.timeout(60):
                while not await client.threads.search(status="busy"):
                    await asyncio.sleep(0.02)
            [run] = await client.runs.list("t")
            await until_running(client, "t", run["run_id"])
            server.stop()
            # That of httpx's transport, of a response without an end.
            with pytest.raises(AssertionError):
                await asked
        assert (await client.runs.get("t", run["run_id"]))["status"] == "pending"
        async with serving(dsn, schema):
            assert await client.runs.join("t", run["run_id"]) == {"count": 0}


async def test_it_leaves_nothing_behind(dsn: str, schema: str, connection: psycopg.Connection) -> None:
    before = asyncio.all_tasks()
    async with serving(dsn, schema) as server, sdk(server) as client:
        await client.runs.wait("t", "chat", input=HELLO, if_not_exists="create")
    await asyncio.sleep(0)
    assert asyncio.all_tasks() == before


def test_what_it_cannot_serve_is_refused() -> None:
    for state in (None, "postgresql://localhost/app"):
        with pytest.raises(ConfigurationError, match="state must be an AsyncPGState or a function"):
            create_app(state, graphs())  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="graphs must be given by name"):
        create_app(lambda: AsyncPGState.open(""), {})
    with pytest.raises(ConfigurationError, match="color"):
        create_app(lambda: AsyncPGState.open(""), graphs(), color="red")  # type: ignore[call-arg]


@pytest.mark.parametrize(("name", "why"), [("zz", "not a channel of any graph"), ("notes", "DeltaChannel")])
async def test_a_channel_that_cannot_be_projected_ends_the_start(dsn: str, schema: str, name: str, why: str) -> None:
    noting = StateGraph(Notes).add_node("note", lambda state: {}).add_edge(START, "note").compile()
    async with AsyncPGState.open(dsn, schema=schema, project=("messages", name)) as state:
        with pytest.raises(ConfigurationError, match=why):
            async with create_app(state, {"chat": chat(), "noting": noting}).lifespan():
                pass


@pytest.mark.slow
async def test_threads_that_have_expired_are_deleted(
    dsn: str, schema: str, connection: psycopg.Connection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app_module, "_SWEEP_SECONDS", 0.01)
    file = tmp_path / "langgraph.json"
    file.write_text(json.dumps({"checkpointer": {"ttl": {"default_ttl": 60}}}))
    options = load_state_config(file)
    server = create_app(lambda: AsyncPGState.open(dsn, schema=schema, **options), graphs())
    async with server.lifespan(), sdk(server) as client:
        for id in ("old", "new"):
            await client.runs.wait(id, "chat", input=HELLO, if_not_exists="create")
        found = await client.threads.get("old", include=["ttl"])
        assert found["ttl"]["expires_at"] > found["created_at"]
        connection.execute(
            f"UPDATE {schema}.threads SET expires_at = now(), updated_at = now() - interval '1 hour' "
            "WHERE thread_id = 'old'"
        )
        async with asyncio.timeout(GUARD_SECONDS):
            while await client.threads.search(ids=["old"]):
                await asyncio.sleep(0.02)
        assert (await client.threads.get("new"))["status"] == "idle"
