"""Setting up the schema: from many processes, in a caller's transaction, under hostile settings; and the migrations."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo
from support import (
    APIS,
    GUARD_SECONDS,
    check_each,
    config_of,
    holding,
    open_saver,
    put_arguments,
    put_chain,
    run_children,
    set_up,
)

from langgraph_pgstate import AsyncPGStateSaver, PGStateSaver
from langgraph_pgstate.admin.api import Admin
from langgraph_pgstate.db.database import Database
from langgraph_pgstate.errors import (
    ConfigurationError,
    DatabaseError,
    MigrationConflictError,
    SchemaError,
    SchemaMissingError,
    SchemaOutdatedError,
)
from langgraph_pgstate.schema import setup as operations
from langgraph_pgstate.schema.queries import Migration, langgraph_tables, migrations, queries
from langgraph_pgstate.schema.setup import get_status, migrate_to, setup_script

# Partitions that `setup` makes ahead, by the calendar and no migration's.
pytestmark = pytest.mark.bare

PERIOD = re.compile(r"\b(spans|stream_batches)_[0-9]{4}_[0-9]{2}")
SAVER_TABLES = {"threads", "checkpoints", "segments", "writes", "data_keys"}
RECORD_TABLES = {
    "projections",
    "answers",
    "journal",
    "holds",
    "labels",
    "leases",
    "tombstones",
    "runs",
    "spans",
    "tool_executions",
    "messages",
    "events",
    "prices",
    "feedback",
}
QUEUE_TABLES = {
    *("queue", "run_requests", "workers", "stream_batches", "schedules"),
    *("exporters", "span_exports", "maintenance"),
    *("queue_limits", "queue_keys", "budgets", "deleted_costs", "webhooks", "assistants", "assistant_versions"),
}
FILE_TABLES = {"files", "file_texts", "file_versions"}
AUDIT_TABLES = {"event_chaining", "event_chains", "event_hashes", "event_chain_ends", "erasures"}
MEMORY_TABLES = {"memories", "memory_versions", "large_namespaces", "memory_indexes"}
KEEP_TABLES = {"archives", "archived_threads", "retention_policies"}
TABLES = SAVER_TABLES | RECORD_TABLES | QUEUE_TABLES | FILE_TABLES | AUDIT_TABLES | MEMORY_TABLES | KEEP_TABLES


def set_up_in_a_process(dsn: str, schema: str) -> None:
    with PGStateSaver.from_conn_string(dsn, schema=schema, pool=False) as saver:
        saver.setup()


def tables(connection: psycopg.Connection, schema: str) -> set[str]:
    """The tables of a schema; which months have partitions depends on the day."""
    rows = connection.execute(
        "SELECT c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace "
        "WHERE n.nspname = %s AND c.relkind IN ('r', 'p') AND NOT c.relispartition",
        [schema],
    ).fetchall()
    return {row[0] for row in rows}


def catalog(connection: psycopg.Connection, schema: str) -> dict[str, list[tuple[Any, ...]]]:
    """All that tells one schema from another: columns, constraints, indexes, options; its own name left out."""
    found = {}
    for what, query in {
        "relations": """
            SELECT c.relname, c.relkind, c.relpersistence, c.reloptions, t.reloptions, c.relrowsecurity, a.amname
            FROM pg_class c LEFT JOIN pg_class t ON t.oid = c.reltoastrelid LEFT JOIN pg_am a ON a.oid = c.relam
            WHERE c.relnamespace = %s::regnamespace ORDER BY 1""",
        "columns": """
            SELECT c.relname, a.attname, row_number() OVER (PARTITION BY c.oid ORDER BY a.attnum),
                format_type(a.atttypid, a.atttypmod), o.collname, a.attnotnull,
                a.attstorage, a.attcompression, a.attidentity, a.attgenerated, pg_get_expr(d.adbin, d.adrelid)
            FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid
                LEFT JOIN pg_collation o ON o.oid = a.attcollation
                LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
            WHERE c.relnamespace = %s::regnamespace AND a.attnum > 0 AND NOT a.attisdropped ORDER BY 1, 3""",
        "constraints": """
            SELECT conrelid::regclass::text, conname, contype, pg_get_constraintdef(oid)
            FROM pg_constraint WHERE connamespace = %s::regnamespace ORDER BY 1, 2""",
        "indexes": """
            SELECT indexrelid::regclass::text, indisprimary, indisunique, pg_get_indexdef(indexrelid)
            FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
            WHERE c.relnamespace = %s::regnamespace ORDER BY 1""",
        "views": """
            SELECT relname, pg_get_viewdef(oid) FROM pg_class
            WHERE relnamespace = %s::regnamespace AND relkind = 'v' ORDER BY 1""",
        "comments": """
            SELECT c.relname, a.attname, d.description FROM pg_description d
                JOIN pg_class c ON d.classoid = 'pg_class'::regclass AND c.oid = d.objoid
                LEFT JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = d.objsubid AND a.attnum > 0
            WHERE c.relnamespace = %s::regnamespace ORDER BY 1, 2 NULLS FIRST""",
        "routines": "SELECT proname, prosrc FROM pg_proc WHERE pronamespace = %s::regnamespace ORDER BY 1",
        "triggers": """
            SELECT t.tgname, pg_get_triggerdef(t.oid) FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid
            WHERE NOT t.tgisinternal AND c.relnamespace = %s::regnamespace ORDER BY 1""",
    }.items():
        rows = connection.execute(query, [f'"{schema}"']).fetchall()
        found[what] = [
            tuple(cell.replace(f"{schema}.", "") if isinstance(cell, str) else cell for cell in row)
            for row in rows
            if not (isinstance(row[0], str) and PERIOD.search(row[0]))
        ]
    return found


@pytest.fixture
def second_schema(connection: psycopg.Connection, schema: str) -> Iterator[str]:
    """Another schema that does not exist yet."""
    name = f"{schema}_b"
    yield name
    connection.execute(f'DROP SCHEMA IF EXISTS "{name}" CASCADE')


def on(connection: psycopg.Connection, schema: str) -> Database:
    return Database(connection, schema=schema)


@pytest.mark.slow
def test_sixteen_processes_set_up_an_empty_database_at_once(
    dsn: str, schema: str, connection: psycopg.Connection
) -> None:
    """All succeed while another session sits idle in a transaction with locks, a snapshot and a transaction id."""
    other = f"{schema}_other"
    with holding(
        dsn,
        "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ",
        f"CREATE SCHEMA {other}",
        f"CREATE TABLE {other}.things (id int PRIMARY KEY)",
        f"INSERT INTO {other}.things VALUES (1)",
        "SELECT count(*) FROM pg_class",
    ):
        assert run_children(set_up_in_a_process, [(dsn, schema)] * 16) == [""] * 16
    assert tables(connection, schema) == TABLES | {"migrations"}
    assert connection.execute(f"SELECT count(*) FROM {schema}.migrations").fetchone() == (len(migrations()),)


@pytest.mark.slow
def test_processes_set_up_again_while_a_session_is_idle_in_a_transaction_on_the_tables(dsn: str, schema: str) -> None:
    """What every start of every process does: nothing waits for a transaction that read and wrote the tables."""
    set_up_in_a_process(dsn, schema)
    touched = [f"SELECT count(*) FROM {schema}.{table}" for table in TABLES]
    with holding(dsn, *touched, f"INSERT INTO {schema}.threads (thread_id) VALUES ('x')"):
        assert run_children(set_up_in_a_process, [(dsn, schema)] * 4) == [""] * 4


@pytest.mark.slow
def test_sixteen_processes_set_up_under_repeatable_read(dsn: str, schema: str, connection: psycopg.Connection) -> None:
    """A server or a role whose default isolation is stricter makes no difference."""
    strict = make_conninfo(dsn, options="-c default_transaction_isolation=repeatable\\ read")
    assert run_children(set_up_in_a_process, [(strict, schema)] * 16) == [""] * 16
    assert tables(connection, schema) == TABLES | {"migrations"}


def test_setup_in_a_callers_transaction_leaves_nothing_after_her_rollback(
    dsn: str, schema: str, connection: psycopg.Connection
) -> None:
    with psycopg.connect(dsn) as own:
        own.execute("SELECT 1")
        PGStateSaver(own, schema=schema).setup()
        assert tables(own, schema) == TABLES | {"migrations"}
        own.rollback()
    assert connection.execute("SELECT to_regnamespace(%s)", [schema]).fetchone() == (None,)


@pytest.mark.slow
def test_setup_in_a_callers_transaction_is_there_after_her_commit(
    dsn: str, schema: str, connection: psycopg.Connection
) -> None:
    with psycopg.connect(dsn) as own:
        with own.transaction():
            saver = PGStateSaver(own, schema=schema)
            saver.setup()
            saver.put(*put_arguments(config_of("t"), 0))
            assert tables(connection, schema) == set()
        assert tables(connection, schema) == TABLES | {"migrations"}
        assert saver.get_tuple(config_of("t")) is not None


async def test_async_setup_in_a_callers_transaction_rolls_back(
    dsn: str, schema: str, connection: psycopg.Connection
) -> None:
    async with await psycopg.AsyncConnection.connect(dsn) as own:
        await own.execute("SELECT 1")
        await AsyncPGStateSaver(own, schema=schema).setup()
        await own.rollback()
    assert connection.execute("SELECT to_regnamespace(%s)", [schema]).fetchone() == (None,)


def test_a_failed_setup_leaves_nothing_half_made(dsn: str, schema: str, connection: psycopg.Connection) -> None:
    """An index of that name in the way: the error names it, and no table was made."""
    connection.execute(f"CREATE SCHEMA {schema}")
    connection.execute(f"CREATE TABLE {schema}.writes_run_id_idx (mine int)")
    refused = pytest.raises(ConfigurationError, match="writes_run")
    with PGStateSaver.from_conn_string(dsn, schema=schema) as saver, refused:
        saver.setup()
    assert tables(connection, schema) == {"writes_run_id_idx"}


@pytest.mark.slow
@pytest.mark.parametrize("api", APIS)
async def test_a_second_setup_neither_writes_nor_locks(
    api: type, dsn: str, schema: str, connection: psycopg.Connection
) -> None:
    """It returns while another session holds every table, and the record of migrations against writers."""
    set_up_in_a_process(dsn, schema)
    before = catalog(connection, schema)
    locks = [f"LOCK TABLE {schema}.{table} IN ACCESS EXCLUSIVE MODE" for table in TABLES]
    with holding(dsn, *locks, f"LOCK TABLE {schema}.migrations IN EXCLUSIVE MODE"):
        async with open_saver(api, dsn, schema, setup=False) as saver:
            await asyncio.wait_for(set_up(saver), GUARD_SECONDS)
    assert catalog(connection, schema) == before


@pytest.mark.slow
@pytest.mark.parametrize("schema_name", ["tenant_a", "_x$1", "select", "t" * 63])
def test_any_schema_name_works(dsn: str, connection: psycopg.Connection, schema_name: str) -> None:
    """Tenants' schemas stand beside each other; a keyword or the longest name is no special case."""
    name = f"tenant_{os.getpid()}" if schema_name == "tenant_a" else schema_name
    try:
        with PGStateSaver.from_conn_string(dsn, schema=name) as saver:
            saver.setup()
            config = saver.put(*put_arguments(config_of("t"), 0))
            assert saver.get_tuple(config) is not None
        assert tables(connection, name) == TABLES | {"migrations"}
    finally:
        connection.execute(sql.SQL("DROP SCHEMA IF EXISTS {} CASCADE").format(sql.Identifier(name)))


