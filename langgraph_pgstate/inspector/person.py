"""The page that asks for the name of the person who acts, where the server does not authenticate."""

from __future__ import annotations

from langgraph_pgstate.inspector.access import PERSON_COOKIE, name_of
from langgraph_pgstate.inspector.page import Done, Page, PageCall, own_path
from langgraph_pgstate.server.errors import refuse


async def ask(call: PageCall) -> Page:
    """Show the form for the name."""
    return Page("person.html", "Your name", {"name": call.person, "back": _back(call, call.query("back"))})


async def keep(call: PageCall) -> Done:
    """Keep the name in a cookie."""
    if call.user is not None:
        raise refuse(422, "the server knows your name: it authenticates you")
    name = name_of(call.field("name") or "")
    if name is None:
        raise refuse(422, "a name has 1 to 80 printable characters")
    return Done(_back(call, call.field("back")), {"name": name}, {PERSON_COOKIE: name})


def _back(call: PageCall, path: str | None) -> str:
    """Return the page to return to, which is always one of these pages."""
    return own_path(call, path) or call.link("threads")
