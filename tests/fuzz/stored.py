"""Readers of stored bytes, each with bytes as they are stored."""

from __future__ import annotations

import base64
import hashlib
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import orjson
import ormsgpack
import zstandard
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langgraph.types import Interrupt, Send

from langgraph_pgstate.checkpoints.journal_entry import JournalEntry
from langgraph_pgstate.checkpoints.reading import Segments, load_value
from langgraph_pgstate.codec import frames
from langgraph_pgstate.codec.lists import Run
from langgraph_pgstate.codec.metadata import join_metadata
from langgraph_pgstate.codec.opaque import OpaqueCodec, TypeCollector
from langgraph_pgstate.codec.states import Elements, Inline, Manifest, Scalar, Slice, decode_state, encode_state
from langgraph_pgstate.codec.traceparent import parse_traceparent
from langgraph_pgstate.codec.values import ValueCodec
from langgraph_pgstate.codec.writes import pack_writes, unpack_writes
from langgraph_pgstate.encryption.cipher import DataKey, from_text, key_id_at, to_text
from langgraph_pgstate.encryption.masters import LocalMasterKey
from langgraph_pgstate.keep import packing
from langgraph_pgstate.paging import FIRST, decode_cursor, encode_cursor
from langgraph_pgstate.runs.cursors import Cursor, ThreadCursor
from langgraph_pgstate.runs.streams import decode_batch
from langgraph_pgstate.runs.types import StoredBatch


@dataclass
class Reader:
    """Something that reads stored bytes.

    Attributes:
        seeds: Bytes as they are stored; of a frame, its content.
        read: Reads bytes.
        close: Makes stored bytes of a content, with checksums that are right, so that damage reaches what is behind.
    """

    seeds: Sequence[bytes]
    read: Callable[[bytes], Any]
    close: Callable[[bytes], bytes] | None = None


CODEC = ValueCodec()
_VALUES: list[Any] = [
    [HumanMessage("Hello", id="1"), AIMessage("Hi", id="2", tool_calls=[{"name": "f", "args": {"a": 1}, "id": "3"}])],
    {"a": [1, 2.5, None, True], "b": {"c": b"bytes"}, "d": "text " * 40},
    [ToolMessage("done", tool_call_id="3"), Send("node", {"x": 1}), Interrupt({"ask": "?"}, id="4")],
    (1, {2, 3}, frozenset({4})),
    2**80,
    "\ud800",
    None,
]
_ENCODED = [CODEC.dumps("c", value) for value in _VALUES]
_IDS = [11, 12, 13]
_LIST = CODEC.encode_elements("c", _VALUES[0])
_SEGMENT = b"\x92" + _LIST
_KEY = DataKey("0011223344556677", "s", bytes(range(32)))
_MASTER = LocalMasterKey(bytes(range(32)))
_CONTEXT = {"key_id": "0011223344556677"}


def _states() -> list[bytes]:
    entries = {
        "a": Scalar(1),
        "b": Inline(*_ENCODED[1]),
        "c": Slice("msgpack", 11, 0, 20),
        "d": Elements((Run(12, 0, 2), Run(13, 0, 2))),
        "e": Elements((Run(12, 1, 1),)),
    }
    versions = {name: f"{number:032}.0" for number, name in enumerate(entries)}
    checkpoint = {"v": 4, "ts": "2026-01-01T00:00:00+00:00", "id": "i", "versions_seen": {"n": versions}}
    checkpoint |= {"channel_versions": versions, "updated_channels": ["a"]}
    manifest = Manifest(versions, entries)
    return [frames.unpack(encode_state(checkpoint, manifest, {"x": _ENCODED[0]}, {"y": _ENCODED[3]}), "seed")]


def _read_state(data: bytes) -> None:
    state = decode_state(data, _IDS, "fuzz")
    segments = Segments([(11, frames.pack(bytes(40))), (12, frames.pack(_SEGMENT)), (13, frames.pack(_SEGMENT))])
    for entry in state.manifest.entries.values():
        load_value(CODEC, entry, segments, "fuzz")
    for type_, content in (*state.extra.values(), *state.exact_metadata.values()):
        CODEC.loads(type_, content, "fuzz")


def _read_writes(data: bytes) -> None:
    for _, _, type_, content in unpack_writes(data, "fuzz"):
        CODEC.loads(type_, content, "fuzz")


_TYPES = (
    *dict.fromkeys(type_ for type_, _ in _ENCODED),
    "json",
    "bytes",
    "bytearray",
    "pickle",
    "pgstate/exact/msgpack",
    "x",
)


def _read_value(data: bytes) -> None:
    """The first byte chooses the type."""
    CODEC.loads(_TYPES[data[0] % len(_TYPES)] if data else "msgpack", data[1:], "fuzz")


def _read_types(data: bytes) -> None:
    TypeCollector().loads(_TYPES[data[0] % len(_TYPES)] if data else "msgpack", data[1:], "fuzz")


def _read_batch(data: bytes) -> None:
    list(decode_batch(CODEC.lenient(), StoredBatch(1, 3, 1, None, data, None), "fuzz"))  # type: ignore[arg-type]


def _read_entry(data: bytes) -> None:
    JournalEntry.unpack("t", data)


def _read_segment(data: bytes) -> None:
    for run in (Run(1, 0, 2), Run(1, 1, 1)):
        load_value(CODEC, Elements((run,)), Segments([(1, data)]), "fuzz")


def _read_opaque(data: bytes) -> None:
    OpaqueCodec().decode_elements(data, "fuzz")


def _read_sealed(data: bytes) -> None:
    _KEY.open("states", ("t", 1), data)


def _read_sealed_text(data: bytes) -> None:
    text = data.decode("latin-1")
    key_id_at(text, is_bytes=False)
    _KEY.open("titles", ("t",), from_text(text, "fuzz"))


