"""Redaction of messages and texts in stored values, without building their objects. No I/O.

A redacted value has as many bytes as before, so that references to positions stay valid. A message loses its content,
arguments, artifacts and the name of a person. It keeps its id, its type and the names and ids of tool calls, so that a
model still accepts the conversation.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import ormsgpack

from langgraph_pgstate.codec.messages import UNPACK_OPTIONS

ERASED: Final = "[erased]"
_MARK: Final = ERASED.encode()
_SHORTEST: Final = 12
# Minimum number of characters by which a truncated text is recognized.
_PREFIX: Final = 16
# Fields of a message that are redacted, and whether the keys within a field are kept.
_FIELDS: Final[Mapping[str, bool]] = {
    "content": True,
    "tool_calls": True,
    "tool_call_chunks": True,
    "invalid_tool_calls": True,
    "additional_kwargs": False,
    "response_metadata": False,
    "artifact": False,
}
_STRUCTURE: Final = frozenset({"type", "id", "name", "index", "tool_call_id"})
# Keys whose values are redacted completely, including the keys within these values.
_LOOSE: Final = frozenset({"args", "arguments", "input"})
_PERSONS: Final = frozenset({"human", "user"})
_ROLES: Final = ("human", "user", "ai", "assistant", "system")


@dataclass(slots=True)
class Redaction:
    """The messages, texts and names to redact.

    Attributes:
        message_ids: Ids of messages.
        texts: Texts to redact wherever they occur. Texts of less than twelve characters would match too much, and are
            redacted only if they are the whole content of a message without an id, as in the input of a graph.
        names: Names of persons. A string in JSON is redacted if it equals one of them.
    """

    message_ids: frozenset[str]
    texts: tuple[str, ...] = ()
    names: frozenset[str] = frozenset()
    _probes: tuple[bytes, ...] = field(init=False, default=(), repr=False)
    _contents: frozenset[str] = field(init=False, default=frozenset(), repr=False)

    def __post_init__(self) -> None:
        found = set()
        for text in self.texts:
            if len(text.strip()) >= _SHORTEST:
                # Search also for the forms in which JSON encodes the text and Python prints it.
                forms = (text, json.dumps(text)[1:-1], json.dumps(text, ensure_ascii=False)[1:-1], repr(text)[1:-1])
                found |= {form.encode("utf-8", "surrogatepass") for form in forms}
        self._probes = tuple(sorted(found, key=lambda form: (-len(form), form)))
        self._contents = frozenset(self.texts)

    def holds(self, data: bytes) -> bool:
        """Return whether bytes contain one of the texts."""
        return any(probe in data for probe in self._probes)

    def is_said(self, fields: Mapping[str, Any]) -> bool:
        """Return whether a message without an id has only texts that are to be redacted."""
        found = texts_of(fields)
        return bool(found) and self._contents.issuperset(found)

    def is_pair(self, role: Any, text: Any) -> bool:
        """Return whether a role and a text, which stand for a message in the input of a graph, are to be redacted."""
        return isinstance(text, str) and text in self._contents and role in _ROLES

    def is_cut(self, text: str) -> bool:
        """Return whether a text ends with the beginning of one of the texts."""
        return any(
            (at := text.rfind(one[:_PREFIX])) >= 0 and one.startswith(text[at:])
            for one in self.texts
            if len(one) >= _PREFIX
        )

    def blank(self, data: bytes) -> bytes:
        """Return bytes of the same length, with the texts replaced by blanks."""
        for probe in self._probes:
            if probe in data:
                data = data.replace(probe, blank(probe))
        return data


def blank(data: bytes | bytearray) -> bytes:
    """Return a blank value of the same number of bytes."""
    return _MARK + b" " * (len(data) - len(_MARK)) if len(data) >= len(_MARK) else b"x" * len(data)


Found = Callable[[str, Mapping[str, Any], Mapping[str, Any]], None]
"""Function that gets each redacted message: its id, and its fields before and after."""


def redact_packed(data: bytes, what: Redaction, found: Found | None = None) -> bytes:
    """Return concatenated encoded values, redacted; the same object if there is nothing to redact."""
    walk = _Walk(bytearray(data), what, found)
    try:
        at = 0
        while at < len(data):
            at = walk.value(at)
    except (IndexError, RecursionError):
        walk.data = bytearray(data)
    after = what.blank(bytes(walk.data))
    return data if after == data else after


def message_ids_of(data: bytes) -> set[str]:
    """Return the ids of the messages in concatenated encoded values."""
    walk = _Walk(bytearray(data), Redaction(frozenset()), None)
    walk.seen = set()
    try:
        at = 0
        while at < len(data):
            at = walk.value(at)
    except (IndexError, RecursionError):
        pass
    return walk.seen


def texts_of(fields: Mapping[str, Any]) -> list[str]:
    """Return the texts of a message's content and of the arguments of its tool calls."""
    found: list[str] = []

    def gather(value: Any) -> None:
        if isinstance(value, str):
            found.append(value)
        elif isinstance(value, Mapping):
            for key, item in value.items():
                if key not in _STRUCTURE:
                    gather(item)
        elif isinstance(value, list | tuple):
            for item in value:
                gather(item)

    gather(fields.get("content"))
    calls = fields.get("tool_calls")
    for call in calls if isinstance(calls, list | tuple) else ():
        gather(call.get("args") if isinstance(call, Mapping) else None)
    return [text for text in found if text.strip()]


