"""Runs, by LangGraph's client."""

from __future__ import annotations

import asyncio
from typing import Any

import psycopg
import pytest
from langchain_core.runnables import RunnableConfig
from langgraph.graph import START, StateGraph
from langgraph_sdk import Auth
from langgraph_sdk.client import LangGraphClient
from langgraph_sdk.errors import APIStatusError, ConflictError, NotFoundError, UnprocessableEntityError
from support.http import ANSWER, HELLO, Steps, http, sdk, serving, until_running
from support.queue import Queue

from langgraph_pgstate.server import AgentServer, HeaderSelection


async def test_a_run_is_waited_for(client: LangGraphClient) -> None:
    created: list[Any] = []
    await client.threads.create(thread_id="t")
    values: Any = await client.runs.wait("t", "chat", input=HELLO, on_run_created=created.append)
    assert [message["type"] for message in values["messages"]] == ["human", "ai"]
    assert values["messages"][1]["content"] == ANSWER
    [run] = await client.runs.list("t")
    assert created == [{"run_id": run["run_id"], "thread_id": "t"}]
    assert (run["status"], run["multitask_strategy"]) == ("success", "enqueue")
    assert await client.runs.join("t", run["run_id"]) == values


async def test_a_run_is_described(client: LangGraphClient) -> None:
    assistant = await client.assistants.get("chat")
    await client.threads.create(thread_id="t", metadata={"topic": "travel"})
    run = await client.runs.create("t", assistant["assistant_id"], input=HELLO, metadata={"a": 1})
    await client.runs.join("t", run["run_id"])
    found = await client.runs.get("t", run["run_id"])
    graph = {"graph_id": "chat", "assistant_id": assistant["assistant_id"]}
    assert found["metadata"] == {"topic": "travel", "a": 1, **graph}
    assert found["assistant_id"] == assistant["assistant_id"]
    assert found["created_at"] == run["created_at"] <= found["updated_at"]
    assert (await client.threads.get("t"))["metadata"] == {"topic": "travel", **graph}
    assert (await client.threads.get_state("t"))["metadata"]["a"] == 1  # type: ignore[index]


@pytest.mark.slow
async def test_runs_are_listed(client: LangGraphClient) -> None:
    await client.threads.create(thread_id="t")
    ids = []
    for number in range(3):
        graph = "failing" if number == 1 else "chat"
        ids.append((await client.runs.create("t", graph, input=HELLO))["run_id"])
        await client.runs.join("t", ids[-1])
    assert [run["run_id"] for run in await client.runs.list("t")] == ids[::-1]
    assert [run["run_id"] for run in await client.runs.list("t", limit=1, offset=1)] == [ids[1]]
    assert await client.runs.list("t", status="error", select=["status", "run_id"]) == [
        {"status": "error", "run_id": ids[1]}
    ]
    with pytest.raises(NotFoundError):
        await client.runs.list("none")


async def test_a_run_that_fails_tells_its_error_only(client: LangGraphClient, caplog: pytest.LogCaptureFixture) -> None:
    await client.threads.create(thread_id="t")
    found: Any = await client.runs.wait("t", "failing", input={}, raise_error=False)
    assert found == {"__error__": {"error": "ValueError", "message": "no such hotel"}}
    with pytest.raises(Exception, match="ValueError: no such hotel"):
        await client.runs.wait("t", "failing", input={})


@pytest.mark.slow
async def test_an_interrupt_is_answered(client: LangGraphClient) -> None:
    await client.threads.create(thread_id="t")
    asked: Any = await client.runs.wait("t", "asking", input={"count": 0})
    assert asked["__interrupt__"][0]["value"] == {"question": "Go on?"}
    assert await client.runs.wait("t", "asking", command={"resume": "yes"}) == {"count": 1, "answer": "yes"}
    gone_to: Any = await client.runs.wait("t", "asking", command={"goto": "count", "update": {"count": 7}})
    assert gone_to["count"] == 8
    sent: Any = await client.runs.wait("t", "asking", command={"goto": [{"node": "count", "input": {"count": 20}}]})
    assert sent["__interrupt__"]


async def test_breakpoints(client: LangGraphClient) -> None:
    await client.threads.create(thread_id="t")
    values: Any = await client.runs.wait("t", "chat", input=HELLO, interrupt_before=["speak"])
    assert len(values["messages"]) == 1
    assert (await client.threads.get_state("t"))["next"] == ["speak"]
    values = await client.runs.wait("t", "chat", input=None)
    assert len(values["messages"]) == 2


