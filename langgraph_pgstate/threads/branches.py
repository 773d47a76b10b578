"""Branches of a thread: leaves, lineage, labels, forks, and the tree around a checkpoint."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final
from uuid import uuid4

import orjson

from langgraph_pgstate.arguments import Address, address_of, check_key_size, identifier, is_line, thread_id_of
from langgraph_pgstate.checkpoints.differences import read_state
from langgraph_pgstate.checkpoints.event_chains import insert_events
from langgraph_pgstate.checkpoints.getting import get_tuple
from langgraph_pgstate.checkpoints.reading import load_value
from langgraph_pgstate.checkpoints.versions import StateVersions
from langgraph_pgstate.codec.ids import new_revision
from langgraph_pgstate.codec.values import ValueCodec
from langgraph_pgstate.db.protocol import MAX_TEXT, Connection, Read, Rows
from langgraph_pgstate.errors import ConfigurationError, CorruptStateError, NotFoundError, UnsafeTypeError
from langgraph_pgstate.langgraph_compat import (
    HANDLER_PATH,
    PULL_PATH,
    distinct_interrupts,
    is_schedule_channel,
    next_nodes,
)
from langgraph_pgstate.leases.guards import refuse_archived, refuse_deleted
from langgraph_pgstate.paging import page_size
from langgraph_pgstate.record import journal
from langgraph_pgstate.record.events import check_not_done, note_action
from langgraph_pgstate.record.projections import projected
from langgraph_pgstate.schema.queries import Queries
from langgraph_pgstate.schema.resealing import bind_copy
from langgraph_pgstate.threads.holds import keep_source
from langgraph_pgstate.threads.rows import request_owner
from langgraph_pgstate.threads.types import (
    Branch,
    CheckpointState,
    CheckpointTree,
    Label,
    LineageStep,
    ThreadOwner,
    TreeNode,
)

_LONGEST_LABEL: Final = 200
_SHORTEST_PART: Final = 4


def list_branches(thread_id: str, checkpoint_ns: str, limit: int) -> Read[tuple[Branch, ...]]:
    """Return a `Read` of a namespace's leaves, newest first, each with the path to its root."""
    key, size = (thread_id_of(thread_id), identifier("checkpoint_ns", checkpoint_ns)), page_size(limit)
    parameters = {"thread_id": key[0], "checkpoint_ns": key[1]}
    return Read("get_branches", parameters, lambda rows: _branches_of(rows, *key, size))


def _branches_of(rows: Rows, thread_id: str, checkpoint_ns: str, limit: int) -> tuple[Branch, ...]:
    """Return the branches of the rows of `get_branches`, oldest first."""
    parents: dict[str, str | None] = {row[0]: row[1] for row in rows}
    children = Counter(parent for parent in parents.values() if parent is not None)
    leaves = [row for row in reversed(rows) if not children[row[0]]]
    found = []
    for id, _, step, source, created_at, run_id, label in leaves[:limit]:
        path = _path_to(id, parents)
        root_parent = parents[path[0]]
        shared = [*([root_parent] if root_parent is not None else []), *path[:-1]]
        found.append(
            Branch(
                thread_id,
                checkpoint_ns,
                id,
                path,
                next((ancestor for ancestor in reversed(shared) if children[ancestor] > 1), None),
                id == rows[-1][0],
                step,
                source,
                created_at,
                run_id,
                label,
            )
        )
    return tuple(found)


def _path_to(checkpoint_id: str, parents: Mapping[str, str | None]) -> tuple[str, ...]:
    """Return the ids from the root of a branch to a checkpoint, as far as `parents` has them."""
    path: dict[str, None] = {}
    cursor: str | None = checkpoint_id
    while cursor is not None and cursor in parents and cursor not in path:
        path[cursor] = None
        cursor = parents[cursor]
    return tuple(reversed(path))


async def get_lineage(db: Connection, queries: Queries, address: Address) -> tuple[LineageStep, ...]:
    """Return the path from the root to a checkpoint, by default the newest. One query.

    Raises:
        NotFoundError: If the named checkpoint does not exist.
    """
    rows = {row[0]: row for row in await db.fetch(queries.trace_lineage, address._asdict())}
    if not rows:
        await refuse_archived(db, queries, address.thread_id)
        if address.checkpoint_id is not None:
            raise NotFoundError(f"there is no {address}")
        return ()
    parents = {id: row[1] for id, row in rows.items()}
    # If no checkpoint was named, the newest checkpoint is the only row without a child.
    last = address.checkpoint_id or next(iter(parents.keys() - {*parents.values()}), max(parents))
    path = _path_to(last, parents)
    return tuple(LineageStep(address.thread_id, address.checkpoint_ns, *rows[id]) for id in path)


