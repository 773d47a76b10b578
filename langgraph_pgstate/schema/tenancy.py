"""Separation of tenants by row-level security: its setup and its checks."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache, partial
from typing import Any, Final, Literal, NamedTuple, TypeVar

from langgraph_pgstate.arguments import identifier, several
from langgraph_pgstate.db.database import AsyncDatabase, Database
from langgraph_pgstate.db.protocol import Connection
from langgraph_pgstate.db.tenants import NO_TENANT, OF_NO_TENANT, tenant_of
from langgraph_pgstate.encryption.keys import KeyRing
from langgraph_pgstate.errors import ConfigurationError, TenantError
from langgraph_pgstate.schema.queries import Queries, walls

D = TypeVar("D", Database, AsyncDatabase)

Tenancy = Literal["rls"]
"""How tenants are kept apart: by row-level security."""

_PAGE: Final = 1000
# The first version of PostgreSQL in which a view can have its reader's privileges.
_OLDEST: Final = 150_000


class Roles(NamedTuple):
    """Roles that see more than one tenant.

    Attributes:
        operators: Roles that see the rows of all tenants.
        workers: Roles that may list the names of tenants, besides the owner of the tables.
    """

    operators: tuple[str, ...] = ()
    workers: tuple[str, ...] = ()


NO_ROLES: Final = Roles()


def roles_of(tenancy: str | None, operators: Sequence[str], workers: Sequence[str]) -> Roles:
    """Return the roles that may see more than one tenant. Raise if roles are given without a tenancy."""
    if tenancy not in (None, "rls"):
        raise ConfigurationError(f"tenancy must be 'rls' or None, got {tenancy!r}")
    found = Roles(
        tuple(identifier("operators", one) for one in several("operators", operators)),
        tuple(identifier("workers", one) for one in several("workers", workers)),
    )
    if (found.operators or found.workers) and tenancy is None:
        raise ConfigurationError("tenancy must be 'rls' if operators or workers are given")
    return found


@cache
def tenant_queries(schema: str) -> Queries:
    """Return the queries on the table of tenants. Only a schema that keeps tenants apart has it."""
    return Queries(schema, "schema/walled")


async def has_walls(db: Connection, queries: Queries) -> bool:
    """Return whether the tables of a schema keep tenants apart."""
    return (await _get(db, queries)).exist


class Key(NamedTuple):
    """The new form of an index, for tables that keep tenants apart.

    Attributes:
        table_name: The table.
        index_name: The name, which does not change.
        conname: The constraint that the index serves; `None` for none.
        definition: The new definition of the constraint.
        making: The statement that makes the index.
    """

    table_name: str
    index_name: str
    conname: str | None
    definition: str | None
    making: str


async def list_keys(db: Connection, queries: Queries) -> list[Key]:
    """Return the new forms of indexes in tables that do not keep tenants apart yet."""
    parameters = {"schema": f'"{queries.schema}"', "of_no_tenant": [*OF_NO_TENANT]}
    return [Key(*row) for row in await db.fetch(queries.list_keys, parameters)]


async def check_server(db: Connection, queries: Queries) -> None:
    """Raise `TenantError` if the server cannot keep tenants apart."""
    found = await _get(db, queries)
    if found.version < _OLDEST:
        raise TenantError(f"tenants need a server of PostgreSQL 15 or newer, not {found.version // 10_000}")
    if found.has_citus:
        raise TenantError(
            "tenants cannot be kept apart in a database with Citus, because its workers do not get the setting that "
            "names the tenant: use a schema for each tenant"
        )


async def make_walls(db: Connection, queries: Queries, roles: Roles = NO_ROLES, *, is_moving: bool = False) -> None:
    """Add row-level security to all tables that lack it. Safe to repeat. Call it in a transaction.

    With `is_moving`, all rows have tenants, and a move has built the new indexes.
    """
    await db.fetch(queries.take_turns, {"key": f"langgraph_pgstate.setup.{queries.schema}"})
    keys = [key._asdict() for key in await list_keys(db, queries)]
    parameters = {
        "operators": json.dumps(roles.operators),
        "workers": json.dumps(roles.workers),
        "of_no_tenant": [*OF_NO_TENANT],
        "keys": json.dumps(keys),
        "is_moving": is_moving,
    }
    await db.fetch(queries.plan_walls, parameters)
    await db.script(walls(queries.schema))


async def make_walls_of_new(db: Connection, queries: Queries) -> None:
    """Add row-level security to tables that this transaction has made, if the other tables have it."""
    if await has_walls(db, queries):
        await make_walls(db, queries)


def of_tenant(database: D, tenant: str | None, queries: Queries) -> D:
    """Return the database of a tenant, over the connections of `database`. For `None`, return `database` itself."""
    if tenant is None:
        return database
    name = tenant_of(tenant)
    found: Any = database.for_tenant(name, partial(admit, queries=queries, tenant=name))
    return found  # type: ignore[no-any-return]


@contextmanager
def open_database(
    dsn: str, queries: Queries, tenant: str | None, keys: KeyRing | None, **options: Any
) -> Iterator[Database]:
    """Connect as `Database.open` does, for a tenant if there is one. Disconnect at the end of the block."""
    with Database.open(dsn, schema=queries.schema, **options) as database:
        found = of_tenant(database, tenant, queries)
        found.keys = keys
        yield found


async def refuse_without_tenant(db: Connection, queries: Queries, what: str) -> None:
    """Raise `TenantError` if the tables keep tenants apart, but an object (`what`) has no tenant."""
    if db.tenant is None and await has_walls(db, queries):
        raise TenantError(
            f"{what} must be given state.for_tenant(...), because the tables in schema {queries.schema!r} keep tenants "
            "apart"
        )


async def admit(db: Connection, queries: Queries, tenant: str) -> None:
    """Raise `TenantError` unless row-level security separates tenants for this role. Store a new tenant's name."""
    walls = await _get(db, queries)
    if not walls.exist:
        raise TenantError(
            f"schema {queries.schema!r} does not keep tenants apart, or does not exist: call setup(tenancy='rls') "
            "once. If the tables have rows, run `pgstate tenancy` instead, and wait for its end"
        )
    _refuse_passed(walls)
    known = tenant_queries(queries.schema)
    if walls.may_write and not (await db.fetch(known.knows_tenant, {"tenant": tenant}))[0][0]:
        await db.execute(known.add_tenant, {"tenant": tenant})


