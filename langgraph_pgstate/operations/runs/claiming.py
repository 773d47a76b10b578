"""Claiming of runs by workers."""

from __future__ import annotations

from collections.abc import Sequence

from langgraph_pgstate.db.protocol import Connection
from langgraph_pgstate.operations.runs.requests import options_of
from langgraph_pgstate.sql import Queries
from langgraph_pgstate.types import ClaimedRun, Lease


async def claim(
    db: Connection, queries: Queries, worker_id: str, queue: str, graphs: Sequence[str], limit: int, ttl: float
) -> list[ClaimedRun]:
    """Claim runs of some graphs with the leases of their threads, by priority and position. One statement.

    If the answer is lost, `tend` tells of the runs that were claimed.

    Args:
        db: The connection.
        queries: The queries of the schema.
        worker_id: The worker, which holds the leases.
        queue: The queue.
        graphs: Graphs that the worker can run.
        limit: Number of runs at most.
        ttl: Seconds until the leases expire, unless they are renewed.
    """
    parameters = {"worker_id": worker_id, "queue": queue, "graphs": list(graphs), "limit": limit, "ttl": repr(ttl)}
    return [
        ClaimedRun(
            thread_id,
            run_id,
            queue,
            graph,
            attempt,
            crashes,
            Lease(thread_id, worker_id, token, acquired_at, renewed_at, expires_at),
            data or b"",
            options_of(options or "{}"),
            own_id,
            head_id,
            cancel,
            timeout_at,
        )
        for (
            thread_id,
            run_id,
            graph,
            attempt,
            crashes,
            token,
            acquired_at,
            renewed_at,
            expires_at,
            cancel,
            timeout_at,
            head_id,
            options,
            data,
            own_id,
        ) in await db.fetch(queries.claim_runs, parameters)
    ]
