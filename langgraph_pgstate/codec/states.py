"""A checkpoint's `state`: all parts of the checkpoint except its large values, in one frame.

    [format, v, ts, channel_versions, versions_seen, updated_channels, manifest, extra, exact_metadata]

`manifest` has one entry for each channel. `position` is an index into the row's `segment_ids`.

    a scalar                             the value itself
    [0, type, bytes]                     a small value
    [1, type, position, offset, length]  a value that is a slice of a segment
    [2, position, first, count, …]       a list; three numbers for each run of elements of a segment
    [3, position, count, …]              a list of whole segments in consecutive positions

A channel with a version but no entry is empty. `extra` holds unknown keys of the checkpoint.

An encrypted state begins with the number of the row's segment ids and a digest of these ids, which are not encrypted.
The digest shows whether segments were exchanged or reordered.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from operator import attrgetter
from typing import Any, Final, NamedTuple

import ormsgpack

from langgraph_pgstate.codec import frames
from langgraph_pgstate.codec.values import Fingerprints
from langgraph_pgstate.errors import CorruptStateError, DecryptionError, UnreadableFormatError

FORMAT: Final = 1
_ABSENT: Final = False
_COUNT_BYTES: Final = 4
_LISTED_BYTES: Final = 1 + _COUNT_BYTES + 16
_MAX_RAW: Final = 4 * 1024
# Every encoded message contains these bytes, and few other values do.
_IN_DICTIONARY: Final = b"langchain_core.messages"
_SEGMENT_ID, _FIRST, _COUNT = attrgetter("segment_id"), attrgetter("first"), attrgetter("count")
_INLINE, _SLICE, _ELEMENTS, _WHOLE_SEGMENTS = 0, 1, 2, 3
KNOWN_KEYS: Final = frozenset(
    {"v", "id", "ts", "channel_values", "channel_versions", "versions_seen", "updated_channels"}
)
"""The checkpoint keys that have their own field in a row or in its state."""


class Scalar(NamedTuple):
    """A scalar that is stored as the manifest's entry."""

    value: str | int | float | bool | None


class Inline(NamedTuple):
    """A small encoded value, stored in the manifest itself."""

    type: str
    data: bytes


class Slice(NamedTuple):
    """A whole value inside a segment.

    Attributes:
        type: The type that the serializer gave the value.
        segment_id: Id of the segment.
        offset: Offset of the value in the segment's content, in bytes.
        length: Size of the value in bytes.
    """

    type: str
    segment_id: int
    offset: int
    length: int


@dataclass(frozen=True, slots=True)
class Run:
    """Consecutive elements held by one segment.

    Attributes:
        segment_id: Id of the segment.
        first: Index of the run's first element in the segment.
        count: Number of elements.
        size: Approximate encoded size of the elements in bytes; 0 if unknown.
    """

    segment_id: int
    first: int
    count: int
    size: int = 0


@dataclass(frozen=True, slots=True)
class Elements:
    """A list whose elements are in segments.

    Attributes:
        runs: The runs that hold the elements.
        fingerprints: The fingerprints of the elements; `None` if this process has not computed them.
    """

    runs: tuple[Run, ...]
    fingerprints: Fingerprints | None = field(default=None, compare=False)


Entry = Scalar | Inline | Slice | Elements
NOTHING: Final = object()


