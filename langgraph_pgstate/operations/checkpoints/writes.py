"""Storage of pending writes: writes of a task that its superstep's checkpoint does not contain yet."""

from __future__ import annotations

from collections.abc import Sequence

from langgraph_pgstate.codec.writes import Write, unpack_writes
from langgraph_pgstate.db.protocol import Connection
from langgraph_pgstate.operations.checkpoints.requests import WritesRequest
from langgraph_pgstate.operations.leases.guards import Guard
from langgraph_pgstate.operations.record.put_hook import PutHook, Statement, after_writes, before_writes
from langgraph_pgstate.sql import Queries


async def put_writes(
    db: Connection, queries: Queries, request: WritesRequest, guard: Guard | None = None, hook: PutHook | None = None
) -> None:
    """Store a task's writes. One statement, and two more if the task has stored other writes before.

    Idempotent: writes to special channels replace the task's earlier ones, and ordinary writes never replace anything.

    Args:
        db: The connection.
        queries: The queries of the schema.
        request: The writes.
        guard: The conditions under which they may be stored.
        hook: Adds statements to guarded writes; see `before_writes`.

    Raises:
        StaleHeadError: If the guard refuses them because the branch was advanced.
        LeaseLostError: If the guard refuses them because the lease was taken over.
        ThreadDeletedError: If the guard refuses them because the thread was deleted.
    """
    if not request.rows:
        return
    if guard is None:
        await _put_writes(db, queries, request, ())
        return
    try:
        try:
            others = before_writes(hook, request)
            await _put_writes(db, queries, request, [*guard.before_writes(queries, request.address), *others])
        except Exception as error:
            if not guard.misses_thread(error):
                raise
            guard = guard.with_thread()
            await _put_writes(db, queries, request, [*guard.before_writes(queries, request.address), *others])
    except Exception as error:
        broken = guard.broken(error, request.address, request.address.checkpoint_id)
        if broken is None:
            raise
        raise broken from error
    after_writes(hook, request)


async def _put_writes(db: Connection, queries: Queries, request: WritesRequest, guards: Sequence[Statement]) -> None:
    first, _ = request.rows[0]
    is_plain = len(request.rows) == 1 and first >= 0
    query = queries.put_new_writes if is_plain else queries.put_writes
    parameters = {**request.encoded, "idx": first}
    if guards:
        if (await db.execute_together([*guards, (query, parameters)]))[-1] == len(request.rows):
            return
        # Special channels are always stored.
        refused = [(idx, writes) for idx, writes in request.rows if idx >= 0]
    else:
        stored = {row[0] for row in await db.fetch(query, parameters)}
        refused = [(idx, writes) for idx, writes in request.rows if idx not in stored]
    if refused:
        await _add_missing(db, queries, request, refused, guards)


async def _add_missing(
    db: Connection,
    queries: Queries,
    request: WritesRequest,
    refused: Sequence[tuple[int, list[Write]]],
    guards: Sequence[Statement],
) -> None:
    """Store those writes whose numbers the task has not used yet."""
    async with db.transaction():
        for query, parameters in guards:
            await db.execute(query, parameters)
        missing = [write for _, writes in refused for write in writes]
        while missing:
            rows = await db.fetch(queries.get_task_writes, {**request.address._asdict(), "task_id": request.task_id})
            where = f"writes of task {request.task_id!r}"
            used = {number for _, data in rows for number, *_ in unpack_writes(data, where)}
            missing = [write for write in missing if write[0] not in used]
            following = max((idx for idx, _ in rows), default=-1) + 1
            # No row means that another call took this idx in the meantime: check again, because its writes came first.
            if missing and await db.fetch(queries.put_writes, request.parameters([(following, missing)])):
                return
