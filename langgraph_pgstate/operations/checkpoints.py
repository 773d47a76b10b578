"""Checkpoints: put, get, list, and the walk along a branch."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from langgraph.checkpoint.base import CheckpointTuple, DeltaChannelHistory
from langgraph.checkpoint.serde.types import TASKS, _DeltaSnapshot

from langgraph_pgstate.codec.ids import new_entry_id
from langgraph_pgstate.codec.metadata import filter_json
from langgraph_pgstate.codec.states import Elements, Manifest, decode_state
from langgraph_pgstate.codec.values import ValueCodec
from langgraph_pgstate.db.port import Port
from langgraph_pgstate.errors import (
    ConfigurationError,
    ConflictError,
    CorruptStateError,
    StaleHeadError,
    UnsafeTypeError,
)
from langgraph_pgstate.operations.addresses import Address, before_id, configurable_of, identifier, thread_id_of
from langgraph_pgstate.operations.companions import Companion, Statement, is_refusal
from langgraph_pgstate.operations.guards import Guard, is_guard
from langgraph_pgstate.operations.notes import Note
from langgraph_pgstate.operations.planning import PutPlan, PutRequest, find_inherited, plan_put
from langgraph_pgstate.operations.reading import (
    CheckpointRow,
    Segments,
    WritesRow,
    flatten_writes,
    is_old_format,
    load_bare_tuple,
    load_tuple,
    load_value,
    states_to_manifests,
)
from langgraph_pgstate.operations.versions import UNVERSIONED, StateVersions
from langgraph_pgstate.sql import NamedQuery, Queries
from langgraph_pgstate.types import Rows

# Greater than every id: where a listing begins.
_TOP: Final = "\U0010ffff"
# `list_everywhere` says this number, too.
_PAGE: Final = 50
_SCAN_PAGE: Final = 200
_LINEAGE_PAGE: Final = 256
_PUT_ATTEMPTS: Final = 4
_READ_ATTEMPTS: Final = 3
_RUN_ID_BYTES: Final = 512
_INT4_MAX: Final = 2**31 - 1
_UNIQUE_VIOLATION: Final = "23505"

_logger = logging.getLogger("langgraph_pgstate")


async def put(
    port: Port,
    queries: Queries,
    codec: ValueCodec,
    plan: PutPlan,
    touch_thread: bool,
    companion: Companion | None = None,
    config: Mapping[str, Any] | None = None,
    guard: Guard | None = None,
) -> Manifest:
    """Store a checkpoint. One statement, so one round trip and all or nothing; safe to repeat.

    With a companion or a guard it is one transaction of several statements, still in one round trip.

    Args:
        port: The connection.
        queries: The queries of the schema.
        codec: Encodes values, should the plan have to be made anew.
        plan: What to store, planned from what this process remembers of the parent.
        touch_thread: Whether the thread's row is made or updated, too.
        companion: Whose statements are sent along; asked anew each time the checkpoint is sent.
        config: The put's config, for the companion.
        guard: What the checkpoint rests on.

    Returns:
        Where the values are; to be remembered once it is committed.

    Raises:
        ConflictError: If the checkpoints it inherits from keep vanishing.
        StaleHeadError: If the guard refuses it: somebody else has advanced the branch.
        LeaseLostError: If the guard refuses it: the lease was taken over.
        ThreadDeletedError: If the guard refuses it: the thread was deleted.
    """
    request = plan.request
    if plan.tried:
        # The first try may have been committed although its answer was lost: its segments' ids are taken.
        plan = plan.with_new_ids()
    elif not plan.is_complete:
        plan = await _plan_from_database(port, queries, codec, request, plan.parent)
    else:
        plan.tried = True
    # What fails in a caller's transaction would end that.
    replaces = port.is_in_transaction
    for _ in range(_PUT_ATTEMPTS):
        try:
            if await _send(port, queries, codec, plan, touch_thread, replaces, companion, config, guard):
                return plan.manifest
        except StaleHeadError:
            # What its tasks have written already, ahead of it, belongs to nothing.
            await port.execute(queries.delete_orphan_writes, request.address._asdict())
            raise
        except Exception as error:
            if replaces or touch_thread or getattr(error, "sqlstate", None) != _UNIQUE_VIOLATION:
                raise
            replaces = True
            continue
        # A checkpoint that this one inherits from was deleted, or replaced, since it was read.
        plan = await _plan_from_database(port, queries, codec, request)
        touch_thread = True
    raise ConflictError(f"{request.address} could not be stored: the checkpoints it builds on keep being deleted")


async def _send(
    port: Port,
    queries: Queries,
    codec: ValueCodec,
    plan: PutPlan,
    touch_thread: bool,
    replaces: bool,
    companion: Companion | None,
    config: Mapping[str, Any] | None,
    guard: Guard | None,
) -> bool:
    """Store a planned checkpoint; false if one it inherits from is gone."""
    plan.draw_revision()
    others: Sequence[Statement] = ()
    if companion is not None:
        plan.note = Note()
        # Before its parameters, because a companion may know whose run the checkpoint belongs to.
        others = companion.before_put(plan, config or {})
    parameters = plan.parameters(codec, touch_thread)
    query, recorded = _query_of(queries, plan, touch_thread, replaces)
    put: Statement = (query, parameters)
    noting: Statement | None = None
    if plan.note:
        noting = (recorded, {**parameters, "entry_id": new_entry_id(), "entry": plan.note.pack()})
    if len(plan.bases) <= 1:
        if noting is None and not others and guard is None:
            # Most puts, without detours.
            plan.request.is_unaccompanied = False
            return await port.execute(*put) > 0
        return await _execute(port, queries, plan, put, noting, others, guard)
    # Only a checkpoint with values from several others, which LangGraph does not make: a statement that looked for
    # any number of them was planned anew each time (0.6 against 0.35 ms).
    async with port.transaction():
        held = await port.fetch(queries.hold_checkpoints, {**parameters, "checkpoint_ids": list(plan.bases)})
        if dict(held) != plan.bases:
            return False
        return await _execute(port, queries, plan, put, noting, others, guard)


def _query_of(queries: Queries, plan: PutPlan, touch_thread: bool, replaces: bool) -> tuple[NamedQuery, NamedQuery]:
    """The query that stores a plan, and the one that also notes what is to be recorded with it."""
    if touch_thread:
        return queries.put_checkpoint_touching, queries.put_checkpoint_touching_recorded
    if replaces:
        return queries.put_checkpoint_replacing, queries.put_checkpoint_replacing_recorded
    if plan.is_alone:
        return queries.put_checkpoint_alone, queries.put_checkpoint_alone_recorded
    return queries.put_checkpoint, queries.put_checkpoint_recorded


async def _execute(
    port: Port,
    queries: Queries,
    plan: PutPlan,
    put: Statement,
    noting: Statement | None,
    others: Sequence[Statement],
    guard: Guard | None,
) -> bool:
    """Whether a put touched a row; with what guards it before, and others after it, in one transaction."""
    plan.request.is_unaccompanied = False
    if guard is None:
        return await _execute_first(port, plan, (), put, noting, others)
    address, parent = plan.request.address, plan.request.parent
    try:
        try:
            return await _execute_first(port, plan, guard.before_put(queries, address, parent), put, noting, others)
        except Exception as error:
            if not guard.misses_thread(error):
                raise
        guard = guard.with_thread()
        return await _execute_first(port, plan, guard.before_put(queries, address, parent), put, noting, others)
    except Exception as error:
        broken = guard.broken(error, address, parent.checkpoint_id if parent else None)
        if broken is None:
            raise
        raise broken from error


async def _execute_first(
    port: Port,
    plan: PutPlan,
    guards: Sequence[Statement],
    put: Statement,
    noting: Statement | None,
    others: Sequence[Statement],
) -> bool:
    """Whether a put touched a row; noting is its own statement's, guards come before and others after it.

    What the database refuses for what it is is left out: no companion may fail a put. A guard may.
    """
    if noting is None and not others:
        return await _execute_guarded(port, guards, put)
    first = put if noting is None else noting
    try:
        if not others and len(plan.bases) <= 1:
            return await _execute_guarded(port, guards, first)
        return (await port.execute_together([*guards, first, *others]))[len(guards)] > 0
    except Exception as error:
        if not is_refusal(error) or is_guard(error):
            raise
        refused = error
    # If it was the put itself that was refused, it is again, and nothing was left out.
    is_stored = await _execute_guarded(port, guards, put)
    _logger.error("%s is stored without what was to be recorded with it: %s", plan.request.address, refused)
    plan.request.is_unaccompanied = True
    return is_stored


async def _execute_guarded(port: Port, guards: Sequence[Statement], first: Statement) -> bool:
    if not guards:
        return await port.execute(*first) > 0
    return (await port.execute_together([*guards, first]))[-1] > 0


async def _plan_from_database(
    port: Port, queries: Queries, codec: ValueCodec, request: PutRequest, parent: Manifest | None = None
) -> PutPlan:
    """Plan a put from what the database knows of its parent, and of where inherited values are."""
    if parent is None and request.parent is not None:
        found = await get_tuple(port, queries, codec, request.parent)
        if found is not None and not request.states.is_current(found[0].state_version):
            return _plan_from_older(codec, request, *found)
        parent = _parent_of(codec, request, *found) if found is not None else None
    key = {"thread_id": request.address.thread_id, "checkpoint_ns": request.address.checkpoint_ns}
    # Values of another state version are not to be had as they are.
    scanned = {**key, "state_version": request.states.current}
    others: dict[str, Manifest] = {}
    _, missing = find_inherited(codec, request, parent, None)
    cursor = _TOP
    while missing:
        # A copy of a checkpoint inherits from its sibling; no parent leads there.
        rows = await port.fetch(queries.scan_states, {**scanned, "cursor_id": cursor, "page_size": _SCAN_PAGE})
        for checkpoint_id, manifest in states_to_manifests(rows, f"thread {request.address.thread_id!r}").items():
            cursor = checkpoint_id
            still_missing = [
                channel
                for channel in missing
                if manifest.entry(channel, request.checkpoint["channel_versions"][channel]) is None
            ]
            if len(still_missing) < len(missing):
                others[checkpoint_id] = manifest
                missing = still_missing
        if len(rows) < _SCAN_PAGE:
            break
    return plan_put(codec, request, parent, others)


def _plan_from_older(
    codec: ValueCodec, request: PutRequest, row: CheckpointRow, segments: Segments, writes: Any, sends: Sequence[Any]
) -> PutPlan:
    """Plan a put on a parent of an older state version: whole, for its values became others without new versions.

    Only what lists share with the parent's element by element is not written again. What the checkpoint does not bring,
    because its graph does not know the channel, or because it is a DeltaChannel's, it takes from the upcast parent.
    """
    loaded, manifest = load_tuple(codec, row, segments, (), sends)
    upcast = request.states.upcast(loaded, row.state_version).checkpoint
    checkpoint = request.checkpoint
    inherited = {
        channel: upcast["channel_values"][channel]
        for channel, version in checkpoint["channel_versions"].items()
        if channel not in request.new_versions
        and channel in upcast["channel_values"]
        and upcast["channel_versions"].get(channel) == version
    }
    request.checkpoint = {**checkpoint, "channel_values": {**inherited, **checkpoint["channel_values"]}}
    # Without its versions nothing can be inherited from it as it is.
    parent = Manifest({}, manifest.entries, row.revision)
    return plan_put(codec, request, parent, {})


def _parent_of(
    codec: ValueCodec, request: PutRequest, row: CheckpointRow, segments: Segments, writes: Any, sends: Any
) -> Manifest:
    """The parent's manifest, with the fingerprints of lists that are about to change.

    Reading a list costs a third of writing it, and what it shares with its next version need not be written again.
    """
    manifest = row.decode().manifest
    manifest.revision = row.revision
    for channel, entry in manifest.entries.items():
        if isinstance(entry, Elements) and channel in request.new_versions:
            try:
                _, manifest.entries[channel] = load_value(codec, entry, segments, str(row.address))
            except (CorruptStateError, UnsafeTypeError):
                # Then the list is written in full; whoever reads the old one is told.
                continue
    return manifest


async def get_tuple(
    port: Port, queries: Queries, codec: ValueCodec, address: Address
) -> tuple[CheckpointRow, Segments, list[WritesRow], list[Any]] | None:
    """Read one checkpoint, the latest if the address names none. One round trip, except for formats before 4.

    Returns:
        What `load_tuple` needs; `None` if there is no such checkpoint.
    """
    query = queries.get_checkpoint if address.checkpoint_id else queries.get_latest_checkpoint
    rows = await port.fetch(query, address._asdict())
    head = None
    segments = []
    writes = []
    for kind, a, b, c, n, data, ids, state_version in rows:
        if kind == 1:
            segments.append((n, data))
        elif kind == 2:
            writes.append(WritesRow(a, b, n, data))
        else:
            head = CheckpointRow(
                Address(address.thread_id, address.checkpoint_ns, a), b, c, data, ids, n, state_version
            )
    if head is None:
        return None
    sends: list[Any] = []
    if head.parent_id and _is_old(head):
        found = await _pending_sends(port, queries, codec, [head])
        sends = found.get(str(head.address.checkpoint_id), [])
    return head, Segments(segments), writes, sends


def _is_old(row: CheckpointRow) -> bool:
    """Whether a checkpoint is of a format before 4. Of a damaged one nobody knows; whoever loads it is told."""
    try:
        return is_old_format(row.decode())
    except CorruptStateError:
        return False


async def _pending_sends(
    port: Port, queries: Queries, codec: ValueCodec, rows: Sequence[CheckpointRow]
) -> dict[str, list[Any]]:
    """By checkpoint id, the sends that checkpoints of a format before 4 keep among their parents' writes."""
    old: dict[tuple[str, str], list[CheckpointRow]] = defaultdict(list)
    for row in rows:
        if row.parent_id and row.state is not None and _is_old(row):
            old[row.address.thread_id, row.address.checkpoint_ns].append(row)
    sends = {}
    for (thread_id, namespace), children in old.items():
        found = await _read_writes(port, queries, thread_id, namespace, [str(row.parent_id) for row in children])
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


