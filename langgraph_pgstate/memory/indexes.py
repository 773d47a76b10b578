"""Indexes of embeddings. Each has its own table, because the column's type includes the number of dimensions."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache

from langgraph_pgstate.db.protocol import Connection
from langgraph_pgstate.db.tenants import NO_TENANT
from langgraph_pgstate.errors import ConfigurationError, NotFoundError, TenantError
from langgraph_pgstate.memory.options import OPERATOR_CLASSES, OPERATORS, Index
from langgraph_pgstate.schema.queries import NamedQuery, Queries
from langgraph_pgstate.schema.tenancy import has_walls, list_tenants, make_walls_of_new

_log = logging.getLogger(__name__)

_INLINE_BYTES = 7_600


@dataclass(frozen=True)
class OpenIndex:
    """An index in the database.

    Attributes:
        number: Number of the index, part of the table's name.
        extension: The schema of pgvector.
        type_number: OID of pgvector's type `vector`.
        is_complete: Whether the index has all items. Searches use only complete indexes.
    """

    index: Index
    schema: str
    number: int
    extension: str
    type_number: int
    is_complete: bool
    queries: dict[str, NamedQuery] = field(default_factory=dict)

    def query(self, name: str) -> NamedQuery:
        """Return a named query on the table of this index."""
        if (found := self.queries.get(name)) is None:
            found = self.queries[name] = _on_index(
                getattr(statements_of(self.schema), name), self.index, self.number, self.extension
            )
        return found


@cache
def statements_of(schema: str) -> Queries:
    """Return the statements on tables of vectors."""
    return Queries(schema, "memory/vectors")


def _on_index(query: NamedQuery, index: Index, number: int, extension: str) -> NamedQuery:
    text, type = query.text.decode(), index.vector_type
    parameters = ", ".join(f"{key} = {value}" for key, value in index.parameters.items())
    for old, new in (
        ("memory_vectors_0", f"memory_vectors_{number}"),
        ("/*vector*/<=>", f"/*vector*/{OPERATORS[index.distance]}"),
        ("vector_cosine_ops)", f"{type}_{OPERATOR_CLASSES[index.distance]})"),
        ("\n    WHERE is_large", f" WITH ({parameters}) WHERE is_large" if parameters else " WHERE is_large"),
        ("/*vector*/vector (3)", f"/*vector*/{type} ({index.dims})"),
        ("::/*vector*/vector)", f"::/*vector*/vector::/*vector*/{type})"),
        ("/*vector*/", f'"{extension}".'),
    ):
        text = text.replace(old, new)
    return query._replace(text=text.encode())


async def setup_indexes(db: Connection, queries: Queries, indexes: Sequence[Index]) -> None:
    """Register indexes and make their tables. One transaction; safe to repeat, and in several processes at once.

    Without pgvector, log a warning: items are found by words only.
    """
    if not indexes:
        return
    async with db.transaction():
        await db.execute(statements_of(queries.schema).lock_memory_indexes, {})
        if not await db.fetch(queries.find_vector_type, {}):
            if not await db.fetch(queries.has_pgvector, {}):
                _log.warning("pgvector is not available: memories are found by words alone")
                return
            await db.execute(statements_of(queries.schema).create_vector_extension, {})
        await _prepare_tenants(db, queries, indexes)
        for one in indexes:
            await db.execute(
                queries.add_memory_index,
                {
                    "name": one.name,
                    "dims": one.dims,
                    "vector_type": one.vector_type,
                    "distance": one.distance,
                    "fields": [*one.fields],
                    "parameters": json.dumps(dict(one.parameters)),
                },
            )
        for opened in await open_indexes(db, queries, indexes):
            await db.execute(opened.query("create_vectors"), {})
            if opened.index.dims * (4 if opened.index.vector_type == "vector" else 2) <= _INLINE_BYTES:
                await db.execute(opened.query("store_vectors_inline"), {})
            if opened.index.is_approximate:
                await db.execute(opened.query("create_vector_index"), {})
        await make_walls_of_new(db, queries)


async def _prepare_tenants(db: Connection, queries: Queries, indexes: Sequence[Index]) -> None:
    """Refuse a new index if tenants are kept apart and have memories, which the index would lack."""
    if not await has_walls(db, queries):
        return
    known = {row[0] for row in await db.fetch(queries.list_memory_indexes, {})}
    new = [one.name for one in indexes if one.name not in known]
    for tenant in await list_tenants(db, queries) if new else ():
        db.tenant = tenant
        if await db.fetch(queries.has_memories, {}):
            raise TenantError(
                f"index {new[0]!r} must be set up before a tenant of schema {queries.schema!r} has memories. "
                "Tenants are kept apart, so the index would lack the memories that exist already"
            )
    db.tenant = NO_TENANT


async def open_indexes(db: Connection, queries: Queries, indexes: Sequence[Index]) -> tuple[OpenIndex, ...]:
    """Return the indexes that the options name; none if pgvector is unavailable."""
    if not indexes:
        return ()
    types = await db.fetch(queries.find_vector_type, {})
    rows = {row[0]: row for row in await db.fetch(queries.list_memory_indexes, {})}
    if not types:
        if any(one.name in rows for one in indexes) or not await db.fetch(queries.has_pgvector, {}):
            _log.warning("pgvector is not installed: memories are found by words alone")
            return ()
        raise _missing(indexes[0])
    (extension, type_number), found = types[0], []
    for one in indexes:
        if one.name not in rows:
            raise _missing(one)
        _, number, dims, vector_type, distance, fields, _, is_complete = rows[one.name]
        stored: Mapping[str, object] = {
            "dims": dims,
            "vector_type": vector_type,
            "distance_type": distance,
            "fields": tuple(fields),
        }
        given = {"dims": one.dims, "vector_type": one.vector_type, "distance_type": one.distance, "fields": one.fields}
        for key, value in given.items():
            if stored[key] != value:
                raise ConfigurationError(
                    f"{key} of index {one.name!r} must be {stored[key]!r}, as it was set up in schema "
                    f"{queries.schema!r}, not {value!r}. For another model or other fields, use another name"
                )
        found.append(OpenIndex(one, queries.schema, number, extension, type_number, is_complete))
    return tuple(found)


async def stored_indexes(db: Connection, queries: Queries) -> tuple[OpenIndex, ...]:
    """Return all indexes in the database, without their models. Two round trips."""
    types = await db.fetch(queries.find_vector_type, {})
    if not types:
        return ()
    extension, type_number = types[0]
    found = []
    for name, number, dims, vector_type, distance, fields, parameters, is_complete in await db.fetch(
        queries.list_memory_indexes, {}
    ):
        index = Index(name, dims, None, tuple(fields), distance, vector_type, True, parameters)
        found.append(OpenIndex(index, queries.schema, number, extension, type_number, is_complete))
    return tuple(found)


async def drop_index(db: Connection, queries: Queries, name: str) -> None:
    """Delete an index with its table. One transaction, which waits for transactions that use the index."""
    if db.tenant is not None:
        raise TenantError(
            f"index {name!r} must be dropped by a state without a tenant, because it has all tenants' vectors"
        )
    async with db.transaction():
        await db.execute(statements_of(queries.schema).lock_memory_indexes, {})
        found = next((one for one in await stored_indexes(db, queries) if one.index.name == name), None)
        if found is None:
            raise NotFoundError(f"there is no index {name!r} of memories in schema {queries.schema!r}")
        await db.execute(queries.delete_memory_index, {"name": name})
        await db.execute(found.query("drop_vectors"), {})


def _missing(index: Index) -> ConfigurationError:
    return ConfigurationError(f"index {index.name!r} must be set up: call setup() once")
