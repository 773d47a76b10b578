"""Statements sent straight through libpq: what a cursor would do, in every state a connection can be in."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from enum import StrEnum
from typing import Any

import psycopg
import pytest
from psycopg import errors
from support import wait_until

from langgraph_pgstate.db.database import AsyncDatabase, Database
from langgraph_pgstate.db.port import Port
from langgraph_pgstate.db.ports import BlockingPort, SuspendingPort
from langgraph_pgstate.db.statements import Statements, array_literal
from langgraph_pgstate.errors import ConflictError, DatabaseError
from langgraph_pgstate.settings import RetryPolicy
from langgraph_pgstate.sql import NamedQuery

ONCE = RetryPolicy(attempts=1)


@pytest.fixture
def table(schema: str, connection: psycopg.Connection) -> Iterator[str]:
    name = f"{schema}_statements"
    connection.execute(
        f"CREATE TABLE {name} (n integer PRIMARY KEY, word text, data bytea, ok boolean, many integer[])"
    )
    yield name
    connection.execute(f"DROP TABLE {name}")


def insert(table: str) -> NamedQuery:
    text = f"INSERT INTO {table} VALUES ($1, $2::text, $3, $4, $5)"
    return NamedQuery("insert", "Adds a row.", text.encode(), ("n", "word", "data", "ok", "many"))


def row(n: int, **changed: Any) -> dict[str, Any]:
    return {"n": n, "word": "wörd", "data": b"\0\xff", "ok": True, "many": [1, -2]} | changed


async def execute(port: Port, query: NamedQuery, *rows: dict[str, Any]) -> list[int]:
    return [await port.execute(query, one) for one in rows]


async def connect(colour: str, dsn: str, threshold: int | None) -> Any:
    kind = psycopg.Connection if colour == "blocking" else psycopg.AsyncConnection
    made: Any = kind.connect(dsn, autocommit=True, prepare_threshold=threshold)
    return made if colour == "blocking" else await made


async def run(colour: str, connection: Any, query: NamedQuery, *rows: dict[str, Any]) -> list[int]:
    if colour == "blocking":
        return Database(connection, schema="s", retry=ONCE).run(execute, query, *rows)
    return await AsyncDatabase(connection, schema="s", retry=ONCE).run(execute, query, *rows)


@pytest.fixture(params=["blocking", "suspending"])
def colour(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.parametrize("threshold", [0, 1, 3, None])
async def test_rows_arrive_as_they_were_given(
    colour: str, threshold: int | None, dsn: str, table: str, connection: psycopg.Connection
) -> None:
    """Before it is prepared, when it is, and afterwards."""
    given = [
        row(1),
        row(2, word=None, data=None, ok=None, many=None),
        row(3, word="", data=b"", ok=False, many=[]),
        row(-(2**31), word="'\"\\ \u2603 \U0001f600", data=bytes(range(256)) * 40, many=list(range(500))),
        row(5, word="x" * 200_000),
        row(6),
    ]
    ours = await connect(colour, dsn, threshold)
    assert await run(colour, ours, insert(table), *given) == [1] * len(given)
    stored = connection.execute(f"SELECT n, word, data, ok, many FROM {table} ORDER BY n").fetchall()
    assert stored == sorted((tuple(one.values()) for one in given), key=lambda one: one[0])


async def test_what_a_cursor_knows_better_is_left_to_it(colour: str, dsn: str, table: str) -> None:
    """libpq would cut a text at its first NUL, and store what is left."""
    ours = await connect(colour, dsn, 0)
    with pytest.raises(DatabaseError, match="NUL"):
        await run(colour, ours, insert(table), row(1, word="before\0after"))
    with pytest.raises(UnicodeEncodeError):
        await run(colour, ours, insert(table), row(1, word="\ud800"))
    assert await run(colour, ours, insert(table), row(1)) == [1]


async def test_an_error_is_the_servers_and_leaves_the_connection_usable(colour: str, dsn: str, table: str) -> None:
    ours = await connect(colour, dsn, 0)
    assert await run(colour, ours, insert(table), row(1)) == [1]
    with pytest.raises(ConflictError) as refused:
        await run(colour, ours, insert(table), row(1))
    assert isinstance(refused.value.__cause__, errors.UniqueViolation)
    assert refused.value.__cause__.diag.table_name == table
    assert await run(colour, ours, insert(table), row(2)) == [1]
    missing = insert("nowhere_at_all")
    with pytest.raises(Exception, match="setup"):
        await run(colour, ours, missing, row(1))
    assert await run(colour, ours, insert(table), row(3)) == [1]


async def test_what_was_prepared_may_vanish(colour: str, dsn: str, table: str, connection: psycopg.Connection) -> None:
    """A pool's `reset`, or a pooler between, may discard everything a connection has prepared."""
    ours = await connect(colour, dsn, 0)
    database: Any = (Database if colour == "blocking" else AsyncDatabase)(ours, schema="s", retry=ONCE)

    async def store(n: int) -> list[int]:
        found = database.run(execute, insert(table), row(n))
        return found if colour == "blocking" else await found

    assert await store(1) == [1]
    for n, words in enumerate(("DISCARD ALL", "DEALLOCATE ALL", f"ALTER TABLE {table} ADD more text"), 2):
        done = ours.execute(words)
        if colour != "blocking":
            await done
        assert await store(n) == [1]
        assert await store(n + 10) == [1]
    assert connection.execute(f"SELECT count(*) FROM {table}").fetchone() == (7,)