@dataclass(frozen=True, slots=True)
class Listing:
    """A listing to be read page by page.

    Attributes:
        query: Name of the query.
        parameters: Its parameters, but for cursor and page size.
        limit: Rows still wanted; `None` for all.
        with_state: Whether the state is read.
        cursor: `(checkpoint_id, thread_id, checkpoint_ns)` of the last row read.
    """

    query: str
    parameters: Mapping[str, Any]
    limit: int | None
    with_state: bool
    cursor: tuple[str, str, str] = (_TOP, _TOP, _TOP)


def request_list(
    config: Mapping[str, Any] | None,
    filter: Mapping[str, Any] | None,
    before: Mapping[str, Any] | None,
    limit: int | None,
    metadata_only: bool,
) -> Listing | None:
    """Check a listing's arguments; `None` if nothing can match.

    Raises:
        ConfigurationError: If an argument cannot be searched for.
    """
    if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int)):
        raise ConfigurationError(f"limit must be an integer, not {type(limit).__name__}")
    if limit is not None and limit <= 0:
        return None
    if filter is not None and not isinstance(filter, Mapping):
        raise ConfigurationError(f"filter must be a dict of metadata keys and values, not {type(filter).__name__}")
    parameters: dict[str, Any] = {
        **_typed_filter(filter or {}),
        "before_id": before_id(before),
        "with_state": not metadata_only,
    }
    if config is None or not configurable_of(config):
        name = "list_of_run" if parameters["run_id"] is not None else "list_everywhere"
        return Listing(name, parameters, limit, not metadata_only)
    configurable = configurable_of(config)
    checkpoint_id = configurable.get("checkpoint_id")
    parameters["thread_id"] = thread_id_of(configurable.get("thread_id"))
    parameters["checkpoint_id"] = identifier("checkpoint_id", checkpoint_id) if checkpoint_id else None
    namespace = configurable.get("checkpoint_ns")
    if namespace is None:
        return Listing("list_in_thread", parameters, limit, not metadata_only)
    parameters["checkpoint_ns"] = identifier("checkpoint_ns", namespace)
    return Listing("list_in_namespace", parameters, limit, not metadata_only)


