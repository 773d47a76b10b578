"""The control thread of a worker. It claims runs, renews their leases, stops runs, and ends them in the queue.

It has its own connections and shares no event loop with graphs. So neither a busy loop nor a blocking node makes a live
run lose its lease. Only this thread writes to the queue for the worker, one write after another.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Final

from langgraph_pgstate.codec.values import ValueCodec
from langgraph_pgstate.db.listening import Listener
from langgraph_pgstate.encryption.keys import KeyRing
from langgraph_pgstate.errors import PGStateError
from langgraph_pgstate.keep.thread import RetentionThread
from langgraph_pgstate.leases.registry import HeldLease, confirmed_end, next_holder, timed
from langgraph_pgstate.options import PoolSettings
from langgraph_pgstate.process_identity import short_holder
from langgraph_pgstate.record.options import RecorderSettings
from langgraph_pgstate.runs import ending, tending
from langgraph_pgstate.runs.locking import is_locked
from langgraph_pgstate.runs.options import WebhookSettings
from langgraph_pgstate.runs.types import ClaimedRun, RunKey
from langgraph_pgstate.runs.webhooks import WebhookThread
from langgraph_pgstate.schema.queries import Queries
from langgraph_pgstate.schema.tenancy import open_database, refuse_without_tenant
from langgraph_pgstate.worker.claims import ISOLATION, Claimer
from langgraph_pgstate.worker.ending import Ender
from langgraph_pgstate.worker.executing import RunExecution, RunOutcome, Stop, run_outcome
from langgraph_pgstate.worker.followers import following
from langgraph_pgstate.worker.left import LeftRuns
from langgraph_pgstate.worker.settings import WorkerSettings, accepted_versions
from langgraph_pgstate.worker.sweeps import Sweeps

_CHANNEL: Final = "pgstate_queue"
_TEND_SECONDS: Final = 2.0
# Seconds after which a cancelled task that has not ended counts as stuck, like its event loop.
_STUCK_SECONDS: Final = 5.0
# Seconds between two attempts while the queue is not available.
_RETRY_SECONDS: Final = 0.1

log = logging.getLogger("langgraph_pgstate.worker")


class Control:
    """The control thread of one worker.

    Args:
        dsn: The server.
        tenant: The tenant whose runs the worker executes; `None` if tenants are not kept apart.
        prepare_threshold: As for the connections of graphs; see `ConnectionOptions`.
        queries: The queries of the schema.
        graphs: Names of the graphs that the worker runs.
        settings: The worker's settings.
        recording: Settings for recorded errors.
        begin: Starts executions, each of which ends with a call of `report`. Must not block.
        interrupt: Cancels an execution. Returns whether it can be cancelled; the code must then end soon.
        codec: Encodes requests.
        webhooks: Secret of webhooks, and the allowed targets.
        adopts: Whether crashed runs that were not enqueued are taken over.
        keys: The data keys of the state; `None` without encryption.
    """

    def __init__(
        self,
        dsn: str,
        tenant: str | None,
        prepare_threshold: int | None,
        queries: Queries,
        graphs: Sequence[str],
        settings: WorkerSettings,
        recording: RecorderSettings,
        begin: Callable[[Sequence[RunExecution]], None],
        interrupt: Callable[[RunExecution], bool],
        codec: ValueCodec,
        webhooks: WebhookSettings,
        adopts: bool = False,
        keys: KeyRing | None = None,
    ) -> None:
        self.worker_id = next_holder()
        self._dsn, self._tenant, self._prepare_threshold, self._keys = dsn, tenant, prepare_threshold, keys
        self._queries, self._graphs = queries, [*graphs]
        self._settings = settings
        self._begin, self._interrupt, self._codec, self._adopts = begin, interrupt, codec, adopts
        self._webhook_settings = webhooks
        self._webhooks: WebhookThread | None = None
        self._retention: RetentionThread | None = None
        self._versions = accepted_versions(settings.versions, self._graphs)
        self._claimer = Claimer(
            queries, self.worker_id, self._graphs, self._versions, settings.lease_ttl, settings.poll
        )
        self._wake = threading.Event()
        self._has_news = False
        self._executions: dict[RunKey, RunExecution] = {}
        # Runs that only the database assigns to this worker. They are left until their leases expire.
        self._left: set[RunKey] = set()
        self._left_runs = LeftRuns(queries, settings.lease_ttl, settings.drain_timeout)
        self._ender = Ender(
            queries,
            recording,
            self._tend_seconds,
            self._note_end,
            self._leave_to_sweep,
            self._left_runs,
            settings.lease_ttl,
            partial(following, codec, settings.followed_by),
        )
        self._tended_at = self._failed_at = float("-inf")
        self._claimed_all = False
        self._draining_since = float("inf")
        self._is_once = self._is_forced = False
        self._is_drain_logged = False
        self._started = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._work, name="pgstate-worker", daemon=True)

    # Methods that other threads call.

    def start(self, *, once: bool = False) -> None:
        """Connect and start the thread.

        Args:
            once: Stop when no run is left to claim.

        Raises:
            PGStateError: If the database cannot be used.
        """
        self._is_once = once
        self._thread.start()
        self._started.wait()
        error, self._error = self._error, None
        if error is not None:
            raise error

    def report(self, execution: RunExecution, outcome: RunOutcome) -> None:
        """Accept the outcome of an execution. Its code has ended, except for OS threads that it has left behind."""
        execution.reported_at = time.monotonic()
        if execution.has_raised and execution.held.work.has_threads:
            execution.held.work.when_threads_ended(self._wake.set)
        self._ender.report(execution, outcome)
        self._wake.set()

    def drain(self) -> None:
        """Stop claiming runs, and requeue the current runs at their next superstep boundaries."""
        self._draining_since = min(self._draining_since, time.monotonic())
        self._wake.set()

    def force(self) -> None:
        """Drain without waiting for superstep boundaries."""
        self._is_forced = True
        self._left_runs.force()
        self.drain()

    def join(self, timeout: float | None = None) -> bool:
        """Wait until the thread has ended; return false after the timeout.

        Raises:
            BaseException: What ended the thread, if it failed.
        """
        if self._thread.ident is not None:
            self._thread.join(timeout)
        if self._error is not None:
            raise self._error
        return not self._thread.is_alive()

    # The code of the thread itself.

    def _work(self) -> None:
        settings = self._settings
        listener: Listener | None = None
        # Short, so that an outage does not block the thread for long.
        pool = PoolSettings(max_size=1, timeout=max(2.0, settings.lease_ttl / 3))
        # Prepared at once, because the thread repeats the same few statements.
        prepare = None if self._prepare_threshold is None else 0
        place = self._dsn, self._queries, self._tenant, self._keys
        opening = partial(open_database, *place, pool=pool, prepare_threshold=prepare)
        try:
            # Two connections, so that webhooks do not delay the renewal of leases.
            with opening() as database, opening() as database_of_webhooks:
                database.run(refuse_without_tenant, self._queries, "a worker")
                self._database = database
                self._sweeps = Sweeps(
                    database,
                    self._queries,
                    self._codec,
                    self._graphs,
                    settings,
                    self._tend_seconds,
                    adopts=self._adopts,
                )
                database.run(
                    tending.put_worker,
                    self._queries,
                    self.worker_id,
                    settings.queues,
                    self._graphs,
                    settings.concurrency,
                    self._versions,
                )
                listener = Listener(database.dsn, _CHANNEL, self._notice)
                self._webhooks = WebhookThread(database_of_webhooks, self._queries, self._webhook_settings)
                self._webhooks.start()
                self._retention = RetentionThread(opening, self._queries)
                self._retention.start()
                self._started.set()
                graphs, names = ", ".join(self._graphs), ", ".join(settings.queues)
                known = short_holder(self.worker_id)
                log.info("worker %s runs %s from %s, %d at once", known, graphs, names, settings.concurrency)
                while self._turn():
                    self._wake.wait(self._pause())
                    self._wake.clear()
                self._webhooks.stop()
                self._retention.stop()
                given_back = self._ender.given_back
                log.info("worker %s has stopped; runs requeued: %d", short_holder(self.worker_id), given_back)
                database.run_within(1.0, tending.delete_worker, self._queries, self.worker_id)
        except PGStateError as error:
            if not self._started.is_set():
                self._error = error
        except BaseException as error:
            log.exception("the worker failed")
            self._error = error
        finally:
            if self._webhooks is not None:
                self._webhooks.stop()
            if self._retention is not None:
                self._retention.stop()
            if listener is not None:
                listener.close()
            for execution in self._executions.values():
                execution.refuse_writes()
            ISOLATION.leave(self)
            self._started.set()

    def _notice(self, _: str) -> None:
        self._has_news = True
        self._wake.set()

    def _turn(self) -> bool:
        """Do the work that is due, and return whether the worker goes on."""
        steps: tuple[Callable[[], None], ...] = (
            self._end_reported,
            self._notify_of_ends,
            self._tend,
            self._tend_left,
            self._stop_due,
            *self._sweeps.all,
            self._claim,
        )
        for step in steps:
            try:
                step()
            except PGStateError as error:
                self._failed_at = time.monotonic()
                if is_locked(error):
                    # The work is tried again. Other work does not wait for it.
                    continue
                log.warning("the queue is not available: %s", error)
                # Most stops do not need the database.
                with suppress(PGStateError):
                    self._stop_due()
                break
        now = time.monotonic()
        is_busy = bool(self._executions or self._ender.reported or self._left_runs)
        if self._draining_since < float("inf"):
            # By then all leases of the worker have expired.
            return is_busy and now < self._draining_since + self._settings.drain_timeout + self._settings.lease_ttl
        return is_busy or not (self._is_once and self._claimed_all)

    def _pause(self) -> float:
        """Return the seconds until some work is due."""
        now = time.monotonic()
        due = [self._sweeps.due_at, self._claimer.due_at, self._left_runs.due_at]
        if self._executions:
            due.append(self._tended_at + self._tend_seconds)
            due += [self._due_at(one) for one in self._executions.values()]
        # Work that has failed stays due.
        first = max(min(due), self._failed_at + min(self._settings.poll, _RETRY_SECONDS))
        return min(max(0.0, first - now), self._settings.poll)

    def _due_at(self, execution: RunExecution) -> float:
        """Return when to stop an execution next, or when to stop waiting for its end."""
        if execution.is_reported:
            until = execution.stopped_or_reported_at + self._settings.drain_timeout
            return until if until > time.monotonic() else float("inf")
        return min(execution.due_at, execution.superstep_due_at, self._forced_after(execution))

    @property
    def _tend_seconds(self) -> float:
        return min(self._settings.lease_ttl / 4, _TEND_SECONDS)

    def _end_reported(self) -> None:
        self._ender.end_reported(self._database)

    def _notify_of_ends(self) -> None:
        self._ender.notify(self._database)

    def _note_end(self, execution: RunExecution) -> None:
        """Forget a run that has ended in the queue or was requeued."""
        if execution.stream is not None:
            execution.stream.close()
        execution.refuse_writes()
        self._executions.pop(execution.key, None)
        self._claimer.ended(execution.claimed)
        if self._webhooks is not None and execution.claimed.options.get("webhook"):
            self._webhooks.wake()

    def _leave_to_sweep(self, execution: RunExecution) -> None:
        """Stop renewing the lease of a run. A sweep of expired leases requeues the run and counts a crash."""
        execution.refuse_writes()
        self._executions.pop(execution.key, None)
        self._left.add(execution.key)

    def _tend(self) -> None:
        """Renew leases, and find the runs that were lost or must be cancelled."""
        now = time.monotonic()
        has_news, self._has_news = self._has_news, False
        if now < self._tended_at + (0.1 if has_news and self._executions else self._tend_seconds):
            self._has_news = has_news and bool(self._executions)
            return
        keys = [*self._executions]
        ttl = self._settings.lease_ttl
        asked_at, tended = self._database.run(timed, tending.tend, self._queries, self.worker_id, keys, ttl)
        self._tended_at = time.monotonic()
        for key in tended.renewed:
            self._executions[key].held.confirm(asked_at, ttl)
        for key in keys:
            if key not in tended.still:
                self._ask(self._executions[key], "lost")
            elif (how := tended.cancels.get(key)) is not None:
                self._ask(self._executions[key], how)  # type: ignore[arg-type]
        self._left &= tended.unknown
        for key in tended.unknown - self._left:
            # The response to a claim was lost.
            self._database.run(ending.give_back, self._queries, key)
        if self._draining_since == float("inf") and self._database.run(
            tending.is_drain_asked, self._queries, self.worker_id
        ):
            self.drain()

    def _tend_left(self) -> None:
        self._left_runs.tend(self._database)

    def _stop_due(self) -> None:
        """Stop runs that exceed their timeouts, and, while the worker drains, all runs."""
        now = time.monotonic()
        is_draining = self._draining_since < float("inf")
        if is_draining and not self._is_drain_logged:
            log.info("worker %s drains; runs to stop: %d", short_holder(self.worker_id), len(self._executions))
            self._is_drain_logged = True
        for execution in [*self._executions.values()]:
            if is_draining:
                self._ask(execution, "drain")
            if now >= execution.due_at:
                self._ask(execution, "timeout")
            if now >= execution.superstep_due_at:
                self._ask(execution, "superstep_timeout")
            is_waited_for = execution.refuses_writes or not execution.is_reported
            if is_waited_for and now >= self._forced_after(execution):
                self._cancel(execution)

    def _ask(self, execution: RunExecution, stop: Stop) -> None:
        """Ask an execution to stop. Cancel it at once if waiting for a superstep boundary is useless."""
        if not execution.ask(stop, time.monotonic()):
            return
        if stop == "lost":
            log.warning("run %s of thread %s was lost", execution.key.run_id, execution.key.thread_id)
            self._leave_to_sweep(execution)
        if stop != "drain" and not execution.is_forced and self._interrupt(execution):
            execution.forced_at = time.monotonic()

    def _forced_after(self, execution: RunExecution) -> float:
        if execution.is_forced:
            return execution.forced_at + _STUCK_SECONDS
        if execution.stop in ("timeout", "superstep_timeout") or (execution.stop == "drain" and self._is_forced):
            return execution.stopped_at
        return execution.stopped_at + self._settings.drain_timeout

    def _cancel(self, execution: RunExecution) -> None:
        """Cancel an execution. If it cannot be cancelled, end its run at once and store nothing of its later work."""
        if not execution.is_forced:
            execution.forced_at = time.monotonic()
            if self._interrupt(execution):
                return
        log.warning(
            "run %s of thread %s did not stop; what it still does is not stored",
            execution.key.run_id,
            execution.key.thread_id,
        )
        execution.refuse_writes()
        if not self._ender.try_to_end(self._database, execution, run_outcome(execution, asyncio.CancelledError())):
            self._failed_at = time.monotonic()

    def _claim(self) -> None:
        """Claim as many runs as there is room for. Claim a run that must be alone only if no other run executes."""
        self._claimed_all = False
        try:
            self._claim_runs()
        finally:
            if not self._executions:
                ISOLATION.leave(self)

    def _claim_runs(self) -> None:
        if not self._executions:
            ISOLATION.leave(self)
        if self._draining_since < float("inf") or any(one.claimed.is_suspect for one in self._executions.values()):
            return
        if self._claim_alone() or not ISOLATION.enter(self):
            return
        for queue in self._settings.queues:
            limit = self._settings.concurrency - len(self._executions)
            if limit <= 0:
                return
            self._start(self._claimer.claim(self._database, queue, limit))
        self._claimed_all = not self._executions and self._claimer.due_at == float("inf")

    def _claim_alone(self) -> bool:
        """Claim a run that must be alone, if this worker is chosen. Return whether it must claim no other run.

        A chosen worker claims no run until its other runs have ended.
        """
        for queue in filter(self._claimer.may_have_suspects, self._settings.queues):
            if not self._claimer.is_chosen(self._database, queue):
                continue
            if self._executions or self._left_runs or not ISOLATION.enter_alone(self):
                return True
            self._start(self._claimer.claim(self._database, queue, 1, suspects=True))
            if self._executions:
                return True
            ISOLATION.leave(self)
        return False

    def _start(self, claimed: Sequence[ClaimedRun]) -> None:
        """Execute claimed runs."""
        taken = [self._take(one) for one in claimed]
        if begun := [execution for execution in taken if execution.claimed.cancel is None]:
            self._begin(begun)

    def _take(self, claimed: ClaimedRun) -> RunExecution:
        """Register a claimed run. A run that must be cancelled is reported at once and does not begin."""
        asked_at = self._claimer.asked_at
        until = confirmed_end(asked_at, self._settings.lease_ttl)
        is_new = claimed.head_id is None
        held = HeldLease(claimed.lease, until, is_read_first=True, asked_at=asked_at, is_of_new_thread=is_new)
        execution = RunExecution(claimed, held)
        self._executions[claimed.key] = execution
        if claimed.timeout_at is not None:
            left = (claimed.timeout_at - claimed.lease.acquired_at).total_seconds()
            execution.deadline = time.monotonic() + left
        if claimed.cancel is not None:
            execution.ask(claimed.cancel, time.monotonic())  # type: ignore[arg-type]
            self.report(execution, run_outcome(execution, asyncio.CancelledError()))
        elif claimed.attempt > 1:
            key = claimed.key
            log.info("resumes run %s of thread %s (attempt %d)", key.run_id, key.thread_id, claimed.attempt)
        return execution
