"""Reading of one checkpoint by its id, or of the latest."""

from __future__ import annotations

import os
from typing import Any

import psycopg
from langgraph.checkpoint.serde.types import TASKS
from langgraph.types import Send
from support import put_arguments
from support.samples import config_of, forget, messages, put_values

from langgraph_pgstate import AsyncPGStateSaver, PGStateSaver
from langgraph_pgstate.arguments import address_of
from langgraph_pgstate.checkpoints.getting import get_tuple
from langgraph_pgstate.codec.values import ValueCodec
from langgraph_pgstate.db.adapters import BlockingConnection, run_blocking
from langgraph_pgstate.schema.queries import queries


def test_the_row_is_that_of_the_given_id_and_else_the_newest(
    saver: PGStateSaver, schema: str, connection: psycopg.Connection
) -> None:
    """The newest id comes with the row of another checkpoint; it is not taken for its own."""
    first = put_values(saver, config_of(), {"n": 1})
    last = put_values(saver, first, {"n": 2})
    db, codec = BlockingConnection(connection), ValueCodec(None)
    for given, expected in ((first, first), (last, last), (config_of(), last)):
        found = run_blocking(get_tuple(db, queries(schema), codec, address_of(given)))
        assert found is not None
        assert found[0].address == address_of(expected)
        assert not found[0].is_cut
    connection.execute(f"DELETE FROM {schema}.checkpoints WHERE parent_checkpoint_id IS NULL")
    for given in (last, config_of()):
        found = run_blocking(get_tuple(db, queries(schema), codec, address_of(given)))
        assert found is not None
        assert found[0].is_cut
    assert run_blocking(get_tuple(db, queries(schema), codec, address_of(first))) is None


async def test_the_newest_ones_of_several_threads_are_those_of_each(
    saver: PGStateSaver, async_saver: AsyncPGStateSaver, schema: str, connection: psycopg.Connection
) -> None:
    """Also with segments, pending writes, subgraphs, a parent that was pruned, and a format with its sends there."""
    for thread in ("long", "cut", "old"):
        parent = put_values(saver, config_of(thread), {"messages": messages(0, 40)}, step=0)
        saver.put_writes(parent, [(TASKS, Send("node", 1))], "task")
        if thread == "old":
            given, checkpoint, metadata, versions = put_arguments(parent, 1)
            saver.put(given, {**checkpoint, "v": 3}, metadata, versions)
            continue
        last = put_values(saver, parent, {"messages": messages(0, 50), "count": 1}, step=1)
        saver.put_writes(last, [("count", 2), ("count", 3)], "task")
        inner: Any = {"configurable": {"thread_id": thread, "checkpoint_ns": "inner"}}
        put_values(saver, inner, {"count": 7})
    connection.execute(
        f"DELETE FROM {schema}.checkpoints c WHERE thread_id = 'cut' AND parent_checkpoint_id IS NULL"
        " AND checkpoint_ns = ''"
    )
    put_values(saver, config_of("alone"), {"count": 1})
    threads = ["long", "none", "cut", "old", "alone", "long"]
    expected = {id: found for id in threads if (found := saver.get_tuple(config_of(id))) is not None}
    assert len(expected) == 4
    assert expected["old"].checkpoint["channel_values"][TASKS] == [Send("node", 1)]
    forget(saver)
    latest = await async_saver.read_latest(threads)
    assert not latest.left
    assert {id: await async_saver.load_latest(latest, id) for id in [*latest.found]} == expected
    assert await async_saver.read_latest([]) == ({}, [])


async def test_the_newest_ones_are_read_up_to_a_number_of_bytes(
    saver: PGStateSaver, async_saver: AsyncPGStateSaver
) -> None:
    """Whether they are in the state, in segments or in pending writes; and none stays in the cache."""
    for thread in ("state", "writes", "last"):
        config = put_values(saver, config_of(thread), {"text": os.urandom(700_000).hex() if thread == "state" else ""})
        if thread == "writes":
            saver.put_writes(config, [("text", os.urandom(700_000).hex())], "task")
    latest = await async_saver.read_latest(["state", "writes", "last"])
    assert ([*latest.found], latest.left) == (["state", "writes"], ["last"])
    loaded = await async_saver.load_latest(latest, "state")
    assert loaded == saver.get_tuple(config_of("state"))
    assert [*latest.found] == ["writes"]
    assert async_saver._saver_cache.cache.cached(address_of(config_of("state"))) is None
