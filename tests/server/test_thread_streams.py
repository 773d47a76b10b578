"""Streams of threads, by LangGraph's client and by their bytes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Any

import httpx
import pytest
from langgraph.config import get_stream_writer
from langgraph.graph import START, StateGraph
from langgraph_sdk import get_client
from langgraph_sdk.client import LangGraphClient
from support.http import ANSWER, CHANNELS, HELLO, Steps, listening, sdk, serving

from langgraph_pgstate.server import AgentServer, pacing
from tests.server.test_auth import USERS, owners

ALL: Any = [*CHANNELS]


@pytest.fixture(autouse=True)
def frequent_heartbeats(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server finds by them that a client has gone."""
    monkeypatch.setattr(pacing, "HEARTBEAT_SECONDS", 0.1)


class Stream:
    """An open stream of a thread's events."""

    def __init__(self, response: httpx.Response) -> None:
        self._lines = response.aiter_lines()
        self.found: list[dict[str, Any]] = []

    async def until(self, method: str, event: str | None = None) -> list[dict[str, Any]]:
        """The next events, up to one of a method."""
        start = len(self.found)
        async with asyncio.timeout(60):
            async for line in self._lines:
                if line.startswith("data: "):
                    self.found.append(json.loads(line.removeprefix("data: ")))
                    data = self.found[-1]["params"]["data"]
                    is_root = not self.found[-1]["params"]["namespace"]
                    if self.found[-1]["method"] == method and (event is None or (is_root and data["event"] == event)):
                        return self.found[start:]
        raise AssertionError(f"the stream ended after {self.found}")


async def line_of(lines: AsyncIterator[str], start: str) -> str:
    async with asyncio.timeout(60):
        return await anext(line async for line in lines if line.startswith(start))


@asynccontextmanager
async def opened(url: str, thread_id: str, **body: Any) -> AsyncIterator[Stream]:
    given = {"channels": ALL, **body}
    async with (
        httpx.AsyncClient(base_url=url, timeout=60) as client,
        client.stream("POST", f"/threads/{thread_id}/stream/events", json=given) as response,
    ):
        assert response.status_code == 200
        yield Stream(response)


async def command(url: str, thread_id: str, method: str, **params: Any) -> Any:
    async with httpx.AsyncClient(base_url=url, timeout=60) as client:
        body = {"id": 7, "method": method, "params": params}
        answered = (await client.post(f"/threads/{thread_id}/commands", json=body)).json()
        assert (answered["type"], answered["id"]) == ("success", 7), answered
        return answered["result"]


@pytest.mark.slow
async def test_a_stream_goes_on_from_the_interrupt_to_the_answer(server: AgentServer) -> None:
    async with listening(server) as url, sdk(server) as client:
        await client.threads.create(thread_id="t")
        async with opened(url, "t") as one, opened(url, "t", channels=["lifecycle", "input"]) as two:
            run = await command(url, "t", "run.start", assistant_id="asking", input={"count": 0})
            await one.until("lifecycle", "interrupted")
            [asked] = [event for event in one.found if event["method"] == "input.requested"]
            assert asked["params"]["data"]["payload"] == {"question": "Go on?"}
            answer = {"interrupt_id": asked["params"]["data"]["interrupt_id"], "namespace": [], "response": "yes"}
            await command(url, "t", "input.respond", **answer)
            await one.until("lifecycle", "completed")
            await two.until("lifecycle", "completed")
            watched = [event for event in one.found if event["method"] in ("lifecycle", "input.requested")]
            assert two.found == watched
            values = [event["params"]["data"] for event in one.found if event["method"] == "values"]
            assert values[-1] == {"count": 1, "answer": "yes"}
            assert one.found[0]["event_id"].startswith(run["run_id"])
            # Another stream has the same ids and numbers, of the last run.
            async with opened(url, "t") as three:
                await three.until("lifecycle", "completed")
                assert three.found == one.found[-len(three.found) :]
            async with opened(url, "t", since=three.found[3]["seq"]) as four:
                await four.until("lifecycle", "completed")
                assert four.found == three.found[4:]
            # So has one that was away from before the end of a run before it.
            async with opened(url, "t", since=one.found[2]["seq"]) as five:
                await five.until("lifecycle", "completed")
                assert five.found == one.found[3:]


