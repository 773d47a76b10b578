"""Answers to interrupts, given by a person or by default, and the commands that resume a graph with answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from uuid import uuid4

from langgraph.types import Command

from langgraph_pgstate.arguments import check_key_size, text_of
from langgraph_pgstate.checkpoints.event_chains import insert_events
from langgraph_pgstate.codec.values import ValueCodec
from langgraph_pgstate.db.protocol import Connection, Row
from langgraph_pgstate.errors import (
    AlreadyAnsweredError,
    ConfigurationError,
    NotFoundError,
    StaleHeadError,
    ThreadBusyError,
)
from langgraph_pgstate.interrupts.pending import Interrupted, Place, read_interrupted
from langgraph_pgstate.interrupts.types import Answer, PendingInterrupt
from langgraph_pgstate.langgraph_compat import is_digest
from langgraph_pgstate.leases.guards import refuse_archived
from langgraph_pgstate.runs.enqueue import enqueue
from langgraph_pgstate.runs.inputs import read_field
from langgraph_pgstate.runs.options import EnqueueOptions
from langgraph_pgstate.runs.outcomes import resumption
from langgraph_pgstate.runs.requests import RunRequest, read_options, request_run
from langgraph_pgstate.runs.types import EnqueuedRun
from langgraph_pgstate.schema.queries import Queries

_SHOWN: Final = 60
_DEFAULT_AGAIN: Final = timedelta(hours=1)
# Time until a thread with another run gets its default answer again, so that such threads do not keep others waiting.
_BUSY_AGAIN: Final = timedelta(minutes=1)
_UNKNOWN: Final = datetime.fromtimestamp(0, UTC)


@dataclass(frozen=True, slots=True)
class AnswerRequest:
    """A validated and encoded answer.

    Attributes:
        value: The answer as `(type, bytes)`.
        answered_by: Name of the answerer.
        interrupt_id: Id of the interrupt; `None` if the thread has only one.
        answer_id: Random id of this call. A retry finds its own answer by this id. The resuming run has this id, too.
        plain: The answer before it was encoded.
        is_default: Whether this is the default answer.
    """

    value: tuple[str, bytes]
    answered_by: str | None
    interrupt_id: str | None
    answer_id: str
    plain: Any
    is_default: bool = False


def request_answer(
    codec: ValueCodec, value: Any, by: str | None, interrupt_id: str | None, *, is_default: bool = False
) -> AnswerRequest:
    """Validate and encode an answer.

    Raises:
        ConfigurationError: If the answer is `None`, or an id cannot be stored.
        SerializationError: If the value cannot be stored.
        UnsafeTypeError: If the value has a type that may not be built when it is read.
    """
    if value is None:
        raise ConfigurationError("the answer must not be None, which means no answer: use False, {} or a string")
    encoded = codec.dumps_exactly("answer", value)
    codec.loads(*encoded, "an answer")
    by, interrupt_id = text_of("by", by), text_of("interrupt_id", interrupt_id)
    return AnswerRequest(encoded, by, interrupt_id, str(uuid4()), value, is_default)


async def answer(
    db: Connection,
    queries: Queries,
    codec: ValueCodec,
    thread_id: str,
    request: AnswerRequest,
    *,
    must_enqueue: bool = False,
) -> Answer:
    """Store the answer to an interrupt and its event, atomically. Return the stored answer.

    If the interrupted run was enqueued, the resuming run is enqueued in the same transaction.

    Raises:
        NotFoundError: If the thread has no such interrupt.
        ThreadBusyError: If a run that was enqueued after the interrupt is in the queue, because it may answer first.
        ThreadArchivedError: If the thread is archived.
        AlreadyAnsweredError: If the interrupt is answered already.
        ConfigurationError: If there are several interrupts and none is named. With `must_enqueue`, also if the
            interrupted run was not enqueued.
    """
    interrupted = await read_interrupted(db, queries, codec, thread_id)
    if interrupted is None:
        await refuse_archived(db, queries, thread_id)
    interrupt = _chosen(interrupted, thread_id, request)
    assert interrupted is not None
    checkpoint_id = interrupted.place[1]
    await _put_answer(db, queries, codec, interrupted.place, interrupt, request, must_enqueue=must_enqueue)
    key = {"thread_ids": [thread_id], "checkpoint_ids": [checkpoint_id]}
    for _, _, interrupt_id, answer_id, answered_at, by, _, _, is_default, run_id in await db.fetch(
        queries.get_answers, key
    ):
        if interrupt_id == interrupt.interrupt_id:
            if answer_id != request.answer_id:
                raise AlreadyAnsweredError(thread_id, interrupt_id, by, answered_at, is_default)
            return Answer(thread_id, checkpoint_id, interrupt_id, request.plain, by, answered_at, is_default, run_id)
    raise NotFoundError(
        f"interrupt {interrupt.interrupt_id} is no longer pending, because thread {thread_id!r} has just advanced"
    )


async def resume(
    db: Connection,
    queries: Queries,
    codec: ValueCodec,
    thread_id: str,
    checkpoint_id: str,
    graph: str | None,
    configurable: Mapping[str, Any],
    queue: str,
) -> EnqueuedRun:
    """Enqueue a run that resumes an interrupted thread with its answers, if any. One transaction.

    If the interrupted run was enqueued, the new run has the same graph, queue, config and options. Otherwise, `graph`,
    `configurable` and `queue` are used.

    Raises:
        StaleHeadError: If the thread has advanced from the checkpoint.
        ThreadBusyError: If the thread has a run in the queue.
        ConfigurationError: If interrupts have no answer yet, or no graph is given and the run was not enqueued.
        NotFoundError: If there is no thread.
        ThreadArchivedError: If the thread is archived.
    """
    async with db.transaction():
        await db.fetch(queries.lock_threads_for_no_key_update, {"thread_ids": [thread_id]})
        head = await db.fetch(queries.get_head, {"thread_id": thread_id})
        if not head:
            await refuse_archived(db, queries, thread_id)
            raise NotFoundError(f"there is no thread {thread_id!r}")
        if head[0][0] != checkpoint_id:
            raise StaleHeadError(thread_id, "", checkpoint_id, head[0][0])
        interrupted = await read_interrupted(db, queries, codec, thread_id)
        if interrupted is not None and interrupted.open_interrupts:
            raise ConfigurationError(
                f"interrupts of thread {thread_id!r} must be answered first: {_listed(interrupted)}"
            )
        answers = [] if interrupted is None else interrupted.answers
        asked_by = None if interrupted is None else interrupted.interrupts[-1].run_id
        if asked_by is None:
            rows = await db.fetch(queries.get_newest_run, {"thread_id": thread_id})
            asked_by = rows[0][0] if rows else None
        run_id = str(uuid4())
        # If a run has only one answer, the run gets the answer's id, so that `Answer.run_id` can be found.
        if len(answers) == 1 and interrupted is not None and answers[0].run_id is None:
            run_id = interrupted.answer_ids[answers[0].interrupt_id]
        command = command_of(answers)
        request = await resumption(db, queries, codec, thread_id, asked_by, run_id, command, checkpoint_id)
        if request is None:
            if graph is None:
                raise ConfigurationError(
                    f"the interrupted run of thread {thread_id!r} was not enqueued: name its graph"
                )
            options: EnqueueOptions = {"thread_id": thread_id, "run_id": run_id, "queue": queue}
            options["expected_head"] = checkpoint_id
            options["config"] = {"configurable": dict(configurable)}
            request = request_run(codec, graph, command=command, **options)
        return (await enqueue(db, queries, [replace(request, strategy="reject")], notifies=True))[0]


async def enqueue_answers(
    db: Connection,
    queries: Queries,
    codec: ValueCodec,
    asked: Mapping[str, str | None],
    request: RunRequest,
    known: Sequence[str] = (),
) -> EnqueuedRun:
    """Enqueue a run whose command answers interrupts; see `AsyncInterrupts.enqueue_answers`."""
    thread_id = request.thread_id
    async with db.transaction():
        await db.fetch(queries.lock_threads_for_no_key_update, {"thread_ids": [thread_id]})
        interrupted = await read_interrupted(db, queries, codec, thread_id)
        pending = {} if interrupted is None else {one.interrupt_id: one for one in interrupted.open_interrupts}
        for id, run_id in asked.items():
            interrupt = pending.get(id)
            if interrupted is None or interrupt is None or interrupt.run_id != run_id:
                raise NotFoundError(f"thread {thread_id!r} has no pending interrupt {id}")
            other = await _other_run(db, queries, interrupted.place, interrupt, request.run_id, *known)
            if other is not None:
                raise ThreadBusyError(thread_id, *other)
        return (await enqueue(db, queries, [request], notifies=True))[0]


async def find_due_defaults(
    db: Connection, queries: Queries, graphs: Sequence[str], limit: int = 100
) -> list[tuple[str, str]]:
    """Return interrupted runs of some graphs whose default answer is due. One round trip."""
    rows = await db.fetch(queries.find_due_answers, {"graphs": [*graphs], "page_size": limit})
    return [(thread_id, run_id) for thread_id, run_id in rows]


async def answer_by_default(
    db: Connection, queries: Queries, codec: ValueCodec, thread_id: str, run_id: str
) -> list[Answer]:
    """Give a run's default answer to the interrupts that were not answered in time. Return the answers given.

    Like `answer`, this enqueues runs that resume the thread. One transaction; safe to repeat and to run concurrently. A
    locked thread is skipped.

    Raises:
        PGStateError: If the interrupts or the answer cannot be read, or their data keys not loaded. The caller then
            calls `postpone_default`.
    """
    key = {"thread_id": thread_id, "run_id": run_id}
    async with db.transaction():
        if not await db.fetch(queries.lock_free_threads, {"thread_ids": [thread_id]}):
            return []
        rows = await db.fetch(queries.get_default_answer, key)
        if not rows:
            return []
        data, options, now, is_interrupted = rows[0]
        where = f"run {run_id!r} of thread {thread_id!r}"
        after = timedelta(seconds=read_options(options, where)["answer_after"])
        interrupted = await read_interrupted(db, queries, codec, thread_id)
        asked = []
        # A run that was retried sets the time again if it is interrupted again. A cancelled run gets no answer.
        if interrupted is not None and is_interrupted:
            asked = [one for one in interrupted.open_interrupts if one.run_id == run_id]
        value = read_field(codec, data, "default_answer", where)
        given = []
        earliest = now
        for interrupt in asked:
            if interrupted is None or interrupt.error is not None or interrupt.asked_at + after > now:
                continue
            request = request_answer(codec, value, None, interrupt.interrupt_id, is_default=True)
            if await _other_run(db, queries, interrupted.place, interrupt) is not None:
                # If the other run does not answer the interrupt, a later call does.
                earliest = now + _BUSY_AGAIN
                continue
            if await _put_answer(db, queries, codec, interrupted.place, interrupt, request):
                place = (*interrupted.place, interrupt.interrupt_id)
                given.append(Answer(*place, value, None, now, True, request.answer_id))
        # After an answer, set no later time for this run. A new run resumes, and raises the unanswered interrupts
        # again.
        times = (max(earliest, one.asked_at + after) for one in asked if one.error is None)
        later = None if given else min(times, default=None)
        await db.execute(queries.set_answer_at, {**key, "answer_at": later})
    return given


async def postpone_default(db: Connection, queries: Queries, thread_id: str, run_id: str) -> None:
    """Try a due default answer, which cannot be given now, again after an hour. One statement."""
    await db.execute(queries.postpone_answer, {"thread_id": thread_id, "run_id": run_id, "time": _DEFAULT_AGAIN})


async def _put_answer(
    db: Connection,
    queries: Queries,
    codec: ValueCodec,
    place: Place,
    interrupt: PendingInterrupt,
    request: AnswerRequest,
    *,
    must_enqueue: bool = False,
) -> bool:
    """Store an answer and its event, and enqueue the resuming run.

    Return false if there is an answer already, or the interrupt is no longer pending.
    """
    thread_id, checkpoint_id = place
    check_key_size("thread_id, checkpoint_id and interrupt_id", thread_id, checkpoint_id, interrupt.interrupt_id)
    type_, data = request.value
    parameters = {
        "thread_id": thread_id,
        "checkpoint_id": checkpoint_id,
        "interrupt_id": interrupt.interrupt_id,
        "task_id": interrupt.task_id,
        "run_id": interrupt.run_id,
        "answer_id": request.answer_id,
        "answered_by": request.answered_by,
        "value_type": type_,
        "value": data,
        "is_default": request.is_default,
    }
    given = Answer(thread_id, checkpoint_id, interrupt.interrupt_id, request.plain, request.answered_by, _UNKNOWN)
    # The run's id is the call's `answer_id`, so that a repeated call enqueues the same run.
    resuming = await resumption(db, queries, codec, thread_id, interrupt.run_id, request.answer_id, command_for(given))
    if resuming is None:
        if must_enqueue:
            raise ConfigurationError(
                f"the interrupted run of thread {thread_id!r} was not enqueued: call interrupts.answer, and invoke the "
                "graph with the returned command"
            )
        return bool(await insert_events(db, queries, queries.put_answer, parameters))
    async with db.transaction():
        # Lock the thread before the answer, as `answer_by_default` does.
        await db.fetch(queries.lock_threads_for_no_key_update, {"thread_ids": [thread_id]})
        if not await insert_events(db, queries, queries.put_answer, parameters):
            return False
        other = await _other_run(db, queries, place, interrupt)
        if other is not None:
            raise ThreadBusyError(thread_id, *other)
        await enqueue(db, queries, [resuming], notifies=True)
    return True


async def _other_run(
    db: Connection, queries: Queries, place: Place, interrupt: PendingInterrupt, *known: str
) -> Row | None:
    """Return a run that was enqueued on the thread after an interrupt, and its time; `None` if there is none.

    That run may answer the interrupt, or raise another interrupt, which would get an answer to the earlier interrupt.
    `known` runs and the runs of other answers do not count. Call this in a transaction that has locked the thread's
    row.
    """
    run_ids = [*known] if interrupt.run_id is None else [interrupt.run_id, *known]
    key = {"thread_id": place[0], "checkpoint_id": place[1], "run_ids": run_ids}
    rows = await db.fetch(queries.find_other_run, key)
    return rows[0] if rows else None


def _chosen(interrupted: Interrupted | None, thread_id: str, request: AnswerRequest) -> PendingInterrupt:
    """Return the interrupt to which an answer belongs."""
    if interrupted is None:
        raise NotFoundError(f"thread {thread_id!r} has no pending interrupt")
    if request.interrupt_id is not None:
        candidates = [one for one in interrupted.interrupts if one.interrupt_id == request.interrupt_id]
        if not candidates:
            raise NotFoundError(
                f"thread {thread_id!r} has no pending interrupt {request.interrupt_id}; pending: {_listed(interrupted)}"
            )
    else:
        # A retry after a lost connection finds its own answer.
        own = [
            one for one in interrupted.interrupts if interrupted.answer_ids.get(one.interrupt_id) == request.answer_id
        ]
        readable = [one for one in interrupted.open_interrupts if one.error is None]
        candidates = own or readable or interrupted.open_interrupts or interrupted.interrupts
        if len(candidates) > 1 and interrupted.open_interrupts:
            raise ConfigurationError(
                f"interrupt_id must name one of the several pending interrupts of thread {thread_id!r}: "
                f"{_listed(interrupted)}"
            )
    interrupt = candidates[0]
    if interrupt.error is not None:
        raise NotFoundError(f"the interrupt of thread {thread_id!r} cannot be read: {interrupt.error}")
    given = interrupted.answer(interrupt.interrupt_id)
    if given is not None and interrupted.answer_ids[interrupt.interrupt_id] != request.answer_id:
        raise AlreadyAnsweredError(
            thread_id, interrupt.interrupt_id, given.answered_by, given.answered_at, given.is_default
        )
    return interrupt


def _listed(interrupted: Interrupted) -> str:
    known = (one for one in interrupted.open_interrupts if one.error is None)
    return "; ".join(f"{one.interrupt_id} {str(one.value)[:_SHOWN]!r}" for one in known) or "none"


def command_for(answer: Answer) -> Command[Any]:
    """Return the command that resumes a graph with one answer."""
    if is_digest(answer.interrupt_id):
        return Command(resume={answer.interrupt_id: answer.value})
    # LangGraph accepts only digests as ids in `resume`, so leave this id out.
    return Command(resume=answer.value)


def command_of(answers: Sequence[Answer]) -> Command[Any] | None:
    """Return the command that resumes a graph with some answers; `None` if there are no answers."""
    if not answers:
        return None
    if len(answers) == 1:
        return command_for(answers[0])
    return Command(resume={answer.interrupt_id: answer.value for answer in answers})
