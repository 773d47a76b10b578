"""Transactional tools: with a connection in a node, and refused without their ledger."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
from support.ledger import Bench, ask, thread

from langgraph_pgstate.errors import ConfigurationError
from tests.tools.test_ledger_more import booking, one_node, with_table


async def test_a_function_in_a_node_can_be_transactional(bench: Bench, connection: psycopg.Connection) -> None:
    schema = bench.saver.schema
    with_table(connection, schema)
    book: Any = booking(bench)
    once = bench.ledger.once(book.coroutine if bench.is_async else book.func)
    graph = one_node(bench, lambda state: iter([once("7"), once(room="8")]))
    await bench.invoke(graph, ask(), thread())
    assert connection.execute(f"SELECT room FROM {schema}.bookings ORDER BY room").fetchall() == [("7",), ("8",)]
    arguments = connection.execute(f"SELECT arguments FROM {schema}.tool_executions ORDER BY started_at").fetchall()
    assert arguments == [({"room": "7"},), ({"room": "8"},)]


async def test_a_transactional_tool_without_its_ledger_is_refused(bench: Bench) -> None:
    with pytest.raises(ConfigurationError, match="without its ledger"):
        await (
            booking(bench).ainvoke({"room": "7"}) if bench.is_async else bench.do(booking(bench).invoke, {"room": "7"})
        )
    with pytest.raises(ConfigurationError, match="connection"):
        bench.ledger.transactional(len.__class__)
