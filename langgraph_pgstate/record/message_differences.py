"""Comparison of the messages of a state with the recorded messages. No I/O."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import xxhash

from langgraph_pgstate.arguments import Address
from langgraph_pgstate.codec.messages import is_message
from langgraph_pgstate.codec.states import Elements, Entry, Inline, Slice
from langgraph_pgstate.record.message_hook import content_id, message_row

_COLUMNS: Final = ("role", "agent", "content", "tool_calls", "tool_call_id")
# First bytes of an encoded list or of a DeltaChannel's snapshot.
LISTS: Final = frozenset({*range(0x90, 0xA0), 0xDC, 0xDD, 0xC7, 0xC8, 0xC9, *range(0xD4, 0xD9)})
FORGOTTEN: Final = b""
"""The digest of a recorded message without text and tool calls, which a policy of retention may have removed."""


class RecordedMessage(NamedTuple):
    """A message in a conversation: its id, and a digest of its columns."""

    message_id: str
    mark: bytes


@dataclass(slots=True)
class StateMessage:
    """A message of a state. `row` has the columns of `messages`, and `mark` is a digest of these columns."""

    id: str
    mark: bytes
    row: dict[str, Any]


@dataclass(slots=True)
class Difference:
    """A channel whose recorded messages differ from the state.

    Attributes:
        stored: Messages of the state.
        recorded: Messages of the record.
        before: Messages of the record at the checkpoint's parent.
    """

    address: Address
    channel: str
    run_id: str | None
    stored: list[StateMessage]
    recorded: list[RecordedMessage]
    before: list[RecordedMessage]

    @property
    def why(self) -> str:
        """The difference in one line."""
        pairs = zip(self.stored, self.recorded, strict=False)
        same = next(
            (at for at, (one, said) in enumerate(pairs) if said.mark not in (one.mark, FORGOTTEN)),
            min(len(self.stored), len(self.recorded)),
        )
        return (
            f"channel {self.channel!r}: {len(self.recorded)} messages are recorded, the state has {len(self.stored)}, "
            f"and they differ from number {same + 1} on; `pgstate backfill` records them again"
        )

    @property
    def missing(self) -> int:
        """The number of the state's messages that the record lacks at this checkpoint."""
        lacking = Counter(one.mark for one in self.stored) - Counter(said.mark for said in self.recorded)
        return max(0, sum(lacking.values()) - sum(said.mark == FORGOTTEN for said in self.recorded))


class Change(NamedTuple):
    """A stored change to a channel's messages, from a row of `messages`. `mark` is the message's digest."""

    message_id: str
    channel: str
    change: str
    position: int
    mark: bytes


def change_of(row: Sequence[Any]) -> Change:
    """Return the change in a row of `get_message_changes`, without the checkpoint."""
    message_id, channel, change, position, *columns = row
    _, _, content, tool_calls, _ = columns
    is_forgotten = content is None and tool_calls is None
    return Change(message_id, channel, change, position, FORGOTTEN if is_forgotten else _mark(columns))


def is_recorded(stored: Sequence[StateMessage], recorded: Sequence[RecordedMessage]) -> bool:
    """Return whether the record has the messages of a state. Forgotten messages may have had any content."""
    return len(stored) == len(recorded) and all(
        said.mark in (one.mark, FORGOTTEN) for one, said in zip(stored, recorded, strict=True)
    )


def apply(before: Mapping[str, list[RecordedMessage]], changes: Sequence[Change]) -> dict[str, list[RecordedMessage]]:
    """Return the messages of each channel after a checkpoint's changes."""
    said = dict(before)
    by_channel: dict[str, dict[str, Change]] = defaultdict(dict)
    for change in changes:
        by_channel[change.channel][change.message_id] = change
    for channel, changed in by_channel.items():
        kept = []
        for one in said.get(channel, []):
            change_of_it = changed.get(one.message_id)
            if change_of_it is None:
                kept.append(one)
            elif change_of_it.change == "edited":
                kept.append(RecordedMessage(one.message_id, change_of_it.mark))
        known = {one.message_id for one in kept}
        added = [one for one in changed.values() if one.change != "removed" and one.message_id not in known]
        added.sort(key=lambda one: (one.position, one.message_id))
        said[channel] = kept + [RecordedMessage(one.message_id, one.mark) for one in added]
    return said


def parts_of(entry: Entry) -> Iterable[tuple[Hashable, Entry]]:
    """Return the separately decodable parts of a value that may be a list, each with its cache key."""
    match entry:
        case Elements(runs):
            for run in runs:
                yield run.segment_id, Elements((run,))
        case Slice("msgpack", segment_id, offset, length):
            yield (segment_id, offset, length), entry
        case Inline("msgpack", data):
            if data and data[0] in LISTS:
                yield data, entry


def segment_ids_of(entry: Entry) -> Iterable[int]:
    """Return the segments that a part refers to."""
    match entry:
        case Elements(runs):
            return [run.segment_id for run in runs]
        case Slice(_, segment_id):
            return [segment_id]
    return []


def state_message(value: Any) -> StateMessage | None:
    """Return an element of a list as a message, or `None` if it is not a message."""
    if not is_message(value):
        return None
    row = message_row(value)
    id = value.id if type(value.id) is str and value.id else content_id(value)
    return StateMessage(id, _mark([row[name] for name in _COLUMNS]), row)


def distinct(ids: Sequence[str]) -> list[str]:
    """Return ids, with a number appended to each repeated id, as `MessageHook` does."""
    seen: Counter[str] = Counter()
    named = []
    for id in ids:
        seen[id] += 1
        named.append(f"{id}-{seen[id]}" if seen[id] > 1 else id)
    return named


def _mark(columns: Sequence[Any]) -> bytes:
    """Return a 16-byte digest of a message's columns, equal before and after a round trip through jsonb."""
    return xxhash.xxh3_128_digest(json.dumps([_plain(value) for value in columns], sort_keys=True).encode())


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return int(value) if type(value) is float and value.is_integer() else value
