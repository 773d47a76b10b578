"""The records of a recorder that are not written yet, and the threads whose journals are not moved yet. No I/O.

Callbacks add records. `take` and `collect` make rows of the records later. A record stays until it is acknowledged.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import orjson

from langgraph_pgstate.checkpoints.journal_entry import JournalEntry
from langgraph_pgstate.record.options import RecorderSettings
from langgraph_pgstate.record.recorder.records import EventRecord, RunRecord, SpanRecord

_BATCH_RECORDS = 500
_BATCH_BYTES = 4_000_000
_DUMP_SECONDS = 0.02
# Seconds after which the writer writes records that a put took and has not committed.
_TAKEN_SECONDS = 1.0


@dataclass(slots=True)
class Pending:
    """Records that are being written, with the versions of their rows. `is_complete`: whether no record is left out."""

    journal_entry: JournalEntry
    runs: list[tuple[RunRecord, int]] = field(default_factory=list)
    spans: list[tuple[SpanRecord, int]] = field(default_factory=list)
    events: list[EventRecord] = field(default_factory=list)
    is_complete: bool = True


class WriteQueue:
    """Changed runs and spans, and new events, until they are written.

    Args:
        has_writer: Whether a background writer writes records that have waited for a while.

    Attributes:
        waiting: Number of spans and events in the queue.
        clock_offset: Seconds that the database's clock is ahead of this process's clock.
    """

    def __init__(self, settings: RecorderSettings, *, has_writer: bool = True) -> None:
        self.settings = settings
        self.waiting = 0
        self.clock_offset = 0.0
        self._has_writer = has_writer
        self._lock = threading.Lock()
        self._runs: dict[UUID, RunRecord] = {}
        # Number of journal entries of each thread since its journal was empty.
        self._journaled: dict[str, int] = {}
        self._renewed_at = time.monotonic()

    def add(self, run: RunRecord) -> None:
        """Add a new run."""
        with self._lock:
            self._runs[run.root_id] = run

    def run_changed(self, run: RunRecord, **values: Any) -> None:
        """Set attributes of a run, and mark it as changed."""
        with self._lock:
            for name, value in values.items():
                setattr(run, name, value)
            run.version += 1
            run.is_changed = True

    def span_changed(self, span: SpanRecord) -> None:
        """Mark a span as changed."""
        dirty = span.run.dirty
        with self._lock:
            span.version += 1
            if span.id not in dirty:
                dirty[span.id] = span
                span.waits_since = time.monotonic()
                self.waiting += 1

    def event_happened(self, event: EventRecord) -> None:
        """Add an event."""
        with self._lock:
            event.run.events[event.event_id] = event
            self.waiting += 1

    def discard(self, run: RunRecord) -> None:
        """Remove a run's records, without writing them."""
        with self._lock:
            self.waiting -= len(run.dirty) + len(run.events)
            run.dirty.clear()
            run.events.clear()
            run.is_changed = False

    def note_journaled(self, thread_id: str) -> None:
        """Remember that an entry was added to the journal of a thread."""
        with self._lock:
            self._journaled[thread_id] = self._journaled.get(thread_id, 0) + 1

    def journaled_threads(self) -> dict[str, int]:
        """Return the threads with journal entries, each with a number that changes when entries are added."""
        with self._lock:
            return dict(self._journaled)

    def note_moved(self, threads: dict[str, int]) -> None:
        """Remember that the journal entries of these threads were moved to the tables."""
        with self._lock:
            for thread_id, number in threads.items():
                if self._journaled.get(thread_id) == number:
                    del self._journaled[thread_id]

    def take(
        self,
        run: RunRecord,
        *,
        with_run: bool = False,
        put: tuple[str, int | None] | None = None,
        journal_entry: JournalEntry | None = None,
    ) -> Pending | None:
        """Return a run's rows for a journal entry. The caller must `acknowledge` the rows after the commit.

        Args:
            with_run: Whether to return the run's own row if it has changed. By default, only a new row is returned.
            put: Namespace and step of the checkpoint that is put. Rows that a later put can take are left out.
        """
        put = put if self._has_writer else None
        pending = self._rows(
            [run], include_recent=True, with_runs=with_run or run.is_new, put=put, journal_entry=journal_entry
        )
        now = time.monotonic()
        for span, _ in pending.spans:
            span.taken_at = now
        return pending if pending.runs or pending.spans or pending.events else None

    def collect(self, include_recent: bool = True) -> Pending | None:
        """Return the next rows to write, a few hundred at most, or `None` if there are none.

        With `include_recent`, also return records that the next put could take, and records of a put in progress.
        """
        pending = self._rows(self._writable_runs(), include_recent=include_recent)
        return pending if pending.journal_entry else None

    def acknowledge(self, pending: Pending) -> None:
        """Remove committed records from the queue. A record stays if it has changed since `pending` was made."""
        with self._lock:
            for run, version in pending.runs:
                run.is_new = False
                run.is_unsettled = False
                run.written_at = time.monotonic()
                if run.version == version:
                    run.is_changed = False
            for span, version in pending.spans:
                if span.version == version and span.run.dirty.pop(span.id, None) is not None:
                    self.waiting -= 1
            for event in pending.events:
                if event.run.events.pop(event.event_id, None) is not None:
                    self.waiting -= 1
            written = [run for run, _ in pending.runs]
            written += [span.run for span, _ in pending.spans]
            written += [event.run for event in pending.events]
            for run in {id(run): run for run in written}.values():
                self._forget_if_done(run)

    @property
    def is_busy(self) -> bool:
        """Whether a run is in progress or the journal has entries."""
        return bool(self._runs or self._journaled)

    @property
    def has_news(self) -> bool:
        """Whether some records are not in the tables yet."""
        return bool(self._journaled) or any(run.is_changed or run.dirty or run.events for run in self._writable_runs())

    def own_runs(self) -> list[tuple[str, str]]:
        """Return thread and run id of the runs in progress."""
        return [run.key for run in list(self._runs.values()) if run.ended_at is None]

    def due_renewals(self) -> list[tuple[str, str]]:
        """Return the runs whose `alive_until` must be renewed now."""
        now = time.monotonic()
        if now - self._renewed_at < self.settings.ttl / 3:
            return []
        self._renewed_at = now
        return self.own_runs()

    def _writable_runs(self) -> list[RunRecord]:
        """Return the runs that have begun or ended. Only these may be written."""
        return [run for run in list(self._runs.values()) if run.is_begun or run.ended_at is not None]

    def _forget_if_done(self, run: RunRecord) -> None:
        if run.ended_at is not None and not (run.is_changed or run.dirty or run.events):
            self._runs.pop(run.root_id, None)

    def _rows(
        self,
        among: Sequence[RunRecord],
        *,
        include_recent: bool,
        with_runs: bool = True,
        put: tuple[str, int | None] | None = None,
        journal_entry: JournalEntry | None = None,
    ) -> Pending:
        """Return rows of these runs. For the arguments, see `take` and `collect`."""
        runs: list[tuple[RunRecord, int]] = []
        spans: list[tuple[SpanRecord, int]] = []
        events: list[EventRecord] = []
        unfinished: set[int] = set()
        now = time.monotonic()
        # The writer runs once per interval, and takes spans that have waited for half an interval. If a whole interval
        # were needed, some spans would wait for almost two intervals.
        arrived, begun, taken = now - self.settings.interval, now - self.settings.interval / 2, now - _TAKEN_SECONDS
        is_complete = True
        with self._lock:
            for run in among:
                space = _BATCH_RECORDS - len(spans) - len(events)
                if space <= 0:
                    is_complete = False
                    break
                found = [
                    (span, span.version)
                    for span in run.dirty.values()
                    if (
                        put is None or span.waits_since < begun or not _is_early(span, *put)
                        if include_recent
                        else span.waits_since < begun and span.taken_at < taken
                    )
                ]
                # Write a new run with its first span, because a span can be stored only after its run.
                is_due = include_recent or run.written_at < arrived or (run.is_new and bool(found))
                happened = list(run.events.values()) if is_due else []
                spans += found[:space]
                events += happened[: max(0, space - len(found))]
                if with_runs and run.is_changed and is_due:
                    runs.append((run, run.version))
                if len(found) > space:
                    unfinished.add(id(run))
                is_complete = is_complete and len(found) + len(happened) <= space
        return self._pack(runs, spans, events, unfinished, journal_entry, is_complete=is_complete)

    def _pack(
        self,
        runs: list[tuple[RunRecord, int]],
        spans: list[tuple[SpanRecord, int]],
        events: list[EventRecord],
        unfinished: set[int],
        journal_entry: JournalEntry | None,
        *,
        is_complete: bool,
    ) -> Pending:
        """Return rows of these records, as many as fit.

        A run's totals are computed from its spans. So if some spans of a run do not fit, the run is written again with
        its last spans. `unfinished` has the `id()` of such runs.
        """
        settings = self.settings
        wanted, given = spans, (len(runs), len(spans), len(events))
        run_rows, runs = _dumps(runs, lambda pair: orjson.dumps(pair[0].row(settings)))
        # Leave out spans and events of a new run whose row is left out. They would refer to a missing row.
        written = {id(run) for run, _ in runs}

        def lacks_row(run: RunRecord) -> bool:
            return run.is_new and run.is_changed and id(run) not in written

        spans = [pair for pair in spans if not lacks_row(pair[0].run)]
        events = [event for event in events if not lacks_row(event.run)]
        span_rows, spans = _dumps(spans, lambda pair: pair[0].dump(settings))
        event_rows, events = _dumps(events, lambda event: orjson.dumps(event.row(settings)))
        is_complete = is_complete and (len(runs), len(spans), len(events)) == given
        if not is_complete:
            sent = {id(span) for span, _ in spans}
            unfinished |= {id(span.run) for span, _ in wanted if id(span) not in sent}
            runs = [(run, -1 if id(run) in unfinished else version) for run, version in runs]
        if journal_entry is None:
            threads = {run.key[0] for run, _ in runs}
            threads.update([span.run.key[0] for span, _ in spans])
            threads.update([event.run.key[0] for event in events])
            journal_entry = JournalEntry(thread_ids=sorted(threads), ttl=settings.ttl)
        journal_entry.ttl = max(journal_entry.ttl, settings.ttl)
        journal_entry.spans += span_rows
        if runs:
            journal_entry.runs += run_rows
            journal_entry.begun += [run.key for run, _ in runs if run.is_unsettled]
            # Also of unfinished runs, because the process may die before it writes their last spans.
            journal_entry.ended += [(*run.key, run.started_at) for run, _ in runs if run.ended_at is not None]
        journal_entry.events += event_rows
        return Pending(journal_entry, runs, spans, events, is_complete)


def _dumps(records: list[Any], dump: Callable[[Any], bytes]) -> tuple[list[bytes], list[Any]]:
    """Return rows as JSON, and their records. Stop when a statement is full, or after a short time."""
    rows: list[bytes] = []
    if not records:
        return rows, records
    size = 0
    until = time.monotonic() + _DUMP_SECONDS
    for record in records:
        rows.append(dump(record))
        size += len(rows[-1])
        # Stop after some time, because an event loop may be waiting. Long texts take long to convert.
        if size > _BATCH_BYTES or time.monotonic() > until:
            break
    return rows, records[: len(rows)]


def _is_early(span: SpanRecord, namespace: str, step: int | None) -> bool:
    """Return whether a recently changed span should wait for a later put, so that it is written once instead of twice.

    A span without children waits for its end. A span of a later superstep waits for its starting checkpoint.
    """
    if span.is_leaf and span.ended_at is None:
        return True
    later = span.step
    return later is not None and step is not None and later > step + 1 and span.graph_ns == namespace
