"""Reading of checkpoints, with their segments and pending writes, or of ancestors of damaged checkpoints."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple

from langgraph.checkpoint.base import CheckpointTuple
from langgraph.checkpoint.serde.types import TASKS

from langgraph_pgstate.arguments import Address
from langgraph_pgstate.checkpoints.event_chains import insert_events
from langgraph_pgstate.checkpoints.reading import (
    CachedSegments,
    CheckpointRow,
    Segments,
    WritesRow,
    flatten_writes,
    is_old_format,
)
from langgraph_pgstate.codec.frames import content_size
from langgraph_pgstate.codec.values import ValueCodec
from langgraph_pgstate.db.protocol import Connection
from langgraph_pgstate.errors import CorruptStateError
from langgraph_pgstate.heavy import HEAVY_BYTES, MANY_COMPARED
from langgraph_pgstate.langgraph_compat import advance_ids_past
from langgraph_pgstate.leases.guards import refuse_archived
from langgraph_pgstate.schema.queries import Queries

# Kind of a row of `get_checkpoint`: a checkpoint whose parent no longer exists.
_CUT: Final = 3
# Kind of a row of `get_latest_checkpoints`: a thread whose checkpoint was not read, because the rows were too large.
_LEFT: Final = 4
_NOT_CACHED: Final[dict[str, Any]] = {"known_revision": None, "missing_ids": []}
_WHY_BYTES = 2000
# The SQLSTATEs of a read-only transaction and of a role without the privilege to write.
_READ_ONLY = ("25006", "42501")
_logger = logging.getLogger("langgraph_pgstate")

Found = tuple[CheckpointRow, Segments, list[WritesRow], list[Any]]
"""The arguments of `load_tuple`, after its codec."""


async def get_tuple(
    db: Connection, queries: Queries, codec: ValueCodec, address: Address, cached: CachedSegments | None = None
) -> Found | None:
    """Read one checkpoint, or the latest if the address has no id. Return `None` if there is no such checkpoint.

    Segments in `cached` are not fetched if the checkpoint has the cached revision. One round trip. LangGraph's
    checkpoint formats before 4 take two more.

    Raises:
        ThreadArchivedError: If the checkpoint is missing because the thread is archived.
    """
    query = queries.get_checkpoint if address.checkpoint_id else queries.get_latest_checkpoint
    expected = _NOT_CACHED if cached is None else {"known_revision": cached.revision, "missing_ids": cached.missing}
    head, segments, writes = _sorted(address, await db.fetch(query, {**address._asdict(), **expected}))
    if head is None:
        if not address.checkpoint_ns:
            # Without this error, a graph would begin from an empty state.
            await refuse_archived(db, queries, address.thread_id)
        return None
    sends: list[Any] = []
    if head.parent_id and _is_old(head):
        id = str(head.address.checkpoint_id)
        sends = (await read_pending_sends(db, queries, codec, [head])).get(id, [])
        if not (await read_values(db, queries, address.thread_id, address.checkpoint_ns, [id])).present:
            # A prune has deleted the checkpoint, and perhaps also the sends, so read again.
            return await get_tuple(db, queries, codec, address)
    contents = cached.contents if cached is not None and cached.revision == head.revision else None
    return head, Segments(segments, contents), writes, sends


class Latest(NamedTuple):
    """The newest checkpoints of a page of threads, read but not decoded.

    Attributes:
        found: The arguments of `load_tuple` by thread; `None` if the caller must read the checkpoint by `get_tuple`.
        left: Threads whose checkpoints were not read because `most_bytes` was reached.
    """

    found: dict[str, Found | None]
    left: list[str]


async def get_latest(db: Connection, queries: Queries, thread_ids: Sequence[str], most_bytes: int) -> Latest:
    """Read the newest checkpoint of each thread's root namespace, in one round trip.

    Threads without a checkpoint are left out. After `most_bytes` stored bytes, no further checkpoint is read.
    """
    rows: dict[str, list[Any]] = defaultdict(list)
    for thread_id, *row in await db.fetch(
        queries.get_latest_checkpoints, {"thread_ids": list(thread_ids), "most_bytes": most_bytes}
    ):
        rows[thread_id].append(row)
    latest = Latest({}, [])
    for thread_id in dict.fromkeys(thread_ids):
        its_rows = rows.get(thread_id, [])
        if its_rows and its_rows[0][0] == _LEFT:
            latest.left.append(thread_id)
            continue
        head, segments, writes = _sorted(Address(thread_id, "", None), its_rows)
        if head is not None:
            is_whole = not head.parent_id or not _is_old(head)
            latest.found[thread_id] = (head, Segments(segments), writes, []) if is_whole else None
    return latest


def is_heavy(found: Found) -> bool:
    """Return whether decoding a checkpoint is slow enough to run in a thread."""
    row, segments, writes, _ = found
    size = len(row.state or b"") + segments.size + sum(content_size(one.data) for one in writes)
    return size > HEAVY_BYTES or row.element_count > MANY_COMPARED


def _sorted(
    address: Address, rows: Iterable[Sequence[Any]]
) -> tuple[CheckpointRow | None, list[tuple[int, bytes]], list[WritesRow]]:
    """Return the checkpoint, the segments and the pending writes in the rows of a query."""
    head = None
    segments = []
    writes = []
    for kind, a, b, c, n, data, ids, state_version in rows:
        if kind == 1:
            segments.append((n, data))
        elif kind == 2:
            writes.append(WritesRow(a, b, n, data))
        else:
            # `a` is the newest id of the namespace. New ids must sort after this id, even in a fork of an older
            # checkpoint.
            advance_ids_past(a)
            found = address if address.checkpoint_id else Address(address.thread_id, address.checkpoint_ns, a)
            head = CheckpointRow(found, b, c, data, ids, n, state_version, kind == _CUT)
    return head, segments, writes


def _is_old(row: CheckpointRow) -> bool:
    """Return whether a checkpoint has a format before 4. False for a damaged checkpoint, which fails to load."""
    try:
        return is_old_format(row.decode())
    except CorruptStateError:
        return False


async def read_pending_sends(
    db: Connection, queries: Queries, codec: ValueCodec, rows: Sequence[CheckpointRow]
) -> dict[str, list[Any]]:
    """Return, by checkpoint id, the pending sends that formats before 4 store among the parent's writes."""
    old: dict[tuple[str, str], list[CheckpointRow]] = defaultdict(list)
    for row in rows:
        if row.parent_id and row.state is not None and _is_old(row):
            old[row.address.thread_id, row.address.checkpoint_ns].append(row)
    sends = {}
    for (thread_id, namespace), children in old.items():
        found = await read_writes(db, queries, thread_id, namespace, [str(row.parent_id) for row in children])
        for row in children:
            where = f"the parent of {row.address}"
            values = [
                codec.loads(type_, data, where)
                for _, _, (_, channel, type_, data) in flatten_writes(found.get(str(row.parent_id), []), where)
                if channel == TASKS
            ]
            if values:
                sends[str(row.address.checkpoint_id)] = values
    return sends


