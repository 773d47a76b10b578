"""Opening connections and pools: refused, without a server, and with settings that the DSN or a pool has."""

from __future__ import annotations

import socket
from typing import Any

import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg_pool import ConnectionPool
from support import APIS, open_saver

from langgraph_pgstate import AsyncPGStateSaver, PGStateSaver, PoolSettings
from langgraph_pgstate.db.connecting import connection_options, dsn_of, prepare_threshold_of
from langgraph_pgstate.errors import ConfigurationError, UnavailableError


def test_network_settings_of_the_connection_string_take_precedence() -> None:
    options = connection_options("host=h keepalives_idle=7", 3, 4.9)
    assert "keepalives_idle" not in options
    assert (options["keepalives_count"], options["connect_timeout"], options["prepare_threshold"]) == (3, 4, 3)
    assert connection_options("host=h", None, 0.1)["connect_timeout"] == 2


def test_a_pool_of_the_caller_tells_how_to_open_further_connections() -> None:
    """Only what libpq knows is part of a connection string."""
    kwargs: dict[str, Any] = {"password": "p q", "autocommit": True, "prepare_threshold": None}
    pool: ConnectionPool[Any] = ConnectionPool("host=h", kwargs=kwargs, open=False)
    assert conninfo_to_dict(dsn_of(pool, None)) == {"host": "h", "password": "p q"}  # pragma: allowlist secret
    assert prepare_threshold_of(pool, None) is None
    with pytest.raises(ConfigurationError, match="connection string"):
        dsn_of(None, None)


@pytest.mark.parametrize("api", APIS)
async def test_a_pool_without_a_server_gives_up_after_its_timeout(api: type) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(UnavailableError, match=r"0\.2 s"):
        async with open_saver(api, f"host=127.0.0.1 port={port}", "pgstate", pool=PoolSettings(timeout=0.2)):
            pass


@pytest.mark.parametrize("pool", [True, False])
@pytest.mark.parametrize("api", [PGStateSaver, AsyncPGStateSaver])
async def test_a_refused_connection_says_why_at_once(api: type, pool: bool, dsn: str) -> None:
    """No pool's timeout is waited for, and it is no passing condition."""
    wrong = make_conninfo(dsn, dbname="no_such_database")
    with pytest.raises(ConfigurationError, match="no_such_database") as refused:
        await open_and_close(api, wrong, pool)
    assert not refused.value.retryable


@pytest.mark.parametrize("api", [PGStateSaver, AsyncPGStateSaver])
async def test_a_connection_string_that_is_none_is_refused(api: type) -> None:
    """Before anything is tried."""
    with pytest.raises(ConfigurationError, match="not a usable connection string"):
        await open_and_close(api, "nonsense", True)


async def open_and_close(api: type, dsn: str, pool: bool) -> None:
    if api is PGStateSaver:
        with PGStateSaver.from_conn_string(dsn, pool=pool):
            return
    async with AsyncPGStateSaver.from_conn_string(dsn, pool=pool):
        return
