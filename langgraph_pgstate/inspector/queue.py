"""The page of the queue: queued runs, dead letters, schedules, webhooks and workers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, Final

from langgraph_pgstate.errors import AlreadyDoneError
from langgraph_pgstate.inspector.changes import done, is_by, last_action, told, within
from langgraph_pgstate.inspector.page import Done, Page, PageCall, check_sees_all, check_sees_crons, scope_of
from langgraph_pgstate.inspector.runs import brief
from langgraph_pgstate.schedules.types import Schedule
from langgraph_pgstate.server.errors import missing, refuse

SHOWN: Final = ("runs", "dead", "schedules", "webhooks")
_PAGE: Final = 50
_WORKERS: Final = 50


async def queue(call: PageCall) -> Page:
    """Show counts, workers, limits, and a list of queued runs, dead letters, schedules or failed webhooks."""
    show = call.query("show") or SHOWN[0]
    if show not in SHOWN:
        raise refuse(422, f"show must be one of {', '.join(SHOWN)}, not {show!r}")
    scope = await scope_of(call, _PAGE)
    cursor, status = call.query("cursor"), call.query("status")
    data: dict[str, Any] = {"show": show, "sees_all": scope is None, "counts": (), "workers": (), "limits": ()}
    if scope is None:
        data["counts"] = await call.state.runs.counts()
        data["workers"] = await call.state.runs.workers(limit=_WORKERS)
        data["limits"] = (await call.state.runs.limits())[:_PAGE]
    filters: Any = {"queue": call.query("queue"), "graph": call.query("graph"), "limit": _PAGE, "cursor": cursor}
    if show == "runs":
        queued = await call.state.runs.queued(status=status, scope=scope, **filters)
        data["runs"], data["next"] = queued.items, queued.next
    elif show == "dead":
        dead = await call.state.runs.dead_letters(scope=scope, **filters)
        data["letters"], data["next"] = [brief(one) for one in dead.items], dead.next
    elif show == "webhooks":
        await check_sees_all(call)
        failed = await call.state.webhooks.failed(limit=_PAGE, cursor=cursor)
        # Leave out the query of a URL, which may contain a secret.
        data["webhooks"] = [replace(one, url=one.url.partition("?")[0]) for one in failed.items]
        data["next"] = failed.next
    else:
        await check_sees_crons(call, "search")
        schedules = await call.state.schedules.list(graph=filters["graph"], limit=_PAGE, cursor=cursor)
        data["schedules"], data["next"] = schedules.items, schedules.next
    return Page("queue.html", "Queue", data, is_live=cursor is None)


async def about_worker(call: PageCall) -> dict[str, Any]:
    """Return the values of the page that asks whether to drain a worker."""
    await check_sees_all(call)
    workers = await call.state.runs.workers(limit=_WORKERS)
    return {"worker": next((one for one in workers if one.worker_id == call.path("worker_id")), None)}


async def drain(call: PageCall) -> Done:
    """Ask a worker to drain."""
    await check_sees_all(call)
    worker_id = call.path("worker_id")
    is_known = await call.state.runs.drain(worker_id, by=call.actor)
    # Only the first person is recorded. Tell a later person who drained the worker, even if the worker has ended.
    event = await last_action(call, f"worker:{worker_id}", ("drain",))
    if not is_known and event is None:
        raise missing("worker", worker_id)
    if event is not None and not is_by(event, call.actor):
        raise refuse(409, f"the worker was {told(event)}")
    return Done(call.link("queue"), {"worker_id": worker_id})


async def pause(call: PageCall) -> Done:
    """Pause a schedule."""
    return await _set(call, "pause", call.state.schedules.pause)


async def resume(call: PageCall) -> Done:
    """Resume a schedule."""
    return await _set(call, "resume", call.state.schedules.resume)


async def trigger(call: PageCall) -> Done:
    """Enqueue a run of a schedule now."""
    name = call.path("name")
    await check_sees_crons(call, "update", name)
    try:
        run = await call.state.schedules.trigger(
            name, run_id=call.nonce, by=call.actor, unless_done_within=within(call)
        )
    except AlreadyDoneError as error:
        raise done(f"schedule {name!r}", error) from None
    return Done(call.link("runs", run.thread_id, run.run_id), {"thread_id": run.thread_id, "run_id": run.run_id})


async def _set(call: PageCall, action: str, method: Callable[..., Awaitable[Schedule]]) -> Done:
    """Pause or resume a schedule. Refuse if another person did the same before."""
    name = call.path("name")
    await check_sees_crons(call, "update", name)
    found = await method(name, by=call.actor)
    # Only the first person is recorded. Tell a later person who did the action.
    event = await last_action(call, f"schedule:{name}", (action,))
    if event is not None and not is_by(event, call.actor):
        raise refuse(409, f"schedule {name!r} was {told(event)}")
    return Done(call.link("queue", show="schedules"), {"name": found.name, "next_at": found.next_at})
