"""Comparison of recorded conversations with checkpoint states, and backfill of missing messages.

A conversation results from the rows of `messages` along a branch. Rows and states are read for a page of checkpoints at
a time, parents first. A message that several checkpoints have is decoded once.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import orjson

from langgraph_pgstate.arguments import Address
from langgraph_pgstate.checkpoints.delta_channels import rules_of
from langgraph_pgstate.checkpoints.journal_entry import WRITTEN, JournalEntry
from langgraph_pgstate.checkpoints.reading import Segments, load_value
from langgraph_pgstate.codec.states import Elements, Entry, Slice, State, decode_state
from langgraph_pgstate.codec.values import ValueCodec
from langgraph_pgstate.db.protocol import Connection
from langgraph_pgstate.errors import CorruptStateError, EncryptionError, UnreadableFormatError
from langgraph_pgstate.langgraph_compat import DeltaSnapshot
from langgraph_pgstate.record import journal
from langgraph_pgstate.record.delta_messages import resolve_written
from langgraph_pgstate.record.message_differences import (
    FORGOTTEN,
    LISTS,
    Change,
    Difference,
    RecordedMessage,
    StateMessage,
    apply,
    change_of,
    distinct,
    is_recorded,
    parts_of,
    segment_ids_of,
    state_message,
)
from langgraph_pgstate.record.message_hook import fitting_ids, may_hold_messages
from langgraph_pgstate.record.messages import last_changes
from langgraph_pgstate.record.types import BackfillReport, Problem
from langgraph_pgstate.schema.queries import Queries, snapshot

_PAGE: Final = 50
_MOST_PROBLEMS: Final = 10
# Number of checkpoints whose conversations are cached. A child is usually read soon after its parent.
_REMEMBERED: Final = 200


async def compare_thread(db: Connection, queries: Queries, codec: ValueCodec, thread_id: str) -> list[Problem]:
    """Compare a thread's conversations with its states, if any of its messages was recorded. Writes nothing.

    A checkpoint whose messages are still in the journal is skipped, and so are its descendants.

    Returns:
        A problem for each of the first ten differences, one problem for all other differences, and one problem if the
        thread has content that cannot be read here.
    """
    key = {"thread_id": thread_id}
    async with db.transaction():
        await db.script(snapshot())
        if not (await db.fetch(queries.has_messages, key))[0][0]:
            return []
        comparison = _Comparison(db, queries, codec, thread_id)
        comparison.left_out = await _unwritten(db, queries, thread_id)
        found: list[Difference] = []
        total, unreadable = 0, None
        try:
            while (page := await comparison.next_page()) is not None:
                total += len(page)
                found += page[: _MOST_PROBLEMS - len(found)]
        except (EncryptionError, UnreadableFormatError) as error:
            unreadable = _unreadable(thread_id, error)
    problems = [Problem(thread_id, str(one.address), one.why) for one in found]
    if total > len(problems):
        problems.append(Problem(thread_id, f"{total - len(problems)} more places", "their conversations differ"))
    return problems if unreadable is None else [*problems, unreadable]


def _unreadable(thread_id: str, error: EncryptionError | UnreadableFormatError) -> Problem:
    """Return the problem of content that cannot be read here. Raise errors again that a later call may not have."""
    if error.retryable:
        raise error
    return Problem(thread_id, f"the recorded messages of thread {thread_id!r}", str(error))


async def backfill_thread(db: Connection, queries: Queries, codec: ValueCodec, thread_id: str) -> BackfillReport:
    """Add rows of `messages` that are missing for a thread's checkpoints.

    If the thread has no recorded runs, also derive its status from the newest checkpoint. Messages of states with
    another serializer than LangGraph's own are never recorded.

    Each page of checkpoints is a transaction. Existing rows are kept, so the call is safe to repeat. Meanwhile runs may
    append to the thread, and a prune may run.

    Returns:
        The number of added rows, and the checkpoints that cannot be decoded.
    """
    report = BackfillReport(threads=1)
    await journal.write(db, queries, [thread_id])
    comparison = _Comparison(db, queries, codec, thread_id)
    while codec.is_native:
        try:
            async with db.transaction():
                page = await comparison.next_page(fill=True)
        except (EncryptionError, UnreadableFormatError) as error:
            comparison.problems.append(_unreadable(thread_id, error))
            break
        if page is None:
            break
        report.messages += sum(one.missing for one in page)
        report.filled += len({one.address for one in page})
    report.checkpoints = comparison.checkpoints
    report.problems = comparison.problems
    report.statuses = await db.execute(queries.infer_thread_status, {"thread_id": thread_id})
    return report


async def _unwritten(db: Connection, queries: Queries, thread_id: str) -> set[str]:
    """Return the checkpoints whose messages are still in the journal."""
    found = set()
    for _, _, data in await db.fetch(queries.read_entries, {"thread_ids": [thread_id], "page_size": None}):
        try:
            messages = JournalEntry.unpack(thread_id, data).messages
            found |= {orjson.loads(change)["checkpoint_id"] for _, change in messages}
        except Exception:  # nosec B112 # no message can be read from a damaged entry
            continue
    return found


@dataclass(slots=True)
class _Known:
    """The recorded messages of a checkpoint, by channel, and the checkpoint's `channel_versions`."""

    said: dict[str, list[RecordedMessage]] = field(default_factory=dict)
    versions: Mapping[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class _Row:
    """A checkpoint of the root namespace."""

    id: str
    parent_id: str | None
    run_id: str | None
    counters: Sequence[str]
    state: State


class _Comparison:
    """The comparison of one thread's record with its states.

    Checkpoints in `left_out` are skipped, with their descendants.
    """

    def __init__(self, db: Connection, queries: Queries, codec: ValueCodec, thread_id: str) -> None:
        self._db, self._queries, self._codec, self._thread_id = db, queries, codec, thread_id
        self._cursor = ""
        self._delta_channels: set[str] = set()
        self._known: OrderedDict[str, _Known] = OrderedDict()
        self._elements: dict[Hashable, list[StateMessage | None]] = {}
        self.checkpoints = 0
        self.problems: list[Problem] = []
        self.left_out: set[str] = set()

    async def next_page(self, *, fill: bool = False) -> list[Difference] | None:
        """Compare the next page of checkpoints. Return `None` if there are no more.

        With `fill`, also record the missing messages. Call this in a transaction, so that no prune deletes the
        checkpoints meanwhile.
        """
        key = {"thread_id": self._thread_id, "cursor_id": self._cursor, "page_size": _PAGE}
        found = await self._db.fetch(self._queries.scan_conversations, key)
        if not found:
            return None
        self._cursor = found[-1][0]
        key["checkpoint_ids"] = sorted({id for row in found for id in row[:2] if id})
        query = self._queries.hold_present if fill else self._queries.find_present
        present = {row[0] for row in await self._db.fetch(query, key)}
        rows = self._decode(row for row in found if row[0] in present)
        changes = await self._changes([row.id for row in rows])
        await self._read_elements(rows)
        differences = []
        for row in rows:
            if row.parent_id in self.left_out:
                self.left_out.add(row.id)
            if row.id in self.left_out:
                continue
            known = await self._known_at(row.parent_id) if row.parent_id in present else _Known()
            now = _Known(apply(known.said, changes[row.id]), row.state.manifest.versions)
            for difference in self._compare(row, known, now):
                differences.append(difference)
                if fill:
                    now.said[difference.channel] = await self._fill(difference)
            if fill:
                await self._fill_written(row, known, now, {change.channel for change in changes[row.id]})
            self._known[row.id] = now
        while len(self._known) > _REMEMBERED:
            self._known.popitem(last=False)
        self.checkpoints += len(found)
        return differences

    def _decode(self, found: Iterable[Sequence[Any]]) -> list[_Row]:
        rows = []
        for checkpoint_id, parent_id, run_id, counters, data, segment_ids in found:
            try:
                state = decode_state(data, segment_ids, str(self._address(checkpoint_id)))
            except CorruptStateError as error:
                self._problem(checkpoint_id, error.why)
                self.left_out.add(checkpoint_id)
                continue
            self._delta_channels.update(counters or ())
            rows.append(_Row(checkpoint_id, parent_id, run_id, counters or (), state))
        return rows

    async def _read_elements(self, rows: Sequence[_Row]) -> None:
        """Decode the elements of the page's states that are not cached. Drop cached elements that the page lacks."""
        wanted: dict[Hashable, tuple[Entry, str]] = {}
        for row in rows:
            for channel, entry in row.state.manifest.entries.items():
                if may_hold_messages(channel):
                    wanted |= {place: (part, row.id) for place, part in parts_of(entry)}
        self._elements = {place: found for place, found in self._elements.items() if place in wanted}
        missing = {place: part for place, part in wanted.items() if place not in self._elements}
        ids = {segment_id for part, _ in missing.values() for segment_id in segment_ids_of(part)}
        key = {"thread_id": self._thread_id, "segment_ids": sorted(ids)}
        segments = Segments(await self._db.fetch(self._queries.get_segments, key) if ids else ())
        for place, (part, checkpoint_id) in missing.items():
            where = str(self._address(checkpoint_id))
            try:
                value = self._load(part, segments, where)
            except Exception as error:
                # A decoder may raise anything on damaged bytes.
                self._problem(checkpoint_id, error.why if isinstance(error, CorruptStateError) else str(error))
                continue
            if type(value) is DeltaSnapshot:
                value = value.value
            self._elements[place] = [*map(state_message, value)] if type(value) is list else []

    def _load(self, part: Entry, segments: Segments, where: str) -> Any:
        if isinstance(part, Elements):
            return self._codec.decode_elements(segments.content(part.runs[0].segment_id, where), where)[0]
        if isinstance(part, Slice):
            content = segments.content(part.segment_id, where)
            if part.length and part.offset < len(content) and content[part.offset] not in LISTS:
                return None
        return load_value(self._codec, part, segments, where)[0]

    def _stored(self, row: _Row, channel: str) -> list[StateMessage] | None:
        """Return the messages of a channel, or `None` if the checkpoint alone does not determine them."""
        entry = row.state.manifest.entries.get(channel)
        if entry is None:
            # Without an entry, a DeltaChannel has no value at this checkpoint, and any other channel is empty. A
            # checkpoint need not name its DeltaChannels, so use the names from all checkpoints that were read.
            return None if channel in self._delta_channels or channel not in row.state.manifest.versions else []
        if isinstance(entry, Elements):
            elements: list[StateMessage | None] = []
            for run in entry.runs:
                part = self._elements.get(run.segment_id)
                if part is None or len(part) < run.first + run.count:
                    return None
                elements += part[run.first : run.first + run.count]
        else:
            places = [place for place, _ in parts_of(entry)]
            if any(place not in self._elements for place in places):
                return None
            elements = [element for place in places for element in self._elements[place]]
        return [element for element in elements if element is not None]

    def _compare(self, row: _Row, known: _Known, now: _Known) -> Iterable[Difference]:
        channels = {*now.said, *(name for name in row.state.manifest.entries if may_hold_messages(name))}
        for channel in sorted(channels):
            stored = self._stored(row, channel)
            recorded = now.said.get(channel, [])
            if stored is not None and not is_recorded(stored, recorded):
                yield Difference(
                    self._address(row.id), channel, row.run_id, stored, recorded, known.said.get(channel, [])
                )

    async def _fill(self, difference: Difference) -> list[RecordedMessage]:
        """Record the messages of a state, and return them with their recorded ids."""
        ids = [{"message_id": id} for id in distinct([element.id for element in difference.stored])]
        present = fitting_ids(self._thread_id, ids)
        before = difference.before
        # What a policy of retention has removed is not recorded again.
        forgotten = {one.message_id for one in (*before, *difference.recorded) if one.mark == FORGOTTEN}
        said = [
            RecordedMessage(id, FORGOTTEN if id in forgotten else element.mark)
            for id, element in zip(present, difference.stored, strict=True)
        ]
        # If messages were only appended, earlier messages need no lookup.
        first = len(before) if difference.recorded == before == said[: len(before)] else 0
        known = {*before}
        given = [
            {"message_id": one.message_id, **element.row}
            for one, element in zip(said, difference.stored, strict=True)
            if one not in known and one.mark != FORGOTTEN
        ]
        await self._reconcile(
            {
                **difference.address._asdict(),
                "run_id": difference.run_id,
                "channel": difference.channel,
                "messages": given,
                "present_ids": present,
                "named_ids": present[first:] if first else None,
            }
        )
        return said

    async def _fill_written(self, row: _Row, known: _Known, now: _Known, recorded: set[str]) -> None:
        """Record what the preceding superstep wrote to each DeltaChannel of which the checkpoint has no value."""
        noted = [
            {
                **self._address(row.id)._asdict(),
                "parent_checkpoint_id": row.parent_id,
                "run_id": row.run_id,
                "channel": channel,
                **rules_of(channel)._asdict(),
            }
            for channel in row.counters
            if row.parent_id
            and channel not in recorded
            and channel not in row.state.manifest.entries
            and now.versions.get(channel) != known.versions.get(channel)
        ]
        written = [(WRITTEN, orjson.dumps(one)) for one in noted]
        for _, change in await resolve_written(self._db, self._queries, written) if written else ():
            await self._reconcile(orjson.loads(change))
        if written:
            now.said = apply(known.said, (await self._changes([row.id]))[row.id])

    async def _reconcile(self, change: dict[str, Any]) -> None:
        ids = [message["message_id"] for message in change["messages"]]
        messages = orjson.dumps(change["messages"]).decode()
        await self._db.execute(self._queries.reconcile_messages, {**change, "message_ids": ids, "messages": messages})

    async def _changes(self, checkpoint_ids: Sequence[str]) -> dict[str, list[Change]]:
        key = {"thread_id": self._thread_id, "checkpoint_ids": list(checkpoint_ids)}
        found: dict[str, list[Change]] = defaultdict(list)
        for checkpoint_id, *row in await self._db.fetch(self._queries.get_message_changes, key):
            found[checkpoint_id].append(change_of(row))
        return found

    async def _known_at(self, checkpoint_id: str | None) -> _Known:
        assert checkpoint_id is not None
        known = self._known.get(checkpoint_id)
        if known is None:
            # The parent is not cached, because it was read long before its child, or has a greater id.
            said: dict[str, list[RecordedMessage]] = defaultdict(list)
            last = await last_changes(self._db, self._queries, self._thread_id, checkpoint_id)
            changes = await self._changes(sorted({change.checkpoint_id for change in last}))
            marks = {
                (id, change.channel, change.message_id): change.mark for id, rows in changes.items() for change in rows
            }
            for one in last:
                if one.change != "removed":
                    mark = marks[one.checkpoint_id, one.channel, one.message_id]
                    said[one.channel].append(RecordedMessage(one.message_id, mark))
            known = self._known[checkpoint_id] = _Known(said)
        return known

    def _address(self, checkpoint_id: str) -> Address:
        return Address(self._thread_id, "", checkpoint_id)

    def _problem(self, checkpoint_id: str, why: str) -> None:
        self.problems.append(Problem(self._thread_id, str(self._address(checkpoint_id)), why))
