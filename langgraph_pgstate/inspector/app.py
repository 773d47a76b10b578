"""The pages as routes of an ASGI application."""

from __future__ import annotations

import json
from typing import Final
from urllib.parse import quote, urlencode, urlsplit

from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from langgraph_pgstate.inspector.access import (
    HEADERS,
    access_of,
    check_sender,
    form_of,
    keep_token,
    set_cookie,
    token_of,
)
from langgraph_pgstate.inspector.page import Done, Page, PageCall, PageRoute, address
from langgraph_pgstate.inspector.rendering import preload, render, render_refusal, static_answer, wants_json
from langgraph_pgstate.inspector.routes import NAVIGATION, PAGES
from langgraph_pgstate.server.errors import HANDLERS, missing, refuse
from langgraph_pgstate.server.json import answer
from langgraph_pgstate.server.service import Service

_NOTHING: Final = dict.fromkeys(("run", "thread", "worker", "memory", "facts"))


def mount() -> Mount:
    """Return the application of the pages, below `/ui`."""
    preload()
    routes: list[BaseRoute] = [Route("/", _open_first), Route("/static/{name}", _send_static)]
    return Mount("/ui", routes=[*routes, *map(_route, PAGES)], name="pages", middleware=[Middleware(_Unknown)])


class _Unknown:
    """Middleware that responds to a request for an unknown page with a page that says so."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            return await self._app(scope, receive, send)
        except HTTPException as error:
            refused = missing("page", scope["path"])
            if error.status_code == 405:
                refused = refuse(405, "this address takes only the forms that pages send", error.headers)

        async def fail(_: PageCall) -> Page:
            raise refused

        response = await _answer(PageRoute("unknown", "GET", "", fail), Request(scope, receive))
        await response(scope, receive, send)


def _route(page: PageRoute) -> Route:
    async def endpoint(request: Request) -> Response:
        return await _answer(page, request)

    return Route(page.path, endpoint, methods=[page.method], name=f"{page.name}:{page.method}")


async def _answer(route: PageRoute, request: Request) -> Response:
    try:
        response = await _respond(route, request)
    except Exception as error:
        response = await _refusal(request, error)
    for name, value in HEADERS.items():
        response.headers.setdefault(name, value)
    return response


async def _respond(route: PageRoute, request: Request) -> Response:
    service: Service | None = request.app.service
    if service is None:
        raise refuse(503, "the server is not running", {"Retry-After": "1"})
    form = {} if route.is_read else await form_of(request)
    access = await access_of(service, request, form)
    if service.rate_limit is not None:
        service.rate_limit.check(request, access.user)
    token = token_of(request)
    service = service.of(access.user, request)
    call = PageCall(service, request, None, access.user, form, access.person, access.may_act, token)
    if any("\0" in call.path(name) for name in request.path_params):
        raise refuse(422, "the address must not hold NUL, which PostgreSQL cannot store")
    # Keep the call, because the page of a refusal shows its navigation.
    request.state.call = call
    if not route.is_read:
        check_sender(request, form)
        if not call.may_act:
            raise refuse(403, "the server is read-only" if service.is_read_only else "pages are read-only here")
        if route.needs_person and call.person is None:
            raise refuse(403, "an action needs the name of a person")
    asks = route.question and call.field("sure") is None and not wants_json(request)
    found = await _question(route, call) if asks else await route.handler(call)
    if isinstance(found, Page):
        notice = next((one.notice for one in PAGES if one.name == call.query("notice")), "")
        response = render(call, found, NAVIGATION, notice)
        keep_token(response, request, token)
        return response
    if isinstance(found, Done):
        return _ended(route, request, found)
    assert isinstance(found, Response)
    return found


async def _question(route: PageRoute, call: PageCall) -> Page:
    """Return the page that asks for confirmation. Confirming sends the same form again."""
    back = urlsplit(call.request.headers.get("referer", ""))
    # Drop the host, so that the link cannot lead to another site.
    way_back = f"{back.path}?{back.query}" if back.query else back.path
    is_own = way_back.startswith(f"{call.base}/") and not way_back.startswith("//")
    noun, _, verb = route.name.partition(".")
    back_to = way_back if is_own else call.link("threads")
    data = {
        "question": route.question,
        "what": call.path(next(reversed(call.request.path_params))) if call.request.path_params else "",
        "about": {**_NOTHING, **(await route.about(call) if route.about else {})},
        "fields": {name: value for name, value in call.form.items() if name != "token"},
        # “Cancel” alone could mean “do nothing”, so the button says “Cancel the run”.
        "verb": f"{verb.capitalize()} the {noun}",
        "back": back_to,
    }
    return Page("question.html", f"{verb.capitalize()}?", data, place=back_to)


def _ended(route: PageRoute, request: Request, done: Done) -> Response:
    """Respond to an action. A browser is sent to the page that shows the result."""
    if wants_json(request):
        response = answer({"location": done.location, **done.data})
    else:
        separator = "&" if "?" in done.location else "?"
        query = {"notice": route.name} | ({} if done.thread_id is None else {"of": done.thread_id}) | {**done.query}
        location = f"{done.location}{separator}{urlencode(query)}" if route.notice else done.location
        response = RedirectResponse(f"{location}#{quote(done.place)}" if done.place else location, 303)
    for name, value in done.cookies.items():
        set_cookie(response, request, name, value)
    return response


async def _refusal(request: Request, error: Exception) -> Response:
    """Respond to a refused or failed request, with the same message as the server's API."""
    handler = next(HANDLERS[kind] for kind in type(error).__mro__ if kind in HANDLERS)
    refused: Response = await handler(request, error)
    if wants_json(request):
        return refused
    kept = {name: value for name, value in refused.headers.items() if name in ("retry-after", "www-authenticate")}
    detail, call = str(json.loads(bytes(refused.body))["detail"]), getattr(request.state, "call", None)
    return render_refusal(request, refused.status_code, detail, kept, call, NAVIGATION)


async def _open_first(request: Request) -> Response:
    return RedirectResponse(address(str(request.scope.get("root_path", "")), NAVIGATION[0].name), 307, dict(HEADERS))


async def _send_static(request: Request) -> Response:
    name = str(request.path_params["name"])
    return static_answer(name) or await _refusal(request, missing("file", name))