@dataclass(slots=True)
class Manifest:
    """The location of each channel's value in one checkpoint.

    Attributes:
        versions: The checkpoint's `channel_versions`.
        entries: Entry of each channel that has a value.
        revision: The `revision` of the row from which the manifest was read; 0 before the row is written.
    """

    versions: Mapping[str, Any]
    entries: dict[str, Entry]
    revision: int = 0
    _positions: dict[int, int] | None = field(default=None, init=False, compare=False, repr=False)

    def entry(self, channel: str, version: Any) -> Entry | object | None:
        """Return a channel's entry; `NOTHING` if the channel is empty, `None` if its version is another one."""
        known = self.versions.get(channel)
        if known is None or known != version:
            return None
        return self.entries.get(channel, NOTHING)

    def reuse_cached(self, cached: Manifest | None) -> None:
        """Replace lists by a cached manifest's equal lists, whose fingerprints also have `blocks`."""
        if cached is None or cached.revision != self.revision:
            return
        for channel, before in cached.entries.items():
            entry = self.entries.get(channel)
            if (
                isinstance(entry, Elements)
                and isinstance(before, Elements)
                and entry.fingerprints is not None
                and before.fingerprints is not None
                # Re-encoding a decoded list can give different bytes, so equal fingerprints are required.
                and entry.fingerprints.digests == before.fingerprints.digests
            ):
                self.entries[channel] = before

    def size_of(self, channel: str) -> int:
        """Return the encoded size of a channel's value in bytes; 0 if it is not known."""
        entry = self.entries.get(channel)
        if isinstance(entry, Elements):
            return sum(run.size for run in entry.runs)
        return entry.length if isinstance(entry, Slice) else 0

    def count_of(self, channel: str) -> int:
        """Return the number of elements of a channel's list; 0 if the elements are not stored one by one."""
        entry = self.entries.get(channel)
        return sum(map(_COUNT, entry.runs)) if isinstance(entry, Elements) else 0

    def segment_ids(self) -> list[int]:
        """Return the ids of all segments that the entries refer to, each once, in order of first use."""
        return [*self.positions()]

    def positions(self) -> Mapping[int, int]:
        """Return the index of each segment in `segment_ids`.

        The first call caches the result, so all entries must exist before.
        """
        if self._positions is None:
            ids: list[int] = []
            for entry in self.entries.values():
                if type(entry) is Elements:
                    ids += map(_SEGMENT_ID, entry.runs)
                elif type(entry) is Slice:
                    ids.append(entry.segment_id)
            # Keep the first occurrence of each segment.
            self._positions = dict(zip(dict.fromkeys(ids), count(), strict=False))
        return self._positions


@dataclass(slots=True)
class State:
    """The decoded column `state` of a checkpoint.

    Attributes:
        checkpoint: LangGraph's checkpoint without `id` and `channel_values`.
        manifest: The location of the channel values.
        extra: Encoded values of unknown checkpoint keys.
        exact_metadata: Encoded values of metadata keys that JSON does not represent exactly.
    """

    checkpoint: dict[str, Any]
    manifest: Manifest
    extra: dict[str, list[Any]]
    exact_metadata: dict[str, list[Any]]


def encode_state(
    checkpoint: Mapping[str, Any],
    manifest: Manifest,
    extra: Mapping[str, tuple[str, bytes]],
    exact_metadata: Mapping[str, tuple[str, bytes]],
) -> bytes:
    """Return a state as the bytes of its column.

    A small state that has mostly other values than messages is not compressed, because the dictionary does not cover
    such values.
    """
    positions = manifest.positions()
    entries: dict[str, Any] = {}
    value_bytes = 0
    for channel, entry in manifest.entries.items():
        if type(entry) is Scalar:
            entries[channel] = value = entry.value
            if type(value) is str:
                value_bytes += len(value)
        elif type(entry) is Inline:
            entries[channel] = [_INLINE, entry.type, entry.data]
            if _IN_DICTIONARY not in entry.data:
                value_bytes += len(entry.data)
        elif type(entry) is Slice:
            entries[channel] = [_SLICE, entry.type, positions[entry.segment_id], entry.offset, entry.length]
        elif type(entry) is Elements:
            entries[channel] = _encode_runs(entry.runs, positions)
    content = ormsgpack.packb(
        [
            FORMAT,
            checkpoint["v"],
            checkpoint["ts"],
            checkpoint["channel_versions"],
            checkpoint["versions_seen"],
            checkpoint.get("updated_channels", _ABSENT),
            entries,
            extra,
            exact_metadata,
        ]
    )
    if value_bytes * 2 > len(content) and len(content) <= _MAX_RAW:
        return frames.pack_raw(content)
    return frames.pack(content)


def list_segments(data: bytes, segment_ids: Sequence[int]) -> bytes:
    """Return a state for encryption, preceded by the number of its segments and a digest of their ids.

    The state's row may name more segments later. The digest covers the first ids only, as many as the number says.
    """
    count = len(segment_ids).to_bytes(_COUNT_BYTES, "big")
    return bytes((frames.LISTED,)) + count + _digest(segment_ids) + data


