"""The option `app`: your own application around the server. Its routes take precedence over those of the server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Final, Literal

from langgraph_sdk.auth.exceptions import HTTPException as AuthError
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.routing import Match, Mount, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from langgraph_pgstate.errors import ArgumentTypeError, ConfigurationError
from langgraph_pgstate.server.auth import Authority
from langgraph_pgstate.server.errors import ServerBusyError, answer_busy
from langgraph_pgstate.server.json import answer
from langgraph_pgstate.server.meta import DOCUMENT, document, merged
from langgraph_pgstate.server.reading import BodyLimits, bytes_of, claiming, parsed, receive_limited

if TYPE_CHECKING:
    from langgraph_pgstate.server.routes import Operation

# Load balancers ask this path whether the server runs, so the user's application must not override it.
_HEALTH: Final = "/ok"
AuthPlace = Literal["none", "middleware_first", "auth_first"]
"""Whether the user's routes are authenticated, and whether before or after the application's middleware."""


def around(
    app: Any,
    inner: ASGIApp,
    operations: Sequence[Operation],
    authority: Authority | None,
    place: AuthPlace,
    prefix: str,
    cors: Mapping[str, Any] | None,
    limits: BodyLimits,
) -> ASGIApp:
    """Return the user's application, with the server as its last route, below a prefix. Changes `app`.

    Args:
        operations: The server's operations, which are added to FastAPI's OpenAPI document.
        authority: Authenticates requests to the user's routes, unless `place` is `none`.
        cors: Options of Starlette's `CORSMiddleware`, for all routes.
        limits: Limits of a body that is read for authentication.
    """
    if not isinstance(app, Starlette):
        raise ArgumentTypeError(f"app must be a Starlette or FastAPI application, not {type(app).__name__}")
    health = Route(_HEALTH, _Inner(inner))
    app.router.routes.insert(0, health)
    if place != "none":
        if authority is None:
            raise ConfigurationError(
                "auth must be given if app_auth (enable_custom_route_auth in langgraph.json) is set"
            )
        options: Any = {"authority": authority, "routes": [*app.routes], "health": health, "limits": limits}
        middleware = Middleware(_Authenticated, **options)
        app.user_middleware.insert(len(app.user_middleware) if place == "middleware_first" else 0, middleware)
    app.router.routes.append(Mount("", app=inner))
    fast: Any = app
    if getattr(app, "openapi_url", None) == DOCUMENT and any(one.path == DOCUMENT for one in operations):
        describe = fast.openapi
        fast.openapi = lambda: merged(describe(), document(operations=operations))
    outer: ASGIApp = Starlette(routes=[Mount(prefix, app=app)]) if prefix else app
    return outer if cors is None else CORSMiddleware(outer, **cors)


class _Inner:
    """The server as the endpoint of a route. It is an object, because Starlette calls functions with a request."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Respond to a request."""
        await self._app(scope, receive, send)


class _Authenticated:
    """Middleware that authenticates requests to some routes (`request.user`), and refuses WebSockets there."""

    def __init__(
        self, app: ASGIApp, authority: Authority, routes: list[Any], health: Route, limits: BodyLimits
    ) -> None:
        self._app, self._authority, self._routes, self._health, self._limits = app, authority, routes, health, limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Call the application, or refuse the request."""
        if scope["type"] == "lifespan" or not self._has(scope):
            return await self._app(scope, receive, send)
        if scope["type"] != "http":
            return await send({"type": "websocket.close", "code": 1008})
        reads = self._authority.needs_body
        request = Request(scope, receive_limited(scope, receive, self._limits.size) if reads else receive)
        body, given = None, None
        with ExitStack() as held:
            try:
                if reads:
                    # Keep the bytes, because the application reads the body again.
                    given = await bytes_of(request, held.enter_context(claiming()))
                    body = await parsed(request, given, self._limits.values)
                user = await self._authority.authenticate(request, body)
            except (HTTPException, AuthError) as error:
                refusal = answer({"detail": error.detail}, error.status_code, error.headers)
                return await refusal(scope, receive, send)
            except ServerBusyError as error:
                return await (await answer_busy(request, error))(scope, receive, send)
            del body

            async def again() -> Message:
                nonlocal given
                if given is None:
                    return await receive()
                message: Message = {"type": "http.request", "body": given, "more_body": False}
                given = None
                held.close()
                return message

            return await self._app({**scope, "user": user}, again, send)

    def _has(self, scope: Scope) -> bool:
        found = next((one for one in self._routes if one.matches(scope)[0] != Match.NONE), None)
        return found is not None and found is not self._health
