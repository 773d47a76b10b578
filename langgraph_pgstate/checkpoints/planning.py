"""The plan for storing a checkpoint: the values that it inherits, and the values to write, as encoded bytes. No I/O.

A checkpoint inherits an unchanged value by referring to the segments of an earlier checkpoint, which is its base.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Final

from langgraph_pgstate.arguments import identifier
from langgraph_pgstate.checkpoints.journal_entry import JournalEntry
from langgraph_pgstate.checkpoints.requests import PutRequest
from langgraph_pgstate.codec import frames
from langgraph_pgstate.codec.ids import random_bits
from langgraph_pgstate.codec.messages import DIGEST_SIZE
from langgraph_pgstate.codec.states import (
    KNOWN_KEYS,
    NOTHING,
    Elements,
    Entry,
    Inline,
    Manifest,
    Run,
    Scalar,
    Slice,
    encode_state,
)
from langgraph_pgstate.codec.values import NO_FINGERPRINTS, PLAIN_MARK, ValueCodec, array_header
from langgraph_pgstate.heavy import HEAVY_BYTES, MANY_COMPARED, MANY_ELEMENTS, TooHeavyError
from langgraph_pgstate.langgraph_compat import DeltaSnapshot

# A reference to a segment takes about this many bytes in the row. A smaller value is stored in the row itself.
_INLINE_BYTES: Final = 96
# New values up to this total size are stored in the checkpoint's row, because the next superstep may replace them. The
# first checkpoint that inherits such a value moves the value to a segment.
_NEW_INLINE_BYTES: Final = 2 * 1024
# Smaller values share one segment per put. A larger value gets its own segment, so that a prune can delete it alone.
_SHARED_BYTES: Final = 4 * 1024
# If a list ends in this many small runs, these runs are stored again as one. Otherwise a read would need many segments.
MERGE_AT: Final = 64
# Size at which a new segment is full. A small size is good, because reading one element reads the whole segment.
SEGMENT_BYTES: Final = 64 * 1024
# A run of this size is not merged with other runs.
_SMALL_BYTES: Final = SEGMENT_BYTES // 8
# If edits and removals split a list into more runs than this, the list is stored again in full.
_MAX_RUNS: Final = 128
_MAX_RUNS_SHARE: Final = 24
_NUMBERS: Final = frozenset({int, float, bool, type(None)})
# No row has this revision, so a put that requires this revision fails.
_NO_REVISION: Final = -1
_TO_STORE: Final = Scalar(None)
# An id of a segment is short, because each checkpoint stores the ids of all its segments. If two segments of a thread
# get the same id, the primary key refuses the second segment, and the put is retried with another id.
_SEGMENT_BITS: Final = 31


@dataclass(slots=True)
class PutPlan:
    """The encoded bytes that a put stores, and the conditions for storing them.

    Attributes:
        request: The checkpoint to store.
        manifest: Where each value is stored.
        state: The encoded state; `None` if an inherited value was not found, so that the plan is incomplete.
        new_segments: Frames to write, by segment id.
        base_revisions: Revisions, by id, of the checkpoints from which values are inherited. The put fails if a
            revision has changed.
        parent: The parent's manifest, if it is known.
        contents: Contents of the new segments, by id.
        tried: Whether the plan was sent before. If so, its segment ids may exist.
        journal_entry: The hooks' journal entry. Each attempt to send the plan makes a new entry.
        hook_refused: Whether the checkpoint was stored without the hook's rows, which the database refused.
    """

    request: PutRequest
    manifest: Manifest
    state: bytes | None = None
    new_segments: dict[int, bytes] = field(default_factory=dict)
    base_revisions: dict[str, int] = field(default_factory=dict)
    parent: Manifest | None = None
    contents: dict[int, bytes] = field(default_factory=dict)
    tried: bool = False
    journal_entry: JournalEntry | None = None
    hook_refused: bool = False

    @property
    def is_heavy(self) -> bool:
        """Whether a hook that reads the values is slow enough to run in a thread."""
        for value in self.request.checkpoint["channel_values"].values():
            whole = value.value if type(value) is DeltaSnapshot else value
            if is_large(whole, MANY_COMPARED - MANY_ELEMENTS):
                return True
        return sum(map(len, self.contents.values())) > HEAVY_BYTES

    def with_new_ids(self) -> PutPlan:
        """Return the plan with other ids for its new segments. The state holds no segment ids and stays as it is."""
        taken = self.manifest.positions()
        ids: dict[int, int] = {}
        for old in self.new_segments:
            ids[old] = new_segment_id(taken, ids.values())
        entries = {channel: _renumber(entry, ids) for channel, entry in self.manifest.entries.items()}
        return replace(
            self,
            manifest=Manifest(self.manifest.versions, entries),
            new_segments={ids[old]: frame for old, frame in self.new_segments.items()},
            contents={ids[old]: content for old, content in self.contents.items()},
        )


def plan_quickly(
    codec: ValueCodec, request: PutRequest, parent: Manifest | None, others: Mapping[str, Manifest] | None = None
) -> PutPlan | None:
    """Return the plan of a put, or `None` if `plan_put` is slow enough to run in a thread."""
    if _is_heavy(request, parent):
        return None
    try:
        return plan_put(codec, request, parent, others, most=HEAVY_BYTES)
    except TooHeavyError:
        return None


def _is_heavy(request: PutRequest, parent: Manifest | None) -> bool:
    """Return whether a put's values are obviously too large to plan quickly."""
    size = 0
    for channel in request.new_versions:
        value = request.checkpoint["channel_values"].get(channel)
        known = 0
        if parent is not None:
            size += parent.size_of(channel)
            known = parent.count_of(channel)
        if is_large(value, known):
            return True
    return size > HEAVY_BYTES


