"""Moving in from LangGraph's own PostgreSQL saver, and out again."""

from __future__ import annotations

import signal
import threading
from typing import Any

import ormsgpack
import psycopg
import pytest
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from support import FORK, examples, official
from support.cli import pgstate
from support.official import Account, assert_same_answers, fill, official_saver, talk
from support.samples import config_of, exact_tuple, put_values

from langgraph_pgstate import Encryption, LocalMasterKey, PGStateSaver
from langgraph_pgstate.admin.api import Admin
from langgraph_pgstate.codec import frames
from langgraph_pgstate.errors import ConfigurationError, SchemaMissingError
from langgraph_pgstate.threads.types import Progress


class Rot:
    """A cipher that keeps nothing secret, but that nothing reads by accident."""

    def encrypt(self, plaintext: bytes) -> tuple[str, bytes]:
        return "rot", bytes(byte ^ 0x55 for byte in plaintext)

    def decrypt(self, ciphername: str, ciphertext: bytes) -> bytes:
        assert ciphername == "rot"
        return bytes(byte ^ 0x55 for byte in ciphertext)


class Refusing(Rot):
    """A cipher with another key."""

    def decrypt(self, ciphername: str, ciphertext: bytes) -> bytes:
        raise ValueError("MAC check failed")


@pytest.mark.slow
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
    assert all("thread_id must not be empty" in problem.why for problem in report.differences)
    assert assert_same_answers(old, saver, "chat") > 0


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
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
        for _ in range(examples(15)):
            bring()
    finally:
        done.set()
        writer.join()
    bring()


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
def test_an_import_that_is_killed_leaves_whole_checkpoints(
    old: PostgresSaver, saver: PGStateSaver, bring: Any, admin: Admin, dsn: str, schema: str, old_schema: str
) -> None:
    talk(old, "long", 60)
    talk(old, "short", 3)

    def child() -> None:
        with Admin.open(dsn, schema=schema) as mine:
            mine.import_langgraph(dsn, source_schema=old_schema)

    patience = threading.Event()
    for attempt in range(0, 8, 8 // min(8, examples(20))):
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


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
def test_half_an_answer_given_in_both_places_is_a_conflict(old: PostgresSaver, saver: PGStateSaver, bring: Any) -> None:
    fill(old)
    bring()
    official.answer_one(saver, "asking")
    assert bring().conflicts == []
    lost: Any = {"configurable": {"thread_id": "asking", "checkpoint_ns": "", "checkpoint_id": "1f000000-late"}}
    old.put_writes(lost, [("answers", ["late"])], "late")
    assert [problem.thread_id for problem in bring(clean=False).conflicts] == ["asking"]


@pytest.mark.slow
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
    serde = JsonPlusSerializer(allowed_msgpack_modules=[("support.official", "Account")])
    with PGStateSaver.from_conn_string(dsn, schema=schema, serde=serde) as saver:
        old.serde = serde
        assert assert_same_answers(old, saver, "money") == 3
    assert Account.constructed > 0


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


@pytest.mark.slow
def test_what_an_encrypting_serializer_wrote_moves_to_our_encryption(
    old: PostgresSaver, dsn: str, schema: str, old_schema: str, saver: PGStateSaver, connection: psycopg.Connection
) -> None:
    """A wrong key is named; the right one makes plain values, which are stored under data keys."""
    old.serde = EncryptedSerializer(Rot())
    talk(old, "secret", 3)
    encryption = Encryption(LocalMasterKey(bytes(32)))
    with Admin.open(dsn, schema=schema, encryption=encryption) as admin:
        wrong = admin.import_langgraph(dsn, source_schema=old_schema, decrypt_with=EncryptedSerializer(Refusing()))
        assert wrong.checkpoints == 0
        assert {"does not decrypt" in problem.why for problem in wrong.differences} == {True}
        report = admin.import_langgraph(dsn, source_schema=old_schema, decrypt_with=EncryptedSerializer(Rot()))
        assert (report.differences, report.verified > 0) == ([], True)
        assert admin.import_langgraph(dsn, source_schema=old_schema, decrypt_with=old.serde).checkpoints == 0
        assert admin.check(deep=True).problems == []
    with PGStateSaver.from_conn_string(dsn, schema=schema, encryption=encryption) as reader:
        assert_same_answers(old, reader, "secret")


@pytest.mark.slow
def test_the_key_of_encrypted_threads_is_that_of_the_environment(
    old: PostgresSaver, dsn: str, schema: str, old_schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("Crypto")
    monkeypatch.setenv("LANGGRAPH_AES_KEY", "k" * 32)
    old.serde = EncryptedSerializer.from_pycryptodome_aes()
    talk(old, "secret", 2)
    command = ("--dsn", dsn, "--schema", schema, "import-langgraph", "--from", dsn, "--from-schema", old_schema)
    done = pgstate(*command, "--decrypt")
    assert (done.returncode, done.stderr) == (0, "")
    with PGStateSaver.from_conn_string(dsn, schema=schema) as reader:
        assert_same_answers(old, reader, "secret")
    monkeypatch.delenv("LANGGRAPH_AES_KEY")
    assert "LANGGRAPH_AES_KEY environment variable is not set" in " ".join(
        pgstate(*command, "--decrypt").stderr.split()
    )


def test_damage_in_the_source_is_named(
    old: PostgresSaver, bring: Any, connection: psycopg.Connection, old_schema: str
) -> None:
    """A checkpoint that cannot be stored is reported; the others are brought over."""
    config = put_values(old, config_of("t"), {"messages": ["one" * 50]})
    last = put_values(old, config, {"messages": ["one" * 50, "two" * 50]})
    for checkpoint in (config, last):
        old.put_writes(checkpoint, [("messages", "x")], "task")
    broken = config["configurable"]["checkpoint_id"]
    connection.execute(
        f"UPDATE \"{old_schema}\".checkpoints SET checkpoint = checkpoint - 'versions_seen' WHERE checkpoint_id = %s",
        [broken],
    )
    report = bring(clean=False)
    assert (report.checkpoints, report.writes) == (1, 1)
    assert [problem.where.split("'")[1] for problem in report.differences] == [broken]
    assert "versions_seen" in report.differences[0].why
    old.put_writes(last, [("messages", "x")], "t" * 9000)
    report = bring(clean=False)
    assert (report.checkpoints, report.writes, len(report.differences)) == (0, 0, 2)


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


def test_a_thread_unknown_to_the_source_changes_nothing(old: PostgresSaver, saver: PGStateSaver, bring: Any) -> None:
    talk(saver, "ours", 1)
    assert bring(thread_ids=["nobody", "ours"]).checkpoints == 0
    assert len(list(saver.list({"configurable": {"thread_id": "ours"}}))) == 3
