"""Pages as HTML or JSON."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import cache, partial
from importlib import resources
from typing import Any, Final
from urllib.parse import quote, urlencode

from jinja2 import Environment, PackageLoader, StrictUndefined
from langchain_core.utils.uuid import uuid7
from starlette.requests import Request
from starlette.responses import Response

from langgraph_pgstate.inspector import formatting
from langgraph_pgstate.inspector.drawing import draw
from langgraph_pgstate.inspector.forms import OUTCOMES, VERBS, unsent
from langgraph_pgstate.inspector.messages import gist, is_message, to_html
from langgraph_pgstate.inspector.page import Link, Page, PageCall, address
from langgraph_pgstate.server.json import answer

_STATIC_TYPES: Final = {"css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}

_REFUSALS: Final[Mapping[int, str]] = {
    401: "Who are you?",
    403: "Not allowed",
    404: "Not found",
    405: "Not a page",
    409: "Not now",
    422: "Not understood",
    503: "Not available",
}


@cache
def environment() -> Environment:
    """Return the templates. Inserted values are escaped. An unknown name in a template is an error."""
    made = Environment(
        loader=PackageLoader("langgraph_pgstate.inspector"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    made.globals |= {"verbs": VERBS, "outcomes": OUTCOMES}
    made.tests["message"] = is_message
    made.filters |= {
        "draw": draw,
        "clipped": formatting.clipped,
        "cut": formatting.cut,
        "duration": formatting.duration,
        "exact": formatting.exact,
        "gist": gist,
        "instant": formatting.instant,
        "markdown": to_html,
        "marked": formatting.marked,
        "money": formatting.money,
        "namespace": formatting.namespace_text,
        "number": formatting.number,
        "peek": formatting.peek,
        "plural": formatting.plural,
        "short": formatting.short,
        "size": formatting.size,
        "worker": formatting.worker,
    }
    return made


def preload() -> None:
    """Compile all templates, so that no request waits for compilation."""
    for name in environment().list_templates():
        environment().get_template(name)


def wants_json(request: Request) -> bool:
    """Return whether a request asks for JSON, by `?format=json` or by the `Accept` header."""
    asked = request.query_params.get("format")
    if asked is not None:
        return asked == "json"
    accepted = request.headers.get("accept", "")
    return "application/json" in accepted and "text/html" not in accepted


def render(call: PageCall, page: Page, navigation: tuple[Link, ...], notice: str = "") -> Response:
    """Return a page as HTML or JSON, as the request asks. The notice is a sentence above the page."""
    if wants_json(call.request):
        return answer(page.data, page.status)
    text = environment().get_template(page.template).render(_shown(call, page, navigation, notice))
    return _html(text, page.status)


def _shown(call: PageCall, page: Page, navigation: tuple[Link, ...], notice: str = "") -> dict[str, Any]:
    """Return the variables of a page's template, without a connection to the database."""
    now = datetime.now(UTC)
    query = dict(call.request.query_params)
    for left_out in ("notice", "of", "answered", "waits", "format"):
        query.pop(left_out, None)

    def here(**changes: Any) -> str:
        """Return the address of this page with changed parameters. A parameter `None` is removed."""
        if "cursor" in changes:
            changes.setdefault("past", None)
        given = {name: value for name, value in {**query, **changes}.items() if value not in (None, "")}
        path = quote(call.request.scope["path"], safe="/~")
        return f"{path}?{urlencode(given)}" if given else path

    return {
        **page.data,
        "page": page,
        "call": call,
        "navigation": navigation,
        "notice": notice,
        "goes_on": call.query("of"),
        "now": now,
        "nonce": lambda: str(uuid7()),
        "ago": partial(_ago, now),
        "link": partial(address, call.base),
        "here": here,
        # A response to an action has no address to come back to, because an action is no page.
        "way_back": here() if call.request.method == "GET" else None,
        "static": partial(static_address, call.base),
        "query": query,
        "schema": call.state.schema,
    }


def render_refusal(
    request: Request,
    status: int,
    detail: str,
    headers: Mapping[str, str] | None,
    call: PageCall | None = None,
    navigation: tuple[Link, ...] = (),
) -> Response:
    """Return a page that says why a request was refused. It needs no connection to the database.

    Args:
        call: The request as a `PageCall`, if the sender may see pages. The page then has the navigation.
    """
    title = _REFUSALS.get(status, "Something went wrong")
    data: dict[str, Any] = {"status": status, "detail": formatting.sentence(detail)}
    if call is None:
        template, static = "refusal_alone.html", partial(static_address, str(request.scope.get("root_path", "")))
        shown = {**data, "title": title, "static": static}
    else:
        back = _way_back(call)
        data |= {"unsent": unsent(None, call.form), "back": back}
        place = back[0].partition("?")[0] if back is not None else ""
        template, shown = "refusal.html", _shown(call, Page("refusal.html", title, data, place=place), navigation)
    text = environment().get_template(template).render(shown)
    return _html(text, status, headers)


def _way_back(call: PageCall) -> tuple[str, str] | None:
    """Return the page from which a refused form probably came, and the text of a link to the page."""
    if call.request.method != "POST":
        return None
    parts = call.request.path_params
    if call.field("back") == "queue" or call.request.url.path.startswith(call.link("queue")):
        return call.link("queue", show=call.field("show")), "Back to the queue"
    if {"thread_id", "run_id"} <= parts.keys():
        return call.link("runs", call.path("thread_id"), call.path("run_id")), "Back to the run"
    if {"thread_id", "key"} <= parts.keys():
        return call.link("tools", call.path("thread_id"), call.path("key")), "Back to the action"
    return None


def _html(text: str, status: int, headers: Mapping[str, str] | None = None) -> Response:
    # A model's text that was cut within an emoji has half a surrogate pair, which UTF-8 cannot encode.
    return Response(text.encode("utf-8", "replace"), status, dict(headers or {}), "text/html; charset=utf-8")


def static_address(base: str, name: str) -> str:
    """Return the address of a static file. The address changes with the file's content."""
    return f"{base}/static/{name}?{_static(name)[1]}"


def static_answer(name: str) -> Response | None:
    """Return a static file; `None` if there is no such file."""
    if name not in _static_names():
        return None
    headers = {"Cache-Control": "public, max-age=31536000, immutable"}
    return Response(_static(name)[0], 200, headers, _STATIC_TYPES[name.rpartition(".")[2]])


@cache
def _static_names() -> frozenset[str]:
    return frozenset(entry.name for entry in resources.files(__package__).joinpath("static").iterdir())


@cache
def _static(name: str) -> tuple[bytes, str]:
    content = resources.files(__package__).joinpath("static", name).read_bytes()
    return content, hashlib.sha256(content).hexdigest()[:12]


def _ago(now: datetime, time: datetime) -> str:
    return formatting.ago(time, now)
