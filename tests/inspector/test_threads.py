"""The list of threads."""

from __future__ import annotations

import html
import re

import pytest
from langchain_core.messages import HumanMessage, RemoveMessage
from support.pages import HOSTILE, state_of, statements, travel, trip

from langgraph_pgstate.inspector import threads
from langgraph_pgstate.server.graphs import config_at

from .conftest import Place


async def test_threads_are_found_by_every_filter(place: Place) -> None:
    server, visitor = place
    state = state_of(server)
    await travel(state, "t-1", user_id="eve", tenant_id="acme", title="Lisbon", metadata={"priority": 2, "team": "red"})
    await travel(state, "t-2", user_id="adam", agent="other", metadata={"priority": "2"})
    await state.threads.create("empty")

    async def found(**query: str) -> list[str]:
        return sorted(one["thread_id"] for one in (await visitor.data("/threads", **query))["threads"])

    assert await found() == ["empty", "t-1", "t-2"]
    assert await found(user="eve") == ["t-1"]
    assert await found(tenant="acme") == ["t-1"]
    assert await found(agent="other") == ["t-2"]
    assert await found(status="interrupted") == ["t-1", "t-2"]
    assert await found(status="idle") == ["empty"]
    assert await found(metadata="priority=2, team=red") == ["t-1"]
    assert await found(metadata='{"priority": "2"}') == ["t-2"]
    assert await found(q="weekend lisbon") == ["t-1", "t-2"]
    assert await found(q="weekend", user="adam", status="interrupted") == ["t-2"]
    assert await found(q="t-") == ["t-1", "t-2"]
    assert await found(q="nowhere") == []
    assert await found(after="2020-01-01", before="2999-01-01T00:00:00+02:00") == ["empty", "t-1", "t-2"]
    assert await found(before="2020-01-01") == []


async def test_a_filter_that_makes_no_sense_is_explained(place: Place) -> None:
    _, visitor = place
    queries = (
        {"status": "lost"},
        {"metadata": "{"},
        {"metadata": "x"},
        {"after": "soon"},
        {"cursor": "x"},
    )
    for query in queries:
        for kind in ("text/html", "application/json"):
            response = await visitor.client.get("/ui/threads", params=query, headers={"accept": kind})
            assert response.status_code == 422
            assert response.headers["content-type"].startswith(kind)
            assert next(iter(query)) in response.text


async def test_pages_follow_one_another(place: Place) -> None:
    server, visitor = place
    for number in range(120):
        await state_of(server).threads.create(f"t{number}", metadata={"a": 1})
    seen: list[str] = []
    page = await visitor.page("/threads", metadata="a=1")
    assert "Live" in page
    while True:
        seen += re.findall(r'<a href="/ui/threads/(\w+)">', page)
        following = re.search(r'href="/ui/threads\?([^"]*)" rel="next"', page)
        if following is None:
            break
        assert "metadata=a%3D1" in following[1]
        page = (await visitor.client.get(f"/ui/threads?{following[1].replace('&amp;', '&')}")).text
        assert ">Live<" not in page
    assert seen == [f"t{number}" for number in reversed(range(120))]


async def test_the_list_is_one_statement(place: Place) -> None:
    server, visitor = place
    await travel(state_of(server))
    for query in ({}, {"q": "weekend"}, {"user": "eve"}, {"agent": "trip"}, {"metadata": "a=1", "status": "busy"}):
        await visitor.page("/threads", **query)
        with statements() as names:
            await visitor.page("/threads", **query)
        found = ["find_hits"] if "q" in query else []
        assert [name for name in names if name != "find_entries"][1:] == found, names


async def test_what_is_planted_in_a_thread_stays_inert(place: Place) -> None:
    server, visitor = place
    names = {
        "agent": HOSTILE,
        "user_id": HOSTILE,
        "tenant_id": HOSTILE,
        "title": HOSTILE,
        "metadata": {HOSTILE: HOSTILE},
    }
    await state_of(server).threads.create(HOSTILE, **names)
    for query in ({}, {"q": HOSTILE}, {"user": HOSTILE}, {"metadata": f"{HOSTILE}={HOSTILE}"}, {"notice": HOSTILE}):
        page = await visitor.page("/threads", **query)
        assert "<script>alert" not in page
        assert "<img" not in page
    assert (await visitor.data("/threads"))["threads"][0]["thread_id"] == HOSTILE


