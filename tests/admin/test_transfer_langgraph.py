"""The tables of LangGraph's own saver: read as they are, and written as it writes them."""

from __future__ import annotations

import json
from typing import Any

import ormsgpack
import psycopg
import pytest
from langchain_core.messages import HumanMessage
from langgraph.checkpoint.postgres import PostgresSaver
from support import official
from support.official import assert_same_answers, fill, official_saver, talk
from support.samples import checkpoint_of, config_of, exact_tuple, put_values

from langgraph_pgstate import PGStateSaver
from langgraph_pgstate.admin.api import Admin
from langgraph_pgstate.errors import ConfigurationError
from langgraph_pgstate.schema.queries import langgraph_queries


@pytest.mark.slow
def test_writes_without_a_checkpoint_come_along(
    old: PostgresSaver, bring: Any, connection: psycopg.Connection, schema: str, old_schema: str
) -> None:
    fill(old)
    report = bring()
    count = connection.execute(f'SELECT count(*) FROM "{old_schema}".checkpoint_writes').fetchone()
    assert count is not None
    assert report.writes == count[0]
    rows = connection.execute(f"SELECT idx, task_path FROM \"{schema}\".writes WHERE thread_id = 'lost' ORDER BY idx")
    assert rows.fetchall() == [(-3, "~path"), (0, "~path")]


@pytest.mark.parametrize(
    "damage",
    [
        "checkpoint = '[]'",
        "metadata = '\"x\"'",
        "checkpoint = jsonb_set(checkpoint, '{channel_values}', '7')",
        "checkpoint = jsonb_set(checkpoint, '{channel_versions}', 'null')",
        "checkpoint = jsonb_set(checkpoint, '{channel_versions,messages}', '{}')",
        "checkpoint = jsonb_set(checkpoint, '{versions_seen}', '{\"a\": 1e30}')",
    ],
)
def test_a_row_that_is_no_checkpoint_does_not_keep_the_others(
    damage: str, old: PostgresSaver, bring: Any, connection: psycopg.Connection, old_schema: str
) -> None:
    for thread_id in ("a", "b"):
        put_values(old, config_of(thread_id), {"messages": ["x"]})
    connection.execute(f"UPDATE \"{old_schema}\".checkpoints SET {damage} WHERE thread_id = 'a'".encode())
    report = bring(clean=False)
    assert report.checkpoints == 1
    assert {problem.thread_id for problem in report.differences} == {"a"}


def test_checkpoints_of_early_versions(
    old: PostgresSaver, saver: PGStateSaver, bring: Any, connection: psycopg.Connection, old_schema: str
) -> None:
    """Format 1: pending sends among the parent's writes, versions that are numbers, JSON, empty blobs, no task_path."""
    connection.execute(f'ALTER TABLE "{old_schema}".checkpoint_writes DROP COLUMN task_path')
    for number in (1, 2):
        checkpoint = {
            "v": 1,
            "id": f"1ef00000-{number}",
            "ts": "2024-05-04T06:32:42.235444+00:00",
            "channel_versions": {"messages": number, "gone": 2, "text": 1, "big": 1},
            "versions_seen": {"node": {"messages": 1}},
            "pending_sends": [],
        }
        metadata = {
            "source": "loop",
            "step": number,
            "writes": {"node": {"messages": "x"}},
            "exact": 12345678901234567890123,
        }
        connection.execute(
            f'INSERT INTO "{old_schema}".checkpoints '
            "(thread_id, checkpoint_ns, checkpoint_id, parent_checkpoint_id, checkpoint, metadata) "
            "VALUES ('early', '', %s, %s, %s, %s)",
            [checkpoint["id"], "1ef00000-1" if number == 2 else None, json.dumps(checkpoint), json.dumps(metadata)],
        )
    blobs: list[tuple[str, str, str, bytes | None]] = [
        ("messages", "1", "json", b'[{"plain": "json"}]'),
        ("messages", "2", "msgpack", ormsgpack.packb([{"role": "user", "content": "y" * 100}, {"role": "ai"}])),
        ("gone", "2", "empty", None),
        ("text", "1", "msgpack", ormsgpack.packb("a scalar in a blob")),
        ("big", "1", "bytes", b"z" * 5000),
    ]
    for channel, version, type_, data in blobs:
        connection.execute(
            f"INSERT INTO \"{old_schema}\".checkpoint_blobs VALUES ('early', '', %s, %s, %s, %s)",
            [channel, version, type_, data],
        )
    connection.execute(
        f'INSERT INTO "{old_schema}".checkpoint_writes '
        "VALUES ('early', '', '1ef00000-1', 'task', 0, '__pregel_tasks', 'json', %s)",
        [b'{"node": "next", "arg": 1}'],
    )
    assert bring().checkpoints == 2
    connection.execute(f"ALTER TABLE \"{old_schema}\".checkpoint_writes ADD COLUMN task_path text NOT NULL DEFAULT ''")
    found = saver.get_tuple(config_of("early"))
    assert found is not None
    assert found.metadata["exact"] == 12345678901234567890123  # type: ignore[typeddict-item]
    assert found.metadata["writes"] == {"node": {"messages": "x"}}  # type: ignore[typeddict-item]
    assert "gone" not in found.checkpoint["channel_values"]
    assert found.checkpoint["channel_values"]["__pregel_tasks"] == [{"node": "next", "arg": 1}]
    assert_same_answers(old, saver, "early")


