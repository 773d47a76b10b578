"""Assistants: graphs with a config and a context of their own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, Unpack

from langgraph_pgstate.assistants import operations as assistants
from langgraph_pgstate.assistants.types import Assistant, AssistantFields, AssistantSelection, SortedAssistants
from langgraph_pgstate.codec.values import ValueCodec
from langgraph_pgstate.db.database import AsyncDatabase, Database
from langgraph_pgstate.db.runners import BlockingRunner, blocking
from langgraph_pgstate.runs.arguments import name_of
from langgraph_pgstate.schedules.rows import request_access as request_schedules
from langgraph_pgstate.schedules.types import ScheduleAccess
from langgraph_pgstate.schema.queries import Queries
from langgraph_pgstate.scopes import Scope as SomeScope

Scope = SomeScope | None


class AsyncAssistants:
    """The assistants of a server: graphs with a config and a context, in versions. `state.assistants` is an instance.

    `scope` and `owner_id` limit what a caller may see or change. An assistant's metadata must contain `scope`. The
    assistant must belong to the server's user `owner_id`. All users see an assistant without an owner. Every method
    raises `ConfigurationError` if an argument is invalid.

    Args:
        database: The database.
        queries: The queries of the schema.
        codec: Encodes configs and contexts.
    """

    def __init__(self, database: AsyncDatabase, queries: Queries, codec: ValueCodec) -> None:
        self._database, self._queries, self._codec = database, queries, codec

    async def create(
        self,
        assistant_id: str | None = None,
        *,
        if_exists: Literal["raise", "do_nothing"] = "raise",
        scope: Scope = None,
        owner_id: str | None = None,
        **fields: Unpack[AssistantFields],
    ) -> Assistant:
        """Store an assistant, and return it. Safe to repeat with an id and `do_nothing`.

        Args:
            assistant_id: Id of the assistant. By default, a new id.
            if_exists: `raise` an error if the id is in use, or `do_nothing` and return the existing assistant.
            scope: See `AsyncAssistants`.
            owner_id: The server's user who owns a new assistant. By default, none.
            fields: See `AssistantFields`. `graph` is required.

        Raises:
            AssistantExistsError: If the id is in use, and `if_exists` is `raise` or the assistant is out of scope.
            SerializationError: If a value cannot be stored.
        """
        given = assistants.request_fields(self._codec, fields, is_new=True)
        key = assistant_id, given, assistants.request_access(scope, None), if_exists == "raise", owner_id
        return await self._database.run(assistants.create, self._queries, self._codec, *key)

    async def get(self, assistant_id: str, *, scope: Scope = None, owner_id: str | None = None) -> Assistant | None:
        """Return the current version of an assistant, or `None`. One round trip."""
        key = name_of("assistant_id", assistant_id), assistants.request_access(scope, owner_id)
        return await self._database.run(assistants.get, self._queries, self._codec, *key)

    async def update(
        self,
        assistant_id: str,
        *,
        scope: Scope = None,
        owner_id: str | None = None,
        **fields: Unpack[AssistantFields],
    ) -> Assistant:
        """Store a new version of an assistant, and make this version current. Metadata are merged.

        Args:
            assistant_id: The assistant.
            scope: See `AsyncAssistants`.
            owner_id: See `AsyncAssistants`.
            fields: See `AssistantFields`. Fields that are left out stay.

        Raises:
            NotFoundError: If there is no such assistant in scope.
            SerializationError: If a value cannot be stored.
        """
        given = assistants.request_fields(self._codec, fields)
        key = name_of("assistant_id", assistant_id), given, assistants.request_access(scope, owner_id)
        return await self._database.run(assistants.update, self._queries, self._codec, *key)

    async def set_version(
        self, assistant_id: str, version: int, *, scope: Scope = None, owner_id: str | None = None
    ) -> Assistant:
        """Make a version of an assistant current. Safe to repeat.

        Raises:
            NotFoundError: If there is no such version, or the assistant is out of scope.
        """
        key = name_of("assistant_id", assistant_id), version, assistants.request_access(scope, owner_id)
        return await self._database.run(assistants.set_version, self._queries, self._codec, *key)

    async def delete(
        self,
        assistant_id: str,
        *,
        scope: Scope = None,
        owner_id: str | None = None,
        schedules: ScheduleAccess | None = None,
    ) -> bool:
        """Delete an assistant with its schedules. Threads and runs stay. Safe to repeat.

        Args:
            assistant_id: The assistant.
            scope: See `AsyncAssistants`.
            owner_id: See `AsyncAssistants`.
            schedules: The schedules that the caller may delete. By default, all.

        Returns:
            Whether the assistant existed.

        Raises:
            AssistantInUseError: If the assistant has schedules that the caller may not delete. Nothing was deleted.
        """
        key = name_of("assistant_id", assistant_id), assistants.request_access(scope, owner_id), _schedules(schedules)
        return await self._database.run(assistants.delete, self._queries, *key)

    async def sorted(self, **filters: Unpack[SortedAssistants]) -> tuple[Assistant, ...]:
        """Return a page of assistants, by offset. One round trip.

        Args:
            filters: See `SortedAssistants` and `AssistantSelection`.
        """
        return await self._database.read(self._queries, assistants.list_sorted(self._codec, **filters))

    async def count(self, **filters: Unpack[AssistantSelection]) -> int:
        """Return the number of assistants. One round trip.

        Args:
            filters: See `AssistantSelection`.
        """
        return await self._database.read(self._queries, assistants.count(**filters))

    async def versions(
        self, assistant_id: str, *, metadata: Mapping[str, Any] | None = None, limit: int = 20, offset: int = 0
    ) -> tuple[Assistant, ...]:
        """Return versions of an assistant, newest first. One round trip.

        Args:
            assistant_id: The assistant.
            metadata: Only versions whose metadata contain this.
            limit: Maximum number of versions, at most 1,000.
            offset: Number of versions to skip.
        """
        found = assistants.list_versions(self._codec, assistant_id, metadata=metadata, limit=limit, offset=offset)
        return await self._database.read(self._queries, found)


class Assistants:
    """Blocking twin of `AsyncAssistants`."""

    def __init__(self, database: Database, queries: Queries, codec: ValueCodec) -> None:
        self._database, self._queries, self._codec = BlockingRunner(database), queries, codec

    create = blocking(AsyncAssistants.create)
    get = blocking(AsyncAssistants.get)
    update = blocking(AsyncAssistants.update)
    set_version = blocking(AsyncAssistants.set_version)
    delete = blocking(AsyncAssistants.delete)
    sorted = blocking(AsyncAssistants.sorted)
    count = blocking(AsyncAssistants.count)
    versions = blocking(AsyncAssistants.versions)


def _schedules(access: ScheduleAccess | None) -> dict[str, Any] | None:
    return None if access is None else request_schedules(access)
