"""Rotation: of the master key, which wraps data keys again, and of data keys, beside an application that goes on."""

from __future__ import annotations

import os
import signal
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from langchain_core.messages import HumanMessage
from support import FORK, GUARD_SECONDS, config_of, put_arguments, wait_until
from support.cli import pgstate

from langgraph_pgstate import Encryption, LocalMasterKey, PGState, PGStateSaver
from langgraph_pgstate.admin.api import Admin
from langgraph_pgstate.encryption import keys as key_module
from langgraph_pgstate.errors import ConfigurationError, KeyUnavailableError, NotEncryptedError
from langgraph_pgstate.schema import resealing

MASTER = LocalMasterKey(bytes(range(32)))
NEWER = LocalMasterKey(bytes([7] * 32))
SHORT = timedelta(seconds=1)
USERS = ("anna", "bert", "carl")


LOST = "DELETE FROM {}.data_keys WHERE scope = 'thread:t0'"
PLAIN = """UPDATE {}.checkpoints SET metadata = '{{"step": 7, "secret": 1}}' WHERE thread_id = 't0'"""


def put_all(saver: PGStateSaver, count: int, first: int = 0) -> None:
    """Threads of several users, with segments, small and large values, writes and metadata."""
    for number in range(first, first + count):
        config = config_of(f"t{number}")
        config["configurable"]["user_id"] = USERS[number % len(USERS)]
        config["metadata"] = {"note": f"metadata {number}"}
        for step in range(3):
            config = saver.put(
                *put_arguments(config, step, messages=[f"message {n}" for n in range(20 * step)], big="x" * 9000)
            )
            saver.put_writes(config, [("messages", ["written"])], f"task-{step}")


def read_all(dsn: str, schema: str, encryption: Encryption, count: int) -> list[Any]:
    with PGStateSaver.from_conn_string(dsn, schema=schema, encryption=encryption) as saver:
        return [list(saver.list(config_of(f"t{number}"))) for number in range(count)]


def keys_in_use(dsn: str, schema: str) -> set[str]:
    """The ids of the data keys under which anything is encrypted."""
    found = set()
    with psycopg.connect(dsn, autocommit=True) as connection:
        for table, column in (("checkpoints", "state"), ("segments", "data"), ("writes", "data")):
            rows = connection.execute(f'SELECT DISTINCT substr({column}, 5, 8) FROM "{schema}".{table}').fetchall()
            assert rows, table
            found |= {id.hex() for (id,) in rows}
    return found


def states_of_keys(dsn: str, schema: str) -> dict[str, list[str]]:
    """The data keys of each scope: `current`, `replaced` or `retired`."""
    found: dict[str, list[str]] = {}
    with psycopg.connect(dsn, autocommit=True) as connection:
        for scope, *marks in connection.execute(
            f'SELECT scope, is_current, retired_at IS NULL FROM "{schema}".data_keys ORDER BY scope, is_current'
        ).fetchall():
            found.setdefault(scope, []).append("current" if marks[0] else "replaced" if marks[1] else "retired")
    return found


def check(dsn: str, schema: str, encryption: Encryption) -> None:
    with Admin.open(dsn, schema=schema, encryption=encryption) as admin:
        assert admin.check(deep=True).problems == []


@pytest.mark.slow
def test_data_keys_are_rotated(dsn: str, schema: str) -> None:
    """All that older keys encrypt is encrypted under newer ones, which are retired then; nothing else changes."""
    encryption = Encryption(MASTER, scope="user", cache_for=SHORT)
    with PGStateSaver.from_conn_string(dsn, schema=schema, encryption=encryption) as saver:
        put_all(saver, 6)
    before, old = read_all(dsn, schema, encryption, 6), keys_in_use(dsn, schema)
    reached = []
    with Admin.open(dsn, schema=schema, encryption=encryption) as admin:
        report = admin.rotate_keys(progress=reached.append)
    assert (report.keys, report.retired, report.left, report.problems) == (3, 3, 0, [])
    assert report.values > 0
    assert any(one.rows for one in reached if one.table)
    assert any(one.waits for one in reached)
    assert len(old) == 3
    assert old & keys_in_use(dsn, schema) == set()
    assert states_of_keys(dsn, schema) == {f"user:{user}": ["retired", "current"] for user in USERS}
    assert read_all(dsn, schema, Encryption(MASTER, scope="user"), 6) == before
    check(dsn, schema, encryption)


