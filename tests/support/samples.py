"""Checkpoints for tests, made as LangGraph makes them, and exact comparison of values and types."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple

from langgraph_pgstate import PGStateSaver

_numbers = itertools.count(1)


def config_of(thread_id: Any = "t", checkpoint_ns: str = "", checkpoint_id: str | None = None) -> RunnableConfig:
    """Return a config, as LangGraph passes it around."""
    configurable = {"thread_id": thread_id, "checkpoint_ns": checkpoint_ns}
    if checkpoint_id is not None:
        configurable["checkpoint_id"] = checkpoint_id
    return {"configurable": configurable}


def id_of(config: RunnableConfig) -> str:
    """Return the checkpoint a config names."""
    return str(config["configurable"]["checkpoint_id"])


def new_checkpoint_id() -> str:
    """Return an id greater than all earlier ones."""
    return f"1f0{next(_numbers):05x}-0000-6000-8000-000000000000"


def checkpoint_of(
    values: Mapping[str, Any], versions: Mapping[str, Any] | None = None, id: str | None = None, **changes: Any
) -> dict[str, Any]:
    """Return a checkpoint with these channel values."""
    return {
        "v": 4,
        "id": id or new_checkpoint_id(),
        "ts": "2026-01-02T03:04:05.678901+00:00",
        "channel_values": dict(values),
        "channel_versions": dict(versions if versions is not None else dict.fromkeys(values, f"{1:032}.{1:016}")),
        "versions_seen": {},
        "updated_channels": None,
        **changes,
    }


def put_values(
    saver: BaseCheckpointSaver[str],
    config: RunnableConfig,
    values: Mapping[str, Any],
    *,
    step: int = 0,
    id: str | None = None,
    **metadata: Any,
) -> RunnableConfig:
    """Store a checkpoint after the one `config` names, with a new version of every channel."""
    versions = {channel: saver.get_next_version(None, None) for channel in values}
    return saver.put(
        config,
        checkpoint_of(values, versions, id),  # type: ignore[arg-type]
        {"source": "loop", "step": step, "parents": {}, **metadata},  # type: ignore[typeddict-item]
        versions,
    )


def message(number: int, length: int = 60) -> BaseMessage:
    """Return a message whose content no other number has."""
    cls = HumanMessage if number % 2 else AIMessage
    return cls(content=f"message {number} " + "lorem ipsum dolor sit amet " * (length // 27), id=f"m{number}")


def messages(start: int, stop: int) -> list[BaseMessage]:
    """Return messages numbered from `start` up to `stop`, exclusive."""
    return [message(number) for number in range(start, stop)]


def values_of(saver: BaseCheckpointSaver[str], config: RunnableConfig) -> dict[str, Any]:
    """Return the channel values of an existing checkpoint."""
    found = saver.get_tuple(config)
    assert found is not None
    return found.checkpoint["channel_values"]


def forget(saver: PGStateSaver) -> None:
    """Empty a saver's cache, as a restart of its process does."""
    saver._saver_cache.cache.clear()


def exactly(value: Any) -> Any:
    """Return a form of a value that is equal only for equal values of the same types in the same order."""
    kind = type(value)
    if isinstance(value, BaseMessage):
        return kind, [(name, exactly(item)) for name, item in value.__dict__.items()], exactly(value.model_extra)
    if kind is dict:
        return kind, sorted(((repr(key), exactly(item)) for key, item in value.items()), key=lambda pair: pair[0])
    if kind is set or kind is frozenset:
        return kind, sorted(map(repr, value))
    if isinstance(value, list | tuple):
        return kind, [exactly(item) for item in value]
    if kind is float:
        return kind, repr(value)
    if kind is str or kind is int or kind is bool or kind is bytes or value is None:
        return kind, value
    return kind, repr(value)


def exact_tuple(found: CheckpointTuple | None) -> Any:
    """Return all of a checkpoint tuple, to be compared with `==`; an absent `pending_writes` is an empty one."""
    if found is None:
        return None
    return {
        "config": exactly(found.config),
        "checkpoint": exactly(found.checkpoint),
        "metadata": exactly(found.metadata),
        "parent_config": exactly(found.parent_config),
        "pending_writes": exactly(list(found.pending_writes or [])),
    }
