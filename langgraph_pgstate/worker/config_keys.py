"""The keys of `langgraph.json`, and how `pgstate serve` and `pgstate worker` use each key."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import Any, Final, Literal

from langgraph_pgstate.errors import ConfigurationError

_log = logging.getLogger("langgraph_pgstate.server")

Use = Literal["used", "image", "warned", "refused"]

KEYS: Final[Mapping[str, Use]] = {
    "python_version": "image",
    "node_version": "image",
    "api_version": "image",
    "_INTERNAL_docker_tag": "image",
    "base_image": "image",
    "image_distro": "image",
    "pip_config_file": "image",
    "pip_installer": "image",
    "source": "image",
    "dockerfile_lines": "image",
    "keep_pkg_tools": "image",
    "dependencies": "used",
    "graphs.*.path": "used",
    "graphs.*.description": "warned",
    "env": "used",
    "store.index.dims": "used",
    "store.index.embed": "used",
    "store.index.fields": "used",
    "store.ttl.refresh_on_read": "used",
    "store.ttl.default_ttl": "used",
    "store.ttl.sweep_interval_minutes": "warned",
    "checkpointer.path": "refused",
    "checkpointer.ttl.strategy": "used",
    "checkpointer.ttl.default_ttl": "used",
    "checkpointer.ttl.sweep_interval_minutes": "warned",
    "checkpointer.ttl.sweep_limit": "warned",
    "checkpointer.serde": "warned",
    "auth.path": "used",
    "auth.disable_studio_auth": "used",
    "auth.openapi": "warned",
    "auth.cache": "warned",
    "encryption.path": "used",
    "priority": "warned",
    "http.app": "used",
    "http.disable_assistants": "used",
    "http.disable_threads": "used",
    "http.disable_runs": "used",
    "http.disable_store": "used",
    "http.disable_mcp": "used",
    "http.disable_a2a": "used",
    "http.disable_meta": "used",
    "http.disable_ui": "used",
    "http.disable_webhooks": "refused",
    "http.cors.allow_origins": "used",
    "http.cors.allow_methods": "used",
    "http.cors.allow_headers": "used",
    "http.cors.allow_credentials": "used",
    "http.cors.allow_origin_regex": "used",
    "http.cors.expose_headers": "used",
    "http.cors.max_age": "used",
    "http.configurable_headers": "used",
    "http.logging_headers": "used",
    "http.middleware_order": "used",
    "http.enable_custom_route_auth": "used",
    "http.mount_prefix": "used",
    "webhooks": "used",
    "ui": "warned",
}
"""The use of each key, by path. A `refused` key raises an error. A `warned` key is logged. The use `image` means that
the key has an effect only when an image is built. A key stands for all keys below it.
"""

NOTES: Final[Mapping[str, str]] = {
    "dependencies": "local directories are searched for modules",
    "env": "PGSTATE_DSN, PGSTATE_RECORD_CONTENT, PGSTATE_PROJECT and PGSTATE_WEBHOOK_*; other PGSTATE_* are logged",
    "store.index.embed": "a model, or a function like ./embed.py:embed",
    "checkpointer.path": "except langgraph_pgstate.agent_server:checkpointer",
    "checkpointer.ttl.strategy": "delete, or keep_latest: all but the newest checkpoints are pruned",
    "checkpointer.ttl.default_ttl": "minutes, counted from a thread's first checkpoint",
    "store.ttl.sweep_interval_minutes": "workers delete expired items every minute; expired items are never returned",
    "checkpointer.ttl.sweep_interval_minutes": "servers that run a worker look for expired threads every minute",
    "checkpointer.serde": "it does not change which types are rebuilt",
    "auth.disable_studio_auth": "every request is authenticated, as if it were true",
    "auth.openapi": "/openapi.json names no security schemes",
    "auth.cache": "nothing is cached: the handler authenticates each request",
    "http.app": "its routes come first, except /ok; its middleware also gets the server's requests; FastAPI's "
    "/openapi.json and /docs also list the server's operations; its WebSockets are not served but logged",
    "http.disable_runs": "also disables crons, feedback, and commands of threads",
    "http.disable_mcp": "there is no /mcp",
    "http.disable_a2a": "there is no /a2a",
    "http.disable_meta": "disables all of them but /ok",
    "http.disable_ui": "disables the inspector",
    "http.configurable_headers": "by default, no header; a header overrides the body",
    "http.logging_headers": "no header is logged",
    "http.mount_prefix": "like /api, before every path",
    "webhooks": "each key is used or refused; url.max_url_length is refused",
}
"""Notes about keys, for the reference."""

_OWN_CHECKPOINTER: Final = "langgraph_pgstate.agent_server:checkpointer"
# Variables that have no effect in `env`, because only `langgraph_pgstate.agent_server` reads the variable, or because
# the commands read the variable before `env`.
_OTHER_VARIABLES: Final = (
    "PGSTATE_PATH",
    "PGSTATE_SCHEMA",
    "PGSTATE_SETUP",
    "PGSTATE_POOL_SIZE",
    "PGSTATE_POOL_TIMEOUT",
    "PGSTATE_PREPARE",
    "PGSTATE_RECORD",
    "PGSTATE_ALLOWED_TYPES",
    "PGSTATE_THREAD_TTL",
    "PGSTATE_OTLP_ENDPOINT",
)


def check_keys(config: Mapping[str, Any], environment: Mapping[str, str]) -> None:
    """Refuse or log keys of a `langgraph.json`, and variables of its `env`, that have no effect.

    Raises:
        ConfigurationError: If a key is refused, because ignoring the key would change what is stored or who is served.
    """
    for path, value in _given(config, "", KEYS):
        use = KEYS.get(path)
        if use == "refused" and not (path == "checkpointer.path" and value == _OWN_CHECKPOINTER):
            raise ConfigurationError(f"{path} of langgraph.json is not supported. Remove this key")
        if use == "warned":
            _log.warning("%s of langgraph.json has no effect", path)
        elif use == "image":
            _log.info("%s of langgraph.json has no effect: no image is built", path)
        elif use is None:
            _log.warning("%s of langgraph.json is not known and has no effect", path)
    for name in _OTHER_VARIABLES:
        if name in environment:
            _log.warning("%s in env of langgraph.json has no effect here; give options on the command line", name)


def _given(value: Mapping[str, Any], above: str, known: Mapping[str, Use]) -> Iterator[tuple[str, Any]]:
    """Yield the path and value of each key that is set. If the table has keys of an object, the object is searched."""
    for name, found in value.items():
        path = f"{above}{'*' if above == 'graphs.' else name}"
        # `null`, `false` and empty values are the defaults.
        if found is None or found is False or found in ({}, []) or str(name).startswith("$"):
            continue
        if path not in known and any(one.startswith(f"{path}.") for one in known):
            # The code that reads the value checks its type.
            if isinstance(found, Mapping):
                yield from _given(found, f"{path}.", known)
        else:
            yield path, found
