"""The context that runs of a server's assistants get besides their input, and the user who has made them."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import is_dataclass
from typing import Any, Final

from langgraph.pregel import Pregel
from pydantic import BaseModel

from langgraph_pgstate.arguments import configurable_of

_USER: Final = "langgraph_auth_user"


class AuthenticatedUser(dict[str, Any]):
    """An authenticated user. Its fields are attributes, too, as LangGraph's `ServerInfo.user` has them."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None


def with_user(configurable: dict[str, Any]) -> dict[str, Any]:
    """Return the keys of a config with the user, if they name one, as an `AuthenticatedUser`."""
    found = configurable.get(_USER)
    return {**configurable, _USER: AuthenticatedUser(found)} if isinstance(found, Mapping) else configurable


def user_of(config: Mapping[str, Any]) -> Any:
    """Return the user that a config names; `None` if it names none."""
    return configurable_of(config).get(_USER)


def given_context(config: Mapping[str, Any], context: Any) -> Any:
    """Return the context of a run before it is fitted to the graph's schema.

    A run of an assistant always has one, so that its schema's defaults apply. Other runs have what was enqueued.
    """
    return {} if context is None and _is_of_assistant(config) else context


def fitted_context(graph: Pregel[Any, Any, Any, Any], config: Mapping[str, Any], context: Any) -> Any:
    """Return the context of a run, for an assistant's run without the keys that the graph's schema does not have.

    LangGraph makes the schema's type of it. A `TypedDict` takes all keys, as a model of pydantic does that does not
    forbid others.
    """
    context = given_context(config, context)
    if not isinstance(context, Mapping) or not _is_of_assistant(config):
        return context
    known = _fields_of(graph.context_schema)
    return context if known is None else {name: value for name, value in context.items() if name in known}


def _is_of_assistant(config: Mapping[str, Any]) -> bool:
    return "assistant_id" in configurable_of(config)


def _fields_of(schema: Any) -> frozenset[str] | None:
    """Return the names that a type takes; `None` if it takes all."""
    if isinstance(schema, type) and issubclass(schema, BaseModel):
        if schema.model_config.get("extra") != "forbid":
            return None
        fields = schema.model_fields
        return frozenset({*fields, *(one.alias for one in fields.values() if one.alias)})
    if not isinstance(schema, type) or not is_dataclass(schema):
        return None
    parameters = inspect.signature(schema).parameters.values()
    is_open = any(one.kind is one.VAR_KEYWORD for one in parameters)
    return None if is_open else frozenset(one.name for one in parameters)
