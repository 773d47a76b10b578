"""Tool executions: the intent before, the outcome after, and who may write which."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any, Final

from langgraph_pgstate.codec.frames import unpack
from langgraph_pgstate.db.protocol import Connection
from langgraph_pgstate.errors import NotFoundError, ToolSetupError
from langgraph_pgstate.operations.leases.guards import refuse_deleted
from langgraph_pgstate.sql import Queries
from langgraph_pgstate.types import Row, ToolExecution

# A tool may end by sending its graph's parent somewhere; recorded as what it raised.
PARENT_RESULT: Final = "parent/"
UNSTORABLE_RESULT: Final = "none/"
# The bytes are a frame: compressed, with a checksum. What was stored before there were frames has no such mark.
FRAMED_RESULT: Final = "frame/"
_COLUMNS = len(fields(ToolExecution))
# PostgreSQL's settings of time end here, at 24 days.
_LONGEST_LIMIT = 2**31 - 1
_ARGUMENTS = [field.name for field in fields(ToolExecution)].index("arguments")


@dataclass(frozen=True, slots=True)
class Intent:
    """What is about to be run, and by whom.

    Attributes:
        thread_id: The thread.
        idempotency_key: What the action is.
        fingerprint: Of what the model asked for; `None` where the key alone says what the action is.
        intent_id: Drawn for this attempt; only who knows it may write the outcome.
        tool: The tool.
        arguments: As JSON text.
        tool_call_id: The model's tool call.
        agent: The agent.
        run_id: The run.
        task_id: The task.
        checkpoint_ns: Namespace of the graph the task is in.
        checkpoint_id: The checkpoint its superstep started from.
        root_checkpoint_id: The root namespace's checkpoint at that time.
        step: The superstep.
        compensates: Key of the execution that this one takes back.
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
        """As the queries take them."""
        return {field.name: getattr(self, field.name) for field in fields(self)}


