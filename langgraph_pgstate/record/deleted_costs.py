"""The cost of deleted model calls of today, which budgets remember."""

from __future__ import annotations

from collections.abc import Sequence

from langgraph_pgstate.db.protocol import Connection
from langgraph_pgstate.record import journal
from langgraph_pgstate.schema.queries import Queries


async def gather_costs(db: Connection, queries: Queries, thread_id: str) -> bool:
    """Move what the journal has of a thread into the tables if there are budgets, before its record is deleted.

    One statement if there are no budgets; safe to repeat.

    Returns:
        Whether there are any, and the deletion is to call `keep_costs`.
    """
    has_budgets = bool((await db.fetch(queries.has_budgets, {}))[0][0])
    if has_budgets:
        await journal.write(db, queries, [thread_id])
    return has_budgets


async def keep_costs(db: Connection, queries: Queries, thread_id: str, run_ids: Sequence[str] | None = None) -> None:
    """Keep what model calls of a thread cost today. Call it in the transaction that deletes their record, before that.

    Args:
        db: The connection.
        queries: The queries of the schema.
        thread_id: The thread.
        run_ids: Those of its runs that are deleted; all by default.
    """
    given = None if run_ids is None else [*run_ids]
    await db.execute(queries.keep_costs, {"thread_id": thread_id, "run_ids": given})


async def forget(db: Connection, queries: Queries) -> None:
    """Delete the costs of deleted model calls of earlier days. One statement; safe to repeat."""
    await db.execute(queries.sweep_costs, {})
