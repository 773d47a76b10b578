"""Encoding of values with exactly their types, and the differences between two values. No I/O."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterable, Mapping
from datetime import datetime
from decimal import Decimal
from typing import Any, Final
from uuid import UUID

import orjson
import ormsgpack
from langgraph.checkpoint.serde.jsonplus import EXT_CONSTRUCTOR_SINGLE_ARG, EXT_PYDANTIC_V2
from pydantic import BaseModel

from langgraph_pgstate.codec.messages import SHAPES
from langgraph_pgstate.langgraph_compat import TEXT, TUPLE, convert, parts_of

_ATOMS: Final = frozenset({str, int, float, bool, type(None), bytes})
# With these options, ormsgpack passes values of types that JSON lacks to `default`, or raises an error.
_SURE_OPTIONS: Final = (
    ormsgpack.OPT_PASSTHROUGH_DATACLASS
    | ormsgpack.OPT_PASSTHROUGH_DATETIME
    | ormsgpack.OPT_PASSTHROUGH_ENUM
    | ormsgpack.OPT_PASSTHROUGH_SUBCLASS
    | ormsgpack.OPT_PASSTHROUGH_TUPLE
    | ormsgpack.OPT_PASSTHROUGH_UUID
)
# First bytes of msgpack's byte strings.
_BYTES: Final = (b"\xc4", b"\xc5", b"\xc6")


def encode_surely(value: Any) -> bytes | None:
    """Return exact bytes of a value that has only JSON's types, tuples, UUIDs, most datetimes and plain messages.

    Return `None` for any other value. The bytes keep all types, so the caller need not decode and compare them.
    """
    try:
        data = ormsgpack.packb(value, default=_encode_part, option=_SURE_OPTIONS)
        if any(one in data for one in _BYTES):
            # orjson refuses bytes and bytearrays. msgpack would encode a bytearray as bytes.
            orjson.dumps(value, default=_pass_message)
    except (ormsgpack.MsgpackEncodeError, TypeError):
        return None
    return data


def _encode_part(value: Any) -> ormsgpack.Ext | str:
    kind = type(value)
    if kind is TEXT:
        return str(value)
    if kind is tuple:
        return ormsgpack.Ext(
            EXT_CONSTRUCTOR_SINGLE_ARG,
            ormsgpack.packb([*TUPLE, [*value]], default=_encode_part, option=_SURE_OPTIONS),
        )
    if kind is UUID or (kind is datetime and parts_of(value) is None):
        found: ormsgpack.Ext = convert(value)
        return found
    shape = SHAPES[kind]
    if not shape.is_sure_of(value):
        raise TypeError
    fields = ormsgpack.packb(value.__dict__, default=_encode_part, option=_SURE_OPTIONS)
    return ormsgpack.Ext(EXT_PYDANTIC_V2, shape.wrap(fields))


def _pass_message(value: Any) -> Any:
    if type(value) not in SHAPES:
        raise TypeError
    return value.__dict__


def difference(value: Any, found: Any, path: str = "") -> tuple[str, Any, Any] | None:
    """Return the first place where two values differ, and both values at this place; `None` if the values are equal.

    Equal values have the same types and content at each place. NaN is equal to NaN. The result of `message.text` counts
    as a plain string.
    """
    kind = _type_of(value)
    here = (path, value, found)
    if type(found) is not kind:
        return here
    if kind in _ATOMS or value is found:
        return None if value is found or value == found or repr(value) == repr(found) else here
    if isinstance(value, dict):
        if len(value) != len(found):
            return here
        for (key, one), (other_key, other) in zip(value.items(), found.items(), strict=True):
            place = f"{path}[{key!r}]"
            if difference(key, other_key) is not None:
                return f"{path}, key {key!r}", key, other_key
            if (inner := difference(one, other, place)) is not None:
                return inner
        return None if kind is dict else _state_difference(value, found, path)
    if isinstance(value, list | tuple | deque):
        if len(value) != len(found) or getattr(value, "maxlen", None) != getattr(found, "maxlen", None):
            return here
        for number, (one, other) in enumerate(zip(value, found, strict=True)):
            if (inner := difference(one, other, f"{path}[{number}]")) is not None:
                return inner
        return None if kind in (list, tuple, deque) else _state_difference(value, found, path)
    if isinstance(value, set | frozenset):
        return None if _members(value) == _members(found) else here
    if kind.__module__.partition(".")[0] in sys.stdlib_module_names:
        # `repr` also compares the time zone and the fold, which `==` ignores.
        is_same = repr(value) == repr(found) and (value == found or kind is Decimal)
        return None if is_same else here
    if kind.__module__ == "numpy":
        is_same = value.dtype == found.dtype and value.shape == found.shape and value.tobytes() == found.tobytes()
        return None if is_same else here
    if not _state_of(value):
        return None if value == found else here
    return _state_difference(value, found, path)


def _state_difference(value: Any, found: Any, path: str) -> tuple[str, Any, Any] | None:
    one, other = _state_of(value), _state_of(found)
    for name in {**one, **other}:
        place = f"{path}.{name}"
        if name not in one or name not in other:
            return place, one.get(name), other.get(name)
        if (inner := difference(one[name], other[name], place)) is not None:
            return inner
    return None


def _state_of(value: Any) -> Mapping[str, Any]:
    """Return the attributes of an object."""
    if isinstance(value, BaseModel):
        return {**value.__dict__, **(value.__pydantic_extra__ or {}), **(value.__pydantic_private__ or {})}
    slots = {
        name: getattr(value, name)
        for kind in type(value).__mro__
        for name in _names_of(vars(kind).get("__slots__", ()))
        if name not in ("__dict__", "__weakref__") and hasattr(value, name)
    }
    return {**slots, **getattr(value, "__dict__", {})}


def _names_of(slots: Any) -> Iterable[str]:
    return (slots,) if isinstance(slots, str) else slots


def _members(values: Iterable[Any]) -> set[tuple[type, str]]:
    """Return the types and `repr` of a set's members. NaN is not equal to itself, but its `repr` is."""
    return {(_type_of(one), repr(one)) for one in values}


def _type_of(value: Any) -> Any:
    kind = type(value)
    return str if kind is TEXT else kind
