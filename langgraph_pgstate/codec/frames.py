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

import threading
from importlib import resources
from typing import Final

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


class _Compressors(threading.local):
    """zstd contexts are not safe to share between threads; each thread has its own."""

    def __init__(self) -> None:
        dictionary = zstandard.ZstdCompressionDict(_dictionary_bytes(), dict_type=zstandard.DICT_TYPE_RAWCONTENT)
        parameters = zstandard.ZstdCompressionParameters.from_level(
            _LEVEL, format=zstandard.FORMAT_ZSTD1_MAGICLESS, write_content_size=1, write_checksum=1
        )
        dictionary.precompute_compress(compression_params=parameters)
        self.compress_small = zstandard.ZstdCompressor(dict_data=dictionary, compression_params=parameters).compress
        self.compress_large = zstandard.ZstdCompressor(compression_params=parameters).compress
        self.decompress_small = zstandard.ZstdDecompressor(
            dict_data=dictionary, format=zstandard.FORMAT_ZSTD1_MAGICLESS
        ).decompress
        self.decompress_large = zstandard.ZstdDecompressor(format=zstandard.FORMAT_ZSTD1_MAGICLESS).decompress


def _dictionary_bytes() -> bytes:
    return resources.files(__name__.rpartition(".")[0]).joinpath("frames1.zdict").read_bytes()


_compressors = _Compressors()


def pack(content: bytes) -> bytes:
    """Content as a frame."""
    size = len(content)
    if size >= _MIN_COMPRESSED:
        if size <= _MAX_WITH_DICTIONARY:
            packed = _compressors.compress_small(content)
            if len(packed) < size:
                return b"\x02" + packed
        else:
            packed = _compressors.compress_large(content)
            if len(packed) < size:
                return b"\x01" + packed
    return b"\x00" + xxhash.xxh32_digest(content) + content


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
            return _compressors.decompress_small(frame[1:], max_output_size=_MAX_WITH_DICTIONARY)
        if kind == ZSTD:
            return _compressors.decompress_large(frame[1:])
    except zstandard.ZstdError as error:
        raise CorruptStateError(where, f"its frame does not decompress ({error})") from error
    if kind == RAW:
        content = frame[5:]
        if xxhash.xxh32_digest(content) != frame[1:5]:
            raise CorruptStateError(where, "its checksum does not match")
        return content
    raise CorruptStateError(where, f"frame kind {kind} is unknown to this version of langgraph_pgstate")
