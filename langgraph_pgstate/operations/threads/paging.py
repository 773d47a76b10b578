"""What every question about the record needs: its arguments checked, its answer cut into pages."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any, TypeVar

import orjson

from langgraph_pgstate.codec.metadata import to_json
from langgraph_pgstate.errors import ArgumentTypeError, ConfigurationError, DatabaseError
from langgraph_pgstate.operations.checkpoints.addresses import identifier
from langgraph_pgstate.types import Page, Row, Rows

T = TypeVar("T")

Moment = datetime | timedelta
"""A time, or how long ago it was by the database's clock."""

MAX_PAGE = 1000
FIRST, LAST = "-infinity", "infinity"


def page_size(limit: int) -> int:
    """A page's size as asked for.

    Raises:
        ConfigurationError: If it is not from 1 to `MAX_PAGE`.
    """
    if isinstance(limit, bool) or not isinstance(limit, int) or not 1 <= limit <= MAX_PAGE:
        raise ConfigurationError(f"limit must be from 1 to {MAX_PAGE}, not {limit!r}; follow `next` for more")
    return limit


def encode_cursor(kind: str, values: Sequence[Any]) -> str:
    """A position in the answer to one kind of question, as text that says nothing to others."""
    plain = [value.isoformat() if isinstance(value, datetime) else value for value in values]
    return base64.urlsafe_b64encode(orjson.dumps([kind, *plain])).decode().rstrip("=")


def decode_cursor(kind: str, cursor: str | None, first: Sequence[Any]) -> list[Any]:
    """The position a cursor stands for, of the types of `first`, which is where an answer begins.

    Raises:
        ConfigurationError: If it is not a cursor of this kind of question.
    """
    if cursor is None:
        return list(first)
    try:
        found = orjson.loads(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))
        if type(found) is not list or found[:1] != [kind] or [*map(type, found[1:])] != [*map(type, first)]:
            raise ValueError(cursor)
        for value, start in zip(found[1:], first, strict=True):
            if start in (FIRST, LAST):
                datetime.fromisoformat(value)
    except (ValueError, TypeError, AttributeError, binascii.Error):
        raise ConfigurationError(
            f"{cursor!r} is no cursor of {kind}: pass the `next` of a page that the same call answered"
        ) from None
    return [text_of("cursor", value) if isinstance(value, str) else value for value in found[1:]]


def page_of(
    rows: Rows, size: int, make: Callable[[Row], T], kind: str, position: Callable[[T], Sequence[Any]]
) -> Page[T]:
    """A page from rows of which one more was fetched than it holds."""
    items = tuple(make(row) for row in rows[:size])
    return Page(items, encode_cursor(kind, position(items[-1])) if len(rows) > size else None)


def text_of(name: str, value: str | None) -> str | None:
    """A text that PostgreSQL can hold, or nothing.

    Raises:
        ConfigurationError: If it is of another type, or cannot be held.
    """
    return None if value is None else identifier(name, value)


def json_of(name: str, value: Mapping[str, Any] | None) -> str | None:
    """A mapping as JSON text, or nothing.

    Raises:
        ConfigurationError: If JSON cannot say it.
    """
    if value is None:
        return None
    if not isinstance(value, Mapping):
        raise ArgumentTypeError(f"{name} must be a mapping, not {type(value).__name__}")
    plain: dict[str, Any] = {}
    for key, item in value.items():
        found, is_exact = to_json({key: item})
        if not is_exact and found != {key: item}:
            raise ArgumentTypeError(
                f"{name}[{key!r}] is not JSON: str, int, finite float, bool, None, lists and dicts are"
            )
        plain |= found
    return orjson.dumps(plain).decode()


def time_of(name: str, value: datetime | None) -> datetime | None:
    """A time that names its zone, or nothing.

    Raises:
        ConfigurationError: If it does not.
    """
    if value is None:
        return None
    if not isinstance(value, datetime) or value.tzinfo is None:
        raise ConfigurationError(f"{name} must be a datetime with a time zone, not {value!r}")
    return value


def since_of(since: Moment | None) -> dict[str, Any]:
    """Where a span of time begins, as parameters: at a time, or so long before the database's now.

    Raises:
        ConfigurationError: If it is neither.
    """
    if isinstance(since, timedelta):
        return {"since": None, "age": since}
    return {"since": time_of("since", since), "age": None}


@contextmanager
def understanding(name: str, value: str | None) -> Iterator[None]:
    """Say that an expression was not understood, rather than that a statement failed.

    Raises:
        ConfigurationError: If PostgreSQL could not read it.
    """
    try:
        yield
    except DatabaseError as error:
        if value is not None and (error.sqlstate or "").startswith(("42601", "22")):
            raise ConfigurationError(f"{name} {value!r} is not understood: {error}") from error
        raise
