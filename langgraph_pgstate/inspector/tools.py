"""The pages of tools: statistics, actions whose outcome is unknown, and one action of the ledger."""

from __future__ import annotations

from dataclasses import fields
from datetime import UTC, datetime
from typing import Any, Final

from langgraph_pgstate.errors import AlreadySettledError, ToolOutcomeUnknownError
from langgraph_pgstate.inspector.changes import told
from langgraph_pgstate.inspector.formatting import view
from langgraph_pgstate.inspector.forms import parsed
from langgraph_pgstate.inspector.page import PERIODS, Done, Page, PageCall, period_of, scope_of
from langgraph_pgstate.record.types import Event, Run, ToolExecution
from langgraph_pgstate.server.errors import missing, refuse

NEWEST: Final = 20_000
"""Maximum number of calls in the statistics. The page says if older calls are left out."""

_PAGE: Final = 50
_TOOLS: Final = 40
_EVENTS: Final = 50
_LEAVES_UNKNOWN: Final = (ToolOutcomeUnknownError.__name__, TimeoutError.__name__)
_DECISIONS: Final = ("done", "retry", "fail")


async def tools(call: PageCall) -> Page:
    """Show unknown effects and statistics of tools, or the actions of one tool."""
    scope, tool = await scope_of(call, _PAGE), call.query("tool")
    name, since = period_of(call, "30d")
    data: dict[str, Any] = {
        "tool": tool,
        "since": name,
        "periods": tuple(PERIODS),
        "newest": NEWEST,
        "calls": (),
        "actions": (),
        "sees_all": scope is None,
    }
    if scope is None:
        data["calls"] = await call.state.spans.tools(since=since, newest=NEWEST, limit=_TOOLS)
        data["actions"] = await call.state.spans.executions(since=since, newest=NEWEST, limit=_TOOLS)
    cursor = call.query("cursor")
    unknown = await call.state.tools.recent(tool=tool, unknown=True, scope=scope, limit=_PAGE)
    data["unknown"] = [brief(one) for one in unknown.items]
    data["has_more_unknown"] = unknown.next is not None
    recent = await call.state.tools.recent(tool=tool, scope=scope, limit=_PAGE, cursor=cursor)
    data["recent"], data["next"] = [brief(one) for one in recent.items], recent.next
    data["is_cut"] = any(sum(one.calls for one in data[part]) >= NEWEST for part in ("calls", "actions"))
    data["slowest"] = max((one.p95 or 0 for one in data["calls"]), default=0)
    return Page("tools.html", "Tools", data, is_live=cursor is None)


async def action(call: PageCall) -> Page:
    """Show one action of the ledger, and who settled it."""
    thread = await call.thread("read")
    found = await _found(call, thread.thread_id)
    event = await _settled(call, found)
    data = {
        "action": brief(found),
        "arguments": view(found.arguments),
        "preview": found.preview,
        "decisions": _DECISIONS,
        "expects": _expected(found),
        "settled": None if event is None else told(event),
    }
    return Page("action.html", found.tool, data)


async def settle(call: PageCall) -> Done:
    """Decide the outcome of an action."""
    thread, key = await call.thread("update"), call.path("key")
    decision, result = call.field("decision"), call.field("result")
    if decision not in _DECISIONS:
        raise refuse(422, f"the decision must be one of {', '.join(_DECISIONS)}")
    given: dict[str, Any] = {} if result is None or decision != "done" else {"result": parsed(result)}
    found, expects = await _found(call, thread.thread_id), call.field("expects")
    try:
        if expects not in (None, _expected(found)):
            raise AlreadySettledError(thread.thread_id, key, found.tool, f"has changed: its status is {found.status}")
        await call.state.tools.settle(thread.thread_id, key, decision, by=call.actor, seen=found, **given)
    except AlreadySettledError as error:
        event = await _settled(call, found)
        status = brief(await _found(call, thread.thread_id))["status"]
        why = str(error) if event is None else f"{found.tool} was {told(event)}: its status is now {status}"
        raise refuse(409, why) from None
    return Done(call.link("tools", thread.thread_id, key), {"decision": decision}, thread_id=thread.thread_id)


async def _found(call: PageCall, thread_id: str) -> ToolExecution:
    found = await call.state.tools.get(thread_id, call.path("key"))
    if found is None:
        raise missing("action", call.path("key"))
    return found


def _expected(found: ToolExecution) -> str:
    """Return an action's status, attempt and end. A form carries them, so that a change is noticed."""
    status = "unknown" if is_outcome_unknown(found) else found.status
    ended_at = found.ended_at.isoformat() if found.ended_at is not None and status != "unknown" else ""
    return f"{status} {found.attempt} {ended_at}".strip()


async def _settled(call: PageCall, found: ToolExecution) -> Event | None:
    """Return the newest event of a person who settled an action, if it is among the newest events."""
    events = await call.state.events.list(found.thread_id, kind="action", newest_first=True, limit=_EVENTS)
    return next(
        (
            one
            for one in events.items
            if (one.payload.get("action"), one.payload.get("key")) == ("settle", found.idempotency_key)
        ),
        None,
    )


async def unknown_effects_of(call: PageCall, run: Run | None, *, waits: bool = False) -> list[dict[str, str]]:
    """Return the newest unknown effects of a run's thread, if the run can have caused one.

    A run can have caused one if its process died, or if its error leaves an outcome unknown; with `waits`, also if it
    is interrupted.
    """
    may_be_unknown = run is not None and (
        run.is_crashed or (run.error_type or "").endswith(_LEAVES_UNKNOWN) or (waits and run.status == "interrupted")
    )
    return await unknown_effects(call, run.thread_id) if run is not None and may_be_unknown else []


async def unknown_effects(call: PageCall, thread_id: str) -> list[dict[str, str]]:
    """Return the newest actions of a thread whose outcome is unknown."""
    found = await call.state.tools.list(thread_id, unknown=True, limit=_PAGE)
    return [{"tool": one.tool, "key": one.idempotency_key, "arguments": view(one.arguments, 120).text} for one in found]


def brief(found: ToolExecution) -> dict[str, Any]:
    """Return an action with the beginnings of its texts, and whether its outcome is unknown."""
    shown = {field.name: getattr(found, field.name) for field in fields(found) if field.name != "arguments"}
    for name in ("preview", "error_message"):
        shown[name] = None if shown[name] is None else shown[name][:400]
    return {**shown, "summary": view(found.arguments, 300).text, "is_unknown": is_outcome_unknown(found)}


def is_outcome_unknown(found: ToolExecution) -> bool:
    """Return whether the outcome of an action is unknown, as in the view `unknown_effects`."""
    if found.status == "running":
        return found.alive_until is not None and found.alive_until < datetime.now(UTC)
    return found.status in ("timeout", "unknown")
