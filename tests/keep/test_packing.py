"""The format of archives: any changed byte is found."""

from __future__ import annotations

import hashlib
import random
from dataclasses import replace
from typing import Any

import orjson
import pytest

from langgraph_pgstate.errors import ArchiveError, ConfigurationError
from langgraph_pgstate.keep.packing import Manifest, check_pack, load_manifest, pack, transpose, unpack

COLUMNS = {"checkpoints": (("thread_id", "text"), ("state", "bytea")), "threads": (("thread_id", "text"),)}


def made(count: int = 3) -> tuple[bytes, Manifest]:
    rows = {
        f"thread {number}": {
            "checkpoints": [random.Random(number).randbytes(40), b"x" * 100],
            "threads": [f"thread {number}".encode()],
        }
        for number in range(count)
    }
    return pack(rows, COLUMNS, archive_id="a", created_at="2026-01-01", schema_version=1, tenant=None)


def test_it_is_read_as_it_was_written() -> None:
    data, manifest = made()
    read = load_manifest(manifest.dump(), "a", manifest.root)
    assert read.root == manifest.root
    check_pack(read, data, "a")
    frame = read.frames["thread 1"]
    rows = unpack(frame, data[frame.offset : frame.offset + frame.bytes], "a")
    assert rows == {"checkpoints": [random.Random(1).randbytes(40), b"x" * 100], "threads": [b"thread 1"]}
    assert manifest.key_ids == ()


@pytest.mark.slow
def test_every_changed_bit_is_found() -> None:
    data, manifest = made()
    for position in range(len(data)):
        for bit in (1, 32, 128):
            changed = bytearray(data)
            changed[position] ^= bit
            with pytest.raises(ArchiveError, match="damaged"):
                check_pack(manifest, bytes(changed), "a")
    told = manifest.dump()
    for position in range(len(told)):
        for bit in (1, 32, 128):
            changed = bytearray(told)
            changed[position] ^= bit
            with pytest.raises(ArchiveError, match="damaged"):
                load_manifest(bytes(changed), "a")
    for text in (b"", b"[]", b"{}", b"null", told[:-1], told + b" "):
        with pytest.raises(ArchiveError, match="damaged"):
            load_manifest(text, "a")
    with pytest.raises(ArchiveError, match="is not the manifest"):
        load_manifest(told, "a", hashlib.sha256(b"").digest())


def test_a_manifest_has_a_time() -> None:
    """By which the newest copy of a thread is found."""
    for text in ("", "yesterday", "2026-13-01"):
        with pytest.raises(ArchiveError, match="is damaged: it is no manifest"):
            load_manifest(replace(made()[1], created_at=text).dump(), "a")


def test_a_part_that_was_exchanged_is_found() -> None:
    """The digests are checked from the rows up: a frame with a digest of its own is not believed."""
    data, manifest = made()
    frame = manifest.frames["thread 0"]
    piece = data[frame.offset : frame.offset + frame.bytes]
    for changes in (
        {"parts": (frame.parts[0]._replace(sha256="0" * 64), frame.parts[1])},
        {"parts": (frame.parts[0]._replace(rows=1), frame.parts[1])},
        {"parts": (frame.parts[0]._replace(bytes=1), frame.parts[1])},
        {"parts": (frame.parts[1], frame.parts[0])},
        {"parts": (frame.parts[0]._replace(bytes=2**40), frame.parts[1])},
        {"bytes": frame.bytes - 1},
    ):
        with pytest.raises(ArchiveError, match="damaged"):
            unpack(frame._replace(**changes), piece, "a")
    empty = b"no frame"
    with pytest.raises(ArchiveError, match="damaged"):
        unpack(frame._replace(bytes=len(empty), sha256=hashlib.sha256(empty).hexdigest()), empty, "a")


def test_a_later_format_is_named() -> None:
    _, manifest = made()
    plain = orjson.loads(manifest.dump())
    del plain["root"]
    plain["format"] = 2
    root = hashlib.sha256(orjson.dumps(plain, option=orjson.OPT_SORT_KEYS)).hexdigest()
    with pytest.raises(ConfigurationError, match="format 2"):
        load_manifest(orjson.dumps({**plain, "root": root}, option=orjson.OPT_SORT_KEYS), "a")


def test_a_row_of_other_columns_is_refused() -> None:
    row = b"\0\0\0\1" + b"\0\0\0\x19" + b"\0\0\0\1x"
    assert transpose([row, row], 1)[0].endswith(b"\0\0\0\1x\0\0\0\1x")
    for wrong in (row + row[4:], b"", row[:3], row[:7], row[:-1], b"\0\0\0\2" + row[4:]):
        with pytest.raises(ArchiveError, match="damaged"):
            transpose([row, wrong], 1)


@pytest.mark.parametrize(
    "wrong",
    [
        {"offset": None},
        {"offset": -1},
        {"bytes": "1"},
        {"bytes": True},
        {"sha256": 1},
        {"parts": [["threads", [], 1, "0"]]},
        {"parts": [[{"a": 1}, 1, 1, "0"]]},
        {"key_ids": [1]},
    ],
)
def test_a_manifest_of_other_types_is_refused(wrong: dict[str, Any]) -> None:
    """Guard: its digest is right, as a forger makes it."""
    plain = orjson.loads(made()[1].dump())
    del plain["root"]
    plain["threads"][0] |= wrong
    root = hashlib.sha256(orjson.dumps(plain, option=orjson.OPT_SORT_KEYS)).hexdigest()
    with pytest.raises(ArchiveError, match="damaged"):
        load_manifest(orjson.dumps({**plain, "root": root}, option=orjson.OPT_SORT_KEYS), "a")
