"""A schema that keeps tenants apart, and the roles that use it."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo

from langgraph_pgstate import PGState

OWNER, APP, OPERATOR = "pgstate_test_owner", "pgstate_test_app", "pgstate_test_operator"


@dataclass(frozen=True)
class Walled:
    """A schema that keeps tenants apart.

    Attributes:
        schema: Its name.
        owner: Connection string of the tables' owner.
        app: Connection string of a role that may read and write rows.
        operator: Connection string of a role that sees all tenants.
        server: Connection string of a superuser, for whom policies do not apply.
    """

    schema: str
    owner: str
    app: str
    operator: str
    server: str

    def open(self, **options: Any) -> PGState:
        """Return a state as the application opens it."""
        return PGState.open(self.app, schema=self.schema, **options)

    def rows(self, statement: str) -> list[Any]:
        """Return the rows that a superuser sees."""
        with psycopg.connect(self.server, autocommit=True) as connection:
            cursor = connection.execute(statement.replace("{}", self.schema).encode())
            return cursor.fetchall() if cursor.description else []


@contextmanager
def open_walled(dsn: str) -> Iterator[Walled]:
    """Make a schema that keeps tenants apart, and drop it at the end of the block."""
    schema = f"walled{random.getrandbits(40):x}"
    roles = [sql.Identifier(name) for name in (OWNER, APP, OPERATOR)]
    with psycopg.connect(dsn, autocommit=True) as connection:
        # Other processes of the tests may make the same roles now.
        connection.execute("SELECT pg_advisory_lock(7261)")
        for name, role in zip((OWNER, APP, OPERATOR), roles, strict=True):
            if not connection.execute("SELECT 1 FROM pg_roles WHERE rolname = %s", [name]).fetchone():
                connection.execute(sql.SQL("CREATE ROLE {} LOGIN").format(role))
        connection.execute("SELECT pg_advisory_unlock(7261)")
        connection.execute(sql.SQL("CREATE SCHEMA {} AUTHORIZATION {}").format(sql.Identifier(schema), roles[0]))
        made = Walled(schema, *(make_conninfo(dsn, user=name) for name in (OWNER, APP, OPERATOR)), dsn)
        with PGState.open(made.owner, schema=schema) as state:
            state.setup(tenancy="rls", operators=[OPERATOR], workers=[APP])
        for role in roles[1:]:
            for grant in (
                "GRANT USAGE ON SCHEMA {} TO {}",
                "GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {} TO {}",
                f"ALTER DEFAULT PRIVILEGES FOR ROLE {OWNER} IN SCHEMA {{}} GRANT ALL ON TABLES TO {{}}",
            ):
                connection.execute(sql.SQL(grant).format(sql.Identifier(schema), role))  # type: ignore[arg-type]
        yield made
        connection.execute(sql.SQL("DROP SCHEMA {} CASCADE").format(sql.Identifier(schema)))
