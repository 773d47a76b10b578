"""Encoded values that are copied between stores without building any objects.

A list encoded with msgpack is split into its encoded elements. So a copy stores only new elements, as a put does.
Joining the elements restores the original bytes.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import ormsgpack
import xxhash
from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.serde.jsonplus import EXT_DELTA_SNAPSHOT, EXT_NUMPY_ARRAY

from langgraph_pgstate.codec.building import NUMPY
from langgraph_pgstate.codec.messages import UNPACK_OPTIONS
from langgraph_pgstate.codec.serializer import plain_serializer
from langgraph_pgstate.codec.values import PLAIN_MARK, TYPE_INT, TYPE_STR, ValueCodec, array_header, split_array
from langgraph_pgstate.errors import CorruptStateError

MSGPACK: Final = "msgpack"
_WITHOUT_TYPES: Final = frozenset({"null", "bytes", "bytearray", TYPE_STR, TYPE_INT})


@dataclass(frozen=True, slots=True)
class Encoded:
    """A value as its serializer wrote it."""

    type: str
    data: bytes


class OpaqueCodec(ValueCodec):
    """A codec for transfers. Its values are `Encoded` values, lists of encoded elements, and plain JSON."""

    def __init__(self, serde: SerializerProtocol | None = None) -> None:
        super().__init__(serde)
        self.plain = ValueCodec(serde, refuse_unsafe=False)

    def prepare(self, type_: str, data: bytes) -> Any:
        """Return a stored value as a list of encoded elements if splitting is worthwhile, else as `Encoded`."""
        if type_ == MSGPACK and self.is_native:
            elements = split_elements(data)
            # Do not split a list of numbers, because a number is smaller than its fingerprint.
            if elements and len(elements[0]) > 9:
                return elements
        return Encoded(type_, data)

    def dumps(self, channel: str, value: Any) -> tuple[str, bytes]:
        if type(value) is Encoded:
            return value.type, value.data
        return self.plain.dumps(channel, value)

    def loads(self, type_: str, data: bytes, where: str) -> Encoded:
        return Encoded(type_, data)

    def encode_element(self, channel: str, element: bytes) -> tuple[bytes, bool]:
        # False, because it is not known whether the element is a plain message.
        return element, False

    def decode_elements(self, payload: bytes, where: str) -> tuple[list[bytes], bytes]:
        elements = split_elements(payload)
        if elements is None:
            raise CorruptStateError(where, "its bytes are not an array")
        return elements, self.digests(where, elements)

    def digests(self, channel: str, elements: Sequence[bytes]) -> bytes:
        return b"".join(map(xxhash.xxh3_128_digest, elements))


class TypeCollector(ValueCodec):
    """A codec that builds no objects and collects the names of the types that it reads.

    Attributes:
        types: `(module, name)` of each type.
        others: Number of values of other serializers. The types in such values cannot be read.
    """

    def __init__(self) -> None:
        super().__init__(plain_serializer())
        self.types: set[tuple[str, str]] = set()
        self.others = 0

    def loads(self, type_: str, data: bytes, where: str) -> None:
        if type_ == MSGPACK:
            self._collect(data, where)
        elif type_ == "json":
            try:
                json.loads(data, object_hook=self._note_constructor)
            except (ValueError, RecursionError) as error:
                raise CorruptStateError(where, f"its bytes do not decode ({error})") from error
        elif type_ not in _WITHOUT_TYPES:
            self.others += 1

    def decode_elements(self, payload: bytes, where: str) -> tuple[list[Any], bytes]:
        self._collect(payload.removeprefix(PLAIN_MARK), where)
        return [], b""

    def _collect(self, data: bytes, where: str) -> None:
        try:
            self._unpack_types(data)
        except ormsgpack.MsgpackDecodeError as error:
            raise CorruptStateError(where, f"its bytes do not decode ({error})") from error

    def _unpack_types(self, data: bytes) -> Any:
        return ormsgpack.unpackb(data, ext_hook=self._note_extension, option=UNPACK_OPTIONS)

    def _note_extension(self, code: int, data: bytes) -> None:
        if code == EXT_NUMPY_ARRAY:
            self.types.add(NUMPY)
        else:
            fields = self._unpack_types(data)
            if code != EXT_DELTA_SNAPSHOT:
                self.types.add((str(fields[0]), str(fields[1])))

    def _note_constructor(self, value: dict[str, Any]) -> None:
        if value.get("type") == "constructor" and value.get("lc") in (1, 2):
            *module, name = value["id"]
            self.types.add((".".join(module), name))


def join_elements(elements: Sequence[bytes]) -> bytes:
    """Return the array of some encoded elements."""
    return array_header(len(elements)) + b"".join(elements)


def split_elements(data: bytes) -> list[bytes] | None:
    """Return the encoded elements of an array; `None` if the bytes are not exactly one array."""
    try:
        count, at = split_array(data, "")
        elements = []
        for _ in range(count):
            end = _end_of(data, at)
            elements.append(data[at:end])
            at = end
    except (CorruptStateError, IndexError):
        return None
    return elements if at == len(data) else None


def digest(type_: str, data: bytes) -> tuple[str, bytes]:
    """Return a key that identifies an encoded value: its type, and what PostgreSQL's `sha256(data)` returns."""
    return type_, hashlib.sha256(data).digest()


