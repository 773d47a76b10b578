"""The origin of a memory: who stores it, and in which thread, run and checkpoint."""

from __future__ import annotations

from typing import Any, NamedTuple

from langchain_core.runnables.config import var_child_runnable_config

from langgraph_pgstate.arguments import configurable_of
from langgraph_pgstate.call_site import RunOf, origin_of


class Origin(NamedTuple):
    """The thread, run and checkpoint that stored a memory."""

    changed_by: str | None = None
    thread_id: str | None = None
    run_id: str | None = None
    checkpoint_id: str | None = None
    message_id: str | None = None


def current_origin(run_of: RunOf | None) -> Origin:
    """Return the origin of memories that the running task stores; an empty origin outside of a graph."""
    config = var_child_runnable_config.get()
    if not config:
        return Origin()
    configurable = configurable_of(config)
    user = configurable.get("langgraph_auth_user_id") or configurable.get("user_id")
    place = origin_of(config, run_of)
    return Origin(_text(user), place.thread_id, place.run_id, place.checkpoint_id)


def _text(value: Any) -> str | None:
    if value is None or value == "":
        return None
    text = str(value)
    return None if "\0" in text else text[:512]
