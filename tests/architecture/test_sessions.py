"""Sessions that tests use again are as new, and those that are not in order are not used again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from support import run_children

LEFT = {
    "SET application_name = 'left'": "SELECT current_setting('application_name')",
    "SET ROLE pg_read_all_data": "SELECT current_user = session_user",
    "CREATE TEMP TABLE left_over (number int)": "SELECT to_regclass('left_over')",
    "LISTEN left_over": "SELECT count(*) FROM pg_listening_channels()",
    "PREPARE left_over AS SELECT 1": "SELECT count(*) FROM pg_prepared_statements",
    "SELECT pg_advisory_lock(7)": "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'",
}


def connect(dsn: str) -> psycopg.Connection:
    """A connection that shares its session with no other test: none has its timeout."""
    return psycopg.connect(dsn, autocommit=True, connect_timeout=12345)


async def test_a_session_that_was_closed_is_as_new(dsn: str) -> None:
    with connect(dsn) as first:
        pid = first.info.backend_pid
        before = [first.execute(look).fetchone() for look in LEFT.values()]
        for statement in LEFT:
            first.execute(statement)
        assert [first.execute(look).fetchone() for look in LEFT.values()] != before
    assert first.closed
    with pytest.raises(psycopg.OperationalError):
        first.execute("SELECT 1")
    async with await psycopg.AsyncConnection.connect(dsn, connect_timeout=12345) as second:
        assert second.info.backend_pid == pid
        assert not second.autocommit
        assert [await (await second.execute(look)).fetchone() for look in LEFT.values()] == before


@pytest.mark.parametrize(
    "spoil",
    [
        lambda connection: connection.execute("BEGIN"),
        lambda connection: connection.pgconn.finish(),
        lambda connection: connection.pgconn.send_query(b"SELECT 1"),
    ],
    ids=["transaction", "finished", "active"],
)
def test_a_session_in_use_ends_with_its_connection(spoil: Callable[[psycopg.Connection], object], dsn: str) -> None:
    one = connect(dsn)
    pid = one.info.backend_pid
    spoil(one)
    one.close()
    with connect(dsn) as two:
        assert two.info.backend_pid != pid


def test_a_session_that_was_ended_while_it_waited_is_not_used(dsn: str, connection: psycopg.Connection) -> None:
    with connect(dsn) as one:
        pid = one.info.backend_pid
    connection.execute("SELECT pg_terminate_backend(%s, 60000)", [pid])
    with connect(dsn) as two:
        assert two.execute("SELECT 1").fetchone() == (1,)


def test_a_forked_child_uses_none_of_its_parents_sessions(dsn: str) -> None:
    with connect(dsn) as one:
        pid = one.info.backend_pid

    def child() -> None:
        with connect(dsn) as mine:
            assert mine.info.backend_pid != pid

    assert run_children(child, [()]) == [""]
    with connect(dsn) as again:
        assert again.info.backend_pid == pid


def test_sessions_with_a_name_are_not_kept(dsn: str) -> None:
    """Tests look for them by it."""
    with psycopg.connect(psycopg.conninfo.make_conninfo(dsn, application_name="named")) as named:
        pid = named.info.backend_pid
    with psycopg.connect(psycopg.conninfo.make_conninfo(dsn, application_name="named")) as named:
        assert named.info.backend_pid != pid


def test_a_schema_with_an_added_table_is_used_again_and_one_with_other_changes_is_not(
    schemas: Any, connection: psycopg.Connection
) -> None:
    """Two are taken, for the looks of a new one are those of the first that was made."""
    first, second = schemas.take(), schemas.take()
    for name in (first, second):
        connection.execute(f"CREATE TABLE {name}.added (number integer PRIMARY KEY)".encode())
        connection.execute(f"INSERT INTO {name}.added VALUES (1)".encode())
        schemas.give_back(name)
        assert schemas.take() == name
        assert connection.execute("SELECT to_regclass(%s)", [f"{name}.added"]).fetchone() == (None,)
        connection.execute(f"INSERT INTO {name}.threads (thread_id) VALUES ('t')".encode())
    schemas.give_back(first)
    assert connection.execute(f"SELECT count(*) FROM {first}.threads".encode()).fetchone() == (0,)
    connection.execute(f"DROP INDEX {second}.threads_agent_idx".encode())
    schemas.give_back(second)
    assert connection.execute("SELECT to_regnamespace(%s)", [second]).fetchone() == (None,)