async def test_a_thread_is_made_if_that_is_wanted(client: LangGraphClient) -> None:
    with pytest.raises(NotFoundError):
        await client.runs.create("new", "chat", input=HELLO)
    await client.runs.wait("new", "chat", input=HELLO, if_not_exists="create", metadata={"a": 1})
    thread = await client.threads.get("new")
    assert (thread["status"], thread["metadata"]["a"], thread["metadata"]["graph_id"]) == ("idle", 1, "chat")  # type: ignore[index]
    with pytest.raises(NotFoundError):
        await client.runs.create("new", "nothing", input=HELLO)


@pytest.mark.slow
async def test_a_stateless_run_leaves_nothing(
    client: LangGraphClient, server: AgentServer, connection: psycopg.Connection, schema: str
) -> None:
    found: Any = await client.runs.wait(None, "chat", input=HELLO)
    assert found["messages"][1]["content"] == ANSWER
    assert await client.threads.count() == 0
    run = await client.runs.create(None, "chat", input=HELLO)
    assert await client.runs.join(run["thread_id"], run["run_id"])
    connection.execute(f"UPDATE {schema}.threads SET expires_at = now(), updated_at = now() - interval '1 hour'")
    assert server.service is not None
    await server.service.state.threads.sweep()
    assert await client.threads.count() == 0
    kept = await client.runs.create(None, "chat", input=HELLO, on_completion="keep")
    await client.runs.join(kept["thread_id"], kept["run_id"])
    assert (await client.threads.get(kept["thread_id"], include=["ttl"]))["ttl"] is None  # type: ignore[typeddict-item]


async def test_runs_are_created_all_or_none(client: LangGraphClient) -> None:
    payloads: Any = [{"assistant_id": "chat", "input": HELLO}, {"assistant_id": "slow", "input": {"count": 1}}]
    made = await client.runs.create_batch(payloads)
    for run in made:
        assert await client.runs.join(run["thread_id"], run["run_id"])
    with pytest.raises(NotFoundError):
        await client.runs.create_batch([*payloads, {"assistant_id": "nothing"}])


@pytest.mark.parametrize("thread_id", [None, "new"])
async def test_a_run_that_is_refused_leaves_no_thread(client: LangGraphClient, thread_id: Any) -> None:
    with pytest.raises(NotFoundError, match="checkpoint"):
        await client.runs.create(thread_id, "chat", checkpoint_id="none", if_not_exists="create")
    with pytest.raises(NotFoundError, match="nothing"):
        await client.runs.create_batch([{"assistant_id": "chat", "input": HELLO}, {"assistant_id": "nothing"}])
    assert await client.threads.count() == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("strategy", "statuses"),
    [
        ("enqueue", ["success", "success"]),
        ("interrupt", ["success", "interrupted"]),
        ("rollback", ["success"]),
    ],
)
async def test_a_second_run(client: LangGraphClient, strategy: Any, statuses: list[str]) -> None:
    await client.threads.create(thread_id="t")
    first = await client.runs.create("t", "slow", input={"count": 5 if strategy == "enqueue" else 1000})
    await until_running(client, "t", first["run_id"])
    assert await client.runs.wait("t", "slow", input={"count": 1}, multitask_strategy=strategy) == {"count": 0}
    assert [run["status"] for run in await client.runs.list("t")] == statuses


async def test_a_second_run_is_rejected_and_the_first_is_cancelled(client: LangGraphClient) -> None:
    await client.threads.create(thread_id="t")
    first = await client.runs.create("t", "slow", input={"count": 1000})
    with pytest.raises(ConflictError):
        await client.runs.create("t", "slow", input={"count": 1}, multitask_strategy="reject")
    await until_running(client, "t", first["run_id"])
    await client.runs.cancel("t", first["run_id"], wait=True)
    assert (await client.runs.get("t", first["run_id"]))["status"] == "interrupted"
    await client.runs.cancel("t", first["run_id"])
    with pytest.raises(NotFoundError):
        await client.runs.cancel("t", "none")
    with pytest.raises(APIStatusError, match="action must be"):
        await client.runs.cancel("t", first["run_id"], action="stop")  # type: ignore[arg-type]


async def test_a_run_for_later_is_rolled_back(client: LangGraphClient) -> None:
    await client.threads.create(thread_id="t")
    run = await client.runs.create("t", "chat", input=HELLO, after_seconds=60)
    assert run["status"] == "pending"
    await client.runs.cancel("t", run["run_id"], action="rollback")
    with pytest.raises(NotFoundError):
        await client.runs.get("t", run["run_id"])


