"""What persons do to threads from their pages."""

from __future__ import annotations

import html
import json
import re
from typing import Any

import pytest
from support.http import serving
from support.pages import HOSTILE, Visitor, forms_of, inspected, state_of, travel, trip, without_bdi
from support.record import Record

from langgraph_pgstate import AsyncPGState
from langgraph_pgstate.record.types import Event
from langgraph_pgstate.server.graphs import config_at

from .conftest import Place


async def actions(state: AsyncPGState, thread_id: str) -> list[Event]:
    """What persons did to a thread, oldest first."""
    return [*(await state.events.list(thread_id, kind="action")).items]


async def test_a_fork_starts_from_the_checkpoint(place: Place) -> None:
    server, visitor = place
    state = state_of(server)
    ids = await travel(state)
    await visitor.introduce()
    response = await visitor.act("/threads/t/fork", at=ids[1], to="forked")
    assert (response.status_code, response.headers["location"]) == (303, "/ui/threads/forked?notice=thread.fork")
    made = await state.threads.get("forked")
    assert made is not None
    assert (made.forked_from_thread_id, made.head_checkpoint_id) == ("t", ids[1])
    for thread_id in ("t", "forked"):
        (event,) = await actions(state, thread_id)
        assert event.payload == {"action": "fork", "by": "Eve", "source": "t", "target": "forked"}
        assert event.checkpoint_id == ids[1]
    assert (await visitor.act("/threads/t/fork", at=ids[1], to="forked")).status_code == 409
    assert (await visitor.act("/threads/t/fork", at="none")).status_code == 404
    assert (await visitor.act("/threads/t/fork")).status_code == 422
    assert "This is the new thread." in await visitor.page("/threads/forked", notice="thread.fork")


async def test_a_fork_is_run(place: Place) -> None:
    server, visitor = place
    state = state_of(server)
    ids = await travel(state, user_id="adam", tenant_id="acme")
    await visitor.introduce()
    await visitor.act("/threads/t/fork", at=ids[1], to="forked", run="1")
    (queued,) = (await state.runs.queued(thread_id="forked")).items
    assert queued.graph == "trip"
    assert [event.payload["action"] for event in await actions(state, "forked")] == ["fork", "run"]
    run = await state.runs.get("forked", queued.run_id)
    assert run is not None
    assert (run.metadata or {})["started_by"] == "Eve"


async def test_a_thread_runs_on_with_its_answers(dsn: str, schema: str) -> None:
    async with inspected(dsn, schema, worker=True) as (server, visitor):
        state = state_of(server)
        ids = await travel(state)
        await state.interrupts.answer("t", "yes", by="Adam")
        await visitor.introduce()
        response = await visitor.act(
            "/threads/t/run", {"accept": "application/json"}, at=ids[0], head=ids[0], mode="on"
        )
        values = await state.runs.wait("t", response.json()["run_id"], 30)
        assert values["booking"] == {"approved": "yes"}
        (event,) = await actions(state, "t")
        assert (event.payload["action"], event.run_id) == ("run", response.json()["run_id"])


async def test_a_replay_makes_a_branch(dsn: str, schema: str) -> None:
    async with inspected(dsn, schema, worker=True) as (server, visitor):
        state = state_of(server)
        ids = await travel(state)
        await visitor.introduce()
        response = await visitor.act(
            "/threads/t/run", {"accept": "application/json"}, at=ids[2], head=ids[0], mode="replay"
        )
        values = await state.runs.wait("t", response.json()["run_id"], 30)
        assert values["__interrupt__"]
        tree = await state.threads.tree("t")
        assert [node.checkpoint_id for node in tree.nodes if node.parent_checkpoint_id == ids[2]][-1] == ids[1]
        assert len([node for node in tree.nodes if node.parent_checkpoint_id == ids[2]]) == 2


async def test_an_edit_changes_the_state_and_runs_on(dsn: str, schema: str) -> None:
    async with inspected(dsn, schema, worker=True) as (server, visitor):
        state = state_of(server)
        ids = await travel(state)
        await visitor.introduce()
        page = await visitor.page("/threads/t/edit", at=ids[0])
        assert "<option>approve</option>" in page
        values = '{"booking": {"hotel": "Astoria"}}'
        response = await visitor.act("/threads/t/edit", at=ids[0], values=values, as_node="approve")
        tree = await state.threads.tree("t")
        assert response.headers["location"] == f"/ui/threads/t?at={tree.nodes[0].checkpoint_id}&notice=thread.edit"
        assert (tree.nodes[0].source, tree.nodes[0].parent_checkpoint_id) == ("update", ids[0])
        (event,) = await actions(state, "t")
        assert event.payload == {"action": "edit", "by": "Eve", "edited": ids[0], "channels": ["booking"]}
        again = await visitor.act(
            "/threads/t/edit", {"accept": "application/json"}, at=ids[2], values="{}", as_node="tools", run="1"
        )
        ended = await state.runs.wait("t", again.json()["run_id"], 30)
        assert ended["__interrupt__"]