def request_label(config: Mapping[str, Any], text: str) -> tuple[Address, str]:
    """Validate a label, and return its checkpoint and text."""
    label = identifier("label", text).strip()
    if len(label) > _LONGEST_LABEL or not is_line(label):
        raise ConfigurationError(
            f"a label must have 1 to {_LONGEST_LABEL} printable characters on one line, not {text!r}"
        )
    return address_of(config), label


def request_unlabel(config: Mapping[str, Any]) -> Address:
    """Return the checkpoint whose label is removed."""
    address = address_of(config)
    if address.checkpoint_id is None:
        raise ConfigurationError("config must have the checkpoint_id of the checkpoint whose label is removed")
    return address


async def put_label(
    db: Connection,
    queries: Queries,
    address: Address,
    label: str,
    by: str | None = None,
    within: timedelta | None = None,
) -> dict[str, Any]:
    """Label a checkpoint, by default the newest, and return its config. One transaction; safe to repeat.

    Raises:
        NotFoundError: If there is no such checkpoint.
        AlreadyDoneError: If a person has labelled the checkpoint within the given time.
    """
    async with db.transaction():
        if within is not None:
            await check_not_done(db, queries, "label", address.thread_id, within, checkpoint_id=address.checkpoint_id)
        await db.fetch(queries.lock_thread_for_update, {"thread_id": address.thread_id})
        rows = await db.fetch(queries.put_label, {**address._asdict(), "label": label})
        if rows and by is not None:
            facts = {"label": label}
            await note_action(db, queries, "label", by, address.thread_id, details=facts, checkpoint_id=rows[0][0])
    if not rows:
        await refuse_archived(db, queries, address.thread_id)
        raise NotFoundError(f"there is no {address}" if address.checkpoint_id else _nothing(address.thread_id))
    return address._replace(checkpoint_id=rows[0][0]).config


async def delete_label(
    db: Connection, queries: Queries, address: Address, by: str | None = None, within: timedelta | None = None
) -> bool:
    """Remove a checkpoint's label, and return whether it had a label. One transaction.

    Raises:
        ThreadArchivedError: If the thread is archived.
    """
    async with db.transaction():
        if within is not None:
            await check_not_done(db, queries, "label", address.thread_id, within, checkpoint_id=address.checkpoint_id)
        had_one = await db.execute(queries.delete_label, address._asdict()) > 0
        if not had_one:
            await refuse_archived(db, queries, address.thread_id)
        if had_one and by is not None:
            facts = {"label": None}
            checkpoint_id = address.checkpoint_id
            await note_action(db, queries, "label", by, address.thread_id, details=facts, checkpoint_id=checkpoint_id)
    return had_one


async def list_labels(db: Connection, queries: Queries, thread_id: str) -> tuple[Label, ...]:
    """Return a thread's labels, newest checkpoint first. One query."""
    rows = await db.fetch(queries.list_labels, {"thread_id": thread_id})
    return tuple(Label(thread_id, *row) for row in rows)


async def find_checkpoint(db: Connection, queries: Queries, thread_id: str, name: str) -> Address:
    """Return the checkpoint with an id, a label, or a part of an id, in this order. One query.

    Raises:
        NotFoundError: If there is no such checkpoint.
        ConfigurationError: If several checkpoints match.
    """
    rows = await db.fetch(queries.get_branches, {"thread_id": thread_id, "checkpoint_ns": ""})
    by_part = [row[0] for row in rows if len(name) >= _SHORTEST_PART and name in row[0]]
    for found in ([row[0] for row in rows if row[0] == name], [row[0] for row in rows if row[6] == name], by_part):
        if len(found) > 1:
            raise ConfigurationError(
                f"{name!r} matches {len(found)} checkpoints of thread {thread_id!r}: {', '.join(found[:5])}"
            )
        if found:
            return Address(thread_id, "", found[0])
    await refuse_archived(db, queries, thread_id)
    raise NotFoundError(f"thread {thread_id!r} has no checkpoint {name!r}")


@dataclass(slots=True)
class ForkRequest:
    """The validated arguments of a fork.

    Attributes:
        source_id: The thread.
        checkpoint_id: The checkpoint to start from; `None` for the newest.
        target_id: The new thread.
        by: Name of the person who forks the thread, for an event of both threads.
        within: Time in which no person may have forked the checkpoint.
        owner: The result of `request_owner`.
    """

    source_id: str
    checkpoint_id: str | None
    target_id: str
    by: str | None = None
    within: timedelta | None = None
    owner: str | None = None


