"""Creation of threads that have no checkpoint yet."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Unpack
from uuid import UUID

import orjson
from langchain_core.utils.uuid import uuid7

from langgraph_pgstate.arguments import check_key_size, json_of, request_scope, texts_of, thread_id_of
from langgraph_pgstate.db.protocol import Connection
from langgraph_pgstate.errors import ArgumentTypeError, ConfigurationError, ThreadDeletedError, ThreadExistsError
from langgraph_pgstate.options import check_ttl, check_ttl_strategy
from langgraph_pgstate.schema.queries import Queries
from langgraph_pgstate.threads.search import get_thread
from langgraph_pgstate.threads.types import Thread, ThreadOptions, ThreadOwner


@dataclass(frozen=True, slots=True)
class CreateRequest:
    """A validated request to create a thread.

    Attributes:
        row: The row of the thread.
        refuses: Whether a thread that exists is refused.
        scope: Metadata that a thread which exists must contain to be returned, as `request_scope` returns it.
    """

    row: dict[str, Any]
    refuses: bool
    scope: list[str] | None


def request_thread(thread_id: str | int | UUID | None, **options: Unpack[ThreadOptions]) -> CreateRequest:
    """Validate a request to create a thread.

    Raises:
        ConfigurationError: If an argument is invalid.
    """
    if unknown := options.keys() - ThreadOptions.__annotations__.keys():
        raise ArgumentTypeError(
            f"a thread has no option {min(unknown)!r}; it has {', '.join(sorted(ThreadOptions.__annotations__))}"
        )
    if_exists = options.get("if_exists", "raise")
    if if_exists not in ("raise", "do_nothing"):
        raise ConfigurationError(f"if_exists is 'raise' or 'do_nothing', not {if_exists!r}")
    id = str(uuid7()) if thread_id is None else thread_id_of(thread_id)
    check_key_size("thread_id", id)
    ttl = options.get("ttl")
    row = {
        "thread_id": id,
        **texts_of(options, "title", "user_id", "tenant_id", "agent"),
        "metadata": json_of("metadata", options.get("metadata")) or "{}",
        "ttl": None if ttl is None else check_ttl("ttl", ttl),
        "ttl_strategy": check_ttl_strategy("ttl_strategy", options.get("ttl_strategy", "delete")),
    }
    # A row under a random id was made by an earlier try of this call.
    refuses = if_exists == "raise" and thread_id is not None
    return CreateRequest(row, refuses, request_scope(options.get("scope")))


def request_owner(owner: ThreadOwner | None) -> str | None:
    """Return the owner of a copy as JSON text; `None` for the owner of the source.

    Raises:
        ConfigurationError: If it cannot be stored.
    """
    if owner is None:
        return None
    if unknown := owner.keys() - ThreadOwner.__annotations__.keys():
        raise ArgumentTypeError(f"an owner has metadata, user_id and tenant_id, not {min(unknown)!r}")
    names = texts_of(owner, "user_id", "tenant_id")
    metadata = orjson.loads(json_of("metadata", owner.get("metadata")) or "{}")
    return orjson.dumps({**names, "metadata": metadata}).decode()


async def create_thread(db: Connection, queries: Queries, request: CreateRequest) -> Thread:
    """Insert a thread without checkpoints, unless there is one under its id, and return it. One round trip, two if
    there is one.

    Raises:
        ThreadExistsError: If there is one, and it is refused or out of scope.
        ThreadDeletedError: If it was deleted and has a tombstone.
    """
    thread_id = request.row["thread_id"]
    ((deleted_at, *row),) = await db.fetch(queries.create_thread, request.row)
    if deleted_at is not None:
        raise ThreadDeletedError(thread_id, deleted_at)
    if row[0] is not None:
        return Thread(*row)
    thread = None if request.refuses else await get_thread(db, queries, thread_id, request.scope)
    if thread is None:
        raise ThreadExistsError(thread_id)
    return thread
