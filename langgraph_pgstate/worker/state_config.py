"""Settings of the state in a `langgraph.json` and its environment: webhooks, expiry, what is stored readable."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, TypedDict

from langgraph_pgstate.errors import ConfigurationError
from langgraph_pgstate.memory.options import MemoryOptions
from langgraph_pgstate.options import TtlStrategy, check_ttl_strategy
from langgraph_pgstate.record.options import RecorderSettings
from langgraph_pgstate.runs.options import WebhookSettings
from langgraph_pgstate.worker.graphs import load_value, read_config
from langgraph_pgstate.worker.webhook_config import load_webhook_settings

_TTL: Final = "checkpointer.ttl"
_MOST_MINUTES: Final = 5e8
_FLAGS: Final = {
    "true": True,
    "1": True,
    "yes": True,
    "on": True,
    "false": False,
    "0": False,
    "no": False,
    "off": False,
}


class StateConfig(TypedDict, total=False):
    """Options of `PGState.open` that a file has."""

    webhooks: WebhookSettings | None
    thread_ttl: timedelta | None
    thread_ttl_strategy: TtlStrategy
    recording: RecorderSettings | None
    project: Sequence[str]


def load_state_config(file: Path | None) -> StateConfig:
    """Return the options of a state. Call it after the file's own environment was loaded.

    Raises:
        ConfigurationError: If one is malformed.
    """
    found: StateConfig = {}
    if not _flag("PGSTATE_RECORD_CONTENT"):
        found["recording"] = RecorderSettings(content=False)
    if names := [name for part in os.environ.get("PGSTATE_PROJECT", "").split(",") if (name := part.strip())]:
        found["project"] = names
    if file is not None:
        found["webhooks"] = load_webhook_settings(file)
        found.update(_expiry(read_config(file).get("checkpointer") or {}))
    return found


def load_memory_options(file: Path) -> MemoryOptions | None:
    """Return the options of the long-term memory; `None` if the file names a store of the application's own.

    Raises:
        ConfigurationError: If `store` is malformed, or its function of embeddings cannot be found.
    """
    store = section_of(read_config(file), "store")
    if store.get("path"):
        return None
    index = section_of(store, "index")
    embed = index.get("embed")
    if isinstance(embed, str) and ".py:" in embed:
        store = {**store, "index": {**index, "embed": load_value(embed, file.parent.resolve())}}
    found: Any = {name: store[name] for name in ("index", "ttl") if store.get(name)}
    options: MemoryOptions = found
    return options


def section_of(config: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return an object of a file, empty if it is missing.

    Raises:
        ConfigurationError: If it is something else.
    """
    found = config.get(name) or {}
    if not isinstance(found, Mapping):
        raise ConfigurationError(f"{name!r} of langgraph.json must be an object, not {found!r}")
    return found


def _expiry(checkpointer: Any) -> StateConfig:
    ttl = checkpointer.get("ttl") if isinstance(checkpointer, Mapping) else None
    if ttl is None:
        return {}
    if not isinstance(ttl, Mapping):
        raise ConfigurationError(f"{_TTL} of langgraph.json must be an object, not {ttl!r}")
    strategy = check_ttl_strategy(f"{_TTL}.strategy of langgraph.json", ttl.get("strategy") or "delete")
    minutes = ttl.get("default_ttl")
    if minutes is None:
        return {}
    if isinstance(minutes, bool) or not isinstance(minutes, int | float) or not 0 < minutes < _MOST_MINUTES:
        raise ConfigurationError(f"{_TTL}.default_ttl of langgraph.json must be a number of minutes, not {minutes!r}")
    return {"thread_ttl": timedelta(minutes=minutes), "thread_ttl_strategy": strategy}


def _flag(name: str) -> bool:
    value = os.environ.get(name, "").lower() or "true"
    if value not in _FLAGS:
        raise ConfigurationError(f"{name} is {' or '.join(_FLAGS)}, not {value!r}")
    return _FLAGS[value]