@pytest.mark.slow
def test_the_way_out(saver: PGStateSaver, admin: Admin, dsn: str, old_schema: str, connection: Any) -> None:
    """What our saver stored itself is exported, and the official one answers the same and goes on."""
    threads = fill(saver)
    talk(saver, "chat", 1, start=40)
    report = admin.export_langgraph(dsn, target_schema=old_schema)
    assert report.differences == []
    with official_saver(dsn, old_schema, setup=False) as old:
        versions = connection.execute(f'SELECT count(*), max(v) FROM "{old_schema}".checkpoint_migrations').fetchone()
        assert versions == (len(old.MIGRATIONS), len(old.MIGRATIONS) - 1)
        old.setup()
        checkpoints = sum(assert_same_answers(saver, old, thread_id) for thread_id in threads)
        assert report.checkpoints == report.verified == checkpoints
        again = admin.export_langgraph(dsn, target_schema=old_schema)
        assert (again.checkpoints, again.writes, again.unchanged) == (0, 0, checkpoints)
        official.answer_one(old, "asking")
        with pytest.raises(NotImplementedError, match="delta"):
            old.prune(["delta"])
        official.delta_graph(old).invoke({"log": ["more"]}, {"configurable": {"thread_id": "delta"}})
        talk(old, "chat", 1, start=50)


def test_the_shallow_saver_is_not_written_over(admin: Admin, dsn: str, old_schema: str, connection: Any) -> None:
    connection.execute(f'CREATE SCHEMA "{old_schema}"')
    connection.execute(f'CREATE TABLE "{old_schema}".checkpoints (thread_id text, checkpoint jsonb)')
    with pytest.raises(ConfigurationError, match="shallow"):
        admin.export_langgraph(dsn, target_schema=old_schema)


def test_every_query_of_theirs_is_accepted(
    old: PostgresSaver, admin: Admin, dsn: str, old_schema: str, connection: psycopg.Connection
) -> None:
    admin.export_langgraph_memory(dsn, target_schema=old_schema)
    for query in langgraph_queries(old_schema).all.values():
        if b".store_vectors" in query.text:
            # A table of stores with an index, which the tests of its transfer have.
            continue
        connection.execute(b"PREPARE tried AS " + query.text)
        connection.execute("DEALLOCATE tried")


def test_the_tables_are_those_of_the_official_setup(
    old: PostgresSaver, admin: Admin, dsn: str, schema: str, old_schema: str, connection: Any
) -> None:
    other = f"{schema}_made"
    try:
        admin.export_langgraph(dsn, target_schema=other)

        def described(name: str) -> Any:
            columns = connection.execute(
                "SELECT table_name, column_name, data_type, is_nullable, column_default "
                "FROM information_schema.columns WHERE table_schema = %s ORDER BY 1, 2",
                [name],
            ).fetchall()
            indexes = connection.execute(
                "SELECT replace(indexdef, %s, '') FROM pg_indexes WHERE schemaname = %s ORDER BY 1", [f"{name}.", name]
            ).fetchall()
            return columns, indexes

        assert described(other) == described(old_schema)
    finally:
        connection.execute(f'DROP SCHEMA IF EXISTS "{other}" CASCADE')


@pytest.mark.slow
def test_there_and_back(
    old: PostgresSaver, bring: Any, admin: Admin, dsn: str, schema: str, old_schema: str, connection: Any
) -> None:
    """Every row of the official tables is the same again."""
    fill(old)
    bring()
    back = f"{schema}_back"
    try:
        assert admin.export_langgraph(dsn, target_schema=back).differences == []
        for table, left_out in {"checkpoints": "type", "checkpoint_blobs": "", "checkpoint_writes": ""}.items():
            rows = [
                {
                    repr({key: value for key, value in row.items() if key != left_out})
                    for (row,) in connection.execute(f'SELECT to_jsonb(t) FROM "{name}".{table} t')
                }
                for name in (old_schema, back)
            ]
            # Blobs that no checkpoint refers to have no way to be known.
            assert rows[1] <= rows[0]
            assert rows[1] == rows[0] or table == "checkpoint_blobs"
    finally:
        connection.execute(f'DROP SCHEMA IF EXISTS "{back}" CASCADE')


def test_values_jsonb_cannot_hold_leave_as_blobs(saver: PGStateSaver, admin: Admin, dsn: str, old_schema: str) -> None:
    values = {"nul": "a\0b", "nan": float("nan"), "large": 1e22, "zero": -0.0, "int": 2**70, "flag": True, "none": None}
    config = put_values(saver, config_of("odd"), values)
    assert admin.export_langgraph(dsn, target_schema=old_schema).differences == []
    with official_saver(dsn, old_schema, setup=False) as old:
        assert exact_tuple(old.get_tuple(config)) == exact_tuple(saver.get_tuple(config))


def test_what_cannot_leave_is_named(saver: PGStateSaver, admin: Admin, dsn: str, old_schema: str) -> None:
    put_values(saver, config_of("odd"), {"text": "lone \ud800 surrogate", "list": ["fine" * 40]})
    report = admin.export_langgraph(dsn, target_schema=old_schema)
    assert [problem.why for problem in report.differences] == ["the value of channel 'text' differs"]


def test_an_unversioned_scalar_comes_along(old: PostgresSaver, saver: PGStateSaver, bring: Any) -> None:
    checkpoint: Any = checkpoint_of({"note": "free", "messages": [HumanMessage("x" * 200, id="1")]}, {"messages": "1"})
    config = old.put(config_of("t"), checkpoint, {"source": "input", "step": -1}, {"messages": "1"})
    bring()
    assert exact_tuple(saver.get_tuple(config)) == exact_tuple(old.get_tuple(config))
