"""Tool executions: intents, outcomes, compare-and-swap updates of both, and lists."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any, Final, TypeVar

from langgraph_pgstate.arguments import request_scope, text_of
from langgraph_pgstate.codec.frames import unpack
from langgraph_pgstate.db.protocol import Connection, Read, Row
from langgraph_pgstate.errors import NotFoundError, PGStateError, ToolSetupError
from langgraph_pgstate.leases.guards import refuse_archived, refuse_deleted
from langgraph_pgstate.paging import LAST, Page, decode_cursor, read_page
from langgraph_pgstate.record.events import note_action
from langgraph_pgstate.record.types import ToolExecution
from langgraph_pgstate.schema.queries import Queries
from langgraph_pgstate.scopes import Scope

# Prefixes of the type of a stored result. `PARENT_RESULT` marks a `Command` for the parent graph that the tool raised,
# `UNSTORABLE_RESULT` marks a result that could not be stored.
PARENT_RESULT: Final = "parent/"
UNSTORABLE_RESULT: Final = "none/"
# Prefix of the type of a result whose bytes are compressed and have a checksum. Earlier versions stored no such prefix.
FRAMED_RESULT: Final = "frame/"
# Number of used resume values of an action that a person has settled, until the task calls the action again. Then all
# values that the task has been given count as used.
ALL_ANSWERS: Final = -1
_COLUMNS = len(fields(ToolExecution))
# The maximum of PostgreSQL's timeouts in milliseconds, 24 days.
_LONGEST_LIMIT = 2**31 - 1
_ARGUMENTS = [field.name for field in fields(ToolExecution)].index("arguments")

E = TypeVar("E", bound=PGStateError)


@dataclass(frozen=True, slots=True)
class Intent:
    """The intent to run a tool, which is committed before the tool runs.

    Attributes:
        thread_id: The thread.
        idempotency_key: Identifies the action.
        fingerprint: Fingerprint of the model's request; `None` if the key alone identifies the action.
        intent_id: Random id of this attempt, needed to write the outcome.
        tool: The tool.
        arguments: The arguments as JSON text.
        tool_call_id: The model's tool call.
        agent: The agent.
        run_id: The run.
        task_id: The task.
        checkpoint_ns: Namespace of the task's graph.
        checkpoint_id: The checkpoint from which its superstep started.
        root_checkpoint_id: The root namespace's checkpoint at that time.
        step: The superstep.
        compensates: Key of the execution that this one compensates.
    """

    thread_id: str
    idempotency_key: str
    fingerprint: str | None
    intent_id: str
    tool: str
    arguments: str
    tool_call_id: str | None = None
    agent: str | None = None
    run_id: str | None = None
    task_id: str | None = None
    checkpoint_ns: str | None = None
    checkpoint_id: str | None = None
    root_checkpoint_id: str | None = None
    step: int | None = None
    compensates: str | None = None

    def parameters(self) -> dict[str, Any]:
        """Return the intent as query parameters."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def error(self, kind: Callable[..., E], *more: Any) -> E:
        """Return an error about the action."""
        return kind(self.tool, self.thread_id, self.idempotency_key, *more)


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of an attempt.

    Attributes:
        status: `success`, `error`, `timeout`, `unknown`, or `pending` if it is to be run again.
        result_type: Type of the encoded result.
        result: The encoded result.
        preview: The beginning of the result, as text.
        error_type: Qualified name of the exception.
        error_message: Message of the exception.
        answers: Number of the task's resume values that were used up by the end of the attempt. With 0, `finish` keeps
            the recorded number.
    """

    status: str
    result_type: str | None = None
    result: bytes | None = None
    preview: str | None = None
    error_type: str | None = None
    error_message: str | None = None
    answers: int = 0


@dataclass(frozen=True, slots=True)
class Recorded:
    """A row of `tool_executions` as the ledger reads it.

    Attributes:
        execution: The public columns.
        fingerprint: Fingerprint of the model's request.
        intent_id: Id of the last attempt.
        answers: Number of the task's resume values that are used up after the action, or `ALL_ANSWERS`.
        is_expired: Whether `alive_until` has passed.
        result_type: Type of the encoded result.
        result: The encoded result.
    """

    execution: ToolExecution
    fingerprint: str | None
    intent_id: str | None
    answers: int
    is_expired: bool
    result_type: str | None
    result: bytes | None


async def begin(
    db: Connection, queries: Queries, intent: Intent, holder_id: str, ttl_seconds: float
) -> tuple[int, Recorded | None]:
    """Record an intent, unless the action is recorded already. One statement, or two if it is recorded.

    Safe to repeat: if an intent was recorded but the response was lost, its `intent_id` identifies it.

    Returns:
        The number of the attempt that may begin now, or 0 and the recorded action.

    Raises:
        ThreadDeletedError: If the thread was deleted and has a tombstone.
        ToolSetupError: If the caller has an open transaction: the intent must be committed before the tool runs.
    """
    parameters = {**intent.parameters(), "holder_id": holder_id, "ttl_seconds": ttl_seconds}
    if db.is_in_transaction:
        raise ToolSetupError(
            f"{intent.tool} must not be called while the ledger's connection is in a transaction, because the ledger "
            "commits the intent before the tool runs: commit first, or give a pool"
        )
    while True:
        if await db.fetch(queries.begin_tool_execution, parameters):
            return 1, None
        recorded = await get(db, queries, intent.thread_id, intent.idempotency_key)
        if recorded is None:
            # The action was deleted meanwhile, together with its thread.
            await refuse_deleted(db, queries, intent.thread_id)
            continue
        if recorded.intent_id != intent.intent_id:
            return 0, recorded
        # This intent is recorded, but the response was lost. The intent's `alive_until` may have passed since.
        if await renew(db, queries, intent.thread_id, {intent.intent_id: intent.idempotency_key}, ttl_seconds):
            return recorded.execution.attempt, None
        if recorded.execution.status == "pending":
            return 0, recorded
        # The recorded intent had expired. Another process took this process for dead, and stored an unknown outcome.
        # But the tool has not begun, so store that the action can begin again.
        await finish(db, queries, intent, Outcome("pending"))


async def is_reached(db: Connection, queries: Queries, intent: Intent) -> bool:
    """Return whether a call's two checkpoints are stored: that of the task's graph, and that of the root graph."""
    if intent.checkpoint_id is None:
        return True
    places = {(intent.checkpoint_ns, intent.checkpoint_id), ("", intent.root_checkpoint_id or intent.checkpoint_id)}
    rows = await db.fetch(
        queries.count_stored_checkpoints,
        {
            "thread_id": intent.thread_id,
            "checkpoint_ns": intent.checkpoint_ns,
            "checkpoint_id": intent.checkpoint_id,
            "root_checkpoint_id": intent.root_checkpoint_id,
        },
    )
    return bool(rows[0][0] >= len(places))


async def get(db: Connection, queries: Queries, thread_id: str, idempotency_key: str) -> Recorded | None:
    """Return one execution with its encoded result, or `None` if there is no such action."""
    key = {"thread_id": thread_id, "idempotency_key": idempotency_key}
    rows = await db.fetch(queries.get_tool_execution, key)
    if not rows:
        return None
    return Recorded(execution_of(rows[0]), *rows[0][_COLUMNS:])


async def find(db: Connection, queries: Queries, thread_id: str, idempotency_key: str) -> Recorded | None:
    """Return what `get` returns.

    Raises:
        ThreadArchivedError: If the thread is archived.
    """
    recorded = await get(db, queries, thread_id, idempotency_key)
    if recorded is None:
        await refuse_archived(db, queries, thread_id)
    return recorded


async def take_over(
    db: Connection,
    queries: Queries,
    intent: Intent,
    seen: Recorded,
    holder_id: str,
    ttl_seconds: float,
    *,
    is_gone: bool,
    answers: int,
) -> int:
    """Begin another attempt if the row is unchanged since it was read. One compare-and-swap; safe to repeat.

    Args:
        db: The connection.
        queries: The queries of the schema.
        intent: The new attempt.
        seen: The row as it was read.
        holder_id: The process of the new attempt.
        ttl_seconds: Seconds for which that process is considered alive.
        is_gone: Whether the previous process is known to be dead, even if its `alive_until` has not passed.
        answers: Number of resume values used up so far.

    Returns:
        The attempt's number; 0 if the row has changed.
    """
    rows = await db.fetch(
        queries.take_over_tool_execution,
        {
            **intent.parameters(),
            "holder_id": holder_id,
            "ttl_seconds": ttl_seconds,
            "answers": answers,
            **_as_seen(seen, is_gone),
        },
    )
    if rows:
        return int(rows[0][0])
    now = await get(db, queries, intent.thread_id, intent.idempotency_key)
    if now is None or now.intent_id != intent.intent_id:
        return 0
    intents = {intent.intent_id: intent.idempotency_key}
    return now.execution.attempt if await renew(db, queries, intent.thread_id, intents, ttl_seconds) else 0


async def settle(
    db: Connection,
    queries: Queries,
    seen: Recorded,
    outcome: Outcome,
    intent_id: str,
    *,
    is_gone: bool,
    answers: int,
    by: str | None = None,
) -> bool:
    """Set the outcome of an action that no live process runs. One compare-and-swap; safe to repeat.

    An effect whose compensation succeeded is marked as compensated in the same statement. With the name of a person
    (`by`), an event is stored in the same transaction.

    Returns:
        Whether the row was unchanged since it was read.
    """
    key = {"thread_id": seen.execution.thread_id, "idempotency_key": seen.execution.idempotency_key}
    parameters = {
        **key,
        **_outcome(outcome),
        "intent_id": intent_id,
        "answers": answers,
        **_as_seen(seen, is_gone),
    }
    if by is None:
        rows = await db.fetch(queries.settle_tool_execution, parameters)
    else:
        async with db.transaction():
            rows = await db.fetch(queries.settle_tool_execution, parameters)
            if rows:
                facts = {"tool": seen.execution.tool, "key": key["idempotency_key"], "status": outcome.status}
                await note_action(db, queries, "settle", by, key["thread_id"], seen.execution.run_id, facts)
    if rows:
        return True
    now = await get(db, queries, **key)
    return now is not None and now.intent_id == intent_id


async def note_answers(db: Connection, queries: Queries, seen: Recorded, answers: int) -> bool:
    """Replace `ALL_ANSWERS` of a settled action by the number of resume values. One statement; safe to repeat.

    Returns:
        Whether the outcome is unchanged since it was read.
    """
    key = {"thread_id": seen.execution.thread_id, "idempotency_key": seen.execution.idempotency_key}
    return await db.execute(queries.note_answers, {**key, "intent_id": seen.intent_id, "answers": answers}) > 0


async def mark_unknown(db: Connection, queries: Queries, seen: Recorded, *, is_gone: bool) -> bool:
    """Set an action whose process is gone to `unknown`. One statement. A late outcome is still accepted.

    Returns:
        Whether the outcome is unknown now; false if the action ended, was renewed or was taken over since it was read.
    """
    if seen.execution.status != "running":
        return True
    key = {"thread_id": seen.execution.thread_id, "idempotency_key": seen.execution.idempotency_key}
    parameters = {**key, "seen_intent_id": seen.intent_id, "is_gone": is_gone}
    return bool(await db.fetch(queries.mark_tool_execution_unknown, parameters))


async def finish(db: Connection, queries: Queries, intent: Intent, outcome: Outcome) -> bool:
    """Write the outcome of an attempt. For a compensation, mark its effect as compensated.

    One statement; safe to repeat.

    Returns:
        False if the action was taken over or deleted with its thread.
    """
    key = {
        "thread_id": intent.thread_id,
        "idempotency_key": intent.idempotency_key,
        "intent_id": intent.intent_id,
    }
    return bool(await db.fetch(queries.finish_tool_execution, {**key, **_outcome(outcome)}))


async def is_committed(db: Connection, queries: Queries, intent: Intent, seconds: float) -> bool:
    """Return whether the transaction with an attempt's outcome was committed. If not, let the action begin again.

    Waits for the end of that transaction, because the server may still be committing it. Safe to repeat.

    Raises:
        DatabaseError: If the transaction has not ended after `seconds`.
    """
    key = {"thread_id": intent.thread_id, "idempotency_key": intent.idempotency_key}
    async with db.transaction():
        await limit_transaction(db, queries, seconds)
        await db.execute(queries.release_tool_execution, {**key, "intent_id": intent.intent_id})
    recorded = await get(db, queries, **key)
    return recorded is not None and recorded.intent_id == intent.intent_id and recorded.execution.status == "success"


async def limit_transaction(db: Connection, queries: Queries, seconds: float) -> None:
    """Make the server end this transaction if a statement, or a pause between two, takes longer than `seconds`.

    Valid until the transaction's end. A shorter limit set before is kept. One statement.
    """
    await db.fetch(queries.limit_transaction, {"milliseconds": min(seconds * 1000, _LONGEST_LIMIT)})


async def renew(
    db: Connection, queries: Queries, thread_id: str, intents: Mapping[str, str], ttl_seconds: float
) -> int:
    """Renew `alive_until` of attempts on one thread. `intents` maps intent ids to keys. One statement.

    Returns:
        Number of attempts that are still running.
    """
    return await db.execute(
        queries.renew_tool_executions,
        {
            "thread_id": thread_id,
            "idempotency_keys": list(intents.values()),
            "intent_ids": list(intents),
            "ttl_seconds": ttl_seconds,
        },
    )


async def renew_all(
    db: Connection, queries: Queries, attempts: Mapping[str, Mapping[str, str]], ttl_seconds: float
) -> None:
    """Renew `alive_until` of attempts on several threads. One statement for each thread."""
    for thread_id, intents in attempts.items():
        await renew(db, queries, thread_id, intents, ttl_seconds)


async def task_interrupts(db: Connection, queries: Queries, thread_id: str, task_id: str) -> tuple[int, Sequence[str]]:
    """Return the number of a task's used resume values, and ids (`key#attempt`) of its executions without outcome."""
    rows = await db.fetch(queries.get_task_interrupts, {"thread_id": thread_id, "task_id": task_id})
    return rows[0][0], rows[0][1] or []


