"""What a suspicious reader tried against the ledger's promises."""

from __future__ import annotations

import asyncio
from typing import Any

import psycopg
import pytest
from support_ledger import LEDGERS, Bench, ask, open_bench, thread, tool_of

from langgraph_pgstate.operations.tools import tool_executions
from langgraph_pgstate.sql import queries
from langgraph_pgstate.threads import AsyncThreads, Threads
from tests.tools.test_ledger import CHARGE, Till, leave_behind, rows


async def past_of(graph: Any) -> Any:
    """The checkpoint from which the first tool was called."""
    states = [state async for state in graph.aget_state_history(thread())]
    return [state for state in states if state.next == ("tools",)][-1].config


# Cancelled at the wrong moment


async def test_one_cancelled_while_it_takes_over_has_not_begun(
    dsn: str, schema: str, connection: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    till = Till()
    async with open_bench(LEDGERS[1], dsn, schema) as bench:
        graph = bench.agent([tool_of(bench, "charge", till.charge)], CHARGE)
        await bench.invoke(graph, ask(), thread())
        leave_behind(connection, schema)
        await bench.ledger.settle("t", "call_1", "retry")
        taken = asyncio.Event()
        take_over = tool_executions.take_over

        async def slow(*args: Any, **kwargs: Any) -> int:
            await take_over(*args, **kwargs)
            taken.set()
            await asyncio.sleep(60)
            return 0

        past = await past_of(graph)
        with monkeypatch.context() as patch:
            patch.setattr(tool_executions, "take_over", slow)
            running = asyncio.create_task(graph.ainvoke(None, past))
            await taken.wait()
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
        assert rows(connection, schema, "status") == [("pending",)]
        await graph.ainvoke(None, past)
        assert till.charged == ["o1", "o1"]


async def divide(bench: Bench, how: str) -> None:
    """Make thread `u` of `t`."""
    if how == "fork":
        part = (AsyncThreads if bench.is_async else Threads)(bench.saver._database, queries(bench.saver.schema))
        await bench.do(part.fork, "t", to="u")
    elif bench.is_async:
        await bench.saver.acopy_thread("t", "u")
    else:
        await bench.do(bench.saver.copy_thread, "t", "u")
