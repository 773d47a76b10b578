"""A script of calls of LangGraph's client. Its results must be equal on all servers, except ids and times."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Iterator
from typing import Any
from uuid import uuid4

import httpx
from langgraph_sdk.client import LangGraphClient

_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_HEX = re.compile(r"\b[0-9a-f]{32}\b")
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\S*")

HELLO: dict[str, Any] = {"messages": [{"role": "user", "content": "Hello.", "id": "human-1"}]}
AGAIN: dict[str, Any] = {"messages": [{"role": "user", "content": "And the old town?", "id": "human-2"}]}


class Script:
    """Calls and their results.

    Args:
        client: The client.
    """

    def __init__(self, client: LangGraphClient) -> None:
        self.client = client
        self.answers: dict[str, Any] = {}
        self._names: dict[str, str] = {}
        self.mark = uuid4().hex

    async def call(self, name: str, made: Awaitable[Any]) -> Any:
        """Await a call, and store its result, or the status of its refusal."""
        try:
            found = await made
        except httpx.HTTPStatusError as error:
            self.answers[name] = f"HTTP {error.response.status_code}"
            return None
        except httpx.TransportError as error:
            self.answers[name] = type(error).__name__
            return None
        self.answers[name] = self.plain(found)
        return found

    async def collect(self, name: str, stream: Any) -> list[Any]:
        """Read a stream, and store its events."""
        parts = []
        try:
            async for part in stream:
                parts.append(part)
        except httpx.HTTPStatusError as error:
            self.answers[name] = f"HTTP {error.response.status_code}"
            return []
        # `end` repeats the status of the run.
        self.answers[name] = self.plain([[part.event, part.data] for part in parts if part.event != "end"])
        return parts

    def plain(self, value: Any) -> Any:
        """Return an answer with a name for each id, in the order in which they come up, and without times."""
        if isinstance(value, dict):
            return {self.plain(key): self.plain(item) for key, item in sorted(value.items())}
        if isinstance(value, list | tuple):
            return [self.plain(item) for item in value]
        if isinstance(value, str):
            value = value.replace(self.mark, "MARK")
            value = _TIME.sub("TIME", value)
            return _HEX.sub("HEX", _UUID.sub("ID", value))
        return value


async def play(client: LangGraphClient) -> dict[str, Any]:
    """Make all calls, and return their results by name."""
    script = Script(client)
    for part in (assistants, threads, states, runs, strategies, interrupts, streams, crons, own_assistants):
        await part(script, client)
    return script.answers


async def assistants(script: Script, client: LangGraphClient) -> None:
    """Graphs as assistants."""
    call = script.call
    for found in await client.assistants.search(limit=100):
        await call(f"assistants.get {found['graph_id']}", client.assistants.get(found["assistant_id"]))
    await call("assistants.search by graph", client.assistants.search(graph_id="chat"))
    await call("assistants.search by name", client.assistants.search(name="CHA"))
    await call("assistants.search selected", client.assistants.search(graph_id="chat", select=["graph_id"]))
    await call("assistants.count", client.assistants.count(graph_id="chat"))
    await call("assistants.count of none", client.assistants.count(graph_id="none"))
    await call("assistants.get by name", client.assistants.get("chat"))
    await call("assistants.get unknown", client.assistants.get("nothing"))
    await call("assistants.get unknown id", client.assistants.get(str(uuid4())))
    asking, chat = [(await client.assistants.search(graph_id=name))[0]["assistant_id"] for name in ("asking", "chat")]
    await call("assistants.get_graph", client.assistants.get_graph(asking))
    await call("assistants.get_graph xray", client.assistants.get_graph(asking, xray=True))
    await call("assistants.get_schemas", client.assistants.get_schemas(asking))
    await call("assistants.get_schemas of messages", client.assistants.get_schemas(chat))
    await call("assistants.get_subgraphs", client.assistants.get_subgraphs(asking))
    await call("assistants.get_subgraphs named", client.assistants.get_subgraphs(asking, namespace="approval"))


async def threads(script: Script, client: LangGraphClient) -> None:
    """Threads without runs."""
    call, mark = script.call, script.mark
    thread = await call("threads.create", client.threads.create(metadata={"mark": mark, "number": 1}))
    id = thread["thread_id"]
    await call("threads.create again", client.threads.create(thread_id=id))
    await call("threads.create if not exists", client.threads.create(thread_id=id, if_exists="do_nothing"))
    await call("threads.create of graph", client.threads.create(metadata={"mark": mark}, graph_id="chat"))
    await call("threads.get", client.threads.get(id))
    await call("threads.get unknown", client.threads.get(str(uuid4())))
    await call("threads.update", client.threads.update(id, metadata={"more": {"a": [1, None, True]}}))
    await call("threads.update minimal", client.threads.update(id, metadata={"number": 2}, return_minimal=True))
    await call("threads.update unknown", client.threads.update(str(uuid4()), metadata={}))
    await call("threads.search", client.threads.search(metadata={"mark": mark}, sort_by="created_at"))
    await call("threads.search limit", client.threads.search(metadata={"mark": mark}, limit=1, offset=1))
    await call(
        "threads.search ascending",
        client.threads.search(metadata={"mark": mark}, sort_by="created_at", sort_order="asc", select=["metadata"]),
    )
    await call("threads.search ids", client.threads.search(ids=[id], select=["thread_id", "status"]))
    await call("threads.search nested", client.threads.search(metadata={"mark": mark, "more": {"a": [1]}}))
    await call("threads.search status", client.threads.search(metadata={"mark": mark}, status="busy"))
    await call("threads.search limit 0", client.threads.search(limit=0))
    await call("threads.search limit 1001", client.threads.search(limit=1001))
    await call("threads.count", client.threads.count(metadata={"mark": mark}))
    await call("threads.get_state of none", client.threads.get_state(id))
    await call("threads.get_state unknown", client.threads.get_state(str(uuid4())))
    await call("threads.get_history of none", client.threads.get_history(id))
    await call("threads.update_state of none", client.threads.update_state(id, {"count": 1}))
    await call("threads.copy of none", client.threads.copy(id))
    await call("threads.copy unknown", client.threads.copy(str(uuid4())))
    await call("threads.delete", client.threads.delete(id))
    await call("threads.delete again", client.threads.delete(id))
    await call("threads.get deleted", client.threads.get(id))


async def states(script: Script, client: LangGraphClient) -> None:
    """States of a conversation: read, changed, forked, copied, pruned."""
    call = script.call
    id = (await client.threads.create(metadata={"mark": script.mark}))["thread_id"]
    await call("runs.wait", client.runs.wait(id, "chat", input=HELLO))
    await call("threads.get after a run", client.threads.get(id))
    state = await call("threads.get_state", client.threads.get_state(id))
    await call("threads.get_state selected", client.threads.get_state(id, select=["values", "next"]))
    checkpoint = state["checkpoint"]
    await call("threads.get_state at", client.threads.get_state(id, checkpoint=checkpoint))
    await call("threads.get_state at id", client.threads.get_state(id, checkpoint_id=checkpoint["checkpoint_id"]))
    history = await call("threads.get_history", client.threads.get_history(id))
    await call("threads.get_history limit", client.threads.get_history(id, limit=1))
    await call("threads.get_history before", client.threads.get_history(id, before=history[0]["checkpoint"]))
    before = history[0]["checkpoint"]["checkpoint_id"]
    await call("threads.get_history before id", client.threads.get_history(id, before=before))
    await call("threads.get_history filtered", client.threads.get_history(id, metadata={"source": "input"}))
    await call("threads.update_state", client.threads.update_state(id, AGAIN, as_node="speak"))
    await call("threads.update_state of nobody", client.threads.update_state(id, AGAIN, as_node="nobody"))
    await call("threads.get_state updated", client.threads.get_state(id))
    await call("runs.wait from", client.runs.wait(id, "chat", input=AGAIN, checkpoint=history[0]["checkpoint"]))
    copy = await call("threads.copy", client.threads.copy(id))
    await call("threads.get_state of copy", client.threads.get_state(copy["thread_id"]))
    await call("threads.prune", client.threads.prune([copy["thread_id"], str(uuid4())]))
    await call("threads.get pruned", client.threads.get(copy["thread_id"]))
    made = await call(
        "threads.create with supersteps",
        client.threads.create(
            graph_id="chat",
            supersteps=[
                {"updates": [{"values": HELLO, "as_node": "__input__"}]},
                {"updates": [{"values": AGAIN, "as_node": "speak"}]},
            ],
        ),
    )
    await call("threads.get_state of supersteps", client.threads.get_state(made["thread_id"]))


async def runs(script: Script, client: LangGraphClient) -> None:
    """Runs: in the background, joined, refused, failed, cancelled, deleted."""
    call = script.call
    id = (await client.threads.create())["thread_id"]
    run = await call("runs.create", client.runs.create(id, "chat", input=HELLO, metadata={"a": 1}))
    await call("runs.join", client.runs.join(id, run["run_id"]))
    await call("runs.get", client.runs.get(id, run["run_id"]))
    await call("runs.list", client.runs.list(id))
    await call("runs.list selected", client.runs.list(id, select=["status"]))
    await call("runs.list status", client.runs.list(id, status="error"))
    await call("runs.list unknown", client.runs.list(str(uuid4())))
    await call("runs.get unknown", client.runs.get(id, str(uuid4())))
    await call("runs.join unknown", client.runs.join(id, str(uuid4())))
    await call("runs.cancel ended", client.runs.cancel(id, run["run_id"]))
    await call("runs.cancel unknown", client.runs.cancel(id, str(uuid4())))
    await call("runs.create on nothing", client.runs.create(str(uuid4()), "chat", input=HELLO))
    await call("runs.wait on a new thread", client.runs.wait(str(uuid4()), "chat", input=HELLO, if_not_exists="create"))
    await call("runs.create of nothing", client.runs.create(id, "nothing", input=HELLO))
    await call("runs.wait stateless", client.runs.wait(None, "chat", input=HELLO))
    await call("runs.create stateless", client.runs.create(None, "chat", input=HELLO))
    payloads: Any = [{"assistant_id": "chat", "input": HELLO}, {"assistant_id": "slow", "input": {"count": 1}}]
    await call("runs.create_batch", client.runs.create_batch(payloads))
    await call("runs.wait failing", client.runs.wait(id, "failing", input={}, raise_error=False))
    await call("threads.get failed", client.threads.get(id))
    await call("threads.get_state failed", client.threads.get_state(id))
    await call("runs.list failed", client.runs.list(id, status="error"))
    await call("runs.delete", client.runs.delete(id, run["run_id"]))
    await call("runs.get deleted", client.runs.get(id, run["run_id"]))
    other = (await client.threads.create())["thread_id"]
    late = await call("runs.create later", client.runs.create(other, "chat", input=HELLO, after_seconds=60))
    await call("threads.get with a run for later", client.threads.get(other))
    await call("runs.cancel", client.runs.cancel(other, late["run_id"], wait=True))
    await call("runs.get cancelled", client.runs.get(other, late["run_id"]))
    await call("runs.wait before", client.runs.wait(other, "chat", input=HELLO, interrupt_before=["speak"]))
    await call("threads.get before", client.threads.get(other))
    await call("threads.get_state before", client.threads.get_state(other))
    await call("runs.wait on", client.runs.wait(other, "chat", input=None))


async def strategies(script: Script, client: LangGraphClient) -> None:
    """Return a second run of a busy thread."""
    call = script.call
    for strategy in ("reject", "interrupt", "rollback", "enqueue"):
        id = (await client.threads.create())["thread_id"]
        first = await client.runs.create(id, "slow", input={"count": 1000 if strategy != "enqueue" else 10})
        await _until(client, id, first["run_id"])
        given: Any = strategy
        name = f"second run, {strategy}"
        await call(name, client.runs.wait(id, "slow", input={"count": 1}, multitask_strategy=given))
        if strategy == "reject":
            await call(f"{name}: update", client.threads.update_state(id, {"count": 1}))
            await call(f"{name}: cancel", client.runs.cancel(id, first["run_id"], wait=True))
        found = await client.runs.list(id)
        script.answers[f"{name}: runs"] = [(one["status"], one["multitask_strategy"]) for one in found]
        await call(f"{name}: thread", client.threads.get(id))


async def interrupts(script: Script, client: LangGraphClient) -> None:
    """Return a subgraph that asks, and is answered."""
    call = script.call
    id = (await client.threads.create(metadata={"mark": script.mark}))["thread_id"]
    await call("interrupt", client.runs.wait(id, "asking", input={"count": 0}))
    await call("interrupt: thread", client.threads.get(id))
    await call("interrupt: state", client.threads.get_state(id))
    await call("interrupt: state with subgraphs", client.threads.get_state(id, subgraphs=True))
    await call("interrupt: search", client.threads.search(metadata={"mark": script.mark}, status="interrupted"))
    await call("interrupt: runs", client.runs.list(id))
    await call("interrupt: answer", client.runs.wait(id, "asking", command={"resume": "yes"}))
    await call("interrupt: end", client.threads.get(id))
    await call("interrupt: goto", client.runs.wait(id, "asking", command={"goto": "count", "update": {"count": 7}}))


async def streams(script: Script, client: LangGraphClient) -> None:
    """Events of runs, in all modes."""
    collect = script.collect
    modes: Any
    for modes in ("values", "updates", "messages", "messages-tuple", "custom", "tasks", "checkpoints", "debug"):
        await collect(f"stream {modes}", client.runs.stream(None, "chat", input=HELLO, stream_mode=modes))
    modes = ["values", "updates", "messages-tuple"]
    await collect("stream several", client.runs.stream(None, "chat", input=HELLO, stream_mode=modes))
    id = (await client.threads.create())["thread_id"]
    for modes in ("values", "updates", "tasks"):
        stream = client.runs.stream(id, "asking", input={"count": 0}, stream_mode=modes, stream_subgraphs=True)
        await collect(f"stream subgraphs, {modes}", stream)
    other = (await client.threads.create())["thread_id"]
    for modes in ("checkpoints", "debug"):
        await collect(f"stream thread, {modes}", client.runs.stream(other, "chat", input=HELLO, stream_mode=modes))
    stream = client.runs.stream(id, "asking", command={"resume": "yes"}, stream_mode=["values", "updates"])
    await collect("stream answer", stream)
    await collect("stream failing", client.runs.stream(id, "failing", input={}, stream_mode="values"))
    await collect("stream on nothing", client.runs.stream(str(uuid4()), "chat", input=HELLO))
    await collect("join_stream unknown", client.runs.join_stream(id, str(uuid4())))


async def crons(script: Script, client: LangGraphClient) -> None:
    """Crons, whose ticks do not come meanwhile."""
    call, crons, daily = script.call, client.crons, "0 9 29 2 *"
    id = (await client.threads.create(metadata={"mark": script.mark}))["thread_id"]
    config: Any = {"tags": ["x"], "configurable": {"a": 1}}
    made = await call(
        "crons.create", crons.create("chat", schedule=daily, input=HELLO, metadata={"m": 1}, config=config)
    )
    options: Any = {"multitask_strategy": "interrupt", "timezone": "Europe/Prague", "enabled": False}
    await call("crons.create_for_thread", crons.create_for_thread(id, "chat", schedule=daily, input=HELLO, **options))
    await call("crons.create on nothing", crons.create_for_thread(str(uuid4()), "chat", schedule=daily))
    await call("crons.create nonsense", crons.create("chat", schedule="nonsense"))
    await call("crons.create elsewhere", crons.create("chat", schedule=daily, timezone="Nowhere/X"))
    await call("crons.create of nothing", crons.create("nothing", schedule=daily))
    await call("crons.search", crons.search(sort_by="created_at", sort_order="asc"))
    await call("crons.search enabled", crons.search(enabled=True, select=["cron_id", "metadata"]))
    await call("crons.search thread", crons.search(thread_id=id, select=["thread_id"]))
    await call("crons.search metadata", crons.search(metadata={"m": 1}, select=["metadata"]))
    await call("crons.count", crons.count())
    cron_id = made["cron_id"]
    await call("crons.update", crons.update(cron_id, schedule="0 10 29 2 *", on_run_completed="keep", context={"a": 1}))
    await call("crons.update metadata", crons.update(cron_id, metadata={"n": 2}))
    await call("crons.update disabled", crons.update(cron_id, enabled=False))
    await call("crons.update nonsense", crons.update(cron_id, schedule="nonsense"))
    await call("crons.update nothing", crons.update(cron_id))
    await call("crons.update unknown", crons.update(str(uuid4()), enabled=True))
    await call("crons.delete", crons.delete(cron_id))
    await call("crons.delete again", crons.delete(cron_id))


async def own_assistants(script: Script, client: LangGraphClient) -> None:
    """Assistants with a config or a context of their own, in versions."""
    call, part = script.call, client.assistants
    config: Any = {"tags": ["x"], "configurable": {"a": 1}}
    made = await call("own.create", part.create("slow", config, metadata={"m": 1}, name="mine", description="d"))
    id = made["assistant_id"]
    await call("own.create again", part.create("slow", assistant_id=id))
    await call("own.create if not exists", part.create("chat", assistant_id=id, if_exists="do_nothing"))
    await call("own.create of context", part.create("slow", context={"seconds": 1}))
    await call("own.create of both", part.create("slow", config, context={"seconds": 1}))
    await call("own.create of nothing", part.create("nothing"))
    await call("own.update", part.update(id, metadata={"n": 2}, config={"configurable": {"a": 2}}))
    await call("own.update name", part.update(id, name="renamed"))
    await call("own.update context", part.update(id, context={"seconds": 5}))
    await call("own.update unknown", part.update(str(uuid4()), name="x"))
    await call("own.update of nothing", part.update(id, graph_id="nothing"))
    await call("own.get", part.get(id))
    await call("own.search", part.search(metadata={"m": 1}))
    await call("own.versions", part.get_versions(id))
    await call("own.versions limit", part.get_versions(id, limit=1, offset=1))
    await call("own.versions unknown", part.get_versions(str(uuid4())))
    await call("own.set_latest unknown", part.set_latest(id, 99))
    await call("own.set_latest", part.set_latest(id, 1))
    await call("own.get_graph", part.get_graph(id))
    thread = (await client.threads.create())["thread_id"]
    await call("own.run", client.runs.wait(thread, id, input={"count": 1}))
    await call("own.run: runs", client.runs.list(thread))
    await call("own.delete", part.delete(id, delete_threads=True))
    await call("own.get deleted", part.get(id))
    await call("own.delete again", part.delete(id))
    await call("own.run: thread", client.threads.get(thread))


async def _until(client: LangGraphClient, thread_id: str, run_id: str) -> None:
    """Wait until a run runs."""
    while (await client.runs.get(thread_id, run_id))["status"] != "running":
        await asyncio.sleep(0.05)
    await asyncio.sleep(0.2)


MISSING = "(missing)"


def differences(theirs: Any, ours: Any, place: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Yield the places in which two results differ, with both values."""
    if isinstance(theirs, dict) and isinstance(ours, dict):
        for name in sorted({*theirs, *ours}):
            yield from differences(theirs.get(name, MISSING), ours.get(name, MISSING), f"{place}.{name}")
    elif isinstance(theirs, list) and isinstance(ours, list) and len(theirs) == len(ours):
        for number, (one, other) in enumerate(zip(theirs, ours, strict=True)):
            yield from differences(one, other, f"{place}[{number}]")
    elif theirs != ours:
        yield place, theirs, ours
