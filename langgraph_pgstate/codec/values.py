"""Encoding of channel values and pending writes through LangGraph's serializer.

LangGraph's serializer encodes lists element by element, so that a new version of a list does not write the old elements
again. Any other serializer, for example an encrypting one, gets each value whole. No part of a value is then stored
outside the bytes that the serializer returned.
"""

from __future__ import annotations

import json
import secrets
import threading
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from functools import cache
from operator import attrgetter
from typing import Any, Final, NamedTuple

import ormsgpack
import xxhash
from langgraph.checkpoint.serde.base import SerializerProtocol, maybe_add_typed_methods
from langgraph.checkpoint.serde.event_hooks import SerdeEvent, register_serde_event_listener
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from langgraph_pgstate.codec.exact import difference, encode_surely
from langgraph_pgstate.codec.messages import DIGEST_SIZE, SHAPES, UNPACK_OPTIONS, decoding_hook
from langgraph_pgstate.codec.serializer import StateSerializer, plain_serializer
from langgraph_pgstate.errors import (
    CorruptStateError,
    PGStateError,
    SerializationError,
    UnreadableFormatError,
    UnsafeTypeError,
)
from langgraph_pgstate.langgraph_compat import (
    PACK_OPTIONS,
    TUPLE,
    extension_hook_of,
    has_own_hook,
    with_msgpack_allowlist,
)

# Types for values that msgpack cannot represent. A type of the serializer never contains a slash.
TYPE_STR: Final = "pgstate/str"
TYPE_INT: Final = "pgstate/int"
# The prefix of the stored type if the caller's own serializer would lose types. The caller's serializer then encodes a
# byte string that contains exact msgpack.
TYPE_EXACT: Final = "pgstate/exact/"
_WHOLE: Final = frozenset({str, bytes, bytearray})
_INT_MIN, _INT_MAX = -(2**63), 2**64 - 1

_GENERIC_SEED = secrets.randbits(64)
_FIELDS, _EXTRA = attrgetter("__dict__"), attrgetter("__pydantic_extra__")
_TYPE_CODES = {cls: code for code, cls in enumerate(SHAPES)}

# The byte before an array of only plain messages. No msgpack value begins with this byte.
PLAIN_MARK: Final = b"\xc1"

# ormsgpack's message for any exception of an extension hook, including Ctrl-C.
_HOOK_FAILED: Final = "ext_hook failed"

_SHOWN: Final = 40

# Number of messages in a block. Comparing blocks is faster than comparing messages one by one.
BLOCK: Final = 64


class Fingerprints(NamedTuple):
    """Hashes of a list's elements, by which two versions of the list are compared.

    Attributes:
        digests: 16 bytes for each element.
        blocks: A key for each block of `BLOCK` elements, from the first block on. Later blocks may have no keys.
    """

    digests: bytes
    blocks: tuple[bytes, ...]


NO_FINGERPRINTS: Final = Fingerprints(b"", ())


class _Refusals(threading.local):
    """Types that the serializer refused to build on this OS thread since `names` was last set."""

    names: list[tuple[str, str]] | None = None


_refusals = _Refusals()


def _note_refusal(event: SerdeEvent) -> None:
    if _refusals.names is not None and event["kind"] in ("msgpack_blocked", "msgpack_method_blocked"):
        _refusals.names.append((event["module"], event["name"]))


register_serde_event_listener(_note_refusal)


