"""Claiming of runs by workers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from langgraph_pgstate.db.protocol import Connection
from langgraph_pgstate.operations.runs.locking import LOCK_TIMEOUT
from langgraph_pgstate.operations.runs.requests import options_of
from langgraph_pgstate.sql import Queries
from langgraph_pgstate.types import ClaimedRun, Lease, Row

# Each puts off at most as many runs as are to be claimed.
_MOST_STATEMENTS: Final = 20


async def claim(
    db: Connection, queries: Queries, worker_id: str, queue: str, graphs: Sequence[str], limit: int, ttl: float
) -> list[ClaimedRun]:
    """Claim runs of some graphs with the leases of their threads, by priority and position.

    One statement, or a few if leases are held by somebody else: such runs are put off for a second. If the answer is
    lost, `tend` tells of the runs that were claimed. It waits a moment only for a lock; see `locking.is_locked`.

    Args:
        db: The connection.
        queries: The queries of the schema.
        worker_id: The worker, which holds the leases.
        queue: The queue.
        graphs: Graphs that the worker can run.
        limit: Number of runs at most.
        ttl: Seconds until the leases expire, unless they are renewed.
    """
    parameters = {"worker_id": worker_id, "queue": queue, "graphs": list(graphs), "ttl": repr(ttl)}
    parameters["lock_timeout"] = LOCK_TIMEOUT
    claimed: list[ClaimedRun] = []
    for _ in range(_MOST_STATEMENTS):
        rows = await db.fetch(queries.claim_runs, {**parameters, "limit": limit - len(claimed)})
        found = [_claimed(worker_id, queue, row) for row in rows if row[2] is not None]
        claimed += found
        if len(found) == len(rows) or len(claimed) == limit:
            break
    return claimed


def _claimed(worker_id: str, queue: str, row: Row) -> ClaimedRun:
    thread_id, run_id, graph, attempt, crashes, token = row[:6]
    *times, how, timeout_at, head_id, options, data, own_id = row[6:15]
    lease = Lease(thread_id, worker_id, token, *times)
    given = options_of(options or "{}")
    return ClaimedRun(
        thread_id, run_id, queue, graph, attempt, crashes, lease, data or b"", given, own_id, head_id, how, timeout_at
    )
