"""The lanes of a worker that serves all tenants, and the search for tenants with work."""

from __future__ import annotations

import heapq
import logging
import math
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from langgraph_pgstate.db.database import Database
from langgraph_pgstate.db.tenants import wake_key
from langgraph_pgstate.errors import PGStateError
from langgraph_pgstate.process_identity import is_known_dead
from langgraph_pgstate.runs.claiming import find_work
from langgraph_pgstate.schema.tenancy import list_tenants, of_tenant
from langgraph_pgstate.worker.lane import Duties, Lane

ROTATION_SECONDS: float = 10.0
"""Seconds in which each tenant is checked once. More than 3,000 tenants take longer."""
# Maximum number of tenants checked per second, so that the database has time for runs.
_LOOKS_PER_SECOND: Final = 300.0
# Maximum numbers of tenants to check and to sweep in one turn. The control thread must also renew leases in time.
_MOST_LOOKS: Final = 500
_MOST_SWEEPS: Final = 10
# Minimum seconds until a tenant with due work is checked again. Failed work stays due.
_REST_SECONDS: Final = 2.0
# Seconds for which a lane without runs stays open, and the maximum number of such lanes.
_IDLE_SECONDS: Final = 10.0
_MOST_IDLE: Final = 50
# Minimum seconds before an unknown tenant makes the worker read the list of tenants again.
_LIST_SECONDS: Final = 0.5
# Seconds until a tenant is checked again because another worker was claiming its runs.
_SOON_SECONDS: Final = 0.02

# If the work of a tenant fails after this many seconds, the database counts as unavailable for all tenants.
_SLOW_SECONDS: Final = 0.5

log = logging.getLogger("langgraph_pgstate.worker")


