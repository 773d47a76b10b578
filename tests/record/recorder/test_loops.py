"""A recorder for graphs that are made before there is an event loop."""

from __future__ import annotations

import asyncio

import psycopg
import pytest
from langgraph.graph import START, StateGraph
from support import config_of

from langgraph_pgstate.server.langgraph_platform import LoopToolLedger, checkpointer, record
from tests.server.test_langgraph_platform import Answers, count, graph_with_tools, in_its_own_loop

pytestmark = pytest.mark.once


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch, dsn: str, schema: str) -> pytest.MonkeyPatch:
    """Variables that name the test's schema, and no others."""
    monkeypatch.setenv("PGSTATE_DSN", dsn)
    monkeypatch.setenv("PGSTATE_SCHEMA", schema)
    return monkeypatch


async def test_a_graph_is_made_once_and_recorded_on_every_loop(
    environment: pytest.MonkeyPatch, connection: psycopg.Connection, schema: str
) -> None:
    graph = graph_with_tools(LoopToolLedger())

    async def work() -> None:
        async with checkpointer() as saver:
            mine = graph.copy(update={"checkpointer": saver})
            await mine.ainvoke({"messages": []}, config_of(f"t{id(saver)}"))

    await asyncio.gather(*(in_its_own_loop(work) for _ in range(3)))
    assert (count(connection, schema, "runs"), count(connection, schema, "tool_executions")) == (3, 3)
    for name, kind in (("auditor", "chain"), ("charge", "tool"), ("audit", "node")):
        found = connection.execute(
            f"SELECT status, run_id IN (SELECT run_id FROM {schema}.runs) FROM {schema}.spans "
            "WHERE name = %s AND kind = %s",
            [name, kind],
        ).fetchall()
        assert found == [("success", True)] * 3, name
    assert connection.execute(f"SELECT DISTINCT status FROM {schema}.runs").fetchall() == [("success",)]


async def test_a_recorded_graph_runs_without_a_server() -> None:
    lonely = record(StateGraph(Answers).add_node("say", lambda said: {}).add_edge(START, "say").compile())
    assert await lonely.ainvoke({"messages": []}) == lonely.invoke({"messages": []})
