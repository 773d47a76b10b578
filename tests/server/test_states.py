"""Searches of threads by the values of their states."""

from __future__ import annotations

from typing import Any

import pytest
from langgraph.graph import START, StateGraph
from langgraph_sdk.errors import UnprocessableEntityError
from support.http import graphs, sdk, serving
from typing_extensions import TypedDict

from langgraph_pgstate import AsyncPGState
from langgraph_pgstate.server import create_app, states


class Items(TypedDict, total=False):
    """What `plain` knows."""

    items: list[Any]


def plain() -> Any:
    """A graph of a list."""
    return StateGraph(Items).add_node("take", lambda state: {}).add_edge(START, "take").compile()


@pytest.mark.slow
async def test_threads_are_found_by_the_values_of_their_states(dsn: str, schema: str) -> None:
    async with serving(dsn, schema, worker=False) as server, sdk(server) as client:
        for number in range(12):
            await client.threads.create(thread_id=f"t{number:02}", metadata={"even": number % 2 == 0}, graph_id="slow")
            await client.threads.update_state(f"t{number:02}", {"count": number % 3}, as_node="wait")

        async def found(**filters: Any) -> list[str]:
            page = await client.threads.search(sort_by="thread_id", sort_order="asc", **filters)
            return [thread["thread_id"] for thread in page]

        assert await found(values={"count": 2}) == ["t02", "t05", "t08", "t11"]
        assert await found(values={"count": 2}, limit=2, offset=1) == ["t05", "t08"]
        assert await found(values={"count": 2}, metadata={"even": True}) == ["t02", "t08"]
        assert await found(values={"count": 2, "answer": "yes"}) == await found(values={"unknown": 1}) == []
        assert await client.threads.count(values={"count": 2}) == 4
        await client.threads.update_state("t02", {"count": 7}, as_node="wait")
        assert await found(values={"count": 2}, limit=1) == ["t05"]


async def test_a_search_by_values_reads_a_bounded_number_of_states(
    dsn: str, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(states, "_MOST_COMPARED", 2)
    async with serving(dsn, schema, worker=False) as server, sdk(server) as client:
        for number in range(2):
            await client.threads.create(thread_id=f"t{number}", graph_id="slow", metadata={"old": True})
            await client.threads.update_state(f"t{number}", {"count": number}, as_node="wait")
        assert await client.threads.count(values={"count": 0}) == 1
        await client.threads.create(thread_id="t2")
        for call in (client.threads.search, client.threads.count):
            with pytest.raises(UnprocessableEntityError, match=r"'count' .*PGSTATE_PROJECT"):
                await call(values={"count": 0})
        # The newest is among the first two.
        assert len(await client.threads.search(values={"count": 1}, limit=1)) == 1
        assert await client.threads.count(values={"count": 0}, metadata={"old": True}) == 1


async def test_sql_compares_channels_that_are_projected(dsn: str, schema: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(states, "_MOST_COMPARED", 1)
    async with AsyncPGState.open(dsn, schema=schema, project=("count",)) as state:
        server = create_app(state, graphs(), worker=False)
        async with server.lifespan(), sdk(server) as client:
            for number in range(3):
                await client.threads.create(thread_id=f"t{number}", graph_id="slow")
                await client.threads.update_state(f"t{number}", {"count": number}, as_node="wait")
            assert [one["thread_id"] for one in await client.threads.search(values={"count": 0})] == ["t0"]
            assert await client.threads.count(values={"count": 0}) == 1


async def test_lists_of_objects_are_compared_a_bounded_number_of_times(
    dsn: str, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In all states together: each item is compared with each."""
    monkeypatch.setattr(states, "_MOST_COMPARISONS", 2000)
    async with serving(dsn, schema, worker=False, graphs={"plain": plain()}) as server, sdk(server) as client:
        for number in range(4):
            await client.threads.create(thread_id=f"t{number}", graph_id="plain")
            items = [{"a": one} for one in range(20)]
            await client.threads.update_state(f"t{number}", {"items": items}, as_node="take")
        assert await client.threads.count(values={"items": [{"a": 19}, {"a": 1}]}) == 4
        with pytest.raises(UnprocessableEntityError, match="compared with each"):
            await client.threads.count(values={"items": [{"a": 19}] * 30})


async def test_a_history_is_read_few_values_at_a_time(dsn: str, schema: str) -> None:
    """LangGraph makes a list of what a saver lists before it makes the first state."""
    async with serving(dsn, schema, graphs={"plain": plain()}, worker=False) as server, sdk(server) as client:
        assert server.service is not None
        saver = server.service.state.saver

        async def lists_of(*values: Any) -> list[int]:
            thread_id = (await client.threads.create(graph_id="plain"))["thread_id"]
            for value in values:
                await client.threads.update_state(thread_id, {"items": [value]}, as_node="take")
            config: Any = {"configurable": {"thread_id": thread_id, "checkpoint_ns": ""}}
            listed, found = states._Listed(saver), []
            while some := [one async for one in listed.alist(config)]:
                found.append(some)
            expected = [one async for one in saver.alist(config)]
            assert [one for some in found for one in some] == expected
            history = await client.threads.get_history(thread_id)
            assert [one["values"]["items"] for one in history] == [[value] for value in reversed(values)]
            return [len(some) for some in found]

        assert await lists_of(*range(8)) == [8]
        # A checkpoint has the writes that led to the next one.
        large = ["x" * 100_000, list(range(2000))]
        assert await lists_of(*large, 1, 2, 3, *large) == [1, 1, 1, 3, 1]