class Values(NamedTuple):
    """Segments and pending writes of some checkpoints of a namespace.

    Attributes:
        present: Ids of the checkpoints that existed. Values of other checkpoints may be missing.
        segments: The segments.
        writes: Pending writes by checkpoint id.
    """

    present: set[str]
    segments: Segments
    writes: dict[str, list[WritesRow]]


async def read_values(
    db: Connection,
    queries: Queries,
    thread_id: str,
    namespace: str,
    checkpoint_ids: Sequence[str],
    segment_ids: Sequence[int] = (),
) -> Values:
    """Read some segments and the pending writes of some checkpoints. One round trip, one snapshot."""
    key = {"thread_id": thread_id, "checkpoint_ns": namespace}
    listed = {"checkpoint_ids": list(checkpoint_ids), "segment_ids": list(segment_ids)}
    present: set[str] = set()
    segments = []
    writes: dict[str, list[WritesRow]] = defaultdict(list)
    for kind, a, b, c, n, data in await db.fetch(queries.get_values, {**key, **listed}):
        if kind == 0:
            present.add(a)
        elif kind == 1:
            segments.append((n, data))
        else:
            writes[a].append(WritesRow(b, c, n, data))
    return Values(present, Segments(segments), writes)


async def read_writes(
    db: Connection, queries: Queries, thread_id: str, namespace: str, checkpoint_ids: Sequence[str]
) -> dict[str, list[WritesRow]]:
    """Return the pending writes of some checkpoints of a namespace, by checkpoint id. One round trip."""
    rows = await db.fetch(
        queries.get_writes,
        {"thread_id": thread_id, "checkpoint_ns": namespace, "checkpoint_ids": list(checkpoint_ids)},
    )
    found: dict[str, list[WritesRow]] = defaultdict(list)
    for checkpoint_id, task_id, task_path, idx, data in rows:
        found[checkpoint_id].append(WritesRow(task_id, task_path, idx, data))
    return found


async def get_good_ancestor(
    db: Connection,
    queries: Queries,
    codec: ValueCodec,
    address: Address,
    damage: CorruptStateError,
    load: Callable[[Any], CheckpointTuple],
) -> CheckpointTuple | None:
    """Return the nearest readable ancestor of a damaged checkpoint. Record the damage as an event, and log it.

    The damaged checkpoint is not changed, so that it can still be repaired. Return `None` if the damaged checkpoint no
    longer exists. One round trip for each ancestor.

    Raises:
        CorruptStateError: The error `damage`, if no ancestor is readable.
    """
    key = address._asdict()
    rows = await db.fetch(queries.get_parent, key)
    if not rows:
        return None
    damaged_id, cursor = rows[0]
    passed = {damaged_id}
    while cursor is not None and cursor not in passed:
        passed.add(cursor)
        candidate = address._replace(checkpoint_id=cursor)
        found = await get_tuple(db, queries, codec, candidate)
        if found is None:
            break
        try:
            loaded = load(found)
        except CorruptStateError:
            cursor = found[0].parent_id
            continue
        _logger.error("%s; %s is used instead", damage, candidate)
        noted = {**key, "checkpoint_id": damaged_id, "used_id": cursor, "why": damage.why[:_WHY_BYTES]}
        try:
            async with db.transaction():
                await insert_events(db, queries, queries.note_damage, noted)
        except Exception as error:
            if getattr(error, "sqlstate", None) not in _READ_ONLY:
                raise
            # Reading must work even if writing is not allowed.
            _logger.error(
                "the damage of %s could not be recorded: %s", address._replace(checkpoint_id=damaged_id), error
            )
        return loaded
    raise damage
