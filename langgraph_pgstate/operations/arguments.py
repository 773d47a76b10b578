"""Validation of the arguments of several operations."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import orjson

from langgraph_pgstate.codec.metadata import to_json
from langgraph_pgstate.errors import ArgumentTypeError, ConfigurationError, DatabaseError
from langgraph_pgstate.operations.checkpoints.requests import identifier

if TYPE_CHECKING:
    # Only for annotations: a saver alone does not need it.
    from langgraph_pgstate.filters import Moment
    from langgraph_pgstate.scopes import Scope


def text_of(name: str, value: str | None) -> str | None:
    """Return a text that PostgreSQL can store, or `None`.

    Raises:
        ConfigurationError: If it is of another type, or PostgreSQL cannot store it.
    """
    return None if value is None else identifier(name, value)


def texts_of(filters: Mapping[str, Any], *names: str) -> dict[str, str | None]:
    """Return filters that are texts, by name, after validating them.

    Raises:
        ConfigurationError: If one is of another type, or PostgreSQL cannot store it.
    """
    return {name: text_of(name, filters.get(name)) for name in names}


def json_of(name: str, value: Mapping[str, Any] | None, *, is_content: bool = False) -> str | None:
    """Return a mapping as JSON text, or `None`.

    Args:
        name: Its name, for messages.
        value: The mapping.
        is_content: Whether NUL is taken out. Elsewhere it is refused: without it, an owner could be another one.

    Raises:
        ConfigurationError: If it cannot be represented as JSON.
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
    if not is_content:
        refuse_nul(name, value)
    return orjson.dumps(plain).decode()


def refuse_nul(name: str, value: Mapping[str, Any]) -> None:
    """Refuse a mapping that holds NUL at any depth.

    Raises:
        ConfigurationError: If it does.
    """
    for key, item in value.items():
        if _has_nul(key) or _has_nul(item):
            raise ConfigurationError(f"{name}[{key!r}] holds NUL, which PostgreSQL cannot store")


def _has_nul(value: Any) -> bool:
    if isinstance(value, str):
        return "\0" in value
    if isinstance(value, Mapping):
        return any(_has_nul(part) for item in value.items() for part in item)
    return isinstance(value, list | tuple) and any(map(_has_nul, value))


def request_scope(scope: Scope | None) -> list[str] | None:
    """Return what a caller may see as JSON texts, one of which metadata must contain; `None` for all.

    Raises:
        ConfigurationError: If it cannot be represented as JSON.
    """
    if isinstance(scope, Sequence) and not isinstance(scope, str):
        return [json_of("scope", one) or "{}" for one in scope]
    found = json_of("scope", scope)
    # Every mapping contains an empty one.
    return None if found is None or not scope else [found]


def time_of(name: str, value: datetime | None) -> datetime | None:
    """Return a validated time, or `None`.

    Raises:
        ConfigurationError: If it has no time zone.
    """
    if value is None:
        return None
    if not isinstance(value, datetime) or value.tzinfo is None:
        raise ConfigurationError(f"{name} must be a datetime with a time zone, not {value!r}")
    return value


def stored_time_of(name: str, value: datetime | None) -> datetime | None:
    """Return a validated time that is stored, or `None`.

    Raises:
        ConfigurationError: If it has no time zone, or Python cannot read it back in each time zone of a session.
    """
    if (found := time_of(name, value)) is not None and not 2 <= found.year <= 9998:
        raise ConfigurationError(f"{name} must be in the years 2 to 9998, not {found.isoformat()}")
    return found


def times_of(filters: Mapping[str, Any], *names: str) -> dict[str, datetime | None]:
    """Return validated times, by name.

    Raises:
        ConfigurationError: If one has no time zone.
    """
    return {name: time_of(name, filters.get(name)) for name in names}


def since_of(since: Moment | None) -> dict[str, Any]:
    """Return the start of a time range as query parameters: a time, or an age by the database's clock.

    Raises:
        ConfigurationError: If it is neither.
    """
    if isinstance(since, timedelta):
        return {"since": None, "age": since}
    return {"since": time_of("since", since), "age": None}


@contextmanager
def understanding(name: str, value: str | None) -> Iterator[None]:
    """Raise `ConfigurationError` if PostgreSQL cannot parse the caller's expression.

    Raises:
        ConfigurationError: If PostgreSQL cannot parse it.
    """
    try:
        yield
    except DatabaseError as error:
        if value is not None and (error.sqlstate or "").startswith(("42601", "22")):
            raise ConfigurationError(f"{name} {value!r} is invalid: {error}") from error
        raise
