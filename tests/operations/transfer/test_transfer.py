"""Moving in from LangGraph's own PostgreSQL saver, and out again."""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import official
import ormsgpack
import psycopg
import pytest
from langchain_core.messages import HumanMessage
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from official import Account, assert_same_answers, fill, official_saver, talk
from samples import checkpoint_of, config_of, exact_tuple, id_of, put_values
from support import FORK

from langgraph_pgstate import PGState, PGStateSaver
from langgraph_pgstate.admin import Admin
from langgraph_pgstate.codec import frames
from langgraph_pgstate.codec.opaque import OpaqueCodec, join_elements, split_elements
from langgraph_pgstate.db.database import Database
from langgraph_pgstate.db.protocol import Connection
from langgraph_pgstate.errors import ConfigurationError, ConflictError, SchemaMissingError
from langgraph_pgstate.operations.transfer.pgstate import PGStateStore
from langgraph_pgstate.operations.transfer.transfer import Record, Stored
from langgraph_pgstate.sql import langgraph_queries, queries
from langgraph_pgstate.types import Progress, TransferReport


class Rot:
    """A cipher that keeps nothing secret, but that nothing reads by accident."""

    def encrypt(self, plaintext: bytes) -> tuple[str, bytes]:
        return "rot", bytes(byte ^ 0x55 for byte in plaintext)

    def decrypt(self, ciphername: str, ciphertext: bytes) -> bytes:
        assert ciphername == "rot"
        return bytes(byte ^ 0x55 for byte in ciphertext)


@pytest.fixture
def old_schema(schema: str, connection: psycopg.Connection) -> Iterator[str]:
    name = f"{schema}_old"
    yield name
    connection.execute(f'DROP SCHEMA IF EXISTS "{name}" CASCADE')


@pytest.fixture
def old(dsn: str, old_schema: str) -> Iterator[PostgresSaver]:
    """The official saver, set up."""
    with official_saver(dsn, old_schema) as saver:
        yield saver


@pytest.fixture
def admin(dsn: str, schema: str, saver: PGStateSaver) -> Iterator[Admin]:
    with Admin.open(dsn, schema=schema) as admin:
        yield admin


@pytest.fixture
def bring(admin: Admin, dsn: str, old_schema: str) -> Any:
    """Import, and expect nothing wrong unless told otherwise."""

    def bring(*, clean: bool = True, **options: Any) -> TransferReport:
        report = admin.import_langgraph(dsn, source_schema=old_schema, **options)
        if clean:
            assert report.differences == []
            assert report.conflicts == []
        return report

    return bring


def test_every_kind_of_thread_answers_as_before(
    old: PostgresSaver, saver: PGStateSaver, bring: Any, admin: Admin
) -> None:
    threads = fill(old)
    seen: list[Progress] = []
    report = bring(progress=seen.append)
    assert report.threads == len(threads)
    assert [step.thread_id for step in seen] == threads
    assert {step.total for step in seen} == {len(threads)}
    checkpoints = sum(assert_same_answers(old, saver, thread_id) for thread_id in threads)
    assert report.checkpoints == report.verified == checkpoints == seen[-1].checkpoints
    assert admin.check(deep=True).problems == []


def test_a_thread_without_a_name_is_reported_and_the_others_come_along(
    old: PostgresSaver, saver: PGStateSaver, bring: Any
) -> None:
    """LangGraph's saver accepts an empty thread id; ours does not, and must not leave it behind in silence."""
    talk(old, "", 1)
    talk(old, "chat", 1)
    report = bring(clean=False)
    assert {problem.thread_id for problem in report.differences} == {""}
    assert all("thread_id is empty" in problem.why for problem in report.differences)
    assert assert_same_answers(old, saver, "chat") > 0


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


def test_runs_go_on_after_the_move(old: PostgresSaver, saver: PGStateSaver, bring: Any) -> None:
    fill(old)
    bring()
    talk(saver, "chat", 1, start=20)
    config: Any = {"configurable": {"thread_id": "asking"}}
    official.answer_one(saver, "asking")
    official.answer_one(saver, "asking")
    assert sorted(official.asking_graph(saver).get_state(config).values["answers"]) == ["a: yes", "b: yes", "c: yes"]
    official.delta_graph(saver).invoke({"log": ["more"]}, {"configurable": {"thread_id": "delta"}})
    log = official.delta_graph(saver).get_state({"configurable": {"thread_id": "delta"}}).values["log"]
    assert [entry for entry in log if entry.startswith("said")] == [f"said {number}" for number in range(7)]
    assert len(log) == 16