@pytest.mark.slow
async def test_a_stream_is_opened_on_another_server(server: AgentServer, dsn: str, schema: str) -> None:
    async with serving(dsn, schema, worker=False) as other, listening(other) as url, sdk(other) as client:
        await client.threads.create(thread_id="t")
        async with opened(url, "t", channels=["messages"]) as stream:
            await command(url, "t", "run.start", assistant_id="chat", input=HELLO)
            await stream.until("messages", "message-finish")
            deltas = [event["params"]["data"].get("delta") for event in stream.found]
            assert "".join(delta["text"] for delta in deltas if delta) == ANSWER


@pytest.mark.slow
async def test_only_what_is_wanted_is_sent(server: AgentServer) -> None:
    async with listening(server) as url, sdk(server) as client:
        await client.threads.create(thread_id="t")
        async with opened(url, "t", namespaces=[["approval"]]) as below, opened(url, "t") as whole:
            await command(url, "t", "run.start", assistant_id="asking", input={"count": 0})
            await whole.until("lifecycle", "interrupted")
            await below.until("lifecycle")
            await below.until("lifecycle")
            assert below.found == [event for event in whole.found if event["params"]["namespace"]][: len(below.found)]
            assert below.found[-1]["params"]["data"]["event"] == "interrupted"


@pytest.mark.slow
async def test_the_client_streams_a_thread(server: AgentServer) -> None:
    async with listening(server) as url:
        client = get_client(url=url)
        async with client.threads.stream(assistant_id="chat") as thread:
            await thread.run.start(input=HELLO)
            async with asyncio.timeout(60):
                [message] = [message async for message in thread.messages]
                assert await message.text == ANSWER
            values = await asyncio.wait_for(thread.output, 60)
            assert values["messages"][-1]["content"] == ANSWER
        async with client.threads.stream(assistant_id="asking") as thread:
            await thread.run.start(input={"count": 0})
            async with asyncio.timeout(60):
                while not thread.interrupted:
                    await asyncio.sleep(0.02)
            assert thread.interrupts[0]["value"] == {"question": "Go on?"}
            await thread.run.respond("yes")
            assert (await asyncio.wait_for(thread.output, 60))["answer"] == "yes"


@pytest.mark.slow
async def test_the_first_version_has_the_runs_of_a_thread(server: AgentServer) -> None:
    async with listening(server) as url:
        client: LangGraphClient = get_client(url=url)
        await client.threads.create(thread_id="t")

        async def read(count: int, **options: Any) -> list[Any]:
            parts: Any = await client.threads.join_stream("t", **options)
            async with asyncio.timeout(60), aclosing(parts):
                return [await anext(parts) for _ in range(count)]

        reading = asyncio.create_task(read(8))
        await asyncio.sleep(0.5)
        runs = [await client.runs.create("t", "chat", input=HELLO, stream_mode="values") for _ in range(2)]
        found = await reading
        assert [part.event for part in found] == ["metadata", "values", "values", "metadata"] * 2
        for number, run in enumerate(runs):
            first, last = found[number * 4].data, found[number * 4 + 3].data
            assert (first["run_id"], last) == (run["run_id"], {"status": "run_done", "run_id": run["run_id"]})
        assert await read(3, stream_mode="lifecycle", last_event_id=found[2].id) == [found[3], found[4], found[7]]


@pytest.mark.slow
@pytest.mark.parametrize("path", ["stream", "stream/events"])
async def test_a_stream_waits_for_its_thread(server: AgentServer, path: str) -> None:
    method, body = ("GET", None) if path == "stream" else ("POST", {"channels": ALL})
    async with (
        listening(server) as url,
        httpx.AsyncClient(base_url=url, timeout=30) as http,
        http.stream(method, f"/threads/t/{path}", json=body) as response,
    ):
        lines = response.aiter_lines()
        assert (response.status_code, [await anext(lines) for _ in range(4)]) == (200, [": heartbeat", ""] * 2)
        run = await command(url, "t", "run.start", assistant_id="chat", input=HELLO)
        assert run["run_id"] in await line_of(lines, "data: ")


