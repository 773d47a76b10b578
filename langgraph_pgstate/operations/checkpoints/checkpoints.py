"""Storing and reading of checkpoints."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from langgraph.checkpoint.serde.types import TASKS

from langgraph_pgstate.codec.ids import new_entry_id, new_revision
from langgraph_pgstate.codec.states import Elements, Manifest
from langgraph_pgstate.codec.values import ValueCodec
from langgraph_pgstate.db.protocol import Connection
from langgraph_pgstate.errors import ConflictError, CorruptStateError, StaleHeadError, UnsafeTypeError
from langgraph_pgstate.langgraph_compat import advance_ids_past
from langgraph_pgstate.operations.checkpoints.addresses import Address
from langgraph_pgstate.operations.checkpoints.planning import PutPlan, find_missing, plan_put
from langgraph_pgstate.operations.checkpoints.reading import (
    CachedSegments,
    CheckpointRow,
    Segments,
    WritesRow,
    flatten_writes,
    is_old_format,
    load_tuple,
    load_value,
    states_to_manifests,
)
from langgraph_pgstate.operations.checkpoints.requests import PutRequest
from langgraph_pgstate.operations.leases.guards import Guard, is_guard
from langgraph_pgstate.operations.record.journal_entry import JournalEntry
from langgraph_pgstate.operations.record.put_hook import PutHook, Statement, is_refusal
from langgraph_pgstate.sql import NamedQuery, Queries

# Greater than every id: the cursor of a list's first page.
MAX_ID: Final = "\U0010ffff"
_SCAN_PAGE: Final = 200
_PUT_ATTEMPTS: Final = 4
_UNIQUE_VIOLATION: Final = "23505"
# The kind of row with which `get_checkpoint` returns a checkpoint whose parent no longer exists.
_CUT: Final = 3
_NOT_CACHED: Final[dict[str, Any]] = {"known_revision": None, "missing_ids": []}

_logger = logging.getLogger("langgraph_pgstate")


async def put(
    db: Connection,
    queries: Queries,
    codec: ValueCodec,
    plan: PutPlan,
    touch_thread: bool,
    hook: PutHook | None = None,
    config: Mapping[str, Any] | None = None,
    guard: Guard | None = None,
) -> PutPlan:
    """Store a checkpoint. One statement and one round trip; atomic and idempotent.

    With a hook or a guard it is a transaction of several statements, still in one round trip.

    Args:
        db: The connection.
        queries: The queries of the schema.
        codec: Encodes values if the plan has to be made again.
        plan: The plan, made from the cached manifest of the parent.
        touch_thread: Whether the thread's row is inserted or updated, too.
        hook: Adds statements to the transaction; called each time the checkpoint is sent.
        config: The put's config, for the hook.
        guard: The conditions under which the checkpoint may be stored.

    Returns:
        The plan that was stored, which may be a new one; cache it only after the commit.

    Raises:
        ConflictError: If checkpoints it inherits from are deleted at each attempt.
        StaleHeadError: If the guard refuses it because the branch was advanced; or if it holds DeltaChannels and the
            checkpoint they are rebuilt from no longer exists.
        LeaseLostError: If the guard refuses it because the lease was taken over.
        ThreadDeletedError: If the guard refuses it because the thread was deleted.
    """
    request = plan.request
    if plan.tried:
        # The first try may have been committed without an answer: its segment ids are taken.
        plan = plan.with_new_ids()
    elif not plan.is_complete:
        plan = await _plan_from_database(db, queries, codec, request, plan.parent)
    else:
        plan.tried = True
    # Inside the caller's transaction a failed statement would abort the transaction, so use the one that cannot
    # conflict.
    replaces = db.is_in_transaction
    for _ in range(_PUT_ATTEMPTS):
        try:
            # Each attempt needs a revision of its own.
            plan.manifest.revision = new_revision()
            if hook is None and guard is None and len(plan.bases) <= 1:
                # The fast path for most puts.
                query = _query_of(queries, plan, touch_thread, replaces)
                is_stored = await db.execute(query, plan.parameters(codec, touch_thread)) > 0
            else:
                is_stored = await _send(db, queries, codec, plan, touch_thread, replaces, hook, config, guard)
            if is_stored:
                return plan
        except StaleHeadError:
            # Delete the writes that its tasks stored before it, because no checkpoint will refer to them.
            await db.execute(queries.delete_orphan_writes, request.address._asdict())
            raise
        except Exception as error:
            if replaces or touch_thread or getattr(error, "sqlstate", None) != _UNIQUE_VIOLATION:
                raise
            # The checkpoint exists, so replace it. A segment id that is taken raises here, too, and fails the
            # replacement.
            replaces = True
            continue
        # A checkpoint that this one inherits from was deleted or replaced after it was read.
        plan = await _plan_from_database(db, queries, codec, request)
        touch_thread = True
    raise ConflictError(
        f"{request.address} could not be stored: the checkpoints it inherits from are deleted again and again"
    )


async def _send(
    db: Connection,
    queries: Queries,
    codec: ValueCodec,
    plan: PutPlan,
    touch_thread: bool,
    replaces: bool,
    hook: PutHook | None,
    config: Mapping[str, Any] | None,
    guard: Guard | None,
) -> bool:
    """Store a planned checkpoint with its hook's statements; return false if one it inherits from no longer exists."""
    others: Sequence[Statement] = ()
    if hook is not None:
        plan.journal_entry = JournalEntry()
        # Before computing the parameters, because a hook may set the run and the owner.
        others = hook.before_put(plan, config or {})
    parameters = plan.parameters(codec, touch_thread)
    put: Statement = (_query_of(queries, plan, touch_thread, replaces), parameters)
    recording: Statement | None = None
    if plan.journal_entry:
        recording = (
            _query_of(queries, plan, touch_thread, replaces, is_recorded=True),
            {**parameters, "entry_id": new_entry_id(), "entry": plan.journal_entry.pack()},
        )
    if len(plan.bases) <= 1:
        return await _execute(db, queries, plan, put, recording, others, guard)
    # For values from several checkpoints, which LangGraph does not produce: a single statement for any number of them
    # would be planned again on every call (0.6 against 0.35 ms).
    async with db.transaction():
        held = await db.fetch(queries.hold_checkpoints, {**parameters, "checkpoint_ids": list(plan.bases)})
        if dict(held) != plan.bases:
            return False
        return await _execute(db, queries, plan, put, recording, others, guard)


