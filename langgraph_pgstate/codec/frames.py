"""Frames: byte strings with a checksum, compressed if that makes them smaller.

    byte 0   the kind of the frame; the rest depends on it
    raw      4 bytes xxh32 of the content, then the content
    zstd     a magicless zstd frame with its own checksum
    zstd+1   the same, compressed with dictionary 1
    sealed   encrypted content (`encryption/cipher.py`)
    listed   a list of segments, then a frame (`codec/states.py`)
    plain    no kind byte: a zstd frame with its own checksum, whose magic number begins with 0x28

A large value is a plain frame, because adding a kind byte would copy the value. Frames of the kind `zstd` are read, but
not written. zstandard 0.23 cannot decompress a magicless frame in one call, so `unpack` prepends the magic number.

Dictionary 1 holds boilerplate of LangChain messages and of checkpoints: field names, module names, provider keys. The
dictionary must never change, because stored frames depend on it. `benchmarks/train_dictionary.py` made it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib import resources
from typing import Final

import xxhash
import zstandard

from langgraph_pgstate.errors import CorruptStateError, EncryptedError, UnreadableFormatError

RAW: Final = 0
ZSTD: Final = 1
ZSTD_DICTIONARY_1: Final = 2
SEALED: Final = 3
LISTED: Final = 4
ZSTD_PLAIN: Final = 0x28
# Kinds that only later versions of this package write.
_LATER: Final = range(5, 0x20)

# Below this size, the overhead of a frame exceeds the bytes that compression saves.
_MIN_COMPRESSED = 40
# Larger values repeat enough of their own content, so the dictionary would only cost time.
MAX_WITH_DICTIONARY: Final = 64 * 1024
# Level 1 was smaller and faster than level 3 on 64 messages, and within 3 % of level 9 on one message.
_LEVEL = 1
# With a hash table of 8 KB instead of 64 KB, compression is a third faster if other work has filled the processor's
# caches. The output is at most 2 % larger.
_MAX_SMALL = 4 * 1024
_SMALL_HASH_LOG = 11
# A hash table of 16 KB stays in the L1 cache. Compression of a large value is a fifth faster, the output an eighth
# larger.
_LARGE_HASH_LOG = 12
# Prose, base64 and numbers hardly repeat. A tiny hash table halves the time of their compression, and makes compressed
# prose a fifth larger.
_PROSE_HASH_LOG = 6
# A sample from the middle of a large value decides which hash table is used. Records, code, HTML and logs shrink to
# 0.48 of their size or less, prose to 0.51 or more.
_SAMPLE_SIZE = 4 * 1024
_MAX_REPETITIVE = 0.5
# A frame states the size of its content, and decompression allocates this much memory. A frame of 2 KB can state 5 GB.
# So a frame may state at most `MOST_BYTES`, or `_MOST_TIMES` its own size if that is more. Content above this limit is
# stored uncompressed.
MOST_BYTES: Final = 64 * 1024 * 1024
_MOST_TIMES: Final = 64
# Short-lived content up to this size is stored raw.
_MAX_SHORT_LIVED_RAW = 12 * 1024


_MAGICLESS: Final = zstandard.FORMAT_ZSTD1_MAGICLESS
_MAGIC: Final = b"\x28\xb5\x2f\xfd"

# For each compressed kind, a valid frame with the content `_WHOLE_CONTENT`.
_WHOLE_CONTENT: Final = b"langchain_core.messages.human " * 4
_CORE = bytes.fromhex("24782d0100f06c616e67636861696e5f636f72652e6d657373616765732e68756d616e2001005e989413688a980f")
_WHOLE: Final = {
    ZSTD: bytes([ZSTD]) + _CORE,
    ZSTD_DICTIONARY_1: bytes([ZSTD_DICTIONARY_1])
    + bytes.fromhex("24789d00003068756d616e2003000f4a02c60458a8400104688a980f"),
    ZSTD_PLAIN: _MAGIC + _CORE,
}


class _Contexts:
    """zstd compressors and decompressors, for one thread at a time."""

    __slots__ = (
        "_compress_prose",
        "_compress_repetitive",
        "compress_medium",
        "compress_small",
        "decompress",
        "decompress_dictionary",
    )

    def __init__(self) -> None:
        self.compress_small = _compressor(_dictionary_for_one(), hash_log=_SMALL_HASH_LOG)
        self.compress_medium = _compressor(_dictionary_for_one())
        self._compress_repetitive = _compressor(None, hash_log=_LARGE_HASH_LOG)
        self._compress_prose = _compressor(None, hash_log=_PROSE_HASH_LOG)
        self.decompress_dictionary = zstandard.ZstdDecompressor(dict_data=_dictionary_for_one()).decompress
        self.decompress = zstandard.ZstdDecompressor().decompress

    def compress_large(self, content: bytes) -> bytes:
        """Return content compressed with the table that suits it."""
        start = max(0, (len(content) - _SAMPLE_SIZE) // 2)
        sample = content[start : start + _SAMPLE_SIZE]
        is_repetitive = len(self._compress_repetitive(sample)) <= _MAX_REPETITIVE * len(sample)
        return (self._compress_repetitive if is_repetitive else self._compress_prose)(content)


def _compressor(dictionary: zstandard.ZstdCompressionDict | None, **parameters: int) -> Callable[[bytes], bytes]:
    chosen = zstandard.ZstdCompressionParameters.from_level(
        _LEVEL,
        format=zstandard.FORMAT_ZSTD1 if dictionary is None else _MAGICLESS,
        write_content_size=1,
        write_checksum=1,
        **parameters,
    )
    if dictionary is not None:
        dictionary.precompute_compress(compression_params=chosen)
    return zstandard.ZstdCompressor(dict_data=dictionary, compression_params=chosen).compress


def _dictionary_for_one() -> zstandard.ZstdCompressionDict:
    # Each compressor gets its own dictionary, because precomputed tables fit only one set of parameters.
    return zstandard.ZstdCompressionDict(_dictionary(), dict_type=zstandard.DICT_TYPE_RAWCONTENT)


@cache
def _dictionary() -> bytes:
    return resources.files(__name__.rpartition(".")[0]).joinpath("frames1.zdict").read_bytes()


# Contexts are slow to make and not thread-safe, so they are pooled. One context for each thread would not help, because
# LangGraph runs each invocation's puts in new threads.
_idle: list[_Contexts] = []


def _take_contexts() -> _Contexts:
    """Return contexts, which the caller appends to `_idle` after use."""
    try:
        return _idle.pop()
    except IndexError:
        return _Contexts()


class Unopened(bytes):
    """Encrypted content that could not be decrypted, with the error that reading it raises."""

    error: Exception

    @classmethod
    def of(cls, content: bytes, error: Exception) -> Unopened:
        """Return encrypted content with its error."""
        unopened = cls(content)
        unopened.error = error
        return unopened


def pack(content: bytes) -> bytes:
    """Return content as a frame."""
    size = len(content)
    if size > MAX_WITH_DICTIONARY:
        return _pack_large(content)
    if size >= _MIN_COMPRESSED:
        contexts = _take_contexts()
        packed = (contexts.compress_small if size <= _MAX_SMALL else contexts.compress_medium)(content)
        _idle.append(contexts)
        if len(packed) < size:
            return b"\x02" + packed
    return pack_raw(content)


def _pack_large(content: bytes) -> bytes:
    """Return content as a frame, compressed without the dictionary."""
    contexts = _take_contexts()
    packed = contexts.compress_large(content)
    _idle.append(contexts)
    size = len(content)
    return packed if len(packed) < size <= _most_bytes(packed) else pack_raw(content)


def _most_bytes(frame: bytes) -> int:
    return max(MOST_BYTES, _MOST_TIMES * len(frame))


def pack_raw(content: bytes) -> bytes:
    """Return content as an uncompressed frame."""
    return b"\x00" + xxhash.xxh32_digest(content) + content


def pack_short_lived(content: bytes) -> bytes:
    """Return short-lived content as a frame. Only large content is compressed, without the dictionary.

    zstd releases the GIL. For 5 KB, getting it back takes longer (160 µs) than compressing (40 µs), so small content is
    stored raw.
    """
    if len(content) > _MAX_SHORT_LIVED_RAW:
        return _pack_large(content)
    return pack_raw(content)


def unpack(frame: bytes, where: str) -> bytes:
    """Return a frame's content.

    Raises:
        CorruptStateError: If the frame is truncated or altered, or states more content than a frame of its size may
            have.
        UnreadableFormatError: If a newer version of this package wrote it, or the installed zstandard cannot read it.
        EncryptionError: If the content is encrypted and was not decrypted.
    """
    kind = frame[0] if frame else -1
    content: bytes
    if kind == RAW:
        content = frame[5:]
        if xxhash.xxh32_digest(content) != frame[1:5]:
            raise CorruptStateError(where, "its checksum does not match")
        return content
    contexts = _take_contexts()
    try:
        if kind == ZSTD_DICTIONARY_1:
            content = contexts.decompress_dictionary(
                _checked(_MAGIC + frame[1:], MAX_WITH_DICTIONARY, where), MAX_WITH_DICTIONARY
            )
        elif kind == ZSTD_PLAIN:
            content = contexts.decompress(_checked(frame, _most_bytes(frame), where))
        elif kind == ZSTD:
            content = contexts.decompress(_checked(_MAGIC + frame[1:], _most_bytes(frame), where))
        elif kind == SEALED:
            raise frame.error if isinstance(frame, Unopened) else EncryptedError(where)
        elif kind in _LATER:
            raise UnreadableFormatError(where, f"frame kind {kind} needs a newer version of langgraph_pgstate")
        else:
            raise CorruptStateError(where, f"frame kind {kind} is unknown" if frame else "it is empty")
    except (zstandard.ZstdError, MemoryError) as error:
        if frame is not _WHOLE[kind] and not _can_decompress(kind):
            raise UnreadableFormatError(
                where,
                f"zstandard {zstandard.__version__} does not decompress its frame ({error}): install 0.23 or newer",
            ) from error
        # A `MemoryError` means damage, too: the frame states more content than fits into memory.
        raise CorruptStateError(where, f"its frame does not decompress ({error})") from error
    finally:
        _idle.append(contexts)
    return content


def content_size(frame: bytes) -> int:
    """Return the content size that a plain frame states; for a frame of another kind, its own size."""
    if frame[:1] != b"\x28":
        return len(frame)
    try:
        return max(len(frame), zstandard.frame_content_size(frame))
    except zstandard.ZstdError:
        return len(frame)


def _checked(frame: bytes, most: int, where: str) -> bytes:
    """Return a zstd frame. Raise `CorruptStateError` if the frame states more than `most` bytes of content."""
    size = zstandard.frame_content_size(frame)
    if size > most:
        raise CorruptStateError(where, f"its frame of {len(frame)} bytes states {size} bytes of content")
    return frame


def _can_decompress(kind: int) -> bool:
    """Return whether the installed zstandard can read a valid frame. If not, a stored frame may be intact."""
    try:
        return unpack(_WHOLE[kind], "") == _WHOLE_CONTENT
    except CorruptStateError:
        return False
