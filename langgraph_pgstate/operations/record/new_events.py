"""Events that are added: those of an application, and what a person did."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from langgraph_pgstate.codec.ids import new_revision
from langgraph_pgstate.db.protocol import Connection
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
        "payload": json_of("payload", payload),
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
