"""Redaction of messages in all rows of a thread. Each thread is one transaction."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import orjson

from langgraph_pgstate.checkpoints.event_chains import chain, release_events
from langgraph_pgstate.codec import frames
from langgraph_pgstate.codec.ids import new_revision
from langgraph_pgstate.codec.states import Elements, Slice, decode_state, open_state
from langgraph_pgstate.codec.values import PLAIN_MARK
from langgraph_pgstate.db.protocol import Connection
from langgraph_pgstate.errors import ThreadInUseError
from langgraph_pgstate.keep.redacting import (
    ERASED,
    Found,
    Redaction,
    blank,
    blank_json,
    message_ids_of,
    redact_json,
    redact_packed,
)
from langgraph_pgstate.record import journal
from langgraph_pgstate.record.message_hook import text_of
from langgraph_pgstate.schema.queries import Queries
from langgraph_pgstate.threads.holds import refuse_held
from langgraph_pgstate.tools.executions import FRAMED_RESULT

WHY: Final = "erased"
"""The reason that events about redactions name."""

_PAGE: Final = 100
_SEGMENT_BYTES: Final = 8 * 1024 * 1024
_INT4_MIN: Final = -(2**31)
_BYTES_BY: Final = {"answers": "redact_answer", "tool_executions": "redact_result", "run_requests": "redact_request"}
_JSON_BY: Final = {
    "threads": "redact_thread_row",
    "projections": "redact_projection",
    "events": "redact_event",
    "runs": "redact_run",
    "spans": "redact_span",
    "tool_executions": "redact_execution",
    "feedback": "redact_feedback",
    "labels": "redact_label",
    "webhooks": "redact_webhook",
}

Places = dict[int, set[tuple[int, int] | None]]
"""Parts to redact, by segment: offset and length of a value, or `None` for a whole segment of elements of lists."""


class Versions:
    """The contents of messages before and after redaction, as the table `messages` has them."""

    def __init__(self) -> None:
        self.fields: list[Mapping[str, Any]] = []
        self._after: dict[tuple[str, str | None], tuple[str | None, Any]] = {}

    def note(self, id: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> None:
        """Remember a version of a message."""
        self.fields.append(before)
        self._after[id, text_of(before.get("content"))] = text_of(after.get("content")), _calls(after)

    def after(self, id: str, content: str | None, tool_calls: Any) -> tuple[str | None, Any]:
        """Return the redacted text and tool calls of a recorded message, equal to those in the states."""
        if (found := self._after.get((id, content))) is not None:
            return found
        return None if content is None else ERASED, None if tool_calls is None else []


def _calls(fields: Mapping[str, Any]) -> list[dict[str, Any]] | None:
    calls = fields.get("tool_calls") or ()
    return [{"name": call.get("name"), "args": call.get("args"), "id": call.get("id")} for call in calls] or None


async def lock_unused(db: Connection, queries: Queries, thread_id: str) -> None:
    """Lock a thread against all writers, and against forks and copies, until the transaction ends.

    The lock waits for forks and copies that are being made, so that the caller finds them afterwards.

    Raises:
        ThreadHeldError: If a hold protects the thread.
        ThreadInUseError: If a process runs the thread. The process would store old content again from its memory.
    """
    await db.fetch(queries.lock_thread_for_update, {"thread_id": thread_id})
    await refuse_held(db, queries, thread_id)
    if found := await db.fetch(queries.is_thread_used, {"thread_id": thread_id}):
        raise ThreadInUseError(thread_id, found[0][0])
    await db.fetch(queries.lock_all_checkpoints, {"thread_id": thread_id})
    # Move the journal's entries to the tables, where they are redacted.
    await journal.write(db, queries, [thread_id])


async def find_message_ids(db: Connection, queries: Queries, thread_id: str) -> set[str]:
    """Return the ids of all messages in a thread's states and pending writes."""
    reading = _Reading(db, queries, thread_id)
    await reading.read()
    return reading.ids


async def find_versions(db: Connection, queries: Queries, thread_id: str, ids: frozenset[str]) -> Versions:
    """Return the contents of some messages in a thread's states and pending writes."""
    versions = Versions()
    reading = _Reading(db, queries, thread_id, Redaction(ids), versions.note)
    await reading.read()
    return versions


async def redact_thread(db: Connection, queries: Queries, thread_id: str, what: Redaction) -> Counter[str]:
    """Redact messages and texts in all rows of a thread, in a transaction that has called `lock_unused`.

    Returns:
        The number of redacted rows by table, and of deleted batches of streamed events.
    """
    versions = Versions()
    writing = _Reading(db, queries, thread_id, what, versions.note, writes=True)
    await writing.read()
    counts = writing.counts
    counts["messages"] += await _redact_messages(db, queries, thread_id, what, versions)
    counts += await _redact_bytes(db, queries, thread_id, what)
    counts += await _redact_json(db, queries, thread_id, what)
    streams = {"thread_id": thread_id, "run_ids": None, "keeps_ends": False}
    counts["stream_batches"] += await db.execute(queries.delete_streams, streams)
    return +counts


