"""Streams of runs, by LangGraph's client and `RemoteGraph`."""

from __future__ import annotations

import asyncio
import json
from contextlib import AsyncExitStack, suppress
from random import Random
from threading import Lock
from types import SimpleNamespace
from typing import Any
from urllib.parse import quote
from uuid import UUID

import anyio
import httpx
import pytest
from langchain_core.messages import AIMessage, AIMessageChunk, HumanMessage
from langchain_core.runnables import RunnableLambda
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.pregel.remote import RemoteException, RemoteGraph
from langgraph_sdk import get_client
from langgraph_sdk.client import LangGraphClient
from support import examples, wait_until
from support.http import ANSWER, HELLO, Steps, chat, graphs, http, listening, sdk, serving, until_running

from langgraph_pgstate import AsyncPGState
from langgraph_pgstate.errors import RunCancelledError
from langgraph_pgstate.runs.types import StreamEvent
from langgraph_pgstate.server import AgentServer, create_app, pacing, streams
from tests.server.test_auth import owners

ALL: Any = ["values", "updates", "messages-tuple", "custom", "tasks", "checkpoints", "debug"]


async def collected(stream: Any) -> list[Any]:
    return [part async for part in stream]


async def test_a_run_is_streamed_in_its_modes(client: LangGraphClient) -> None:
    await client.threads.create(thread_id="t")
    parts = await collected(client.runs.stream("t", "chat", input=HELLO, stream_mode=["values", "updates"]))
    [run] = await client.runs.list("t")
    assert [part.event for part in parts] == ["metadata", "values", "updates", "values"]
    assert parts[0].data == {"run_id": run["run_id"], "attempt": 1}
    assert [len(part.data["messages"]) for part in parts if part.event == "values"] == [1, 2]
    assert [*parts[2].data] == ["speak"]
    assert run["status"] == "success"
    assert len({part.id for part in parts}) == len(parts)


@pytest.mark.parametrize("thread_id", ["日本 🙂", "a\r\nSet-Cookie: b=c", "a/b"])
async def test_a_run_is_located_whatever_its_thread_is_named(server: AgentServer, thread_id: str) -> None:
    """Guard: quoting. A header of HTTP has no such characters, and the run was enqueued already."""
    body = {"assistant_id": "chat", "input": HELLO, "if_not_exists": "create"}
    async with http(server) as client:
        for path in ("runs", "runs/wait", "runs/stream"):
            answered = await client.post(f"/threads/{quote(thread_id, safe='')}/{path}", json=body)
            assert answered.status_code == (404 if "/" in thread_id else 200)
            if answered.status_code == 200:
                place = answered.headers["content-location"]
                assert (place.isascii(), (await client.get(place)).json()["thread_id"]) == (True, thread_id)


async def test_messages_are_streamed_as_tuples_or_as_parts(client: LangGraphClient) -> None:
    parts = await collected(client.runs.stream(None, "chat", input=HELLO, stream_mode="messages-tuple"))
    words = [part.data[0]["content"] for part in parts if part.event == "messages"]
    assert (len(words) > 2, "".join(words)) == (True, ANSWER)
    assert parts[1].data[1]["langgraph_node"] == "speak"
    parts = await collected(client.runs.stream(None, "chat", input=HELLO, stream_mode="messages"))
    assert [part.event for part in parts[:3]] == ["metadata", "messages/metadata", "messages/partial"]
    partial = [part.data[0] for part in parts if part.event == "messages/partial"]
    assert [len(message["content"]) for message in partial] == sorted(len(one["content"]) for one in partial)
    assert (partial[-1]["content"], partial[-1]["type"], partial[-1]["id"]) == (ANSWER, "ai", "ai-1")
    assert await client.threads.count() == 0


