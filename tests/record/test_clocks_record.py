"""What is recorded by processes whose clocks are wrong: times are the database's."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, TypedDict

import psycopg
import pytest
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage
from langgraph.graph import START, StateGraph
from langgraph.graph.message import add_messages
from support import FORK, GUARD_SECONDS, config_of

from langgraph_pgstate import AsyncPGState, PGState
from tests.saver.test_clocks import HOUR, shift_clock

THREAD = config_of("t")
APIS = [PGState, AsyncPGState]


class State(TypedDict):
    messages: Annotated[list[AnyMessage], add_messages]


def graph_of(answer: Any) -> StateGraph[Any, Any, Any, Any]:
    def node(state: State) -> dict[str, Any]:
        if isinstance(answer, Exception):
            raise answer
        return {"messages": answer}

    graph = StateGraph(State)
    graph.add_node("node", node)
    graph.add_edge(START, "node")
    return graph


def in_process(seconds: int, api: type, dsn: str, schema: str, answer: Any, given: Any) -> None:
    """Run a recorded graph once, in a new process with a clock of its own."""
    config: Any = {**THREAD, "metadata": {"run_id": "r"}}

    def child() -> None:
        shift_clock(seconds)
        if api is PGState:
            with PGState.open(dsn, schema=schema) as state:
                graph = state.record(graph_of(answer).compile(checkpointer=state.saver))
                with suppress(RuntimeError):
                    graph.invoke(given, config)
            return

        async def run() -> None:
            async with AsyncPGState.open(dsn, schema=schema) as state:
                graph = state.record(graph_of(answer).compile(checkpointer=state.saver))
                with suppress(RuntimeError):
                    await graph.ainvoke(given, config)

        asyncio.run(run())

    process = FORK.Process(target=child, daemon=True)
    process.start()
    process.join(GUARD_SECONDS)
    assert process.exitcode == 0


@pytest.mark.parametrize("seconds", [-HOUR, HOUR])
@pytest.mark.parametrize("api", APIS)
def test_the_first_run_of_a_process_is_dated_by_the_database(
    api: type, seconds: int, dsn: str, schema: str, connection: psycopg.Connection
) -> None:
    in_process(seconds, api, dsn, schema, [AIMessage("hello", id="a1")], {"messages": [HumanMessage("hi", id="h1")]})
    for table, column in (("runs", "started_at"), ("spans", "started_at"), ("events", "created_at")):
        for (at,) in connection.execute(f"SELECT {column} FROM {schema}.{table}").fetchall():
            assert abs(datetime.now(UTC) - at) < timedelta(minutes=10), table


@pytest.mark.parametrize("api", APIS)
def test_a_run_is_taken_up_by_a_process_whose_clock_is_behind(
    api: type, dsn: str, schema: str, connection: psycopg.Connection
) -> None:
    """Its second attempt is later than the first, whatever that process's clock says."""
    in_process(0, api, dsn, schema, RuntimeError("no"), {"messages": [HumanMessage("hi", id="h1")]})
    in_process(-HOUR, api, dsn, schema, [AIMessage("yes", id="a1")], None)
    assert connection.execute(f"SELECT status, attempt FROM {schema}.runs").fetchall() == [("success", 2)]
