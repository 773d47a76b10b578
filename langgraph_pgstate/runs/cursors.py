"""Positions of readers in the events of a run, or of the runs of a thread. No I/O."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, Final, TypeVar
from uuid import UUID

from langgraph_pgstate.codec.values import ValueCodec
from langgraph_pgstate.errors import ConfigurationError, NotFoundError
from langgraph_pgstate.runs.outcomes import UNFINISHED
from langgraph_pgstate.runs.streams import Decoded, decode_batch
from langgraph_pgstate.runs.types import StreamEvent, StreamPage, ThreadEvent, ThreadPage, ThreadRun, Wanted, WantedRuns

T = TypeVar("T")

# Status of a run that was rolled back, or whose thread was deleted.
_DELETED: Final = "deleted"
# Suffixes of the ids of a run's last events, `end` and `error`.
_END: Final = ".end"
_ERROR: Final = ".error"
# PostgreSQL's largest bigint.
_MOST_EVENTS: Final = 2**63 - 1
_EPOCH: Final = datetime.fromtimestamp(0, UTC)


class Cursor:
    """A reader's position in the events of a run.

    Attributes:
        is_behind: Whether the database may have events that the reader lacks; true at first.
        has_ended: Whether the reader has read the event `end`.

    Args:
        codec: Decodes events.
        thread_id: Id of the thread.
        run_id: Id of the run.
        last_event_id: Id of the last event that the reader has; `None` to read from the first event.

    Raises:
        ConfigurationError: If `last_event_id` is malformed.
    """

    def __init__(self, codec: ValueCodec, thread_id: str, run_id: str, last_event_id: str | int | None) -> None:
        self.is_behind, self.has_ended = True, False
        # A type that this process may not build is read as plain data.
        self._codec = codec.lenient()
        self._run = (thread_id, run_id)
        self._where = f"events of run {run_id!r}"
        self._given = _number_of(last_event_id)
        self._known_end = next((part for part in (_END, _ERROR) if str(last_event_id).endswith(part)), "")
        self._after, self._attempt = self._given or 0, 0
        self._is_first = True

    @property
    def wanted(self) -> Wanted:
        """The events to read next. The first page includes the reader's last event, to check that the event exists."""
        return Wanted(*self._run, max(0, self._after - 1) if self._is_first else self._after)

    def take(self, page: StreamPage) -> Iterator[StreamEvent]:
        """Yield the events of a page, and move the cursor behind them.

        Raises:
            NotFoundError: If the run does not exist, and the reader has no event of the run.
            ConfigurationError: If the run has no event with the reader's `last_event_id`.
        """
        is_first, self._is_first = self._is_first, False
        if is_first:
            self._check(page)
        # Copy the list, because readers share pages. Keep no reference to a yielded event, because the reader may wait
        # long for the next event.
        batches = [*reversed(page.batches)]
        page = page._replace(batches=[])
        while batches:
            batch = batches.pop()
            if batch.last_seq <= self._after:
                self._attempt = batch.attempt
                continue
            yield from self._gap(batch.first_seq)
            self._attempt = batch.attempt
            decoded, created_at = deque(decode_batch(self._codec, batch, self._where)), batch.created_at
            del batch
            while decoded:
                if (number := decoded[0][0]) <= self._after:
                    decoded.popleft()
                    continue
                self._after = number
                yield _event_of(decoded.popleft(), self._attempt, created_at)
        self.is_behind = page.is_full
        if not page.is_full and page.status not in UNFINISHED:
            self.has_ended = True
            yield from self._gap((page.last_event or 0) + 1)
            # If `last_event_id` names the event `error` or `end`, and no later event is stored, do not yield the named
            # event again.
            known = self._known_end if is_first and self._after == self._given else ""
            if known == _END:
                return
            if page.status in ("error", "timeout") and known != _ERROR:
                error = {"error": page.error_type, "message": page.error_message}
                yield self._event("error", error, _ERROR, page.ended_at)
            yield self._event("end", {"status": page.status or _DELETED}, _END, page.ended_at)

    def _check(self, page: StreamPage) -> None:
        thread_id, run_id = self._run
        if page.status is None:
            if self._given is None:
                raise NotFoundError(f"thread {thread_id!r} has no run {run_id!r}")
        elif self._after > max([page.last_event or 0, *(batch.last_seq for batch in page.batches)]):
            raise ConfigurationError(f"run {run_id!r} of thread {thread_id!r} has no event {self._after} yet")

    def _gap(self, following: int) -> Iterator[StreamEvent]:
        """Yield an event `gap` if events between the cursor and the event `following` are no longer stored."""
        if following > self._after + 1:
            missing = {"first": str(self._after + 1), "last": str(following - 1)}
            self._after = following - 1
            yield self._event("gap", missing)

    def _event(
        self, event: str, data: dict[str, Any], suffix: str = "", stored_at: datetime | None = None
    ) -> StreamEvent:
        return StreamEvent(f"{self._after}{suffix}", event, (), data, self._attempt, stored_at=stored_at)

    def has_news(self, page: Any) -> bool:
        """Return whether a page has news for the reader, or more pages are stored."""
        return bool(page.batches) or page.status not in UNFINISHED or self.is_behind


