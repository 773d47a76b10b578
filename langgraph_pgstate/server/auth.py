"""LangGraph's `Auth` object: who calls, and what the caller may see."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from langgraph_sdk import Auth
from starlette.requests import Request

from langgraph_pgstate.errors import ArgumentTypeError, ConfigurationError
from langgraph_pgstate.langgraph_compat import auth_handlers
from langgraph_pgstate.server.errors import refuse

_log = logging.getLogger("langgraph_pgstate.server")

Scope = Mapping[str, Any]
"""Metadata that a thread or an assistant must contain to be seen, as by jsonb's `@>`."""

_ARGUMENTS: Final = (
    "request",
    "body",
    "path",
    "method",
    "path_params",
    "query_params",
    "headers",
    "authorization",
)
_OF_THREADS: Final = ("create", "create_run", "read", "update", "delete", "search")
_OPERATORS: Final = ("$eq", "$contains")


class User:
    """An authenticated user, with the fields that the authentication handler returned.

    Raises:
        TypeError: If it returned no user.
    """

    def __init__(self, found: Any) -> None:
        fields = {"identity": found} if isinstance(found, str) else found
        if not isinstance(fields, Mapping):
            names = ("identity", "display_name", "is_authenticated", "permissions")
            fields = {name: getattr(found, name) for name in names if hasattr(found, name)}
        identity = fields.get("identity")
        if not isinstance(identity, str) or not identity:
            raise TypeError("the authentication handler returned no string and nothing with an `identity`")
        self.identity = identity
        self.permissions: Sequence[str] = [*fields.get("permissions", ())]
        self.display_name = str(fields.get("display_name", identity))
        self.is_authenticated = bool(fields.get("is_authenticated", True))
        self._fields = {
            **fields,
            "permissions": self.permissions,
            "display_name": self.display_name,
            "is_authenticated": self.is_authenticated,
        }

    def __getitem__(self, name: str) -> Any:
        return self._fields[name]

    def __contains__(self, name: str) -> bool:
        return name in self._fields

    def __iter__(self) -> Iterator[str]:
        return iter(self._fields)

    def __getattr__(self, name: str) -> Any:
        try:
            return self.__dict__["_fields"][name]
        except KeyError:
            raise AttributeError(name) from None

    @property
    def configurable(self) -> dict[str, Any]:
        """The keys of a run's config by which nodes know the user."""
        return {
            "langgraph_auth_user": dict(self._fields),
            "langgraph_auth_user_id": self.identity,
            "langgraph_auth_permissions": list(self.permissions),
        }


class Authority:
    """The handlers of an `Auth` object.

    Args:
        auth: The object.

    Raises:
        ConfigurationError: If it has no authentication handler, or one with unknown arguments.
    """

    def __init__(self, auth: Auth) -> None:
        if not isinstance(auth, Auth):
            raise ArgumentTypeError(f"auth is an object of langgraph_sdk.Auth, not {type(auth).__name__}")
        self._authenticate, self._handlers, self._default = auth_handlers(auth)
        if self._authenticate is None:
            raise ConfigurationError("auth has no authentication handler: decorate one with @auth.authenticate")
        parameters = inspect.signature(self._authenticate).parameters.values()
        known = [one for one in parameters if one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)]
        for one in known:
            if one.name not in _ARGUMENTS and one.default is one.empty:
                raise ConfigurationError(
                    f"the authentication handler takes {one.name!r}; a request has {', '.join(_ARGUMENTS)}"
                )
        self._arguments = [one.name for one in known if one.name in _ARGUMENTS]
        if is_open := [action for action in _OF_THREADS if not self.decides("threads", action)]:
            _log.warning(
                "auth has no handler for the actions %s on threads: each authenticated user may do them on all threads;"
                " @auth.on is asked about everything that has no handler of its own",
                ", ".join(is_open),
            )

    @property
    def needs_body(self) -> bool:
        """Whether the authentication handler takes the body, which must then be read and parsed before."""
        return "body" in self._arguments

    async def authenticate(self, request: Request, body: Any) -> User:
        """Return the user of a request.

        Raises:
            HTTPException: If the handler refuses it.
        """
        assert self._authenticate is not None
        given = {
            "request": request,
            "body": body,
            "path": request.url.path,
            "method": request.method,
            "path_params": request.path_params,
            "query_params": dict(request.query_params),
            "headers": dict(request.headers.raw),
            "authorization": request.headers.get("authorization"),
        }
        found = self._authenticate(**{name: given[name] for name in self._arguments})
        user = User(await found if inspect.isawaitable(found) else found)
        # In namespaces of a store a star stands for any label.
        if not user.is_authenticated or user.identity == "*":
            raise refuse(401, "unauthorized")
        return user

    def decides(self, resource: str, action: str) -> bool:
        """Return whether there is a handler that is asked about an action on a resource."""
        return self._handler(resource, action) is not None

    def _handler(self, resource: str, action: str) -> Any:
        keys = [(resource, action), (resource, "*"), ("*", action)]
        return next((self._handlers[key] for key in keys if key in self._handlers), self._default)

    async def authorize(self, user: User, resource: str, action: str, value: dict[str, Any]) -> Scope | None:
        """Ask the most specific handler whether a user may do something; it may change `value`.

        Returns:
            The metadata to which the operation is limited; `None` for no limit.

        Raises:
            HTTPException: 403 if the handler refuses it, or what it raises.
        """
        handler = self._handler(resource, action)
        if handler is None:
            return None
        context = Auth.types.AuthContext(
            permissions=user.permissions,
            user=user,
            resource=resource,  # type: ignore[arg-type]
            action=action,  # type: ignore[arg-type]
        )
        found = await handler(ctx=context, value=value)
        if found is None or found is True:
            return None
        if found is False:
            raise refuse(403, "forbidden")
        return scope_of(found)


def scope_of(filters: Any) -> Scope:
    """Return what a handler's filters demand of the metadata.

    Raises:
        TypeError: If a filter is not of LangGraph's form.
    """
    if not isinstance(filters, Mapping):
        raise TypeError(f"an authorization handler returned {type(filters).__name__}, not a filter or a bool")
    return {name: _demanded(name, value) for name, value in filters.items()}


def contains(metadata: Any, wanted: Any) -> bool:
    """Return whether metadata contain something, as by jsonb's `@>`."""
    if isinstance(wanted, Mapping):
        return isinstance(metadata, Mapping) and all(
            name in metadata and contains(metadata[name], value) for name, value in wanted.items()
        )
    if isinstance(wanted, list):
        return isinstance(metadata, list) and all(any(contains(have, one) for have in metadata) for one in wanted)
    return type(metadata) is type(wanted) and bool(metadata == wanted)


def _demanded(name: str, value: Any) -> Any:
    if not isinstance(value, Mapping):
        return value
    if len(value) != 1 or (operator := next(iter(value))) not in _OPERATORS:
        raise TypeError(f"filter {name!r} is a value or has one of {', '.join(_OPERATORS)}, not {value!r}")
    operand = value[operator]
    if operator == "$eq":
        return operand
    return list(operand) if isinstance(operand, list | tuple | set) else [operand]
