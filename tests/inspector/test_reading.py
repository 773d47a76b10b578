"""What a thread's page shows of subgraphs, long histories, states without messages, and a message that was found."""

from __future__ import annotations

import base64
import re
from typing import Any, TypedDict
from urllib.parse import unquote

import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.graph import START, StateGraph
from support import put_arguments
from support.pages import state_of, travel

from langgraph_pgstate import AsyncPGState
from langgraph_pgstate.server.graphs import config_at

from .conftest import Place

PIXEL = base64.b64encode(b"\x89PNG\r\n\x1a\n" + bytes(60_000)).decode()


class Count(TypedDict):
    """A state without messages."""

    count: int


async def nested(state: AsyncPGState, thread_id: str) -> None:
    """A thread whose graph has a subgraph with another one in it."""
    leaf = StateGraph(Count).add_node("leaf", lambda state: {"count": state["count"] + 1}).add_edge(START, "leaf")
    inner = StateGraph(Count).add_node("inner", leaf.compile()).add_edge(START, "inner")
    outer = StateGraph(Count).add_node("outer", inner.compile()).add_edge(START, "outer")
    outer.add_node("after", lambda state: {"count": state["count"] * 10}).add_edge("outer", "after")
    await outer.compile(checkpointer=state.saver).ainvoke({"count": 1}, config_at(thread_id, checkpoint_ns=""))


async def test_checkpoints_and_states_of_subgraphs(place: Place) -> None:
    server, visitor = place
    await nested(state_of(server), "t")
    tree = (await visitor.data("/threads/t"))["tree"]["nodes"]
    started = [one for one in tree if one["subgraphs"]]
    assert [one["tasks"] for one in started] == [["outer"]]
    (ns,) = started[0]["subgraphs"]
    page = await visitor.page("/threads/t", at=started[0]["checkpoint_id"])
    (path,) = re.findall(r'href="/ui(/threads/t\?ns=[^"]+)"', page)
    assert unquote(path) == f"/threads/t?ns={ns}"
    found = await visitor.data("/threads/t", ns=ns)
    assert found["parent_id"] == started[0]["checkpoint_id"]
    assert found["values"]["count"]["text"] == "2"
    assert [one["step"] for one in found["tree"]["nodes"]] == [1, 0, -1]
    # The one in it is named there only, and leads back by both ways.
    (deeper,) = [id for one in found["tree"]["nodes"] for id in one["subgraphs"]]
    assert deeper.startswith(f"{ns}|inner:")
    for view in ("conversation", "state", "changes", "origin", "events"):
        shown = await visitor.page("/threads/t", ns=deeper, view=view)
        assert f"?ns={ns.replace(':', '%3A')}" in shown
    within = await visitor.data("/threads/t", ns=deeper)
    assert (within["parent_id"], within["view"]) == (found["tree"]["nodes"][1]["checkpoint_id"], "state")
    value = await visitor.client.get("/ui/threads/t/value", params={"ns": deeper, "channel": "count"})
    assert value.json() == 2
    changes = await visitor.data("/threads/t", ns=ns, view="changes")
    assert [(one["channel"], one["change"]) for one in changes["changes"]] == [("count", "changed")]
    # Only the thread's own checkpoints can be acted on.
    await visitor.introduce()
    assert 'action="/ui/threads/t/fork"' not in await visitor.page("/threads/t", ns=ns)
    assert (await visitor.client.get("/ui/threads/t?ns=none")).status_code == 404


async def test_names_that_begin_alike_are_subgraphs_of_their_own(place: Place) -> None:
    server, _ = place
    saver = state_of(server).saver
    root = await saver.aput(*put_arguments(config_at("t", checkpoint_ns=""), 0, count=1))
    at = root["configurable"]["checkpoint_id"]
    for ns in ("node", "node2:1", "node:1", "node:1|deep:2", "node:1|deep:2|deepest:3", "node:10"):
        config, checkpoint, metadata, versions = put_arguments(config_at("t", checkpoint_ns=ns), 0, count=1)
        parents = {"": at, **({"node:1": "c"} if ns == "node:1|deep:2" else {})}
        await saver.aput(config, checkpoint, {**metadata, "parents": parents}, versions)
    (node,) = (await state_of(server).threads.tree("t")).nodes
    assert node.subgraphs == ("node", "node2:1", "node:1", "node:10")
    (inner,) = (await state_of(server).threads.tree("t", checkpoint_ns="node:1")).nodes
    assert inner.subgraphs == ()