class _Reading:
    """A pass over all segments, states and pending writes of a thread, to redact them or to find messages."""

    def __init__(
        self,
        db: Connection,
        queries: Queries,
        thread_id: str,
        what: Redaction | None = None,
        found: Found | None = None,
        *,
        writes: bool = False,
    ) -> None:
        self._db, self._queries, self._thread_id = db, queries, thread_id
        self._what, self._found, self._writes = what, found, writes
        self.ids: set[str] = set()
        self.counts: Counter[str] = Counter()

    async def read(self) -> None:
        """Read and redact all segments, states and pending writes."""
        places = await self._states()
        await self._segments(places)
        await self._pending()

    def _redacted(self, data: bytes) -> bytes:
        if self._what is None:
            self.ids |= message_ids_of(data)
            return data
        return redact_packed(data, self._what, self._found)

    async def _states(self) -> Places:
        places: Places = {}
        cursor = ("", "")
        while True:
            where = {"cursor_ns": cursor[0], "cursor_id": cursor[1], "page_size": _PAGE}
            rows = await self._db.fetch(self._queries.scan_checkpoints, {"thread_id": self._thread_id, **where})
            for namespace, checkpoint_id, metadata, state, segment_ids in rows:
                cursor = (namespace, checkpoint_id)
                where_ = f"checkpoint {checkpoint_id!r} of thread {self._thread_id!r}"
                for entry in decode_state(state, segment_ids, where_).manifest.entries.values():
                    if isinstance(entry, Slice):
                        places.setdefault(entry.segment_id, set()).add((entry.offset, entry.length))
                    elif isinstance(entry, Elements):
                        for run in entry.runs:
                            places.setdefault(run.segment_id, set()).add(None)
                content = open_state(state, segment_ids, where_)
                await self._state(namespace, checkpoint_id, metadata, content, segment_ids)
            if len(rows) < _PAGE:
                return places

    async def _state(
        self, namespace: str, checkpoint_id: str, metadata: str, content: bytes, segment_ids: Sequence[int]
    ) -> None:
        after = self._redacted(content)
        if not self._writes or self._what is None:
            return
        said = orjson.loads(metadata)
        said_after = redact_json(said, self._what)
        if after is content and said_after is said:
            return
        await self._db.execute(
            self._queries.redact_checkpoint,
            {
                "thread_id": self._thread_id,
                "checkpoint_ns": namespace,
                "checkpoint_id": checkpoint_id,
                "state": frames.pack(after),
                "metadata": json.dumps(said_after),
                "revision": new_revision(),
                # An encrypted state can be decrypted only with its segment ids.
                "segment_ids": segment_ids,
            },
        )
        self.counts["checkpoints"] += 1

    async def _segments(self, places: Places) -> None:
        cursor, wanted, changed = _INT4_MIN, sorted(places), []
        while wanted:
            given = {"segment_ids": wanted, "cursor_id": cursor, "max_bytes": _SEGMENT_BYTES}
            rows = await self._db.fetch(self._queries.scan_segments, {"thread_id": self._thread_id, **given})
            if not rows:
                break
            for segment_id, data in rows:
                cursor = segment_id
                content = frames.unpack(data, f"segment {segment_id} of thread {self._thread_id!r}")
                after = self._segment(content, places[segment_id])
                if self._writes and after != content:
                    changed.append(segment_id)
                    new = {"thread_id": self._thread_id, "segment_id": segment_id, "data": frames.pack(after)}
                    await self._db.execute(self._queries.redact_segment, new)
        if changed:
            self.counts["segments"] += len(changed)
            renewed = {"thread_id": self._thread_id, "segment_ids": changed, "revision": new_revision()}
            await self._db.execute(self._queries.renew_revisions, renewed)

    def _segment(self, content: bytes, places: Iterable[tuple[int, int] | None]) -> bytes:
        for place in places:
            if place is None:
                start, length = len(PLAIN_MARK) if content.startswith(PLAIN_MARK) else 0, len(content)
            else:
                start, length = place
            part = self._redacted(content[start : start + length])
            content = content[:start] + part + content[start + length :]
        return content

    async def _pending(self) -> None:
        cursor: tuple[str, str, str, int] = ("", "", "", _INT4_MIN)
        while True:
            where = dict(zip(("cursor_ns", "cursor_id", "cursor_task", "cursor_idx"), cursor, strict=True))
            given = {"thread_id": self._thread_id, **where, "page_size": _PAGE}
            rows = await self._db.fetch(self._queries.scan_writes, given)
            for *key, data, _ in rows:
                cursor = (key[0], key[1], key[2], key[3])
                content = frames.unpack(data, f"writes of task {key[2]!r} of thread {self._thread_id!r}")
                after = self._redacted(content)
                if self._writes and after is not content:
                    named = dict(zip(("checkpoint_ns", "checkpoint_id", "task_id", "idx"), key, strict=True))
                    new = {"thread_id": self._thread_id, **named, "data": frames.pack(after)}
                    await self._db.execute(self._queries.redact_write, new)
                    self.counts["writes"] += 1
            if len(rows) < _PAGE:
                return


