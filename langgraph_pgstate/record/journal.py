"""The journal: rows of runs, spans, messages and events that wait to be moved into their tables.

A put stores the rows of a superstep as one entry, in the statement that stores the checkpoint. A background writer of
any process moves entries into the tables, many at a time. One transaction deletes an entry and writes its rows, so each
entry is moved once. The deletion of a thread or run also deletes its entries.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, TypeVar

import orjson

from langgraph_pgstate.checkpoints.event_chains import chaining, is_chained
from langgraph_pgstate.checkpoints.journal_entry import ADDED, COMPARED, WRITTEN, JournalEntry
from langgraph_pgstate.db.protocol import Connection
from langgraph_pgstate.db.translate import is_refusal
from langgraph_pgstate.errors import (
    DataKeyError,
    EncryptedError,
    NotEncryptedError,
    PGStateError,
    UnreadableFormatError,
)
from langgraph_pgstate.record.dead_runs import choose_dead, find_running, settle_runs
from langgraph_pgstate.record.delta_messages import resolve_written
from langgraph_pgstate.schema.queries import Queries, Statement

_SEMCONV_VERSION: Final = "1.41.1"
"""Version of the OpenTelemetry semantic conventions used in `attributes`."""

_log = logging.getLogger("langgraph_pgstate.record")
_MOST_ROWS: Final = 1000
# Maximum bytes of a batch. A batch of this size fits a socket's buffer, so a busy event loop does not delay the batch.
_MOST_BYTES: Final = 128 * 1024
_PAGE: Final = 200
# Prefix of the error that `take_entries` raises if another process has taken an entry.
_TAKEN: Final = "pgstate-journal:"
_THREAD_PAGE: Final = 200
# Errors that Python raises for a row that is not JSON or lacks a key.
_MALFORMED: Final = (AttributeError, KeyError, TypeError, ValueError)
# Columns of a run's row that `put_new_threads` reads.
_OF_THREAD: Final = ("thread_id", "agent", "user_id", "tenant_id", "is_new", "has_thread")


def entry_of(key: tuple[str, str], entry_id: str, journal_entry: JournalEntry) -> dict[str, Any]:
    """Return a journal entry that belongs to no checkpoint, for `put_entry`. `key` is the thread and the run."""
    return {"thread_id": key[0], "run_id": key[1], "entry_id": entry_id, "entry": journal_entry.pack()}


async def put_entry(
    db: Connection,
    queries: Queries,
    entry: dict[str, Any],
    seconds_left: Callable[[], float],
    owner: Mapping[str, Any] | None = None,
) -> None:
    """Store a journal entry that belongs to no checkpoint. One statement; safe to repeat.

    Args:
        owner: Agent, user and tenant of the run, on which the encryption key may depend. A new thread has no row yet
            that names them.
    """
    if db.keys is not None and owner is not None:
        db.keys.note_owner(entry["thread_id"], lambda: owner)
    await db.execute_within(seconds_left(), queries.put_entry, entry)


async def write(
    db: Connection,
    queries: Queries,
    thread_ids: Sequence[str],
    more: JournalEntry | None = None,
    is_dead: Callable[[str], bool] | None = None,
    own: Sequence[tuple[str, str]] = (),
) -> int:
    """Move the journal entries of some threads into the tables, then further rows; safe to repeat.

    Each batch is one transaction, sent as a whole so that no lock is held while the event loop is busy. Rows that the
    database refuses are logged and left out. If a run begins, earlier runs of dead processes on its thread are ended.

    Args:
        more: Further rows that are in no journal.
        is_dead: Returns whether the process with a holder id is known to be dead; by default no run is ended.
        own: Thread and id of this process's runs in progress, which are not ended.

    Returns:
        The number of moved entries.
    """
    threads = sorted({*thread_ids, *(more.thread_ids if more is not None else ())})
    begun: set[str] = set()
    ended: set[str] = set()
    kept: set[str] = set()
    moved = 0
    is_audited = await is_chained(db, queries)
    while True:
        try:
            rows = await db.fetch(queries.read_entries, {"thread_ids": threads, "page_size": _PAGE})
        except Exception as error:
            if not is_refusal(error):
                raise
            known = await _storable(db, queries, threads)
            if len(known) == len(threads):
                raise
            threads, more = known, None if more is None else more.of_threads(known)
            continue
        is_last = len(rows) < _PAGE
        for batch in _gather(_unpack(rows, kept), more if is_last else None):
            if any(kind == WRITTEN for kind, _ in batch.journal_entry.messages):
                batch.journal_entry.messages = await resolve_written(db, queries, batch.journal_entry.messages)
            if not await _move(db, queries, batch, is_audited):
                # Another writer took one of the entries. Read the remaining entries again.
                is_last = False
                break
            moved += len(batch.entries)
            begun.update(thread_id for thread_id, _ in batch.journal_entry.begun)
            ended.update(thread_id for thread_id, _, _ in batch.journal_entry.ended)
        if is_last:
            break
        # Skip threads whose entries are kept. Otherwise these entries would fill every page.
        threads = [thread_id for thread_id in threads if thread_id not in kept]
    if begun and is_dead is not None:
        running = [run for run in await find_running(db, queries, sorted(begun)) if run[:2] not in own]
        for thread_id, dead in choose_dead(running, is_dead).items():
            await settle_runs(db, queries, thread_id, dead)
    if changed := begun | ended:
        await db.execute(queries.refresh_thread_statuses, {"thread_ids": sorted(changed)})
    return moved


async def is_kept(db: Connection, queries: Queries, thread_id: str) -> bool:
    """Return whether `write` keeps entries of a thread because this process cannot read them."""
    rows = await db.fetch(queries.read_entries, {"thread_ids": [thread_id], "page_size": 1})
    return bool(rows) and not [*_unpack(rows, set())]


async def recover(
    db: Connection,
    queries: Queries,
    seconds: float = 0.0,
    is_dead: Callable[[str], bool] | None = None,
    own: Sequence[tuple[str, str]] = (),
) -> int:
    """Move entries that are at least `seconds` old into the tables, and return their number. Safe to repeat."""
    moved, after = 0, ""
    while True:
        position = {"seconds": seconds, "cursor_thread": after, "page_size": _THREAD_PAGE}
        found = [row[0] for row in await db.fetch(queries.find_entries, position)]
        if found:
            moved += await write(db, queries, found, None, is_dead, own)
        if len(found) < _THREAD_PAGE:
            return moved
        after = found[-1]


async def _storable(db: Connection, queries: Queries, threads: Sequence[str]) -> list[str]:
    """Return the threads whose ids the database can store. A database that is not in UTF8 may refuse some."""
    found = []
    for thread_id in threads:
        try:
            await db.fetch(queries.read_entries, {"thread_ids": [thread_id], "page_size": 1})
            found.append(thread_id)
        except Exception as error:
            if not is_refusal(error):
                raise
            _log.error("the record of thread %r is left out: %s", thread_id, error)
    return found


@dataclass(slots=True)
class _Batch:
    """Rows that are written together, with the thread and id of each journal entry from which they come."""

    journal_entry: JournalEntry = field(default_factory=JournalEntry)
    entries: list[tuple[str, str]] = field(default_factory=list)
    size: int = 0


def _unpack(rows: Iterable[Sequence[Any]], kept: set[str]) -> Iterator[tuple[tuple[str, str], JournalEntry]]:
    """Yield the entries of rows, and add to `kept` the threads whose entries are kept for another process."""
    for thread_id, entry_id, data in rows:
        if thread_id in kept:
            continue
        try:
            journal_entry = JournalEntry.unpack(thread_id, data)
        except (UnreadableFormatError, EncryptedError, NotEncryptedError, DataKeyError) as error:
            # Keep this entry, and later entries of the thread, for a process that can read the entries.
            _log.warning("the journal of thread %r is kept for another process: %s", thread_id, error)
            kept.add(thread_id)
            continue
        except Exception as error:
            _log.error("entry %s in the journal of thread %r is left out: %s", entry_id, thread_id, error)
            journal_entry = JournalEntry(thread_ids=[thread_id])
        yield (thread_id, entry_id), journal_entry


def _gather(entries: Iterable[tuple[tuple[str, str], JournalEntry]], more: JournalEntry | None) -> Iterator[_Batch]:
    """Combine entries into few batches of limited size. No run begins twice in one batch."""
    batch = _Batch()
    begun: set[tuple[str, str]] = set()
    given: list[tuple[tuple[str, str] | None, JournalEntry]] = [*entries]
    if more is not None:
        given.append((None, more))
    for entry, journal_entry in given:
        size = journal_entry.size
        is_full = len(batch.journal_entry) + len(journal_entry) > _MOST_ROWS or batch.size + size > _MOST_BYTES
        # Put `more`, the rows of this process, into a batch of their own. A batch with journal entries fails if another
        # process has taken one of the entries.
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


async def _move(db: Connection, queries: Queries, batch: _Batch, is_audited: bool) -> bool:
    """Write a batch's rows and remove its entries, or neither. Return false if another writer has taken an entry."""
    taking: list[Statement] = []
    if db.keys is not None and batch.journal_entry.begun:
        for thread in _new_threads(batch.journal_entry):
            db.keys.note_owner(thread["thread_id"], lambda thread=thread: thread)  # type: ignore[misc]
    if batch.entries:
        taken = {
            "taken_thread_ids": [thread_id for thread_id, _ in batch.entries],
            "taken_entry_ids": [entry_id for _, entry_id in batch.entries],
            "thread_ids": sorted({thread_id for thread_id, _ in batch.entries}),
        }
        taking.append((queries.take_entries, taken))
    try:
        await db.execute_together([*taking, *_statements(queries, batch.journal_entry, is_audited)])
        return True
    except Exception as error:
        if _is_taken(error):
            return False
        if not _is_of_a_row(error):
            raise
    # PostgreSQL refuses a row, or a row is malformed. Write the other rows.
    try:
        async with db.transaction():
            if taking:
                await db.fetch(*taking[0])
            await _write(db, queries, batch.journal_entry, is_audited)
    except Exception as error:
        if not _is_taken(error):
            raise
        return False
    return True