async def test_users_of_one_connection_share_what_it_has_prepared(colour: str, dsn: str, table: str) -> None:
    ours = await connect(colour, dsn, 0)
    # Each `run` here makes a database of its own over the connection.
    assert await run(colour, ours, insert(table), row(1), row(2)) == [1, 1]
    assert await run(colour, ours, insert(table), row(3), row(4)) == [1, 1]


async def test_inside_of_a_transaction_a_cursor_does_it(
    colour: str, dsn: str, table: str, connection: psycopg.Connection
) -> None:
    """A statement of ours that fails there would end what is the caller's."""
    ours = await connect(colour, dsn, 0)
    assert Statements(ours).is_direct
    if colour == "blocking":
        with ours.transaction():
            assert not Statements(ours).is_direct
            assert await run(colour, ours, insert(table), row(1)) == [1]
        with ours.pipeline():
            assert not Statements(ours).is_direct
        ours.execute("SET client_encoding TO latin1")
    else:
        async with ours.transaction():
            assert not Statements(ours).is_direct
            assert await run(colour, ours, insert(table), row(1)) == [1]
        async with ours.pipeline():
            assert not Statements(ours).is_direct
        await ours.execute("SET client_encoding TO latin1")
    assert not Statements(ours).is_direct
    assert await run(colour, ours, insert(table), row(2)) == [1]
    assert connection.execute(f"SELECT DISTINCT word FROM {table}").fetchall() == [("wörd",)]


