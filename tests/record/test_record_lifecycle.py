"""The record follows its thread: whose it is, and what deleting, rolling back, copying and pruning take along."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from langchain_core.messages import HumanMessage
from support import APIS, config_of, move_journal, open_saver, put_arguments

from langgraph_pgstate import PGStateSaver, ThreadKeys
from langgraph_pgstate.errors import ConfigurationError
from langgraph_pgstate.record.message_hook import MessageHook


def human(*ids: str) -> list[Any]:
    return [HumanMessage(f"text of {id}", id=id) for id in ids]


def message_hook() -> MessageHook:
    return MessageHook()


@pytest.fixture
def kept(dsn: str, schema: str, saver: PGStateSaver) -> Iterator[PGStateSaver]:
    """A blocking saver that keeps messages."""
    with PGStateSaver.from_conn_string(dsn, schema=schema, hook=message_hook()) as other:
        yield other


def put(saver: PGStateSaver, config: Any, step: int, *ids: str, run: str = "", root: Any = None, **others: Any) -> Any:
    """A checkpoint with some messages, of a run."""
    config, checkpoint, metadata, versions = put_arguments(config, step, messages=human(*ids), **others)
    if run:
        metadata["run_id"] = run
    if root:
        metadata["parents"] = {"": root["configurable"]["checkpoint_id"]}
    return saver.put(config, checkpoint, metadata, versions)


def messages(connection: psycopg.Connection, schema: str, thread_id: str = "t") -> list[str]:
    move_journal(connection, schema)
    rows = connection.execute(
        f"SELECT message_id FROM {schema}.messages WHERE thread_id = %s ORDER BY checkpoint_id, position", [thread_id]
    ).fetchall()
    return [row[0] for row in rows]


def test_whose_a_thread_is(saver: PGStateSaver, connection: psycopg.Connection) -> None:
    config = {"configurable": {**config_of("t")["configurable"], "tenant_id": "acme", "user_id": 7}}
    saver.put(*put_arguments(config, 0))
    row = connection.execute(f"SELECT tenant_id, user_id, agent FROM {saver.schema}.threads")
    assert row.fetchone() == ("acme", "7", None)


@pytest.mark.parametrize("api", APIS)
async def test_the_keys_that_say_whose_it_is_can_be_named(
    api: type, dsn: str, schema: str, connection: psycopg.Connection
) -> None:
    keys = ThreadKeys(tenant=("org", "company"), user=("email",), agent=("bot",))
    async with open_saver(api, dsn, schema, thread_keys=keys) as saver:
        own = {"company": "acme", "email": "a@b", "user_id": "no"}
        config = {"configurable": {**config_of("t")["configurable"], **own}, "metadata": {"bot": "helper"}}
        config = await saver.aput(*put_arguments(config, 0))
        row = connection.execute(f"SELECT tenant_id, user_id, agent FROM {schema}.threads")
        assert row.fetchone() == ("acme", "a@b", "helper")
        clone = saver.with_allowlist([("somewhere", "Something")])
        other = {"configurable": {**config_of("u")["configurable"], "org": "other"}}
        await clone.aput(*put_arguments(other, 0))
        assert connection.execute(f"SELECT tenant_id FROM {schema}.threads ORDER BY 1 DESC").fetchone() == ("other",)


def test_a_put_that_does_not_say_whose_it_is_leaves_it(saver: PGStateSaver, connection: psycopg.Connection) -> None:
    config = {"configurable": {**config_of("t")["configurable"], "tenant_id": "acme"}}
    saver.put(*put_arguments(config, 0))
    saver.put(*put_arguments(config_of("t"), 1))
    assert connection.execute(f"SELECT tenant_id FROM {saver.schema}.threads").fetchone() == ("acme",)


@pytest.mark.parametrize("keys", ["user_id", (1,)])
def test_keys_of_another_kind_are_refused(keys: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"ThreadKeys\.user"):
        ThreadKeys(user=keys)


def test_a_prune_keeps_what_surviving_branches_said(
    kept: PGStateSaver, schema: str, connection: psycopg.Connection
) -> None:
    """The other branch was left behind: what only it said goes; what both had stays."""
    first = put(kept, config_of("t"), 0, "a")
    left = put(kept, first, 1, "a", "left")
    put(kept, left, 2, "a", "left", "more")
    right = put(kept, first, 1, "a", "right")
    right = put(kept, right, 2, "a", "right", "end")
    assert kept.prune(["t"], dry_run=True).checkpoints == 4
    assert sorted(messages(connection, schema)) == ["a", "end", "left", "more", "right"]
    assert kept.prune(["t"]).checkpoints == 4
    assert messages(connection, schema) == ["a", "right", "end"]
    put(kept, right, 3, "right", "end", "go on")
    assert messages(connection, schema) == ["a", "right", "end", "a", "go on"]


def test_a_prune_keeps_what_subgraphs_of_surviving_branches_said(
    kept: PGStateSaver, schema: str, connection: psycopg.Connection
) -> None:
    first = put(kept, config_of("t"), 0, "a")
    put(kept, config_of("t", "child:1"), 0, "inner", root=first)
    left = put(kept, first, 1, "a", "left")
    put(kept, config_of("t", "child:2"), 0, "lost", root=left)
    put(kept, first, 1, "a", "right")
    kept.prune(["t"])
    assert sorted(messages(connection, schema)) == ["a", "inner", "right"]


def test_a_prune_is_an_event(kept: PGStateSaver, schema: str, connection: psycopg.Connection) -> None:
    config = put(kept, config_of("t"), 0, "a")
    put(kept, config, 1, "a", "b")
    kept.prune(["t"], dry_run=True)
    for _ in range(2):
        kept.prune(["t"])
    found = connection.execute(f"SELECT kind, payload, event_id FROM {schema}.events").fetchall()
    assert [(kind, payload) for kind, payload, _ in found] == [("prune", {"checkpoints": 1, "writes": 0})]
    assert found[0][2].startswith("20")


def test_an_owner_too_long_to_be_indexed_is_refused(saver: PGStateSaver, connection: psycopg.Connection) -> None:
    config = {"configurable": {"thread_id": "é" * 1200, "checkpoint_ns": "", "user_id": "x" * 500}}
    with pytest.raises(ConfigurationError, match="user_id"):
        saver.put(*put_arguments(config, 0))
    assert connection.execute(f"SELECT count(*) FROM {saver.schema}.threads").fetchone() == (0,)
