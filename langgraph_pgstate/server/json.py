"""Values as JSON, as LangGraph's clients expect them: messages and models are objects."""

from __future__ import annotations

import base64
import dataclasses
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from decimal import Decimal
from itertools import islice
from typing import Any, Final

import orjson
from langgraph.types import Interrupt
from pydantic import BaseModel
from starlette.responses import Response

from langgraph_pgstate.heavy import beside, has_many_values, is_heavy

# One step of a path: an index in brackets, or a name.
_STEP: Final = re.compile(r"\[(-?\d+)\]|([^.\[\]]+)")
PATH: Final = r"\w+(\.[^.\[\]]+|\[-?\d{1,9}\])*"
"""The form of a path in a JSON value."""
MOST_LEVELS: Final = 200
"""Maximum number of levels of nested lists and objects in a request, and in a response."""
# Maximum number of items of a list or object that one call of the encoder gets.
_PART: Final = 500
_OPTIONS: Final = (
    orjson.OPT_NON_STR_KEYS | orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_UTC_Z | orjson.OPT_PASSTHROUGH_DATACLASS
)


def to_json(value: Any) -> bytes:
    """Return a value as JSON. Values of unknown types become their `str()`. Infinite numbers and NaN become `null`."""
    try:
        return orjson.dumps(value, default=_plain, option=_OPTIONS)
    except (TypeError, ValueError, RecursionError):
        # orjson refuses integers of more than 64 bits, lone surrogates, keys that are not strings, and deep nesting.
        return json.dumps(_deep(value)).encode()


async def encode(value: Any) -> bytes:
    """Return a value as `to_json` does. A value with many items is encoded in an OS thread."""
    return await beside(to_json_in_parts, value) if has_many_values(value) else to_json(value)


def to_json_in_parts(value: Any, depth: int = 0) -> bytes:
    """Return the same JSON as `to_json`, made by several calls. No call holds the GIL for long."""
    if isinstance(value, BaseModel):
        value = _plain(value)
    if type(value) not in (dict, list, tuple) or not is_heavy(value):
        return to_json(value)
    if depth > MOST_LEVELS:
        return b"null"
    if type(value) is dict:
        return b"{%s}" % b",".join(_members(value, depth))
    return b"[%s]" % b",".join(_items(value, depth))


def _members(value: Mapping[Any, Any], depth: int) -> Iterator[bytes]:
    items = iter(value.items())
    while some := dict(islice(items, _PART)):
        if not is_heavy(some):
            yield to_json(some)[1:-1]
            continue
        for key, item in some.items():
            # Encode an object with only this key, and keep the key and its colon.
            yield to_json({key: 0})[1:-2] + to_json_in_parts(item, depth + 1)


def _items(value: Sequence[Any], depth: int) -> Iterator[bytes]:
    for start in range(0, len(value), _PART):
        some = value[start : start + _PART]
        if is_heavy(some):
            for item in some:
                yield to_json_in_parts(item, depth + 1)
        else:
            yield to_json(some)[1:-1]


def answer(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Return a response whose body is a value as JSON."""
    return Response(to_json(value), status, headers, "application/json")


def _plain(value: Any) -> Any:
    """Convert an object that orjson cannot encode to an object that orjson can encode."""
    if isinstance(value, BaseModel):
        return value.model_dump()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: getattr(value, field.name, None) for field in dataclasses.fields(value)}
        if isinstance(value, Interrupt) and fields.get("response_schema") is None:
            fields.pop("response_schema", None)
        return fields
    if isinstance(value, BaseException):
        return {"error": type(value).__name__, "message": str(value)}
    if isinstance(value, bytes | bytearray | memoryview):
        return base64.b64encode(value).decode()
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, Decimal):
        return float(value)
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return value._asdict()
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, set | frozenset | tuple | list) or type(value).__name__ == "deque":
        return list(value)
    return str(value)


def _deep(value: Any, depth: int = 0) -> Any:
    """Return a value made of types that the standard library encodes. Values below `MOST_LEVELS` become `None`."""
    if depth > MOST_LEVELS or (isinstance(value, float) and not math.isfinite(value)):
        return None
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, Mapping):
        return {str(key): _deep(item, depth + 1) for key, item in value.items()}
    if isinstance(value, list | tuple) and not hasattr(value, "_asdict"):
        return [_deep(item, depth + 1) for item in value]
    try:
        # The standard library cannot encode times, UUIDs, enums and arrays, but orjson can.
        return _deep(orjson.loads(orjson.dumps(value, default=_refuse, option=_OPTIONS)), depth + 1)
    except (TypeError, ValueError, RecursionError):
        found = _plain(value)
        return found if isinstance(found, str) else _deep(found, depth + 1)


def _refuse(value: Any) -> Any:
    raise TypeError(type(value).__name__)


def is_deeper(value: Any, levels: int) -> bool:
    """Return whether lists and objects are nested in more than a number of levels."""
    level = [value]
    for _ in range(levels + 1):
        level = [one for one in level if type(one) in (list, dict)]
        if not level:
            return False
        level = [inner for one in level for inner in (one.values() if type(one) is dict else one)]
    return True


def selected(value: Mapping[str, Any], names: Iterable[str] | None) -> dict[str, Any]:
    """Return an object with some of its fields, or with all."""
    return dict(value) if names is None else {name: value[name] for name in names if name in value}


def extracted(value: Any, path: str) -> Any:
    """Return the value at a path like `values.messages[-1].content` of a JSON value; `None` if there is nothing."""
    for number, name in _STEP.findall(path):
        if name:
            value = value.get(name) if isinstance(value, Mapping) else None
        else:
            place = int(number)
            is_there = isinstance(value, list) and -len(value) <= place < len(value)
            value = value[place] if is_there else None
    return value


def page_headers(offset: int, count: int, has_more: bool) -> dict[str, str]:
    """Return the headers of a page: the offset of the next page, and how many items there are at least in total."""
    following = offset + count
    if not has_more:
        return {"X-Pagination-Total": str(following)}
    return {"X-Pagination-Next": str(following), "X-Pagination-Total": str(following + 1)}
