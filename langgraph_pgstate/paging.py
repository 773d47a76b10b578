"""Pages of lists: their filters, cursors and limits."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Generic, TypedDict, TypeVar

import orjson

from langgraph_pgstate.arguments import flag_of, text_of
from langgraph_pgstate.db.protocol import Parameters, Read, Row, Rows
from langgraph_pgstate.errors import ArgumentTypeError, ConfigurationError

T = TypeVar("T")

MAX_PAGE = 1000
FIRST, LAST = "-infinity", "infinity"


def page_size(limit: int, name: str = "limit") -> int:
    """Return a validated page size, from 1 to `MAX_PAGE`."""
    if isinstance(limit, bool) or not isinstance(limit, int) or not 1 <= limit <= MAX_PAGE:
        raise ConfigurationError(f"{name} must be from 1 to {MAX_PAGE}, not {limit!r}; follow `next` for more")
    return limit


def offset_of(offset: int) -> int:
    """Return a validated number of items to skip."""
    if isinstance(offset, bool) or not isinstance(offset, int) or not 0 <= offset < 2**31:
        raise ConfigurationError(f"offset must be an integer from 0 to 2,147,483,647, not {offset!r}")
    return offset


def sorting_of(filters: Mapping[str, Any], noun: str, keys: Sequence[str]) -> dict[str, Any]:
    """Return the parameters `by`, `ascending`, `offset` and `page_size` of a list that is read by offset.

    `keys` has the columns to sort by, the default first. `noun` names the listed objects in errors.
    """
    by = filters.get("by", keys[0])
    if by not in keys:
        raise ConfigurationError(f"by must be one of {', '.join(keys)} for a list of {noun}, not {by!r}")
    ascending = flag_of("ascending", filters.get("ascending", False))
    place = {"offset": offset_of(filters.get("offset", 0)), "page_size": page_size(filters.get("limit", 20))}
    return {"by": by, "ascending": ascending, **place}


def encode_cursor(kind: str, values: Sequence[Any]) -> str:
    """Return a position in one kind of list as opaque text."""
    plain = [value.isoformat() if isinstance(value, datetime) else value for value in values]
    return base64.urlsafe_b64encode(orjson.dumps([kind, *plain])).decode().rstrip("=")


def decode_cursor(kind: str, cursor: str | None, first: Sequence[Any]) -> list[Any]:
    """Return the position of a cursor, with values of the types of `first`. Without a cursor, return `first`.

    Raises:
        ConfigurationError: If the cursor is not of this kind of list.
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
        raise ConfigurationError(f"cursor must be the `next` of an earlier page of {kind}, not {cursor!r}") from None
    return [text_of("cursor", value) if isinstance(value, str) else value for value in found[1:]]


def page_of(
    rows: Rows, size: int, make: Callable[[Row], T], kind: str, position: Callable[[T], Sequence[Any]]
) -> Page[T]:
    """Return a page made from rows. The caller has fetched one row more than the page size."""
    items = tuple(make(row) for row in rows[:size])
    return Page(items, encode_cursor(kind, position(items[-1])) if len(rows) > size else None)


def read_page(
    query: str,
    parameters: Parameters,
    limit: int,
    make: Callable[..., T],
    kind: str,
    position: Callable[[T], Sequence[Any]],
) -> Read[Page[T]]:
    """Return a `Read` of a page.

    Args:
        query: The statement. Its parameter `page_size` limits the rows.
        parameters: The other parameters.
        limit: Page size.
        make: Makes an item from the columns of a row.
        kind: The kind of list, for cursors.
        position: Returns the position of an item.
    """
    size = page_size(limit)

    def decode(rows: Rows) -> Page[T]:
        return page_of(rows, size, lambda row: make(*row), kind, position)

    return Read(query, {**parameters, "page_size": size + 1}, decode)


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """One page of a longer result.

    Attributes:
        items: The items, in order.
        next: The `cursor` of the next page; `None` on the last page.
    """

    items: tuple[T, ...]
    next: str | None


class PageFilter(TypedDict, total=False):
    """The part of a list that is returned.

    Attributes:
        limit: Page size, 1,000 at most. By default, 20, or 100 for spans.
        cursor: `next` of the previous page.
    """

    limit: int
    cursor: str | None


class OwnerFilter(PageFilter, total=False):
    """The owner of the returned objects.

    Attributes:
        user_id: Only objects of this user.
        tenant_id: Only objects of this tenant.
        agent: Only objects of this agent.
    """

    user_id: str | None
    tenant_id: str | None
    agent: str | None


def check_filters(filters: Mapping[str, Any], known: type) -> None:
    """Refuse filters that a typed dictionary does not have."""
    for name in filters:
        if name not in known.__annotations__:
            raise ArgumentTypeError(f"a filter must be one of {', '.join(sorted(known.__annotations__))}, not {name!r}")
