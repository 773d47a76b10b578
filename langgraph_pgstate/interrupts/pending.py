"""Interrupted threads: their interrupts, and the answers so far.

A task's interrupts are among its pending writes. Interrupts of subgraphs are in the root namespace, too. An interrupt
is pending until the checkpoint has a child, or the task has written a result.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Unpack

from langgraph.types import Interrupt

from langgraph_pgstate.arguments import request_scope, texts_of
from langgraph_pgstate.codec.values import ValueCodec
from langgraph_pgstate.codec.writes import unpack_writes
from langgraph_pgstate.db.protocol import Connection
from langgraph_pgstate.errors import PGStateError
from langgraph_pgstate.interrupts.types import (
    Answer,
    AnsweredInterrupt,
    InterruptedThread,
    InterruptFilter,
    PendingInterrupt,
)
from langgraph_pgstate.langgraph_compat import distinct_interrupts
from langgraph_pgstate.paging import LAST, Page, check_filters, decode_cursor, encode_cursor, page_size
from langgraph_pgstate.schema.queries import Queries

_KIND: Final = "interrupted"
# Number of interrupts that are read at once, and maximum number of reads for one page of results. One read may not be
# enough, because answered interrupts are skipped.
_SCAN_PAGE: Final = 200
_SCAN_PAGES: Final = 25
_NO_OWNER: Final[dict[str, Any]] = {"user_id": None, "tenant_id": None, "agent": None, "scope": None}

_logger = logging.getLogger("langgraph_pgstate")

# The ids of a thread and of one of its checkpoints.
Place = tuple[str, str]


@dataclass(frozen=True, slots=True)
class InterruptedRequest:
    """A validated request for interrupted threads.

    Attributes:
        owner: User, tenant, agent, and the metadata of threads that the caller may see.
        answered: Whether to list threads with unused answers instead of threads with unanswered interrupts.
        cursor: Time, thread and task of the last interrupt read.
        size: Page size.
        scans: Maximum number of reads of interrupts.
        scan_size: Number of interrupts in a read.
    """

    owner: dict[str, Any]
    answered: bool
    cursor: tuple[Any, str, str]
    size: int
    scans: int
    scan_size: int


def request_interrupted(**filters: Unpack[InterruptFilter]) -> InterruptedRequest:
    """Validate a request for interrupted threads."""
    check_filters(filters, InterruptFilter)
    at, thread_id, task_id = decode_cursor(_KIND, filters.get("cursor"), (LAST, "", ""))
    owner: dict[str, Any] = texts_of(filters, "user_id", "tenant_id", "agent")
    owner["scope"] = request_scope(filters.get("scope"))
    size, scan = page_size(filters.get("limit", 20)), filters.get("scan")
    scans = (_SCAN_PAGES, _SCAN_PAGE) if scan is None else (1, page_size(scan, "scan"))
    return InterruptedRequest(owner, filters.get("answered", False), (at, thread_id, task_id), size, *scans)


async def list_interrupted(
    db: Connection, queries: Queries, codec: ValueCodec, filter: InterruptedRequest
) -> Page[InterruptedThread]:
    """Return a page of threads with unanswered interrupts, newest interrupt first. Three round trips for each read.

    Answered interrupts are skipped, so a page may hold fewer threads than requested and still have a next page.
    """
    found: list[InterruptedThread] = []
    before = cursor = filter.cursor
    for _ in range(filter.scans):
        at, thread_id, task_id = cursor
        rows = await db.fetch(
            queries.scan_interrupts,
            {"cursor_at": at, "cursor_thread": thread_id, "cursor_task": task_id, "page_size": filter.scan_size},
        )
        interrupted = await _read_places(db, queries, codec, [(row[0], row[1]) for row in rows], filter.owner)
        for thread_id, checkpoint_id, at, task_id in rows:
            place = interrupted.get((thread_id, checkpoint_id))
            cursor = (at, thread_id, task_id)
            # A thread with several interrupts is listed once, at its newest interrupt.
            if place is None or place.leader != task_id:
                continue
            if place.answers if filter.answered else place.open_interrupts:
                if len(found) == filter.size:
                    return Page(tuple(found), encode_cursor(_KIND, before))
                found.append(place.shown())
            before = cursor
        if len(rows) < filter.scan_size:
            return Page(tuple(found), None)
        before = cursor
    return Page(tuple(found), encode_cursor(_KIND, cursor))


@dataclass(slots=True)
class Interrupted:
    """The interrupts and answers of one checkpoint.

    `leader` is the task of the newest interrupt. `answer_ids` has the ids of answers, by interrupt.
    """

    place: Place
    owner: tuple[str | None, str | None, str | None, str | None]
    interrupts: list[PendingInterrupt]
    answers: list[Answer]
    answer_ids: dict[str, str]
    leader: str = ""

    @property
    def open_interrupts(self) -> list[PendingInterrupt]:
        """The unanswered interrupts."""
        return [interrupt for interrupt in self.interrupts if interrupt.interrupt_id not in self.answer_ids]

    def answer(self, interrupt_id: str) -> Answer | None:
        """Return the answer to an interrupt, or `None`."""
        return next((answer for answer in self.answers if answer.interrupt_id == interrupt_id), None)

    def shown(self) -> InterruptedThread:
        """Return the interrupts and answers as an `InterruptedThread`."""
        interrupts = self.open_interrupts
        since = min(interrupt.asked_at for interrupt in interrupts or self.interrupts)
        return InterruptedThread(*self.place, since, tuple(interrupts), tuple(self.answers), *self.owner)


async def _read_places(
    db: Connection,
    queries: Queries,
    codec: ValueCodec,
    places: Sequence[Place],
    owner: Mapping[str, Any],
    *,
    strict: bool = False,
) -> dict[Place, Interrupted]:
    """Return the interrupts and answers of some checkpoints. Checkpoints without pending interrupts are left out.

    With `strict`, an answer of a type that may not be built raises an error. Otherwise, the answer is plain data.
    """
    if not places:
        return {}
    reader = codec.lenient()
    wanted = dict.fromkeys(places)
    key = {"thread_ids": [place[0] for place in wanted], "checkpoint_ids": [place[1] for place in wanted]}
    found: dict[Place, Interrupted] = {}
    latest: dict[Place, tuple[datetime, str]] = {}
    for thread_id, checkpoint_id, task_id, run_id, asked_at, data, *whose in await db.fetch(
        queries.get_interrupts, {**key, **owner}
    ):
        place = (thread_id, checkpoint_id)
        interrupted = found.setdefault(place, Interrupted(place, tuple(whose), [], [], {}))
        interrupted.interrupts += _interrupts_in(reader, place, task_id, run_id, asked_at, data)
        at, leader = latest.get(place, (asked_at, task_id))
        if asked_at > at or (asked_at == at and task_id <= leader):
            latest[place] = (asked_at, task_id)
            interrupted.leader = task_id
    if not found:
        return {}
    for interrupted in found.values():
        distinct = distinct_interrupts(interrupted.interrupts, "interrupt_id")
        interrupted.interrupts = sorted(distinct, key=lambda one: one.asked_at)
    for thread_id, checkpoint_id, interrupt_id, answer_id, answered_at, by, type_, data, *more in await db.fetch(
        queries.get_answers, key
    ):
        interrupted_here = found.get((thread_id, checkpoint_id))
        if interrupted_here is None or all(one.interrupt_id != interrupt_id for one in interrupted_here.interrupts):
            # The interrupt is no longer pending, because a run has used the answer.
            continue
        where = f"the answer to {interrupt_id} of thread {thread_id!r}"
        value = (codec if strict else reader).loads(type_, data, where)
        interrupted_here.answer_ids[interrupt_id] = answer_id
        interrupted_here.answers.append(Answer(thread_id, checkpoint_id, interrupt_id, value, by, answered_at, *more))
    return found


def _interrupts_in(
    codec: ValueCodec, place: Place, task_id: str, run_id: str | None, asked_at: datetime, data: bytes
) -> list[PendingInterrupt]:
    """Return the interrupts in a task's row. An interrupt that cannot be read has an `error`."""
    where = f"an interrupt of task {task_id!r} at checkpoint {place[1]!r} of thread {place[0]!r}"
    interrupts = []
    try:
        for _, _, type_, content in unpack_writes(data, where):
            value = codec.loads(type_, content, where)
            for one in value if isinstance(value, list | tuple) else [value]:
                if isinstance(one, Interrupt):
                    schema = getattr(one, "response_schema", None)
                    interrupts.append(PendingInterrupt(one.id, one.value, asked_at, schema, task_id, run_id))
    except PGStateError as error:
        _logger.error("%s cannot be read: %s", where, error)
        interrupts.append(PendingInterrupt("", None, asked_at, None, task_id, run_id, str(error)))
    return interrupts


