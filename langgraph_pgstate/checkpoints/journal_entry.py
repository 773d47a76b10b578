"""Journal entries: recorded rows, packed to be stored with a checkpoint and moved to their tables later."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any, Final

import orjson
import ormsgpack

from langgraph_pgstate.codec import frames
from langgraph_pgstate.errors import CorruptStateError, UnreadableFormatError

ADDED: Final = "added"
ADDED_IN_SUBGRAPH: Final = "added_in_subgraph"
COMPARED: Final = "compared"
WRITTEN: Final = "written"

_FORMAT: Final = 1


@dataclass(slots=True)
class JournalEntry:
    """Recorded rows, each as JSON, in their order of arrival.

    Attributes:
        runs: Rows of `runs`.
        spans: Rows of `spans`.
        events: Rows of `events`.
        forks: Checkpoints whose parent may have an earlier child. If so, the database stores an event `fork`.
        messages: Changes of channels' messages, each with its kind. `ADDED`: messages appended to a list of the root
            graph. `ADDED_IN_SUBGRAPH`: messages appended to a list of a subgraph. `COMPARED`: a list to compare with
            the stored messages. `WRITTEN`: a DeltaChannel to which the superstep wrote.
        begun: Thread and id of runs that begin. Earlier attempts of these runs may have left spans running.
        ended: Thread, run and start of runs that have ended.
        thread_ids: Threads of the rows, sorted, unless the entry belongs to one thread.
        ttl: Seconds for which a running run counts as alive.
    """

    runs: list[bytes] = field(default_factory=list)
    spans: list[bytes] = field(default_factory=list)
    events: list[bytes] = field(default_factory=list)
    forks: list[bytes] = field(default_factory=list)
    messages: list[tuple[str, bytes]] = field(default_factory=list)
    begun: list[tuple[str, str]] = field(default_factory=list)
    ended: list[tuple[str, str, float]] = field(default_factory=list)
    thread_ids: list[str] = field(default_factory=list)
    ttl: float = 0.0

    def __bool__(self) -> bool:
        return bool(self.runs or self.spans or self.events or self.forks or self.messages)

    def __len__(self) -> int:
        return len(self.runs) + len(self.spans) + len(self.events) + len(self.forks) + len(self.messages)

    @property
    def size(self) -> int:
        """Bytes of the rows."""
        rows = (*self.runs, *self.spans, *self.events, *self.forks)
        return sum(map(len, rows)) + sum(len(change) for _, change in self.messages)

    def extend(self, other: JournalEntry) -> None:
        """Append another entry's rows."""
        self.runs += other.runs
        self.spans += other.spans
        self.events += other.events
        self.forks += other.forks
        self.messages += other.messages
        self.begun += other.begun
        self.ended += other.ended
        self.ttl = max(self.ttl, other.ttl)
        self.thread_ids = sorted({*self.thread_ids, *other.thread_ids})

    def pack(self) -> bytes:
        """Return the entry in its stored form."""
        rows = (self.runs, self.spans, self.events, self.forks, self.messages)
        return frames.pack_short_lived(ormsgpack.packb((_FORMAT, *rows, self.begun, self.ended, self.ttl)))

    @classmethod
    def unpack(cls, thread_id: str, data: bytes) -> JournalEntry:
        """Return an entry from its stored form.

        Raises:
            CorruptStateError: If the entry is damaged.
            UnreadableFormatError: If a newer version of this package wrote the entry.
        """
        where = f"a journal entry of thread {thread_id!r}"
        try:
            format, *rest = ormsgpack.unpackb(frames.unpack(data, where))
            if format != _FORMAT:
                raise UnreadableFormatError(where, f"format {format} requires a newer version of langgraph_pgstate")
            *rows, messages, begun, ended, ttl = rest
            runs, spans, events, forks = ([*map(_row, each)] for each in rows)
            messages = [(str(kind), _row(change)) for kind, change in messages]
            begun = [(str(thread), str(run)) for thread, run in begun]
            ended = [(str(thread), str(run), float(start)) for thread, run, start in ended]
            return cls(runs, spans, events, forks, messages, begun, ended, [thread_id], float(ttl))
        except (TypeError, ValueError, RecursionError) as error:
            raise CorruptStateError(where, f"it does not decode ({error})") from error

    def of_threads(self, thread_ids: Collection[str]) -> JournalEntry:
        """Return the rows of some threads."""

        def is_kept(row: bytes) -> bool:
            try:
                return orjson.loads(row).get("thread_id") in thread_ids
            except (AttributeError, TypeError, ValueError):
                # Keep the malformed row, because the database will refuse it when the entry is written.
                return True

        rows = (self.runs, self.spans, self.events, self.forks)
        runs, spans, events, forks = ([row for row in each if is_kept(row)] for each in rows)
        return JournalEntry(
            runs,
            spans,
            events,
            forks,
            [(kind, change) for kind, change in self.messages if is_kept(change)],
            [each for each in self.begun if each[0] in thread_ids],
            [each for each in self.ended if each[0] in thread_ids],
            [thread_id for thread_id in self.thread_ids if thread_id in thread_ids],
            self.ttl,
        )

    def halves(self) -> tuple[JournalEntry, JournalEntry]:
        """Return the rows in two parts, to find the row that the database refuses."""
        # The end of a run is computed from the run's spans, so `ended` belongs to the second part, which is written
        # last. New runs may be in either part, so each part has `begun`.
        first = JournalEntry(begun=self.begun, thread_ids=self.thread_ids, ttl=self.ttl)
        second = JournalEntry(begun=self.begun, ended=self.ended, thread_ids=self.thread_ids, ttl=self.ttl)
        left = len(self) // 2
        names = ("runs", "spans", "events", "forks", "messages")
        for name in names:
            rows = getattr(self, name)
            setattr(first, name, rows[:left])
            setattr(second, name, rows[left:])
            left = max(0, left - len(rows))
        return first, second


def _row(value: Any) -> bytes:
    if type(value) is not bytes:
        raise TypeError(f"a row must be bytes, not {type(value).__name__}")
    return value
