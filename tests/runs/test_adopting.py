"""Crashed runs of a plain invoke, which a worker takes over when asked."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator

import psycopg
import pytest
from psycopg.types.json import Jsonb
from support import FORK, loop_graph, wait_until
from support.worker import WORKERS, runs

from langgraph_pgstate import PGState
from tests.worker.test_worker import working


@pytest.fixture
def state(dsn: str, schema: str) -> Iterator[PGState]:
    """A state to enqueue with and to look at what workers did."""
    with PGState.open(dsn, schema=schema) as state:
        yield state


@pytest.mark.slow
@pytest.mark.parametrize("kind", WORKERS)
async def test_crashed_runs_of_a_plain_invoke_are_adopted_when_asked(
    kind: type, dsn: str, schema: str, state: PGState, connection: psycopg.Connection
) -> None:
    for thread_id in ("crashed", "gone on"):
        process = FORK.Process(target=_die_in, args=(dsn, schema, thread_id))
        process.start()
        process.join()
        assert process.exitcode == 1
    told = {"team": "sales"}
    connection.execute(f"UPDATE {schema}.runs SET metadata = %s".encode(), [Jsonb(told)])
    later = loop_graph(3).compile(checkpointer=state.saver)
    later.invoke({"count": 2}, {"configurable": {"thread_id": "gone on"}})
    async with working(kind, dsn, schema, {"agent": loop_graph(3)}):
        await asyncio.sleep(0.3)
        assert state.runs.queued().items == ()
    async with working(kind, dsn, schema, {"agent": loop_graph(3)}, adopt=True):
        wait = lambda: [row[:2] for row in runs(connection, schema) if row[0] == "crashed"] == [("crashed", "success")]  # noqa: E731
        await asyncio.to_thread(wait_until, wait, "the end of the crashed run")
    values = state.saver.get_tuple({"configurable": {"thread_id": "crashed"}})
    assert values is not None
    assert values.checkpoint["channel_values"]["items"] == ["item 0", "item 1", "item 2"]
    assert state.runs.adopt() == []
    assert [run.metadata for run in state.runs.list(thread_id="crashed").items] == [told]


def _die_in(dsn: str, schema: str, thread_id: str) -> None:
    """Invoke a graph that kills this process in its second superstep."""
    with PGState.open(dsn, schema=schema) as state:

        def die(count: int) -> None:
            if count == 1:
                state.flush()
                os._exit(1)

        graph = state.record(loop_graph(3, die).compile(checkpointer=state.saver, name="agent"))
        graph.invoke({"count": 0}, {"configurable": {"thread_id": thread_id}}, durability="sync")
