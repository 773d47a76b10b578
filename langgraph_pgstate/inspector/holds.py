"""The page of legal holds, and the actions that place and release them. A hold keeps a thread from being deleted."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any, Final

from starlette.exceptions import HTTPException

from langgraph_pgstate.errors import ConfigurationError
from langgraph_pgstate.inspector.changes import is_by, last_action, told, told_by
from langgraph_pgstate.inspector.page import Done, Page, PageCall, check_sees_all
from langgraph_pgstate.server.errors import refuse
from langgraph_pgstate.threads.types import Hold

_PAGE: Final = 50
_HOLDS_OF: Final = 100


async def holds(call: PageCall) -> Page:
    """Show the legal holds of all threads, by thread."""
    await check_sees_all(call)
    found = await call.state.threads.holds(call.query("thread"), limit=_PAGE, cursor=call.query("cursor"))
    data = {"holds": found.items, "next": found.next}
    return Page("holds.html", "Holds", data, place=call.link("retention"))


async def holds_of(call: PageCall, thread_id: str) -> tuple[Hold, ...]:
    """Return the holds of a thread."""
    return tuple((await call.state.threads.holds(thread_id, limit=_HOLDS_OF)).items)


async def hold(call: PageCall) -> Done:
    """Place a hold on a thread."""
    await check_sees_all(call)
    found = await call.thread_or_stub("update")
    await _hold(call, found.thread_id, _reason(call))
    return Done(call.link("threads", found.thread_id), {"thread_id": found.thread_id})


async def release(call: PageCall) -> Done:
    """End the hold that the page showed. Refuse if a newer hold has the same reason."""
    await check_sees_all(call)
    found = await call.thread_or_stub("update")
    await _release(call, found.thread_id, _reason(call), call.time("since"))
    return Done(call.link("threads", found.thread_id), {"thread_id": found.thread_id})


async def about(call: PageCall) -> dict[str, Any]:
    """Return the values of the page that asks whether to release a thread."""
    await check_sees_all(call)
    found = await call.thread_or_stub("update")
    facts = [("Reason", _reason(call))]
    return {"facts": [("Title", found.title), *facts] if found.title else facts}


async def hold_several(call: PageCall) -> Done:
    """Place a hold on each thread that was chosen in the list of threads."""
    await check_sees_all(call)
    reason, chosen = _reason(call), sorted({value for name, value in call.form.items() if name.startswith("thread ")})
    if not chosen:
        raise refuse(422, "choose the threads to hold")
    refused = []
    for thread_id in chosen:
        scope = await call.authorize("threads", "update", {"thread_id": thread_id})
        try:
            await call.visible(thread_id, scope)
            await _hold(call, thread_id, reason)
        except HTTPException as error:
            refused.append(error.detail)
    if refused:
        raise refuse(409, f"{len(chosen) - len(refused)} of {len(chosen)} threads are held now, but {_joined(refused)}")
    return Done(call.link("holds"), {"held": len(chosen)})


async def release_several(call: PageCall) -> Done:
    """End the holds that were chosen in the list of holds."""
    await check_sees_all(call)
    chosen, refused = _chosen(call), []
    for thread_id, reason, since in chosen:
        scope = await call.authorize("threads", "update", {"thread_id": thread_id})
        await call.visible(thread_id, scope)
        problem = await _problem_of_release(call, thread_id, reason, since)
        if problem is not None:
            refused.append(problem)
    if refused:
        ended = len(chosen) - len(refused)
        raise refuse(409, f"{ended} of {len(chosen)} holds are released now, but {_joined(refused)}")
    return Done(call.link("holds"), {"released": len(chosen)})


async def about_several(call: PageCall) -> dict[str, Any]:
    """Return the values of the page that asks whether to release the chosen holds."""
    await check_sees_all(call)
    return {"facts": [(thread_id, reason) for thread_id, reason, _ in _chosen(call)]}


def _chosen(call: PageCall) -> list[tuple[str, str, datetime]]:
    """Return the holds that a form names, each by its thread, its reason and its start."""
    found = []
    for name, value in call.form.items():
        if not name.startswith("hold "):
            continue
        try:
            thread_id, reason, since = json.loads(value)
            at = datetime.fromisoformat(since)
            if at.tzinfo is None or not isinstance(thread_id, str) or not isinstance(reason, str):
                raise ValueError(value)
        except (ValueError, TypeError, RecursionError):
            raise refuse(422, "a hold must be a JSON list of thread, reason, and start with time zone") from None
        found.append((thread_id, reason, at))
    if not found:
        raise refuse(422, "choose the holds to release")
    return found


def _reason(call: PageCall) -> str:
    reason = call.field("reason")
    if reason is None:
        raise refuse(422, "a reason must be given, like the number of a case")
    return reason


async def _hold(call: PageCall, thread_id: str, reason: str) -> None:
    """Place a hold on a thread. Refuse if another person holds the thread for the same reason."""
    made = await call.state.threads.hold(thread_id, reason, by=call.actor)
    if made.held_by != call.actor:
        held = told_by("held", made.created_at, made.held_by)
        raise refuse(409, f"there is already a hold for this reason on thread {thread_id!r}: {held}")


async def _release(call: PageCall, thread_id: str, reason: str, since: datetime | None) -> None:
    problem = await _problem_of_release(call, thread_id, reason, since)
    if problem is not None:
        raise refuse(409, problem)


async def _problem_of_release(call: PageCall, thread_id: str, reason: str, since: datetime | None) -> str | None:
    """End a hold. Return `None` if this person has ended it, now or earlier; otherwise return the reason why not."""
    if since is None:
        raise refuse(422, "since must be given: the time at which the hold began")
    try:
        if await call.state.threads.release(thread_id, reason, by=call.actor, since=since):
            return None
    except ConfigurationError as error:
        raise refuse(422, str(error)) from None
    what = f"the hold of thread {thread_id!r} for {reason!r}"
    for one in await holds_of(call, thread_id):
        if one.reason == reason:
            return f"{what} is a new hold, {told_by('placed', one.created_at, one.held_by)}. Look at it again"
    event = await last_action(call, thread_id, ("release",), reason=reason)
    if event is None:
        return f"there is no {what.removeprefix('the ')}"
    return None if is_by(event, call.actor) else f"{what} was {told(event)}"


def _joined(texts: list[str]) -> str:
    more = f"; and {len(texts) - 3} more" if len(texts) > 3 else ""
    return "; ".join(texts[:3]) + more