async def test_a_connection_does_not_collect_statements_for_ever(
    colour: str, dsn: str, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("langgraph_pgstate.db.statements._MAX_PREPARED", 3)
    ours = await connect(colour, dsn, 0)
    database: Any = (Database if colour == "blocking" else AsyncDatabase)(ours, schema="s", retry=ONCE)
    for n in range(8):
        query = insert(table)
        other = NamedQuery(query.name, query.purpose, query.text + b" " * n, query.parameters)
        found = database.run(execute, other, row(n), row(100 + n))
        assert (found if colour == "blocking" else await found) == [1, 1]
    prepared = ours.execute("SELECT count(*) FROM pg_prepared_statements WHERE name LIKE '\\_pgstate\\_%'")
    if colour == "blocking":
        assert prepared.fetchone() == (3,)
    else:
        assert await (await prepared).fetchone() == (3,)


def port_on(colour: str, connection: Any) -> Any:
    return (BlockingPort if colour == "blocking" else SuspendingPort)(connection)


def backend_is_gone(connection: psycopg.Connection, pid: int) -> bool:
    return connection.execute("SELECT count(*) FROM pg_stat_activity WHERE pid = %s", [pid]).fetchone() == (0,)


async def prepared(colour: str, connection: Any) -> int:
    found = connection.execute("SELECT count(*) FROM pg_prepared_statements WHERE name LIKE '\\_pgstate\\_%'")
    row = found.fetchone() if colour == "blocking" else await (await found).fetchone()
    return int(row[0])


async def test_a_statement_is_left_and_its_answer_taken_later(
    colour: str, dsn: str, table: str, connection: psycopg.Connection
) -> None:
    """While the server works nothing waits, and nothing else is sent."""
    port = port_on(colour, await connect(colour, dsn, None))
    with psycopg.connect(dsn) as other:
        other.execute(f"LOCK TABLE {table}".encode())
        assert port.leave(insert(table), row(1))
        assert port.take() is None
        assert not port.leave(insert(table), row(2))
    assert await port.settle() is True
    assert port.leave(insert(table), row(3))
    wait_until(lambda: connection.execute(f"SELECT count(*) FROM {table}".encode()).fetchone() == (2,), "two rows")
    wait_until(lambda: port.take() is True, "the second answer")
    assert await port.execute(insert(table), row(4)) == 1
    assert connection.execute(f"SELECT n FROM {table} ORDER BY n".encode()).fetchall() == [(1,), (3,), (4,)]


async def test_what_was_left_and_failed_is_not_done(colour: str, dsn: str, table: str) -> None:
    """Refused, or with the connection; who waits twice is not told twice that it was done."""
    ours = await connect(colour, dsn, None)
    port = port_on(colour, ours)
    assert await port.execute(insert(table), row(1)) == 1
    assert port.leave(insert(table), row(1))
    assert await port.settle() is False
    assert port.leave(insert(table), row(2))
    assert await port.settle() is True
    assert port.take() is False
    assert not port.leave(insert(table), row(3, word="before\0after"))
    assert await port.execute(insert(table), row(3)) == 1
    with psycopg.connect(dsn, autocommit=True) as other:
        other.execute("SELECT pg_terminate_backend(%s)", [ours.info.backend_pid])
        wait_until(lambda: backend_is_gone(other, ours.info.backend_pid), "the end of the session")
    assert not port.leave(insert(table), row(4))
    # Its last words have come by now, the end of its socket perhaps not yet.
    assert port.take() is False
    assert await port.settle() is False


async def test_what_is_left_can_be_prepared_before(colour: str, dsn: str, table: str) -> None:
    """Where the connection prepares at all. What is prepared may vanish: then it was not done."""
    ours = await connect(colour, dsn, None)
    await port_on(colour, ours).prepare(insert(table))
    assert await prepared(colour, ours) == 0
    ours = await connect(colour, dsn, 5)
    port = port_on(colour, ours)
    await port.prepare(insert(table))
    await port_on(colour, ours).prepare(insert(table))
    assert await prepared(colour, ours) == 1
    assert port.leave(insert(table), row(1))
    assert await port.settle() is True
    done = ours.execute("DISCARD ALL")
    if colour != "blocking":
        await done
    assert port.leave(insert(table), row(2))
    assert await port.settle() is False
    assert port.leave(insert(table), row(2))
    assert await port.settle() is True


async def test_who_waits_and_is_cancelled_does_not_cancel_it(dsn: str, table: str) -> None:
    """The next one goes on waiting."""
    port = port_on("suspending", await connect("suspending", dsn, None))
    with psycopg.connect(dsn) as other:
        other.execute(f"LOCK TABLE {table}".encode())
        assert port.leave(insert(table), row(1))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(port.settle(), 0.05)
        assert port.take() is None
    assert await port.settle() is True


async def test_more_than_a_socket_holds_is_sent_while_somebody_waits(
    colour: str, dsn: str, table: str, connection: psycopg.Connection
) -> None:
    """Then it is not on its way, and who left it is told."""
    port = port_on(colour, await connect(colour, dsn, None))
    assert not port.leave(insert(table), row(1, data=bytes(30_000_000)))
    assert await port.settle() is True
    assert connection.execute(f"SELECT length(data) FROM {table}".encode()).fetchone() == (30_000_000,)


class _Key(StrEnum):
    AGENT = "agent, or not"


@pytest.mark.parametrize(
    ("items", "kind"),
    [
        ([], "integer"),
        ([1, -2, 2**31 - 1], "integer"),
        ([True, False], "boolean"),
        (["", "a,b", 'quote " and \\', "{}", "NULL", "ü"], "text"),
        ([_Key.AGENT, "plain"], "text"),
    ],
)
def test_a_list_is_the_array_it_says(items: list[Any], kind: str, connection: psycopg.Connection) -> None:
    """Also where a string is of a class of its own, which Python writes otherwise."""
    [found] = connection.execute(f"SELECT %s::{kind}[]".encode(), [array_literal(items)]).fetchone() or [None]
    assert found == items
