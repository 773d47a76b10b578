"""The sender of a page's request, the person's name and rights, and headers for the browser."""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Mapping
from typing import Final, NamedTuple
from urllib.parse import parse_qsl, quote, unquote, urlsplit

from starlette.requests import Request
from starlette.responses import Response

from langgraph_pgstate.arguments import is_line
from langgraph_pgstate.inspector.page import Done, Page, PageCall, own_path
from langgraph_pgstate.server.auth import User, is_local, is_loopback
from langgraph_pgstate.server.errors import refuse
from langgraph_pgstate.server.reading import bytes_of, claiming
from langgraph_pgstate.server.service import Service

READ: Final = "pages:read"
ACT: Final = "pages:act"
"""Permissions of a user. With `Auth`, a user needs one of them to see pages."""

PERSON_COOKIE: Final = "pgstate_person"
_TOKEN_COOKIE: Final = "pgstate_token"
_LONGEST_NAME: Final = 80
_MOST_FIELDS: Final = 1000
_YEAR: Final = 365 * 24 * 3600
_FORWARDED: Final = ("forwarded", "via", "x-forwarded-for", "x-real-ip")

HEADERS: Final[Mapping[str, str]] = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "X-Frame-Options": "DENY",
    "X-Content-Type-Options": "nosniff",
    # Not `no-referrer`: a browser would send the origin `null` with a form, as pages of another site do.
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class Access(NamedTuple):
    """The rights of the sender of a request.

    Attributes:
        person: The person's name, if known.
        may_act: Whether the person may use the actions of pages.
    """

    user: User | None
    person: str | None
    may_act: bool


async def access_of(service: Service, request: Request, form: Mapping[str, str]) -> Access:
    """Return the rights of the sender of a request, or refuse the request.

    With `Auth`, the user's permissions decide. Without `Auth`, every caller may read. Only callers on the same machine
    may act, under a name that they enter.
    """
    if service.authority is not None:
        user = await service.authority.authenticate(request, dict(form))
        if not {READ, ACT} & {*user.permissions}:
            raise refuse(403, f"pages need the permission {READ!r}")
        return Access(user, user.identity, ACT in user.permissions and not service.is_read_only)
    may_act = not service.is_read_only and is_from_here(request)
    return Access(None, name_of(unquote(request.cookies.get(PERSON_COOKIE, ""))), may_act)


def name_of(text: str) -> str | None:
    """Return a text as the name of a person; `None` if it cannot be a name."""
    name = " ".join(text.split())
    return name if is_line(name) and len(name) <= _LONGEST_NAME else None


def is_from_here(request: Request) -> bool:
    """Return whether a request was sent on this machine, to a name of this machine, and through no proxy."""
    client = request.client
    if any(name in request.headers for name in _FORWARDED):
        return False
    return client is not None and is_loopback(client.host) and is_local(f"//{request.headers.get('host', '')}")


async def form_of(request: Request) -> dict[str, str]:
    """Return the fields of a form. If a field is repeated, the last value counts."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/x-www-form-urlencoded":
        raise refuse(415, "the body must be a form: application/x-www-form-urlencoded")
    with claiming() as claim:
        raw = await bytes_of(request, claim)
        try:
            fields = parse_qsl(raw.decode(), keep_blank_values=True, errors="strict", max_num_fields=_MOST_FIELDS)
        except ValueError as error:
            raise refuse(422, f"the body must be a form: {error}") from None
    if any("\0" in name + value for name, value in fields):
        raise refuse(422, "the form must not hold NUL, which PostgreSQL cannot store")
    return {name: value.replace("\r\n", "\n") for name, value in fields}


def check_sender(request: Request, form: Mapping[str, str]) -> None:
    """Refuse a form that a page of another site may have sent."""
    site, origin = request.headers.get("sec-fetch-site"), request.headers.get("origin")
    if site is not None:
        is_own = site == "same-origin"
    else:
        is_own = origin is None or urlsplit(origin).netloc.lower() == request.headers.get("host", "").lower()
    if not is_own:
        raise refuse(403, "the form was sent by a page of another site")
    expected = request.cookies.get(_TOKEN_COOKIE, "")
    if not expected or not hmac.compare_digest(expected.encode(), form.get("token", "").encode()):
        raise refuse(403, "the form must have the token of this browser: reload the page and send the form again")


def token_of(request: Request) -> str:
    """Return the token for the forms of a browser: the token of its cookie, or a new one."""
    return request.cookies.get(_TOKEN_COOKIE) or secrets.token_urlsafe(24)


def keep_token(response: Response, request: Request, token: str) -> None:
    """Set the cookie with the token, unless the browser has sent it."""
    if request.cookies.get(_TOKEN_COOKIE) != token:
        set_cookie(response, request, _TOKEN_COOKIE, token)


def set_cookie(response: Response, request: Request, name: str, value: str) -> None:
    """Set a cookie that scripts cannot read and that requests from other sites do not carry."""
    response.set_cookie(
        name,
        quote(value, safe=""),
        max_age=_YEAR,
        path=request.scope.get("root_path") or "/",
        secure=request.url.scheme == "https",
        httponly=True,
        samesite="strict",
    )


async def ask_name(call: PageCall) -> Page:
    """Show the form in which a person enters a name."""
    return Page("person.html", "Your name", {"name": call.person, "back": _back(call, call.query("back"))})


async def keep_name(call: PageCall) -> Done:
    """Store the person's name in a cookie."""
    if call.user is not None:
        raise refuse(422, "a name cannot be set, because the server authenticates users and knows their names")
    name = name_of(call.field("name") or "")
    if name is None:
        raise refuse(422, "a name must have 1 to 80 printable characters")
    return Done(_back(call, call.field("back")), {"name": name}, {PERSON_COOKIE: name})


def _back(call: PageCall, path: str | None) -> str:
    """Return the page to go back to, which is always a page of the inspector."""
    return own_path(call, path) or call.link("threads")
