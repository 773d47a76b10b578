"""Archiving of threads: copying, verifying, and only then deleting.

The rows of a thread are read, stored outside of the database, read back and verified. Then one transaction locks the
thread's row, so that nobody holds, forks, enqueues or deletes the thread meanwhile. The transaction deletes the
thread's rows, and compares their digest with the digest of the rows that were read back. If the digests differ, or rows
remain, the transaction is rolled back, and the thread is kept.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any, Final
from uuid import uuid4

from langgraph_pgstate.codec.ids import new_entry_id
from langgraph_pgstate.db.protocol import Connection
from langgraph_pgstate.db.runners import Runner
from langgraph_pgstate.errors import ArchiveUnavailableError, NotFoundError
from langgraph_pgstate.keep.objects import Objects
from langgraph_pgstate.keep.packing import (
    MANIFEST,
    PACK,
    Manifest,
    People,
    check_pack,
    load_manifest,
    pack,
    people_of,
)
from langgraph_pgstate.keep.tables import THREADS, Table, Tables, list_tables
from langgraph_pgstate.keep.types import ARCHIVED, ArchiveReport, LeftThread
from langgraph_pgstate.memory.namespaces import literal
from langgraph_pgstate.record import journal
from langgraph_pgstate.record.budgets import gather_costs, keep_costs
from langgraph_pgstate.runs.locking import bounded_waits, is_locked
from langgraph_pgstate.schema.queries import Queries, migrations
from langgraph_pgstate.threads.holds import check_not_held

PAGE: Final = 200
"""Maximum number of threads that are read together and packed into one archive."""
_PACK_BYTES: Final = 16 * 1024 * 1024
_CHANGED: Final = "changed while it was copied"
_DELETED: Final = "is in an archive that another call deleted before the archive was complete"
_REASONS: Final[Mapping[str, str]] = {
    "missing": "does not exist",
    "archived": ARCHIVED,
    "held": "is held by a person",
    "queued": "is in the queue",
    "running": "is run, or leased, by a living process",
    "acting": "has a tool that still runs",
    "scheduled": "has a schedule that is to fire",
    "awaiting": "waits for a default answer",
    "recorded": "has records in the journal",
    "exported": "has spans that are to be exported",
    "active": "was active a moment ago",
    "locked": "is locked by another transaction",
}


class _ChangedError(Exception):
    """The error if some threads have changed since they were copied. Nothing was stored or deleted."""

    def __init__(self, threads: Mapping[str, str]) -> None:
        super().__init__(f"{len(threads)} threads")
        self.threads = threads


async def check_held(db: Connection, queries: Queries, thread_ids: Sequence[str]) -> None:
    """Check that threads exist and are not held. One statement, and one for each held thread.

    Raises:
        ThreadHeldError: If a hold protects a thread.
        NotFoundError: If a thread does not exist.
    """
    found = await explain(db, queries, thread_ids, timedelta(0))
    for thread_id, (reason, _) in found.items():
        if reason == "missing":
            raise NotFoundError(f"there is no thread {thread_id!r}")
        if reason == "held":
            await check_not_held(db, queries, thread_id)


async def explain(
    db: Connection, queries: Queries, thread_ids: Sequence[str], idle_for: timedelta
) -> dict[str, tuple[str | None, str | None]]:
    """Return why each thread cannot be archived now (`None` if it can), and the id of its archive. One round trip."""
    rows = await db.fetch(queries.explain_archivable, {"thread_ids": [*thread_ids], "idle_for": idle_for})
    found: dict[str, tuple[str | None, str | None]] = dict.fromkeys(thread_ids, ("missing", None))
    return found | {thread_id: (reason, archive_id) for thread_id, reason, archive_id in rows}


async def inspect(
    db: Connection, queries: Queries, tables: Tables, thread_ids: Sequence[str], idle_for: timedelta
) -> tuple[dict[str, str], dict[str, tuple[int, int]]]:
    """Return why threads cannot be archived, and the number and bytes of rows of the other threads. Two round trips."""
    explained = await explain(db, queries, thread_ids, idle_for)
    left = {thread_id: _REASONS[reason] for thread_id, (reason, _) in explained.items() if reason is not None}
    found = {thread_id: (0, 0) for thread_id in thread_ids if thread_id not in left}
    for thread_id, rows, size in await db.fetch(tables.measure, {"thread_ids": [*found]}):
        known = found[thread_id]
        found[thread_id] = known[0] + rows, known[1] + int(size)
    return left, found


async def read_threads(
    db: Connection, queries: Queries, tables: Tables, thread_ids: Sequence[str]
) -> tuple[dict[str, dict[str, list[bytes]]], datetime]:
    """Return all rows of some threads, by thread and table, and the time. One round trip for each table.

    The tables are not read in one snapshot. Later comparisons find rows that have changed since.
    """
    found: dict[str, dict[str, list[bytes]]] = {thread_id: {} for thread_id in thread_ids}
    for table in tables.all:
        for thread_id, row in await db.fetch(table.read, {"thread_ids": [*thread_ids]}):
            found[thread_id].setdefault(table.name, []).append(row)
    at = (await db.fetch(queries.get_time, {}))[0][0]
    # Leave out threads that were deleted meanwhile.
    return {thread_id: rows for thread_id, rows in found.items() if THREADS in rows}, at


async def begin_archive(
    db: Connection,
    queries: Queries,
    tables: Tables,
    url: str,
    manifest: Manifest,
    size: int,
    people: Mapping[str, People],
) -> None:
    """Store the row of an archive before its objects are stored. One transaction; safe to repeat.

    A lock excludes calls that look for copies to delete, while the threads are compared with the copied rows. So an
    erasure finds this archive, or has changed the threads before the comparison.

    Raises:
        _ChangedError: If some threads have changed since they were copied.
    """
    key = {"thread_ids": [*manifest.frames]}
    changed: dict[str, str] = {}
    async with db.transaction():
        query, parameters = bounded_waits(queries)
        # The wait for the lock has no timeout, because comparisons of other calls may take long. `bounded_waits` also
        # ends the transaction of a frozen process, which would otherwise hold the lock forever.
        await db.fetch(query, {**parameters, "timeout": "0"})
        await db.fetch(queries.share_copies, {"key": copies_key(queries)})
        for table in tables.all:
            changed |= _compare(manifest, key["thread_ids"], table, await db.fetch(table.digest, key))
        if changed:
            raise _ChangedError(changed)
        await add_archive(db, queries, url, manifest, size, people)


def copies_key(queries: Queries) -> str:
    """Return the key of the lock between calls that make archives and calls that look for copies."""
    return f"copies {queries.schema}"


async def add_archive(
    db: Connection, queries: Queries, url: str, manifest: Manifest, size: int, people: Mapping[str, People]
) -> None:
    """Store the row of an archive, and a row for each of its threads. Call it in a transaction."""
    key = {"archive_id": manifest.archive_id}
    archive = {
        "url": url,
        "threads": len(manifest.frames),
        "bytes": size,
        "root": manifest.root,
        "schema_version": manifest.schema_version,
        "key_ids": [*manifest.key_ids],
    }
    found = [people[thread_id] for thread_id in manifest.frames]
    threads = {
        "thread_ids": [*manifest.frames],
        "user_ids": [one.user_id or "" for one in found],
        "users": [literal(one.users) for one in found],
        "origins": [one.origins for one in found],
    }
    await db.execute(queries.begin_archive, {**key, **archive})
    await db.execute(queries.add_archived_threads, {**key, **threads})


async def delete_archived(
    db: Connection, queries: Queries, tables: Tables, manifest: Manifest, idle_for: timedelta
) -> dict[str, str]:
    """Delete the rows of a verified archive's threads, except their stubs. Return why threads were kept, by thread.

    One transaction; safe to repeat. The transaction is repeated without threads that have changed since they were
    copied.
    """
    left: dict[str, str] = {}
    ids = [*manifest.frames]
    while ids:
        try:
            async with db.transaction():
                await _delete(db, queries, tables, manifest, ids, idle_for)
            break
        except _ChangedError as changed:
            left.update(changed.threads)
        except Exception as error:
            if not is_locked(error):
                raise
            if len(ids) > 1:
                # Try each thread alone, because the error does not name the locked thread.
                for thread_id in ids:
                    alone = await _delete_one(db, queries, tables, manifest, thread_id, idle_for)
                    left.update({} if alone is None else {thread_id: alone})
                break
            left[ids[0]] = _REASONS["locked"]
        ids = [thread_id for thread_id in ids if thread_id not in left]
    return left


async def _delete_one(
    db: Connection, queries: Queries, tables: Tables, manifest: Manifest, thread_id: str, idle_for: timedelta
) -> str | None:
    try:
        async with db.transaction():
            await _delete(db, queries, tables, manifest, [thread_id], idle_for)
    except _ChangedError as changed:
        return changed.threads[thread_id]
    except Exception as error:
        if not is_locked(error):
            raise
        return _REASONS["locked"]
    return None


async def _delete(
    db: Connection, queries: Queries, tables: Tables, manifest: Manifest, ids: Sequence[str], idle_for: timedelta
) -> None:
    """Delete the rows of some threads. Call it in a transaction.

    Raises:
        _ChangedError: If some threads have changed since they were copied, or must not be archived any more.
    """
    key = {"thread_ids": [*ids]}
    query, parameters = bounded_waits(queries)
    await db.fetch(query, parameters)
    # The lock prevents other calls from deleting the archive. If a call has already claimed the archive for a deletion,
    # the threads must stay in the tables.
    if not await db.fetch(queries.lock_archive, {"archive_id": manifest.archive_id, "deletion_id": None}):
        raise _ChangedError(dict.fromkeys(ids, _DELETED))
    locked = {row[0] for row in await db.fetch(queries.lock_threads_for_update, key)}
    # Check after the rows are locked, because other transactions may have changed the threads before.
    reasons = await explain(db, queries, ids, idle_for)
    changed = {
        thread_id: _REASONS["locked" if reason is None else reason]
        for thread_id, (reason, archive_id) in reasons.items()
        if reason is not None or thread_id not in locked
        if (reason, archive_id) != ("archived", manifest.archive_id)
    }
    if changed:
        raise _ChangedError(changed)
    # An earlier attempt may have deleted some of the threads before the connection was lost.
    going = [thread_id for thread_id in ids if reasons[thread_id][0] is None]
    if not going:
        return
    key = {"thread_ids": going}
    has_budgets = False
    for thread_id in going:
        has_budgets = has_budgets or await gather_costs(db, queries, thread_id)
        if not has_budgets:
            break
        await keep_costs(db, queries, thread_id)
    # Delete rows of referring tables before rows of referenced tables.
    for table in reversed(tables.all):
        found = await db.fetch(table.digest if table.name == THREADS else table.delete, key)
        changed |= _compare(manifest, going, table, found)
    # Find rows that another transaction inserted while a deletion above waited for a lock.
    changed |= {row[0]: _CHANGED for row in await db.fetch(tables.find, key)}
    if changed:
        raise _ChangedError(changed)
    await db.execute(queries.mark_archived, {**key, "archive_id": manifest.archive_id})
    await db.execute(queries.complete_archive, {"archive_id": manifest.archive_id})


def _compare(
    manifest: Manifest, ids: Sequence[str], table: Table, digests: Sequence[tuple[str, int, bytes]]
) -> dict[str, str]:
    """Return the threads whose rows in a table differ from the copied rows, with the reason to keep them."""
    told = {thread_id: (rows, hash.hex()) for thread_id, rows, hash in digests}
    copied = {
        thread_id: (part.rows, part.sha256)
        for thread_id in ids
        for part in manifest.frames[thread_id].parts
        if part.table == table.name
    }
    return {thread_id: _CHANGED for thread_id in ids if told.get(thread_id) != copied.get(thread_id)}


async def archive_threads(
    runner: Runner,
    queries: Queries,
    objects: Objects,
    thread_ids: Collection[str],
    *,
    tenant: str | None,
    idle_for: timedelta,
    dry_run: bool = False,
) -> ArchiveReport:
    """Archive threads, many in one archive. Safe to repeat, to stop, and to run while other programs use the threads.

    Raises:
        ArchiveError: If an archive is damaged when it is read back. None of its threads was deleted.
    """
    tables = await runner.run(list_tables, queries)
    report, is_reached = ArchiveReport(dry_run=dry_run), False
    ids = [*dict.fromkeys(thread_ids)]
    for start in range(0, len(ids), PAGE):
        page = ids[start : start + PAGE]
        if not dry_run:
            # Move the journal's entries to the tables, because threads with journal entries are not archived.
            await runner.run(journal.write, queries, page)
        left, sizes = await runner.run(inspect, queries, tables, page, idle_for)
        report += ArchiveReport(left=tuple(LeftThread(*one) for one in left.items()))
        if dry_run:
            counted = [rows for rows, _ in sizes.values()], [size for _, size in sizes.values()]
            report += ArchiveReport(len(sizes), sum(counted[0]) - len(sizes), sum(counted[1]), dry_run=True)
            continue
        if sizes and not is_reached:
            await _check_reachable(runner, objects)
            is_reached = True
        for group in _grouped(sizes):
            report += await _archive_group(runner, queries, objects, tables, group, tenant, idle_for)
    return report


async def _check_reachable(runner: Runner, objects: Objects) -> None:
    """Check that a place stores and deletes objects, before the row of an archive is stored.

    The row of an archive remains until its objects can be deleted. Until then, its threads cannot be erased.
    """
    # A random name, because other processes may check the same place at the same time.
    name = f"pgstate-check-{uuid4()}"
    try:
        await runner.wait_for(objects.put, name, b"")
    except BaseException:
        with suppress(Exception):
            await runner.wait_for(objects.delete, name)
        raise
    try:
        await runner.wait_for(objects.delete, name)
    except ArchiveUnavailableError as error:
        raise ArchiveUnavailableError(
            f"{objects.url}/{name}",
            f"was stored but cannot be deleted: the bucket or folder of archives must allow deletions ({error})",
        ) from error


def _grouped(sizes: Mapping[str, tuple[int, int]]) -> Iterator[list[str]]:
    group: list[str] = []
    total = 0
    for thread_id, (_, size) in sizes.items():
        if group and total + size > _PACK_BYTES:
            yield group
            group, total = [], 0
        group.append(thread_id)
        total += size
    if group:
        yield group


async def _archive_group(
    runner: Runner,
    queries: Queries,
    objects: Objects,
    tables: Tables,
    group: Sequence[str],
    tenant: str | None,
    idle_for: timedelta,
) -> ArchiveReport:
    """Make one archive, and delete its threads."""
    threads, at = await runner.run(read_threads, queries, tables, group)
    left = {thread_id: _REASONS["missing"] for thread_id in group if thread_id not in threads}
    facts: dict[str, Any] = {
        "created_at": at.isoformat(),
        "schema_version": migrations()[-1].version,
        "tenant": tenant,
    }

    def packed() -> tuple[bytes, Manifest, dict[str, People]]:
        people = {thread_id: people_of(rows, tables.columns) for thread_id, rows in threads.items()}
        return *pack(threads, tables.columns, archive_id=new_entry_id(), **facts), people

    while threads:
        data, manifest, people = await runner.compute(threads, packed)
        size = len(data) + len(manifest.dump())
        try:
            await runner.run(begin_archive, queries, tables, objects.url, manifest, size, people)
            break
        except _ChangedError as changed:
            left |= changed.threads
            threads = {thread_id: rows for thread_id, rows in threads.items() if thread_id not in left}
    if not threads:
        return ArchiveReport(left=tuple(LeftThread(*one) for one in left.items()))
    threads.clear()
    await store(runner, queries, objects, manifest, data)
    left |= await runner.run(delete_archived, queries, tables, manifest, idle_for)
    gone = [frame for frame in manifest.frames.values() if frame.thread_id not in left]
    if not gone:
        await discard(runner, queries, objects, manifest.archive_id)
        return ArchiveReport(left=tuple(LeftThread(*one) for one in left.items()))
    return ArchiveReport(
        len(gone),
        sum(frame.rows for frame in gone),
        size,
        (manifest.archive_id,),
        tuple(LeftThread(*one) for one in left.items()),
    )


async def discard(runner: Runner, queries: Queries, objects: Objects, archive_id: str) -> None:
    """Delete an archive that no stub names: its objects, then its rows. Safe to repeat."""
    await delete_objects(runner, objects, archive_id)
    await runner.run(delete_unused, queries, archive_id)


async def delete_objects(runner: Runner, objects: Objects, archive_id: str) -> None:
    """Delete the objects of an archive. Safe to repeat.

    Raises:
        ArchiveUnavailableError: If an object cannot be deleted.
    """
    for ending in (PACK, MANIFEST):
        await runner.wait_for(objects.delete, archive_id + ending)


async def delete_unused(db: Connection, queries: Queries, archive_id: str) -> None:
    """Delete the rows of an unused archive, unless another call has claimed it. One transaction; safe to repeat."""
    key = {"archive_id": archive_id}
    async with db.transaction():
        if await db.fetch(queries.lock_archive, {**key, "deletion_id": None}):
            await db.execute(queries.delete_archived_threads, {**key, "thread_ids": None})
            await db.execute(queries.delete_archive, key)


async def store(runner: Runner, queries: Queries, objects: Objects, manifest: Manifest, data: bytes) -> None:
    """Store the two objects of an archive, read both back, and verify them.

    After an error or a cancellation, the archive is deleted. If its objects cannot be deleted, its row is kept.

    Raises:
        ArchiveError: If an object differs when it is read back.
        ArchiveUnavailableError: If an object cannot be stored or read.
    """
    try:
        await _store(runner, objects, manifest, data)
    except BaseException:
        with suppress(Exception):
            await discard(runner, queries, objects, manifest.archive_id)
        raise


async def _store(runner: Runner, objects: Objects, manifest: Manifest, data: bytes) -> None:
    named = (manifest.archive_id + PACK, data), (manifest.archive_id + MANIFEST, manifest.dump())
    for name, content in named:
        await runner.wait_for(objects.put, name, content)
    read = await runner.wait_for(objects.get, named[0][0])
    told = await runner.wait_for(objects.get, named[1][0])
    load_manifest(told, f"{objects.url}/{named[1][0]}", manifest.root)
    await runner.compute(read, check_pack, manifest, read, f"{objects.url}/{named[0][0]}")
