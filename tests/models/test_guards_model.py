"""Two or three workers on one thread, in every order: no acknowledged checkpoint is lost, no stale holder writes.

The workers run the real operations; before each statement they wait for their turn. A statement that waits for another
worker's lock gives the turn away, as it would on a busy server.
"""

from __future__ import annotations

import itertools
import queue
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from support import GUARD_SECONDS, config_of, put_arguments

from langgraph_pgstate import PGStateSaver
from langgraph_pgstate.checkpoints import sending, writes
from langgraph_pgstate.checkpoints.planning import plan_put
from langgraph_pgstate.checkpoints.requests import request_put
from langgraph_pgstate.checkpoints.writes import request_writes
from langgraph_pgstate.codec.values import ValueCodec
from langgraph_pgstate.db.adapters import BlockingConnection, run_blocking
from langgraph_pgstate.errors import (
    LeaseHeldError,
    LeaseLostError,
    PGStateError,
    StaleHeadError,
    ThreadDeletedError,
)
from langgraph_pgstate.leases import holding as leases
from langgraph_pgstate.leases.guards import Guard
from langgraph_pgstate.schema.queries import queries
from langgraph_pgstate.threads import rows as threads
from tests.leases.test_guards import rows

REFUSALS = (StaleHeadError, LeaseLostError, LeaseHeldError, ThreadDeletedError)


class SteppingConnection:
    """A port that waits before each statement until it is let go on; a pipeline is as many statements."""

    def __init__(self, connection: psycopg.Connection, gate: Callable[[], None]) -> None:
        self._db = BlockingConnection(connection)
        self._connection = connection
        self._gate = gate
        self.keys, self.recall, self.remember = None, self._db.recall, self._db.remember

    @property
    def is_in_transaction(self) -> bool:
        return self._db.is_in_transaction

    async def fetch(self, query: Any, parameters: Any) -> Any:
        self._gate()
        return await self._db.fetch(query, parameters)

    async def execute(self, query: Any, parameters: Any) -> int:
        self._gate()
        return await self._db.execute(query, parameters)

    async def execute_together(self, statements: Any) -> list[int]:
        counts = []
        with self._connection.transaction():
            for query, parameters in statements:
                counts.append(max(0, await self.execute(query, parameters)))
            self._gate()
        return counts

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[None]:
        with self._connection.transaction():
            yield
            self._gate()


class Worker:
    """A thread with a connection that runs operations step by step."""

    def __init__(self, dsn: str) -> None:
        self.connection = psycopg.connect(dsn, autocommit=True)
        self.pid = self.connection.info.backend_pid
        self.db = SteppingConnection(self.connection, self._wait)
        self._jobs: queue.SimpleQueue[Callable[[Any], Any] | None] = queue.SimpleQueue()
        self._turns: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._stopped = threading.Event()
        self.is_done = True
        self.answer: Any = None
        threading.Thread(target=self._work, daemon=True).start()

    def begin(self, operation: Callable[[Any], Any]) -> None:
        """Run an operation up to its first statement."""
        self.is_done, self.answer = False, None
        self._stopped.clear()
        self._jobs.put(operation)
        assert self._stopped.wait(GUARD_SECONDS)

    def step(self, watcher: psycopg.Connection) -> None:
        """Run one statement, until it is done or waits for somebody."""
        if self.is_done:
            return
        if self._stopped.is_set():
            self._stopped.clear()
            self._turns.put(True)
        for attempt in itertools.count():
            if self._stopped.wait(0.002):
                return
            # Not at once: a statement takes a moment, and the question costs more than it.
            blocked = "SELECT cardinality(pg_blocking_pids(%s)) > 0"
            if attempt and watcher.execute(blocked, [self.pid]).fetchone() == (True,):
                return
            assert attempt < 10_000

    def close(self) -> None:
        self._jobs.put(None)
        self.connection.close()

    def _wait(self) -> None:
        self._stopped.set()
        self._turns.get()

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                self.answer = job(self.db)
            except BaseException as error:
                self.answer = error
            self.is_done = True
            self._stopped.set()


