"""Creation, copying and deletion of threads."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Unpack
from uuid import UUID

import orjson
from langchain_core.utils.uuid import uuid7

from langgraph_pgstate.arguments import check_key_size, json_of, request_scope, texts_of, thread_id_of
from langgraph_pgstate.checkpoints.event_chains import end_chain, release_runs
from langgraph_pgstate.db.protocol import Connection
from langgraph_pgstate.errors import ArgumentTypeError, ConfigurationError, ThreadDeletedError, ThreadExistsError
from langgraph_pgstate.leases.guards import lock_for_deletion, refuse_archived, refuse_deleted, store_tombstone
from langgraph_pgstate.options import check_ttl, check_ttl_strategy
from langgraph_pgstate.record import journal
from langgraph_pgstate.record.budgets import gather_costs, keep_costs
from langgraph_pgstate.record.events import note_action
from langgraph_pgstate.schema.queries import Queries
from langgraph_pgstate.schema.resealing import bind_copy
from langgraph_pgstate.threads.holds import keep_source, refuse_held
from langgraph_pgstate.threads.search import get_thread
from langgraph_pgstate.threads.types import PruneResult, Thread, ThreadOptions, ThreadOwner


async def delete_thread(
    db: Connection,
    queries: Queries,
    thread_id: str,
    tombstones_for: timedelta = timedelta(0),
    by: str | None = None,
    *,
    keeps_ends: bool = False,
    why: str = "deleted",
) -> PruneResult:
    """Remove every row of a thread from every table. One transaction; an unknown thread is no error.

    If there are budgets, today's cost of the thread's model calls is kept without the thread's id.

    Args:
        db: The connection.
        queries: The queries of the schema.
        thread_id: The thread.
        tombstones_for: Time for which guarded writes to the thread are refused.
        by: Name of the person who deletes the thread, for an event that stays.
        keeps_ends: Whether to keep undelivered webhooks of the thread's runs, and the rows of runs with a `delete_at`.
        why: Reason for the end of the chain of the thread's events.

    Raises:
        ThreadHeldError: If a hold protects the thread.
        ThreadArchivedError: If the thread is archived.
    """
    key = {"thread_id": thread_id}
    result = PruneResult()
    has_budgets = await gather_costs(db, queries, thread_id)
    async with db.transaction():
        # Lock the thread's row before checkpoints. A put that updates this row has locked checkpoints before, so a
        # deadlock is possible. One of the two transactions is then repeated.
        is_known = await lock_for_deletion(db, queries, thread_id)
        await refuse_held(db, queries, thread_id)
        if tombstones_for:
            await store_tombstone(db, queries, thread_id, tombstones_for.total_seconds())
        # Take the thread from its processes first. The deletion of checkpoints then sees all writes that were accepted.
        # Delete rows of the queue before leases and recorded runs, because a claim locks rows in this order.
        await db.execute(queries.delete_queued, {**key, "run_ids": None})
        await db.execute(queries.delete_lease, key)
        while True:
            gone, checkpoints, writes, size = (await db.fetch(queries.delete_thread, {"thread_ids": [thread_id]}))[0]
            result += PruneResult(checkpoints=checkpoints, writes=writes, bytes=size)
            result = replace(result, threads=result.threads or (gone if is_known or checkpoints or writes else 0))
            if not checkpoints:
                break
            # While the statement waited, a put may have committed a checkpoint, which only the next statement sees.
        segments, size = (await db.fetch(queries.delete_unreferenced_segments, key))[0]
        await db.execute(queries.delete_streams, {**key, "run_ids": None, "keeps_ends": keeps_ends})
        # Delete journal entries before recorded rows. The deletion waits for a writer that is moving an entry to
        # recorded rows.
        await db.execute(queries.delete_entries, {**key, "run_ids": None})
        if has_budgets:
            await keep_costs(db, queries, thread_id)
        await db.execute(queries.delete_record, {**key, "keeps_ends": keeps_ends, "was_there": result.threads > 0})
        # Another user may create a thread with this id. The deleted thread's schedules must not run on the new thread.
        await db.execute(queries.delete_schedules_of, key)
        await end_chain(db, queries, thread_id, why)
        if by is not None and result.threads:
            await note_action(db, queries, "delete", by, thread_id)
    return result + PruneResult(segments=segments, bytes=size)


async def delete_for_runs(
    db: Connection, queries: Queries, run_ids: Sequence[str], thread_id: str | None = None
) -> list[str]:
    """Remove checkpoints and records of some runs, and return the threads that may have had such rows.

    One transaction for each thread; safe to repeat. With `thread_id`, only this thread is changed. Copies and forks of
    a run's rows stay.

    Raises:
        ThreadHeldError: If a hold protects a thread. The runs stay in this thread and in later threads.
    """
    if thread_id is not None:
        threads = [thread_id]
    else:
        threads = [row[0] for row in await db.fetch(queries.find_runs, {"run_ids": list(run_ids)})]
    for one in threads:
        async with db.transaction():
            await db.fetch(queries.lock_threads_for_no_key_update, {"thread_ids": [one]})
            await refuse_held(db, queries, one)
            if await delete_runs_of(db, queries, one, run_ids):
                # Another run of the thread may have waited for a deleted run.
                await db.execute(queries.promote_next, {"thread_ids": [one]})
            # The status may be that of a deleted run.
            await db.execute(queries.refresh_thread_statuses, {"thread_ids": [one]})
            await db.execute(queries.infer_thread_status, {"thread_id": one})
    return threads


async def delete_runs_of(db: Connection, queries: Queries, thread_id: str, run_ids: Sequence[str]) -> bool:
    """Remove some runs of one thread, also from the queue. Call this in a transaction.

    Returns:
        Whether one of the runs may have been in the queue.
    """
    key = {"thread_id": thread_id, "run_ids": list(run_ids)}
    has_budgets = await gather_costs(db, queries, thread_id)
    # Delete rows of the queue before recorded runs, because a claim locks rows in this order.
    may_be_queued = await db.execute(queries.delete_queued, key) > 0
    await db.execute(queries.delete_streams, {**key, "keeps_ends": False})
    # This lock prevents new labels on these checkpoints.
    await db.fetch(queries.keep_labels, {"thread_id": thread_id})
    going = [row[0] for row in await db.fetch(queries.find_run_checkpoints, key)]
    await release_messages(db, queries, thread_id, going)
    # Delete journal entries before recorded rows. The deletion waits for a writer that is moving an entry to recorded
    # rows.
    await db.execute(queries.delete_entries, key)
    if has_budgets:
        await keep_costs(db, queries, thread_id, run_ids)
    await release_runs(db, queries, thread_id, run_ids)
    await db.execute(queries.delete_runs, key)
    await db.fetch(queries.delete_unreferenced_segments, {"thread_id": thread_id})
    return may_be_queued


async def copy_thread(
    db: Connection, queries: Queries, source_id: str, target_id: str, owner: str | None = None
) -> None:
    """Copy a thread without runs, spans and events. One transaction; safe to repeat.

    Raises:
        ConfigurationError: If the target has checkpoints that the source does not have, or both threads are the same.
        ThreadDeletedError: If the target was deleted and has a tombstone.
        ThreadArchivedError: If one of the threads is archived.
    """
    if source_id == target_id:
        raise ConfigurationError(f"thread {source_id!r} cannot be copied onto itself")
    await refuse_deleted(db, queries, target_id)
    if db.keys is not None:
        db.keys.note_copy(source_id, target_id, None if owner is None else json.loads(owner))
    key = {"source_id": source_id, "target_id": target_id}
    # Write most journal entries before the transaction begins, so that it holds its locks for a shorter time.
    await journal.write(db, queries, [source_id])
    async with db.transaction():
        await keep_source(db, queries, source_id)
        await refuse_archived(db, queries, target_id)
        strangers = await db.fetch(queries.find_strangers, key)
        if strangers:
            raise ConfigurationError(
                f"thread {target_id!r} already has a history of its own (checkpoint {strangers[0][1]!r}): copy into a "
                "new thread, or delete this thread"
            )
        renaming = json.dumps({"thread_id": target_id})
        await db.execute(queries.copy_thread, {**key, "owner": owner, "renaming": renaming})
        # Messages of the last copied checkpoints may still be in the journal.
        await journal.write(db, queries, [source_id])
        await db.execute(queries.copy_late_messages, key)
        await db.execute(queries.infer_thread_status, {"thread_id": target_id})
        await bind_copy(db, queries, source_id, target_id)


async def release_messages(db: Connection, queries: Queries, thread_id: str, checkpoint_ids: Sequence[str]) -> None:
    """Before root checkpoints are removed, store their messages with the remaining children.

    Call this in the transaction that removes the checkpoints. A concurrent put on such a checkpoint waits, finds the
    parent missing, and records all messages.
    """
    if not checkpoint_ids:
        return
    key = {"thread_id": thread_id, "checkpoint_ids": list(checkpoint_ids)}
    await db.fetch(queries.lock_checkpoints, {**key, "namespaces": [""] * len(checkpoint_ids)})
    await journal.write(db, queries, [thread_id])
    await db.execute(queries.rebase_messages, key)


@dataclass(frozen=True, slots=True)
class CreateRequest:
    """A validated request to create a thread.

    Attributes:
        row: The row of the thread.
        refuses: Whether an existing thread is an error.
        scope: Metadata that an existing thread must contain to be returned.
    """

    row: dict[str, Any]
    refuses: bool
    scope: list[str] | None


def request_thread(thread_id: str | int | UUID | None, **options: Unpack[ThreadOptions]) -> CreateRequest:
    """Validate a request to create a thread."""
    if unknown := options.keys() - ThreadOptions.__annotations__.keys():
        raise ArgumentTypeError(
            f"options must be among {', '.join(sorted(ThreadOptions.__annotations__))}, not {min(unknown)!r}"
        )
    if_exists = options.get("if_exists", "raise")
    if if_exists not in ("raise", "do_nothing"):
        raise ConfigurationError(f"if_exists must be 'raise' or 'do_nothing', not {if_exists!r}")
    id = str(uuid7()) if thread_id is None else thread_id_of(thread_id)
    check_key_size("thread_id", id)
    ttl = options.get("ttl")
    row = {
        "thread_id": id,
        **texts_of(options, "title", "user_id", "tenant_id", "agent"),
        "metadata": json_of("metadata", options.get("metadata")) or "{}",
        "ttl": None if ttl is None else check_ttl("ttl", ttl),
        "ttl_strategy": check_ttl_strategy("ttl_strategy", options.get("ttl_strategy", "delete")),
    }
    # If the id is random, an existing row was made by an earlier attempt of this call.
    refuses = if_exists == "raise" and thread_id is not None
    return CreateRequest(row, refuses, request_scope(options.get("scope")))


def request_owner(owner: ThreadOwner | None) -> str | None:
    """Return the owner of a copy as JSON text; `None` for the owner of the source."""
    if owner is None:
        return None
    if unknown := owner.keys() - ThreadOwner.__annotations__.keys():
        raise ArgumentTypeError(f"owner must have only metadata, user_id and tenant_id, got {min(unknown)!r}")
    names = texts_of(owner, "user_id", "tenant_id")
    metadata = orjson.loads(json_of("metadata", owner.get("metadata")) or "{}")
    return orjson.dumps({**names, "metadata": metadata}).decode()


async def create_thread(db: Connection, queries: Queries, request: CreateRequest) -> Thread:
    """Insert a thread without checkpoints, and return the new or existing thread. One or two round trips.

    Raises:
        ThreadExistsError: If an existing thread is refused or out of scope.
        ThreadDeletedError: If the thread was deleted and has a tombstone.
    """
    thread_id = request.row["thread_id"]
    if db.keys is not None:
        db.keys.note_owner(thread_id, lambda: request.row)
    is_made = False
    try:
        ((deleted_at, *row),) = await db.fetch(queries.create_thread, request.row)
        is_made = row[0] is not None
    finally:
        if db.keys is not None and not is_made:
            # Forget the owner of this call, because an existing thread may have another owner.
            db.keys.forget_thread(thread_id)
    if deleted_at is not None:
        raise ThreadDeletedError(thread_id, deleted_at)
    if is_made:
        return Thread(*row)
    thread = None if request.refuses else await get_thread(db, queries, thread_id, request.scope)
    if thread is None:
        raise ThreadExistsError(thread_id)
    return thread
