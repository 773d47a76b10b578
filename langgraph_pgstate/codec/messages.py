"""Encoding and decoding of the four chat message types without pydantic.

LangGraph's serializer writes a message as msgpack extension 5 around
`(module, class, model_dump(), "model_validate_json")`, and validates every field again when it reads the message. A
message of one of the four classes with plain content needs no pydantic: its dump equals `__dict__`, and validation
changes nothing. The serializer handles all other messages.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Any, Final

import ormsgpack
import xxhash
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.messages.ai import InputTokenDetails, OutputTokenDetails, UsageMetadata
from pydantic import BaseModel

from langgraph_pgstate.langgraph_compat import PACK_OPTIONS

UNPACK_OPTIONS: Final = ormsgpack.OPT_NON_STR_KEYS
_EXTENSION_PYDANTIC: Final = 5
DIGEST_SIZE: Final = 16

_METHOD = "model_validate_json"
_SUFFIX = ormsgpack.packb(_METHOD)
# The first fields of every message class.
_BASE_FIELDS = ("content", "additional_kwargs", "response_metadata", "type", "name", "id")
_TOOL_CALL_KEYS = ["name", "args", "id", "type"]
_USAGE_TOTALS = ["input_tokens", "output_tokens", "total_tokens"]
_USAGE_KEYS = frozenset(UsageMetadata.__annotations__)
_USAGE_DETAILS = {
    "input_token_details": frozenset(InputTokenDetails.__annotations__),
    "output_token_details": frozenset(OutputTokenDetails.__annotations__),
}

ExtensionHook = Callable[[int, bytes], Any]
_Builder = Callable[[dict[str, Any]], BaseMessage | None]
_Check = Callable[[dict[str, Any]], bool]


# Setters of the slots of a pydantic model, which are faster than its `__setattr__`.
_set_dict = BaseModel.__dict__["__dict__"].__set__
_set_fields_set = BaseModel.__dict__["__pydantic_fields_set__"].__set__
_set_extra = BaseModel.__dict__["__pydantic_extra__"].__set__
_set_private = BaseModel.__dict__["__pydantic_private__"].__set__


class _MessageShape:
    """The encoding of one message class.

    Attributes:
        cls: The class, matched exactly.
        fields: Its fields in the order of `model_dump`.
        seed: Seed of its fingerprints, random per process. Messages of two classes never have equal fingerprints.
        build: Returns the message that has the given fields; `None` if validation could change a field.
        rebuild: Like `build`, for fields that were plain when they were stored.
        is_plain: Returns whether validation leaves all fields of a message unchanged.
        prefix: The bytes before the fields in an encoded message.
    """

    __slots__ = ("_check", "build", "cls", "fields", "is_plain", "prefix", "rebuild", "seed")

    def __init__(self, cls: type[BaseMessage], check: _Check | None) -> None:
        self.cls = cls
        self.fields = tuple(cls.model_fields)
        self.seed = secrets.randbits(64)
        self.is_plain = _plainness(cls, check)
        self.build, self.rebuild = _builders(cls, self.is_plain)
        self.prefix = b"\x94" + ormsgpack.packb(cls.__module__) + ormsgpack.packb(cls.__name__)
        self._check = check

    def encode(self, message: BaseMessage) -> tuple[bytes, bool] | None:
        """Return a message in the serializer's bytes, and whether it is plain; `None` to use the serializer."""
        fields = message.__dict__
        if tuple(fields) != self.fields or message.__pydantic_extra__:
            return None
        is_plain = self.is_plain(fields)
        if not is_plain and self._check is not None and not self._check(fields):
            return None
        try:
            packed = ormsgpack.packb(fields, option=PACK_OPTIONS)
        except ormsgpack.MsgpackEncodeError:
            return None
        return extension(_EXTENSION_PYDANTIC, self.wrap(packed)), is_plain

    def wrap(self, packed: bytes) -> bytes:
        """Return the content of the extension of a message, given its packed fields."""
        return self.prefix + packed + _SUFFIX

    def is_sure_of(self, message: BaseMessage) -> bool:
        """Return whether a message is read unchanged if its fields are read unchanged."""
        fields = message.__dict__
        has_more = message.__pydantic_extra__ or message.__pydantic_private__
        return tuple(fields) == self.fields and not has_more and self.is_plain(fields)


def _plainness(cls: type[BaseMessage], check: _Check | None) -> _Check:
    assert tuple(cls.model_fields)[: len(_BASE_FIELDS)] == _BASE_FIELDS
    type_name = cls.model_fields["type"].default

    def is_plain(fields: dict[str, Any]) -> bool:
        # Unpack all values at once, because looking up each by name takes twice as long.
        content, additional_arguments, response_metadata, kind, name, id, *_ = fields.values()
        return (
            (type(content) is str or _is_content_list(content))
            and (type(id) is str or id is None)
            and (name is None or type(name) is str)
            and type(additional_arguments) is dict
            and type(response_metadata) is dict
            and type(kind) is str
            and kind == type_name
            and (check is None or check(fields))
        )

    return is_plain