@pytest.mark.parametrize("name", ["", "Tenant", "a-b", 'a"b', "a.b", "t" * 64, "1a", "a;drop table x", None])
def test_a_schema_name_that_needs_quoting_is_refused(dsn: str, name: Any) -> None:
    with pytest.raises(ConfigurationError, match="schema"), PGStateSaver.from_conn_string(dsn, schema=name):
        pass


@pytest.mark.slow
def test_two_schemas_do_not_see_each_other(dsn: str, schema: str, second_schema: str) -> None:
    with (
        PGStateSaver.from_conn_string(dsn, schema=schema) as one,
        PGStateSaver.from_conn_string(dsn, schema=second_schema) as two,
    ):
        one.setup()
        two.setup()
        one.put(*put_arguments(config_of("t"), 0))
        assert two.get_tuple(config_of("t")) is None


@pytest.fixture
def role(connection: psycopg.Connection, schema: str) -> Iterator[str]:
    """A role without any rights of its own."""
    name = f"{schema}_role"
    connection.execute(f"CREATE ROLE {name}")
    yield name
    connection.execute(f"DROP OWNED BY {name}")
    connection.execute(f"DROP ROLE {name}")


@pytest.mark.slow
def test_a_role_that_cannot_create_schemas_sets_up_in_one_it_was_given(
    dsn: str, schema: str, role: str, connection: psycopg.Connection
) -> None:
    connection.execute(f"CREATE SCHEMA {schema}")
    connection.execute(f"GRANT USAGE, CREATE ON SCHEMA {schema} TO {role}")
    with PGStateSaver.from_conn_string(make_conninfo(dsn, options=f"-c role={role}"), schema=schema) as saver:
        saver.setup()
        saver.put(*put_arguments(config_of("t"), 0))
        assert saver.get_tuple(config_of("t")) is not None
    with (
        PGStateSaver.from_conn_string(
            make_conninfo(dsn, options=f"-c role={role}"), schema=f"{schema}_absent"
        ) as saver,
        pytest.raises(DatabaseError, match="permission denied"),
    ):
        saver.setup()


