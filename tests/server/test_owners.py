"""Whose a cron, an assistant, an item and what is copied are, and who may change them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import httpx
import pytest
from langchain_core.runnables import RunnableConfig
from langgraph.graph import START, StateGraph
from langgraph.store.base import Item, SearchItem
from langgraph.store.memory import InMemoryStore
from langgraph_sdk import Auth
from support.http import HELLO, Steps, asking, chat, http, serving, stuck
from support.pages import state_of, visiting

from langgraph_pgstate.server import AgentServer

DAILY = "0 9 * * *"


def telling() -> Any:
    """A graph that tells as whose it runs, and what it was told."""

    def tell(state: Steps, config: RunnableConfig) -> Steps:
        configurable = config["configurable"]
        names = [configurable["langgraph_auth_user_id"], configurable["user_id"]]
        return {"answer": f"{names} {configurable.get('secret')} {state.get('count')}"}

    return StateGraph(Steps).add_node("tell", tell).add_edge(START, "tell").compile()


def signed_in() -> Auth:
    """Users who are what they say, without a handler of anything."""
    auth = Auth()

    @auth.authenticate
    async def authenticate(authorization: str | None) -> Any:
        return {"identity": authorization or "", "permissions": ["pages:read", "pages:act"]}

    return auth


def of_teams() -> Auth:
    """Threads are a team's; of users whose names begin with the same letter."""
    auth = signed_in()

    @auth.on.threads
    async def of_team(ctx: Auth.types.AuthContext, value: dict[str, Any]) -> Any:
        value.setdefault("metadata", {})["team"] = ctx.user.identity[0]
        return {"team": ctx.user.identity[0]}

    return auth


@asynccontextmanager
async def users(
    dsn: str, schema: str, auth: Auth, *names: str, **options: Any
) -> AsyncIterator[tuple[AgentServer, list[httpx.AsyncClient]]]:
    """A server, and clients of some users."""
    given: Any = {"graphs": {"telling": telling(), "chat": chat(), "asking": asking()}, **options}
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(serving(dsn, schema, auth=auth, **given))
        yield server, [await stack.enter_async_context(http(server, {"authorization": name})) for name in names]


async def made(client: httpx.AsyncClient, path: str, **body: Any) -> Any:
    response = await client.post(path, json=body)
    assert response.is_success, response.text
    return response.json()


async def test_a_deleted_run_is_deleted_in_its_thread_alone(dsn: str, schema: str) -> None:
    async with users(dsn, schema, of_teams(), "eve", "bob") as (server, (eve, bob)):
        ran = await eve.post(
            "/threads/t/runs/wait", json={"assistant_id": "chat", "input": HELLO, "if_not_exists": "create"}
        )
        run = ran.headers["content-location"]
        state = state_of(server)
        await state.saver.acopy_thread("t", "copy")
        await state.threads.update_metadata("copy", {"team": "b"})
        before = (await bob.get("/threads/copy/state")).json()
        assert before["values"]["messages"]
        assert (await eve.delete(run)).status_code == 204
        assert (await eve.get("/threads/t/state")).json()["values"] == {}
        assert (await bob.get("/threads/copy/state")).json() == before


@pytest.mark.slow
async def test_a_copy_is_of_who_makes_it_from_its_first_moment_on(dsn: str, schema: str) -> None:
    """With what the handler leaves of the metadata: who read the source need not read the copy."""
    auth = signed_in()

    @auth.on.threads
    async def own(ctx: Auth.types.AuthContext, value: dict[str, Any]) -> Any:
        metadata = value.setdefault("metadata", {})
        metadata["owner"] = name = ctx.user.identity
        if ctx.action == "create":
            metadata.pop("guests", None)
        return {"$or": [{"owner": name}, {"guests": {"$contains": name}}]}

    async with users(dsn, schema, auth, "eve", "bob", inspector=True) as (server, (eve, bob)):
        state = state_of(server)
        await made(eve, "/threads", thread_id="t")
        await made(eve, "/threads/t/runs/wait", assistant_id="chat", input=HELLO)
        await state.threads.update_metadata("t", {"guests": ["bob", "ann"], "topic": "travel"})
        at = (await bob.get("/threads/t/state")).json()["checkpoint"]["checkpoint_id"]
        copy = (await made(bob, "/threads/t/copy"))["thread_id"]
        async with visiting(server, {"authorization": "bob"}) as visitor:
            assert (await visitor.act("/threads/t/fork", at=at, to="fork")).status_code == 303
        for thread_id in (copy, "fork"):
            found = await state.threads.get(thread_id)
            assert found is not None
            kept = {name: found.metadata.get(name) for name in ("owner", "guests", "topic")}
            assert (found.user_id, kept) == ("bob", {"owner": "bob", "guests": None, "topic": "travel"})
            assert (await eve.get(f"/threads/{thread_id}")).status_code == 404
        # What the second user writes there is not found among the first one's.
        await made(bob, f"/threads/{copy}/state", values=HELLO, as_node="speak")
        threads = (await state.threads.list(user_id="eve")).items
        assert [one.thread_id for one in threads] == ["t"]


