"""The journal: what was recorded, durable beside its checkpoint at once and in the tables within moments.

A put takes an entry along in its own statement. Moving entries into the tables is left to a writer in the background,
many at a time; whoever comes next does it when that one has died. An entry says all there is to know, so anybody may
move it, and taking it out is one transaction with writing what it says: it is done once, and what was deleted meanwhile
with its thread or run does not come back.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import orjson

from langgraph_pgstate.db.protocol import Connection
from langgraph_pgstate.errors import UnreadableFormatError
from langgraph_pgstate.operations.admin.maintenance import choose_dead, find_running, settle_runs
from langgraph_pgstate.operations.record.delta_messages import resolve_written
from langgraph_pgstate.operations.record.journal_entry import ADDED, COMPARED, WRITTEN, JournalEntry
from langgraph_pgstate.operations.record.put_hook import Statement, is_refusal
from langgraph_pgstate.sql import Queries

SEMCONV_VERSION: Final = "1.41.1"
"""The OpenTelemetry semantic conventions whose names `attributes` has."""

_log = logging.getLogger("langgraph_pgstate.record")
_MOST_ROWS: Final = 1000
# What fits a socket's buffer is on its way although the event loop does something else.
_MOST_BYTES: Final = 128 * 1024
_PAGE: Final = 200
# `take_entries` says so.
_TAKEN: Final = "pgstate-journal:"
_THREAD_PAGE: Final = 200


def entry_of(key: tuple[str, str], entry_id: str, journal_entry: JournalEntry) -> dict[str, Any]:
    """An entry without a checkpoint, as `put_entry` takes it.

    Args:
        key: Thread and run.
        entry_id: The entry's id.
        journal_entry: What is to be noted.
    """
    return {"thread_id": key[0], "run_id": key[1], "entry_id": entry_id, "entry": journal_entry.pack()}


async def put_entry(db: Connection, queries: Queries, entry: dict[str, Any], seconds_left: Callable[[], float]) -> None:
    """Note something without a checkpoint. One statement; safe to repeat.

    Args:
        db: The connection.
        queries: The queries of the schema.
        entry: As `entry_of` gives it.
        seconds_left: Tells how long the server may take.
    """
    await db.execute_within(seconds_left(), queries.put_entry, entry)


async def write(
    db: Connection,
    queries: Queries,
    thread_ids: Sequence[str],
    more: JournalEntry | None = None,
    is_dead: Callable[[str], bool] | None = None,
    own: Sequence[tuple[str, str]] = (),
) -> int:
    """Move what some threads have in the journal into the tables, and more after it; safe to repeat.

    Batch by batch, each a transaction that is sent at once: no lock is held while an event loop has other things to do.

    Rows that the database refuses for what they are do not keep the others back; they are said aloud and left out.
    Where a run begins, what dead processes left running on its thread is ended.

    Args:
        db: The connection.
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
    moved = 0
    while True:
        rows = await db.fetch(queries.read_entries, {"thread_ids": threads, "page_size": _PAGE})
        is_last = len(rows) < _PAGE
        for batch in _gather(_unpack(rows), more if is_last else None):
            if any(kind == WRITTEN for kind, _ in batch.journal_entry.messages):
                batch.journal_entry.messages = await resolve_written(db, queries, batch.journal_entry.messages)
            if not await _move(db, queries, batch):
                # Somebody else was faster; what is left is looked for again.
                is_last = False
                break
            moved += len(batch.entries)
            begun.update(thread_id for thread_id, _ in batch.journal_entry.begun)
            ended.update(thread_id for thread_id, _, _ in batch.journal_entry.ended)
        if is_last:
            break
    if begun and is_dead is not None:
        running = [run for run in await find_running(db, queries, sorted(begun)) if run[:2] not in own]
        for thread_id, dead in choose_dead(running, is_dead).items():
            await settle_runs(db, queries, thread_id, dead)
    if changed := begun | ended:
        await db.execute(queries.refresh_statuses, {"thread_ids": sorted(changed)})
    return moved