@pytest.mark.slow
async def test_a_role_that_may_only_read_and_write_needs_no_more(
    dsn: str, schema: str, role: str, connection: psycopg.Connection
) -> None:
    """The application's role: setup is a no-op for it, and every call works without owning anything."""
    set_up_in_a_process(dsn, schema)
    connection.execute(f"GRANT USAGE ON SCHEMA {schema} TO {role}")
    connection.execute(f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {schema} TO {role}")
    with PGStateSaver.from_conn_string(make_conninfo(dsn, options=f"-c role={role}"), schema=schema) as saver:
        saver.setup()
        await exercise(saver)
    for change in ("DROP TABLE {}.threads", "CREATE TABLE {}.more ()", "ALTER TABLE {}.threads ADD more text"):
        with (
            psycopg.connect(make_conninfo(dsn, options=f"-c role={role}")) as own,
            pytest.raises(psycopg.errors.InsufficientPrivilege),
        ):
            own.execute(change.format(schema).encode())


async def exercise(saver: PGStateSaver | AsyncPGStateSaver) -> None:
    """Every kind of call once."""
    configs = await put_chain(saver, "t", 3)
    await saver.aput_writes(configs[-1], [("messages", "x")], "task")
    assert (await saver.aget_tuple(config_of("t"))).config == configs[-1]
    assert len([item async for item in saver.alist(config_of("t"))]) == 3
    assert len([item async for item in saver.alist(None, filter={"step": 1})]) == 1
    await saver.acopy_thread("t", "u")
    await saver.aprune(["t"], keep_last=2)
    assert len([item async for item in saver.alist(config_of("t"))]) == 2
    await saver.adelete_for_runs(["none"])
    await saver.adelete_thread("t")
    assert await saver.aget_tuple(config_of("t")) is None
    assert (await saver.aget_tuple(config_of("u"))).config["configurable"]["thread_id"] == "u"


@pytest.mark.slow
@pytest.mark.parametrize("api", APIS)
async def test_nothing_depends_on_search_path(api: type, dsn: str, schema: str, connection: psycopg.Connection) -> None:
    """Decoys of every table first on the path stay untouched, and nothing of ours lands among them."""
    decoys = f"{schema}_decoys"
    connection.execute(f"CREATE SCHEMA {decoys}")
    try:
        for table in TABLES | {"migrations"}:
            connection.execute(f"CREATE TABLE {decoys}.{table} (thread_id text, nothing int)")
        async with open_saver(api, make_conninfo(dsn, options=f"-c search_path={decoys}"), schema) as saver:
            await exercise(saver)
        assert tables(connection, decoys) == TABLES | {"migrations"}
        for table in TABLES | {"migrations"}:
            assert connection.execute(f"SELECT count(*) FROM {decoys}.{table}").fetchone() == (0,)
    finally:
        connection.execute(f"DROP SCHEMA {decoys} CASCADE")


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("exists", [False, True])
async def test_without_setup_the_error_names_the_command(
    api: type, exists: bool, dsn: str, schema: str, connection: psycopg.Connection
) -> None:
    if exists:
        connection.execute(f"CREATE SCHEMA {schema}")
    async with open_saver(api, dsn, schema, setup=False) as saver:
        for call in (
            lambda: saver.aget_tuple(config_of("t")),
            lambda: saver.aput(*put_arguments(config_of("t"), 0)),
            lambda: saver.adelete_thread("t"),
        ):
            with pytest.raises(SchemaMissingError, match=f"pgstate --schema {schema} setup"):
                await call()


@pytest.mark.slow
@pytest.mark.parametrize("api", APIS)
async def test_setup_after_a_refused_call_makes_the_saver_usable(api: type, dsn: str, schema: str) -> None:
    async with open_saver(api, dsn, schema, setup=False) as saver:
        with pytest.raises(SchemaMissingError):
            await saver.aget_tuple(config_of("t"))
        set_up_in_a_process(dsn, schema)
        assert await saver.aget_tuple(config_of("t")) is None


@pytest.mark.slow
@pytest.mark.parametrize("api", APIS)
async def test_a_schema_dropped_under_a_running_saver_is_said_to_be_missing(
    api: type, dsn: str, schema: str, connection: psycopg.Connection
) -> None:
    async with open_saver(api, dsn, schema) as saver:
        await put_chain(saver, "t", 1)
        connection.execute(f"DROP SCHEMA {schema} CASCADE")
        with pytest.raises(SchemaMissingError, match=schema):
            await saver.aget_tuple(config_of("t"))


@pytest.mark.parametrize("api", APIS)
async def test_a_newer_schema_is_refused(api: type, dsn: str, schema: str, connection: psycopg.Connection) -> None:
    set_up_in_a_process(dsn, schema)
    connection.execute(f"INSERT INTO {schema}.migrations (version, name, checksum) VALUES (900, 'later', 'x')")
    async with open_saver(api, dsn, schema, setup=False) as saver:
        for call in (lambda: saver.aget_tuple(config_of("t")), lambda: set_up(saver)):
            with pytest.raises(SchemaOutdatedError, match="upgrade langgraph_pgstate") as refused:
                await call()
            assert (refused.value.found, refused.value.expected) == (900, migrations()[-1].version)


@pytest.mark.slow
@pytest.mark.parametrize("api", APIS)
async def test_a_schema_that_is_newer_by_additions_is_used(
    api: type, dsn: str, schema: str, connection: psycopg.Connection
) -> None:
    set_up_in_a_process(dsn, schema)
    later = f"INSERT INTO {schema}.migrations (version, name, checksum, is_additive) VALUES (%s, 'later', 'x', %s)"
    connection.execute(later, [900, True])
    async with open_saver(api, dsn, schema, setup=False) as saver:
        await put_chain(saver, "t", 1)
        await set_up(saver)
    connection.execute(later, [901, False])
    async with open_saver(api, dsn, schema, setup=False) as saver:
        with pytest.raises(SchemaOutdatedError):
            await saver.aget_tuple(config_of("t"))


def test_a_migration_says_that_it_only_adds(
    dsn: str, schema: str, connection: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_up_in_a_process(dsn, schema)
    shipped = (*migrations(), one_more_migration()._replace(is_additive=True))
    monkeypatch.setattr(operations, "migrations", lambda: shipped)
    set_up_in_a_process(dsn, schema)
    rows = connection.execute(f"SELECT is_additive FROM {schema}.migrations ORDER BY version").fetchall()
    assert rows == [(step.is_additive,) for step in shipped]


def one_more_migration() -> Migration:
    number = migrations()[-1].version + 1
    return Migration(number, "add_more", "CREATE TABLE /*schema*/more (id int);", "DROP TABLE /*schema*/more;", "more")


@pytest.mark.parametrize("api", APIS)
async def test_an_older_schema_is_refused_until_setup_has_moved_it_up(
    api: type, dsn: str, schema: str, connection: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_up_in_a_process(dsn, schema)
    shipped = (*migrations(), one_more_migration())
    monkeypatch.setattr(operations, "migrations", lambda: shipped)
    async with open_saver(api, dsn, schema, setup=False) as saver:
        with pytest.raises(SchemaOutdatedError, match=f"pgstate --schema {schema} migrate") as refused:
            await saver.aget_tuple(config_of("t"))
        assert (refused.value.found, refused.value.expected) == (shipped[-2].version, shipped[-1].version)
        await set_up(saver)
        assert await saver.aget_tuple(config_of("t")) is None
    assert "more" in tables(connection, schema)


@pytest.mark.slow
def test_sixteen_processes_upgrade_at_once_while_a_session_is_idle(
    dsn: str, schema: str, connection: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_up_in_a_process(dsn, schema)
    shipped = (*migrations(), one_more_migration())
    monkeypatch.setattr(operations, "migrations", lambda: shipped)
    with holding(dsn, f"SELECT count(*) FROM {schema}.checkpoints"):
        assert run_children(set_up_in_a_process, [(dsn, schema)] * 16) == [""] * 16
    assert connection.execute(f"SELECT max(version) FROM {schema}.migrations").fetchone() == (shipped[-1].version,)


@pytest.mark.parametrize("api", APIS)
async def test_a_migration_applied_with_another_text_is_a_conflict(
    api: type, dsn: str, schema: str, connection: psycopg.Connection
) -> None:
    set_up_in_a_process(dsn, schema)
    connection.execute(f"UPDATE {schema}.migrations SET checksum = 'edited by hand' WHERE version = 1")
    async with open_saver(api, dsn, schema, setup=False) as saver:
        for call in (lambda: saver.aget_tuple(config_of("t")), lambda: set_up(saver)):
            with pytest.raises(MigrationConflictError, match="0001_create was applied") as refused:
                await call()
            assert refused.value.version == 1


@pytest.mark.parametrize("api", APIS)
async def test_a_schema_whose_migrations_were_many_is_exported_and_imported(
    api: type, dsn: str, schema: str, connection: psycopg.Connection
) -> None:
    set_up_in_a_process(dsn, schema)
    connection.execute(f"UPDATE {schema}.migrations SET name = 'create_checkpoints', checksum = 'old'")
    async with open_saver(api, dsn, schema, setup=False) as saver:
        for call in (lambda: saver.aget_tuple(config_of("t")), lambda: set_up(saver)):
            with pytest.raises(MigrationConflictError, match="export-langgraph"):
                await call()


@pytest.mark.slow
@pytest.mark.parametrize("runner", ["one message", "psql"])
def test_the_printed_script_does_what_setup_does(
    runner: str, dsn: str, schema: str, second_schema: str, connection: psycopg.Connection
) -> None:
    """People who run their own migrations get the same tables and the same record, and setup has nothing left to do."""
    if runner == "psql":
        if shutil.which("psql") is None:
            pytest.skip("psql is not installed")
        subprocess.run(
            ["psql", "-X", "-q", "-v", "ON_ERROR_STOP=1", "-d", dsn, "-f", "-"],
            input=setup_script(second_schema).encode(),
            check=True,
            timeout=GUARD_SECONDS,
        )
    else:
        connection.execute(setup_script(second_schema).encode())
    set_up_in_a_process(dsn, schema)
    assert catalog(connection, second_schema) == catalog(connection, schema)
    record = "SELECT version, name, checksum FROM {}.migrations ORDER BY 1"
    assert (
        connection.execute(record.format(second_schema)).fetchall()
        == connection.execute(record.format(schema)).fetchall()
    )
    assert on(connection, second_schema).run(operations.setup, queries(second_schema)) == []


def test_every_table_view_and_column_has_a_comment(dsn: str, schema: str, connection: psycopg.Connection) -> None:
    set_up_in_a_process(dsn, schema)
    found = connection.execute(
        """
        SELECT concat_ws('.', c.relname, a.attname), col_description(c.oid, a.attnum),
            obj_description(c.oid, 'pg_class')
        FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
        WHERE c.relnamespace = %s::regnamespace AND c.relkind IN ('r', 'p', 'v') AND NOT c.relispartition
        """,
        [f'"{schema}"'],
    ).fetchall()
    assert len(found) > 300
    assert [name for name, column, relation in found if not column or not relation] == []


@pytest.mark.slow
def test_migrating_step_by_step_equals_a_fresh_setup(
    dsn: str, schema: str, second_schema: str, connection: psycopg.Connection
) -> None:
    set_up_in_a_process(dsn, schema)
    database = on(connection, second_schema)
    for step in migrations():
        assert database.run(migrate_to, queries(second_schema), step.version) == [f"up {step.version:04d}_{step.name}"]
        assert database.run(get_status, queries(second_schema)).version == step.version
    assert catalog(connection, second_schema) == catalog(connection, schema)


@pytest.mark.slow
def test_down_and_up_again_ends_where_it_began(
    dsn: str, schema: str, connection: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each migration down leaves what was there before it; several go in one call, too."""
    set_up_in_a_process(dsn, schema)
    shipped = (*operations.migrations(), one_more_migration())
    monkeypatch.setattr(operations, "migrations", lambda: shipped)
    newest = shipped[-1].version
    assert [step.version for step in shipped] == list(range(1, newest + 1))
    database = on(connection, schema)
    database.run(migrate_to, queries(schema), newest)
    before = catalog(connection, schema)
    database.run(migrate_to, queries(schema), 0)
    found = {}
    for version in range(1, newest + 1):
        database.run(migrate_to, queries(schema), version)
        found[version] = catalog(connection, schema)
    assert found[newest] == before
    for version in reversed(range(1, newest)):
        database.run(migrate_to, queries(schema), version)
        assert catalog(connection, schema) == found[version] != found[version + 1], version
    database.run(migrate_to, queries(schema), newest)
    assert catalog(connection, schema) == before


def test_down_to_nothing_leaves_only_the_record_of_migrations(
    dsn: str, schema: str, connection: psycopg.Connection
) -> None:
    set_up_in_a_process(dsn, schema)
    on(connection, schema).run(migrate_to, queries(schema), 0)
    assert tables(connection, schema) == {"migrations"}
    assert connection.execute(f"SELECT count(*) FROM {schema}.migrations").fetchone() == (0,)
    with PGStateSaver.from_conn_string(dsn, schema=schema) as saver, pytest.raises(SchemaMissingError):
        saver.get_tuple(config_of("t"))


@pytest.mark.parametrize("version", [-1, 10_000])
def test_migrating_to_a_version_nobody_knows_is_refused(
    version: int, schema: str, connection: psycopg.Connection
) -> None:
    with pytest.raises(ConfigurationError, match="version must be from 0 to"):
        on(connection, schema).run(migrate_to, queries(schema), version)
    assert connection.execute("SELECT to_regnamespace(%s)", [schema]).fetchone() == (None,)


def test_every_migration_has_a_way_back_and_a_number_of_its_own() -> None:
    versions = [step.version for step in migrations()]
    assert versions == sorted(set(versions))
    assert all(step.up.strip() and step.down.strip() for step in migrations())


def test_the_metadata_index_is_made_on_request_and_used(saver: PGStateSaver, connection: psycopg.Connection) -> None:
    """`setup(metadata_index=True)` makes one GIN index, however often it is called; filters can use it."""
    saver.setup(metadata_index=True)
    saver.setup(metadata_index=True)
    found = connection.execute(
        "SELECT count(*) FROM pg_indexes WHERE schemaname = %s AND tablename = 'checkpoints' "
        "AND indexdef LIKE '%%USING gin (metadata%%'",
        [saver.schema],
    ).fetchone()
    assert found == (1,)
    connection.execute("SET enable_seqscan = off")
    plan = connection.execute(
        f'EXPLAIN SELECT 1 FROM "{saver.schema}".checkpoints WHERE metadata @> \'{{"customer": 7}}\''
    ).fetchall()
    assert "checkpoints_metadata_idx" in str(plan)


def test_what_checkpoints_are_looked_for_by_is_in_an_index(saver: PGStateSaver, connection: psycopg.Connection) -> None:
    """A question over all threads is answered from an index, not by reading every row."""
    values = {"run_id": "'a'", "step": "3", "source": "'fork'", "created_at": "now()", "parent_checkpoint_id": "'a'"}
    connection.execute("SET enable_seqscan = off")

    def check(column: str) -> None:
        found = connection.execute(
            f'EXPLAIN (FORMAT JSON) SELECT 1 FROM "{saver.schema}".checkpoints WHERE {column} = {values[column]}'
        ).fetchone()
        assert re.search(rf"'Index Cond': .\(+{column}\b", str(found)), found

    check_each(check, values)


@pytest.mark.parametrize("command", ["setup", "migrate"])
def test_a_schema_with_tables_of_langgraphs_own_saver_is_refused(
    dsn: str, connection: psycopg.Connection, schema: str, command: str
) -> None:
    """By an error that says whose they are; nothing is made beside them."""
    connection.execute(langgraph_tables(schema))
    before = tables(connection, schema)
    with Admin.open(dsn, schema=schema) as admin, pytest.raises(ConfigurationError, match="LangGraph's own saver"):
        getattr(admin, command)()
    assert tables(connection, schema) == before


@pytest.mark.parametrize("command", ["setup", "migrate", "status", "check"])
def test_a_table_of_migrations_of_another_tool_is_refused(
    dsn: str, connection: psycopg.Connection, schema: str, command: str
) -> None:
    """No error sends to the command that was just called."""
    connection.execute(f'CREATE SCHEMA "{schema}"')
    connection.execute(f'CREATE TABLE "{schema}".migrations (id integer, migration text, batch integer)')
    before = tables(connection, schema)
    with Admin.open(dsn, schema=schema) as admin, pytest.raises(ConfigurationError, match="choose another schema"):
        getattr(admin, command)()
    assert tables(connection, schema) == before


@pytest.mark.parametrize("made", ["TABLE {}.runs (id integer)", "TYPE {}.threads AS ENUM ('a')"])
def test_whatever_has_the_name_of_a_table_is_refused_by_an_error_that_says_what_to_do(
    dsn: str, connection: psycopg.Connection, schema: str, made: str
) -> None:
    connection.execute(f'CREATE SCHEMA "{schema}"')
    connection.execute("CREATE " + made.format(f'"{schema}"'))
    before = tables(connection, schema)
    with Admin.open(dsn, schema=schema) as admin, pytest.raises(ConfigurationError, match=r"exists; .*choose another"):
        admin.setup()
    assert tables(connection, schema) == before


@pytest.mark.parametrize("dropped", ["TABLE {}.feedback", "VIEW {}.stuck_runs", "TABLE {}.spans CASCADE"])
def test_a_table_dropped_by_hand_is_named_by_setup(
    dsn: str, connection: psycopg.Connection, saver: PGStateSaver, dropped: str
) -> None:
    """Errors of the other calls send to setup, which neither says "up to date" nor makes an empty table."""
    saver.setup()
    connection.execute("DROP " + dropped.format(f'"{saver.schema}"'))
    before = tables(connection, saver.schema)
    with Admin.open(dsn, schema=saver.schema) as admin, pytest.raises(SchemaError) as caught:
        admin.setup()
    assert re.search(r"lacks (feedback|stuck_runs|.*\bspans\b.*), which .* setup --sql`$", str(caught.value))
    assert tables(connection, saver.schema) == before
