"""Adoption of crashed runs that were not enqueued."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Final

from langgraph_pgstate.codec.values import ValueCodec
from langgraph_pgstate.db.protocol import Connection
from langgraph_pgstate.db.refusals import is_of_one_row
from langgraph_pgstate.runs.enqueue import enqueue
from langgraph_pgstate.runs.locking import bounded_waits, is_locked
from langgraph_pgstate.runs.options import DEFAULT_QUEUE
from langgraph_pgstate.runs.requests import request_run
from langgraph_pgstate.runs.types import EnqueuedRun
from langgraph_pgstate.schema.queries import Queries

_PAGE: Final = 200


async def adopt(
    db: Connection,
    queries: Queries,
    codec: ValueCodec,
    is_dead: Callable[[str], bool],
    graphs: Collection[str] | None = None,
    queue: str = DEFAULT_QUEUE,
) -> list[EnqueuedRun]:
    """Enqueue crashed runs under their own ids, to resume from their newest checkpoints. Safe to repeat.

    Runs without a checkpoint are skipped, and runs whose threads have continued with another run. Each run is enqueued
    in its own transaction. If a thread is locked, its run is left to the next call.

    Args:
        is_dead: Returns whether a process is known to be dead.
        graphs: Names of graphs in the record; only their runs are enqueued. All by default.
    """
    adopted: list[EnqueuedRun] = []
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
            return adopted
