"""Pruning of threads: removal of old checkpoints and of orphaned writes.

Pending writes may be stored before their checkpoint. If the process is killed in between, the writes are orphaned.
Orphaned writes are removed after a day, unless a live run or a lease may still store the checkpoint.
"""

from __future__ import annotations

import json
import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from typing import Any, Final, NamedTuple

from langgraph.checkpoint.base import CheckpointMetadata
from langgraph.checkpoint.serde.types import TASKS

from langgraph_pgstate.arguments import thread_ids_of
from langgraph_pgstate.checkpoints.event_chains import insert_events
from langgraph_pgstate.checkpoints.reading import is_old_format, states_to_manifests
from langgraph_pgstate.codec.ids import new_revision
from langgraph_pgstate.codec.states import decode_state
from langgraph_pgstate.codec.writes import unpack_writes
from langgraph_pgstate.db.protocol import Connection
from langgraph_pgstate.db.runners import Runner
from langgraph_pgstate.errors import ConfigurationError, CorruptStateError
from langgraph_pgstate.langgraph_compat import DELTA_COUNTERS
from langgraph_pgstate.record import journal
from langgraph_pgstate.schema.queries import Queries
from langgraph_pgstate.threads.holds import is_kept
from langgraph_pgstate.threads.rows import delete_thread, release_messages
from langgraph_pgstate.threads.types import Progress, PruneResult

_logger = logging.getLogger("langgraph_pgstate")

_KEEP_LATEST: Final = "keep_latest"
# LangGraph's Agent Server passes "delete" or "delete_all", depending on its version. Both mean the whole thread.
STRATEGIES: Final = (_KEEP_LATEST, "delete", "delete_all")
_THREAD_PAGE: Final = 200
_STATE_PAGE: Final = 200


class PruneRequest(NamedTuple):
    """The validated arguments of a prune.

    Attributes:
        thread_ids: The threads; `None` for all.
        strategy: One of `STRATEGIES`.
        keep_last: Number of checkpoints kept in each namespace with `"keep_latest"`.
        older_than: Minimum age of removed checkpoints.
        dry_run: Only count.
    """

    thread_ids: tuple[str, ...] | None
    strategy: str
    keep_last: int
    older_than: timedelta | None
    dry_run: bool


def request_prune(
    thread_ids: Sequence[Any] | None, strategy: str, keep_last: int, older_than: timedelta | None, dry_run: bool
) -> PruneRequest:
    """Validate the arguments of a prune."""
    ids = None if thread_ids is None else thread_ids_of(thread_ids)
    if strategy not in STRATEGIES:
        raise ConfigurationError(f"strategy must be one of {', '.join(STRATEGIES)}, not {strategy!r}")
    if isinstance(keep_last, bool) or not isinstance(keep_last, int) or keep_last < 1:
        raise ConfigurationError(f"keep_last must be at least 1, not {keep_last!r}")
    if strategy != _KEEP_LATEST and keep_last != 1:
        raise ConfigurationError(f"strategy must be 'keep_latest' if keep_last is given, not {strategy!r}")
    if older_than is not None and (not isinstance(older_than, timedelta) or older_than < timedelta(0)):
        raise ConfigurationError(f"older_than must be a timedelta of 0 or more, not {older_than!r}")
    return PruneRequest(ids, strategy, keep_last, older_than, dry_run)


async def count_visited_threads(db: Connection, queries: Queries) -> int:
    """Return the number of threads that have a row in any table."""
    count: int = (await db.fetch(queries.count_visited_threads, {}))[0][0]
    return count


async def next_threads(db: Connection, queries: Queries, after: str) -> list[str]:
    """Return the next page of thread ids, for a prune of all threads."""
    rows = await db.fetch(queries.list_thread_ids, {"cursor_id": after, "page_size": _THREAD_PAGE})
    return [row[0] for row in rows]


async def prune_threads(
    runner: Runner,
    queries: Queries,
    request: PruneRequest,
    when_pruned: Callable[[str], None],
    progress: Callable[[Progress], None] | None,
) -> PruneResult:
    """Prune threads, each in one transaction. Call `when_pruned` and `progress` after each thread."""
    ids, result, done, total = request.thread_ids, PruneResult(dry_run=request.dry_run), 0, 0
    if progress is not None:
        total = await runner.run(count_visited_threads, queries) if ids is None else len(ids)
    page: Sequence[str] = await runner.run(next_threads, queries, "") if ids is None else ids
    while page:
        for id in page:
            result += await runner.run(prune_thread, queries, request, id)
            when_pruned(id)
            done += 1
            if progress is not None:
                progress(Progress(done, max(total, done), result.checkpoints, id))
        page = await runner.run(next_threads, queries, page[-1]) if ids is None else ()
    return result


