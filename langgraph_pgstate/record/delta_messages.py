"""Writes of a superstep to a DeltaChannel, converted to changes of its messages.

Most checkpoints hold no value of a DeltaChannel. LangGraph rebuilds the value from the writes of the superstep's tasks.
The put of a checkpoint does not get these writes, so it records only that there were writes. This module reads the
writes later, maybe in a process without the graph, and applies them like a reducer of messages: a new id appends a
message, a known id replaces a message, a `RemoveMessage` removes a message. Where reducers differ, the put records the
rules of the channel's reducer (`MessageRules`). Other effects of a reducer are recorded with the next snapshot.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any, Final

import orjson
from langchain_core.messages import BaseMessage, RemoveMessage, convert_to_messages

from langgraph_pgstate.checkpoints.journal_entry import COMPARED, WRITTEN
from langgraph_pgstate.checkpoints.reading import WritesRow, flatten_writes
from langgraph_pgstate.codec.serializer import plain_serializer
from langgraph_pgstate.codec.values import ValueCodec
from langgraph_pgstate.db.protocol import Connection
from langgraph_pgstate.errors import DataKeyDestroyedError, DecryptionError, PGStateError
from langgraph_pgstate.langgraph_compat import REMOVE_ALL_MESSAGES
from langgraph_pgstate.record.message_hook import content_id, fitting_ids, message_row
from langgraph_pgstate.schema.queries import Queries

_log = logging.getLogger("langgraph_pgstate.record")

# Keys with string values, of a change of kind `WRITTEN`.
_TEXTS: Final = ("thread_id", "checkpoint_ns", "checkpoint_id", "parent_checkpoint_id", "channel")

Place = tuple[str, str]
"""A thread and a namespace."""


async def resolve_written(
    db: Connection, queries: Queries, changes: Sequence[tuple[str, bytes]]
) -> list[tuple[str, bytes]]:
    """Replace each change of kind `WRITTEN` by a change made from the writes. Unreadable writes are logged."""
    changes = [pair for pair in changes if pair[0] != WRITTEN or _is_noted(pair[1])]
    noted = [orjson.loads(change) if kind == WRITTEN else None for kind, change in changes]
    wanted: dict[Place, set[str]] = defaultdict(set)
    for each in noted:
        if each is not None:
            wanted[_place(each)].add(each["parent_checkpoint_id"])
    writes: dict[Place, dict[str, list[WritesRow]]] = {}
    for place, ids in wanted.items():
        key = {"thread_id": place[0], "checkpoint_ns": place[1], "checkpoint_ids": sorted(ids)}
        found = writes[place] = defaultdict(list)
        try:
            rows = await db.fetch(queries.get_writes, key)
        except (DataKeyDestroyedError, DecryptionError) as error:
            _log.error("messages of thread %r are left out until the next snapshot: %s", place[0], error)
            continue
        for checkpoint_id, task_id, task_path, idx, data in rows:
            found[checkpoint_id].append(WritesRow(task_id, task_path, idx, data))
    resolved = []
    for pair, each in zip(changes, noted, strict=True):
        if each is None:
            resolved.append(pair)
        elif change := _read(each, writes[_place(each)][each["parent_checkpoint_id"]]):
            resolved.append((COMPARED, orjson.dumps(change)))
    return resolved


@cache
def _plain_codec() -> ValueCodec:
    # Messages are recorded only if the saver uses LangGraph's own serializer, so this serializer can decode messages.
    return ValueCodec(plain_serializer())


def _is_noted(change: bytes) -> bool:
    """Return whether a change of kind `WRITTEN` has all its keys. Log an error if a key is missing."""
    try:
        found = orjson.loads(change)
        is_noted = all(isinstance(found[name], str) for name in _TEXTS) and {"run_id", "hears_remove_all"} <= {*found}
    except (KeyError, TypeError, ValueError):
        is_noted = False
    if not is_noted:
        _log.error("messages are left out: a change of messages in the journal is malformed")
    return is_noted


def _place(noted: Mapping[str, Any]) -> Place:
    return noted["thread_id"], noted["checkpoint_ns"]


def _read(noted: Mapping[str, Any], rows: Sequence[WritesRow]) -> dict[str, Any] | None:
    where = f"checkpoint {noted['parent_checkpoint_id']!r} of thread {noted['thread_id']!r}"
    try:
        values = [
            _plain_codec().loads(type_, data, f"a write to {noted['channel']!r} at {where}")
            for _, _, (_, channel, type_, data) in flatten_writes(rows, where)
            if channel == noted["channel"]
        ]
    except PGStateError as error:
        _log.error("messages of %s are left out until the next snapshot: %s", where, error)
        return None
    return _fold(noted, values)


def _fold(noted: Mapping[str, Any], values: Sequence[Any]) -> dict[str, Any] | None:
    """Return the combined change of some writes, in their order, or `None` if they hold no message."""
    rows: dict[str, dict[str, Any]] = {}
    gone: set[str] = set()
    is_emptied = False
    hears = noted["hears_remove_all"]
    # Journal entries of earlier versions have no `keeps_place`. Use `hears_remove_all`, which has the same meaning.
    for message in _messages(values, keeps_place=noted.get("keeps_place", hears)):
        if isinstance(message, RemoveMessage):
            if message.id == REMOVE_ALL_MESSAGES:
                if hears:
                    rows, gone, is_emptied = {}, set(), True
                continue
            rows.pop(message.id or "", None)
            gone.add(message.id or "")
            continue
        id = message.id if type(message.id) is str and message.id else content_id(message)
        # An edited message keeps its place. A message that was removed and written again gets a new place.
        rows[id] = {"message_id": id, **message_row(message), "is_moved": id in gone}
    if not (rows or gone or is_emptied):
        return None
    messages = [{**row, "position": place} for place, row in enumerate(rows.values())]
    thread_id = noted["thread_id"]
    present = fitting_ids(thread_id, messages)
    absent = fitting_ids(thread_id, [{"message_id": id} for id in sorted(gone - rows.keys())])
    known = ("thread_id", "checkpoint_ns", "checkpoint_id", "run_id", "channel")
    return {
        **{name: noted[name] for name in known},
        "messages": messages,
        "present_ids": present,
        # `None` compares all messages of the channel. A list compares only the messages with these ids, because the
        # writes say nothing about other messages.
        "named_ids": None if is_emptied else present + absent,
    }


def _messages(values: Sequence[Any], *, keeps_place: bool) -> Iterator[BaseMessage]:
    """Return the written messages in order.

    With `keeps_place`, a message that one write removes and adds again keeps its place.
    """
    for value in values:
        items = value if isinstance(value, list) else [value]
        last = {getattr(item, "id", None): item for item in items} if keeps_place else {}
        for item in items:
            if isinstance(item, BaseMessage):
                if isinstance(item, RemoveMessage) and not isinstance(last.get(item.id, item), RemoveMessage):
                    continue
                yield item
            elif isinstance(item, dict) and "content" in item and ("role" in item or "type" in item):
                try:
                    yield from convert_to_messages([item])
                except (ValueError, NotImplementedError):
                    continue
