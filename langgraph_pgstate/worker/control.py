"""The control thread of a worker, which claims, stops and ends runs, and renews the leases of runs.

The thread has its own connections and no event loop of graphs, so that no run loses its lease because of a busy loop or
a blocking node. For the worker, only this thread writes to the queue.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from langgraph_pgstate.codec.values import ValueCodec
from langgraph_pgstate.db.listening import Listener
from langgraph_pgstate.db.tenants import wake_key
from langgraph_pgstate.encryption.keys import KeyRing
from langgraph_pgstate.errors import PGStateError
from langgraph_pgstate.heavy import start
from langgraph_pgstate.keep.thread import RetentionThread
from langgraph_pgstate.leases.registry import next_holder
from langgraph_pgstate.options import PoolSettings
from langgraph_pgstate.process_identity import short_holder
from langgraph_pgstate.record.options import RecorderSettings
from langgraph_pgstate.runs.options import WebhookSettings
from langgraph_pgstate.runs.webhooks import WebhookThread
from langgraph_pgstate.schema.queries import Queries
from langgraph_pgstate.schema.tenancy import has_walls, list_tenants_or_raise, open_database
from langgraph_pgstate.worker.claims import ISOLATION
from langgraph_pgstate.worker.executing import RunExecution, RunOutcome
from langgraph_pgstate.worker.lane import Duties, Lane
from langgraph_pgstate.worker.settings import KEY_SECONDS, WorkerSettings, accepted_versions
from langgraph_pgstate.worker.tenants import TenantLanes

_CHANNEL: Final = "pgstate_queue"
# Seconds until work that has failed is tried again.
_RETRY_SECONDS: Final = 0.1

log = logging.getLogger("langgraph_pgstate.worker")


class Control:
    """The control thread of one worker.

    Args:
        dsn: Connection string of the PostgreSQL server.
        tenant: The tenant whose runs the worker executes. `None` for the runs of all tenants, or if tenants are not
            kept apart.
        prepare_threshold: As in `ConnectionOptions`.
        queries: The queries of the schema.
        graphs: Names of the worker's graphs.
        settings: The worker's settings.
        recording: Settings for recorded errors.
        begin: Starts executions. Each execution ends with a call of `report`. Must not block.
        interrupt: Cancels an execution. Returns whether the code can be cancelled, and ends soon.
        check_tenants: Raises if the worker cannot serve several tenants.
        forget: Called with a tenant that no longer has runs. Must not block.
        codec: Encodes requests for runs.
        webhooks: Settings of webhooks.
        adopts: Whether to take over crashed runs that were not enqueued.
        keys: The data keys of the state, if any.
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
        check_tenants: Callable[[], None],
        forget: Callable[[str], None],
        codec: ValueCodec,
        webhooks: WebhookSettings,
        adopts: bool = False,
        keys: KeyRing | None = None,
    ) -> None:
        self.worker_id = next_holder()
        self._dsn, self._tenant, self._prepare_threshold, self._keys = dsn, tenant, prepare_threshold, keys
        self._queries, self._graphs, self._settings = queries, [*graphs], settings
        self._check_tenants, self._forget, self._webhook_settings = check_tenants, forget, webhooks
        self._webhooks: WebhookThread | None = None
        self._retention: RetentionThread | None = None
        self._wake = threading.Event()
        self._duties = Duties(
            self.worker_id,
            queries,
            codec,
            self._graphs,
            accepted_versions(settings.versions, self._graphs),
            settings,
            recording,
            begin,
            interrupt,
            self._wake.set,
            self._wake_webhooks,
            adopts,
        )
        # A worker that serves all tenants has a lane for each tenant that has work. Any other worker has only `_lane`.
        self._tenants: TenantLanes | None = None
        self._is_once = self._is_drain_logged = False
        self._started = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._work, name="pgstate-worker", daemon=True)

    @property
    def serves_tenants(self) -> bool:
        """Whether the worker serves all tenants."""
        return self._duties.serves_tenants

    # Methods that other threads call.

    def start(self, *, once: bool = False) -> None:
        """Start the thread and connect. With `once`, the thread stops when no run is left to claim.

        Raises:
            PGStateError: If the database cannot be used.
        """
        self._is_once = once
        start(self._thread)
        self._started.wait()
        error, self._error = self._error, None
        if error is not None:
            raise error

    def report(self, execution: RunExecution, outcome: RunOutcome) -> None:
        """Accept the outcome of an execution. OS threads of the execution may still run."""
        lane = self._duties.lanes.get(execution.tenant)
        if lane is not None:
            lane.report(execution, outcome)

    def rest(self) -> None:
        """Claim no run for a moment, because a claimed run could not begin."""
        self._duties.resting_until = time.monotonic() + self._settings.poll

    def drain(self) -> None:
        """Stop claiming runs, and requeue the current runs at their next superstep boundaries."""
        self._duties.draining_since = min(self._duties.draining_since, time.monotonic())
        self._wake.set()

    def force(self) -> None:
        """Drain without waiting for superstep boundaries."""
        self._duties.is_forced = True
        for lane in [*self._duties.lanes.values()]:
            lane.left_runs.force()
        self.drain()

    def join(self, timeout: float | None = None) -> bool:
        """Wait until the thread has ended, and return false after the timeout. Raise the error of the thread."""
        if self._thread.ident is not None:
            self._thread.join(timeout)
        if self._error is not None:
            raise self._error
        return not self._thread.is_alive()

    # Methods that only the thread calls.

    def _work(self) -> None:
        settings = self._settings
        listener: Listener | None = None
        # Use a short timeout, so that an outage does not block the thread for long.
        pool = PoolSettings(max_size=1, timeout=max(2.0, settings.lease_ttl / 3))
        # Prepare statements at the first use, because the thread repeats few statements.
        prepare = None if self._prepare_threshold is None else 0
        place = self._dsn, self._queries, self._tenant, self._keys
        opening = partial(open_database, *place, pool=pool, prepare_threshold=prepare)
        try:
            # Two connections, so that webhooks do not delay the renewal of leases.
            with opening() as database, opening() as database_of_webhooks:
                self._database = database
                database.key_seconds = database_of_webhooks.key_seconds = KEY_SECONDS
                if self._tenant is None and database.run(has_walls, self._queries):
                    names = database.run(list_tenants_or_raise, self._queries)
                    self._check_tenants()
                    self._duties.serves_tenants = True
                    self._tenants = TenantLanes(self._duties, database, names, self._forget)
                else:
                    self._lane = Lane(self._duties, database)
                    self._lane.open()
                    self._duties.lanes[database.tenant] = self._lane
                listener = Listener(database.dsn, _CHANNEL, self._notice)
                self._webhooks = WebhookThread(
                    database_of_webhooks, self._queries, self._webhook_settings, of_tenants=self._tenants is not None
                )
                self._webhooks.start()
                self._retention = RetentionThread(opening, self._queries, of_tenants=self._tenants is not None)
                self._retention.start()
                if self._tenants is not None:
                    self._tenants.wake_webhooks = self._webhooks.wake
                self._started.set()
                graphs, names_of_queues = ", ".join(self._graphs), ", ".join(settings.queues)
                known = short_holder(self.worker_id)
                log.info("worker %s runs %s from %s, %d at once", known, graphs, names_of_queues, settings.concurrency)
                while self._turn():
                    self._wake.wait(self._pause())
                    self._wake.clear()
                self._webhooks.stop()
                self._retention.stop()
                lanes = [*self._duties.lanes.values()]
                given_back = self._duties.given_back + sum(lane.ender.given_back for lane in lanes)
                log.info("worker %s has stopped; runs requeued: %d", short_holder(self.worker_id), given_back)
                for lane in lanes:
                    lane.close()
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
            for lane in [*self._duties.lanes.values()]:
                for execution in [*lane.executions.values()]:
                    execution.refuse_writes()
            ISOLATION.leave(self._duties)
            self._started.set()

    def _notice(self, payload: str) -> None:
        if self._tenants is not None:
            self._tenants.notice(payload)
        elif payload in ("", wake_key(self._tenant, "")):
            self._lane.has_news = True
        else:
            return
        self._wake.set()

    def _wake_webhooks(self, tenant: str | None) -> None:
        if self._webhooks is not None:
            self._webhooks.wake(tenant)

    def _turn(self) -> bool:
        """Do the work that is due, and return whether the worker goes on."""
        duties = self._duties
        if duties.is_draining and not self._is_drain_logged:
            number = sum(len(lane.executions) for lane in duties.lanes.values())
            log.info("worker %s drains; runs to stop: %d", short_holder(self.worker_id), number)
            self._is_drain_logged = True
        if self._tenants is not None:
            claimed_all = self._tenants.turn()
        else:
            claimed_all = self._lane.turn() and self._lane.claim(duties.room) and self._lane.claimed_all
        now = time.monotonic()
        is_busy = any(lane.is_busy for lane in [*duties.lanes.values()])
        if duties.is_draining:
            # After the last lease has expired, other workers take over the runs.
            return is_busy and now < duties.draining_since + self._settings.drain_timeout + self._settings.lease_ttl
        return is_busy or not (self._is_once and claimed_all)

    def _pause(self) -> float:
        """Return the seconds until some work is due."""
        now = time.monotonic()
        if self._tenants is not None:
            due, failed_at = self._tenants.due_at, self._tenants.failed_at
        else:
            due, failed_at = self._lane.due_at, self._lane.failed_at
        # Failed work stays due, so wait a moment before the next attempt.
        first = max(due, failed_at + min(self._settings.poll, _RETRY_SECONDS))
        return min(max(0.0, first - now), self._settings.poll)