def _digest(segment_ids: Sequence[int]) -> bytes:
    return hashlib.blake2b(str([*segment_ids]).encode(), digest_size=16).digest()


def _check_segments(data: bytes, segment_ids: Sequence[int], where: str) -> bytes:
    """Return a decrypted state without its list of segments. Raise if the row names other segments."""
    count = int.from_bytes(data[1 : 1 + _COUNT_BYTES], "big")
    if count > len(segment_ids) or _digest(segment_ids[:count]) != data[1 + _COUNT_BYTES : _LISTED_BYTES]:
        raise DecryptionError(where, "the segments of its row must be those with which the state was encrypted")
    return data[_LISTED_BYTES:]


def open_state(data: bytes, segment_ids: Sequence[int], where: str) -> bytes:
    """Return the content of a state's frame.

    Raises:
        CorruptStateError: If the frame is damaged.
        DecryptionError: If the row names other segments than the state was encrypted with.
    """
    if data[:1] == b"\x04":
        data = _check_segments(data, segment_ids, where)
    return frames.unpack(data, where)


def decode_state(data: bytes, segment_ids: Sequence[int], where: str) -> State:
    """Return the state that `encode_state` was given.

    Raises:
        CorruptStateError: If the bytes are damaged.
        UnreadableFormatError: If a newer version of this package wrote them.
        DecryptionError: If the row names other segments than the state was encrypted with.
    """
    try:
        fields = ormsgpack.unpackb(open_state(data, segment_ids, where))
        if fields[0] != FORMAT:
            raise UnreadableFormatError(where, f"format {fields[0]} needs a newer version of langgraph_pgstate")
        _, v, ts, versions, seen, updated, entries, extra, exact_metadata = fields
        if not all(type(one) is dict for one in (versions, seen, entries, extra, exact_metadata)):
            raise ValueError("versions, manifest, extra and metadata must be maps")
        extra, exact_metadata = (
            {name: [type_, content] for name, (type_, content) in one.items()} for one in (extra, exact_metadata)
        )
        checkpoint = {"v": v, "ts": ts, "channel_versions": versions, "versions_seen": seen}
        if updated is not _ABSENT:
            checkpoint["updated_channels"] = updated
        manifest = Manifest(versions, {name: _decode_entry(one, segment_ids, where) for name, one in entries.items()})
    except (ormsgpack.MsgpackDecodeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise CorruptStateError(where, f"its state does not decode ({error})") from error
    return State(checkpoint, manifest, extra, exact_metadata)


def _encode_runs(runs: Sequence[Run], positions: Mapping[int, int]) -> list[int]:
    places = [*map(positions.__getitem__, map(_SEGMENT_ID, runs))]
    first = places[0] if places else 0
    if places == [*range(first, first + len(places))] and not any(map(_FIRST, runs)):
        return [_WHOLE_SEGMENTS, first, *map(_COUNT, runs)]
    encoded = [_ELEMENTS]
    for place, run in zip(places, runs, strict=True):
        encoded += (place, run.first, run.count)
    return encoded


_PLACED: Final = (_SLICE, _ELEMENTS, _WHOLE_SEGMENTS)


def _decode_entry(entry: Any, segment_ids: Sequence[int], where: str) -> Entry:
    if type(entry) is not list:
        return Scalar(entry)
    kind = entry[0]
    if kind == _INLINE:
        return Inline(entry[1], entry[2])
    if kind in _PLACED and {*map(type, entry[2:] if kind == _SLICE else entry)} != {int}:
        raise ValueError("places and lengths must be numbers")
    if kind == _SLICE:
        return Slice(entry[1], segment_ids[entry[2]], entry[3], entry[4])
    if kind == _ELEMENTS:
        return Elements(
            tuple(Run(segment_ids[entry[at]], entry[at + 1], entry[at + 2]) for at in range(1, len(entry), 3))
        )
    if kind == _WHOLE_SEGMENTS:
        first = entry[1]
        return Elements(tuple(Run(segment_ids[first + at], 0, count) for at, count in enumerate(entry[2:])))
    # The frame's checksum matched, so the entry is not damaged.
    raise UnreadableFormatError(where, f"an entry of kind {kind} needs a newer version of langgraph_pgstate")
