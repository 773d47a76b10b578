"""Pages and actions: their declarations, the arguments and results of their handlers, and what callers may see."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final
from urllib.parse import quote, urlencode
from uuid import UUID

from langchain_core.utils.uuid import uuid7
from langgraph_sdk.auth.exceptions import HTTPException as AuthError
from starlette.exceptions import HTTPException

from langgraph_pgstate.errors import ThreadArchivedError
from langgraph_pgstate.inspector.changes import gone
from langgraph_pgstate.scopes import Alternatives
from langgraph_pgstate.server.errors import missing, refuse
from langgraph_pgstate.server.service import Call
from langgraph_pgstate.threads.types import Thread

# Parts of a path that browsers and servers interpret, even if the parts are percent-encoded.
_SPECIAL = re.compile(r"~|/|\\|[\x00-\x1f\x7f]|^\.+$")
_ESCAPED = re.compile(r"~([0-9A-F]{2})")
_EMPTY = "~"
PERIODS: Final[Mapping[str, timedelta]] = {
    "1h": timedelta(hours=1),
    "1d": timedelta(days=1),
    "7d": timedelta(days=7),
    "30d": timedelta(days=30),
    "90d": timedelta(days=90),
}
"""Periods that end now, by their names in addresses."""


@dataclass(slots=True)
class PageCall(Call):
    """A request for a page or an action.

    Attributes:
        form: The fields of the form that was sent.
        person: Name of the person who acts, if known.
        may_act: Whether the person may use the actions of pages.
        token: Secret that every form must carry as `token`. Pages of other sites do not know it.
    """

    form: Mapping[str, str] = field(default_factory=dict)
    person: str | None = None
    may_act: bool = False
    token: str = ""

    # `super()` does not work in a dataclass with slots, so these methods name `Call`.
    def path(self, name: str) -> str:
        """Return a part of the path, decoded from the form that `segment` makes."""
        found = Call.path(self, name)
        return "" if found == _EMPTY else _ESCAPED.sub(lambda match: chr(int(match[1], 16)), found)

    async def thread(self, action: str, value: dict[str, Any] | None = None) -> Thread:
        """Return the thread that the path names. Refuse an archived thread, and a caller who may not do the action."""
        found = await self.thread_or_stub(action, value)
        if found.archived_at is not None:
            raise ThreadArchivedError(found.thread_id, "", found.archived_at)
        return found

    async def thread_or_stub(self, action: str, value: dict[str, Any] | None = None) -> Thread:
        """Return the thread that the path names, even if archived. Refuse a caller who may not do the action."""
        return await Call.thread(self, action, value)

    @property
    def actor(self) -> str:
        """Name of the person who acts. A request without a name is refused."""
        if self.person is None:
            raise refuse(403, "an action needs the name of a person")
        return self.person

    async def visible(self, thread_id: str, scope: Alternatives | None) -> Thread:
        """Return a thread that the caller may see. Tell a caller who sees all threads who deleted a missing thread."""
        found = await self.state.threads.get(thread_id, scope=scope)
        if found is None:
            raise await gone(self, thread_id) if scope is None else missing("thread", thread_id)
        return found

    @property
    def nonce(self) -> str:
        """Id of a form. The object that the form creates gets this id, so that a form sent twice acts once."""
        given = self.field("nonce")
        try:
            return str(uuid7() if given is None else UUID(given))
        except ValueError:
            raise refuse(422, f"nonce must be a UUID, got {given!r}") from None

    @property
    def seen_at(self) -> datetime | None:
        """Time at which the page of the form was made; `None` if unknown."""
        return self.time("seen")

    def time(self, name: str) -> datetime | None:
        """Return a field of the form as a time with a time zone; `None` if the field is missing."""
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
        """Store an event of the kind `action` about what the person did to a thread."""
        payload = {"action": action, "by": self.actor, **details}
        await self.state.events.add(thread_id, "action", payload, checkpoint_id=checkpoint_id, run_id=run_id)

    def link(self, /, *parts: str, **query: Any) -> str:
        """Return the address of a page of the inspector."""
        return address(self.base, *parts, **query)

    @property
    def base(self) -> str:
        """Path below which the pages are."""
        return str(self.request.scope.get("root_path", ""))


@dataclass(frozen=True, slots=True)
class Page:
    """A page: its data, which are also its JSON, and the template that shows them.

    Attributes:
        data: The data, by the names that the template uses.
        is_live: Whether an open page refreshes itself.
        status: HTTP status; not 200 for a refusal that shows the form again.
        place: Path whose navigation entry is current; by default the page's own path.
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
        location: Address of the page that shows the result; see `PageCall.link`.
        data: Data about the result, for callers that want JSON.
        thread_id: Thread that can resume now; the notice links to it.
        query: Further parameters for `location`.
        place: Id of the element to show on the page at `location`.
    """

    location: str
    data: Mapping[str, Any] = field(default_factory=dict)
    cookies: Mapping[str, str] = field(default_factory=dict)
    thread_id: str | None = None
    query: Mapping[str, str] = field(default_factory=dict)
    place: str = ""


@dataclass(frozen=True, slots=True)
class PageRoute:
    """A page, or an action of a page.

    Attributes:
        name: Name, like `threads` or `thread.fork`.
        path: The path below `/ui`, with parameters in braces.
        handler: Responds to a request with a page, a response, or the end of an action.
        notice: Sentence that is shown after the action.
        needs_person: Whether an action needs the name of a person. Only the action that asks for the name does not.
        question: Text that asks for confirmation of an action that cannot be undone; empty for other actions.
        about: Returns further values for the page that asks for confirmation.
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
        name: Name of the page's route, and first part of its path.
        keys: Keyboard keys that open the page.
    """

    name: str
    title: str
    keys: str


def own_path(call: PageCall, path: str | None) -> str | None:
    """Return a path if it leads to a page of the inspector; otherwise `None`."""
    is_own = path is not None and path.startswith(f"{call.base}/") and "\\" not in path and "//" not in path
    return path if is_own and path is not None and path.isprintable() else None


def segment(text: str) -> str:
    """Return an id as one part of a path. `PageCall.path` decodes it."""
    escaped = _SPECIAL.sub(lambda match: "".join(f"~{ord(char):02X}" for char in match[0]), text)
    return quote(escaped or _EMPTY, safe="~")


def address(base: str, /, *parts: str, **query: Any) -> str:
    """Return the address of a page below `base`. Parameters that are `None` or empty are left out."""
    given = {name: value for name, value in query.items() if value is not None and value != ""}
    path = "/".join([base, *map(segment, parts)])
    return f"{path}?{urlencode(given)}" if given else path


async def scope_of(call: PageCall, limit: int = 50) -> Alternatives | None:
    """Return the filter for the threads that the caller may see; `None` if the caller may see all."""
    value: dict[str, Any] = {"metadata": {}, "limit": limit, "offset": 0, "status": None}
    return await call.authorize_search(value)


async def check_sees_crons(call: PageCall, action: str, cron_id: str | None = None) -> None:
    """Refuse a caller who may not see all threads, or may not do an action on every schedule.

    LangGraph's clients and the handlers of `Auth` call a schedule a cron.
    """
    await check_sees_all(call)
    if await call.authorize("crons", action, {"cron_id": cron_id, "metadata": {}}) is not None:
        raise refuse(403, "only users who may see all schedules may do this")


async def check_sees_all(call: PageCall) -> None:
    """Refuse a caller who may not see all threads."""
    if await scope_of(call) is not None:
        raise refuse(403, "only users who may see all threads may do this")


async def sees_all(call: PageCall) -> bool:
    """Return whether the caller may see all threads."""
    try:
        await check_sees_all(call)
    except (HTTPException, AuthError):
        return False
    return True


async def check_sees_memory(call: PageCall, action: str, namespace: Sequence[str] = ()) -> None:
    """Refuse a caller who may not see all threads, or may not do the action in the whole namespace."""
    await check_sees_all(call)
    value: dict[str, Any] = {"namespace": tuple(namespace), "key": None, "filter": None, "query": None}
    if await call.authorize("store", action, value) is not None or tuple(value["namespace"]) != tuple(namespace):
        raise refuse(403, "only users who may see all memories may do this")


async def sees_memory(call: PageCall, action: str) -> bool:
    """Return whether the caller may see memories."""
    try:
        await check_sees_memory(call, action)
    except (HTTPException, AuthError):
        return False
    return True


def period_of(call: PageCall, default: str) -> tuple[str, timedelta]:
    """Return the period that the address names, or the default period."""
    name = call.query("since") or default
    if name not in PERIODS:
        raise refuse(422, f"since must be one of {', '.join(PERIODS)}, not {name!r}")
    return name, PERIODS[name]
