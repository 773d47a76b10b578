"""The leases that this process holds, by run. No I/O.

The database decides by fencing token whether a write is accepted. The registry decides only when to take, renew and
release leases, so an error here costs time but never data.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import threading
import time
import weakref
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, TypeVar
from uuid import UUID

from langgraph_pgstate.arguments import Address, configurable_of
from langgraph_pgstate.call_site import CallSite, run_of
from langgraph_pgstate.db.protocol import Connection
from langgraph_pgstate.errors import ConfigurationError, LeaseHeldError, LeaseLostError, ThreadDeletedError
from langgraph_pgstate.langgraph_compat import RUNTIME
from langgraph_pgstate.leases.types import Lease
from langgraph_pgstate.options import GuardSettings
from langgraph_pgstate.process_identity import holder_id, lease_clock
from langgraph_pgstate.started_work import StartedWork

T = TypeVar("T")

_log = logging.getLogger("langgraph_pgstate.leases")

# Seconds to wait for the end of a run whose caller has left its stream. The event loop soon closes the stream's
# generator.
CLOSING_SECONDS: Final = 1.0
# Seconds between checks for runs that ended without a callback.
_LOOK_SECONDS: Final = 0.5
# Seconds within which a run must enter LangGraph's loop after reading its state. Otherwise the run counts as failed.
_ENTRY_SECONDS: Final = 3.0
# A worker's registry removes ended runs when it has this many runs. The limit rises if many runs have not ended.
_MOST_ENDED: Final = 64
# A process treats its lease as expired this fraction of the duration early, because clocks differ in speed.
_MARGIN: Final = 0.1

# Shared by all savers of the process, so that no two lease holders have the same id.
_numbers = itertools.count(1)
# The leases that `hold` holds around the current code, by manager and thread.
_surrounding: ContextVar[Mapping[tuple[int, str], HeldLease]] = ContextVar("langgraph_pgstate_leases", default={})  # noqa: B039


async def timed(db: Connection, operation: Callable[..., Awaitable[T]], *args: Any, **kwargs: Any) -> tuple[float, T]:
    """Run an operation that takes or renews leases; return the time at which it began, and its result."""
    asked_at = lease_clock()
    return asked_at, await operation(db, *args, **kwargs)


@dataclass(slots=True, eq=False)
class HeldLease:
    """A lease held by this process.

    Attributes:
        lease: The lease as it was when it was taken.
        confirmed_until: End of the lease as last confirmed by the database, by `lease_clock`. The run begins no work
            after this time.
        is_read_first: Whether the lease was taken before the state was read.
        run: The run that has taken the lease; `None` for a block of code.
        starter: The task or OS thread that started the run. It may end first, if another task reads the run's stream.
        loop: LangGraph's loop of the run, if it is known.
        span_id: Id of the run in LangGraph's callbacks, if its loop is known.
        asked_at: Time at which the last renewal was requested, by `lease_clock`.
        read_at: Time at which the run's state was read.
        has_ended: Whether the run or block has ended. The lease is then released and not renewed. Late writes of the
            run are accepted until another process or run takes the lease.
        is_left: Whether the run has ended, and the lease is kept for OS threads that a cancelled task left behind.
        is_returned: Whether the release has begun.
        is_lost: Whether the lease was taken over, or could not be renewed in time. The run then writes nothing more.
        is_stopped: Whether the run begins no more work, because the lease was lost before the run ended.
        is_deleted: Whether the holder itself has deleted the thread, and the lease with it.
        is_of_new_thread: Whether the thread had no checkpoint when the lease was taken, and was not read since.
        work: The OS threads that nodes of the lease's runs have started from an event loop.
        on_stop: Called when the run's code is stopped, in any OS thread.
    """

    lease: Lease
    confirmed_until: float
    is_read_first: bool
    run: Run | None = None
    starter: asyncio.Task[Any] | threading.Thread | None = None
    loop: weakref.ref[Any] | None = None
    span_id: UUID | None = None
    asked_at: float = field(default_factory=lease_clock)
    read_at: float | None = None
    has_ended: bool = False
    is_left: bool = False
    is_returned: bool = False
    is_lost: bool = False
    is_stopped: bool = False
    is_deleted: bool = False
    is_of_new_thread: bool = False
    work: StartedWork = field(default_factory=StartedWork)
    on_stop: list[Callable[[], None]] = field(default_factory=list)

    def is_over(self, asker: object = None) -> bool:
        """Return whether the run has ended, judged by its Python objects. A suspended stream has not ended.

        Args:
            asker: The task or thread that wants to start another run.
        """
        if self.has_ended:
            return True
        if self.work.has_threads:
            return False
        if self.is_left:
            return True
        if self.run is None:
            return False
        if self.run.is_gone:
            return True
        if self.loop is None:
            return _is_done(self.starter)
        loop = self.loop()
        if loop is None:
            return True
        # The task that starts a run enters LangGraph's loop before it does anything else. If the task has ended, or
        # starts another run, and the loop was not entered, the entry has failed.
        if _is_entered(loop):
            return False
        is_late = self.read_at is not None and time.monotonic() > self.read_at + _ENTRY_SECONDS
        return is_late or self.may_be_left(asker)

    def end(self) -> None:
        """Remember that the run or block has ended."""
        self.has_ended = True
        if self.run is not None and self.run.holder_id == self.lease.holder_id:
            # Later leases of the same run need a new holder id.
            self.run.holder_id = next_holder()

    def may_be_left(self, asker: object) -> bool:
        """Return whether the starter of the run is done, or is `asker`."""
        return self.starter is asker or _is_done(self.starter)

    def check(self) -> HeldLease:
        """Return the lease. Raise `LeaseLostError` if the lease is known to be lost."""
        if self.is_lost:
            raise LeaseLostError(self.lease.thread_id, self.lease.fencing_token)
        return self

    def check_confirmed(self) -> None:
        """Raise `LeaseLostError` if the run must begin no work. After `confirmed_until`, the lease counts as lost."""
        if not self.is_confirmed:
            self.lose()
        if self.is_stopped:
            raise LeaseLostError(self.lease.thread_id, self.lease.fencing_token)

    @property
    def is_confirmed(self) -> bool:
        """Whether `confirmed_until` is in the future, or the run has ended and needs no lease."""
        return self.has_ended or lease_clock() < self.confirmed_until

    def confirm(self, asked_at: float, ttl: float) -> None:
        """Remember that the database has renewed the lease for `ttl` seconds, at `asked_at` or later."""
        self.confirmed_until = max(self.confirmed_until, confirmed_end(asked_at, ttl))
        self.asked_at = max(self.asked_at, asked_at)

    def lose(self) -> None:
        """Mark the lease as lost. The run then begins no work and writes nothing."""
        self.is_lost = True
        if not self.has_ended:
            self.stop()

    def stop(self) -> None:
        """Make the run's code begin no more work."""
        if not self.is_stopped:
            self.is_stopped = True
            for call in [*self.on_stop]:
                call()

    def is_renewal_due(self, ttl: float) -> bool:
        """Return whether the caller must renew the lease now: a third of its duration has passed."""
        now = lease_clock()
        if self.has_ended or now - self.asked_at < ttl / 3:
            return False
        self.asked_at = now
        return True


