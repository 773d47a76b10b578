"""An application of the user's around the server (`http.app` of `langgraph.json`)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from fastapi import FastAPI
from langgraph_sdk import Auth
from pydantic import BaseModel
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import BaseRoute, Mount, Route, WebSocketRoute
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from starlette.websockets import WebSocket
from support.http import http, serving

from langgraph_pgstate.errors import ConfigurationError
from langgraph_pgstate.server import reading
from langgraph_pgstate.server.errors import Budget
from langgraph_pgstate.server.meta import document

STARTED: list[str] = []


class Greeting(BaseModel):
    name: str


class Marking:
    """Middleware that marks each response, and refuses what is said to be bad."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def marked(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], (b"x-marked", b"yes")]
            await send(message)

        if scope["type"] == "http" and scope["query_string"] == b"bad=":
            await JSONResponse({"detail": "bad"}, 418)(scope, receive, marked)
        else:
            await self._app(scope, receive, marked)


def app() -> Starlette:
    async def hello(request: Request) -> JSONResponse:
        user = request.scope.get("user")
        said = await request.json() if request.method == "POST" else None
        return JSONResponse({"user": user and user.identity, "said": said})

    async def info(request: Request) -> JSONResponse:
        return JSONResponse({"mine": True})

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        STARTED.append("start")
        yield
        STARTED.append("end")

    routes: list[BaseRoute] = [Route(path, info) for path in ("/info", "/ok")]
    routes.append(Route("/hello", hello, methods=["GET", "POST"]))
    below = [Mount(path, routes=[Route("/hello", hello)]) for path in ("/ok", "/below")]
    routes.extend(below)
    return Starlette(routes=routes, middleware=[Middleware(Marking)], lifespan=lifespan)


def auth(takes_body: bool = False) -> Auth:
    made = Auth()

    async def authenticate(authorization: str | None) -> str:
        if authorization != "eve":
            raise Auth.exceptions.HTTPException(401, "who?", {"WWW-Authenticate": "Bearer"})
        return "eve"

    async def authenticate_by_body(body: Any) -> str:
        if (body or {}).get("token") != "eve":
            raise Auth.exceptions.HTTPException(401, "who?")
        return "eve"

    made.authenticate(authenticate_by_body if takes_body else authenticate)
    return made


async def test_its_routes_come_first_and_its_middleware_is_around_all(dsn: str, schema: str) -> None:
    STARTED.clear()
    cors = {"allow_origins": ["https://example.com"]}
    async with serving(dsn, schema, app=app(), prefix="/api", cors=cors) as server:
        assert STARTED == ["start"]
        async with http(server, prefix="/api") as client:
            for path, answer in (("/hello", {"user": None, "said": None}), ("/info", {"mine": True})):
                found = await client.get(path, headers={"origin": "https://example.com"})
                assert (found.json(), found.headers["x-marked"]) == (answer, "yes")
                assert found.headers["access-control-allow-origin"] == "https://example.com"
            found = await client.post("/threads", json={"thread_id": "t"})
            assert (found.json()["thread_id"], found.headers["x-marked"]) == ("t", "yes")
            assert (await client.get("/threads/t", params="bad")).status_code == 418
            assert (await client.get("/nothing")).status_code == 404
            # Load balancers ask for it.
            assert (await client.get("/ok")).json() == {"ok": True}
        async with http(server) as client:
            assert (await client.get("/hello")).status_code == 404
    assert STARTED == ["start", "end"]


@pytest.mark.parametrize(("place", "status"), [("middleware_first", 418), ("auth_first", 401)])
async def test_its_routes_are_authenticated_if_that_is_wanted(dsn: str, schema: str, place: Any, status: int) -> None:
    async with serving(dsn, schema, app=app(), auth=auth(), app_auth=place) as server, http(server) as client:
        refused = await client.get("/hello")
        assert (refused.status_code, refused.json()) == (401, {"detail": "who?"})
        assert refused.headers["www-authenticate"] == "Bearer"
        assert (await client.get("/hello", params="bad")).status_code == status
        assert (await client.get("/hello", headers={"authorization": "eve"})).json()["user"] == "eve"
        assert [(await client.get(path)).status_code for path in ("/ok", "/threads/t")] == [200, 401]
        # Only the server's own is open.
        assert [(await client.get(path)).status_code for path in ("/ok/hello", "/below/hello")] == [401, 401]


