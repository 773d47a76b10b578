"""The statements of a planned checkpoint, sent as one transaction. If PostgreSQL refuses, another plan and attempt."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from enum import Enum, auto
from functools import partial
from typing import Any, Final, NamedTuple

from langgraph_pgstate.arguments import Address
from langgraph_pgstate.checkpoints.getting import get_tuple, is_heavy
from langgraph_pgstate.checkpoints.hooks import PutHook
from langgraph_pgstate.checkpoints.journal_entry import JournalEntry
from langgraph_pgstate.checkpoints.planning import PutPlan, find_missing, plan_put, plan_quickly
from langgraph_pgstate.checkpoints.reading import CheckpointRow, Segments, load_tuple, load_value, states_to_manifests
from langgraph_pgstate.checkpoints.requests import PutRequest, concatenate
from langgraph_pgstate.codec.ids import new_entry_id, new_revision
from langgraph_pgstate.codec.states import Elements, Manifest
from langgraph_pgstate.codec.values import ValueCodec
from langgraph_pgstate.db.protocol import Connection
from langgraph_pgstate.db.translate import is_refusal
from langgraph_pgstate.errors import (
    ConflictError,
    CorruptStateError,
    StaleHeadError,
    ThreadArchivedError,
    UnsafeTypeError,
)
from langgraph_pgstate.leases.guards import Guard, archive_of, broken_condition
from langgraph_pgstate.schema.queries import Queries, Statement

# Four attempts for `HELD_ROW_MISSING`, and one more for each other kind of `Refusal`.
_PUT_ATTEMPTS: Final = 7
_UNIQUE_VIOLATION: Final = "23505"
_SCAN_PAGE: Final = 200
_NO_OWNER: Final = {"agent": None, "user_id": None, "tenant_id": None}

_logger = logging.getLogger("langgraph_pgstate")


class Refusal(Enum):
    """A reason why a batch stored nothing and can be sent again in another form."""

    HELD_ROW_MISSING = auto()
    """A row that the put locks is missing or was replaced: the thread's row, or the row of a base checkpoint."""
    ID_EXISTS = auto()
    """A checkpoint of the same id exists."""
    GUARD_NEEDS_THREAD = auto()
    """The guard locks the thread's row, but the row does not exist."""
    HOOK_REFUSED = auto()
    """The database refuses the rows of the hook because of their data."""


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


