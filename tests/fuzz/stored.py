"""Readers of stored bytes, each with bytes as they are stored."""

from __future__ import annotations

import base64
import hashlib
import json
import random
import re
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import orjson
import ormsgpack
import zstandard
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langgraph.types import Interrupt, Send

from langgraph_pgstate.checkpoints.journal_entry import JournalEntry
from langgraph_pgstate.checkpoints.reading import Segments, load_value
from langgraph_pgstate.codec import frames
from langgraph_pgstate.codec.metadata import join_metadata
from langgraph_pgstate.codec.opaque import OpaqueCodec, TypeCollector
from langgraph_pgstate.codec.states import Elements, Inline, Manifest, Run, Scalar, Slice, decode_state, encode_state
from langgraph_pgstate.codec.traceparent import parse_traceparent
from langgraph_pgstate.codec.values import ValueCodec
from langgraph_pgstate.codec.writes import pack_writes, unpack_writes
from langgraph_pgstate.db import contents
from langgraph_pgstate.db.contents import Contents
from langgraph_pgstate.encryption.cipher import DataKey, from_text, key_id_at, key_id_of, to_text
from langgraph_pgstate.encryption.columns import CONTENTS
from langgraph_pgstate.encryption.masters import LocalMasterKey
from langgraph_pgstate.errors import DataKeyError, NotEncryptedError
from langgraph_pgstate.files.contents import decode_content
from langgraph_pgstate.keep import packing, receipts
from langgraph_pgstate.paging import FIRST, decode_cursor, encode_cursor
from langgraph_pgstate.record import audit
from langgraph_pgstate.runs.cursors import Cursor, ThreadCursor
from langgraph_pgstate.runs.inputs import RunInput, change_input, merge_inputs, open_input, seal_input
from langgraph_pgstate.runs.streams import decode_batch
from langgraph_pgstate.runs.types import StoredBatch
from langgraph_pgstate.runs.webhook_rows import host_of, webhook_of

from .mutating import packable, packed, scalar, unpacked, written


class Tree(NamedTuple):
    """Reads and writes bytes as a tree of values, and makes values of it."""

    load: Callable[[bytes], Any]
    dump: Callable[[Any], bytes]
    other: Callable[[random.Random], Any]


JSON = Tree(json.loads, lambda tree: written(tree).encode("utf-8", "surrogatepass"), scalar)
MSGPACK = Tree(unpacked, packed, packable)


@dataclass
class Reader:
    """Something that reads stored bytes.

    Attributes:
        seeds: Bytes as they are stored; of a frame, its content.
        read: Reads bytes.
        close: Makes stored bytes of a content, with checksums that are right, so that damage reaches what is behind.
        tree: The form of the seeds, if parts of them are also replaced by others.
    """

    seeds: Sequence[bytes]
    read: Callable[[bytes], Any]
    close: Callable[[bytes], bytes] | None = None
    tree: Tree | None = None


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
    entry = JournalEntry.unpack("t", data)
    entry.extend(entry.of_threads(["t"]))
    for half in entry.halves():
        assert half.size >= 0


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


_SECRET = b"a secret of receipts"
_PRIVATE = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
_PEM = _PRIVATE.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
_PUBLIC_PEM = _PRIVATE.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
_SUBJECT = receipts.subject_of("user", "eve")
_RECEIPT = {
    "receipt_id": "1",
    "kind": "user",
    "started_at": "2026-01-01T00:00:00+00:00",
    "ended_at": "2026-01-01T00:00:01+00:00",
    "counts": {"threads": 2, "messages": 5},
}


def _receipt(key: bytes) -> bytes:
    return json.dumps(receipts.make_receipt(_RECEIPT, _SUBJECT, receipts.Signer(key))).encode()


def _read_receipt(key: bytes) -> Callable[[bytes], Any]:
    def read(data: bytes) -> None:
        receipts.verify_receipt(data, key, _SUBJECT)
        try:
            given = json.loads(data)
        except (ValueError, RecursionError):
            return
        receipts.verify_receipt(given, key, _SUBJECT)

    return read


def _sign_receipt(data: bytes) -> bytes:
    """A receipt that the holder of the key has signed, whatever it holds."""
    try:
        plain = json.loads(data)
        plain.pop("signature", None)
        return written({**plain, "signature": receipts.Signer(_SECRET).sign(receipts._content(plain))}).encode()
    except (ValueError, TypeError, AttributeError, RecursionError):
        return data


