"""Checks that all checkpoints, references and pending writes can be read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import orjson

from langgraph_pgstate.admin.types import CheckReport
from langgraph_pgstate.arguments import Address
from langgraph_pgstate.codec import frames
from langgraph_pgstate.codec.states import Elements, Entry, Inline, Slice, State, decode_state
from langgraph_pgstate.codec.values import ValueCodec, split_array
from langgraph_pgstate.codec.writes import unpack_writes
from langgraph_pgstate.db.protocol import Connection
from langgraph_pgstate.errors import CorruptStateError, EncryptionError, UnreadableFormatError
from langgraph_pgstate.record.types import Problem
from langgraph_pgstate.runs.inputs import open_input
from langgraph_pgstate.runs.requests import read_options
from langgraph_pgstate.schema.queries import Queries, snapshot
from langgraph_pgstate.tools.executions import PARENT_RESULT, UNSTORABLE_RESULT, open_result

_THREAD_PAGE: Final = 500
_PAGE: Final = 100
_SEGMENT_BYTES: Final = 8 * 1024 * 1024
_INT4_MIN: Final = -(2**31)


@dataclass(slots=True)
class _Segment:
    """The properties of a segment that was read.

    Attributes:
        size: Bytes of the content.
        count: Number of elements, if the content is an array.
        why: Defect of the segment, if any.
        decoded: For a deep check, the defect, or `None`, of each decoded value, by place `(type, offset, length)`. The
            place `None` means the elements of a list.
    """

    size: int = 0
    count: int | None = None
    why: str | None = None
    decoded: dict[tuple[str, int, int] | None, str | None] | None = None


async def next_threads(db: Connection, queries: Queries, after: str) -> list[str]:
    """Return the next page of ids of threads."""
    rows = await db.fetch(queries.list_visited_thread_ids, {"cursor_id": after, "page_size": _THREAD_PAGE})
    return [row[0] for row in rows]


async def check_thread(db: Connection, queries: Queries, codec: ValueCodec | None, thread_id: str) -> CheckReport:
    """Check one thread, and return the counts and defects. Reads one snapshot, page by page. Damage never raises.

    Memory holds a page of checkpoints, 8 MB of segments (or one larger segment), and some numbers per segment. Without
    a codec, only checksums and references are checked. The connection must not be in a transaction.
    """
    report = CheckReport(threads=1)
    check = _Check(db, queries, codec, thread_id, report)
    async with db.transaction():
        await db.script(snapshot())
        await check.checkpoints()
        await check.writes()
        if codec is not None:
            await check.answers(codec)
            await check.feedback(codec)
            await check.results(codec)
            await check.requests(codec)
        total = (await db.fetch(queries.count_segments, {"thread_id": thread_id}))[0][0]
    report.segments = sum(segment.why is not _MISSING for segment in check.segments.values())
    report.unreferenced = total - report.segments
    return report


_MISSING: Final = "it is missing"


class _Check:
    """Reader of one thread's rows. It adds every defect to a report."""

    def __init__(
        self, db: Connection, queries: Queries, codec: ValueCodec | None, thread_id: str, report: CheckReport
    ) -> None:
        self._db, self._queries, self._codec, self._thread_id = db, queries, codec, thread_id
        self._report = report
        self.segments: dict[int, _Segment] = {}

    async def checkpoints(self) -> None:
        """Check the checkpoints and all their references."""
        cursor = ("", "")
        while True:
            rows = await self._db.fetch(
                self._queries.scan_checkpoints,
                {"thread_id": self._thread_id, "cursor_ns": cursor[0], "cursor_id": cursor[1], "page_size": _PAGE},
            )
            states: list[tuple[Address, State | None, list[int]]] = []
            for namespace, checkpoint_id, metadata, data, segment_ids in rows:
                cursor = (namespace, checkpoint_id)
                address = Address(self._thread_id, namespace, checkpoint_id)
                state = self._state(address, data, segment_ids)
                self._metadata(address, metadata, state)
                states.append((address, state, segment_ids))
            await self._read_segments(states)
            for address, state, segment_ids in states:
                self._references(address, state, segment_ids)
            self._report.checkpoints += len(rows)
            if len(rows) < _PAGE:
                return

    async def writes(self) -> None:
        """Check the pending writes."""
        cursor: tuple[str, str, str, int] = ("", "", "", _INT4_MIN)
        while True:
            keys = dict(zip(("cursor_ns", "cursor_id", "cursor_task", "cursor_idx"), cursor, strict=True))
            rows = await self._db.fetch(
                self._queries.scan_writes, {"thread_id": self._thread_id, **keys, "page_size": _PAGE}
            )
            for namespace, checkpoint_id, task_id, idx, data, is_orphan in rows:
                cursor = (namespace, checkpoint_id, task_id, idx)
                self._report.orphan_writes += is_orphan
                address = Address(self._thread_id, namespace, checkpoint_id)
                where = f"writes of task {task_id!r} from number {idx} on, at {address}"
                why = _reason(lambda data=data, where=where: self._decode_writes(data, where))  # type: ignore[misc]
                if why:
                    self._problem(where, why)
            self._report.writes += len(rows)
            if len(rows) < _PAGE:
                return

    async def answers(self, codec: ValueCodec) -> None:
        """Report the answers to interrupts that do not decode."""
        cursor = ("", "", "")
        while True:
            keys = dict(zip(("cursor_ns", "cursor_id", "cursor_interrupt"), cursor, strict=True))
            rows = await self._db.fetch(
                self._queries.scan_answers, {"thread_id": self._thread_id, **keys, "page_size": _PAGE}
            )
            for *key, type_, data in rows:
                cursor = (key[0], key[1], key[2])
                why = _reason(lambda type_=type_, data=data: codec.loads(type_, data, "it"))  # type: ignore[misc]
                if why:
                    self._problem(f"the answer to {cursor[2]}", why)
            if len(rows) < _PAGE:
                return

    async def results(self, codec: ValueCodec) -> None:
        """Decode the results of tools."""
        cursor = ""
        while True:
            rows = await self._db.fetch(
                self._queries.scan_results, {"thread_id": self._thread_id, "cursor_key": cursor, "page_size": _PAGE}
            )
            for cursor, type_, data in rows:
                why = _reason(lambda type_=type_, data=data: _decode_result(codec, type_, data))  # type: ignore[misc]
                if why:
                    self._problem(f"the result of the tool execution {cursor!r}", why)
            if len(rows) < _PAGE:
                return

    async def feedback(self, codec: ValueCodec) -> None:
        """Decode comments on runs that the caller's own serializer has encoded."""
        run, id = "", ""
        while True:
            keys = {"thread_id": self._thread_id, "cursor_run": run, "cursor_id": id, "page_size": _PAGE}
            rows = await self._db.fetch(self._queries.scan_feedback, keys)
            for run, id, type_, data in rows:
                why = _reason(lambda type_=type_, data=data: codec.loads(type_, data, "the comment"))  # type: ignore[misc]
                if why:
                    self._problem(f"the comment of feedback {id!r} on run {run!r}", why)
            if len(rows) < _PAGE:
                return

    async def requests(self, codec: ValueCodec) -> None:
        """Decode the requests of enqueued runs."""
        cursor = ""
        while True:
            rows = await self._db.fetch(
                self._queries.scan_requests, {"thread_id": self._thread_id, "cursor_run": cursor, "page_size": _PAGE}
            )
            for cursor, data, options in rows:
                where = f"the request of run {cursor!r}"
                why = _reason(lambda data=data: open_input(codec, data))  # type: ignore[misc]
                why = why or _reason(lambda options=options, where=where: read_options(options, where))  # type: ignore[misc]
                if why:
                    self._problem(where, why)
            if len(rows) < _PAGE:
                return

    def _decode_writes(self, data: bytes, where: str) -> None:
        for _, _, type_, content in unpack_writes(data, where):
            if self._codec is not None:
                self._codec.loads(type_, content, where)

    def _state(self, address: Address, data: bytes, segment_ids: list[int]) -> State | None:
        try:
            return decode_state(data, segment_ids, str(address))
        except Exception as error:
            self._problem(str(address), _why(error))
            return None

    def _metadata(self, address: Address, metadata: str, state: State | None) -> None:
        why = _reason(lambda: {**orjson.loads(metadata)})
        if why:
            self._problem(str(address), f"its metadata does not parse ({why})")
        if state is None or self._codec is None:
            return
        codec = self._codec
        for kind, encoded in (("metadata", state.exact_metadata), ("key", state.extra)):
            for name, (type_, data) in encoded.items():
                why = _reason(lambda type_=type_, data=data: codec.loads(type_, data, str(address)))  # type: ignore[misc]
                if why:
                    self._problem(str(address), f"{kind} {name!r}: {why}")

    async def _read_segments(self, states: Iterable[tuple[Address, State | None, list[int]]]) -> None:
        """Read the segments of a page that were not read before."""
        places: dict[int, dict[tuple[str, int, int] | None, None]] = {}
        for _, state, segment_ids in states:
            for segment_id in segment_ids:
                places.setdefault(segment_id, {})
            for entry in state.manifest.entries.values() if state else ():
                for segment_id, place in _places(entry):
                    places.setdefault(segment_id, {})[place] = None
        wanted = [id for id, found in places.items() if self._is_unread(id, found)]
        for id in wanted:
            self.segments.setdefault(id, _Segment(why=_MISSING))
        cursor = -1
        while wanted:
            rows = await self._db.fetch(
                self._queries.scan_segments,
                {
                    "thread_id": self._thread_id,
                    "segment_ids": wanted,
                    "cursor_id": cursor,
                    "max_bytes": _SEGMENT_BYTES,
                },
            )
            if not rows:
                return
            for segment_id, frame in rows:
                cursor = segment_id
                self._segment(segment_id, frame, places[segment_id])

    def _is_unread(self, segment_id: int, places: Mapping[tuple[str, int, int] | None, None]) -> bool:
        known = self.segments.get(segment_id)
        if known is None:
            return True
        return known.why is None and known.decoded is not None and not places.keys() <= known.decoded.keys()

    def _segment(self, segment_id: int, frame: bytes, places: Iterable[tuple[str, int, int] | None]) -> None:
        segment = self.segments[segment_id]
        try:
            content = frames.unpack(frame, f"segment {segment_id}")
        except (CorruptStateError, UnreadableFormatError, EncryptionError) as error:
            segment.why = _why(error)
            return
        segment.why = None
        segment.size = len(content)
        if None in places:
            try:
                segment.count, _ = split_array(content, f"segment {segment_id}")
            except CorruptStateError as error:
                segment.why = error.why
                return
        if self._codec is None:
            return
        codec = self._codec
        segment.decoded = segment.decoded or {}
        for place in places:
            if place is None:
                segment.decoded[None] = _reason(lambda: codec.decode_elements(content, "it"))
            elif place not in segment.decoded and place[1] + place[2] <= len(content):
                type_, offset, length = place
                value = content[offset : offset + length]
                segment.decoded[place] = _reason(lambda type_=type_, value=value: codec.loads(type_, value, "it"))  # type: ignore[misc]
            else:
                segment.decoded.setdefault(place, None)

    def _references(self, address: Address, state: State | None, segment_ids: Iterable[int]) -> None:
        """Report references of a checkpoint to segments that are missing or damaged."""
        named: set[int] = set()
        for channel, entry in state.manifest.entries.items() if state else ():
            for segment_id, why in self._broken(entry):
                named.add(segment_id)
                place = f"segment {segment_id}: " if segment_id else ""
                self._problem(str(address), f"channel {channel!r}: {place}{why}")
        for segment_id in segment_ids:
            segment = self.segments[segment_id]
            if segment.why is not None and segment_id not in named:
                self._problem(str(address), f"segment {segment_id}: {segment.why}")

    def _broken(self, entry: Entry) -> Iterable[tuple[int, str]]:
        """Return `(segment, why)` of each unreadable piece of a value. Segment 0 means the checkpoint's row."""
        match entry:
            case Inline(type_, data) if self._codec is not None:
                codec = self._codec
                why = _reason(lambda: codec.loads(type_, data, "it"))
                if why:
                    yield 0, why
            case Slice(type_, segment_id, offset, length):
                segment = self.segments[segment_id]
                why = segment.why or (segment.decoded or {}).get((type_, offset, length))
                if why is None and offset + length > segment.size:
                    why = f"it is {segment.size} bytes long, too short for bytes {offset} to {offset + length}"
                if why:
                    yield segment_id, why
            case Elements(runs):
                for segment_id in dict.fromkeys(run.segment_id for run in runs):
                    segment = self.segments[segment_id]
                    needed = max(run.first + run.count for run in runs if run.segment_id == segment_id)
                    why = segment.why or (segment.decoded or {}).get(None)
                    if why is None and (segment.count is None or needed > segment.count):
                        why = f"it holds {segment.count} elements, {needed} are needed"
                    if why:
                        yield segment_id, why

    def _problem(self, where: str, why: str) -> None:
        self._report.problems.append(Problem(self._thread_id, where, why))


def _places(entry: Entry) -> Iterable[tuple[int, tuple[str, int, int] | None]]:
    """Return `(segment, place)` of each part of a value, with places as in `_Segment.decoded`."""
    if isinstance(entry, Slice):
        yield entry.segment_id, (entry.type, entry.offset, entry.length)
    elif isinstance(entry, Elements):
        for run in entry.runs:
            yield run.segment_id, None


def _decode_result(codec: ValueCodec, type_: str, data: bytes) -> None:
    if not type_.startswith(UNSTORABLE_RESULT):
        kind, content = open_result(type_, data, "it")
        codec.loads(kind.removeprefix(PARENT_RESULT), content, "it")


def _reason(decode: Callable[[], Any]) -> str | None:
    """Return why a value does not decode; `None` if it decodes."""
    try:
        decode()
    except Exception as error:
        # Damaged bytes may make a decoder raise any error.
        return _why(error)
    return None


def _why(error: Exception) -> str:
    if isinstance(error, CorruptStateError | UnreadableFormatError):
        return error.why
    return f"{type(error).__name__}: {error}"
