"""Pending writes that come before their checkpoint."""

from __future__ import annotations

from datetime import timedelta

import psycopg
import pytest
from langgraph.checkpoint.serde.types import TASKS
from langgraph.types import Send
from support import APIS, open_saver, put_arguments

from langgraph_pgstate import PGState, PGStateSaver
from tests.threads.test_orphans import REMOVALS, THREAD, Rows


@pytest.fixture
def rows(connection: psycopg.Connection, schema: str) -> Rows:
    return Rows(connection, schema)


@pytest.mark.parametrize("remove", REMOVALS)
@pytest.mark.parametrize("api", APIS)
async def test_writes_that_came_early_stay(
    remove: str, api: type, dsn: str, schema: str, rows: Rows, connection: psycopg.Connection
) -> None:
    """For a day; and, however old, while a living run or a lease may bring their checkpoint, or it is there."""
    async with open_saver(api, dsn, schema) as saver:
        config, checkpoint, metadata, versions = put_arguments(THREAD, 0)
        early = {"configurable": {**THREAD["configurable"], "checkpoint_id": checkpoint["id"]}}
        await saver.aput_writes(early, [("messages", "early")], "task")
        rows.age(timedelta(hours=23))
        assert REMOVALS[remove](dsn, schema) == 0
        rows.age()
        with PGState.open(dsn, schema=schema) as state, state.leases.hold("t"):
            assert REMOVALS[remove](dsn, schema) == 0
        connection.execute(
            f"INSERT INTO {schema}.runs (thread_id, run_id, status, started_at, alive_until, holder_id) "
            "VALUES ('t', 'r', 'running', now(), now() + interval '1 minute', 'elsewhere')"
        )
        assert REMOVALS[remove](dsn, schema) == 0
        connection.execute(f"UPDATE {schema}.runs SET alive_until = now() - interval '1 minute'")
        await saver.aput(config, checkpoint, metadata, versions)
        assert REMOVALS[remove](dsn, schema) == 0
        found = await saver.aget_tuple(early)
        assert found.pending_writes == [("task", "messages", "early")]


def test_writes_of_another_task_or_thread_use_up_no_numbers(saver: PGStateSaver) -> None:
    config = saver.put(*put_arguments(THREAD, 0))
    saver.put_writes(config, [("a", 1)], "one")
    saver.put_writes(config, [("a", 2), ("b", 2)], "two")
    saver.copy_thread("t", "twin")
    twin = {"configurable": {**config["configurable"], "thread_id": "twin"}}
    saver.put_writes(twin, [("a", 1), ("b", 3)], "one")
    saver.put_writes(config, [("a", 1), ("b", 1)], "one")
    found = saver.get_tuple(config)
    assert found is not None
    assert sorted(found.pending_writes or ()) == [("one", "a", 1), ("one", "b", 1), ("two", "a", 2), ("two", "b", 2)]


def test_sends_of_an_old_format_whose_parent_is_gone_stay(
    dsn: str, schema: str, rows: Rows, connection: psycopg.Connection
) -> None:
    """They are pending at the child."""
    with PGStateSaver.from_conn_string(dsn, schema=schema) as saver:
        saver.setup()
        parent = saver.put(*put_arguments(THREAD, 0))
        saver.put_writes(parent, [(TASKS, Send("node", 1))], "task")
        config, checkpoint, metadata, versions = put_arguments(parent, 1)
        saver.put(config, {**checkpoint, "v": 3}, metadata, versions)
        connection.execute(
            f"DELETE FROM {schema}.checkpoints WHERE checkpoint_id = %s", [parent["configurable"]["checkpoint_id"]]
        )
        rows.age()
        for remove in REMOVALS.values():
            assert remove(dsn, schema) == 0
        found = saver.get_tuple(THREAD)
        assert found is not None
        assert found.checkpoint["channel_values"][TASKS] == [Send("node", 1)]
