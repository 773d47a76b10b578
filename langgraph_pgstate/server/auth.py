"""Authentication and authorization of callers by LangGraph's `Auth` object, and the addresses of this machine."""

from __future__ import annotations

import inspect
import ipaddress
import logging
from collections.abc import Iterator, Mapping, Sequence
from functools import reduce
from typing import Any, Final
from urllib.parse import urlsplit

from langgraph_sdk import Auth
from starlette.requests import Request

from langgraph_pgstate.codec.values import encodes_as_utf8
from langgraph_pgstate.errors import ArgumentTypeError, ConfigurationError
from langgraph_pgstate.langgraph_compat import auth_handlers
from langgraph_pgstate.scopes import Alternatives, both
from langgraph_pgstate.server.errors import refuse

_log = logging.getLogger("langgraph_pgstate.server")

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
_COMBINING: Final = ("$and", "$or")
# Maximum number of alternatives of a filter. The numbers of several `$or` within an `$and` are multiplied.
_MOST_ALTERNATIVES: Final = 1000


class User:
    """An authenticated user, with the fields that the authentication handler returned."""

    def __init__(self, found: Any) -> None:
        fields = {"identity": found} if isinstance(found, str) else found
        if not isinstance(fields, Mapping):
            names = ("identity", "display_name", "is_authenticated", "permissions")
            fields = {name: getattr(found, name) for name in names if hasattr(found, name)}
        identity = fields.get("identity")
        if type(identity) is int:
            identity = str(identity)
        if not isinstance(identity, str) or not identity:
            raise TypeError("the authentication handler must return a string or an object with an `identity`")
        self.identity = identity
        self.permissions: Sequence[str] = [*fields.get("permissions", ())]
        self.display_name = str(fields.get("display_name", identity))
        self.is_authenticated = bool(fields.get("is_authenticated", True))
        self._fields = {
            **fields,
            "identity": identity,
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
        """The keys of a run's config that describe the user to nodes."""
        return {
            "langgraph_auth_user": dict(self._fields),
            "langgraph_auth_user_id": self.identity,
            "langgraph_auth_permissions": list(self.permissions),
        }


class Authority:
    """The handlers of an `Auth` object, which decide who calls and what the caller may do."""

    def __init__(self, auth: Auth) -> None:
        if not isinstance(auth, Auth):
            raise ArgumentTypeError(f"auth must be an object of langgraph_sdk.Auth, not {type(auth).__name__}")
        self._authenticate, self._handlers, self._default = auth_handlers(auth)
        if self._authenticate is None:
            raise ConfigurationError("auth must have an authentication handler: decorate one with @auth.authenticate")
        parameters = inspect.signature(self._authenticate).parameters.values()
        known = [one for one in parameters if one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)]
        for one in known:
            if one.name not in _ARGUMENTS and one.default is one.empty:
                raise ConfigurationError(
                    f"arguments of the authentication handler must be among {', '.join(_ARGUMENTS)}, not {one.name!r}"
                )
        self._arguments = [one.name for one in known if one.name in _ARGUMENTS]
        if is_open := [action for action in _OF_THREADS if not self.decides("threads", action)]:
            _log.warning(
                "auth should have a handler for the actions %s on threads, because now each user may do these actions "
                "on all threads. A handler decorated with @auth.on decides about all actions without a handler",
                ", ".join(is_open),
            )

    @property
    def needs_body(self) -> bool:
        """Whether the authentication handler takes the body. If so, the body is parsed before authentication."""
        return "body" in self._arguments

    async def authenticate(self, request: Request, body: Any) -> User:
        """Return the user of a request. Refuse a user without a usable identity with 401."""
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
        # A star would stand for the namespaces of all users. A NUL would be removed from metadata, and the rest of the
        # identity could be the identity of another user.
        is_usable = user.identity != "*" and "\0" not in user.identity and encodes_as_utf8(user.identity)
        if not user.is_authenticated or not is_usable:
            raise refuse(401, "unauthorized")
        return user

    def decides(self, resource: str, action: str) -> bool:
        """Return whether a handler decides about an action on a resource."""
        return self._handler(resource, action) is not None

    def _handler(self, resource: str, action: str) -> Any:
        keys = [(resource, action), (resource, "*"), ("*", action)]
        return next((self._handlers[key] for key in keys if key in self._handlers), self._default)

    async def authorize(self, user: User, resource: str, action: str, value: dict[str, Any]) -> Alternatives | None:
        """Ask the most specific handler whether a user may do something. The handler may change `value`.

        Returns:
            The metadata that objects must contain for the user to reach them; `None` for all objects.
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
        scope = scope_of(found)
        return None if {} in scope else scope


def scope_of(filters: Any) -> Alternatives:
    """Return a handler's filters as alternatives. An object's metadata must contain at least one alternative."""
    if not isinstance(filters, Mapping):
        raise TypeError(f"an authorization handler must return a filter or a bool, not {type(filters).__name__}")
    found: Alternatives = ({},)
    for name, value in filters.items():
        found = _both(found, _alternatives(name, value))
    return found


def _both(one: Alternatives, other: Alternatives) -> Alternatives:
    """Return the intersection of two scopes."""
    if len(one) * len(other) > _MOST_ALTERNATIVES:
        raise TypeError(f"a filter must have at most {_MOST_ALTERNATIVES} alternatives, not {len(one) * len(other)}")
    return both(one, other)


def _alternatives(name: str, value: Any) -> Alternatives:
    """Return the conditions of one entry of a filter."""
    if name in _COMBINING:
        if not isinstance(value, list | tuple) or not value:
            raise TypeError(f"{name} of a filter must be a list of at least one filter, not {value!r}")
        parts = [scope_of(one) for one in value]
        return tuple(one for part in parts for one in part) if name == "$or" else reduce(_both, parts)
    if not isinstance(name, str) or name.startswith("$"):
        raise TypeError(f"keys of a filter must be names of metadata or {' or '.join(_COMBINING)}, not {name!r}")
    return ({name: _demanded(name, value)},)


def _demanded(name: str, value: Any) -> Any:
    operator, operand = "$eq", value
    if isinstance(value, Mapping):
        if len(value) != 1 or (operator := next(iter(value))) not in _OPERATORS:
            raise TypeError(f"filter {name!r} must be a value or have one of {', '.join(_OPERATORS)}, not {value!r}")
        operand = value[operator]
    is_several = isinstance(operand, list | tuple | set)
    parts = list(operand) if is_several else [operand]
    if operator == "$eq" and isinstance(operand, list | tuple | set):
        raise TypeError(
            f"filter {name!r} must have one value, not {operand!r}: write {{{name!r}: {{'$contains': {parts}}}}} "
            f"for metadata that have these items, or {{'$or': [{{{name!r}: …}}, …]}} for one of several values"
        )
    if not all(one is None or isinstance(one, str | int | float) for one in parts):
        raise TypeError(f"filter {name!r} must have texts, numbers, booleans or null, not {operand!r}")
    return operand if operator == "$eq" else parts


def is_loopback(host: str) -> bool:
    """Return whether an address can be reached from the same machine only."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def is_local(url: str) -> bool:
    """Return whether the host of a URL is this machine."""
    try:
        return is_loopback(urlsplit(url).hostname or "")
    except ValueError:
        return False
