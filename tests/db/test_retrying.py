"""A server that is away: what a call waits for, when the first one succeeds again, and what is said."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st
from psycopg.conninfo import make_conninfo
from psycopg_pool import AsyncConnectionPool, ConnectionPool, PoolTimeout
from support import APIS, GUARD_SECONDS, Gate, config_of, open_saver, put_arguments, put_chain, terminate, wait_until

from langgraph_pgstate import AsyncPGStateSaver, PGStateSaver, PoolSettings, RetryPolicy
from langgraph_pgstate.db import connecting, retrying
from langgraph_pgstate.db.database import AsyncDatabase, Database
from langgraph_pgstate.db.retrying import Outage, Tries
from langgraph_pgstate.errors import UnavailableError

LOST = psycopg.OperationalError("connection failed: lost")
# Nothing listens there.
NOBODY = "host=127.0.0.1 port=1 dbname=d user=u"


@pytest.fixture
def gate(dsn: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    """An address that can be shut; pools try it again in no time."""
    monkeypatch.setattr(connecting, "_RECONNECT_SECONDS", 0.02)
    found = Gate(dsn)
    yield found
    found.close()


@asynccontextmanager
async def database_of(api: type, dsn: str, **options: Any) -> AsyncIterator[Any]:
    async with AsyncExitStack() as stack:
        if api is PGStateSaver:
            yield stack.enter_context(Database.open(dsn, schema="pgstate", **options))
        else:
            yield await stack.enter_async_context(AsyncDatabase.open(dsn, schema="pgstate", **options))


async def run(database: Any, operation: Any, method: str = "run", *arguments: float) -> Any:
    if isinstance(database, Database):
        return await asyncio.to_thread(getattr(database, method), *arguments, operation)
    return await getattr(database, method)(*arguments, operation)


async def look(db: Any) -> str:
    await db.script("SELECT 1")
    return "seen"


async def maybe(result: Any) -> Any:
    return await result if asyncio.iscoroutine(result) else result


def waits(database: Any) -> bool:
    return bool(database._pool.get_stats()["requests_waiting"])


@pytest.mark.parametrize(("api", "min_size", "connections"), [(APIS[0], 1, 1), (APIS[1], 1, 1), (APIS[0], 0, 2)])
async def test_a_pool_keeps_the_connection_that_it_was_opened_with(
    api: type, min_size: int, connections: int, gate: Gate
) -> None:
    async with database_of(api, gate.dsn, pool=PoolSettings(min_size=min_size)) as database:
        assert await run(database, look) == "seen"
    assert gate.taken == connections


@pytest.mark.parametrize("is_first_try", [False, True])
@pytest.mark.parametrize("api", APIS)
async def test_a_call_that_waits_has_a_connection_as_soon_as_there_is_a_server(
    api: type, is_first_try: bool, gate: Gate
) -> None:
    """Guard: a pool whose attempts fail begins anew instead of waiting twice as long each time."""
    async with database_of(api, gate.dsn, pool=1) as database:
        assert await run(database, look) == "seen"
        gate.shut()
        if is_first_try:
            # No call has met the outage, and no connection is left to meet it with.
            lost = await maybe(database._pool.getconn())
            await maybe(lost.close())
            await maybe(database._pool.putconn(lost))
        call = asyncio.create_task(run(database, look))
        before = gate.taken
        await asyncio.to_thread(wait_until, lambda: gate.taken >= before + 12, "a dozen attempts")
        assert not call.done()
        gate.is_shut = False
        assert await asyncio.wait_for(call, GUARD_SECONDS) == "seen"


@pytest.mark.parametrize("api", APIS)
async def test_a_pool_nobody_waits_for_gives_up_and_the_next_call_connects(api: type, gate: Gate) -> None:
    async with database_of(api, gate.dsn, pool=PoolSettings(max_size=3, timeout=0.3)) as database:
        assert await run(database, look) == "seen"
        gate.shut()
        with pytest.raises(UnavailableError, match="server closed the connection") as raised:
            await run(database, look)
        assert raised.value.retryable
        gone = "every attempt was given up"
        await asyncio.to_thread(wait_until, lambda: database._pool.get_stats()["pool_size"] == 0, gone)
        gate.is_shut = False
        before = gate.taken
        assert await run(database, look) == "seen"
        assert gate.taken == before + 1


@pytest.mark.slow
@pytest.mark.parametrize("api", APIS)
async def test_calls_of_one_outage_share_the_time_they_wait(
    api: type, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A graph makes several calls one after another: the later ones wait for one attempt only.

    Guard: the pool's own timeout is not begun again by each.
    """
    monkeypatch.setattr(retrying, "_MIN_SECONDS", 0.05)
    async with database_of(api, gate.dsn, pool=PoolSettings(max_size=3, timeout=0.5)) as database:
        assert await run(database, look) == "seen"
        asked: list[float] = []
        getconn = database._pool.getconn

        def noting(timeout: float | None = None) -> Any:
            asked.append(database._pool.timeout if timeout is None else timeout)
            return getconn(timeout)

        monkeypatch.setattr(database._pool, "getconn", noting)
        gate.shut()
        for _ in range(3):
            with pytest.raises(UnavailableError):
                await run(database, look)
        # The first call: a connection that is lost, and then none for what is left of its time.
        assert len(asked) == 4
        assert asked[0] == pytest.approx(0.5, abs=0.01)
        assert asked[0] >= asked[1]
        assert max(asked[2:]) <= 0.05
        gate.is_shut = False
        async with asyncio.timeout(GUARD_SECONDS):
            while not await is_back(database):
                pass
        assert await run(database, look) == "seen"
        assert asked[-1] == pytest.approx(0.5, abs=0.01)