@pytest.mark.slow
def test_one_scope_is_rotated_alone(dsn: str, schema: str) -> None:
    encryption = Encryption(MASTER, scope="user", cache_for=SHORT)
    with PGStateSaver.from_conn_string(dsn, schema=schema, encryption=encryption) as saver:
        put_all(saver, 3)
    with Admin.open(dsn, schema=schema, encryption=encryption) as admin:
        assert admin.rotate_keys(scope="user:bert").retired == 1
    assert states_of_keys(dsn, schema) == {
        "user:anna": ["current"],
        "user:bert": ["retired", "current"],
        "user:carl": ["current"],
    }


def work(dsn: str, schema: str, ends: Any, steps: Any) -> None:
    """Put and get until told to stop; raises if something is not read as it was stored."""
    encryption = Encryption(MASTER, scope="user", cache_for=SHORT)
    with PGStateSaver.from_conn_string(dsn, schema=schema, pool=2, encryption=encryption) as saver:
        config, said = config_of("busy"), list[str]()
        config["configurable"]["user_id"] = "anna"
        for step in range(1_000_000):
            said.append(f"number {step}")
            config = saver.put(*put_arguments(config, step, messages=[*said[-50:]]))
            found = saver.get_tuple(config)
            assert found is not None
            assert found.checkpoint["channel_values"]["messages"] == said[-50:]
            assert saver.get_tuple(config_of(f"t{step % 6}")) is not None
            steps.value = step
            if ends.is_set():
                return


