"""Connection strings that are refused, and errors that give no part of a password away."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from langgraph_pgstate import AsyncPGState, AsyncPGStateSaver, PGState, PGStateSaver
from langgraph_pgstate.admin.api import Admin
from langgraph_pgstate.db.dsn import read_dsn
from langgraph_pgstate.db.listening import Listener
from langgraph_pgstate.errors import ConfigurationError, PGStateError

SECRET = "hunter2x"  # pragma: allowlist secret
MALFORMED = [
    f"postgresql://u:{SECRET}@h:notaport/db",
    f"postgresql://u:{SECRET}/x@h/db",
    f"postgresql://u:{SECRET}%zz@h/db",  # pragma: allowlist secret
    f"postgresql://u:{SECRET}%@h/db",  # pragma: allowlist secret
    f"postgresql://u:a@{SECRET}@h/db",
    f"postgresql://u:a/{SECRET}@h/db",
    f"postgresql://u:1/{SECRET}@h/db",
    f"postgresql://u:p@@{SECRET}@h/db",
    f"postgresql://u:{SECRET}@[::1/db",
    f"postgresql://u:{SECRET}@h:1,h2:x/db",
    f"postgresql://u@h/db?password={SECRET}&foo=1",
    f"postgresql://u@h/db?password={SECRET}%zz",
    f"postgresql://u@h/db?password=a&{SECRET}",
    f"postgresql://u@h/db?password=a={SECRET}",
    f"postgresql://u@h/db?passwordd={SECRET}",
    f"postgresql://u@h/db?sslpassword={SECRET}&sslmod=require",
    f"postgres//u:{SECRET}@h/db",
    f"postgresql:/u:{SECRET}@h/db",
    f"postgresql+psycopg://u:{SECRET}@h/db",
    f"jdbc:postgresql://h/db?user=u&password={SECRET}",
    f" postgresql://u:{SECRET}@h/db",
    f"u:{SECRET}@h/db",
    SECRET,
    f"host=h user=u password={SECRET} foo=bar",
    f"host=h password='{SECRET} user=u",
    f"host=h password=a {SECRET}",
    f"host=h password=a {SECRET}=1",
    f"host=h;password={SECRET};user=u",
    f"Server=h;Password={SECRET}",
    f"host=h port={SECRET}",
    f"service=s password=a {SECRET}",
    f"host=h password={SECRET}\0",
    f"host=h password={SECRET}\udc80",
]


@pytest.mark.parametrize("dsn", MALFORMED)
def test_an_error_quotes_nothing_of_a_malformed_string(dsn: str) -> None:
    with pytest.raises(ConfigurationError, match="dsn is not a usable connection string") as caught:
        read_dsn(dsn)
    assert SECRET not in str(caught.value)
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None


def test_a_misspelt_option_is_named_by_the_known_one() -> None:
    with pytest.raises(ConfigurationError, match="did you mean password"):
        read_dsn("host=h pasword=x")


@pytest.mark.parametrize(
    "dsn",
    [
        "postgresql://",
        "postgres://u:p%40%2F%25@h:5432/db?sslmode=disable",  # pragma: allowlist secret
        "postgresql://u@[::1]:5432/db",
        "postgresql://u@a:1,b:2,c/db?target_session_attrs=any",
        "postgresql:///db?host=/tmp/a%20b@c",
        "postgresql://u:p@/db?host=%2Ftmp%2Fx&port=5433",
        "host=/var/run/a;b dbname=d password='a b@c/d'",  # pragma: allowlist secret
        "host=@abstract dbname=d",
        "host=a,b port=1,2",
        "service=s",
        "dbname=a@b/c",
    ],
)
def test_what_libpq_reads_is_read(dsn: str) -> None:
    assert read_dsn(dsn) == psycopg.conninfo.conninfo_to_dict(dsn)


@pytest.mark.parametrize("dsn", ["", "  \n", None, b"host=h", 5])
@pytest.mark.parametrize(
    "take",
    [
        PGState.open,
        PGStateSaver.from_conn_string,
        AsyncPGState.open,
        AsyncPGStateSaver.from_conn_string,
        Admin.open,
        lambda dsn: Listener(dsn, "c", print),
    ],
)
async def test_no_string_and_an_empty_one_are_refused_by_name(take: Callable[[Any], Any], dsn: Any) -> None:
    """libpq would connect to the server of the environment or of the local socket."""
    with pytest.raises(PGStateError, match=r"dsn (is empty|must be a connection string)"):
        await enter(take(dsn))


async def enter(opened: Any) -> None:
    if hasattr(opened, "__aenter__"):
        async with opened:
            return
    with opened:
        return


@pytest.mark.slow
def test_a_password_is_in_no_log_while_it_is_used(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with (
        pytest.raises(PGStateError) as caught,
        PGState.open(f"host=127.0.0.1 port=1 password={SECRET} connect_timeout=2", pool=False),
    ):
        pass
    assert SECRET not in caplog.text + "".join(traceback.format_exception(caught.value))
