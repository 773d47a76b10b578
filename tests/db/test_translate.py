"""The server's and libpq's errors as this package's."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from support import Gate, crossed

from langgraph_pgstate import AsyncPGState, AsyncPGStateSaver, PGState, PGStateSaver, PoolSettings
from langgraph_pgstate.db import connecting
from langgraph_pgstate.db.translate import is_retryable, refusal, translate
from langgraph_pgstate.errors import ConfigurationError, PGStateError, UnavailableError


@pytest.fixture
def gate(dsn: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    """An address that can be shut; pools try it again in no time."""
    monkeypatch.setattr(connecting, "_RECONNECT_SECONDS", 0.02)
    found = Gate(dsn)
    yield found
    found.close()


@asynccontextmanager
async def open_any(kind: type, dsn: str, pool: Any) -> AsyncIterator[None]:
    async with AsyncExitStack() as stack:
        opening: Any = getattr(kind, "from_conn_string", None) or kind.open  # type: ignore[attr-defined]
        entered: Any = opening(dsn, pool=pool)
        if hasattr(entered, "__aenter__"):
            await stack.enter_async_context(entered)
        else:
            stack.enter_context(entered)
        yield


# How a connection string is wrong, the error, and what it says.
WRONG: dict[str, tuple[dict[str, Any], type[PGStateError], str]] = {
    "refused": ({"host": "127.0.0.1", "port": 1}, UnavailableError, "Connection refused"),
    "all refused": ({"host": "127.0.0.1,/nowhere", "port": 1}, UnavailableError, "Connection refused.*No such file"),
    "host": ({"host": "no-such-host.invalid"}, ConfigurationError, "no-such-host.invalid"),
    "database": ({"dbname": "no_such_database"}, ConfigurationError, "no_such_database"),
    "role": ({"user": "no_such_role"}, ConfigurationError, "no_such_role"),
    "tls": ({"sslmode": "require", "sslnegotiation": None}, ConfigurationError, "SSL"),
    "role of the server": ({"target_session_attrs": "standby"}, UnavailableError, "hot standby"),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("what", "kind", "pool"),
    crossed([*WRONG], [PGState, AsyncPGState, AsyncPGStateSaver, PGStateSaver], [PoolSettings(timeout=0.1), False]),
)
async def test_opening_says_why_it_is_not_possible(what: str, kind: type, pool: Any, gate: Gate) -> None:
    changed, error, words = WRONG[what]
    with pytest.raises(error, match=words) as raised:
        async with open_any(kind, make_conninfo(gate.dsn, **changed), pool):
            pass
    assert "initialization" not in str(raised.value)
    assert isinstance(raised.value.__cause__, psycopg.Error)


@pytest.mark.parametrize(
    ("answer", "is_final"),
    [
        ("the database system is starting up", False),
        ("the database system is not accepting connections", False),
        ("sorry, too many clients already", False),
        ("terminating connection due to administrator command", False),
        ("query_wait_timeout", False),
        ("client_login_timeout (server down)", False),
        ("pooler is shutting down", False),
        ("server login has been failing, cached error: connect failed (server_login_retry)", False),
        ("no more connections allowed (max_client_conn)", False),
        ('password authentication failed for user "u"', True),
        ('no pg_hba.conf entry for host "1.2.3.4", user "u", database "d", no encryption', True),
        ("no such database: d", True),
        ("das Datenbanksystem startet", False),
        ("désolé, trop de clients sont déjà connectés", False),
        ('ユーザー"u"のパスワード認証に失敗しました', False),
        ('pg_hba.conf にホスト"h"、ユーザー"u"、データベース"d, no encryption用のエントリがありません', True),
    ],
)
def test_a_refusal_that_passes_is_waited_for(answer: str, is_final: bool) -> None:
    """Also a pooler's; of several servers one that may come back is enough."""
    error = psycopg.OperationalError(
        f'connection failed: connection to server at "::1", port 5432 failed: FATAL:  {answer}'
    )
    assert (refusal(error) is not None) is is_final
    assert answer in str(translate(error, "s"))
    several = psycopg.OperationalError(
        f"{error}\nMultiple connection attempts failed. All failures were:\n- host: 'a', port: '1', hostaddr: None: "
        f"connection failed: Connection refused\n- host: 'b', port: '1', hostaddr: None: {error}"
    )
    assert refusal(several) is None
    assert answer in str(translate(several, "s"))


def test_a_result_that_libpq_made_of_a_lost_connection_is_a_loss(connection: psycopg.Connection) -> None:
    """Taken for a refusal of the server's, a COMMIT that it ends would be recorded as its tool's failure."""
    result = connection.pgconn.make_empty_result(psycopg.pq.ExecStatus.FATAL_ERROR)
    error = psycopg.errors.error_from_result(result)
    assert type(error) is psycopg.DatabaseError
    assert type(translate(error, "pgstate")) is UnavailableError
    assert is_retryable(error)