@pytest.mark.slow
async def test_a_cron_runs_for_who_made_or_changed_it_last(dsn: str, schema: str) -> None:
    async with users(dsn, schema, of_teams(), "eve", "ella", "bob") as (server, (eve, ella, bob)):
        await made(eve, "/threads", thread_id="t")
        config = {"configurable": {"secret": "s"}}
        body = {"assistant_id": "telling", "schedule": DAILY, "input": {"count": 1}, "config": config}
        cron = (await made(eve, "/threads/t/runs/crons", **body))["cron_id"]

        async def told() -> Any:
            handle = await state_of(server).schedules.trigger(cron)
            return (await handle.wait())["answer"]

        assert await told() == "['eve', 'eve'] s 1"
        # Who sees the thread sees the cron, and what she lets it say is hers.
        assert (await ella.post("/runs/crons/count", json={})).json() == 1
        assert (await bob.patch(f"/runs/crons/{cron}", json={"input": {"count": 3}})).status_code == 404
        assert (await ella.patch(f"/runs/crons/{cron}", json={"input": {"count": 2}})).status_code == 200
        assert await told() == "['ella', 'ella'] s 2"
        # Nobody turns its end into that of the thread, which another run of the thread may need.
        assert (await ella.patch(f"/runs/crons/{cron}", json={"on_run_completed": "delete"})).status_code == 200
        await told()
        assert (await eve.get("/threads/t")).status_code == 200


async def test_a_cron_goes_with_its_thread(dsn: str, schema: str) -> None:
    """Its runs would be on the next thread of the same id, which may be another user's."""
    async with users(dsn, schema, of_teams(), "eve", "bob") as (server, (eve, bob)):
        await made(bob, "/threads", thread_id="t")
        cron = (await made(bob, "/threads/t/runs/crons", assistant_id="telling", schedule=DAILY))["cron_id"]
        state = state_of(server)
        await state.schedules.put("of the application", "telling", cron=DAILY, thread_id="t")
        assert (await bob.delete("/threads/t")).status_code == 204
        await made(eve, "/threads", thread_id="t")
        assert (await bob.patch(f"/runs/crons/{cron}", json={"enabled": True})).status_code == 404
        assert [one.name for one in await state.schedules.sorted()] == ["of the application"]


async def test_a_cron_makes_no_threads_of_others(dsn: str, schema: str) -> None:
    async with users(dsn, schema, of_teams(), "eve", "bob") as (server, (eve, bob)):
        daily = {"assistant_id": "telling", "schedule": DAILY, "input": {"count": 1}}
        cron = (await made(bob, "/runs/crons", **daily, on_run_completed="keep"))["cron_id"]
        planted = {"metadata": {"team": "e", "assistant_id": "x", "graph_id": "x"}}
        assert (await bob.patch(f"/runs/crons/{cron}", json=planted)).status_code == 200
        await (await state_of(server).schedules.trigger(cron)).wait()
        assert await made(eve, "/threads/search") == []
        (thread,) = await made(bob, "/threads/search")
        assert (thread["metadata"]["team"], thread["metadata"]["graph_id"]) == ("b", "telling")


async def test_who_may_not_run_a_graph_lets_no_cron_do_it(dsn: str, schema: str) -> None:
    auth = of_teams()
    refused: set[str] = set()

    @auth.on.threads.create_run
    async def create_run(ctx: Auth.types.AuthContext, value: Any) -> Any:
        return ctx.user.identity not in refused

    async with users(dsn, schema, auth, "eve") as (_, (eve,)):
        cron = (await made(eve, "/runs/crons", assistant_id="telling", schedule=DAILY))["cron_id"]
        refused.add("eve")
        assert (await eve.patch(f"/runs/crons/{cron}", json={"input": {}})).status_code == 403
        assert (await eve.delete(f"/runs/crons/{cron}")).status_code == 204