async def test_an_empty_list_says_what_to_do(place: Place) -> None:
    _, visitor = place
    assert "No threads yet" in await visitor.page("/threads")
    assert "No thread passes these filters" in await visitor.page("/threads", user="nobody")


@pytest.mark.slow
async def test_a_search_shows_what_it_has_found_and_opens_it(place: Place) -> None:
    server, visitor = place
    state = state_of(server)
    graph = state.record(trip().copy({"checkpointer": state.saver}))
    for thread_id, word in (("one", "Azulejos « &"), ("two", "azulejos"), ("tram-28", "other")):
        said = [HumanMessage(f"{word} {number}", id=f"m{number}") for number in range(80)]
        said[70] = HumanMessage("nothing here", id="m70")
        await graph.ainvoke(
            {"messages": said if thread_id == "one" else said[:3]}, config_at(thread_id, checkpoint_ns="")
        )
    await state.flush()
    page = await visitor.page("/threads", q='"azulejos 3" or "azulejos 1"')
    links = {
        id: html.unescape(link)
        for id, link in re.findall(r'data-row="([^"]+)".*?<a class="snippet" href="/ui([^"]+)"', page, re.DOTALL)
    }
    assert set(links) == {"one", "two"}
    assert "<mark>Azulejos</mark> « &amp; " in page
    # It is among those that are shown, and marked.
    shown = (await visitor.client.get(f"/ui{links['one']}")).text
    assert re.search(r'<li class="message human hit" id="hit">', shown)
    assert links["one"].endswith("#hit")
    # The beginning of an id is no message.
    assert "snippet" not in await visitor.page("/threads", q="tram-2")
    # A message that the newest state no longer has is shown where it was.
    await graph.aupdate_state(config_at("two", checkpoint_ns=""), {"messages": [RemoveMessage("m1")]})
    await state.flush()
    found = await visitor.client.get(f"/ui{links['two']}")
    assert found.status_code == 303
    assert 'id="hit"' in (await visitor.client.get(found.headers["location"])).text
    with statements() as names:
        await visitor.client.get(found.headers["location"])
    assert len(names) <= 5
    # One whose checkpoint is gone is said not to be here.
    await state.saver.aprune(["two"], strategy="keep_latest")
    gone = await visitor.client.get(f"/ui{links['two']}")
    assert (gone.status_code, "The message is not in this state" in gone.text) == (200, True)


async def test_pages_lead_back_one_by_one(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    server, visitor = place
    monkeypatch.setattr(threads, "_PAGE", 2)
    for number in range(9):
        await state_of(server).threads.create(f"thread-{number}", agent="trip")

    def links(page: str) -> dict[str, str]:
        return {title: html.unescape(path) for path, title in re.findall(r'href="/ui([^"]+)"[^>]*>(\w+ page)<', page)}

    async def shown(path: str) -> tuple[list[str], dict[str, str]]:
        page = (await visitor.client.get(f"/ui{path}")).text
        return re.findall(r'data-row="([^"]+)"', page), links(page)

    seen, path = [], "/threads?status=idle"
    while True:
        rows, found = await shown(path)
        seen.append(rows)
        if "Next page" not in found:
            break
        path = found["Next page"]
    assert [len(rows) for rows in seen] == [2, 2, 2, 2, 1]
    for rows in reversed(seen[:-1]):
        previous = found["Previous page"]
        assert "status=idle" in previous
        back, found = await shown(previous)
        assert back == rows
    assert "Previous page" not in found
    # Another filter begins with its first page.
    assert "past=" not in "".join(re.findall(r'href="[^"]*agent=[^"]*"', (await visitor.client.get(f"/ui{path}")).text))
