"""Limits of the time that a worker waits for locks of other transactions, and the error when a limit is exceeded."""

from __future__ import annotations

from typing import Final

from langgraph_pgstate.db.protocol import Parameters, Query
from langgraph_pgstate.schema.queries import Queries

# A caller's transaction that has enqueued a run may lock the thread's row for long. Meanwhile the worker must go on
# with other runs.
LOCK_TIMEOUT: Final = "200ms"
# Time after which the server ends the transaction of a process that is frozen or disconnected. Until then, other
# workers skip the rows that it has locked.
IDLE_TIMEOUT: Final = "10s"
_LOCK_NOT_AVAILABLE: Final = "55P03"


def bounded_waits(queries: Queries, *, is_synced: bool = True) -> tuple[Query, Parameters]:
    """Return the first statement of a transaction that waits only a moment for each lock; see `is_locked`.

    The server ends the transaction if this process sends it no statement for `IDLE_TIMEOUT`.

    Args:
        queries: The queries of the schema.
        is_synced: Whether the commit waits for the disk. If false, a server crash may undo the transaction, until a
            later transaction that waits for the disk has committed.
    """
    parameters = {"timeout": LOCK_TIMEOUT, "idle_timeout": IDLE_TIMEOUT, "is_synced": is_synced}
    return queries.begin_bounded_work, parameters


def is_locked(error: Exception) -> bool:
    """Return whether a transaction failed because another transaction has locked its rows."""
    return getattr(error, "sqlstate", None) == _LOCK_NOT_AVAILABLE
