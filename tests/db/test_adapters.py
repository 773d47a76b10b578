"""Operations that suspend are refused on a blocking connection; several statements are one transaction, in both APIs.

The latter by `Connection.execute_together` and `fetch_together`, in one round trip.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from psycopg.types.json import set_json_loads
from psycopg_pool import AsyncConnectionPool, ConnectionPool
from support import APIS, GUARD_SECONDS, counted, holding, usual, wait_until

from langgraph_pgstate import PGStateSaver
from langgraph_pgstate.db.adapters import run_blocking
from langgraph_pgstate.db.database import AsyncDatabase, Database
from langgraph_pgstate.errors import DatabaseError
from langgraph_pgstate.schema.queries import NamedQuery

Connection = Any
Statements = list[tuple[NamedQuery, dict[str, Any]]]

pytestmark = pytest.mark.bare


@pytest.fixture
def table(connection: psycopg.Connection, schema: str) -> str:
    """An empty table of numbers."""
    connection.execute(f"CREATE SCHEMA {schema}")
    connection.execute(f"CREATE TABLE {schema}.numbers (n int PRIMARY KEY CHECK (n > 0))")
    return f"{schema}.numbers"


def add(table: str, n: int) -> tuple[NamedQuery, dict[str, Any]]:
    """Adds a number and answers it."""
    text = f"INSERT INTO {table} (n) VALUES ($1::int) RETURNING n"
    return NamedQuery("add", "", text.encode(), ("n",)), {"n": n}


def say(text: str) -> tuple[NamedQuery, dict[str, Any]]:
    """A statement without parameters."""
    return NamedQuery("say", "", text.encode(), ()), {}


async def together(db: Connection, statements: Statements) -> Any:
    return await db.execute_together(statements)


async def fetched(db: Connection, statements: Statements) -> Any:
    return await db.fetch_together(statements)


async def notified(db: Connection, statements: Statements, after_commit: tuple[NamedQuery, dict[str, Any]]) -> Any:
    return await db.fetch_together(statements, after_commit)


async def run(database: Any, *arguments: Any) -> Any:
    """Run an operation in the database's api."""
    found = database.run(*arguments)
    return await found if asyncio.iscoroutine(found) else found


async def maybe(result: Any) -> Any:
    """What a call of either API answers."""
    return await result if asyncio.iscoroutine(result) else result


@asynccontextmanager
async def database_on(api: type, kind: str, dsn: str, prepare_threshold: int | None = 5) -> AsyncIterator[Any]:
    """A database, blocking or async, on one connection: of its own pool, of a caller's pool, or a caller's."""
    options: dict[str, Any] = {"prepare_threshold": prepare_threshold}
    if kind == "own pool":
        if api is PGStateSaver:
            with Database.open(dsn, schema="x", pool=1, prepare_threshold=prepare_threshold) as database:
                yield database
        else:
            async with AsyncDatabase.open(dsn, schema="x", pool=1, prepare_threshold=prepare_threshold) as other:
                yield other
    elif kind == "caller's pool":
        if api is PGStateSaver:
            with ConnectionPool(dsn, open=True, min_size=1, max_size=1, kwargs=options) as pool:
                yield Database(pool, schema="x")
        else:
            async with AsyncConnectionPool(dsn, open=False, min_size=1, max_size=1, kwargs=options) as async_pool:
                yield AsyncDatabase(async_pool, schema="x")
    elif api is PGStateSaver:
        with psycopg.connect(dsn, **options) as own:
            yield Database(own, schema="x")
    else:
        async with await psycopg.AsyncConnection.connect(dsn, **options) as async_own:
            yield AsyncDatabase(async_own, schema="x")


KINDS = ["own pool", "caller's pool", "caller's connection"]


def numbers(connection: psycopg.Connection, table: str) -> list[int]:
    return [row[0] for row in connection.execute(f"SELECT n FROM {table} ORDER BY n").fetchall()]


@pytest.mark.parametrize("prepare_threshold", [0, 2, None])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("api", APIS)
async def test_statements_together_take_one_round_trip(
    api: type, kind: str, prepare_threshold: int | None, dsn: str, table: str, connection: psycopg.Connection
) -> None:
    with counted(dsn) as proxy:
        async with database_on(api, kind, proxy.dsn, prepare_threshold) as database:
            trips = []
            for step in range(1, 20, 2):
                before = proxy.count
                statements = [add(table, step), say(f"UPDATE {table} SET n = n WHERE n < 0"), add(table, step + 1)]
                assert await run(database, together, statements) == [1, 0, 1]
                trips.append(proxy.count - before)
            assert usual(trips[5:]) == 1
    assert numbers(connection, table) == list(range(1, 21))