def confirmed_end(asked_at: float, ttl: float) -> float:
    """Return the time until which this process may rely on a lease that was requested at `asked_at`."""
    return asked_at + ttl * (1 - _MARGIN)


@dataclass(slots=True, eq=False)
class Run:
    """A run of this process.

    Attributes:
        key: The object that identifies the run. It is kept so that no other object gets the same `id()`.
        holder_id: Holder id of the run's leases.
        sign: A weak reference to an object that lives as long as the run, if there is one.
        leases: Leases of the run by thread. Lost leases stay here, so that the run does not take them again.
    """

    key: Any
    holder_id: str
    sign: weakref.ref[Any] | None
    leases: dict[str, HeldLease] = field(default_factory=dict)

    @property
    def is_gone(self) -> bool:
        """Whether the run has ended without a callback: the object of `sign` no longer exists."""
        return self.sign is not None and self.sign() is None

    @property
    def is_over(self) -> bool:
        """Whether the run can be removed."""
        if self.sign is None:
            return bool(self.leases) and all(held.is_over() for held in self.leases.values())
        return self.is_gone


def _is_entered(loop: Any) -> bool:
    # The last step of entering a loop stores the loop's input. Until then, the loop's status is "input".
    return getattr(loop, "status", "input") != "input"


def next_holder() -> str:
    """Return a new holder id of this process."""
    return f"{holder_id()}:{next(_numbers)}"


def _is_done(starter: asyncio.Task[Any] | threading.Thread | None) -> bool:
    if isinstance(starter, threading.Thread):
        return not starter.is_alive()
    return starter is None or starter.done()


