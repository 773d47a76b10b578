"""Archived threads on the pages: their stubs, what is refused of them, verification, restoration and deletion."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from langgraph_sdk import Auth
from support.pages import forms_of, inspected, state_of, travel, visiting

from langgraph_pgstate import AsyncPGState
from langgraph_pgstate.inspector.access import ACT, READ

from .conftest import Place


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"file://{tmp_path}/archive"


async def archive(state: AsyncPGState, url: str, *ids: str) -> None:
    report = await state.archive.put(ids, to=url, idle_for=timedelta(0))
    assert report.threads == len(ids), report


@pytest.mark.slow
async def test_a_stub_says_when_and_where_and_comes_back(place: Place, url: str) -> None:
    server, visitor = place
    state = state_of(server)
    await travel(state, title="Lisbon", user_id="eve")
    await travel(state, "other")
    before = await visitor.data("/threads/t", view="state")
    assert "No thread is archived" in await visitor.page("/archive")
    await archive(state, url, "t")
    assert (await visitor.page("/threads")).count(">archived</span>") == 1

    async def found(where: str) -> list[str]:
        return [one["thread_id"] for one in (await visitor.data("/threads", place=where))["threads"]]

    assert (await found("archive"), await found("database")) == (["t"], ["other"])
    assert (await visitor.client.get("/ui/threads?place=moon")).status_code == 422
    await visitor.introduce("Eve")
    for path in ("/threads/t", "/archive"):
        page = await visitor.page(path)
        assert url[:40] in page
        assert "/threads/t/restore" in forms_of(page)
    assert "Verified: " in await visitor.page("/threads/t", check="1")
    assert "Verified: 1 thread with" in await visitor.page("/archive", check="t")
    assert "Verified: 1 thread with" in await visitor.page("/archive", check_all="1")
    assert "is not archived" in await visitor.page("/archive", check="other")
    assert (await visitor.data("/archive", user="adam"))["threads"] == []
    form = forms_of(await visitor.page("/threads/t"))["/threads/t/restore"]
    sent = await visitor.act("/threads/t/restore", **form)
    assert sent.status_code == 303
    after = await visitor.data("/threads/t", view="state")
    assert {**after, "thread": None} == {**before, "thread": None}
    # Sent twice.
    assert (await visitor.act("/threads/t/restore", **form)).status_code == 303
    assert ">restored from the archive</a>" in await visitor.page("/threads/t", view="events")
    refused = await visitor.act("/threads/other/restore")
    assert (refused.status_code, "not archived" in refused.text) == (409, True)


async def test_what_needs_the_rows_says_that_the_thread_is_archived(place: Place, url: str) -> None:
    server, visitor = place
    state = state_of(server)
    ids = await travel(state)
    (run,) = (await state.runs.list(thread_id="t")).items
    await visitor.introduce("Eve")
    forms = forms_of(await visitor.page("/threads/t"))
    stale = {path: fields for path, fields in forms.items() if path.startswith("/threads/t/") and "hold" not in path}
    stale["/threads/t/label"] |= {"label": "x"}
    await archive(state, url, "t")
    paths = [f"/threads/t/value?channel=messages&at={ids[0]}", f"/runs/t/{run.run_id}", f"/threads/t/edit?at={ids[0]}"]
    responses = [await visitor.client.get(f"/ui{path}") for path in paths]
    responses += [await visitor.act(path, **fields) for path, fields in stale.items()]
    responses.append(await visitor.act("/threads/t/edit", at=ids[0], head=ids[0], step="apply", values="{}"))
    assert {*stale} == {"/threads/t/fork", "/threads/t/run", "/threads/t/label"}
    for response in responses:
        assert (response.status_code, "is archived" in response.text) == (409, True), (response.url, response.text)
    # Any view of it, and any checkpoint.
    for query in ({"at": ids[0]}, {"view": "events"}, {"step": "1"}):
        assert "Its messages, states and runs are in an archive" in await visitor.page("/threads/t", **query)


@pytest.mark.slow
async def test_a_damaged_or_missing_archive_is_named(place: Place, url: str) -> None:
    server, visitor = place
    state = state_of(server)
    await travel(state)
    await archive(state, url, "t")
    await visitor.introduce("Eve")
    folder = Path(url.removeprefix("file://"))
    (pack,) = folder.glob("*.pack")
    whole = pack.read_bytes()
    pack.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    assert 'class="problem"' in await visitor.page("/archive", check="t")
    assert 'class="problem"' in await visitor.page("/threads/t", check="1")
    refused = await visitor.act("/threads/t/restore")
    assert (refused.status_code, pack.name in refused.text) == (500, True)
    pack.unlink()
    refused = await visitor.act("/threads/t/restore")
    assert (refused.status_code, pack.name in refused.text) == (500, True), refused.text
    thread = await state.threads.get("t")
    assert thread is not None
    assert thread.archived_at is not None
    pack.write_bytes(whole)
    assert (await visitor.act("/threads/t/restore")).status_code == 303


@pytest.mark.slow
async def test_it_is_deleted_from_archives_unless_it_is_held_or_came_back(place: Place, url: str) -> None:
    server, visitor = place
    state = state_of(server)
    await travel(state)
    await travel(state, "other")
    await archive(state, url, "t", "other")
    await visitor.introduce("Eve")
    page = await visitor.page("/threads/t/delete")
    assert "Its copies in all archives" in page
    form = forms_of(page)["/threads/t/delete"]
    await state.threads.hold("t", "case 7", by="counsel")
    refused = await visitor.act("/threads/t/delete", **form)
    assert (refused.status_code, "counsel" in refused.text) == (409, True)
    await state.threads.release("t", "case 7", by="counsel")
    await state.archive.restore(["t"])
    refused = await visitor.act("/threads/t/delete", **form)
    assert (refused.status_code, "archived or restored since" in refused.text) == (409, True)
    assert await state.threads.get("t") is not None
    await archive(state, url, "t")
    form = forms_of(await visitor.page("/threads/t/delete"))["/threads/t/delete"]
    sent = await visitor.act("/threads/t/delete", **form)
    assert (sent.status_code, sent.headers["location"].partition("?")[0]) == (303, "/ui/archive")
    assert await state.threads.get("t") is None
    late = await visitor.act("/threads/t/delete", **form)
    assert (late.status_code, "deleted just now by Eve" in late.text) == (404, True)
    assert (await state.archive.check()).threads == 1


async def test_who_sees_only_her_threads_does_not_see_where_they_are(dsn: str, schema: str, url: str) -> None:
    auth = Auth()

    @auth.authenticate
    async def authenticate(headers: dict[bytes, bytes]) -> Any:
        return {"identity": headers[b"x-user"].decode(), "permissions": [READ, ACT]}

    @auth.on.threads
    async def own(ctx: Any, value: dict[str, Any]) -> Any:
        return {"owner": ctx.user.identity}

    async with inspected(dsn, schema, auth=auth) as (server, _), visiting(server, {"x-user": "eve"}) as eve:
        state = state_of(server)
        await travel(state, metadata={"owner": "eve"})
        await archive(state, url, "t")
        for query in ({}, {"check": "1"}):
            page = await eve.page("/threads/t", **query)
            assert "Only who may see all threads can restore it" in page
            assert url not in page
        for path in ("/archive", "/archive?check=t", "/threads/t/delete"):
            assert (await eve.client.get(f"/ui{path}")).status_code == 403
        thread = await state.threads.get("t")
        assert thread is not None
        assert thread.archived_at is not None
        for path, fields in (("restore", {}), ("delete", {"archived": thread.archived_at.isoformat()})):
            assert (await eve.act(f"/threads/t/{path}", **fields)).status_code == 403
        assert await state.threads.get("t") == thread


async def test_pages_that_may_only_be_read_verify_nothing(dsn: str, schema: str, url: str) -> None:
    async with inspected(dsn, schema) as (server, _):
        await travel(state_of(server))
        await archive(state_of(server), url, "t")
    async with inspected(dsn, schema, read_only=True) as (_, visitor):
        page = await visitor.page("/archive")
        assert forms_of(page) == {}
        assert url in await visitor.page("/threads/t")
        for path in ("/archive?check=t", "/threads/t?check=1"):
            assert (await visitor.client.get(f"/ui{path}")).status_code == 403
