"""Threads deleted, rolled back and copied, with all that is recorded of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from support import APIS, config_of, move_journal, open_saver, put_arguments

from langgraph_pgstate import PGState, PGStateSaver
from tests.record.test_record_lifecycle import message_hook, messages, put


@pytest.fixture
def kept(dsn: str, schema: str, saver: PGStateSaver) -> Iterator[PGStateSaver]:
    """A blocking saver that keeps messages."""
    with PGStateSaver.from_conn_string(dsn, schema=schema, hook=message_hook()) as other:
        yield other


RECORD = ("projections", "runs", "spans", "tool_executions", "messages", "events", "feedback")


def record(connection: psycopg.Connection, schema: str, thread_id: str, run_id: str, checkpoint_id: str) -> None:
    """Rows in every table of the record, as the recorder and the ledger would write them."""
    known = {"schema": schema, "thread": thread_id, "run": run_id, "checkpoint": checkpoint_id}
    connection.execute(
        """
        INSERT INTO {schema}.runs (thread_id, run_id, status, started_at)
            VALUES ('{thread}', '{run}', 'success', now());
        INSERT INTO {schema}.feedback (thread_id, run_id, feedback_id, source, name, score)
            VALUES ('{thread}', '{run}', 'f', 'human', 'score', 1);
        INSERT INTO {schema}.spans (thread_id, run_id, span_id, started_at, kind, name, status, semconv_version)
            VALUES ('{thread}', '{run}', 's', now(), 'node', 'n', 'success', '1');
        INSERT INTO {schema}.tool_executions (thread_id, idempotency_key, tool, status, run_id, arguments, result)
            VALUES ('{thread}', 'key-{run}', 'pay', 'success', '{run}', '{{"amount": 3}}', '\\x01');
        INSERT INTO {schema}.events (thread_id, event_id, kind, run_id) VALUES ('{thread}', '{run}', 'status', '{run}');
        INSERT INTO {schema}.projections (thread_id, checkpoint_id, state)
            VALUES ('{thread}', '{checkpoint}', '{{"a": 1}}') ON CONFLICT (thread_id) DO UPDATE
            SET checkpoint_id = excluded.checkpoint_id;
        """.format(**known).encode()
    )


def counts(connection: psycopg.Connection, schema: str, thread_id: str, where: str = "true") -> dict[str, int]:
    move_journal(connection, schema)
    found = {}
    for table in RECORD:
        condition = "true" if where != "true" and table == "projections" else where
        row = connection.execute(
            f"SELECT count(*) FROM {schema}.{table} WHERE thread_id = %s AND {condition}", [thread_id]
        ).fetchone()
        found[table] = row[0] if row else 0
    return found


@pytest.mark.parametrize("api", APIS)
async def test_a_deleted_thread_leaves_no_row_in_any_table(
    api: type, dsn: str, schema: str, connection: psycopg.Connection
) -> None:
    async with open_saver(api, dsn, schema, hook=message_hook()) as saver:
        for thread_id in ("t", "u"):
            config = await saver.aput(*put_arguments(config_of(thread_id), 0))
            await saver.aput_writes(config, [("messages", "x")], "task")
            record(connection, schema, thread_id, "r", config["configurable"]["checkpoint_id"])
        await saver.adelete_thread("t")
        tables = connection.execute(
            "SELECT DISTINCT c.relname FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid "
            "WHERE c.relnamespace = %s::regnamespace AND c.relkind IN ('r', 'p') AND a.attname = 'thread_id'",
            [schema],
        ).fetchall()
        assert len(tables) >= 10
        for (table,) in tables:
            rows = connection.execute(f"SELECT thread_id FROM {schema}.{table}").fetchall()
            assert {row[0] for row in rows} <= {"u"}, table
        assert min(counts(connection, schema, "u").values()) == 1
        await saver.aprune(["u"], strategy="delete")
        assert max(counts(connection, schema, "u").values()) == 0


def test_a_run_rolled_back_takes_its_record_along(
    kept: PGStateSaver, schema: str, connection: psycopg.Connection
) -> None:
    first = put(kept, config_of("t"), 0, "a", run="r1")
    second = put(kept, first, 1, "a", "b", run="r2")
    for run in ("r1", "r2"):
        record(connection, schema, "t", run, second["configurable"]["checkpoint_id"])
    kept.delete_for_runs(["r2"])
    # What its tools did to the world is not taken back, so it is not forgotten.
    assert counts(connection, schema, "t", "run_id = 'r2'") == {**dict.fromkeys(RECORD, 0), "tool_executions": 1}
    assert counts(connection, schema, "t", "run_id = 'r1'") == {**dict.fromkeys(RECORD, 1), "projections": 0}
    put(kept, first, 1, "a", "c", run="r3")
    assert messages(connection, schema) == ["a", "c"]


def test_a_run_that_left_no_checkpoint_is_found(
    kept: PGStateSaver, schema: str, connection: psycopg.Connection
) -> None:
    """The Agent Server asks twice, the first time while the run still writes."""
    first = put(kept, config_of("t"), 0, "a", run="r1")
    record(connection, schema, "t", "late", first["configurable"]["checkpoint_id"])
    kept.delete_for_runs(["late"])
    left = {"projections": 1, "tool_executions": 1}
    assert counts(connection, schema, "t", "run_id = 'late'") == {**dict.fromkeys(RECORD, 0), **left}
    assert messages(connection, schema) == ["a"]


def test_a_copy_has_messages_projection_and_results_but_no_runs(
    kept: PGStateSaver, schema: str, connection: psycopg.Connection
) -> None:
    config = {"configurable": {**config_of("t")["configurable"], "tenant_id": "acme"}}
    config = put(kept, config, 0, "a", "b", run="r")
    record(connection, schema, "t", "r", config["configurable"]["checkpoint_id"])
    for _ in range(2):
        kept.copy_thread("t", "copy")
    assert counts(connection, schema, "copy") == {
        "projections": 1,
        "runs": 0,
        "spans": 0,
        "tool_executions": 1,
        "messages": 2,
        "events": 0,
        "feedback": 0,
    }
    whole = """SELECT to_jsonb(m) - ARRAY['thread_id', 'origin_thread_id', 'is_copy'] FROM {}.{} m
        WHERE thread_id = %s ORDER BY 1"""
    for table in ("messages", "projections", "tool_executions"):
        one, other = (connection.execute(whole.format(schema, table), [id]).fetchall() for id in ("t", "copy"))
        assert one == other
    origin = f"SELECT origin_thread_id, is_copy FROM {schema}.tool_executions ORDER BY thread_id"
    assert connection.execute(origin).fetchall() == [("t", True), (None, False)]
    found = connection.execute(f"SELECT tenant_id, status FROM {schema}.threads WHERE thread_id = 'copy'")
    assert found.fetchone() == ("acme", "idle")
    kept.delete_thread("t")
    put(kept, {"configurable": {**config["configurable"], "thread_id": "copy"}}, 1, "b", "c")
    assert messages(connection, schema, "copy") == ["a", "b", "a", "c"]


def stored(connection: psycopg.Connection, schema: str, thread_id: str) -> list[Any]:
    """What a thread has of checkpoints, pending writes, messages and segments."""
    return [
        connection.execute(
            f"SELECT to_jsonb(r) - 'thread_id' FROM {schema}.{table} r WHERE thread_id = %s ORDER BY 1", [thread_id]
        ).fetchall()
        for table in ("checkpoints", "writes", "messages", "segments")
    ]


@pytest.mark.parametrize("source_is_left", [True, False])
def test_what_was_copied_or_forked_stays_when_its_run_is_deleted(
    kept: PGStateSaver, schema: str, connection: psycopg.Connection, source_is_left: bool
) -> None:
    config = put(kept, config_of("t"), 0, "a", "b", run="r")
    put(kept, config_of("t", "sub"), 0, "c", run="r", root=config)
    kept.put_writes({**config, "metadata": {"run_id": "r"}}, [("messages", "x")], "task")
    PGState(connection, schema=schema).threads.fork("t", config["configurable"]["checkpoint_id"], "fork")
    kept.copy_thread("t", "copy")
    kept.copy_thread("copy", "copy of the copy")
    move_journal(connection, schema)
    names = ("fork", "copy", "copy of the copy")
    before = {name: stored(connection, schema, name) for name in names}
    assert all(rows[0] and rows[1] and rows[2] for rows in before.values())
    if not source_is_left:
        kept.delete_thread("t")
    kept.delete_for_runs(["r"])
    assert stored(connection, schema, "t") == [[], [], [], []]
    for name in names:
        assert stored(connection, schema, name) == before[name], name
        kept.delete_for_runs(["r"], thread_id=name)
        assert stored(connection, schema, name) == before[name], name


def test_what_a_run_writes_on_a_copy_is_its_own(
    kept: PGStateSaver, schema: str, connection: psycopg.Connection
) -> None:
    config = put(kept, config_of("t"), 0, "a", run="r")
    kept.copy_thread("t", "copy")
    before = stored(connection, schema, "copy")
    copied = {"configurable": {**config["configurable"], "thread_id": "copy"}}
    kept.put_writes({**copied, "metadata": {"run_id": "r"}}, [("messages", "x")], "task")
    put(kept, copied, 1, "a", "b", run="r")
    move_journal(connection, schema)
    kept.delete_for_runs(["r"], thread_id="copy")
    assert stored(connection, schema, "copy")[:2] == before[:2]
    assert messages(connection, schema) == ["a"]


def test_a_run_is_deleted_in_one_thread_alone_if_that_is_named(
    kept: PGStateSaver, schema: str, connection: psycopg.Connection
) -> None:
    for thread_id in ("t", "u"):
        put(kept, config_of(thread_id), 0, "a", run="r")
    kept.delete_for_runs(["r"], thread_id="t")
    assert [len(stored(connection, schema, name)[0]) for name in ("t", "u")] == [0, 1]
    kept.delete_for_runs(["r"])
    assert stored(connection, schema, "u")[0] == []
