"""The W3C `traceparent` of a caller, which names the trace and the span to which a run belongs."""

from __future__ import annotations

import re
from typing import Any, Final, NamedTuple

_FORM: Final = re.compile(
    r"(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})(?:-[!-~]*)?"
)
_MOST_CHARACTERS: Final = 512


class TraceParent(NamedTuple):
    """A span of the caller.

    Attributes:
        trace_id: Id of the trace, 128 bits.
        span_id: Id of the span, 64 bits.
        is_sampled: Whether the caller exports the span.
    """

    trace_id: int
    span_id: int
    is_sampled: bool


def check_traceparent(value: Any) -> str | None:
    """Return a traceparent; `None` if it is invalid, because an invalid value must not stop a run."""
    is_one = isinstance(value, str) and len(value) <= _MOST_CHARACTERS and _FORM.fullmatch(value)
    return value if is_one else None


def parse_traceparent(value: str) -> TraceParent | None:
    """Return the span that a traceparent names, or `None` if it is malformed."""
    found = _FORM.fullmatch(value)
    return found and TraceParent(int(found[1], 16), int(found[2], 16), bool(int(found[3], 16) & 1))