class _Keys:
    """The data keys of a database: one."""

    finds_words = admits_vectors = True

    def seal(self, column: str, content: Any, parts: Sequence[Any], value: bytes) -> bytes:
        return _KEY.seal(column, parts, value, is_stable=content.is_stable)

    def open(self, column: str, parts: Sequence[Any], value: bytes) -> bytes:
        if key_id_of(value) != _KEY.id:
            raise DataKeyError(key_id_of(value), "it is not in data_keys")
        return _KEY.open(column, parts, value)

    def current_id(self, column: str, parts: Sequence[Any]) -> str:
        return _KEY.id

    def admit_plain(self, place: str) -> None:
        raise NotEncryptedError(place)

    def is_readable(self, column: str, key: str) -> bool:
        return key == "n"

    def is_searchable(self, key: str) -> bool:
        return key == "m"

    def digest(self, column: str, key: str, value: Any) -> str:
        return "d"

    def words(self, text: str) -> str:
        return _KEY.words(text.split())

    def mark(self, column: str, parts: Sequence[Any], digest: str) -> str:
        return _KEY.mark("x", digest)


_KEYS = _Keys()
_OBJECT = {"graph_id": "g", "n": 1, "m": "x", "secret": {"a": [1, "b"]}}
_CALLS = [{"name": "f", "args": {"a": 1}, "id": "1"}]
_ENVELOPES = Contents(
    [
        "opens: threads.title",
        "opens: threads.metadata",
        "opens: messages.tool_calls",
        "opens: memories.value from value",
        "opens: spans.input from content.input with run_id = key.0, span_id = key.1 of name spans",
        "opens: segments.data if intact",
    ]
)
_SAID = Contents(["opens: messages.content"])
_SAID.places = {"thread_id": 0, "message_id": 1, "content": 2}
_PLAIN = Contents(["opens: messages.content", "opens: threads.metadata", "opens: messages.tool_calls"])
_PLAIN.places = {"content": 0, "metadata": 1, "tool_calls": 2}
_ENVELOPES.places = {
    name: place
    for place, name in enumerate(
        re.findall(
            r"\w+", "thread_id title metadata message_id content tool_calls namespace key value name segment_id data"
        )
    )
}


def _sealed_row() -> Any:
    """A row with content of each kind, as statements store it."""
    found: Any = {"thread_id": "t", "message_id": "m", "namespace": ["a", "b"], "key": ["r", "s"], "name": "spans"}
    found["segment_id"] = 1
    sealing = {
        "title": ("threads.title", ("t",), "A title"),
        "metadata": ("threads.metadata", ("t",), _OBJECT),
        "said": ("messages.content", ("t", "m"), "Some words"),
        "tool_calls": ("messages.tool_calls", ("t", "m"), _CALLS),
        "value": ("memories.value", (["a", "b"], ["r", "s"]), {"text": "x"}),
        "input": ("spans.input", ("t", "r", "s"), {"a": 1}),
    }
    for name, (column, keys, value) in sealing.items():
        found[name] = _sealed(column, keys, value)
    return found


def _sealed(column: str, keys: Sequence[Any], value: Any) -> Any:
    content = CONTENTS[column]
    part = contents._Part(column, content, ("x",), None, None, None, (), None, frozenset(), False)
    return contents._seal_inner(_KEYS, part, keys, value)


def _read_envelopes(data: bytes) -> None:
    try:
        given = json.loads(data)
    except (ValueError, RecursionError):
        return
    if not isinstance(given, dict):
        return
    # Texts and JSON as a driver returns them; another type in a column is none that a table has.
    texts = {name: given.get(name) for name in ("title", "said")}
    if not all(one is None or isinstance(one, str) for one in texts.values()):
        return
    row = (
        "t",
        texts["title"],
        given.get("metadata"),
        "m",
        {"input": given.get("input")},
        given.get("tool_calls"),
        ["a", "b"],
        ["r", "s"],
        given.get("value"),
        "spans",
        1,
        str(given.get("data", "")).encode("utf-8", "surrogatepass"),
    )
    _SAID.open(_KEYS, [("t", "m", texts["said"])], {})
    _ENVELOPES.open(_KEYS, [row], {})
    for column, keys, name in (
        ("threads.title", ("t",), "title"),
        ("threads.metadata", ("t",), "metadata"),
        ("messages.tool_calls", ("t", "m"), "tool_calls"),
    ):
        if given.get(name) is not None:
            contents.reseal(_KEYS, column, keys, [("u", "m")], given[name])


def _read_plain_envelopes(data: bytes) -> None:
    """By a program without keys."""
    try:
        given = json.loads(data)
    except (ValueError, RecursionError):
        return
    if isinstance(given, dict):
        _PLAIN.key_ids([(given.get("said"), given.get("metadata"), given.get("tool_calls"))])


def _read_request(data: bytes) -> None:
    open_input(CODEC, data, "fuzz")
    change_input(CODEC, data, "fuzz", input={"a": 1})
    merge_inputs(data, data, ("input", "config"), "fuzz")


def _read_file(data: bytes) -> None:
    kind = data[:1]
    decode_content(CODEC, None if kind == b"f" else "msgpack", data[1:], True, "fuzz")


def _close_file(data: bytes) -> bytes:
    return b"f" + frames.pack(data)


