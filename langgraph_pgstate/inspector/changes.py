"""Refusals that say what persons and runs have done since a page was made."""

from __future__ import annotations

from collections.abc import Collection
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

from starlette.exceptions import HTTPException

from langgraph_pgstate.errors import AlreadyDoneError
from langgraph_pgstate.inspector.formatting import ago
from langgraph_pgstate.record.types import Event, Run
from langgraph_pgstate.server.errors import missing, refuse
from langgraph_pgstate.server.service import Call
from langgraph_pgstate.threads.types import Thread

if TYPE_CHECKING:
    from langgraph_pgstate.inspector.page import PageCall

_EVENTS: Final = 50
_RUNS: Final = 5
_SAME_ACTION: Final = timedelta(seconds=1)
_NAME: Final = 80
_VERBS: Final = {
    "run": "run on",
    "edit": "edited",
    "retry": "retried",
    "answer": "answered",
    "fork": "forked",
    "label": "labelled",
    "cancel": "cancelled",
    "discard": "discarded",
    "delete": "deleted",
    "drain": "asked to drain",
    "pause": "paused",
    "resume": "resumed",
    "trigger": "run",
    "settle": "settled",
    "hold": "held",
    "release": "released",
    "restore": "restored",
    "policy": "changed",
    "erase": "erased",
}
# Tolerance for the time of a page. Clocks differ, and the data of a page are a little older than the page.
MOMENT: Final = timedelta(seconds=1)
# Actions after which a thread gets a new newest checkpoint, now or soon.
_MOVING: Final = ("run", "edit", "retry", "answer")


async def last_action(
    call: Call,
    thread_id: str,
    actions: Collection[str],
    *,
    run_id: str | None = None,
    checkpoint_id: str | None = None,
    **details: str,
) -> Event | None:
    """Return the newest event of some actions on a thread. Search only the newest `_EVENTS` actions."""
    found = await call.state.events.list(thread_id, kind="action", run_id=run_id, newest_first=True, limit=_EVENTS)
    return next(
        (
            one
            for one in found.items
            if one.payload.get("action") in actions
            and checkpoint_id in (None, one.checkpoint_id)
            and details.items() <= one.payload.items()
        ),
        None,
    )


def told(event: Event) -> str:
    """Return the action of an event, its time and its person: `cancelled 6 s ago by Eve`."""
    action = str(event.payload.get("action") or event.kind)
    return told_by(_VERBS.get(action, action), event.created_at, event.payload.get("by"))


def told_by(what: str, at: datetime, by: object) -> str:
    """Return a verb with the time and the person: `answered 6 s ago by Eve`."""
    when = ago(at, datetime.now(UTC))
    name = " ".join(str(by).split())[:_NAME] if by else ""
    return f"{what} {'just now' if when == 'now' else when}{f' by {name}' if name else ''}"


def is_by(event: Event, person: str) -> bool:
    """Return whether a person caused the event."""
    return bool(event.payload.get("by") == person)


def within(call: PageCall) -> timedelta | None:
    """Return the time since the page of a form was made, plus `MOMENT`; `None` if unknown."""
    return None if call.seen_at is None else max(datetime.now(UTC) - call.seen_at, timedelta(0)) + MOMENT


def done(what: str, error: AlreadyDoneError, more: str = "") -> HTTPException:
    """Return the refusal of an action that a person did before: `checkpoint 'x' was forked 2 s ago by Eve`."""
    happened = told_by(_VERBS.get(error.action, error.action), error.done_at, error.done_by)
    return refuse(409, f"{what} was {happened}{more}. Look at {what} again, then decide")


async def moved(call: Call, thread_id: str) -> HTTPException:
    """Return the refusal of an action on a thread that has a newer checkpoint than the page showed."""
    return refuse(409, f"thread {thread_id!r} has gone on{await since(call, thread_id)}. Look at it again, then decide")


async def busy(call: Call, thread_id: str) -> HTTPException:
    """Return the refusal of an action on a thread that has a run."""
    return refuse(409, f"thread {thread_id!r} is busy{await since(call, thread_id)}. Try again when the run has ended")


async def check_free(call: Call, thread: Thread) -> None:
    """Refuse an action on a thread that has a run, unless the run's process has died."""
    if thread.status != "busy":
        return
    newest = await call.state.runs.list(thread_id=thread.thread_id, limit=_RUNS)
    if any(one.status in ("pending", "running") and not one.is_crashed for one in newest.items):
        raise await busy(call, thread.thread_id)


async def gone(call: Call, thread_id: str) -> HTTPException:
    """Return the refusal of a request for a missing thread, with the name of the person who deleted the thread."""
    event = await last_action(call, thread_id, ("delete",))
    return missing("thread", thread_id) if event is None else refuse(404, f"thread {thread_id!r} was {told(event)}")


async def since(call: Call, thread_id: str) -> str:
    """Return the last action on a thread, as the end of a sentence: `: edited 6 s ago by Eve`."""
    events = [await last_action(call, thread_id, _MOVING)]
    events += (await call.state.events.list(thread_id, kind="answer", newest_first=True, limit=1)).items
    found = [(one.created_at, told(one), one.payload.get("by")) for one in events if one is not None]
    latest = max(found, key=lambda one: one[0], default=None)
    for run in (await call.state.runs.list(thread_id=thread_id, limit=1)).items:
        by = (run.metadata or {}).get("started_by")
        # An action usually starts a run. If the run began right after the latest action, name only the action. But name
        # a run that another person has started, because the event of that person may not be stored yet.
        is_same = latest is not None and (not by or by == latest[2])
        if latest is None or began_at(run) > latest[0] + (_SAME_ACTION if is_same else timedelta(0)):
            latest = began_at(run), _told_of_run(run), by
    return "" if latest is None else f": {latest[1]}"


def began_at(run: Run) -> datetime:
    """Return when a run was enqueued, or began."""
    return run.enqueued_at or run.started_at


def _told_of_run(run: Run) -> str:
    by = (run.metadata or {}).get("started_by")
    return told_by("run on" if by else f"run {run.run_id} began", began_at(run), by)
