"""Validation of a caller's arguments: ids, addresses of checkpoints, texts, flags, times and JSON. No I/O.

The functions raise `ConfigurationError` if an argument is invalid.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple, TypeVar
from uuid import UUID

import orjson

from langgraph_pgstate.codec.metadata import to_json
from langgraph_pgstate.codec.values import encodes_as_utf8
from langgraph_pgstate.errors import ArgumentTypeError, ConfigurationError, DatabaseError, MissingKeyError
from langgraph_pgstate.options import MAX_KEY_BYTES
from langgraph_pgstate.scopes import Scope

T = TypeVar("T")

# Maximum number of bytes of a text with a column of its own, like a run id in metadata.
_TEXT_BYTES: Final = 512
# Persian and Indic words, and many emoji, need a joiner or a non-joiner between characters.
_JOINERS: Final = {0x200C: None, 0x200D: None}


def text_of(name: str, value: str | None) -> str | None:
    """Return a text that PostgreSQL can store, or `None`."""
    return None if value is None else identifier(name, value)


def texts_of(filters: Mapping[str, Any], *names: str) -> dict[str, str | None]:
    """Return validated texts, by name."""
    return {name: text_of(name, filters.get(name)) for name in names}


def flag_of(name: str, value: Any) -> bool:
    """Return a value that is true or false."""
    if not isinstance(value, bool):
        raise ArgumentTypeError(f"{name} must be true or false, not {value!r}")
    return value


def json_of(name: str, value: Mapping[str, Any] | None, *, is_content: bool = False) -> str | None:
    """Return a mapping as JSON text, or `None`.

    With `is_content`, NUL is removed. Otherwise, NUL is refused, because without NUL two owners could be equal.
    """
    if value is None:
        return None
    if not isinstance(value, Mapping):
        raise ArgumentTypeError(f"{name} must be a mapping, not {type(value).__name__}")
    plain: dict[str, Any] = {}
    for key, item in value.items():
        found, is_exact = to_json({key: item})
        if not is_exact and found != {key: item}:
            raise ArgumentTypeError(f"{name}[{key!r}] must be JSON: a str, int, finite float, bool, None, list or dict")
        plain |= found
    if not is_content:
        refuse_nul(name, value)
    return orjson.dumps(plain).decode()


def refuse_nul(name: str, value: Mapping[str, Any]) -> None:
    """Refuse a mapping that holds NUL at any depth."""
    for key, item in value.items():
        if has_nul(key) or has_nul(item):
            raise ConfigurationError(f"{name}[{key!r}] holds NUL, which PostgreSQL cannot store")


def has_nul(value: Any) -> bool:
    """Return whether a value holds NUL at any depth."""
    if isinstance(value, str):
        return "\0" in value
    if isinstance(value, Mapping):
        return any(has_nul(part) for item in value.items() for part in item)
    return isinstance(value, list | tuple) and any(map(has_nul, value))


def request_scope(scope: Scope | None) -> list[str] | None:
    """Return a caller's scope as JSON texts; `None` if the caller sees all objects.

    The caller sees an object whose metadata contain at least one of the texts.
    """
    if isinstance(scope, Sequence) and not isinstance(scope, str):
        return [json_of("scope", one) or "{}" for one in scope]
    found = json_of("scope", scope)
    # Every mapping contains an empty mapping, so an empty scope restricts nothing.
    return None if found is None or not scope else [found]


def time_of(name: str, value: datetime | None) -> datetime | None:
    """Return a time with a time zone, or `None`."""
    if value is None:
        return None
    if not isinstance(value, datetime) or value.tzinfo is None:
        raise ConfigurationError(f"{name} must be a datetime with a time zone, not {value!r}")
    return value


def stored_time_of(name: str, value: datetime | None) -> datetime | None:
    """Return a time that can be stored and read in all time zones, or `None`."""
    if (found := time_of(name, value)) is not None and not 2 <= found.year <= 9998:
        raise ConfigurationError(f"{name} must be in the years 2 to 9998, not {found.isoformat()}")
    return found


def times_of(filters: Mapping[str, Any], *names: str) -> dict[str, datetime | None]:
    """Return validated times, by name."""
    return {name: time_of(name, filters.get(name)) for name in names}


def since_of(since: Moment | None) -> dict[str, Any]:
    """Return the start of a time range as query parameters: a time, or an age by the database's clock."""
    if isinstance(since, timedelta):
        return {"since": None, "age": since}
    return {"since": time_of("since", since), "age": None}


@contextmanager
def understanding(name: str, value: str | None) -> Iterator[None]:
    """Raise `ConfigurationError` if PostgreSQL cannot parse the caller's expression."""
    try:
        yield
    except DatabaseError as error:
        if value is not None and (error.sqlstate or "").startswith(("42601", "22")):
            raise ConfigurationError(f"{name} {value!r} is invalid: {error}") from error
        raise