@pytest.mark.slow
@pytest.mark.parametrize("path", ["stream", "stream/events"])
async def test_another_users_thread_is_one_that_does_not_exist(dsn: str, schema: str, path: str) -> None:
    eve, bob = ({"authorization": token} for token in USERS)
    method, body = ("GET", None) if path == "stream" else ("POST", {"channels": ALL})
    async with (
        serving(dsn, schema, auth=owners()) as server,
        listening(server) as url,
        sdk(server, bob) as client,
        httpx.AsyncClient(base_url=url, timeout=30) as http,
    ):
        await client.threads.create(thread_id="t")
        await client.runs.wait("t", "chat", input=HELLO)
        async with http.stream(method, f"/threads/t/{path}", json=body, headers=eve) as response:
            await client.runs.wait("t", "chat", input=HELLO)
            lines = response.aiter_lines()
            assert (response.status_code, {await anext(lines) for _ in range(20)}) == (200, {": heartbeat", ""})
            # Its owner leaves the id to her.
            await client.threads.delete("t")
            body = {"assistant_id": "chat", "input": HELLO, "if_not_exists": "create"}
            run = (await http.post("/threads/t/runs", json=body, headers=eve)).json()
            assert run["run_id"] in await line_of(lines, "data: ")


@pytest.mark.slow
@pytest.mark.parametrize("path", ["stream", "stream/events"])
async def test_a_stream_ends_with_its_thread(dsn: str, schema: str, path: str) -> None:
    """What is made anew under the thread's id is not for those who could read the old one."""
    eve, bob = ({"authorization": token} for token in USERS)
    async with (
        serving(dsn, schema, auth=owners()) as server,
        listening(server) as url,
        sdk(server, bob) as client,
        httpx.AsyncClient(base_url=url, timeout=30) as http,
    ):
        await http.post("/threads", json={"thread_id": "t"}, headers=eve)
        method, body = ("GET", None) if path == "stream" else ("POST", {"channels": ALL})
        async with http.stream(method, f"/threads/t/{path}", json=body, headers=eve) as response:
            lines = response.aiter_lines()
            assert await anext(lines) == ": heartbeat"
            await http.delete("/threads/t", headers=eve)
            await client.threads.create(thread_id="t")
            await client.runs.wait("t", "chat", input=HELLO)
            async with asyncio.timeout(30):
                async for line in lines:
                    assert not line.startswith("data: ")


@pytest.mark.parametrize("body", [{}, {"channels": []}, {"channels": ["values"], "depth": -1}])
async def test_what_is_wanted_is_checked(server: AgentServer, body: Any) -> None:
    async with sdk(server) as client:
        answered = await client.http.client.post("/threads/t/stream/events", json=body)
        assert answered.status_code == 422


@pytest.mark.slow
async def test_a_slow_reader_holds_up_nobody_and_gets_everything(dsn: str, schema: str) -> None:
    async def pour(state: Steps) -> Steps:
        write = get_stream_writer()
        for number in range(200):
            write({"number": number, "text": "x" * 50_000})
            await asyncio.sleep(0)
        return {"count": 1}

    builder = StateGraph(Steps).add_node(pour).add_edge(START, "pour")
    async with serving(dsn, schema, graphs={"pour": builder.compile()}) as server, listening(server) as url:
        await command(url, "t", "run.start", assistant_id="pour", input={})
        host, _, port = url.removeprefix("http://").partition(":")
        # So small a buffer is full after one event; what follows waits in the database, not in the server.
        reader, writer = await asyncio.open_connection(host, int(port), limit=2**10)
        body = json.dumps({"channels": ["custom", "lifecycle"]})
        head = "POST /threads/t/stream/events HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode())
        async with opened(url, "t") as quick:
            await quick.until("lifecycle", "completed")
            poured = [event for event in quick.found if event["method"] == "custom"]
            assert [event["params"]["data"]["payload"]["number"] for event in poured] == [*range(200)]
        found = b""
        async with asyncio.timeout(60):
            while b'"completed"' not in found:
                found += await reader.read(2**20)
        assert found.count(b'"number":') == 200
        writer.close()