def is_same_value(first: Encoded, second: Encoded) -> bool:
    """Return whether two encoded values are equal when read, even if their bytes differ. Builds no objects."""
    if first == second:
        return True
    if first.type != second.type or first.type != MSGPACK:
        return False
    try:
        return _comparable(first.data) == _comparable(second.data)
    except (ormsgpack.MsgpackDecodeError, TypeError):
        return False


def is_delta_snapshot(value: Encoded) -> bool:
    """Return whether a value is a snapshot of a DeltaChannel."""
    head = value.data[:6]
    if value.type != MSGPACK or not head:
        return False
    position = {0xC7: 2, 0xC8: 3, 0xC9: 5}.get(head[0], 1 if 0xD4 <= head[0] <= 0xD8 else None)
    return position is not None and len(head) > position and head[position] == EXT_DELTA_SNAPSHOT


def plain_value(value: Encoded) -> Any:
    """Return a decoded value that consists only of JSON's types.

    Raises:
        TypeError: If the value contains a type that JSON lacks.
    """

    def refuse(code: int, data: bytes) -> Any:
        raise TypeError(f"the value must have only JSON's types, not the extension {code}")

    if value.type == "null":
        return None
    if value.type != MSGPACK:
        raise TypeError(f"the value must be of type {MSGPACK} or null, not {value.type}")
    try:
        return ormsgpack.unpackb(value.data, ext_hook=refuse)
    except ormsgpack.MsgpackDecodeError as error:
        raise TypeError(str(error)) from error


def _comparable(data: bytes) -> bytes:
    def keep(code: int, data: bytes) -> Any:
        return ("extension", code, data)

    # Pack the value again, so that 1, 1.0 and True differ.
    return ormsgpack.packb(ormsgpack.unpackb(data, ext_hook=keep, option=UNPACK_OPTIONS), option=UNPACK_OPTIONS)


# Values of fixed size: the first byte, and the size of the whole value.
_FIXED: Final = {
    0xC0: 1, 0xC2: 1, 0xC3: 1, 0xCA: 5, 0xCB: 9, 0xCC: 2, 0xCD: 3, 0xCE: 5, 0xCF: 9, 0xD0: 2, 0xD1: 3, 0xD2: 5,
    0xD3: 9, 0xD4: 3, 0xD5: 4, 0xD6: 6, 0xD7: 10, 0xD8: 18,
}  # fmt: skip
# Strings, byte strings and extensions: bytes of the length field, and further bytes of the header.
_SIZED: Final = {
    0xC4: (1, 0), 0xC5: (2, 0), 0xC6: (4, 0), 0xC7: (1, 1), 0xC8: (2, 1), 0xC9: (4, 1),
    0xD9: (1, 0), 0xDA: (2, 0), 0xDB: (4, 0),
}  # fmt: skip
# Arrays and maps: bytes of the count, and values per entry.
_COUNTED: Final = {0xDC: (2, 1), 0xDD: (4, 1), 0xDE: (2, 2), 0xDF: (4, 2)}


def _end_of(data: bytes, at: int) -> int:
    """Return the offset after the msgpack value that begins at `at`.

    Raises:
        IndexError: If the bytes end before the end of the value.
    """
    pending = 1
    while pending:
        pending -= 1
        first = data[at]
        if first < 0x80 or first >= 0xE0:
            at += 1
        elif first < 0x90:
            at += 1
            pending += 2 * (first & 0x0F)
        elif first < 0xA0:
            at += 1
            pending += first & 0x0F
        elif first < 0xC0:
            at += 1 + (first & 0x1F)
        elif (size := _FIXED.get(first)) is not None:
            at += size
        elif (sized := _SIZED.get(first)) is not None:
            width, extra = sized
            at += 1 + width + extra + int.from_bytes(data[at + 1 : at + 1 + width], "big")
        elif (counted := _COUNTED.get(first)) is not None:
            width, each = counted
            pending += each * int.from_bytes(data[at + 1 : at + 1 + width], "big")
            at += 1 + width
        else:
            raise IndexError
    if at > len(data):
        raise IndexError
    return at
