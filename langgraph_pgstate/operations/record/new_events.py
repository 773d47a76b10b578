"""Events that are added: those of an application, and what a person did."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from langgraph_pgstate.codec.ids import new_revision
from langgraph_pgstate.db.protocol import Connection
from langgraph_pgstate.errors import AlreadyDoneError
from langgraph_pgstate.operations.arguments import json_of, text_of
from langgraph_pgstate.operations.checkpoints.requests import identifier, thread_id_of
from langgraph_pgstate.sql import Queries


def request_event(
    thread_id: str, kind: str, payload: Mapping[str, Any], run_id: str | None, checkpoint_id: str | None
) -> dict[str, Any]:
    """Validate an event, and return its query parameters.

    Raises:
        ConfigurationError: If an argument is invalid.
    """
    return {
        "thread_id": thread_id_of(thread_id),
        "kind": identifier("kind", kind),
        "payload": json_of("payload", payload, is_content=True),
        "run_id": text_of("run_id", run_id),
        "checkpoint_id": text_of("checkpoint_id", checkpoint_id),
        "suffix": f"{new_revision():014x}",
    }


async def add_event(db: Connection, queries: Queries, parameters: dict[str, Any]) -> None:
    """Record an event. One statement; safe to repeat with the same parameters."""
    await db.execute(queries.add_event, parameters)


async def note_action(
    db: Connection,
    queries: Queries,
    action: str,
    by: str,
    thread_id: str,
    run_id: str | None = None,
    details: Mapping[str, Any] | None = None,
    checkpoint_id: str | None = None,
) -> None:
    """Record what a person did: an event of the kind `action`. One statement, for the transaction of the action.

    Args:
        db: The connection.
        queries: The queries of the schema.
        action: What was done: `cancel`, `retry`, `settle` or another.
        by: Name of the person.
        thread_id: The thread; `schedule:NAME` or `worker:ID` for what belongs to none.
        run_id: The run.
        details: Facts about it, as JSON types.
        checkpoint_id: The checkpoint.
    """
    payload = {**(details or {}), "action": action, "by": identifier("by", by)}
    await add_event(db, queries, request_event(thread_id, "action", payload, run_id, checkpoint_id))


async def check_not_done(
    db: Connection,
    queries: Queries,
    action: str,
    thread_id: str,
    within: timedelta,
    *,
    checkpoint_id: str | None = None,
    run_id: str | None = None,
) -> None:
    """Refuse what a person has done already. For the transaction of the action, before `note_action`.

    Until that ends, others who do the same on the thread wait here: of two persons, the second is refused.

    Args:
        db: The connection.
        queries: The queries of the schema.
        action: What is to be done.
        thread_id: The thread, as for `note_action`.
        within: Time before this transaction in which nobody may have done it.
        checkpoint_id: The checkpoint; all of the thread by default.
        run_id: The run that is to be made: to make it again is no other action.

    Raises:
        AlreadyDoneError: If somebody has.
    """
    await db.fetch(queries.lock_action, {"key": f"{action} {thread_id}"})
    key = {"action": action, "thread_id": thread_id, "within": within}
    rows = await db.fetch(queries.find_action, {**key, "checkpoint_id": checkpoint_id, "run_id": run_id})
    if rows:
        raise AlreadyDoneError(thread_id, *rows[0])
