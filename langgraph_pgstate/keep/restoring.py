"""Restoring of archived threads: reading, verifying, and only then writing.

The rows of several threads are stored in one transaction, in which the server computes their digests. If these differ
from the digests of the archived rows, the transaction is rolled back.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Final, NamedTuple

from langgraph_pgstate.db.protocol import Connection, Packed
from langgraph_pgstate.db.runners import Runner
from langgraph_pgstate.errors import (
    AlreadyDoneError,
    ArchiveError,
    ConflictError,
    DataKeyError,
    NotFoundError,
    SchemaOutdatedError,
    TenantError,
    ThreadDeletedError,
    ThreadExistsError,
)
from langgraph_pgstate.keep.objects import Objects, open_objects
from langgraph_pgstate.keep.packing import (
    MANIFEST,
    PACK,
    Frame,
    Manifest,
    is_of_thread,
    load_manifest,
    transpose,
    unpack,
)
from langgraph_pgstate.keep.tables import THREADS, Table, Tables, list_tables
from langgraph_pgstate.keep.types import RestoreReport
from langgraph_pgstate.record.events import note_action
from langgraph_pgstate.schema.queries import Queries, migrations

_GROUP_THREADS: Final = 100
_GROUP_BYTES: Final = 16 * 1024 * 1024
# Maximum number of bytes of rows in one statement.
_STATEMENT_BYTES: Final = 8 * 1024 * 1024
# Time for which another restore by the same person counts as a repetition of the call.
_SAME_RESTORE: Final = timedelta(hours=1)
_UNIQUE_VIOLATION: Final = "23505"


class Source(NamedTuple):
    """An archive, and the threads to restore from it. `is_of_stubs` tells whether `threads` has rows of the threads."""

    objects: Objects
    manifest: Manifest
    thread_ids: Sequence[str]
    is_of_stubs: bool = False


async def find_sources(runner: Runner, queries: Queries, thread_ids: Sequence[str], tenant: str | None) -> list[Source]:
    """Return the archives that the stubs of threads name, then the archives with copies of restored threads.

    A call that repeats an interrupted restore also names threads that were restored already.

    Raises:
        NotFoundError: If a thread is not archived, and has no copy in an archive.
        ArchiveError: If a manifest is damaged.
        TenantError: If an archive belongs to another tenant.
    """
    rows = await runner.run(find_archives, queries, thread_ids)
    if missing := _missing(thread_ids, rows):
        rows += await runner.run(find_restored, queries, missing)
        if missing := _missing(thread_ids, rows):
            raise _not_archived(missing[0])
    found = []
    for archive_id, url, root, ids in rows:
        objects = open_objects(url)
        manifest = await read_manifest(runner, objects, archive_id + MANIFEST, tenant, root)
        found.append(Source(objects, manifest, ids, is_of_stubs=True))
    return found


def _missing(thread_ids: Sequence[str], archives: Sequence[tuple[str, str, bytes, list[str]]]) -> list[str]:
    known = {thread_id for _, _, _, ids in archives for thread_id in ids}
    return [thread_id for thread_id in thread_ids if thread_id not in known]


def _not_archived(thread_id: str) -> NotFoundError:
    return NotFoundError(f"thread {thread_id!r} is not archived, or does not exist")


async def find_archives(
    db: Connection, queries: Queries, thread_ids: Sequence[str]
) -> list[tuple[str, str, bytes, list[str]]]:
    """Return the archives of some archived threads: id, URL, root and threads. One round trip."""
    rows = await db.fetch(queries.find_archives, {"thread_ids": [*thread_ids]})
    return [(archive_id, url, root, ids) for archive_id, url, root, ids in rows]


async def find_restored(
    db: Connection, queries: Queries, thread_ids: Sequence[str]
) -> list[tuple[str, str, bytes, list[str]]]:
    """Return the newest archives of some threads that are in the database, as `find_archives` does. One round trip."""
    rows = await db.fetch(queries.find_restored, {"thread_ids": [*thread_ids]})
    return [(archive_id, url, root, ids) for archive_id, url, root, ids in rows]


async def find_roots(db: Connection, queries: Queries, archive_ids: Sequence[str]) -> dict[str, bytes]:
    """Return the digests of the manifests of the archives that have a row. One round trip."""
    return {row[0]: row[1] for row in await db.fetch(queries.find_roots, {"archive_ids": [*archive_ids]})}


async def search_sources(
    runner: Runner, queries: Queries, objects: Objects, thread_ids: Sequence[str] | None, tenant: str | None
) -> list[Source]:
    """Return the tenant's archives below a URL that have the given threads; without `thread_ids`, all archives.

    If several archives have a thread, the thread is restored from the newest.

    Raises:
        NotFoundError: If a thread is in no archive.
        ArchiveError: If a manifest is damaged, or is not the one that the row of its archive names.
        TenantError: If all archives belong to other tenants.
    """
    archive_ids = [name.removesuffix(MANIFEST) for name in await runner.wait_for(objects.list, MANIFEST)]
    # Names of files may have bytes that are no UTF-8. Ids of archives are ASCII.
    roots = await runner.run(find_roots, queries, [id for id in archive_ids if id.isascii()])
    manifests = []
    for id in archive_ids:
        # Skip archives of other tenants, which may be stored in the same place.
        with suppress(TenantError):
            manifests.append(await read_manifest(runner, objects, id + MANIFEST, tenant, roots.get(id)))
    if archive_ids and not manifests:
        raise TenantError(f"{objects.url} has no archive of {_named(tenant)}")
    newest: dict[str, Manifest] = {}
    # Sort by time, not by id, because an archive that is written again gets a new id.
    for manifest in sorted(manifests, key=lambda one: (one.time, one.archive_id)):
        newest.update(dict.fromkeys(manifest.frames, manifest))
    wanted = [*newest] if thread_ids is None else thread_ids
    if missing := [thread_id for thread_id in wanted if thread_id not in newest]:
        raise NotFoundError(f"thread {missing[0]!r} is in no archive below {objects.url}")
    grouped: dict[str, list[str]] = {}
    for thread_id in wanted:
        grouped.setdefault(newest[thread_id].archive_id, []).append(thread_id)
    by_id = {one.archive_id: one for one in manifests}
    return [Source(objects, by_id[archive_id], ids) for archive_id, ids in grouped.items()]


async def read_manifest(
    runner: Runner, objects: Objects, name: str, tenant: str | None, root: bytes | None = None
) -> Manifest:
    """Return a verified manifest. `root` is its digest in the row of the archive; `None` if there is no row.

    Raises:
        ArchiveError: If the manifest is damaged.
        TenantError: If the archive belongs to another tenant.
    """
    where = f"{objects.url}/{name}"
    manifest = load_manifest(await runner.wait_for(objects.get, name), where, root)
    if manifest.archive_id + MANIFEST != name:
        raise ArchiveError(
            where,
            f"contains the manifest of another archive, {manifest.archive_id}: the object was renamed or replaced",
        )
    # An archive that is older than the move to tenants names no tenant, and belongs to the tenant of its row.
    if manifest.tenant != tenant and (manifest.tenant is not None or root is None):
        raise TenantError(f"{where} is not an archive of {_named(tenant)}")
    return manifest


def _named(tenant: str | None) -> str:
    return "tables without tenants" if tenant is None else f"tenant {tenant!r}"


async def restore_source(
    runner: Runner, queries: Queries, source: Source, *, dry_run: bool = False, by: str | None = None
) -> RestoreReport:
    """Restore threads of one archive. Safe to repeat, and to stop.

    Raises:
        ArchiveError: If the archive is damaged.
        NotFoundError: If a thread whose stub named the archive was erased or deleted meanwhile.
        SchemaOutdatedError: If the archive has columns that the tables lack.
        DataKeyError: If a data key that the threads need is not in the table of data keys.
        ThreadExistsError: If a thread exists with other rows.
        ConflictError: If archived rows conflict with rows that a thread got since it was archived.
    """
    manifest = source.manifest
    await runner.run(check_keys, queries, [manifest.frames[thread_id] for thread_id in source.thread_ids])
    tables = await runner.run(list_tables, queries, manifest.columns)
    _check_columns(queries, manifest, tables)
    frames = [manifest.frames[thread_id] for thread_id in source.thread_ids]
    groups = [*_grouped(frames)]
    if len(groups) > 1 or dry_run:
        for group in groups:
            await read_rows(runner, source, group)
    report = RestoreReport()
    for group in groups if not dry_run else ():
        rows = await read_rows(runner, source, group)
        report += await runner.run(
            store_threads, queries, tables, manifest.archive_id, group, rows, by, is_of_stubs=source.is_of_stubs
        )
    return RestoreReport(len(frames), sum(frame.rows for frame in frames)) if dry_run else report


async def check_keys(db: Connection, queries: Queries, frames: Sequence[Frame]) -> None:
    """Check that `data_keys` has rows for the keys that threads need. Destroyed keys have rows, too. One round trip.

    Raises:
        DataKeyError: If the row of a key is missing.
    """
    wanted = sorted({key_id for frame in frames for key_id in frame.key_ids})
    found = {row[0] for row in await db.fetch(queries.get_data_keys, {"key_ids": wanted})} if wanted else set()
    if missing := [key_id for key_id in wanted if key_id not in found]:
        others = "key is" if len(missing) == 1 else f"key and {len(missing) - 1} other keys are"
        raise DataKeyError(missing[0], f"the {others} not in data_keys: copy the rows from the database of the archive")


def _check_columns(queries: Queries, manifest: Manifest, tables: Tables) -> None:
    known = {table: {*columns} for table, columns in tables.columns.items()}
    for table, columns in manifest.columns.items():
        if not {*columns} <= known.get(table, set()):
            raise SchemaOutdatedError(queries.schema, migrations()[-1].version, manifest.schema_version)


def _grouped(frames: Sequence[Frame]) -> Iterator[list[Frame]]:
    group: list[Frame] = []
    size = 0
    for frame in frames:
        if group and (len(group) == _GROUP_THREADS or size + frame.size > _GROUP_BYTES):
            yield group
            group, size = [], 0
        group.append(frame)
        size += frame.size
    if group:
        yield group


async def read_rows(runner: Runner, source: Source, group: Sequence[Frame]) -> dict[str, dict[str, list[bytes]]]:
    """Return the verified rows of some threads, by thread and table.

    Raises:
        ArchiveError: If the archive is damaged.
    """
    name = source.manifest.archive_id + PACK
    where = f"{source.objects.url}/{name}"
    first = min(group, key=lambda frame: frame.offset).offset
    last = max(frame.offset + frame.bytes for frame in group)
    if last - first <= 2 * sum(frame.bytes for frame in group):
        data = await runner.wait_for(source.objects.get_range, name, first, last - first)
        pieces = [data[frame.offset - first : frame.offset - first + frame.bytes] for frame in group]
    else:
        pieces = [await runner.wait_for(source.objects.get_range, name, frame.offset, frame.bytes) for frame in group]

    def unpacked() -> dict[str, dict[str, list[bytes]]]:
        return {frame.thread_id: unpack(frame, piece, where) for frame, piece in zip(group, pieces, strict=True)}

    return await runner.compute(pieces, unpacked)


async def store_threads(
    db: Connection,
    queries: Queries,
    tables: Tables,
    archive_id: str,
    frames: Sequence[Frame],
    rows: Mapping[str, Mapping[str, Sequence[bytes]]],
    by: str | None = None,
    *,
    is_of_stubs: bool = False,
) -> RestoreReport:
    """Store the rows of some threads. One transaction; safe to repeat.

    Raises:
        NotFoundError: If the threads had rows in `threads` (`is_of_stubs`), and the row of a thread is gone.
        AlreadyDoneError: If another person has just restored a thread.
        ThreadExistsError: If a thread exists with other rows.
        ThreadDeletedError: If a thread was deleted, and its tombstone forbids to use its id again.
        ConflictError: If archived rows conflict with rows that a thread got since it was archived.
    """
    expected = {(frame.thread_id, part.table): (part.rows, part.sha256) for frame in frames for part in frame.parts}
    ids = sorted(rows)
    for thread_id, deleted_at in await db.fetch(queries.find_tombstones, {"thread_ids": ids}):
        raise ThreadDeletedError(thread_id, deleted_at)
    async with db.transaction():
        stubs = {row[0]: row[1] for row in await db.fetch(queries.lock_stubs, {"thread_ids": ids})}
        if is_of_stubs and (gone := [thread_id for thread_id in ids if thread_id not in stubs]):
            # The thread was erased or deleted since its archive was read, and must not come back.
            raise _not_archived(gone[0])
        known = [thread_id for thread_id in ids if stubs.get(thread_id, archive_id) is None]
        if known:
            found = await _digests(db, tables, known)
            for thread_id in known:
                wanted = {key: value for key, value in expected.items() if key[0] == thread_id and key[1] != THREADS}
                if wanted != {key: value for key, value in found.items() if key[0] == thread_id}:
                    await _check_restored(db, queries, thread_id, by)
        for thread_id, stub in stubs.items():
            if stub not in (None, archive_id):
                raise ConflictError(f"thread {thread_id!r} has a newer copy in archive {stub}: restore that copy")
        coming = [thread_id for thread_id in ids if thread_id not in known]
        if not coming:
            return RestoreReport(unchanged=len(known))
        has_rows = {row[0] for row in await db.fetch(tables.find, {"thread_ids": coming})}
        try:
            stored = await _insert(db, tables, coming, stubs, rows)
        except Exception as error:
            if getattr(error, "sqlstate", None) != _UNIQUE_VIOLATION:
                raise
            raise ConflictError(
                f"one of {len(coming)} threads (the first is {coming[0]!r}) already has rows that its archive contains"
            ) from error
        # Do not compare threads that already had rows. A put that was in progress during the archiving may have added
        # these rows, which stay.
        whole = [thread_id for thread_id in coming if thread_id not in has_rows]
        found = await _digests(db, tables, whole)
        if {key: value for key, value in expected.items() if key[0] in whole and key[1] != THREADS} != found:
            raise ArchiveError(f"archive {archive_id}", "has rows that the database has stored differently")
        await db.execute(queries.end_stubs, {"thread_ids": coming})
        # Let the policies of retention visit all threads again, because policies skip archived threads.
        await db.execute(queries.visit_again, {})
        for thread_id in coming if by is not None else ():
            await note_action(db, queries, "restore", str(by), thread_id)
        if key_ids := sorted({key_id for frame in frames for key_id in frame.key_ids}):
            await db.execute(queries.reuse_data_keys, {"key_ids": key_ids})
    return RestoreReport(len(coming), stored, len(known))


async def _check_restored(db: Connection, queries: Queries, thread_id: str, by: str | None) -> None:
    """Raise an error for a thread whose rows differ from the archive, unless `by` has just restored the thread."""
    key = {"action": "restore", "thread_id": thread_id, "within": _SAME_RESTORE, "checkpoint_id": None, "run_id": None}
    rows = [] if by is None else await db.fetch(queries.find_action, key)
    if not rows:
        raise ThreadExistsError(thread_id)
    error = AlreadyDoneError(thread_id, *rows[0])
    if error.done_by != by:
        raise error


async def _digests(db: Connection, tables: Tables, thread_ids: Sequence[str]) -> dict[tuple[str, str], tuple[int, str]]:
    """Return number and digest of the rows by thread and table, except `threads`."""
    found = {}
    for table in tables.all:
        if table.name != THREADS and thread_ids:
            for thread_id, count, hash in await db.fetch(table.digest, {"thread_ids": [*thread_ids]}):
                found[thread_id, table.name] = count, hash.hex()
    return found


async def _insert(
    db: Connection,
    tables: Tables,
    thread_ids: Sequence[str],
    stubs: Collection[str],
    rows: Mapping[str, Mapping[str, Sequence[bytes]]],
) -> int:
    """Insert rows, and return their number without rows of `threads`. A stub stays as the row of its thread."""
    count = 0
    for table in tables.all:
        ids = [one for one in thread_ids if one not in stubs] if table.name == THREADS else thread_ids
        of_table: list[bytes] = []
        for thread_id in ids:
            found = rows[thread_id].get(table.name, ())
            _check_thread(table, found, thread_id)
            of_table += found
        count += len(of_table) if table.name != THREADS else 0
        for some in portions(of_table):
            await db.execute(table.insert, await db.compute(_parameters, table, some))
    return count


def _check_thread(table: Table, rows: Sequence[bytes], thread_id: str) -> None:
    """Check that rows belong to a thread. The digests do not show this for threads that already had rows."""
    names = [name for name, _ in table.columns]
    place = names.index("thread_id") if "thread_id" in names else len(names)
    if not all(is_of_thread(row, place, thread_id) for row in rows):
        raise ArchiveError(f"thread {thread_id!r}", f"has rows of another thread in {table.name}")


def portions(rows: Sequence[bytes]) -> Iterator[list[bytes]]:
    """Yield rows in parts, each for one statement."""
    some: list[bytes] = []
    size = 0
    for row in rows:
        if some and size + len(row) > _STATEMENT_BYTES:
            yield some
            some, size = [], 0
        some.append(row)
        size += len(row)
    if some:
        yield some


def _parameters(table: Table, rows: Sequence[bytes]) -> dict[str, Packed]:
    columns = transpose(rows, len(table.columns))
    return {name: Packed(data) for name, data in zip(table.insert.parameters, columns, strict=True)}
