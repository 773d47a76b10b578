"""The four message types a chat is made of, encoded and decoded without pydantic where that changes nothing.

LangGraph's serializer writes a message as extension 5 around `(module, class, model_dump(), "model_validate_json")`
and reads it by calling the class, which validates every field again. For exact `HumanMessage`, `AIMessage`,
`SystemMessage` and `ToolMessage` objects with plain content both ends are predictable: the dump equals `__dict__`,
and validation of a valid dump changes nothing. Those take the short way; anything unusual takes the serializer's.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Any, Final

import ormsgpack
import xxhash
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.messages.ai import InputTokenDetails, OutputTokenDetails, UsageMetadata

# The serializer's own options: the bytes must be the same.
PACK_OPTIONS: Final = (
    ormsgpack.OPT_NON_STR_KEYS
    | ormsgpack.OPT_PASSTHROUGH_DATACLASS
    | ormsgpack.OPT_PASSTHROUGH_DATETIME
    | ormsgpack.OPT_PASSTHROUGH_ENUM
    | ormsgpack.OPT_PASSTHROUGH_UUID
    | ormsgpack.OPT_REPLACE_SURROGATES
)
UNPACK_OPTIONS: Final = ormsgpack.OPT_NON_STR_KEYS
EXTENSION_PYDANTIC: Final = 5
DIGEST_SIZE: Final = 16

_SUFFIX = ormsgpack.packb("model_validate_json")
_TOOL_CALL_KEYS = ("name", "args", "id", "type")
_USAGE_KEYS = frozenset(UsageMetadata.__annotations__)
_USAGE_DETAILS = {
    "input_token_details": frozenset(InputTokenDetails.__annotations__),
    "output_token_details": frozenset(OutputTokenDetails.__annotations__),
}

ExtensionHook = Callable[[int, bytes], Any]


class MessageShape:
    """What is known of one message class.

    Attributes:
        cls: The class, matched exactly.
        fields: Its fields in the order `model_dump` gives them.
        seed: Seed of its fingerprints, random per process, so that equal fields of two classes differ.
    """

    __slots__ = ("_check", "_field_set", "_prefix", "cls", "fields", "seed", "type_name")

    def __init__(self, cls: type[BaseMessage], check: Callable[[dict[str, Any]], bool]) -> None:
        self.cls = cls
        self.fields = tuple(cls.model_fields)
        self.seed = secrets.randbits(64)
        self.type_name = cls.model_fields["type"].default
        self._field_set = frozenset(self.fields)
        self._prefix = b"\x94" + ormsgpack.packb(cls.__module__) + ormsgpack.packb(cls.__name__)
        self._check = check

    def encode(self, message: BaseMessage) -> bytes | None:
        """The serializer's own bytes for `message`, or `None` if only the serializer can tell."""
        fields = message.__dict__
        if tuple(fields) != self.fields or message.__pydantic_extra__ or not self._check(fields):
            return None
        try:
            return extension(EXTENSION_PYDANTIC, self._prefix + ormsgpack.packb(fields, option=PACK_OPTIONS) + _SUFFIX)
        except ormsgpack.MsgpackEncodeError:
            return None

    def build(self, fields: dict[str, Any]) -> BaseMessage | None:
        """The message with these fields, or `None` if validation could change something."""
        if (
            tuple(fields) != self.fields
            or fields["type"] != self.type_name
            or not _base_is_valid(fields)
            or not self._check(fields)
        ):
            return None
        message = self.cls.__new__(self.cls)
        set_attribute = object.__setattr__
        set_attribute(message, "__dict__", fields)
        set_attribute(message, "__pydantic_fields_set__", set(self._field_set))
        set_attribute(message, "__pydantic_extra__", {})
        set_attribute(message, "__pydantic_private__", None)
        return message

    def digest_of_encoded(self, data: bytes) -> bytes | None:
        """The fingerprint of a message from its extension's data; `None` if those bytes are not of this shape."""
        if data.startswith(self._prefix) and data.endswith(_SUFFIX):
            return xxhash.xxh3_128_digest(data[len(self._prefix) : -len(_SUFFIX)], self.seed)
        return None