def _read_wrapped(data: bytes) -> None:
    _MASTER.unwrap(data, _CONTEXT)


def _read_cursor(data: bytes) -> None:
    text = data.decode("utf-8", "replace")
    decode_cursor("threads", text, [FIRST, ""])


def _close_cursor(data: bytes) -> bytes:
    return base64.urlsafe_b64encode(data)


def _read_place(data: bytes) -> None:
    text = data.decode("utf-8", "replace")
    Cursor(CODEC, "t", "r", text)


def _read_thread_place(data: bytes) -> None:
    ThreadCursor(CODEC, "t", data.decode("utf-8", "replace"))


_ROWS = [
    struct.pack("!iIi", 2, 25, 1) + b"a" + struct.pack("!Ii", 17, -1),
    struct.pack("!iIi", 2, 25, 2) + b"bc" + struct.pack("!Ii", 17, 1) + b"x",
]
_PACK, _MANIFEST = packing.pack(
    {"t": {"threads": _ROWS}, "u": {"threads": _ROWS[:1], "runs": []}},
    {"threads": [("thread_id", "text"), ("data", "bytea")], "runs": [("run_id", "text")]},
    archive_id="a",
    created_at="2026-01-01T00:00:00Z",
    schema_version=1,
    tenant=None,
)


def _read_manifest(data: bytes) -> None:
    found = packing.load_manifest(data, "fuzz")
    packing.check_pack(found, _PACK, "fuzz")


def _close_manifest(data: bytes) -> bytes:
    """The manifest with the root that it must have, where it is JSON."""
    try:
        plain = orjson.loads(data)
        plain.pop("root", None)
        root = hashlib.sha256(orjson.dumps(plain, option=orjson.OPT_SORT_KEYS)).hexdigest()
        return orjson.dumps({**plain, "root": root}, option=orjson.OPT_SORT_KEYS)
    except (ValueError, TypeError, AttributeError):
        return data


def _read_pack(data: bytes) -> None:
    frame = _MANIFEST.frames["t"]
    rows = packing.unpack(frame, data, "fuzz")
    packing.transpose(rows["threads"], 2)


def _read_forged_pack(data: bytes) -> None:
    """A pack whose digests a forger made."""
    frame = _MANIFEST.frames["t"]._replace(bytes=len(data), sha256=hashlib.sha256(data).hexdigest())
    packing.unpack(frame, data, "fuzz")


def _read_metadata(data: bytes) -> None:
    """PostgreSQL checks that metadata is JSON; of other bytes there is nothing to read."""
    try:
        plain = orjson.loads(data)
    except ValueError:
        return
    if isinstance(plain, dict):
        join_metadata(data.decode(), {})


_CURSOR = encode_cursor("threads", ["2026-01-01T00:00:00+00:00", "t"])

READERS = {
    "frame": Reader(
        [frames.pack(b"short"), frames.pack(b"human langchain_core " * 20), frames.pack(b"lorem ipsum " * 9000)],
        lambda data: frames.unpack(data, "fuzz"),
    ),
    "state": Reader(_states(), _read_state, frames.pack),
    "writes": Reader(
        [frames.unpack(pack_writes([(n, "c", *one) for n, one in enumerate(_ENCODED)]), "seed")],
        _read_writes,
        frames.pack,
    ),
    "value": Reader([bytes([_TYPES.index(type_)]) + data for type_, data in _ENCODED], _read_value),
    "segment": Reader([_SEGMENT], _read_segment, frames.pack),
    "opaque": Reader([_SEGMENT], _read_opaque),
    "types": Reader([bytes([_TYPES.index(type_)]) + data for type_, data in _ENCODED], _read_types),
    "stream": Reader(
        [ormsgpack.packb([("values", ("a",), 1, *_ENCODED[n]) for n in (0, 1, 2)])], _read_batch, frames.pack
    ),
    "journal": Reader(
        [
            frames.unpack(
                JournalEntry(
                    runs=[orjson.dumps({"thread_id": "t", "run_id": "r"})],
                    events=[orjson.dumps({"thread_id": "t"})],
                    messages=[("put", orjson.dumps({"thread_id": "t", "checkpoint_id": "c"}))],
                    begun=[("t", "r")],
                    thread_ids=["t"],
                ).pack(),
                "seed",
            )
        ],
        _read_entry,
        frames.pack_short_lived,
    ),
    "sealed": Reader([_KEY.seal("states", ("t", 1), frames.pack(b"secret"))], _read_sealed),
    "sealed text": Reader([to_text(_KEY.seal("titles", ("t",), b"secret")).encode()], _read_sealed_text),
    "data key": Reader([_MASTER.wrap(bytes(32), _CONTEXT)], _read_wrapped),
    "cursor": Reader([base64.urlsafe_b64decode(_CURSOR + "==")], _read_cursor, _close_cursor),
    "place": Reader([b"12", b"12.end", b"-1"], _read_place),
    "place in a thread": Reader([b"run:12", b"run:12.error"], _read_thread_place),
    "traceparent": Reader(
        [b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"],
        lambda data: parse_traceparent(data.decode("utf-8", "replace")),
    ),
    "metadata": Reader([b'{"source": "loop", "step": 1, "writes": {}}'], _read_metadata),
    "manifest": Reader([_MANIFEST.dump()], _read_manifest, _close_manifest),
    "pack": Reader([_PACK[: _MANIFEST.frames["t"].bytes]], _read_pack),
    "forged pack": Reader(
        [zstandard.ZstdDecompressor().decompress(_PACK[: _MANIFEST.frames["t"].bytes])],
        _read_forged_pack,
        zstandard.ZstdCompressor().compress,
    ),
}
