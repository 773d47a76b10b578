"""Where a memory comes from: the thread, run and checkpoint in which it is stored, and whoever stores it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from langchain_core.runnables.config import var_child_runnable_config


class Origin(NamedTuple):
    """What stored a memory."""

    changed_by: str | None = None
    thread_id: str | None = None
    run_id: str | None = None
    checkpoint_id: str | None = None
    message_id: str | None = None


def current_origin() -> Origin:
    """Return the origin of what the running task stores; nothing outside of a graph."""
    config = var_child_runnable_config.get()
    if not config:
        return Origin()
    configurable: Mapping[str, Any] = config.get("configurable") or {}
    metadata: Mapping[str, Any] = config.get("metadata") or {}
    user = configurable.get("langgraph_auth_user_id") or configurable.get("user_id")
    run = configurable.get("run_id") or metadata.get("run_id") or config.get("run_id")
    return Origin(
        _text(user), _text(configurable.get("thread_id")), _text(run), _text(configurable.get("checkpoint_id"))
    )


def _text(value: Any) -> str | None:
    if value is None or value == "":
        return None
    text = str(value)
    return None if "\0" in text else text[:512]