async def has_message(db: Connection, queries: Queries, thread_id: str, message_id: str) -> bool:
    """Return whether a message of a thread is recorded."""
    first = {"cursor_id": "", "cursor_checkpoint": "", "cursor_channel": "", "page_size": 1}
    key = {"thread_id": thread_id, "message_ids": [message_id], "all": False}
    return bool(await db.fetch(queries.list_message_versions, {**key, **first}))


async def _redact_messages(
    db: Connection, queries: Queries, thread_id: str, what: Redaction, versions: Versions
) -> int:
    """Redact recorded messages, and return the number of changed rows.

    The messages that `what` names get their content from the redacted states. In other messages, only the texts of
    `what` are replaced by blanks.
    """
    count = 0
    cursor = ("", "", "")
    key = {"thread_id": thread_id, "message_ids": sorted(what.message_ids), "all": bool(what.texts)}
    while True:
        where = dict(zip(("cursor_id", "cursor_checkpoint", "cursor_channel"), cursor, strict=True))
        rows = await db.fetch(queries.list_message_versions, {**key, **where, "page_size": _PAGE})
        for id, checkpoint_id, channel, content, calls, role, agent in rows:
            cursor = (id, checkpoint_id, channel)
            if id in what.message_ids:
                after = versions.after(id, content, calls)
                # Remove the name of a person. The name of an agent or a tool is kept.
                name = blank(agent.encode()).decode() if agent and role == "human" else agent
            else:
                after, name = (blank_json(content, what), blank_json(calls, what)), agent
            if after == (content, calls) and name == agent:
                continue
            new = {
                **{"thread_id": thread_id, "message_id": id, "checkpoint_id": checkpoint_id, "channel": channel},
                **{"content": after[0], "agent": name},
                "tool_calls": None if after[1] is None else json.dumps(after[1]),
            }
            await db.execute(queries.redact_message, new)
            count += 1
        if len(rows) < _PAGE:
            return count


async def _redact_bytes(db: Connection, queries: Queries, thread_id: str, what: Redaction) -> Counter[str]:
    counts: Counter[str] = Counter()
    for table, key, type_, data in await db.fetch(queries.list_stored_bytes, {"thread_id": thread_id}):
        is_frame = type_ == "frame" or type_.startswith(FRAMED_RESULT)
        content = frames.unpack(data, f"a row of {table} of thread {thread_id!r}") if is_frame else bytes(data)
        after = redact_packed(content, what)
        if after is not content:
            new = frames.pack(after) if is_frame else after
            given = {"thread_id": thread_id, "key": json.dumps(key), "data": new}
            await db.execute(getattr(queries, _BYTES_BY[table]), given)
            counts[table] += 1
    return counts


async def _redact_json(db: Connection, queries: Queries, thread_id: str, what: Redaction) -> Counter[str]:
    counts: Counter[str] = Counter()
    cursor = ("", "")
    while True:
        where = {"cursor_name": cursor[0], "cursor_key": cursor[1], "page_size": _PAGE}
        rows = await db.fetch(queries.list_stored_json, {"thread_id": thread_id, **where})
        for table, key, content, key_text in rows:
            cursor = (table, key_text)
            after = redact_json(content, what)
            if after is content:
                continue
            if table == "events":
                await release_events(db, queries, thread_id, [key[0]], WHY)
            given = {"thread_id": thread_id, "key": json.dumps(key), "content": json.dumps(after)}
            await db.execute(getattr(queries, _JSON_BY[table]), given)
            if table == "events":
                await chain(db, queries, [(thread_id, key[0])])
            counts[table] += 1
        if len(rows) < _PAGE:
            return counts


async def clear_runs(db: Connection, queries: Queries, thread_id: str, run_ids: Sequence[str]) -> Counter[str]:
    """Remove inputs and outputs of some runs of a thread, in a transaction that has called `lock_unused`."""
    counts: Counter[str] = Counter()
    key = {"thread_id": thread_id, "run_ids": list(run_ids)}
    counts["run_requests"] += await db.execute(queries.delete_queued, key)
    await db.execute(queries.end_deleted_runs, key)
    await db.execute(queries.promote_next, {"thread_ids": [thread_id]})
    counts["stream_batches"] += await db.execute(queries.delete_streams, {**key, "keeps_ends": False})
    counts["runs"] += await db.execute(queries.clear_runs, key)
    await db.execute(queries.set_thread_status, {"thread_id": thread_id})
    counts["spans"] += await db.execute(queries.clear_spans, key)
    counts["tool_executions"] += await db.execute(queries.clear_executions, {**key, "inherited": False})
    found = [row[0] for row in await db.fetch(queries.list_payloads_of_runs, key)]
    if found:
        await release_events(db, queries, thread_id, found, WHY)
        counts["events"] += await db.execute(queries.clear_events, {"thread_id": thread_id, "event_ids": found})
        await chain(db, queries, [(thread_id, event_id) for event_id in found])
    return +counts