def test_times_and_columns_are_those_of_the_checkpoint(
    old: PostgresSaver, bring: Any, connection: psycopg.Connection, schema: str
) -> None:
    talk(old, "chat", 2)
    bring()
    rows = connection.execute(
        f'SELECT checkpoint_id, created_at, run_id, source, step FROM "{schema}".checkpoints'
    ).fetchall()
    for checkpoint_id, created_at, run_id, source, step in rows:
        found = old.get_tuple(config_of("chat", "", checkpoint_id))
        assert found is not None
        assert found.checkpoint["ts"] == created_at.isoformat()
        assert (run_id, source, step) == tuple(found.metadata[key] for key in ("run_id", "source", "step"))
    thread = connection.execute(f'SELECT user_id, created_at, updated_at FROM "{schema}".threads').fetchone()
    assert thread == ("u1", min(row[1] for row in rows), max(row[1] for row in rows))


def test_storage_is_linear(
    old: PostgresSaver, saver: PGStateSaver, bring: Any, connection: psycopg.Connection, schema: str
) -> None:
    def bytes_of(turns: int) -> int:
        talk(old, f"chat{turns}", turns)
        bring(thread_ids=[f"chat{turns}"])
        row = connection.execute(
            f'SELECT sum(octet_length(data)) FROM "{schema}".segments WHERE thread_id = %s', [f"chat{turns}"]
        ).fetchone()
        assert row is not None
        return int(row[0])

    assert bytes_of(80) < 3 * bytes_of(40)


def test_the_old_application_goes_on_between_two_passes(old: PostgresSaver, saver: PGStateSaver, bring: Any) -> None:
    threads = fill(old)
    first = bring()
    talk(old, "chat", 2, start=30)
    talk(old, "new", 1)
    official.answer_one(old, "asking")
    connection: Any = old.conn
    connection.execute("UPDATE checkpoints SET metadata = metadata || '{\"note\": 1}' WHERE thread_id = 'nested'")
    lost: Any = {"configurable": {"thread_id": "lost", "checkpoint_ns": "", "checkpoint_id": "1f000000-lost"}}
    old.put_writes(lost, [("__interrupt__", "other")], "task", "~path")
    second = bring()
    for thread_id in [*threads, "new"]:
        assert_same_answers(old, saver, thread_id)
    nested = len(list(old.list({"configurable": {"thread_id": "nested"}})))
    assert 0 < second.checkpoints < first.checkpoints
    assert second.checkpoints + second.unchanged == second.verified
    third = bring()
    assert (third.checkpoints, third.writes, third.unchanged) == (0, 0, second.verified)
    assert nested <= second.checkpoints


def test_a_pass_reads_what_the_old_application_is_writing(
    old: PostgresSaver, bring: Any, dsn: str, old_schema: str
) -> None:
    """Verification compares with the same moment that was copied, whatever is written meanwhile."""
    talk(old, "busy", 3)
    done = threading.Event()

    def keep_writing() -> None:
        with official_saver(dsn, old_schema, setup=False) as mine:
            # With a pause, and not without end: each pass has all of it to read.
            for start in range(10, 200):
                if done.wait(0.02):
                    return
                talk(mine, "busy", 1, start=start)

    writer = threading.Thread(target=keep_writing)
    writer.start()
    try:
        for _ in range(15):
            bring()
    finally:
        done.set()
        writer.join()
    bring()


def test_what_only_changed_around_its_values_keeps_them(
    old: PostgresSaver, saver: PGStateSaver, bring: Any, admin: Admin, connection: Any, schema: str, old_schema: str
) -> None:
    """New metadata or pending writes on a checkpoint that was brought over write no value again."""
    talk(old, "chat", 4)
    bring()

    def lists() -> list[tuple[Any, ...]]:
        """Segments that hold messages."""
        rows = connection.execute(f'SELECT segment_id, data FROM "{schema}".segments ORDER BY segment_id').fetchall()
        return [row for row in rows if b"HumanMessage" in frames.unpack(row[1], "")]

    segments = lists()
    connection.execute(f'UPDATE "{old_schema}".checkpoints SET metadata = metadata || \'{{"note": 1}}\'')
    latest = old.get_tuple({"configurable": {"thread_id": "chat"}})
    assert latest is not None
    old.put_writes(latest.config, [("turn", 9)], "late task")
    report = bring()
    assert (report.checkpoints, report.writes) == (12, 1)
    assert lists() == segments
    assert_same_answers(old, saver, "chat")
    assert admin.check(deep=True).problems == []