# First bytes of msgpack values with a fixed size, and the number of bytes that follow.
_FIXED: Final = {
    0xC0: 0, 0xC2: 0, 0xC3: 0, 0xCA: 4, 0xCB: 8, 0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8, 0xD0: 1, 0xD1: 2, 0xD2: 4, 0xD3: 8,
}  # fmt: skip
_FIXED_EXTENSIONS: Final = {0xD4: 1, 0xD5: 2, 0xD6: 4, 0xD7: 8, 0xD8: 16}
_STRINGS: Final = {0xD9: 1, 0xDA: 2, 0xDB: 4}
_BYTES: Final = {0xC4: 1, 0xC5: 2, 0xC6: 4}
_EXTENSIONS: Final = {0xC7: 1, 0xC8: 2, 0xC9: 4}
_ARRAYS: Final = {0xDC: 2, 0xDD: 4}
_MAPS: Final = {0xDE: 2, 0xDF: 4}


class _Walk:
    """A pass over encoded msgpack values that redacts them in place. It collects message ids in `seen`, if given."""

    __slots__ = ("_found", "_what", "data", "seen")

    def __init__(self, data: bytearray, what: Redaction, found: Found | None) -> None:
        self.data, self._what, self._found = data, what, found
        self.seen: set[str] | None = None

    def value(self, at: int) -> int:
        """Redact the value at a position, and return the position after it. Raise `IndexError` for damaged msgpack."""
        kind, start, size = self._head(at)
        if kind == "map":
            return self._map(start, size)
        if kind == "array":
            if size == 2 and self._what.is_pair(self._string(start), self._string(text := self._skip(start))):
                return self._blank(text, keeps_keys=False)
            for _ in range(size):
                start = self.value(start)
            return start
        end = self._within(start + size)
        if kind in ("extension", "bytes"):
            self._nested(start, end)
        return end

    def _nested(self, start: int, end: int) -> None:
        """Redact nested values: values of an extension, or encoded values that are stored as bytes."""
        content = bytes(self.data[start:end])
        walk = _Walk(bytearray(content), self._what, self._found)
        walk.seen = self.seen
        try:
            at = 0
            while at < len(content):
                at = walk.value(at)
        except (IndexError, RecursionError):
            return
        self.data[start:end] = walk.data

    def _map(self, start: int, size: int) -> int:
        places: dict[str, int] = {}
        ends: list[int] = []
        at = start
        for _ in range(size):
            kind, begin, length = self._head(at)
            key = bytes(self.data[begin : begin + length]).decode("utf-8", "replace") if kind == "string" else ""
            at = places[key] = self._skip(at)
            at = self._skip(at)
            ends.append(at)
        end = at
        role = places.get("type", places.get("role"))
        id = self._string(places["id"]) if "id" in places and "content" in places and role is not None else None
        if id is not None and self.seen is not None:
            self.seen.add(id)
        if id is not None:
            is_hit = id in self._what.message_ids
        else:
            may_be = bool(self._what.texts) and "content" in places and role is not None
            is_hit = may_be and self._what.is_said(self._fields(start, end, size))
        if not is_hit:
            at = start
            for _ in range(size):
                at = self.value(at)
                at = self.value(at)
            return end
        before = self._fields(start, end, size)
        for name, keeps_keys in _FIELDS.items():
            if name in places:
                self._blank(places[name], keeps_keys=keeps_keys)
        if "name" in places and role is not None and self._string(role) in _PERSONS:
            self._blank(places["name"], keeps_keys=False)
        if self._found is not None and id is not None:
            self._found(id, before, self._fields(start, end, size))
        return end

    def _fields(self, start: int, end: int, size: int) -> Mapping[str, Any]:
        header = b"\xdf" + size.to_bytes(4, "big")
        try:
            found = ormsgpack.unpackb(
                header + bytes(self.data[start:end]), ext_hook=lambda code, data: None, option=UNPACK_OPTIONS
            )
        except (ormsgpack.MsgpackDecodeError, TypeError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}

    def _blank(self, at: int, *, keeps_keys: bool) -> int:
        """Blank a whole value, with or without the keys of its maps, and return the position after it."""
        kind, start, size = self._head(at)
        first = self.data[at]
        if kind == "array":
            for _ in range(size):
                start = self._blank(start, keeps_keys=keeps_keys)
            return start
        if kind == "map":
            for _ in range(size):
                key = self._string(start)
                value = self._skip(start)
                if not keeps_keys:
                    self._blank(start, keeps_keys=False)
                if keeps_keys and key in _STRUCTURE:
                    start = self._skip(value)
                else:
                    start = self._blank(value, keeps_keys=keeps_keys and key not in _LOOSE)
            return start
        end = self._within(start + size)
        if kind == "string":
            self.data[start:end] = blank(self.data[start:end])
        elif kind in ("bytes", "number"):
            self.data[start:end] = bytes(size)
            if first < 0x80 or first >= 0xE0:
                self.data[at] = 0
            elif first == 0xC3:
                self.data[at] = 0xC2
        elif kind == "extension":
            content = _Walk(self.data[start:end], self._what, None)
            inner = 0
            try:
                while inner < size:
                    inner = content._blank(inner, keeps_keys=keeps_keys)
                self.data[start:end] = content.data
            except IndexError:
                self.data[start:end] = bytes(size)
        return end

    def _string(self, at: int) -> str | None:
        kind, start, size = self._head(at)
        return bytes(self.data[start : start + size]).decode("utf-8", "replace") if kind == "string" else None

    def _skip(self, at: int) -> int:
        pending = 1
        while pending:
            pending -= 1
            kind, start, size = self._head(at)
            if kind == "map":
                pending, at = pending + 2 * size, start
            elif kind == "array":
                pending, at = pending + size, start
            else:
                at = self._within(start + size)
        return at

    def _within(self, end: int) -> int:
        if end > len(self.data):
            raise IndexError
        return end

    def _head(self, at: int) -> tuple[str, int, int]:
        """Return the kind of the value at a position, the start of its content, and its number of bytes or members."""
        first = self.data[at]
        if first < 0x80 or first >= 0xE0:
            return "number", at + 1, 0
        if first < 0x90:
            return "map", at + 1, first & 0x0F
        if first < 0xA0:
            return "array", at + 1, first & 0x0F
        if first < 0xC0:
            return "string", at + 1, first & 0x1F
        if first in _FIXED:
            return "number", at + 1, _FIXED[first]
        if first in _FIXED_EXTENSIONS:
            return "extension", at + 2, _FIXED_EXTENSIONS[first]
        for kind, widths, more in (
            ("string", _STRINGS, 0),
            ("bytes", _BYTES, 0),
            ("extension", _EXTENSIONS, 1),
            ("array", _ARRAYS, 0),
            ("map", _MAPS, 0),
        ):
            if first in widths:
                width = widths[first]
                size = int.from_bytes(self.data[at + 1 : self._within(at + 1 + width)], "big")
                if kind in ("array", "map") and size > len(self.data):
                    raise IndexError
                return kind, at + 1 + width + more, size
        raise IndexError