async def put(
    db: Connection,
    queries: Queries,
    codec: ValueCodec,
    plan: PutPlan,
    hook: PutHook | None = None,
    config: Mapping[str, Any] | None = None,
    guard: Guard | None = None,
    *,
    gives_way: bool = False,
) -> PutPlan:
    """Store a planned checkpoint. One round trip; atomic and idempotent.

    Args:
        db: The connection.
        queries: The queries of the schema.
        codec: Encodes values if the plan is made again.
        plan: The plan, made from the cached manifest of the parent.
        hook: Adds statements to the transaction. Called in each attempt.
        config: The put's config, for the hook.
        guard: The conditions under which the checkpoint may be stored.
        gives_way: Whether other tasks of the event loop run before the statements are sent.

    Returns:
        The stored plan, which may be a new plan. Cache the plan only after the commit.

    Raises:
        ConflictError: If checkpoints from which the put inherits are deleted during each attempt.
        StaleHeadError: If the guard refuses the put because the branch was advanced, or if DeltaChannels need the
            parent, and the parent no longer exists.
        LeaseLostError: If the guard refuses the put because the lease was taken over.
        ThreadDeletedError: If the guard refuses the put because the thread was deleted.
        ThreadArchivedError: If the thread is archived.
    """
    request = plan.request
    if db.keys is not None:
        db.keys.note_owner(request.address.thread_id, lambda: request.owner)
    # A conflict would abort the caller's transaction, so send the statement that cannot conflict.
    replaces = db.is_in_transaction
    refused: Exception | None = None
    try:
        if plan.tried:
            # The first attempt may be committed although its response was lost, so its segment ids may exist.
            plan = plan.with_new_ids()
        elif plan.state is None:
            plan = await plan_from_database(db, queries, codec, request, plan.parent)
        else:
            plan.tried = True
        for _ in range(_PUT_ATTEMPTS):
            # Each write of a row needs a new revision.
            plan.manifest.revision = new_revision()
            build = partial(build_put, queries, plan, replaces, hook, config, guard)
            is_heavy = hook is not None and plan.is_heavy
            batch = await db.compute(build) if is_heavy else build()
            if gives_way:
                # Other tasks may run now, because the batch is complete.
                await db.give_way()
            try:
                if await _send(db, batch):
                    break
                refusal = Refusal.HELD_ROW_MISSING
            except Exception as error:
                refusal = explain_refusal(error, batch, request.address, request.parent, guard)
                if refusal is Refusal.HOOK_REFUSED:
                    # A hook must never make a put fail. Send the put again without the hook.
                    hook, refused = None, error
            if refusal is Refusal.HELD_ROW_MISSING:
                plan = await plan_from_database(db, queries, codec, request)
                request.touches_thread = True
            elif refusal is Refusal.ID_EXISTS:
                # The next attempt replaces the checkpoint. If the existing id is a segment's, the next attempt fails,
                # too.
                replaces = True
            elif refusal is Refusal.GUARD_NEEDS_THREAD and guard is not None:
                guard = guard.with_thread()
        else:
            raise ConflictError(
                f"{request.address} could not be stored, because other calls keep deleting the checkpoints from which "
                "it inherits: try again"
            )
    except StaleHeadError:
        # This checkpoint will never exist, so delete the writes that tasks have already stored for it.
        await db.execute(queries.delete_orphan_writes, request.address._asdict())
        raise
    if refused is not None:
        _logger.error(
            "%s was stored without its record, because the database refused the record: %s", request.address, refused
        )
        plan.hook_refused = True
    return plan


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
        owner = request.owner if request.touches_thread else _NO_OWNER
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
        **request.columns,
    }


def segment_parameters(plan: PutPlan) -> dict[str, Any]:
    """Return the parameters for a plan's new segments."""
    frames = list(plan.new_segments.values())
    return {"new_ids": list(plan.new_segments), **concatenate(frames, "new_data", "new_starts", "new_lengths")}


async def _send(db: Connection, batch: Batch) -> bool:
    """Send a batch; return whether the checkpoint was stored."""
    if len(batch.statements) == 1:
        return await db.execute(*batch.statements[0]) > 0
    return (await db.execute_together(batch.statements))[batch.position] > 0


def explain_refusal(
    error: Exception, batch: Batch, address: Address, parent: Address | None, guard: Guard | None
) -> Refusal:
    """Return why a batch failed, if the put can be sent again in another form.

    Raises:
        PGStateError: If the guard refused the put, or the thread is archived.
        psycopg.Error: The driver's error, for other causes.
    """
    condition = broken_condition(error)
    if condition == "base":
        return Refusal.HELD_ROW_MISSING
    if (archive_id := archive_of(error)) is not None:
        raise ThreadArchivedError(address.thread_id, archive_id) from error
    if condition is not None and guard is not None:
        if guard.misses_thread(error):
            return Refusal.GUARD_NEEDS_THREAD
        broken = guard.broken(error, address, parent.checkpoint_id if parent else None)
        if broken is not None:
            raise broken from error
    elif getattr(error, "sqlstate", None) == _UNIQUE_VIOLATION and not batch.replaces:
        return Refusal.ID_EXISTS
    elif batch.is_recorded and is_refusal(error):
        return Refusal.HOOK_REFUSED
    raise error