async def test_runs_are_cancelled_together(client: LangGraphClient) -> None:
    made = []
    for id in ("a", "b"):
        await client.threads.create(thread_id=id)
        made += [await client.runs.create(id, "chat", input=HELLO, after_seconds=60) for _ in range(2)]
    await client.runs.cancel_many(thread_id="a", run_ids=[made[0]["run_id"]])
    await client.runs.cancel_many(thread_id="b", status="pending")
    statuses = [(await client.runs.get(run["thread_id"], run["run_id"]))["status"] for run in made]
    assert statuses == ["interrupted", "pending", "interrupted", "interrupted"]
    await client.runs.cancel_many(status="all")
    assert (await client.runs.get("a", made[1]["run_id"]))["status"] == "interrupted"
    with pytest.raises(APIStatusError, match="but not both"):
        await client.runs.cancel_many(thread_id="a")
    for none in ({"status": "all"}, {"thread_id": "a", "run_ids": []}):
        with pytest.raises(NotFoundError, match="no run to cancel"):
            await client.http.post("/runs/cancel", json=none)


async def test_a_run_is_deleted_with_its_checkpoints(client: LangGraphClient) -> None:
    await client.threads.create(thread_id="t")
    run = await client.runs.create("t", "chat", input=HELLO)
    await client.runs.join("t", run["run_id"])
    await client.runs.delete("t", run["run_id"])
    assert (await client.runs.list("t"), await client.threads.get_history("t")) == ([], [])
    with pytest.raises(NotFoundError):
        await client.runs.delete("t", run["run_id"])


@pytest.mark.slow
async def test_a_client_that_goes_harms_nothing_unless_it_wants_that(dsn: str, schema: str) -> None:
    async with serving(dsn, schema) as server, sdk(server) as client:
        for on_disconnect, status in (("continue", "running"), ("cancel", "interrupted")):
            thread = (await client.threads.create())["thread_id"]
            given: Any = on_disconnect
            body: Any = {"assistant_id": "slow", "input": {"count": 40}, "on_disconnect": given}
            async with http(server) as other:
                waiting = asyncio.create_task(other.post(f"/threads/{thread}/runs/wait", json=body))
                while not (runs := await client.runs.list(thread)):
                    await asyncio.sleep(0.02)
                await until_running(client, thread, runs[0]["run_id"])
                waiting.cancel()
                await asyncio.gather(waiting, return_exceptions=True)
            found = (await client.runs.get(thread, runs[0]["run_id"]))["status"]
            if status != found:
                await client.runs.join(thread, runs[0]["run_id"])
                found = (await client.runs.get(thread, runs[0]["run_id"]))["status"]
            assert found == status
            await client.runs.cancel(thread, runs[0]["run_id"], wait=True)


async def test_a_client_cannot_set_what_is_the_servers(client: LangGraphClient) -> None:
    await client.threads.create(thread_id="t")
    given: Any = {
        "configurable": {
            "thread_id": "other",
            "__pregel_resuming": True,
            "langgraph_auth_user_id": "eve",
            "mine": 1,
        },
        "callbacks": ["x"],
    }
    await client.runs.wait("t", "chat", input=HELLO, config=given)
    metadata: Any = (await client.threads.get_state("t"))["metadata"]
    assert metadata["mine"] == 1
    assert "langgraph_auth_user_id" not in metadata
    with pytest.raises(NotFoundError):
        await client.threads.get("other")


async def test_what_is_missing_is_said(client: LangGraphClient) -> None:
    await client.threads.create(thread_id="t")
    for body, place in (
        ({}, "assistant_id"),
        ({"assistant_id": "chat", "stream_mode": ["sound"]}, "stream_mode"),
        ({"assistant_id": "chat", "multitask_strategy": "fight"}, "multitask_strategy"),
        ({"assistant_id": "chat", "command": {"goto": 7}}, "command"),
        ({"assistant_id": "chat", "command": {}}, "command: .*resume"),
        ({"assistant_id": "chat", "command": {"resume": None, "goto": []}}, "command: .*resume"),
        ({"assistant_id": "chat", "after_seconds": -1}, "after_seconds"),
    ):
        with pytest.raises(APIStatusError, match=place) as refused:
            await client.http.post("/threads/t/runs", json=body)
        assert refused.value.status_code == 422


async def test_a_webhook_is_kept_and_one_of_this_machine_is_refused(
    client: LangGraphClient, connection: psycopg.Connection, schema: str
) -> None:
    thread = (await client.threads.create())["thread_id"]
    for url in ("http://localhost/done", "http://10.0.0.1/", "nonsense", "ftp://example.com"):
        with pytest.raises(UnprocessableEntityError):
            await client.runs.create(thread, "chat", input=HELLO, webhook=url)
    url = "https://example.com/done"
    await client.runs.create(thread, "chat", input=HELLO, webhook=url, after_seconds=1000)
    assert Queue(connection, schema).execute("SELECT webhook FROM {}.runs") == [(url,)]