@pytest.mark.slow
async def test_any_step_of_a_long_thread_is_one_click_away(place: Place) -> None:
    server, visitor = place
    config: Any = config_at("t", checkpoint_ns="")
    ids: dict[int, str] = {}
    for step in [*range(-1, 120), 150]:
        config = await state_of(server).saver.aput(*put_arguments(config, step))
        ids[step] = config["configurable"]["checkpoint_id"]
    # Another branch, which is newer, has a step of the same number.
    again: Any = config_at("t", checkpoint_ns="", checkpoint_id=ids[2])
    again = await state_of(server).saver.aput(*put_arguments(again, 3))
    page = await visitor.page("/threads/t", view="state")
    assert 'name="step"' in page
    (start,) = re.findall(r'href="/ui(/threads/t\?[^"]*step=-1[^"]*)"', page)

    async def reached(step: Any, path: str = "/threads/t") -> str:
        query = {"view": "state"} if step is None else {"view": "state", "step": step}
        response = await visitor.client.get(f"/ui{path.replace('&amp;', '&')}", params=query if step else None)
        assert response.status_code == 303
        assert "view=state" in response.headers["location"]
        return response.headers["location"].partition("at=")[2].partition("&")[0]

    assert await reached(None, start) == ids[-1]
    for step, at in ((70, ids[70]), (149, ids[119]), (999, ids[150]), (-5, ids[-1])):
        assert await reached(step) == at, step
    assert await reached(3) == again["configurable"]["checkpoint_id"]
    for wrong in ("x", "1e3", "9" * 30, "--1"):
        assert (await visitor.client.get("/ui/threads/t", params={"step": wrong})).status_code == 422
    await travel(state_of(server), "short")
    assert 'name="step"' not in await visitor.page("/threads/short")


async def test_a_state_without_messages_is_the_first_view(place: Place) -> None:
    server, visitor = place
    await nested(state_of(server), "t")
    await travel(state_of(server), "talk")
    found = await visitor.data("/threads/t")
    assert (found["view"], found["values"]["count"]["text"]) == ("state", "20")
    page = await visitor.page("/threads/t")
    assert re.search(r'aria-current="page"[^>]*>State<', page)
    assert "The state has no messages" not in page
    assert "The state has no messages" in await visitor.page("/threads/t", view="conversation")
    assert (await visitor.data("/threads/talk"))["view"] == "conversation"
    assert re.search(r'href="[^"]*view=conversation"', page)


async def test_reasoning_files_and_images_of_messages(place: Place) -> None:
    server, visitor = place
    parts: Any = [
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "Think **first**."}]},
        {"type": "text", "text": "See:"},
        {"type": "image", "base64": PIXEL, "mime_type": "image/png"},
        {"type": "file", "base64": base64.b64encode(b"<script>alert(1)</script>").decode(), "mime_type": "text/html"},
        {"type": "file", "file": {"filename": "plan.pdf", "file_data": "data:application/pdf;base64,JVBERi0="}},
        {"type": "image", "url": "https://cdn.example/x.png"},
        {"type": "image", "url": "javascript:alert(1)"},
        {"type": "new of tomorrow"},
    ]
    at = await state_of(server).saver.aput(
        *put_arguments(config_at("t", checkpoint_ns=""), 0, messages=[HumanMessage("Hello"), AIMessage(parts, id="m")])
    )
    page = await visitor.page("/threads/t")
    for part in ("Reasoning", "Think **first**.", "plan.pdf", "1 other part", 'href="https://cdn.example/x.png"'):
        assert part in page, part
    assert "javascript:alert" not in page
    assert PIXEL not in page
    (image,) = re.findall(r'<img src="/ui([^"]+)"', page)
    response = await visitor.client.get(f"/ui{image.replace('&amp;', '&')}")
    assert (response.headers["content-type"], response.content) == ("image/png", base64.b64decode(PIXEL))
    query = {"channel": "messages", "item": 1, "at": at["configurable"]["checkpoint_id"]}
    script = await visitor.client.get("/ui/threads/t/value", params={**query, "part": 3})
    assert script.headers["content-type"] == "application/octet-stream"
    assert script.headers["content-disposition"] == "attachment"
    assert script.headers["x-content-type-options"] == "nosniff"
    for none in (0, 5, 99):
        assert (await visitor.client.get("/ui/threads/t/value", params={**query, "part": none})).status_code == 404