def is_large(value: Any, known: int = 0) -> bool:
    """Return whether a value is obviously too large to encode quickly. Do not count a list's `known` first elements."""
    kind = type(value)
    if kind is list:
        return len(value) - known > MANY_ELEMENTS
    if kind is dict:
        # A dict with a long list, such as a graph's input.
        return any(type(inner) is list and len(inner) > MANY_ELEMENTS for inner in value.values())
    return isinstance(value, str | bytes | bytearray) and len(value) > HEAVY_BYTES


def plan_put(
    codec: ValueCodec,
    request: PutRequest,
    parent: Manifest | None,
    others: Mapping[str, Manifest] | None = None,
    *,
    most: int | None = None,
) -> PutPlan:
    """Return the plan for storing a checkpoint.

    Without `others`, the plan is incomplete if the parent, or the location of an inherited value, is not known. With
    `others`, a value whose location is not known is stored again.

    Args:
        codec: Encodes the values.
        request: The checkpoint to store.
        parent: The parent's manifest, if it is known.
        others: Manifests of other checkpoints of the namespace that hold inherited values, by id.
        most: Maximum of bytes to encode.

    Raises:
        SerializationError: If a value cannot be stored.
        TooHeavyError: If the values take more than `most` bytes.
    """
    values = request.checkpoint["channel_values"]
    # Copy the dict, because the caller may change its own later.
    versions = dict(request.checkpoint["channel_versions"])
    entries: dict[str, Entry] = {}
    base_revisions: dict[str, int] = {}
    given: list[str] = []
    parent_id = request.parent.checkpoint_id if request.parent else None
    if others is None and parent_id and parent is None:
        return PutPlan(request, Manifest(versions, {}))
    if parent_id and parent and request.needs_parent:
        _require_base(base_revisions, parent_id, parent.revision)
    sources = [(parent_id, parent)] if parent_id and parent else []
    if others:
        sources += others.items()
    writer = _SegmentWriter(codec, parent.positions() if parent else (), most)
    for channel, version in versions.items():
        value = values.get(channel, NOTHING)
        if type(value) is not list and codec.is_scalar(value):
            entries[channel] = Scalar(value)
            continue
        if channel not in request.new_versions:
            found = _find(channel, version, sources)
            if found is not None:
                entry, source_id, revision = found
                if isinstance(entry, Entry):
                    entries[channel] = writer.move_inline(channel, entry) if type(entry) is Inline else entry
                    _require_base(base_revisions, source_id, revision)
                continue
            if others is None:
                return PutPlan(request, Manifest(versions, {}), parent=parent)
        if value is not NOTHING:
            # Encode the value only below, because an incomplete plan is returned without encoding. The placeholder
            # keeps the order.
            entries[channel] = _TO_STORE
            given.append(channel)
    for channel in given:
        parent_entry = parent.entries.get(channel) if parent is not None else None
        entries[channel], builds_on_parent = writer.store(channel, values[channel], parent_entry)
        if builds_on_parent and parent is not None and parent_id:
            _require_base(base_revisions, parent_id, parent.revision)
    for channel, value in values.items():
        # Keep a scalar without a version, as LangGraph's own PostgreSQL saver does.
        if channel not in versions and codec.is_scalar(value):
            entries[identifier("channel name", channel)] = Scalar(value)
    writer.finish(entries)
    manifest = Manifest(versions, entries)
    extra = {key: codec.dumps(key, value) for key, value in request.checkpoint.items() if key not in KNOWN_KEYS}
    state = encode_state(request.checkpoint, manifest, extra, request.exact_metadata)
    return PutPlan(request, manifest, state, writer.segments, base_revisions, parent, writer.contents)