class ValueCodec:
    """A codec that encodes values as `(type, bytes)` and decodes them.

    Attributes:
        serde: The serializer.
        is_native: Whether the serializer is LangGraph's own, so that lists may be split and scalars inlined.
    """

    def __init__(self, serde: SerializerProtocol | None = None, *, refuse_unsafe: bool = True) -> None:
        self.serde: SerializerProtocol = StateSerializer() if serde is None else maybe_add_typed_methods(serde)
        # The caller's own serializer decides which types it builds.
        own = self.serde if isinstance(self.serde, StateSerializer) else None
        self._own = own
        self._refusing_serde = None if own is None or own.is_lenient or not refuse_unsafe else own
        self.is_native = own is not None or (type(self.serde) is JsonPlusSerializer and not has_own_hook(self.serde))
        # `dumps_exactly` stores tuples, which LangGraph's serializer builds only if they are allowed.
        self._decoding = with_msgpack_allowlist(self.serde, [TUPLE]) if self.is_native and own is None else self.serde

    def with_allowlist(self, extra: Collection[tuple[str, ...]]) -> ValueCodec:
        """Return a codec that may also build the given types."""
        serde = with_msgpack_allowlist(self.serde, extra)
        return self if serde is self.serde else ValueCodec(serde, refuse_unsafe=self._refusing_serde is not None)

    def lenient(self) -> ValueCodec:
        """Return a codec with the same serializer that reads refused types as plain data instead of raising."""
        return ValueCodec(self.serde, refuse_unsafe=False)

    def without_types(self) -> ValueCodec:
        """Return a codec that reads all types of the application as plain data, so that no code of a type runs.

        A caller's own serializer decides which types it builds.
        """
        return ValueCodec(plain_serializer()) if self.is_native else self.lenient()

    def dumps(self, channel: str, value: Any) -> tuple[str, bytes]:
        """Return a value as `(type, bytes)`.

        Raises:
            SerializationError: If the value cannot be stored.
        """
        try:
            if self.is_native:
                kind = type(value)
                if kind is list and not SHAPES.keys().isdisjoint(map(type, value)):
                    try:
                        return "msgpack", array_header(len(value)) + self.encode_elements(channel, value)
                    except SerializationError:
                        return self.serde.dumps_typed(value)
                if kind is str and not encodes_as_utf8(value):
                    return TYPE_STR, value.encode("utf-8", "surrogatepass")
                if kind is int and not _INT_MIN <= value <= _INT_MAX:
                    return TYPE_INT, b"%d" % value
                shape = SHAPES.get(kind)
                if shape is not None and (encoded := shape.encode(value)) is not None:
                    return "msgpack", encoded[0]
            type_, data = self.serde.dumps_typed(value)
            return type_, bytes(data)
        except PGStateError:
            raise
        except Exception as error:
            raise self._explain(channel, value, error) from error

    def dumps_exactly(self, name: str, value: Any) -> tuple[str, bytes]:
        """Return a value as `(type, bytes)` from which `loads` restores all types. `dumps` turns tuples into lists.

        Raises:
            SerializationError: If a type would be lost. The error names the place.
            UnsafeTypeError: If the value has a type that could not be built again.
        """
        if not self.is_native:
            return self._dumps_exactly_by_own(name, value)
        kind = type(value)
        if value is None or kind in _WHOLE or (kind is int and not _INT_MIN <= value <= _INT_MAX):
            return self.dumps(name, value)
        return self._encode_exactly(name, value)

    def _encode_exactly(self, name: str, value: Any) -> tuple[str, bytes]:
        if (data := encode_surely(value)) is not None:
            return "msgpack", data
        dumps = (self.serde if isinstance(self.serde, StateSerializer) else _exact_serializer()).dumps_exactly
        try:
            encoded = "msgpack", dumps(value)
        except Exception as error:
            raise self._explain(name, value, error, dumps) from error
        self._check_exact(name, value, encoded)
        return encoded

    def _dumps_exactly_by_own(self, name: str, value: Any) -> tuple[str, bytes]:
        """Encode a value with the caller's own serializer. If a type would be lost, encode its exact msgpack."""
        try:
            encoded = self.dumps(name, value)
            self._check_exact(name, value, encoded)
        except SerializationError:
            type_, data = self.dumps(name, ValueCodec()._encode_exactly(name, value)[1])
            encoded = TYPE_EXACT + type_, data
        return encoded

    def _check_exact(self, name: str, value: Any, encoded: tuple[str, bytes]) -> None:
        """Raise `SerializationError` if decoding bytes does not restore the encoded value."""
        try:
            found = difference(value, self.loads(*encoded, name))
        except (CorruptStateError, UnreadableFormatError) as error:
            raise SerializationError(name, value, error) from error
        if found is not None:
            path, given, read = found
            why = TypeError(f"it would be read as {_described(read)}")
            raise SerializationError(f"{name}{path}", given, why)

    def loads(self, type_: str, data: bytes, where: str) -> Any:
        """Return the value that `dumps` was given.

        Raises:
            UnsafeTypeError: If the value has a type that may not be built, and the serializer is the default one.
            CorruptStateError: If the bytes do not match the type.
            UnreadableFormatError: If the serializer does not know the type.
            KeyboardInterrupt: If a signal handler raised any exception during decoding.
        """
        if type(type_) is not str or not isinstance(data, bytes | bytearray | memoryview):
            raise CorruptStateError(where, "the value must have a type and bytes")
        if type_ in (TYPE_STR, TYPE_INT):
            try:
                return int(data) if type_ == TYPE_INT else str(data, "utf-8", "surrogatepass")
            except ValueError as error:
                raise CorruptStateError(where, f"its bytes do not decode ({error})") from error
        if type_.startswith(TYPE_EXACT):
            return ValueCodec().loads("msgpack", self.loads(type_.removeprefix(TYPE_EXACT), data, where), where)
        with _Reading(where, self._refusing_serde):
            try:
                if self.is_native and type_ == "msgpack":
                    return self._unpack(data, None)
                return self.serde.loads_typed((type_, data))
            except ValueError as error:
                if str(error) != _HOOK_FAILED:
                    raise
                # If damaged bytes caused the error, this raises the error again. Otherwise the cause was Ctrl-C.
                self.serde.loads_typed((type_, data))
                raise KeyboardInterrupt from None

    def is_scalar(self, value: Any) -> bool:
        """Return whether msgpack represents a scalar exactly, so that it may be stored in the manifest."""
        if not self.is_native:
            return False
        kind = type(value)
        if kind is str:
            return encodes_as_utf8(value)
        if kind is int:
            return bool(_INT_MIN <= value <= _INT_MAX)
        return kind is float or kind is bool or value is None

    def encode_element(self, channel: str, element: Any) -> tuple[bytes, bool]:
        """Return an element in the serializer's own bytes, and whether it is a plain message."""
        shape = SHAPES.get(type(element))
        encoded = shape.encode(element) if shape is not None else None
        return (self._encode(channel, element), False) if encoded is None else encoded

    def encode_elements(self, channel: str, elements: Sequence[Any]) -> bytes:
        """Return elements in the serializer's own bytes, one after the other, without an array header."""
        return b"".join([self.encode_element(channel, element)[0] for element in elements])

    def decode_elements(self, payload: bytes, where: str) -> tuple[list[Any], bytes]:
        """Return the elements of an array, with or without `PLAIN_MARK`, and their fingerprints (16 bytes each)."""
        digests: list[bytes] = []
        were_plain = payload.startswith(PLAIN_MARK)
        array = payload[len(PLAIN_MARK) :] if were_plain else payload
        with _Reading(where, self._refusing_serde):
            try:
                elements = self._unpack(array, digests, were_plain=were_plain)
            except ValueError as error:
                if str(error) != _HOOK_FAILED:
                    raise
                # If damaged bytes caused the error, this raises the error again. Otherwise the cause was Ctrl-C.
                self._unpack(array, None)
                raise KeyboardInterrupt from None
            if type(elements) is not list:
                raise CorruptStateError(where, "its bytes are not an array")
        # Messages within elements add digests, too. Use the digests only if every element is a message.
        if len(digests) == len(elements) and set(map(type, elements)) <= SHAPES.keys():
            return elements, b"".join(digests)
        return elements, self.digests(where, elements)

    def digests(self, channel: str, elements: Sequence[Any]) -> bytes:
        """Return a digest of 16 bytes for each element. Equal digests mean equal stored bytes.

        Digests are not cached, because a program may change an element in place.
        """
        digest = xxhash.xxh3_128_digest
        pack = ormsgpack.packb
        shapes = SHAPES
        found = []
        for element in elements:
            shape = shapes.get(type(element))
            if shape is not None and not element.__pydantic_extra__:
                try:
                    found.append(digest(pack(element.__dict__, option=PACK_OPTIONS), shape.seed))
                    continue
                except ormsgpack.MsgpackEncodeError:
                    pass
            found.append(digest(self._encode(channel, element), _GENERIC_SEED))
        return b"".join(found)

    def fingerprints(
        self, channel: str, elements: Sequence[Any], before: Fingerprints = NO_FINGERPRINTS
    ) -> Fingerprints:
        """Return the fingerprints of a list. The fingerprints of unchanged blocks are taken from `before`."""
        known = 0
        for key in before.blocks:
            if _block_key(elements[known * BLOCK : (known + 1) * BLOCK]) != key:
                # All later elements may be shifted, so later blocks would not match.
                break
            known += 1
        blocks = [*before.blocks[:known]]
        if known == len(before.blocks):
            for start in range(known * BLOCK, len(elements) - BLOCK + 1, BLOCK):
                new_key = _block_key(elements[start : start + BLOCK])
                if new_key is None:
                    break
                blocks.append(new_key)
        seen = known * BLOCK
        digests = before.digests[: seen * DIGEST_SIZE] + self.digests(channel, elements[seen:])
        return Fingerprints(digests, tuple(blocks))

    def _encode(self, channel: str, element: Any) -> bytes:
        try:
            if self._own is not None:
                return self._own.pack(element)
            # Encode a list of one element, and remove the list's header, which is one byte.
            type_, data = self.serde.dumps_typed([element])
        except Exception as error:
            raise self._explain(channel, element, error) from error
        if type_ != "msgpack":
            raise SerializationError(channel, element, TypeError(f"the serializer fell back to {type_}"))
        return data[1:]

    def _explain(
        self, channel: str, value: Any, error: Exception, dumps: Callable[[Any], Any] | None = None
    ) -> BaseException:
        """Return the exception to raise for a value that cannot be stored."""
        if isinstance(error, ormsgpack.MsgpackEncodeError):
            # ormsgpack hides exceptions of the Python code that it called, including Ctrl-C. Encode again: if that
            # succeeds, the cause was Ctrl-C.
            with suppress(Exception):
                (dumps or self.serde.dumps_typed)([value])
                return KeyboardInterrupt()
        return SerializationError(channel, value, error)

    def _unpack(self, data: bytes, digests: list[bytes] | None, *, were_plain: bool = False) -> Any:
        # `Any`, because `isinstance` with a protocol takes longer than decoding a small value.
        serde: Any = self._decoding
        hook = decoding_hook(extension_hook_of(serde), digests, _GENERIC_SEED, were_plain=were_plain)
        return ormsgpack.unpackb(data, ext_hook=hook, option=UNPACK_OPTIONS)


