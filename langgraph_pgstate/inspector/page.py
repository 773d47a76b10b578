"""Pages and actions: what their handlers get and return, and how they are declared."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from urllib.parse import quote, urlencode
from uuid import UUID

from langchain_core.utils.uuid import uuid7

from langgraph_pgstate.inspector.changes import gone
from langgraph_pgstate.scopes import Alternatives
from langgraph_pgstate.server.errors import missing, refuse
from langgraph_pgstate.server.service import Call
from langgraph_pgstate.threads.types import Thread

# Browsers and servers give these a meaning in a path, whether or not they are percent-encoded.
_SPECIAL = re.compile(r"~|/|\\|[\x00-\x1f\x7f]|^\.+$")
_ESCAPED = re.compile(r"~([0-9A-F]{2})")


@dataclass(slots=True)
class PageCall(Call):
    """A request for a page, or for an action.

    Attributes:
        form: The fields of the form that was sent.
        person: Name of the person who acts; `None` if it is not known.
        may_act: Whether the person may use the actions of pages.
        token: The value that forms carry as `token`, so that no page of another site can send them.
    """

    form: Mapping[str, str] = field(default_factory=dict)
    person: str | None = None
    may_act: bool = False
    token: str = ""

    # `super()` does not work in a dataclass with slots.
    def path(self, name: str) -> str:
        """Return a part of the path, as `segment` has encoded it."""
        return _ESCAPED.sub(lambda match: chr(int(match[1], 16)), Call.path(self, name))

    @property
    def actor(self) -> str:
        """Name of the person who acts.

        Raises:
            HTTPException: 403 if it is not known.
        """
        if self.person is None:
            raise refuse(403, "an action needs the name of a person")
        return self.person

    async def visible(self, thread_id: str, scope: Alternatives | None) -> Thread:
        """Return a thread that the caller may see.

        Raises:
            HTTPException: 404 if there is none. A person who may see all threads sees who deleted it.
        """
        found = await self.state.threads.get(thread_id, scope=scope)
        if found is None:
            raise await gone(self, thread_id) if scope is None else missing("thread", thread_id)
        return found

    @property
    def nonce(self) -> str:
        """The id of a form, which becomes that of what it makes, so that a form that is sent twice acts once.

        Raises:
            HTTPException: 422 if it is none.
        """
        given = self.field("nonce")
        try:
            return str(uuid7() if given is None else UUID(given))
        except ValueError:
            raise refuse(422, f"nonce must be a UUID, got {given!r}") from None

    @property
    def seen_at(self) -> datetime | None:
        """The time at which the page of the form was made; `None` if the form does not say.

        Raises:
            HTTPException: 422 if it is no time with a time zone.
        """
        return self.time("seen")

    def time(self, name: str) -> datetime | None:
        """Return a field of the form that is a time; `None` if it is missing.

        Raises:
            HTTPException: 422 if it is no time with a time zone.
        """
        given = self.field(name)
        try:
            found = None if given is None else datetime.fromisoformat(given)
        except ValueError:
            found = datetime.min
        if found is not None and found.tzinfo is None:
            raise refuse(422, f"{name} must be a time with a time zone, got {given!r}")
        return found

    def field(self, name: str) -> str | None:
        """Return a field of the form; `None` if it is missing or blank."""
        return self.form.get(name, "").strip() or None

    async def record(
        self,
        thread_id: str,
        action: str,
        *,
        checkpoint_id: str | None = None,
        run_id: str | None = None,
        **details: Any,
    ) -> None:
        """Record among a thread's events what the person did: an event of the kind `action`."""
        payload = {"action": action, "by": self.actor, **details}
        await self.state.events.add(thread_id, "action", payload, checkpoint_id=checkpoint_id, run_id=run_id)

    def link(self, /, *parts: str, **query: Any) -> str:
        """Return the address of a page of the inspector: the parts of its path, and its query."""
        return address(self.base, *parts, **query)

    @property
    def base(self) -> str:
        """The path below which the pages are."""
        return str(self.request.scope.get("root_path", ""))


@dataclass(frozen=True, slots=True)
class Page:
    """A page: its data, which are also its JSON, and the template that shows them.

    Attributes:
        template: File name of the template.
        title: Title of the page.
        data: The data, by the names that the template uses.
        is_live: Whether an open page refreshes itself.
        status: HTTP status; of a refusal that shows the form again, not 200.
        place: Path whose entry of the navigation is the current one; by default the page's own.
    """

    template: str
    title: str
    data: Mapping[str, Any]
    is_live: bool = False
    status: int = 200
    place: str = ""


@dataclass(frozen=True, slots=True)
class Done:
    """The end of an action.

    Attributes:
        location: Address of the page that shows its result; see `PageCall.link`.
        data: Data about the result, for callers that want JSON.
        cookies: Cookies to set, by name.
        thread_id: Thread that may go on now; the notice links to it.
        query: Parameters of that page that say more about the result.
        place: Id of the element of that page to be shown.
    """

    location: str
    data: Mapping[str, Any] = field(default_factory=dict)
    cookies: Mapping[str, str] = field(default_factory=dict)
    thread_id: str | None = None
    query: Mapping[str, str] = field(default_factory=dict)
    place: str = ""


@dataclass(frozen=True, slots=True)
class PageRoute:
    """A page, or an action of one.

    Attributes:
        name: Its name: `threads`, `thread.fork`.
        method: `GET` for a page, `POST` for an action.
        path: The path below `/ui`, with parameters in braces.
        handler: Answers a request: with a page, a response, or the end of an action.
        notice: Sentence that is shown after the action.
        needs_person: Whether an action is for persons who may act and whose name is known. `False` only for the action
            that asks for the name.
        question: Asks whether an action that cannot be taken back shall be done; empty for the others.
        about: Returns what the page that asks says of what the action is done to.
    """

    name: str
    method: str
    path: str
    handler: Callable[[PageCall], Awaitable[Any]]
    notice: str = ""
    needs_person: bool = True
    question: str = ""
    about: Callable[[PageCall], Awaitable[Mapping[str, Any]]] | None = None

    @property
    def is_read(self) -> bool:
        """Whether the page only reads."""
        return self.method == "GET"


@dataclass(frozen=True, slots=True)
class Link:
    """An entry of the navigation.

    Attributes:
        name: Name of the page's route; also the first part of its path.
        title: Its text.
        keys: Keys that open it.
    """

    name: str
    title: str
    keys: str


def own_path(call: PageCall, path: str | None) -> str | None:
    """Return the path of a form or an address, if it leads to one of these pages."""
    is_own = path is not None and path.startswith(f"{call.base}/") and "\\" not in path and "//" not in path
    return path if is_own and path is not None and path.isprintable() else None


def segment(text: str) -> str:
    """Return an id as one part of a path; `PageCall.path` returns the id."""
    return quote(_SPECIAL.sub(lambda match: "".join(f"~{ord(char):02X}" for char in match[0]), text), safe="~")


def address(base: str, /, *parts: str, **query: Any) -> str:
    """Return the address of a page.

    Args:
        base: The path below which the pages are.
        parts: The parts of its path; ids need no encoding.
        query: The parameters; those that are `None` or `""` are left out.
    """
    given = {name: value for name, value in query.items() if value is not None and value != ""}
    path = "/".join([base, *map(segment, parts)])
    return f"{path}?{urlencode(given)}" if given else path