async def prune_thread(db: Connection, queries: Queries, request: PruneRequest, thread_id: str) -> PruneResult:
    """Prune one thread, in one transaction. Safe to repeat, and safe while runs append.

    With `"keep_latest"`, each namespace keeps: the `keep_last` newest checkpoints; checkpoints younger than
    `older_than`; labelled checkpoints with the state of their subgraphs; leaves with pending writes, from which a run
    may continue; and the ancestors from which kept checkpoints rebuild their DeltaChannels. The namespace of a subgraph
    call is removed with the root checkpoint of the call. Messages stay as long as a branch has them.

    If a checkpoint that must be read is damaged, the thread is left unchanged. The result and the log name the thread.
    """
    if not request.dry_run:
        # Move most journal entries before the transaction, which then holds its locks for a shorter time.
        await journal.write(db, queries, [thread_id])
    try:
        return await _prune_thread(db, queries, request, thread_id)
    except CorruptStateError as damage:
        _logger.error("thread %r is not pruned: %s", thread_id, damage)
        return PruneResult(dry_run=request.dry_run, damaged=(thread_id,))


async def _prune_thread(db: Connection, queries: Queries, request: PruneRequest, thread_id: str) -> PruneResult:
    key = {"thread_id": thread_id}
    async with db.transaction():
        if request.strategy != _KEEP_LATEST and not request.dry_run:
            # Take the deletion's lock at once. With a weaker lock, two prunes could hold the lock, and wait for each
            # other.
            await db.fetch(queries.lock_thread_for_update, key)
        # This lock prevents new labels and holds while rows are being removed.
        found = await db.fetch(queries.keep_labels, key)
        if found and found[0][2] is not None:
            named = () if request.thread_ids is None else (thread_id,)
            return PruneResult(dry_run=request.dry_run, archived=named)
        if await is_kept(db, queries, thread_id, "not pruned"):
            return PruneResult(dry_run=request.dry_run, held=(thread_id,))
        outline = await _read_outline(db, queries, thread_id, request.older_than)
        if request.strategy != _KEEP_LATEST:
            if any(not row.is_old for row in outline):
                return PruneResult(dry_run=request.dry_run)
            if not outline and request.older_than is not None:
                # The first writes of a new thread may be stored before its first checkpoint.
                young = await db.fetch(queries.has_young_writes, {**key, "older_than": request.older_than})
                if young[0][0]:
                    return PruneResult(dry_run=request.dry_run)
            if not request.dry_run:
                return await delete_thread(db, queries, thread_id)
            gone, checkpoints, writes, segments, size = (
                await db.fetch(queries.count_thread, {"thread_ids": [thread_id]})
            )[0]
            return PruneResult(gone, checkpoints, writes, segments, size, dry_run=True)
        kept = await _kept(db, queries, request, outline, thread_id)
        going = [row for row in outline if (row.namespace, row.id) not in kept]
        if going and not request.dry_run and any(row.metadata.get(DELTA_COUNTERS) for row in outline):
            # A concurrent put may build on one of these checkpoints, and need this checkpoint for DeltaChannels.
            await db.fetch(queries.lock_checkpoints, {**key, **_listed(going)})
            locked = {(row.namespace, row.id) for row in going}
            outline = await _read_outline(db, queries, thread_id, request.older_than)
            needed = await _kept(db, queries, request, outline, thread_id)
            going = [row for row in outline if (row.namespace, row.id) in locked - needed]
            kept = {(row.namespace, row.id) for row in outline}.difference((row.namespace, row.id) for row in going)
        orphaned, size = await sweep_orphans_of(db, queries, thread_id, request.older_than, dry_run=request.dry_run)
        result = PruneResult(int(bool(going or orphaned)), writes=orphaned, bytes=size, dry_run=request.dry_run)
        if not going:
            return result
        if not request.dry_run:
            await release_messages(db, queries, thread_id, [row.id for row in going if not row.namespace])
        for namespace, rows in _by_namespace(going).items():
            query = queries.count_checkpoints if request.dry_run else queries.delete_checkpoints
            checkpoints, writes, size = (
                await db.fetch(query, {**key, "checkpoint_ns": namespace, "checkpoint_ids": [row.id for row in rows]})
            )[0]
            result += PruneResult(checkpoints=checkpoints, writes=writes, bytes=size)
        if not request.dry_run:
            await _note_next(db, queries, thread_id, outline, kept)
            await _prune_record(db, queries, thread_id, outline, kept, result)
        if request.dry_run:
            segments, size = (await db.fetch(queries.count_unreferenced_segments, {**key, **_listed(going)}))[0]
        else:
            segments, size = (await db.fetch(queries.delete_unreferenced_segments, key))[0]
        return result + PruneResult(segments=segments, bytes=size)


