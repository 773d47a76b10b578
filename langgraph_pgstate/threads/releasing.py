"""Transfer of recorded messages from checkpoints that are about to be removed to those that stay."""

from __future__ import annotations

from collections.abc import Sequence

from langgraph_pgstate.db.protocol import Connection
from langgraph_pgstate.record import journal
from langgraph_pgstate.schema.queries import Queries


async def release_messages(db: Connection, queries: Queries, thread_id: str, checkpoint_ids: Sequence[str]) -> None:
    """Store all messages of removed ancestors with their remaining children.

    Call it in the transaction that then removes the ancestors. A concurrent put that builds on one of them either has
    been committed before, so its messages are complete, or waits, finds its parent gone, and records all its messages.

    Args:
        db: The connection, in a transaction.
        queries: The queries of the schema.
        thread_id: The thread.
        checkpoint_ids: Checkpoints of the root namespace that are about to be removed.
    """
    if not checkpoint_ids:
        return
    key = {"thread_id": thread_id, "checkpoint_ids": list(checkpoint_ids)}
    await db.fetch(queries.lock_checkpoints, {**key, "namespaces": [""] * len(checkpoint_ids)})
    await journal.write(db, queries, [thread_id])
    await db.execute(queries.rebase_messages, key)
