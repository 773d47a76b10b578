"""Statements sent straight through libpq: what a cursor would do, in every state a connection can be in."""

from __future__ import annotations

import asyncio
import math
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import AsyncExitStack, suppress
from enum import StrEnum
from typing import Any

import psycopg
import pytest
from psycopg import errors
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from langgraph_pgstate.db.adapters import AsyncConnection, BlockingConnection
from langgraph_pgstate.db.database import AsyncDatabase, Database
from langgraph_pgstate.db.protocol import Connection
from langgraph_pgstate.db.statements import Statements, _Prepared, array_literal
from langgraph_pgstate.errors import ConflictError, DatabaseError, SchemaMissingError
from langgraph_pgstate.options import RetryPolicy
from langgraph_pgstate.schema.queries import NamedQuery

pytestmark = pytest.mark.smoke

ONCE = RetryPolicy(attempts=1)


@pytest.fixture
def table(schema: str, connection: psycopg.Connection) -> Iterator[str]:
    name = f"{schema}_statements"
    connection.execute(
        f"CREATE TABLE {name} (n integer PRIMARY KEY, word text, data bytea, ok boolean, many integer[], part float8)"
    )
    yield name
    connection.execute(f"DROP TABLE {name}")


def insert(table: str) -> NamedQuery:
    text = f"INSERT INTO {table} VALUES ($1, $2::text, $3, $4, $5, $6)"
    return NamedQuery("insert", "Adds a row.", text.encode(), ("n", "word", "data", "ok", "many", "part"))


def row(n: int, **changed: Any) -> dict[str, Any]:
    return {"n": n, "word": "wörd", "data": b"\0\xff", "ok": True, "many": [1, -2], "part": 0.1} | changed


async def execute(db: Connection, query: NamedQuery, *rows: dict[str, Any]) -> list[int]:
    return [await db.execute(query, one) for one in rows]


async def connect(api: str, dsn: str, threshold: int | None) -> Any:
    kind = psycopg.Connection if api == "blocking" else psycopg.AsyncConnection
    made: Any = kind.connect(dsn, autocommit=True, prepare_threshold=threshold)
    return made if api == "blocking" else await made


async def run(api: str, connection: Any, query: NamedQuery, *rows: dict[str, Any]) -> list[int]:
    if api == "blocking":
        return Database(connection, schema="s", retry=ONCE).run(execute, query, *rows)
    return await AsyncDatabase(connection, schema="s", retry=ONCE).run(execute, query, *rows)


