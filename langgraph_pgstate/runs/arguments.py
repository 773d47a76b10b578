"""Checks of the arguments of a run. Each check raises `ConfigurationError` for an invalid argument. No I/O."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime, timedelta
from typing import Any, Final, get_args
from uuid import UUID

from langchain_core.utils.uuid import uuid7
from langgraph.types import StreamMode

from langgraph_pgstate.arguments import identifier, several, stored_time_of
from langgraph_pgstate.codec.values import ValueCodec
from langgraph_pgstate.errors import ArgumentTypeError, ConfigurationError
from langgraph_pgstate.langgraph_compat import TOOLS_MODE
from langgraph_pgstate.runs.options import Backoff, DefaultAnswer, KeySource
from langgraph_pgstate.runs.streams import EVENTS

_MODES: Final = (*get_args(StreamMode), TOOLS_MODE, EVENTS)
_NAME_BYTES: Final = 512
INT4_MAX: Final = 2**31 - 1


def key_of(source: KeySource | None, config: Mapping[str, Any]) -> str:
    """Return a run's queue key from the run's config; empty if the config has none."""
    if source is None:
        return ""
    found: Any = config
    if isinstance(source, str):
        for name in source.split("."):
            found = found.get(name) if isinstance(found, Mapping) else None
    else:
        found = source(config)
    return "" if found is None else str(found)


def owner_of(labels: Mapping[str, Any], keys: Collection[str]) -> str | None:
    """Return the value of the first of the keys that `labels` has, as text; `None` without such a key."""
    for key in keys:
        value = labels.get(key)
        if isinstance(value, str | int | UUID) and not isinstance(value, bool) and value != "":
            return identifier(key, str(value))
    return None


def mapping_of(name: str, value: Any) -> Mapping[str, Any]:
    """Return a copy of a mapping as a dict; an empty dict for `None`."""
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise ArgumentTypeError(f"{name} must be a mapping, not {type(value).__name__}")
    return dict(value)


def name_of(name: str, value: Any) -> str:
    """Return a validated name of a queue, a graph or a schedule."""
    found = identifier(name, value)
    if not found or len(found.encode()) > _NAME_BYTES:
        raise ConfigurationError(f"{name} must have 1 to {_NAME_BYTES} bytes, not {found!r}")
    return found


def run_id_of(value: Any) -> str:
    """Return a validated id of a run, or a new id for `None`."""
    if value is None:
        return str(uuid7())
    found = identifier("run_id", str(value) if isinstance(value, UUID) else value)
    if not found:
        raise ConfigurationError("run_id must not be empty")
    return found


def choice_of(name: str, value: Any, choices: Collection[Any]) -> Any:
    """Return a value that must be one of the choices."""
    if value not in choices:
        raise ConfigurationError(f"{name} must be {', '.join(map(repr, filter(None, choices)))}, not {value!r}")
    return value


def integer_of(name: str, value: Any, least: int) -> int:
    """Return a whole number that PostgreSQL can store as an `integer`."""
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= INT4_MAX:
        raise ConfigurationError(f"{name} must be a whole number from {least} to {INT4_MAX}, not {value!r}")
    return value


def seconds_of(name: str, value: Any) -> float | None:
    """Return a time as seconds; `None` for no limit."""
    if value is None:
        return None
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds < 10**9:
        raise ConfigurationError(f"{name} must be a number of seconds above 0, or a timedelta, not {value!r}")
    return float(seconds)


def later_of(value: Any) -> datetime | timedelta | None:
    """Return a validated `run_after`: a time, or a duration."""
    if isinstance(value, timedelta):
        if abs(value) > timedelta(days=366_000):
            raise ConfigurationError(f"run_after must be less than 1,000 years away, not {value}")
        return value
    if value is None or (isinstance(value, datetime) and value.tzinfo is not None):
        return stored_time_of("run_after", value)
    raise ConfigurationError(f"run_after must be a timedelta, or a datetime with a time zone, not {value!r}")


def checkpoint_id_of(value: Any) -> str | None:
    """Return the validated id of a checkpoint; `None` if no id is given."""
    return identifier("checkpoint_id", value) if value else None


def nodes_of(name: str, value: Any) -> Any:
    """Return validated names of nodes, or `*` for all nodes."""
    if value is None or value == "*":
        return value
    return [identifier(name, node) for node in several(name, value)]


def stream_modes_of(value: Any) -> list[str] | None:
    """Return validated stream modes without repetitions."""
    if value is None:
        return None
    modes = [value] if isinstance(value, str) else several("stream_mode", value)
    return [choice_of("stream_mode", mode, _MODES) for mode in dict.fromkeys(modes)]


def default_answer_of(codec: ValueCodec, value: Any) -> DefaultAnswer | None:
    """Return a default answer whose value can be stored and read again."""
    if value is None:
        return None
    if not isinstance(value, DefaultAnswer):
        raise ArgumentTypeError(f"default_answer must be a DefaultAnswer, not {type(value).__name__}")
    # Decode the value now, so that a value that cannot be decoded is refused here, not when the answer is due.
    codec.loads(*codec.dumps_exactly("default_answer", value.value), "a default answer")
    return value


def backoff_of(value: Any) -> dict[str, Any] | None:
    """Return a backoff as JSON types."""
    if value is None:
        return None
    if not isinstance(value, Backoff):
        found = f"{type(value).__module__}.{type(value).__qualname__}"
        raise ArgumentTypeError(f"retry must be a Backoff (langgraph_pgstate.Backoff), not {found}")
    return value.as_json()
