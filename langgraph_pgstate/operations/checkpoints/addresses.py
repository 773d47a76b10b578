"""Addresses of checkpoints: thread, namespace and checkpoint id, read from LangGraph's configs and validated."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, TypeVar
from uuid import UUID

from langgraph.checkpoint.base import get_checkpoint_id

from langgraph_pgstate.codec.values import encodes_as_utf8
from langgraph_pgstate.errors import ArgumentTypeError, ConfigurationError, MissingKeyError
from langgraph_pgstate.settings import MAX_KEY_BYTES

T = TypeVar("T")


class Address(NamedTuple):
    """The address of a checkpoint; with `checkpoint_id` `None`, of the latest one of its namespace."""

    thread_id: str
    checkpoint_ns: str
    checkpoint_id: str | None

    @property
    def config(self) -> dict[str, Any]:
        """The config that LangGraph passes around, with exactly these three keys."""
        thread_id, checkpoint_ns, checkpoint_id = self
        return {
            "configurable": {"thread_id": thread_id, "checkpoint_ns": checkpoint_ns, "checkpoint_id": checkpoint_id}
        }

    def __str__(self) -> str:
        namespace = f" namespace {self.checkpoint_ns!r}" if self.checkpoint_ns else ""
        return f"checkpoint {self.checkpoint_id!r} of thread {self.thread_id!r}{namespace}"


def thread_id_of(value: Any) -> str:
    """Return a thread id as it is stored; a number or a UUID names the same thread as its string.

    Raises:
        ConfigurationError: If it is missing, empty, of another type or cannot be stored.
    """
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
        raise ConfigurationError("thread_id is empty")
    return identifier("thread_id", value)


def thread_ids_of(values: Iterable[Any]) -> tuple[str, ...]:
    """Return thread ids as they are stored, without duplicates.

    Raises:
        ConfigurationError: If a single string is given, or an item is not a thread id.
    """
    return tuple(dict.fromkeys(map(thread_id_of, several("thread_ids", values))))


def several(name: str, values: Iterable[T]) -> Iterable[T]:
    """Return ids or names unchanged, but refuse a single string.

    Raises:
        ArgumentTypeError: If a single string is given, which would be read letter by letter.
    """
    if isinstance(values, str):
        raise ArgumentTypeError(f"{name} must be a list, not a string: use [{values!r}]")
    return values


def identifier(name: str, value: str) -> str:
    """Return an id, if PostgreSQL's `text` can store it.

    Raises:
        ConfigurationError: If it cannot be stored.
    """
    if type(value) is not str:
        if not isinstance(value, str):
            raise ArgumentTypeError(f"{name} must be a string, not {type(value).__name__}")
        value = str.__str__(value)
    if "\0" in value or not (value.isascii() or encodes_as_utf8(value)):
        raise ConfigurationError(f"{name} {value!r} holds NUL or a lone surrogate, which PostgreSQL cannot store")
    return value


def check_key_size(names: str, *parts: str | None) -> None:
    """Refuse ids that do not fit into an index entry.

    Raises:
        ConfigurationError: If together they are longer than `MAX_KEY_BYTES`.
    """
    total = 0
    for part in parts:
        if part:
            total += len(part)
    # A character takes at most four bytes, so short ids need not be encoded.
    if total * 4 <= MAX_KEY_BYTES:
        return
    size = sum(len(part.encode()) for part in parts if part)
    if size > MAX_KEY_BYTES:
        raise ConfigurationError(
            f"{names} are {size} bytes together; PostgreSQL can index {MAX_KEY_BYTES}. Use shorter ids."
        )


def configurable_of(config: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """Return a config's `configurable`; empty if there is none.

    Raises:
        ConfigurationError: If the config is not a mapping.
    """
    # Test for a plain dict first: `isinstance` of the abstract class takes a microsecond.
    if config is not None and type(config) is not dict and not isinstance(config, Mapping):
        raise ArgumentTypeError(
            f'a config is a dict such as {{"configurable": {{"thread_id": "..."}}}}, not {type(config).__name__}'
        )
    configurable = (config or {}).get("configurable")
    return configurable if type(configurable) is dict or isinstance(configurable, Mapping) else {}


def address_of(config: Mapping[str, Any]) -> Address:
    """Return the address that a config names; an absent or empty `checkpoint_id` means the latest checkpoint."""
    configurable = config.get("configurable") if type(config) is dict else None
    if type(configurable) is not dict:
        configurable = configurable_of(config)
    thread_id = configurable.get("thread_id")
    checkpoint_ns = configurable.get("checkpoint_ns") or ""
    checkpoint_id = configurable.get("checkpoint_id") or None
    if type(thread_id) is type(checkpoint_ns) is type(checkpoint_id) is str and thread_id:
        # Check all three at once, because nearly all ids are valid.
        text = thread_id + checkpoint_ns + checkpoint_id
        if text.isascii() and "\0" not in text:
            return Address(thread_id, checkpoint_ns, checkpoint_id)
    return Address(
        thread_id_of(thread_id),
        identifier("checkpoint_ns", checkpoint_ns),
        identifier("checkpoint_id", checkpoint_id) if checkpoint_id else None,
    )


def before_id(before: Mapping[str, Any] | None) -> str | None:
    """Return the checkpoint id of a `before` argument, nested or flat."""
    if before is None:
        return None
    if isinstance(before.get("configurable"), Mapping):
        found = get_checkpoint_id(before)  # type: ignore[arg-type]
    else:
        found = before.get("checkpoint_id")
    return identifier("before", found) if found else None
