"""Databases whose encoding is not UTF-8, and clients that say another one."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import psycopg
import pytest
from langgraph.checkpoint.base import uuid6
from langgraph.graph import START, MessagesState, StateGraph
from psycopg.conninfo import make_conninfo
from support import APIS, GUARD_SECONDS, open_saver, put_chain

from langgraph_pgstate import PGState, PGStateSaver, Worker
from langgraph_pgstate.errors import ConfigurationError, RunFailedError

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


@pytest.mark.slow
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
        assert [thread.thread_id for thread in state.threads.search(text="plai").items] == ["plain"]
    assert {"content", "plain"} <= threads
    assert is_ascii is (f"id {TEXT}" in threads)
    with psycopg.connect(database, client_encoding="utf8") as looking:
        assert looking.execute("SELECT count(*) FROM pgstate.journal").fetchone() == (0,)


@pytest.mark.slow
def test_a_run_whose_error_the_database_cannot_store_ends_once_and_no_lease_waits_for_a_refused_one(
    database: str, caplog: pytest.LogCaptureFixture
) -> None:
    calls: list[int] = []

    def fail(given: Any) -> None:
        calls.append(1)
        raise ValueError(TEXT)

    failing = StateGraph(dict).add_node("fail", fail).add_edge(START, "fail")
    slow = StateGraph(dict).add_node("slow", lambda given: time.sleep(2)).add_edge(START, "slow")
    with PGState.open(database, guard="lease", lease_ttl=1.0) as state:
        state.setup()
        with Worker(state, {"agent": failing}, poll=0.05, lease_ttl=1.0):
            run = state.runs.enqueue("agent", {}, thread_id="t")
            with pytest.raises(RunFailedError, match="5 €" if "sql_ascii" in database else r"5 \\u20ac"):
                run.wait(GUARD_SECONDS)
        assert calls == [1]
        graph = slow.compile(state.saver)
        with suppress(ConfigurationError):
            graph.invoke({}, {"configurable": {"thread_id": f"id {TEXT}"}})
        graph.invoke({}, {"configurable": {"thread_id": "plain"}})
    assert "leases could not be renewed" not in caplog.text


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


@pytest.mark.slow
@pytest.mark.parametrize("api", APIS)
async def test_lists_and_prunes_work_in_every_encoding(api: type, database: str) -> None:
    """Guard: the cursor of a list's first page is a text that the database's encoding has (`max_text`)."""
    thread: Any = {"configurable": {"thread_id": "t", "checkpoint_ns": ""}}
    async with open_saver(api, database, "pgstate") as saver:
        configs = await put_chain(saver, "t", 3)
        for given in (thread, None):
            assert [item.config async for item in saver.alist(given)] == configs[::-1]
    async with open_saver(api, database, "pgstate", setup=False) as cold:
        # The copy of a checkpoint inherits from its sibling, which this process has not seen.
        found = await cold.aget_tuple(configs[1])
        copied = {**found.checkpoint, "id": str(uuid6())}
        copy = await cold.aput(configs[0], copied, {"source": "fork", "step": 1, "parents": {}}, {})
        assert (await cold.aget_tuple(copy)).checkpoint["channel_values"] == found.checkpoint["channel_values"]
        await cold.aprune(["t"])
        assert [item.config async for item in cold.alist(thread)] == [copy]
    if "sql_ascii" not in database:
        # By default, the client has the database's encoding.
        with psycopg.connect(database, autocommit=True) as own:
            assert [item.config for item in PGStateSaver(own, schema="pgstate").list(None)] == [copy]
    with PGState.open(database) as state:
        assert len(state.threads.tree("t").nodes) == 1
        assert [event.kind for event in state.events.list("t", newest_first=True).items] == ["prune"]
        store: Any = state.memory
        store.put(("notes", "x"), "key", {"text": "hi"})
        assert [item.key for item in store.search(())] == ["key"]
        assert store.list_namespaces() == [("notes", "x")]
        assert [item.key for item in store.browse(namespace=()).items] == ["key"]
