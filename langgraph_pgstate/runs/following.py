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
from datetime import datetime
from functools import partial
from typing import Any, Final

from langgraph_pgstate.codec.values import ValueCodec
from langgraph_pgstate.db.database import AsyncDatabase, Database
from langgraph_pgstate.db.protocol import Connection
from langgraph_pgstate.errors import ConfigurationError, NotFoundError
from langgraph_pgstate.operations.runs import streams
from langgraph_pgstate.operations.runs.outcomes import UNFINISHED
from langgraph_pgstate.runs.notifying import Ends, on_loop
from langgraph_pgstate.sql import Queries
from langgraph_pgstate.types import StreamEvent, StreamPage, ThreadEvent, ThreadPage, ThreadRun, Wanted, WantedRuns

# Seconds between two looks, if no reader is behind, and if one is.
_PAUSE: Final = 0.05
_SHORT_PAUSE: Final = 0.01
# Batches that one statement returns, unless more readers wait.
_BATCHES: Final = 256
# Of a run that was rolled back, or whose thread was deleted.
_DELETED: Final = "deleted"
# Of the id of a run's last event.
_END: Final = ".end"


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
                    stored_at = batch.created_at
                    yield StreamEvent(str(number), mode, namespace, data, batch.attempt, is_replayed, stored_at)
        self.is_behind = page.is_full
        if not page.is_full and page.status not in UNFINISHED:
            self.has_ended = True
            yield from self._gap((page.last_event or 0) + 1)
            if page.status in ("error", "timeout"):
                error = {"error": page.error_type, "message": page.error_message}
                yield self._event("error", error, ".error", page.ended_at)
            yield self._event("end", {"status": page.status or _DELETED}, _END, page.ended_at)

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

    def _event(
        self, event: str, data: dict[str, Any], suffix: str = "", stored_at: datetime | None = None
    ) -> StreamEvent:
        return StreamEvent(f"{self._after}{suffix}", event, (), data, self._attempt, stored_at=stored_at)

    def has_news(self, page: Any) -> bool:
        """Return whether a page has something for the reader, or it does not know yet whether it has."""
        return bool(page.batches) or page.status not in UNFINISHED or self.is_behind


class ThreadCursor:
    """A reader's place in the events of a thread's runs, one run after another. No I/O.

    Attributes:
        has_ended: False: a thread may always get another run.

    Args:
        codec: Decodes events.
        thread_id: The thread.
        last_event_id: Id of a run and of the last of its events that the reader has, like `RUN:12`; without it, the
            reader gets the events of the runs that have not ended, or else of the one that ended last.
        since: Without `last_event_id`: the reader gets those of all runs that ended after this time, too.

    Raises:
        ConfigurationError: If the id is none.
    """

    has_ended: Final = False

    def __init__(
        self, codec: ValueCodec, thread_id: str, last_event_id: str | None = None, since: datetime | None = None
    ) -> None:
        self._codec, self._thread_id, self._ended_since = codec, thread_id, since
        self._given: str | None = None
        # The last event of each run that the reader has events of.
        self._last: dict[str, str] = {}
        if last_event_id:
            self._given, _, id = last_event_id.rpartition(":")
            if not self._given or _number_of(id) is None:
                raise ConfigurationError(f"last_event_id is like RUN:12, not {last_event_id!r}")
            self._last[self._given] = id
        # Runs that are told when they have ended, besides those that end after a time.
        self._expected: set[str] = set()
        self._after: datetime | None = None
        self._since: datetime | None = None
        self._run: ThreadRun | None = None
        self._cursor: Cursor | None = None

    @property
    def is_behind(self) -> bool:
        """Whether more events may be stored already."""
        return self._after is None if self._cursor is None else self._cursor.is_behind

    @property
    def wanted(self) -> Wanted | WantedRuns:
        """The events of a run, or the runs, that it needs next."""
        if self._cursor is not None:
            return self._cursor.wanted
        return WantedRuns(self._thread_id, self._since, self._given, self._ended_since)

    def has_news(self, page: Any) -> bool:
        """Return whether a page has something for the reader."""
        if self._cursor is not None:
            return self._cursor.has_news(page)
        return self._after is None or self._next(page) is not None

    def take(self, page: StreamPage | ThreadPage) -> Iterator[ThreadEvent]:
        """Yield the events of a page, and move behind them."""
        if isinstance(page, ThreadPage):
            self._begin(page)
            return
        assert self._cursor is not None
        assert self._run is not None
        for event in self._cursor.take(page):
            self._last[self._run.run_id] = event.id
            yield ThreadEvent(self._run.run_id, self._run.graph, event)
        if self._cursor.has_ended:
            self._cursor = self._run = None

    def _begin(self, page: ThreadPage) -> None:
        """Choose the run that is followed next."""
        unfinished = [run for run in page.runs if run.status in UNFINISHED]
        if self._after is None:
            given = next((run for run in page.runs if run.run_id == self._given), None)
            self._after = (self._ended_since if given is None else given.ended_at) or page.now
            if given is not None:
                self._expected.add(given.run_id)
            elif page.runs and not unfinished:
                # The caller may have started it just now.
                self._expected.add(page.runs[-1].run_id)
        self._expected.update(run.run_id for run in unfinished)
        # Those that ended long ago are read again until they have been told.
        waiting = [run for run in page.runs if run.status in UNFINISHED or self._is_new(run)]
        self._since = min([page.now, *(run.started_at for run in waiting)])
        self._run = self._next(page)
        if self._run is not None:
            run_id = self._run.run_id
            self._cursor = Cursor(self._codec, self._thread_id, run_id, self._last.get(run_id))

    def _next(self, page: ThreadPage) -> ThreadRun | None:
        return next((run for run in page.runs if run.status == "running" or self._is_new(run)), None)

    def _is_new(self, run: ThreadRun) -> bool:
        """Return whether a run has ended, and its end was not told."""
        assert self._after is not None
        if run.ended_at is None or run.status in UNFINISHED:
            return False
        is_wanted = run.run_id in self._expected or run.ended_at > self._after
        return is_wanted and not self._last.get(run.run_id, "").endswith(_END)