def _is_taken(error: Exception) -> bool:
    return is_refusal(error) and _TAKEN in str(error)


async def _write(db: Connection, queries: Queries, journal_entry: JournalEntry, is_audited: bool) -> None:
    try:
        await db.execute_together(_statements(queries, journal_entry, is_audited))
    except Exception as error:
        if not _is_of_a_row(error):
            raise
        if len(journal_entry) > 1:
            for half in journal_entry.halves():
                await _write(db, queries, half, is_audited)
        else:
            _log.error("PostgreSQL refuses %s: %s", _describe(journal_entry), error)


def _is_of_a_row(error: Exception) -> bool:
    """Return whether a row has caused an error: the row is malformed, or the database refuses it."""
    return is_refusal(error) or (isinstance(error, _MALFORMED) and not isinstance(error, PGStateError))


def _describe(journal_entry: JournalEntry) -> str:
    for name in ("runs", "spans", "events", "forks"):
        for row in getattr(journal_entry, name):
            try:
                found = orjson.loads(row)
                return f"the row {found.get('span_id') or found.get('event_id') or found.get('run_id')} of {name}"
            except (AttributeError, ValueError):
                return f"a row of {name} of {', '.join(journal_entry.thread_ids)}"
    return f"messages of {', '.join(journal_entry.thread_ids)}"


