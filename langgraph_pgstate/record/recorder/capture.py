"""Copying of span inputs and outputs, and their rendering as JSON.

`capture` makes a bounded copy of values that may change later. It runs in callbacks, so graphs wait for it. `render`
runs later, when rows are written.
"""

from __future__ import annotations

import asyncio
import hashlib
import traceback
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from datetime import date, time, timedelta
from decimal import Decimal
from enum import Enum
from pathlib import PurePath
from typing import Any, Final
from uuid import UUID

import orjson
from langchain_core.messages import BaseMessage
from langgraph.errors import GraphBubbleUp, GraphDrained, GraphInterrupt
from langgraph.types import Send
from pydantic import BaseModel

from langgraph_pgstate.codec.messages import SHAPES, is_message
from langgraph_pgstate.codec.metadata import to_json
from langgraph_pgstate.errors import PGStateError
from langgraph_pgstate.record.options import RecorderSettings

_ATOMS = frozenset({str, int, float, bool, type(None)})
_AS_TEXT = (UUID, date, time, timedelta, Decimal, PurePath)
_MOST_VALUES = 500
_MOST_ITEMS = 64
_MOST_DEPTH = 8
_SHORT_CHAT = 8
_LAST_MESSAGES: Final = 4
_TRACEBACK_BYTES = 16_384
_CANCELLATIONS = (asyncio.CancelledError, KeyboardInterrupt, GeneratorExit, SystemExit)
_NUL = rb"\u0000"

JSON = orjson.Fragment


def capture(value: Any, last_messages: int = _LAST_MESSAGES) -> Any:
    """Return a bounded copy of a value in types that JSON can represent.

    A long list of messages is reduced to its length and its last messages, any other long list to its length and its
    first items. A value of an unknown type is replaced by the type's name, so that no foreign code is called.
    """
    return _copy(value, _Budget(last_messages), 0)


class _Budget:
    """The limits of a copy. `values` is the number of lists, dicts and objects that may still be copied."""

    __slots__ = ("last_messages", "values")

    def __init__(self, last_messages: int) -> None:
        self.values = _MOST_VALUES
        self.last_messages = last_messages


def _copy(value: Any, left: _Budget, depth: int) -> Any:
    kind = type(value)
    if kind in _ATOMS:
        return value
    left.values -= 1
    if left.values < 0 or depth > _MOST_DEPTH:
        return {"$omitted": _name(kind)}
    depth += 1
    # Look up the common types first, because `isinstance` with a pydantic class runs Python code.
    copier = _COPIERS.get(kind)
    if copier is not None:
        return copier(value, left, depth)
    if isinstance(value, BaseMessage):
        return _message(value, left, depth)
    if isinstance(value, dict):
        return _copy_items(value, left, depth)
    if isinstance(value, list | tuple):
        return _copy_list(value, left, depth)
    if isinstance(value, Enum):
        return _copy(value.value, left, depth)
    if isinstance(value, str | int | float):
        return kind.__mro__[-2](value) if kind.__mro__[-2] in _ATOMS else str(value)
    if isinstance(value, _AS_TEXT):
        return str(value)
    if isinstance(value, bytes | bytearray | memoryview):
        return {"$bytes": len(value)}
    if isinstance(value, set | frozenset):
        return _copy_list(list(value), left, depth)
    if isinstance(value, Send):
        return {"node": value.node, "arg": _copy(value.arg, left, depth)}
    if isinstance(value, BaseModel):
        return _copy_items(value.__dict__, left, depth)
    if is_dataclass(value) and not isinstance(value, type):
        named = {field.name: getattr(value, field.name, None) for field in fields(value)}
        return _copy_items({name: item for name, item in named.items() if item not in (None, ())}, left, depth)
    if isinstance(value, BaseException):
        return {"type": _name(kind), "message": str(value)}
    return {"$type": _name(kind)}


def _copy_items(value: Mapping[Any, Any], left: _Budget, depth: int) -> dict[str, Any]:
    # Copy to a list first: another thread may be adding keys.
    items = list(value.items())
    copied = {
        key if type(key) is str else str(key) if type(key) in _ATOMS else _name(type(key)): (
            item if type(item) in _ATOMS else _copy(item, left, depth)
        )
        for key, item in (items if len(items) <= _MOST_ITEMS else items[:_MOST_ITEMS])
    }
    if len(items) > _MOST_ITEMS:
        copied["$omitted"] = len(items) - _MOST_ITEMS
    return copied


def _copy_list(value: list[Any] | tuple[Any, ...], left: _Budget, depth: int) -> Any:
    length = len(value)
    if length > _SHORT_CHAT and is_message(value[-1]):
        last = [_copy(item, left, depth) for item in value[-left.last_messages :]]
        return {"$messages": {"count": length, "last": last}}
    if length > _MOST_ITEMS:
        return {"$list": {"count": length, "first": [_copy(item, left, depth) for item in value[:_MOST_ITEMS]]}}
    return [item if type(item) in _ATOMS else _copy(item, left, depth) for item in value]


