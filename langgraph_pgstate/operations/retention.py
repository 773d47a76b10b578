"""What is kept of a thread's past, and what goes."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from langgraph.checkpoint.base import CheckpointMetadata
from langgraph.checkpoint.serde.types import TASKS

from langgraph_pgstate.codec.batches import unpack_writes
from langgraph_pgstate.codec.ids import new_revision
from langgraph_pgstate.codec.states import decode_state
from langgraph_pgstate.db.port import Port
from langgraph_pgstate.errors import ConfigurationError
from langgraph_pgstate.operations.addresses import thread_id_of
from langgraph_pgstate.operations.reading import is_old_format, states_to_manifests
from langgraph_pgstate.operations.threads import delete_thread
from langgraph_pgstate.sql import Queries
from langgraph_pgstate.types import PruneResult

KEEP_LATEST: Final = "keep_latest"
# The Agent Server says "delete" or "delete_all", depending on its version; both mean the whole thread.
STRATEGIES: Final = (KEEP_LATEST, "delete", "delete_all")
_THREAD_PAGE: Final = 500
_STATE_PAGE: Final = 200


@dataclass(frozen=True, slots=True)
class PruneRequest:
    """A prune, checked.

    Attributes:
        thread_ids: The threads; `None` for all.
        strategy: One of `STRATEGIES`.
        keep_last: Checkpoints kept in each namespace with `"keep_latest"`.
        older_than: Only what is older goes.
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
    """Check a prune's arguments.

    Raises:
        ConfigurationError: If one is not usable.
    """
    if isinstance(thread_ids, str):
        raise ConfigurationError("thread_ids is a sequence of thread ids, not one string")
    if strategy not in STRATEGIES:
        raise ConfigurationError(f"unknown prune strategy {strategy!r}; there are {', '.join(STRATEGIES)}")
    if isinstance(keep_last, bool) or not isinstance(keep_last, int) or keep_last < 1:
        raise ConfigurationError(f"keep_last must be at least 1, not {keep_last!r}")
    if strategy != KEEP_LATEST and keep_last != 1:
        raise ConfigurationError(f"keep_last goes with strategy='keep_latest', not with {strategy!r}")
    if older_than is not None and (not isinstance(older_than, timedelta) or older_than < timedelta(0)):
        raise ConfigurationError(f"older_than must be a timedelta that is not negative, not {older_than!r}")
    ids = None if thread_ids is None else tuple(dict.fromkeys(thread_id_of(id) for id in thread_ids))
    return PruneRequest(ids, strategy, keep_last, older_than, dry_run)


async def next_threads(port: Port, queries: Queries, after: str) -> list[str]:
    """The thread ids that follow one, for a prune of all threads."""
    rows = await port.fetch(queries.list_thread_ids, {"cursor_id": after, "page_size": _THREAD_PAGE})
    return [row[0] for row in rows]


