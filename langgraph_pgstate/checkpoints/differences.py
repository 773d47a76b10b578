"""Comparison of the states of two checkpoints, of the same thread or of two threads."""

from __future__ import annotations

import dataclasses
import math
import pickle  # nosec B403 # to compare, never to load
from collections.abc import Iterator, Mapping, Sequence, Set
from functools import partial
from typing import Any, Final, NamedTuple

from langchain_core.messages import BaseMessage
from langgraph.checkpoint.base import CheckpointTuple
from pydantic import BaseModel

from langgraph_pgstate.arguments import Address
from langgraph_pgstate.checkpoints import delta_channels
from langgraph_pgstate.checkpoints.delta_channels import get_delta_channel_history
from langgraph_pgstate.checkpoints.getting import get_tuple, is_heavy
from langgraph_pgstate.checkpoints.reading import load_tuple
from langgraph_pgstate.checkpoints.types import ChannelDifference, Difference, MessageChange, ValueChange
from langgraph_pgstate.checkpoints.versions import UNVERSIONED, StateVersions
from langgraph_pgstate.codec.values import ValueCodec
from langgraph_pgstate.db.protocol import Connection
from langgraph_pgstate.errors import NotFoundError
from langgraph_pgstate.langgraph_compat import DELTA_COUNTERS, DeltaSnapshot, is_schedule_channel
from langgraph_pgstate.schema.queries import Queries

# Values nested more deeply are compared as a whole.
_MAX_DEPTH: Final = 50
_MISSING: Final = object()


class States(NamedTuple):
    """The states to compare: the config and the channel values of two checkpoints."""

    first: Mapping[str, Any]
    second: Mapping[str, Any]
    before: Mapping[str, Any]
    after: Mapping[str, Any]


async def read_states(
    db: Connection,
    queries: Queries,
    codec: ValueCodec,
    first: Address,
    second: Address,
    versions: StateVersions | None = None,
) -> States:
    """Return the states of two checkpoints, upcast by `versions`. An address without an id names the latest checkpoint.

    Two round trips, and more with DeltaChannels.

    Raises:
        NotFoundError: If a checkpoint does not exist.
    """
    older, before = await read_state(db, queries, codec, first, versions)
    newer, after = await read_state(db, queries, codec, second, versions)
    return States(older.config, newer.config, before, after)


async def read_state(
    db: Connection, queries: Queries, codec: ValueCodec, address: Address, versions: StateVersions | None = None
) -> tuple[CheckpointTuple, dict[str, Any]]:
    """Return a checkpoint and the values of its channels, including DeltaChannels."""
    found = await get_tuple(db, queries, codec, address)
    if found is None:
        raise NotFoundError(f"there is no {address if address.checkpoint_id else f'thread {address.thread_id!r}'}")
    load = partial(load_tuple, codec, *found)
    loaded, _ = await db.compute(load) if is_heavy(found) else load()
    if versions is not None:
        loaded = versions.upcast(loaded, found[0].state_version)
    values = {name: _unwrapped(value) for name, value in loaded.checkpoint["channel_values"].items()}
    if deltas := _delta_channels(loaded):
        # A checkpoint does not store the values of DeltaChannels.
        history = await get_delta_channel_history(db, queries, codec, found[0].address, deltas, versions or UNVERSIONED)
        values |= {name: delta_channels.value_of(name, received) for name, received in history.items()}
    return loaded, values


def _delta_channels(loaded: CheckpointTuple) -> list[str]:
    counters = loaded.metadata.get(DELTA_COUNTERS) or {}
    return [name for name in counters if name not in loaded.checkpoint["channel_values"]]


def _unwrapped(value: Any) -> Any:
    """Return the value inside a DeltaChannel's snapshot; any other value unchanged."""
    return value.value if type(value) is DeltaSnapshot else value


def compare(states: States) -> Difference:
    """Return the differences between two states, by channel."""
    before = {name: value for name, value in states.before.items() if not is_schedule_channel(name)}
    after = {name: value for name, value in states.after.items() if not is_schedule_channel(name)}
    found = []
    for name in sorted(before.keys() | after.keys()):
        if (difference := _compare_channel(name, before.get(name, _MISSING), after.get(name, _MISSING))) is not None:
            found.append(difference)
    return Difference(states.first, states.second, tuple(found))


def _compare_channel(name: str, before: Any, after: Any) -> ChannelDifference | None:
    messages: tuple[MessageChange, ...] = ()
    values: tuple[ValueChange, ...] = ()
    if before is _MISSING or after is _MISSING:
        change, value = ("added", after) if before is _MISSING else ("removed", before)
        given = [] if before is _MISSING else before, [] if after is _MISSING else after
        if _is_messages(value):
            messages = tuple(_compare_messages(*given))
        missing = {
            "before" if before is _MISSING else "after": None,
            "after" if before is _MISSING else "before": value,
        }
        if not messages:
            values = (ValueChange(change, (), **missing),)
        return ChannelDifference(name, change, **missing, messages=messages, values=values)
    if _may_be_messages(before) and _may_be_messages(after) and (before or after):
        messages = tuple(_compare_messages(before, after))
        values = () if messages else tuple(_compare_order(before, after))
    else:
        values = tuple(_compare_values(before, after, (), 0))
    return ChannelDifference(name, "changed", before, after, messages, values) if messages or values else None


def _is_messages(value: Any) -> bool:
    return bool(value) and _may_be_messages(value)