async def test_a_thread_that_exists_is_read_and_changed_by_who_may(dsn: str, schema: str) -> None:
    auth = signed_in()
    asked: list[str] = []

    @auth.on.threads
    async def open_to_all(ctx: Auth.types.AuthContext, value: Any) -> Any:
        asked.append(ctx.action)

    def mine(action: str) -> None:
        async def decide(ctx: Auth.types.AuthContext, value: Any) -> Any:
            asked.append(action)
            return ctx.user.identity == "eve" or {"readers": {"$contains": ctx.user.identity}}

        auth.on(resources="threads", actions=action)(decide)  # type: ignore[call-overload]

    mine("read")
    mine("update")
    async with users(dsn, schema, auth, "eve", "bob") as (_, (eve, bob)):
        await made(eve, "/threads", thread_id="t", metadata={"graph_id": "chat"})
        steps = [{"updates": [{"values": HELLO, "as_node": "speak"}]}]
        again: Any = {"thread_id": "t", "if_exists": "do_nothing"}
        for body in (again, {**again, "supersteps": steps}):
            assert (await bob.post("/threads", json=body)).status_code == 409
        assert (await eve.get("/threads/t")).json()["values"] is None
        asked.clear()
        assert (await made(eve, "/threads", **again))["thread_id"] == "t"
        assert asked == ["create", "read"]
        assert len((await made(eve, "/threads", **again, supersteps=steps))["values"]["messages"]) == 1
        assert asked == ["create", "read", "create", "read", "update"]


async def test_an_assistant_is_its_owners_unless_a_handler_says_otherwise(dsn: str, schema: str) -> None:
    async with users(dsn, schema, of_teams(), "eve", "ella") as (server, (eve, ella)):
        config = {"configurable": {"secret": "s"}}
        mine = (await made(eve, "/assistants", graph_id="telling", config=config))["assistant_id"]
        shared = (await state_of(server).assistants.create(graph="telling", config=config)).assistant_id
        assert (await ella.get(f"/assistants/{mine}")).status_code == 404
        assert (await ella.post("/assistants/count", json={})).json() == 4
        again = {"assistant_id": mine, "graph_id": "telling", "if_exists": "do_nothing"}
        assert (await ella.post("/assistants", json=again)).status_code == 409
        assert (await made(eve, "/assistants", **again))["assistant_id"] == mine
        # What the application has made is for all to use, and for none of them to change.
        assert (await ella.get(f"/assistants/{shared}")).status_code == 200
        for user in (eve, ella):
            for path, body in ((f"/assistants/{shared}/latest", {"version": 1}),):
                assert (await user.post(path, json=body)).status_code == 404
            assert (await user.patch(f"/assistants/{shared}", json={"name": "x"})).status_code == 404
            assert (await user.delete(f"/assistants/{shared}")).status_code == 404
        run = {"assistant_id": shared, "input": {"count": 1}}
        assert (await made(ella, "/runs/wait", **run))["answer"] == "['ella', 'ella'] s 1"
        # A cron of the same owner goes with it.
        cron = (await made(eve, "/runs/crons", assistant_id=mine, schedule=DAILY))["cron_id"]
        assert (await eve.delete(f"/assistants/{mine}")).status_code == 204
        assert (await eve.delete(f"/runs/crons/{cron}")).status_code == 404


class Careless(InMemoryStore):
    """A store that compares the beginnings of texts."""

    async def asearch(self, namespace_prefix: Any, /, **options: Any) -> list[SearchItem]:
        """Return what begins with the same letters."""
        found = await super().asearch((), limit=100)
        return [one for one in found if ".".join(one.namespace).startswith(".".join(namespace_prefix))]

    async def alist_namespaces(self, *, prefix: Any = (), **options: Any) -> list[tuple[str, ...]]:
        """Return what begins with the same letters."""
        found = await super().alist_namespaces(**options)
        return [one for one in found if ".".join(one).startswith(".".join(prefix))]


