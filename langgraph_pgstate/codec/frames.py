"""Frames: a byte string, compressed if that helps, with a checksum.

    byte 0   how the rest is stored (a number of `Kind`)
    raw      4 bytes xxh32 of the content, then the content
    zstd     a magicless zstd frame with its own checksum
    zstd+1   the same, compressed with dictionary 1

Dictionary 1 holds the boilerplate of LangChain messages and of checkpoints (field names, module names, provider
keys), so that a single small message compresses as if it stood among others. It is frozen: what was written with it
must stay readable. `benchmarks/train_dictionary.py` made it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib import resources
from typing import Any, Final

import xxhash
import zstandard

from langgraph_pgstate.errors import CorruptStateError

RAW: Final = 0
ZSTD: Final = 1
ZSTD_DICTIONARY_1: Final = 2

# Below this a frame's own overhead is more than what compression saves.
_MIN_COMPRESSED = 40
# Above this a value brings its own repetitions, and the dictionary only costs time.
_MAX_WITH_DICTIONARY = 64 * 1024
# Level 1 was smaller and faster than 3 on 64 messages, and within 3 % of level 9 on one.
_LEVEL = 1
# For a message or a state, a table of 8 KB instead of 64: within 2 % as small, and a third faster where other work has
# used the processor's caches.
_MAX_SMALL = 4 * 1024
_SMALL_HASH_LOG = 11
# For a large value one of 16 KB, which stays in the processor's nearest cache: a fifth faster for an eighth more bytes.
# A put of 200 KB takes 0.89 of the time, and is read as fast.
_LARGE_HASH_LOG = 12
# What is soon gone is written as it is up to this size.
_MAX_PASSING_RAW = 12 * 1024


class _Contexts:
    """zstd's compressors and decompressors, for one thread at a time."""

    __slots__ = ("compress_large", "compress_medium", "compress_small", "decompress_large", "decompress_small")

    def __init__(self) -> None:
        self.compress_small = _compressor(_dictionary_for_one(), hash_log=_SMALL_HASH_LOG)
        self.compress_medium = _compressor(_dictionary_for_one())
        self.compress_large = _compressor(None, hash_log=_LARGE_HASH_LOG)
        self.decompress_small = zstandard.ZstdDecompressor(
            dict_data=_dictionary_for_one(), format=zstandard.FORMAT_ZSTD1_MAGICLESS
        ).decompress
        self.decompress_large = zstandard.ZstdDecompressor(format=zstandard.FORMAT_ZSTD1_MAGICLESS).decompress


def _compressor(dictionary: zstandard.ZstdCompressionDict | None, **parameters: int) -> Callable[[bytes], bytes]:
    chosen = zstandard.ZstdCompressionParameters.from_level(
        _LEVEL, format=zstandard.FORMAT_ZSTD1_MAGICLESS, write_content_size=1, write_checksum=1, **parameters
    )
    if dictionary is not None:
        dictionary.precompute_compress(compression_params=chosen)
    return zstandard.ZstdCompressor(dict_data=dictionary, compression_params=chosen).compress


def _dictionary_for_one() -> zstandard.ZstdCompressionDict:
    # What is computed of it ahead is for one user's parameters.
    return zstandard.ZstdCompressionDict(_dictionary(), dict_type=zstandard.DICT_TYPE_RAWCONTENT)


@cache
def _dictionary() -> bytes:
    return resources.files(__name__.rpartition(".")[0]).joinpath("frames1.zdict").read_bytes()


# Contexts are not safe to share and cost half a millisecond to make. They are handed around instead of kept per thread,
# because LangGraph runs each invocation's puts in new threads.
_idle: list[_Contexts] = []


def _with_context(method: str, *args: Any) -> bytes:
    try:
        contexts = _idle.pop()
    except IndexError:
        contexts = _Contexts()
    try:
        result: bytes = getattr(contexts, method)(*args)
        return result
    finally:
        _idle.append(contexts)


def pack(content: bytes) -> bytes:
    """Content as a frame."""
    size = len(content)
    if size >= _MIN_COMPRESSED:
        if size <= _MAX_WITH_DICTIONARY:
            packed = _with_context("compress_small" if size <= _MAX_SMALL else "compress_medium", content)
            if len(packed) < size:
                return b"\x02" + packed
        else:
            packed = _with_context("compress_large", content)
            if len(packed) < size:
                return b"\x01" + packed
    return pack_raw(content)


def pack_raw(content: bytes) -> bytes:
    """Content as a frame, not compressed."""
    return b"\x00" + xxhash.xxh32_digest(content) + content


def pack_passing(content: bytes) -> bytes:
    """Content that will soon be gone, as a frame: compressed only if it is large, and then without the dictionary.

    Compressing lets go of the interpreter, which a graph's own thread takes at once and keeps for as long as it
    pleases: of a superstep's 5 KB it takes 40 microseconds of the processor's time and 160 until it goes on.
    """
    if len(content) > _MAX_PASSING_RAW:
        packed = _with_context("compress_large", content)
        if len(packed) < len(content):
            return b"\x01" + packed
    return pack_raw(content)


def unpack(frame: bytes, where: str) -> bytes:
    """A frame's content.

    Args:
        frame: What `pack` returned.
        where: What the frame is, for the error.

    Raises:
        CorruptStateError: If the frame is cut off, altered or of a kind this version does not know.
    """
    kind = frame[0] if frame else -1
    try:
        if kind == ZSTD_DICTIONARY_1:
            return _with_context("decompress_small", frame[1:], _MAX_WITH_DICTIONARY)
        if kind == ZSTD:
            return _with_context("decompress_large", memoryview(frame)[1:])
    except (zstandard.ZstdError, MemoryError) as error:
        # A size that was altered may be one that nobody has room for.
        raise CorruptStateError(where, f"its frame does not decompress ({error})") from error
    if kind == RAW:
        content = frame[5:]
        if xxhash.xxh32_digest(content) != frame[1:5]:
            raise CorruptStateError(where, "its checksum does not match")
        return content
    raise CorruptStateError(where, f"frame kind {kind} is unknown to this version of langgraph_pgstate")
