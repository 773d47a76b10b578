"""Finds the runs of dead processes, ends them, and corrects the statuses of threads that such processes left."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from langgraph_pgstate.checkpoints.event_chains import chain
from langgraph_pgstate.db.protocol import Connection
from langgraph_pgstate.schema.queries import Queries

_PAGE = 500

RunningRun = tuple[str, str, str | None, bool]
"""A running run: thread id, run id, id of its process (`holder_id`), and whether its `alive_until` has passed."""


async def find_running(db: Connection, queries: Queries, thread_ids: Sequence[str]) -> list[RunningRun]:
    """Return the running runs of some threads."""
    return [(*row,) for row in await db.fetch(queries.find_running, {"thread_ids": list(thread_ids)})]


async def list_running(db: Connection, queries: Queries, after: tuple[str, str] = ("", "")) -> list[RunningRun]:
    """Return the next page of all running runs, after a thread id and run id. The page is empty at the end."""
    parameters = {"cursor_thread_id": after[0], "cursor_run_id": after[1], "page_size": _PAGE}
    return [(*row,) for row in await db.fetch(queries.list_running, parameters)]


def choose_dead(running: Sequence[RunningRun], is_dead: Callable[[str], bool]) -> dict[str, list[RunningRun]]:
    """Return by thread the runs whose process is known to be dead, or whose `alive_until` has passed.

    In the returned runs, the last field says whether the process is known to be dead.
    """
    dead: dict[str, list[RunningRun]] = {}
    for thread_id, run_id, holder_id, has_expired in running:
        known = holder_id is not None and is_dead(holder_id)
        if has_expired or known:
            dead.setdefault(thread_id, []).append((thread_id, run_id, holder_id, known))
    return dead


async def settle_runs(db: Connection, queries: Queries, thread_id: str, dead: Sequence[RunningRun]) -> list[str]:
    """End runs of dead processes with the error `ProcessDied`, and return the ended runs. Safe to repeat.

    A run whose process has renewed `alive_until` meanwhile is left running.
    """
    parameters = {
        "thread_id": thread_id,
        "run_ids": [run_id for _, run_id, _, _ in dead],
        "holder_ids": [holder_id or "" for _, _, holder_id, _ in dead],
        "known_dead": [run_id for _, run_id, _, known in dead if known],
    }
    # Use one transaction. If the process died between two, a later call would not find the ended runs.
    async with db.transaction():
        rows = await db.fetch(queries.settle_runs, parameters)
        settled = [run_id for run_id, _ in rows]
        if settled:
            await db.execute(queries.total_runs, {"thread_ids": [thread_id] * len(settled), "run_ids": settled})
            await db.execute(queries.refresh_thread_statuses, {"thread_ids": [thread_id]})
            await chain(db, queries, [(thread_id, event_id) for _, event_id in rows if event_id is not None])
    return settled


async def correct_statuses(db: Connection, queries: Queries) -> int:
    """Set the status of threads that are `busy` without a run, and return the number of found threads. Safe to repeat.

    Two transactions that end two runs of a thread at the same time do not see each other's end. If their processes die
    before they refresh the status after the commits, the thread is left `busy`.
    """
    found, after = 0, ""
    while True:
        page = await db.fetch(queries.find_wrongly_busy, {"cursor_thread": after, "page_size": _PAGE})
        for (thread_id,) in page:
            threads = {"thread_ids": [thread_id]}
            # The lock waits for transactions that enqueue a run. Only later statements see that run.
            await db.execute_together(
                [
                    (queries.lock_threads_for_no_key_update, threads),
                    (queries.refresh_thread_statuses, threads),
                    (queries.infer_thread_status, {"thread_id": thread_id}),
                ]
            )
        found += len(page)
        if len(page) < _PAGE:
            return found
        after = page[-1][0]