def _typed_filter(filter: Mapping[str, Any]) -> dict[str, Any]:
    """A metadata filter, split over the typed columns and the rest."""
    columns: dict[str, Any] = {"source": None, "step": None, "run_id": None}
    rest = {}
    for key, value in filter.items():
        if key == "step" and type(value) is int and abs(value) <= _INT4_MAX:
            columns[key] = value
        elif key in ("source", "run_id") and type(value) is str and "\0" not in value and value.isascii():
            if len(value) <= _RUN_ID_BYTES:
                columns[key] = value
            else:
                rest[key] = value
        else:
            rest[key] = value
    return {**columns, "metadata": filter_json(rest) if rest else None}


@dataclass(slots=True)
class Page:
    """One page of a listing, read but not decoded.

    Attributes:
        rows: The checkpoints.
        created_at: Their times.
        following: The listing of what comes after; `None` when this was all.
        segments: Segments by thread; `None` when only metadata was read.
        writes: Pending writes by thread, namespace and checkpoint.
        sends: Pending sends of old formats, by checkpoint.
    """

    rows: list[CheckpointRow]
    created_at: list[Any]
    following: Listing | None
    segments: dict[str, Segments] | None = None
    writes: dict[tuple[str, str], dict[str, list[WritesRow]]] = field(default_factory=dict)
    sends: dict[str, list[Any]] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """Stored bytes of its segments."""
        return sum(segments.size for segments in (self.segments or {}).values())

    def load(
        self, codec: ValueCodec, states: StateVersions = UNVERSIONED, *, without_damaged: bool = False
    ) -> list[CheckpointTuple]:
        """The page as LangGraph wants it, in the current version of the state.

        Args:
            codec: Decodes the values.
            states: The versions of the state.
            without_damaged: Leave out, and log, what cannot be read.
        """
        if self.segments is None:
            return [load_bare_tuple(codec, row, at) for row, at in zip(self.rows, self.created_at, strict=True)]
        loaded = []
        for row in self.rows:
            thread_id, namespace, id = row.address
            writes = self.writes[thread_id, namespace].get(str(id), [])
            try:
                item, _ = load_tuple(codec, row, self.segments[thread_id], writes, self.sends.get(str(id)))
            except CorruptStateError as error:
                if not without_damaged:
                    raise
                _logger.error("%s; it is left out of the list", error)
                continue
            loaded.append(states.upcast(item, row.state_version))
        return loaded