def test_a_prune_during_an_import_leaves_no_damage(
    old: PostgresSaver, saver: PGStateSaver, bring: Any, admin: Admin
) -> None:
    talk(old, "chat", 30)
    done = threading.Event()

    def keep_pruning() -> None:
        while not done.is_set():
            saver.prune(["chat"])

    pruner = threading.Thread(target=keep_pruning)
    pruner.start()
    try:
        for _ in range(6):
            bring(verify=False)
            assert admin.check().problems == []
            talk(old, "chat", 1, start=40)
    finally:
        done.set()
        pruner.join()
    bring()
    assert_same_answers(old, saver, "chat")
    assert admin.check(deep=True).problems == []


def test_a_portion_is_refused_when_its_parent_went(saver: PGStateSaver, dsn: str, schema: str) -> None:
    """The parent is deleted after the store looked at it and before it writes what builds on it."""
    parent = put_values(saver, config_of("t"), {"messages": [HumanMessage("x" * 3000, id="1")]})
    loaded = saver.get_tuple(parent)
    assert loaded is not None
    head = {key: value for key, value in loaded.checkpoint.items() if key != "channel_values"}
    child = Record(
        "1f1", True, id_of(parent), {**head, "id": "1f1"}, {"step": 1}, stored={"messages": Stored("given", 1)}
    )

    async def build_on(db: Connection, meanwhile: Callable[[], None]) -> None:
        store = PGStateStore(db, queries(schema), OpaqueCodec(), "t")
        assert await store.missing("", [child]) == {}
        meanwhile()
        assert await store.write("", [child], {}) == []

    with Database.open(dsn, schema=schema, pool=False) as database:
        with pytest.raises(ConflictError):
            database.run_once(build_on, lambda: saver.delete_thread("t"))
        assert saver.get_tuple(config_of("t")) is None
        put_values(saver, config_of("t"), {"messages": [HumanMessage("y" * 3000, id="1")]}, id=id_of(parent))
        with pytest.raises(AssertionError):
            # Another value under another version: now the store asks for it.
            database.run_once(build_on, lambda: None)


def test_an_import_that_is_stopped_goes_on_where_it_was(old: PostgresSaver, saver: PGStateSaver, bring: Any) -> None:
    for number in range(6):
        talk(old, f"thread{number}", 1)

    def stop(progress: Progress) -> None:
        if progress.threads == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        bring(progress=stop)
    report = bring()
    assert report.unchanged == report.checkpoints == 9
    for number in range(6):
        assert_same_answers(old, saver, f"thread{number}")


def test_an_import_that_is_killed_leaves_whole_checkpoints(
    old: PostgresSaver, saver: PGStateSaver, bring: Any, admin: Admin, dsn: str, schema: str, old_schema: str
) -> None:
    talk(old, "long", 60)
    talk(old, "short", 3)

    def child() -> None:
        with Admin.open(dsn, schema=schema) as mine:
            mine.import_langgraph(dsn, source_schema=old_schema)

    patience = threading.Event()
    for attempt in range(8):
        process = FORK.Process(target=child, daemon=True)
        process.start()
        patience.wait(0.04 + 0.03 * attempt)
        process.kill()
        process.join()
        assert process.exitcode in (0, -signal.SIGKILL)
        # A conversation may be filled in halfway; the next pass goes on with it.
        assert [one for one in admin.check().problems if "differ" not in one.why] == []
    bring()
    assert admin.check().problems == []
    assert_same_answers(old, saver, "long")
    assert_same_answers(old, saver, "short")


def test_lost_connections_are_replaced(old: PostgresSaver, saver: PGStateSaver, bring: Any, connection: Any) -> None:
    for number in range(8):
        talk(old, f"thread{number}", 1)

    def cut(progress: Progress) -> None:
        if progress.threads in (2, 5):
            connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE pid NOT IN (pg_backend_pid(), %s) AND backend_type = 'client backend'",
                [old.conn.info.backend_pid],  # type: ignore[union-attr]
            )

    assert bring(progress=cut).checkpoints == 24


def test_a_thread_that_went_on_in_both_places_is_left_alone(
    old: PostgresSaver, saver: PGStateSaver, bring: Any
) -> None:
    talk(old, "both", 2)
    talk(old, "ours", 2)
    bring()
    talk(saver, "both", 1, start=10)
    talk(saver, "ours", 1, start=10)
    talk(old, "both", 1, start=20)
    before = [exact_tuple(found) for found in saver.list({"configurable": {"thread_id": "both"}})]
    report = bring(clean=False)
    assert [problem.thread_id for problem in report.conflicts] == ["both"]
    assert "on both sides" in report.conflicts[0].why
    assert (report.checkpoints, report.unchanged, report.differences) == (0, 6, [])
    assert [exact_tuple(found) for found in saver.list({"configurable": {"thread_id": "both"}})] == before

    report = bring(overwrite=True, thread_ids=["both"])
    assert report.checkpoints == 3
    ids = {
        found.config["configurable"]["checkpoint_id"] for found in saver.list({"configurable": {"thread_id": "both"}})
    }
    assert len(ids) == 12
    for found in old.list({"configurable": {"thread_id": "both"}}):
        assert exact_tuple(saver.get_tuple(found.config)) == exact_tuple(found)


