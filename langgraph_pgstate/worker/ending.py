"""Ends of a worker's runs in the queue, as their executions report them."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress

from langgraph_pgstate.db.database import Database
from langgraph_pgstate.errors import BudgetExceededError, ConfigurationError, PGStateError
from langgraph_pgstate.record.options import RecorderSettings
from langgraph_pgstate.record.recorder.capture import render_error
from langgraph_pgstate.runs import ending
from langgraph_pgstate.runs.locking import is_locked
from langgraph_pgstate.runs.requests import RunRequest
from langgraph_pgstate.runs.types import ClaimedRun
from langgraph_pgstate.schema.queries import Queries
from langgraph_pgstate.worker.executing import RunExecution, RunOutcome, retry_delay
from langgraph_pgstate.worker.left import LeftRuns

log = logging.getLogger("langgraph_pgstate.worker")


class Ender:
    """Ends runs of one worker, or requeues them. Remembers the reports that are not in the database yet.

    Args:
        queries: The queries of the schema.
        recording: What is recorded of errors.
        seconds: Time after which a call ends no further runs one by one, so that leases are renewed.
        note_end: Called with each execution whose run has ended in the queue, or was requeued.
        leave: Called with each whose run is left until its lease expires.
        left: Knows for which runs a lease is kept because their code still runs.
        ttl: Seconds for which it is.
        follow: Returns the run that follows one that has succeeded.

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
        # Ids of ended runs whose ends have not been reported to those who wait for them.
        self._ended: list[str] = []
        self.given_back = 0

    @property
    def reported(self) -> int:
        """Number of executions that have ended, and whose runs have not."""
        return len(self._reports)

    def report(self, execution: RunExecution, outcome: RunOutcome) -> None:
        """Take the outcome of an execution, which has ended. Any thread may call it."""
        self._reports.append((execution, outcome))

    def end_reported(self, database: Database) -> None:
        """End the reported runs. Those whose threads are locked stay reported.

        Raises:
            PGStateError: If the queue is not available.
        """
        # Runs that end meanwhile are ended together in the next turn.
        number = len(self._reports)
        self._end_together(database)
        until = time.monotonic() + self._seconds
        for _ in range(number):
            execution, outcome = self._reports[0]
            if outcome.kind == "rollback" and not execution.refuses_writes and self._left.is_left(execution):
                # Its code must not store anything after the deletion.
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
        """Wake those who wait for runs that have ended. After the commit, and only a hint: they poll, too."""
        ended, self._ended = self._ended, []
        if ended:
            with suppress(PGStateError):
                database.run_once(ending.notify, self._queries, ended)

    def _end_together(self, database: Database) -> None:
        """End the reported runs that need no more than a status, in one transaction for each status.

        Others, and all if that fails because a thread is locked or a lease was lost, are ended one by one.
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
        """End a run in the queue, or requeue it. Return false if another transaction has locked its thread.

        Raises:
            PGStateError: If the queue is not available.
        """
        try:
            self._end(database, execution, outcome)
        except PGStateError as error:
            if is_locked(error):
                return False
            if error.retryable:
                raise
            # Its lease expires, and another worker runs it again, `max_crashes` times at most.
            log.exception("run %s of thread %s could not be ended", execution.key.run_id, execution.key.thread_id)
            self._leave(execution)
        return True

    def _end(self, database: Database, execution: RunExecution, outcome: RunOutcome) -> None:
        """End a run in the queue, or requeue it."""
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
                    log.warning("run %s of thread %s failed%s", *names, again, exc_info=outcome.error)
            # It may have ended before the worker read that it is to be rolled back.
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
        """End a run with a status, and return whether it was this worker's."""
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
        # The encoding of the database lacks some characters. A run whose end is not stored would run again.
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