@pytest.mark.parametrize("prepare_threshold", [0, None])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("api", APIS)
async def test_the_rows_of_the_last_statement_come_with_the_round_trip(
    api: type, kind: str, prepare_threshold: int | None, dsn: str, table: str, connection: psycopg.Connection
) -> None:
    with counted(dsn) as proxy:
        async with database_on(api, kind, proxy.dsn, prepare_threshold) as database:
            trips = []
            for step in range(1, 10):
                before = proxy.count
                statements = [add(table, step), say(f"SELECT n FROM {table} ORDER BY n")]
                assert await run(database, fetched, statements) == [(number,) for number in range(1, step + 1)]
                trips.append(proxy.count - before)
            assert usual(trips[5:]) == 1
            with pytest.raises(DatabaseError, match="check constraint"):
                await run(database, fetched, [add(table, 10), add(table, -1), say("SELECT 1")])
    assert numbers(connection, table) == list(range(1, 10))


@pytest.mark.parametrize("api", APIS)
async def test_rows_come_inside_a_callers_transaction_too(
    api: type, dsn: str, table: str, connection: psycopg.Connection
) -> None:
    async with database_on(api, "caller's connection", dsn) as database:
        own = database._single.connection
        await maybe(own.execute(f"INSERT INTO {table} VALUES (100)"))
        assert await run(database, fetched, [add(table, 1), say(f"SELECT n FROM {table} ORDER BY n")]) == [(1,), (100,)]
        assert numbers(connection, table) == []
        await maybe(own.commit())
    assert numbers(connection, table) == [1, 100]


@pytest.mark.parametrize("prepare_threshold", [0, None])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("api", APIS)
async def test_a_statement_after_the_commit_takes_no_round_trip_and_may_fail(
    api: type, kind: str, prepare_threshold: int | None, dsn: str, table: str, connection: psycopg.Connection
) -> None:
    connection.execute(f"CREATE TABLE {table}_later (n int PRIMARY KEY DEFERRABLE INITIALLY DEFERRED)")
    with counted(dsn) as proxy:
        async with database_on(api, kind, proxy.dsn, prepare_threshold) as database:
            trips = []
            for step in range(1, 20, 2):
                before = proxy.count
                assert await run(database, notified, [add(table, step)], add(table, step + 1)) == [(step,)]
                trips.append(proxy.count - before)
            assert usual(trips[5:]) == 1
            for number in (30, 31):
                assert await run(database, notified, [add(table, number)], add(table, -1)) == [(number,)]
            # It may also fail when it commits.
            assert await run(database, notified, [add(table, 32)], add(f"{table}_later", 1)) == [(32,)]
            assert await run(database, notified, [add(table, 33)], add(f"{table}_later", 1)) == [(33,)]
            # Its transaction is another one.
            with pytest.raises(DatabaseError, match="check constraint"):
                await run(database, notified, [add(table, 40), add(table, -1)], add(table, 41))
    assert numbers(connection, table) == [*range(1, 21), *range(30, 34)]
    assert numbers(connection, f"{table}_later") == [1]


@pytest.mark.parametrize("api", APIS)
async def test_a_statement_after_the_commit_follows_those_that_need_cursors(
    api: type, dsn: str, table: str, connection: psycopg.Connection
) -> None:
    fraction = NamedQuery("say", "", b"SELECT $1::numeric", ("n",)), {"n": Decimal("0.5")}
    async with database_on(api, "own pool", dsn) as database:
        for number in (1, 2):
            assert await run(database, notified, [fraction], add(table, number)) == [(Decimal("0.5"),)]
        assert await run(database, notified, [fraction], add(table, -1)) == [(Decimal("0.5"),)]
        assert await run(database, notified, [say("SELECT 1")], fraction) == [(1,)]
    assert numbers(connection, table) == [1, 2]