def test_half_an_answer_given_in_both_places_is_a_conflict(old: PostgresSaver, saver: PGStateSaver, bring: Any) -> None:
    fill(old)
    bring()
    official.answer_one(saver, "asking")
    assert bring().conflicts == []
    lost: Any = {"configurable": {"thread_id": "asking", "checkpoint_ns": "", "checkpoint_id": "1f000000-late"}}
    old.put_writes(lost, [("answers", ["late"])], "late")
    assert [problem.thread_id for problem in bring(clean=False).conflicts] == ["asking"]


def test_what_the_source_pruned_stays(old: PostgresSaver, saver: PGStateSaver, bring: Any) -> None:
    talk(old, "chat", 4)
    bring()
    old.prune(["chat"], strategy="keep_latest")
    talk(old, "chat", 1, start=10)
    report = bring()
    assert report.checkpoints == 4
    assert len(list(saver.list({"configurable": {"thread_id": "chat"}}))) == 15


def test_types_of_the_application_are_not_built(old: PostgresSaver, dsn: str, schema: str, bring: Any) -> None:
    config: Any = config_of("money")
    for step in range(3):
        accounts = [Account(number) for number in range(step + 1)]
        config = put_values(old, config, {"accounts": accounts, "main": accounts[0]}, step=step)
        old.put_writes(config, [("main", Account(7))], "task")
    Account.constructed = 0
    bring()
    assert Account.constructed == 0
    serde = JsonPlusSerializer(allowed_msgpack_modules=[("official", "Account")])
    with PGStateSaver.from_conn_string(dsn, schema=schema, serde=serde) as saver:
        old.serde = serde
        assert assert_same_answers(old, saver, "money") == 3
    assert Account.constructed > 0


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


def test_an_encrypting_serializer_sees_every_value(
    old: PostgresSaver, dsn: str, schema: str, old_schema: str, saver: PGStateSaver, connection: psycopg.Connection
) -> None:
    serde = EncryptedSerializer(Rot())
    old.serde = serde
    talk(old, "secret", 3)
    with Admin.open(dsn, schema=schema, serde=serde) as admin:
        report = admin.import_langgraph(dsn, source_schema=old_schema)
        assert report.differences == []
        assert admin.check(deep=True).problems == []
    with PGStateSaver.from_conn_string(dsn, schema=schema, serde=serde) as reader:
        assert_same_answers(old, reader, "secret")


def test_damage_in_the_source_is_named(
    old: PostgresSaver, bring: Any, connection: psycopg.Connection, old_schema: str
) -> None:
    """A checkpoint that cannot be stored is reported; the others are brought over."""
    config = put_values(old, config_of("t"), {"messages": ["one" * 50]})
    put_values(old, config, {"messages": ["one" * 50, "two" * 50]})
    broken = config["configurable"]["checkpoint_id"]
    connection.execute(
        f"UPDATE \"{old_schema}\".checkpoints SET checkpoint = checkpoint - 'versions_seen' WHERE checkpoint_id = %s",
        [broken],
    )
    report = bring(clean=False)
    assert report.checkpoints == 1
    assert [problem.where.split("'")[1] for problem in report.differences] == [broken]
    assert "versions_seen" in report.differences[0].why


def test_verification_notices_a_difference(
    old: PostgresSaver, bring: Any, connection: psycopg.Connection, old_schema: str
) -> None:
    talk(old, "chat", 3)
    bring()
    connection.execute(
        f"UPDATE \"{old_schema}\".checkpoint_blobs SET blob = %s WHERE channel = 'profile'",
        [ormsgpack.packb({"name": "changed"})],
    )
    report = bring(clean=False)
    assert report.checkpoints == 0
    assert {problem.why for problem in report.differences} == {"the value of channel 'profile' differs"}
    assert bring(verify=False).verified == 0


