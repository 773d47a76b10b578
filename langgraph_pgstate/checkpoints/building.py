"""Building of a put's batch: the statements that store a plan, its guard's and its hook's. No I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from langgraph_pgstate.checkpoints.hooks import PutHook
from langgraph_pgstate.checkpoints.journal_entry import JournalEntry
from langgraph_pgstate.checkpoints.planning import PutPlan
from langgraph_pgstate.checkpoints.requests import concatenate
from langgraph_pgstate.codec.ids import new_entry_id
from langgraph_pgstate.leases.guards import Guard
from langgraph_pgstate.schema.queries import Queries, Statement


class Batch(NamedTuple):
    """The statements of one put, to be sent as one transaction.

    Attributes:
        statements: Those of the guard, the one that stores the checkpoint, and those of the hook, in this order.
        position: Index of the statement that stores the checkpoint; it affects no row if a base was changed.
        replaces: Whether a checkpoint of the same id is replaced; if not, it makes the batch fail.
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
    """Return the statements that store a plan.

    Args:
        queries: The queries of the schema.
        plan: The plan; it gets a new journal entry if there is a hook.
        replaces: Whether a checkpoint of the same id is replaced.
        hook: Adds statements, and rows to the journal entry.
        config: The put's config, for the hook.
        guard: The conditions under which the checkpoint may be stored.
    """
    request = plan.request
    replaces = replaces or request.touches_thread
    others: Sequence[Statement] = ()
    entry: JournalEntry | None = None
    if hook is not None:
        entry = plan.journal_entry = JournalEntry()
        # Hooks come before the parameters, because one may set the run and the owner.
        others = hook.before_put(plan, config or {})
    statements = [] if guard is None else guard.before_put(queries, request.address, request.parent)
    parameters = row_parameters(plan)
    name = "put_checkpoint"
    if len(plan.base_revisions) == 1:
        name = "put_checkpoint_based"
        ((parameters["base_id"], parameters["base_revision"]),) = plan.base_revisions.items()
    elif plan.base_revisions:
        # LangGraph does not produce checkpoints that inherit from several others.
        base_parameters = {"base_ids": list(plan.base_revisions), "base_revisions": list(plan.base_revisions.values())}
        statements.append((queries.hold_bases, {**parameters, **base_parameters}))
    if replaces:
        name += "_touching" if request.touches_thread else "_replacing"
        if request.touches_thread:
            parameters |= request.columns
        parameters |= segment_parameters(plan)
    elif len(plan.new_segments) == 1 and len(plan.base_revisions) == 1:
        name += "_segment"
        ((parameters["new_id"], parameters["new_data"]),) = plan.new_segments.items()
    elif plan.new_segments:
        name += "_segments"
        parameters |= segment_parameters(plan)
    if entry:
        name += "_recorded"
        parameters["entry_id"], parameters["entry"] = new_entry_id(), entry.pack()
    position = len(statements)
    statements.append((queries.all[name], parameters))
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
    """Return the parameters that pass any number of new segments, or none."""
    frames = list(plan.new_segments.values())
    return {"new_ids": list(plan.new_segments), **concatenate(frames, "new_data", "new_starts", "new_lengths")}