async def test_events_of_subgraphs_name_them(client: LangGraphClient) -> None:
    stream = client.runs.stream(None, "asking", input={"count": 0}, stream_mode=ALL, stream_subgraphs=True)
    parts = await collected(stream)
    names = {part.event for part in parts}
    assert {"values", "updates", "tasks", "checkpoints", "debug"} <= names
    assert {name.partition(":")[0] for name in names if "|" in name} >= {"values|approval", "tasks|approval"}
    asked = [part.data["__interrupt__"] for part in parts if part.event == "updates" and "__interrupt__" in part.data]
    assert asked[0][0]["value"] == {"question": "Go on?"}
    payloads = [part.data["payload"] for part in parts if part.event == "debug" and part.data["type"] == "checkpoint"]
    assert [payload["checkpoint"]["checkpoint_ns"] for payload in payloads] == [""] * len(payloads)
    assert (payloads[0]["parent_checkpoint"], payloads[1]["parent_checkpoint"]) == (None, payloads[0]["checkpoint"])
    [task] = payloads[-1]["tasks"]
    assert (task["name"], task["checkpoint"]["checkpoint_ns"].partition(":")[0]) == ("approval", "approval")


async def test_a_failed_run_ends_with_its_error(client: LangGraphClient) -> None:
    parts = await collected(client.runs.stream(None, "failing", input={}))
    assert [(part.event, part.data) for part in parts[1:]] == [
        ("values", {}),
        ("error", {"error": "ValueError", "message": "no such hotel"}),
    ][-len(parts) + 1 :]


async def test_a_stream_is_joined_after_every_event(server: AgentServer) -> None:
    async with sdk(server) as client:
        await client.threads.create(thread_id="t")
        run = await client.runs.create("t", "chat", input=HELLO, stream_mode=["values", "messages-tuple"])
        whole = await collected(client.runs.join_stream("t", run["run_id"]))
        assert [part.event for part in whole][-2:] == ["messages", "values"]
        for number in range(len(whole) - 1):
            rest = await collected(client.runs.join_stream("t", run["run_id"], last_event_id=whole[number].id))
            assert rest == whole[number + 1 :]
        for first in ("-1", "0"):
            assert await collected(client.runs.join_stream("t", run["run_id"], last_event_id=first)) == whole
        some = await collected(client.runs.join_stream("t", run["run_id"], stream_mode="values"))
        assert {part.event for part in some} == {"metadata", "values"}
        with pytest.raises(httpx.HTTPStatusError):
            await collected(client.runs.join_stream("t", "none"))
        with pytest.raises(httpx.HTTPStatusError, match="last_event_id"):
            await collected(client.runs.join_stream("t", run["run_id"], last_event_id="x"))
        late = await collected(client.runs.join_stream("t", run["run_id"], last_event_id="999"))
        assert [part.event for part in late] == ["error"]


@pytest.mark.slow
async def test_a_stream_of_messages_goes_on_with_the_whole_message(client: LangGraphClient) -> None:
    """Guard: the parts that a client has. Without them, the message would begin where the client comes back."""
    await client.threads.create(thread_id="t")
    run = await client.runs.create("t", "chat", input=HELLO, stream_mode="messages")
    key: Any = ("t", run["run_id"])
    whole = await collected(client.runs.join_stream(*key, stream_mode="messages"))
    assert whole[-1].data[0]["content"] == ANSWER
    for number, part in enumerate(whole[:-1]):
        rest = await collected(client.runs.join_stream(*key, stream_mode="messages", last_event_id=part.id))
        # The metadata of a message have the place of the event before them, so that no part is lost after them.
        following = number + (part.event != "messages/metadata")
        assert [(one.event, one.data) for one in rest] == [(one.event, one.data) for one in whole[following:]]
    assert await collected(client.runs.join_stream(*key, stream_mode="messages", last_event_id=whole[-1].id)) == []


async def test_modes_that_are_not_there_are_refused(client: LangGraphClient) -> None:
    mode: Any = "lifecycle"
    with pytest.raises(httpx.HTTPStatusError, match="not implemented"):
        await collected(client.runs.stream(None, "chat", input=HELLO, stream_mode=mode))
    assert await client.threads.count() == 0


