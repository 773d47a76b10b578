"""Content that the server accepts: what takes long of it is done beside the event loop."""

from __future__ import annotations

import operator
import threading
from collections.abc import AsyncIterator, Callable
from typing import Annotated, Any

import pytest
from langchain_core.messages import BaseMessage
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import interrupt
from langgraph_sdk.client import LangGraphClient
from pydantic import BaseModel
from support.http import sdk, serving
from typing_extensions import TypedDict

from langgraph_pgstate.codec.values import ValueCodec
from langgraph_pgstate.heavy import is_heavy
from langgraph_pgstate.memory import store as memory_store
from langgraph_pgstate.memory import texts
from langgraph_pgstate.server import AgentServer, json, states, streams
from tests.server.test_auth import USERS, owners

LONG: Any = [{"name": f"{number} " + "x" * 200} for number in range(2000)]
EVE = {"authorization": next(iter(USERS))}
Items = Annotated[list[Any], operator.add]


class Collected(TypedDict, total=False):
    """What `collecting` knows."""

    items: Items
    answer: Any


def collecting() -> Any:
    """A graph that returns what it is given, and asks for an answer to nothing."""

    def take(state: Collected) -> Collected:
        return {"answer": state["items"] if state.get("items") else interrupt("What?")}

    return StateGraph(Collected).add_node("take", take).add_edge(START, "take").compile()


def talking() -> Any:
    """A graph of messages."""
    return StateGraph(MessagesState).add_node("listen", lambda state: {}).add_edge(START, "listen").compile()


@pytest.fixture
async def server(dsn: str, schema: str) -> AsyncIterator[AgentServer]:
    async with serving(dsn, schema, graphs={"collecting": collecting(), "talking": talking()}) as server:
        yield server