def redact_json(value: Any, what: Redaction) -> Any:
    """Return a redacted JSON value; the same object if there is nothing to redact."""
    if isinstance(value, str):
        return ERASED if value in what.names or what.holds(value.encode("utf-8", "surrogatepass")) else value
    if isinstance(value, list):
        if len(value) == 2 and what.is_pair(*value):
            return [value[0], ERASED]
        members = [redact_json(item, what) for item in value]
        return value if all(one is other for one, other in zip(members, value, strict=True)) else members
    if not isinstance(value, dict):
        return value
    cut = value.get("$truncated")
    if isinstance(cut, dict) and isinstance(text := cut.get("preview"), str) and len(value) == 1:
        data = text.encode("utf-8", "surrogatepass")
        is_hit = what.holds(data) or what.is_cut(text) or any(id.encode() in data for id in what.message_ids)
        return {"$erased": True} if is_hit else value
    if "content" in value and _is_redacted(value, what):
        return _redacted_message(value)
    items = {_redacted_key(key, what): redact_json(item, what) for key, item in value.items()}
    return value if all(key in items and items[key] is item for key, item in value.items()) else items


def blank_json(value: Any, what: Redaction) -> Any:
    """Return a JSON value with its texts blanked as `redact_packed` does."""
    if isinstance(value, str):
        return what.blank(value.encode("utf-8", "surrogatepass")).decode("utf-8", "surrogatepass")
    if isinstance(value, list):
        return [blank_json(item, what) for item in value]
    if isinstance(value, dict):
        return {blank_json(key, what): blank_json(item, what) for key, item in value.items()}
    return value