def _query_of(
    queries: Queries, plan: PutPlan, touch_thread: bool, replaces: bool, *, is_recorded: bool = False
) -> NamedQuery:
    """Return the variant of `put_checkpoint` that stores a plan, optionally with its journal entry."""
    name = "put_checkpoint_based" if len(plan.bases) == 1 else "put_checkpoint"
    if plan.new_segments:
        name += "_segment" if len(plan.new_segments) == 1 else "_segments"
    if touch_thread:
        name += "_touching"
    elif replaces:
        name += "_replacing"
    return queries.all[f"{name}_recorded" if is_recorded else name]


async def _execute(
    db: Connection,
    queries: Queries,
    plan: PutPlan,
    put: Statement,
    recording: Statement | None,
    others: Sequence[Statement],
    guard: Guard | None,
) -> bool:
    """Store a put with its guard's and hook's statements in one transaction; return whether it affected a row."""
    plan.request.hook_refused = False
    if guard is None:
        return await _execute_first(db, plan, (), put, recording, others)
    address, parent = plan.request.address, plan.request.parent
    try:
        try:
            return await _execute_first(db, plan, guard.before_put(queries, address, parent), put, recording, others)
        except Exception as error:
            if not guard.misses_thread(error):
                raise
        guard = guard.with_thread()
        return await _execute_first(db, plan, guard.before_put(queries, address, parent), put, recording, others)
    except Exception as error:
        broken = guard.broken(error, address, parent.checkpoint_id if parent else None)
        if broken is None:
            raise
        raise broken from error


async def _execute_first(
    db: Connection,
    plan: PutPlan,
    guards: Sequence[Statement],
    put: Statement,
    recording: Statement | None,
    others: Sequence[Statement],
) -> bool:
    """Store a put, with guards before and other statements after it; return whether it affected a row.

    If the database rejects the journal entry or the other statements, the put is stored without them: a hook must never
    fail a put. A guard may.
    """
    if recording is None and not others:
        return await _execute_guarded(db, guards, put)
    first = put if recording is None else recording
    try:
        if not others and len(plan.bases) <= 1:
            return await _execute_guarded(db, guards, first)
        return (await db.execute_together([*guards, first, *others]))[len(guards)] > 0
    except Exception as error:
        if not is_refusal(error) or is_guard(error):
            raise
        refused = error
    # If the put itself was rejected, it is rejected again, and nothing was left out.
    is_stored = await _execute_guarded(db, guards, put)
    _logger.error("%s was stored without its record, which the database refused: %s", plan.request.address, refused)
    plan.request.hook_refused = True
    return is_stored


