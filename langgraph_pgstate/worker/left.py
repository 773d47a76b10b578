"""Runs that have ended in the queue while their code still runs in OS threads, which cannot be stopped.

The worker keeps the lease of such a run until the code ends, at most for `drain_timeout`. Meanwhile no other run of the
LangGraph thread can begin.
"""

from __future__ import annotations

import logging
import time

from langgraph_pgstate.db.database import Database
from langgraph_pgstate.leases import holding as leases
from langgraph_pgstate.runs.types import RunKey
from langgraph_pgstate.schema.queries import Queries
from langgraph_pgstate.worker.executing import RunExecution

log = logging.getLogger("langgraph_pgstate.worker")


class LeftRuns:
    """The leases of a lane's ended runs whose code still runs.

    Args:
        queries: The queries of the schema.
        ttl: Seconds for which the leases are renewed.
        drain_timeout: Seconds from a run's stop or error until its lease is released.
    """

    def __init__(self, queries: Queries, ttl: float, drain_timeout: float) -> None:
        self._queries, self._ttl, self._drain_timeout = queries, ttl, drain_timeout
        self._executions: dict[RunKey, RunExecution] = {}
        self._renewed_at = float("-inf")
        self._is_forced = False

    def __len__(self) -> int:
        return len(self._executions)

    @property
    def due_at(self) -> float:
        """Time of the next renewal or release, by the monotonic clock."""
        if not self._executions:
            return float("inf")
        ends = [one.stopped_or_reported_at + self._drain_timeout for one in self._executions.values()]
        return min(self._renewed_at + self._ttl / 4, *ends)

    def force(self) -> None:
        """Release the leases in the next turn, even if code still runs."""
        self._is_forced = True

    def is_left(self, execution: RunExecution) -> bool:
        """Return whether code of an execution still runs, and other runs of the thread must wait for this code."""
        until = execution.stopped_or_reported_at + self._drain_timeout
        return execution.has_code and not self._is_forced and time.monotonic() < until

    def keep(self, execution: RunExecution) -> None:
        """Keep the lease of a run that has ended in the queue."""
        self._executions[execution.key] = execution
        log.info("run %s of thread %s has ended, but its code still runs; other runs wait", *_names(execution))

    def tend(self, database: Database) -> None:
        """Renew the leases when due. Release a lease once the run's code has ended or exceeded `drain_timeout`."""
        for key, execution in [*self._executions.items()]:
            if not self.is_left(execution):
                if execution.has_code:
                    log.warning("code of run %s of thread %s still runs; other runs no longer wait", *_names(execution))
                database.run(leases.release, self._queries, key.thread_id, key.fencing_token)
                del self._executions[key]
        now = time.monotonic()
        if self._executions and now >= self._renewed_at + self._ttl / 4:
            keys = [(key.thread_id, key.fencing_token) for key in self._executions]
            still = database.run(leases.renew, self._queries, keys, self._ttl)
            self._renewed_at = now
            self._executions = {
                key: one for key, one in self._executions.items() if (key.thread_id, key.fencing_token) in still
            }


def _names(execution: RunExecution) -> tuple[str, str]:
    return execution.key.run_id, execution.key.thread_id