class Address(NamedTuple):
    """The address of a checkpoint. Without a `checkpoint_id`, the address of the namespace's latest checkpoint."""

    thread_id: str
    checkpoint_ns: str
    checkpoint_id: str | None

    @property
    def config(self) -> dict[str, Any]:
        """The config of the checkpoint, with exactly these three keys."""
        thread_id, checkpoint_ns, checkpoint_id = self
        return {
            "configurable": {"thread_id": thread_id, "checkpoint_ns": checkpoint_ns, "checkpoint_id": checkpoint_id}
        }

    def __str__(self) -> str:
        namespace = f" namespace {self.checkpoint_ns!r}" if self.checkpoint_ns else ""
        return f"checkpoint {self.checkpoint_id!r} of thread {self.thread_id!r}{namespace}"


def thread_id_of(value: Any) -> str:
    """Return a thread id as it is stored. A number or a UUID becomes a string."""
    if type(value) is not str:
        if value is None:
            raise MissingKeyError(
                'the config names no thread: pass {"configurable": {"thread_id": "..."}} with every call on a graph '
                "that has a checkpointer"
            )
        if isinstance(value, bool) or not isinstance(value, str | int | UUID):
            raise ArgumentTypeError(f"thread_id must be a string, an integer or a UUID, not {type(value).__name__}")
        value = str(value)
    if not value:
        raise ConfigurationError("thread_id must not be empty")
    return identifier("thread_id", value)


def thread_ids_of(values: Iterable[Any]) -> tuple[str, ...]:
    """Return thread ids as they are stored, without duplicates."""
    return tuple(dict.fromkeys(map(thread_id_of, several("thread_ids", values))))


def several(name: str, values: Iterable[T]) -> Iterable[T]:
    """Return a list of ids or names. Refuse a single string, which would be read letter by letter."""
    if isinstance(values, str):
        raise ArgumentTypeError(f"{name} must be a list, not a string: use [{values!r}]")
    if not isinstance(values, Iterable):
        raise ArgumentTypeError(f"{name} must be a list, not {type(values).__name__}")
    return values


def identifier(name: str, value: str) -> str:
    """Return an id that PostgreSQL can store."""
    if type(value) is not str:
        if not isinstance(value, str):
            raise ArgumentTypeError(f"{name} must be a string, not {type(value).__name__}")
        value = str.__str__(value)
    if "\0" in value or not (value.isascii() or encodes_as_utf8(value)):
        raise ConfigurationError(f"{name} {value!r} holds NUL or a lone surrogate, which PostgreSQL cannot store")
    return value


def is_line(text: str) -> bool:
    """Return whether a text is one line of printable characters. Joiners of letters and emoji count as printable."""
    shown = text.translate(_JOINERS)
    return shown.isprintable() and bool(shown.strip())


def check_key_size(names: str, *parts: str | None) -> None:
    """Refuse ids that together are longer than `MAX_KEY_BYTES`, and do not fit into an index entry."""
    total = 0
    for part in parts:
        if part:
            total += len(part)
    # A character has at most four bytes.
    if total * 4 <= MAX_KEY_BYTES:
        return
    size = sum(len(part.encode()) for part in parts if part)
    if size > MAX_KEY_BYTES:
        raise ConfigurationError(
            f"{names} must have at most {MAX_KEY_BYTES} bytes together, to fit into an index, got {size}"
        )


def configurable_of(config: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """Return a config's `configurable`; an empty mapping if there is none."""
    # Test for a plain dict first, because `isinstance` of an abstract class is slow.
    if config is not None and type(config) is not dict and not isinstance(config, Mapping):
        raise ArgumentTypeError(
            f'a config must be a dict such as {{"configurable": {{"thread_id": "..."}}}}, not {type(config).__name__}'
        )
    configurable = (config or {}).get("configurable")
    return configurable if type(configurable) is dict or isinstance(configurable, Mapping) else {}


def address_of(config: Mapping[str, Any]) -> Address:
    """Return the address that a config names. Without a `checkpoint_id`, the address of the latest checkpoint."""
    configurable = config.get("configurable") if type(config) is dict else None
    if type(configurable) is not dict:
        configurable = configurable_of(config)
    thread_id = configurable.get("thread_id")
    checkpoint_ns = configurable.get("checkpoint_ns") or ""
    checkpoint_id = configurable.get("checkpoint_id") or None
    if type(thread_id) is type(checkpoint_ns) is type(checkpoint_id) is str and thread_id:
        # Nearly all ids are valid, so check all three at once.
        text = thread_id + checkpoint_ns + checkpoint_id
        if text.isascii() and "\0" not in text:
            return Address(thread_id, checkpoint_ns, checkpoint_id)
    return Address(
        thread_id_of(thread_id),
        identifier("checkpoint_ns", checkpoint_ns),
        identifier("checkpoint_id", checkpoint_id) if checkpoint_id else None,
    )


def text_or_none(value: Any) -> str | None:
    """Return a text that fits into a column of its own; `None` for other values."""
    if type(value) is not str or "\0" in value:
        return None
    if value.isascii():
        return value if len(value) <= _TEXT_BYTES else None
    try:
        return value if len(value.encode()) <= _TEXT_BYTES else None
    except UnicodeEncodeError:
        return None


Moment = datetime | timedelta
"""A time, or an age by the database's clock."""