async def _execute_guarded(db: Connection, guards: Sequence[Statement], first: Statement) -> bool:
    if not guards:
        return await db.execute(*first) > 0
    return (await db.execute_together([*guards, first]))[-1] > 0


async def _plan_from_database(
    db: Connection, queries: Queries, codec: ValueCodec, request: PutRequest, parent: Manifest | None = None
) -> PutPlan:
    """Plan a put from the database's state of its parent and of other checkpoints that hold inherited values.

    Raises:
        StaleHeadError: If it needs its parent, which no longer exists.
    """
    if parent is None and request.parent is not None:
        found = await get_tuple(db, queries, codec, request.parent)
        if found is None and request.needs_parent:
            # Another run advanced the branch, and a prune followed. Without the parent the DeltaChannels would be
            # incomplete.
            address = request.address
            await db.execute(queries.delete_orphan_writes, address._asdict())
            parent_id = str(request.parent.checkpoint_id)
            raise StaleHeadError(address.thread_id, address.checkpoint_ns, parent_id, None)
        if found is not None and not request.states.is_current(found[0].state_version):
            return _plan_from_older(codec, request, *found)
        parent = _parent_of(codec, request, *found) if found is not None else None
    key = {"thread_id": request.address.thread_id, "checkpoint_ns": request.address.checkpoint_ns}
    # Values of another state version cannot be inherited unchanged.
    scanned = {**key, "state_version": request.states.current}
    others: dict[str, Manifest] = {}
    missing = find_missing(codec, request, parent)
    cursor = MAX_ID
    while missing:
        # A copy of a checkpoint inherits from its sibling, which no chain of parents reaches.
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
    return plan_put(codec, request, parent, others)


