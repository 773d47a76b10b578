"""Who may see pages and act on them, and that no page of another site can."""

from __future__ import annotations

from typing import Any

import pytest
from langgraph_sdk import Auth
from support.pages import inspected, state_of, travel, visiting
from support.record import Record

from langgraph_pgstate.inspector.access import HEADERS, name_of
from langgraph_pgstate.inspector.routes import PAGES

from .conftest import Place

USERS: dict[str, Any] = {
    "viewer": {"identity": "vera", "permissions": ["pages:read"]},
    "operator": {"identity": "olga", "permissions": ["pages:act"]},
    "client": {"identity": "carl", "permissions": []},
}
ACTIONS = [page for page in PAGES if not page.is_read and page.needs_person]


def auth() -> Auth:
    """Everybody sees the threads of their team."""
    made = Auth()

    @made.authenticate
    async def authenticate(authorization: str | None) -> Any:
        if authorization not in USERS:
            raise Auth.exceptions.HTTPException(401, "who are you?", {"WWW-Authenticate": "Basic"})
        return USERS[authorization]

    @made.on.threads
    async def of_team(ctx: Auth.types.AuthContext, value: dict[str, Any]) -> Any:
        value.setdefault("metadata", {})["team"] = "red"
        return {"team": "red"}

    return made


def path_of(page: Any) -> str:
    return page.path.replace("{thread_id}", "t").replace("{run_id}", "r").replace("{key}", "k")


async def test_every_page_has_the_headers_that_keep_it_safe(place: Place) -> None:
    _, visitor = place
    for path in ("/threads", "/threads/none", "/nothing-here", "/person", "/threads?format=json"):
        response = await visitor.client.get(f"/ui{path}")
        if path != "/nothing-here":
            assert {name: response.headers[name] for name in HEADERS} == {**HEADERS}
    policy = HEADERS["Content-Security-Policy"]
    assert "unsafe" not in policy
    assert "default-src 'none'" in policy


async def test_a_form_needs_the_token_of_the_browser(place: Place) -> None:
    server, visitor = place
    await travel(state_of(server))
    await visitor.introduce()
    for page in ACTIONS:
        without = await visitor.client.post(f"/ui{path_of(page)}", data={"at": "x"})
        wrong = await visitor.client.post(f"/ui{path_of(page)}", data={"at": "x", "token": "wrong"})
        assert (without.status_code, wrong.status_code) == (403, 403), page.name
        assert "must have the token of this browser" in wrong.text
    async with visiting(server) as other:
        # No cookie, and an empty token.
        assert (await other.client.post("/ui/threads/t/delete", data={"token": ""})).status_code == 403
    assert await state_of(server).threads.get("t") is not None


async def test_a_form_of_another_site_is_refused(place: Place) -> None:
    cases: list[tuple[dict[str, str], int]] = [
        ({"sec-fetch-site": "same-origin"}, 303),
        ({"sec-fetch-site": "cross-site"}, 403),
        ({"sec-fetch-site": "same-site"}, 403),
        ({"sec-fetch-site": "none"}, 403),
        ({"origin": "http://localhost"}, 303),
        ({"origin": "http://localhost:3000"}, 403),
        ({"origin": "https://smith.langchain.com"}, 403),
        ({"origin": "null"}, 403),
        ({"origin": "http://localhost", "sec-fetch-site": "cross-site"}, 403),
        ({}, 303),
    ]
    for headers, status in cases:
        assert (await place[1].act("/person", headers, name="Eve")).status_code == status, headers


async def test_a_body_that_is_no_form_is_refused(place: Place) -> None:
    _, visitor = place
    await visitor.introduce()
    token = visitor.client.cookies["pgstate_token"]
    for kind in ("application/json", "text/plain", "multipart/form-data; boundary=x"):
        response = await visitor.client.post(
            "/ui/person", content=f"token={token}&name=x", headers={"content-type": kind}
        )
        assert response.status_code == 415
    form = {"content-type": "application/x-www-form-urlencoded"}
    for content in (b"name=%ff%fe", b"\xff", b"&".join([b"a=b"] * 1100)):
        assert (await visitor.client.post("/ui/person", content=content, headers=form)).status_code == 422


