"""Claims of runs by one worker. A run that may have killed its worker must be alone in the next process."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Final

from langgraph_pgstate.db.database import Database
from langgraph_pgstate.leases.registry import timed
from langgraph_pgstate.process_identity import is_known_dead
from langgraph_pgstate.runs import claiming
from langgraph_pgstate.runs.types import ClaimedRun
from langgraph_pgstate.schema.queries import Queries


class Isolation:
    """The workers of this process that have runs, and the worker with a run that must be alone. Thread-safe."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget all workers. A new lock is made, because a thread of the parent process may hold the old lock."""
        self._lock = threading.Lock()
        self._busy: set[object] = set()
        self._alone: object = None

    def enter(self, worker: object) -> bool:
        """Remember that a worker begins a run. Return false if another worker has a run that must be alone."""
        with self._lock:
            if self._alone not in (None, worker):
                return False
            self._busy.add(worker)
            return True

    def enter_alone(self, worker: object) -> bool:
        """Remember that a worker begins a run that must be alone. Return false if another worker has runs."""
        with self._lock:
            if self._alone not in (None, worker) or self._busy - {worker}:
                return False
            self._busy.add(worker)
            self._alone = worker
            return True

    def leave(self, worker: object) -> None:
        """Remember that a worker has no runs. Safe to repeat."""
        with self._lock:
            self._busy.discard(worker)
            if self._alone is worker:
                self._alone = None


ISOLATION: Final = Isolation()
# A child process executes none of the parent's runs.
os.register_at_fork(after_in_child=ISOLATION.reset)


# Seconds until the next claim if another worker was claiming. Meanwhile the other claim commits.
_BUSY_SECONDS: Final = 0.01


class Claimer:
    """An object that claims runs for one worker.

    Args:
        queries: The queries of the schema.
        worker_id: Id of the worker.
        graphs: Graphs of the worker.
        versions: For each graph, the accepted versions. Runs without a version are always accepted.
        ttl: Seconds until the leases of claimed runs expire.
        poll: Seconds until queue keys at their limits are checked again.

    Attributes:
        asked_at: Time at which the last claim began, by `lease_clock`.
    """

    def __init__(
        self,
        queries: Queries,
        worker_id: str,
        graphs: Sequence[str],
        versions: Mapping[str, Sequence[str]],
        ttl: float,
        poll: float,
    ) -> None:
        self._queries, self._worker_id, self._graphs, self._versions = queries, worker_id, graphs, versions
        self._ttl, self._poll = ttl, poll
        self.asked_at = 0.0
        self._limited: set[str] = set()
        self._waiting: set[str] = set()
        # For each queue, whether the last claim found runs that must be alone. A missing queue may have such runs.
        self._suspects: dict[str, bool] = {}
        self._ended: dict[str, set[str]] = {}
        self._cursors: dict[str, str | None] = {}
        self._opened_at: dict[str, float] = {}
        self._retry_at: dict[str, float] = {}

    @property
    def due_at(self) -> float:
        """Time to claim again because another worker was claiming, by the monotonic clock; by default, infinity."""
        return min(self._retry_at.values(), default=float("inf"))

    @property
    def has_waiting(self) -> bool:
        """Whether the last claims found runs that wait for limits."""
        return bool(self._waiting)

    def ended(self, claimed: ClaimedRun) -> None:
        """Remember that a run has ended, because the limit of its queue key may now allow another run."""
        if claimed.queue in self._limited and claimed.queue_key:
            self._ended.setdefault(claimed.queue, set()).add(claimed.queue_key)

    def may_have_suspects(self, queue: str) -> bool:
        """Return whether a queue may have runs that must be alone in a process."""
        return self._suspects.get(queue, True)

    def is_chosen(self, database: Database, queue: str) -> bool:
        """Return whether this worker is chosen to claim the queue's next run that must be alone."""
        chosen = database.run(
            claiming.choose_isolated, self._queries, queue, self._graphs, self._versions, is_known_dead
        )
        return chosen == self._worker_id

    def claim(self, database: Database, queue: str, limit: int, *, suspects: bool = False) -> list[ClaimedRun]:
        """Claim runs of a queue, including runs that waited for limits.

        With `suspects`, only runs that must be alone are claimed. Otherwise no such run is claimed.
        """
        had_limits, ended = queue in self._limited, self._ended.get(queue, set())
        if queue in self._waiting:
            self._open(database, queue)
        else:
            ended.clear()
        self.asked_at, claims = database.run(
            timed,
            claiming.claim,
            self._queries,
            self._worker_id,
            queue,
            self._graphs,
            limit,
            self._ttl,
            self._versions,
            has_limits=had_limits,
            ended=sorted(ended),
            suspects=suspects,
        )
        ended.clear()
        _note(self._limited, queue, claims.has_limits)
        _note(self._waiting, queue, claims.has_waiting)
        self._suspects[queue] = claims.has_suspects
        self._retry_at.pop(queue, None)
        if claims.is_busy:
            self._retry_at[queue] = time.monotonic() + _BUSY_SECONDS
        if claims.has_waiting and not had_limits and not claims.runs:
            # This claim did not know of the limits. The next claim checks the limits.
            return self.claim(database, queue, limit, suspects=suspects)
        return claims.runs

    def _open(self, database: Database, queue: str) -> None:
        """Check the limits of waiting runs every `poll` seconds, because other workers' runs may have ended."""
        now = time.monotonic()
        if now >= self._opened_at.get(queue, float("-inf")) + self._poll:
            cursor = self._cursors.get(queue) or ""
            self._cursors[queue] = database.run(
                claiming.open_keys, self._queries, queue, self._graphs, self._versions, cursor
            )
            self._opened_at[queue] = now


def _note(names: set[str], name: str, is_in: bool) -> None:
    if is_in:
        names.add(name)
    else:
        names.discard(name)
