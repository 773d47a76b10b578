"""Chat messages as rows of their own: each once, where it first appeared, and what was edited or removed later.

The saver knows by fingerprint which elements of a list are new; these are noted in the journal with the checkpoint.
Only where elements vanished, or where this process does not know what was recorded before it, is the branch looked at.
Of a DeltaChannel, which most checkpoints hold no value of, it is noted that the superstep wrote to it: what it wrote is
in the tables already, under the checkpoint's parent, whoever wrote it (`operations/written.py`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import orjson
import xxhash
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langgraph.channels.delta import DeltaChannel
from langgraph.graph import message as reducers

from langgraph_pgstate.codec.messages import is_message
from langgraph_pgstate.codec.metadata import to_json
from langgraph_pgstate.codec.states import Elements
from langgraph_pgstate.operations.companions import ListChange, Statement, list_changes, split_digests
from langgraph_pgstate.operations.notes import ADDED, ADDED_IN_SUBGRAPH, COMPARED, WRITTEN
from langgraph_pgstate.operations.planning import PutPlan
from langgraph_pgstate.operations.requests import PutRequest
from langgraph_pgstate.settings import MAX_KEY_BYTES

# LangGraph's own channels; but a graph whose whole state is one list keeps it in the first, a function's in the second.
_OWN_CHANNELS: Final = "__"
_STATE_CHANNELS: Final = frozenset({"__root__", "__previous__"})
# What a checkpoint's metadata say of its DeltaChannels: all of those that took no snapshot.
_COUNTERS: Final = "counters_since_delta_snapshot"
# Experimental there, so it may have gone.
_DEAF_REDUCER: Final = getattr(reducers, "_messages_delta_reducer", object())
_ID_BYTES: Final = 256
_FAMILIAR_LIMIT: Final = 50_000


class MessageKeeper:
    """A companion that stores the messages of each put. Safe to share between threads.

    A process that puts on a thread for the first time sends the channel's messages whole, so that what was stored
    without a keeper is made up for; rows that are there already stay as they are. A DeltaChannel's are made up for by
    its next snapshot.
    """

    def __init__(self) -> None:
        self._familiar: set[tuple[str, str]] = set()
        self._deaf: set[str] = set()

    def learn(self, graph: Any) -> None:
        """Look at a compiled graph: which of its DeltaChannels, and its subgraphs', do not hear `REMOVE_ALL_MESSAGES`.

        LangGraph's own reducer does not. Any other is taken to empty its channel then.
        """
        for one in (graph, *(subgraph for _, subgraph in graph.get_subgraphs(recurse=True))):
            for name, channel in one.channels.items():
                if isinstance(channel, DeltaChannel) and channel.reducer is _DEAF_REDUCER:
                    self._deaf.add(name)

    def before_put(self, plan: PutPlan, config: Mapping[str, Any]) -> Sequence[Statement]:
        """Notes what is new in each channel that holds messages; no statement."""
        request = plan.request
        whole = request.parent is not None and not self._is_familiar(plan)
        changes: list[tuple[str, bytes]] = []
        for change in list_changes(plan, all_channels=whole):
            if not _is_of_messages(change):
                continue
            rows = _rows(change, _recorded_by_root(plan, change))
            certain = change.is_known and not change.has_losses
            if certain and not rows:
                continue
            fitting_ids(request.address.thread_id, rows)
            found: dict[str, Any] = {
                **request.address._asdict(),
                "run_id": request.columns_without_owner["run_id"],
                "channel": change.channel,
                "messages": rows,
            }
            kind = ADDED_IN_SUBGRAPH if request.address.checkpoint_ns else ADDED
            if not certain:
                kind = COMPARED
                present = [{"message_id": id} for _, _, id in _identified(change, range(len(change.value)))]
                found["present_ids"] = fitting_ids(request.address.thread_id, present)
            changes.append((kind, orjson.dumps(found)))
        if counters := request.labels.get(_COUNTERS):
            changes += self._written(request, counters)
        assert plan.note is not None
        plan.note.messages += changes
        return ()

    def after_put(self, plan: PutPlan) -> None:
        """From now on, differences are enough."""
        address = plan.request.address
        if len(self._familiar) >= _FAMILIAR_LIMIT:
            self._familiar = set()
        self._familiar.add((address.thread_id, address.checkpoint_ns))

    def forget_thread(self, thread_id: str) -> None:
        """The next put looks at the branch again."""
        self._familiar = {key for key in self._familiar if key[0] != thread_id}

    def _written(self, request: PutRequest, counters: Mapping[str, Any]) -> Iterator[tuple[str, bytes]]:
        """The DeltaChannels that the superstep wrote to, unless they took a snapshot."""
        if request.parent is None:
            return
        values = request.checkpoint["channel_values"]
        for channel in request.new_versions:
            if channel in counters and channel not in values:
                found = {
                    **request.address._asdict(),
                    "parent_checkpoint_id": request.parent.checkpoint_id,
                    "run_id": request.columns_without_owner["run_id"],
                    "channel": channel,
                    "hears_remove_all": channel not in self._deaf,
                }
                yield WRITTEN, orjson.dumps(found)

    def _is_familiar(self, plan: PutPlan) -> bool:
        address = plan.request.address
        return (address.thread_id, address.checkpoint_ns) in self._familiar


def message_row(message: BaseMessage) -> dict[str, Any]:
    """A message as its columns say it, without its id and place."""
    calls: Sequence[Any] = ()
    usage: Mapping[str, Any] = {}
    call_id = None
    # pydantic answers in Python for a class that is another.
    if type(message) is not HumanMessage:
        if isinstance(message, AIMessage):
            calls, usage = message.tool_calls, message.usage_metadata or {}
        elif isinstance(message, ToolMessage):
            call_id = message.tool_call_id
    # Piece by piece: most are certainly the same in JSON.
    return {
        "role": _safe(message.type),
        "agent": _safe(message.name),
        "content": _safe(_text_of(message.content)),
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


def _text_of(content: Any) -> str | None:
    """The text of a message's content; images and the like have none."""
    if isinstance(content, str):
        return content
    parts = [
        part if isinstance(part, str) else part["text"]
        for part in content
        if isinstance(part, str) or (isinstance(part, dict) and isinstance(part.get("text"), str))
    ]
    return "\n".join(parts) if parts else None