@pytest.fixture(params=["blocking", "suspending"])
def api(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.parametrize("threshold", [0, 1, 3, None])
async def test_rows_arrive_as_they_were_given(
    api: str, threshold: int | None, dsn: str, table: str, connection: psycopg.Connection
) -> None:
    """Before it is prepared, when it is, and afterwards."""
    given = [
        row(1),
        row(2, word=None, data=None, ok=None, many=None, part=None),
        row(3, word="", data=b"", ok=False, many=[], part=-math.inf),
        row(-(2**31), word="'\"\\ \u2603 \U0001f600", data=bytes(range(256)) * 40, many=list(range(500))),
        row(5, word="x" * 200_000, part=5e-324),
        row(6, part=-0.0),
    ]
    ours = await connect(api, dsn, threshold)
    assert await run(api, ours, insert(table), *given) == [1] * len(given)
    stored = connection.execute(f"SELECT n, word, data, ok, many, part FROM {table} ORDER BY n").fetchall()
    assert stored == sorted((tuple(one.values()) for one in given), key=lambda one: one[0])


async def test_what_a_cursor_knows_better_is_left_to_it(api: str, dsn: str, table: str) -> None:
    """libpq would cut a text at its first NUL, and store what is left."""
    ours = await connect(api, dsn, 0)
    with pytest.raises(DatabaseError, match="NUL"):
        await run(api, ours, insert(table), row(1, word="before\0after"))
    with pytest.raises(UnicodeEncodeError):
        await run(api, ours, insert(table), row(1, word="\ud800"))
    assert await run(api, ours, insert(table), row(1)) == [1]


async def test_an_error_is_the_servers_and_leaves_the_connection_usable(api: str, dsn: str, table: str) -> None:
    ours = await connect(api, dsn, 0)
    assert await run(api, ours, insert(table), row(1)) == [1]
    with pytest.raises(ConflictError) as refused:
        await run(api, ours, insert(table), row(1))
    assert isinstance(refused.value.__cause__, errors.UniqueViolation)
    assert refused.value.__cause__.diag.table_name == table
    assert await run(api, ours, insert(table), row(2)) == [1]
    missing = insert("nowhere_at_all")
    with pytest.raises(Exception, match="setup"):
        await run(api, ours, missing, row(1))
    assert await run(api, ours, insert(table), row(3)) == [1]


async def test_what_was_prepared_may_vanish(api: str, dsn: str, table: str, connection: psycopg.Connection) -> None:
    """A pool's `reset`, or a pooler between, may discard everything a connection has prepared."""
    ours = await connect(api, dsn, 0)
    database: Any = (Database if api == "blocking" else AsyncDatabase)(ours, schema="s", retry=ONCE)

    async def store(n: int) -> list[int]:
        found = database.run(execute, insert(table), row(n))
        return found if api == "blocking" else await found

    assert await store(1) == [1]
    for n, words in enumerate(("DISCARD ALL", "DEALLOCATE ALL", f"ALTER TABLE {table} ADD more text"), 2):
        done = ours.execute(words)
        if api != "blocking":
            await done
        assert await store(n) == [1]
        assert await store(n + 10) == [1]
    assert connection.execute(f"SELECT count(*) FROM {table}").fetchone() == (7,)


async def test_users_of_one_connection_share_what_it_has_prepared(api: str, dsn: str, table: str) -> None:
    ours = await connect(api, dsn, 0)
    # Each `run` here makes a database of its own over the connection.
    assert await run(api, ours, insert(table), row(1), row(2)) == [1, 1]
    assert await run(api, ours, insert(table), row(3), row(4)) == [1, 1]


async def test_inside_of_a_transaction_a_cursor_does_it(
    api: str, dsn: str, table: str, connection: psycopg.Connection
) -> None:
    """A statement of ours that fails there would end what is the caller's."""
    ours = await connect(api, dsn, 0)
    assert Statements(ours).is_direct
    if api == "blocking":
        with ours.transaction():
            assert not Statements(ours).is_direct
            assert await run(api, ours, insert(table), row(1)) == [1]
        with ours.pipeline():
            assert not Statements(ours).is_direct
        ours.execute("SET client_encoding TO latin1")
    else:
        async with ours.transaction():
            assert not Statements(ours).is_direct
            assert await run(api, ours, insert(table), row(1)) == [1]
        async with ours.pipeline():
            assert not Statements(ours).is_direct
        await ours.execute("SET client_encoding TO latin1")
    assert not Statements(ours).is_direct
    assert await run(api, ours, insert(table), row(2)) == [1]
    assert connection.execute(f"SELECT DISTINCT word FROM {table}").fetchall() == [("wörd",)]


@pytest.mark.parametrize("way", ["alone", "together"])
@pytest.mark.parametrize("is_old_libpq", [False, True])
async def test_the_oldest_prepared_statement_makes_room_for_another(
    api: str, way: str, is_old_libpq: bool, dsn: str, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """None of them is left to a cursor, which would send a transaction in parts."""
    monkeypatch.setattr("langgraph_pgstate.db.statements._MAX_PREPARED", 3)
    if is_old_libpq:
        monkeypatch.setattr(psycopg.capabilities, "has_send_close_prepared", lambda: False)
    ours = await connect(api, dsn, 1)
    adapter = adapter_on(api, ours)
    monkeypatch.setattr(type(adapter), "_execute", None)
    monkeypatch.setattr(type(adapter), "_execute_together", None)
    query = insert(table)
    queries = [query._replace(text=query.text + b" " * n) for n in range(6)]

    async def store(at: int, n: int) -> None:
        if way == "alone":
            assert await adapter.execute(queries[at], row(n)) == 1
        else:
            assert await adapter.execute_together([(queries[at], row(n)), (queries[at - 1], row(1000 + n))]) == [1, 1]

    async def prepared() -> set[int]:
        cursor = ours.cursor()
        found = cursor.execute(
            "SELECT statement FROM pg_prepared_statements WHERE name LIKE '\\_pgstate\\_%'", prepare=False
        )
        if api != "blocking":
            await found
        rows = cursor.fetchall() if api == "blocking" else await cursor.fetchall()
        return {len(text) - len(query.text) for (text,) in rows}

    numbers = iter(range(1000))
    for at in range(6):
        for _ in range(3):
            await store(at, next(numbers))
    assert await prepared() == {3, 4, 5}
    # It has to be sent several times again. One that the server has dropped already can be dropped, too.
    await store(1, next(numbers))
    dropped = ours.execute("DEALLOCATE ALL")
    if api != "blocking":
        await dropped
    with suppress(TypeError):
        # A cursor does it once, and then all is prepared anew.
        await store(1, next(numbers))
    for _ in range(3):
        await store(1, next(numbers))
    assert 1 in await prepared()


@pytest.mark.parametrize("way", ["alone", "together", "in a transaction"])
async def test_a_statement_that_is_planned_each_time_is_never_prepared(
    api: str, way: str, dsn: str, table: str
) -> None:
    """Its plan fits its arguments, however often it was sent."""
    ours = await connect(api, dsn, 0)
    database: Any = (Database if api == "blocking" else AsyncDatabase)(ours, schema="s", retry=ONCE)
    once = insert(table)
    query = once._replace(text=once.text + b" ", is_planned_each_time=True)

    async def store(db: Connection, n: int) -> list[int]:
        if way == "alone":
            return [await db.execute(query, row(n))]
        if way == "together":
            return await db.execute_together([(query, row(n)), (query, row(100 + n))])
        async with db.transaction():
            return [await db.execute(query, row(n))]

    for n in range(4):
        found = database.run(store, n)
        assert set(found if api == "blocking" else await found) == {1}
    assert await run(api, ours, once, row(50)) == [1]
    prepared = ours.execute("SELECT count(*) FROM pg_prepared_statements WHERE statement LIKE 'INSERT%'", prepare=False)
    found = prepared.fetchone() if api == "blocking" else await (await prepared).fetchone()
    # The other one is.
    assert found == (1,)


def adapter_on(api: str, connection: Any) -> Any:
    return (BlockingConnection if api == "blocking" else AsyncConnection)(connection)


async def test_a_statement_is_given_up_when_the_server_takes_too_long(api: str, dsn: str, table: str) -> None:
    """And its connection with it, for the answer may still come."""
    ours = await connect(api, dsn, None)
    db = adapter_on(api, ours)
    assert await db.execute_within(60.0, insert(table), row(1)) == 1
    with pytest.raises(psycopg.errors.UniqueViolation):
        await db.execute_within(60.0, insert(table), row(1))
    with psycopg.connect(dsn) as other:
        other.execute(f"LOCK TABLE {table}".encode())
        with pytest.raises(psycopg.OperationalError, match="did not respond within"):
            await db.execute_within(0.05, insert(table), row(2))
    assert ours.closed


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


class StrictPooler:
    """A TCP proxy that ends a connection on which a name is prepared twice, with the words of PgBouncer 1.21.

    Like it, it remembers a name although the server has refused the statement.
    """

    def __init__(self, dsn: str) -> None:
        info = conninfo_to_dict(dsn)
        host, port = str(info.get("host") or "127.0.0.1"), int(info.get("port") or 5432)
        self._target: Any = f"{host}/.s.PGSQL.{port}" if host.startswith("/") else (host, port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.names: list[bytes] = []
        self.refused = 0
        changed = {"host": "127.0.0.1", "port": self._listener.getsockname()[1], "sslmode": "disable"}
        self.dsn = make_conninfo(dsn, **changed, gssencmode="disable")
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Take no more connections."""
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        family = socket.AF_UNIX if isinstance(self._target, str) else socket.AF_INET
        with client, socket.socket(family) as server, suppress(OSError):
            server.connect(self._target)
            threading.Thread(target=self._answer, args=(server, client), daemon=True).start()
            self._forward(client, server)
            # To close it ends no session while another thread reads from it.
            server.shutdown(socket.SHUT_RDWR)

    def _answer(self, server: socket.socket, client: socket.socket) -> None:
        with suppress(OSError):
            while data := server.recv(65536):
                client.sendall(data)
            client.shutdown(socket.SHUT_RDWR)

    def _forward(self, client: socket.socket, server: socket.socket) -> None:
        prepared: set[bytes] = set()
        waiting, is_begun = b"", False
        while data := client.recv(65536):
            waiting += data
            while len(waiting) >= 5:
                # The first message has no type.
                size = struct.unpack("!i", waiting[1:5] if is_begun else waiting[:4])[0] + is_begun
                if len(waiting) < size:
                    break
                message, waiting = waiting[:size], waiting[size:]
                if is_begun and message[:1] == b"P" and (name := message[5:].partition(b"\0")[0]):
                    self.names.append(name)
                    if name in prepared:
                        self.refused += 1
                        words = b"SFATAL\0C08P01\0Mprepared statement name is already in use\0\0"
                        client.sendall(b"E" + struct.pack("!i", len(words) + 4) + words)
                        return
                    prepared.add(name)
                is_begun = True
                server.sendall(message)


@pytest.fixture
def pooler(dsn: str) -> Iterator[StrictPooler]:
    strict = StrictPooler(dsn)
    yield strict
    strict.close()


async def run_together(db: Connection, query: NamedQuery, *rows: dict[str, Any]) -> list[int]:
    return await db.execute_together([(query, one) for one in rows])


@pytest.mark.parametrize("operation", [execute, run_together])
async def test_two_savers_on_one_connection_never_prepare_a_name_twice(
    api: str, operation: Any, pooler: StrictPooler, table: str, connection: psycopg.Connection
) -> None:
    """And share what is prepared: a saver made for each request must not leave statements behind."""
    ours = await connect(api, pooler.dsn, 0)
    for n in range(0, 8, 2):
        database: Any = (Database if api == "blocking" else AsyncDatabase)(ours, schema="s", retry=ONCE)
        done = database.run(operation, insert(table), row(n), row(n + 1))
        assert (done if api == "blocking" else await done) == [1, 1]
        # The caller's own statements have names of their own.
        asked = ours.execute("SELECT 1", prepare=True)
        if api != "blocking":
            await asked
    assert connection.execute(f"SELECT count(*) FROM {table}".encode()).fetchone() == (8,)
    assert pooler.refused == 0
    assert len([name for name in pooler.names if name.startswith(b"_pgstate")]) == 1


@pytest.mark.parametrize("operation", [execute, run_together])
async def test_a_name_is_not_used_again_after_it_vanished_or_was_refused(
    api: str, operation: Any, pooler: StrictPooler, table: str, connection: psycopg.Connection
) -> None:
    """The pooler knows it still."""
    ours = await connect(api, pooler.dsn, 0)
    database: Any = (Database if api == "blocking" else AsyncDatabase)(ours, schema="s", retry=ONCE)

    async def store(query: NamedQuery, n: int) -> list[int]:
        done = database.run(operation, query, row(n))
        return done if api == "blocking" else await done

    later = insert(f"{table}_later")
    for _ in range(2):
        with pytest.raises(SchemaMissingError):
            await store(later, 1)
    connection.execute(f"CREATE TABLE {table}_later (LIKE {table})".encode())
    try:
        assert await store(later, 1) == [1]
        for n in range(2):
            assert await store(insert(table), n) == [1]
            done = ours.execute("DEALLOCATE ALL", prepare=False)
            if api != "blocking":
                await done
        assert await store(insert(table), 2) == [1]
    finally:
        connection.execute(f"DROP TABLE {table}_later".encode())
    assert pooler.refused == 0


@pytest.mark.parametrize("operation", [execute, run_together])
async def test_a_violation_of_the_protocol_is_no_lost_connection(
    api: str, operation: Any, pooler: StrictPooler, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a pooler says when it ends a connection for the client's fault is tried once more, on a new connection."""
    monkeypatch.setattr(_Prepared, "new_name", lambda self, text: b"always_the_same")
    tries = []

    async def prepare_twice(db: Connection) -> None:
        tries.append(db)
        await operation(db, insert(table), row(2 * len(tries)))
        await operation(db, insert(table + " "), row(2 * len(tries) + 1))

    async with AsyncExitStack() as stack:
        database: Any
        if api == "blocking":
            database = stack.enter_context(Database.open(pooler.dsn, schema="s", prepare_threshold=0))
        else:
            opening = AsyncDatabase.open(pooler.dsn, schema="s", prepare_threshold=0)
            database = await stack.enter_async_context(opening)
        done = asyncio.to_thread(database.run, prepare_twice) if api == "blocking" else database.run(prepare_twice)
        with pytest.raises(DatabaseError, match="already in use") as refused:
            await done
    assert (len(tries), refused.value.sqlstate, refused.value.retryable) == (2, "08P01", False)