async def plan_from_database(
    db: Connection, queries: Queries, codec: ValueCodec, request: PutRequest, parent: Manifest | None = None
) -> PutPlan:
    """Return a put's plan, made from the parent and from other stored checkpoints that hold inherited values.

    Raises:
        StaleHeadError: If the put needs its parent, and the parent no longer exists.
    """
    if parent is None and request.parent is not None:
        found = await get_tuple(db, queries, codec, request.parent)
        if found is None and request.needs_parent:
            # Another run advanced the branch, and a prune followed. DeltaChannels need the parent.
            thread_id, checkpoint_ns, parent_id = request.parent
            raise StaleHeadError(thread_id, checkpoint_ns, str(parent_id), None)
        if found is not None and not request.states.is_current(found[0].state_version):
            plan = partial(_plan_from_older, codec, request, *found)
            return await db.compute(plan) if is_heavy(found) else plan()
        if found is not None:
            read = partial(_parent_of, codec, request, *found)
            parent = await db.compute(read) if is_heavy(found) else read()
    key = {"thread_id": request.address.thread_id, "checkpoint_ns": request.address.checkpoint_ns}
    # Values of another state version cannot be inherited unchanged.
    scanned = {**key, "state_version": request.states.current}
    others: dict[str, Manifest] = {}
    missing = find_missing(codec, request, parent)
    cursor = db.max_text
    while missing:
        # A copy of a checkpoint inherits from a sibling, so search all checkpoints, not only ancestors.
        rows = await db.fetch(queries.scan_states, {**scanned, "cursor_id": cursor, "page_size": _SCAN_PAGE})
        for checkpoint_id, manifest in states_to_manifests(rows, f"thread {request.address.thread_id!r}").items():
            cursor = checkpoint_id
            still_missing = [
                channel
                for channel in missing
                if manifest.entry(channel, request.checkpoint["channel_versions"][channel]) is None
            ]
            if len(still_missing) < len(missing):
                others[checkpoint_id] = manifest
                missing = still_missing
        if len(rows) < _SCAN_PAGE:
            break
    quick = plan_quickly(codec, request, parent, others)
    return await db.compute(plan_put, codec, request, parent, others) if quick is None else quick


def _plan_from_older(
    codec: ValueCodec, request: PutRequest, row: CheckpointRow, segments: Segments, writes: Any, sends: Sequence[Any]
) -> PutPlan:
    """Plan a put on a parent of an older state version.

    Upcasting changes values, so they are written instead of inherited. Only list elements that the parent has are not
    written again. The checkpoint to store may lack values that it inherits. These values are taken from the upcast
    parent.
    """
    loaded, manifest = load_tuple(codec, row, segments, (), sends)
    upcast = request.states.upcast(loaded, row.state_version).checkpoint
    checkpoint = request.checkpoint
    inherited = {
        channel: upcast["channel_values"][channel]
        for channel, version in checkpoint["channel_versions"].items()
        if channel not in request.new_versions
        and channel in upcast["channel_values"]
        and upcast["channel_versions"].get(channel) == version
    }
    request.checkpoint = {**checkpoint, "channel_values": {**inherited, **checkpoint["channel_values"]}}
    # Without the parent's versions, every value counts as changed.
    parent = Manifest({}, manifest.entries, row.revision)
    return plan_put(codec, request, parent, {})


def _parent_of(
    codec: ValueCodec, request: PutRequest, row: CheckpointRow, segments: Segments, writes: Any, sends: Any
) -> Manifest:
    """Return the parent's manifest, with the fingerprints of lists that are about to change.

    With the fingerprints, unchanged elements are not written again.
    """
    manifest = row.decode().manifest
    manifest.revision = row.revision
    for channel, entry in manifest.entries.items():
        if isinstance(entry, Elements) and channel in request.new_versions:
            try:
                _, manifest.entries[channel] = load_value(codec, entry, segments, str(row.address))
            except (CorruptStateError, UnsafeTypeError):
                # Without a readable old list, the new list is stored in full.
                continue
    return manifest
