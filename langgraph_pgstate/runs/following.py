"""Reads of events for all waiting readers of a state.

Each reader asks for the events after its last event, and waits. Events are not buffered, so a slow reader takes no
memory. The database is polled only while readers wait.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Sequence
from contextvars import Context
from functools import partial
from typing import Any, Final

from langgraph_pgstate.db.database import AsyncDatabase, Database
from langgraph_pgstate.db.finishing import pause
from langgraph_pgstate.db.protocol import Connection
from langgraph_pgstate.runs import streams
from langgraph_pgstate.runs.cursors import AnyCursor
from langgraph_pgstate.runs.notifying import EndListener, on_loop
from langgraph_pgstate.runs.types import StreamPage, ThreadPage, Wanted, WantedRuns
from langgraph_pgstate.schema.queries import Queries

# Seconds between two reads.
_PAUSE: Final = 0.05
# Seconds between two reads if more events of a reader may be stored already.
_SHORT_PAUSE: Final = 0.01
# Maximum number of batches that one statement returns. With more readers, each gets one batch.
_BATCHES: Final = 256


_Page = StreamPage | ThreadPage


class _Request:
    """A reader that waits for events, or for the end of its run."""

    def __init__(self, cursor: AnyCursor) -> None:
        self.cursor, self.wanted, self.is_urgent = cursor, cursor.wanted, cursor.is_behind
        self.page: StreamPage | ThreadPage | None = None
        self.error: BaseException | None = None

    @property
    def is_answered(self) -> bool:
        """Whether the read has ended, with a page or an error."""
        return self.page is not None or self.error is not None


class _ReadTimes:
    """Times of reads. A pause takes 50 ms, or as long as the last read, but at most a second."""

    def __init__(self) -> None:
        self._ended_at, self._took = float("-inf"), 0.0

    def delay(self, is_urgent: bool) -> float:
        """Return the seconds until the next read."""
        pause = max(_SHORT_PAUSE if is_urgent else _PAUSE, self._took)
        return self._ended_at + pause - time.monotonic()

    def note(self, began_at: float) -> None:
        """Remember that a read has ended."""
        self._ended_at = time.monotonic()
        self._took = min(1.0, self._ended_at - began_at)


def _wanted(requests: Sequence[_Request]) -> list[Wanted | WantedRuns]:
    """Return the distinct positions to read. Most readers of a run are at the same position."""
    return [*dict.fromkeys(request.wanted for request in requests)]


async def _read(db: Connection, queries: Queries, wanted: Sequence[Wanted | WantedRuns]) -> list[_Page]:
    """Return a page for each position. One round trip for runs, one for threads."""
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
    """Give each reader the page of its position, if the page has news for the reader."""
    found = dict(zip(wanted, pages, strict=True))
    for request in requests:
        page = found[request.wanted]
        if request.cursor.has_news(page):
            request.page = page


class _Waiter(_Request):
    """A waiting OS thread."""

    def __init__(self, cursor: AnyCursor) -> None:
        super().__init__(cursor)
        self.wake = threading.Event()


class Follower:
    """The readers of a `PGState`. One of the waiting readers reads for all readers."""

    def __init__(self, database: Database, queries: Queries, end_listener: EndListener) -> None:
        self._database, self._queries, self._end_listener = database, queries, end_listener
        self._times = _ReadTimes()
        self._waiters: list[_Waiter] = []
        self._lock, self._reading, self._news = threading.Lock(), threading.Lock(), threading.Event()

    def next(self, cursor: AnyCursor) -> Any:
        """Wait for new events of a run or a thread.

        Raises:
            PGStateError: If the database is not available.
        """
        mine = _Waiter(cursor)
        with self._lock:
            self._waiters.append(mine)
        self._news.set()
        try:
            with self._end_listener.calling(mine.wanted.run_id, partial(self._read_sooner, mine)):
                while not mine.is_answered:
                    if self._reading.acquire(blocking=False):
                        try:
                            if not mine.is_answered:
                                self._read_for_all()
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

    def _read_sooner(self, request: _Request) -> None:
        """Make the next read sooner, because the run of a reader has ended."""
        request.is_urgent = True
        self._news.set()

    def _read_for_all(self) -> None:
        while True:
            self._news.clear()
            with self._lock:
                waiters = [one for one in self._waiters if not one.is_answered]
            delay = self._times.delay(any(one.is_urgent for one in waiters))
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
            self._times.note(began_at)
        _answer(waiters, wanted, pages)
        for one in waiters:
            if one.is_answered:
                one.wake.set()


class _Future(_Request):
    """A waiting task."""

    def __init__(self, cursor: AnyCursor) -> None:
        super().__init__(cursor)
        self.done = asyncio.get_running_loop().create_future()


class AsyncFollower:
    """Async twin of `Follower`. While readers wait, a separate task reads for all readers."""

    def __init__(self, database: AsyncDatabase, queries: Queries, end_listener: EndListener) -> None:
        self._database, self._queries, self._end_listener = database, queries, end_listener
        self._times = _ReadTimes()
        self._futures: dict[_Future, None] = {}
        self._news = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def next(self, cursor: AnyCursor) -> Any:
        """Async twin of `Follower.next`."""
        mine = _Future(cursor)
        self._futures[mine] = None
        self._news.set()
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(
                self._work(), name="pgstate-follower", context=Context()
            )
        try:
            with self._end_listener.calling(mine.wanted.run_id, on_loop(partial(self._read_sooner, mine))):
                await mine.done
        finally:
            del self._futures[mine]
            self._news.set()
        if mine.error is not None:
            raise mine.error
        assert mine.page is not None
        return mine.page

    def _read_sooner(self, request: _Request) -> None:
        request.is_urgent = True
        self._news.set()

    async def _work(self) -> None:
        while futures := [one for one in self._futures if not one.done.done()]:
            self._news.clear()
            delay = self._times.delay(any(one.is_urgent for one in futures))
            if delay > 0:
                await pause(self._news, delay)
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
                self._times.note(began_at)
            for one in futures:
                if one.is_answered and not one.done.done():
                    one.done.set_result(None)
