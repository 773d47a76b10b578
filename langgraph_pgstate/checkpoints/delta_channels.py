"""The DeltaChannels of this process's graphs, their writes along a branch, and their values.

Most checkpoints hold no value of a DeltaChannel. The channel's reducer computes the value from stored writes. Each
recorded graph makes its channels known to this module. An unknown channel that holds messages gets LangGraph's reducer
of messages. Other unknown channels get a reducer that appends.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from langchain_core.messages import BaseMessage, HumanMessage, RemoveMessage
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
from langgraph_pgstate.langgraph_compat import (
    REMOVE_ALL_MESSAGES,
    DeltaSnapshot,
    advance_ids_past,
    delta_channel_class,
    messages_delta_reducer,
)
from langgraph_pgstate.schema.queries import Queries

if TYPE_CHECKING:
    from langgraph.channels.delta import DeltaChannel

# Channels by name; `None` if graphs have different reducers under this name.
_known: Final[dict[str, DeltaChannel[Any] | None]] = {}
_rules: Final[dict[str, MessageRules]] = {}
_LINEAGE_PAGE: Final = 256
_ATTEMPTS: Final = 4


class MessageRules(NamedTuple):
    """The rules in which reducers of messages differ.

    Attributes:
        hears_remove_all: Whether a `RemoveMessage` with the id `REMOVE_ALL_MESSAGES` empties the channel.
        keeps_place: Whether a message that one write removes and adds again keeps its place.
    """

    hears_remove_all: bool
    keeps_place: bool


def learn(graph: Any) -> None:
    """Make the DeltaChannels of a compiled graph and of its subgraphs known."""
    for one in (graph, *(subgraph for _, subgraph in graph.get_subgraphs(recurse=True))):
        for name, channel in one.channels.items():
            if isinstance(channel, delta_channel_class()):
                _learn(name, channel)


def rules_of(name: str) -> MessageRules:
    """Return the rules of a channel's reducer in the last recorded graph with this channel."""
    return _rules.get(name) or _assumed_rules()


def value_of(name: str, received: Mapping[str, Any]) -> Any:
    """Return a channel's value, computed from the channel's part of `get_delta_channel_history`."""
    if (channel := _known.get(name)) is not None:
        try:
            return _replay(channel, received)
        except Exception:  # nosec B110
            # A reducer may raise any error, because application types are read as plain data.
            pass
    items = _replay(delta_channel_class()(_append), received)
    if items and all(isinstance(item, BaseMessage) for item in items):
        return _replay(delta_channel_class()(messages_delta_reducer()), received)
    return items


def _learn(name: str, channel: DeltaChannel[Any]) -> None:
    known = _known.setdefault(name, channel)
    if known is not None and known is not channel and not _is_same(known.reducer, channel.reducer):
        _known[name] = None
    if known is not channel or name not in _rules:
        rules = _probe(channel)
        if rules is not None:
            _rules[name] = rules


def _is_same(one: Any, other: Any) -> bool:
    """Return whether two reducers have the same code. A factory may make a new function for each graph."""
    code = getattr(one, "__code__", None)
    return one is other or (code is not None and code is getattr(other, "__code__", None) and not one.__closure__)


def _probe(channel: DeltaChannel[Any]) -> MessageRules | None:
    """Try a channel's reducer and return its rules, or `None` if it takes no messages."""

    def ids_after(write: Sequence[BaseMessage]) -> list[Any]:
        tried = channel.from_checkpoint(DeltaSnapshot([HumanMessage("", id="first"), HumanMessage("", id="second")]))
        tried.update([write])
        return [message.id for message in tried.get()]

    try:
        if type(channel.typ()) is not list:
            return None
        hears = ids_after([RemoveMessage(id=REMOVE_ALL_MESSAGES), HumanMessage("", id="third")]) == ["third"]
        keeps = ids_after([RemoveMessage(id="first"), HumanMessage("", id="first")]) == ["first", "second"]
    except Exception:
        return None
    return MessageRules(hears, keeps)


@cache
def _assumed_rules() -> MessageRules:
    rules = _probe(delta_channel_class()(messages_delta_reducer()))
    assert rules is not None
    return rules


def _replay(channel: DeltaChannel[Any], received: Mapping[str, Any]) -> Any:
    """Return a channel's value, computed as LangGraph does."""
    seed = received["seed"] if "seed" in received else DeltaSnapshot(channel.typ())
    replayed = channel.from_checkpoint(seed)
    replayed.replay_writes(received["writes"])
    return replayed.get()


def _append(state: Any, writes: Sequence[Any]) -> list[Any]:
    items = [*state] if isinstance(state, list | tuple) else [] if state is None else [state]
    for write in writes:
        items += write if isinstance(write, list | tuple) else [write]
    return items


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
