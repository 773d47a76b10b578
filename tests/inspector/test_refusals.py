"""Pages that say why a request was refused, and addresses that nobody has thought of."""

from __future__ import annotations

import re
from typing import Any

import pytest
from langgraph_sdk import Auth
from support import spread
from support.http import http
from support.pages import forms_of, inspected, state_of, travel, without_bdi

from langgraph_pgstate.inspector.formatting import sentence
from langgraph_pgstate.inspector.page import segment
from langgraph_pgstate.inspector.routes import PAGES

from .conftest import Place

NAVIGATION = '<nav aria-label="Pages">'


async def test_refusals_keep_the_navigation(place: Place) -> None:
    server, visitor = place
    ids = await travel(state_of(server))
    await visitor.introduce()
    responses = [
        (await visitor.client.get("/ui/threads/none"), 404),
        (await visitor.client.get("/ui/threads/t?view=none"), 422),
        (await visitor.client.get("/ui/runs/t/none"), 404),
        (await visitor.act("/threads/t/run", at=ids[0], head="none", mode="on"), 422),
        (await visitor.act("/threads/t/fork"), 422),
    ]
    for response, status in responses:
        assert response.status_code == status
        assert NAVIGATION in response.text
        assert 'aria-current="page"' in response.text
        assert 'href="/ui/person' in response.text
        # No way back to an action.
        assert "back=%2Fui%2Fthreads%2Ft%2Frun" not in response.text


async def test_a_refusal_of_the_queue_leads_back_to_it(place: Place) -> None:
    server, visitor = place
    state = state_of(server)
    await state.runs.enqueue("trip", {"messages": []}, thread_id="t", run_id="r", queue="of nobody")
    await visitor.introduce("Adam")
    form = forms_of(await visitor.page("/queue"))["/runs/t/r/cancel"]
    await state.runs.cancel("t", "r", by="Eve")
    refused = await visitor.act("/runs/t/r/cancel", **form, sure="1")
    html = without_bdi(refused.text)
    assert refused.status_code == 409
    assert ">The run was cancelled just now by Eve.<" in html
    assert re.search(r'<a class="button primary" href="/ui/queue">Back to the queue</a>', html)
    assert '<a href="/ui/queue" aria-current="page"' in html
    # An open page asks who has taken a row away.
    assert (await visitor.data("/runs/t/r"))["told"] == "Cancelled just now by Eve"


def test_reasons_are_sentences() -> None:
    assert sentence("the run has ended already: success") == "The run has ended already: success."
    assert sentence("send_email was settled by Eve") == "send_email was settled by Eve."
    assert sentence("Look at it again, then decide.") == "Look at it again, then decide."


async def test_who_may_see_no_pages_gets_no_navigation(dsn: str, schema: str) -> None:
    auth = Auth()

    @auth.authenticate
    async def authenticate(headers: dict[bytes, bytes]) -> Any:
        if headers.get(b"x-user") is None:
            raise Auth.exceptions.HTTPException(status_code=401)
        return {"identity": "adam", "permissions": []}

    async with inspected(dsn, schema, auth=auth) as (_, visitor):
        for headers, status in (({}, 401), ({"x-user": "adam"}, 403)):
            for path in ("/ui/threads", "/ui/none"):
                response = await visitor.client.get(path, headers=headers)
                assert response.status_code == status, path
                assert response.headers["content-type"].startswith("text/html")
                assert NAVIGATION not in response.text


@pytest.mark.parametrize("path", ["/none", "/threads/t/none", "/threads/t/none/deeper", "/threads/t/fork", "/%0A"])
async def test_unknown_pages_answer_a_browser_with_a_page(place: Place, path: str) -> None:
    server, visitor = place
    await travel(state_of(server))
    response = await visitor.client.get(f"/ui{path}")
    assert response.status_code == (405 if path.endswith("fork") else 404)
    assert response.headers["content-type"].startswith("text/html")
    assert response.headers["content-security-policy"].startswith("default-src 'none'")
    assert NAVIGATION in response.text
    assert (await visitor.client.get(f"/ui{path}", headers={"accept": "application/json"})).json().keys() == {"detail"}


@pytest.mark.parametrize("id", spread(["a\nb", "a\n", "\r\n", "tab\there", "\x7f", "\u2028"]))
async def test_an_id_with_control_characters_has_pages(place: Place, id: str) -> None:
    server, visitor = place
    ids = await travel(state_of(server), id)
    path = f"/threads/{segment(id)}"
    assert f'href="/ui{path}"' in await visitor.page("/threads")
    assert (await visitor.data(path))["thread"]["thread_id"] == id
    run_id = (await state_of(server).runs.list(thread_id=id)).items[0].run_id
    assert f'href="/ui/runs/{segment(id)}/{run_id}"' in await visitor.page(path)
    await visitor.page(f"/runs/{segment(id)}/{run_id}")
    await visitor.introduce()
    assert (await visitor.act(f"{path}/label", at=ids[0], label="x")).status_code == 303
    # The operations of clients have the id as it is.
    async with http(server) as client:
        plain = "".join(f"%{byte:02X}" for byte in id.encode())
        assert (await client.get(f"/threads/{plain}")).json()["thread_id"] == id


@pytest.mark.parametrize("path", ["memory/a%00/k", "memory/a/k%00", "files/a%00/b", "files/a/b%00", "threads/%00"])
async def test_a_name_that_cannot_be_stored_is_refused(place: Place, path: str) -> None:
    _, visitor = place
    assert (await visitor.client.get(f"/ui/{path}")).status_code in (404, 422)


async def test_parameters_of_any_name_change_nothing(place: Place) -> None:
    server, visitor = place
    await travel(state_of(server))
    await state_of(server).threads.fork("t", (await state_of(server).threads.tree("t")).nodes[1].checkpoint_id, "fork")
    run_id = (await state_of(server).runs.list(thread_id="t")).items[0].run_id
    odd = dict.fromkeys(("self", "base", "parts", "call", "changes", "args", "name", "m", "now", "page", "link"), "1")
    paths = [page.path for page in PAGES if page.is_read and "{" not in page.path]
    paths += ["/threads/t", "/threads/t/delete", f"/runs/t/{run_id}"]
    for path in paths:
        await visitor.page(path, **odd)
    # The run of a fork's checkpoint is on its source.
    moved = await visitor.client.get(f"/ui/runs/fork/{run_id}", params=odd)
    assert (moved.status_code, moved.headers["location"].partition("?")[0]) == (307, f"/ui/runs/t/{run_id}")