@pytest.mark.slow
async def test_a_live_stream_begins_at_once_and_has_heartbeats(
    server: AgentServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pacing, "HEARTBEAT_SECONDS", 0.1)
    async with listening(server) as url, httpx.AsyncClient(base_url=url, timeout=60) as client:
        await client.post("/threads", json={"thread_id": "t"})
        body = {"assistant_id": "slow", "input": {"count": 3}, "after_seconds": 1, "stream_mode": "values"}
        async with client.stream("POST", "/threads/t/runs/stream", json=body) as response:
            assert response.headers["content-type"].startswith("text/event-stream")
            place = response.headers["Content-Location"]
            assert response.headers["Location"] == f"{place}/stream?stream_mode=values"
            lines = [line async for line in response.aiter_lines()]
    first = lines.index("event: metadata")
    assert lines[:first].count(": heartbeat") >= 3
    assert json.loads(lines[-2].removeprefix("data: "))["count"] == 0


async def test_a_server_that_stops_cancels_no_run(dsn: str, schema: str) -> None:
    """Guard: asking whether it stops. It breaks off the connections of clients that read nothing."""
    async with serving(dsn, schema, worker=False) as server, sdk(server) as client:
        run = await client.runs.create("t", "slow", input={"count": 1}, if_not_exists="create")
        assert server.service is not None
        call: Any = SimpleNamespace(service=server.service, state=server.service.state)
        handle = call.state.runs.handle("t", run["run_id"])
        reader = streams.Reader(call, None, "t")
        for is_stopping, status in ((True, "pending"), (False, "interrupted")):
            (server.service.stopping.set if is_stopping else server.service.stopping.clear)()
            with pytest.raises(asyncio.CancelledError):
                async with streams.with_client(call, handle, reader, cancels=True, deletes=False):
                    raise asyncio.CancelledError
            assert (await client.runs.get("t", run["run_id"]))["status"] == status


@pytest.mark.slow
@pytest.mark.parametrize("on_disconnect", ["continue", "cancel"])
async def test_a_client_that_goes_harms_no_run_unless_it_wants_to(server: AgentServer, on_disconnect: str) -> None:
    async with listening(server) as url, sdk(server) as client:
        await client.threads.create(thread_id="t")
        body = {"assistant_id": "slow", "input": {"count": 20}, "on_disconnect": on_disconnect}
        async with (
            httpx.AsyncClient(base_url=url, timeout=60) as other,
            other.stream("POST", "/threads/t/runs/stream", json=body) as response,
        ):
            async for line in response.aiter_lines():
                if line == "event: values":
                    break
        [run] = await client.runs.list("t")
        await client.runs.join("t", run["run_id"])
        found = await client.runs.get("t", run["run_id"])
        assert found["status"] == ("success" if on_disconnect == "continue" else "interrupted")


@pytest.mark.slow
async def test_a_stream_goes_on_at_another_server(dsn: str, schema: str) -> None:
    """The first one stops in the middle of the run; the client asks again at the same address."""
    async with serving(dsn, schema) as second, serving(dsn, schema) as first, AsyncExitStack() as listeners:
        url = await listeners.enter_async_context(listening(first))
        async with get_client(url=url, api_key=None) as client:
            await client.threads.create(thread_id="t")
            stream = client.runs.stream("t", "slow", input={"count": 40}, stream_mode="values")
            parts = [await anext(stream) for _ in range(5)]
            async with listening(second, int(url.rpartition(":")[2])):
                first.stop()
                # Otherwise the client may come to the first one again, more often than it tries.
                await listeners.aclose()
                parts += [part async for part in stream]
    counts = [part.data["count"] for part in parts if part.event == "values"]
    # A run that goes on tells the state that it goes on from again.
    assert [*dict.fromkeys(counts)] == [*range(40, -1, -1)]