async def test_an_item_is_its_owners_unless_a_handler_says_otherwise(dsn: str, schema: str) -> None:
    store = Careless()
    names = ("eve", "evelyn", "*", "eve@example.com")
    async with users(dsn, schema, signed_in(), *names, store=store) as (_, (eve, evelyn, star, mail)):
        for client, name in ((eve, "eve"), (evelyn, "evelyn")):
            item = {"namespace": [name, "notes"], "key": "k", "value": {"of": name}}
            assert (await client.put("/store/items", json=item)).status_code == 204
        for prefix in ([], ["eve"]):
            found = (await made(eve, "/store/items/search", namespace_prefix=prefix))["items"]
            assert [one["value"] for one in found] == [{"of": "eve"}]
        for body in ({}, {"prefix": ["eve"]}, {"suffix": ["notes"]}):
            assert (await made(eve, "/store/namespaces", **body))["namespaces"] == [["eve", "notes"]]
        for path in ("/store/namespaces", "/store/items/search"):
            refused = await mail.post(path, json={"namespace_prefix": []})
            assert (refused.status_code, "handler on the store" in refused.text) == (403, True)
            assert (await star.post(path, json={"namespace_prefix": []})).status_code == 401
    assert isinstance(store.get(("eve", "notes"), "k"), Item)


@pytest.mark.slow
async def test_a_cursor_of_another_thread_shows_nothing_of_it(dsn: str, schema: str) -> None:
    """Streams of a thread end when it is deleted."""
    async with users(dsn, schema, of_teams(), "eve", "bob") as (_, (eve, bob)):
        runs = []
        for client, name in ((eve, "eve"), (bob, "bob")):
            run = {"assistant_id": "telling", "input": {"count": len(name)}, "if_not_exists": "create"}
            ran = await client.post(f"/threads/{name}/runs/wait", json={**run, "stream_mode": "values"})
            runs.append(ran.headers["content-location"].rpartition("/")[2])
        cursors = [f"{runs[0]}:0", f"{runs[0]}:{runs[1]}:0", "-1"]
        reading = [
            asyncio.create_task(bob.get("/threads/bob/stream", headers={"last-event-id": cursor})) for cursor in cursors
        ]
        for since in (1, 2**52):
            body = {"channels": ["values"], "since": since}
            reading.append(asyncio.create_task(bob.post("/threads/bob/stream/events", json=body)))
        await asyncio.sleep(0)
        assert (await bob.delete("/threads/bob")).status_code == 204
        for one in await asyncio.gather(*reading):
            assert "['eve', 'eve']" not in one.text
            assert one.status_code in (200, 404, 422)


@pytest.mark.slow
async def test_pages_ask_the_handlers_of_crons_about_schedules(dsn: str, schema: str) -> None:
    auth = signed_in()

    @auth.on.crons
    async def of_eve(ctx: Auth.types.AuthContext, value: Any) -> Any:
        return None if ctx.user.identity == "eve" else {"owner": ctx.user.identity}

    async with users(dsn, schema, auth, inspector=True, worker=False) as (server, _):
        await state_of(server).schedules.put("s", "telling", {"count": 1}, cron=DAILY)
        for name, statuses in (("bob", {403}), ("eve", {200, 303})):
            async with visiting(server, {"authorization": name}) as visitor:
                found = {(await visitor.client.get("/ui/queue?show=schedules")).status_code}
                for action in ("pause", "resume", "trigger"):
                    found.add((await visitor.act(f"/queue/schedules/s/{action}")).status_code)
            assert found == statuses, name


def test_threads_that_are_open_to_everybody_are_warned_about(caplog: pytest.LogCaptureFixture) -> None:
    from langgraph_pgstate.server.auth import Authority

    Authority(of_teams())
    assert caplog.text == ""
    auth = signed_in()

    @auth.on.threads.read
    async def read(ctx: Auth.types.AuthContext, value: Any) -> None:
        pass

    Authority(auth)
    assert "a handler for the actions create, create_run, update, delete, search on threads" in caplog.text


async def until_running_thread(client: httpx.AsyncClient) -> str:
    """The id of the thread of the caller's only run, once it runs."""
    async with asyncio.timeout(60):
        while not (found := await made(client, "/threads/search", status="busy")):
            await asyncio.sleep(0.02)
    return str(found[0]["thread_id"])