class ThreadCursor:
    """A reader's position in the events of a thread's runs, one run after another; see `AsyncRuns.join_thread`.

    Attributes:
        has_ended: Always false, because a thread may get another run.

    Args:
        codec: Decodes events.
        thread_id: Id of the thread.
        last_event_id: Run and id of the last event that the reader has, like `RUN:12`.
        since: Without `last_event_id`, reading begins with the runs that ended after this time.

    Raises:
        ConfigurationError: If `last_event_id` is malformed.
    """

    has_ended: Final = False

    def __init__(
        self, codec: ValueCodec, thread_id: str, last_event_id: str | None = None, since: datetime | None = None
    ) -> None:
        self._codec, self._thread_id, self._ended_since = codec, thread_id, since
        self._given: str | None = None
        # For each run, the id of the last event that the reader has.
        self._last: dict[str, str] = {}
        if last_event_id:
            self._given, _, id = last_event_id.rpartition(":")
            if not self._given or _number_of(id) is None:
                raise ConfigurationError(f"last_event_id must have the form RUN:12, not {last_event_id!r}")
            self._last[self._given] = id
            # If the run was rolled back, continue with the runs that ended after its id was made.
            self._ended_since = _made_at(self._given)
        # Runs whose end must be reported. Ends of other runs are reported only if they are later than `_after`.
        self._expected: set[str] = set()
        self._after: datetime | None = None
        self._since: datetime | None = None
        self._run: ThreadRun | None = None
        self._cursor: Cursor | None = None

    @property
    def is_behind(self) -> bool:
        """Whether the database may have events that the reader lacks."""
        return self._after is None if self._cursor is None else self._cursor.is_behind

    @property
    def wanted(self) -> Wanted | WantedRuns:
        """The next events of a run to read, or the next runs of the thread."""
        if self._cursor is not None:
            return self._cursor.wanted
        return WantedRuns(self._thread_id, self._since, self._given, self._ended_since)

    def has_news(self, page: Any) -> bool:
        """Return whether a page has news for the reader."""
        if self._cursor is not None:
            return self._cursor.has_news(page)
        return self._after is None or self._next(page) is not None

    def take(self, page: StreamPage | ThreadPage) -> Iterator[ThreadEvent]:
        """Yield the events of a page, and move the cursor behind them."""
        if isinstance(page, ThreadPage):
            self._begin(page)
            return
        assert self._cursor is not None
        assert self._run is not None
        for held in map(held_once, self._cursor.take(page)):
            self._last[self._run.run_id] = held[0].id
            yield ThreadEvent(self._run.run_id, self._run.graph, held.pop())
        if self._cursor.has_ended:
            self._cursor = self._run = None

    def _begin(self, page: ThreadPage) -> None:
        """Choose the run that is followed next."""
        unfinished = [run for run in page.runs if run.status in UNFINISHED]
        if self._after is None:
            given = next((run for run in page.runs if run.run_id == self._given), None)
            self._after = min((self._ended_since if given is None else given.ended_at) or page.now, page.now)
            if given is not None:
                self._expected.add(given.run_id)
            elif page.runs and not unfinished:
                # The caller may have just started the newest run, so report its end.
                self._expected.add(page.runs[-1].run_id)
        self._expected.update(run.run_id for run in unfinished)
        # The next page begins with the earliest run whose end was not reported yet.
        waiting = [run for run in page.runs if run.status in UNFINISHED or self._is_new(run)]
        self._since = min([page.now, *(run.started_at for run in waiting)])
        self._run = self._next(page)
        if self._run is not None:
            run_id = self._run.run_id
            self._cursor = Cursor(self._codec, self._thread_id, run_id, self._last.get(run_id))

    def _next(self, page: ThreadPage) -> ThreadRun | None:
        return next((run for run in page.runs if run.status == "running" or self._is_new(run)), None)

    def _is_new(self, run: ThreadRun) -> bool:
        """Return whether a run has ended, and the reader does not know of this end."""
        assert self._after is not None
        if run.ended_at is None or run.status in UNFINISHED:
            return False
        is_wanted = run.run_id in self._expected or run.ended_at > self._after
        if not is_wanted:
            return False
        last = self._last.get(run.run_id, "")
        # A run may be retried after its end was reported, and end again.
        return not last.endswith(_END) or (run.last_event or 0) > (_number_of(last) or 0)


def _made_at(run_id: str) -> datetime | None:
    """Return the time in a run's id; `None` if the id is not a UUID of version 7, as `enqueue` makes by default."""
    try:
        id = UUID(run_id)
        return _EPOCH + timedelta(milliseconds=id.int >> 80) if id.version == 7 else None
    except (ValueError, OverflowError):
        return None


def is_missing(page: StreamPage | ThreadPage) -> bool:
    """Return whether a page says that a run does not exist."""
    return isinstance(page, StreamPage) and page.status is None


def held_once(event: T) -> list[T]:
    """Return an event in a list. A generator that yields `list.pop()` keeps no reference to the event."""
    return [event]


def _event_of(decoded: Decoded, attempt: int, stored_at: datetime | None) -> StreamEvent:
    number, mode, namespace, data, is_replayed = decoded
    return StreamEvent(str(number), mode, namespace, data, attempt, is_replayed, stored_at)


def _number_of(last_event_id: str | int | None) -> int | None:
    """Return the number in the id of an event; 0 for `-1`, by which LangGraph's clients ask for all events."""
    if last_event_id is None or last_event_id == "":
        return None
    try:
        number = int(str(last_event_id).partition(".")[0])
        # Refuse a larger number here, because the database would refuse the whole statement, which serves all readers.
        if number > _MOST_EVENTS:
            raise ValueError
        return max(0, number)
    except ValueError:
        raise ConfigurationError(f"last_event_id must be the id of an event, not {last_event_id!r}") from None


AnyCursor = Cursor | ThreadCursor