async def list_effects(
    db: Connection, queries: Queries, thread_id: str, run_id: str | None, to_checkpoint: str | None
) -> list[tuple[ToolExecution, bool]]:
    """Return a thread's executions that are not compensated, last outcome first.

    With `run_id`, only executions of this run are returned; with `to_checkpoint`, only those from this checkpoint on.

    Returns:
        Each execution, and whether it was made on another thread and came here by a fork or a copy.

    Raises:
        NotFoundError: If the thread's root namespace has no such checkpoint.
        ThreadArchivedError: If the thread is archived.
    """
    if to_checkpoint is not None and not await db.fetch(
        queries.find_root_checkpoint, {"thread_id": thread_id, "checkpoint_id": to_checkpoint}
    ):
        await refuse_archived(db, queries, thread_id)
        raise NotFoundError(f"thread {thread_id!r} has no checkpoint {to_checkpoint!r}")
    rows = await db.fetch(
        queries.list_effects, {"thread_id": thread_id, "run_id": run_id, "to_checkpoint": to_checkpoint}
    )
    if not rows:
        await refuse_archived(db, queries, thread_id)
    return [(execution_of(row), row[_COLUMNS]) for row in rows]


def _as_seen(seen: Recorded, is_gone: bool) -> dict[str, Any]:
    return {"seen_status": seen.execution.status, "seen_intent_id": seen.intent_id, "is_gone": is_gone}


