"""The API of runs: enqueue, wait, read events, cancel and retry."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Collection, Iterator, Sequence
from contextlib import ExitStack, suppress
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Required, Unpack

from langgraph.types import Command

from langgraph_pgstate import heavy
from langgraph_pgstate.arguments import identifier, thread_id_of
from langgraph_pgstate.checkpoints.versions import StateVersions
from langgraph_pgstate.codec.frames import content_size
from langgraph_pgstate.codec.values import ValueCodec
from langgraph_pgstate.db.database import (
    AsyncDatabase,
    AsyncPsycopgConnection,
    Database,
    PsycopgConnection,
    join,
    join_async,
)
from langgraph_pgstate.db.runners import blocking
from langgraph_pgstate.leases.guards import refuse_archived
from langgraph_pgstate.options import ThreadKeys
from langgraph_pgstate.process_identity import is_known_dead
from langgraph_pgstate.record.feedback import AsyncRunFeedback, RunFeedback
from langgraph_pgstate.runs import cancelling, outcomes
from langgraph_pgstate.runs import enqueue as enqueueing
from langgraph_pgstate.runs.cursors import Cursor, ThreadCursor, held_once, is_missing
from langgraph_pgstate.runs.enqueue import adopt
from langgraph_pgstate.runs.following import AsyncFollower, Follower
from langgraph_pgstate.runs.handles import AsyncRunHandle, PollPauses, RunHandle
from langgraph_pgstate.runs.notifying import EndListener, on_loop
from langgraph_pgstate.runs.options import EnqueueOptions, KeySource
from langgraph_pgstate.runs.queue import AsyncRunQueue, RunQueue
from langgraph_pgstate.runs.requests import RunEncoder, RunRequest
from langgraph_pgstate.runs.types import EnqueuedRun, RunIds, StreamEvent, ThreadEvent
from langgraph_pgstate.schema.queries import Queries


class EnqueueRequest(EnqueueOptions, total=False):
    """One run of a batch.

    Attributes:
        graph: Name of the graph.
        input: The graph's input.
        command: A command instead of an input.
    """

    graph: Required[str]
    input: Any
    command: Command[Any] | None


def _key(thread_id: str, run_id: str) -> tuple[str, str]:
    return thread_id_of(thread_id), identifier("run_id", str(run_id))


class AsyncRuns(AsyncRunQueue):
    """The queue of runs, and the history of runs: `state.runs`.

    Lists of the history are paged, newest first; pass `page.next` as `cursor` for the next page.

    Args:
        database: The database from which the record is read.
        queries: The queries of the schema.
        queue: The database for the queue; by default `database`.
        codec: Encodes inputs and reads states; by default with LangGraph's own serializer.
        versions: Upcasts states.
        keys: Keys of the config that name a thread's owner.
        graphs: The graphs that may be enqueued. Any by default.
        run_key: Source of a run's queue key if the run is enqueued without the option `key`.

    Attributes:
        encoder: Encodes runs.
        feedback: Scores and comments on runs.
    """

    def __init__(
        self,
        database: AsyncDatabase,
        queries: Queries,
        queue: AsyncDatabase | None = None,
        codec: ValueCodec | None = None,
        versions: StateVersions | None = None,
        keys: ThreadKeys | None = None,
        graphs: Collection[str] | None = None,
        run_key: KeySource | None = None,
    ) -> None:
        super().__init__(database, queries, queue)
        self.encoder = RunEncoder(codec or ValueCodec(), keys, graphs, run_key)
        self.feedback = AsyncRunFeedback(database, queries, codec)
        self._versions = versions
        self._end_listener = EndListener(self._queue)
        self._follower = AsyncFollower(self._queue, queries, self._end_listener)

    async def enqueue(
        self,
        graph: str,
        input: Any = None,
        *,
        command: Command[Any] | None = None,
        connection: AsyncPsycopgConnection | None = None,
        **options: Unpack[EnqueueOptions],
    ) -> AsyncRunHandle:
        """Enqueue a run of a graph, for a worker. Atomic; one round trip. Idempotent with a `run_id`.

        The runs of a thread are executed one after the other, in the order in which they were enqueued.

        Args:
            graph: Name of the graph, as the workers know it.
            input: The graph's input. With `None`, the run continues from the thread's newest checkpoint.
            command: A command instead of an input.
            connection: A connection of the caller. The run is enqueued in the connection's transaction, which the
                caller commits. In autocommit mode without a transaction, the run is committed at once.
            options: See `EnqueueOptions`.

        Raises:
            ConfigurationError: If an argument is invalid, or if `run_id` is the id of a run on another thread, or of a
                run that was not enqueued.
            SerializationError: If a value cannot be stored. The error names the value.
            NotFoundError: If the checkpoint from which the run starts does not exist.
            ThreadBusyError: If the strategy is `reject` and the thread has another run.
            ThreadDeletedError: If the thread was deleted.
            StaleHeadError: If the thread's newest checkpoint is not `expected_head`. If the thread advances after this
                call and before the run begins, the run ends with this error.
        """
        weighed = (input, command, [*options.values()])
        request = await heavy.compute(weighed, self.encoder.one, graph, input, command, options)
        return (await self._enqueue([request], connection))[0]

    async def enqueue_batch(
        self, runs: Sequence[EnqueueRequest | RunRequest], *, connection: AsyncPsycopgConnection | None = None
    ) -> list[AsyncRunHandle]:
        """Enqueue several runs: all or none, in one round trip.

        Args:
            runs: Dicts of the arguments and options of `enqueue`, or results of `encoder.many`.
            connection: As for `enqueue`.

        Raises:
            ConfigurationError: As for `enqueue`. Also if a run has a `multitask_strategy` other than `enqueue`, and an
                earlier run of the batch is on the same thread.
        """
        return await self._enqueue(await heavy.compute(runs, self.encoder.many, runs), connection)

    async def _enqueue(
        self, requests: list[RunRequest], connection: AsyncPsycopgConnection | None
    ) -> list[AsyncRunHandle]:
        if not requests:
            return []
        if connection is None:
            found = await self._put(requests)
        else:
            database = await join_async(connection, self._queue)
            found = await database.run(enqueueing.enqueue, self._queries, requests, notifies=True)
        return [AsyncRunHandle(self, *_parts(run)) for run in found]

    async def _put(self, requests: Sequence[RunRequest]) -> Sequence[EnqueuedRun]:
        notifies = self._notifier.take_turn()
        found = await self._queue.run(enqueueing.enqueue, self._queries, requests, notifies=notifies)
        if not notifies and any(run.is_new for run in found):
            await self._notifier.notify()
        return found

    def handle(self, thread_id: str, run_id: str) -> AsyncRunHandle:
        """Return the handle of a run, without checking that the run exists."""
        return AsyncRunHandle(self, *_key(thread_id, run_id), is_known=False)

    async def status(self, thread_id: str, run_id: str) -> str:
        """Return a run's status. One round trip.

        Raises:
            NotFoundError: If there is no such run.
            ThreadArchivedError: If the thread is archived.
        """
        return await self._queue.run(outcomes.get_status, self._queries, *_key(thread_id, run_id))

    async def wait(
        self,
        thread_id: str,
        run_id: str,
        timeout: float | None = None,  # noqa: ASYNC109
        *,
        is_known: bool = False,
    ) -> Any:
        """Wait until a run ends, and return the state that it left.

        Args:
            thread_id: Id of the thread.
            run_id: Id of the run.
            timeout: Seconds to wait. No limit by default.
            is_known: Whether the run is known to have existed. A known run that is missing counts as rolled back.

        Returns:
            The values of all channels, including channels that are not in the graph's output schema. For an interrupted
            run also `__interrupt__`, a list of interrupts. For an `@entrypoint`, its return value instead. Empty if the
            run has deleted its thread.

        Raises:
            RunFailedError: If the run ended with an error or exceeded its timeout.
            RunCancelledError: If the run was cancelled or rolled back.
            RunTimeoutError: If the run has not ended within the argument `timeout`. The run goes on.
            NotFoundError: If there is no such run.
            ThreadArchivedError: If the thread is archived.
        """
        key, pauses, ended = _key(thread_id, run_id), PollPauses(thread_id, run_id, timeout), asyncio.Event()
        with ExitStack() as stack:
            while True:
                (status, values), is_known = await self._outcome(key, is_known), True
                pause = pauses.next(status)
                if pause is None:
                    return values
                if pauses.is_first:
                    stack.enter_context(self._end_listener.calling(key[1], on_loop(ended.set)))
                with suppress(TimeoutError):
                    async with asyncio.timeout(pause):
                        await ended.wait()
                ended.clear()

    async def _outcome(self, key: tuple[str, str], is_known: bool) -> tuple[str, Any]:
        return await self._queue.run(
            outcomes.get_outcome, self._queries, self.encoder.codec, self._versions, *key, is_known=is_known
        )

    def join(self, run: RunIds, *, last_event_id: str | int | None = None) -> AsyncIterator[StreamEvent]:
        """Yield a run's events, past and live, each once and in order, from any process. The last event is `end`.

        The events of later attempts are included. While readers of this state wait, the database is read every 50 ms,
        once for all readers. The caller may stop iterating at any time.

        Args:
            run: The run: a handle, or any object with a `thread_id` and a `run_id`.
            last_event_id: Id of the last event that the caller has. By default, all events are yielded.

        Raises:
            NotFoundError: If there is no such run, and `last_event_id` is not given.
            ThreadArchivedError: If the thread is archived.
            ConfigurationError: If the run has no event with the id `last_event_id`.
        """
        return self._join(Cursor(self.encoder.codec, *_key(run.thread_id, run.run_id), last_event_id))

    def join_thread(
        self, thread_id: str, *, last_event_id: str | None = None, since: datetime | None = None
    ) -> AsyncIterator[ThreadEvent]:
        """Yield the events of a thread's runs, past and live, one run after another, without end; see `join`.

        By default, the first events are those of the first unfinished run. If all runs have ended, the first events are
        those of the run that ended last.

        Args:
            thread_id: The thread. The thread may have no runs yet.
            last_event_id: Run and id of the last event that the caller has, like `RUN:12`. Runs that ended before this
                run are skipped.
            since: A time with a time zone, instead of `last_event_id`. The events begin with the runs that ended after
                this time, the oldest run first. Only the last hundred runs are read.

        Raises:
            ThreadArchivedError: If the thread is archived.
            ConfigurationError: If the run has no event with the id in `last_event_id`.
        """
        return self._join(ThreadCursor(self.encoder.codec, thread_id_of(thread_id), last_event_id, since))

    async def _join(self, cursor: Cursor | ThreadCursor) -> AsyncIterator[Any]:
        if isinstance(cursor, ThreadCursor):
            # An archived thread has no runs to read, so its reader would wait without end.
            await self._queue.run(refuse_archived, self._queries, cursor.wanted.thread_id)
        while not cursor.has_ended:
            page = await self._follower.next(cursor)
            if is_missing(page):
                await self._queue.run(refuse_archived, self._queries, cursor.wanted.thread_id)
            taking = map(held_once, cursor.take(page))
            if sum(content_size(batch.data) for batch in getattr(page, "batches", ())) > heavy.HEAVY_BYTES:
                del page
                while (held := await heavy.beside(partial(next, taking, None))) is not None:
                    yield held.pop()
            else:
                del page
                for held in taking:
                    yield held.pop()

    async def cancel(
        self,
        thread_id: str,
        run_id: str,
        action: str = "cancel",
        *,
        by: str | None = None,
        unless_retried_after: datetime | None = None,
    ) -> str:
        """Cancel a run. A pending run ends at once. A running run is ended by its worker. Atomic.

        Args:
            thread_id: Id of the thread.
            run_id: Id of the run.
            action: `cancel` ends the run as `cancelled`, `interrupt` as `interrupted`. Both keep the run's checkpoints.
                `rollback` deletes the run with its checkpoints. If the run is cancelled several times, the first action
                counts, but `rollback` always prevails.
            by: Name of the person who cancels the run, stored in an event of the kind `action`.
            unless_retried_after: Refuse the action if a person has retried the run after this time, by the database's
                clock. Pass for example `enqueued_at` of a run that `queued()` has returned.

        Returns:
            The run's status; `running` until the worker ends the run. A run that has ended keeps its status.

        Raises:
            NotFoundError: If there is no such run, or the run was not enqueued.
            ThreadArchivedError: If the thread is archived.
            ConfigurationError: If the action is unknown, or the time has no time zone.
            AlreadyDoneError: If a person has retried the run after `unless_retried_after`. Nothing was written.
        """
        key = _key(thread_id, run_id)
        status = await self._queue.run(cancelling.cancel, self._queries, *key, action, by, unless_retried_after)
        await self._notifier.notify()
        return status

    async def retry(
        self, thread_id: str, run_id: str, *, by: str | None = None, unless_run_within: timedelta | None = None
    ) -> bool:
        """Retry a run that ended without success: enqueue the run, to resume from its newest checkpoint.

        One round trip; safe to repeat. The run's attempts are counted from the start.

        Args:
            thread_id: Id of the thread.
            run_id: Id of the run.
            by: Name of the person who retries the run, stored in an event of the kind `action`.
            unless_run_within: Do not retry the run if another run of the thread was enqueued or began within this time.
                Pass the time since the caller read the run. By default, a run without checkpoints is enqueued behind
                the other runs of the thread.

        Returns:
            Whether the run was enqueued. False if the run succeeded, was discarded, or is in the queue. Also false if
            the run has checkpoints, and another run has continued the thread or is in the queue.

        Raises:
            NotFoundError: If there is no such run, or the run was not enqueued.
            ThreadArchivedError: If the thread is archived.
        """
        key = _key(thread_id, run_id)
        is_enqueued = await self._queue.run(cancelling.retry, self._queries, *key, by, unless_run_within)
        await self._notifier.notify()
        return is_enqueued

    async def adopt(self, graphs: Collection[str] | None = None) -> list[AsyncRunHandle]:
        """Enqueue runs of a plain `graph.invoke` that lost their process, to resume from their newest checkpoints.

        Call this at the start of an application, for example. Safe to repeat. The runs keep their ids. Runs of graphs
        without a name (`compile(name=...)`) are skipped, runs without a checkpoint, and runs whose threads have
        continued with another run.

        Args:
            graphs: Names of graphs in the record; only their runs are enqueued. All by default.
        """
        return [AsyncRunHandle(self, *_parts(run)) for run in await self._adopt(graphs)]

    async def _adopt(self, graphs: Collection[str] | None) -> Sequence[EnqueuedRun]:
        # The operation is repeated after each load of data keys. So one list collects the runs.
        found: list[EnqueuedRun] = []
        await self._queue.run(adopt, self._queries, self.encoder.codec, is_known_dead, graphs, adopted=found)
        await self._notifier.notify()
        return found

    async def close(self) -> None:
        """Stop listening for the ends of runs, until the next `wait` or `join`. `PGState.close` calls this method."""
        self._end_listener.close()

    async def discard(self, thread_id: str, run_id: str, *, by: str | None = None) -> bool:
        """Remove a run from the dead letters, so that the run cannot be retried. The run's history is kept.

        Args:
            thread_id: Id of the thread.
            run_id: Id of the run.
            by: Name of the person who discards the run, stored in an event of the kind `action`.

        Returns:
            Whether the run had failed or was cancelled, and was not discarded before.

        Raises:
            NotFoundError: If there is no such run, or the run was not enqueued.
            ThreadArchivedError: If the thread is archived.
        """
        return await self._queue.run(cancelling.discard, self._queries, *_key(thread_id, run_id), by)


class Runs(RunQueue):
    """Blocking twin of `AsyncRuns`."""

    def __init__(
        self,
        database: Database,
        queries: Queries,
        queue: Database | None = None,
        codec: ValueCodec | None = None,
        versions: StateVersions | None = None,
        keys: ThreadKeys | None = None,
        graphs: Collection[str] | None = None,
        run_key: KeySource | None = None,
    ) -> None:
        super().__init__(database, queries, queue)
        self.encoder = RunEncoder(codec or ValueCodec(), keys, graphs, run_key)
        self.feedback = RunFeedback(database, queries, codec)
        self._versions = versions
        self._end_listener = EndListener(queue or database)
        self._follower = Follower(queue or database, queries, self._end_listener)

    def enqueue(
        self,
        graph: str,
        input: Any = None,
        *,
        command: Command[Any] | None = None,
        connection: PsycopgConnection | None = None,
        **options: Unpack[EnqueueOptions],
    ) -> RunHandle:
        """Blocking twin of `AsyncRuns.enqueue`."""
        return self._enqueue([self.encoder.one(graph, input, command, options)], connection)[0]

    def enqueue_batch(
        self, runs: Sequence[EnqueueRequest | RunRequest], *, connection: PsycopgConnection | None = None
    ) -> list[RunHandle]:
        """Blocking twin of `AsyncRuns.enqueue_batch`."""
        return self._enqueue(self.encoder.many(runs), connection)

    def _enqueue(self, requests: list[RunRequest], connection: PsycopgConnection | None) -> list[RunHandle]:
        if not requests:
            return []
        if connection is None:
            found = self._put(requests)
        else:
            database = join(connection, self._queue.database)
            found = database.run(enqueueing.enqueue, self._queries, requests, notifies=True)
        return [RunHandle(self, *_parts(run)) for run in found]

    _put = blocking(AsyncRuns._put)

    def handle(self, thread_id: str, run_id: str) -> RunHandle:
        """Blocking twin of `AsyncRuns.handle`."""
        return RunHandle(self, *_key(thread_id, run_id), is_known=False)

    status = blocking(AsyncRuns.status)

    def wait(self, thread_id: str, run_id: str, timeout: float | None = None, *, is_known: bool = False) -> Any:
        """Blocking twin of `AsyncRuns.wait`."""
        key, pauses, ended = _key(thread_id, run_id), PollPauses(thread_id, run_id, timeout), threading.Event()
        with ExitStack() as stack:
            while True:
                (status, values), is_known = self._outcome(key, is_known), True
                pause = pauses.next(status)
                if pause is None:
                    return values
                if pauses.is_first:
                    stack.enter_context(self._end_listener.calling(key[1], ended.set))
                ended.wait(pause)
                ended.clear()

    _outcome = blocking(AsyncRuns._outcome)

    def join(self, run: RunIds, *, last_event_id: str | int | None = None) -> Iterator[StreamEvent]:
        """Blocking twin of `AsyncRuns.join`."""
        return self._join(Cursor(self.encoder.codec, *_key(run.thread_id, run.run_id), last_event_id))

    def join_thread(
        self, thread_id: str, *, last_event_id: str | None = None, since: datetime | None = None
    ) -> Iterator[ThreadEvent]:
        """Blocking twin of `AsyncRuns.join_thread`."""
        return self._join(ThreadCursor(self.encoder.codec, thread_id_of(thread_id), last_event_id, since))

    def _join(self, cursor: Cursor | ThreadCursor) -> Iterator[Any]:
        if isinstance(cursor, ThreadCursor):
            self._queue.database.run(refuse_archived, self._queries, cursor.wanted.thread_id)
        while not cursor.has_ended:
            page = self._follower.next(cursor)
            if is_missing(page):
                self._queue.database.run(refuse_archived, self._queries, cursor.wanted.thread_id)
            yield from cursor.take(page)

    cancel = blocking(AsyncRuns.cancel)
    retry = blocking(AsyncRuns.retry)

    def adopt(self, graphs: Collection[str] | None = None) -> list[RunHandle]:
        """Blocking twin of `AsyncRuns.adopt`."""
        return [RunHandle(self, *_parts(run)) for run in self._adopt(graphs)]

    _adopt = blocking(AsyncRuns._adopt)
    discard = blocking(AsyncRuns.discard)
    close = blocking(AsyncRuns.close)


def _parts(run: EnqueuedRun) -> tuple[str, str, bool]:
    return run.thread_id, run.run_id, run.is_new