def _refuse_passed(walls: _Walls) -> None:
    if walls.are_passed:
        raise TenantError(
            "this role bypasses row-level security: connect as a role that is not a superuser, does not have "
            "BYPASSRLS, and is not an operator"
        )


async def list_tenants(db: Connection, queries: Queries) -> list[str]:
    """Return the names of all tenants; none if the role may not list tenants."""
    found: list[str] = []
    db.tenant = NO_TENANT
    known = tenant_queries(queries.schema)
    while True:
        parameters = {"after": found[-1] if found else "", "page_size": _PAGE}
        page = [row[0] for row in await db.fetch(known.list_tenants, parameters)]
        found += page
        if len(page) < _PAGE:
            return found


async def list_tenants_or_raise(db: Connection, queries: Queries) -> list[str]:
    """Return the names of all tenants. Raise `TenantError` if the role may not list them, or sees all rows."""
    _refuse_passed(await _get(db, queries))
    known = tenant_queries(queries.schema)
    db.tenant = NO_TENANT
    if not (await db.fetch(known.may_list_tenants, {"tenants_table": f'"{queries.schema}".tenants'}))[0][0]:
        raise TenantError(
            f"the tables in schema {queries.schema!r} keep tenants apart, and this role may not list the tenants: give "
            "the worker state.for_tenant(...), or name the role in setup(tenancy='rls', workers=[...])"
        )
    return await list_tenants(db, queries)


class _Walls(NamedTuple):
    """The state of row-level security in a database.

    Attributes:
        exist: Whether the tables keep tenants apart.
        are_passed: Whether the role sees all tenants despite row-level security.
        version: The server's version.
        may_write: Whether this transaction may write.
        has_citus: Whether the database has the extension Citus.
    """

    exist: bool
    are_passed: bool
    version: int
    may_write: bool
    has_citus: bool


async def _get(db: Connection, queries: Queries) -> _Walls:
    return _Walls(*(await db.fetch(queries.get_walls, {"threads": f'"{queries.schema}".threads'}))[0])