async def recover(
    db: Connection,
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
        found = await db.fetch(queries.find_entries, {"seconds": seconds, "page_size": _THREAD_PAGE})
        moved += await write(db, queries, [row[0] for row in found], None, is_dead, own) if found else 0
        if len(found) < _THREAD_PAGE:
            return moved


@dataclass(slots=True)
class _Batch:
    """Entries that are moved together.

    Attributes:
        journal_entry: What they say.
        entries: Their threads and ids; none for rows that are in no journal.
        size: Bytes of their rows.
    """

    journal_entry: JournalEntry = field(default_factory=JournalEntry)
    entries: list[tuple[str, str]] = field(default_factory=list)
    size: int = 0


def _unpack(rows: Iterable[Sequence[Any]]) -> Iterator[tuple[tuple[str, str], JournalEntry]]:
    for thread_id, entry_id, data in rows:
        try:
            journal_entry = JournalEntry.unpack(thread_id, data)
        except UnreadableFormatError:
            # It stays, for a process that can read it.
            raise
        except Exception as error:
            _log.error("entry %s in the journal of thread %r is left out: %s", entry_id, thread_id, error)
            journal_entry = JournalEntry(thread_ids=[thread_id])
        yield (thread_id, entry_id), journal_entry


def _gather(entries: Iterable[tuple[tuple[str, str], JournalEntry]], more: JournalEntry | None) -> Iterator[_Batch]:
    """Entries made few batches, none larger than it should be; no run begins twice in one."""
    batch = _Batch()
    begun: set[tuple[str, str]] = set()
    given: list[tuple[tuple[str, str] | None, JournalEntry]] = [*entries]
    if more is not None:
        given.append((None, more))
    for entry, journal_entry in given:
        size = journal_entry.size
        is_full = len(batch.journal_entry) + len(journal_entry) > _MOST_ROWS or batch.size + size > _MOST_BYTES
        # What is in no journal is written without one: were its entries gone, it would wait for nothing.
        if (batch.entries or batch.journal_entry) and (
            is_full or entry is None or not begun.isdisjoint(journal_entry.begun)
        ):
            yield batch
            batch, begun = _Batch(), set()
        batch.journal_entry.extend(journal_entry)
        batch.size += size
        begun.update(journal_entry.begun)
        if entry is not None:
            batch.entries.append(entry)
    if batch.entries or batch.journal_entry:
        yield batch


async def _move(db: Connection, queries: Queries, batch: _Batch) -> bool:
    """Write what a batch says and take its entries out, or neither; false if somebody else has taken one."""
    taking: list[Statement] = []
    if batch.entries:
        taken = {
            "taken_thread_ids": [thread_id for thread_id, _ in batch.entries],
            "taken_entry_ids": [entry_id for _, entry_id in batch.entries],
            "thread_ids": sorted({thread_id for thread_id, _ in batch.entries}),
        }
        taking.append((queries.take_entries, taken))
    try:
        await db.execute_together([*taking, *_statements(queries, batch.journal_entry)])
        return True
    except Exception as error:
        if _is_taken(error):
            return False
        if not is_refusal(error):
            raise
    # A row that the database refuses for what it is: the others are written without it.
    try:
        async with db.transaction():
            if taking:
                await db.fetch(*taking[0])
            await _write(db, queries, batch.journal_entry)
    except Exception as error:
        if not _is_taken(error):
            raise
        return False
    return True


def _is_taken(error: Exception) -> bool:
    return is_refusal(error) and _TAKEN in str(error)


async def _write(db: Connection, queries: Queries, journal_entry: JournalEntry) -> None:
    try:
        await db.execute_together(_statements(queries, journal_entry))
    except Exception as error:
        if not is_refusal(error):
            raise
        if len(journal_entry) > 1:
            for half in journal_entry.halves():
                await _write(db, queries, half)
        else:
            _log.error("PostgreSQL refuses %s: %s", _describe(journal_entry), error)


def _describe(journal_entry: JournalEntry) -> str:
    for name in ("runs", "spans", "events", "forks"):
        for row in getattr(journal_entry, name):
            found = orjson.loads(row)
            return f"the row {found.get('span_id') or found.get('event_id') or found.get('run_id')} of {name}"
    return f"messages of {', '.join(journal_entry.thread_ids)}"


def _statements(queries: Queries, journal_entry: JournalEntry) -> list[Statement]:
    """What writes a note's rows: a statement for each table, always in one order, so that none wait in a circle."""
    among: dict[str, Any] = {"thread_ids": journal_entry.thread_ids}
    found: list[Statement] = []
    begun = {
        "thread_ids": [thread_id for thread_id, _ in journal_entry.begun],
        "run_ids": [run_id for _, run_id in journal_entry.begun],
    }
    if journal_entry.runs:
        rows = _array(journal_entry.runs)
        if journal_entry.begun:
            found.append((queries.put_new_threads, {"rows": rows}))
        found.append((queries.put_runs, {**among, "rows": rows, "ttl": journal_entry.ttl}))
    if journal_entry.begun:
        found.append((queries.settle_attempts, begun))
    if journal_entry.spans:
        found.append(
            (queries.put_spans, {**among, "rows": _array(journal_entry.spans), "semconv_version": SEMCONV_VERSION})
        )
    if journal_entry.events:
        found.append((queries.put_events, {**among, "rows": _array(journal_entry.events)}))
    if journal_entry.forks:
        found.append((queries.put_forks, {**among, "rows": _array(journal_entry.forks)}))
    if journal_entry.ended:
        ended = {
            "thread_ids": [thread_id for thread_id, _, _ in journal_entry.ended],
            "run_ids": [run_id for _, run_id, _ in journal_entry.ended],
        }
        found.append((queries.total_runs, ended))
    if journal_entry.begun or journal_entry.ended:
        # In this transaction: a process that was killed after it would leave the thread busy for good.
        found.append(
            (
                queries.refresh_statuses,
                {"thread_ids": sorted({row[0] for row in (*journal_entry.begun, *journal_entry.ended)})},
            )
        )
    return found + list(_messages(queries, journal_entry))


def _messages(queries: Queries, journal_entry: JournalEntry) -> Iterator[Statement]:
    """Changes of messages in their order; neighbours of one kind in one statement."""
    waiting: list[bytes] = []
    kind_before = ADDED

    def added() -> Iterator[Statement]:
        if waiting:
            query = queries.add_messages if kind_before == ADDED else queries.add_subgraph_messages
            yield query, {"thread_ids": journal_entry.thread_ids, "changes": _array(waiting)}
            waiting.clear()

    for kind, change in journal_entry.messages:
        if kind != kind_before:
            yield from added()
            kind_before = kind
        if kind == COMPARED:
            given = {"named_ids": None, **orjson.loads(change)}
            given["message_ids"] = [message["message_id"] for message in given["messages"]]
            yield queries.reconcile_messages, {**given, "messages": orjson.dumps(given["messages"]).decode()}
        else:
            waiting.append(change)
    yield from added()


def _array(rows: Sequence[bytes]) -> str:
    return (b"[" + b",".join(rows) + b"]").decode()
