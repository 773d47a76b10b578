"""Assistants: their storage, in versions."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple, Unpack

import ormsgpack
from langchain_core.utils.uuid import uuid7

from langgraph_pgstate.arguments import json_of, request_scope, text_of, texts_of
from langgraph_pgstate.assistants.types import Assistant, AssistantFields, AssistantSelection, SortedAssistants
from langgraph_pgstate.codec.frames import pack
from langgraph_pgstate.codec.values import ValueCodec
from langgraph_pgstate.db.protocol import Connection, Read, Row, number, read, read_all
from langgraph_pgstate.errors import (
    ArgumentTypeError,
    AssistantExistsError,
    AssistantInUseError,
    ConfigurationError,
    NotFoundError,
)
from langgraph_pgstate.paging import check_filters, offset_of, page_size, sorting_of
from langgraph_pgstate.runs.arguments import name_of
from langgraph_pgstate.runs.inputs import read_field
from langgraph_pgstate.schema.queries import Queries
from langgraph_pgstate.scopes import Scope

SORT_KEYS: Final = ("created_at", "updated_at", "assistant_id", "graph", "name")
_COLUMNS: Final = ("graph", "name", "description", "metadata")


class Access(NamedTuple):
    """Conditions on the assistants that a caller may see or change.

    Attributes:
        scope: Metadata that the assistants must contain; `None` for no condition.
        owner_id: User who must own the assistants; `None` for any. The user may see, but not change, assistants without
            an owner.
    """

    scope: list[str] | None = None
    owner_id: str | None = None


EVERYBODY: Final = Access()
"""The access of a caller who may see and change all assistants."""


def request_access(scope: Scope | None, owner_id: str | None) -> Access:
    """Validate the conditions on the assistants that a caller may see."""
    return Access(request_scope(scope), text_of("owner_id", owner_id))


def request_fields(codec: ValueCodec, fields: AssistantFields, *, is_new: bool = False) -> dict[str, Any]:
    """Validate fields of an assistant, and encode the config and the context. A new assistant must have a graph."""
    if unknown := fields.keys() - AssistantFields.__annotations__.keys():
        known = ", ".join(AssistantFields.__annotations__)
        raise ArgumentTypeError(f"fields of an assistant must be among {known}, got {min(unknown)!r}")
    if is_new and "graph" not in fields:
        raise ConfigurationError("graph must be given for a new assistant")
    given: Any = fields
    found: dict[str, Any] = {name: name_of(name, given[name]) for name in ("graph", "name") if name in given}
    if "description" in fields:
        found["description"] = text_of("description", fields["description"])
    if "metadata" in fields:
        found["metadata"] = json.loads(json_of("metadata", fields["metadata"]) or "{}")
    if "config" in fields and not isinstance(fields["config"], Mapping):
        raise ArgumentTypeError(f"config must be a mapping, not {type(fields['config']).__name__}")
    return found | {name: codec.dumps_exactly(name, given[name]) for name in ("config", "context") if name in given}


async def create(
    db: Connection,
    queries: Queries,
    codec: ValueCodec,
    assistant_id: str | None,
    fields: dict[str, Any],
    access: Access = EVERYBODY,
    refuses: bool = True,
    owner_id: str | None = None,
) -> Assistant:
    """Insert an assistant, unless the id is in use, and return the new or existing assistant. Two round trips.

    Raises:
        AssistantExistsError: If the id is in use, and `refuses` is true or the caller may not see the assistant.
    """
    id = str(uuid7()) if assistant_id is None else name_of("assistant_id", assistant_id)
    row = {"name": "Untitled", "description": None, "metadata": {}, **fields}
    is_new = await db.execute(queries.create_assistant, {"assistant_id": id, "owner_id": owner_id, **_row(row, {})}) > 0
    found = await get(db, queries, codec, id, EVERYBODY if is_new else access)
    if found is None or (refuses and not is_new):
        raise AssistantExistsError(id)
    return found


async def update(
    db: Connection,
    queries: Queries,
    codec: ValueCodec,
    assistant_id: str,
    fields: dict[str, Any],
    access: Access = EVERYBODY,
) -> Assistant:
    """Store a new version of an assistant, and make this version current. One transaction.

    Fields that are not given stay. Metadata are merged.

    Raises:
        NotFoundError: If there is no such assistant in scope.
    """
    async with db.transaction():
        current = await _lock(db, queries, assistant_id, access)
        if current is None:
            raise _not_found(assistant_id)
        *columns, data = current
        row = {**dict(zip(_COLUMNS, columns, strict=True)), **fields}
        row["metadata"] = {**columns[3], **fields.get("metadata", {})}
        old = {name: read_field(codec, data, name, _where(assistant_id)) for name in ("config", "context")}
        kept = {name: codec.dumps_exactly(name, value) for name, value in old.items() if value is not None}
        await db.execute(queries.add_version, {"assistant_id": assistant_id, **_row(row, kept)})
        return await get_existing(db, queries, codec, assistant_id)


async def set_version(
    db: Connection, queries: Queries, codec: ValueCodec, assistant_id: str, version: int, access: Access = EVERYBODY
) -> Assistant:
    """Make a version of an assistant current. One transaction; safe to repeat.

    Raises:
        NotFoundError: If there is no such version, or the assistant is out of scope.
    """
    async with db.transaction():
        if await _lock(db, queries, assistant_id, access) is None:
            raise _not_found(assistant_id)
        if not await db.execute(queries.set_version, {"assistant_id": assistant_id, "version": version}):
            raise NotFoundError(f"assistant {assistant_id!r} has no version {version}")
        return await get_existing(db, queries, codec, assistant_id)


async def delete(
    db: Connection,
    queries: Queries,
    assistant_id: str,
    access: Access = EVERYBODY,
    schedules: Mapping[str, Any] | None = None,
) -> bool:
    """Delete an assistant and its schedules. Return whether the assistant existed. Runs stay. One transaction.

    `schedules` has the query parameters of the schedules that the caller may delete.

    Raises:
        AssistantInUseError: If the assistant has schedules that the caller may not delete.
    """
    key = {"assistant_id": assistant_id}
    async with db.transaction():
        if await _lock(db, queries, assistant_id, access) is None:
            return False
        if schedules is not None and await db.fetch(queries.find_schedules_of_others, {**key, **schedules}):
            raise AssistantInUseError(assistant_id)
        return await db.execute(queries.delete_assistant, key) > 0


async def get(
    db: Connection, queries: Queries, codec: ValueCodec, assistant_id: str, access: Access = EVERYBODY
) -> Assistant | None:
    """Return the current version of an assistant, or `None`. One round trip."""
    found = list_sorted(codec, assistant_id=assistant_id, limit=1)
    rows = await read(db, queries, replace(found, parameters={**found.parameters, **access._asdict()}))
    return rows[0] if rows else None


async def get_existing(db: Connection, queries: Queries, codec: ValueCodec, assistant_id: str) -> Assistant:
    """Return the current version of an assistant. One round trip.

    Raises:
        NotFoundError: If there is no such assistant.
    """
    found = await get(db, queries, codec, assistant_id)
    if found is None:
        raise _not_found(assistant_id)
    return found


def list_sorted(codec: ValueCodec, **filters: Unpack[SortedAssistants]) -> Read[tuple[Assistant, ...]]:
    """Return a `Read` of a page of assistants, by offset. The query reads all assistants."""
    check_filters(filters, SortedAssistants)
    parameters = {**_selection(filters), **sorting_of(filters, "assistants", SORT_KEYS)}
    return read_all("sort_assistants", parameters, lambda *row: _assistant(codec, row))


def count(**filters: Unpack[AssistantSelection]) -> Read[int]:
    """Return a `Read` of the number of assistants. The query reads all assistants."""
    check_filters(filters, AssistantSelection)
    return Read("count_selected_assistants", _selection(filters), number)


def _selection(filters: AssistantSelection) -> dict[str, Any]:
    return {
        **texts_of(filters, "assistant_id", "graph", "name", "owner_id"),
        "metadata": json_of("metadata", filters.get("metadata") or None),
        "scope": request_scope(filters.get("scope")),
        "others": json.dumps([*filters.get("others", ())]),
    }


def list_versions(
    codec: ValueCodec,
    assistant_id: str,
    *,
    metadata: Mapping[str, Any] | None = None,
    limit: int = 20,
    offset: int = 0,
) -> Read[tuple[Assistant, ...]]:
    """Return a `Read` of versions of an assistant, newest first."""
    parameters = {
        "assistant_id": name_of("assistant_id", assistant_id),
        "metadata": json_of("metadata", metadata or None),
        "page_size": page_size(limit),
        "offset": offset_of(offset),
    }
    return read_all("list_versions", parameters, lambda *row: _assistant(codec, row))


async def _lock(db: Connection, queries: Queries, assistant_id: str, access: Access) -> Sequence[Any] | None:
    """Lock an assistant until the transaction ends, and return the current version; `None` if it is out of scope."""
    await db.fetch(queries.lock_assistant, {"assistant_id": assistant_id})
    rows = await db.fetch(queries.get_current_version, {"assistant_id": assistant_id, **access._asdict()})
    return rows[0] if rows else None


def _row(fields: Mapping[str, Any], kept: Mapping[str, Any]) -> dict[str, Any]:
    encoded = {**kept, **{name: fields[name] for name in ("config", "context") if name in fields}}
    columns = {name: fields[name] for name in _COLUMNS}
    return {**columns, "metadata": json.dumps(columns["metadata"]), "data": pack(ormsgpack.packb(encoded))}


def _assistant(codec: ValueCodec, row: Row) -> Assistant:
    id, graph, name, description, metadata, data, version, created_at, updated_at, owner_id = row
    where = _where(id)
    config, context = (None if data is None else read_field(codec, data, one, where) for one in ("config", "context"))
    times = created_at, updated_at
    return Assistant(id, graph, name, description, config or {}, context, metadata, version, *times, owner_id)


def _where(assistant_id: str) -> str:
    return f"assistant {assistant_id!r}"


def _not_found(assistant_id: str) -> NotFoundError:
    return NotFoundError(f"there is no assistant {assistant_id!r}")