def _listed(rows: Sequence[_Row]) -> dict[str, list[str]]:
    return {"namespaces": [row.namespace for row in rows], "checkpoint_ids": [row.id for row in rows]}


async def _note_next(
    db: Connection, queries: Queries, thread_id: str, outline: Sequence[_Row], kept: set[tuple[str, str]]
) -> None:
    """If all children of a kept checkpoint are removed, store in the checkpoint that it had children.

    Otherwise, the writes of the next superstep would seem to be pending again.
    """
    for namespace, rows in _by_namespace(outline).items():
        following: dict[str, str] = {}
        for row in rows:
            if row.parent_id is not None and (namespace, row.id) not in kept and (namespace, row.parent_id) in kept:
                following[row.parent_id] = row.id
        for row in rows:
            if row.parent_id is not None and (namespace, row.id) in kept:
                following.pop(row.parent_id, None)
        if following:
            key = {"thread_id": thread_id, "checkpoint_ns": namespace}
            moved = {"checkpoint_ids": list(following), "next_ids": list(following.values())}
            await db.execute(queries.note_next_checkpoints, {**key, **moved})


async def _prune_record(
    db: Connection,
    queries: Queries,
    thread_id: str,
    outline: Sequence[_Row],
    kept: set[tuple[str, str]],
    result: PruneResult,
) -> None:
    """Remove the messages of pruned checkpoints, and record an event of the prune.

    Messages of a subgraph stay as long as a branch has run the subgraph.
    """
    stays = kept | {key for key in _ancestors(outline, kept) if key[0]}
    lost = [row for row in outline if (row.namespace, row.id) not in stays]
    for namespace, rows in _by_namespace(lost).items():
        ids = [row.id for row in rows]
        key = {"thread_id": thread_id, "checkpoint_ns": namespace, "checkpoint_ids": ids}
        await db.execute(queries.delete_messages, key)
    await insert_events(
        db,
        queries,
        queries.note_prune,
        {
            "thread_id": thread_id,
            "suffix": f"{new_revision():014x}",
            "checkpoints": result.checkpoints,
            "writes": result.writes,
        },
    )


def _ancestors(outline: Sequence[_Row], kept: set[tuple[str, str]]) -> set[tuple[str, str]]:
    """Return kept checkpoints, their ancestors, and the checkpoints of their subgraphs."""
    parents = {(row.namespace, row.id): row.parent_id for row in outline}
    passed: set[tuple[str, str]] = set()
    for namespace, start in kept:
        cursor: str | None = start
        while cursor is not None and (namespace, cursor) in parents and (namespace, cursor) not in passed:
            passed.add((namespace, cursor))
            cursor = parents[namespace, cursor]
    for row in outline:
        root = ("", _root_of(row))
        if row.namespace and (root in passed or root not in parents):
            passed.add((row.namespace, row.id))
    return passed


class _Row(NamedTuple):
    """The data that decide whether a checkpoint stays."""

    namespace: str
    id: str
    parent_id: str | None
    metadata: CheckpointMetadata
    is_old: bool
    has_writes: bool
    is_labelled: bool
    has_moved_on: bool
    thread_id: str


async def _read_outline(db: Connection, queries: Queries, thread_id: str, older_than: timedelta | None) -> list[_Row]:
    rows = await db.fetch(queries.get_outline, {"thread_id": thread_id, "older_than": older_than})
    return [
        # Without a minimum age, all checkpoints are old enough.
        _Row(ns, id, parent_id, json.loads(metadata), is_old is not False, has_writes, is_labelled, is_left, thread_id)
        for ns, id, parent_id, metadata, is_old, has_writes, is_labelled, is_left in rows
    ]


