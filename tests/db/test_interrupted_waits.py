"""Blocking calls that a signal handler interrupts while they wait for a pooled connection."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator

import pytest
from support import config_of, wait_until

from langgraph_pgstate import PGStateSaver
from langgraph_pgstate.errors import UnavailableError
from langgraph_pgstate.settings import PoolSettings


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