@cache
def _exact_serializer() -> StateSerializer:
    return StateSerializer()


def _described(value: Any) -> str:
    kind = type(value)
    name = kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    return f"{name} {str(value)[:_SHOWN]!r}"


class _Reading:
    """A context manager for decoding. It raises this package's errors for damaged bytes and refused types."""

    __slots__ = ("_outer", "_serde", "_where")

    def __init__(self, where: str, serde: StateSerializer | None) -> None:
        self._where, self._serde = where, serde

    def __enter__(self) -> None:
        self._outer = _refusals.names
        _refusals.names = [] if self._serde is not None else None

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        refused, _refusals.names = _refusals.names, self._outer
        if error is None:
            if refused and self._serde is not None:
                found = sorted(set(refused))
                raise UnsafeTypeError(self._where, found, [self._serde.types.why_refused(*each) for each in found])
            return
        if isinstance(error, NotImplementedError):
            raise UnreadableFormatError(self._where, f"it was stored by another serializer ({error})") from error
        if isinstance(error, (ormsgpack.MsgpackDecodeError, json.JSONDecodeError, UnicodeDecodeError, RecursionError)):
            raise CorruptStateError(self._where, f"its bytes do not decode ({error})") from error


def _block_key(block: Sequence[Any]) -> bytes | None:
    """Return a key that only equal blocks have; `None` if an element is not a plain message."""
    try:
        types = bytes(map(_TYPE_CODES.__getitem__, map(type, block)))
        if any(map(_EXTRA, block)):
            return None
        return types + xxhash.xxh3_128_digest(ormsgpack.packb(list(map(_FIELDS, block)), option=PACK_OPTIONS))
    except (KeyError, ormsgpack.MsgpackEncodeError):
        return None


