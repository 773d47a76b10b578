"""The writes to DeltaChannels along a branch, from which their values are rebuilt."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from langgraph.checkpoint.base import DeltaChannelHistory

from langgraph_pgstate.arguments import Address
from langgraph_pgstate.checkpoints.getting import get_tuple, read_values
from langgraph_pgstate.checkpoints.reading import flatten_writes, load_tuple, load_value
from langgraph_pgstate.checkpoints.versions import UNVERSIONED, StateVersions
from langgraph_pgstate.codec.frames import content_size
from langgraph_pgstate.codec.states import Elements, Manifest, decode_state
from langgraph_pgstate.codec.values import ValueCodec
from langgraph_pgstate.db.protocol import Connection
from langgraph_pgstate.errors import ConflictError, CorruptStateError, NotFoundError
from langgraph_pgstate.heavy import HEAVY_BYTES, MANY_COMPARED
from langgraph_pgstate.langgraph_compat import DeltaSnapshot, advance_ids_past
from langgraph_pgstate.schema.queries import Queries

_LINEAGE_PAGE: Final = 256
_ATTEMPTS: Final = 4


async def get_delta_channel_history(
    db: Connection,
    queries: Queries,
    codec: ValueCodec,
    address: Address,
    channels: Sequence[str],
    states: StateVersions = UNVERSIONED,
) -> dict[str, DeltaChannelHistory]:
    """Return, for each channel, the writes of a checkpoint's ancestors, back to the nearest stored value.

    A value that was stored before the channel became a DeltaChannel is upcast. Snapshots and writes are not.

    If a prune runs between the statements, the history is read again. One round trip for each 256 ancestors, one for
    writes and stored values, and one for each value to upcast.

    Raises:
        NotFoundError: If the checkpoint does not exist.
        ConflictError: If ancestors are deleted during each attempt.
        CorruptStateError: If a stored value is damaged, or a checkpoint is its own ancestor.
    """
    for _ in range(_ATTEMPTS):
        target = address
        if target.checkpoint_id is None:
            key = {"thread_id": address.thread_id, "checkpoint_ns": address.checkpoint_ns}
            newest = await db.fetch(queries.get_newest, key)
            if not newest:
                return {channel: {"writes": []} for channel in channels}
            target = address._replace(checkpoint_id=newest[0][0])
        advance_ids_past(str(target.checkpoint_id))
        history = await _read_history(db, queries, codec, target, channels, states)
        if history is not None:
            return history
        if address.checkpoint_id is not None and not await _exists(db, queries, address):
            raise NotFoundError(f"{address} does not exist: the checkpoint was pruned or deleted, or never stored")
    raise ConflictError(f"{address} could not be read, because other calls keep deleting its ancestors: try again")


async def _exists(db: Connection, queries: Queries, address: Address) -> bool:
    found = await read_values(db, queries, address.thread_id, address.checkpoint_ns, [str(address.checkpoint_id)])
    return bool(found.present)


async def _read_history(
    db: Connection,
    queries: Queries,
    codec: ValueCodec,
    address: Address,
    channels: Sequence[str],
    states: StateVersions,
) -> dict[str, DeltaChannelHistory] | None:
    """Return the history of a checkpoint's channels; `None` if a checkpoint that was read no longer exists."""
    thread_id, namespace, _ = address
    key = {"thread_id": thread_id, "checkpoint_ns": namespace}
    chain: list[str] = []
    depth: dict[str, int] = {}
    seeds: dict[str, tuple[str, Any, int | None]] = {}
    seen: set[str] = set()
    cursor: str | None = address.checkpoint_id
    is_target = True
    while cursor is not None and len(depth) < len(channels):
        rows = await db.fetch(queries.get_lineage, {**key, "checkpoint_id": cursor, "page_size": _LINEAGE_PAGE})
        cursor = None
        for checkpoint_id, parent_id, state, segment_ids, state_version in rows:
            cursor = parent_id
            if checkpoint_id in seen:
                raise CorruptStateError(str(address._replace(checkpoint_id=checkpoint_id)), "it is its own ancestor")
            seen.add(checkpoint_id)
            if is_target:
                # The target's own writes are still pending, so the history begins at its parent.
                is_target = False
                continue
            chain.append(checkpoint_id)
            manifest = decode_state(state, segment_ids, str(address._replace(checkpoint_id=checkpoint_id))).manifest
            for channel in channels:
                if channel not in depth and channel in manifest.entries:
                    depth[channel] = len(chain)
                    seeds[channel] = (checkpoint_id, manifest.entries[channel], state_version)
        if not rows:
            break
    if is_target:
        return None
    wanted = {id for _, entry, _ in seeds.values() for id in Manifest({}, {"": entry}).segment_ids()}
    ids = [str(address.checkpoint_id), *chain]
    present, segments, writes = await read_values(db, queries, thread_id, namespace, ids, sorted(wanted))
    if not present.issuperset(ids):
        return None

    def collect() -> tuple[dict[str, list[tuple[str, str, Any]]], dict[str, Any]]:
        collected: dict[str, list[tuple[str, str, Any]]] = {channel: [] for channel in channels}
        for index in range(len(chain) - 1, -1, -1):
            where = str(address._replace(checkpoint_id=chain[index]))
            for _, task_id, (_, channel, type_, data) in flatten_writes(writes.get(chain[index], []), where):
                if channel in collected and index < depth.get(channel, len(chain)):
                    collected[channel].append((task_id, channel, codec.loads(type_, data, where)))
        found = {}
        for channel, (source_id, entry, _) in seeds.items():
            where = f"channel {channel!r} of {address._replace(checkpoint_id=source_id)}"
            found[channel], _ = load_value(codec, entry, segments, where)
        return collected, found

    size = segments.size + sum(content_size(row.data) for rows in writes.values() for row in rows)
    count = sum(run.count for _, entry, _ in seeds.values() if isinstance(entry, Elements) for run in entry.runs)
    is_heavy = size > HEAVY_BYTES or count > MANY_COMPARED
    collected, values_of = await db.compute(collect) if is_heavy else collect()
    history: dict[str, DeltaChannelHistory] = {}
    for channel in channels:
        history[channel] = {"writes": collected[channel]}
        if channel in seeds:
            source_id, _, state_version = seeds[channel]
            source = address._replace(checkpoint_id=source_id)
            seed = values_of[channel]
            if type(seed) is not DeltaSnapshot and not states.is_current(state_version):
                found = await get_tuple(db, queries, codec, source)
                if found is None:
                    return None
                values = states.upcast(load_tuple(codec, *found)[0], state_version).checkpoint["channel_values"]
                if channel not in values:
                    continue
                seed = values[channel]
            history[channel]["seed"] = seed
    return history
