"""Values of the state as JSON of a bounded size."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from langgraph_pgstate.server.json import to_json

SHOWN: Final = 4096
"""Characters of a value that a page shows."""

_MOST_NODES: Final = 150
_MOST_NODES_OF_ALL: Final = 600


@dataclass(frozen=True, slots=True)
class ValueView:
    """A value, or its beginning.

    Attributes:
        type: Name of its type.
        size: Bytes of its JSON.
        text: Its JSON, indented, or the beginning.
        is_whole: Whether the text is all of it.
        parts: The value as JSON types, if it is small enough to be folded; otherwise `None`.
        string: Of a string the text itself, or the beginning; otherwise `None`.
    """

    type: str
    size: int
    text: str
    is_whole: bool
    parts: Any = None
    string: str | None = None

    @property
    def is_foldable(self) -> bool:
        """Whether the parts of the value are shown."""
        return isinstance(self.parts, dict | list) and bool(self.parts)


def view(value: Any, most: int = SHOWN, nodes: int = _MOST_NODES) -> ValueView:
    """Return a value as a page shows it.

    Args:
        value: The value, of any type.
        most: Characters that are shown.
        nodes: Parts that are shown folded; a value of more is a text.
    """
    name = type(value).__name__
    data = to_json(value)
    # Through JSON, which replaces what a page cannot show.
    string = json.loads(to_json(value[:most])) if isinstance(value, str) else None
    if len(data) > most:
        # A prefix of JSON is readable, and indenting megabytes is not needed.
        return ValueView(name, len(data), data[:most].decode("utf-8", "ignore"), False, None, string)
    # orjson would read integers of more than 64 bits as inexact numbers.
    parts = json.loads(data)
    text = json.dumps(parts, ensure_ascii=False, indent=2)
    foldable = isinstance(parts, dict | list) and _count(parts, nodes) <= nodes
    return ValueView(name, len(data), text[:most], len(text) <= most, parts if foldable else None, string)


def views(values: Mapping[str, Any], most: int) -> dict[str, ValueView]:
    """Return values as a page shows them, all of them with at most so many characters."""
    found = {}
    nodes = _MOST_NODES_OF_ALL
    for name, value in values.items():
        found[name] = view(value, max(0, min(SHOWN, most)), min(_MOST_NODES, nodes))
        most -= len(found[name].text)
        nodes -= 0 if found[name].parts is None else _count(found[name].parts, nodes)
    return found


def _count(value: Any, most: int) -> int:
    """Return the number of parts of a value, at all depths; a greater number than `most` if it has more."""
    if not isinstance(value, dict | list):
        return 1
    total = 1
    items: Sequence[Any] = [*value.values()] if isinstance(value, dict) else value
    for item in items:
        if total > most:
            return total
        total += _count(item, most - total)
    return total