def encodes_as_utf8(text: str) -> bool:
    """Return whether a string has no lone surrogate."""
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def array_header(count: int) -> bytes:
    """Return msgpack's header of an array."""
    if count < 16:
        return bytes((0x90 | count,))
    if count < 1 << 16:
        return b"\xdc" + count.to_bytes(2, "big")
    return b"\xdd" + count.to_bytes(4, "big")


def split_array(payload: bytes, where: str) -> tuple[int, int]:
    """Return the number of elements of an array, with or without `PLAIN_MARK`, and the offset of the first element."""
    at = len(PLAIN_MARK) if payload.startswith(PLAIN_MARK) else 0
    first = payload[at] if len(payload) > at else 0
    if 0x90 <= first <= 0x9F:
        return first & 0x0F, at + 1
    if first == 0xDC:
        return int.from_bytes(payload[at + 1 : at + 3], "big"), at + 3
    if first == 0xDD:
        return int.from_bytes(payload[at + 1 : at + 5], "big"), at + 5
    raise CorruptStateError(where, "its bytes are not an array")


__all__ = [
    "DIGEST_SIZE",
    "NO_FINGERPRINTS",
    "PLAIN_MARK",
    "Fingerprints",
    "ValueCodec",
    "array_header",
    "encodes_as_utf8",
    "split_array",
]