@pytest.mark.slow
def test_a_rotation_is_killed_and_resumed_beside_an_application(
    dsn: str, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process puts and gets meanwhile, which has the old keys in memory: what it writes is found, too."""
    encryption = Encryption(MASTER, scope="user", cache_for=SHORT)
    with PGStateSaver.from_conn_string(dsn, schema=schema, encryption=encryption) as saver:
        put_all(saver, 6)
    before, old = read_all(dsn, schema, encryption, 6), keys_in_use(dsn, schema)
    ends, steps = FORK.Event(), FORK.Value("i", -1)
    application = FORK.Process(target=work, args=(dsn, schema, ends, steps), daemon=True)
    application.start()
    wait_until(lambda: steps.value > 3, "the application works")

    def rotate() -> None:
        # As many transactions as rows.
        monkeypatch.setattr(resealing, "_RUN_BYTES", 1)
        with Admin.open(dsn, schema=schema, encryption=Encryption(MASTER, scope="user", cache_for=SHORT)) as admin:
            admin.rotate_keys(progress=lambda reached: os.kill(os.getpid(), signal.SIGKILL))

    killed = FORK.Process(target=rotate, daemon=True)
    killed.start()
    killed.join(GUARD_SECONDS)
    assert killed.exitcode == -signal.SIGKILL
    half = states_of_keys(dsn, schema)
    assert half == {f"user:{user}": ["replaced", "current"] for user in USERS}
    check(dsn, schema, encryption)
    with Admin.open(dsn, schema=schema, encryption=Encryption(MASTER, scope="user", cache_for=SHORT)) as admin:
        report = admin.rotate_keys()
    assert (report.keys, report.retired, report.problems) == (0, 3, [])
    reached = steps.value
    wait_until(lambda: steps.value > reached + 3, "the application goes on")
    ends.set()
    application.join(GUARD_SECONDS)
    assert application.exitcode == 0
    assert old & keys_in_use(dsn, schema) == set()
    assert read_all(dsn, schema, encryption, 6) == before
    check(dsn, schema, encryption)


def test_a_rotation_that_stopped_between_two_pages_of_keys_goes_on_with_the_rest(
    dsn: str, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The service of the master key failed after the keys of two users."""
    encryption = Encryption(MASTER, scope="user", cache_for=timedelta(hours=1))
    with PGStateSaver.from_conn_string(dsn, schema=schema, encryption=encryption) as saver:
        put_all(saver, 3)
    wrap, pending = LocalMasterKey.wrap, [1, 2]

    def fail_later(self: LocalMasterKey, *args: Any) -> bytes:
        if not pending:
            raise ConnectionError("no route to the service")
        pending.pop()
        return wrap(self, *args)

    monkeypatch.setattr(key_module.replace_keys, "__defaults__", (None, 2))
    with Admin.open(dsn, schema=schema, encryption=encryption) as admin:
        with monkeypatch.context() as failing:
            failing.setattr(LocalMasterKey, "wrap", fail_later)
            with pytest.raises(KeyUnavailableError):
                admin.rotate_keys(wait=False)
        assert len(states_of_keys(dsn, schema)["user:carl"]) == 1
        assert admin.rotate_keys(wait=False).keys == 1
        assert admin.rotate_keys(wait=False).keys == 0
    assert states_of_keys(dsn, schema) == {f"user:{user}": ["replaced", "current"] for user in USERS}


def test_a_scope_is_rotated_although_the_rotation_of_another_has_not_ended(dsn: str, schema: str) -> None:
    encryption = Encryption(MASTER, scope="user", cache_for=timedelta(hours=1))
    with PGStateSaver.from_conn_string(dsn, schema=schema, encryption=encryption) as saver:
        put_all(saver, 3)
    with Admin.open(dsn, schema=schema, encryption=encryption) as admin:
        for user in ("anna", "bert"):
            assert admin.rotate_keys(scope=f"user:{user}", wait=False).keys == 1
            assert admin.rotate_keys(scope=f"user:{user}", wait=False).keys == 0
    assert [len(states) for states in states_of_keys(dsn, schema).values()] == [2, 2, 1]


def test_old_keys_are_kept_while_other_processes_may_use_them(dsn: str, schema: str) -> None:
    """Guard: the first pass ends before a process with the old key in memory writes under it."""
    slow = Encryption(MASTER, cache_for=timedelta(hours=1))
    with PGStateSaver.from_conn_string(dsn, schema=schema, encryption=slow) as saver:
        put_all(saver, 2)
        with Admin.open(dsn, schema=schema, encryption=slow) as admin:
            report = admin.rotate_keys(wait=False)
            assert (report.keys, report.retired, report.left) == (1, 0, 1)
            put_all(saver, 1, first=5)
            assert len(keys_in_use(dsn, schema)) == 2
            assert admin.rotate_keys(wait=False).keys == 0
            assert len(keys_in_use(dsn, schema)) == 1
        assert saver.get_tuple(config_of("t5")) is not None


@pytest.mark.slow
def test_a_damaged_value_keeps_its_key(dsn: str, schema: str, connection: psycopg.Connection) -> None:
    """It stops nothing else, also not the next rotation of other scopes, and is named until it is deleted."""
    encryption = Encryption(MASTER, scope="user", cache_for=SHORT)
    with PGStateSaver.from_conn_string(dsn, schema=schema, encryption=encryption) as saver:
        put_all(saver, 2)
    connection.execute(
        f"""UPDATE "{schema}".segments SET data = substr(data, 1, 20) || '\\x00'::bytea WHERE thread_id = 't0'"""
    )
    with Admin.open(dsn, schema=schema, encryption=encryption) as admin:
        report = admin.rotate_keys()
        assert (report.keys, report.retired, report.left) == (2, 1, 1)
        assert {problem.thread_id for problem in report.problems} == {"t0"}
        assert all("segments.data" in problem.where for problem in report.problems)
        assert len(keys_in_use(dsn, schema)) == 3
        report = admin.rotate_keys()
        assert (report.keys, report.retired, report.left) == (1, 1, 1)
        assert report.problems
        with PGStateSaver.from_conn_string(dsn, schema=schema, encryption=encryption) as saver:
            saver.delete_thread("t0")
        report = admin.rotate_keys(scope="user:anna")
        assert (report.keys, report.retired, report.left, report.problems) == (0, 1, 0, [])


@pytest.mark.parametrize("damage", [LOST, PLAIN])
def test_content_under_a_lost_key_or_under_none_stops_no_check_and_no_export(
    damage: str, dsn: str, schema: str, connection: psycopg.Connection
) -> None:
    encryption = Encryption(MASTER, scope="thread", cache_for=SHORT)
    with PGStateSaver.from_conn_string(dsn, schema=schema, encryption=encryption) as saver:
        put_all(saver, 2)
    connection.execute(damage.format(f'"{schema}"').encode())
    with Admin.open(dsn, schema=schema, encryption=encryption) as admin:
        report = admin.check()
        exported = admin.export_langgraph(dsn, target_schema=f"{schema}_theirs")
    connection.execute(f'DROP SCHEMA "{schema}_theirs" CASCADE'.encode())
    assert [one.thread_id for one in exported.differences] == ["t0"]
    assert exported.threads == report.threads == 2
    assert report.problems
    assert all("'t0'" in str(problem) for problem in report.problems), report.problems


def test_recorded_messages_of_states_under_a_lost_key_stop_no_check_and_no_backfill(
    dsn: str, schema: str, connection: psycopg.Connection
) -> None:
    encryption = Encryption(MASTER, scope="thread", cache_for=SHORT)
    with PGState.open(dsn, schema=schema, encryption=encryption) as state:
        for name in ("t0", "t1"):
            state.saver.put(*put_arguments(config_of(name), 1, messages=[HumanMessage("said", id="m")]))
        state.flush()
    connection.execute(LOST.format(f'"{schema}"').encode())
    with Admin.open(dsn, schema=schema, encryption=encryption) as admin:
        report = admin.check()
    assert report.threads == 2
    assert {one.thread_id for one in report.problems} == {"t0"}
    with PGState.open(dsn, schema=schema, encryption=encryption) as state:
        filled = state.backfill()
    assert (filled.threads, {one.thread_id for one in filled.problems}) == (2, {"t0"})


def test_what_is_plain_is_encrypted(dsn: str, schema: str) -> None:
    with PGStateSaver.from_conn_string(dsn, schema=schema) as saver:
        put_all(saver, 4)
        before = [list(saver.list(config_of(f"t{number}"))) for number in range(4)]
    strict = Encryption(MASTER, scope="user")
    with (
        Admin.open(dsn, schema=schema, encryption=strict) as admin,
        pytest.raises(ConfigurationError, match="accept_plain"),
    ):
        admin.encrypt()
    with pytest.raises(NotEncryptedError):
        read_all(dsn, schema, strict, 4)
    moving = Encryption(MASTER, scope="user", accept_plain=True)
    with Admin.open(dsn, schema=schema, encryption=moving) as admin:
        assert admin.encrypt().values > 12
        assert admin.encrypt().values == 0
    assert read_all(dsn, schema, strict, 4) == before
    check(dsn, schema, strict)


def test_a_new_master_wraps_keys_beside_the_application(dsn: str, schema: str) -> None:
    """No other table is touched; keys that are in memory are used on; a call that was stopped is continued."""
    old = Encryption(MASTER, scope="thread")
    with PGStateSaver.from_conn_string(dsn, schema=schema, encryption=old) as saver:
        put_all(saver, 12)
        before = read_all(dsn, schema, old, 12)
        both = Encryption([NEWER, MASTER], scope="thread")

        class Stopped(Exception):
            pass

        def stop(done: int) -> None:
            raise Stopped

        with Admin.open(dsn, schema=schema, encryption=both) as admin, pytest.MonkeyPatch.context() as patch:
            patch.setattr(key_module.rewrap, "__defaults__", (5,))
            with pytest.raises(Stopped):
                admin.rewrap_keys(progress=stop)
            assert {one.master_id: one.current for one in admin.data_keys()} == {NEWER.id: 5, MASTER.id: 7}
            assert admin.rewrap_keys() == 7
            assert admin.rewrap_keys() == 0
            # The service has a new version of the same key.
            assert admin.rewrap_keys(every=True) == 12
            assert admin.check(deep=True).problems == []
        assert saver.get_tuple(config_of("t0")) is not None
    assert read_all(dsn, schema, Encryption(NEWER, scope="thread"), 12) == before


@pytest.mark.slow
def test_the_command(dsn: str, schema: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGSTATE_TEST_KEY", "00" * 32)
    monkeypatch.setenv("PGSTATE_ENCRYPTION_KEYS", "env:PGSTATE_TEST_KEY")
    monkeypatch.setenv("PGSTATE_ENCRYPTION_SEARCH", "words")
    with PGStateSaver.from_conn_string(dsn, schema=schema) as saver:
        put_all(saver, 2)
    where = ("--dsn", dsn, "--schema", schema, "encryption")
    for arguments, shown in (
        (("encrypt",), "encrypted"),
        (("rotate", "--no-wait"), "made 1 data key, retired 0; 1 are not retired yet"),
        (("rewrap", "--every"), "wrapped 2 data keys again"),
        (("words",), "looked at 0 rows, added digests of words to 0 rows"),
        (("status",), "local:"),
    ):
        done = pgstate(*where, *arguments)
        assert (done.returncode, done.stderr) == (0, "")
        assert shown in " ".join(done.stdout.split())
    assert "--every requires rewrap" in pgstate(*where, "status", "--every").stderr