def find_missing(codec: ValueCodec, request: PutRequest, parent: Manifest | None) -> list[str]:
    """Return the channels whose values a put inherits from a checkpoint other than its parent."""
    values = request.checkpoint["channel_values"]
    return [
        channel
        for channel, version in request.checkpoint["channel_versions"].items()
        if channel not in request.new_versions
        and not codec.is_scalar(values.get(channel, NOTHING))
        and (parent is None or parent.entry(channel, version) is None)
    ]


def _require_base(base_revisions: dict[str, int], checkpoint_id: str, revision: int) -> None:
    """Require a revision of a base checkpoint. If two revisions are required, the put will fail."""
    if base_revisions.setdefault(checkpoint_id, revision) != revision:
        base_revisions[checkpoint_id] = _NO_REVISION


def _find(
    channel: str, version: Any, sources: Sequence[tuple[str, Manifest]]
) -> tuple[Entry | object, str, int] | None:
    """Return a channel's entry at a version, and the id and revision of the entry's checkpoint."""
    for source_id, manifest in sources:
        entry = manifest.entry(channel, version)
        if entry is not None:
            return entry, source_id, manifest.revision
    return None


@dataclass(slots=True)
class _SegmentWriter:
    """The segments that one put writes.

    Attributes:
        codec: Encodes values.
        taken: Ids of segments that the put may inherit. New segments must have other ids.
        left: Bytes that may still be added; `None` for any number.
        segments: Frames by segment id.
        contents: Contents by segment id.
    """

    codec: ValueCodec
    taken: Collection[int]
    left: int | None
    segments: dict[int, bytes] = field(default_factory=dict)
    contents: dict[int, bytes] = field(default_factory=dict)
    _shared: list[tuple[str, str, bytes]] = field(default_factory=list)
    _inline_budget: int = _NEW_INLINE_BYTES

    def store(self, channel: str, value: Any, parent_entry: Entry | None) -> tuple[Entry, bool]:
        """Return the entry of a new value, and whether the entry inherits segments from the parent."""
        # A fingerprint takes 16 bytes, so a list of numbers is smaller if it is stored whole.
        if self.codec.is_native and type(value) is list and value and type(value[0]) not in _NUMBERS:
            stored = self._store_list(channel, value, parent_entry if isinstance(parent_entry, Elements) else None)
            if stored is not None:
                return stored
        type_, data = self.codec.dumps(channel, value)
        if len(data) <= _INLINE_BYTES:
            return Inline(type_, data), False
        if len(data) <= self._inline_budget:
            self._inline_budget -= len(data)
            return Inline(type_, data), False
        if len(data) < _SHARED_BYTES:
            return self._share(channel, type_, data), False
        return Slice(type_, self._add(data), 0, len(data)), False

    def move_inline(self, channel: str, entry: Inline) -> Entry:
        """Return the entry of an inherited value that an earlier checkpoint stores in its row.

        A value of up to `_INLINE_BYTES` is stored in the new row, too. A larger value moves to the shared segment.
        """
        return entry if len(entry.data) <= _INLINE_BYTES else self._share(channel, entry.type, entry.data)

    def _share(self, channel: str, type_: str, data: bytes) -> Slice:
        self._shared.append((channel, type_, data))
        # `finish` replaces this placeholder.
        return Slice(type_, 0, 0, len(data))

    def finish(self, entries: dict[str, Entry]) -> None:
        """Write the shared segment and set the entries that refer to it."""
        if not self._shared:
            return
        segment_id = self._add(b"".join(data for _, _, data in self._shared))
        offset = 0
        for channel, type_, data in self._shared:
            entries[channel] = Slice(type_, segment_id, offset, len(data))
            offset += len(data)

    def _store_list(self, channel: str, value: list[Any], old: Elements | None) -> tuple[Entry, bool] | None:
        """Return the entry of a list, and whether the entry inherits segments from the parent.

        Return `None` if an element cannot be encoded alone.
        """
        codec = self.codec
        try:
            fingerprints = codec.fingerprints(
                channel, value, old.fingerprints if old and old.fingerprints else NO_FINGERPRINTS
            )
        except TypeError:
            # The serializer must encode this list as a whole, or refuse the list.
            return None
        old_runs = old.runs if old else ()
        kept, rest = diff_runs(
            old_runs, old.fingerprints.digests if old and old.fingerprints else None, fingerprints.digests
        )
        if not kept and not any(isinstance(piece, Run) for piece in rest):
            encoded = codec.encode_elements(channel, value)
            if len(encoded) < _INLINE_BYTES:
                return Inline("msgpack", array_header(len(value)) + encoded), False
        runs = [*old_runs[:kept]]
        inherits = kept > 0
        for piece in rest:
            if isinstance(piece, Fresh):
                runs += self._store_elements(channel, value[piece.start : piece.stop])
            else:
                runs.append(piece)
                inherits = True
        return Elements(tuple(runs), fingerprints), inherits

    def _store_elements(self, channel: str, elements: Sequence[Any]) -> list[Run]:
        """Write elements to new segments of about `SEGMENT_BYTES`, and return a `Run` for each segment."""
        runs = []
        parts: list[bytes] = []
        size = 0
        are_plain = True
        for number, element in enumerate(elements, 1):
            encoded, is_plain = self.codec.encode_element(channel, element)
            parts.append(encoded)
            size += len(encoded)
            are_plain = are_plain and is_plain
            if size >= SEGMENT_BYTES or number == len(elements):
                content = b"".join([PLAIN_MARK if are_plain else b"", array_header(len(parts)), *parts])
                runs.append(Run(self._add(content), 0, len(parts), size))
                parts, size, are_plain = [], 0, True
        return runs

    def _add(self, content: bytes) -> int:
        if self.left is not None:
            self.left -= len(content)
            if self.left < 0:
                raise TooHeavyError
        segment_id = new_segment_id(self.taken, self.segments)
        self.segments[segment_id] = frames.pack(content)
        self.contents[segment_id] = content
        return segment_id


