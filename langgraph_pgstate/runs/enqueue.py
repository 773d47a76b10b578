"""Enqueueing of runs, also of crashed runs that were not enqueued."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Collection, Sequence
from datetime import UTC, datetime
from typing import Final

from langgraph_pgstate.codec.values import ValueCodec
from langgraph_pgstate.db.protocol import Connection
from langgraph_pgstate.db.tenants import wake_key
from langgraph_pgstate.db.translate import is_of_one_row
from langgraph_pgstate.errors import (
    ConfigurationError,
    NotFoundError,
    PGStateError,
    StaleHeadError,
    ThreadArchivedError,
    ThreadBusyError,
    ThreadDeletedError,
)
from langgraph_pgstate.runs.cancelling import SUPERSEDING, supersede
from langgraph_pgstate.runs.locking import bounded_waits, is_locked
from langgraph_pgstate.runs.options import DEFAULT_QUEUE
from langgraph_pgstate.runs.requests import RunRequest, distinct, request_run
from langgraph_pgstate.runs.types import EnqueuedRun
from langgraph_pgstate.schema.queries import Queries, Statement

_CONTENT: Final = frozenset({"options", "metadata"})
# If a check of the transaction fails, the database error contains this text. The quotation marks around the text depend
# on the server's language.
_MARK: Final = re.compile(r"pgstate-queue:(\[.*\])", re.DOTALL)
_PAGE: Final = 200

_log: Final = logging.getLogger("langgraph_pgstate.runs")


async def enqueue(
    db: Connection, queries: Queries, requests: Sequence[RunRequest], *, notifies: bool = False
) -> list[EnqueuedRun]:
    """Enqueue runs: all or none, in one transaction, and in one round trip unless a run supersedes others.

    Safe to repeat: a run whose id was enqueued before is not enqueued again, and supersedes no run.

    Args:
        notifies: Whether to wake listening workers when the transaction commits.

    Returns:
        The runs, in the order of the requests.

    Raises:
        ThreadBusyError: If the strategy is `reject` and the thread has another run.
        ThreadDeletedError: If the thread was deleted.
        ThreadArchivedError: If the thread is archived.
        StaleHeadError: If the thread's newest checkpoint is not the run's `expected_head`.
        ConfigurationError: If a `run_id` is the id of a run on another thread, or of a run that was not enqueued.
        NotFoundError: If the checkpoint from which a run starts does not exist.
    """
    given = distinct(requests)
    rows = [request.row for request in given]
    # The checks must not contain options and metadata, because only the storing statement encrypts these columns.
    places = json.dumps([{name: row[name] for name in row.keys() - _CONTENT} for row in rows])
    checks: list[Statement] = [
        (queries.make_threads, {"rows": places}),
        (queries.check_threads, {"thread_ids": [request.thread_id for request in given]}),
    ]
    if any(request.is_checked for request in given):
        checks.append((queries.check_enqueue, {"rows": places}))
    notification: list[Statement] = [_notification(queries, db.tenant)] if notifies else []
    if db.keys is not None:
        for request in given:
            # The owner determines the data key. A new thread has no row from which the owner can be read.
            db.keys.note_owner(request.thread_id, lambda request=request: request.owner)  # type: ignore[misc]
    data = {"data": [f"\\x{request.data.hex()}" for request in given], **_ids(given)}
    enqueueing: Statement = (queries.enqueue_runs, {"rows": json.dumps(rows), **data})
    supersedes = any(request.strategy in SUPERSEDING for request in given)
    try:
        if not supersedes and db.is_in_transaction:
            added = await db.fetch_together([*notification, *checks, enqueueing])
        elif not supersedes:
            # `plan_lookups` must not run in a caller's transaction, because it sets the planner until the commit.
            planning: Statement = (queries.plan_lookups, {})
            # Notify after the commit, because commits that notify wait for one another.
            added = await db.fetch_together([planning, *checks, enqueueing], *notification)
        else:
            async with db.transaction():
                for check in (*notification, *checks):
                    await db.execute(*check)
                before = await _enqueued_before(db, queries, given)
                for request in given:
                    if request.strategy in SUPERSEDING and request.run_id not in before:
                        await supersede(db, queries, request.thread_id, request.strategy)
                added = await db.fetch(*enqueueing)
    except Exception as error:
        refused = _refusal(error)
        if refused is None:
            raise
        raise refused from error
    new = {row[0] for row in added}
    return [EnqueuedRun(request.thread_id, request.run_id, request.run_id in new) for request in requests]


async def _enqueued_before(db: Connection, queries: Queries, requests: Sequence[RunRequest]) -> set[str]:
    return {row[0] for row in await db.fetch(queries.get_enqueued, _ids(requests))}


def _ids(requests: Sequence[RunRequest]) -> dict[str, list[str]]:
    return {
        "thread_ids": [request.thread_id for request in requests],
        "run_ids": [request.run_id for request in requests],
    }


def _refusal(error: Exception) -> PGStateError | None:
    """Return the package's error for a database error of a failed check; `None` for any other database error."""
    found = _MARK.search(str(error)) if getattr(error, "sqlstate", None) == "22P02" else None
    if found is None:
        return None
    reason, thread_id, run_id, seconds = json.loads(found[1])
    since = None if seconds is None else datetime.fromtimestamp(float(seconds), UTC)
    if reason == "deleted":
        return ThreadDeletedError(thread_id, since)
    if reason == "archived":
        return ThreadArchivedError(thread_id, run_id, since)
    if reason == "busy":
        return ThreadBusyError(thread_id, run_id, since)
    if reason == "moved":
        expected, newest = json.loads(run_id)
        return StaleHeadError(thread_id, "", expected, newest)
    if reason == "checkpoint":
        return NotFoundError(f"thread {thread_id!r} has no checkpoint {run_id!r}")
    if reason == "elsewhere":
        return ConfigurationError(f"run_id must be new, but thread {thread_id!r} already has a run {run_id!r}")
    if reason == "inherited":
        return ConfigurationError(f"run_id must be new, but thread {thread_id!r} has checkpoints of a run {run_id!r}")
    return ConfigurationError(f"run_id must be new, but run {run_id!r} of thread {thread_id!r} was not enqueued")