@pytest.fixture
def workers(dsn: str, saver: PGStateSaver) -> Iterator[list[Worker]]:
    found = [Worker(dsn) for _ in range(3)]
    yield found
    for worker in found:
        worker.close()


def play(workers: list[Worker], order: tuple[int, ...], watcher: psycopg.Connection, *jobs: Any) -> list[Any]:
    """Run jobs at once in an order of turns; whoever still has something to do then ends it. What each answered."""
    for worker, job in zip(workers, jobs, strict=False):
        worker.begin(job)
    for number in order:
        workers[number].step(watcher)
    used = workers[: len(jobs)]
    for _ in range(200):
        if all(worker.is_done for worker in used):
            return [worker.answer for worker in used]
        for worker in used:
            worker.step(watcher)
    raise AssertionError("they wait for each other for ever")


def orders(*turns: int) -> list[tuple[int, ...]]:
    """Every order in which workers can take so many turns each."""
    if not any(turns):
        return [()]
    found = []
    for number, left in enumerate(turns):
        if left:
            rest = [*turns]
            rest[number] -= 1
            found += [(number, *order) for order in orders(*rest)]
    return found


def putting(schema: str, config: Any, step: int, guard: Guard) -> tuple[str, Callable[[Any], Any]]:
    """A put: the id of its checkpoint, and how to run it. The id is that of its content."""
    codec = ValueCodec(None)
    arguments = put_arguments(config, step, count=step)
    request = request_put(codec, *arguments)
    request.touches_thread = True
    plan = plan_put(codec, request, None, {})

    def put(db: Any) -> Any:
        return run_blocking(sending.put(db, queries(schema), codec, plan, None, config, guard))

    return arguments[1]["id"], put


def writing(schema: str, config: Any, guard: Guard) -> Callable[[Any], Any]:
    request = request_writes(ValueCodec(None), config, [("messages", "late")], "task", "")
    return lambda db: run_blocking(writes.put_writes(db, queries(schema), request, guard))


def stored(connection: psycopg.Connection, schema: str, thread_id: str) -> dict[str, str | None]:
    query = f"SELECT checkpoint_id, parent_checkpoint_id FROM {schema}.checkpoints WHERE thread_id = %s"
    return dict(connection.execute(query, [thread_id]).fetchall())  # type: ignore[arg-type]


@pytest.mark.slow
@pytest.mark.parametrize("with_thread", [False, True])
@pytest.mark.parametrize("is_first", [False, True])
def test_two_that_advance_one_head(
    is_first: bool, with_thread: bool, workers: list[Worker], saver: PGStateSaver, connection: psycopg.Connection
) -> None:
    guard = Guard(head=True, thread=with_thread)
    for number, order in enumerate(orders(4, 4)):
        thread_id = f"t{number}"
        config: Any = config_of(thread_id)
        if not is_first:
            config = saver.put(*put_arguments(config, 0, count=0))
        puts = [putting(saver.schema, config, 1, guard) for _ in range(2)]
        answers = play(workers, order, connection, *(put for _, put in puts))
        kept = [id for (id, _), answer in zip(puts, answers, strict=True) if not isinstance(answer, Exception)]
        refused = [answer for answer in answers if isinstance(answer, Exception)]
        assert [*map(type, refused)] == [StaleHeadError], order
        assert [error.winner_id for error in refused] == kept, order
        found = stored(connection, saver.schema, thread_id)
        assert [id for id, _ in puts if id in found] == kept, order