@pytest.mark.slow
async def test_a_stateless_stream_that_is_left_is_swept_later(server: AgentServer) -> None:
    async with listening(server) as url, sdk(server) as client:
        body = {"assistant_id": "slow", "input": {"count": 20}}
        async with (
            httpx.AsyncClient(base_url=url, timeout=60) as other,
            other.stream("POST", "/runs/stream", json=body) as response,
        ):
            async for line in response.aiter_lines():
                if line == "event: values":
                    break
        [thread] = await client.threads.search(limit=10)
        found: Any = await client.threads.get(thread["thread_id"], include=["ttl"])
        assert found["ttl"]["expires_at"]


@pytest.mark.slow
async def test_many_streams_of_one_run(server: AgentServer) -> None:
    async with listening(server) as url, sdk(server) as client:
        await client.threads.create(thread_id="t")
        run = await client.runs.create("t", "slow", input={"count": 10}, stream_mode="values")
        await until_running(client, "t", run["run_id"])

        async def read() -> list[str]:
            limits = httpx.Limits(max_connections=200)
            async with httpx.AsyncClient(base_url=url, timeout=60, limits=limits) as reader:
                answered = await reader.get(f"/threads/t/runs/{run['run_id']}/stream")
                return [line for line in answered.text.splitlines() if line.startswith("data: ")]

        found = await asyncio.gather(*(read() for _ in range(50)))
        assert all(lines == found[0] for lines in found)
        assert len(found[0]) == 12


@pytest.mark.slow
async def test_a_remote_graph_is_a_node(server: AgentServer) -> None:
    async with sdk(server) as client:
        remote = RemoteGraph("chat", client=client)
        builder = StateGraph(MessagesState)
        builder.add_node("remote", remote)
        builder.add_edge(START, "remote")
        found = await builder.compile().ainvoke({"messages": [HumanMessage("Hello.")]})
        assert found["messages"][-1].content == ANSWER
        config: Any = {"configurable": {"thread_id": "t"}}
        updates = [chunk async for chunk in remote.astream(HELLO, config, stream_mode="updates")]
        assert [*updates[0]] == ["speak"]
        state = await remote.aget_state(config)
        assert (len(state.values["messages"]), state.next) == (2, ())
        assert len([one async for one in remote.aget_state_history(config)]) == 3
        await remote.aupdate_state(config, {"messages": [{"role": "user", "content": "More."}]}, as_node="speak")
        assert len((await remote.aget_state(config)).values["messages"]) == 3
        assert "speak" in (await remote.aget_graph()).nodes
        with pytest.raises(RemoteException):
            await RemoteGraph("failing", client=client).ainvoke({})


@pytest.mark.slow
async def test_a_response_without_a_client_is_closed(server: AgentServer) -> None:
    """Nothing of a stream that was left goes on."""
    before = asyncio.all_tasks()
    async with http(server) as client:
        asked = asyncio.create_task(
            client.post("/runs/stream", json={"assistant_id": "slow", "input": {"count": 1000}})
        )
        await asyncio.sleep(0.5)
        asked.cancel()
        await asyncio.gather(asked, return_exceptions=True)
    async with sdk(server) as sdk_client:
        await sdk_client.runs.cancel_many(status="all")
    async with asyncio.timeout(30):
        while {task for task in asyncio.all_tasks() - before if task.get_name() != "pgstate-recorder"}:
            await asyncio.sleep(0.05)


def event(mode: str, data: Any, namespace: tuple[str, ...] = ()) -> StreamEvent:
    return StreamEvent("1", mode, namespace, data, 1)