async def test_who_may_only_read_cancels_no_run_by_leaving(dsn: str, schema: str) -> None:
    auth = Auth()

    @auth.authenticate
    async def authenticate(authorization: str) -> str:
        return authorization

    @auth.on.threads.update
    async def change(ctx: Auth.types.AuthContext, value: Any) -> bool:
        return bool(ctx.user.identity == "eve")

    leaving = "?cancel_on_disconnect=true"
    async with (
        serving(dsn, schema, auth=auth, worker=False) as server,
        serving(dsn, schema, read_only=True) as read_only,
        sdk(server, {"authorization": "eve"}) as eve,
        http(server, {"authorization": "bob"}) as bob,
        http(read_only) as reader,
    ):
        run = await eve.runs.create("t", "slow", input={"count": 1}, if_not_exists="create")
        path = f"/threads/t/runs/{run['run_id']}"
        for client in (bob, reader):
            for what in ("join", "stream"):
                assert (await client.get(f"{path}/{what}{leaving}")).status_code == 403
        assert (await eve.runs.get("t", run["run_id"]))["status"] == "pending"


@pytest.mark.slow
@pytest.mark.parametrize("is_whole", [True, False])
async def test_a_run_starts_from_a_checkpoint_of_a_subgraph(client: LangGraphClient, is_whole: bool) -> None:
    await client.threads.create(thread_id="t")
    await client.runs.wait("t", "asking", input={"count": 1})
    asked: Any = await client.threads.get_state("t", subgraphs=True)
    place = asked["tasks"][0]["state"]["checkpoint"]
    assert await client.runs.wait("t", "asking", command={"resume": "no"}) == {"count": 2, "answer": "no"}
    given = place if is_whole else {name: place[name] for name in ("checkpoint_ns", "checkpoint_id")}
    again: Any = await client.runs.wait("t", "asking", checkpoint=given)
    assert (again["count"], [one["value"] for one in again["__interrupt__"]]) == (2, [{"question": "Go on?"}])
    values = await client.runs.wait("t", "asking", command={"resume": "yes"})
    assert values == {"count": 2, "answer": "yes"}
    with pytest.raises(NotFoundError):
        await client.runs.create("t", "asking", checkpoint={**given, "checkpoint_id": "none", "checkpoint_map": None})


@pytest.mark.slow
async def test_a_run_has_the_headers_that_are_chosen(dsn: str, schema: str) -> None:
    def look(state: Any, config: RunnableConfig) -> Any:
        return {"answer": config["configurable"].get("x-level", "none")}

    graphs = {"looking": StateGraph(Steps).add_node("look", look).add_edge(START, "look").compile()}
    options: Any = {"graphs": graphs, "configurable_headers": HeaderSelection(["x-*"])}
    async with serving(dsn, schema, **options) as server, http(server, {"X-Level": "2"}) as client:
        for configurable in ({}, {"x-level": "3"}):
            body = {"assistant_id": "looking", "input": {}, "config": {"configurable": configurable}}
            assert (await client.post("/runs/wait", json=body)).json() == {"answer": "2"}


async def test_a_refused_run_leaves_no_thread(server: AgentServer) -> None:
    """Also one of a batch, and one that the database would refuse."""
    run = {"assistant_id": "chat", "if_not_exists": "create", "input": {"messages": []}}
    too_long = {**run, "input": {"count": 2**70}}
    elsewhere = {**run, "config": {"configurable": {"checkpoint_id": "none"}}}
    nowhere = {**run, "if_not_exists": "reject", "thread_id": "none"}
    twice = [{**run, "thread_id": "new", "multitask_strategy": strategy} for strategy in ("enqueue", "reject")]
    async with http(server) as client:
        for body, status in ((too_long, 422), (elsewhere, 404)):
            for path in ("/threads/new/runs", "/threads/new/runs/wait", "/threads/new/runs/stream"):
                assert (await client.post(path, json=body)).status_code == status
        for bodies, status in (([{**run, "thread_id": "new"}, nowhere], 404), ([run, too_long], 422), (twice, 422)):
            assert (await client.post("/runs/batch", json=bodies)).status_code == status
        assert (await client.post("/threads/count", json={})).json() == 0
        assert (await client.post("/threads/new/runs", json=run)).status_code == 200
