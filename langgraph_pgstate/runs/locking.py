"""Limits of the time that a worker's transaction waits for locks."""

from __future__ import annotations

from typing import Final

from langgraph_pgstate.db.protocol import Parameters, Query
from langgraph_pgstate.schema.queries import Queries

# A caller's transaction that has enqueued a run may lock the thread's row for long. The worker must not wait for this
# transaction, because other runs are due.
LOCK_TIMEOUT: Final = "200ms"
# Time after which the server ends the transaction of a frozen process, and so releases the transaction's locks.
IDLE_TIMEOUT: Final = "10s"
_LOCK_NOT_AVAILABLE: Final = "55P03"


def bounded_waits(queries: Queries, *, is_synced: bool = True) -> tuple[Query, Parameters]:
    """Return the first statement of a transaction that waits only a moment for each lock; see `is_locked`.

    The server ends the transaction if this process sends no statement for `IDLE_TIMEOUT`. Without `is_synced`, the
    commit does not wait for the disk, so that a server crash may undo the transaction.
    """
    parameters = {"timeout": LOCK_TIMEOUT, "idle_timeout": IDLE_TIMEOUT, "is_synced": is_synced}
    return queries.begin_bounded_work, parameters


def is_locked(error: Exception) -> bool:
    """Return whether a transaction failed because another transaction has locked its rows."""
    return getattr(error, "sqlstate", None) == _LOCK_NOT_AVAILABLE
