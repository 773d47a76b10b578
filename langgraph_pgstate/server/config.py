"""Settings of a server in `langgraph.json`: graphs, authentication, store and CORS."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

from langgraph.store.base import BaseStore

from langgraph_pgstate.errors import ConfigurationError
from langgraph_pgstate.runs.graphs import load_config, load_value, read_config
from langgraph_pgstate.server.app import ServerOptions
from langgraph_pgstate.server.serving import DEFAULT_CORS

_CORS_KEYS: Final = (
    "allow_origins",
    "allow_origin_regex",
    "allow_methods",
    "allow_headers",
    "allow_credentials",
    "expose_headers",
    "max_age",
)


def load_server_config(file: Path, dsn: str) -> tuple[dict[str, Any], ServerOptions]:
    """Import the graphs of a `langgraph.json`, and return them with the options of a server: auth, store and CORS.

    Args:
        file: The file.
        dsn: The database of the store.

    Raises:
        ConfigurationError: If the file is malformed, or something that it names cannot be found.
    """
    graphs = load_config(file)
    config, directory = read_config(file), file.parent.resolve()
    auth, store = _section(config, "auth"), _section(config, "store")
    options: ServerOptions = {"cors": {**DEFAULT_CORS, **_cors(_section(config, "http"))}}
    if isinstance(auth.get("path"), str):
        options["auth"] = load_value(auth["path"], directory)
    if "store" in config:
        options["store"] = lambda: open_store(dsn, store)
    return {**graphs}, options


@asynccontextmanager
async def open_store(dsn: str, settings: Mapping[str, Any]) -> AsyncIterator[BaseStore]:
    """Open LangGraph's own store on PostgreSQL, and make its tables.

    Args:
        dsn: The database.
        settings: `index` and `ttl`, as in `langgraph.json`.

    Raises:
        ConfigurationError: If its package is not installed.
    """
    try:
        from langgraph.store.postgres import AsyncPostgresStore
    except ImportError as error:
        raise ConfigurationError("a store needs the package: pip install langgraph-checkpoint-postgres") from error
    given: Any = {name: settings[name] for name in ("index", "ttl") if settings.get(name)}
    async with AsyncPostgresStore.from_conn_string(dsn, pool_config={"min_size": 1, "max_size": 10}, **given) as store:
        await store.setup()
        yield store


def _section(config: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = config.get(name) or {}
    if not isinstance(found, Mapping):
        raise ConfigurationError(f"{name!r} of langgraph.json is an object, not {found!r}")
    return found


def _cors(http: Mapping[str, Any]) -> dict[str, Any]:
    given = http.get("cors") or {}
    found = {name: given[name] for name in _CORS_KEYS if name in given}
    # Its own origins replace those that are allowed by default.
    return {"allow_origin_regex": None, **found} if "allow_origins" in found else found
