"""Settings of the state from a `langgraph.json` and the environment."""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, TypedDict

from langgraph_pgstate.encryption import Encryption
from langgraph_pgstate.encryption.masters import CallableMasterKey
from langgraph_pgstate.errors import ConfigurationError, DataKeyError
from langgraph_pgstate.langgraph_compat import encryption_handlers
from langgraph_pgstate.memory.options import MemoryOptions
from langgraph_pgstate.options import TtlStrategy, check_ttl_strategy
from langgraph_pgstate.record.options import RecorderSettings
from langgraph_pgstate.runs.options import WebhookSettings
from langgraph_pgstate.worker.graphs import load_value, read_config

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
_KEY_ID: Final = "langgraph.json"
_DIGEST_BYTES: Final = 32


class StateConfig(TypedDict, total=False):
    """Options of `PGState.open` from a file and the environment."""

    webhooks: WebhookSettings | None
    thread_ttl: timedelta | None
    thread_ttl_strategy: TtlStrategy
    recording: RecorderSettings | None
    encryption: Encryption | None
    project: Sequence[str]


def load_state_config(file: Path | None) -> StateConfig:
    """Return the options of a state. First call `load_environment`.

    Raises:
        ConfigurationError: If an option is malformed.
    """
    found: StateConfig = {}
    if not _flag("PGSTATE_RECORD_CONTENT"):
        found["recording"] = RecorderSettings(content=False)
    if names := [name for part in os.environ.get("PGSTATE_PROJECT", "").split(",") if (name := part.strip())]:
        found["project"] = names
    if file is not None:
        found["webhooks"] = load_webhook_settings(file)
        found.update(_expiry(read_config(file).get("checkpointer") or {}))
        if encryption := load_encryption(file):
            found["encryption"] = encryption
    return found


def load_encryption(file: Path) -> Encryption | None:
    """Return the encryption of a `langgraph.json`; `None` if `PGSTATE_ENCRYPTION_KEYS` prevails over the file.

    The blob handlers of LangGraph's `Encryption` are the master key. Other options come from `PGSTATE_ENCRYPTION_*`.

    Raises:
        ConfigurationError: If the object at `encryption.path` cannot be found, or has handlers that are not supported.
    """
    path = section_of(read_config(file), "encryption").get("path")
    if not path or os.environ.get("PGSTATE_ENCRYPTION_KEYS"):
        return None
    if not isinstance(path, str):
        raise ConfigurationError(f"encryption.path of langgraph.json must be text, not {path!r}")
    return Encryption.from_environment(os.environ, key=_master_of_langgraph(load_value(path, file.parent.resolve())))


def load_memory_options(file: Path) -> MemoryOptions | None:
    """Return the options of the long-term memory; `None` if the file names an application's own store.

    Raises:
        ConfigurationError: If `store` is malformed, or the embedding function cannot be found.
    """
    store = section_of(read_config(file), "store")
    if store.get("path"):
        return None
    index = section_of(store, "index", "store.")
    embed = index.get("embed")
    if isinstance(embed, str) and ".py:" in embed:
        store = {**store, "index": {**index, "embed": load_value(embed, file.parent.resolve())}}
    found: Any = {name: store[name] for name in ("index", "ttl") if store.get(name)}
    options: MemoryOptions = found
    return options


def section_of(config: Mapping[str, Any], name: str, within: str = "") -> Mapping[str, Any]:
    """Return the object under a key of a `langgraph.json`; an empty object if the key is missing.

    `within` is the path of `config` in the file, with a dot at the end.
    """
    found = config.get(name) or {}
    if not isinstance(found, Mapping):
        raise ConfigurationError(f"{within}{name} of langgraph.json must be an object, not {found!r}")
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
        raise ConfigurationError(f"{name} must be {' or '.join(_FLAGS)}, not {value!r}")
    return _FLAGS[value]


_PREFIX: Final = "LG_WEBHOOK_"
_VARIABLE: Final = re.compile(r"\$\{\{\s*env\.(\w+)\s*\}\}")
_RULES: Final = {
    "require_https": "require_https",
    "allowed_domains": "allowed_hosts",
    "allowed_ports": "allowed_ports",
}


