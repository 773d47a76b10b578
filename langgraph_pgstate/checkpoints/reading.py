"""Conversion of rows to LangGraph's tuples. No I/O."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from langgraph.checkpoint.base import CheckpointTuple, PendingWrite, writes_sort_key
from langgraph.checkpoint.serde.types import TASKS

from langgraph_pgstate.arguments import Address
from langgraph_pgstate.codec import frames
from langgraph_pgstate.codec.metadata import join_metadata
from langgraph_pgstate.codec.states import Elements, Entry, Inline, Manifest, Run, Scalar, Slice, State, decode_state
from langgraph_pgstate.codec.values import PLAIN_MARK, Fingerprints, ValueCodec, array_header, split_array
from langgraph_pgstate.codec.writes import Write, unpack_writes
from langgraph_pgstate.db.protocol import Row
from langgraph_pgstate.errors import CorruptStateError, UnreadableFormatError

# The first checkpoint format that keeps pending sends in a separate channel.
_SENDS_IN_STATE: Final = 4


@dataclass(slots=True)
class CheckpointRow:
    """The columns of a row of `checkpoints` that were read.

    Attributes:
        address: The checkpoint's address.
        parent_id: The parent's id.
        metadata: JSON text.
        state: The encoded state; `None` if only metadata was read.
        segment_ids: The segments that the state refers to by position.
        revision: Random number that each write of the row sets; 0 if the column was not read.
        state_version: State version with which the checkpoint was written.
        is_cut: Whether the parent no longer exists.
    """

    address: Address
    parent_id: str | None
    metadata: str
    state: bytes | None
    segment_ids: Sequence[int]
    revision: int = 0
    state_version: int | None = None
    is_cut: bool = False
    _decoded: State | None = None

    @property
    def element_count(self) -> int:
        """Number of list elements, without lists that are stored whole; 0 if the state is damaged."""
        try:
            entries = self.decode().manifest.entries.values()
        except (CorruptStateError, UnreadableFormatError):
            return 0
        return sum(run.count for entry in entries if type(entry) is Elements for run in entry.runs)

    def decode(self) -> State:
        """Return the state. The first call decodes it.

        Raises:
            CorruptStateError: If the state is damaged.
        """
        if self._decoded is None:
            assert self.state is not None
            self._decoded = decode_state(self.state, self.segment_ids, str(self.address))
        return self._decoded


class WritesRow(NamedTuple):
    """A row of `writes`."""

    task_id: str
    task_path: str
    idx: int
    data: bytes


class CachedSegments(NamedTuple):
    """The cached segments of a checkpoint, valid for one revision of its row.

    Attributes:
        revision: The row's revision.
        contents: Contents of the cached segments, by id.
        missing: Ids of the checkpoint's segments that are not cached.
    """

    revision: int
    contents: Mapping[int, bytes]
    missing: list[int]


class Segments:
    """The segments read for one thread. A segment is decompressed at its first use.

    Args:
        rows: Id and frame of each segment that was fetched.
        known: Contents of the cached segments, by id.
    """

    def __init__(self, rows: Iterable[tuple[int, bytes]], known: Mapping[int, bytes] | None = None) -> None:
        self._frames = dict(rows)
        self.contents: dict[int, bytes] = dict(known) if known else {}

    @property
    def size(self) -> int:
        """Bytes of all segments after decompression; estimated for small and cached segments."""
        return sum(map(frames.content_size, self._frames.values())) + self.content_size // 2

    @property
    def content_size(self) -> int:
        """Bytes of the decompressed contents in memory."""
        return sum(map(len, self.contents.values()))

    def content(self, segment_id: int, where: str) -> bytes:
        """Return a segment's content.

        Raises:
            CorruptStateError: If the segment is missing or damaged.
        """
        found = self.contents.get(segment_id)
        if found is None:
            frame = self._frames.get(segment_id)
            if frame is None:
                raise CorruptStateError(where, f"its segment {segment_id} is missing")
            found = self.contents[segment_id] = frames.unpack(frame, f"segment {segment_id} of {where}")
        return found


def load_tuple(
    codec: ValueCodec,
    row: CheckpointRow,
    segments: Segments,
    writes: Iterable[WritesRow],
    pending_sends: Sequence[Any] | None = None,
) -> tuple[CheckpointTuple, Manifest]:
    """Return a checkpoint as LangGraph's tuple, and the manifest with fingerprints.

    Args:
        codec: Decodes the values.
        row: The checkpoint, with its state.
        segments: The checkpoint's segments.
        writes: Pending writes, in any order.
        pending_sends: For formats before 4, the sends that the parent's tasks wrote.

    Raises:
        CorruptStateError: If a value or segment is missing or damaged.
        UnsafeTypeError: If the checkpoint holds a type that may not be built.
    """
    where = str(row.address)
    state = row.decode()
    values: dict[str, Any] = {}
    entries: dict[str, Entry] = {}
    for channel, entry in state.manifest.entries.items():
        values[channel], entries[channel] = load_value(codec, entry, segments, f"channel {channel!r} of {where}")
    if pending_sends:
        versions = state.checkpoint["channel_versions"] = dict(state.checkpoint["channel_versions"])
        values[TASKS] = list(pending_sends)
        versions[TASKS] = max(versions.values()) if versions else f"{1:032}.{0:016}"
    checkpoint = {**state.checkpoint, "id": row.address.checkpoint_id, "channel_values": values}
    for key, (type_, data) in state.extra.items():
        checkpoint[key] = codec.loads(type_, data, f"{key!r} of {where}")
    loaded = CheckpointTuple(
        config=row.address.config,  # type: ignore[arg-type]
        checkpoint=checkpoint,  # type: ignore[arg-type]
        metadata=load_metadata(codec, row, state),  # type: ignore[arg-type]
        parent_config=parent_config(row),  # type: ignore[arg-type]
        pending_writes=load_writes(codec, writes, where),
    )
    # Copy the versions, because LangGraph changes those of the returned checkpoint in place.
    return loaded, Manifest(dict(state.manifest.versions), entries, row.revision)


def load_metadata(codec: ValueCodec, row: CheckpointRow, state: State | None) -> dict[str, Any]:
    """Return a checkpoint's metadata. Without `state`, values that JSON cannot represent are approximated."""
    exact = {}
    for key, (type_, data) in (state.exact_metadata if state else {}).items():
        exact[key] = codec.loads(type_, data, f"metadata {key!r} of {row.address}")
    return join_metadata(row.metadata, exact)