async def notify(db: Connection, queries: Queries) -> None:
    """Wake listening workers. One statement. Workers also poll, because a notification may be lost."""
    await db.fetch(*_notification(queries, db.tenant))


def _notification(queries: Queries, tenant: str | None) -> Statement:
    # The key tells a worker of all tenants which queue to check.
    return queries.notify_queue, {"key": wake_key(tenant, "")}


async def adopt(
    db: Connection,
    queries: Queries,
    codec: ValueCodec,
    is_dead: Callable[[str], bool],
    graphs: Collection[str] | None = None,
    queue: str = DEFAULT_QUEUE,
    adopted: list[EnqueuedRun] | None = None,
) -> list[EnqueuedRun]:
    """Enqueue crashed runs under their own ids, to resume from their newest checkpoints. Safe to repeat.

    Runs without a checkpoint are skipped, and runs whose threads have continued with another run. Runs of graphs
    without a name are skipped with a warning. Each run is enqueued in its own transaction. If a thread is locked, its
    run is left to the next call.

    Args:
        is_dead: Returns whether a process is known to be dead.
        graphs: Names of graphs in the record; only their runs are enqueued. All by default.
        adopted: The list to extend and return. If the call is repeated, the list has the runs of all calls.
    """
    adopted = [] if adopted is None else adopted
    nameless = 0
    after = ("", "")
    while True:
        rows = await db.fetch(
            queries.find_adoptable,
            {
                "graphs": None if graphs is None else list(graphs),
                "cursor_thread_id": after[0],
                "cursor_run_id": after[1],
                "page_size": _PAGE,
            },
        )
        for thread_id, run_id, graph, holder_id, is_expired in rows:
            after = (thread_id, run_id)
            if is_expired or (holder_id is not None and is_dead(holder_id)):
                if graph is None:
                    nameless += 1
                    continue
                try:
                    request = request_run(codec, graph, thread_id=thread_id, run_id=run_id, queue=queue, adopts=True)
                    async with db.transaction():
                        await db.fetch(*bounded_waits(queries))
                        if not await db.fetch(queries.lock_free_threads, {"thread_ids": [thread_id]}):
                            continue
                        found = await enqueue(db, queries, [request])
                except Exception as error:
                    # The thread may have been deleted, or another process may have adopted the run.
                    if is_of_one_row(error) or is_locked(error):
                        continue
                    raise
                adopted += [one for one in found if one.is_new]
        if len(rows) < _PAGE:
            break
    if nameless:
        _log.warning(
            "crashed runs that were not enqueued, because their graphs have no name: %d; pass a name to `compile`, and "
            "invoke the graph with None on their threads",
            nameless,
        )
    return adopted
