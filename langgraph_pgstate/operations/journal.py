"""The journal: what was recorded, durable beside its checkpoint at once and in the tables within moments.

A put takes an entry along in its own statement. Moving entries into the tables is left to a writer in the background,
many at a time; whoever comes next does it when that one has died. An entry says all there is to know, so anybody may
move it, and taking it out is one transaction with writing what it says: it is done once, and what was deleted meanwhile
with its thread or run does not come back.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

import orjson

from langgraph_pgstate.db.port import Port
from langgraph_pgstate.operations.companions import Statement, is_refusal
from langgraph_pgstate.operations.maintenance import choose_dead, find_running, settle_runs
from langgraph_pgstate.operations.notes import ADDED, COMPARED, Note
from langgraph_pgstate.sql import Queries

SEMCONV_VERSION: Final = "1.41.1"
"""The OpenTelemetry semantic conventions whose names `attributes` has."""

_log = logging.getLogger("langgraph_pgstate.recorder")
_MOST_ROWS: Final = 1000
_MOST_BYTES: Final = 8_000_000
_THREAD_PAGE: Final = 200


async def put_entry(port: Port, queries: Queries, key: tuple[str, str], entry_id: str, note: Note) -> None:
    """Note something without a checkpoint. One statement; safe to repeat.

    Args:
        port: The connection.
        queries: The queries of the schema.
        key: Thread and run.
        entry_id: The entry's id.
        note: What is to be noted.
    """
    parameters = {"thread_id": key[0], "run_id": key[1], "entry_id": entry_id, "entry": note.pack()}
    await port.execute(queries.put_entry, parameters)


async def write(
    port: Port,
    queries: Queries,
    thread_ids: Sequence[str],
    more: Note | None = None,
    is_dead: Callable[[str], bool] | None = None,
    own: Sequence[tuple[str, str]] = (),
) -> int:
    """Move what some threads have in the journal into the tables, and more after it. One transaction; safe to repeat.

    Rows that the database refuses for what they are do not keep the others back; they are said aloud and left out.
    Where a run begins, what dead processes left running on its thread is ended.

    Args:
        port: The connection.
        queries: The queries of the schema.
        thread_ids: The threads.
        more: Rows that are in no journal, of these threads or of others.
        is_dead: Whether a holder is known to be dead; left out, nothing is ended.
        own: Thread and id of this process's runs under way.

    Returns:
        How many entries there were.
    """
    threads = sorted({*thread_ids, *(more.thread_ids if more is not None else ())})
    begun: set[str] = set()
    ended: set[str] = set()
    async with port.transaction():
        taken = await port.fetch(queries.take_entries, {"thread_ids": threads})
        for note in _gather(_unpack(taken), more):
            await _write(port, queries, note)
            begun.update(thread_id for thread_id, _ in note.begun)
            ended.update(thread_id for thread_id, _, _ in note.ended)
    if begun and is_dead is not None:
        running = [run for run in await find_running(port, queries, sorted(begun)) if run[:2] not in own]
        for thread_id, dead in choose_dead(running, is_dead).items():
            await settle_runs(port, queries, thread_id, dead)
    if changed := begun | ended:
        await port.execute(queries.refresh_statuses, {"thread_ids": sorted(changed)})
    return len(taken)


async def recover(
    port: Port,
    queries: Queries,
    seconds: float = 0.0,
    is_dead: Callable[[str], bool] | None = None,
    own: Sequence[tuple[str, str]] = (),
) -> int:
    """Move what nobody has moved for some seconds into the tables, thread by thread; safe to repeat.

    Returns:
        How many entries there were.
    """
    moved = 0
    while True:
        found = await port.fetch(queries.find_entries, {"seconds": seconds, "page_size": _THREAD_PAGE})
        moved += await write(port, queries, [row[0] for row in found], None, is_dead, own) if found else 0
        if len(found) < _THREAD_PAGE:
            return moved


def _unpack(taken: Iterable[Sequence[Any]]) -> Iterator[Note]:
    for thread_id, entry_id, data in sorted(taken, key=lambda row: (row[0], row[1])):
        try:
            yield Note.unpack(thread_id, data)
        except Exception as error:
            _log.error("entry %s in the journal of thread %r is left out: %s", entry_id, thread_id, error)


def _gather(notes: Iterable[Note], more: Note | None) -> Iterator[Note]:
    """Notes made few, each no larger than a statement may be; no run begins twice in one."""
    gathered = Note()
    begun: set[tuple[str, str]] = set()
    size = 0
    for note in (*notes, *([more] if more is not None else ())):
        is_full = len(gathered) + len(note) > _MOST_ROWS or size + note.size > _MOST_BYTES
        if gathered and (is_full or not begun.isdisjoint(note.begun)):
            yield gathered
            gathered, begun, size = Note(), set(), 0
        gathered.extend(note)
        begun.update(note.begun)
        size += note.size
    if gathered:
        yield gathered


async def _write(port: Port, queries: Queries, note: Note) -> None:
    try:
        await port.execute_together(_statements(queries, note))
    except Exception as error:
        if not is_refusal(error):
            raise
        if len(note) > 1:
            for half in note.halves():
                await _write(port, queries, half)
        else:
            _log.error("PostgreSQL refuses %s: %s", _describe(note), error)


def _describe(note: Note) -> str:
    for name in ("runs", "spans", "events", "forks"):
        for row in getattr(note, name):
            found = orjson.loads(row)
            return f"the row {found.get('span_id') or found.get('event_id') or found.get('run_id')} of {name}"
    return f"messages of {', '.join(note.thread_ids)}"


def _statements(queries: Queries, note: Note) -> list[Statement]:
    """What writes a note's rows: a statement for each table, always in one order, so that none wait in a circle."""
    among: dict[str, Any] = {"thread_ids": note.thread_ids}
    found: list[Statement] = []
    begun = {
        "thread_ids": [thread_id for thread_id, _ in note.begun],
        "run_ids": [run_id for _, run_id in note.begun],
    }
    if note.runs:
        rows = _array(note.runs)
        if note.begun:
            found.append((queries.put_new_threads, {"rows": rows}))
        found.append((queries.put_runs, {**among, "rows": rows, "ttl": note.ttl}))
    if note.begun:
        found.append((queries.settle_attempts, begun))
    if note.spans:
        found.append((queries.put_spans, {**among, "rows": _array(note.spans), "semconv_version": SEMCONV_VERSION}))
    if note.events:
        found.append((queries.put_events, {**among, "rows": _array(note.events)}))
    if note.forks:
        found.append((queries.put_forks, {**among, "rows": _array(note.forks)}))
    if note.ended:
        ended = {
            "thread_ids": [thread_id for thread_id, _, _ in note.ended],
            "run_ids": [run_id for _, run_id, _ in note.ended],
            "sinces": [since for _, _, since in note.ended],
        }
        found.append((queries.total_runs, ended))
    return found + list(_messages(queries, note))


def _messages(queries: Queries, note: Note) -> Iterator[Statement]:
    """Changes of messages in their order; neighbours of one kind in one statement."""
    waiting: list[bytes] = []
    kind_before = ADDED

    def added() -> Iterator[Statement]:
        if waiting:
            query = queries.add_messages if kind_before == ADDED else queries.add_subgraph_messages
            yield query, {"thread_ids": note.thread_ids, "changes": _array(waiting)}
            waiting.clear()

    for kind, change in note.messages:
        if kind != kind_before:
            yield from added()
            kind_before = kind
        if kind == COMPARED:
            given = orjson.loads(change)
            given["message_ids"] = [message["message_id"] for message in given["messages"]]
            yield queries.reconcile_messages, {**given, "messages": orjson.dumps(given["messages"]).decode()}
        else:
            waiting.append(change)
    yield from added()


def _array(rows: Sequence[bytes]) -> str:
    return (b"[" + b",".join(rows) + b"]").decode()
