"""The pages of runs: a list of runs, and one run with its spans."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from starlette.responses import RedirectResponse, Response

from langgraph_pgstate.errors import AlreadyDoneError, ThreadArchivedError
from langgraph_pgstate.inspector.changes import done, is_by, last_action, moved, told, told_by, within
from langgraph_pgstate.inspector.formatting import view
from langgraph_pgstate.inspector.interrupts import asked_shown
from langgraph_pgstate.inspector.page import PERIODS, Done, Page, PageCall, period_of, scope_of, sees_memory
from langgraph_pgstate.inspector.rendering import wants_json
from langgraph_pgstate.inspector.threads import time_of
from langgraph_pgstate.inspector.tools import unknown_effects_of
from langgraph_pgstate.record.runs import ORDERS, RANKED, STATUSES, SUMMED
from langgraph_pgstate.record.types import Feedback, Run, RunSums, Span, Timeline, TimelineSpan
from langgraph_pgstate.server.errors import missing, refuse

KINDS: Final = ("graph", "node", "chain", "llm", "tool", "retriever", "memory")
FAILED: Final = "failed"
SORTS: Final = ORDERS[1:]
_PAGE: Final = 50
_WINDOW: Final = 150
_TRACEBACK: Final = 16_000
_INTERRUPTS: Final = 20
_LATER: Final = 20
_INPUT: Final = 1000
_SUMS: Final = 4
# The list shows sums if the address has one of these parameters.
_SUMMED_WITH: Final = ("agent", "user", "tenant", "model", "since", "day", "by")
_FEEDBACK: Final = 20
# Maximum number of forks that are followed to find the source of a run.
_FORKS: Final = 10
_CONTENTS: Final = ("input", "output", "error_traceback", "metadata")
# Right edge of a drawing of spans.
_WIDTH: Final = 1000


async def runs(call: PageCall) -> Page:
    """Show the runs that match the address's filters, newest first or largest first."""
    status, by = call.query("status"), call.query("by")
    if by not in (None, *SORTS):
        raise refuse(422, f"by must be one of {', '.join(SORTS)}, not {by!r}")
    if status not in (None, FAILED, *STATUSES):
        raise refuse(422, f"status must be {FAILED} or one of {', '.join(STATUSES)}, not {status!r}")
    filters: Any = {
        "agent": call.query("agent"),
        "user_id": call.query("user"),
        "tenant_id": call.query("tenant"),
        "scope": await scope_of(call, _PAGE),
        "limit": _PAGE,
        "cursor": call.query("cursor"),
        **_time_of(call),
        "by": by or ORDERS[0],
        # A search by model requires an order by cost, duration or tokens.
        "model": call.query("model"),
    }
    if filters["model"] is not None and by is None:
        filters["by"] = by = SORTS[0]
    if status == FAILED:
        found = await call.state.runs.failed(**filters)
    else:
        found = await call.state.runs.list(status=status, **filters)
    data = {
        "sums": await _sums(call, status, filters),
        "summed": SUMMED,
        "runs": [brief(one) for one in found.items],
        "next": found.next,
        "statuses": (FAILED, *STATUSES),
        "periods": tuple(PERIODS),
        "by": by,
        "sorts": SORTS,
        "ranked": RANKED,
    }
    return Page("runs.html", "Runs", data, is_live=call.query("cursor") is None)


async def _sums(call: PageCall, status: str | None, filters: Mapping[str, Any]) -> RunSums | None:
    """Return the costs of a list's runs, by thread and model; `None` for a list without filters."""
    if all(call.query(name) is None for name in _SUMMED_WITH):
        return None
    given: Any = {**filters, "limit": _SUMS}
    if status == FAILED:
        return await call.state.runs.sums(only_failed=True, **given)
    return await call.state.runs.sums(status=status, **given)


def _time_of(call: PageCall) -> dict[str, Any]:
    """Return the start time in the address: a day in UTC, or the name of a period that ends now."""
    if call.query("day") is None:
        return {"since": None if call.query("since") is None else period_of(call, "")[1]}
    day = time_of(call, "day")
    assert day is not None
    return {"since": day, "until": day + timedelta(days=1)}


