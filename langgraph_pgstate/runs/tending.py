"""Periodic operations of workers: renew leases, requeue runs of dead workers, make due runs ready."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final

from langgraph_pgstate.db.protocol import Connection
from langgraph_pgstate.db.translate import is_of_one_row
from langgraph_pgstate.record.events import note_action
from langgraph_pgstate.runs import ending
from langgraph_pgstate.runs import webhook_rows as webhooks
from langgraph_pgstate.runs.cancelling import cancel, how_to_cancel
from langgraph_pgstate.runs.locking import bounded_waits, is_locked
from langgraph_pgstate.runs.types import Recovered, RunKey, Tended
from langgraph_pgstate.schema.queries import Queries

# Attempts after which the death of a worker ends a run, for each of `max_crashes`. The number is high, because
# deployments may end many workers of a long run.
_ATTEMPTS_PER_CRASH: Final = 10

_log = logging.getLogger("langgraph_pgstate.runs")


async def put_worker(
    db: Connection,
    queries: Queries,
    worker_id: str,
    names: Sequence[str],
    graphs: Sequence[str],
    concurrency: int,
    versions: Mapping[str, Sequence[str]] | None = None,
) -> None:
    """Store a worker, and remove a request to drain the worker. One statement; safe to repeat."""
    accepted = {graph: list(names) for graph, names in (versions or {}).items()}
    parameters = {
        "worker_id": worker_id,
        "queues": list(names),
        "graphs": list(graphs),
        "concurrency": concurrency,
        "versions": json.dumps(accepted),
    }
    await db.execute(queries.put_worker, parameters)


async def delete_worker(db: Connection, queries: Queries, worker_id: str) -> None:
    """Delete a worker that has stopped. One statement."""
    await db.execute(queries.delete_worker, {"worker_id": worker_id})


async def ask_drain(db: Connection, queries: Queries, worker_id: str, by: str | None = None) -> bool:
    """Ask a worker to drain, and return whether the worker exists. One transaction; safe to repeat.

    If `by` names a person and the worker was not asked before, an event is stored.
    """
    async with db.transaction():
        is_first = await db.execute(queries.ask_drain, {"worker_id": worker_id}) > 0
        if is_first and by is not None:
            await note_action(db, queries, "drain", by, f"worker:{worker_id}")
        return is_first or await is_drain_asked(db, queries, worker_id)


async def is_drain_asked(db: Connection, queries: Queries, worker_id: str) -> bool:
    """Return whether a worker was asked to drain. One statement."""
    return bool(await db.fetch(queries.find_drain, {"worker_id": worker_id}))


async def tend(db: Connection, queries: Queries, worker_id: str, keys: Collection[RunKey], ttl: float) -> Tended:
    """Renew the leases of a worker's runs, store that the worker is alive, and return the runs to cancel.

    One statement; safe to repeat. Locked leases are left to the next call.
    """
    parameters = {
        "worker_id": worker_id,
        "thread_ids": [key.thread_id for key in keys],
        "fencing_tokens": [key.fencing_token for key in keys],
        "ttl": repr(ttl),
    }
    found = Tended(set(), {}, set(), set())
    for thread_id, run_id, token, how, is_held, is_known, is_renewed in await db.fetch(queries.tend_runs, parameters):
        key = RunKey(thread_id, run_id, token)
        if not is_known:
            found.unknown.add(key)
        elif is_held:
            found.still.add(key)
            if is_renewed:
                found.renewed.add(key)
            if (asked := how_to_cancel(how)) is not None:
                found.cancels[key] = asked
    return found


async def recover(
    db: Connection,
    queries: Queries,
    limit: int = 100,
    max_crashes: int = 3,
    is_dead: Callable[[str], bool] | None = None,
) -> list[Recovered]:
    """Requeue the runs of dead workers. One transaction for each run; safe to repeat and in many processes.

    Runs whose thread or lease is locked are left to the next call.

    Args:
        limit: Maximum number of runs.
        max_crashes: See `WorkerOptions`.
        is_dead: Returns whether a worker is known to be dead. The leases of such a worker need not expire.
    """
    dead: list[str] = []
    if is_dead is not None:
        dead = [row[0] for row in await db.fetch(queries.find_running_workers, {}) if row[0] and is_dead(row[0])]
    recovered = []
    rows = await db.fetch(queries.find_lost, {"dead_worker_ids": dead, "page_size": limit})
    for thread_id, run_id, token, worker_id in rows:
        key = RunKey(thread_id, run_id, token)
        try:
            async with db.transaction():
                found = await _recover(db, queries, key, max_crashes, is_dead=worker_id in dead)
        except Exception as error:
            if is_of_one_row(error):
                _log.error("run %s of thread %s lost its worker and cannot be requeued: %s", run_id, thread_id, error)
            elif not is_locked(error):
                raise
            continue
        if found is not None:
            recovered.append(Recovered(thread_id, run_id, worker_id, *found))
    return recovered


async def _recover(
    db: Connection, queries: Queries, key: RunKey, max_crashes: int, *, is_dead: bool
) -> tuple[int, str] | None:
    """Requeue or end a run. Return the number of deaths and the run's status; `None` if the run was not changed."""
    thread_id, run_id, token = key
    lease = {"thread_id": thread_id, "fencing_token": token}
    await db.fetch(*bounded_waits(queries))
    await db.execute(queries.fence_lease, {**lease, "is_dead": is_dead})
    if not await db.fetch(queries.lock_free_threads, {"thread_ids": [thread_id]}):
        return None
    bounds = {"max_crashes": max_crashes, "max_attempts": _ATTEMPTS_PER_CRASH * max_crashes}
    found = await db.fetch(queries.recover_run, {**lease, "run_id": run_id, **bounds})
    if not found:
        return None
    crashes, is_ended, stored = found[0]
    await db.execute(queries.promote_next, {"thread_ids": [thread_id]})
    if is_ended:
        return crashes, "error"
    how = how_to_cancel(stored)
    return crashes, "pending" if how is None else await cancel(db, queries, thread_id, run_id, how)


async def make_due(db: Connection, queries: Queries, limit: int = 1000) -> int:
    """Make delayed runs ready that are due now, and return their number. Safe in many processes.

    Locked threads are left to the next call.
    """
    threads = [row[0] for row in await db.fetch(queries.find_due, {"page_size": limit})]
    if not threads:
        return 0
    async with db.transaction():
        await db.fetch(*bounded_waits(queries))
        key = {"thread_ids": [row[0] for row in await db.fetch(queries.lock_free_threads, {"thread_ids": threads})]}
        made = await db.execute(queries.make_due, key)
        await db.execute(queries.promote_next, key)
    return made


async def repair(db: Connection, queries: Queries, limit: int = 1000) -> int:
    """Make the next run ready on each thread that has no ready run, and return the number of these runs.

    The whole queue is read. Also delete old rows of workers, queue keys and failed webhooks, and runs that deleted
    their threads.
    """
    await db.execute(queries.sweep_workers, {})
    await db.execute(queries.sweep_keys, {})
    await webhooks.sweep(db, queries)
    await ending.sweep(db, queries, limit)
    threads = [row[0] for row in await db.fetch(queries.find_stranded, {"page_size": limit})]
    if not threads:
        return 0
    key = {"thread_ids": threads}
    return (await db.execute_together([(queries.lock_threads_for_no_key_update, key), (queries.promote_next, key)]))[1]
