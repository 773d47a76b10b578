"""Settings of webhooks in `langgraph.json`."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from langgraph_pgstate.errors import ConfigurationError
from langgraph_pgstate.runs.options import WebhookSettings
from langgraph_pgstate.worker.graphs import read_config

_PREFIX: Final = "LG_WEBHOOK_"
_VARIABLE: Final = re.compile(r"\$\{\{\s*env\.(\w+)\s*\}\}")
_RULES: Final = {
    "require_https": "require_https",
    "allowed_domains": "allowed_hosts",
    "allowed_ports": "allowed_ports",
}


def load_webhook_settings(file: Path) -> WebhookSettings:
    """Return the settings of webhooks in the environment, with those that `webhooks` of a `langgraph.json` has.

    Call it after the file's own environment was loaded.

    Raises:
        ConfigurationError: If a setting is malformed or not supported, or a variable is not set.
    """
    config = _object("webhooks", read_config(file).get("webhooks"))
    url = _object("webhooks.url", config.get("url"))
    unknown = [f"webhooks.{name}" for name in config if name not in ("env_prefix", "url", "headers")]
    unknown += [f"webhooks.url.{name}" for name in url if name not in (*_RULES, "disable_loopback")]
    if url.get("disable_loopback") is False:
        # A webhook is an absolute URL here.
        unknown.append("webhooks.url.disable_loopback = false")
    if unknown:
        raise ConfigurationError(f"{unknown[0]} of langgraph.json is not supported")
    given: dict[str, Any] = {_RULES[name]: value for name, value in url.items() if name in _RULES}
    headers, prefix = _object("webhooks.headers", config.get("headers")), config.get("env_prefix", _PREFIX)
    if not isinstance(prefix, str):
        raise ConfigurationError(f"webhooks.env_prefix of langgraph.json must be text, not {prefix!r}")
    if headers:
        given["headers"] = {name: _resolved(name, value, prefix) for name, value in headers.items()}
    return replace(WebhookSettings.from_environment(), **given)


def _object(name: str, value: Any) -> Mapping[str, Any]:
    if value is not None and not isinstance(value, Mapping):
        raise ConfigurationError(f"{name} of langgraph.json must be an object, not {value!r}")
    return value or {}


def _resolved(name: str, value: Any, prefix: str) -> str:
    """Return a header's value with the variables that it names."""
    if not isinstance(value, str):
        raise ConfigurationError(f"header {name!r} of webhooks must be text, not {type(value).__name__}")

    def variable(found: re.Match[str]) -> str:
        if not found[1].startswith(prefix):
            raise ConfigurationError(
                f"header {name!r} of webhooks names {found[1]}, which does not begin with {prefix}"
            )
        if found[1] not in os.environ:
            raise ConfigurationError(f"header {name!r} of webhooks names {found[1]}, which is not set")
        return os.environ[found[1]]

    return _VARIABLE.sub(variable, value)
