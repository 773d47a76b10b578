"""Legal holds on the pages: where they are shown, who places and releases them, and what a stale page may not do."""

from __future__ import annotations

import html
from typing import Any

from langgraph_sdk import Auth
from support.pages import HOSTILE, fields_of, forms_of, inspected, state_of, travel, visiting

from langgraph_pgstate.inspector.access import ACT, READ

from .conftest import Place


async def test_a_held_thread_is_marked_wherever_it_is_shown(place: Place) -> None:
    server, visitor = place
    state = state_of(server)
    await travel(state)
    await travel(state, "other")
    assert "No thread is held" in await visitor.page("/holds")
    await visitor.introduce("Eve")
    assert (await visitor.act("/threads/t/hold", reason=f"case {HOSTILE}")).status_code == 303
    for path in ("/threads/t", "/holds"):
        page = await visitor.page(path)
        assert HOSTILE not in page
        assert "Eve" in page
        assert "case &lt;script&gt;" in page
    assert (await visitor.page("/threads")).count(">held</span>") == 1
    page = await visitor.page("/threads/t/delete")
    assert "Held by <strong>Eve" in page
    assert "/threads/t/delete" not in forms_of(page)
    assert [one["is_held"] for one in (await visitor.data("/threads"))["threads"]] == [False, True]
    events = await visitor.page("/threads/t", view="events")
    assert ">held</a>" in events


async def test_it_takes_a_reason_and_what_was_typed_is_kept(place: Place) -> None:
    server, visitor = place
    state = state_of(server)
    await travel(state)
    await visitor.introduce("Eve")
    refused = await visitor.act("/threads/t/hold", reason=" ")
    assert (refused.status_code, "reason must be given" in refused.text) == (422, True)
    refused = await visitor.act("/threads/t/hold", reason="x" * 201)
    assert (refused.status_code, "x" * 201 in refused.text) == (422, True)
    refused = await visitor.act("/threads", reason="case 7")
    assert (refused.status_code, "Choose the threads" in refused.text, "case 7" in refused.text) == (422, True, True)
    assert (await visitor.act("/holds")).status_code == 422
    assert (await visitor.act("/holds", **{"hold 1": "[1]"})).status_code == 422
    assert (await visitor.act("/threads/t/release", reason="case 7", sure="1")).status_code == 422
    assert (await state.threads.holds()).items == ()


async def test_several_are_held_and_released_from_the_lists(place: Place) -> None:
    server, visitor = place
    state = state_of(server)
    for id in ("a", "b", "c"):
        await state.threads.create(id, agent="trip")
    assert 'type="checkbox" form=' not in await visitor.page("/threads")
    await visitor.introduce("Eve")
    page = await visitor.page("/threads", hold="1", agent="trip")
    assert page.count('type="checkbox" form="choosing"') == 3
    assert "agent=trip" in next(path for path in forms_of(page))
    sent = await visitor.act("/threads", reason="case 7", **{"thread 1": "a", "thread 2": "b"})
    assert (sent.status_code, sent.headers["location"].partition("?")[0]) == (303, "/ui/holds")
    # One of them is gone: the others are held, and the page says so.
    sent = await visitor.act("/threads", reason="case 8", **{"thread 1": "c", "thread 2": "gone"})
    assert (sent.status_code, "1 of 2 threads are held now" in sent.text) == (409, True)
    held = {(one.thread_id, one.reason, one.held_by) for one in (await state.threads.holds()).items}
    assert held == {("a", "case 7", "Eve"), ("b", "case 7", "Eve"), ("c", "case 8", "Eve")}
    chosen = fields_of(await visitor.page("/holds"), "/holds")
    page = await visitor.page("/holds")
    names = [one.partition('"')[0] for one in page.split('name="hold ')[1:]]
    assert names == ["1", "2", "3"]
    values = [html.unescape(one.partition('value="')[2].partition('"')[0]) for one in page.split('name="hold ')[1:]]
    # It asks first, and names them.
    asked = await visitor.act("/holds", **chosen, **{"hold 1": values[0], "hold 2": values[1]})
    assert (asked.status_code, "Release the holds" in asked.text, "case 7" in asked.text) == (200, True, True)
    assert len((await state.threads.holds()).items) == 3
    sure = forms_of(asked.text)["/holds"]
    assert (await visitor.act("/holds", **sure)).status_code == 303
    assert [one.thread_id for one in (await state.threads.holds()).items] == ["c"]
    # The same form again does nothing, and is no error for who has sent it.
    assert (await visitor.act("/holds", **sure)).status_code == 303
    async with visiting(server) as adam:
        await adam.introduce("Adam")
        late = await adam.act("/holds", **{"hold 1": values[0], "sure": "1"})
        assert (late.status_code, "released just now by Eve" in late.text) == (409, True)


async def test_a_hold_that_was_placed_again_is_not_released_by_a_stale_page(place: Place) -> None:
    server, visitor = place
    state = state_of(server)
    await travel(state)
    await visitor.introduce("Eve")
    await state.threads.hold("t", "case 7", by="Eve")
    stale = forms_of(await visitor.page("/threads/t"))["/threads/t/release"]
    assert await state.threads.release("t", "case 7", by="Eve")
    await state.threads.hold("t", "case 7", by="Adam")
    refused = await visitor.act("/threads/t/release", **stale, sure="1")
    assert (refused.status_code, "placed just now by Adam" in refused.text) == (409, True)
    assert [one.held_by for one in (await state.threads.holds("t")).items] == ["Adam"]


async def test_who_sees_only_her_threads_sees_their_holds_and_cannot_end_them(dsn: str, schema: str) -> None:
    auth = Auth()

    @auth.authenticate
    async def authenticate(headers: dict[bytes, bytes]) -> Any:
        return {"identity": headers[b"x-user"].decode(), "permissions": [READ, ACT]}

    @auth.on.threads
    async def own(ctx: Any, value: dict[str, Any]) -> Any:
        return None if ctx.user.identity == "counsel" else {"owner": ctx.user.identity}

    async with (
        inspected(dsn, schema, auth=auth) as (server, _),
        visiting(server, {"x-user": "eve"}) as eve,
        visiting(server, {"x-user": "counsel"}) as counsel,
    ):
        state = state_of(server)
        await travel(state, metadata={"owner": "eve"})
        assert (await counsel.act("/threads/t/hold", reason="case 7")).status_code == 303
        page = await eve.page("/threads/t")
        assert "Held by <strong>counsel" in page
        assert not {"/threads/t/release", "/threads/t/hold"} & forms_of(page).keys()
        form = forms_of(await counsel.page("/threads/t"))["/threads/t/release"]
        for path, fields in (
            ("/threads/t/release", {**form, "sure": "1"}),
            ("/threads/t/hold", {"reason": "mine"}),
            ("/threads", {"reason": "mine", "thread 1": "t"}),
            ("/holds", {"hold 1": "[]", "sure": "1"}),
        ):
            assert (await eve.act(path, **fields)).status_code == 403, path
        assert (await eve.client.get("/ui/holds")).status_code == 403
        assert "hold=1" not in await eve.page("/threads")
        assert len((await state.threads.holds("t")).items) == 1
        assert (await counsel.act("/threads/t/release", **form, sure="1")).status_code == 303
