"""What persons do to threads from their pages."""

from __future__ import annotations

from typing import Any

from support.http import serving
from support.pages import HOSTILE, inspected, state_of, travel, trip, without_bdi
from support.record import Record

from langgraph_pgstate import AsyncPGState
from langgraph_pgstate.record.types import Event

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


async def test_a_fork_leads_to_its_source_while_it_exists(place: Place) -> None:
    server, visitor = place
    state = state_of(server)
    ids = await travel(state)
    await state.threads.fork("t", ids[1], "forked")
    link = f'<a href="/ui/threads/t?at={ids[1]}">Forked from t</a>'
    assert link in await visitor.page("/threads/forked")
    await state.saver.adelete_thread("t")
    page = await visitor.page("/threads/forked")
    assert "Forked from t" in page
    assert "/ui/threads/t?" not in page


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
    await state.threads.hold("t", "case", by="Adam")
    refused = await visitor.act("/threads/t/delete")
    assert (refused.status_code, "held by Adam" in without_bdi(refused.text)) == (409, True)
    await state.threads.release("t", "case", by="Adam")
    assert (await visitor.act("/threads/t/delete")).headers["location"] == "/ui/threads?notice=thread.delete"
    assert await state.threads.get("t") is None
    event = (await actions(state, "t"))[-1]
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
        preview = await visitor.act("/threads/t/edit", **{"at": ids[0], 'any ["booking"]': "1", "step": "preview"})
        assert way in without_bdi(preview.text)
        forked = await visitor.act("/threads/t/fork", at=ids[1], to="forked", run="1")
        page = without_bdi((await visitor.client.get(forked.headers["location"])).text)
        assert page.count(way) == 1
        assert "A run of this new thread does not ask about that" in page
        assert way not in await visitor.page("/threads/forked")
        await visitor.act("/tools/t/k/settle", decision="done")
        assert way not in await visitor.page("/threads/t", at=ids[1])
