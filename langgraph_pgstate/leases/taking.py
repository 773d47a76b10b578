"""Acquisition, renewal and release of leases in the database, for blocking and async managers."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Concatenate, Final, ParamSpec, TypeVar

from langgraph_pgstate.call_site import CallSite
from langgraph_pgstate.db.protocol import Connection
from langgraph_pgstate.db.runners import Runner
from langgraph_pgstate.errors import LeaseHeldError, PGStateError
from langgraph_pgstate.leases import holding as leases
from langgraph_pgstate.leases.checking import LeaseCheck, check_nodes
from langgraph_pgstate.leases.registry import CLOSING_SECONDS, HeldLease, LeaseRegistry, Run, next_holder, timed
from langgraph_pgstate.leases.types import Lease
from langgraph_pgstate.options import GuardSettings
from langgraph_pgstate.process_identity import is_known_dead, lease_clock
from langgraph_pgstate.schema.queries import Queries

_FIRST_DELAY, _LONGEST_DELAY = 0.02, 0.5

_NOT_RENEWED: Final = "leases could not be renewed or released; they expire unless a later attempt succeeds: %s"

T = TypeVar("T")
P = ParamSpec("P")

_log = logging.getLogger("langgraph_pgstate.leases")


class LeaseTaker(LeaseRegistry):
    """A registry that also takes, renews and releases leases: the base of both managers.

    The methods await only the runner, so with a blocking runner they need no event loop.
    """

    def __init__(self, runner: Runner, queries: Queries, settings: GuardSettings) -> None:
        super().__init__(settings)
        self._runner, self._queries = runner, queries

    def _start(self) -> None:
        """Start the thread or task that renews the leases, unless it runs."""
        raise NotImplementedError

    def _follow(self, held: HeldLease, run: Run, call_site: CallSite) -> LeaseCheck | None:
        """Let a run check its lease before each node. Also track the OS threads that the nodes start.

        Return the handler that checks; `None` if the loop of the run is not known.
        """
        exits, task = call_site.exits, call_site.starter
        if exits is not None and isinstance(task, asyncio.Task) and held.work.follow_run(run.key, task.get_loop()):
            exits.callback(held.work.forget_run, run.key)
        check = check_nodes(call_site.loop, held)
        if check is not None and held.run is run and held.span_id is None:
            held.span_id = check.root_id
        return check

    async def _take_lease(
        self, thread_id: str, run: Run | None, is_read_first: bool, deadline: float, call_site: CallSite
    ) -> HeldLease:
        """Take a lease. While another holder has the lease, try again until the deadline."""
        since = time.monotonic()
        holder = run.holder_id if run is not None else next_holder()
        dead: list[int] = []
        delay = _FIRST_DELAY
        ttl = self._settings.lease_ttl
        try:
            while True:
                free = [*self._free_tokens(thread_id, run, call_site), *dead]
                try:
                    lease = await self._runner.run(
                        _take_unless_failed, self._queries, thread_id, holder, ttl, free, call_site
                    )
                    return self._note_taken(lease, run, is_read_first, call_site)
                except LeaseHeldError as error:
                    call_site.was_sent = False
                    if error.fencing_token not in dead and is_known_dead(error.holder_id or ""):
                        dead.append(error.fencing_token or 0)
                        continue
                    if (
                        time.monotonic() >= deadline
                        and (found := self._explain(error, run, call_site, since)) is not None
                    ):
                        raise found from None
                await self._runner.sleep(_next_delay(delay, deadline, since))
                delay = min(delay * 2, _LONGEST_DELAY)
        except BaseException as error:
            self._note_unconfirmed(thread_id, run, holder, call_site, error)
            raise
        finally:
            self._start()

    async def _release_lease(self, held: HeldLease) -> bool:
        """Release a lease. Return whether it was still held."""
        held.end()
        held.is_returned = True
        lease, is_mine = held.lease, not held.is_lost
        try:
            if is_mine:
                is_mine = await self._apart(leases.release, self._queries, lease.thread_id, lease.fencing_token)
        except BaseException:
            held.is_returned = False
            raise
        # Remove the lease from the list only now. Until the release, other threads must see that the run has ended.
        self._note_gone(held)
        return is_mine

    async def _release_by_holder(self, thread_id: str, holder: str) -> None:
        """Release a lease that may have been taken."""
        await self._apart(leases.release, self._queries, thread_id, None, holder)
        self._unconfirmed.pop(holder, None)

    async def _renew_leases(self, release: Callable[[HeldLease], Awaitable[bool]]) -> None:
        """Renew the leases that are due, and release those of ended runs. Errors are logged."""
        try:
            mine, over = self._survey()
            due = [held for held in mine if held.is_renewal_due(self._settings.lease_ttl)]
            await self._renew(due)
            for held in over:
                await release(held)
            for thread_id, holder in self._list_unconfirmed():
                await self._release_by_holder(thread_id, holder)
        except PGStateError as error:
            _log.warning(_NOT_RENEWED, error)

    async def _renew(self, due: list[HeldLease]) -> None:
        """Renew leases, and mark the lost ones. One statement, or none."""
        if due:
            keys = [(held.lease.thread_id, held.lease.fencing_token) for held in due]
            asked_at, still = await self._apart(timed, leases.renew, self._queries, keys, self._settings.lease_ttl)
            self._note_renewed(due, asked_at, still)

    async def _apart(
        self, operation: Callable[Concatenate[Connection, P], Awaitable[T]], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Run an operation within a sixth of a lease's duration, even if other calls use all connections."""
        return await self._runner.run_apart(self._settings.lease_ttl / 6, operation, *args, **kwargs)


class _FailedReadError(Exception):
    """A read failed before the statement that takes its lease was sent."""


async def _take_unless_failed(
    db: Connection, queries: Queries, thread_id: str, holder: str, ttl: float, free: Sequence[int], call_site: CallSite
) -> Lease:
    """Take the lease of a read. Raise `_FailedReadError` if the read has already failed or was cancelled."""
    if call_site.has_failed:
        raise _FailedReadError
    call_site.was_sent = call_site.is_pending = True
    call_site.asked_at = lease_clock()
    try:
        return await leases.take(db, queries, thread_id, holder, ttl, free)
    finally:
        call_site.is_pending = False


def _next_delay(delay: float, deadline: float, since: float) -> float:
    now = time.monotonic()
    return max(0.0, min(delay, (deadline if now < deadline else since + CLOSING_SECONDS) - now))
