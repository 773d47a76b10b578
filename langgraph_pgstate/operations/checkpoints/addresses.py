"""Reading LangGraph's configs: which thread, namespace and checkpoint is meant, refused early when it cannot be."""

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
    """Where a checkpoint is. `checkpoint_id` is `None` where the latest is meant."""

    thread_id: str
    checkpoint_ns: str
    checkpoint_id: str | None

    @property
    def config(self) -> dict[str, Any]:
        """As LangGraph passes it around: exactly these three keys."""
        thread_id, checkpoint_ns, checkpoint_id = self
        return {
            "configurable": {"thread_id": thread_id, "checkpoint_ns": checkpoint_ns, "checkpoint_id": checkpoint_id}
        }

    def __str__(self) -> str:
        namespace = f" namespace {self.checkpoint_ns!r}" if self.checkpoint_ns else ""
        return f"checkpoint {self.checkpoint_id!r} of thread {self.thread_id!r}{namespace}"


def thread_id_of(value: Any) -> str:
    """A thread id as stored: a number or a UUID is the same thread as its string.

    Raises:
        ConfigurationError: If it is missing, empty, of another type or not storable.
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
    """Return thread ids as they are stored, each once.

    Raises:
        ConfigurationError: If they are one string, or one of them is no thread id.
    """
    return tuple(dict.fromkeys(map(thread_id_of, several("thread_ids", values))))


def several(name: str, values: Iterable[T]) -> Iterable[T]:
    """Return some ids or names as they are given.

    Raises:
        ArgumentTypeError: If they are one string, which would be read letter by letter.
    """
    if isinstance(values, str):
        raise ArgumentTypeError(f"{name} is a list of several, not one string: [{values!r}]")
    return values


def identifier(name: str, value: str) -> str:
    """An id that PostgreSQL's text can hold.

    Raises:
        ConfigurationError: If it cannot.
    """
    if type(value) is not str:
        if not isinstance(value, str):
            raise ArgumentTypeError(f"{name} must be a string, not {type(value).__name__}")
        value = str.__str__(value)
    if "\0" in value or not (value.isascii() or encodes_as_utf8(value)):
        raise ConfigurationError(f"{name} {value!r} holds NUL or a lone surrogate, which PostgreSQL cannot store")
    return value


def check_key_size(names: str, *parts: str | None) -> None:
    """Refuse ids that do not fit an index entry.

    Raises:
        ConfigurationError: If they are longer than `MAX_KEY_BYTES` together.
    """
    total = 0
    for part in parts:
        if part:
            total += len(part)
    # A character takes four bytes at most, so short ids need no counting.
    if total * 4 <= MAX_KEY_BYTES:
        return
    size = sum(len(part.encode()) for part in parts if part)
    if size > MAX_KEY_BYTES:
        raise ConfigurationError(
            f"{names} are {size} bytes together; PostgreSQL can index {MAX_KEY_BYTES}. Use shorter ids."
        )


def configurable_of(config: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """A config's `configurable`; empty if there is none.

    Raises:
        ConfigurationError: If the config is none.
    """
    # A plain dict first: asking the abstract class takes a microsecond.
    if config is not None and type(config) is not dict and not isinstance(config, Mapping):
        raise ArgumentTypeError(
            f'a config is a dict such as {{"configurable": {{"thread_id": "..."}}}}, not {type(config).__name__}'
        )
    configurable = (config or {}).get("configurable")
    return configurable if type(configurable) is dict or isinstance(configurable, Mapping) else {}


def address_of(config: Mapping[str, Any]) -> Address:
    """The checkpoint a config names; an absent or empty `checkpoint_id` means the latest."""
    configurable = configurable_of(config)
    thread_id = configurable.get("thread_id")
    checkpoint_ns = configurable.get("checkpoint_ns") or ""
    checkpoint_id = configurable.get("checkpoint_id") or None
    if type(thread_id) is type(checkpoint_ns) is type(checkpoint_id) is str and thread_id:
        # Looked at together, for there is nothing to say of most.
        text = thread_id + checkpoint_ns + checkpoint_id
        if text.isascii() and "\0" not in text:
            return Address(thread_id, checkpoint_ns, checkpoint_id)
    return Address(
        thread_id_of(thread_id),
        identifier("checkpoint_ns", checkpoint_ns),
        identifier("checkpoint_id", checkpoint_id) if checkpoint_id else None,
    )


def before_id(before: Mapping[str, Any] | None) -> str | None:
    """The checkpoint id of a `before` argument, nested or flat."""
    if before is None:
        return None
    if isinstance(before.get("configurable"), Mapping):
        found = get_checkpoint_id(before)  # type: ignore[arg-type]
    else:
        found = before.get("checkpoint_id")
    return identifier("before", found) if found else None
