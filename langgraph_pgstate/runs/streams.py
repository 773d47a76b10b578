"""Events of runs: encoding, storing and reading them."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

import ormsgpack

from langgraph_pgstate.codec.frames import pack_short_lived, unpack
from langgraph_pgstate.codec.values import ValueCodec, array_header
from langgraph_pgstate.db.protocol import Connection
from langgraph_pgstate.errors import CorruptStateError, SerializationError
from langgraph_pgstate.runs.types import (
    EventBatch,
    RunKey,
    StoredBatch,
    StreamPage,
    ThreadPage,
    ThreadRun,
    Wanted,
    WantedRuns,
)
from langgraph_pgstate.schema.queries import Queries, Statement

METADATA: Final = "metadata"
EVENTS: Final = "events"
"""The mode of the events that `astream_events` yields. `stream` has no such mode."""
# The superstep of events before the first known checkpoint of an attempt. LangGraph's supersteps begin at -1.
NO_STEP: Final = -2
PAGE_BYTES: Final = 64 * 1024
"""Bytes of batches after which a page of events ends. A slow reader holds a page in memory."""
_MESSAGES: Final = "messages"
_INTERRUPT: Final = "__interrupt__"
# Number of nested levels that are searched for values that cannot be stored.
_LEVELS: Final = 6

Decoded = tuple[int, str, tuple[str, ...], Any, bool]
"""The number, mode, namespace and data of an event, and whether the event is replayed."""

_log = logging.getLogger("langgraph_pgstate.runs")


def encode_event(codec: ValueCodec, mode: str, namespace: Sequence[str], data: Any, step: int | None) -> bytes:
    """Return an event as bytes. Data that cannot be stored is replaced by its `repr`.

    In the mode `events`, only the parts that cannot be stored are replaced. `step` is the superstep of the root graph,
    and `None` for an event that the graph did not yield.
    """
    try:
        type_, value = codec.dumps(mode, data)
    except SerializationError as error:
        _log.warning("an event of mode %r cannot be stored, so its repr is stored: %s", mode, error)
        type_, value = codec.dumps(mode, _storable(codec, data, _LEVELS) if mode == EVENTS else repr(data))
    return ormsgpack.packb((mode, tuple(namespace), step, type_, value))


def _storable(codec: ValueCodec, value: Any, levels: int) -> Any:
    """Return a value in which the `repr` replaces each part that cannot be stored."""
    try:
        codec.dumps(EVENTS, value)
        return value
    except SerializationError:
        if levels and isinstance(value, Mapping):
            return {str(key): _storable(codec, item, levels - 1) for key, item in value.items()}
        if levels and isinstance(value, list | tuple):
            return [_storable(codec, item, levels - 1) for item in value]
        return repr(value)


def encode_batch(events: Sequence[bytes]) -> bytes:
    """Return encoded events as one frame."""
    return pack_short_lived(array_header(len(events)) + b"".join(events))


def decode_batch(codec: ValueCodec, batch: StoredBatch, where: str) -> Iterator[Decoded]:
    """Yield the events of a batch.

    Raises:
        CorruptStateError: If the bytes are damaged.
        UnreadableFormatError: If a newer version of this package, or another serializer, wrote the bytes.
    """
    try:
        events = ormsgpack.unpackb(unpack(batch.data, where))
        if len(events) != batch.last_seq - batch.first_seq + 1:
            raise ValueError(f"it has {len(events)} events")
        parts = [(str(mode), tuple(ns), step, type_, value) for mode, ns, step, type_, value in events]
    except (ormsgpack.MsgpackDecodeError, TypeError, ValueError, RecursionError) as error:
        raise CorruptStateError(where, f"it is not a batch of events ({error})") from error
    for number, (mode, namespace, step, type_, value) in enumerate(parts, batch.first_seq):
        data = codec.loads(type_, value, where)
        # The serializer has turned tuples into lists.
        if mode == _MESSAGES and isinstance(data, list):
            data = tuple(data)
        elif isinstance(data, dict) and isinstance(data.get(_INTERRUPT), list):
            data[_INTERRUPT] = tuple(data[_INTERRUPT])
        is_replayed = step is not None and batch.replayed_step is not None and step <= batch.replayed_step
        yield number, mode, namespace, data, is_replayed


def append_statements(queries: Queries, batches: Sequence[EventBatch]) -> list[Statement]:
    """Return statements that store batches of events in the caller's transaction, each batch once.

    Batches of a run that the worker has lost are not stored.
    """
    # Sort the batches, so that two transactions lock several runs in the same order.
    ordered = sorted(batches, key=lambda batch: (batch.key, batch.position))
    return [(queries.append_batch, {**batch.key._asdict(), **batch._asdict()}) for batch in ordered]


async def append(db: Connection, queries: Queries, batches: Sequence[EventBatch]) -> tuple[set[RunKey], set[RunKey]]:
    """Store batches of several runs. One transaction; safe to repeat.

    Returns:
        The runs whose batches are stored, and the runs that the worker has lost. Locked runs are in neither set; call
        `append` again for these runs.
    """
    runs = {(batch.key.thread_id, batch.key.run_id): batch.key for batch in batches}
    keys = {
        "thread_ids": [key.thread_id for key in runs.values()],
        "run_ids": [key.run_id for key in runs.values()],
        "fencing_tokens": [key.fencing_token for key in runs.values()],
    }
    stored: set[RunKey] = set()
    lost: set[RunKey] = set()
    async with db.transaction():
        for thread_id, run_id, is_mine, is_locked in await db.fetch(queries.lock_streams, keys):
            if is_locked:
                stored.add(runs[thread_id, run_id])
            elif not is_mine:
                lost.add(runs[thread_id, run_id])
        given = [batch for batch in batches if batch.key in stored]
        if given:
            await db.execute(queries.append_batches, _columns(given))
    return stored, lost


async def read(db: Connection, queries: Queries, wanted: Sequence[Wanted], page_size: int) -> list[StreamPage]:
    """Return a page of at most `page_size` batches for each wanted run, all as of one moment. One round trip."""
    parameters = {
        "thread_ids": [one.thread_id for one in wanted],
        "run_ids": [one.run_id for one in wanted],
        "afters": [one.after for one in wanted],
        "page_size": page_size,
        "page_bytes": PAGE_BYTES,
    }
    found: dict[int, StreamPage] = {}
    for row in await db.fetch(queries.read_streams, parameters):
        number, status, error_type, error_message, last_event, ended_at = row[:6]
        page = found.setdefault(number, StreamPage(status, error_type, error_message, last_event, [], False, ended_at))
        if row[6] is not None:
            page.batches.append(StoredBatch(*row[6:12]))
    pages = [found[number] for number in range(1, len(wanted) + 1)]
    return [page._replace(is_full=_is_full(page.batches, page_size)) for page in pages]


async def read_threads(db: Connection, queries: Queries, wanted: Sequence[WantedRuns]) -> list[ThreadPage]:
    """Return a page of runs for each wanted thread, all as of one moment. One round trip."""
    parameters = {
        "thread_ids": [one.thread_id for one in wanted],
        "sinces": [one.since.isoformat() if one.since else "" for one in wanted],
        "run_ids": [one.run_id or "" for one in wanted],
        "ended_sinces": [one.ended_since.isoformat() if one.ended_since else "" for one in wanted],
    }
    found: dict[int, ThreadPage] = {}
    for number, now, run_id, *run in await db.fetch(queries.read_threads, parameters):
        page = found.setdefault(number, ThreadPage(now, []))
        if run_id is not None:
            page.runs.append(ThreadRun(run_id, *run))
    return [page._replace(runs=_as_followed(page.runs)) for _, page in sorted(found.items())]


def _as_followed(runs: list[ThreadRun]) -> list[ThreadRun]:
    """Return runs of one thread in the order in which a reader that follows the thread gets them.

    A run that was cancelled while it waited comes after the run that was running then, because the reader followed that
    run. `ended_at` follows this order.
    """
    waited = [one for one in runs if one.ended_at is not None and not one.last_event]
    if not waited:
        return runs
    begun = sorted((one for one in runs if one.last_event or one.status == "running"), key=_end)
    moved: dict[str, datetime | None] = {}
    for place, one in enumerate(waited, 1):
        # Of the runs that ended later, the first one was running.
        for other in begun:
            if other.started_at <= _end(one)[1] and _end(other) > _end(one):
                moved[one.run_id] = other.ended_at and other.ended_at + place * timedelta.resolution
                break
    found = [one._replace(ended_at=moved.get(one.run_id, one.ended_at)) for one in runs]
    return sorted(found, key=_end)


def _end(run: ThreadRun) -> tuple[bool, datetime]:
    """Return the key by which runs are sorted: ended runs by their ends, then the others by their starts."""
    return run.ended_at is None, run.ended_at or run.started_at


def _is_full(batches: Sequence[StoredBatch], page_size: int) -> bool:
    """Return whether a page reached its limit, so that more events may follow."""
    return len(batches) == page_size or sum(len(batch.data) for batch in batches) >= PAGE_BYTES


def _columns(batches: Sequence[EventBatch]) -> dict[str, Any]:
    return {
        "thread_ids": [batch.key.thread_id for batch in batches],
        "run_ids": [batch.key.run_id for batch in batches],
        "fencing_tokens": [batch.key.fencing_token for batch in batches],
        "attempts": [batch.attempt for batch in batches],
        "positions": [batch.position for batch in batches],
        "lengths": [batch.length for batch in batches],
        "steps": [batch.step for batch in batches],
        "data": [f"\\x{batch.data.hex()}" for batch in batches],
    }