@pytest.mark.slow
async def test_without_auth_only_this_machine_acts(place: Place) -> None:
    server, _ = place
    await travel(state_of(server))
    cases: list[tuple[str, str, dict[str, str]]] = [
        ("10.0.0.7", "localhost", {}),
        ("127.0.0.1", "pages.example.com", {}),
        ("127.0.0.1", "localhost", {"x-forwarded-for": "10.0.0.7"}),
        ("127.0.0.1", "localhost", {"forwarded": "for=10.0.0.7"}),
    ]
    for client, host, headers in cases:
        async with visiting(server, headers, client, host) as visitor:
            page = await visitor.page("/threads/t")
            assert "Fork" not in page
            assert "read-only" in page
            for action in ACTIONS:
                assert (await visitor.act(path_of(action), at="x")).status_code == 403, action.name
            assert (await visitor.act("/person", name="Mallory")).status_code == 403


async def test_an_action_needs_a_name(place: Place) -> None:
    server, visitor = place
    await travel(state_of(server))
    assert "Say who you are" in await visitor.page("/threads/t")
    for action in ACTIONS:
        response = await visitor.act(path_of(action), at="x")
        assert (response.status_code, "name of a person" in response.text) == (403, True), action.name
    await visitor.introduce("Eve Adams")
    page = await visitor.page("/threads/t")
    assert "Eve Adams" in page
    assert "Fork" in page


async def test_a_read_only_server_hides_and_refuses_actions(dsn: str, schema: str) -> None:
    async with inspected(dsn, schema) as (server, _):
        await travel(state_of(server))
    async with inspected(dsn, schema, read_only=True) as (server, visitor):
        page = await visitor.page("/threads/t")
        assert 'method="post"' not in page
        for action in ACTIONS:
            response = await visitor.act(path_of(action), at="x")
            assert (response.status_code, "read-only" in response.text) == (403, True), action.name


@pytest.mark.slow
async def test_permissions_decide_and_nobody_has_them_by_default(dsn: str, schema: str) -> None:
    async with inspected(dsn, schema, auth=auth()) as (server, anonymous):
        await travel(state_of(server), metadata={"team": "red", "graph_id": "trip"})
        await travel(state_of(server), "blue", metadata={"team": "blue"})
        refused = await anonymous.client.get("/ui/threads")
        assert (refused.status_code, refused.headers["www-authenticate"]) == (401, "Basic")
        async with visiting(server, {"authorization": "client"}) as client:
            for page in PAGES:
                response = await client.client.request(page.method, f"/ui{path_of(page)}", data={})
                assert response.status_code == 403 or (not page.is_read and response.status_code == 415), page.name
                assert 'href="/ui/threads"' not in response.text or not page.is_read, page.name
        async with visiting(server, {"authorization": "viewer"}, "10.0.0.7", "pages.example.com") as viewer:
            assert [one["thread_id"] for one in (await viewer.data("/threads"))["threads"]] == ["t"]
            assert 'href="/ui/threads"' in (await viewer.client.get("/ui/database")).text
            assert 'method="post"' not in await viewer.page("/threads/t")
            for page in PAGES:
                if page.path.startswith("/threads/{thread_id}"):
                    hidden = path_of(page).replace("/t", "/blue", 2).replace("/bluehreads", "/threads")
                    response = await viewer.client.get(f"/ui{hidden}") if page.is_read else await viewer.act(hidden)
                    assert response.status_code in (403, 404), (page.name, hidden)
        async with visiting(server, {"authorization": "operator"}, "10.0.0.7", "pages.example.com") as operator:
            assert "olga" in await operator.page("/threads/t")
            for page in ACTIONS:
                if page.path.startswith("/threads/{thread_id}"):
                    hidden = path_of(page).replace("/t", "/blue", 2).replace("/bluehreads", "/threads")
                    assert (await operator.act(hidden, at="x")).status_code in (403, 404, 422), page.name
            # Nobody gives another name than the one that authenticates them.
            assert (await operator.act("/person", name="Eve")).status_code == 422
        assert await state_of(server).threads.get("blue") is not None


