"""The table of operations: complete by the SDK's own calls."""

from __future__ import annotations

import asyncio
import inspect
import re
from typing import Any

import httpx
import pytest
from langgraph_sdk.client import LangGraphClient
from starlette.routing import Match, Route
from support.http import http, listening, serving

from langgraph_pgstate.server.routes import OPERATIONS, Operation

CLIENTS = ("assistants", "threads", "runs", "crons", "store")
# Arguments of an operation's call, where their types do not tell them.
ARGUMENTS: dict[str, Any] = {
    "thread_id": "t",
    "run_id": "r",
    "assistant_id": "a",
    "cron_id": "c",
    "graph_id": "g",
    "version": 1,
    "namespace": ["a"],
    "namespace_prefix": ["a"],
    "key": "k",
    "value": {},
    "values": {},
    "metadata": {},
    "schedule": "* * * * *",
    "payloads": [],
    "thread_ids": [],
}
# Calls that have a path for each of several forms of their arguments.
FORMS: dict[str, list[dict[str, Any]]] = {
    "assistants.get_subgraphs": [{"namespace": None}, {"namespace": "n"}],
    "threads.get_state": [{}, {"checkpoint_id": "c"}, {"checkpoint": {"checkpoint_id": "c"}}],
    **{f"runs.{name}": [{"thread_id": "t"}, {"thread_id": None}] for name in ("create", "wait", "stream")},
}


async def requested(name: str, **given: Any) -> tuple[str, str]:
    """Return method and path of what the SDK sends for an operation."""
    seen: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        if request.headers.get("accept") == "text/event-stream":
            return httpx.Response(
                200, headers={"content-type": "text/event-stream"}, content=b"event: end\ndata: {}\n\n"
            )
        return httpx.Response(200, json={})

    async with httpx.AsyncClient(transport=httpx.MockTransport(answer), base_url="http://test") as client:
        part, _, method = name.partition(".")
        call = getattr(getattr(LangGraphClient(client), part), method)
        parameters = inspect.signature(call).parameters.values()
        needed = {one.name: ARGUMENTS.get(one.name) for one in parameters if one.default is one.empty}
        arguments = {**needed, **given}
        positional = [arguments.pop(one.name) for one in parameters if one.kind is one.POSITIONAL_ONLY]
        made = call(*positional, **arguments)
        found = await made if inspect.isawaitable(made) else made
        if hasattr(found, "__aiter__"):
            async for _ in found:
                pass
    return seen[0].method, seen[0].url.path


def operations_of_the_sdk() -> list[str]:
    """Every public method of its clients."""

    async def nothing() -> list[str]:
        async with httpx.AsyncClient() as client:
            sdk = LangGraphClient(client)
            return [
                f"{part}.{name}"
                for part in CLIENTS
                for name, value in inspect.getmembers(getattr(sdk, part), callable)
                if not name.startswith("_") and name != "http"
            ]

    return asyncio.run(nothing())


SDK = operations_of_the_sdk()
# Operations that the SDK does not have.
OURS = {"ok", "info", "openapi", "metrics", "analytics", "feedback.create", "feedback.list", "feedback.delete"}


def served(method: str, path: str) -> Operation | None:
    """Return the operation that answers a request."""
    for one in OPERATIONS:
        route = Route(one.path, lambda request: None, methods=[one.method])  # type: ignore[arg-type,return-value]
        scope = {"type": "http", "method": method, "path": path, "root_path": ""}
        if route.matches(scope)[0] is Match.FULL:
            return one
    return None


def test_the_sdk_has_as_many_operations_as_are_named_here() -> None:
    assert {one.name for one in OPERATIONS} == {*SDK, *OURS}


@pytest.mark.parametrize("name", [name for name in SDK if name != "threads.stream"])
async def test_an_operation_of_the_sdk_finds_its_handler(name: str) -> None:
    for form in FORMS.get(name, [{}]):
        method, path = await requested(name, **form)
        found = served(method, path)
        assert found is not None, (method, path)
        assert found.name == name


async def test_what_is_missing_says_so(dsn: str, schema: str) -> None:
    async with serving(dsn, schema) as server, http(server) as client:
        for one in OPERATIONS:
            if one.handler is None:
                answered = await client.request(one.method, re.sub("{.*?}", "x", one.path), json={})
                assert answered.status_code == 501, one.name
                assert answered.json() == {"detail": f"{one.name} is not implemented"}


@pytest.mark.slow
async def test_a_read_only_server_changes_nothing(dsn: str, schema: str) -> None:
    async with (
        serving(dsn, schema, read_only=True) as server,
        listening(server) as address,
        httpx.AsyncClient(base_url=address) as client,
    ):
        for one in OPERATIONS:
            if one.handler is not None:
                # Streams of a thread that does not exist wait for it: the head of the answer is enough.
                async with client.stream(one.method, re.sub("{.*?}", "x", one.path), json={}) as answered:
                    assert (answered.status_code == 403) is not one.is_read, one.name
        assert (await client.post("/threads/search", json={})).json() == []


def test_every_operation_says_what_it_does() -> None:
    for one in OPERATIONS:
        assert one.handler is None or one.summary.endswith("."), one.name