def _renumber(entry: Entry, ids: Mapping[int, int]) -> Entry:
    if isinstance(entry, Slice):
        return entry._replace(segment_id=ids.get(entry.segment_id, entry.segment_id))
    if isinstance(entry, Elements):
        return replace(
            entry, runs=tuple(replace(run, segment_id=ids.get(run.segment_id, run.segment_id)) for run in entry.runs)
        )
    return entry


@dataclass(frozen=True, slots=True)
class Fresh:
    """Consecutive elements `[start, stop)` of the list that are not stored yet."""

    start: int
    stop: int
    size: ClassVar[int] = 0

    @property
    def count(self) -> int:
        """Number of elements."""
        return self.stop - self.start


Piece = Run | Fresh


def diff_runs(old_runs: Sequence[Run], old_digests: bytes | None, digests: bytes) -> tuple[int, list[Piece]]:
    """Return runs of an earlier list and new elements that together make up the list to store.

    Returns:
        The number of leading runs of the earlier list to keep, and pieces for the remaining elements, in order.
    """
    count = len(digests) // DIGEST_SIZE
    if not old_digests:
        return 0, [Fresh(0, count)] if count else []
    if not digests.startswith(old_digests):
        pieces = _match(old_runs, old_digests, digests)
        if sum(isinstance(piece, Run) for piece in pieces) > max(_MAX_RUNS, count // _MAX_RUNS_SHARE):
            return 0, [Fresh(0, count)]
        return 0, _merge(pieces)
    old_count = len(old_digests) // DIGEST_SIZE
    if count == old_count:
        return len(old_runs), []
    tail, size = _small_tail(old_runs)
    if count - old_count < MERGE_AT and (tail + 1 >= MERGE_AT or size >= SEGMENT_BYTES):
        kept = len(old_runs) - tail
        return kept, [Fresh(sum(run.count for run in old_runs[:kept]), count)]
    return len(old_runs), [Fresh(old_count, count)]


def _match(old_runs: Sequence[Run], old_digests: bytes, digests: bytes) -> list[Piece]:
    """Return a list as pieces: runs of elements of the earlier list, and new elements.

    Among equal elements of the earlier list, prefer the element after the previous match, or else the first.
    """
    places: dict[bytes, int] = {}
    old = [old_digests[at : at + DIGEST_SIZE] for at in range(0, len(old_digests), DIGEST_SIZE)]
    for index in range(len(old) - 1, -1, -1):
        places[old[index]] = index
    homes = [(run, run.first + offset) for run in old_runs for offset in range(run.count)]
    pieces: list[Piece] = []
    expected = 0
    for index in range(len(digests) // DIGEST_SIZE):
        digest = digests[index * DIGEST_SIZE : (index + 1) * DIGEST_SIZE]
        place = expected if expected < len(old) and old[expected] == digest else places.get(digest)
        last = pieces[-1] if pieces else None
        if place is None:
            if isinstance(last, Fresh):
                pieces[-1] = Fresh(last.start, index + 1)
            else:
                pieces.append(Fresh(index, index + 1))
            continue
        expected = place + 1
        run, position = homes[place]
        size = run.size // run.count
        if isinstance(last, Run) and last.segment_id == run.segment_id and last.first + last.count == position:
            pieces[-1] = Run(last.segment_id, last.first, last.count + 1, last.size + size)
        else:
            pieces.append(Run(run.segment_id, position, 1, size))
    return pieces


def _merge(pieces: list[Piece]) -> list[Piece]:
    """Replace the small pieces at the end by one new piece, if their number or total size reaches a limit."""
    tail, size = _small_tail(pieces)
    if tail < MERGE_AT and size < SEGMENT_BYTES:
        return pieces
    stop = sum(piece.count for piece in pieces)
    start = stop - sum(piece.count for piece in pieces[-tail:])
    return [*pieces[:-tail], Fresh(start, stop)]


def _small_tail(pieces: Sequence[Piece]) -> tuple[int, int]:
    """Return the number of small pieces at the end, and their total size in bytes."""
    tail = 0
    total = 0
    for piece in reversed(pieces):
        size = piece.size
        if size >= _SMALL_BYTES or piece.count >= MERGE_AT:
            break
        tail += 1
        total += size
    return tail, total


def new_segment_id(taken: Collection[int] = (), also_taken: Collection[int] = ()) -> int:
    """Return a positive 31-bit id that is in neither collection."""
    while True:
        segment_id = random_bits(_SEGMENT_BITS)
        if segment_id not in taken and segment_id not in also_taken:
            return segment_id