async def prune_thread(port: Port, queries: Queries, request: PruneRequest, thread_id: str) -> PruneResult:
    """Prune one thread, in one transaction; safe to repeat, and while runs append to it.

    What stays with `"keep_latest"`, in each namespace: the `keep_last` newest checkpoints; what is younger than
    `older_than`; every leaf with pending writes, because an interrupt may be half-answered or a run may go on from
    there; and the ancestors a kept checkpoint needs to rebuild its DeltaChannels. A subgraph call's namespace goes
    with the root checkpoint it was made from. Messages stay as long as a branch that had them does.
    """
    key = {"thread_id": thread_id}
    async with port.transaction():
        outline = await _read_outline(port, queries, thread_id, request.older_than)
        if request.strategy != KEEP_LATEST:
            if any(not row.is_old for row in outline):
                return PruneResult(dry_run=request.dry_run)
            if not request.dry_run:
                return await delete_thread(port, queries, thread_id)
            gone, checkpoints, writes, segments, size = (
                await port.fetch(queries.count_thread, {"thread_ids": [thread_id]})
            )[0]
            return PruneResult(gone, checkpoints, writes, segments, size, dry_run=True)
        kept = await _kept(port, queries, request, outline, thread_id)
        going = [row for row in outline if (row.namespace, row.id) not in kept]
        if not going:
            return PruneResult(dry_run=request.dry_run)
        result = PruneResult(threads=1, dry_run=request.dry_run)
        for namespace, rows in _by_namespace(going).items():
            query = queries.count_checkpoints if request.dry_run else queries.delete_checkpoints
            checkpoints, writes, size = (
                await port.fetch(query, {**key, "checkpoint_ns": namespace, "checkpoint_ids": [row.id for row in rows]})
            )[0]
            result += PruneResult(checkpoints=checkpoints, writes=writes, bytes=size)
        if not request.dry_run:
            await _prune_record(port, queries, thread_id, outline, kept, result)
        if request.dry_run:
            listed = {"namespaces": [row.namespace for row in going], "checkpoint_ids": [row.id for row in going]}
            segments, size = (await port.fetch(queries.count_unreferenced_segments, {**key, **listed}))[0]
        else:
            segments, size = (await port.fetch(queries.delete_unreferenced_segments, key))[0]
        return result + PruneResult(segments=segments, bytes=size)


async def _prune_record(
    port: Port,
    queries: Queries,
    thread_id: str,
    outline: Sequence[_Row],
    kept: set[tuple[str, str]],
    result: PruneResult,
) -> None:
    """Remove the messages that belonged to pruned branches only, and note the prune among the thread's events."""
    passed = _ancestors(outline, kept)
    lost = [row for row in outline if (row.namespace, row.id) not in passed]
    for namespace, rows in _by_namespace(lost).items():
        ids = [row.id for row in rows]
        key = {"thread_id": thread_id, "checkpoint_ns": namespace, "checkpoint_ids": ids}
        await port.execute(queries.delete_messages, key)
    await port.execute(
        queries.note_prune,
        {
            "thread_id": thread_id,
            "suffix": f"{new_revision():014x}",
            "checkpoints": result.checkpoints,
            "writes": result.writes,
        },
    )


def _ancestors(outline: Sequence[_Row], kept: set[tuple[str, str]]) -> set[tuple[str, str]]:
    """What lies on the way to a checkpoint that is kept, itself included; of a subgraph's call its root decides."""
    parents = {(row.namespace, row.id): row.parent_id for row in outline}
    passed: set[tuple[str, str]] = set()
    for namespace, start in kept:
        cursor: str | None = start
        while cursor is not None and (namespace, cursor) in parents and (namespace, cursor) not in passed:
            passed.add((namespace, cursor))
            cursor = parents[namespace, cursor]
    for row in outline:
        root = ("", (row.metadata.get("parents") or {}).get(""))
        if row.namespace and (root in passed or root not in parents):
            passed.add((row.namespace, row.id))
    return passed


@dataclass(frozen=True, slots=True)
class _Row:
    """A checkpoint as the decision sees it."""

    namespace: str
    id: str
    parent_id: str | None
    metadata: CheckpointMetadata
    is_old: bool
    has_writes: bool
    thread_id: str


async def _read_outline(port: Port, queries: Queries, thread_id: str, older_than: timedelta | None) -> list[_Row]:
    rows = await port.fetch(queries.get_outline, {"thread_id": thread_id, "older_than": older_than})
    return [
        # With no age given, all are old enough to go.
        _Row(namespace, id, parent_id, json.loads(metadata), is_old is not False, has_writes, thread_id)
        for namespace, id, parent_id, metadata, is_old, has_writes in rows
    ]


def _by_namespace(rows: Iterable[_Row]) -> dict[str, list[_Row]]:
    grouped: dict[str, list[_Row]] = defaultdict(list)
    for row in rows:
        grouped[row.namespace].append(row)
    return grouped