@dataclass(frozen=True, slots=True)
class Outcome:
    """How an attempt ended.

    Attributes:
        status: `success`, `error`, `timeout`, `unknown`, or `pending` if it is to be begun again.
        result_type: Type of the encoded result.
        result: The encoded result.
        preview: Its beginning, as text.
        error_type: Qualified name of the exception.
        error_message: Its message.
        answers: How many of its task's resume values are used up with it; 0 leaves what is recorded.
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
    """A row as the ledger reads it.

    Attributes:
        execution: What everybody may know of it.
        fingerprint: Of what the model asked for.
        intent_id: Of its last attempt.
        answers: Resume values of its task that were used up to settle it.
        is_expired: Whether its holder let its time pass.
        result_type: Type of its encoded result.
        result: Its encoded result.
        origin_thread_id: The thread it was begun on, if it came from there with a fork or a copy.
    """

    execution: ToolExecution
    fingerprint: str | None
    intent_id: str | None
    answers: int
    is_expired: bool
    result_type: str | None
    result: bytes | None
    origin_thread_id: str | None = None


async def begin(
    db: Connection, queries: Queries, intent: Intent, holder_id: str, ttl_seconds: float
) -> tuple[int, Recorded | None]:
    """Record an intent, unless the action is known already. One statement; a second one if it is.

    Safe to repeat: an intent that was recorded before its answer was lost is recognised by its `intent_id`.

    Returns:
        The number of the attempt that may begin now, or 0 and what is recorded of the action.

    Raises:
        ThreadDeletedError: If the thread was deleted, and left a tombstone.
        ToolSetupError: If this is a caller's transaction: an intent counts once it is committed.
    """
    if db.is_in_transaction:
        raise ToolSetupError(
            f"{intent.tool} is called while the connection that the ledger was given is in a transaction: what it "
            "intends has to be committed before it runs. Commit first, or give a pool"
        )
    parameters = {**intent.parameters(), "holder_id": holder_id, "ttl_seconds": ttl_seconds}
    while True:
        if await db.fetch(queries.begin_tool_execution, parameters):
            return 1, None
        recorded = await get(db, queries, intent.thread_id, intent.idempotency_key)
        if recorded is None:
            # Removed in the meantime, together with its thread.
            await refuse_deleted(db, queries, intent.thread_id)
            continue
        if recorded.intent_id != intent.intent_id:
            return 0, recorded
        # Its confirmation was lost, and its time may have passed meanwhile.
        if await renew(db, queries, intent.thread_id, {intent.intent_id: intent.idempotency_key}, ttl_seconds):
            return recorded.execution.attempt, None


async def is_reached(db: Connection, queries: Queries, intent: Intent) -> bool:
    """Whether the checkpoint that a call was made from is stored, its root's included."""
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
    """One execution with its encoded result; `None` if there is no such action."""
    key = {"thread_id": thread_id, "idempotency_key": idempotency_key}
    rows = await db.fetch(queries.get_tool_execution, key)
    if not rows:
        return None
    return Recorded(_execution(rows[0]), *rows[0][_COLUMNS:])


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
    """Begin another attempt, if the row is still as it was seen. One compare-and-swap; safe to repeat.

    Args:
        db: The connection.
        queries: The schema's queries.
        intent: The new attempt.
        seen: The row as it was read.
        holder_id: Who runs it now.
        ttl_seconds: How long that holder may be taken for alive.
        is_gone: Whether the one who ran it is known to be dead, whatever its time says.
        answers: Resume values used up so far.

    Returns:
        The attempt's number; 0 if somebody else was faster.
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
    db: Connection, queries: Queries, seen: Recorded, outcome: Outcome, intent_id: str, *, is_gone: bool, answers: int
) -> bool:
    """Decide how an action ended that nobody alive runs. One compare-and-swap; safe to repeat.

    Returns:
        Whether the row was still as it was seen.
    """
    key = {"thread_id": seen.execution.thread_id, "idempotency_key": seen.execution.idempotency_key}
    rows = await db.fetch(
        queries.settle_tool_execution,
        {**key, **_outcome(outcome), "intent_id": intent_id, "answers": answers, **_as_seen(seen, is_gone)},
    )
    if rows:
        return True
    now = await get(db, queries, **key)
    return now is not None and now.intent_id == intent_id


async def mark_unknown(db: Connection, queries: Queries, seen: Recorded, *, is_gone: bool) -> bool:
    """Note that whoever ran an action is gone. One statement; its late outcome, if one comes, still counts.

    Returns:
        Whether it is unknown; false if it ended, was renewed or was taken over since it was read.
    """
    if seen.execution.status != "running":
        return True
    key = {"thread_id": seen.execution.thread_id, "idempotency_key": seen.execution.idempotency_key}
    parameters = {**key, "seen_intent_id": seen.intent_id, "is_gone": is_gone}
    return bool(await db.fetch(queries.mark_tool_execution_unknown, parameters))


async def finish(db: Connection, queries: Queries, intent: Intent, outcome: Outcome) -> bool:
    """Write the outcome of an attempt. One statement; safe to repeat.

    Returns:
        False if the action was taken over, or removed with its thread.
    """
    key = {
        "thread_id": intent.thread_id,
        "idempotency_key": intent.idempotency_key,
        "intent_id": intent.intent_id,
    }
    return bool(await db.fetch(queries.finish_tool_execution, {**key, **_outcome(outcome)}))


async def is_committed(db: Connection, queries: Queries, intent: Intent, seconds: float) -> bool:
    """Tell whether the transaction that holds an attempt's outcome was committed; if not, the action may run again.

    Waits for that transaction's end: the server may still be committing it. Safe to repeat.

    Raises:
        DatabaseError: If it has not ended after `seconds`.
    """
    key = {"thread_id": intent.thread_id, "idempotency_key": intent.idempotency_key}
    async with db.transaction():
        await limit_transaction(db, queries, seconds)
        await db.execute(queries.release_tool_execution, {**key, "intent_id": intent.intent_id})
    recorded = await get(db, queries, **key)
    return recorded is not None and recorded.intent_id == intent.intent_id and recorded.execution.status == "success"


async def limit_transaction(db: Connection, queries: Queries, seconds: float) -> None:
    """Have the server end a transaction by itself that hangs in a statement, or between two, for so long.

    It counts until the transaction's end, and never lengthens what was set before. One statement.
    """
    await db.fetch(queries.limit_transaction, {"milliseconds": min(seconds * 1000, _LONGEST_LIMIT)})


async def renew(
    db: Connection, queries: Queries, thread_id: str, intents: Mapping[str, str], ttl_seconds: float
) -> int:
    """Keep attempts of one thread alive: `intents` maps their ids to their keys. One statement.

    Returns:
        How many of them are still running.
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


