"""The scope of a data key: whose key encrypts what, from the first row of a thread on."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
from langgraph.graph import END, START, MessagesState, StateGraph
from support import APIS, config_of, open_saver, put_arguments

from langgraph_pgstate import Encryption, LocalMasterKey, PGState
from langgraph_pgstate.encryption.cipher import key_id_at
from langgraph_pgstate.encryption.columns import CONTENTS, SEALED_KEY
from langgraph_pgstate.worker import Worker

MASTER = LocalMasterKey(bytes(range(32)))


def scopes_of(connection: psycopg.Connection, schema: str) -> dict[str, set[str]]:
    """By column, the scopes of the data keys under which its values are encrypted."""
    keys = dict(connection.execute(f'SELECT key_id, scope FROM "{schema}".data_keys').fetchall())
    found: dict[str, set[str]] = {}
    for name, content in CONTENTS.items():
        table, _, column = name.partition(".")
        if content.kind in ("words", "digest"):
            continue
        value = f"{column} ->> '{SEALED_KEY}'" if content.kind == "object" else column
        value = f"{value} #>> '{{}}'" if content.kind == "json" else value
        for (one,) in connection.execute(f'SELECT {value} FROM "{schema}".{table}').fetchall():  # type: ignore[arg-type]
            if one is not None and (id := key_id_at(one, is_bytes=content.kind == "bytes")) is not None:
                found.setdefault(name, set()).add(keys[id])
    return found


def graph() -> Any:
    builder = StateGraph(MessagesState)
    builder.add_node("say", lambda state: {"messages": [("ai", "Hello.")]})
    builder.add_edge(START, "say")
    builder.add_edge("say", END)
    return builder


def test_a_thread_is_its_owners_from_its_first_row_on(dsn: str, schema: str, connection: psycopg.Connection) -> None:
    """Guard: whoever inserts a thread's row notes its owner, because nobody else can read the row yet."""
    with PGState.open(dsn, schema=schema, encryption=Encryption(MASTER, scope="user")) as state:
        state.threads.create("made", user_id="anna", title="a title", metadata={"note": "a note"})
        agent = state.record(graph().compile(checkpointer=state.saver))
        for thread_id in ("made", "recorded"):
            agent.invoke({"messages": [("user", "Hello.")]}, config_of(thread_id) | {"metadata": {"user_id": "anna"}})
        config: Any = {"configurable": {"user_id": "anna"}}
        state.runs.enqueue("agent", {"messages": [("user", "Hello.")]}, thread_id="queued", config=config)
        Worker(state, {"agent": graph()}).run_until_idle()
        state.flush()
        state.maintain()
    found = scopes_of(connection, schema)
    assert found.keys() >= {"threads.title", "threads.metadata", "checkpoints.state", "runs.input", "spans.output"}
    assert {name: scopes for name, scopes in found.items() if scopes != {"user:anna"}} == {}


@pytest.mark.parametrize("api", APIS)
async def test_an_owner_that_is_named_later_is_not_left_out(
    api: type, dsn: str, schema: str, connection: psycopg.Connection
) -> None:
    """Guard: a thread that had no owner when its row was read gets the one that a config names."""
    encryption = Encryption(MASTER, scope="user")
    async with open_saver(api, dsn, schema, setup=False, encryption=encryption) as saver:
        nobodys = await saver.aput(*put_arguments(config_of("t"), 0))
        nobodys["configurable"]["user_id"] = "anna"
        await saver.aput(*put_arguments(nobodys, 1))
    rows = connection.execute(f'SELECT state FROM "{schema}".checkpoints ORDER BY checkpoint_id').fetchall()
    scopes = dict(connection.execute(f'SELECT key_id, scope FROM "{schema}".data_keys').fetchall())
    assert [scopes[row[0][4:12].hex()] for row in rows] == ["", "user:anna"]