def test_there_must_be_something_to_import(admin: Admin, dsn: str, old_schema: str, connection: Any) -> None:
    with pytest.raises(SchemaMissingError):
        admin.import_langgraph(dsn, source_schema=old_schema)
    connection.execute(f'CREATE SCHEMA "{old_schema}"')
    connection.execute(f'CREATE TABLE "{old_schema}".checkpoints (thread_id text, checkpoint jsonb)')
    connection.execute(f'CREATE TABLE "{old_schema}".checkpoint_blobs (thread_id text, channel text)')
    connection.execute(f'CREATE TABLE "{old_schema}".checkpoint_writes (thread_id text, idx integer)')
    with pytest.raises(ConfigurationError, match="shallow"):
        admin.import_langgraph(dsn, source_schema=old_schema)


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


def test_a_damaged_thread_does_not_keep_the_others(
    saver: PGStateSaver, admin: Admin, dsn: str, schema: str, old_schema: str, connection: Any
) -> None:
    for thread_id in ("a", "b", "c"):
        talk(saver, thread_id, 1)
    connection.execute(f"UPDATE \"{schema}\".checkpoints SET state = substr(state, 1, 30) WHERE thread_id = 'b'")
    report = admin.export_langgraph(dsn, target_schema=old_schema)
    assert (report.threads, report.checkpoints) == (3, 6)
    assert {problem.thread_id for problem in report.differences} == {"b"}
    with official_saver(dsn, old_schema, setup=False) as old:
        assert_same_answers(saver, old, "a")
        assert_same_answers(saver, old, "c")


def test_every_query_of_theirs_is_accepted(old: PostgresSaver, old_schema: str, connection: psycopg.Connection) -> None:
    for query in langgraph_queries(old_schema).all.values():
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


def test_a_thread_unknown_to_the_source_changes_nothing(old: PostgresSaver, saver: PGStateSaver, bring: Any) -> None:
    talk(saver, "ours", 1)
    assert bring(thread_ids=["nobody", "ours"]).checkpoints == 0
    assert len(list(saver.list({"configurable": {"thread_id": "ours"}}))) == 3


@pytest.mark.parametrize(
    "value",
    [
        [],
        [1, -1, -33, 200, 70_000, 2**40, -200, -70_000, -(2**40), 1.5, True, None],
        ["", "a" * 31, "b" * 40, "c" * 300, "d" * 70_000, b"e", b"f" * 300, b"g" * 70_000],
        [{}, {"a": [1, {"b": [2]}]}, {str(number): number for number in range(20)}, [[]] * 20, list(range(70_000))],
        [dict.fromkeys(range(70000))],
        [ormsgpack.Ext(1, b"x" * size) for size in (1, 2, 4, 8, 16, 17, 300, 70_000)],
    ],
)
def test_an_array_is_cut_into_its_elements(value: list[Any]) -> None:
    encoded = ormsgpack.packb(value, option=ormsgpack.OPT_NON_STR_KEYS)
    elements = split_elements(encoded)
    assert elements is not None
    assert elements == [ormsgpack.packb(item, option=ormsgpack.OPT_NON_STR_KEYS) for item in value]
    assert join_elements(elements) == encoded
    for size in range(min(len(encoded), 200)):
        assert split_elements(encoded[:size]) is None
    assert split_elements(encoded + b"\0") is None


def test_what_is_no_array_is_not_cut() -> None:
    for value in ({"a": 1}, "text", 7, None, b"bytes"):
        assert split_elements(ormsgpack.packb(value)) is None


def test_an_unversioned_scalar_comes_along(old: PostgresSaver, saver: PGStateSaver, bring: Any) -> None:
    checkpoint: Any = checkpoint_of({"note": "free", "messages": [HumanMessage("x" * 200, id="1")]}, {"messages": "1"})
    config = old.put(config_of("t"), checkpoint, {"source": "input", "step": -1}, {"messages": "1"})
    bring()
    assert exact_tuple(saver.get_tuple(config)) == exact_tuple(old.get_tuple(config))


def test_what_is_brought_over_moves_the_time_along_at_which_its_thread_expires(
    old: PostgresSaver, saver: PGStateSaver, dsn: str, schema: str, bring: Any
) -> None:
    with PGState.open(dsn, schema=schema) as state:
        talk(old, "t", 1)
        bring()
        first = state.threads.set_ttl("t", timedelta(days=30))
        assert first is not None
        # Nothing new: no earlier, either.
        bring()
        found = state.threads.get("t")
        assert found is not None
        assert found.expires_at == first
        talk(old, "t", 1, start=2)
        bring()
        found = state.threads.get("t")
        assert found is not None
        assert found.expires_at == found.updated_at + timedelta(days=30)
        assert found.expires_at > first
