"""Statements sent straight through libpq: what a cursor would do, in every state a connection can be in."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from psycopg import errors

from langgraph_pgstate.db.database import AsyncDatabase, Database
from langgraph_pgstate.db.port import Port
from langgraph_pgstate.db.statements import Statements
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


async def test_inside_of_a_transaction_a_cursor_does_it(colour: str, dsn: str, table: str) -> None:
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