async def task_interrupts(db: Connection, queries: Queries, thread_id: str, task_id: str) -> tuple[int, Sequence[str]]:
    """How many resume values a task has used up, and the ids (`key#attempt`) of its executions without outcome."""
    rows = await db.fetch(queries.get_task_interrupts, {"thread_id": thread_id, "task_id": task_id})
    return rows[0][0], rows[0][1] or []


async def list_executions(
    db: Connection,
    queries: Queries,
    thread_id: str,
    run_id: str | None,
    limit: int,
    after: tuple[datetime, str] | None = None,
) -> list[ToolExecution]:
    """A page of a thread's executions, newest first."""
    started_at, key = after or (None, None)
    rows = await db.fetch(
        queries.list_tool_executions,
        {
            "thread_id": thread_id,
            "run_id": run_id,
            "cursor_started_at": started_at,
            "cursor_key": key,
            "page_size": limit,
        },
    )
    return [_execution(row) for row in rows]


async def list_effects(
    db: Connection, queries: Queries, thread_id: str, run_id: str | None, to_checkpoint: str | None
) -> list[tuple[ToolExecution, bool]]:
    """Executions that were not taken back, last outcome first: of a run, of what came after a checkpoint, or all.

    Returns:
        Each with whether it only came along with a fork or a copy of the thread that it was made on.

    Raises:
        NotFoundError: If the thread's root namespace has no such checkpoint.
    """
    if to_checkpoint is not None and not await db.fetch(
        queries.find_root_checkpoint, {"thread_id": thread_id, "checkpoint_id": to_checkpoint}
    ):
        raise NotFoundError(f"thread {thread_id!r} has no checkpoint {to_checkpoint!r}")
    rows = await db.fetch(
        queries.list_effects, {"thread_id": thread_id, "run_id": run_id, "to_checkpoint": to_checkpoint}
    )
    return [(_execution(row), row[_COLUMNS]) for row in rows]


async def mark_compensated(db: Connection, queries: Queries, thread_id: str, idempotency_key: str) -> None:
    """Note that an effect was taken back; the first time counts. One statement."""
    await db.execute(queries.mark_compensated, {"thread_id": thread_id, "idempotency_key": idempotency_key})


def _as_seen(seen: Recorded, is_gone: bool) -> dict[str, Any]:
    return {"seen_status": seen.execution.status, "seen_intent_id": seen.intent_id, "is_gone": is_gone}


def _outcome(outcome: Outcome) -> dict[str, Any]:
    return {field.name: getattr(outcome, field.name) for field in fields(outcome)}


def _execution(row: Row) -> ToolExecution:
    values = list(row[:_COLUMNS])
    values[_ARGUMENTS] = json.loads(values[_ARGUMENTS])
    return ToolExecution(*values)


def open_result(type_: str, data: bytes, where: str) -> tuple[str, bytes]:
    """Return the type of a recorded result, with its mark if a tool raised it, and its encoded bytes.

    Raises:
        CorruptStateError: If it was altered.
    """
    if type_.startswith(FRAMED_RESULT):
        return type_.removeprefix(FRAMED_RESULT), unpack(data, where)
    return type_, bytes(data)