def _by_namespace(rows: Iterable[_Row]) -> dict[str, list[_Row]]:
    grouped: dict[str, list[_Row]] = defaultdict(list)
    for row in rows:
        grouped[row.namespace].append(row)
    return grouped


async def _kept(
    db: Connection, queries: Queries, request: PruneRequest, outline: Sequence[_Row], thread_id: str
) -> set[tuple[str, str]]:
    """Return the checkpoints of a thread that `"keep_latest"` keeps."""
    namespaces = _by_namespace(outline)
    kept = set(_resume_points(namespaces.pop("", []), request.keep_last)) | _labelled(outline)
    roots = {row.id for row in outline if row.namespace == ""}
    for rows in namespaces.values():
        root = _root_of(rows[-1])
        # The namespace of a subgraph call ends in a colon and the task's id. The namespace of a subgraph compiled with
        # checkpointer=True has no task id, and outlives the call. A call without a stored root checkpoint is kept.
        is_call = ":" in rows[-1].namespace
        if not is_call or root not in roots or ("", root) in kept:
            kept.update(_resume_points(rows, request.keep_last))
    kept.update((row.namespace, row.id) for row in outline if not row.is_old)
    for namespace, rows in _by_namespace(outline).items():
        kept.update(await _sending_parents(db, queries, thread_id, namespace, rows, kept))
        kept.update(await _delta_ancestors(db, queries, thread_id, namespace, rows, kept))
    return kept


def _labelled(outline: Sequence[_Row]) -> set[tuple[str, str]]:
    """Return labelled checkpoints, their root checkpoints, and the state of their subgraphs.

    A subgraph compiled with `checkpointer=True` has two states to keep. In a replay of the labelled checkpoint, the
    subgraph continues from its newest checkpoint before the labelled checkpoint. In a fork, it continues from its
    newest checkpoint that belongs to an ancestor of the labelled checkpoint.
    """
    kept = {(row.namespace, row.id) for row in outline if row.is_labelled}
    kept |= {("", root) for row in outline if row.is_labelled and row.namespace and (root := _root_of(row))}
    parents = {row.id: row.parent_id for row in outline if not row.namespace}
    lasting = [rows for namespace, rows in _by_namespace(outline).items() if namespace and ":" not in namespace]
    for label in [id for namespace, id in kept if not namespace] if lasting else []:
        lineage = {label}
        cursor = parents.get(label)
        while cursor is not None and cursor not in lineage:
            lineage.add(cursor)
            cursor = parents.get(cursor)
        for rows in lasting:
            older = [row for row in rows if row.id < label]
            kept.update((row.namespace, row.id) for row in older[-1:])
            own = [row for row in rows if _root_of(row) in lineage and _root_of(row) != label]
            kept.update((row.namespace, row.id) for row in own[-1:])
    return kept


def _root_of(row: _Row) -> str | None:
    root: str | None = (row.metadata.get("parents") or {}).get("")
    return root


def _resume_points(rows: Sequence[_Row], keep_last: int) -> Iterable[tuple[str, str]]:
    parents = {row.parent_id for row in rows}
    newest = {row.id for row in rows[-keep_last:]}
    for row in rows:
        if row.id in newest or (row.has_writes and row.id not in parents and not row.has_moved_on):
            yield row.namespace, row.id


async def _sending_parents(
    db: Connection, queries: Queries, thread_id: str, namespace: str, rows: Sequence[_Row], kept: set[tuple[str, str]]
) -> set[tuple[str, str]]:
    """Return the parents that hold pending sends of kept checkpoints in formats before 4."""
    at_risk = {row.id: row.parent_id for row in rows if (namespace, row.id) in kept and row.parent_id}
    at_risk = {id: parent_id for id, parent_id in at_risk.items() if (namespace, parent_id) not in kept}
    key = {"thread_id": thread_id, "checkpoint_ns": namespace}
    where = f"thread {thread_id!r}"
    states = await db.fetch(queries.get_states, {**key, "checkpoint_ids": list(at_risk)})
    parents = {
        str(at_risk[id])
        for id, state, segment_ids, _ in states
        if is_old_format(decode_state(state, segment_ids, f"checkpoint {id!r} of {where}"))
    }
    writes = await db.fetch(queries.get_writes, {**key, "checkpoint_ids": list(parents)})
    return {
        (namespace, parent_id)
        for parent_id, *_, data in writes
        if any(channel == TASKS for _, channel, _, _ in unpack_writes(data, f"writes at {parent_id!r} of {where}"))
    }