def load_bare_tuple(codec: ValueCodec, row: CheckpointRow, created_at: Any) -> CheckpointTuple:
    """Return a checkpoint whose state was not read: its id, time, metadata and parent."""
    return CheckpointTuple(
        config=row.address.config,  # type: ignore[arg-type]
        checkpoint={
            "v": 4,
            "id": str(row.address.checkpoint_id),
            "ts": created_at.isoformat(),
            "channel_values": {},
            "channel_versions": {},
            "versions_seen": {},
            "updated_channels": None,
        },
        metadata=load_metadata(codec, row, None),  # type: ignore[arg-type]
        parent_config=parent_config(row),  # type: ignore[arg-type]
        pending_writes=None,
    )


def parent_config(row: CheckpointRow) -> dict[str, Any] | None:
    """Return the parent's config; `None` without a parent, or if the parent no longer exists."""
    thread_id, namespace, _ = row.address
    return Address(thread_id, namespace, row.parent_id).config if row.parent_id and not row.is_cut else None


def load_value(codec: ValueCodec, entry: Entry, segments: Segments, where: str) -> tuple[Any, Entry]:
    """Return a channel's value and its entry. The entry of a list has fingerprints."""
    match entry:
        case Scalar(value):
            return value, entry
        case Inline(type_, data):
            return codec.loads(type_, data, where), entry
        case Slice(type_, segment_id, offset, length):
            content = segments.content(segment_id, where)
            if offset or length != len(content):
                content = content[offset : offset + length]
            if len(content) != length:
                raise CorruptStateError(where, f"segment {segment_id} is too short")
            return codec.loads(type_, content, where), entry
        case Elements(runs):
            return _load_elements(codec, runs, segments, where)


def _load_elements(
    codec: ValueCodec, runs: Sequence[Run], segments: Segments, where: str
) -> tuple[list[Any], Elements]:
    bodies: list[bytes] = []
    total = 0
    mark = b""
    sized: list[Run] = []
    elements: list[Any] = []
    digests: list[bytes] = []

    def flush() -> None:
        nonlocal total
        if bodies:
            found, fingerprints = codec.decode_elements(b"".join([mark, array_header(total), *bodies]), where)
            elements.extend(found)
            digests.append(fingerprints)
            bodies.clear()
            total = 0

    for run in runs:
        content = segments.content(run.segment_id, where)
        count, start = split_array(content, where)
        if run.first + run.count > count:
            raise CorruptStateError(where, f"segment {run.segment_id} has only {count} elements")
        sized.append(Run(run.segment_id, run.first, run.count, len(content) * run.count // count))
        if run.count == count:
            # Decode adjacent segments in one call if all or none have the mark of plain messages.
            if content.startswith(PLAIN_MARK) != bool(mark):
                flush()
                mark = b"" if mark else PLAIN_MARK
            bodies.append(content[start:])
            total += count
            continue
        flush()
        found, fingerprints = codec.decode_elements(content, where)
        elements.extend(found[run.first : run.first + run.count])
        digests.append(fingerprints[run.first * 16 : (run.first + run.count) * 16])
    flush()
    return elements, Elements(tuple(sized), Fingerprints(b"".join(digests), ()))


def flatten_writes(rows: Iterable[WritesRow], where: str) -> list[tuple[str, str, Write]]:
    """Return `(task_path, task_id, write)` of every pending write, in the order in which LangGraph applies them."""
    found = [
        (row.task_path, row.task_id, write)
        for row in rows
        for write in unpack_writes(row.data, f"writes of task {row.task_id!r} at {where}")
    ]
    return sorted(found, key=lambda item: writes_sort_key(item[0], item[1], item[2][0]))


def load_writes(codec: ValueCodec, rows: Iterable[WritesRow], where: str) -> list[PendingWrite]:
    """Return pending writes as LangGraph's tuples."""
    return [
        (task_id, channel, codec.loads(type_, data, f"a pending write to {channel!r} at {where}"))
        for _, task_id, (_, channel, type_, data) in flatten_writes(rows, where)
    ]


def is_old_format(state: State) -> bool:
    """Return whether the format is before 4. Such formats keep pending sends among the parent's writes."""
    v = state.checkpoint["v"]
    return type(v) is int and v < _SENDS_IN_STATE


def states_to_manifests(rows: Iterable[Row], where: str) -> Mapping[str, Manifest]:
    """Return manifests by checkpoint id, from rows `(checkpoint_id, state, segment_ids, revision)`."""
    manifests = {}
    for checkpoint_id, state, segment_ids, revision in rows:
        manifest = decode_state(state, segment_ids, f"checkpoint {checkpoint_id!r} of {where}").manifest
        manifest.revision = revision
        manifests[checkpoint_id] = manifest
    return manifests
