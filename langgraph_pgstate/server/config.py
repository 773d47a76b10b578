"""Settings of a server in `langgraph.json`: graphs, authentication, store and HTTP."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from starlette.routing import WebSocketRoute

from langgraph_pgstate.errors import ConfigurationError
from langgraph_pgstate.server.app import DISABLING, ServerOptions
from langgraph_pgstate.server.custom import AuthPlace
from langgraph_pgstate.server.service import HeaderSelection
from langgraph_pgstate.server.serving import DEFAULT_CORS
from langgraph_pgstate.worker.graphs import load_config, load_value, read_config
from langgraph_pgstate.worker.state_config import load_memory_options, section_of

_log = logging.getLogger("langgraph_pgstate.server")
_CORS_KEYS: Final = (
    "allow_origins",
    "allow_origin_regex",
    "allow_methods",
    "allow_headers",
    "allow_credentials",
    "expose_headers",
    "max_age",
)


def load_server_config(file: Path) -> tuple[dict[str, Any], ServerOptions]:
    """Import and return the graphs that a `langgraph.json` names. Also return the options of the server.

    Raises:
        ConfigurationError: If the file is malformed, or an object that it names cannot be found.
    """
    graphs = load_config(file)
    config, directory = read_config(file), file.parent.resolve()
    auth, store, http = section_of(config, "auth"), section_of(config, "store"), section_of(config, "http")
    options: ServerOptions = {"cors": {**DEFAULT_CORS, **_cors(http)}}
    if isinstance(auth.get("path"), str):
        options["auth"] = load_value(auth["path"], directory)
    if disabled := [part for part in DISABLING if _flag(http, f"disable_{part}")]:
        options["disabled"] = disabled
    if _flag(http, "disable_ui"):
        options["inspector"] = False
    if prefix := http.get("mount_prefix"):
        if not isinstance(prefix, str) or not prefix.startswith("/") or prefix.endswith("/"):
            raise ConfigurationError(f"http.mount_prefix of langgraph.json must be a path like /api, not {prefix!r}")
        options["prefix"] = prefix
    if (headers := http.get("configurable_headers")) is not None:
        options["configurable_headers"] = _headers(headers)
    if http.get("app") is not None:
        options["app"] = load_value(str(http["app"]), directory)
        if found := [one.path for one in getattr(options["app"], "routes", ()) if isinstance(one, WebSocketRoute)]:
            _log.warning("WebSockets of http.app are not served: %s", ", ".join(found))
        if _flag(http, "enable_custom_route_auth"):
            options["app_auth"] = _middleware_order(http)
    if (memory := load_memory_options(file)) is None:
        options["store"] = load_value(str(store["path"]), directory)
    else:
        options["memory"] = memory
    return {**graphs}, options


def _flag(http: Mapping[str, Any], name: str) -> bool:
    found = http.get(name) or False
    if not isinstance(found, bool):
        raise ConfigurationError(f"http.{name} of langgraph.json must be true or false, not {found!r}")
    return found


def _headers(given: Any) -> HeaderSelection:
    names = {name: given.get(name) or [] for name in ("includes", "excludes")} if isinstance(given, Mapping) else {}
    for found in [*names.values()] or [None]:
        if not isinstance(found, list) or not all(isinstance(one, str) for one in found):
            raise ConfigurationError(
                f"http.configurable_headers of langgraph.json must have lists `includes` and `excludes`, not {given!r}"
            )
    return HeaderSelection(**names)


def _middleware_order(http: Mapping[str, Any]) -> AuthPlace:
    found = http.get("middleware_order") or "middleware_first"
    if found not in ("middleware_first", "auth_first"):
        raise ConfigurationError(
            f"http.middleware_order of langgraph.json must be middleware_first or auth_first, not {found!r}"
        )
    return "auth_first" if found == "auth_first" else "middleware_first"


def _cors(http: Mapping[str, Any]) -> dict[str, Any]:
    given = http.get("cors") or {}
    found = {name: given[name] for name in _CORS_KEYS if name in given}
    # If the file names origins, do not allow the default origins.
    return {"allow_origin_regex": None, **found} if "allow_origins" in found else found