def load_webhook_settings(file: Path) -> WebhookSettings:
    """Return the settings of webhooks from a `langgraph.json` and the environment. First call `load_environment`.

    Raises:
        ConfigurationError: If a setting is malformed or not supported, or a variable is not set.
    """
    config = section_of(read_config(file), "webhooks")
    url = section_of(config, "url", "webhooks.")
    unknown = [f"webhooks.{name}" for name in config if name not in ("env_prefix", "url", "headers")]
    unknown += [f"webhooks.url.{name}" for name in url if name not in (*_RULES, "disable_loopback")]
    if url.get("disable_loopback") is False:
        # In LangGraph, a webhook without a host calls the server itself. This package requires a host.
        unknown.append("webhooks.url.disable_loopback = false")
    if unknown:
        raise ConfigurationError(f"{unknown[0]} of langgraph.json is not supported. Remove this key")
    given: dict[str, Any] = {_RULES[name]: value for name, value in url.items() if name in _RULES}
    headers, prefix = section_of(config, "headers", "webhooks."), config.get("env_prefix", _PREFIX)
    if not isinstance(prefix, str):
        raise ConfigurationError(f"webhooks.env_prefix of langgraph.json must be text, not {prefix!r}")
    if headers:
        given["headers"] = {name: _resolved(name, value, prefix) for name, value in headers.items()}
    return replace(WebhookSettings.from_environment(), **given)


def _resolved(name: str, value: Any, prefix: str) -> str:
    """Return a header's value with its variables replaced."""
    if not isinstance(value, str):
        raise ConfigurationError(f"header {name!r} of webhooks must be text, not {type(value).__name__}")

    def variable(found: re.Match[str]) -> str:
        if not found[1].startswith(prefix):
            raise ConfigurationError(
                f"header {name!r} of webhooks names the variable {found[1]}, which must begin with {prefix}"
            )
        if found[1] not in os.environ:
            raise ConfigurationError(f"header {name!r} of webhooks names the variable {found[1]}, which must be set")
        return os.environ[found[1]]

    return _VARIABLE.sub(variable, value)


def _master_of_langgraph(given: Any) -> CallableMasterKey:
    """Return a master key that wraps data keys by the blob handlers of a `langgraph_sdk.Encryption`.

    Its handlers for JSON are not called, because data keys encrypt all content. The context of a handler has the model
    `data_key`, and the id and the scope of the data key as metadata.

    Raises:
        ConfigurationError: If the object is no `Encryption`, lacks a blob handler, or has an `encryption.context`
            handler, which needs a request.
    """
    handlers = encryption_handlers(given)
    if handlers is None:
        raise ConfigurationError(f"encryption must be a langgraph_sdk.Encryption, not {type(given).__name__}")
    if handlers.encrypt is None or handlers.decrypt is None:
        raise ConfigurationError(
            "encryption must have handlers encrypt.blob and decrypt.blob, by which data keys are wrapped"
        )
    if handlers.has_context:
        raise ConfigurationError(
            "encryption must not have a handler encryption.context, because data keys do not depend on requests: set "
            "PGSTATE_ENCRYPTION_SCOPE to what has a data key of its own, such as user"
        )
    encrypt, decrypt = handlers.encrypt, handlers.decrypt

    async def wrap(data_key: bytes, context: Mapping[str, str]) -> bytes:
        # Put a digest of the context before the data key, because the handlers do not bind the key to the context.
        wrapped: bytes = await encrypt(handlers.context("data_key", dict(context)), _digest(context) + data_key)
        return wrapped

    async def unwrap(wrapped: bytes, context: Mapping[str, str]) -> bytes:
        found = await decrypt(handlers.context("data_key", dict(context)), wrapped)
        content: bytes = getattr(found, "plaintext", found)
        if not hmac.compare_digest(content[:_DIGEST_BYTES], _digest(context)):
            raise DataKeyError(
                context.get("key_id", "?"), "this master key did not wrap the data key, or the wrapped key was changed"
            )
        return content[_DIGEST_BYTES:]

    return CallableMasterKey(_KEY_ID, wrap, unwrap)


def _digest(context: Mapping[str, str]) -> bytes:
    return hashlib.sha256(json.dumps(dict(context), sort_keys=True).encode()).digest()