async def run(call: PageCall) -> Page | Response:
    """Show a run, a window of its spans, and one span in full.

    Checkpoints of a fork name runs of its source thread. A request for such a run is redirected to the source.
    """
    thread_id = call.path("thread_id")
    scope = await call.authorize("threads", "read", {"thread_id": thread_id})
    found = await call.state.runs.get(thread_id, call.path("run_id"), scope=scope)
    if found is None:
        thread = await call.state.threads.get(thread_id, scope=scope)
        if thread is not None and thread.archived_at is not None:
            raise ThreadArchivedError(thread_id, "", thread.archived_at)
        if thread is None or call.number("forks", 0) >= _FORKS:
            raise missing("run", call.path("run_id"))
        if thread.forked_from_thread_id is None:
            why = (
                "it was not recorded or was deleted, or the thread is a copy, and the run is one of the original thread"
            )
            raise refuse(404, f"there is no run {call.path('run_id')!r} of thread {thread_id!r}: {why}")
        query = {**call.request.query_params, "forks": call.number("forks", 0) + 1}
        return RedirectResponse(call.link("runs", thread.forked_from_thread_id, call.path("run_id"), **query), 307)
    key = (found.thread_id, found.run_id)
    kind, status = call.query("kind"), call.query("status")
    if kind not in (None, *KINDS):
        raise refuse(422, f"kind must be one of {', '.join(KINDS)}, not {kind!r}")
    timeline = await call.state.spans.timeline(
        *key, offset=call.number("offset", 0), limit=_WINDOW, kind=kind, status=status, since=_since(call)
    )
    span_id = call.query("span")
    span = None if span_id is None else await call.state.spans.get(*key, span_id)
    if span_id is not None and span is None:
        raise missing("span", span_id)
    begun = min(filter(None, (timeline.started_at, found.started_at)))
    # Draw a run in progress up to the end of its last span.
    ended = found.ended_at or timeline.ended_at or begun
    first, last = extent(timeline) if timeline.total > len(timeline.spans) else (begun, ended)
    seconds = max(0.0, (last - first).total_seconds())
    offset = (first - begun).total_seconds()
    asked = await _asked(call, found) if found.status == "interrupted" else []
    is_answered = any(one["is_answered"] for one in asked)
    can_cancel = found.enqueued_at is not None and found.status in ("pending", "running")
    retried = await last_action(call, found.thread_id, ("retry",), run_id=found.run_id) if can_cancel else None
    data: dict[str, Any] = {
        "run": brief(found),
        "traceback": None if found.error_traceback is None else found.error_traceback[-_TRACEBACK:],
        "contents": {name: view(value) for name in ("input", "output") if (value := getattr(found, name)) is not None},
        "metadata": view(found.metadata) if found.metadata else None,
        "duration": max(0.0, (ended - found.started_at).total_seconds()),
        "altogether": max(0.0, (ended - begun).total_seconds()),
        "timeline": timeline,
        "bars": [bar(one, first, seconds) for one in timeline.spans],
        "axis": [offset, offset + seconds / 2, offset + seconds],
        "window": _WINDOW,
        "span": None if span is None else shown_span(span),
        "span_is_listed": any(one.span_id == span_id for one in timeline.spans),
        "kinds": KINDS,
        # If an interrupt was answered, the answer has decided all unknown effects.
        "unknown_effects": [] if is_answered else await unknown_effects_of(call, found, waits=True),
        "asked": asked,
        "next_run_id": await _next_run(call, found) if is_answered else None,
        # Leave out the feedback if a span or an interrupt is shown, because these need statements of their own.
        "feedback": () if asked or span else await _feedback(call, found),
        "before": checkpoint_before(found, timeline),
        "sees_memory": await sees_memory(call, "search"),
        # A list that is open in a browser requests this text when a run has left the list.
        "told": await _told(call, found) if wants_json(call.request) else None,
        "can_cancel": can_cancel,
        "enqueued_at": found.enqueued_at if retried is None else retried.created_at,
        "can_retry": found.enqueued_at is not None and found.status in ("error", "timeout", "cancelled"),
    }
    return Page("run.html", "Run", data, is_live=found.status in ("pending", "running") and span is None)