def _message(message: BaseMessage, left: _Budget, depth: int) -> dict[str, Any]:
    more = message.__dict__
    content = more["content"]
    copied: dict[str, Any] = {
        "role": message.type,
        "content": content if type(content) is str else _copy(content, left, depth),
    }
    if (id := more.get("id")) is not None:
        copied["id"] = id
    if (name := more.get("name")) is not None:
        copied["name"] = name
    if calls := more.get("tool_calls"):
        copied["tool_calls"] = [
            {"name": call.get("name"), "args": _copy(call.get("args"), left, depth), "id": call.get("id")}
            for call in calls
        ]
    if (call_id := more.get("tool_call_id")) is not None:
        copied["tool_call_id"] = call_id
    if more.get("status") == "error":
        copied["status"] = "error"
    return copied


_COPIERS: Final[dict[type, Callable[[Any, _Budget, int], Any]]] = {
    dict: _copy_items,
    list: _copy_list,
    tuple: _copy_list,
    **dict.fromkeys(SHAPES, _message),
}


def render(kind: str, captured: Any, settings: RecorderSettings) -> JSON | None:
    """Return a result of `capture` as JSON, redacted and then truncated to the limit; `None` without content."""
    if not settings.content or captured is None:
        return None
    text = _dump(captured) if settings.redact is None else _dump(_redacted(kind, captured, settings))
    if len(text) <= settings.limit:
        return JSON(text)
    preview = text[: settings.limit].decode("utf-8", "ignore")
    cut = {"bytes": len(text), "sha256": hashlib.sha256(text).hexdigest(), "preview": preview}
    return JSON(orjson.dumps({"$truncated": cut}))


def _dump(captured: Any) -> bytes:
    """Return captured values as JSON that PostgreSQL accepts."""
    try:
        text = orjson.dumps(captured)
    except TypeError:
        # orjson refuses lone surrogates and integers of more than 64 bits.
        return orjson.dumps(to_json(captured)[0])
    return orjson.dumps(to_json(captured)[0]) if _NUL in text else text


def status_of(error: BaseException) -> str:
    """Return the status of a span that raised this exception."""
    if isinstance(error, GraphInterrupt | GraphDrained):
        return "interrupted"
    # LangGraph raises a `GraphBubbleUp` to control the graph, which is no failure. The errors of the tool ledger derive
    # from `GraphBubbleUp` for another reason: middleware must not catch these errors.
    if isinstance(error, GraphBubbleUp) and not isinstance(error, PGStateError):
        return "success"
    return "cancelled" if isinstance(error, _CANCELLATIONS) else "error"


def targets_of(output: Any) -> list[tuple[str, Any]]:
    """Return the target nodes of the commands in an output, each with `None`: a command gives no reason."""
    commands = output if isinstance(output, list | tuple) else [output]
    found: list[tuple[str, Any]] = []
    for command in commands:
        if (goto := getattr(command, "goto", None)) is None or not hasattr(command, "update"):
            continue
        for target in goto if isinstance(goto, list | tuple) else [goto]:
            name = target if isinstance(target, str) else getattr(target, "node", None)
            if isinstance(name, str) and name and name != "__end__":
                found.append((name, None))
    return found


def render_error(error: BaseException | None, settings: RecorderSettings) -> dict[str, str | None]:
    """Return an exception as the columns `error_type`, `error_message` and `error_traceback`."""
    if error is None:
        return {}
    try:
        said = str(error)
    except Exception:
        said = ""
    lines = "".join(traceback.format_exception(error))[-_TRACEBACK_BYTES:]
    content: Any = {"message": said[:_TRACEBACK_BYTES], "traceback": lines}
    if settings.redact is not None or not settings.content:
        content = _redacted("error", content, settings) if settings.content else {}
    if not isinstance(content, dict):
        content = {"message": str(content)}
    message, trace = content.get("message"), content.get("traceback")
    return {
        "error_type": _name(type(error)),
        "error_message": None if message is None else clean(str(message)),
        "error_traceback": None if trace is None else clean(str(trace)),
    }


def clean(text: str) -> str:
    """Return a string that PostgreSQL's type `text` can hold."""
    if text.isascii() and "\0" not in text:
        return text
    cleaned: str = to_json(text)[0]
    return cleaned


def _redacted(kind: str, captured: Any, settings: RecorderSettings) -> Any:
    value = to_json(captured)[0]
    if settings.redact is None:
        return value
    try:
        return to_json(settings.redact(kind, value))[0]
    except Exception as error:
        # A value that could not be redacted must not be written.
        return {"$redaction_failed": _name(type(error))}


def _name(kind: type) -> str:
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
