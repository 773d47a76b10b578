"""Times, numbers and ids as texts for people."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from itertools import islice
from typing import Any, Final

from markupsafe import Markup

from langgraph_pgstate.process_identity import short_holder

_PEEK: Final = 160
_PEEKED: Final = 3
_HIT: Final = re.compile("«([^«»]*)»")
_UNITS: Final = ((86400 * 365, "y"), (86400 * 30, "mo"), (86400, "d"), (3600, "h"), (60, "min"), (1, "s"))


def ago(time: datetime, now: datetime) -> str:
    """Return how long before or after now a time is: `3 min ago`, `in 2 h`."""
    seconds = (now - time).total_seconds()
    if abs(seconds) < 5:
        return "now"
    text = _longest_unit(abs(seconds))
    return f"{text} ago" if seconds > 0 else f"in {text}"


def exact(time: datetime) -> str:
    """Return a time in UTC, with milliseconds."""
    return time.astimezone(UTC).isoformat(" ", "milliseconds").replace("+00:00", " UTC")


def sentence(text: str) -> str:
    """Return a reason as a sentence: with a capital, unless it begins with a name, and a full stop."""
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
    """Return an id, or its end: ids that sort by time differ there."""
    if id is None:
        return ""
    return id if len(id) <= length else f"…{id[-(length - 1) :]}"


def worker(id: str, length: int = 32) -> str:
    """Return the host and process id of a worker, or its id without its middle."""
    name = short_holder(id)
    return name if len(name) <= length else f"{name[: length // 2 - 1]}…{name[-(length // 2) :]}"


def cut(text: str, length: int) -> str:
    """Return a text on one line, cut to a length."""
    line = " ".join(text[: 4 * length].split())
    return line if len(line) <= length and len(text) <= 4 * length else f"{line[: length - 1]}…"


def clipped(text: str, length: int) -> Markup:
    """Return a text on one line, cut to a length, as HTML that isolates its direction of writing."""
    return Markup("<bdi>{}</bdi>").format(cut(text, length))


def marked(snippet: str) -> Markup:
    """Return the text around a hit of a search as HTML, in which the words between « and » are marked."""
    parts = _HIT.split(cut(snippet, 400))
    shown = (Markup("<mark>{}</mark>" if place % 2 else "{}").format(part) for place, part in enumerate(parts))
    return Markup("<bdi>{}</bdi>").format(Markup("").join(shown))


def namespace_text(namespace: Sequence[str]) -> str:
    """Return a namespace as one text: its labels with slashes between them; in them `~1` is a slash, `~0` a tilde."""
    return "/".join(label.replace("~", "~0").replace("/", "~1") for label in namespace)


def peek(value: Mapping[str, Any] | Sequence[Any]) -> str:
    """Return the beginning of what is in a folded value: its first simple entries."""
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
