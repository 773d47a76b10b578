"""Frames: compressed where that gains, read by any zstd, and never taken for whole when they are damaged."""

from __future__ import annotations

import random
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from langgraph_pgstate.codec import frames
from langgraph_pgstate.errors import CorruptStateError, UnreadableFormatError
from tests.codec.test_values import CODEC, QUICK, prose

pytestmark = [pytest.mark.smoke, pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")]


# Frames.


@QUICK
@given(st.one_of(st.binary(max_size=200), st.binary(max_size=20).map(lambda part: part * 9000)))
def test_a_frame_gives_back_its_content(content: bytes) -> None:
    """Small, compressible, large, empty."""
    assert frames.unpack(frames.pack(content), "here") == content


def contents() -> Iterator[bytes]:
    yield b""
    yield b"short"
    yield b"lorem ipsum dolor sit amet " * 20
    yield random.Random(1).randbytes(3000)
    yield b"lorem ipsum dolor sit amet " * 9000
    yield prose(70_000)


@pytest.mark.parametrize("size", [0, 1, 5_000, 50_000])
def test_what_is_soon_gone_is_compressed_only_if_it_is_large(size: int) -> None:
    content = b"message " * (size // 8)
    frame = frames.pack_short_lived(content)
    assert frames.unpack(frame, "here") == content
    assert (len(frame) < len(content)) == (size == 50_000)


def records(size: int) -> bytes:
    """As a tool returns them: names of fields again and again."""
    dice = random.Random(4)
    rows = [{"id": n, "customer_name": f"c{dice.random()}", "is_active": n % 3 == 0} for n in range(size // 60)]
    return CODEC.dumps("rows", {"rows": rows})[1][:size]


def test_a_large_value_is_a_frame_that_any_zstd_reads() -> None:
    """Of prose, records and what cannot be compressed; the last stays as it is."""
    for content in (prose(200_000), records(200_000)):
        frame = frames.pack(content)
        assert frame[0] == frames.ZSTD_PLAIN
        assert zstandard.decompress(frame) == content == frames.unpack(frame, "here")
    noise = random.Random(5).randbytes(200_000)
    assert frames.pack(noise)[0] == frames.RAW


def test_time_is_spent_on_a_large_value_where_it_saves_most() -> None:
    """Records get a table that finds what they repeat; prose, for which it costs most and saves least, gets none."""
    large, small = (
        zstandard.ZstdCompressor(compression_params=zstandard.ZstdCompressionParameters.from_level(1, hash_log=log))
        for log in (12, 6)
    )
    for content, chosen, other in ((records(200_000), large, small), (prose(200_000), small, large)):
        size = len(frames.pack(content))
        assert abs(size - len(chosen.compress(content))) < 100 < abs(size - len(other.compress(content)))


def test_large_values_of_before_are_read() -> None:
    """They have no magic number, but a byte of ours."""
    content = prose(100_000)
    format = zstandard.ZstdCompressionParameters.from_level(1, format=zstandard.FORMAT_ZSTD1_MAGICLESS)
    frame = bytes([frames.ZSTD]) + zstandard.ZstdCompressor(compression_params=format).compress(content)
    assert frames.unpack(frame, "here") == content


@pytest.mark.parametrize("content", [*contents()], ids=len)
def test_every_damaged_byte_is_noticed(content: bytes) -> None:
    """A frame with any one byte changed, wherever, is refused and never read as something else."""
    frame = frames.pack(content)
    dice = random.Random(2)
    places = range(len(frame)) if len(frame) < 150 else [0, 1, 2, 3, *dice.choices(range(len(frame)), k=150)]
    for place in places:
        for _ in range(2):
            damaged = bytearray(frame)
            damaged[place] ^= dice.randrange(1, 256)
            # A first byte may become one that a later version writes.
            is_later = place == 0 and 3 <= damaged[0] < 32
            with pytest.raises(UnreadableFormatError if is_later else CorruptStateError):
                frames.unpack(bytes(damaged), "here")


def test_every_declared_zstandard_reads_every_frame(monkeypatch: pytest.MonkeyPatch) -> None:
    """Guard: zstandard 0.23 decompresses no frame without a magic number in one call."""
    every = [frames._WHOLE[kind] for kind in (frames.ZSTD, frames.ZSTD_DICTIONARY_1, frames.ZSTD_PLAIN)]
    every += [frames.pack(content) for content in contents()]
    content = [frames.unpack(frame, "here") for frame in every]
    assert content == [frames._WHOLE_CONTENT] * 3 + [*contents()]
    found = zstandard.ZstdDecompressor

    def older(**options: Any) -> Any:
        assert options.get("format", zstandard.FORMAT_ZSTD1) == zstandard.FORMAT_ZSTD1
        return found(**options)

    monkeypatch.setattr(zstandard, "ZstdDecompressor", older)
    monkeypatch.setattr(frames, "_idle", [])
    assert [frames.unpack(frame, "here") for frame in every] == content


@pytest.mark.parametrize("content", [b"lorem ipsum " * 30, b"lorem ipsum " * 9000], ids=len)
def test_a_zstandard_that_cannot_decompress_is_not_damage(content: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    frame = frames.pack(content)
    older = SimpleNamespace(decompress=lambda *_: zstandard.ZstdDecompressor().decompress(b"nonsense"))
    with monkeypatch.context() as patch:
        contexts = frames._Contexts()
        contexts.decompress = contexts.decompress_dictionary = older.decompress
        patch.setattr(frames, "_idle", [])
        patch.setattr(frames, "_take_contexts", lambda: contexts)
        with pytest.raises(UnreadableFormatError, match=r"here .* zstandard .* install 0\.23"):
            frames.unpack(frame, "here")
    assert frames.unpack(frame, "here") == content


@pytest.mark.parametrize("content", [*contents()], ids=len)
def test_a_frame_that_is_cut_off_is_noticed(content: bytes) -> None:
    """At any length."""
    frame = frames.pack(content)
    for length in {0, 1, 2, 4, 5, len(frame) // 2, len(frame) - 1} - {len(frame)}:
        with pytest.raises(CorruptStateError):
            frames.unpack(frame[:length], "here")


def test_a_size_that_nobody_has_room_for_is_damage() -> None:
    header = bytes([0b1110_0000]) + (2**55).to_bytes(8, "little") + b"\x01\x00\x00"
    for magic in (bytes([frames.ZSTD]), b"\x28\xb5\x2f\xfd"):
        with pytest.raises(CorruptStateError):
            frames.unpack(magic + header, "here")


def test_a_frame_that_states_more_content_than_is_ever_stored_is_refused() -> None:
    """A few bytes, which anybody who can write a row can make, would fill the memory."""
    zeros = zstandard.ZstdCompressor(level=1).compress(bytes(frames.MOST_BYTES + 1))
    assert len(zeros) < 10_000
    small = zstandard.ZstdCompressor(level=1).compress(bytes(frames.MAX_WITH_DICTIONARY + 1))
    for frame in (zeros, b"\x01" + zeros[4:], b"\x02" + small[4:]):
        with pytest.raises(CorruptStateError, match=r"states \d+ bytes of content"):
            frames.unpack(frame, "here")


@pytest.mark.slow
def test_content_that_compresses_better_than_a_frame_may_is_stored_raw() -> None:
    content = bytes(frames.MOST_BYTES + 1)
    assert frames.unpack(frames.pack(content), "here") == content
    assert frames.unpack(frames.pack(content[1:]), "here") == content[1:]
