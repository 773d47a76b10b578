"""Acquisition, renewal and release of leases, by the database's clock."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from langgraph_pgstate.db.protocol import Connection
from langgraph_pgstate.errors import ConflictError, LeaseHeldError, ThreadDeletedError
from langgraph_pgstate.leases.types import Lease
from langgraph_pgstate.schema.queries import Queries

_ATTEMPTS: Final = 5


async def take(
    db: Connection, queries: Queries, thread_id: str, holder_id: str, ttl: float, free_tokens: Sequence[int] = ()
) -> Lease:
    """Take a thread's lease. One statement; safe to repeat under the same `holder_id`.

    Args:
        db: The connection.
        queries: The queries of the schema.
        thread_id: The thread.
        holder_id: A new id for each lease.
        ttl: Seconds until the lease expires.
        free_tokens: Fencing tokens of leases that may be taken before they expire, because their holders are gone.

    Raises:
        LeaseHeldError: If another holder has the lease. The error has that lease's `fencing_token`.
        ThreadDeletedError: If the thread was deleted.
    """
    parameters = {"thread_id": thread_id, "holder_id": holder_id, "ttl": ttl, "free_tokens": list(free_tokens)}
    for _ in range(_ATTEMPTS):
        rows = await db.fetch(queries.take_lease, parameters)
        for _, deleted_at, *_ in rows:
            if deleted_at is not None:
                raise ThreadDeletedError(thread_id, deleted_at)
        for is_taken, _, holder, token, acquired_at, renewed_at, expires_at, run_id in rows:
            if not is_taken:
                raise LeaseHeldError(thread_id, holder, expires_at, token, acquired_at, run_id)
            return Lease(thread_id, holder, token, acquired_at, renewed_at, expires_at)
        # Without a row, the lease was taken or released while the statement ran. The next attempt sees the change.
    raise ConflictError(f"the lease of thread {thread_id!r} changes too often: try again")


async def renew(
    db: Connection, queries: Queries, leases: Sequence[tuple[str, int]], ttl: float
) -> set[tuple[str, int]]:
    """Renew leases, given by thread and fencing token, for `ttl` seconds from now. One statement; safe to repeat.

    Return the renewed leases. The other leases were lost.
    """
    if not leases:
        return set()
    thread_ids, tokens = zip(*leases, strict=True)
    parameters = {"thread_ids": list(thread_ids), "fencing_tokens": list(tokens), "ttl": ttl}
    return {(thread_id, token) for thread_id, token in await db.fetch(queries.renew_leases, parameters)}


async def release(
    db: Connection, queries: Queries, thread_id: str, fencing_token: int | None, holder_id: str | None = None
) -> bool:
    """Release a lease, and return whether it was held. One statement; safe to repeat.

    If there was no response when the lease was taken, its fencing token is unknown. Then give `holder_id`.
    """
    parameters = {"thread_id": thread_id, "fencing_token": fencing_token, "holder_id": holder_id}
    return await db.execute(queries.release_lease, parameters) > 0