def _builders(cls: type[BaseMessage], is_plain: _Check) -> tuple[_Builder, _Builder]:
    names = list(cls.model_fields)
    name_set = set(names)
    new = cls.__new__

    def rebuild(fields: dict[str, Any]) -> BaseMessage | None:
        # Another version of the class may have stored the fields.
        if [*fields] != names:
            return None
        message = new(cls)
        _set_dict(message, fields)
        _set_fields_set(message, name_set.copy())
        _set_extra(message, {})
        _set_private(message, None)
        return message

    def build(fields: dict[str, Any]) -> BaseMessage | None:
        return rebuild(fields) if [*fields] == names and is_plain(fields) else None

    return build, rebuild


def _is_content_list(content: Any) -> bool:
    return type(content) is list and all(type(item) is str or type(item) is dict for item in content)


def _ai_is_plain(fields: dict[str, Any]) -> bool:
    calls = fields["tool_calls"]
    if type(calls) is not list or fields["invalid_tool_calls"] != []:
        return False
    for call in calls:
        if type(call) is not dict or [*call] != _TOOL_CALL_KEYS:
            return False
        name, arguments, id, kind = call.values()
        if (
            type(name) is not str
            or type(arguments) is not dict
            or (type(id) is not str and id is not None)
            or kind != "tool_call"
        ):
            return False
        for key in arguments:
            if type(key) is not str:
                return False
    if not calls and (type(fields["additional_kwargs"]) is not dict or fields["additional_kwargs"].get("tool_calls")):
        return False
    usage = fields["usage_metadata"]
    return usage is None or _usage_is_plain(usage)


def _usage_is_plain(usage: Any) -> bool:
    if type(usage) is not dict:
        return False
    if [*usage] == _USAGE_TOTALS:
        # In the common case, there are no token details.
        read, written, total = usage.values()
        return type(read) is type(written) is type(total) is int
    if not usage.keys() <= _USAGE_KEYS:
        return False
    for name in _USAGE_TOTALS:
        if type(usage.get(name)) is not int:
            return False
    for name, known in _USAGE_DETAILS.items():
        details = usage.get(name)
        if name in usage and not (
            type(details) is dict and details.keys() <= known and all(type(count) is int for count in details.values())
        ):
            return False
    return True


def _tool_is_plain(fields: dict[str, Any]) -> bool:
    return type(fields["tool_call_id"]) is str and fields["status"] in ("success", "error")


# Checks of the fields that are not common to all classes.
_CHECKS: dict[type[BaseMessage], _Check | None] = {
    HumanMessage: None,
    AIMessage: _ai_is_plain,
    SystemMessage: None,
    ToolMessage: _tool_is_plain,
}
SHAPES: Final = {cls: _MessageShape(cls, check) for cls, check in _CHECKS.items()}


def is_message(value: Any) -> bool:
    """Return whether a value is a chat message.

    The exact classes are tested first, because pydantic's `isinstance` is slow.
    """
    return type(value) in SHAPES or isinstance(value, BaseMessage)


# Number of bytes that distinguish the classes of encoded messages.
_HEAD_SIZE: Final = min(len(shape.prefix) for shape in SHAPES.values())
_SHAPES_BY_HEAD: Final = {shape.prefix[:_HEAD_SIZE]: shape for shape in SHAPES.values()}


def extension(code: int, data: bytes) -> bytes:
    """Return a msgpack extension of more than 16 bytes."""
    size = len(data)
    if size < 1 << 8:
        return b"\xc7" + size.to_bytes(1, "big") + bytes((code,)) + data
    if size < 1 << 16:
        return b"\xc8" + size.to_bytes(2, "big") + bytes((code,)) + data
    return b"\xc9" + size.to_bytes(4, "big") + bytes((code,)) + data


def decoding_hook(
    fallback: ExtensionHook, digests: list[bytes] | None, generic_seed: int, *, were_plain: bool = False
) -> ExtensionHook:
    """Return an extension hook that builds plain messages itself and passes other values to `fallback`.

    Args:
        fallback: The serializer's own hook.
        digests: Receives the fingerprint of each message that the hook builds, in order.
        generic_seed: Seed for messages whose fields contain extensions.
        were_plain: Whether all messages were plain when they were stored, which saves the check.
    """
    unpack = ormsgpack.unpackb
    digest = xxhash.xxh3_128_digest
    shapes = _SHAPES_BY_HEAD
    nested: list[int] = []

    def note(code: int, data: bytes) -> Any:
        nested.append(code)
        return fallback(code, data)

    def hook(code: int, data: bytes) -> Any:
        shape = shapes.get(data[:_HEAD_SIZE]) if code == _EXTENSION_PYDANTIC else None
        if shape is None or not data.startswith(shape.prefix) or not data.endswith(_SUFFIX):
            return fallback(code, data)
        # The digest is made from these bytes, as for a message in memory.
        packed = data[len(shape.prefix) : -len(_SUFFIX)]
        try:
            message = (shape.rebuild if were_plain else shape.build)(
                unpack(packed, ext_hook=note, option=UNPACK_OPTIONS)
            )
        except Exception:
            # Another program wrote these bytes, so let the serializer's own hook decode them.
            message = None
        if message is None:
            nested.clear()
            return fallback(code, data)
        if digests is not None:
            if nested:
                digests.append(digest(extension(code, data), generic_seed))
            else:
                digests.append(digest(packed, shape.seed))
        if nested:
            nested.clear()
        return message

    return hook
