"""Lanes of a worker. A lane claims and ends the runs of one tenant, or all runs if tenants are not kept apart."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from langgraph_pgstate.codec.values import ValueCodec
from langgraph_pgstate.db.database import Database
from langgraph_pgstate.errors import KeyUnavailableError, PGStateError
from langgraph_pgstate.leases.registry import HeldLease, confirmed_end, timed
from langgraph_pgstate.record.options import RecorderSettings
from langgraph_pgstate.runs import ending, enqueue, tending
from langgraph_pgstate.runs.locking import is_locked
from langgraph_pgstate.runs.types import ClaimedRun, RunKey
from langgraph_pgstate.schema.queries import Queries
from langgraph_pgstate.worker.claims import ISOLATION, Claimer
from langgraph_pgstate.worker.ending import Ender, LeftRuns
from langgraph_pgstate.worker.executing import RunExecution, RunOutcome, Stop, run_outcome
from langgraph_pgstate.worker.settings import WorkerSettings, following
from langgraph_pgstate.worker.sweeps import Sweeps

_TEND_SECONDS: Final = 2.0
# Minimum number of seconds between two log messages about runs that wait for data keys.
_LOG_SECONDS: Final = 5.0
# Seconds until a run that must be alone is claimed again after its data key could not be decrypted. Before each such
# claim, the other runs of the worker must end.
_ALONE_AGAIN_SECONDS: float = 30.0
# Seconds after which a cancelled task that has not ended counts as stuck.
_STUCK_SECONDS: Final = 5.0

log = logging.getLogger("langgraph_pgstate.worker")


@dataclass(eq=False)
class Duties:
    """State that the control thread and all lanes of a worker share.

    Attributes:
        worker_id: Id of the worker.
        queries: The queries of the schema.
        codec: Encodes requests for runs.
        graphs: Names of the worker's graphs.
        versions: For each graph, the accepted versions. Runs without a version are always accepted.
        settings: The worker's settings.
        recording: Settings for recorded errors.
        begin: Starts executions. Each execution ends with a call of the lane's `report`. Must not block.
        interrupt: Cancels an execution. Returns whether the code can be cancelled, and ends soon.
        wake: Makes the control thread do its next turn at once.
        wake_webhooks: Called with a tenant when a run of the tenant with a webhook has ended.
        adopts: Whether to take over crashed runs that were not enqueued.
        serves_tenants: Whether the worker serves all tenants.
        given_back: Number of runs that closed lanes have requeued.
        resting_until: When runs are claimed again after one could not begin, by the monotonic clock.
        draining_since: When the worker was asked to drain, by the monotonic clock.
        is_forced: Whether to drain without waiting for superstep boundaries.
        lanes: The open lanes, by tenant.
        left: By tenant, the runs that this worker has given up. In the database, a run belongs to this worker until the
            lease expires, perhaps after its lane is closed.
        alone: The lane that has, or waits for, a run that must be alone in the process. No other lane claims runs.
    """

    worker_id: str
    queries: Queries
    codec: ValueCodec
    graphs: Sequence[str]
    versions: Mapping[str, Sequence[str]]
    settings: WorkerSettings
    recording: RecorderSettings
    begin: Callable[[Sequence[RunExecution]], None]
    interrupt: Callable[[RunExecution], bool]
    wake: Callable[[], None]
    wake_webhooks: Callable[[str | None], None]
    adopts: bool
    serves_tenants: bool = False
    given_back: int = 0
    resting_until: float = float("-inf")
    draining_since: float = float("inf")
    is_forced: bool = False
    lanes: OrderedDict[str | None, Lane] = field(default_factory=OrderedDict)
    left: dict[str | None, set[RunKey]] = field(default_factory=dict)
    alone: Lane | None = None

    @property
    def is_draining(self) -> bool:
        """Whether the worker was asked to drain."""
        return self.draining_since < float("inf")

    @property
    def room(self) -> int:
        """Number of runs that the worker may begin."""
        return self.settings.concurrency - sum(len(lane.executions) for lane in self.lanes.values())

    @property
    def has_runs(self) -> bool:
        """Whether a lane has runs."""
        return any(lane.executions for lane in self.lanes.values())

    @property
    def has_suspect(self) -> bool:
        """Whether a run that must be alone executes."""
        return any(one.claimed.is_suspect for lane in self.lanes.values() for one in lane.executions.values())


class Lane:
    """The part of a worker that claims and ends one tenant's runs. Only the control thread calls the methods.

    Args:
        duties: State that all lanes of the worker share.
        database: The database of the tenant.

    Attributes:
        executions: The lane's runs that execute.
        failed_at: When work of the lane last failed, by the monotonic clock.
        has_news: Whether a notification may be about the lane's runs.
        claimed_all: Whether the last claims found all claimable runs.
        lacks_keys: Whether the last claims failed because data keys of runs could not be decrypted in time.
    """

    def __init__(self, duties: Duties, database: Database) -> None:
        settings = duties.settings
        self._duties, self._database, self._queries = duties, database, duties.queries
        self.tenant = database.tenant
        self.executions: dict[RunKey, RunExecution] = {}
        self.failed_at = self._tended_at = self._logged_at = self._alone_after = float("-inf")
        self.has_news = self.claimed_all = self.lacks_keys = False
        self._claimer = Claimer(
            self._queries, duties.worker_id, duties.graphs, duties.versions, settings.lease_ttl, settings.poll
        )
        self.left_runs = LeftRuns(self._queries, settings.lease_ttl, settings.drain_timeout)
        self.ender = Ender(
            self._queries,
            duties.recording,
            self._tend_seconds,
            self._note_end,
            self._leave_to_sweep,
            self.left_runs,
            settings.lease_ttl,
            partial(following, duties.codec, settings.followed_by),
        )
        self._given_back = 0
        self._sweeps = Sweeps(
            database,
            self._queries,
            duties.codec,
            duties.graphs,
            settings,
            self._tend_seconds,
            adopts=duties.adopts,
        )

    def open(self) -> None:
        """Store the worker's row of this tenant."""
        duties = self._duties
        self._database.run(
            tending.put_worker,
            self._queries,
            duties.worker_id,
            duties.settings.queues,
            duties.graphs,
            duties.settings.concurrency,
            duties.versions,
        )

    def close(self) -> None:
        """Delete the worker's row of this tenant. Call this when the lane has no runs."""
        if self._duties.alone is self:
            self._duties.alone = None
        self._database.run_within(1.0, tending.delete_worker, self._queries, self._duties.worker_id)

    def report(self, execution: RunExecution, outcome: RunOutcome) -> None:
        """Accept the outcome of an execution. OS threads of the execution may still run. Any thread may call this."""
        execution.reported_at = time.monotonic()
        if execution.has_raised and execution.held.work.has_threads:
            execution.held.work.when_threads_ended(self._duties.wake)
        self.ender.report(execution, outcome)
        self._duties.wake()

    @property
    def is_busy(self) -> bool:
        """Whether the lane has runs, code of ended runs, or ends that are not stored yet."""
        return bool(self.executions or self.ender.reported or self.left_runs)

    @property
    def has_waiting(self) -> bool:
        """Whether runs may wait for a limit or to be alone, so that claims must be tried again."""
        return self._claimer.has_waiting or any(map(self._claimer.may_have_suspects, self._duties.settings.queues))

    def turn(self) -> bool:
        """Do the work that is due, and return whether the database was available."""
        steps: tuple[Callable[[], None], ...] = (
            self._end_reported,
            self._notify_of_ends,
            self._tend,
            self._tend_left,
            self.stop_due,
            *self._sweeps.all,
        )
        if all(self._do(step) for step in steps):
            return True
        # Runs must stop in time even if the database is not available.
        with suppress(PGStateError):
            self.stop_due()
        return False

    def _do(self, step: Callable[[], None]) -> bool:
        """Do a step, and return whether the database was available."""
        try:
            step()
        except PGStateError as error:
            self.failed_at = time.monotonic()
            # After a locked row or a missing data key, the other steps are done. This step is tried again later.
            if isinstance(error, KeyUnavailableError):
                self.lacks_keys = True
                if time.monotonic() >= self._logged_at + _LOG_SECONDS:
                    self._logged_at = time.monotonic()
                    log.warning("runs wait for data keys: %s", error)
            elif not is_locked(error):
                log.warning("the queue is not available: %s", error)
                return False
        except Exception:
            if not self._duties.serves_tenants:
                raise
            # An error in one tenant's work must not stop the runs of other tenants.
            self.failed_at = time.monotonic()
            log.exception("work of a tenant has failed")
            return False
        return True

    @property
    def due_at(self) -> float:
        """Time at which some work is due, by the monotonic clock."""
        due = [self._sweeps.due_at, self._claimer.due_at, self.left_runs.due_at]
        if self.executions:
            due.append(self._tended_at + self._tend_seconds)
            due += [self._due_at(one) for one in self.executions.values()]
        return min(due)

    def _due_at(self, execution: RunExecution) -> float:
        """Return the time to stop or cancel an execution, or to stop waiting for its code."""
        if execution.is_reported:
            until = execution.stopped_or_reported_at + self._duties.settings.drain_timeout
            return until if until > time.monotonic() else float("inf")
        return min(execution.due_at, execution.superstep_due_at, self._forced_after(execution))

    @property
    def _tend_seconds(self) -> float:
        return min(self._duties.settings.lease_ttl / 4, _TEND_SECONDS)

    def _end_reported(self) -> None:
        self.ender.end_reported(self._database)

    def _notify_of_ends(self) -> None:
        self.ender.notify(self._database)
        if self.tenant is not None and self.ender.given_back > self._given_back:
            # After a requeue, other workers that serve all tenants must check this tenant's queue.
            self._given_back = self.ender.given_back
            with suppress(PGStateError):
                self._database.run_once(enqueue.notify, self._queries)

    def _note_end(self, execution: RunExecution) -> None:
        """Forget a run that has ended in the queue, or was requeued."""
        if execution.stream is not None:
            execution.stream.close()
        execution.refuse_writes()
        self.executions.pop(execution.key, None)
        self._claimer.ended(execution.claimed)
        if execution.claimed.options.get("webhook"):
            self._duties.wake_webhooks(self.tenant)

    def _leave_to_sweep(self, execution: RunExecution) -> None:
        """Stop renewing the lease of a run. A later sweep requeues the run and counts a crash."""
        execution.refuse_writes()
        self.executions.pop(execution.key, None)
        self._duties.left.setdefault(self.tenant, set()).add(execution.key)

    def _tend(self) -> None:
        """Renew leases, and find the runs that were lost or must be cancelled."""
        now = time.monotonic()
        has_news, self.has_news = self.has_news, False
        if now < self._tended_at + (0.1 if has_news and self.executions else self._tend_seconds):
            self.has_news = has_news and bool(self.executions)
            return
        keys = [*self.executions]
        duties, ttl = self._duties, self._duties.settings.lease_ttl
        asked_at, tended = self._database.run(timed, tending.tend, self._queries, duties.worker_id, keys, ttl)
        self._tended_at = time.monotonic()
        for key in tended.renewed:
            self.executions[key].held.confirm(asked_at, ttl)
        for key in keys:
            if key not in tended.still:
                self._ask(self.executions[key], "lost")
            elif (how := tended.cancels.get(key)) is not None:
                self._ask(self.executions[key], how)  # type: ignore[arg-type]
        left = tended.unknown & duties.left.pop(self.tenant, set())
        if left:
            duties.left[self.tenant] = left
        for key in tended.unknown - left:
            # The response to the claim of this run was lost.
            self._database.run(ending.give_back, self._queries, key)
        if not duties.is_draining and self._database.run(tending.is_drain_asked, self._queries, duties.worker_id):
            self._drain_asked()

    def _drain_asked(self) -> None:
        """Drain the worker. If the worker serves all tenants, remove the request of the tenant instead."""
        if self._duties.serves_tenants:
            # While the row has the request, the worker is not chosen for runs that must be alone.
            self.open()
        else:
            self._duties.draining_since = time.monotonic()

    def _tend_left(self) -> None:
        self.left_runs.tend(self._database)

    def stop_due(self) -> None:
        """Stop runs that exceed their timeouts. While the worker drains, stop all runs."""
        now = time.monotonic()
        for execution in [*self.executions.values()]:
            if self._duties.is_draining:
                self._ask(execution, "drain")
            if now >= execution.due_at:
                self._ask(execution, "timeout")
            if now >= execution.superstep_due_at:
                self._ask(execution, "superstep_timeout")
            is_waited_for = execution.refuses_writes or not execution.is_reported
            if is_waited_for and now >= self._forced_after(execution):
                self._cancel(execution)

    def _ask(self, execution: RunExecution, stop: Stop) -> None:
        """Ask an execution to stop. Cancel the execution at once, unless the reason is a drain."""
        if not execution.ask(stop, time.monotonic()):
            return
        if stop == "lost":
            names = execution.key.run_id, execution.key.thread_id
            log.warning("run %s of thread %s was lost: the lease was taken over, or the thread was deleted", *names)
            self._leave_to_sweep(execution)
        if stop != "drain" and not execution.is_forced and self._duties.interrupt(execution):
            execution.forced_at = time.monotonic()

    def _forced_after(self, execution: RunExecution) -> float:
        if execution.is_forced:
            return execution.forced_at + _STUCK_SECONDS
        is_drained_at_once = execution.stop == "drain" and self._duties.is_forced
        if execution.stop in ("timeout", "superstep_timeout") or is_drained_at_once:
            return execution.stopped_at
        return execution.stopped_at + self._duties.settings.drain_timeout

    def _cancel(self, execution: RunExecution) -> None:
        """Cancel an execution. If the code cannot be cancelled, end the run at once and refuse later writes."""
        if not execution.is_forced:
            execution.forced_at = time.monotonic()
            if self._duties.interrupt(execution):
                return
        log.warning(
            "run %s of thread %s did not stop; later writes of the run are refused",
            execution.key.run_id,
            execution.key.thread_id,
        )
        execution.refuse_writes()
        if not self.ender.try_to_end(self._database, execution, run_outcome(execution, asyncio.CancelledError())):
            self.failed_at = time.monotonic()

    def claim(self, limit: int) -> bool:
        """Claim at most `limit` runs, and return whether the database was available.

        A run that must be alone is claimed only if no other run executes.
        """
        self.claimed_all = self.lacks_keys = False
        try:
            return self._do(partial(self._claim, limit))
        finally:
            self._leave_isolation()

    def _leave_isolation(self) -> None:
        if not self._duties.has_runs:
            ISOLATION.leave(self._duties)

    def _claim(self, limit: int) -> None:
        duties = self._duties
        self._leave_isolation()
        is_resting = time.monotonic() < duties.resting_until
        if duties.is_draining or is_resting or duties.has_suspect or duties.alone not in (None, self):
            return
        if self._claim_alone() or not ISOLATION.enter(duties):
            return
        count = 0
        for queue in duties.settings.queues:
            if count >= limit:
                return
            count += self._start(self._claimer.claim(self._database, queue, limit - count))
        self.claimed_all = count < limit and self._claimer.due_at == float("inf")

    def _claim_alone(self) -> bool:
        """Claim a run that must be alone, if this worker is chosen. Return whether the worker must claim no other run.

        A chosen worker waits until its other runs have ended.
        """
        duties = self._duties
        # If the claim fails, other lanes must not wait for this lane.
        if duties.alone is self:
            duties.alone = None
        if time.monotonic() < self._alone_after:
            return False
        for queue in filter(self._claimer.may_have_suspects, duties.settings.queues):
            if not self._claimer.is_chosen(self._database, queue):
                continue
            is_alone = not any(lane.executions or lane.left_runs for lane in duties.lanes.values())
            if not is_alone or not ISOLATION.enter_alone(duties):
                duties.alone = self
                return True
            try:
                self._start(self._claimer.claim(self._database, queue, 1, suspects=True))
            except KeyUnavailableError:
                self._alone_after = time.monotonic() + _ALONE_AGAIN_SECONDS
                raise
            if self.executions:
                duties.alone = self
                return True
            ISOLATION.leave(duties)
        return False

    def _start(self, claimed: Sequence[ClaimedRun]) -> int:
        """Execute claimed runs, and return the number of claimed runs."""
        taken = [self._take(one) for one in claimed]
        if begun := [execution for execution in taken if execution.claimed.cancel is None]:
            self._duties.begin(begun)
        return len(claimed)

    def _take(self, claimed: ClaimedRun) -> RunExecution:
        """Register a claimed run. A run that must be cancelled is reported at once, without an execution."""
        asked_at = self._claimer.asked_at
        until = confirmed_end(asked_at, self._duties.settings.lease_ttl)
        is_new = claimed.head_id is None
        held = HeldLease(claimed.lease, until, is_read_first=True, asked_at=asked_at, is_of_new_thread=is_new)
        execution = RunExecution(claimed, held, self.tenant)
        self.executions[claimed.key] = execution
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