@pytest.mark.parametrize("api", APIS)
async def test_more_than_fits_the_wire_is_sent_and_answered(api: type, dsn: str) -> None:
    """Neither side waits for the other to read."""
    text = b"SELECT $1::bytea, n FROM generate_series(1, 3) AS n"
    large = NamedQuery("echo", "", text, ("data",)), {"data": bytes(4_000_000)}
    async with database_on(api, "own pool", dsn) as database:
        assert await asyncio.wait_for(run(database, together, [large] * 3), GUARD_SECONDS) == [3, 3, 3]


@pytest.mark.parametrize("api", APIS)
async def test_they_are_one_explicit_transaction(api: type, dsn: str) -> None:
    """A pipeline by itself is no transaction block, and on a distributed PostgreSQL it is not atomic."""
    async with database_on(api, "own pool", dsn) as database:
        answers = await run(database, together, [say("SAVEPOINT proof"), say("SELECT 1")])
        assert answers == [0, 1]


@pytest.mark.parametrize("prepare_threshold", [0, 2, None])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("api", APIS)
async def test_an_error_takes_everything_back_and_leaves_the_connection_usable(
    api: type, kind: str, prepare_threshold: int | None, dsn: str, table: str, connection: psycopg.Connection
) -> None:
    """Statements after the failing one were not even prepared; the next call prepares them."""
    wanted = 0
    async with database_on(api, kind, dsn, prepare_threshold) as database:
        other = say(f"SELECT count(*) FROM {table}")
        for _ in range(8):
            for statements in ([add(table, wanted + 1), add(table, -1), other], [other, add(table, -1), other, other]):
                with pytest.raises(DatabaseError, match="check constraint"):
                    await run(database, together, statements)
                assert numbers(connection, table) == list(range(1, wanted + 1))
            wanted += 1
            assert await run(database, together, [add(table, wanted), other]) == [1, 1]


@pytest.mark.parametrize("failing", ["nothing", "a statement"])
@pytest.mark.parametrize("api", APIS)
async def test_inside_a_callers_transaction_her_end_decides(
    api: type, failing: str, dsn: str, table: str, connection: psycopg.Connection
) -> None:
    async with database_on(api, "caller's connection", dsn) as database:
        own = database._single.connection
        await maybe(own.execute(f"INSERT INTO {table} VALUES (100)"))
        await run(database, together, [add(table, 1), add(table, 2)])
        assert own.info.transaction_status == psycopg.pq.TransactionStatus.INTRANS
        assert numbers(connection, table) == []
        if failing == "nothing":
            await maybe(own.commit())
            assert numbers(connection, table) == [1, 2, 100]
            return
        other = say(f"SELECT count(*) FROM {table}")
        for _ in range(8):
            with pytest.raises(DatabaseError, match="check constraint"):
                await run(database, together, [add(table, 3), add(table, -1), other])
        assert await run(database, together, [add(table, 4), other]) == [1, 1]
        await maybe(own.commit())
        assert numbers(connection, table) == [1, 2, 4, 100]
        assert own.autocommit is False


@pytest.mark.parametrize("api", APIS)
async def test_inside_an_operations_transaction_that_one_decides(
    api: type, dsn: str, table: str, connection: psycopg.Connection
) -> None:
    async def operation(db: Connection) -> None:
        async with db.transaction():
            await db.execute_together([add(table, 1), add(table, 2)])
            raise LookupError("mine")

    async with database_on(api, "own pool", dsn) as database:
        with pytest.raises(LookupError):
            await run(database, operation)
        assert numbers(connection, table) == []