def request_fork(
    thread_id: str,
    checkpoint_id: str | None,
    to: str | None,
    by: str | None = None,
    within: timedelta | None = None,
    owner: ThreadOwner | None = None,
) -> ForkRequest:
    """Validate a fork. Without a target id, choose a random id, which all retries use."""
    source_id = thread_id_of(thread_id)
    target_id = str(uuid4()) if to is None else thread_id_of(to)
    if source_id == target_id:
        raise ConfigurationError(
            f"thread {source_id!r} cannot be forked onto itself: run the thread with a checkpoint_id to make a branch"
        )
    id = identifier("checkpoint_id", checkpoint_id) if checkpoint_id else None
    check_key_size("thread_id and checkpoint_id", target_id, id)
    return ForkRequest(source_id, id, target_id, by, within, request_owner(owner))


async def fork_thread(db: Connection, queries: Queries, codec: ValueCodec, request: ForkRequest) -> Address:
    """Create a thread that starts from a checkpoint of another thread, and return the checkpoint in the new thread.

    One transaction; safe to repeat.

    Raises:
        NotFoundError: If there is no such checkpoint.
        ConfigurationError: If the new thread's id already has a history other than this fork's.
        ThreadDeletedError: If the new thread's id belongs to a deleted thread with a tombstone.
        ThreadArchivedError: If one of the threads is archived.
        AlreadyDoneError: If a person has forked the checkpoint to another thread within the given time.
    """
    source_id, target_id = request.source_id, request.target_id
    await refuse_deleted(db, queries, target_id)
    if db.keys is not None:
        db.keys.note_copy(source_id, target_id, None if request.owner is None else orjson.loads(request.owner))
    # Move most journal entries before the transaction, which then holds its locks for a shorter time.
    await journal.write(db, queries, [source_id])
    async with db.transaction():
        # Concurrent forks to one id wait here for each other.
        origin = await db.fetch(
            queries.begin_fork, {"source_id": source_id, "target_id": target_id, "owner": request.owner}
        )
        if not origin:
            raise NotFoundError(_nothing(source_id))
        await keep_source(db, queries, source_id)
        await refuse_archived(db, queries, target_id)
        if request.checkpoint_id is None:
            heads = await db.fetch(queries.find_head, {"thread_id": source_id})
            if not heads:
                raise NotFoundError(_nothing(source_id))
            # A retry must fork from this checkpoint, even if the source has advanced.
            request.checkpoint_id = heads[0][0]
        checkpoint_id = request.checkpoint_id
        forked = Address(target_id, "", checkpoint_id)
        key = {"source_id": source_id, "target_id": target_id, "checkpoint_id": checkpoint_id}
        has_any, has_this = (
            await db.fetch(queries.has_history, {"thread_id": target_id, "checkpoint_id": checkpoint_id})
        )[0]
        if has_any:
            if has_this and tuple(origin[0]) == (source_id, checkpoint_id):
                return forked
            raise ConfigurationError(
                f"thread {target_id!r} already has a history of its own: fork to a new thread, or delete this thread"
            )
        if request.within is not None:
            await check_not_done(db, queries, "fork", source_id, request.within, checkpoint_id=checkpoint_id)
        renaming = json.dumps({"thread_id": target_id})
        if not await db.execute(queries.fork_thread, {**key, "renaming": renaming}):
            raise NotFoundError(f"there is no {Address(source_id, '', checkpoint_id)}")
        # Messages of the last copied checkpoints may still be in the journal.
        await journal.write(db, queries, [source_id])
        await db.execute(queries.copy_late_messages, {"source_id": source_id, "target_id": target_id})
        await db.execute(queries.infer_thread_status, {"thread_id": target_id})
        await _project(db, queries, codec, key, forked)
        await bind_copy(db, queries, source_id, target_id)
        origin_of = {"thread_id": source_id, "checkpoint_id": checkpoint_id}
        events = ((target_id, {"forked_from": origin_of}), (source_id, {"forked_to": {"thread_id": target_id}}))
        for thread_id, payload in events:
            await insert_events(
                db,
                queries,
                queries.note_fork,
                {
                    "thread_id": thread_id,
                    "suffix": f"{new_revision():014x}",
                    "checkpoint_id": checkpoint_id,
                    "payload": orjson.dumps(payload).decode(),
                },
            )
            if request.by is not None:
                facts = {"source": source_id, "target": target_id}
                await note_action(
                    db, queries, "fork", request.by, thread_id, details=facts, checkpoint_id=checkpoint_id
                )
    return forked