async def list_page(port: Port, queries: Queries, codec: ValueCodec, listing: Listing) -> Page:
    """Read one page of a listing: one round trip, and two more for each thread on it unless only metadata is read."""
    page_size = _PAGE if listing.limit is None else min(_PAGE, listing.limit)
    cursor_id, cursor_thread, cursor_ns = listing.cursor
    query: NamedQuery = getattr(queries, listing.query)
    cursor = {"cursor_id": cursor_id, "cursor_thread": cursor_thread, "cursor_ns": cursor_ns}
    for _ in range(_READ_ATTEMPTS):
        found = await port.fetch(query, {**listing.parameters, **cursor, "page_size": page_size})
        page = Page(
            [
                CheckpointRow(Address(thread_id, namespace, id), parent_id, metadata, state, segment_ids, 0, version)
                for thread_id, namespace, id, parent_id, metadata, _, state, segment_ids, version in found
            ],
            [row[5] for row in found],
            _following(listing, found, page_size),
        )
        if not listing.with_state or await _read_values(port, queries, codec, page):
            break
    return page


def _following(listing: Listing, found: Rows, page_size: int) -> Listing | None:
    remaining = None if listing.limit is None else listing.limit - len(found)
    if len(found) < page_size or remaining == 0:
        return None
    thread_id, namespace, checkpoint_id = found[-1][:3]
    return replace(listing, limit=remaining, cursor=(checkpoint_id, thread_id, namespace))