@pytest.mark.slow
@pytest.mark.parametrize("waiting", ["wait", "stream"])
async def test_a_stateless_run_deletes_no_thread_that_was_made_after_it(dsn: str, schema: str, waiting: str) -> None:
    async with users(dsn, schema, of_teams(), "eve", "bob", graphs={"stuck": stuck()}) as (_, (eve, bob)):
        answered = asyncio.create_task(eve.post(f"/runs/{waiting}", json={"assistant_id": "stuck", "input": {}}))
        thread_id = await until_running_thread(eve)
        assert (await eve.delete(f"/threads/{thread_id}")).status_code == 204
        await made(bob, "/threads", thread_id=thread_id)
        assert (await answered).is_success
        assert (await bob.get(f"/threads/{thread_id}")).status_code == 200


@pytest.mark.slow
async def test_a_thread_of_an_old_id_shows_nothing_of_the_one_before(dsn: str, schema: str) -> None:
    async with users(dsn, schema, of_teams(), "eve", "bob", inspector=True) as (server, (eve, bob)):
        run = {"assistant_id": "telling", "input": {"count": 1}}
        async with visiting(server, {"authorization": "eve"}) as visitor:
            await made(eve, "/threads/t/runs/wait", **run, if_not_exists="create")
            assert (await visitor.act("/threads/t/delete")).status_code == 303
        await made(bob, "/threads", thread_id="t")
        await made(bob, "/threads/t/runs/wait", **run)
        async with visiting(server, {"authorization": "bob"}) as visitor:
            for view in ("conversation", "state", "changes", "origin", "events"):
                assert "eve" not in str(await visitor.data("/threads/t", view=view)).replace("event", ""), view
        # A cron's run outlives the thread that it deletes.
        cron = (await made(eve, "/runs/crons", assistant_id="telling", schedule=DAILY, input={"count": 2}))["cron_id"]
        handle = await state_of(server).schedules.trigger(cron)
        await handle.wait()
        async with asyncio.timeout(60):
            while (await eve.get(f"/threads/{handle.thread_id}")).status_code == 200:
                await asyncio.sleep(0.02)
        await made(bob, "/threads", thread_id=handle.thread_id)
        assert (await bob.get(f"/threads/{handle.thread_id}/runs")).json() == []
        assert (await bob.get(f"/threads/{handle.thread_id}/runs/{handle.run_id}/join")).status_code == 404


async def test_an_input_answers_no_interrupt_that_its_sender_may_not_read(dsn: str, schema: str) -> None:
    """Nor is it found out, which takes longer, whether a thread of others has one."""
    auth = of_teams()

    @auth.on.threads.read
    async def read(ctx: Auth.types.AuthContext, value: dict[str, Any]) -> Any:
        return ctx.user.identity == "eve"

    async with users(dsn, schema, auth, "eve", "ella") as (_, (eve, ella)):
        await made(eve, "/threads/t/runs/wait", assistant_id="asking", input={"count": 1}, if_not_exists="create")
        start = {"id": 1, "method": "run.start", "params": {"assistant_id": "asking", "input": {"count": 1}}}
        assert (await made(ella, "/threads/t/commands", **start))["error"] == "permission_denied"
        assert (await eve.get("/threads/t")).json()["status"] == "interrupted"


async def test_no_cron_stays_of_a_thread_or_assistant_that_goes_meanwhile(dsn: str, schema: str) -> None:
    """Guard: the second look. The cron would run on the next thread of this id, which may be another user's."""
    auth, meanwhile = of_teams(), "/threads/t"

    @auth.on.crons.create
    async def delete(ctx: Auth.types.AuthContext, value: dict[str, Any]) -> bool:
        assert (await eve.delete(meanwhile)).is_success
        return True

    async with users(dsn, schema, auth, "eve") as (server, [eve]):
        assistant = (await made(eve, "/assistants", graph_id="chat"))["assistant_id"]
        cron = {"assistant_id": assistant, "schedule": DAILY}
        await made(eve, "/threads", thread_id="t", metadata={"graph_id": "chat", "assistant_id": assistant})
        refused = await eve.post("/threads/t/runs/crons", json=cron)
        meanwhile = f"/assistants/{assistant}"
        also_refused = await eve.post("/runs/crons", json=cron)
        assert (refused.status_code, also_refused.status_code) == (404, 404)
        assert server.service is not None
        assert await server.service.state.schedules.count() == 0