class LeaseRegistry:
    """The leases that one saver holds, by run: the base of the lease managers. No I/O."""

    def __init__(self, settings: GuardSettings) -> None:
        self._settings = settings
        self._runs: dict[int, Run] = {}
        # With this many runs, `hold_claimed` removes the ended runs.
        self._many_runs = _MOST_ENDED
        self._held: set[HeldLease] = set()
        # Leases that may have been taken although no response arrived: thread and latest end, by holder.
        self._unconfirmed: dict[str, tuple[str, float]] = {}
        self._book = threading.RLock()

    def _run(self, config: Mapping[str, Any]) -> Run | None:
        key = run_of(config)
        if key is None:
            return None
        with self._book:
            run = self._runs.get(id(key))
            # If the known run is gone, the caller has used the same key object for a later run.
            if run is None or run.is_gone:
                writer = getattr(configurable_of(config)[RUNTIME], "stream_writer", None)
                try:
                    sign = None if writer is None else weakref.ref(writer, self._note_end)
                except TypeError:
                    sign = None
                run = self._runs[id(key)] = Run(key, next_holder(), sign)
            return run

    def _find(self, thread_id: str, run: Run | None) -> HeldLease | None:
        """Return the lease under which a run or the enclosing block may write to a thread. The run may have ended."""
        held = None if run is None else run.leases.get(thread_id)
        if held is not None and not held.has_ended:
            return held.check()
        around = self._around_here(thread_id)
        if around is None:
            return None if held is None else held.check()
        if run is not None:
            run.leases[thread_id] = around
        return around.check()

    def _others(self, thread_id: str, run: Run | None) -> list[HeldLease]:
        with self._book:
            held = [*self._held]
        return [
            one
            for one in held
            if one.lease.thread_id == thread_id and one.run is not None and (one.run is not run or one.has_ended)
        ]

    def _free_tokens(self, thread_id: str, run: Run | None, call_site: CallSite) -> list[int]:
        """Return the fencing tokens of leases of this process whose runs have ended, so that they may be taken over."""
        others = self._others(thread_id, run)
        return [other.lease.fencing_token for other in others if other.is_over(call_site.starter)]

    def _explain(
        self, error: LeaseHeldError, run: Run | None, call_site: CallSite, since: float
    ) -> LeaseHeldError | None:
        """Return the error for a held lease; `None` to wait, because the holding run may soon end."""
        for other in self._others(error.thread_id, run):
            if other.lease.fencing_token == error.fencing_token:
                is_task = isinstance(other.starter, asyncio.Task)
                if is_task and other.may_be_left(call_site.starter) and time.monotonic() < since + CLOSING_SECONDS:
                    return None
                return error.of_own_run(other.starter is call_site.starter)
        return error

    def _note_taken(self, lease: Lease, run: Run | None, is_read_first: bool, call_site: CallSite) -> HeldLease:
        until = confirmed_end(call_site.asked_at, self._settings.lease_ttl)
        with self._book:
            if run is None:
                held = HeldLease(lease, until, is_read_first)
            else:
                loop = None if call_site.loop is None else weakref.ref(call_site.loop)
                held = HeldLease(lease, until, is_read_first, run, call_site.starter, loop)
                known = run.leases.get(lease.thread_id)
                if known is not None and known.lease.fencing_token == lease.fencing_token:
                    # Two tasks of the run have taken the same lease at once.
                    return known
                run.leases[lease.thread_id] = held
            self._held.add(held)
        call_site.taken = held
        if call_site.has_failed:
            held.end()
        return held

    def _note_failed_read(self, call_site: CallSite) -> None:
        """Remember that a read failed or was cancelled. The read's lease is released now, or as soon as it is taken."""
        call_site.has_failed = True
        if call_site.taken is not None:
            call_site.taken.end()

    def note_read(self, call_site: CallSite | None) -> None:
        """Store the time at which a read ended in the lease that was taken for the read, if any."""
        if call_site is not None and call_site.taken is not None:
            call_site.taken.read_at = time.monotonic()

    def _entering(self, thread_id: str, config: Mapping[str, Any]) -> HeldLease | None:
        """Return the lease of a run whose loop is not entered yet."""
        run = self._run(config)
        held = None if run is None else run.leases.get(thread_id)
        if held is None or held.run is not run or held.loop is None or held.has_ended:
            return None
        loop = held.loop()
        return None if loop is None or _is_entered(loop) else held

    def _note_unconfirmed(
        self, thread_id: str, run: Run | None, holder: str, call_site: CallSite, error: BaseException
    ) -> None:
        """Remember a lease that may have been taken, because its statement got no response."""
        # These errors mean that the server refused the statement: the thread is deleted, or an id cannot be stored.
        if not call_site.was_sent or isinstance(error, ThreadDeletedError | ConfigurationError):
            return
        with self._book:
            self._unconfirmed[holder] = (thread_id, time.monotonic() + self._settings.lease_ttl)
            if run is not None and run.holder_id == holder:
                # A later lease of the run must not be released together with this lease.
                run.holder_id = next_holder()

    def note_deleted(self, thread_id: str) -> None:
        """Remember that the surrounding run or block deleted a thread, so that its lease does not count as lost."""
        held = _surrounding.get().get((id(self), thread_id))
        if held is not None and not held.is_lost:
            held.is_deleted = True
            self._note_gone(held)

    def _leave_to_threads(self, held: HeldLease) -> bool:
        """Keep the lease of an ended run or block while its OS threads run. Return whether there are such threads."""
        if not held.work.has_threads:
            return False
        held.is_left = True
        held.work.when_threads_ended(partial(self._note_end, None))
        return True

    def _note_gone(self, held: HeldLease) -> None:
        # `run.leases` keeps the lease, so that late writes do not take a new lease.
        with self._book:
            self._held.discard(held)

    def _note_end(self, _: Any) -> None:
        """Wake the renewal after the end of a run. The garbage collector calls this method, so it must not block."""

    def _survey(self) -> tuple[list[HeldLease], list[HeldLease]]:
        """Return the leases to renew, and the leases to release because their runs have ended."""
        with self._book:
            self._forget_ended()
            expired = lease_clock() - self._settings.lease_ttl
            self._held = {
                held for held in self._held if not held.is_lost and not (held.has_ended and held.asked_at < expired)
            }
            over = [held for held in self._held if held.is_over()]
            for held in over:
                held.end()
            return list(self._held.difference(over)), [held for held in over if not held.is_returned]

    def _forget_ended(self) -> None:
        self._runs = {key: run for key, run in self._runs.items() if not run.is_over}

    def _list_unconfirmed(self) -> list[tuple[str, str]]:
        """Return threads and holders of leases that may have been taken and must be released."""
        now = time.monotonic()
        with self._book:
            self._unconfirmed = {holder: one for holder, one in self._unconfirmed.items() if one[1] > now}
            return [(thread_id, holder) for holder, (thread_id, _) in self._unconfirmed.items()]

    @property
    def _has_work(self) -> bool:
        return bool(self._held or self._unconfirmed)

    def _note_renewed(self, asked: list[HeldLease], asked_at: float, still: set[tuple[str, int]]) -> None:
        for held in asked:
            if (held.lease.thread_id, held.lease.fencing_token) in still:
                held.confirm(asked_at, self._settings.lease_ttl)
            elif not held.has_ended:
                _log.warning(
                    "lease %d of thread %r was lost: another holder took the lease, or the thread was deleted",
                    held.lease.fencing_token,
                    held.lease.thread_id,
                )
                held.lose()

    @property
    def _pause(self) -> float:
        return min(self._settings.lease_ttl / 3, _LOOK_SECONDS)

    def _deadline(self, on_busy: str | None, wait_timeout: float | None) -> float:
        """Return the deadline of a wait for a lease, by `time.monotonic`."""
        settings = self._settings
        if on_busy not in (None, "raise", "wait"):
            raise ConfigurationError(f'on_busy must be "raise" or "wait", not {on_busy!r}')
        if (on_busy or settings.on_busy) == "raise":
            return 0.0
        return time.monotonic() + (settings.wait_timeout if wait_timeout is None else wait_timeout)

    def _around_here(self, thread_id: str) -> HeldLease | None:
        held = _surrounding.get().get((id(self), thread_id))
        return None if held is None or held.has_ended else held

    @contextmanager
    def hold_claimed(self, held: HeldLease) -> Iterator[None]:
        """Let the runs inside the block use a lease that a worker takes, renews and releases.

        After the block, late writes are accepted until another process or run takes the lease.
        """
        try:
            with self._around(held):
                yield
        finally:
            held.end()
            with self._book:
                # A worker's leases are not in `_held`, so `_survey` does not remove their runs.
                if len(self._runs) >= self._many_runs:
                    self._forget_ended()
                    self._many_runs = 2 * len(self._runs) + _MOST_ENDED

    def has_nothing_to_read(self, address: Address) -> bool:
        """Return whether the first read of a claimed run needs no query, because the thread has no checkpoint yet."""
        held = self._around_here(address.thread_id)
        if held is None or not held.is_of_new_thread or address.checkpoint_ns or address.checkpoint_id is not None:
            return False
        held.is_of_new_thread = False
        return True

    @contextmanager
    def _around(self, held: HeldLease) -> Iterator[None]:
        token = _surrounding.set({**_surrounding.get(), (id(self), held.lease.thread_id): held})
        try:
            yield
        finally:
            _surrounding.reset(token)