def _number_of(last_event_id: str | int | None) -> int | None:
    """Return the number of the event with an id; 0 for `-1`, which servers take for the time before the first."""
    if last_event_id is None or last_event_id == "":
        return None
    try:
        return max(0, int(str(last_event_id).partition(".")[0]))
    except ValueError:
        raise ConfigurationError(f"last_event_id is the id of an event, not {last_event_id!r}") from None


AnyCursor = Cursor | ThreadCursor
_Page = StreamPage | ThreadPage


class _Request:
    """A reader that waits for events, or for the end of its run."""

    def __init__(self, cursor: AnyCursor) -> None:
        self.cursor, self.wanted, self.is_urgent = cursor, cursor.wanted, cursor.is_behind
        self.page: StreamPage | ThreadPage | None = None
        self.error: BaseException | None = None

    @property
    def is_answered(self) -> bool:
        """Whether it has its page, or an error."""
        return self.page is not None or self.error is not None


class _Schedule:
    """Times of reads: 50 ms apart, or as long as the last one took, a second at most.

    Longer pauses would feed themselves: what has gathered meanwhile keeps an event loop from the next answer.
    """

    def __init__(self) -> None:
        self._ended_at, self._took = float("-inf"), 0.0

    def delay(self, is_urgent: bool) -> float:
        """Return the seconds until the next look."""
        pause = max(_SHORT_PAUSE if is_urgent else _PAUSE, self._took)
        return self._ended_at + pause - time.monotonic()

    def note(self, began_at: float) -> None:
        """Note that a look has ended."""
        self._ended_at = time.monotonic()
        self._took = min(1.0, self._ended_at - began_at)


def _wanted(requests: Sequence[_Request]) -> list[Wanted | WantedRuns]:
    """Return what is to be read, each once: readers of one run are mostly at the same place."""
    return [*dict.fromkeys(request.wanted for request in requests)]


async def _read(db: Connection, queries: Queries, wanted: Sequence[Wanted | WantedRuns]) -> list[_Page]:
    """Return a page for each. One round trip for runs, one for threads."""
    runs = [one for one in wanted if isinstance(one, Wanted)]
    threads = [one for one in wanted if isinstance(one, WantedRuns)]
    found: dict[Wanted | WantedRuns, _Page] = {}
    if runs:
        page_size = max(1, _BATCHES // len(runs))
        found.update(zip(runs, await streams.read(db, queries, runs, page_size), strict=True))
    if threads:
        found.update(zip(threads, await streams.read_threads(db, queries, threads), strict=True))
    return [found[one] for one in wanted]


def _answer(requests: Sequence[_Request], wanted: Sequence[Wanted | WantedRuns], pages: Sequence[_Page]) -> None:
    """Give pages to those for whom they have news."""
    found = dict(zip(wanted, pages, strict=True))
    for request in requests:
        page = found[request.wanted]
        if request.cursor.has_news(page):
            request.page = page


class _Waiter(_Request):
    """A thread that waits."""

    def __init__(self, cursor: AnyCursor) -> None:
        super().__init__(cursor)
        self.wake = threading.Event()


class Follower:
    """The readers of a blocking state. One of those that wait reads for all."""

    def __init__(self, database: Database, queries: Queries, ends: Ends) -> None:
        self._database, self._queries, self._ends = database, queries, ends
        self._schedule = _Schedule()
        self._waiters: list[_Waiter] = []
        self._lock, self._reading, self._news = threading.Lock(), threading.Lock(), threading.Event()

    def next(self, cursor: AnyCursor) -> Any:
        """Wait for news about a run or a thread.

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
        wanted = _wanted(waiters)
        began_at = time.monotonic()
        try:
            pages = self._database.run(_read, self._queries, wanted)
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

    def __init__(self, cursor: AnyCursor) -> None:
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

    async def next(self, cursor: AnyCursor) -> Any:
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
            wanted = _wanted(futures)
            began_at = time.monotonic()
            try:
                pages = await self._database.run(_read, self._queries, wanted)
                _answer(futures, wanted, pages)
            except Exception as error:
                for one in futures:
                    one.error = error
            finally:
                self._schedule.note(began_at)
            for one in futures:
                if one.is_answered and not one.done.done():
                    one.done.set_result(None)