async def _read_values(port: Port, queries: Queries, codec: ValueCodec, page: Page) -> bool:
    """Read what the rows of a page refer to; false if some of it is gone, as when a prune came between."""
    by_thread: dict[str, set[int]] = defaultdict(set)
    by_namespace: dict[tuple[str, str], list[str]] = defaultdict(list)
    for row in page.rows:
        by_thread[row.address.thread_id].update(row.segment_ids)
        by_namespace[row.address.thread_id, row.address.checkpoint_ns].append(str(row.address.checkpoint_id))
    page.segments = {
        thread_id: await _read_segments(port, queries, thread_id, sorted(ids)) for thread_id, ids in by_thread.items()
    }
    for (thread_id, namespace), ids in by_namespace.items():
        page.writes[thread_id, namespace] = await _read_writes(port, queries, thread_id, namespace, ids)
    page.sends = await _pending_sends(port, queries, codec, page.rows)
    return all(page.segments[thread_id].has(ids) for thread_id, ids in by_thread.items())


async def _read_segments(port: Port, queries: Queries, thread_id: str, ids: Sequence[int]) -> Segments:
    if not ids:
        return Segments(())
    rows = await port.fetch(queries.get_segments, {"thread_id": thread_id, "segment_ids": list(ids)})
    return Segments((id, data) for id, data in rows)


