"""The page of all threads."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

from langgraph_pgstate.inspector.page import Page, PageCall
from langgraph_pgstate.record.types import MessageHit
from langgraph_pgstate.server.errors import refuse

STATUSES: Final = ("idle", "busy", "interrupted", "error")
PLACES: Final = ("database", "archive")
_PAGE: Final = 50


async def threads(call: PageCall) -> Page:
    """Show the threads that match the address's filters, most recently updated first."""
    wanted = call.query("metadata")
    metadata = None if wanted is None else metadata_of(wanted)
    # Give a copy to the handler of `Auth`, which may change the metadata.
    value: dict[str, Any] = {"metadata": {**(metadata or {})}, "limit": _PAGE, "offset": 0, "status": status_of(call)}
    scope = await call.authorize_search(value)
    found = await call.state.threads.search(
        user_id=call.query("user"),
        tenant_id=call.query("tenant"),
        agent=call.query("agent"),
        status=status_of(call),
        archived=_archived(call),
        metadata=metadata,
        text=call.query("q"),
        updated_after=time_of(call, "after"),
        updated_before=time_of(call, "before"),
        scope=scope,
        cursor=call.query("cursor"),
        limit=_PAGE,
    )
    text = call.query("q")
    hits = await call.state.messages.find_hits(text, [one.thread_id for one in found.items]) if text else ()
    data = {
        "threads": found.items,
        "hits": {one.message.thread_id: _hit(one) for one in hits},
        "next": found.next,
        "statuses": STATUSES,
        "places": PLACES,
        "may_hold": call.may_act and scope is None,
        "holds": call.may_act and scope is None and call.query("hold") is not None,
    }
    # Do not refresh the page while threads are chosen, because a refresh would undo the choice.
    return Page("threads.html", "Threads", data, is_live=call.query("cursor") is None and not data["holds"])


def _hit(found: MessageHit) -> dict[str, str | None]:
    """Return a found message's text, and the parameters of the page that shows the message."""
    message = found.message
    return {
        "snippet": found.snippet,
        "role": message.role,
        "message": message.message_id,
        "added": message.checkpoint_id,
        "ns": message.checkpoint_ns,
        "channel": message.channel,
    }


def status_of(call: PageCall) -> str | None:
    """Return the status in the address."""
    status = call.query("status")
    if status is not None and status not in STATUSES:
        raise refuse(422, f"status must be one of {', '.join(STATUSES)}, not {status!r}")
    return status


def _archived(call: PageCall) -> bool | None:
    place = call.query("place")
    if place is not None and place not in PLACES:
        raise refuse(422, f"place must be one of {', '.join(PLACES)}, not {place!r}")
    return None if place is None else place == "archive"


def metadata_of(text: str) -> dict[str, Any]:
    """Return metadata from a text: a JSON object, or `key=value` pairs separated by commas."""
    if text.lstrip().startswith("{"):
        try:
            found = json.loads(text)
        except (ValueError, RecursionError):
            raise refuse(422, f"metadata must be a JSON object, not {text!r}") from None
        return dict(found)
    given: dict[str, Any] = {}
    for part in text.split(","):
        name, equals, value = part.partition("=")
        if not equals or not name.strip():
            raise refuse(422, f"metadata must be a JSON object or key=value, not {text!r}")
        given[name.strip()] = _plain(value.strip())
    return given


def time_of(call: PageCall, name: str) -> datetime | None:
    """Return a time in the address: a date, or a time in ISO 8601, by default in UTC."""
    text = call.query(name)
    if text is None:
        return None
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise refuse(422, f"{name} must be a date like 2027-01-31, or a time, not {text!r}") from None
    if not 2 <= found.year <= 9998:
        raise refuse(422, f"{name} must be in the years 2 to 9998, not {text!r}")
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)


def _plain(text: str) -> Any:
    """Return a number, `true`, `false` or `null` parsed, and other text unchanged."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return text if isinstance(value, Mapping | list) else value