async def test_a_body_that_authenticates_is_read_by_the_route_too(dsn: str, schema: str) -> None:
    options: Any = {"app": app(), "auth": auth(takes_body=True), "app_auth": "middleware_first"}
    async with serving(dsn, schema, **options) as server, http(server) as client:
        assert (await client.post("/hello", json={})).status_code == 401
        said = {"token": "eve", "x": 1}
        assert (await client.post("/hello", json=said)).json() == {"user": "eve", "said": said}


async def test_a_body_that_authenticates_is_bounded(dsn: str, schema: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "_unparsed", budget := Budget(300_000))
    options: Any = {"app": app(), "auth": auth(takes_body=True), "app_auth": "auth_first"}
    limits = {"max_body_size": 400_000, "max_body_values": 10}
    async with serving(dsn, schema, **options, **limits) as server, http(server) as client:
        for said, status in (("x" * 400_000, 413), ([0] * 20, 413), ("x" * 250_000, 200)):
            assert (await client.post("/hello", json={"token": "eve", "x": said})).status_code == status
        assert budget._held == 0
        # What others have sent counts.
        budget.claim(200_000)
        assert (await client.post("/hello", json={"token": "eve", "x": "x" * 250_000})).status_code == 503


async def test_without_it_they_are_open_and_the_server_is_not(dsn: str, schema: str) -> None:
    async with serving(dsn, schema, app=app(), auth=auth()) as server, http(server) as client:
        assert (await client.get("/hello")).json() == {"user": None, "said": None}
        assert (await client.post("/threads", json={})).status_code == 401


@pytest.mark.parametrize(("place", "is_open"), [("none", True), ("middleware_first", False), ("auth_first", False)])
async def test_websockets_are_refused_where_nothing_would_authenticate_them(
    dsn: str, schema: str, place: Any, is_open: bool
) -> None:
    async def live(socket: WebSocket) -> None:
        await socket.accept()
        await socket.close()

    own = Starlette(routes=[WebSocketRoute("/live", live)])
    sent: list[Message] = []

    async def receive() -> Message:
        return {"type": "websocket.connect"}

    async def send(message: Message) -> None:
        sent.append(message)

    headers = [(b"authorization", b"eve")]
    scope = {"type": "websocket", "path": "/live", "root_path": "", "query_string": b"", "headers": headers}
    async with serving(dsn, schema, app=own, auth=auth(), app_auth=place) as server:
        await server(scope, receive, send)
    opened = ["websocket.accept", "websocket.close"]
    assert [one["type"] for one in sent] == (opened if is_open else ["websocket.close"])


async def test_what_cannot_be_is_refused(dsn: str, schema: str) -> None:
    for options, words in (
        ({"app": object()}, "Starlette"),
        ({"app": app(), "app_auth": "auth_first"}, "auth must be given"),
    ):
        with pytest.raises(ConfigurationError, match=words):
            async with serving(dsn, schema, **options):
                pass


@pytest.mark.slow
async def test_a_document_of_its_own_has_the_operations_too(dsn: str, schema: str) -> None:
    """FastAPI's document and its page `/docs` describe the whole server, as those of LangGraph's own server do."""

    def fast() -> FastAPI:
        own = FastAPI(title="Mine")

        @own.post("/hello")
        async def hello(greeting: Greeting) -> None: ...

        @own.get("/threads")
        async def threads() -> None: ...

        return own

    async with serving(dsn, schema, app=fast(), prefix="/api") as server, http(server, prefix="/api") as client:
        assert (await client.get("/docs")).status_code == 200
        found = (await client.get("/openapi.json")).json()
    assert found["info"]["title"] == "Mine"
    assert found["servers"] == [{"url": "/api"}]
    assert set(found["paths"]) == {*document()["paths"], "/hello"}
    assert set(found["paths"]["/threads"]) == {"get", "post"}
    assert {"Greeting", "ThreadCreate"} <= set(found["components"]["schemas"])
    async with serving(dsn, schema, app=fast(), disabled=["meta"]) as server, http(server) as client:
        assert set((await client.get("/openapi.json")).json()["paths"]) == {"/hello", "/threads"}
