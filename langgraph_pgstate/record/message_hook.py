"""A hook that records chat messages: each message once, and its later edits and removals.

Messages that are appended to a list are added to the checkpoint's journal entry. If a list changed otherwise, the entry
has the ids of all messages of the list. When the entry is moved into the tables, these ids are compared with the
recorded messages of the branch. For a DeltaChannel without a value, the entry says only that the superstep wrote to the
channel (see `record/delta_messages.py`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import orjson
import xxhash
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage

from langgraph_pgstate.checkpoints.delta_channels import rules_of
from langgraph_pgstate.checkpoints.journal_entry import ADDED, ADDED_IN_SUBGRAPH, COMPARED, WRITTEN
from langgraph_pgstate.checkpoints.planning import PutPlan
from langgraph_pgstate.checkpoints.requests import PutRequest
from langgraph_pgstate.codec.messages import DIGEST_SIZE, is_message
from langgraph_pgstate.codec.metadata import to_json
from langgraph_pgstate.codec.states import Elements, Entry, Inline
from langgraph_pgstate.langgraph_compat import DELTA_COUNTERS, DeltaSnapshot
from langgraph_pgstate.options import MAX_KEY_BYTES
from langgraph_pgstate.schema.queries import Statement

# Prefix of LangGraph's own channels. Two of these channels hold the state of the application: `__root__` of a graph
# whose state is a list, and `__previous__` of an `@entrypoint`.
_OWN_CHANNELS: Final = "__"
_STATE_CHANNELS: Final = frozenset({"__root__", "__previous__"})
_ID_BYTES: Final = 256
_FAMILIAR_LIMIT: Final = 50_000
_EMPTY_LIST: Final = b"\x90"

# Position of a message in the list, the message, and its recorded id.
_Named = tuple[int, BaseMessage, str]


class MessageHook:
    """A hook of the saver that records the messages of each put. Safe to share between threads.

    A process's first put on a thread sends all messages, so that messages stored without this hook are recorded, too.
    Missing messages of a DeltaChannel are added with the channel's next snapshot.
    """

    def __init__(self) -> None:
        self._familiar: set[tuple[str, str]] = set()
        # Channels in which several messages had one id at the same time.
        self._doubled: set[tuple[str, str, str]] = set()

    def before_put(self, plan: PutPlan, config: Mapping[str, Any]) -> Sequence[Statement]:
        """Add the new messages of each channel to the journal entry. Returns no statement."""
        request = plan.request
        whole = request.parent is not None and not self._is_familiar(plan)
        changes: list[tuple[str, bytes]] = []
        for change in _list_changes(plan, all_channels=whole):
            if not _is_of_messages(change):
                continue
            named, given = self._identify(request, change)
            skipped = _recorded_by_root(plan, change)
            rows = [
                {"message_id": id, "position": place, **message_row(message)}
                for place, message, id in given
                if place not in skipped
            ]
            if change.is_appended and not rows:
                continue
            fitting_ids(request.address.thread_id, rows)
            found: dict[str, Any] = {
                **request.address._asdict(),
                "run_id": request.columns["run_id"],
                "channel": change.channel,
                "messages": rows,
            }
            kind = ADDED_IN_SUBGRAPH if request.address.checkpoint_ns else ADDED
            if not change.is_appended:
                kind = COMPARED
                present = [{"message_id": id} for _, _, id in named]
                found["present_ids"] = fitting_ids(request.address.thread_id, present)
            changes.append((kind, orjson.dumps(found)))
        if counters := request.merged_metadata.get(DELTA_COUNTERS):
            changes += self._written(request, counters)
        assert plan.journal_entry is not None
        plan.journal_entry.messages += changes
        return ()

    def after_put(self, plan: PutPlan) -> None:
        """Remember that the next put needs to send differences only."""
        address = plan.request.address
        if len(self._familiar) >= _FAMILIAR_LIMIT:
            self._familiar, self._doubled = set(), set()
        self._familiar.add((address.thread_id, address.checkpoint_ns))

    def forget_thread(self, thread_id: str) -> None:
        """Make the next put on a thread send all messages, as the first put of a process does."""
        self._familiar = {key for key in self._familiar if key[0] != thread_id}

    def _identify(self, request: PutRequest, change: _ListChange) -> tuple[Sequence[_Named], Sequence[_Named]]:
        """Return the messages to name in the journal entry, and the messages among them whose rows must be sent."""
        key = (request.address.thread_id, request.address.checkpoint_ns, change.channel)
        named = _identified(change, change.fresh if change.is_appended else range(len(change.value)))
        if any(id != message.id and type(message.id) is str and message.id for _, message, id in named):
            # Messages with the same id are numbered. A removal changes the numbers of other messages, and their
            # recorded ids then name other texts. So always send the rows of all messages of this channel.
            self._doubled.add(key)
        if change.is_appended or not change.is_known or key in self._doubled:
            return named, named
        fresh = set(change.fresh)
        return named, [one for one in named if one[0] in fresh]

    def _written(self, request: PutRequest, counters: Mapping[str, Any]) -> Iterator[tuple[str, bytes]]:
        """Return the DeltaChannels that the superstep wrote to, except those with a snapshot."""
        if request.parent is None:
            return
        values = request.checkpoint["channel_values"]
        for channel in request.new_versions:
            if channel in counters and channel not in values:
                found = {
                    **request.address._asdict(),
                    "parent_checkpoint_id": request.parent.checkpoint_id,
                    "run_id": request.columns["run_id"],
                    "channel": channel,
                    **rules_of(channel)._asdict(),
                }
                yield WRITTEN, orjson.dumps(found)

    def _is_familiar(self, plan: PutPlan) -> bool:
        address = plan.request.address
        return (address.thread_id, address.checkpoint_ns) in self._familiar


def message_row(message: BaseMessage) -> dict[str, Any]:
    """Return a message as its columns, without id and position."""
    calls: Sequence[Any] = ()
    usage: Mapping[str, Any] = {}
    call_id = None
    # Test the most common type first, because `isinstance` with a pydantic class runs Python code.
    if type(message) is not HumanMessage:
        if isinstance(message, AIMessage):
            calls, usage = message.tool_calls, message.usage_metadata or {}
        elif isinstance(message, ToolMessage):
            call_id = message.tool_call_id
    # Convert value by value, because most values need no conversion.
    return {
        "role": _safe(message.type),
        "agent": _safe(message.name),
        "content": _safe(text_of(message.content)),
        "tool_calls": _safe([{"name": call["name"], "args": call["args"], "id": call["id"]} for call in calls] or None),
        "tool_call_id": _safe(call_id),
        "input_tokens": _tokens(usage.get("input_tokens")),
        "output_tokens": _tokens(usage.get("output_tokens")),
    }


def _safe(value: Any) -> Any:
    if value is None or (type(value) is str and value.isascii() and "\0" not in value):
        return value
    return to_json(value)[0]


def _tokens(count: Any) -> int | None:
    return count if type(count) is int and 0 <= count < 2**63 else None


def text_of(content: Any) -> str | None:
    """Return the text of a message's content, without images and other media; `None` if there is none."""
    if isinstance(content, str) or content is None:
        return content
    parts = [
        part if isinstance(part, str) else part["text"]
        for part in content
        if isinstance(part, str) or (isinstance(part, dict) and isinstance(part.get("text"), str))
    ]
    return "\n".join(parts) if parts else None


