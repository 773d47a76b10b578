"""The registry of the leases that this process holds, and for which of its runs. No I/O.

Whether a write is let through is decided in the database, by the number of a lease. What is known here only decides
when a lease is taken, renewed and given back: a mistake costs time, never data.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import threading
import time
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Final

from langgraph_pgstate.call_site import CallSite, run_of
from langgraph_pgstate.errors import ConfigurationError, LeaseHeldError, LeaseLostError, ThreadDeletedError
from langgraph_pgstate.langgraph_compat import RUNTIME
from langgraph_pgstate.operations.checkpoints.addresses import configurable_of
from langgraph_pgstate.process_identity import holder_id
from langgraph_pgstate.settings import GuardSettings
from langgraph_pgstate.types import Lease

_log = logging.getLogger("langgraph_pgstate.leases")

# How long a run that its own task may have left is waited for: an event loop closes an abandoned generator a bit later.
CLOSING_SECONDS: Final = 1.0
# How often it is looked whether a run has ended without saying so.
_LOOK_SECONDS: Final = 0.5
# A loop that was not entered so long after its state was read has failed there.
_ENTRY_SECONDS: Final = 3.0

# Of all savers of this process: two must never take a lease under one name.
_numbers = itertools.count(1)
# What `hold` has taken around the code that runs now, by manager and thread.
_surrounding: ContextVar[Mapping[tuple[int, str], HeldLease]] = ContextVar("langgraph_pgstate_leases", default={})  # noqa: B039


@dataclass(slots=True, eq=False)
class HeldLease:
    """A lease that this process has taken.

    Attributes:
        lease: As it was when it was taken.
        is_read_first: Whether it was taken before the state was read that is written with it.
        run: The run that has taken it; none where a block of code has.
        starter: The task or thread in which that run started. It may be done while its stream is read in another.
        loop: The run's loop, where it is known.
        renewed_at: When it was renewed last, by this process's own clock.
        read_at: When the state was read for which it was taken.
        has_ended: Whether its run or block has ended: it is to be given back, and not renewed again. What the run still
            writes is let through until somebody else takes the lease.
        is_returned: Whether it is being given back, or has been.
        is_lost: Whether it is known to have been taken over.
        is_deleted: Whether its own holder has deleted the thread, and the lease with it.
    """

    lease: Lease
    is_read_first: bool
    run: Run | None = None
    starter: asyncio.Task[Any] | threading.Thread | None = None
    loop: weakref.ref[Any] | None = None
    renewed_at: float = field(default_factory=time.monotonic)
    read_at: float | None = None
    has_ended: bool = False
    is_returned: bool = False
    is_lost: bool = False
    is_deleted: bool = False

    def is_over(self, asker: object = None) -> bool:
        """Whether the run that has taken it has ended, as far as its objects tell. A suspended stream has not.

        Args:
            asker: The task or thread that wants to start another.
        """
        if self.has_ended:
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
        # One that failed while it was entered is never left either. Nobody gets out of an entry by suspending it: who
        # is done, or starts another, has failed there.
        if _is_entered(loop):
            return False
        is_late = self.read_at is not None and time.monotonic() > self.read_at + _ENTRY_SECONDS
        return is_late or self.may_be_left(asker)

    def end(self) -> None:
        """Note that its run or block has ended."""
        self.has_ended = True
        if self.run is not None and self.run.holder_id == self.lease.holder_id:
            # What the same run takes next is another lease.
            self.run.holder_id = next_holder()

    def may_be_left(self, asker: object) -> bool:
        """Whether the task or thread that started it is done, or is the one that asks."""
        return self.starter is asker or _is_done(self.starter)

    def check(self) -> HeldLease:
        """The lease, unless it is known to be lost.

        Raises:
            LeaseLostError: If it is.
        """
        if self.is_lost:
            raise LeaseLostError(self.lease.thread_id, self.lease.fencing_token)
        return self

    def is_renewal_due(self, ttl: float) -> bool:
        """Whether a third of its time has gone since it was renewed; if so, the caller renews it."""
        now = time.monotonic()
        if self.has_ended or now - self.renewed_at < ttl / 3:
            return False
        self.renewed_at = now
        return True


@dataclass(slots=True, eq=False)
class Run:
    """A run of this process.

    Attributes:
        key: What tells it from others; kept, so that no other gets its identity.
        holder_id: Under which it takes leases.
        sign: Something that goes when the run goes, if there is such a thing.
        leases: What it has taken, by thread; lost ones stay, so that it does not take them again.
    """

    key: Any
    holder_id: str
    sign: weakref.ref[Any] | None
    leases: dict[str, HeldLease] = field(default_factory=dict)

    @property
    def is_gone(self) -> bool:
        """Whether what goes with the run has gone."""
        return self.sign is not None and self.sign() is None

    @property
    def is_over(self) -> bool:
        """Whether it can be forgotten."""
        if self.sign is None:
            return bool(self.leases) and all(held.is_over() for held in self.leases.values())
        return self.is_gone


def _is_entered(loop: Any) -> bool:
    # LangGraph sets it then.
    return not hasattr(type(loop), "updated_channels") or "updated_channels" in vars(loop)


def next_holder() -> str:
    """Return the id of another holder of this process."""
    return f"{holder_id()}:{next(_numbers)}"


def _is_done(starter: asyncio.Task[Any] | threading.Thread | None) -> bool:
    if isinstance(starter, threading.Thread):
        return not starter.is_alive()
    return starter is None or starter.done()


class LeaseRegistry:
    """The leases of one saver by run. No I/O."""

    def __init__(self, settings: GuardSettings) -> None:
        self._settings = settings
        self._runs: dict[int, Run] = {}
        self._held: set[HeldLease] = set()
        # Holders that may have taken a lease without knowing it: its thread, and until when it may be theirs.
        self._doubtful: dict[str, tuple[str, float]] = {}
        self._book = threading.RLock()

    def _run(self, config: Mapping[str, Any]) -> Run | None:
        key = run_of(config)
        if key is None:
            return None
        with self._book:
            run = self._runs.get(id(key))
            # Its caller may give the object that tells a run from others to a later one, too.
            if run is None or run.is_gone:
                writer = getattr(configurable_of(config)[RUNTIME], "stream_writer", None)
                try:
                    sign = None if writer is None else weakref.ref(writer, self._note_end)
                except TypeError:
                    sign = None
                run = self._runs[id(key)] = Run(key, next_holder(), sign)
            return run

    def _has(self, thread_id: str, run: Run) -> bool:
        """Whether a run has a lease, of its own or of the code around, that has not ended."""
        held = self._find(thread_id, run)
        return held is not None and not held.has_ended

    def _find(self, thread_id: str, run: Run | None) -> HeldLease | None:
        """The lease under which a run, or the code around, may write to a thread. It may have ended."""
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
        """Leases of this process that may be taken over at once: their runs are over."""
        others = self._others(thread_id, run)
        return [other.lease.fencing_token for other in others if other.is_over(call_site.starter)]

    def _explain(
        self, error: LeaseHeldError, run: Run | None, call_site: CallSite, since: float
    ) -> LeaseHeldError | None:
        """What the caller is told who cannot have a lease; `None` if the run that has it may just be closing."""
        for other in self._others(error.thread_id, run):
            if other.lease.fencing_token == error.fencing_token:
                is_task = isinstance(other.starter, asyncio.Task)
                if is_task and other.may_be_left(call_site.starter) and time.monotonic() < since + CLOSING_SECONDS:
                    return None
                return error.of_own_run(other.starter is call_site.starter)
        return error

    def _note_taken(self, lease: Lease, run: Run | None, is_read_first: bool, call_site: CallSite) -> HeldLease:
        with self._book:
            if run is None:
                held = HeldLease(lease, is_read_first)
            else:
                loop = None if call_site.loop is None else weakref.ref(call_site.loop)
                held = HeldLease(lease, is_read_first, run, call_site.starter, loop)
                known = run.leases.get(lease.thread_id)
                if known is not None and known.lease.fencing_token == lease.fencing_token:
                    # Two of its tasks have asked at once, and were given the same lease.
                    return known
                run.leases[lease.thread_id] = held
            self._held.add(held)
        call_site.taken = held
        if call_site.is_left:
            held.end()
        return held

    def _note_left(self, call_site: CallSite) -> None:
        """A read was cancelled, or failed: what was taken for it, or still is, is given back."""
        call_site.is_left = True
        if call_site.taken is not None:
            call_site.taken.end()

    def note_read(self, call_site: CallSite | None) -> None:
        """The state was read for which a lease may have been taken."""
        if call_site is not None and call_site.taken is not None:
            call_site.taken.read_at = time.monotonic()

    def _entering(self, thread_id: str, config: Mapping[str, Any]) -> HeldLease | None:
        """What a run has taken whose loop is not entered yet."""
        run = self._run(config)
        held = None if run is None else run.leases.get(thread_id)
        if held is None or held.run is not run or held.loop is None or held.has_ended:
            return None
        loop = held.loop()
        return None if loop is None or _is_entered(loop) else held

    def _note_doubt(
        self, thread_id: str, run: Run | None, holder: str, call_site: CallSite, error: BaseException
    ) -> None:
        """A lease could not be taken; unless the server said so, it may have been."""
        if not call_site.was_asked or isinstance(error, ThreadDeletedError):
            return
        with self._book:
            self._doubtful[holder] = (thread_id, time.monotonic() + self._settings.lease_ttl)
            if run is not None and run.holder_id == holder:
                # What it takes next is not to be given back with this.
                run.holder_id = next_holder()

    def note_deleted(self, thread_id: str) -> None:
        """A thread was deleted by the code that runs now. Where it holds the lease, it has not lost it."""
        held = _surrounding.get().get((id(self), thread_id))
        if held is not None and not held.is_lost:
            held.is_deleted = True
            self._note_gone(held)

    def _note_gone(self, held: HeldLease) -> None:
        # Its run still knows it: what it writes late rests on it, and it is not taken again for that.
        with self._book:
            self._held.discard(held)

    def _note_end(self, _: Any) -> None:
        """A run has ended. Called wherever the garbage collector happens to be: it may wait for nothing."""

    def _survey(self) -> tuple[list[HeldLease], list[HeldLease]]:
        """The leases to be renewed, and those to be given back because their runs are over."""
        with self._book:
            self._runs = {key: run for key, run in self._runs.items() if not run.is_over}
            expired = time.monotonic() - self._settings.lease_ttl
            self._held = {
                held for held in self._held if not held.is_lost and not (held.has_ended and held.renewed_at < expired)
            }
            over = [held for held in self._held if held.is_over()]
            for held in over:
                held.end()
            return list(self._held.difference(over)), [held for held in over if not held.is_returned]

    def _survey_doubts(self) -> list[tuple[str, str]]:
        """Threads and holders of leases that may have been taken, and are to be given back."""
        now = time.monotonic()
        with self._book:
            self._doubtful = {holder: doubt for holder, doubt in self._doubtful.items() if doubt[1] > now}
            return [(thread_id, holder) for holder, (thread_id, _) in self._doubtful.items()]

    @property
    def _has_work(self) -> bool:
        return bool(self._held or self._doubtful)

    def _note_renewed(self, asked: list[HeldLease], still: set[tuple[str, int]]) -> None:
        for held in asked:
            if (held.lease.thread_id, held.lease.fencing_token) in still:
                held.renewed_at = time.monotonic()
            elif not held.has_ended:
                _log.warning(
                    "lease %d of thread %r was lost: it was taken over, or its thread deleted",
                    held.lease.fencing_token,
                    held.lease.thread_id,
                )
                held.is_lost = True

    @property
    def _pause(self) -> float:
        return min(self._settings.lease_ttl / 3, _LOOK_SECONDS)

    def _patience(self, on_busy: str | None, wait_timeout: float | None) -> float:
        """Until when to wait for a lease, by `time.monotonic`."""
        settings = self._settings
        if on_busy not in (None, "raise", "wait"):
            raise ConfigurationError(f'on_busy is "raise" or "wait", not {on_busy!r}')
        if (on_busy or settings.on_busy) == "raise":
            return 0.0
        return time.monotonic() + (settings.wait_timeout if wait_timeout is None else wait_timeout)

    def _around_here(self, thread_id: str) -> HeldLease | None:
        held = _surrounding.get().get((id(self), thread_id))
        return None if held is None or held.has_ended else held

    @contextmanager
    def _around(self, held: HeldLease) -> Iterator[None]:
        token = _surrounding.set({**_surrounding.get(), (id(self), held.lease.thread_id): held})
        try:
            yield
        finally:
            _surrounding.reset(token)
