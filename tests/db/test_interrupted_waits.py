"""Blocking calls that a signal handler interrupts while they wait for a pooled connection, or use one."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import psycopg
import pytest
from psycopg_pool import ConnectionPool
from support import config_of, wait_until

from langgraph_pgstate import PGStateSaver
from langgraph_pgstate.db.database import Database
from langgraph_pgstate.errors import DatabaseError, UnavailableError
from langgraph_pgstate.options import PoolSettings


class Interrupted(BaseException):
    pass


@pytest.fixture
def interrupts() -> Iterator[None]:
    """A handler of SIGALRM that raises, as that of SIGINT does."""

    def interrupt(*_: object) -> None:
        raise Interrupted

    before = signal.signal(signal.SIGALRM, interrupt)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 3])
def test_an_interrupted_wait_loses_no_connection(size: int, dsn: str, schema: str, interrupts: None) -> None:
    """Connections that come back are not given to clients that have left."""
    with PGStateSaver.from_conn_string(dsn, schema=schema, pool=PoolSettings(min_size=size, max_size=size)) as saver:
        saver.setup()
        pool = saver._database._pool
        assert pool is not None
        for _ in range(3):
            held = [pool.getconn() for _ in range(size)]
            for number in range(5):
                signal.setitimer(signal.ITIMER_REAL, 0.05 + 0.01 * number)
                with pytest.raises(Interrupted):
                    saver.get_tuple(config_of("t"))
            for connection in held:
                pool.putconn(connection)

            def all_are_back() -> bool:
                statistics = saver._database.pool_statistics
                return statistics["pool_available"] == size and not statistics["requests_waiting"]

            wait_until(all_are_back, "all connections of the pool")
        assert saver.get_tuple(config_of("t")) is None


@pytest.mark.slow
def test_a_wait_in_the_main_thread_ends_as_in_any_other(dsn: str, schema: str) -> None:
    with PGStateSaver.from_conn_string(
        dsn, schema=schema, pool=PoolSettings(min_size=1, max_size=1, timeout=2)
    ) as saver:
        saver.setup()
        pool = saver._database._pool
        assert pool is not None
        held = pool.getconn()
        with pytest.raises(UnavailableError, match="couldn't get a connection"):
            saver.get_tuple(config_of("t"))
        back = threading.Timer(0.05, pool.putconn, [held])
        back.start()
        assert saver.get_tuple(config_of("t")) is None
        back.join()


def raises_at(line: int, call: Callable[[], None]) -> bool:
    """Call, and raise at this line of psycopg's module of transactions, counted as executed; whether it has so many."""
    module, passed = psycopg.transaction.__file__, 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal passed
        if frame.f_code.co_filename != module:
            return None
        if event == "line":
            passed += 1
            if passed == line:
                raise Interrupted
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    except (Interrupted, DatabaseError):
        # psycopg raises its own error instead where it notices.
        return True
    finally:
        sys.settrace(before)
    return False


def lend(database: Database) -> None:
    with database.lend() as (connection, _):
        connection.execute("SELECT 1")


def run(database: Database) -> None:
    database.run(transact)


def run_once(database: Database) -> None:
    database.run_once(transact)


async def transact(db: Any) -> None:
    async with db.transaction():
        await db.script("SELECT 1")


@pytest.mark.timeout(30)
@pytest.mark.parametrize("call", [lend, run, run_once])
@pytest.mark.parametrize("pool", [False, 1])
@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited")
def test_a_connection_in_whose_transaction_a_call_was_interrupted_is_not_used_again(
    pool: Any, call: Callable[[Database], None], dsn: str
) -> None:
    """At any line: psycopg counts the transactions of a connection, and miscounts if it is interrupted there."""
    with Database.open(dsn, schema="public", pool=pool) as database:
        line = 1
        while raises_at(line, lambda: call(database)):
            call(database)
            line += 1
    assert line > 40


def test_a_callers_connection_is_his_after_an_interrupt(dsn: str) -> None:
    async def interrupt(_: Any) -> None:
        raise Interrupted

    with psycopg.connect(dsn) as own:
        with pytest.raises(Interrupted):
            Database(own, schema="public").run(interrupt)
        assert not own.closed
        assert not own.autocommit
    with ConnectionPool(dsn, min_size=1, max_size=1) as pool:
        with pytest.raises(Interrupted):
            Database(pool, schema="public").run(interrupt)
        with pool.connection() as connection:
            assert not connection.autocommit
