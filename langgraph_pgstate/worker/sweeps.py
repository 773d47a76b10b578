"""Periodic work of every worker on the whole queue, such as requeueing lost runs and firing schedules."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from langgraph_pgstate.codec.values import ValueCodec
from langgraph_pgstate.db.database import Database
from langgraph_pgstate.db.translate import is_of_one_row
from langgraph_pgstate.errors import PGStateError
from langgraph_pgstate.interrupts import answers
from langgraph_pgstate.memory import items
from langgraph_pgstate.process_identity import is_known_dead
from langgraph_pgstate.runs import ending, tending
from langgraph_pgstate.runs.enqueue import adopt
from langgraph_pgstate.runs.locking import is_locked
from langgraph_pgstate.schedules import firing
from langgraph_pgstate.schema.queries import Queries
from langgraph_pgstate.worker.settings import WorkerSettings

_RECOVER_SECONDS: Final = 2.0
_ADOPT_SECONDS: Final = 10.0
_DEFAULTS_SECONDS: Final = 2.0
_DELETED_SECONDS: Final = 10.0
_MEMORIES_SECONDS: Final = 60.0
# Maximum number of rows of one sweep.
_BACKLOG: Final = 100

log = logging.getLogger("langgraph_pgstate.worker")


class Sweep:
    """Work that a lane repeats at an interval.

    Args:
        seconds: Seconds between two calls of `work`.
        work: The function to call. An error about one row is logged. Any other error is raised, and the work stays due.

    Attributes:
        due_at: Time at which the work is next due, by the monotonic clock.
    """

    def __init__(self, seconds: float, work: Callable[[], None]) -> None:
        self._seconds, self._work = seconds, work
        self.due_at = float("-inf")

    def __call__(self) -> None:
        """Do the work if due."""
        if time.monotonic() >= self.due_at:
            try:
                self._work()
            except Exception as error:
                if not is_of_one_row(error):
                    raise
                log.exception("a sweep of the queue has failed")
            self.due_at = time.monotonic() + self._seconds


class Sweeps:
    """The sweeps of one lane. Any number of workers may sweep at once.

    Args:
        database: The database of the worker's control thread.
        queries: The queries of the schema.
        codec: Encodes requests for runs.
        graphs: Names of the worker's graphs.
        settings: The worker's settings.
        turn_seconds: Maximum seconds of one sweep, because the control thread must also renew leases.
        adopts: Whether to take over crashed runs that were not enqueued.

    Attributes:
        all: The sweeps, in order.
    """

    def __init__(
        self,
        database: Database,
        queries: Queries,
        codec: ValueCodec,
        graphs: Sequence[str],
        settings: WorkerSettings,
        turn_seconds: float,
        *,
        adopts: bool,
    ) -> None:
        self._database, self._queries, self._codec, self._graphs = database, queries, codec, graphs
        self._settings, self._turn_seconds = settings, turn_seconds
        self._warned: set[tuple[str, ...]] = set()
        self._first = Sweep(_RECOVER_SECONDS, self._recover), Sweep(settings.poll, self._make_due)
        self.all = (
            *self._first,
            *([Sweep(_ADOPT_SECONDS, self._adopt)] if adopts else []),
            Sweep(settings.poll, self._fire),
            Sweep(_DEFAULTS_SECONDS, self._answer_by_default),
            Sweep(_DELETED_SECONDS, self._delete_deleted),
            Sweep(_MEMORIES_SECONDS, self._delete_memories),
        )

    @property
    def due_at(self) -> float:
        """Time at which the control thread must wake for a sweep. Only two sweeps wake the thread."""
        return min(sweep.due_at for sweep in self._first)

    def _recover(self) -> None:
        """Requeue the runs of dead workers."""
        found = self._database.run(tending.recover, self._queries, _BACKLOG, self._settings.max_crashes, is_known_dead)
        for one in found:
            log.warning("run %s of thread %s lost its worker; it is %s", one.run_id, one.thread_id, one.status)

    def _adopt(self) -> None:
        """Enqueue crashed runs that were not enqueued."""
        queue = self._settings.queues[0]
        for run in self._database.run(adopt, self._queries, self._codec, is_known_dead, self._graphs, queue):
            log.warning("run %s of thread %s lost its process; it is enqueued", run.run_id, run.thread_id)

    def _make_due(self) -> None:
        """Make due delayed runs ready."""
        self._database.run(tending.make_due, self._queries)

    def _fire(self) -> None:
        """Enqueue runs of schedules that are due."""
        due = self._database.run(firing.find_due, self._queries, _BACKLOG)

        def failed(error: Exception, name: str) -> None:
            if isinstance(error, PGStateError) and firing.is_of_schedule(error):
                self._database.run(firing.set_error, self._queries, name, str(error))

        self._do_each(firing.fire, [(name,) for name in due], failed)

    def _answer_by_default(self) -> None:
        """Give default answers to interrupts that were not answered in time."""
        due = self._database.run(answers.find_due_defaults, self._queries, self._graphs, _BACKLOG)

        def failed(error: Exception, *key: str) -> None:
            self._database.run(answers.postpone_default, self._queries, *key)

        self._do_each(answers.answer_by_default, due, failed)

    def _delete_deleted(self) -> None:
        """Delete the rows of runs that have deleted their threads, until the sweep's time is over."""
        until = time.monotonic() + self._turn_seconds
        try:
            while self._database.run(ending.sweep, self._queries, _BACKLOG) == _BACKLOG and time.monotonic() <= until:
                pass
        except PGStateError as error:
            if error.retryable:
                raise
            log.warning("runs that have deleted their threads cannot be deleted: %s", error)

    def _delete_memories(self) -> None:
        """Delete expired memories, until the sweep's time is over."""
        until = time.monotonic() + self._turn_seconds
        while self._database.run(items.sweep_some, self._queries) and time.monotonic() <= until:
            pass

    def _do_each(self, operation: Any, keys: Sequence[tuple[str, ...]], failed: Callable[..., None]) -> None:
        """Call an operation for each key, until the sweep's time is over.

        Failures are logged and skipped. After a failure that is not a lock, `failed` is called with the error and the
        key, so that rows which cannot be processed do not fill the next page.
        """
        until = time.monotonic() + self._turn_seconds
        for key in keys:
            try:
                self._database.run(operation, self._queries, self._codec, *key)
            except Exception as error:
                if not is_locked(error) and not is_of_one_row(error):
                    raise
                if not is_locked(error):
                    failed(error, *key)
                    if key not in self._warned:
                        self._warned.add(key)
                        log.warning("%s of %s failed: %r", operation.__name__, " ".join(key), error)
            if time.monotonic() > until:
                break