def test_events_become_those_of_the_sdk() -> None:
    metadata = {"langgraph_node": "speak"}
    parts = streams.Conversion(["messages", "updates"])
    assert [*parts.convert(event("values", {}))] == []
    assert [*parts.convert(event("updates", {"a": 1}, ("x:1", "y:2")))] == [("updates|x:1|y:2", {"a": 1})]
    first = [*parts.convert(event("messages", (AIMessageChunk("a", id="1"), metadata)))]
    assert [name for name, _ in first] == ["messages/metadata", "messages/partial"]
    assert first[0][1] == {"1": {"metadata": metadata}}
    [(name, [message])] = parts.convert(event("messages", (AIMessageChunk("b", id="1"), metadata)))
    assert (name, message.content, type(message)) == ("messages/partial", "ab", AIMessage)
    whole = AIMessage("c", id="2")
    assert [*parts.convert(event("messages", (whole, metadata)))] == [
        ("messages/metadata", {"2": {"metadata": metadata}}),
        ("messages/complete", [whole]),
    ]
    assert [*parts.convert(event("messages", (AIMessage("d"), metadata)))] == []
    both = streams.Conversion(["messages", "messages-tuple"])
    names = [name for name, _ in both.convert(event("messages", (whole, metadata), ("x:1",)))]
    assert names == ["messages|x:1", "messages/metadata", "messages/complete"]
    every = streams.Conversion(())
    assert [*every.convert(event("custom", 1))] == [("custom", 1)]
    assert [*every.convert(event("error", {"error": "a.b.C", "message": "no"}))] == [
        ("error", {"error": "C", "message": "no"})
    ]


def test_the_modes_that_are_kept() -> None:
    assert streams.kept_modes(["messages", "messages-tuple", "values"]) == ["messages", "values"]
    assert streams.kept_modes([]) == []


@pytest.mark.slow
async def test_forty_clients_that_disconnect_lose_no_connection(dsn: str, schema: str) -> None:
    """Starlette cancels what a client has left at every await."""
    random = Random(7)
    server = create_app(lambda: AsyncPGState.open(dsn, schema=schema, pool=3), graphs(), worker=False)
    async with server.lifespan(), listening(server) as url:
        assert server.service is not None
        pool = server.service.state._database._pool
        assert pool is not None

        async def leave(client: httpx.AsyncClient, number: int) -> None:
            thread = f"/threads/{UUID(int=number)}"
            body = {"assistant_id": "chat", "input": {"messages": []}, "multitask_strategy": "enqueue"}
            calls = (
                lambda: client.post("/threads", json={"thread_id": str(UUID(int=number)), "if_exists": "do_nothing"}),
                lambda: client.post(f"{thread}/runs/stream", json=body),
                lambda: client.post(f"{thread}/runs/wait", json=body),
                lambda: client.post("/runs/stream", json=body),
                lambda: client.get(f"{thread}/state"),
            )
            for round in range(examples(100)):
                with suppress(httpx.HTTPError), anyio.move_on_after(random.random() * 0.05):
                    await calls[round % len(calls)]()

        limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
        async with httpx.AsyncClient(base_url=url, limits=limits, timeout=60) as client:
            await asyncio.gather(*(leave(client, number) for number in range(40)))

        def are_back() -> bool:
            found = pool.get_stats()
            return bool(found["pool_available"] == found["pool_size"] and not found.get("requests_waiting"))

        await asyncio.to_thread(wait_until, are_back, "all connections of the pool")
        await server.service.state.overview()


@pytest.mark.slow
async def test_events_are_those_of_astream_events(server: AgentServer) -> None:
    """But for the chunks of the graph itself, which the other modes are."""
    async with sdk(server) as client:
        await client.threads.create(thread_id="t")
        run = await client.runs.create("t", "chat", input=HELLO, stream_mode=["events", "values"])
        whole = await collected(client.runs.join_stream("t", run["run_id"]))
        told = [part.data for part in whole if part.event == "events"]
        events = [event async for event in chat().astream_events(HELLO, version="v2")]
        expected = [(one["event"], one["name"]) for one in events if one["parent_ids"] or "stream" not in one["event"]]
        named = [(name, "chat" if graph == "LangGraph" else graph) for name, graph in expected]
        assert [(one["event"], one["name"]) for one in told] == named
        assert "".join(one["data"]["chunk"]["content"] for one in told if "model_stream" in one["event"]) == ANSWER
        assert (told[0]["data"], [*told[-1]["data"]]) == ({"input": HELLO}, ["output"])
        assert {one["metadata"]["thread_id"] for one in told} == {"t"}
        for number in range(len(whole) - 1):
            rest = client.runs.join_stream("t", run["run_id"], last_event_id=whole[number].id, stream_mode="events")
            assert await collected(rest) == [one for one in whole[number + 1 :] if one.event == "events"]


