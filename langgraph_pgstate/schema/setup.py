"""Setup, migration and version check of the schema."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from typing import Final

from langgraph_pgstate.db.protocol import Connection
from langgraph_pgstate.errors import (
    ConfigurationError,
    MigrationConflictError,
    SchemaError,
    SchemaMissingError,
    SchemaOutdatedError,
)
from langgraph_pgstate.schema.partitions import make_days, make_months
from langgraph_pgstate.schema.queries import Migration, Queries, bootstrap, metadata_index, migrations, recording
from langgraph_pgstate.schema.tenancy import (
    NO_ROLES,
    Tenancy,
    check_server,
    has_walls,
    make_walls,
    make_walls_of_new,
    roles_of,
)
from langgraph_pgstate.schema.types import SchemaStatus

# The SQLSTATEs of a table, a function, and any other object that already exists.
_ALREADY_EXISTS: Final = ("42P07", "42723", "42710")
_RELATION: Final = re.compile(r"^CREATE (?:TABLE|VIEW) /\*schema\*/(\w+)", re.MULTILINE)


async def get_status(db: Connection, queries: Queries) -> SchemaStatus:
    """Return the schema's version and pending migrations.

    Raises:
        MigrationConflictError: If an applied migration differs from the one this package ships.
    """
    applied = await _applied(db, queries)
    shipped = migrations()
    pending = tuple(f"{step.version:04d}_{step.name}" for step in shipped if step.version not in applied)
    expected = shipped[-1].version
    is_usable = not pending and all(is_additive for version, is_additive in applied.items() if version > expected)
    return SchemaStatus(queries.schema, max(applied, default=0), expected, pending, is_usable)


async def setup(
    db: Connection,
    queries: Queries,
    *,
    with_metadata_index: bool = False,
    tenancy: Tenancy | None = None,
    operators: Sequence[str] = (),
    workers: Sequence[str] = (),
    audit: bool = False,
) -> list[str]:
    """Apply the missing migrations, all in one transaction, and create the partitions of the next months and days.

    Safe in several processes at once, and inside a caller's transaction. If nothing is missing, nothing is locked or
    written. Migrations lock the tables that they change until all have ended. Without a `lock_timeout`, setup waits for
    every transaction that uses these tables.

    Args:
        db: The connection.
        queries: The queries of the schema.
        with_metadata_index: Also index all metadata, if it is not indexed yet.
        tenancy: `"rls"` to keep tenants apart, in empty tables. A later call cannot turn this off.
        operators: Roles that see the rows of all tenants.
        workers: Roles that may list the names of the tenants, besides the owner of the tables.
        audit: Whether to chain events by hashes from now on. A later call cannot turn this off.

    Returns:
        Names of the migrations applied.

    Raises:
        MigrationConflictError: If an applied migration differs from the one this package ships.
        SchemaOutdatedError: If the schema is newer than this package, by a migration that is not additive.
        SchemaError: If a table or view of an applied migration is missing.
        ConfigurationError: If the schema has another program's tables under the names of this package's tables.
        TenantError: If the tables have rows without a tenant, or the server is too old or has Citus.
    """
    roles = roles_of(tenancy, operators, workers)
    status = await get_status(db, queries)
    if status.version > status.expected and not status.is_usable:
        raise SchemaOutdatedError(queries.schema, status.version, status.expected)
    await _check_relations(db, queries, status)
    is_walled = await has_walls(db, queries)
    if tenancy is not None and not is_walled:
        await check_server(db, queries)
    applied = await _apply_missing(db, queries) if status.pending else []
    if (tenancy is not None and not is_walled) or (is_walled and (applied or roles != NO_ROLES)):
        async with db.transaction():
            await make_walls(db, queries, roles)
    if audit:
        await db.execute(queries.begin_chaining, {})
    await make_months(db, queries, lock_timeout="200ms")
    await make_days(db, queries, lock_timeout="200ms")
    if with_metadata_index:
        async with db.transaction():
            await db.script(metadata_index(queries.schema))
    return applied


async def _check_relations(db: Connection, queries: Queries, status: SchemaStatus) -> None:
    applied = [step for step in migrations() if f"{step.version:04d}_{step.name}" not in status.pending]
    names = [name for step in applied for name in _RELATION.findall(step.up)]
    rows = await db.fetch(queries.find_missing, {"schema": f'"{queries.schema}"', "names": names})
    if rows:
        raise SchemaError(
            f"schema {queries.schema!r} lacks {', '.join(name for (name,) in rows)}, which an earlier setup made and "
            "something else dropped: restore the tables from a backup, or make them again, empty, by the statements of "
            f"`pgstate --schema {shlex.quote(queries.schema)} setup --sql`"
        )


async def _apply_missing(db: Connection, queries: Queries) -> list[str]:
    try:
        return await _apply_in_turn(db, queries)
    except Exception:
        # A concurrent setup may have applied the migrations. Under REPEATABLE READ, only a new transaction sees these
        # migrations.
        if (await get_status(db, queries)).pending:
            raise
        return []


async def _apply_in_turn(db: Connection, queries: Queries) -> list[str]:
    async with db.transaction():
        await db.fetch(queries.take_turns, {"key": f"langgraph_pgstate.setup.{queries.schema}"})
        await _begin(db, queries)
        applied = await _applied(db, queries)
        missing = [step for step in migrations() if step.version not in applied]
        for step in missing:
            await _apply(db, queries, step)
        return [f"{step.version:04d}_{step.name}" for step in missing]


async def migrate_to(db: Connection, queries: Queries, version: int) -> list[str]:
    """Migrate the schema up or down to a version, in one transaction. Migrating down deletes data.

    Returns:
        The applied and reverted migrations, in order, such as `up 0002_name`.

    Raises:
        ConfigurationError: If there is no such version.
    """
    shipped = migrations()
    if not 0 <= version <= shipped[-1].version:
        raise ConfigurationError(f"version must be from 0 to {shipped[-1].version}, not {version}")
    async with db.transaction():
        await db.fetch(queries.take_turns, {"key": f"langgraph_pgstate.setup.{queries.schema}"})
        await _begin(db, queries)
        applied = await _applied(db, queries)
        moved = []
        for step in shipped:
            if step.version not in applied and step.version <= version:
                await _apply(db, queries, step)
                moved.append(f"up {step.version:04d}_{step.name}")
        for step in reversed(shipped):
            if step.version in applied and step.version > version:
                await db.script(step.rendered(queries.schema, down=True))
                await db.execute(queries.forget_migration, {"version": step.version})
                moved.append(f"down {step.version:04d}_{step.name}")
        await make_walls_of_new(db, queries)
        return moved


async def check_version(db: Connection, queries: Queries) -> None:
    """Raise an error if this package does not work with the schema.

    Raises:
        SchemaMissingError: If the tables are missing.
        SchemaOutdatedError: If the schema is older than this package, or newer by a migration that is not additive.
    """
    status = await get_status(db, queries)
    if status.version == 0:
        raise SchemaMissingError(queries.schema)
    if not status.is_usable:
        raise SchemaOutdatedError(queries.schema, status.version, status.expected)


def setup_script(schema: str) -> str:
    """Return the SQL that `setup` would run on an empty database, for other migration tools."""
    steps = [f"{step.rendered(schema)}\n{recording(schema, step)}" for step in migrations()]
    return "\n".join(["BEGIN;\n", bootstrap(schema), *steps, "COMMIT;\n"])


async def _begin(db: Connection, queries: Queries) -> None:
    """Create the table of migrations if it is missing."""
    schema_exists, table_exists = await _exists(db, queries)
    if not table_exists:
        await db.script(bootstrap(queries.schema, create_schema=not schema_exists))


async def _apply(db: Connection, queries: Queries, step: Migration) -> None:
    """Apply a migration. Raise if the schema has something of another program by the name of a new object."""
    try:
        await db.script(step.rendered(queries.schema))
    except Exception as error:
        if getattr(error, "sqlstate", None) in _ALREADY_EXISTS:
            why = str(error).partition("\n")[0]
            raise _strange(queries, f"{why}; LangGraph's own saver creates a table `checkpoints`") from error
        raise
    values = {"version": step.version, "name": step.name, "checksum": step.checksum, "is_additive": step.is_additive}
    await db.execute(queries.record_migration, values)


def _strange(queries: Queries, why: str) -> ConfigurationError:
    return ConfigurationError(
        f"schema {queries.schema!r} has tables that are not this package's ({why}): choose another schema with "
        "schema=... or --schema"
    )


async def _exists(db: Connection, queries: Queries) -> tuple[bool, bool]:
    """Return whether the schema and its table of migrations exist. Raise if this table is another program's."""
    schema = f'"{queries.schema}"'
    parameters = {"schema": schema, "migrations_table": f"{schema}.migrations"}
    schema_exists, table_exists, is_ours = (await db.fetch(queries.find_schema, parameters))[0]
    if table_exists and not is_ours:
        raise _strange(queries, "its table `migrations` has no column `checksum`")
    return schema_exists, table_exists


async def _applied(db: Connection, queries: Queries) -> dict[int, bool]:
    """Return the numbers of the applied migrations, and whether each is additive. Raise if a migration differs."""
    _, table_exists = await _exists(db, queries)
    if not table_exists:
        return {}
    shipped = {step.version: step for step in migrations()}
    applied = {}
    for version, name, checksum, _, is_additive in await db.fetch(queries.list_migrations, {}):
        if version in shipped and shipped[version].checksum != checksum:
            raise MigrationConflictError(version, name, shipped[version].name)
        applied[version] = is_additive
    return applied
