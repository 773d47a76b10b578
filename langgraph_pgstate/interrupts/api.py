"""Interrupts of threads and their answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Unpack

from langgraph.types import Command

from langgraph_pgstate.arguments import configurable_of, identifier, thread_id_of
from langgraph_pgstate.codec.values import ValueCodec
from langgraph_pgstate.db.database import AsyncDatabase, Database
from langgraph_pgstate.db.runners import BlockingRunner, blocking
from langgraph_pgstate.interrupts import answers
from langgraph_pgstate.interrupts import pending as interrupts
from langgraph_pgstate.interrupts.types import (
    Answer,
    AnsweredInterrupt,
    InterruptedThread,
    InterruptFilter,
    PendingInterrupt,
)
from langgraph_pgstate.paging import Page
from langgraph_pgstate.runs.api import AsyncRuns, Runs
from langgraph_pgstate.runs.handles import AsyncRunHandle, RunHandle
from langgraph_pgstate.runs.options import DEFAULT_QUEUE
from langgraph_pgstate.runs.requests import RunRequest
from langgraph_pgstate.runs.types import EnqueuedRun
from langgraph_pgstate.schema.queries import Queries


class AsyncInterrupts:
    """Access to the interrupts that graphs raise with `interrupt()`. `state.interrupts` is an instance.

    Args:
        database: The database.
        queries: The queries of the schema.
        runs: Makes the handles of the runs that resume threads.
        codec: Reads interrupts and encodes answers. By default, with LangGraph's own serializer.
    """

    def __init__(
        self, database: AsyncDatabase, queries: Queries, runs: AsyncRuns, codec: ValueCodec | None = None
    ) -> None:
        self._database, self._queries, self._runs, self._codec = database, queries, runs, codec or ValueCodec()

    async def threads(self, **filters: Unpack[InterruptFilter]) -> Page[InterruptedThread]:
        """Return a page of threads with unanswered interrupts, newest interrupt first.

        Needs no recorder. Breakpoints (`interrupt_before`) take no answer and are not listed. Answered interrupts are
        read and skipped until a prune removes them, so a page may hold fewer than `limit` threads and have a next page.

        Args:
            **filters: See `InterruptFilter`.

        Raises:
            ConfigurationError: If an argument is invalid.
        """
        request = interrupts.request_interrupted(**filters)
        return await self._database.run(interrupts.list_interrupted, self._queries, self._codec, request)

    async def list(self, thread_id: str) -> tuple[PendingInterrupt, ...]:
        """Return the unanswered interrupts of one thread, oldest first. Three round trips."""
        found = await self._database.run(
            interrupts.get_interrupted, self._queries, self._codec, thread_id_of(thread_id)
        )
        return found.interrupts if found else ()

    async def answer(
        self, thread_id: str, value: Any, *, by: str | None = None, interrupt_id: str | None = None
    ) -> Command[Any]:
        """Store the answer to an interrupt, and an event that names the answerer, atomically.

        Each interrupt can be answered once. If the interrupted run was enqueued, a run that resumes the thread is
        enqueued in the same transaction. Otherwise, invoke the graph with the returned command, or get the command in
        any process by `resume`. After a lost connection, the call is repeated, and recognizes its own answer.

        Args:
            thread_id: The thread.
            value: The answer: any value except `None` that the serializer can store.
            by: Name of the answerer.
            interrupt_id: The interrupt. Required if the thread has several unanswered interrupts.

        Returns:
            The command that resumes the graph with this answer: `graph.invoke(command, config)`.

        Raises:
            NotFoundError: If the thread has no such interrupt.
            ThreadArchivedError: If the thread is archived.
            AlreadyAnsweredError: If the interrupt is answered already.
            ThreadBusyError: If a run that was enqueued after the interrupt is in the queue. It may answer the interrupt
                and raise another one, which would get this answer. Nothing was written.
            ConfigurationError: If there are several interrupts and none is named. The message lists the interrupts.
            SerializationError: If the value cannot be stored.
            UnsafeTypeError: If the value has a type that may not be built when it is read.
        """
        request = await self._database.compute(value, answers.request_answer, self._codec, value, by, interrupt_id)
        found = await self._database.run(answers.answer, self._queries, self._codec, thread_id_of(thread_id), request)
        return answers.command_for(found)

    async def answer_run(
        self, thread_id: str, value: Any, *, by: str | None = None, interrupt_id: str | None = None
    ) -> AsyncRunHandle:
        """Answer an interrupt of an enqueued run, and return the run that resumes the thread; see `answer`.

        Raises:
            ConfigurationError: If the interrupted run was not enqueued, or there are several interrupts and none is
                named.
            PGStateError: As `answer` does.
        """
        return self._runs.handle(*await self._answer_run(thread_id, value, by, interrupt_id))

    async def _answer_run(
        self, thread_id: str, value: Any, by: str | None, interrupt_id: str | None
    ) -> tuple[str, str]:
        request = await self._database.compute(value, answers.request_answer, self._codec, value, by, interrupt_id)
        found = await self._database.run(
            answers.answer, self._queries, self._codec, thread_id_of(thread_id), request, must_enqueue=True
        )
        return found.thread_id, request.answer_id

    async def resume_run(
        self,
        thread_id: str,
        checkpoint_id: str,
        *,
        graph: str | None = None,
        config: Mapping[str, Any] | None = None,
        queue: str = DEFAULT_QUEUE,
    ) -> AsyncRunHandle:
        """Enqueue a run that resumes an interrupted thread with its answers.

        Without answers, for example after a breakpoint, the run continues without input. If the interrupted run was
        enqueued, the new run has the same graph, queue, config and options.

        Args:
            thread_id: The thread.
            checkpoint_id: The thread's newest checkpoint that the caller has seen.
            graph: The graph, if the interrupted run was not enqueued.
            config: The config, if the interrupted run was not enqueued.
            queue: The queue, if the interrupted run was not enqueued.

        Raises:
            StaleHeadError: If the thread has advanced from the checkpoint.
            ThreadBusyError: If the thread has a run in the queue.
            ConfigurationError: If interrupts have no answer yet, or no graph is given and the run was not enqueued.
            NotFoundError: If there is no such thread.
            ThreadArchivedError: If the thread is archived.
        """
        return self._runs.handle(*await self._resume_run(thread_id, checkpoint_id, graph, config, queue))

    async def _resume_run(
        self, thread_id: str, checkpoint_id: str, graph: str | None, config: Mapping[str, Any] | None, queue: str
    ) -> tuple[str, str]:
        key = thread_id_of(thread_id), identifier("checkpoint_id", checkpoint_id)
        configurable = configurable_of(config)
        made = await self._database.run(answers.resume, self._queries, self._codec, *key, graph, configurable, queue)
        return made.thread_id, made.run_id

    async def enqueue_answers(
        self, asked: Mapping[str, str | None], request: RunRequest, known: Sequence[str] = ()
    ) -> EnqueuedRun:
        """Enqueue a run whose command answers several interrupts of its thread. One transaction; safe to repeat.

        Args:
            asked: The interrupts, each with the run that has raised it.
            request: The run, as `runs.encoder` makes it.
            known: Runs that answer other interrupts of the thread.

        Raises:
            NotFoundError: If an interrupt is answered, or another run has raised it since.
            ThreadBusyError: If a run that was enqueued after an interrupt is in the queue, because it may answer first.
        """
        key = asked, request, known
        return await self._database.run(answers.enqueue_answers, self._queries, self._codec, *key)

    async def answers(self, thread_id: str) -> tuple[Answer, ...]:
        """Return the answers of a thread that no run has used yet, oldest first. Three round trips."""
        found = await self._database.run(
            interrupts.get_interrupted, self._queries, self._codec, thread_id_of(thread_id)
        )
        return found.answers if found else ()

    async def answered(self, thread_id: str, interrupt_id: str) -> AnsweredInterrupt | None:
        """Return an answered interrupt with its answer, even if the thread has continued. One round trip.

        Return `None` if the interrupt has no answer, or a prune has removed the checkpoint. Types that the serializer
        may not build are returned as plain data.
        """
        key = thread_id_of(thread_id), identifier("interrupt_id", interrupt_id)
        return await self._database.run(interrupts.find_answered, self._queries, self._codec, *key)

    async def decisions(
        self, thread_id: str, checkpoint_ids: Sequence[str], *, most_bytes: int = 100_000
    ) -> tuple[AnsweredInterrupt, ...]:
        """Return the answered interrupts of some checkpoints with their answers, oldest first. One round trip.

        The thread may have continued, but a prune removes answers. Types that the serializer may not build are returned
        as plain data.

        Args:
            thread_id: The thread.
            checkpoint_ids: The interrupted checkpoints, which events of the kind `answer` name.
            most_bytes: Answers of more bytes are left out. Interrupts of more bytes are `None`.
        """
        key = thread_id_of(thread_id), checkpoint_ids, most_bytes
        return await self._database.run(interrupts.list_answered, self._queries, self._codec, *key)

    async def resume(self, thread_id: str) -> Command[Any] | None:
        """Return the command that resumes a thread with all answers so far; `None` if there are no answers.

        The graph raises unanswered interrupts again. After a crash, the call returns the same answers, until the
        interrupted tasks have stored their results.
        """
        return answers.command_of(await AsyncInterrupts.answers(self, thread_id))


class Interrupts:
    """Blocking twin of `AsyncInterrupts`."""

    def __init__(self, database: Database, queries: Queries, runs: Runs, codec: ValueCodec | None = None) -> None:
        self._database, self._queries, self._runs = BlockingRunner(database), queries, runs
        self._codec = codec or ValueCodec()

    threads = blocking(AsyncInterrupts.threads)
    list = blocking(AsyncInterrupts.list)
    answer = blocking(AsyncInterrupts.answer)

    def answer_run(
        self, thread_id: str, value: Any, *, by: str | None = None, interrupt_id: str | None = None
    ) -> RunHandle:
        """Blocking twin of `AsyncInterrupts.answer_run`."""
        return self._runs.handle(*self._answer_run(thread_id, value, by, interrupt_id))

    _answer_run = blocking(AsyncInterrupts._answer_run)

    def resume_run(
        self,
        thread_id: str,
        checkpoint_id: str,
        *,
        graph: str | None = None,
        config: Mapping[str, Any] | None = None,
        queue: str = DEFAULT_QUEUE,
    ) -> RunHandle:
        """Blocking twin of `AsyncInterrupts.resume_run`."""
        return self._runs.handle(*self._resume_run(thread_id, checkpoint_id, graph, config, queue))

    _resume_run = blocking(AsyncInterrupts._resume_run)
    enqueue_answers = blocking(AsyncInterrupts.enqueue_answers)
    answers = blocking(AsyncInterrupts.answers)
    answered = blocking(AsyncInterrupts.answered)
    decisions = blocking(AsyncInterrupts.decisions)
    resume = blocking(AsyncInterrupts.resume)