@pytest.mark.slow
@pytest.mark.parametrize("api", APIS)
async def test_a_retry_waits_for_what_the_first_try_left_of_the_time(
    api: type, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guard: the wait of the first try is counted, and the time that its statements took is not."""
    async with database_of(api, dsn, pool=PoolSettings(max_size=1, timeout=10.0)) as database:
        pool, asked, began = database._pool, [], time.monotonic()
        getconn, taken = pool.getconn, await maybe(pool.getconn())

        def noting(timeout: float | None = None) -> Any:
            asked.append((pool.timeout if timeout is None else timeout, time.monotonic() - began))
            return getconn(timeout)

        async def fail_once(db: Any) -> str:
            if len(asked) == 1:
                time.sleep(0.4)
                raise LOST
            return await look(db)

        monkeypatch.setattr(pool, "getconn", noting)
        call = asyncio.create_task(run(database, fail_once))
        await asyncio.to_thread(wait_until, lambda: waits(database), "a call that waits")
        await asyncio.sleep(0.2)
        await maybe(pool.putconn(taken))
        assert await asyncio.wait_for(call, GUARD_SECONDS) == "seen"
        (first, _), (second, passed) = asked
        assert first == 10.0
        assert 10.0 - passed + 0.3 < second <= 9.8


@pytest.mark.parametrize("api", APIS)
async def test_a_call_with_a_limit_of_its_own_waits_no_longer(api: type, dsn: str) -> None:
    async with database_of(api, dsn, pool=PoolSettings(max_size=1, timeout=10.0)) as database:
        taken = await maybe(database._pool.getconn())
        began = time.monotonic()
        with pytest.raises(UnavailableError, match="couldn't get a connection"):
            await run(database, look, "run_within", 0.05)
        assert time.monotonic() - began < 5.0
        await maybe(database._pool.putconn(taken))


@pytest.mark.parametrize("pool", [False, PoolSettings(max_size=1, timeout=600.0)])
@pytest.mark.parametrize("api", APIS)
async def test_what_must_be_in_time_does_not_wait_for_calls_that_keep_all_connections(
    api: type, dsn: str, pool: PoolSettings | bool
) -> None:
    async with database_of(api, dsn, pool=pool) as database, AsyncExitStack() as stack:
        lent = database.lend()
        await stack.enter_async_context(lent) if api is APIS[1] else stack.enter_context(lent)
        assert await run(database, look, "run_apart", 0.05) == "seen"


@pytest.mark.slow
@pytest.mark.parametrize("why", ["the pool computes its connection string", "the role has no more connections"])
@pytest.mark.parametrize("api", APIS)
async def test_what_must_be_in_time_waits_for_a_connection_where_no_more_can_be_opened(
    api: type, why: str, dsn: str, connection: psycopg.Connection
) -> None:
    """Guard: otherwise a put that needs a data key, or the renewal of a lease, failed while the pool was busy."""
    role = f"pgstate_test_{uuid4().hex}"
    connection.execute(f"CREATE ROLE {role} LOGIN CONNECTION LIMIT 1".encode())
    own = make_conninfo(dsn, user=role)
    given: Any = own if why.startswith("the role") else lambda: own
    blocking = api is APIS[0]
    pool: Any = (ConnectionPool if blocking else AsyncConnectionPool)(given, min_size=1, max_size=1, open=False)
    await maybe(pool.open())
    database = (Database if blocking else AsyncDatabase)(pool, schema="pgstate")
    taken = await maybe(pool.getconn())
    call = asyncio.create_task(run(database, look, "run_apart", 0.05))
    await asyncio.sleep(0.5)
    assert not call.done()
    await maybe(pool.putconn(taken))
    assert await asyncio.wait_for(call, GUARD_SECONDS) == "seen"
    await maybe(pool.close())
    connection.execute(f"DROP ROLE {role}".encode())


@pytest.mark.slow
@pytest.mark.parametrize("api", APIS)
async def test_what_must_be_in_time_waits_for_a_server_that_is_away(
    api: type, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with database_of(api, gate.dsn, pool=PoolSettings(max_size=1, timeout=GUARD_SECONDS)) as database:
        monkeypatch.setattr(retrying, "_MIN_SECONDS", GUARD_SECONDS)
        gate.shut()
        call = asyncio.create_task(run(database, look, "run_apart", 0.05))
        await asyncio.sleep(0.5)
        assert not call.done()
        gate.is_shut = False
        assert await call == "seen"


async def is_back(database: Any) -> bool:
    try:
        return bool(await run(database, look) == "seen")
    except UnavailableError:
        return False


@pytest.mark.parametrize("api", APIS)
async def test_an_exhausted_pool_is_no_outage(api: type, gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every call waits for its turn as long as it was told to."""
    monkeypatch.setattr(retrying, "_MIN_SECONDS", 0.01)
    async with database_of(api, gate.dsn, pool=PoolSettings(max_size=1, timeout=0.1)) as database:
        taken = await maybe(database._pool.getconn())
        for _ in range(2):
            with pytest.raises(UnavailableError, match="couldn't get a connection"):
                await run(database, look)
            assert database._outage.wait_seconds(time.monotonic()) == 0.1
        await maybe(database._pool.putconn(taken))


async def test_who_is_cancelled_in_an_outage_takes_nothing_from_the_pool(gate: Gate) -> None:
    """Before and after the server is back, the pool has room for as many as before."""
    async with database_of(AsyncPGStateSaver, gate.dsn, pool=PoolSettings(max_size=3)) as database:
        barrier = asyncio.Barrier(3)

        async def meet(db: Any) -> str:
            await barrier.wait()
            return await look(db)

        assert await asyncio.gather(*(run(database, meet) for _ in range(3))) == ["seen"] * 3
        gate.shut()
        calls = [asyncio.create_task(run(database, look)) for _ in range(6)]
        await asyncio.to_thread(wait_until, lambda: waits(database), "calls that wait")
        for number, call in enumerate(calls):
            call.cancel()
            if number == 3:
                gate.is_shut = False
            await asyncio.sleep(0)
        ended = await asyncio.wait_for(asyncio.gather(*calls, return_exceptions=True), GUARD_SECONDS)
        assert {type(one) for one in ended} == {asyncio.CancelledError}
        together = asyncio.gather(*(run(database, meet) for _ in range(3)))
        assert await asyncio.wait_for(together, GUARD_SECONDS) == ["seen"] * 3


@pytest.mark.parametrize(("method", "attempts"), [("run_once", 2), ("run", 2), ("run", 1)])
@pytest.mark.parametrize("api", APIS)
async def test_what_is_run_once_is_not_run_on_a_connection_that_was_lost_before(
    api: type, method: str, attempts: int, dsn: str, schema: str, connection: psycopg.Connection
) -> None:
    """Nor does a call with few tries fail because many idle connections were lost."""
    named = make_conninfo(dsn, application_name=schema)
    options = {"pool": PoolSettings(min_size=5), "retry": RetryPolicy(attempts=attempts)}
    async with database_of(api, named, **options) as database:
        assert terminate(connection, schema) == 5
        assert await run(database, look, method) == "seen"


@pytest.mark.parametrize("api", APIS)
async def test_what_the_block_raises_is_left_as_it_is(api: type, dsn: str) -> None:
    """A timeout of another pool is none of ours."""
    with pytest.raises(PoolTimeout, match="another"):
        async with database_of(api, dsn):
            raise PoolTimeout("another pool's")


@pytest.mark.slow
@pytest.mark.parametrize("api", APIS)
async def test_a_server_that_is_still_starting_is_waited_for(api: type, gate: Gate) -> None:
    gate.shut()

    async def begin() -> Any:
        async with database_of(api, gate.dsn) as database:
            return await run(database, look)

    def opener() -> None:
        wait_until(lambda: gate.taken >= 1, "an attempt")
        gate.is_shut = False

    opening = asyncio.get_running_loop().run_in_executor(None, opener)
    # The blocking one waits on a thread of its own.
    call = asyncio.to_thread(asyncio.run, begin()) if api is PGStateSaver else begin()
    assert await asyncio.wait_for(call, GUARD_SECONDS) == "seen"
    await opening


def tries(outage: Outage, now: float, **options: Any) -> Tries:
    return Tries(RetryPolicy(**options), outage, "s", now, is_borrowed=False)


LOST = psycopg.OperationalError("server closed the connection unexpectedly")


@given(st.lists(st.tuples(st.floats(0, 40), st.floats(0, 100), st.booleans()), min_size=1, max_size=12))
def test_a_call_waits_no_longer_than_its_time_however_it_fails(failures: list[tuple[float, float, bool]]) -> None:
    """Waits and runs of any length, other calls that succeed meanwhile."""
    outage, now = Outage(30.0), 1000.0
    call = tries(outage, now, attempts=100)
    waited = 0.0
    for wait, runs, is_ended_by_another in failures:
        # A pool waits no longer than it is told.
        seconds = max(0.0, min(wait, call.remaining(now)))
        connected_at, waited = now + seconds, waited + seconds
        now = connected_at + runs
        if is_ended_by_another:
            outage.since = None
        try:
            delay = call.fail(LOST, now, None, connected_at=connected_at)
        except UnavailableError:
            break
        now, waited = now + delay, waited + delay
    assert waited <= 30.0 + 1e-6


def test_a_later_call_counts_from_when_the_outage_began() -> None:
    outage = Outage(30.0)
    assert outage.wait_seconds(0.0) == 30.0
    outage.begin(100.0, LOST)
    assert outage.wait_seconds(110.0) == 20.0
    assert outage.wait_seconds(150.0) == 2.0
    outage.begin(159.0, LOST)
    assert outage.wait_seconds(210.0) == 2.0
    # Nobody has tried for a minute.
    assert outage.wait_seconds(220.0) == 30.0
    outage.begin(221.0, LOST)
    outage.since = None
    assert outage.wait_seconds(222.0) == 30.0


@pytest.mark.parametrize("api", APIS)
async def test_a_saver_goes_on_after_an_outage(api: type, gate: Gate, schema: str) -> None:
    """Nothing acknowledged is lost, and a put that met the outage is made."""
    async with open_saver(api, gate.dsn, schema, pool=3) as saver:
        configs = await put_chain(saver, "t", 3)
        gate.shut()
        call = asyncio.create_task(saver.aput(*put_arguments(configs[-1], 3)))
        await asyncio.to_thread(wait_until, lambda: waits(saver._database), "the put waits")
        gate.is_shut = False
        configs.append(await asyncio.wait_for(call, GUARD_SECONDS))
        assert [item.config async for item in saver.alist(config_of("t"))] == configs[::-1]


@pytest.mark.parametrize("api", APIS)
async def test_an_outage_is_one_line_of_the_log(api: type, gate: Gate, caplog: pytest.LogCaptureFixture) -> None:
    """psycopg's pool logs each attempt to connect and each connection."""
    async with database_of(api, gate.dsn, pool=PoolSettings(min_size=4, max_size=4)) as database:
        await asyncio.gather(*(run(database, look) for _ in range(8)))
        gate.shut()
        calls = [asyncio.ensure_future(run(database, look)) for _ in range(8)]
        asked = gate.taken
        await asyncio.to_thread(wait_until, lambda: gate.taken > asked + 5, "several attempts to connect")
        gate.is_shut = False
        assert await asyncio.gather(*calls) == ["seen"] * 8
    (line,) = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert line.name == "langgraph_pgstate.connections"
    assert line.getMessage().startswith("no connection to PostgreSQL, trying again: ")


@pytest.mark.slow
async def test_what_pools_of_the_caller_log_is_left_alone(gate: Gate, caplog: pytest.LogCaptureFixture) -> None:
    with ConnectionPool(gate.dsn, min_size=1, max_size=1, open=True) as pool:
        database = Database(pool, schema="pgstate")
        database.run(look)
        gate.shut()
        with pytest.raises(UnavailableError):
            database.run_within(1.0, look)
    assert "psycopg.pool" in {record.name for record in caplog.records}