async def _delta_ancestors(
    db: Connection, queries: Queries, thread_id: str, namespace: str, rows: Sequence[_Row], kept: set[tuple[str, str]]
) -> set[tuple[str, str]]:
    """Return the ancestors from which kept checkpoints rebuild their DeltaChannels."""
    by_id = {row.id: row for row in rows}
    needed: set[tuple[str, str]] = set()
    walks: list[tuple[str | None, frozenset[str]]] = []
    for row in rows:
        counters = row.metadata.get(DELTA_COUNTERS)
        if counters and (namespace, row.id) in kept:
            walks.append((row.id, frozenset(counters)))
    if not walks:
        return needed
    stored = await _stored_channels(db, queries, thread_id, namespace)
    for start, channels in walks:
        cursor: str | None = start
        missing = set(channels) - stored.get(str(start), set())
        while missing and cursor in by_id:
            cursor = by_id[cursor].parent_id
            if cursor is None or cursor not in by_id:
                break
            needed.add((namespace, cursor))
            missing -= stored.get(cursor, set())
    return needed


async def _stored_channels(db: Connection, queries: Queries, thread_id: str, namespace: str) -> dict[str, set[str]]:
    """Return the channels with a stored value, by checkpoint id."""
    found: dict[str, set[str]] = {}
    cursor = db.max_text
    while True:
        rows = await db.fetch(
            queries.scan_states,
            {
                "thread_id": thread_id,
                "checkpoint_ns": namespace,
                "cursor_id": cursor,
                "page_size": _STATE_PAGE,
                "state_version": None,
            },
        )
        for id, manifest in states_to_manifests(rows, f"thread {thread_id!r}").items():
            found[id] = set(manifest.entries)
            cursor = id
        if len(rows) < _STATE_PAGE:
            return found


# Pending writes without a checkpoint are deleted after this time. A suspended machine may store the checkpoint hours
# later.
_ORPHAN_AGE: Final = timedelta(days=1)


async def sweep_orphans_of(
    db: Connection, queries: Queries, thread_id: str, older_than: timedelta | None = None, *, dry_run: bool = False
) -> tuple[int, int]:
    """Remove the orphaned writes of one thread, and return the number and bytes of the removed rows. Safe to repeat.

    The writes must be at least a day old. Writes that hold the pending sends of a checkpoint format before 4 stay.
    """
    parameters: dict[str, Any] = {"thread_id": thread_id, "older_than": max(_ORPHAN_AGE, older_than or _ORPHAN_AGE)}
    children = await db.fetch(queries.get_children_of_orphans, parameters)
    parameters["kept_ids"] = [parent_id for parent_id, *state in children if _may_be_old(thread_id, *state[:2])]
    query = queries.count_orphan_writes if dry_run else queries.sweep_orphan_writes
    rows, size = (await db.fetch(query, parameters))[0]
    return rows, size


async def sweep_orphans(db: Connection, queries: Queries) -> int:
    """Remove the orphaned writes of all threads, and return the number of removed rows. Safe to repeat."""
    gone, cursor = 0, ""
    while True:
        page: dict[str, Any] = {"cursor_id": cursor, "page_size": _THREAD_PAGE, "older_than": _ORPHAN_AGE}
        found = await db.fetch(queries.find_orphan_writes, page)
        for thread_id, has_orphans in found:
            cursor = thread_id
            if has_orphans:
                # Entries in the journal may show that a run is alive.
                await journal.write(db, queries, [thread_id])
                gone += (await sweep_orphans_of(db, queries, thread_id))[0]
        if len(found) < _THREAD_PAGE:
            return gone


def _may_be_old(thread_id: str, data: bytes, segment_ids: Sequence[int]) -> bool:
    try:
        return is_old_format(decode_state(data, segment_ids, f"thread {thread_id!r}"))
    except CorruptStateError:
        return True
