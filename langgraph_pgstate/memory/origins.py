"""Where a memory comes from: the thread, run and checkpoint in which it is stored, and whoever stores it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from langchain_core.runnables.config import var_child_runnable_config

RunOf = Callable[[Mapping[str, Any]], str | None]


class Origin(NamedTuple):
    """The thread, run and checkpoint that stored a memory."""

    changed_by: str | None = None
    thread_id: str | None = None
    run_id: str | None = None
    checkpoint_id: str | None = None
    message_id: str | None = None


def current_origin(run_of: RunOf | None) -> Origin:
    """Return the origin of what the running task stores; nothing outside of a graph.

    Args:
        run_of: Returns the recorded run of a config.
    """
    config = var_child_runnable_config.get()
    if not config:
        return Origin()
    configurable: Mapping[str, Any] = config.get("configurable") or {}
    metadata: Mapping[str, Any] = config.get("metadata") or {}
    user = configurable.get("langgraph_auth_user_id") or configurable.get("user_id")
    recorded = None if run_of is None or configurable.get("thread_id") is None else run_of(config)
    run = recorded or configurable.get("run_id") or metadata.get("run_id") or config.get("run_id")
    # In a node, the config names the checkpoints of the supersteps, by namespace.
    namespace = str(configurable.get("checkpoint_ns") or "").rpartition("|")[0]
    checkpoint = (configurable.get("checkpoint_map") or {}).get(namespace) or configurable.get("checkpoint_id")
    return Origin(_text(user), _text(configurable.get("thread_id")), _text(run), _text(checkpoint))


def _text(value: Any) -> str | None:
    if value is None or value == "":
        return None
    text = str(value)
    return None if "\0" in text else text[:512]
