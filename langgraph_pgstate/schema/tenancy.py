"""Tenants that are walled off from each other by row-level security: making the walls, and finding out about them."""

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
# Views see as their reader does from this version on.
_OLDEST: Final = 150_000


class Roles(NamedTuple):
    """Roles that see more than one tenant.

    Attributes:
        operators: Roles that see all rows, and are no tenant's.
        workers: Roles that may list the names of tenants, besides the owner of the tables.
    """

    operators: tuple[str, ...] = ()
    workers: tuple[str, ...] = ()


NO_ROLES: Final = Roles()


def roles_of(tenancy: str | None, operators: Sequence[str], workers: Sequence[str]) -> Roles:
    """Return the roles that are to see more than one tenant.

    Raises:
        ConfigurationError: If there is no such tenancy, or no tenancy but roles.
    """
    if tenancy not in (None, "rls"):
        raise ConfigurationError(f"tenancy must be 'rls' or None, got {tenancy!r}")
    found = Roles(
        tuple(identifier("operators", one) for one in several("operators", operators)),
        tuple(identifier("workers", one) for one in several("workers", workers)),
    )
    if (found.operators or found.workers) and tenancy is None:
        raise ConfigurationError("operators and workers are roles of a schema with tenants: give tenancy='rls' as well")
    return found


@cache
def tenant_queries(schema: str) -> Queries:
    """Return the queries on the table of tenants, which is in a schema that keeps them apart only."""
    return Queries(schema, "schema/walled")


async def has_walls(db: Connection, queries: Queries) -> bool:
    """Return whether the tables of a schema keep tenants apart."""
    return (await _get(db, queries)).exist


class Key(NamedTuple):
    """An index as it will be when tables keep tenants apart.

    Attributes:
        table_name: Its table.
        index_name: Its name, which stays.
        conname: The constraint that it serves.
        definition: Definition of the constraint.
        making: The statement that makes the index.
    """

    table_name: str
    index_name: str
    conname: str | None
    definition: str | None
    making: str


async def list_keys(db: Connection, queries: Queries) -> list[Key]:
    """Return the indexes of tables that do not keep tenants apart yet, as they will be."""
    parameters = {"schema": f'"{queries.schema}"', "of_no_tenant": [*OF_NO_TENANT]}
    return [Key(*row) for row in await db.fetch(queries.list_keys, parameters)]


async def check_server(db: Connection, queries: Queries) -> None:
    """Raise unless the server can keep tenants apart.

    Raises:
        TenantError: If it is too old, or has Citus.
    """
    found = await _get(db, queries)
    if found.version < _OLDEST:
        raise TenantError(f"tenants need PostgreSQL 15 or newer, for views; this is {found.version // 10_000}")
    if found.has_citus:
        raise TenantError(
            "tenants cannot be kept apart in a database with Citus, whose workers do not get the setting that names "
            "them: use a schema for each tenant"
        )


async def make_walls(db: Connection, queries: Queries, roles: Roles = NO_ROLES, *, is_moving: bool = False) -> None:
    """Keep the tenants of all tables apart, also of those that were made since. Safe to repeat; within a transaction.

    Args:
        db: The connection.
        queries: The queries of the schema.
        roles: Roles that see more than one tenant, besides those that do already.
        is_moving: Whether all rows have a tenant already, and what was built for the keys is taken.
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
    """Keep tenants apart in tables that this transaction has made, if the others do."""
    if await has_walls(db, queries):
        await make_walls(db, queries)


def of_tenant(database: D, tenant: str | None, queries: Queries) -> D:
    """Return the database of a tenant over the connections of another; the same for `None`.

    Raises:
        ConfigurationError: If the name of the tenant is not usable.
    """
    if tenant is None:
        return database
    name = tenant_of(tenant)
    found: Any = database.for_tenant(name, partial(admit, queries=queries, tenant=name))
    return found  # type: ignore[no-any-return]


@contextmanager
def open_database(
    dsn: str, queries: Queries, tenant: str | None, keys: KeyRing | None, **options: Any
) -> Iterator[Database]:
    """Connect as `Database.open` does, for one tenant if it is given, and disconnect at the end of the block.

    Args:
        dsn: The server.
        queries: The queries of the schema.
        tenant: The tenant.
        keys: Data keys, which are shared with the database that has loaded them; `None` without encryption.
        options: Those of `Database.open`.
    """
    with Database.open(dsn, schema=queries.schema, **options) as database:
        found = of_tenant(database, tenant, queries)
        found.keys = keys
        yield found


async def refuse_without_tenant(db: Connection, queries: Queries, what: str) -> None:
    """Raise if the tables keep tenants apart, for what works for one tenant and has none.

    Raises:
        TenantError: If they do.
    """
    if db.tenant is None and await has_walls(db, queries):
        raise TenantError(
            f"the tables in schema {queries.schema!r} keep tenants apart, and {what} works for one: give it "
            "state.for_tenant(...)"
        )


async def admit(db: Connection, queries: Queries, tenant: str) -> None:
    """Raise unless the tables keep tenants apart, also from this role. Store the name of a new tenant.

    Raises:
        TenantError: If they do not.
    """
    walls = await _get(db, queries)
    if not walls.exist:
        raise TenantError(
            f"schema {queries.schema!r} does not keep tenants apart, or does not exist: call setup(tenancy='rls') "
            "once, or `pgstate tenancy` if it has rows, and wait until that has ended"
        )
    if walls.are_passed:
        raise TenantError(
            "row-level security does not hold for this role: connect as one that is no superuser, has not BYPASSRLS, "
            "and is no operator"
        )
    known = tenant_queries(queries.schema)
    if walls.may_write and not (await db.fetch(known.knows_tenant, {"tenant": tenant}))[0][0]:
        await db.execute(known.add_tenant, {"tenant": tenant})


async def list_tenants(db: Connection, queries: Queries) -> list[str]:
    """Return the names of all tenants, for a role that may list them; else none."""
    found: list[str] = []
    db.tenant = NO_TENANT
    known = tenant_queries(queries.schema)
    while True:
        parameters = {"after": found[-1] if found else "", "page_size": _PAGE}
        page = [row[0] for row in await db.fetch(known.list_tenants, parameters)]
        found += page
        if len(page) < _PAGE:
            return found


class _Walls(NamedTuple):
    """What the database says of walls.

    Attributes:
        exist: Whether the tables keep tenants apart.
        are_passed: Whether the role sees all tenants nevertheless.
        version: The version of the server.
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
