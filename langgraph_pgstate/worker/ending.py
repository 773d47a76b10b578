"""The ends of a worker's runs, which the control thread writes to the queue."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress

from langgraph_pgstate.db.database import Database
from langgraph_pgstate.errors import BudgetExceededError, ConfigurationError, PGStateError
from langgraph_pgstate.leases import holding as leases
from langgraph_pgstate.record.options import RecorderSettings
from langgraph_pgstate.record.recorder.capture import render_error
from langgraph_pgstate.runs import ending
from langgraph_pgstate.runs.locking import is_locked
from langgraph_pgstate.runs.requests import RunRequest
from langgraph_pgstate.runs.types import ClaimedRun, RunKey
from langgraph_pgstate.schema.queries import Queries
from langgraph_pgstate.worker.executing import RunExecution, RunOutcome, retry_delay

log = logging.getLogger("langgraph_pgstate.worker")


class LeftRuns:
    """The leases of a lane's ended runs whose code still runs in OS threads, which cannot be stopped.

    The worker keeps the lease of such a run until the code ends, at most for `drain_timeout`. Meanwhile no other run of
    the LangGraph thread can begin.

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


class Ender:
    """The reported executions of one lane, and the operations that end or requeue the runs.

    Args:
        queries: The queries of the schema.
        recording: Settings for recorded errors.
        seconds: Maximum seconds for runs with locked threads in one call, so that leases are renewed in time.
        note_end: Called with each execution whose run has ended in the queue, or was requeued.
        leave: Called with each execution whose run this worker cannot end. The run stays in the queue until the lease
            expires.
        left: Keeps the leases of ended runs whose code still runs.
        ttl: Seconds for which such a lease is renewed.
        follow: Returns the request to enqueue after a run has succeeded, if any.

    Attributes:
        given_back: Number of runs that were requeued.
    """

    def __init__(
        self,
        queries: Queries,
        recording: RecorderSettings,
        seconds: float,
        note_end: Callable[[RunExecution], None],
        leave: Callable[[RunExecution], None],
        left: LeftRuns,
        ttl: float,
        follow: Callable[[ClaimedRun], RunRequest | None],
    ) -> None:
        self._queries, self._recording, self._seconds = queries, recording, seconds
        self._note_end, self._leave, self._left, self._ttl = note_end, leave, left, ttl
        self._follow = follow
        self._reports: deque[tuple[RunExecution, RunOutcome]] = deque()
        # Ids of ended runs of which no notification was sent yet.
        self._ended: list[str] = []
        self.given_back = 0

    @property
    def reported(self) -> int:
        """Number of ended executions whose runs are not ended in the queue yet."""
        return len(self._reports)

    def report(self, execution: RunExecution, outcome: RunOutcome) -> None:
        """Accept the outcome of an execution that has ended. Any thread may call this method."""
        self._reports.append((execution, outcome))

    def end_reported(self, database: Database) -> None:
        """End the reported runs. Runs whose threads are locked stay reported."""
        # Runs that are reported during this call are ended in the next turn.
        number = len(self._reports)
        self._end_together(database)
        until = time.monotonic() + self._seconds
        for _ in range(number):
            execution, outcome = self._reports[0]
            if outcome.kind == "rollback" and not execution.refuses_writes and self._left.is_left(execution):
                # The run's code must end before the rollback, because the code must not store anything afterwards.
                self._reports.rotate(-1)
                continue
            is_ended = execution.refuses_writes or self.try_to_end(database, execution, outcome)
            self._reports.popleft()
            if not is_ended:
                execution.is_end_locked = True
                self._reports.append((execution, outcome))
                if time.monotonic() > until:
                    break

    def notify(self, database: Database) -> None:
        """Notify the callers that wait for ended runs. Callers also poll, because a notification may be lost."""
        ended, self._ended = self._ended, []
        if ended:
            with suppress(PGStateError):
                database.run_once(ending.notify, self._queries, ended)

    def _end_together(self, database: Database) -> None:
        """End the reported runs that need only a status, in one transaction for each status.

        Other runs stay reported. If a transaction fails, all runs of the transaction stay reported.
        """
        together: dict[str, list[RunExecution]] = {}
        for execution, outcome in [*self._reports]:
            is_plain = outcome.kind == "finish" and outcome.error is None and not execution.deletes_thread
            is_plain = is_plain and self._follower_of(execution, outcome.status) is None
            is_alone = execution.refuses_writes or execution.is_end_locked or self._left.is_left(execution)
            if is_plain and not is_alone:
                together.setdefault(outcome.status, []).append(execution)
        for status, executions in together.items():
            if len(executions) == 1:
                continue
            keys = [execution.key for execution in executions]
            events = [batch for execution in executions for batch in execution.unsent]
            try:
                is_done = database.run(ending.finish_together, self._queries, keys, status, events)
            except PGStateError as error:
                if error.retryable and not is_locked(error):
                    raise
                continue
            for execution in executions if is_done else ():
                self._forget(execution)

    def try_to_end(self, database: Database, execution: RunExecution, outcome: RunOutcome) -> bool:
        """End a run in the queue, or requeue the run. Return false if the run's thread is locked."""
        try:
            self._end(database, execution, outcome)
        except PGStateError as error:
            if is_locked(error):
                return False
            if error.retryable:
                raise
            # After the lease has expired, another worker executes the run again, at most `max_crashes` times.
            log.exception("run %s of thread %s could not be ended", execution.key.run_id, execution.key.thread_id)
            self._leave(execution)
        return True

    def _end(self, database: Database, execution: RunExecution, outcome: RunOutcome) -> None:
        """End a run in the queue, or requeue the run."""
        key, claimed = execution.key, execution.claimed
        run, queries = database.run, self._queries
        is_mine = True
        keep_for = self._ttl if outcome.kind != "rollback" and self._left.is_left(execution) else None
        if outcome.kind == "rollback":
            is_mine = run(ending.roll_back, queries, key)
        elif outcome.kind == "give_back":
            is_mine = run(ending.give_back, queries, key, execution.unsent, keep_for=keep_for)
            self.given_back += is_mine
        elif outcome.kind == "finish":
            error, retry_after = None, None
            if outcome.error is not None:
                error = self._described(outcome.error)
                retry_after = None if execution.stop == "timeout" else retry_delay(claimed, outcome.error)
            is_mine = self._finish(database, execution, outcome.status, error, retry_after, keep_for)
            if is_mine and outcome.error is not None:
                again = "" if retry_after is None else f"; it is tried again in {retry_after:.1f} s"
                names = key.run_id, key.thread_id
                if isinstance(outcome.error, BudgetExceededError):
                    log.warning("run %s of thread %s was refused: %s", *names, outcome.error)
                else:
                    # With encryption, the log must not show the error's message.
                    shown = outcome.error if database.keys is None else None
                    again = again if shown is not None else f": {type(outcome.error).__name__}{again}"
                    log.warning("run %s of thread %s failed%s", *names, again, exc_info=shown)
            # `finish` also returns false if the run must be rolled back, which this worker may not know yet.
            is_mine = is_mine or run(ending.roll_back, queries, key)
        if not is_mine or outcome.kind == "leave":
            log.warning("run %s of thread %s is left to another worker", key.run_id, key.thread_id)
            self._leave(execution)
            return
        if keep_for is not None:
            self._left.keep(execution)
        self._forget(execution)

    def _finish(
        self,
        database: Database,
        execution: RunExecution,
        status: str,
        error: ending.RunError | None,
        retry_after: float | None,
        keep_for: float | None,
    ) -> bool:
        """End a run with a status. Return whether the run still belonged to this worker."""
        try:
            return database.run(
                ending.finish,
                self._queries,
                execution.key,
                status,
                error,
                retry_after,
                execution.unsent,
                deletes_thread=execution.deletes_thread,
                keep_for=keep_for,
                then=self._follower_of(execution, status),
            )
        except ConfigurationError:
            if error is None or error == error.as_ascii():
                raise
        # The encoding of the database may lack characters of the error. Store the error in ASCII, so that the run ends.
        return self._finish(database, execution, status, error.as_ascii(), retry_after, keep_for)

    def _follower_of(self, execution: RunExecution, status: str) -> RunRequest | None:
        is_followed = status == "success" and not execution.deletes_thread
        return self._follow(execution.claimed) if is_followed else None

    def _forget(self, execution: RunExecution) -> None:
        self._ended.append(execution.key.run_id)
        self._note_end(execution)

    def _described(self, error: BaseException) -> ending.RunError:
        told = render_error(error, self._recording)
        return ending.RunError(told["error_type"] or "", told["error_message"] or "", told["error_traceback"])