async def get_interrupted(
    db: Connection, queries: Queries, codec: ValueCodec, thread_id: str
) -> InterruptedThread | None:
    """Return a thread's interrupts and answers, or `None` if the thread is not interrupted. Three round trips."""
    found = await read_interrupted(db, queries, codec, thread_id)
    return found.shown() if found is not None else None


async def read_interrupted(db: Connection, queries: Queries, codec: ValueCodec, thread_id: str) -> Interrupted | None:
    """Return the interrupts at a thread's newest checkpoint; `None` if there are none. Three round trips.

    Raises:
        UnsafeTypeError: If an answer has a type that may not be built.
    """
    head = await db.fetch(queries.get_head, {"thread_id": thread_id})
    if not head:
        return None
    place = (thread_id, head[0][0])
    found = (await _read_places(db, queries, codec, [place], _NO_OWNER, strict=True)).get(place)
    return found if found is not None and found.interrupts else None


async def find_answered(
    db: Connection, queries: Queries, codec: ValueCodec, thread_id: str, interrupt_id: str
) -> AnsweredInterrupt | None:
    """Return an answered interrupt with its answer, even if the thread has continued; else `None`. One round trip."""
    key = {"thread_id": thread_id, "interrupt_id": interrupt_id}
    for checkpoint_id, task_id, at, by, type_, data, is_default, run_id, asked_in, asked_at, asked in await db.fetch(
        queries.get_answered, key
    ):
        reader, place = codec.lenient(), (thread_id, checkpoint_id)
        value = reader.loads(type_, data, f"the answer to {interrupt_id} of thread {thread_id!r}")
        found = [] if asked is None else _interrupts_in(reader, place, task_id, asked_in, asked_at, asked)
        interrupt = next((one for one in found if one.interrupt_id == interrupt_id), None)
        return AnsweredInterrupt(Answer(*place, interrupt_id, value, by, at, is_default, run_id), interrupt)
    return None