async def about(call: PageCall) -> dict[str, Any]:
    """Return the values of the page that asks whether to cancel or discard a run."""
    thread = await call.thread("update")
    found = await call.state.runs.get(thread.thread_id, call.path("run_id"))
    if found is None:
        raise missing("run", call.path("run_id"))
    return {
        "run": brief(found),
        "thread": thread,
        "by": (found.metadata or {}).get("started_by"),
        "input": None if found.input is None else view(found.input, _INPUT),
    }


async def cancel(call: PageCall) -> Done:
    """Cancel a run."""
    thread, run_id = await call.thread("update"), call.path("run_id")
    how, enqueued_at = call.field("how") or "cancel", call.time("enqueued")
    try:
        status = await call.state.runs.cancel(
            thread.thread_id, run_id, how, by=call.actor, unless_retried_after=enqueued_at
        )
    except AlreadyDoneError as error:
        raise done("the run", error) from None
    # Only the first cancellation is recorded. Tell a later person who cancelled the run.
    event = await last_action(call, thread.thread_id, ("cancel",), run_id=run_id)
    if status not in ("running", "cancelled", "interrupted") or event is None:
        raise refuse(409, f"the run has ended already: {status}")
    if not is_by(event, call.actor):
        raise refuse(409, f"the run was {told(event)}")
    return _done(call, status=status)


async def retry(call: PageCall) -> Done:
    """Enqueue a failed run again."""
    thread, run_id = await call.thread("update"), call.path("run_id")
    found = await _check_end(call, thread.thread_id, run_id)
    # Refuse if another run has begun: a run without checkpoints would resume from the other run's state.
    if not await call.state.runs.retry(thread.thread_id, run_id, by=call.actor, unless_run_within=within(call)):
        newest = (await call.state.runs.list(thread_id=thread.thread_id, limit=1)).items
        if any(one.run_id != run_id for one in newest):
            raise await moved(call, thread.thread_id)
        why = "it is in the queue, or was discarded"
        raise refuse(409, f"the run cannot be retried: {await _what_happened(call, found) or why}")
    return _done(call)


async def discard(call: PageCall) -> Done:
    """Remove a run from the dead letters."""
    thread, run_id = await call.thread("update"), call.path("run_id")
    found = await _check_end(call, thread.thread_id, run_id)
    if not await call.state.runs.discard(thread.thread_id, run_id, by=call.actor):
        raise refuse(409, f"the run is no dead letter: {await _what_happened(call, found) or found.status}")
    return _done(call)


async def _check_end(call: PageCall, thread_id: str, run_id: str) -> Run:
    """Return a run. Refuse if the run was enqueued again since the form's page was made."""
    found = await call.state.runs.get(thread_id, run_id)
    if found is None:
        raise missing("run", run_id)
    seen = call.field("ended")
    if seen is not None and seen != (found.ended_at and found.ended_at.isoformat()):
        raise refuse(409, f"the run has changed since: {await _what_happened(call, found) or found.status}")
    return found


async def _what_happened(call: PageCall, run: Run) -> str | None:
    """Return a person's last action on a run; `None` if there is none."""
    event = await last_action(call, run.thread_id, ("retry", "discard", "cancel"), run_id=run.run_id)
    return None if event is None else told(event)


async def _told(call: PageCall, run: Run) -> str | None:
    """Return a person's last action on an enqueued run, or else when the run ended."""
    if run.enqueued_at is None:
        return None
    happened = await _what_happened(call, run)
    if happened is None and run.ended_at is not None:
        happened = told_by("ended", run.ended_at, None)
    return None if happened is None else happened[:1].upper() + happened[1:]


def brief(run: Run) -> Mapping[str, Any]:
    """Return a run without its contents."""
    found = {field.name: getattr(run, field.name) for field in fields(run) if field.name not in _CONTENTS}
    return {**found, "error_message": None if run.error_message is None else run.error_message[:400]}


def shown_span(span: Span) -> dict[str, Any]:
    """Return a span with its contents as pages show them."""
    found = {field.name: getattr(span, field.name) for field in fields(span)}
    contents = {name: view(found.pop(name)) for name in ("input", "output") if found[name] is not None}
    attributes = view(span.attributes) if span.attributes else None
    given = {"input": None, "output": None, "attributes": attributes, "contents": contents}
    return {**found, **given, "duration": span.duration}


