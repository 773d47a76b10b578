"""The statements that store one checkpoint. No I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from langgraph_pgstate.checkpoints.hooks import PutHook
from langgraph_pgstate.checkpoints.journal_entry import JournalEntry
from langgraph_pgstate.checkpoints.planning import PutPlan
from langgraph_pgstate.checkpoints.requests import concatenate
from langgraph_pgstate.codec.ids import new_entry_id
from langgraph_pgstate.leases.guards import Guard
from langgraph_pgstate.schema.queries import Queries, Statement

_NO_OWNER: Final = {"agent": None, "user_id": None, "tenant_id": None}


class Batch(NamedTuple):
    """The statements that store one checkpoint, to be sent as one transaction.

    Attributes:
        statements: The guard's statements, the checkpoint's statement, and the hook's statements, in this order.
        position: Index of the checkpoint's statement, which affects no row if a row to lock is missing or changed.
        replaces: Whether a checkpoint of the same id is replaced. If false, such a checkpoint makes the batch fail.
        is_recorded: Whether the batch stores rows of the hook.
    """

    statements: list[Statement]
    position: int
    replaces: bool
    is_recorded: bool


def build_put(
    queries: Queries,
    plan: PutPlan,
    replaces: bool,
    hook: PutHook | None = None,
    config: Mapping[str, Any] | None = None,
    guard: Guard | None = None,
) -> Batch:
    """Return the statements that store a planned checkpoint. With a hook, the plan gets a new journal entry."""
    request = plan.request
    replaces = replaces or request.touches_thread
    others: Sequence[Statement] = ()
    entry: JournalEntry | None = None
    if hook is not None:
        entry = plan.journal_entry = JournalEntry()
        # Call the hooks before making the parameters, because a hook may set the run and the owner.
        others = hook.before_put(plan, config or {})
    statements = [] if guard is None else guard.before_put(queries, request.address, request.parent)
    parameters = row_parameters(plan)
    parameters["entry_id"], parameters["entry"] = (new_entry_id(), entry.pack()) if entry else (None, None)
    bases, segments = plan.base_revisions, plan.new_segments
    if len(bases) > 1:
        # This extra statement is rare: LangGraph itself makes no checkpoint that inherits from several others.
        base_parameters = {"base_ids": list(bases), "base_revisions": list(bases.values())}
        statements.append((queries.hold_bases, {**parameters, **base_parameters}))
    has_base = len(bases) == 1
    ((parameters["base_id"], parameters["base_revision"]),) = bases.items() if has_base else [(None, None)]
    if replaces:
        query = queries.replace_checkpoint
        owner = request.columns if request.touches_thread else _NO_OWNER
        parameters |= {**owner, "touches": request.touches_thread, **segment_parameters(plan)}
    elif has_base and len(segments) == 1:
        query = queries.put_checkpoint_on_base_segment
        ((parameters["new_id"], parameters["new_data"]),) = segments.items()
    elif segments:
        query = queries.put_checkpoint_on_base_segments if has_base else queries.put_checkpoint_segments
        parameters |= segment_parameters(plan)
    else:
        query = queries.put_checkpoint_on_base if has_base else queries.put_checkpoint
    position = len(statements)
    statements.append((query, parameters))
    return Batch([*statements, *others], position, replaces, bool(entry or others))


def row_parameters(plan: PutPlan) -> dict[str, Any]:
    """Return the columns of a planned checkpoint's row."""
    request = plan.request
    thread_id, checkpoint_ns, checkpoint_id = request.address
    return {
        "thread_id": thread_id,
        "checkpoint_ns": checkpoint_ns,
        "checkpoint_id": checkpoint_id,
        "parent_checkpoint_id": request.parent.checkpoint_id if request.parent else None,
        "revision": plan.manifest.revision,
        "segment_ids": [*plan.manifest.positions()],
        "metadata": request.metadata,
        "state": plan.state,
        "state_version": request.states.version,
        **request.columns_without_owner,
    }


def segment_parameters(plan: PutPlan) -> dict[str, Any]:
    """Return the parameters for a plan's new segments."""
    frames = list(plan.new_segments.values())
    return {"new_ids": list(plan.new_segments), **concatenate(frames, "new_data", "new_starts", "new_lengths")}