def _redacted_key(key: str, what: Redaction) -> str:
    return ERASED if what.holds(key.encode("utf-8", "surrogatepass")) else key


def _is_redacted(value: Mapping[str, Any], what: Redaction) -> bool:
    id = value.get("id")
    if id is None:
        return ("role" in value or "type" in value) and what.is_said(value)
    return isinstance(id, str) and id in what.message_ids


def _redacted_message(value: Mapping[str, Any]) -> dict[str, Any]:
    kind = value.get("role") or value.get("type")
    after = {**value, "content": ERASED}
    for name in ("additional_kwargs", "response_metadata"):
        if name in after:
            after[name] = {}
    for name in ("tool_calls", "invalid_tool_calls", "tool_call_chunks"):
        if isinstance(calls := after.get(name), list):
            after[name] = [{**call, "args": {}} if isinstance(call, dict) else ERASED for call in calls]
    if after.get("artifact") is not None:
        after["artifact"] = ERASED
    if kind in _PERSONS and after.get("name") is not None:
        after["name"] = ERASED
    return after


def all_texts(fields: Iterable[Mapping[str, Any]]) -> tuple[str, ...]:
    """Return the distinct texts of some messages, the longest first."""
    return tuple(sorted({text for one in fields for text in texts_of(one)}, key=lambda text: (-len(text), text)))