def _statements(queries: Queries, journal_entry: JournalEntry, is_audited: bool) -> list[Statement]:
    """Return the statements that write an entry's rows, always in the same order to avoid deadlocks."""
    among: dict[str, Any] = {"thread_ids": journal_entry.thread_ids}
    found: list[Statement] = []
    begun = {
        "thread_ids": [thread_id for thread_id, _ in journal_entry.begun],
        "run_ids": [run_id for _, run_id in journal_entry.begun],
    }
    if journal_entry.runs:
        if journal_entry.begun:
            threads = _new_threads(journal_entry)
            found.append((queries.put_new_threads, {"rows": orjson.dumps(threads).decode()}))
        found.append((queries.put_runs, {**among, "rows": _array(journal_entry.runs), "ttl": journal_entry.ttl}))
    if journal_entry.spans:
        found.append(
            (queries.put_spans, {**among, "rows": _array(journal_entry.spans), "semconv_version": _SEMCONV_VERSION})
        )
    if journal_entry.begun:
        # `put_spans` comes first, because this batch may have spans that `settle_attempts` ends.
        found.append((queries.settle_attempts, begun))
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
        # Set the status in the transaction that ends the run. Otherwise a crash could leave the thread `busy`.
        found.append(
            (
                queries.refresh_thread_statuses,
                {"thread_ids": sorted({row[0] for row in (*journal_entry.begun, *journal_entry.ended)})},
            )
        )
    found += _messages(queries, journal_entry)
    if is_audited and (journal_entry.events or journal_entry.forks):
        given = map(orjson.loads, (*journal_entry.events, *journal_entry.forks))
        found += chaining(queries, [(row["thread_id"], row["event_id"]) for row in given])
    return found


