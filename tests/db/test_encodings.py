"""Databases whose encoding is not UTF-8, and clients that say another one."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from langgraph.graph import START, MessagesState, StateGraph
from psycopg.conninfo import make_conninfo

from langgraph_pgstate import PGState, PGStateSaver
from langgraph_pgstate.errors import ConfigurationError

TEXT = "5 € 日本 é"


@pytest.fixture(
    params=["SQL_ASCII", *(pytest.param(name, marks=pytest.mark.slow) for name in ("EUC_JP", "WIN1252")), "LATIN1"]
)
def database(request: pytest.FixtureRequest, dsn: str, connection: psycopg.Connection) -> Iterator[str]:
    """The connection string of a database of an encoding."""
    name = f"encoded_{request.param.lower()}_{os.getpid()}"
    connection.execute(f"CREATE DATABASE {name} ENCODING '{request.param}' TEMPLATE template0 LOCALE 'C'".encode())
    yield make_conninfo(dsn, dbname=name)
    connection.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())


def graph_of(state: PGState) -> Any:
    def answer(given: MessagesState) -> Any:
        return {"messages": [("ai", given["messages"][-1].content)]}

    return state.record(StateGraph(MessagesState).add_node(answer).add_edge(START, "answer").compile(state.saver))


def ask(graph: Any, thread_id: str, text: str, **metadata: str) -> str:
    config = {"configurable": {"thread_id": thread_id}, "metadata": metadata}
    return str(graph.invoke({"messages": [("user", text)]}, config)["messages"][-1].content)


def test_what_a_database_cannot_store_is_refused_by_name_and_hinders_no_other_thread(database: str) -> None:
    is_ascii = "sql_ascii" in database
    with PGState.open(database) as state:
        state.setup()
        graph = graph_of(state)
        assert ask(graph, "content", TEXT) == TEXT
        for thread_id, metadata in ((f"id {TEXT}", {}), ("metadata", {"topic": TEXT}), ("user", {"user_id": TEXT})):
            if is_ascii:
                assert ask(graph, thread_id, "hi", **metadata) == "hi"
            else:
                with pytest.raises(ConfigurationError, match="encoding is UTF8"):
                    ask(graph, thread_id, "hi", **metadata)
        assert ask(graph, "plain", "hi") == "hi"
        assert [run.status for run in state.runs.list(thread_id="plain").items] == ["success"]
        states = [graph.get_state({"configurable": {"thread_id": name}}) for name in ("content", "plain")]
        assert [one.values["messages"][-1].content for one in states] == [TEXT, "hi"]
        threads = {thread.thread_id for thread in state.threads.list().items}
    assert {"content", "plain"} <= threads
    assert is_ascii is (f"id {TEXT}" in threads)
    with psycopg.connect(database, client_encoding="utf8") as looking:
        assert looking.execute("SELECT count(*) FROM pgstate.journal").fetchone() == (0,)


@pytest.mark.parametrize("way", ["environment", "dsn"])
def test_a_client_encoding_that_is_named_elsewhere_is_not_used(
    dsn: str, schema: str, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if way == "environment":
        monkeypatch.setenv("PGCLIENTENCODING", "LATIN1")
    else:
        dsn = make_conninfo(dsn, client_encoding="LATIN1")
    with PGState.open(dsn, schema=schema) as state:
        assert ask(graph_of(state), f"id {TEXT}", TEXT) == TEXT
        assert state.threads.get(f"id {TEXT}") is not None


def test_a_callers_connection_without_an_encoding_is_refused_by_name(dsn: str, schema: str) -> None:
    with psycopg.connect(dsn, client_encoding="SQL_ASCII", autocommit=True) as connection:
        saver = PGStateSaver(connection, schema=schema)
        with pytest.raises(ConfigurationError, match="client_encoding must be UTF8"):
            saver.get_tuple({"configurable": {"thread_id": "t"}})