def _may_be_messages(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, BaseMessage) for item in value)


def _compare_messages(before: Sequence[BaseMessage], after: Sequence[BaseMessage]) -> Iterator[MessageChange]:
    """Yield the changes between two lists of messages. Match messages by id, or without an id by content."""
    old, new = _keyed(before), _keyed(after)
    for key, (place, message) in old.items():
        if key not in new:
            yield MessageChange("removed", message.id, place, message, None)
    for key, (place, message) in new.items():
        if key not in old:
            yield MessageChange("added", message.id, place, None, message)
        elif any(_compare_values(old[key][1], message, (), 0)):
            yield MessageChange("edited", message.id, place, old[key][1], message)


def _keyed(messages: Sequence[BaseMessage]) -> dict[Any, tuple[int, BaseMessage]]:
    found: dict[Any, tuple[int, BaseMessage]] = {}
    for place, message in enumerate(messages):
        key: Any = message.id if message.id is not None else (message.type, repr(message.content))
        number = 0
        while (key, number) in found:
            number += 1
        found[key, number] = (place, message)
    return found


def _compare_order(before: Sequence[Any], after: Sequence[Any]) -> Iterator[ValueChange]:
    ids = [message.id for message in before], [message.id for message in after]
    if ids[0] != ids[1]:
        yield ValueChange("changed", (), *ids)


def _compare_values(before: Any, after: Any, path: tuple[Any, ...], depth: int) -> Iterator[ValueChange]:
    """Yield the differences between two values. Values of one type are compared part by part."""
    if before is after:
        return
    parts = (_parts(before), _parts(after)) if type(before) is type(after) and depth < _MAX_DEPTH else (None, None)
    if isinstance(parts[0], Mapping) and isinstance(parts[1], Mapping):
        yield from _compare_mappings(parts[0], parts[1], path, depth)
    elif isinstance(parts[0], list) and isinstance(parts[1], list):
        yield from _compare_lists(parts[0], parts[1], path, depth)
    elif isinstance(before, Set) and isinstance(after, Set):
        for item in sorted(before - after, key=repr):
            yield ValueChange("removed", (*path, item), item, None)
        for item in sorted(after - before, key=repr):
            yield ValueChange("added", (*path, item), None, item)
    elif not _is_same(before, after):
        yield ValueChange("changed", path, before, after)


def _parts(value: Any) -> Mapping[Any, Any] | list[Any] | None:
    """Return the parts of a value as a mapping or a list; `None` if it has none."""
    if isinstance(value, dict):
        return value
    if isinstance(value, list | tuple):
        return [*value]
    if isinstance(value, BaseModel):
        return {**value.__dict__, **(value.__pydantic_extra__ or {})}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name, None) for field in dataclasses.fields(value)}
    return None


def _compare_mappings(
    before: Mapping[Any, Any], after: Mapping[Any, Any], path: tuple[Any, ...], depth: int
) -> Iterator[ValueChange]:
    for key, value in before.items():
        if key not in after:
            yield ValueChange("removed", (*path, key), value, None)
    for key, value in after.items():
        if key not in before:
            yield ValueChange("added", (*path, key), None, value)
        else:
            yield from _compare_values(before[key], value, (*path, key), depth + 1)


def _compare_lists(
    before: Sequence[Any], after: Sequence[Any], path: tuple[Any, ...], depth: int
) -> Iterator[ValueChange]:
    """Yield the differences between two lists. Skip equal items at both ends, and compare other items by position."""
    shorter = min(len(before), len(after))
    start = 0
    while start < shorter and _is_equal(before[start], after[start], depth + 1):
        start += 1
    end = 0
    while end < shorter - start and _is_equal(before[-1 - end], after[-1 - end], depth + 1):
        end += 1
    old, new = before[start : len(before) - end], after[start : len(after) - end]
    for place, (one, other) in enumerate(zip(old, new, strict=False), start):
        yield from _compare_values(one, other, (*path, place), depth + 1)
    for place in range(start + len(new), start + len(old)):
        yield ValueChange("removed", (*path, place), before[place], None)
    for place in range(start + len(old), start + len(new)):
        yield ValueChange("added", (*path, place), None, after[place])


def _is_equal(before: Any, after: Any, depth: int) -> bool:
    """Return whether `_compare_values` would yield nothing. Compare each part once."""
    if before is after:
        return True
    if type(before) is not type(after):
        return False
    parts = (_parts(before), _parts(after)) if depth < _MAX_DEPTH else (None, None)
    if isinstance(parts[0], Mapping) and isinstance(parts[1], Mapping):
        one, other = parts[0], parts[1]
        return one.keys() == other.keys() and all(_is_equal(one[key], other[key], depth + 1) for key in one)
    if isinstance(parts[0], list) and isinstance(parts[1], list):
        pairs = zip(parts[0], parts[1], strict=False)
        return len(parts[0]) == len(parts[1]) and all(_is_equal(*pair, depth + 1) for pair in pairs)
    return _is_same(before, after)


def _is_same(before: Any, after: Any) -> bool:
    """Return whether two values without parts are of one type and equal; NaN equals NaN."""
    if type(before) is not type(after):
        return False
    try:
        equal = before == after
        if type(equal) is bool:
            return equal or (isinstance(before, float) and math.isnan(before) and math.isnan(after))
        # `==` of arrays and similar values gives no single truth value.
        return pickle.dumps(before) == pickle.dumps(after)
    except Exception:
        return repr(before) == repr(after)