def test_names() -> None:
    assert name_of("  Eve   Adams ") == "Eve Adams"
    assert [name_of(text) for text in ("", "   ", "a\x07b", "x" * 81, "\u202eevE", "\u200d")] == [None] * 6
    # A Sinhala and a Persian name, which are written with a joiner and a non-joiner.
    for name in ("ශ්\u200dරී", "گل\u200cنار"):
        assert name_of(name) == name


async def test_pages_that_only_show_offer_no_answer_and_no_decision(dsn: str, schema: str, record: Record) -> None:
    async with inspected(dsn, schema, read_only=True) as (server, visitor):
        await travel(state_of(server))
        record.execution("k", status="unknown", tool="pay")
        record.run("bad", status="error", error_type="app.ToolOutcomeUnknownError")
        for path, action in (("/threads/t", "an answer"), ("/interrupts", "an answer"), ("/tools/t/k", "a decision")):
            page = await visitor.page(path)
            assert f"This server is read-only: {action} needs <code>pgstate serve</code>" in page
            assert 'data-does="Answer"' not in page
        page = await visitor.page("/runs/t/bad")
        assert "Outcome unknown: pay" in page
        assert "Settle" not in page


@pytest.mark.slow
async def test_a_run_is_that_of_the_user_who_starts_it(dsn: str, schema: str) -> None:
    """On another user's thread, and on a fork of it, too."""
    async with inspected(dsn, schema, auth=auth(), worker=True) as (server, _):
        state = state_of(server)
        ids = await travel(state, user_id="adam", tenant_id="acme", metadata={"team": "red"})
        async with visiting(server, {"authorization": "operator"}) as olga:
            await olga.page("/threads/t")
            begun = [
                await olga.act("/threads/t/fork", at=ids[1], to="forked", run="1"),
                await olga.act("/threads/t/run", at=ids[1], head=ids[0], mode="replay"),
            ]
        assert [one.status_code for one in begun] == [303, 303]
        for thread_id in ("forked", "t"):
            run = (await state.runs.list(thread_id=thread_id, limit=1)).items[0]
            await state.runs.wait(thread_id, run.run_id)
            await state.flush()
            found = await state.runs.get(thread_id, run.run_id)
            assert found is not None
            assert found.user_id == "olga"


async def test_a_form_that_ends_early_is_no_failure(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    """Guard: anybody could fill the log with tracebacks."""
    server, _ = place
    headers = [(b"content-type", b"application/x-www-form-urlencoded"), (b"host", b"localhost")]
    scope = {"type": "http", "method": "POST", "path": "/ui/person", "raw_path": b"/ui/person", "query_string": b""}
    scope |= {"headers": headers, "client": ("127.0.0.1", 1), "http_version": "1.1", "scheme": "http"}
    parts = [{"type": "http.request", "body": b"name=", "more_body": True}, {"type": "http.disconnect"}]
    sent: list[Any] = []

    async def receive() -> Any:
        return parts.pop(0)

    async def send(message: Any) -> None:
        sent.append(message)

    await server(scope, receive, send)
    assert sent[0]["status"] == 400
    assert caplog.text == ""


async def test_an_address_with_nul_is_refused(place: Place) -> None:
    """Guard: `segment` writes what browsers change as `~` and two digits."""
    _, visitor = place
    for path in ("/threads/~00", "/tools/t/~00", "/memory/a/k~00", "/runs/t/%00", "/files/a/~00"):
        response = await visitor.client.get(f"/ui{path}")
        assert (response.status_code, "NUL" in response.text) == (422, True), path
        assert response.text.rstrip().endswith("</html>")