def bar(span: TimelineSpan, begun: datetime, seconds: float) -> tuple[float, float]:
    """Return the position and width of a span in the drawing of its run, which is 1,000 units wide."""
    if seconds <= 0:
        return 0, _WIDTH
    start = (span.started_at - begun).total_seconds() / seconds
    end = 1.0 if span.ended_at is None else (span.ended_at - begun).total_seconds() / seconds
    left = min(max(start, 0.0), 1.0) * _WIDTH
    return round(left, 1), round(max(2.0, min(end, 1.0) * _WIDTH - left), 1)


def extent(timeline: Timeline) -> tuple[datetime, datetime]:
    """Return the time that the spans of a window cover. Root spans are left out, because they may be much longer."""
    spans = [one for one in timeline.spans if one.depth > 0] or list(timeline.spans)
    if not spans:
        now = timeline.started_at or datetime.now(UTC)
        return now, now
    return min(one.started_at for one in spans), max(one.ended_at or one.started_at for one in spans)


def checkpoint_before(run: Run, timeline: Timeline) -> str | None:
    """Return the root checkpoint from which a failed or interrupted run can be tried again."""
    if run.status not in ("error", "timeout", "cancelled", "interrupted") and not run.is_crashed:
        return None
    if run.last_checkpoint_id is not None:
        return run.last_checkpoint_id
    if run.status == "interrupted":
        return run.first_checkpoint_id
    known = (one.checkpoint_id for one in timeline.spans if one.checkpoint_id and not one.checkpoint_ns)
    return next(known, None)


async def _asked(call: PageCall, run: Run) -> list[dict[str, Any]]:
    """Return the interrupts of a run, from its last interrupt event."""
    events = await call.state.events.list(
        run.thread_id, kind="interrupt", run_id=run.run_id, newest_first=True, limit=1
    )
    found = events.items[0].payload.get("interrupts") if events.items else None
    asked = [one for one in found if isinstance(one, Mapping)][:_INTERRUPTS] if isinstance(found, list) else []
    if not asked:
        return []
    answered_by: dict[Any, Any] = {}
    cursor, may_be_more = None, True
    while may_be_more:
        page = await call.state.events.list(run.thread_id, kind="answer", newest_first=True, limit=1000, cursor=cursor)
        later = [one for one in page.items if one.created_at >= events.items[0].created_at]
        # A later run may raise the same interrupt. The first answer after this run's interrupt belongs to this run.
        answered_by.update((one.payload.get("interrupt_id"), one.payload.get("by")) for one in later)
        cursor, may_be_more = page.next, page.next is not None and len(later) == len(page.items)
    return [
        {
            **asked_shown(one.get("id"), one.get("value")),
            "is_answered": one.get("id") in answered_by,
            "answered_by": answered_by.get(one.get("id")),
        }
        for one in asked
    ]


async def _feedback(call: PageCall, run: Run) -> tuple[Feedback, ...]:
    return (await call.state.runs.feedback.list(thread_id=run.thread_id, run_id=run.run_id, limit=_FEEDBACK)).items


async def _next_run(call: PageCall, run: Run) -> str | None:
    """Return the thread's first run after the end of a run, if it is among the next few runs."""
    later = await call.state.runs.list(thread_id=run.thread_id, since=run.ended_at, limit=_LATER)
    if later.next is not None:
        return None
    return next((one.run_id for one in reversed(later.items) if one.run_id != run.run_id), None)


def _since(call: PageCall) -> datetime | None:
    text = call.query("since")
    try:
        found = None if text is None else datetime.fromisoformat(text)
    except ValueError:
        found = None
    if text is not None and (found is None or found.tzinfo is None):
        raise refuse(422, f"since must be a time with a time zone, not {text!r}")
    return found


def _done(call: PageCall, **data: Any) -> Done:
    """Go back to the page that the form names, or to the page of the run."""
    if call.field("back") == "queue":
        return Done(call.link("queue", show=call.field("show")), data)
    return Done(call.link("runs", call.path("thread_id"), call.path("run_id")), data)
