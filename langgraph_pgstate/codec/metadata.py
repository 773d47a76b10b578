"""Checkpoint metadata as JSON for PostgreSQL, with the values that JSON cannot represent kept separately.

`jsonb` has no NUL, no NaN, no lone surrogate and no Python type. LangGraph strips NUL from metadata strings; this
module does so at every depth. A top-level value that JSON cannot represent exactly is stored twice: as the nearest
JSON value, for searching, and through the serializer, for returning it unchanged.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import orjson

from langgraph_pgstate.codec.values import encodes_as_utf8
from langgraph_pgstate.errors import ArgumentTypeError, ConfigurationError

_INT_MIN, _INT_MAX = -(2**63), 2**64 - 1
# Deeper values cannot be searched, because JSON parsers limit the depth.
_MAX_DEPTH = 100


def split_metadata(metadata: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return metadata as JSON text, and the values that JSON does not represent exactly."""
    plain: dict[str, Any] = {}
    exact: dict[str, Any] = {}
    for key, value in metadata.items():
        kind = type(value)
        if key.isascii() and "\0" not in key:
            # The fast path for nearly all metadata.
            if kind is str:
                if value.isascii() and "\0" not in value:
                    plain[key] = value
                    continue
            elif (
                kind is bool
                or value is None
                or (kind is int and _INT_MIN <= value <= _INT_MAX)
                or (kind is dict and not value)
            ):
                plain[key] = value
                continue
        plain[_text(key)], is_exact = to_json(value)
        if not is_exact or not encodes_as_utf8(key):
            exact[key] = value
    return orjson.dumps(plain).decode(), exact


def join_metadata(text: str, exact: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metadata that `split_metadata` was given, without NULs."""
    metadata: dict[str, Any] = orjson.loads(text)
    metadata.update(exact)
    return metadata


def filter_json(filter: Mapping[str, Any]) -> str:
    """Return a metadata filter as JSON for a containment test.

    Raises:
        ConfigurationError: If metadata cannot be searched for a key, or for a value's type.
    """
    plain = {}
    for key, value in filter.items():
        if type(key) is not str:
            raise ArgumentTypeError(f"filter keys must be strings, not {key!r}")
        if not encodes_as_utf8(key):
            raise ConfigurationError(f"filter key {key!r} holds a lone surrogate, which PostgreSQL cannot store")
        plain[key], is_exact = to_json(value)
        if not is_exact and not (type(value) is float and math.isfinite(value)):
            raise ArgumentTypeError(
                f"filter[{key!r}] must be a str, int, finite float, bool, None, or a list or dict of these, "
                f"not {type(value).__name__}"
            )
    return orjson.dumps(plain).decode()


def to_json(value: Any, depth: int = 0) -> tuple[Any, bool]:
    """Return the nearest JSON value that `jsonb` accepts, and whether it is exact.

    A value that JSON cannot represent becomes its `str()`. A value below 100 levels becomes `None`.
    """
    if depth > _MAX_DEPTH:
        return None, False
    kind = type(value)
    if kind is str:
        return _text(value), encodes_as_utf8(value)
    if kind is bool or value is None:
        return value, True
    if kind is int:
        return (value, True) if _INT_MIN <= value <= _INT_MAX else (str(value), False)
    if kind is float:
        return (value, _is_exact(value)) if math.isfinite(value) else (None, False)
    if kind is list or kind is tuple:
        # All savers return tuples in metadata as lists, so a list represents a tuple well enough.
        items = [to_json(item, depth + 1) for item in value]
        return [item for item, _ in items], all(is_exact for _, is_exact in items)
    if kind is dict:
        pairs = {}
        is_exact = True
        for key, item in value.items():
            pairs[_text(key) if type(key) is str else str(key)], item_is_exact = to_json(item, depth + 1)
            is_exact = is_exact and item_is_exact and type(key) is str and encodes_as_utf8(key)
        return pairs, is_exact
    # A plain value represents a value of a subclass, such as an `IntEnum` or numpy's `float64`, well enough. Any
    # process can read it. LangGraph's PostgreSQL saver returns plain values, too.
    if isinstance(value, str):
        return to_json(str.__str__(value))
    if isinstance(value, int):
        return to_json(int.__int__(value))
    if isinstance(value, float):
        return to_json(float.__float__(value))
    return _text(str(value)), False


def _is_exact(value: float) -> bool:
    # jsonb has no negative zero, and returns 1e16 as an integer, without point or exponent.
    return -1e16 < value < 1e16 and (value != 0 or math.copysign(1, value) > 0)


def _text(value: str) -> str:
    if "\0" in value:
        value = value.replace("\0", "")
    return value if encodes_as_utf8(value) else value.encode("utf-8", "replace").decode()
