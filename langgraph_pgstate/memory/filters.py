"""Filters of LangGraph's store, as conditions that a statement checks for each row."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from langgraph_pgstate.db.statements import array_literal
from langgraph_pgstate.errors import ArgumentTypeError, ConfigurationError

OPERATORS: Final = ("$eq", "$ne", "$gt", "$gte", "$lt", "$lte")
_IS_OBJECT: Final = "is object"
_MAX_CONDITIONS: Final = 100


class Condition(NamedTuple):
    """A condition on a field. `path` holds the keys that lead to the field."""

    path: tuple[str, ...]
    operator: str
    value: Any


def conditions_of(filter: Mapping[str, Any] | None) -> dict[str, list[str]]:
    """Return a filter as parameters of a statement.

    As in LangGraph's stores, a mapping under a field holds either operators or inner fields.
    """
    if filter is not None and not isinstance(filter, Mapping):
        raise ArgumentTypeError(f"filter must be a mapping, not {type(filter).__name__}")
    found = [*_conditions((), filter or {})]
    if len(found) > _MAX_CONDITIONS:
        raise ConfigurationError(f"filter must have at most {_MAX_CONDITIONS} conditions, not {len(found)}")
    return {
        "paths": [array_literal([*one.path]) for one in found],
        "operators": [one.operator for one in found],
        "operands": [_json(one) for one in found],
    }


def _conditions(path: tuple[str, ...], filter: Mapping[str, Any]) -> Iterator[Condition]:
    for key, value in filter.items():
        if not isinstance(key, str) or "\0" in key:
            raise ArgumentTypeError(f"filter keys must be strings without NUL, not {key!r}")
        if key.startswith("$") and not path:
            raise ConfigurationError(f"filter must name a field before the operator {key!r}")
        if key.startswith("$"):
            if key not in OPERATORS:
                raise ConfigurationError(f"operators of a filter must be among {', '.join(OPERATORS)}, not {key!r}")
            yield Condition(path, key, value)
        elif isinstance(value, Mapping) and value:
            if any(str(one).startswith("$") for one in value) and not all(str(one).startswith("$") for one in value):
                raise ConfigurationError(f"field {key!r} must have operators or fields, not both")
            yield from _conditions((*path, key), value)
            if not next(iter(value)).startswith("$"):
                # A value that is missing, or is no mapping, has no inner fields.
                yield Condition((*path, key), _IS_OBJECT, True)
        else:
            yield Condition((*path, key), "$eq", value)


def _json(condition: Condition) -> str:
    name = ".".join(condition.path)
    if condition.operator not in ("$eq", "$ne") and not isinstance(condition.value, str | int | float):
        raise ArgumentTypeError(f"{condition.operator} of {name!r} must be a string or number, not {condition.value!r}")
    try:
        text = json.dumps(condition.value, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ArgumentTypeError(f"the filter's value of {name!r} must be JSON: {error}") from None
    if "\\u0000" in text or "\\ud8" in text:
        text = json.dumps(condition.value, allow_nan=False, ensure_ascii=False)
        if "\\u0000" in text or not _is_utf8(text):
            raise ConfigurationError(f"the filter's value of {name!r} must not hold NUL or a lone surrogate")
    return text


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