def may_hold_messages(channel: str) -> bool:
    """Return whether a channel belongs to the application, so that its messages are recorded."""
    return not channel.startswith(_OWN_CHANNELS) or channel in _STATE_CHANNELS


def _is_of_messages(change: _ListChange) -> bool:
    if not may_hold_messages(change.channel):
        return False
    if not change.value:
        # An empty list may have held messages before. The comparison then records their removal.
        return not change.is_appended
    return any(is_message(element) for element in change.value)


def _identified(change: _ListChange, places: Sequence[int]) -> list[_Named]:
    """Return the messages at some positions of a list, each with an id unique in the list.

    The id is the message's own, or is derived from its content. Repeated ids have a number appended.
    """
    found = [(place, message) for place in places if is_message(message := change.value[place])]
    ids = [message.id if type(message.id) is str and message.id else None for _, message in found]
    distinct = {*ids}
    others = () if len(places) == len(change.value) else change.value[: places[0]] if places else ()
    is_clear = None not in distinct and len(distinct) == len(ids)
    if is_clear and distinct.isdisjoint([getattr(element, "id", None) for element in others]):
        return [(place, message, id) for (place, message), id in zip(found, ids, strict=True) if id is not None]
    ordinals = _ordinals(change)
    return [
        (place, message, (id or content_id(message)) + (f"-{ordinals[place]}" if ordinals[place] > 1 else ""))
        for (place, message), id in zip(found, ids, strict=True)
    ]


def _ordinals(change: _ListChange) -> list[int]:
    """Return a number for each element. Elements with the same id, or equal elements without an id, count from 1."""
    fingerprints: Sequence[Any] = (
        _split_digests(change.digests)
        if change.digests is not None
        else [content_id(element) if is_message(element) else None for element in change.value]
    )
    seen: Counter[Any] = Counter()
    ordinals = []
    for element, mark in zip(change.value, fingerprints, strict=True):
        id = getattr(element, "id", None)
        key = ("id", id) if type(id) is str and id else mark
        seen[key] += 1
        ordinals.append(seen[key])
    return ordinals


