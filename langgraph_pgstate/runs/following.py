"""Following of runs: one statement reads for all readers of a state, as often as is useful.

A reader asks for the events after the last one that it has, and waits. What it does not ask for is not kept, so a slow
reader costs nothing. Readers that wait poll; nothing is read while there are none.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final

from langgraph_pgstate.codec.values import ValueCodec
from langgraph_pgstate.db.database import AsyncDatabase, Database
from langgraph_pgstate.errors import ConfigurationError, NotFoundError
from langgraph_pgstate.operations.runs import streams
from langgraph_pgstate.operations.runs.outcomes import UNFINISHED
from langgraph_pgstate.runs.notifying import Ends, on_loop
from langgraph_pgstate.sql import Queries
from langgraph_pgstate.types import StreamEvent, StreamPage, Wanted

# Seconds between two looks, if no reader is behind, and if one is.
_PAUSE: Final = 0.05
_SHORT_PAUSE: Final = 0.01
# A look takes at most this part of the time.
_SHARE: Final = 5
# Batches that one statement returns, unless more readers wait.
_BATCHES: Final = 256
# Of a run that was rolled back, or whose thread was deleted.
_DELETED: Final = "deleted"


class Cursor:
    """A reader's place in the events of a run. No I/O.

    Attributes:
        is_behind: Whether more events may be stored already; it is not known at first.
        has_ended: Whether it has passed the end.

    Args:
        codec: Decodes events.
        thread_id: The thread.
        run_id: The run.
        last_event_id: Id of the last event that the reader has; from the first one without it.

    Raises:
        ConfigurationError: If the id is none.
    """

    def __init__(self, codec: ValueCodec, thread_id: str, run_id: str, last_event_id: str | int | None) -> None:
        self.is_behind, self.has_ended = True, False
        # What a type that may not be built is made of can be read without the graph's code.
        self._codec = codec.lenient()
        self._run = (thread_id, run_id)
        self._where = f"events of run {run_id!r}"
        self._given = _number_of(last_event_id)
        self._after, self._attempt = self._given or 0, 0
        self._is_first = True

    @property
    def wanted(self) -> Wanted:
        """The events that it needs next; at first also the last one that the reader has."""
        return Wanted(*self._run, max(0, self._after - 1) if self._is_first else self._after)

    def take(self, page: StreamPage) -> Iterator[StreamEvent]:
        """Yield the events of a page, and move behind them.

        Raises:
            NotFoundError: If the run does not exist, and the reader has none of its events.
            ConfigurationError: If the run does not have the event that the reader has.
        """
        if self._is_first:
            self._check(page)
            self._is_first = False
        for batch in page.batches:
            if batch.last_seq <= self._after:
                self._attempt = batch.attempt
                continue
            yield from self._gap(batch.first_seq)
            self._attempt = batch.attempt
            for number, mode, namespace, data, is_replayed in streams.decode_batch(self._codec, batch, self._where):
                if number > self._after:
                    self._after = number
                    yield StreamEvent(str(number), mode, namespace, data, batch.attempt, is_replayed)
        self.is_behind = page.is_full
        if not page.is_full and page.status not in UNFINISHED:
            self.has_ended = True
            yield from self._gap((page.last_event or 0) + 1)
            if page.status in ("error", "timeout"):
                yield self._event("error", {"error": page.error_type, "message": page.error_message}, ".error")
            yield self._event("end", {"status": page.status or _DELETED}, ".end")

    def _check(self, page: StreamPage) -> None:
        thread_id, run_id = self._run
        if page.status is None:
            if self._given is None:
                raise NotFoundError(f"thread {thread_id!r} has no run {run_id!r}")
        elif self._after > max([page.last_event or 0, *(batch.last_seq for batch in page.batches)]):
            raise ConfigurationError(f"run {run_id!r} of thread {thread_id!r} has no event {self._after} yet")

    def _gap(self, following: int) -> Iterator[StreamEvent]:
        """Yield an event in place of those before a number that are no longer stored, if there are any."""
        if following > self._after + 1:
            missing = {"first": str(self._after + 1), "last": str(following - 1)}
            self._after = following - 1
            yield self._event("gap", missing)

    def _event(self, event: str, data: dict[str, Any], suffix: str = "") -> StreamEvent:
        return StreamEvent(f"{self._after}{suffix}", event, (), data, self._attempt)


def _number_of(last_event_id: str | int | None) -> int | None:
    """Return the number of the event with an id; 0 for `-1`, which servers take for the time before the first."""
    if last_event_id is None or last_event_id == "":
        return None
    try:
        return max(0, int(str(last_event_id).partition(".")[0]))
    except ValueError:
        raise ConfigurationError(f"last_event_id is the id of an event, not {last_event_id!r}") from None


class _Request:
    """A reader that waits for events, or for the end of its run."""

    def __init__(self, cursor: Cursor) -> None:
        self.wanted, self.is_urgent = cursor.wanted, cursor.is_behind
        self.page: StreamPage | None = None
        self.error: BaseException | None = None

    @property
    def is_answered(self) -> bool:
        """Whether it has its page, or an error."""
        return self.page is not None or self.error is not None


class _Schedule:
    """Times of reads: 50 ms apart, or more if reads take long."""

    def __init__(self) -> None:
        self._ended_at, self._took = float("-inf"), 0.0

    def delay(self, is_urgent: bool) -> float:
        """Return the seconds until the next look."""
        pause = max(_SHORT_PAUSE if is_urgent else _PAUSE, self._took * _SHARE)
        return self._ended_at + pause - time.monotonic()

    def note(self, began_at: float) -> None:
        """Note that a look has ended."""
        self._ended_at = time.monotonic()
        self._took = min(1.0, self._ended_at - began_at)


def _pages_wanted(requests: Sequence[_Request]) -> tuple[list[Wanted], int]:
    """Return what is to be read, each once, and the number of batches for each."""
    # Readers of one run are mostly at the same place.
    wanted = [*dict.fromkeys(request.wanted for request in requests)]
    return wanted, max(1, _BATCHES // len(wanted))


def _answer(requests: Sequence[_Request], wanted: Sequence[Wanted], pages: Sequence[StreamPage]) -> None:
    """Give pages with news to those who wait for them, and any page to those who do not know yet whether it has."""
    found = dict(zip(wanted, pages, strict=True))
    for request in requests:
        page = found[request.wanted]
        if page.batches or page.status not in UNFINISHED or request.is_urgent:
            request.page = page


class _Waiter(_Request):
    """A thread that waits."""

    def __init__(self, cursor: Cursor) -> None:
        super().__init__(cursor)
        self.wake = threading.Event()


class Follower:
    """The readers of a blocking state. One of those that wait reads for all."""

    def __init__(self, database: Database, queries: Queries, ends: Ends) -> None:
        self._database, self._queries, self._ends = database, queries, ends
        self._schedule = _Schedule()
        self._waiters: list[_Waiter] = []
        self._lock, self._reading, self._news = threading.Lock(), threading.Lock(), threading.Event()

    def next(self, cursor: Cursor) -> StreamPage:
        """Wait for news about a run.

        Raises:
            PGStateError: If the database is not available.
        """
        mine = _Waiter(cursor)
        with self._lock:
            self._waiters.append(mine)
        self._news.set()
        try:
            with self._ends.calling(mine.wanted.run_id, partial(self._hurry, mine)):
                while not mine.is_answered:
                    if self._reading.acquire(blocking=False):
                        try:
                            if not mine.is_answered:
                                self._look()
                        finally:
                            self._reading.release()
                    else:
                        mine.wake.wait()
                        mine.wake.clear()
        finally:
            with self._lock:
                self._waiters.remove(mine)
                other = next((one for one in self._waiters if not one.is_answered), None)
            if other is not None:
                other.wake.set()
        if mine.error is not None:
            raise mine.error
        assert mine.page is not None
        return mine.page

    def _hurry(self, request: _Request) -> None:
        """Look sooner: the run of a reader has ended."""
        request.is_urgent = True
        self._news.set()

    def _look(self) -> None:
        while True:
            self._news.clear()
            with self._lock:
                waiters = [one for one in self._waiters if not one.is_answered]
            delay = self._schedule.delay(any(one.is_urgent for one in waiters))
            if delay <= 0:
                break
            self._news.wait(delay)
        wanted, page_size = _pages_wanted(waiters)
        began_at = time.monotonic()
        try:
            pages = self._database.run(streams.read, self._queries, wanted, page_size)
        except Exception as error:
            for one in waiters:
                one.error = error
                one.wake.set()
            return
        finally:
            self._schedule.note(began_at)
        _answer(waiters, wanted, pages)
        for one in waiters:
            if one.is_answered:
                one.wake.set()


class _Future(_Request):
    """A task that waits."""

    def __init__(self, cursor: Cursor) -> None:
        super().__init__(cursor)
        self.done = asyncio.get_running_loop().create_future()


class AsyncFollower:
    """Async twin of `Follower`: a task reads as long as others wait."""

    def __init__(self, database: AsyncDatabase, queries: Queries, ends: Ends) -> None:
        self._database, self._queries, self._ends = database, queries, ends
        self._schedule = _Schedule()
        self._futures: dict[_Future, None] = {}
        self._news = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def next(self, cursor: Cursor) -> StreamPage:
        """Async twin of `Follower.next`."""
        mine = _Future(cursor)
        self._futures[mine] = None
        self._news.set()
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._work(), name="pgstate-follower")
        try:
            with self._ends.calling(mine.wanted.run_id, on_loop(partial(self._hurry, mine))):
                await mine.done
        finally:
            del self._futures[mine]
            self._news.set()
        if mine.error is not None:
            raise mine.error
        assert mine.page is not None
        return mine.page

    def _hurry(self, request: _Request) -> None:
        request.is_urgent = True
        self._news.set()

    async def _work(self) -> None:
        while futures := [one for one in self._futures if not one.done.done()]:
            self._news.clear()
            delay = self._schedule.delay(any(one.is_urgent for one in futures))
            if delay > 0:
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._news.wait(), delay)
                continue
            wanted, page_size = _pages_wanted(futures)
            began_at = time.monotonic()
            try:
                pages = await self._database.run(streams.read, self._queries, wanted, page_size)
                _answer(futures, wanted, pages)
            except Exception as error:
                for one in futures:
                    one.error = error
            finally:
                self._schedule.note(began_at)
            for one in futures:
                if one.is_answered and not one.done.done():
                    one.done.set_result(None)
