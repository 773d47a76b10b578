"""Frames: a byte string, compressed if that helps, with a checksum.

    byte 0   how the rest is stored (a number of `Kind`)
    raw      4 bytes xxh32 of the content, then the content
    zstd     a magicless zstd frame with its own checksum
    zstd+1   the same, compressed with dictionary 1
    plain    nothing: a zstd frame with its magic number, whose first byte this is, and its own checksum

A large value is a plain frame, so that no byte need be put before what the compressor returned. Frames of the second
kind are read only. zstandard 0.23 decompresses no frame without its magic number in one call: it is put in front.

Dictionary 1 holds the boilerplate of LangChain messages and of checkpoints (field names, module names, provider
keys), so that a single small message compresses as if it stood among others. It is frozen: what was written with it
must stay readable. `benchmarks/train_dictionary.py` made it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib import resources
from typing import Final, NamedTuple

import xxhash
import zstandard

from langgraph_pgstate.errors import CorruptStateError, UnreadableFormatError

RAW: Final = 0
ZSTD: Final = 1
ZSTD_DICTIONARY_1: Final = 2
ZSTD_PLAIN: Final = 0x28
# Kinds that later versions of this package may write.
_LATER: Final = range(3, 0x20)

# Below this a frame's own overhead is more than what compression saves.
_MIN_COMPRESSED = 40
# Above this many bytes a value brings its own repetitions, and the dictionary only costs time.
MAX_WITH_DICTIONARY: Final = 64 * 1024
# Level 1 was smaller and faster than 3 on 64 messages, and within 3 % of level 9 on one.
_LEVEL = 1
# For a message or a state, a table of 8 KB instead of 64: within 2 % as small, and a third faster where other work has
# used the processor's caches.
_MAX_SMALL = 4 * 1024
_SMALL_HASH_LOG = 11
# For a large value one of 16 KB, which stays in the processor's nearest cache: a fifth faster for an eighth more bytes.
# A put of 200 KB takes 0.89 of the time, and is read as fast.
_LARGE_HASH_LOG = 12
# Prose hardly repeats itself, base64 and numbers do not at all: what can be saved is how often each letter comes.
# Almost no table takes half of the time, for a fifth more bytes of prose: a put of 200 KB takes 0.86 of the time.
_PROSE_HASH_LOG = 6
# Which it is a sample from the middle says, and costs a tenth of what is saved. The larger table makes records, code,
# HTML and logs 0.48 of their size and less, prose no less than 0.51.
_SAMPLE_SIZE = 4 * 1024
_MAX_REPETITIVE = 0.5
# The values of a channel are of one kind, most of the time: a sample tells of so many. To take one is a fiftieth of a
# put of 200 KB.
_VALUES_PER_SAMPLE: Final = 8
# What is soon gone is written as it is up to this size.
_MAX_PASSING_RAW = 12 * 1024


class CompressionHint(NamedTuple):
    """What a sample of a large value told: the next ones of its channel are likely to be similar.

    Attributes:
        is_repetitive: Whether it halved.
        remaining: Of how many more values it is taken to tell.
    """

    is_repetitive: bool
    remaining: int


_MAGICLESS: Final = zstandard.FORMAT_ZSTD1_MAGICLESS
_MAGIC: Final = b"\x28\xb5\x2f\xfd"

# Frames that are known to be whole, one of each kind, and their content.
_WHOLE_CONTENT: Final = b"langchain_core.messages.human " * 4
_CORE = bytes.fromhex("24782d0100f06c616e67636861696e5f636f72652e6d657373616765732e68756d616e2001005e989413688a980f")
_WHOLE: Final = {
    ZSTD: bytes([ZSTD]) + _CORE,
    ZSTD_DICTIONARY_1: bytes([ZSTD_DICTIONARY_1])
    + bytes.fromhex("24789d00003068756d616e2003000f4a02c60458a8400104688a980f"),
    ZSTD_PLAIN: _MAGIC + _CORE,
}


class _Contexts:
    """zstd's compressors and decompressors, for one thread at a time."""

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

    def compress_large(self, content: bytes, hint: CompressionHint | None) -> tuple[bytes, CompressionHint]:
        """Content compressed by the table that is worth its time, and its look, as `pack_large` says."""
        if hint is None or not hint.remaining:
            start = max(0, (len(content) - _SAMPLE_SIZE) // 2)
            sample = content[start : start + _SAMPLE_SIZE]
            is_repetitive = len(self._compress_repetitive(sample)) <= _MAX_REPETITIVE * len(sample)
            hint = CompressionHint(is_repetitive, _VALUES_PER_SAMPLE)
        packed = (self._compress_repetitive if hint.is_repetitive else self._compress_prose)(content)
        return packed, CompressionHint(hint.is_repetitive, hint.remaining - 1)


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
    # What is computed of it ahead is for one user's parameters.
    return zstandard.ZstdCompressionDict(_dictionary(), dict_type=zstandard.DICT_TYPE_RAWCONTENT)


@cache
def _dictionary() -> bytes:
    return resources.files(__name__.rpartition(".")[0]).joinpath("frames1.zdict").read_bytes()


# Contexts are not safe to share and cost half a millisecond to make. They are handed around instead of kept per thread,
# because LangGraph runs each invocation's puts in new threads. Who fails with some may lose them.
_idle: list[_Contexts] = []


def _take() -> _Contexts:
    """Contexts to work with; to be put back into `_idle`."""
    try:
        return _idle.pop()
    except IndexError:
        return _Contexts()


def pack(content: bytes) -> bytes:
    """Content as a frame."""
    size = len(content)
    if size > MAX_WITH_DICTIONARY:
        return pack_large(content)[0]
    if size >= _MIN_COMPRESSED:
        contexts = _take()
        packed = (contexts.compress_small if size <= _MAX_SMALL else contexts.compress_medium)(content)
        _idle.append(contexts)
        if len(packed) < size:
            return b"\x02" + packed
    return pack_raw(content)


def pack_large(content: bytes, hint: CompressionHint | None = None) -> tuple[bytes, CompressionHint]:
    """Content of many kilobytes as a frame, without the dictionary; and what it looks like.

    Args:
        content: The content.
        hint: What a value that is likely to be similar looked like; without it a sample is taken.

    Returns:
        The frame, and the look for the next one.
    """
    contexts = _take()
    packed, hint = contexts.compress_large(content, hint)
    _idle.append(contexts)
    return packed if len(packed) < len(content) else pack_raw(content), hint


def pack_raw(content: bytes) -> bytes:
    """Content as a frame, not compressed."""
    return b"\x00" + xxhash.xxh32_digest(content) + content


def pack_passing(content: bytes) -> bytes:
    """Content that will soon be gone, as a frame: compressed only if it is large, and then without the dictionary.

    Compressing lets go of the interpreter, which a graph's own thread takes at once and keeps for as long as it
    pleases: of a superstep's 5 KB it takes 40 microseconds of the processor's time and 160 until it goes on.
    """
    if len(content) > _MAX_PASSING_RAW:
        return pack_large(content)[0]
    return pack_raw(content)


def unpack(frame: bytes, where: str) -> bytes:
    """A frame's content.

    Args:
        frame: What `pack` returned.
        where: What the frame is, for the error.

    Raises:
        CorruptStateError: If the frame is cut off or altered.
        UnreadableFormatError: If a newer version of this package wrote it, or the installed zstandard cannot read it.
    """
    kind = frame[0] if frame else -1
    content: bytes
    if kind == RAW:
        content = frame[5:]
        if xxhash.xxh32_digest(content) != frame[1:5]:
            raise CorruptStateError(where, "its checksum does not match")
        return content
    contexts = _take()
    try:
        if kind == ZSTD_DICTIONARY_1:
            content = contexts.decompress_dictionary(_MAGIC + frame[1:], MAX_WITH_DICTIONARY)
        elif kind == ZSTD_PLAIN:
            content = contexts.decompress(frame)
        elif kind == ZSTD:
            content = contexts.decompress(_MAGIC + memoryview(frame)[1:])
        elif kind in _LATER:
            raise UnreadableFormatError(where, f"frame kind {kind} takes a newer version of langgraph_pgstate")
        else:
            raise CorruptStateError(where, f"frame kind {kind} is unknown")
    except (zstandard.ZstdError, MemoryError) as error:
        if frame is not _WHOLE[kind] and not _can_decompress(kind):
            raise UnreadableFormatError(
                where, f"zstandard {zstandard.__version__} does not decompress it ({error}): install 0.23 or newer"
            ) from error
        # A size that was altered may be more than there is memory.
        raise CorruptStateError(where, f"its frame does not decompress ({error})") from error
    finally:
        _idle.append(contexts)
    return content


def _can_decompress(kind: int) -> bool:
    """Return whether a frame that is known to be whole can be read: if not, the library is to blame for others, too."""
    try:
        return unpack(_WHOLE[kind], "") == _WHOLE_CONTENT
    except CorruptStateError:
        return False