def _new_threads(journal_entry: JournalEntry) -> list[dict[str, Any]]:
    """Return the threads on which runs begin, with their owners.

    Contents are left out, because the rows of `put_new_threads` are not encrypted.
    """
    runs = map(orjson.loads, journal_entry.runs)
    return [{name: run.get(name) for name in _OF_THREAD} for run in runs if run.get("is_new")]


def _messages(queries: Queries, journal_entry: JournalEntry) -> Iterator[Statement]:
    """Return the statements for changes of messages, in order. Adjacent changes of one kind share a statement."""
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


class PendingRows(Protocol):
    """Rows that are in no journal yet. `is_complete` says whether no row was left out."""

    journal_entry: JournalEntry
    is_complete: bool


R = TypeVar("R", bound=PendingRows)


class RowSource(Protocol[R]):
    """A source of rows, such as a `WriteQueue`. Rows that are not acknowledged are collected again."""

    def collect(self, include_recent: bool = True) -> R | None:
        """Return the next rows that are in no journal, or `None` if there are none."""
        ...

    def acknowledge(self, pending: R) -> None:
        """Remove committed rows."""
        ...

    def journaled_threads(self) -> dict[str, int]:
        """Return the threads with journal entries, each with a number that changes when entries are added."""
        ...

    def note_moved(self, threads: dict[str, int]) -> None:
        """Remember that the journal entries of these threads were moved to the tables."""
        ...

    def own_runs(self) -> list[tuple[str, str]]:
        """Return thread and id of the runs in progress in this process."""
        ...

    def due_renewals(self) -> list[tuple[str, str]]:
        """Return the runs whose `alive_until` must be renewed now."""
        ...


async def write_pending(
    db: Connection,
    queries: Queries,
    source: RowSource[R],
    is_dead: Callable[[str], bool],
    holder_id: str,
    ttl: float,
    include_recent: bool = True,
) -> None:
    """Write all pending rows, and renew `alive_until` of this process's runs. Rows that fail are kept for a later call.

    With `include_recent`, also write recent rows and rows of a put in progress.
    """
    if mine := source.due_renewals():
        await renew_runs(db, queries, mine, holder_id, ttl)
    while True:
        # Collect rows before the journal is read. Otherwise a collected row could depend on a newer journal entry that
        # was not read.
        pending = source.collect(include_recent)
        threads = source.journaled_threads()
        if pending is None and not threads:
            return
        more = None if pending is None else pending.journal_entry
        await write(db, queries, list(threads), more, is_dead, source.own_runs())
        source.note_moved(threads)
        if pending is None:
            return
        source.acknowledge(pending)
        if pending.is_complete:
            # Leave rows that arrived meanwhile to the next call. Otherwise the caller could wait forever.
            return


async def renew_runs(
    db: Connection, queries: Queries, runs: Sequence[tuple[str, str]], holder_id: str, ttl: float
) -> None:
    """Set `alive_until` of a process's runs to `ttl` seconds from now. One statement; safe to repeat."""
    parameters: dict[str, Any] = {
        "thread_ids": [thread_id for thread_id, _ in runs],
        "run_ids": [run_id for _, run_id in runs],
        "holder_id": holder_id,
        "ttl": ttl,
    }
    await db.execute(queries.renew_runs, parameters)


async def tell_time(db: Connection, queries: Queries) -> float:
    """Return the database's clock, in seconds since 1970."""
    seconds: float = (await db.fetch(queries.tell_time, {}))[0][0]
    return seconds