class TenantLanes:
    """The lanes of a worker that serves all tenants. A lane executes one tenant's runs, and is closed when idle.

    Tenants with runs to claim take turns: after a claim, a tenant moves to the end of the list.

    Args:
        duties: State that the lanes share.
        database: The database without a tenant.
        names: The tenants.
        forget: Called with a tenant whose lane is closed. Must not block.

    Attributes:
        failed_at: When work last failed, by the monotonic clock.
        wake_webhooks: Called with a tenant that has webhooks to deliver.
    """

    def __init__(self, duties: Duties, database: Database, names: Sequence[str], forget: Callable[[str], None]) -> None:
        self._duties, self._database, self._forget = duties, database, forget
        self.failed_at = float("-inf")
        self.wake_webhooks: Callable[[str], None] = lambda _: None
        self._by_key = {wake_key(name, ""): name for name in names}
        self._listed_at = time.monotonic()
        # Keys of notifications that were not read yet.
        self._notices: deque[str] = deque()
        # Tenants that the current rotation has not checked yet.
        self._waiting = deque(names)
        self._looked_at = time.monotonic()
        self._has_seen_all = False
        # Tenants that may have runs to claim, in the order of their turns.
        self._hungry: OrderedDict[str, None] = OrderedDict()
        # Tenants whose sweeps are due.
        self._sweeping: OrderedDict[str, None] = OrderedDict()
        # Times at which to check tenants outside of the rotation.
        self._times: dict[str, float] = {}
        self._heap: list[tuple[float, str]] = []
        self._claimed_at: dict[str, float] = {}
        # When to claim again for tenants whose last claims lacked data keys.
        self._retry_at: dict[str, float] = {}
        self._idle_since: OrderedDict[str, float] = OrderedDict()

    def notice(self, key: str) -> None:
        """Check the tenant of a notification's key in the next turn. Any thread may call this method."""
        self._notices.append(key)

    @property
    def due_at(self) -> float:
        """Time at which some work is due, by the monotonic clock."""
        if not self._has_seen_all or self._sweeping:
            return time.monotonic()
        lanes = [lane.due_at for lane in self._duties.lanes.values() if lane.is_busy]
        return min([*lanes, *([self._heap[0][0]] if self._heap else ())], default=float("inf"))

    def turn(self) -> bool:
        """Do the work that is due in all lanes. Return whether all tenants were checked, and no work is left."""
        try:
            is_available = self._turn_lanes()
            if is_available and not self._duties.is_draining:
                self._look()
                self._sweep()
                self._claim()
            self._close_idle()
        except PGStateError as error:
            self.failed_at = time.monotonic()
            log.warning("the queues of the tenants are not available: %s", error)
            return False
        soon = time.monotonic() + 10 * _SOON_SECONDS
        is_soon = bool(self._heap) and self._heap[0][0] <= soon
        return self._has_seen_all and not self._hungry and not self._sweeping and not is_soon

    def _turn_lanes(self) -> bool:
        """Do the work of lanes with runs, or that wait for one. Return whether the database was available."""
        lanes, is_available = [*self._duties.lanes.values()], True
        for lane in lanes:
            # A lane that waits for a run that must be alone also stores that the worker is alive.
            if not lane.is_busy and lane is not self._duties.alone:
                continue
            if not is_available:
                # Waiting again for an unavailable database would take long. Only stop runs that are due to stop.
                lane.stop_due()
                continue
            before, began_at, tenant = len(lane.executions), time.monotonic(), str(lane.tenant)
            if not lane.turn():
                self.failed_at = lane.failed_at
                is_available = time.monotonic() < began_at + _SLOW_SECONDS
                # Other lanes come first in the next turn. At every moment, executions that end must find their lane.
                self._duties.lanes.move_to_end(tenant)
            is_due = time.monotonic() >= self._claimed_at.get(tenant, 0.0) + self._duties.settings.poll
            if is_due or len(lane.executions) < before:
                # An ended run may have made another run of its thread ready.
                self._hungry.setdefault(tenant)
        return is_available

    def _look(self) -> None:
        """Check the tenants that got a notification, have due work, or are next in the rotation."""
        now, found = time.monotonic(), dict[str, None]()
        self._read_notices(now, found)
        while self._heap and self._heap[0][0] <= now:
            due_at, name = heapq.heappop(self._heap)
            if self._times.get(name) == due_at:
                del self._times[name]
                found.setdefault(name)
        rate = min(len(self._by_key) / ROTATION_SECONDS, _LOOKS_PER_SECOND)
        share = (now - self._looked_at) * rate
        number = _MOST_LOOKS if not self._has_seen_all else min(_MOST_LOOKS, math.floor(share))
        if number:
            self._looked_at = now
        while self._waiting and number > 0:
            found.setdefault(self._waiting.popleft())
            number -= 1
        if not self._waiting:
            self._has_seen_all = True
            if now >= self._listed_at + ROTATION_SECONDS:
                self._list()
                self._waiting.extend(self._by_key.values())
        self._look_at(found)

    def _read_notices(self, now: float, found: dict[str, None]) -> None:
        unknown: set[str] = set()
        while self._notices:
            key = self._notices.popleft()
            name = self._by_key.get(key)
            if name is None:
                unknown.add(key)
                continue
            lane = self._duties.lanes.get(name)
            if lane is None:
                found.setdefault(name)
            else:
                lane.has_news = True
                self._hungry.setdefault(name)
        if not unknown:
            return
        if now < self._listed_at + _LIST_SECONDS:
            self._notices.extend(unknown)
            return
        self._list()
        for key in unknown & self._by_key.keys():
            found.setdefault(self._by_key[key])

    def _list(self) -> None:
        names = self._database.run(list_tenants, self._duties.queries)
        self._listed_at = time.monotonic()
        for name in names:
            self._by_key.setdefault(wake_key(name, ""), name)

    def _look_at(self, names: Iterable[str]) -> None:
        """Read for each of the tenants whether the tenant has work now, and when work will be due."""
        duties, asked = self._duties, [*names]
        for begin in range(0, len(asked), _MOST_LOOKS):
            page = asked[begin : begin + _MOST_LOOKS]
            works = self._database.run(
                find_work, duties.queries, page, duties.settings.queues, duties.graphs, adopts=duties.adopts
            )
            for work in works:
                now = time.monotonic()
                if work.is_ready:
                    self._hungry.setdefault(work.tenant)
                if work.seconds is not None or work.worker_ids:
                    is_due = (work.seconds is not None and work.seconds <= 0) or any(
                        map(is_known_dead, work.worker_ids)
                    )
                    if is_due:
                        self._sweeping.setdefault(work.tenant)
                    if work.seconds is not None:
                        self._look_again(work.tenant, now + max(work.seconds, _REST_SECONDS if is_due else 0.0))
                if work.webhook_seconds is not None:
                    if work.webhook_seconds <= 0:
                        self.wake_webhooks(work.tenant)
                    self._look_again(work.tenant, now + max(work.webhook_seconds, _REST_SECONDS))

    def _look_again(self, tenant: str, at: float) -> None:
        if at < self._times.get(tenant, float("inf")):
            self._times[tenant] = at
            heapq.heappush(self._heap, (at, tenant))

    def _lane_of(self, tenant: str) -> Lane:
        """Return the lane of a tenant. Open a lane if the tenant has no lane."""
        lane = self._duties.lanes.get(tenant)
        if lane is None:
            lane = Lane(self._duties, of_tenant(self._database, tenant, self._duties.queries))
            lane.open()
            self._duties.lanes[tenant] = lane
        return lane

    def _sweep(self) -> None:
        """Do the due sweeps of some tenants. A sweep may make runs ready to claim."""
        for _ in range(min(len(self._sweeping), _MOST_SWEEPS)):
            tenant, _ = self._sweeping.popitem(last=False)
            lane = self._lane_of(tenant)
            if not lane.is_busy and not lane.turn():
                self.failed_at = lane.failed_at
                self._sweeping.setdefault(tenant)
                return
            self._hungry.setdefault(tenant)

    def _claim(self) -> None:
        """Claim runs of one tenant after another, until the worker has `concurrency` runs or no run is left."""
        duties = self._duties
        if duties.alone is not None:
            # While a lane waits for a run that must be alone, no other lane claims runs.
            duties.alone.claim(duties.room)
            if duties.alone is not None:
                return
        while (room := duties.room) > 0 and not duties.has_suspect and duties.alone is None:
            now = time.monotonic()
            tenant = next((one for one in self._hungry if self._retry_at.get(one, now) <= now), None)
            if tenant is None:
                return
            # Move the tenant before the claim, so that a failed claim does not delay other tenants.
            self._hungry.move_to_end(tenant)
            lane = self._lane_of(tenant)
            if not lane.is_busy and not lane.turn():
                self.failed_at = lane.failed_at
                return
            share = max(1, room // len(self._hungry))
            before = len(lane.executions)
            if not lane.claim(share):
                self.failed_at = lane.failed_at
                return
            now = self._claimed_at[tenant] = time.monotonic()
            if lane.lacks_keys:
                self._retry_at[tenant] = now + duties.settings.poll
                continue
            self._retry_at.pop(tenant, None)
            if len(lane.executions) - before >= share:
                continue
            del self._hungry[tenant]
            if lane.has_waiting:
                self._look_again(tenant, now + duties.settings.poll)
            elif not lane.claimed_all:
                self._look_again(tenant, now + _SOON_SECONDS)

    def _close_idle(self) -> None:
        """Close lanes that were idle for `_IDLE_SECONDS`, and the lanes above `_MOST_IDLE` that were idle longest."""
        now = time.monotonic()
        for tenant, lane in self._duties.lanes.items():
            name = str(tenant)
            if lane.is_busy or name in self._hungry or name in self._sweeping or self._duties.alone is lane:
                self._idle_since.pop(name, None)
            elif name not in self._idle_since:
                self._idle_since[name] = now
                # The ended runs may have left work for later, such as a retry.
                self._look_again(name, now + _SOON_SECONDS)
        surplus = len(self._idle_since) - _MOST_IDLE
        for name, since in [*self._idle_since.items()]:
            if surplus <= 0 and now < since + _IDLE_SECONDS:
                break
            surplus -= 1
            del self._idle_since[name]
            self._claimed_at.pop(name, None)
            self._retry_at.pop(name, None)
            lane = self._duties.lanes.pop(name)
            self._duties.given_back += lane.ender.given_back
            self._forget(name)
            try:
                lane.close()
            except PGStateError:
                # The database is not available. Close the other lanes later, because each waits for a second.
                break
