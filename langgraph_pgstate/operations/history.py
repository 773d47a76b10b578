"""What DeltaChannels received along a branch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from langgraph.checkpoint.base import DeltaChannelHistory
from langgraph.checkpoint.serde.types import _DeltaSnapshot

from langgraph_pgstate.codec.states import Manifest, decode_state
from langgraph_pgstate.codec.values import ValueCodec
from langgraph_pgstate.db.port import Port
from langgraph_pgstate.langgraph_compat import advance_ids_past
from langgraph_pgstate.operations.addresses import Address
from langgraph_pgstate.operations.checkpoints import TOP, get_tuple, read_segments, read_writes
from langgraph_pgstate.operations.reading import flatten_writes, load_tuple, load_value
from langgraph_pgstate.operations.versions import UNVERSIONED, StateVersions
from langgraph_pgstate.sql import Queries

_LINEAGE_PAGE: Final = 256


async def get_delta_channel_history(
    port: Port,
    queries: Queries,
    codec: ValueCodec,
    address: Address,
    channels: Sequence[str],
    states: StateVersions = UNVERSIONED,
) -> dict[str, DeltaChannelHistory]:
    """What channels received along the parents of a checkpoint, back to the nearest stored value of each.

    A value stored before the channel became a DeltaChannel, by an older version of the state, is upcast; snapshots and
    writes are as they were written.

    Round trips: one for each 256 ancestors, one for their writes, one for the stored values, and one for each that is
    to be upcast.
    """
    key = {"thread_id": address.thread_id, "checkpoint_ns": address.checkpoint_ns}
    if address.checkpoint_id is None:
        newest = await port.fetch(queries.scan_states, {**key, "cursor_id": TOP, "page_size": 1, "state_version": None})
        if not newest:
            return {channel: {"writes": []} for channel in channels}
        address = address._replace(checkpoint_id=newest[0][0])
    advance_ids_past(str(address.checkpoint_id))
    chain: list[str] = []
    depth: dict[str, int] = {}
    seeds: dict[str, tuple[str, Any, int | None]] = {}
    cursor: str | None = address.checkpoint_id
    is_target = True
    while cursor is not None and len(depth) < len(channels):
        rows = await port.fetch(queries.get_lineage, {**key, "checkpoint_id": cursor, "page_size": _LINEAGE_PAGE})
        cursor = None
        for checkpoint_id, parent_id, state, segment_ids, state_version in rows:
            cursor = parent_id
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
    writes = await read_writes(port, queries, address.thread_id, address.checkpoint_ns, chain) if chain else {}
    wanted = {id for _, entry, _ in seeds.values() for id in Manifest({}, {"": entry}).segment_ids()}
    segments = await read_segments(port, queries, address.thread_id, sorted(wanted))
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
            if type(seed) is not _DeltaSnapshot and not states.is_current(state_version):
                found = await get_tuple(port, queries, codec, source)
                if found is None:
                    continue
                values = states.upcast(load_tuple(codec, *found)[0], state_version).checkpoint["channel_values"]
                if channel not in values:
                    continue
                seed = values[channel]
            history[channel]["seed"] = seed
    return history