def _is_of_messages(change: ListChange) -> bool:
    if change.channel.startswith(_OWN_CHANNELS) and change.channel not in _STATE_CHANNELS:
        return False
    if not change.value:
        # Whatever it held is gone; if that were no messages, none are found.
        return change.has_losses or not change.is_known
    return any(is_message(element) for element in change.value)


def _rows(change: ListChange, skipped: set[int]) -> list[dict[str, Any]]:
    """The fresh messages as rows, one for each id: of two with one id the later stands."""
    rows: dict[str, dict[str, Any]] = {}
    for place, message, id in _identified(change, change.fresh):
        if place not in skipped:
            rows[id] = {"message_id": id, "position": place, **message_row(message)}
    return list(rows.values())


def _identified(change: ListChange, places: Iterable[int]) -> Iterator[tuple[int, BaseMessage, str]]:
    """Messages at some places of a list with an id each: its own, or what its content says and how often before."""
    ordinals: dict[int, int] | None = None
    for place in places:
        message = change.value[place]
        if not is_message(message):
            continue
        if type(message.id) is str and message.id:
            yield place, message, message.id
            continue
        if ordinals is None:
            ordinals = _ordinals(change)
        suffix = f"-{ordinals[place]}" if ordinals[place] > 1 else ""
        yield place, message, content_id(message) + suffix


def _ordinals(change: ListChange) -> dict[int, int]:
    """By place, the how-manieth of its equals an element is."""
    marks: Sequence[Any] = (
        split_digests(change.fingerprints)
        if change.fingerprints is not None
        else [content_id(element) if is_message(element) else None for element in change.value]
    )
    seen: Counter[Any] = Counter()
    ordinals = {}
    for place, mark in enumerate(marks):
        seen[mark] += 1
        ordinals[place] = seen[mark]
    return ordinals


def content_id(message: BaseMessage) -> str:
    """An id for a message without one, of what it says. The same in every process, unlike the codec's fingerprints."""
    return xxhash.xxh3_128_hexdigest(orjson.dumps(to_json(message.__dict__)[0]))


def fitting_ids(thread_id: str, rows: Sequence[dict[str, Any]]) -> list[str]:
    """The rows' ids, after those that PostgreSQL cannot store or index have been replaced by fingerprints."""
    room = min(_ID_BYTES, (MAX_KEY_BYTES - len(thread_id.encode())) // 2)
    for row in rows:
        id = row["message_id"]
        if not (id.isascii() and len(id) <= room and "\0" not in id):
            row["message_id"] = _fitting_id(id, room)
    return [row["message_id"] for row in rows]


def _fitting_id(id: str, room: int) -> str:
    encoded = id.encode("utf-8", "surrogatepass")
    fits = len(encoded) <= room and "\0" not in id and encoded == id.encode("utf-8", "replace")
    return id if fits else xxhash.xxh3_128_hexdigest(encoded)


def _recorded_by_root(plan: PutPlan, change: ListChange) -> set[int]:
    """Places of the elements that the root's checkpoint has, too: nearly all of what a subgraph starts from."""
    root = plan.request.root
    if root is None or change.fingerprints is None:
        return set()
    known = {
        digest
        for other in root.entries.values()
        if isinstance(other, Elements) and other.marks is not None
        for digest in split_digests(other.marks.digests)
    }
    return {place for place, digest in enumerate(split_digests(change.fingerprints)) if digest in known}
