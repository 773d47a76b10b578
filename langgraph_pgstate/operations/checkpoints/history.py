"""What DeltaChannels received along a branch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from langgraph.checkpoint.base import DeltaChannelHistory

from langgraph_pgstate.codec.states import Manifest, decode_state
from langgraph_pgstate.codec.values import ValueCodec
from langgraph_pgstate.db.protocol import Connection
from langgraph_pgstate.errors import ConflictError, CorruptStateError, NotFoundError
from langgraph_pgstate.langgraph_compat import DeltaSnapshot, advance_ids_past
from langgraph_pgstate.operations.checkpoints.addresses import Address
from langgraph_pgstate.operations.checkpoints.checkpoints import get_tuple, read_values
from langgraph_pgstate.operations.checkpoints.reading import flatten_writes, load_tuple, load_value
from langgraph_pgstate.operations.checkpoints.versions import UNVERSIONED, StateVersions
from langgraph_pgstate.sql import Queries

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
    """What channels received along the parents of a checkpoint, back to the nearest stored value of each.

    A value stored before the channel became a DeltaChannel, by an older version of the state, is upcast; snapshots and
    writes are as they were written.

    All of it is of one moment: where a prune came between the statements, they are made again.

    Round trips: one for each 256 ancestors, one for their writes and the stored values, and one for each value that is
    to be upcast.

    Raises:
        NotFoundError: If the checkpoint is not there, as when a prune has taken it since the caller has read it.
        ConflictError: If its ancestors keep being deleted.
        CorruptStateError: If a stored value is damaged, or a checkpoint is among its own ancestors.
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
        if address.checkpoint_id is not None and not await _is_there(db, queries, address):
            raise NotFoundError(f"{address} is not there: it was pruned or deleted since it was read, or never stored")
    raise ConflictError(f"{address} could not be read: the checkpoints it rests on keep being deleted")


async def _is_there(db: Connection, queries: Queries, address: Address) -> bool:
    found = await read_values(db, queries, address.thread_id, address.checkpoint_ns, [str(address.checkpoint_id)])
    return bool(found.there)


async def _read_history(
    db: Connection,
    queries: Queries,
    codec: ValueCodec,
    address: Address,
    channels: Sequence[str],
    states: StateVersions,
) -> dict[str, DeltaChannelHistory] | None:
    """The history of a checkpoint's channels; `None` if a checkpoint that was read is gone by now."""
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
                # The target's own writes are pending, and its own values are what the history leads to.
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
    there, segments, writes = await read_values(db, queries, thread_id, namespace, ids, sorted(wanted))
    if not there.issuperset(ids):
        return None
    collected: dict[str, list[tuple[str, str, Any]]] = {channel: [] for channel in channels}
    for index in range(len(chain) - 1, -1, -1):
        where = str(address._replace(checkpoint_id=chain[index]))
        for _, task_id, (_, channel, type_, data) in flatten_writes(writes.get(chain[index], []), where):
            if channel in collected and index < depth.get(channel, len(chain)):
                collected[channel].append((task_id, channel, codec.loads(type_, data, where)))
    history: dict[str, DeltaChannelHistory] = {}
    for channel in channels:
        history[channel] = {"writes": collected[channel]}
        if channel in seeds:
            home, entry, state_version = seeds[channel]
            source = address._replace(checkpoint_id=home)
            seed, _ = load_value(codec, entry, segments, f"channel {channel!r} of {source}")
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
