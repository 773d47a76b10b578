"""The part of a tree around a checkpoint, and the state there, in both APIs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import Send
from support import config_of, put_arguments
from support.record import ask

from langgraph_pgstate.errors import ConfigurationError, NotFoundError
from tests.test_state import APIS, open_state


@pytest.fixture(params=APIS, ids=lambda api: api.__name__)
async def state(request: pytest.FixtureRequest, dsn: str, schema: str) -> AsyncIterator[Any]:
    async with open_state(request.param, dsn, schema) as state:
        yield state


async def chain(state: Any, count: int, first: Any = None, step: int = 0) -> list[Any]:
    """Checkpoints one after the other; their configs."""
    saver, config, found = state.saver, first or config_of("t"), []
    put = saver.aput if is_async(state) else saver.put
    for number in range(count):
        config = await ask(put(*put_arguments(config, step + number)))
        found.append(config)
    return found


def ids_of(configs: list[Any]) -> list[str]:
    return [config["configurable"]["checkpoint_id"] for config in configs]


async def test_the_newest_are_returned_or_those_around_one(state: Any) -> None:
    ids = ids_of(await chain(state, 30))
    newest = await ask(state.threads.tree("t", limit=10))
    assert [node.checkpoint_id for node in newest.nodes] == ids[:19:-1]
    assert (newest.has_newer, newest.has_older) == (False, True)
    assert newest.nodes[0].parent_checkpoint_id == ids[28]
    for place in range(30):
        found = await ask(state.threads.tree("t", ids[place], limit=10))
        shown = [node.checkpoint_id for node in found.nodes]
        assert ids[place] in shown
        assert len(shown) == 10
        assert found.has_newer == (shown[0] != ids[-1])
        assert found.has_older == (shown[-1] != ids[0])
    whole = await ask(state.threads.tree("t", ids[3]))
    assert (len(whole.nodes), whole.has_newer, whole.has_older) == (30, False, False)
    assert (await ask(state.threads.tree("none"))).nodes == ()
    with pytest.raises(ConfigurationError):
        await ask(state.threads.tree("t", limit=0))


async def test_labels_tasks_and_interrupts_are_told(state: Any) -> None:
    first, second = await chain(state, 2)
    writes = state.saver.aput_writes if type(state).__name__.startswith("Async") else state.saver.put_writes
    await ask(writes(first, [("a", 1), ("b", 2)], "one", "~__pregel_pull, agent"))
    await ask(writes(first, [("__interrupt__", ("why",))], "one", "~__pregel_pull, agent"))
    await ask(writes(first, [("__resume__", 5)], "00000000-0000-0000-0000-000000000000"))
    await ask(writes(second, [("__interrupt__", ("why",))], "two", "~__pregel_push, 0000000000"))
    await ask(state.threads.label(first, "before"))
    newer, older = (await ask(state.threads.tree("t"))).nodes
    assert (older.label, older.tasks, older.interrupts, older.pending) == ("before", ("agent",), 1, 0)
    assert (newer.label, newer.tasks, newer.interrupts, newer.pending) == (None, ("",), 1, 1)


async def test_a_state_is_read_with_what_ran_after_it(state: Any) -> None:
    config = (await chain(state, 1))[0]
    writes = state.saver.aput_writes if type(state).__name__.startswith("Async") else state.saver.put_writes
    await ask(writes(config, [("__interrupt__", ("why", "how"))], "one"))
    await ask(writes(config, [("__error__", "no hotel")], "two"))
    found = await ask(state.threads.state_at(config_of("t")))
    assert found.checkpoint_id == config["configurable"]["checkpoint_id"]
    assert found.parent_checkpoint_id is None
    assert found.interrupts == ("why", "how")
    assert found.errors == ("no hotel",)
    assert not any(name.startswith("branch:") for name in found.values)
    assert (await ask(state.threads.state_at(config))).values == found.values
    with pytest.raises(NotFoundError):
        await ask(state.threads.state_at(config_of("none")))


async def test_nodes_that_were_sent_are_named_by_their_spans(state: Any) -> None:
    builder = StateGraph(MessagesState)
    builder.add_node("plan", lambda _: {})
    builder.add_node("work", lambda _: {"messages": ["done"]})
    builder.add_edge(START, "plan")
    builder.add_conditional_edges("plan", lambda _: [Send("work", {}), Send("work", {})], ["work"])
    graph = builder.compile(checkpointer=state.saver)
    for thread_id, chosen in (("recorded", state.record(graph)), ("other", graph)):
        config = config_of(thread_id)
        given: Any = {"messages": ["hello"]}
        await (chosen.ainvoke(given, config) if is_async(state) else asyncio.to_thread(chosen.invoke, given, config))
    trees = [await ask(state.threads.tree(thread_id)) for thread_id in ("recorded", "other")]
    tasks = [[node.tasks for node in tree.nodes] for tree in trees]
    assert tasks[0] == [(), ("work", "work"), ("plan",), ("__start__",)]
    assert tasks[1] == [(), ("", ""), ("plan",), ("__start__",)]


async def test_a_handler_of_an_error_is_not_named_like_the_node_that_failed(state: Any) -> None:
    def fail(_: Any) -> Any:
        raise ValueError("no hotel")

    builder = StateGraph(MessagesState)
    builder.add_node("book, pay", fail, error_handler=lambda _: {"messages": ["sorry"]})
    graph = builder.add_edge(START, "book, pay").compile(checkpointer=state.saver)
    [handler] = graph.node_error_handler_map.values()
    for thread_id, chosen in (("recorded", state.record(graph)), ("other", graph)):
        config = config_of(thread_id)
        given: Any = {"messages": ["hello"]}
        await (chosen.ainvoke(given, config) if is_async(state) else asyncio.to_thread(chosen.invoke, given, config))
    trees = [await ask(state.threads.tree(thread_id)) for thread_id in ("recorded", "other")]
    tasks = [tree.nodes[1].tasks for tree in trees]
    assert tasks == [("book, pay", handler), ("book, pay", "")]


def is_async(state: Any) -> bool:
    return type(state).__name__.startswith("Async")