async def test_an_edit_that_makes_no_sense_changes_nothing(place: Place) -> None:
    server, visitor = place
    ids = await travel(state_of(server))
    await visitor.introduce()
    cases: list[tuple[dict[str, Any], int]] = [
        ({"values": "{"}, 422),
        ({"values": "[1]"}, 422),
        ({"values": ""}, 422),
        ({"values": '{"booking": {}}', "as_node": "nobody"}, 400),
        ({"values": '{"booking": {}}', "at": "none"}, 404),
    ]
    for fields, status in cases:
        assert (await visitor.act("/threads/t/edit", **{"at": ids[0], **fields})).status_code == status, fields
    assert len((await state_of(server).threads.tree("t")).nodes) == len(ids)
    assert await actions(state_of(server), "t") == []


async def edited(visitor: Visitor, at: str, change: Any, **fields: str) -> Any:
    """Send the form of an edit as its page has it, with a change of the state in it."""
    page = html.unescape(await visitor.page("/threads/t/edit", at=at))
    (text,) = re.findall(r"<textarea[^>]*>\n(.*?)</textarea>", page, re.DOTALL)
    state = json.loads(text)
    change(state)
    form = {**forms_of(page)["/threads/t/edit"], **fields}
    return await visitor.act("/threads/t/edit", **{**form, "values": json.dumps(state)})


async def test_an_edit_begins_with_the_state_and_makes_it_what_was_written(place: Place) -> None:
    server, visitor = place
    state = state_of(server)
    ids = await travel(state)
    await visitor.introduce()
    before = (await state.threads.state_at(config_at("t", checkpoint_ns="", checkpoint_id=ids[0]))).values["messages"]

    def change(values: Any) -> None:
        assert [one["type"] for one in values["messages"]] == ["human", "ai", "tool"]
        values["messages"][0]["content"] = "A week in Porto."
        del values["messages"][2]
        values["messages"].append({"role": "user", "content": "Hurry."})
        values["booking"] = {"hotel": "Astoria"}

    assert (await edited(visitor, ids[0], change, as_node="tools")).status_code == 303
    found = await state.threads.state_at(config_at("t", checkpoint_ns=""))
    texts = [(one.type, one.text, one.id) for one in found.values["messages"][:-1]]
    assert texts == [("human", "A week in Porto.", "human"), ("ai", "", "plan")]
    assert found.values["messages"][1] == before[1]
    assert (found.values["messages"][2].type, found.values["messages"][2].text) == ("human", "Hurry.")
    assert found.values["booking"] == {"hotel": "Astoria"}
    # What nobody has changed is not written.
    (event,) = await actions(state, "t")
    assert event.payload["channels"] == ["booking", "messages"]
    same = await edited(visitor, found.checkpoint_id, lambda values: None)
    assert (same.status_code, "nothing is changed" in same.text) == (422, True)


async def test_what_was_typed_stands_in_the_form_after_a_refusal(place: Place) -> None:
    server, visitor = place
    ids = await travel(state_of(server))
    await visitor.introduce("Eve")
    form = forms_of(await visitor.page("/threads/t/edit", at=ids[0]))["/threads/t/edit"]
    typed = {**form, "values": '{"booking": <typed>', "as_node": "approve"}
    refused = await visitor.act("/threads/t/edit", **typed)
    assert refused.status_code == 422
    assert "the values are no JSON" in refused.text
    assert "{&#34;booking&#34;: &lt;typed&gt;</textarea>" in refused.text
    assert "<option selected>approve</option>" in refused.text
    assert forms_of(refused.text)["/threads/t/edit"]["head"] == ids[0]
    # So it does after somebody else was first; the form stays that of the older page.
    other = await edited(visitor, ids[0], lambda state: state.update(booking={"hotel": "Astoria"}), as_node="approve")
    assert other.status_code == 303
    late = await visitor.act("/threads/t/edit", **{**typed, "values": '{"booking": {"hotel": "mine"}}'})
    assert (late.status_code, "mine" in late.text) == (409, True)
    assert forms_of(late.text)["/threads/t/edit"]["head"] == ids[0]


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ({"bookings": {}}, "the graph has no channel"),
        ({"__start__": {}}, "the graph has no channel"),
        ({"messages": [{"role": "bogus", "content": "x"}]}, "messages[0] is no message: Unexpected message type"),
        ({"messages": [{"type": "bogus", "content": "x"}]}, "messages[0] is no message"),
        ({"messages": [{"type": "ai", "content": "x", "tool_calls": [{"name": 1}]}]}, "messages[0] is no message"),
        ({"messages": [{"role": "user"}]}, "it has no content"),
        ({"messages": [7]}, "it must be an object"),
        ({"messages": {"0": 1}}, "messages must be a list"),
    ],
)
async def test_an_edit_that_is_refused_says_why(place: Place, values: Any, why: str) -> None:
    server, visitor = place
    ids = await travel(state_of(server))
    await visitor.introduce()
    refused = await edited(visitor, ids[0], lambda state: state.update(values))
    assert (refused.status_code, why in html.unescape(refused.text)) == (422, True), refused.text
    # The same of a caller who sends only what is to be added.
    plain = await visitor.act("/threads/t/edit", at=ids[0], values=json.dumps(values), as_node="plan")
    assert plain.status_code == 422 or values == {"messages": [{"role": "user"}]}, plain.text
    assert await actions(state_of(server), "t") == [] or plain.status_code == 303