def _plan_from_older(
    codec: ValueCodec, request: PutRequest, row: CheckpointRow, segments: Segments, writes: Any, sends: Sequence[Any]
) -> PutPlan:
    """Plan a put on a parent of an older state version, writing all values, because upcasting changes them.

    Elements that a list shares with the parent's list are not written again. Values that the checkpoint lacks, because
    its graph does not know the channel or the channel is a DeltaChannel, are taken from the upcast parent.
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
    # Without versions, no value is inherited unchanged.
    parent = Manifest({}, manifest.entries, row.revision)
    return plan_put(codec, request, parent, {})


def _parent_of(
    codec: ValueCodec, request: PutRequest, row: CheckpointRow, segments: Segments, writes: Any, sends: Any
) -> Manifest:
    """Return the parent's manifest, with the fingerprints of lists that are about to change.

    Reading a list costs a third of writing it, and elements it shares with its next version need not be written again.
    """
    manifest = row.decode().manifest
    manifest.revision = row.revision
    for channel, entry in manifest.entries.items():
        if isinstance(entry, Elements) and channel in request.new_versions:
            try:
                _, manifest.entries[channel] = load_value(codec, entry, segments, str(row.address))
            except (CorruptStateError, UnsafeTypeError):
                # The list is then written in full; reading the old one raises the error.
                continue
    return manifest


async def get_tuple(
    db: Connection, queries: Queries, codec: ValueCodec, address: Address, cached: CachedSegments | None = None
) -> tuple[CheckpointRow, Segments, list[WritesRow], list[Any]] | None:
    """Read one checkpoint, or the latest if the address has no id. One round trip, two more for formats before 4.

    Args:
        db: The connection.
        queries: The queries of the schema.
        codec: Decodes the pending sends of formats before 4.
        address: The checkpoint.
        cached: Segments that are not fetched if the checkpoint is at the cached revision.

    Returns:
        The arguments of `load_tuple`; `None` if the checkpoint does not exist.
    """
    query = queries.get_checkpoint if address.checkpoint_id else queries.get_latest_checkpoint
    expected = _NOT_CACHED if cached is None else {"known_revision": cached.revision, "missing_ids": cached.missing}
    rows = await db.fetch(query, {**address._asdict(), **expected})
    head = None
    segments = []
    writes = []
    for kind, a, b, c, n, data, ids, state_version in rows:
        if kind == 1:
            segments.append((n, data))
        elif kind == 2:
            writes.append(WritesRow(a, b, n, data))
        elif kind == 4:
            # The id of a fork of an older checkpoint must be the newest.
            advance_ids_past(a)
        else:
            head = CheckpointRow(
                Address(address.thread_id, address.checkpoint_ns, a), b, c, data, ids, n, state_version, kind == _CUT
            )
    if head is None:
        return None
    advance_ids_past(str(head.address.checkpoint_id))
    sends: list[Any] = []
    if head.parent_id and _is_old(head):
        id = str(head.address.checkpoint_id)
        sends = (await read_pending_sends(db, queries, codec, [head])).get(id, [])
        if not (await read_values(db, queries, address.thread_id, address.checkpoint_ns, [id])).present:
            # The checkpoint was pruned in between, and its parent's writes with it.
            return await get_tuple(db, queries, codec, address)
    contents = cached.contents if cached is not None and cached.revision == head.revision else None
    return head, Segments(segments, contents), writes, sends


def _is_old(row: CheckpointRow) -> bool:
    """Return whether a checkpoint is of a format before 4; false if it is damaged, as loading it raises the error."""
    try:
        return is_old_format(row.decode())
    except CorruptStateError:
        return False


async def read_pending_sends(
    db: Connection, queries: Queries, codec: ValueCodec, rows: Sequence[CheckpointRow]
) -> dict[str, list[Any]]:
    """Return, by checkpoint id, the pending sends that formats before 4 store among the parent's writes."""
    old: dict[tuple[str, str], list[CheckpointRow]] = defaultdict(list)
    for row in rows:
        if row.parent_id and row.state is not None and _is_old(row):
            old[row.address.thread_id, row.address.checkpoint_ns].append(row)
    sends = {}
    for (thread_id, namespace), children in old.items():
        found = await read_writes(db, queries, thread_id, namespace, [str(row.parent_id) for row in children])
        for row in children:
            where = f"the parent of {row.address}"
            values = [
                codec.loads(type_, data, where)
                for _, _, (_, channel, type_, data) in flatten_writes(found.get(str(row.parent_id), []), where)
                if channel == TASKS
            ]
            if values:
                sends[str(row.address.checkpoint_id)] = values
    return sends


class Values(NamedTuple):
    """Segments and pending writes of some checkpoints of a namespace.

    Attributes:
        present: Ids of the checkpoints that existed in the same snapshot; values of others may be missing.
        segments: The segments.
        writes: Pending writes by checkpoint id.
    """

    present: set[str]
    segments: Segments
    writes: dict[str, list[WritesRow]]


async def read_values(
    db: Connection,
    queries: Queries,
    thread_id: str,
    namespace: str,
    checkpoint_ids: Sequence[str],
    segment_ids: Sequence[int] = (),
) -> Values:
    """Read some segments and the pending writes of some checkpoints. One round trip, one snapshot.

    Checkpoints that were pruned after their rows were read are not in `present`.
    """
    key = {"thread_id": thread_id, "checkpoint_ns": namespace}
    listed = {"checkpoint_ids": list(checkpoint_ids), "segment_ids": list(segment_ids)}
    present: set[str] = set()
    segments = []
    writes: dict[str, list[WritesRow]] = defaultdict(list)
    for kind, a, b, c, n, data in await db.fetch(queries.get_values, {**key, **listed}):
        if kind == 0:
            present.add(a)
        elif kind == 1:
            segments.append((n, data))
        else:
            writes[a].append(WritesRow(b, c, n, data))
    return Values(present, Segments(segments), writes)


async def read_writes(
    db: Connection, queries: Queries, thread_id: str, namespace: str, checkpoint_ids: Sequence[str]
) -> dict[str, list[WritesRow]]:
    """Return the pending writes of some checkpoints of a namespace, by checkpoint id. One round trip."""
    rows = await db.fetch(
        queries.get_writes,
        {"thread_id": thread_id, "checkpoint_ns": namespace, "checkpoint_ids": list(checkpoint_ids)},
    )
    found: dict[str, list[WritesRow]] = defaultdict(list)
    for checkpoint_id, task_id, task_path, idx, data in rows:
        found[checkpoint_id].append(WritesRow(task_id, task_path, idx, data))
    return found