def _base_is_valid(fields: dict[str, Any]) -> bool:
    content, name, id = fields["content"], fields["name"], fields["id"]
    return (
        (
            type(content) is str
            or (type(content) is list and all(type(item) is str or type(item) is dict for item in content))
        )
        and type(fields["additional_kwargs"]) is dict
        and type(fields["response_metadata"]) is dict
        and (name is None or type(name) is str)
        and (id is None or type(id) is str)
    )


def _always(fields: dict[str, Any]) -> bool:
    return True


def _ai_is_plain(fields: dict[str, Any]) -> bool:
    calls = fields["tool_calls"]
    if type(calls) is not list or fields["invalid_tool_calls"] != []:
        return False
    for call in calls:
        if (
            type(call) is not dict
            or tuple(call) != _TOOL_CALL_KEYS
            or type(call["name"]) is not str
            or type(call["args"]) is not dict
            or not all(type(key) is str for key in call["args"])
            or not (call["id"] is None or type(call["id"]) is str)
            or call["type"] != "tool_call"
        ):
            return False
    if not calls and (type(fields["additional_kwargs"]) is not dict or fields["additional_kwargs"].get("tool_calls")):
        return False
    usage = fields["usage_metadata"]
    return usage is None or _usage_is_plain(usage)


def _usage_is_plain(usage: Any) -> bool:
    if type(usage) is not dict or not usage.keys() <= _USAGE_KEYS:
        return False
    for name in ("input_tokens", "output_tokens", "total_tokens"):
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


_CHECKS: dict[type[BaseMessage], Callable[[dict[str, Any]], bool]] = {
    HumanMessage: _always,
    AIMessage: _ai_is_plain,
    SystemMessage: _always,
    ToolMessage: _tool_is_plain,
}
SHAPES: Final = {cls: MessageShape(cls, check) for cls, check in _CHECKS.items()}
SHAPES_BY_NAME: Final = {(cls.__module__, cls.__name__): shape for cls, shape in SHAPES.items()}


def extension(code: int, data: bytes) -> bytes:
    """A msgpack extension of more than 16 bytes."""
    size = len(data)
    if size < 1 << 8:
        return b"\xc7" + size.to_bytes(1, "big") + bytes((code,)) + data
    if size < 1 << 16:
        return b"\xc8" + size.to_bytes(2, "big") + bytes((code,)) + data
    return b"\xc9" + size.to_bytes(4, "big") + bytes((code,)) + data


def decoding_hook(fallback: ExtensionHook, digests: list[bytes] | None, generic_seed: int) -> ExtensionHook:
    """An extension hook that builds plain messages itself and leaves the rest to the serializer's hook.

    Args:
        fallback: The serializer's own hook.
        digests: Receives the fingerprint of each message built here, in order.
        generic_seed: Seed for messages whose fields hold extensions of their own.
    """
    unpack = ormsgpack.unpackb

    def hook(code: int, data: bytes) -> Any:
        if code != EXTENSION_PYDANTIC:
            return fallback(code, data)
        nested = False

        def note(code: int, data: bytes) -> Any:
            nonlocal nested
            nested = True
            return fallback(code, data)

        try:
            module, name, fields, _ = unpack(data, ext_hook=note, option=UNPACK_OPTIONS)
            shape = SHAPES_BY_NAME.get((module, name))
            message = shape.build(fields) if shape is not None else None
        except Exception:
            # Not what the serializer writes for a message: its own hook knows what to make of that.
            return fallback(code, data)
        if shape is None or message is None:
            return fallback(code, data)
        if digests is not None:
            digest = (
                xxhash.xxh3_128_digest(extension(code, data), generic_seed) if nested else shape.digest_of_encoded(data)
            )
            if digest is not None:
                digests.append(digest)
        return message

    return hook
