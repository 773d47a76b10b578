"""Deletion of threads from archives.

An archive that also has other threads is written again without the deleted threads. The compressed frames of the other
threads are copied unchanged. Their stubs, which are their rows in `threads`, name the new archive before the old
archive is deleted. If the process is killed, rows in `archives` name all remaining objects, so that a repeated call can
continue. An archive whose objects are missing does not count as deleted, because a folder may not be mounted.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Final, NamedTuple

from langgraph_pgstate.codec.ids import new_entry_id
from langgraph_pgstate.db.protocol import Connection
from langgraph_pgstate.db.runners import Runner
from langgraph_pgstate.errors import (
    ArchiveError,
    ArchiveUnavailableError,
    ConfigurationError,
    ThreadArchivedError,
)
from langgraph_pgstate.keep.archiving import add_archive, copies_key, delete_objects, discard, store
from langgraph_pgstate.keep.objects import Objects, open_objects
from langgraph_pgstate.keep.packing import MANIFEST, PACK, Frame, Manifest, People, check_pack
from langgraph_pgstate.keep.restoring import read_manifest
from langgraph_pgstate.keep.types import DeletionReport
from langgraph_pgstate.schema.queries import Queries
from langgraph_pgstate.threads.holds import check_not_held
from langgraph_pgstate.threads.rows import delete_thread

# Age from which an unfinished archive can be deleted, because its process counts as dead.
_UNFINISHED: Final = timedelta(minutes=15)
# Age from which sweeps delete an unfinished archive. A sweep waits longer, so that slow processes can finish.
_LEFT: Final = timedelta(days=1)
_PAGE: Final = 50
_log = logging.getLogger("langgraph_pgstate.keep")


class Copies(NamedTuple):
    """An archive with copies of threads to delete.

    Attributes:
        archive_id: The archive.
        url: URL of its objects.
        root: The digest of its manifest.
        thread_ids: The threads to delete.
        others: Other threads in the archive, with their users and origins at the time of the archiving.
        is_complete: Whether the archive was complete when `find_copies` read its row.
        begun_at: Time at which the archive was begun, if it is perhaps still being made.
    """

    archive_id: str
    url: str
    root: bytes
    thread_ids: list[str]
    others: dict[str, People]
    is_complete: bool = True
    begun_at: datetime | None = None

    def check(self) -> None:
        """Raise an error if the archive is perhaps being made: its objects may be stored after their deletion."""
        if self.begun_at is not None:
            raise ArchiveUnavailableError(
                f"{self.url}/{self.archive_id}{PACK}",
                f"is an unfinished archive, begun at {self.begun_at}: repeat this call when the archive is finished, "
                "or 15 minutes after its beginning",
            )


class Wanted(NamedTuple):
    """The copies to delete.

    Attributes:
        thread_ids: Threads whose copies are all deleted.
        user_id: User of whom copies are deleted: copies of threads that the user owned, or acted in, when they were
            archived.
        redacted: Redacted threads, whose copies are deleted. A copy that a stub names stays: it was made after the
            redaction, and is the only one.
        source_ids: Threads whose forks and copies are treated like redacted threads, even if the forks and copies were
            deleted from the database.
        kept: Threads whose copies all stay.
        restored: Archived threads that a dry run treats as restored.
    """

    thread_ids: Collection[str]
    user_id: str | None = None
    redacted: Collection[str] = ()
    source_ids: Collection[str] = ()
    kept: Collection[str] = ()
    restored: Collection[str] = ()


async def find_copies(db: Connection, queries: Queries, wanted: Wanted) -> list[Copies]:
    """Return the archives, finished or not, that have copies to delete.

    The transaction waits until each archive that is being made has its row. Then one statement per thread looks for
    holds.

    Raises:
        ThreadHeldError: If a hold protects a thread with such copies.
        ThreadArchivedError: If a copy is to be deleted because of a user, but an archived thread of another user needs
            it.
    """
    thread_ids, user_id, redacted, source_ids, kept, restored = wanted
    ids, found = {*thread_ids}, dict[str, Copies]()
    given = {
        "thread_ids": [*thread_ids, *redacted],
        "user_id": user_id,
        "source_ids": [*source_ids],
        "near": _UNFINISHED,
    }
    async with db.transaction():
        await db.fetch(queries.lock_action, {"key": copies_key(queries)})
        rows = await db.fetch(queries.find_copies, given)
    for archive_id, url, root, thread_id, owner, users, origins, is_heir, is_stub, owner_now, *begun in rows:
        copies = found.setdefault(archive_id, Copies(archive_id, url, root, [], {}, *begun))
        is_away = is_stub and thread_id not in restored
        is_of_user = user_id is not None and user_id in (owner, *(users or ()))
        is_redacted = not is_away and (is_heir or thread_id in redacted)
        if thread_id in kept or not (is_of_user or is_redacted or thread_id in ids):
            copies.others[thread_id] = People(owner, tuple(users or ()), origins or "")
        elif user_id is not None and is_away and owner_now not in (None, user_id):
            raise ThreadArchivedError(thread_id, archive_id)
        else:
            copies.thread_ids.append(thread_id)
    for thread_id in sorted({id for copies in found.values() for id in copies.thread_ids}):
        await check_not_held(db, queries, thread_id)
    return [one for one in found.values() if one.thread_ids]


async def copies_of(runner: Runner, queries: Queries, wanted: Wanted) -> AsyncIterator[Copies]:
    """Yield the archives that `find_copies` returns, including archives that are made during the deletion."""
    seen: set[str] = set()
    while new := [one for one in await runner.run(find_copies, queries, wanted) if one.archive_id not in seen]:
        for copies in new:
            seen.add(copies.archive_id)
            yield copies


async def delete_copies(
    runner: Runner,
    queries: Queries,
    copies: Copies,
    tenant: str | None,
    by: str | None,
    *,
    missing_ok: bool = False,
) -> DeletionReport:
    """Delete threads from one archive, and the stubs that name it. Safe to repeat.

    If several calls delete from one archive at the same time, only the call that began last continues.

    Raises:
        ArchiveError: If an object of the archive is missing, or the archive is damaged and has other threads. With
            `missing_ok`, a missing object is an error only if the other object exists and the archive has other
            threads.
        ArchiveUnavailableError: If the archive cannot be reached, is being made, or another call has claimed it.
        ThreadHeldError: If a hold was placed on a thread meanwhile. Nothing of it was deleted.
    """
    copies.check()
    objects = open_objects(copies.url)
    deletion_id = new_entry_id()
    is_complete = await runner.run(claim_archive, queries, copies.archive_id, deletion_id)
    if is_complete and not copies.is_complete:
        # The archive was finished after the search for copies. Stubs may need its copies now.
        where = f"{copies.url}/{copies.archive_id}{PACK}"
        raise ArchiveUnavailableError(where, "was finished meanwhile by another call: repeat this call")
    named = {copies.archive_id + MANIFEST, copies.archive_id + PACK}
    left = named.intersection(await runner.wait_for(objects.list, ""))
    is_stored = left == named
    if is_complete and not is_stored:
        if not missing_ok:
            where = f"{copies.url}/{copies.archive_id}{PACK}"
            raise ArchiveError(
                where, "is missing, or its manifest: pass missing_ok=True (--missing-ok) if the object is lost for good"
            )
        if copies.others and left:
            # The remaining object may have content of the threads to delete. The archive cannot be written again for
            # its other threads, because one of its two objects is missing.
            raise ArchiveError(
                f"{copies.url}/{min(left)}",
                f"is still there, but {min(named - left)} is missing, and the archive has other threads: put the "
                "missing object back, or delete the remaining object if the archive is lost for good",
            )
        if copies.others:
            # Keep the archive's row, because stubs of the other threads name the archive. A person may still put the
            # missing objects back.
            threads = await runner.run(end_archive, queries, copies, deletion_id, by)
            return DeletionReport(threads, len(copies.thread_ids), 1, 0)
    rewritten = 0
    if copies.others and is_stored:
        found = await _read(runner, objects, copies, tenant)
        if kept := [one for one in found[0].frames if one in copies.others]:
            data, manifest = await runner.compute(found, _repack, *found, kept)
            size = len(data) + len(manifest.dump())
            await runner.run(begin_rewriting, queries, copies, deletion_id, manifest, size)
            await store(runner, queries, objects, manifest, data)
            try:
                await runner.run(move_stubs, queries, copies, deletion_id, manifest.archive_id, kept)
            except ArchiveUnavailableError:
                await discard(runner, queries, objects, manifest.archive_id)
                raise
            rewritten = 1
    await runner.run(begin_deletion, queries, copies, deletion_id)
    await delete_objects(runner, objects, copies.archive_id)
    threads = await runner.run(end_archive, queries, copies, deletion_id, by, is_whole=True)
    return DeletionReport(threads, len(copies.thread_ids), 1, rewritten)


async def _read(runner: Runner, objects: Objects, copies: Copies, tenant: str | None) -> tuple[Manifest, bytes]:
    """Return a verified archive."""
    manifest = await read_manifest(runner, objects, copies.archive_id + MANIFEST, tenant, copies.root)
    data = await runner.wait_for(objects.get, copies.archive_id + PACK)
    await runner.compute(data, check_pack, manifest, data, f"{objects.url}/{copies.archive_id}{PACK}")
    return manifest, data


def _repack(manifest: Manifest, data: bytes, kept: Sequence[str]) -> tuple[bytes, Manifest]:
    """Return an archive with some threads of another archive."""
    pieces: list[bytes] = []
    frames: dict[str, Frame] = {}
    offset = 0
    for thread_id in kept:
        frame = manifest.frames[thread_id]
        pieces.append(data[frame.offset : frame.offset + frame.bytes])
        frames[thread_id] = frame._replace(offset=offset)
        offset += frame.bytes
    content = b"".join(pieces)
    return content, replace(
        manifest,
        archive_id=new_entry_id(),
        pack_bytes=len(content),
        pack_sha256=hashlib.sha256(content).hexdigest(),
        frames=frames,
    )


async def claim_archive(db: Connection, queries: Queries, archive_id: str, deletion_id: str) -> bool:
    """Claim an archive for a call that deletes it, and return whether its objects must exist. Safe to repeat.

    After the claim, a call that is still making this archive leaves the threads in the tables. An earlier deletion of
    this archive fails. The objects must exist if all were stored, and no call has begun to delete them.
    """
    rows = await db.fetch(queries.claim_archive, {"archive_id": archive_id, "deletion_id": deletion_id})
    return bool(rows and rows[0][0])


async def begin_deletion(db: Connection, queries: Queries, copies: Copies, deletion_id: str) -> None:
    """Store that the objects of a claimed archive are being deleted. One transaction; safe to repeat.

    Afterwards, no hold is placed on a thread whose stub names the archive.

    Raises:
        ThreadHeldError: If a hold was placed on a thread meanwhile. Nothing of it was deleted.
        ArchiveUnavailableError: If another call has claimed or deleted the archive.
    """
    async with db.transaction():
        await _lock_claimed(db, queries, copies, deletion_id)
        # Lock the threads' rows. Otherwise another call could place a hold after the check below.
        await db.fetch(queries.lock_stubs, {"thread_ids": copies.thread_ids})
        for thread_id in copies.thread_ids:
            await check_not_held(db, queries, thread_id)
        await db.execute(queries.begin_deletion, {"archive_id": copies.archive_id, "deletion_id": deletion_id})


async def _lock_claimed(db: Connection, queries: Queries, copies: Copies, deletion_id: str) -> None:
    """Lock a claimed archive until the transaction ends. Raise an error if another call has claimed or deleted it."""
    if not await db.fetch(queries.lock_archive, {"archive_id": copies.archive_id, "deletion_id": deletion_id}):
        raise _claimed(copies)


def _claimed(copies: Copies) -> ArchiveUnavailableError:
    where = f"{copies.url}/{copies.archive_id}{PACK}"
    return ArchiveUnavailableError(where, "is being deleted by another call: repeat this call")


async def begin_rewriting(
    db: Connection, queries: Queries, copies: Copies, deletion_id: str, manifest: Manifest, size: int
) -> None:
    """Store the row of an archive that has the other threads of a claimed archive. One transaction; safe to repeat.

    Raises:
        ArchiveUnavailableError: If another call has claimed or deleted the archive.
    """
    async with db.transaction():
        await _lock_claimed(db, queries, copies, deletion_id)
        await add_archive(db, queries, copies.url, manifest, size, copies.others)


async def move_stubs(
    db: Connection,
    queries: Queries,
    copies: Copies,
    deletion_id: str,
    new_archive_id: str,
    thread_ids: Sequence[str],
) -> None:
    """Change stubs of one archive to name another. One transaction; safe to repeat.

    Raises:
        ArchiveUnavailableError: If another call has claimed one of the archives. No stub was changed.
    """
    archive_id = copies.archive_id
    async with db.transaction():
        # An earlier attempt may have changed the stubs before the connection was lost.
        if new_archive_id in {row[0] for row in await db.fetch(queries.find_archives, {"thread_ids": [*thread_ids]})}:
            return
        await _lock_claimed(db, queries, copies, deletion_id)
        # Without this lock, stubs could name a new archive that a sweep is deleting.
        if not await db.fetch(queries.lock_archive, {"archive_id": new_archive_id, "deletion_id": None}):
            raise _claimed(copies)
        moved = {"archive_id": archive_id, "new_archive_id": new_archive_id, "thread_ids": [*thread_ids]}
        await db.execute(queries.move_stubs, moved)
        await db.execute(queries.complete_archive, {"archive_id": new_archive_id})


async def end_archive(
    db: Connection, queries: Queries, copies: Copies, deletion_id: str, by: str | None, *, is_whole: bool = False
) -> int:
    """Delete the rows of an archive's threads, and their stubs. Return the number of deleted stubs. One transaction.

    With `is_whole`, the objects were deleted, so the rows and stubs of other threads are deleted, too. A stub of
    another thread names the archive only if an earlier call that deleted this thread was interrupted.

    Raises:
        ThreadHeldError: If a hold was placed on a thread whose copy was missing. Nothing was deleted.
        ArchiveUnavailableError: If another call has claimed the archive.
    """
    deleted = 0
    archive_id, thread_ids = copies.archive_id, copies.thread_ids
    async with db.transaction():
        await _lock_claimed(db, queries, copies, deletion_id)
        key = {"archive_id": archive_id, "thread_ids": None if is_whole else [*thread_ids]}
        for (thread_id,) in await db.fetch(queries.clear_stubs, key):
            await delete_thread(db, queries, thread_id, by=by)
            deleted += 1
        await db.execute(queries.delete_archived_threads, key)
        await db.execute(queries.delete_archive, {"archive_id": archive_id})
    return deleted


async def sweep_unfinished(runner: Runner, queries: Queries, goes_on: Callable[[], bool]) -> None:
    """Delete the unfinished archives of dead processes. Safe to repeat, and to stop.

    If an archive cannot be deleted, the error is logged, and the next call tries again.
    """
    cursor, failed = "", set[str]()
    while page := await runner.run(list_unfinished, queries, cursor):
        for copies in page:
            if copies.url in failed:
                continue
            if not goes_on():
                return
            try:
                objects, deletion_id = open_objects(copies.url), new_entry_id()
                if await runner.run(claim_unfinished, queries, copies.archive_id, deletion_id):
                    await delete_objects(runner, objects, copies.archive_id)
                    await runner.run(end_archive, queries, copies, deletion_id, None, is_whole=True)
            except (ArchiveError, ConfigurationError) as error:
                _log.error("an archive that was never finished cannot be deleted: %s", error)
                failed.add(copies.url)
        cursor = page[-1].archive_id


async def list_unfinished(db: Connection, queries: Queries, cursor: str) -> list[Copies]:
    """Return the next unfinished archives that no stub names, without their threads. One round trip."""
    rows = await db.fetch(queries.list_unfinished, {"near": _LEFT, "cursor_id": cursor, "page_size": _PAGE})
    return [Copies(archive_id, url, root, [], {}) for archive_id, url, root in rows]


async def claim_unfinished(db: Connection, queries: Queries, archive_id: str, deletion_id: str) -> bool:
    """Claim an archive if it is not complete, and return whether it was claimed. One statement; safe to repeat."""
    key = {"archive_id": archive_id, "deletion_id": deletion_id}
    return bool(await db.fetch(queries.claim_unfinished, key))
