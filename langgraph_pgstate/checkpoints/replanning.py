"""The plan for storing a checkpoint whose parent is not cached, or was replaced."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Final

from langgraph_pgstate.checkpoints.getting import MAX_ID, get_tuple, is_heavy
from langgraph_pgstate.checkpoints.planning import PutPlan, find_missing, plan_put, plan_quickly
from langgraph_pgstate.checkpoints.reading import CheckpointRow, Segments, load_tuple, load_value, states_to_manifests
from langgraph_pgstate.checkpoints.requests import PutRequest
from langgraph_pgstate.codec.states import Elements, Manifest
from langgraph_pgstate.codec.values import ValueCodec
from langgraph_pgstate.db.protocol import Connection
from langgraph_pgstate.errors import CorruptStateError, StaleHeadError, UnsafeTypeError
from langgraph_pgstate.schema.queries import Queries

_SCAN_PAGE: Final = 200


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
    cursor = MAX_ID
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
