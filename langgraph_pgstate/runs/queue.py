"""The queue: lists of runs, dead letters and workers, limits, and budgets."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from typing import Any, Final, TypedDict, Unpack

from langgraph_pgstate.arguments import identifier, request_scope, texts_of, thread_id_of
from langgraph_pgstate.db.database import AsyncDatabase, Database
from langgraph_pgstate.db.protocol import Connection, Read
from langgraph_pgstate.db.runners import BlockingRunner, blocking
from langgraph_pgstate.errors import ArgumentTypeError, ConfigurationError
from langgraph_pgstate.paging import FIRST, LAST, Page, check_filters, decode_cursor, page_size, read_page
from langgraph_pgstate.record import budgets
from langgraph_pgstate.record.history import AsyncRunHistory, RunHistory
from langgraph_pgstate.record.types import Budget, Run
from langgraph_pgstate.runs import tending
from langgraph_pgstate.runs.notifying import AsyncNotifier, Notifier
from langgraph_pgstate.runs.types import QueueCount, QueuedRun, QueueLimit, Rate, WorkerStatus
from langgraph_pgstate.schema.queries import Queries
from langgraph_pgstate.scopes import Scope

_KIND: Final = "queued runs"
_DEAD_KIND: Final = "dead letters"
_INT4_MAX: Final = 2**31 - 1


def list_queue(**filters: Unpack[QueueFilter]) -> Read[Page[QueuedRun]]:
    """Return a `Read` of a page of the runs in the queue, oldest first. The whole queue is read."""
    check_filters(filters, QueueFilter)
    thread_id, status = filters.get("thread_id"), filters.get("status")
    if status not in (None, "pending", "running"):
        raise ConfigurationError(f"status must be 'pending' or 'running', not {status!r}")
    parameters = {
        "thread_id": None if thread_id is None else thread_id_of(thread_id),
        "status": status,
        **_filters_of(filters, _KIND, FIRST),
    }

    def position(item: QueuedRun) -> tuple[datetime, str, str]:
        return item.enqueued_at, item.thread_id, item.run_id

    return read_page("list_queue", parameters, filters.get("limit", 20), QueuedRun, _KIND, position)


async def count_queue(db: Connection, queries: Queries) -> tuple[QueueCount, ...]:
    """Return the number of runs by queue, graph, version and status. One round trip; reads the whole queue."""
    return tuple(QueueCount(*row) for row in await db.fetch(queries.count_queue, {}))


def list_dead_letters(**filters: Unpack[DeadLetterFilter]) -> Read[Page[Run]]:
    """Return a `Read` of a page of runs that failed for good and can be retried, newest first."""
    check_filters(filters, DeadLetterFilter)
    parameters, limit = _filters_of(filters, _DEAD_KIND, LAST), filters.get("limit", 20)

    def position(item: Run) -> tuple[datetime, str, str]:
        return item.started_at, item.thread_id, item.run_id

    return read_page("list_dead_letters", parameters, limit, Run, _DEAD_KIND, position)


def _filters_of(filters: DeadLetterFilter, kind: str, first: str) -> dict[str, Any]:
    """Return the query parameters that both lists have."""
    at, cursor_thread, cursor_run = decode_cursor(kind, filters.get("cursor"), (first, "", ""))
    position = {"cursor_at": at, "cursor_thread": cursor_thread, "cursor_run": cursor_run}
    return {**texts_of(filters, "queue", "graph"), "scope": request_scope(filters.get("scope")), **position}


async def list_workers(db: Connection, queries: Queries, limit: int = 100) -> tuple[WorkerStatus, ...]:
    """Return the workers, the last seen first, with the number of runs of each. One round trip."""
    rows = await db.fetch(queries.list_workers, {"page_size": page_size(limit)})
    return tuple(WorkerStatus(*row) for row in rows)


class DeadLetterFilter(TypedDict, total=False):
    """Filters of runs that failed for good.

    Attributes:
        queue: Only runs of this queue.
        graph: Only runs of this graph.
        scope: Only runs of threads whose metadata contain these items.
        limit: Page size, 1,000 at most; 20 by default.
        cursor: `next` of the previous page.
    """

    queue: str | None
    graph: str | None
    scope: Scope | None
    limit: int
    cursor: str | None


class QueueFilter(DeadLetterFilter, total=False):
    """Filters of runs in the queue.

    Attributes:
        thread_id: Only runs of this thread.
        status: Only `pending`, or only `running` runs.
    """

    thread_id: str | None
    status: str | None


def request_limit(queue: str, key: str | None, concurrency: int | None, rate: Rate | None) -> dict[str, Any]:
    """Return the row of a validated limit."""
    if not identifier("queue", queue):
        raise ConfigurationError("queue must not be empty")
    if key == "":
        raise ConfigurationError("key must not be empty. Without a key, the whole queue is limited")
    is_number = isinstance(concurrency, int) and not isinstance(concurrency, bool)
    if concurrency is not None and not (is_number and 0 <= concurrency <= _INT4_MAX):
        raise ConfigurationError(f"concurrency must be a whole number, 0 or more, not {concurrency!r}")
    if rate is not None and not isinstance(rate, Rate):
        raise ArgumentTypeError(f"rate must be a Rate, not {type(rate).__name__}")
    return {
        "queue": queue,
        "key": "" if key is None else identifier("key", key),
        "concurrency": concurrency,
        "rate": None if rate is None else rate.count,
        "rate_seconds": None if rate is None else repr(rate.seconds),
    }


async def put_limit(db: Connection, queries: Queries, limit: dict[str, Any]) -> None:
    """Store a limit. A limit with neither a concurrency nor a rate is deleted. One statement; safe to repeat."""
    if limit["concurrency"] is None and limit["rate"] is None:
        await db.execute(queries.delete_limit, {"queue": limit["queue"], "key": limit["key"]})
    else:
        await db.execute(queries.put_limit, limit)


async def list_limits(db: Connection, queries: Queries) -> list[QueueLimit]:
    """Return all limits, each with the numbers of running and waiting runs. One statement."""
    found = []
    for queue, key, concurrency, count, seconds, running, waiting in await db.fetch(queries.list_limits, {}):
        rate = None if count is None else Rate(count, seconds)
        found.append(QueueLimit(queue, key or None, concurrency, rate, running, waiting))
    return found


class AsyncRunQueue(AsyncRunHistory):
    """The lists, workers and limits of the queue, and the history of runs. The base class of `AsyncRuns`."""

    def __init__(self, database: AsyncDatabase, queries: Queries, queue: AsyncDatabase | None = None) -> None:
        super().__init__(database, queries)
        self._queue = queue or database
        self._notifier = AsyncNotifier(self._queue, queries)

    async def dead_letters(self, **filters: Unpack[DeadLetterFilter]) -> Page[Run]:
        """Return a page of runs that failed for good, newest first; see `retry` and `discard`.

        Args:
            **filters: See `DeadLetterFilter`.

        Raises:
            ConfigurationError: If an argument is invalid.
        """
        return await self._database.read(self._queries, list_dead_letters(**filters))

    async def queued(self, **filters: Unpack[QueueFilter]) -> Page[QueuedRun]:
        """Return a page of the runs in the queue, oldest first. One round trip; reads the whole queue.

        Args:
            **filters: See `QueueFilter`.

        Raises:
            ConfigurationError: If an argument is invalid.
        """
        return await self._queue.read(self._queries, list_queue(**filters))

    async def repair(self) -> int:
        """Make the next due run ready on each thread that has due runs but no ready run. `PGState.maintain` calls this.

        Also delete old rows of workers, queue keys, failed webhooks, and runs that deleted their threads.

        Returns:
            The number of runs that were made ready.
        """
        return await self._queue.run(tending.repair, self._queries)

    async def counts(self) -> tuple[QueueCount, ...]:
        """Return the number of runs by queue, graph, version and status. One round trip; reads the whole queue."""
        return await self._queue.run(count_queue, self._queries)

    async def workers(self, *, limit: int = 100) -> tuple[WorkerStatus, ...]:
        """Return the workers, the last seen first, with the number of runs of each. One round trip.

        A worker stays in the list for a day after its death.

        Args:
            limit: Maximum number of workers, 1,000 at most.

        Raises:
            ConfigurationError: If an argument is invalid.
        """
        return await self._queue.run(list_workers, self._queries, limit)

    async def drain(self, worker_id: str, *, by: str | None = None) -> bool:
        """Ask a worker to drain: to claim no more runs, requeue its running runs, and end. Safe to repeat.

        The worker begins within two seconds, and requeues each run at the next superstep boundary. `pgstate worker`
        ends with exit code 0, so that a supervisor starts a new worker.

        Args:
            worker_id: Id of the worker.
            by: Name of the person who asks, stored in an event of the kind `action` on the thread `worker:ID`.

        Returns:
            Whether there is such a worker.
        """
        return await self._queue.run(tending.ask_drain, self._queries, identifier("worker_id", worker_id), by)

    async def limit(
        self, queue: str, *, key: str | None = None, concurrency: int | None = None, rate: Rate | None = None
    ) -> None:
        """Limit the runs of a queue, of each key of the queue, or of one key. One statement; safe to repeat.

        Runs above the limit wait. All workers keep the limit. Running runs go on.

        Args:
            queue: Name of the queue.
            key: The key to limit, or `*` for every key that has no limit of its own. By default, the whole queue. Runs
                without a key have only the limit of the queue.
            concurrency: Maximum number of running runs. With 0, no run is claimed.
            rate: Maximum number of attempts in a period. Without `concurrency` and `rate`, the limit is removed.

        Raises:
            ConfigurationError: If an argument is invalid.
        """
        await self._queue.run(put_limit, self._queries, request_limit(queue, key, concurrency, rate))
        await self._notifier.notify()

    async def limits(self) -> list[QueueLimit]:
        """Return all limits, each with the numbers of running and waiting runs. One round trip."""
        return await self._queue.run(list_limits, self._queries)

    async def budget(
        self,
        amount: Decimal | float | str | None,
        *,
        tenant: str | None = None,
        user: str | None = None,
        agent: str | None = None,
        key: str | None = None,
    ) -> None:
        """Limit the cost of the model calls of recorded graphs per day (UTC). One statement; safe to repeat.

        Above the budget, model calls raise `BudgetExceededError`, and an event of the kind `budget` is stored. Other
        processes learn of the cost of a call two to five seconds after the call. A call in progress counts as much as
        the last call of the model.

        The owner of the budget is a tenant, a user, an agent or a queue key. With `*`, each owner of this kind without
        its own budget has this budget.

        Args:
            amount: Cost in the currency of the prices; `None` removes the budget.
            tenant: Name of the tenant in the record.
            user: The user.
            agent: The agent of runs.
            key: The queue key of enqueued runs.

        Raises:
            ConfigurationError: If an argument is invalid, or if not exactly one owner is named.
        """
        request = budgets.request_budget(amount, tenant=tenant, user=user, agent=agent, key=key)
        await self._queue.run(budgets.put_budget, self._queries, request)

    async def budgets(self) -> list[Budget]:
        """Return all budgets, each with the cost of today's model calls. Reads today's model calls."""
        return await self._database.run(budgets.list_budgets, self._queries)


class RunQueue(RunHistory):
    """Blocking twin of `AsyncRunQueue`."""

    def __init__(self, database: Database, queries: Queries, queue: Database | None = None) -> None:
        super().__init__(database, queries)
        self._queue = BlockingRunner(queue or database)
        self._notifier = Notifier(queue or database, queries)

    dead_letters = blocking(AsyncRunQueue.dead_letters)
    queued = blocking(AsyncRunQueue.queued)
    repair = blocking(AsyncRunQueue.repair)
    counts = blocking(AsyncRunQueue.counts)
    workers = blocking(AsyncRunQueue.workers)
    drain = blocking(AsyncRunQueue.drain)
    limit = blocking(AsyncRunQueue.limit)
    limits = blocking(AsyncRunQueue.limits)
    budget = blocking(AsyncRunQueue.budget)
    budgets = blocking(AsyncRunQueue.budgets)