def _outcome(outcome: Outcome) -> dict[str, Any]:
    return {field.name: getattr(outcome, field.name) for field in fields(outcome)}


def execution_of(row: Row) -> ToolExecution:
    """Return the execution that the first columns of a row hold."""
    values = list(row[:_COLUMNS])
    values[_ARGUMENTS] = json.loads(values[_ARGUMENTS])
    return ToolExecution(*values)


def open_result(type_: str, data: bytes, where: str) -> tuple[str, bytes]:
    """Return the serializer's type and bytes of a recorded result, without its frame.

    If the tool raised the result as an exception, the type keeps the prefix that says so.

    Raises:
        CorruptStateError: If the stored result was altered.
    """
    if type_.startswith(FRAMED_RESULT):
        return type_.removeprefix(FRAMED_RESULT), unpack(data, where)
    return type_, bytes(data)


_KIND: Final = "tool executions"


async def list_executions(
    db: Connection,
    queries: Queries,
    thread_id: str,
    run_id: str | None,
    limit: int,
    after: tuple[datetime, str] | None = None,
    *,
    unknown: bool = False,
) -> list[ToolExecution]:
    """Return a page of a thread's executions, newest first, or only of those whose outcome is unknown.

    Raises:
        ThreadArchivedError: If the thread is archived.
    """
    started_at, key = after or (None, None)
    rows = await db.fetch(
        queries.list_tool_executions,
        {
            "thread_id": thread_id,
            "run_id": run_id,
            "unknown": unknown,
            "cursor_started_at": started_at,
            "cursor_key": key,
            "page_size": limit,
        },
    )
    if not rows:
        await refuse_archived(db, queries, thread_id)
    return [execution_of(row) for row in rows]


def list_recent(
    *,
    tool: str | None = None,
    unknown: bool = False,
    scope: Scope | None = None,
    limit: int = 20,
    cursor: str | None = None,
) -> Read[Page[ToolExecution]]:
    """Return a `Read` of a page of the executions of all threads, newest first.

    Raises:
        ConfigurationError: If an argument is invalid.
    """
    at, cursor_thread, cursor_key = decode_cursor(_KIND, cursor, (LAST, "", ""))
    position = {"cursor_at": at, "cursor_thread": cursor_thread, "cursor_key": cursor_key}
    return read_page(
        "list_unknown_executions" if unknown else "list_recent_executions",
        {"tool": text_of("tool", tool), "scope": request_scope(scope), **position},
        limit,
        lambda *row: execution_of(row),
        _KIND,
        lambda item: (item.started_at, item.thread_id, item.idempotency_key),
    )