@pytest.mark.slow
def test_three_that_advance_one_head(
    workers: list[Worker], saver: PGStateSaver, connection: psycopg.Connection
) -> None:
    guard = Guard(head=True, thread=True)
    for number, order in enumerate(orders(2, 2, 2)):
        thread_id = f"t{number}"
        config = saver.put(*put_arguments(config_of(thread_id), 0, count=0))
        puts = [putting(saver.schema, config, 1, guard) for _ in range(3)]
        answers = play(workers, order, connection, *(put for _, put in puts))
        kept = [id for (id, _), answer in zip(puts, answers, strict=True) if not isinstance(answer, Exception)]
        assert len(kept) == 1, order
        assert len(stored(connection, saver.schema, thread_id)) == 2, order
        assert all(isinstance(answer, REFUSALS) for answer in answers if isinstance(answer, Exception)), order


@pytest.mark.slow
def test_who_takes_a_lease_over_and_who_still_writes_with_it(
    workers: list[Worker], saver: PGStateSaver, connection: psycopg.Connection
) -> None:
    """The old holder writes before it is taken over, or not at all; the new one sees all that was acknowledged."""
    named = queries(saver.schema)
    db = BlockingConnection(connection)
    for number, order in enumerate(orders(4, 3)):
        thread_id = f"t{number}"
        config = saver.put(*put_arguments(config_of(thread_id), 0, count=0))
        lease = run_blocking(leases.take(db, named, thread_id, "old", 0.0))
        guard = Guard(thread=True, fencing_token=lease.fencing_token, holder_id="old", renew_for=None)
        id, put = putting(saver.schema, config, 1, guard)

        def take_and_read(db: Any, thread_id: str = thread_id) -> Any:
            taken = run_blocking(leases.take(db, named, thread_id, "new", 60.0))
            db._gate()
            return taken.fencing_token, stored(connection_of(db), saver.schema, thread_id)

        answers = play(workers, order, connection, put, take_and_read)
        token, seen = answers[1]
        assert token > lease.fencing_token, order
        if isinstance(answers[0], Exception):
            assert type(answers[0]) is LeaseLostError, order
        # Once it was read under the new lease, nothing comes with the old one.
        assert stored(connection, saver.schema, thread_id) == seen, order
        assert (id in seen) == (not isinstance(answers[0], Exception)), order


def connection_of(db: Any) -> psycopg.Connection:
    found: psycopg.Connection = db._connection
    return found


def test_of_two_that_take_a_lease_one_has_it(
    workers: list[Worker], saver: PGStateSaver, connection: psycopg.Connection
) -> None:
    named = queries(saver.schema)
    for number, order in enumerate(orders(2, 2, 2)):
        thread_id = f"t{number % 3}-{number}"

        def taking(holder: str, thread_id: str = thread_id) -> Callable[[Any], Any]:
            return lambda db: run_blocking(leases.take(db, named, thread_id, holder, 60.0))

        answers = play(workers, order, connection, *(taking(holder) for holder in "abc"))
        assert sorted(type(answer).__name__ for answer in answers) == ["Lease", "LeaseHeldError", "LeaseHeldError"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["put", "first put", "writes"])
def test_who_deletes_a_thread_and_who_still_writes(
    kind: str, workers: list[Worker], saver: PGStateSaver, connection: psycopg.Connection
) -> None:
    """Whether the write came before or after: nothing of the thread is left."""
    guard = Guard(head=True, thread=True)
    for number, order in enumerate(orders(4, 4)):
        thread_id = f"t{number}"
        config: Any = config_of(thread_id)
        if kind != "first put":
            config = saver.put(*put_arguments(config, 0, count=0))
        write = writing(saver.schema, config, guard) if kind == "writes" else putting(saver.schema, config, 1, guard)[1]

        def delete(db: Any, thread_id: str = thread_id) -> Any:
            return run_blocking(threads.delete_thread(db, queries(saver.schema), thread_id, timedelta(hours=1)))

        answers = play(workers, order, connection, write, delete)
        assert not isinstance(answers[1], Exception), (order, answers)
        if isinstance(answers[0], PGStateError):
            assert type(answers[0]) in (ThreadDeletedError, StaleHeadError), order
        assert rows(connection, saver.schema, thread_id) == {"tombstones": 1}, order
        saver._forget(thread_id)