@pytest.mark.parametrize("api", APIS)
async def test_who_stands_still_in_a_transaction_keeps_nobody_waiting_for_ever(
    api: type, dsn: str, table: str, connection: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a process does that was stopped: the server takes its locks away, and when it wakes it begins again."""
    monkeypatch.setattr(
        "langgraph_pgstate.db.adapters._IDLE_TIMEOUT", b"SET LOCAL idle_in_transaction_session_timeout = '100ms'"
    )
    tries = 0

    async def operation(db: Connection) -> None:
        nonlocal tries
        tries += 1
        async with db.transaction():
            await db.execute(*add(table, 1))
            if tries == 1:
                # It waits for the row until this transaction has ended.
                connection.execute(f"INSERT INTO {table} (n) VALUES (1)")
                connection.execute(f"DELETE FROM {table}")
            await db.execute(*add(table, 2))

    connection.execute(f"SET lock_timeout = '{int(GUARD_SECONDS)}s'")
    async with database_on(api, "own pool", dsn) as database:
        await run(database, operation)
    assert tries == 2
    assert numbers(connection, table) == [1, 2]


@pytest.mark.parametrize("api", APIS)
async def test_a_lost_connection_is_replaced(api: type, dsn: str, table: str, connection: psycopg.Connection) -> None:
    async with database_on(api, "own pool", dsn) as database:
        tries = []

        async def operation(db: Connection) -> Any:
            tries.append(1)
            last = "SELECT pg_terminate_backend(pg_backend_pid())" if len(tries) == 1 else "SELECT 7"
            return await db.execute_together([add(table, 1), say(last)])

        assert await run(database, operation) == [1, 1]
        assert numbers(connection, table) == [1]


async def test_a_cancelled_call_commits_nothing_and_leaves_the_connection_usable(
    dsn: str, table: str, schema: str, connection: psycopg.Connection
) -> None:
    named = make_conninfo(dsn, application_name=schema)
    waiting = "SELECT count(*) FROM pg_stat_activity WHERE application_name = %s AND wait_event_type = 'Lock'"
    async with AsyncDatabase.open(named, schema="x", pool=1) as database:
        with holding(dsn, f"INSERT INTO {table} VALUES (2)"):
            held = asyncio.create_task(run(database, together, [add(table, 1), add(table, 2)]))
            await asyncio.to_thread(
                wait_until, lambda: connection.execute(waiting, [schema]).fetchone() == (1,), "it waits in the server"
            )
            held.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asyncio.wait_for(held, GUARD_SECONDS)
            assert await asyncio.wait_for(run(database, together, [add(table, 3)]), GUARD_SECONDS) == [1]
    assert numbers(connection, table) == [3]


def test_an_operation_that_suspends_is_refused() -> None:
    class Suspending:
        def __await__(self) -> Iterator[None]:
            yield None

    async def operation() -> None:
        await Suspending()

    with pytest.raises(RuntimeError, match="suspended"):
        run_blocking(operation())


def test_a_suspending_operation_runs_its_cleanup_before_it_is_refused() -> None:
    closed = []

    class Suspending:
        def __await__(self) -> Iterator[None]:
            yield None

    async def operation() -> None:
        try:
            await Suspending()
        finally:
            closed.append(True)

    with pytest.raises(RuntimeError, match="suspended"):
        run_blocking(operation())
    assert closed == [True]


class _Own(psycopg.adapt.Loader):
    format = psycopg.pq.Format.BINARY

    def load(self, data: Any) -> Any:
        return "the program's own"


class _OwnText(psycopg.types.string.StrDumper):
    def dump(self, obj: str) -> bytes:
        return obj.upper().encode()


@pytest.mark.parametrize("way", ["direct", "in a transaction", "in a pipeline"])
@pytest.mark.parametrize("api", APIS)
async def test_adapters_that_the_program_changed_are_not_used(api: type, way: str, dsn: str) -> None:
    """Guard: `ADAPTERS`. With another loader of JSON, a copy of an encrypted thread could not be decrypted."""
    text = (
        "SELECT $1::text, ARRAY[1, 2], 3::bigint, '{\"a\": 1.5}'::jsonb, timestamptz '2026-01-02 03:04:05Z', 'x'::bytea"
    )
    query = NamedQuery("say", "", text.encode(), ("text",))
    async with database_on(api, "caller's connection", dsn) as database:
        connection = database._single.connection
        for name in ("text", "int4", "int8", "jsonb", "timestamptz", "bytea"):
            connection.adapters.register_loader(name, _Own)
        set_json_loads(lambda data: "the program's own", connection)
        connection.adapters.register_dumper(str, _OwnText)

        async def look(db: Connection) -> Any:
            return await db.fetch(query, {"text": "a"})

        if way == "in a transaction":
            await maybe(connection.execute("SELECT 1"))
        async with AsyncExitStack() as stack:
            if way == "in a pipeline":
                pipeline = connection.pipeline()
                stack.enter_context(pipeline) if api is APIS[0] else await stack.enter_async_context(pipeline)
            found = await run(database, look)
    at = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    assert [tuple(row) for row in found] == [("a", [1, 2], 3, {"a": 1.5}, at, b"x")]