async def _read_writes(
    port: Port, queries: Queries, thread_id: str, namespace: str, checkpoint_ids: Sequence[str]
) -> dict[str, list[WritesRow]]:
    rows = await port.fetch(
        queries.get_writes,
        {"thread_id": thread_id, "checkpoint_ns": namespace, "checkpoint_ids": list(checkpoint_ids)},
    )
    found: dict[str, list[WritesRow]] = defaultdict(list)
    for checkpoint_id, task_id, task_path, idx, data in rows:
        found[checkpoint_id].append(WritesRow(task_id, task_path, idx, data))
    return found


async def get_delta_channel_history(
    port: Port,
    queries: Queries,
    codec: ValueCodec,
    address: Address,
    channels: Sequence[str],
    states: StateVersions = UNVERSIONED,
) -> dict[str, DeltaChannelHistory]:
    """What channels received along the parents of a checkpoint, back to the nearest stored value of each.

    A value stored before the channel became a DeltaChannel, by an older version of the state, is upcast; snapshots and
    writes are as they were written.

    Round trips: one for each 256 ancestors, one for their writes, one for the stored values, and one for each that is
    to be upcast.
    """
    key = {"thread_id": address.thread_id, "checkpoint_ns": address.checkpoint_ns}
    if address.checkpoint_id is None:
        newest = await port.fetch(
            queries.scan_states, {**key, "cursor_id": _TOP, "page_size": 1, "state_version": None}
        )
        if not newest:
            return {channel: {"writes": []} for channel in channels}
        address = address._replace(checkpoint_id=newest[0][0])
    chain: list[str] = []
    depth: dict[str, int] = {}
    seeds: dict[str, tuple[str, Any, int | None]] = {}
    cursor: str | None = address.checkpoint_id
    is_target = True
    while cursor is not None and len(depth) < len(channels):
        rows = await port.fetch(queries.get_lineage, {**key, "checkpoint_id": cursor, "page_size": _LINEAGE_PAGE})
        cursor = None
        for checkpoint_id, parent_id, state, segment_ids, state_version in rows:
            cursor = parent_id
            if is_target:
                # The target's own writes are pending, and its own values are what the history leads to.
                is_target = False
                continue
            chain.append(checkpoint_id)
            manifest = decode_state(state, segment_ids, str(address._replace(checkpoint_id=checkpoint_id))).manifest
            for channel in channels:
                if channel not in depth and channel in manifest.entries:
                    depth[channel] = len(chain)
                    seeds[channel] = (checkpoint_id, manifest.entries[channel], state_version)
        if not rows:
            break
    writes = await _read_writes(port, queries, address.thread_id, address.checkpoint_ns, chain) if chain else {}
    wanted = {id for _, entry, _ in seeds.values() for id in Manifest({}, {"": entry}).segment_ids()}
    segments = await _read_segments(port, queries, address.thread_id, sorted(wanted))
    collected: dict[str, list[tuple[str, str, Any]]] = {channel: [] for channel in channels}
    for index in range(len(chain) - 1, -1, -1):
        where = str(address._replace(checkpoint_id=chain[index]))
        for _, task_id, (_, channel, type_, data) in flatten_writes(writes.get(chain[index], []), where):
            if channel in collected and index < depth.get(channel, len(chain)):
                collected[channel].append((task_id, channel, codec.loads(type_, data, where)))
    history: dict[str, DeltaChannelHistory] = {}
    for channel in channels:
        history[channel] = {"writes": collected[channel]}
        if channel in seeds:
            home, entry, state_version = seeds[channel]
            source = address._replace(checkpoint_id=home)
            seed, _ = load_value(codec, entry, segments, f"channel {channel!r} of {source}")
            if type(seed) is not _DeltaSnapshot and not states.is_current(state_version):
                found = await get_tuple(port, queries, codec, source)
                if found is None:
                    continue
                values = states.upcast(load_tuple(codec, *found)[0], state_version).checkpoint["channel_values"]
                if channel not in values:
                    continue
                seed = values[channel]
            history[channel]["seed"] = seed
    return history
