"""Scopes: a caller sees only rows whose metadata contain the scope, as by jsonb's `@>`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

Scope = Mapping[str, Any] | Sequence[Mapping[str, Any]]
"""A row is visible if its metadata contain this mapping, or one of these mappings. An empty list hides all rows."""

Alternatives = tuple[Mapping[str, Any], ...]
"""A scope of several mappings."""

_NOTHING: Final = object()


class TooManyComparisonsError(Exception):
    """A comparison would exceed the maximum number of comparisons."""


class Comparisons:
    """A limit on the number of comparisons that `contains` makes."""

    def __init__(self, left: int) -> None:
        self._left = left

    def count(self) -> None:
        """Count one comparison, or raise `TooManyComparisonsError`."""
        self._left -= 1
        if self._left < 0:
            raise TooManyComparisonsError


def contains(metadata: Any, wanted: Any, comparisons: Comparisons | None = None) -> bool:
    """Return whether metadata contain a value, as by jsonb's `@>`.

    Raises:
        TooManyComparisonsError: If `comparisons` is used up.
    """
    if comparisons is not None:
        comparisons.count()
    if isinstance(wanted, Mapping):
        return isinstance(metadata, Mapping) and all(
            name in metadata and contains(metadata[name], value, comparisons) for name, value in wanted.items()
        )
    if isinstance(wanted, list):
        return isinstance(metadata, list) and _contains_items(metadata, wanted, comparisons)
    # In JSON, 1 and 1.0 are the same number, and `true` is not a number.
    return isinstance(metadata, bool) == isinstance(wanted, bool) and bool(metadata == wanted)


def _contains_items(have: list[Any], wanted: list[Any], comparisons: Comparisons | None) -> bool:
    # Comparing each pair of items would take hours for lists of 100,000 items.
    scalars = {(isinstance(one, bool), one) for one in have if not isinstance(one, Mapping | list)}
    nested = [one for one in have if isinstance(one, Mapping | list)]
    return all(
        any(contains(one, item, comparisons) for one in nested)
        if isinstance(item, Mapping | list)
        else (isinstance(item, bool), item) in scalars
        for item in wanted
    )


def admits(scope: Alternatives | None, metadata: Any) -> bool:
    """Return whether a scope allows an object with some metadata. `None` allows all objects."""
    return scope is None or any(contains(metadata, one) for one in scope)


def both(one: Alternatives, other: Alternatives) -> Alternatives:
    """Return the scope of objects that two scopes both allow."""
    found: list[Mapping[str, Any]] = []
    for first in one:
        for second in other:
            merged = _merged(first, second)
            if merged is not _NOTHING and merged not in found:
                found.append(merged)
    return tuple(found)


def _merged(one: Any, other: Any) -> Any:
    """Return a value that contains two values; `_NOTHING` if no value contains both."""
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        found = {**one, **other}
        for name in one.keys() & other.keys():
            found[name] = _merged(one[name], other[name])
        return _NOTHING if any(value is _NOTHING for value in found.values()) else found
    if isinstance(one, list) and isinstance(other, list):
        return [*one, *(value for value in other if not contains(one, [value]))]
    return one if contains(one, other) and contains(other, one) else _NOTHING
