"""Pages as a part of a server."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.http import http, serving
from support.pages import inspected

from langgraph_pgstate.server import AgentServer

from .conftest import Place


async def test_a_server_has_no_pages_unless_they_are_wanted(dsn: str, schema: str) -> None:
    async with serving(dsn, schema, worker=False) as server, http(server) as client:
        assert (await client.get("/ui/threads")).status_code == 404


async def test_the_start_is_the_first_page(place: Place) -> None:
    _, visitor = place
    response = await visitor.client.get("/ui/")
    assert (response.status_code, response.headers["location"]) == (307, "/ui/threads")


async def test_files_are_answered(place: Place) -> None:
    _, visitor = place
    for name, kind in (("pages.css", "text/css"), ("pages.js", "text/javascript"), ("icon.svg", "image/svg+xml")):
        response = await visitor.client.get(f"/ui/static/{name}")
        assert (response.status_code, response.headers["content-type"].partition(";")[0]) == (200, kind)
    for name in ("none.css", "..%2Fapp.py", "%2e%2e/app.py"):
        assert (await visitor.client.get(f"/ui/static/{name}")).status_code == 404


async def test_pages_need_no_graphs(dsn: str, schema: str) -> None:
    async with inspected(dsn, schema, graphs={}, read_only=True) as (_, visitor):
        assert "No threads yet" in await visitor.page("/threads")


async def test_a_server_that_does_not_run_says_so(place: Place) -> None:
    server, visitor = place
    service, server.service = server.service, None
    try:
        response = await visitor.client.get("/ui/threads")
        assert (response.status_code, response.headers["retry-after"]) == (503, "1")
    finally:
        server.service = service


async def test_a_failure_shows_no_internals(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    server, visitor = place
    assert server.service is not None

    async def fail(**filters: object) -> None:
        raise RuntimeError("secret")

    monkeypatch.setattr(server.service.state.threads, "search", fail)
    for accept in ("text/html", "application/json"):
        response = await visitor.client.get("/ui/threads", headers={"accept": accept})
        assert response.status_code == 500
        assert "secret" not in response.text


def test_a_server_without_graphs_must_be_one_of_pages() -> None:
    from langgraph_pgstate.errors import ConfigurationError

    with pytest.raises(ConfigurationError):
        AgentServer(lambda: None, {}, {})


def test_no_file_is_loaded_from_elsewhere() -> None:
    from langgraph_pgstate.inspector import app

    folder = Path(app.__file__).parent
    for file in [*(folder / "static").iterdir(), *(folder / "templates").iterdir()]:
        text = file.read_text().replace("http://www.w3.org/2000/svg", "")
        assert "http://" not in text, file.name
        assert "https://" not in text, file.name