async def _kept(
    port: Port, queries: Queries, request: PruneRequest, outline: Sequence[_Row], thread_id: str
) -> set[tuple[str, str]]:
    """What of a thread survives `"keep_latest"`."""
    namespaces = _by_namespace(outline)
    kept = set(_resume_points(namespaces.pop("", []), request.keep_last))
    roots = {row.id for row in outline if row.namespace == ""}
    for rows in namespaces.values():
        root = (rows[-1].metadata.get("parents") or {}).get("")
        # The namespace of a subgraph call ends in its task's id, after a colon; that of a subgraph compiled with
        # checkpointer=True does not, and its state outlives the call. A call may be saved before its root is.
        is_call = ":" in rows[-1].namespace
        if not is_call or root not in roots or ("", root) in kept:
            kept.update(_resume_points(rows, request.keep_last))
    kept.update((row.namespace, row.id) for row in outline if not row.is_old)
    for namespace, rows in _by_namespace(outline).items():
        kept.update(await _sending_parents(port, queries, thread_id, namespace, rows, kept))
        kept.update(await _delta_ancestors(port, queries, thread_id, namespace, rows, kept))
    return kept


def _resume_points(rows: Sequence[_Row], keep_last: int) -> Iterable[tuple[str, str]]:
    parents = {row.parent_id for row in rows}
    newest = {row.id for row in rows[-keep_last:]}
    for row in rows:
        if row.id in newest or (row.has_writes and row.id not in parents):
            yield row.namespace, row.id


async def _sending_parents(
    port: Port, queries: Queries, thread_id: str, namespace: str, rows: Sequence[_Row], kept: set[tuple[str, str]]
) -> set[tuple[str, str]]:
    """Parents of kept checkpoints of a format before 4, whose pending sends are among the parents' writes."""
    at_risk = {row.id: row.parent_id for row in rows if (namespace, row.id) in kept and row.parent_id}
    at_risk = {id: parent_id for id, parent_id in at_risk.items() if (namespace, parent_id) not in kept}
    key = {"thread_id": thread_id, "checkpoint_ns": namespace}
    where = f"thread {thread_id!r}"
    states = await port.fetch(queries.get_states, {**key, "checkpoint_ids": list(at_risk)})
    parents = {
        str(at_risk[id])
        for id, state, segment_ids, _ in states
        if is_old_format(decode_state(state, segment_ids, f"checkpoint {id!r} of {where}"))
    }
    writes = await port.fetch(queries.get_writes, {**key, "checkpoint_ids": list(parents)})
    return {
        (namespace, parent_id)
        for parent_id, *_, data in writes
        if any(channel == TASKS for _, channel, _, _ in unpack_writes(data, f"writes at {parent_id!r} of {where}"))
    }


async def _delta_ancestors(
    port: Port, queries: Queries, thread_id: str, namespace: str, rows: Sequence[_Row], kept: set[tuple[str, str]]
) -> set[tuple[str, str]]:
    """The ancestors from which kept checkpoints rebuild their DeltaChannels."""
    by_id = {row.id: row for row in rows}
    needed: set[tuple[str, str]] = set()
    walks: list[tuple[str | None, frozenset[str]]] = []
    for row in rows:
        counters = row.metadata.get("counters_since_delta_snapshot")
        if counters and (namespace, row.id) in kept:
            walks.append((row.id, frozenset(counters)))
    if not walks:
        return needed
    stored = await _stored_channels(port, queries, thread_id, namespace)
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


async def _stored_channels(port: Port, queries: Queries, thread_id: str, namespace: str) -> dict[str, set[str]]:
    """By checkpoint id, the channels that have a value stored."""
    found: dict[str, set[str]] = {}
    cursor = "\U0010ffff"
    while True:
        rows = await port.fetch(
            queries.scan_states,
            {"thread_id": thread_id, "checkpoint_ns": namespace, "cursor_id": cursor, "page_size": _STATE_PAGE},
        )
        for id, manifest in states_to_manifests(rows, f"thread {thread_id!r}").items():
            found[id] = set(manifest.entries)
            cursor = id
        if len(rows) < _STATE_PAGE:
            return found