def content_id(message: BaseMessage) -> str:
    """Return an id derived from a message's content. All processes derive the same id, unlike fingerprints."""
    return xxhash.xxh3_128_hexdigest(orjson.dumps(to_json(message.__dict__)[0]))


def fitting_ids(thread_id: str, rows: Sequence[dict[str, Any]]) -> list[str]:
    """Return the rows' ids. In the rows, fingerprints replace ids that PostgreSQL cannot store or index."""
    limit = min(_ID_BYTES, (MAX_KEY_BYTES - len(thread_id.encode())) // 2)
    for row in rows:
        id = row["message_id"]
        if not (id.isascii() and len(id) <= limit and "\0" not in id):
            row["message_id"] = _fitting_id(id, limit)
    return [row["message_id"] for row in rows]


def _fitting_id(id: str, limit: int) -> str:
    encoded = id.encode("utf-8", "surrogatepass")
    fits = len(encoded) <= limit and "\0" not in id and encoded == id.encode("utf-8", "replace")
    return id if fits else xxhash.xxh3_128_hexdigest(encoded)


def _recorded_by_root(plan: PutPlan, change: _ListChange) -> set[int]:
    """Return the positions of elements that the root graph's checkpoint has, too.

    Messages among them are recorded for the root graph, so they need no rows for the subgraph.
    """
    root = plan.request.root
    if root is None or change.digests is None:
        return set()
    known = {
        digest
        for other in root.entries.values()
        if isinstance(other, Elements) and other.fingerprints is not None
        for digest in _split_digests(other.fingerprints.digests)
    }
    return {place for place, digest in enumerate(_split_digests(change.digests)) if digest in known}


@dataclass(frozen=True, slots=True)
class _ListChange:
    """The difference between a channel's list and the parent's list.

    Attributes:
        channel: Name of the channel.
        value: The current list.
        fresh: Positions of elements that the parent's list does not have.
        is_appended: Whether the fresh elements follow the parent's unchanged list.
        is_known: Whether the difference is certain. If not, all elements count as fresh.
        digests: Concatenated fingerprints of the elements, if they are known.
    """

    channel: str
    value: list[Any]
    fresh: Sequence[int]
    is_appended: bool
    is_known: bool
    digests: bytes | None = None


def _list_changes(plan: PutPlan, *, all_channels: bool = False) -> Iterator[_ListChange]:
    """Yield the differences between the lists of a checkpoint to store and the lists of its parent.

    With `all_channels`, yield channels whose version has not changed, too, and treat every difference as unknown.
    """
    values = plan.request.checkpoint["channel_values"]
    parent = plan.parent
    for channel, version in plan.manifest.versions.items():
        value = values.get(channel)
        is_old = not all_channels and parent is not None and parent.versions.get(channel) == version
        if type(value) is not list:
            if type(value) is DeltaSnapshot and type(value.value) is list:
                yield _ListChange(channel, value.value, range(len(value.value)), False, False)
            elif parent is not None and type(parent.entries.get(channel)) is Elements and not is_old:
                # The list was emptied, or is not a list any more.
                yield _ListChange(channel, [], (), False, True)
            continue
        if is_old:
            continue
        new = _digests(plan.manifest.entries.get(channel))
        if new is not None and len(new) != len(value) * DIGEST_SIZE:
            new = None
        old = _digests(parent.entries.get(channel) if parent is not None else None)
        if all_channels or old is None or new is None:
            yield _ListChange(channel, value, range(len(value)), False, False, new)
        elif new.startswith(old):
            yield _ListChange(channel, value, range(len(old) // DIGEST_SIZE, len(value)), True, True, new)
        else:
            yield _ListChange(channel, value, _fresh(_split_digests(old), _split_digests(new)), False, True, new)


def _split_digests(digests: bytes) -> list[bytes]:
    """Return concatenated fingerprints as a list."""
    return [digests[at : at + DIGEST_SIZE] for at in range(0, len(digests), DIGEST_SIZE)]


def _digests(entry: Entry | None) -> bytes | None:
    """Return the fingerprints of a list's elements, or `None` if they are not known."""
    if isinstance(entry, Elements):
        return entry.fingerprints.digests if entry.fingerprints is not None else None
    return b"" if entry is None or (isinstance(entry, Inline) and entry.data == _EMPTY_LIST) else None


def _fresh(old: Sequence[bytes], new: Sequence[bytes]) -> list[int]:
    """Return the positions of new elements. Of equal elements, the last positions are new."""
    left = Counter(old)
    fresh = []
    for place, digest in enumerate(new):
        if left[digest] > 0:
            left[digest] -= 1
        else:
            fresh.append(place)
    return fresh