async def _project(
    db: Connection, queries: Queries, codec: ValueCodec, key: Mapping[str, Any], forked: Address
) -> None:
    """Copy the source's projection to the fork, if possible. If not, the fork's next put writes the projection."""
    rows = await db.fetch(queries.copy_projection, key)
    # Encrypted channels have encrypted names, which cannot be looked up.
    if not rows or rows[0][1] or db.keys is not None:
        return
    found = await get_tuple(db, queries, codec, forked)
    if found is None:
        return
    row, segments, _, _ = found
    entries = row.decode().manifest.entries
    try:
        values = {
            name: load_value(codec, entries[name], segments, f"channel {name!r} of {forked}")[0]
            for name in rows[0][0]
            if name in entries
        }
    except (CorruptStateError, UnsafeTypeError):
        return
    await db.execute(
        queries.project_fork,
        {
            "thread_id": forked.thread_id,
            "checkpoint_id": forked.checkpoint_id,
            "projected": projected(values, str(forked.checkpoint_id)),
        },
    )


def _nothing(thread_id: str) -> str:
    return f"thread {thread_id!r} has no checkpoint"


def list_tree(thread_id: str, checkpoint_id: str | None, checkpoint_ns: str, limit: int) -> Read[CheckpointTree]:
    """Return a `Read` of the checkpoints around a checkpoint, newest first."""
    size, middle = page_size(limit), MAX_TEXT if checkpoint_id is None else identifier("checkpoint_id", checkpoint_id)
    parameters = {
        "thread_id": thread_id_of(thread_id),
        "checkpoint_ns": identifier("checkpoint_ns", checkpoint_ns),
        "checkpoint_id": middle,
        "page_size": size + 1,
        # The namespaces of the subgraphs sort between these two limits.
        "first_ns": f"{checkpoint_ns}|" if checkpoint_ns else "",
        "last_ns": f"{checkpoint_ns}}}" if checkpoint_ns else MAX_TEXT,
        "pull": PULL_PATH,
        "handler": HANDLER_PATH,
    }
    return Read("list_tree", parameters, lambda rows: _tree_of(rows, size, middle))


def _tree_of(rows: Rows, limit: int, middle: str) -> CheckpointTree:
    newer = sum(row[0] > middle for row in rows)
    older = len(rows) - newer
    # Show half of the checkpoints on each side, unless one side has fewer.
    first = newer - min(newer, max(limit // 2, limit - older))
    shown = rows[first : first + limit]
    nodes = []
    for id, parent, step, source, at, run_id, label, tasks, asked, pending, answered, interrupted, subgraphs in shown:
        written = tuple(tasks), asked, pending, tuple(answered), interrupted, tuple(subgraphs)
        nodes.append(TreeNode(id, parent, step, source, at, run_id, label, *written))
    return CheckpointTree(tuple(nodes), first > 0, first + limit < len(rows))


def find_step(thread_id: str, step: int, checkpoint_ns: str) -> Read[str | None]:
    """Return a `Read` of the newest checkpoint of a superstep, or of the last earlier superstep."""
    if isinstance(step, bool) or not isinstance(step, int) or abs(step) >= 2**31:
        raise ConfigurationError(f"step must be a whole number of 32 bits, not {step!r}")
    key = {"thread_id": thread_id_of(thread_id), "checkpoint_ns": identifier("checkpoint_ns", checkpoint_ns)}
    return Read("find_step", {**key, "step": step}, lambda rows: None if rows[0][0] is None else str(rows[0][0]))


async def read_checkpoint(
    db: Connection, queries: Queries, codec: ValueCodec, address: Address, versions: StateVersions | None = None
) -> CheckpointState:
    """Return one checkpoint with its state, its interrupts and the errors of its tasks.

    One round trip, two more with DeltaChannels.

    Raises:
        NotFoundError: If there is no such checkpoint.
    """
    loaded, values = await read_state(db, queries, codec, address, versions)
    parent = (loaded.parent_config or {}).get("configurable", {})
    writes = loaded.pending_writes or []
    asked = [one for _, channel, given in writes if channel == "__interrupt__" for one in _several(given)]
    return CheckpointState(
        **loaded.config["configurable"],
        parent_checkpoint_id=parent.get("checkpoint_id"),
        metadata=loaded.metadata,
        values={name: value for name, value in values.items() if not is_schedule_channel(name)},
        schedule={name: value for name, value in values.items() if is_schedule_channel(name)},
        next=tuple(next_nodes(values)),
        interrupts=tuple(distinct_interrupts(asked)),
        errors=tuple(given for _, channel, given in writes if channel == "__error__"),
    )


def _several(given: Any) -> tuple[Any, ...]:
    return tuple(given) if isinstance(given, list | tuple) else (given,)