async def list_answered(
    db: Connection, queries: Queries, codec: ValueCodec, thread_id: str, checkpoint_ids: Sequence[str], most_bytes: int
) -> tuple[AnsweredInterrupt, ...]:
    """Return the answered interrupts of some checkpoints with their answers, oldest first. One round trip.

    Answers of more than `most_bytes` are left out.
    """
    reader, found = codec.lenient(), []
    key = {"thread_id": thread_id, "checkpoint_ids": [*checkpoint_ids], "most_bytes": most_bytes}
    for (
        checkpoint_id,
        id,
        task_id,
        at,
        by,
        type_,
        data,
        is_default,
        run_id,
        asked_in,
        asked_at,
        asked,
    ) in await db.fetch(queries.list_answered, key):
        place = (thread_id, checkpoint_id)
        value = reader.loads(type_, data, f"the answer to {id} of thread {thread_id!r}")
        # If the task was interrupted again after the answer, the row holds the later interrupt.
        is_known = asked is not None and asked_at <= at
        interrupts = _interrupts_in(reader, place, task_id, asked_in, asked_at, asked) if is_known else []
        interrupt = next((one for one in interrupts if one.interrupt_id == id), None)
        found.append(AnsweredInterrupt(Answer(*place, id, value, by, at, is_default, run_id), interrupt))
    return tuple(found)