async def test_an_event_with_what_cannot_be_stored_has_the_rest(dsn: str, schema: str) -> None:
    async def hold(state: Steps) -> Steps:
        found = await RunnableLambda(lambda _: {"lock": Lock(), "words": ["Prague"]}).ainvoke(1, {"run_name": "inner"})
        return {"answer": found["words"][0]}

    builder = StateGraph(Steps).add_node(hold).add_edge(START, "hold")
    async with serving(dsn, schema, graphs={"hold": builder.compile()}) as server, sdk(server) as client:
        stream = client.runs.stream(None, "hold", input={"count": 1}, stream_mode="events")
        told = [part.data async for part in stream if part.event == "events"]
    [end] = [one for one in told if (one["name"], one["event"]) == ("inner", "on_chain_end")]
    assert end["data"]["output"]["words"] == ["Prague"]
    assert end["data"]["output"]["lock"].startswith("<unlocked")


@pytest.mark.slow
@pytest.mark.parametrize("path", ["runs/stream", "runs/wait", "stream", "join"])
async def test_a_reader_that_may_not_read_any_more_gets_no_more(
    dsn: str, schema: str, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    """The run goes on, and its end is for those who may read the thread."""
    monkeypatch.setattr(pacing, "HEARTBEAT_SECONDS", 0.1)
    eve = {"authorization": "token-eve"}
    async with (
        serving(dsn, schema, auth=owners()) as server,
        listening(server) as url,
        httpx.AsyncClient(base_url=url, timeout=60, headers=eve) as client,
    ):
        assert server.service is not None
        state = server.service.state
        await client.post("/threads", json={"thread_id": "t"})
        body: Any = {"assistant_id": "slow", "input": {"count": 60}, "config": {"recursion_limit": 100}}
        method, target = "POST", f"/threads/t/{path}"
        if "/" not in path:
            run = (await client.post("/threads/t/runs", json=body)).json()
            method, target, body = "GET", f"/threads/t/runs/{run['run_id']}/{path}", None
        async with client.stream(method, target, json=body) as response:
            lines = response.aiter_lines()
            await anext(lines)
            await state.threads.update_metadata("t", {"owner": "bob"})
            left = [line async for line in lines]
        [run] = (await state.runs.list(thread_id="t")).items
        assert run.status in ("pending", "running")
        if "stream" in path:
            assert not any('"count":0}' in line or line == "event: error" for line in left)
        else:
            assert [line for line in left if line] == ["null"]
        await state.runs.cancel("t", run.run_id)


@pytest.mark.slow
async def test_a_reader_that_may_not_read_any_more_cancels_no_run_by_leaving(
    dsn: str, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pacing, "HEARTBEAT_SECONDS", 3600)
    eve = {"authorization": "token-eve"}
    async with (
        serving(dsn, schema, auth=owners()) as server,
        listening(server) as url,
        httpx.AsyncClient(base_url=url, timeout=60, headers=eve) as client,
    ):
        assert server.service is not None
        state = server.service.state
        body = {"assistant_id": "slow", "input": {"count": 60}, "on_disconnect": "cancel"}
        for thread_id, is_lost in (("t", True), ("u", False)):
            await client.post("/threads", json={"thread_id": thread_id})
            async with client.stream("POST", f"/threads/{thread_id}/runs/stream", json=body) as response:
                # Without a name, the iterator would be closed at once, and with it the connection.
                lines = response.aiter_lines()
                await anext(lines)
                if is_lost:
                    await state.threads.update_metadata(thread_id, {"owner": "bob"})
        # Told of after the other one.
        with suppress(RunCancelledError):
            await state.runs.wait("u", (await state.runs.list(thread_id="u")).items[0].run_id)
        [lost], [left] = [(await state.runs.list(thread_id=id)).items for id in ("t", "u")]
        assert (lost.status, left.status) in {("running", "interrupted"), ("pending", "interrupted")}
        await state.runs.cancel("t", lost.run_id)
