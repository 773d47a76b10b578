"""The optional index of the texts of files."""

from __future__ import annotations

from functools import cache

from langgraph_pgstate.db.protocol import Connection
from langgraph_pgstate.errors import ConfigurationError, TenantError
from langgraph_pgstate.schema.queries import NamedQuery, Queries
from langgraph_pgstate.schema.tenancy import has_walls


@cache
def _statements(schema: str) -> Queries:
    return Queries(schema, "files/trigrams")


async def make_file_index(db: Connection, queries: Queries) -> None:
    """Make the index of trigrams, unless it exists. One transaction. Writes of files wait until the index is built.

    Raises:
        ConfigurationError: If the server has no pg_trgm.
        TenantError: If the tables have row-level security for tenants, because PostgreSQL then cannot use the index.
    """
    statements = _statements(queries.schema)
    if await has_walls(db, queries):
        raise TenantError(
            f"file_index must be left out, because the tables in schema {queries.schema!r} keep tenants apart, and "
            "PostgreSQL then cannot use an index of files"
        )
    if not await db.fetch(statements.has_trigrams, {}):
        raise ConfigurationError("file_index requires the extension pg_trgm, which the PostgreSQL server does not have")
    async with db.transaction():
        await db.execute(statements.create_trigram_extension, {})
        ((extension,),) = await db.fetch(statements.find_trigrams, {})
        await db.execute(file_index(queries.schema, extension), {})


def file_index(schema: str, extension: str) -> NamedQuery:
    """Return the statement that makes the index. `extension` is the schema in which pg_trgm is installed."""
    query = _statements(schema).create_file_index
    return query._replace(text=query.text.replace(b"/*trigrams*/", f'"{extension}".'.encode()))