async def test_labels_are_set_and_removed(place: Place) -> None:
    server, visitor = place
    state = state_of(server)
    ids = await travel(state)
    await visitor.introduce()
    await visitor.act("/threads/t/label", at=ids[1], label="before booking")
    assert "before booking" in await visitor.page("/threads/t")
    await visitor.act("/threads/t/label", at=ids[1], label="")
    assert await state.threads.labels("t") == ()
    assert [event.payload["label"] for event in await actions(state, "t")] == ["before booking", None]
    assert (await visitor.act("/threads/t/label", at=ids[1], label="x" * 300)).status_code == 422
    assert (await visitor.act("/threads/t/label", at="none", label="x")).status_code == 404


async def test_a_deletion_shows_counts_and_leaves_who_did_it(place: Place) -> None:
    server, visitor = place
    state = state_of(server)
    ids = await travel(state)
    await visitor.introduce()
    counts = (await visitor.data("/threads/t/delete"))["counts"]
    assert counts["checkpoints"] == len(ids)
    assert await state.threads.get("t") is not None
    assert (await visitor.act("/threads/t/delete")).headers["location"] == "/ui/threads?notice=thread.delete"
    assert await state.threads.get("t") is None
    (event,) = await actions(state, "t")
    assert event.payload == {"action": "delete", "by": "Eve"}
    assert (await visitor.act("/threads/t/delete")).status_code == 404


async def test_without_the_graph_of_a_thread_nothing_is_run(place: Place) -> None:
    server, visitor = place
    ids = await travel(state_of(server), agent="another")
    await visitor.introduce()
    page = await visitor.page("/threads/t")
    assert "Fork" in page
    assert "Fork and run" not in page
    assert "Replay" not in page
    assert "This server has no graph <code>another</code>; it serves <code>trip</code>" in page
    for path in ("run", "edit"):
        fields = {"at": ids[0], "head": ids[0], "mode": "on", "values": "{}"}
        assert (await visitor.act(f"/threads/t/{path}", **fields)).status_code == 422


async def test_actions_are_of_a_mount_too(dsn: str, schema: str) -> None:
    """Addresses begin with the path of the mount."""
    from starlette.applications import Starlette
    from starlette.routing import Mount
    from support.pages import visiting

    options: Any = {"graphs": {"trip": trip()}, "inspector": True, "worker": False, "prefix": "/agents"}
    async with serving(dsn, schema, **options) as server:
        await travel(state_of(server))
        host: Any = Starlette(routes=[Mount("/app", server)])
        async with visiting(host) as visitor:
            page = (await visitor.client.get("/app/agents/ui/threads")).text
            assert 'href="/app/agents/ui/threads/t"' in page
            assert "/app/agents/ui/static/pages.css" in page
            first = await visitor.client.get("/app/agents/ui")
            assert first.headers["location"].endswith("/app/agents/ui/")


async def test_forms_name_effects_that_may_happen_twice(dsn: str, schema: str, record: Record) -> None:
    async with inspected(dsn, schema) as (server, visitor):
        ids = await travel(state_of(server))
        for number in range(60):
            record.execution(f"good{number}", 5, tool="mail")
        record.execution("k", status="unknown", tool="pay", arguments={"card": HOSTILE})
        way = '<a href="/ui/tools/t/k">Settle pay</a>'
        assert way not in await visitor.page("/threads/t")
        await visitor.introduce()
        # Where the thread waits, the ledger asks before it runs the tool again.
        for at, forms in ((ids[0], 1), (ids[1], 2)):
            page = await visitor.page("/threads/t", at=at)
            assert "1 effect of thread t has an unknown outcome" in page
            assert page.count(way) == forms
            assert "<script>alert" not in page
        assert way in await visitor.page("/threads/t/edit", at=ids[0])
        forked = await visitor.act("/threads/t/fork", at=ids[1], to="forked", run="1")
        page = without_bdi((await visitor.client.get(forked.headers["location"])).text)
        assert page.count(way) == 1
        assert "A run of this new thread does not ask about that" in page
        assert way not in await visitor.page("/threads/forked")
        await visitor.act("/tools/t/k/settle", decision="done")
        assert way not in await visitor.page("/threads/t", at=ids[1])