_ENTRY_CONTENT = frames.unpack(
    JournalEntry(
        runs=[orjson.dumps({"thread_id": "t", "run_id": "r"})],
        events=[orjson.dumps({"thread_id": "t"})],
        messages=[("put", orjson.dumps({"thread_id": "t", "checkpoint_id": "c"}))],
        begun=[("t", "r")],
        ended=[("t", "r", 1.0)],
        thread_ids=["t"],
    ).pack(),
    "seed",
)


def _read_webhook(data: bytes) -> None:
    webhook_of(data.decode("utf-8", "surrogateescape"))
    host_of(data.decode("utf-8", "replace"))


def _read_transposed(data: bytes) -> None:
    """A row of an archive: what digests say is right, for a forger made them."""
    packing.transpose([*_ROWS, data], 2)


def _read_line(data: bytes) -> None:
    audit._exported(data)


def _read_key(data: bytes) -> None:
    receipts.Signer(data)


_CURSOR = encode_cursor("threads", ["2026-01-01T00:00:00+00:00", "t"])

READERS = {
    "frame": Reader(
        [frames.pack(b"short"), frames.pack(b"human langchain_core " * 20), frames.pack(b"lorem ipsum " * 9000)],
        lambda data: frames.unpack(data, "fuzz"),
    ),
    "state": Reader(_states(), _read_state, frames.pack, MSGPACK),
    "writes": Reader(
        [frames.unpack(pack_writes([(n, "c", *one) for n, one in enumerate(_ENCODED)]), "seed")],
        _read_writes,
        frames.pack,
        MSGPACK,
    ),
    "value": Reader([bytes([_TYPES.index(type_)]) + data for type_, data in _ENCODED], _read_value),
    "segment": Reader([_SEGMENT], _read_segment, frames.pack),
    "opaque": Reader([_SEGMENT], _read_opaque),
    "types": Reader([bytes([_TYPES.index(type_)]) + data for type_, data in _ENCODED], _read_types),
    "stream": Reader(
        [ormsgpack.packb([("values", ("a",), 1, *_ENCODED[n]) for n in (0, 1, 2)])], _read_batch, frames.pack, MSGPACK
    ),
    "journal": Reader([_ENTRY_CONTENT], _read_entry, frames.pack_short_lived, MSGPACK),
    "request": Reader(
        [frames.unpack(seal_input(CODEC, RunInput({"a": 1}, config={"tags": ["b"]}, stream_mode=["values"])), "seed")],
        _read_request,
        frames.pack,
        MSGPACK,
    ),
    "file": Reader(["A text with \u00fc".encode()], _read_file, _close_file),
    "receipt": Reader([_receipt(_SECRET)], _read_receipt(_SECRET), _sign_receipt, JSON),
    "signed receipt": Reader([_receipt(_PEM)], _read_receipt(_PUBLIC_PEM), None, JSON),
    "key of receipts": Reader([_PEM, _PUBLIC_PEM, _SECRET], _read_key),
    "envelope": Reader([json.dumps(_sealed_row()).encode()], _read_envelopes, None, JSON),
    "envelope without keys": Reader([json.dumps(_sealed_row()).encode()], _read_plain_envelopes, None, JSON),
    "row of an archive": Reader(_ROWS, _read_transposed),
    "webhook": Reader([b"https://example.com:443/done?a=b", b"http://[::1]/"], _read_webhook),
    "line of an audit": Reader(
        [orjson.dumps({"thread_id": "t", "chain_id": "c", "number": 1, "hash": "0" * 64})], _read_line, None, JSON
    ),
    "sealed": Reader([_KEY.seal("states", ("t", 1), frames.pack(b"secret"))], _read_sealed),
    "sealed text": Reader([to_text(_KEY.seal("titles", ("t",), b"secret")).encode()], _read_sealed_text),
    "data key": Reader([_MASTER.wrap(bytes(32), _CONTEXT)], _read_wrapped),
    "cursor": Reader([base64.urlsafe_b64decode(_CURSOR + "==")], _read_cursor, _close_cursor, JSON),
    "place": Reader([b"12", b"12.end", b"-1"], _read_place),
    "place in a thread": Reader([b"run:12", b"run:12.error"], _read_thread_place),
    "traceparent": Reader(
        [b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"],
        lambda data: parse_traceparent(data.decode("utf-8", "replace")),
    ),
    "metadata": Reader([b'{"source": "loop", "step": 1, "writes": {}}'], _read_metadata, None, JSON),
    "manifest": Reader([_MANIFEST.dump()], _read_manifest, _close_manifest, JSON),
    "pack": Reader([_PACK[: _MANIFEST.frames["t"].bytes]], _read_pack),
    "forged pack": Reader(
        [zstandard.ZstdDecompressor().decompress(_PACK[: _MANIFEST.frames["t"].bytes])],
        _read_forged_pack,
        zstandard.ZstdCompressor().compress,
    ),
}
