"""What happens to each action of pages when two persons do it, and how a person does it: by forms and in a browser."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from tempfile import TemporaryDirectory
from typing import Any, Final

from langgraph_pgstate import AsyncPGState, AsyncWorker
from langgraph_pgstate.inspector.page import segment
from support.pages import travel, trip


@dataclass(frozen=True, slots=True)
class Aim:
    """What two persons act on.

    Attributes:
        page: The page on which they do it.
        form: Where its form is sent.
        row: Selector of the row, on a page that is a list.
        place: Where the events of the action are: a thread, a schedule or a worker.
    """

    page: str
    form: str
    place: str
    row: str = ""


@dataclass(frozen=True, slots=True)
class Case:
    """An action that two persons do.

    Attributes:
        prepare: Makes what they act on, under an id.
        verb: The words of the refusal before the name of the first person.
        clicks: Selectors that a person clicks, after the row's; `NAME=TEXT` fills a field.
        count: How often it took effect.
        fields: What a person fills in.
        status: The status of the second person's answer.
        grow: Adds a row to the list on which they act.
        by: Other persons who have acted before.
    """

    prepare: Callable[[AsyncPGState, str], Any]
    verb: str
    clicks: tuple[str, ...]
    count: Callable[[AsyncPGState, str], Awaitable[int]]
    fields: Mapping[str, str] = field(default_factory=dict)
    status: int = 409
    grow: Callable[[AsyncPGState, str], Awaitable[Any]] | None = None
    by: tuple[str, ...] = ()


@asynccontextmanager
async def _pending(state: AsyncPGState, id: str) -> AsyncIterator[Aim]:
    await _enqueue(state, id)
    yield Aim("/queue", f"/runs/{id}/{id}/cancel", id, f"tr[data-row='run {id} {id}'] ")


@asynccontextmanager
async def _ended(state: AsyncPGState, id: str, action: str) -> AsyncIterator[Aim]:
    await _enqueue(state, id)
    await state.runs.cancel(id, id)
    yield Aim(f"/runs/{id}/{id}", f"/runs/{id}/{id}/{action}", id)


@asynccontextmanager
async def _worker(state: AsyncPGState, id: str) -> AsyncIterator[Aim]:
    async with AsyncWorker(state, {"trip": trip()}, queues=["of nobody"]) as worker:
        part = segment(worker.worker_id)
        row = f"tr[data-item='worker {worker.worker_id}'] "
        yield Aim("/queue", f"/queue/workers/{part}/drain", f"worker:{worker.worker_id}", row)


@asynccontextmanager
async def _schedule(state: AsyncPGState, id: str, action: str) -> AsyncIterator[Aim]:
    await _schedule_trip(state, id)
    if action == "resume":
        await state.schedules.pause(id)
    row = f"tr[data-row='schedule {id}'] "
    yield Aim("/queue?show=schedules", f"/queue/schedules/{id}/{action}", f"schedule:{id}", row)


@asynccontextmanager
async def _thread(state: AsyncPGState, id: str, action: str, page: str = "") -> AsyncIterator[Aim]:
    ids = await travel(state, id)
    yield Aim(f"/threads/{id}{page}".replace("{at}", ids[0]), f"/threads/{id}/{action}", id)


@asynccontextmanager
async def _held(state: AsyncPGState, id: str) -> AsyncIterator[Aim]:
    await travel(state, id)
    await state.threads.hold(id, "case 7", by="Cain")
    yield Aim(f"/threads/{id}", f"/threads/{id}/release", id)


@asynccontextmanager
async def _policy(state: AsyncPGState, id: str) -> AsyncIterator[Aim]:
    await state.retention.put(id, by="Cain", delete_after=timedelta(days=30))
    yield Aim(f"/policies/{id}", f"/policies/{id}/delete", f"policy:{id}")


@asynccontextmanager
async def _archived(state: AsyncPGState, id: str) -> AsyncIterator[Aim]:
    await travel(state, id)
    with TemporaryDirectory() as folder:
        await state.archive.put([id], to=f"file://{folder}", idle_for=timedelta(0))
        yield Aim(f"/threads/{id}", f"/threads/{id}/restore", id)


@asynccontextmanager
async def _copy(state: AsyncPGState, id: str, action: str, page: str = "") -> AsyncIterator[Aim]:
    """A copy of a thread on which others have done the same."""
    source = f"source-of-{id}"
    (at, *_) = await travel(state, source)
    await state.saver.acopy_thread(source, id)
    await state.threads.update_metadata(id, {"graph_id": "trip"})
    payload = {"action": action, "by": "Cain"}
    await state.events.add(source, "action", payload, checkpoint_id=at)
    yield Aim(f"/threads/{id}{page}".replace("{at}", at), f"/threads/{id}/{action}", id)


@asynccontextmanager
async def _scheduled(state: AsyncPGState, id: str) -> AsyncIterator[Aim]:
    """A run of a schedule."""
    await _schedule_trip(state, id)
    run = await state.schedules.trigger(id)
    row = f"tr[data-row='run {run.thread_id} {run.run_id}'] "
    yield Aim("/queue", f"/runs/{run.thread_id}/{run.run_id}/cancel", run.thread_id, row)


@asynccontextmanager
async def _answered(state: AsyncPGState, id: str) -> AsyncIterator[Aim]:
    """A thread with an answer, on the page of answers."""
    await travel(state, id)
    await state.interrupts.answer(id, "yes", by="Cain")
    yield Aim("/interrupts?show=answered", f"/threads/{id}/run", id, f"[id='thread-{id}'] ")


async def _enqueue(state: AsyncPGState, id: str) -> None:
    await state.runs.enqueue("trip", {"messages": []}, thread_id=id, run_id=id, queue="of nobody")


async def _schedule_trip(state: AsyncPGState, id: str) -> None:
    await state.schedules.put(id, "trip", {"messages": []}, cron="0 3 * * *", queue="of nobody")


async def _actions(state: AsyncPGState, place: str) -> int:
    """How many actions persons did."""
    return len((await state.events.list(place, kind="action")).items)


async def _queued(state: AsyncPGState, place: str) -> int:
    """How many runs of a thread, or of a schedule, are in the queue."""
    queued = (await state.runs.queued(limit=100)).items
    runs = [await state.runs.get(one.thread_id, one.run_id) for one in queued]
    name = place.removeprefix("schedule:")
    metadata = [(one.thread_id, (one.metadata or {}).get("schedule")) for one in runs if one is not None]
    return len([one for one in metadata if name in one])


async def _holds(state: AsyncPGState, place: str) -> int:
    return len((await state.threads.holds(place)).items)


async def _releases(state: AsyncPGState, place: str) -> int:
    """How many releases there were of a thread that is held no more."""
    events = (await state.events.list(place, kind="action")).items
    return len([one for one in events if one.payload["action"] == "release"]) - await _holds(state, place)


async def _deletions(state: AsyncPGState, place: str) -> int:
    events = (await state.events.list(place, kind="action")).items
    return len([one for one in events if one.payload["action"] == "delete"])


async def _forks(state: AsyncPGState, place: str) -> int:
    found = (await state.threads.list(limit=100)).items
    return len([one for one in found if one.forked_from_thread_id == place])


async def _edits(state: AsyncPGState, place: str) -> int:
    return len([one for one in (await state.threads.tree(place)).nodes if one.source == "update"])


def _of(prepare: Any, *arguments: str) -> Callable[[AsyncPGState, str], Any]:
    return lambda state, id: prepare(state, id, *arguments)


_BOOKING: Final = 'any ["booking"]'

CASES: Final[Mapping[str, Case]] = {
    "run.cancel": Case(
        _pending,
        "cancelled just now by",
        ("button:has-text('Cancel')", "button:text-is('Cancel the run')"),
        _actions,
        grow=_enqueue,
    ),
    "run.retry": Case(_of(_ended, "retry"), "retried just now by", ("button:text-is('Retry')",), _queued),
    "run.discard": Case(
        _of(_ended, "discard"),
        "discarded just now by",
        ("button:has-text('Discard')", "button:text-is('Discard the run')"),
        _actions,
    ),
    "worker.drain": Case(
        _worker,
        "asked to drain just now by",
        ("button:has-text('Drain')", "button:text-is('Drain the worker')"),
        _actions,
        grow=_enqueue,
    ),
    "schedule.pause": Case(
        _of(_schedule, "pause"), "paused just now by", ("button:has-text('Pause')",), _actions, grow=_schedule_trip
    ),
    "schedule.resume": Case(
        _of(_schedule, "resume"), "resumed just now by", ("button:has-text('Resume')",), _actions, grow=_schedule_trip
    ),
    "schedule.trigger": Case(_of(_schedule, "trigger"), "run just now by", ("button:has-text('Run now')",), _queued),
    "thread.fork": Case(
        _of(_thread, "fork"), "forked just now by", ("#act-fork summary", "#act-fork button:text-is('Fork')"), _forks
    ),
    "thread.run": Case(_of(_thread, "run"), "run on just now by", ("#act-run summary", "#act-run button"), _queued),
    "thread.edit": Case(
        _of(_thread, "edit", "/edit?at={at}"),
        "edited just now by",
        (
            "#unset summary",
            f"{_BOOKING}=Astoria",
            "button:text-is('Preview the change')",
            "button:text-is('Change')",
        ),
        _edits,
        {_BOOKING: "Astoria", "as_node": "approve"},
    ),
    "thread.edit of a copy": Case(
        _of(_copy, "edit", "/edit?at={at}"),
        "edited just now by",
        (
            "#unset summary",
            f"{_BOOKING}=Astoria",
            "button:text-is('Preview the change')",
            "button:text-is('Change')",
        ),
        _edits,
        {_BOOKING: "Astoria", "as_node": "approve"},
    ),
    "thread.run of a copy": Case(
        _of(_copy, "run"), "run on just now by", ("#act-run summary", "#act-run button"), _queued
    ),
    "thread.run of an answer": Case(_answered, "run on just now by", ("button:text-is('Run on')",), _queued),
    "run.cancel of a schedule": Case(
        _scheduled,
        "cancelled just now by",
        ("button:has-text('Cancel')", "button:text-is('Cancel the run')"),
        _actions,
        grow=_enqueue,
    ),
    "thread.label": Case(
        _of(_thread, "label"),
        "labelled just now by",
        ("#act-label summary", "label=mine", "#act-label button"),
        _actions,
        {"label": "mine"},
    ),
    "thread.hold": Case(
        _of(_thread, "hold"),
        "held just now by",
        ("#act-hold summary", "reason=case 7", "#act-hold button"),
        _holds,
        {"reason": "case 7"},
    ),
    "thread.release": Case(
        _held,
        "released just now by",
        ("button:has-text('Release')", "button:text-is('Release the thread')"),
        _releases,
        by=("Cain",),
    ),
    "policy.delete": Case(
        _policy,
        "deleted just now by",
        ("button:has-text('Delete')", "button:text-is('Delete the policy')"),
        _deletions,
        by=("Cain",),
    ),
    "thread.restore": Case(_archived, "restored just now by", ("button:text-is('Restore')",), _actions),
    "thread.delete": Case(
        _of(_thread, "delete", "/delete"),
        "deleted just now by",
        ("button:has-text('Delete the thread')",),
        _actions,
        status=404,
    ),
}
"""What two persons may do to the same thing, by the action and what it is reached through: it happens once or not at
all, and the second is told by name."""

ALONE: Final[Mapping[str, str]] = {
    "person.keep": "the name is that of a browser",
    "interrupt.answer": "two persons: test_interrupts.py and test_changes.py",
    "tool.settle": "two persons: test_tools.py",
    "memory.edit": "two persons: test_memory.py",
    "memory.forget": "two persons: test_memory.py",
    "memory.restore": "two persons: test_memory.py",
    "file.restore": "two persons: test_files.py",
    "policy.store": "two persons: test_retention.py",
    "threads.hold": "two persons: test_holds.py",
    "holds.release": "two persons: test_holds.py",
    "privacy.erase": "two persons: test_privacy.py",
}
"""Other actions, and why they are not here."""