@pytest.fixture
def on_the_loop(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Conversions of large values in the main thread, and those that no thread makes without letting others go on."""
    found: list[str] = []

    def watch(owner: Any, name: str, weighed: Callable[[tuple[Any, ...], Any], Any], *, anywhere: bool = False) -> None:
        original = getattr(owner, name)

        def watched(*given: Any, **options: Any) -> Any:
            result = original(*given, **options)
            if (anywhere or threading.current_thread() is threading.main_thread()) and is_heavy(weighed(given, result)):
                found.append(name)
            return result

        monkeypatch.setattr(owner, name, watched)

    for name in ("dumps", "dumps_exactly", "encode_elements", "digests", "fingerprints"):
        watch(ValueCodec, name, lambda given, _: given[2])
    for name in ("loads", "decode_elements"):
        watch(ValueCodec, name, lambda _, result: result)
    watch(BaseModel, "model_dump", lambda _, result: result)
    watch(states, "_has", lambda given, _: given[0])
    watch(memory_store, "json_value", lambda given, _: given[0])
    watch(memory_store, "texts_of", lambda given, _: given[0])
    watch(texts, "_dumps", lambda given, _: given[0], anywhere=True)
    for module in (json, streams):
        # Of a string, too, the interpreter is not released.
        watch(module, "to_json", lambda given, _: given[0], anywhere=True)
    return found


async def update(client: LangGraphClient) -> None:
    await client.threads.create(thread_id="t", graph_id="collecting")
    await client.threads.update_state("t", {"items": LONG[:1]}, as_node="take")
    # Its parent is known.
    await client.threads.update_state("t", {"items": LONG}, as_node="take")
    state: Any = await client.threads.get_state("t")
    assert len(state["values"]["items"]) == 2001
    history: Any = await client.threads.get_history("t")
    assert len(history[0]["values"]["items"]) == 2001
    [found] = await client.threads.search(values={"items": LONG[:2]}, extract={"last": "values.items[-1]"})
    assert found["extracted"] == {"last": LONG[-1]}  # type: ignore[typeddict-item]


async def create(client: LangGraphClient) -> None:
    steps: Any = [{"updates": [{"values": {"items": LONG}, "as_node": "take"}]}]
    made = await client.threads.create(graph_id="collecting", supersteps=steps)
    assert made["values"] == {"items": LONG}


async def wait(client: LangGraphClient) -> None:
    assert await client.runs.wait(None, "collecting", input={"items": LONG}) == {"items": LONG, "answer": LONG}


async def command(client: LangGraphClient) -> None:
    await client.threads.create(thread_id="t", graph_id="collecting")
    await client.threads.update_state("t", {"items": []}, as_node="__start__")
    found: Any = await client.runs.wait("t", "collecting", command={"update": {"items": LONG}})
    assert found["answer"] == LONG


async def stream(client: LangGraphClient) -> None:
    modes: Any = ["values", "updates"]
    parts = [part async for part in client.runs.stream(None, "collecting", input={"items": LONG}, stream_mode=modes)]
    assert parts[-1].data == {"items": LONG, "answer": LONG}


async def answer(client: LangGraphClient) -> None:
    await client.threads.create(thread_id="t")
    await client.runs.wait("t", "collecting", input={"items": []})
    found: Any = await client.runs.wait("t", "collecting", command={"resume": LONG})
    assert found["answer"] == LONG
    await client.threads.create(thread_id="u")
    asked: Any = await client.runs.wait("u", "collecting", input={"items": []})
    given = {"interrupt_id": asked["__interrupt__"][0]["id"], "response": LONG, "update": {"items": LONG}}
    body = {"id": 1, "method": "input.respond", "params": {"namespace": [], **given}}
    assert (await client.http.client.post("/threads/u/commands", json=body)).json()["type"] == "success"
    message = {"role": "user", "content": "Hello.", "additional_kwargs": {"items": LONG}}
    body = {"id": 2, "method": "input.inject", "params": {"namespace": [], "message": message}}
    assert (await client.http.client.post("/threads/u/commands", json=body)).json()["type"] == "success"


async def batch(client: LangGraphClient) -> None:
    made: Any = await client.runs.create_batch([{"assistant_id": "collecting", "input": {"items": LONG}}])
    assert await client.runs.join(made[0]["thread_id"], made[0]["run_id"]) == {"items": LONG, "answer": LONG}


async def cron(client: LangGraphClient) -> None:
    made: Any = await client.crons.create("collecting", schedule="0 0 1 1 *", input={"items": LONG})
    assert made["payload"]["input"] == {"items": LONG}
    changed: Any = await client.crons.update(made["cron_id"], input={"items": LONG[1:]})
    assert changed["payload"]["input"] == {"items": LONG[1:]}


async def messages(client: LangGraphClient) -> None:
    said = [{"role": "user", "content": f"Hello {number}." + " " * 300} for number in range(1200)]
    found: Any = await client.runs.wait(None, "talking", input={"messages": said})
    assert [one["content"] for one in found["messages"]] == [one["content"] for one in said]
    await client.threads.create(thread_id="t", graph_id="talking")
    await client.threads.update_state("t", {"messages": said}, as_node="listen")
    state: Any = await client.threads.get_state("t")
    assert len({one["id"] for one in state["values"]["messages"]}) == 1200


async def store(client: LangGraphClient) -> None:
    await client.store.put_item(["large"], "k", {"items": LONG})
    found = await client.store.get_item(["large"], "k")
    assert found["value"] == {"items": LONG}
    assert (await client.store.search_items(["large"]))["items"][0]["value"] == {"items": LONG}


@pytest.mark.slow
@pytest.mark.parametrize("call", [update, create, wait, command, stream, answer, batch, cron, messages, store])
async def test_large_content_is_converted_beside_the_event_loop(
    server: AgentServer, on_the_loop: list[str], monkeypatch: pytest.MonkeyPatch, call: Any
) -> None:
    made: list[bool] = []
    original = BaseMessage.__init__

    def noted(self: BaseMessage, *given: Any, **fields: Any) -> None:
        made.append(threading.current_thread() is threading.main_thread())
        original(self, *given, **fields)

    monkeypatch.setattr(BaseMessage, "__init__", noted)
    async with sdk(server) as client:
        await call(client)
    assert (on_the_loop, sum(made)) == ([], 0)


@pytest.mark.slow
async def test_handlers_are_shown_large_inputs_beside_the_event_loop(
    dsn: str, schema: str, on_the_loop: list[str]
) -> None:
    graphs = {"collecting": collecting()}
    async with serving(dsn, schema, graphs=graphs, auth=owners()) as server, sdk(server, EVE) as client:
        await wait(client)
        await cron(client)
    assert on_the_loop == []


@pytest.mark.slow
async def test_large_answers_are_encoded_beside_the_event_loop(server: AgentServer, on_the_loop: list[str]) -> None:
    assert server.service is not None
    state = server.service.state
    async with sdk(server) as client:
        for thread_id in ("t", "u"):
            await client.threads.create(thread_id=thread_id)
            await client.runs.wait(thread_id, "collecting", input={"items": []})
    run = await state.interrupts.answer_run("t", LONG)
    assert (await run.wait(60))["answer"] == LONG
    assert (await state.interrupts.answer("u", LONG)).resume
    assert on_the_loop == []
