"""Times, numbers, ids and values as texts for people."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from itertools import islice
from typing import Any, Final

from markupsafe import Markup

from langgraph_pgstate.process_identity import short_holder
from langgraph_pgstate.server.json import to_json

_PEEK: Final = 160
_PEEKED: Final = 3
_HIT: Final = re.compile("«([^«»]*)»")
_UNITS: Final = ((86400 * 365, "y"), (86400 * 30, "mo"), (86400, "d"), (3600, "h"), (60, "min"), (1, "s"))


def ago(time: datetime, now: datetime) -> str:
    """Return the distance of a time from now: `3 min ago`, `in 2 h`."""
    seconds = (now - time).total_seconds()
    if abs(seconds) < 5:
        return "now"
    text = _longest_unit(abs(seconds))
    return f"{text} ago" if seconds > 0 else f"in {text}"


def exact(time: datetime) -> str:
    """Return a time in UTC, with milliseconds."""
    return time.astimezone(UTC).isoformat(" ", "milliseconds").replace("+00:00", " UTC")


def instant(text: str) -> str:
    """Return a time in ISO 8601 in UTC, with seconds. Shorten any other text."""
    try:
        return f"{datetime.fromisoformat(text).astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"
    except (ValueError, OverflowError):
        return cut(text, 40)


def sentence(text: str) -> str:
    """Return a text as a sentence with a full stop. It begins with a capital letter unless a name is first."""
    first = text.partition(" ")[0]
    begun = text[:1].upper() + text[1:] if first.isalpha() else text
    return begun if begun.endswith((".", "!", "?", "…")) else f"{begun}."


def duration(time: timedelta | float | None) -> str:
    """Return a duration with three digits: `12.3 ms`, `4.05 s`, `2 h 5 min`. Empty for `None`."""
    if time is None:
        return ""
    seconds = time.total_seconds() if isinstance(time, timedelta) else float(time)
    if seconds < 1:
        return f"{seconds * 1000:.3g} ms" if seconds < 0.9995 else "1 s"
    if seconds < 60:
        return f"{seconds:.3g} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s" if rest else f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    return f"{hours:,} h {minutes} min" if minutes else f"{hours:,} h"


def number(value: int | None) -> str:
    """Return an integer with separators; empty for `None`."""
    return "" if value is None else f"{value:,}"


def money(value: Decimal | float | None) -> str:
    """Return an amount with two decimals, or with three significant digits if it is less than 1. Empty for `None`."""
    if value is None:
        return ""
    amount = Decimal(value)
    if amount == 0 or abs(amount) >= 1:
        return f"{amount:,.2f}"
    text = f"{amount:.{max(2, 2 - amount.adjusted())}f}"
    while text.endswith("0") and text[-3] != ".":
        text = text[:-1]
    return text


def size(count: int | None) -> str:
    """Return a number of bytes: `812 B`, `4.0 KB`, `5.2 MB`. Empty for `None`."""
    if count is None:
        return ""
    value = float(count)
    for unit in ("B", "KB", "MB", "GB"):
        if value < 1000 or unit == "GB":
            return f"{value:,.0f} {unit}" if unit == "B" else f"{value:,.1f} {unit}"
        value /= 1000
    raise AssertionError


def plural(count: int, word: str, several: str | None = None) -> str:
    """Return a number with its noun: `1 thread`, `2,000 threads`."""
    return f"{count:,} {word if count == 1 else several or word + 's'}"


def short(id: str | None, length: int = 13) -> str:
    """Return an id. Shorten a long id to its end, because ids that sort by time differ at the end."""
    if id is None:
        return ""
    return id if len(id) <= length else f"…{id[-(length - 1) :]}"


def worker(id: str, length: int = 32) -> str:
    """Return the host and process id of a worker. Cut the middle out of any other long id."""
    name = short_holder(id)
    return name if len(name) <= length else f"{name[: length // 2 - 1]}…{name[-(length // 2) :]}"


def cut(text: str, length: int) -> str:
    """Return a text on one line, cut to a length."""
    line = " ".join(text[: 4 * length].split())
    return line if len(line) <= length and len(text) <= 4 * length else f"{line[: length - 1]}…"


def clipped(text: str, length: int) -> Markup:
    """Return a text cut to a length, as HTML that isolates its writing direction."""
    return Markup("<bdi>{}</bdi>").format(cut(text, length))


_PART = Markup("{}"), Markup("<mark>{}</mark>")


def marked(snippet: str) -> Markup:
    """Return the text around a search hit as HTML. Words between « and » are marked."""
    parts = _HIT.split(cut(snippet, 400))
    shown = (_PART[place % 2].format(part) for place, part in enumerate(parts))
    return Markup("<bdi>{}</bdi>").format(Markup("").join(shown))


def namespace_text(namespace: Sequence[str]) -> str:
    """Return a namespace as one text: labels separated by slashes. In a label, `~1` is a slash and `~0` a tilde."""
    return "/".join(label.replace("~", "~0").replace("/", "~1") for label in namespace)


def peek(value: Mapping[str, Any] | Sequence[Any]) -> str:
    """Return a short text for a folded value: its first simple entries."""
    if not isinstance(value, Mapping):
        shown = [str(one) for one in value[:_PEEKED] if isinstance(one, str | int | float)]
    else:
        simple = ((key, one) for key, one in value.items() if isinstance(one, str | int | float) and one != "")
        shown = [f"{key}: {str(one)[: 4 * _PEEK]}" for key, one in islice(simple, _PEEKED)]
    return cut(", ".join(shown), _PEEK)


def _longest_unit(seconds: float) -> str:
    for length, unit in _UNITS:
        if seconds >= length:
            return f"{int(seconds // length)} {unit}"
    return "1 s"


SHOWN: Final = 4096
"""Maximum number of characters of a value that a page shows."""

_MOST_NODES: Final = 150
_MOST_NODES_OF_ALL: Final = 600


@dataclass(frozen=True, slots=True)
class ValueView:
    """A value, or its beginning.

    Attributes:
        size: Bytes of its JSON.
        text: Indented JSON, or its beginning.
        is_whole: Whether the text is complete.
        parts: The value as JSON types, if it is small enough to be folded; otherwise `None`.
        string: The text of a string, or its beginning; `None` for another value.
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
        most: Maximum number of characters.
        nodes: Maximum number of parts. A value with more parts is not foldable.
    """
    name = type(value).__name__
    data = to_json(value)
    # Convert the string through JSON, which replaces characters that a page cannot show.
    string = json.loads(to_json(value[:most])) if isinstance(value, str) else None
    if len(data) > most:
        # Show compact JSON, because indenting a value of megabytes takes long.
        return ValueView(name, len(data), data[:most].decode("utf-8", "ignore"), False, None, string)
    # orjson would read integers of more than 64 bits as inexact numbers.
    parts = json.loads(data)
    text = json.dumps(parts, ensure_ascii=False, indent=2)
    foldable = isinstance(parts, dict | list) and _count(parts, nodes) <= nodes
    return ValueView(name, len(data), text[:most], len(text) <= most, parts if foldable else None, string)


def views(values: Mapping[str, Any], most: int) -> dict[str, ValueView]:
    """Return values as a page shows them. `most` limits the characters of all values together."""
    found = {}
    nodes = _MOST_NODES_OF_ALL
    for name, value in values.items():
        found[name] = view(value, max(0, min(SHOWN, most)), min(_MOST_NODES, nodes))
        most -= len(found[name].text)
        nodes -= 0 if found[name].parts is None else _count(found[name].parts, nodes)
    return found


def _count(value: Any, most: int) -> int:
    """Return the number of parts of a value at all depths. Stop counting above `most`."""
    if not isinstance(value, dict | list):
        return 1
    total = 1
    items: Sequence[Any] = [*value.values()] if isinstance(value, dict) else value
    for item in items:
        if total > most:
            return total
        total += _count(item, most - total)
    return total
