"""Branches: where a thread's history parts, what led to a checkpoint, what people call it, and forks of a thread."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from uuid import uuid4

import orjson

from langgraph_pgstate.codec.ids import new_revision
from langgraph_pgstate.codec.values import ValueCodec
from langgraph_pgstate.db.protocol import Connection
from langgraph_pgstate.errors import ConfigurationError, CorruptStateError, NotFoundError, UnsafeTypeError
from langgraph_pgstate.operations.checkpoints.addresses import (
    Address,
    address_of,
    check_key_size,
    identifier,
    thread_id_of,
)
from langgraph_pgstate.operations.checkpoints.checkpoints import get_tuple
from langgraph_pgstate.operations.checkpoints.reading import load_value
from langgraph_pgstate.operations.leases.guards import refuse_deleted
from langgraph_pgstate.operations.record import journal
from langgraph_pgstate.operations.record.projections import projected
from langgraph_pgstate.operations.threads.paging import page_size
from langgraph_pgstate.sql import Queries
from langgraph_pgstate.types import Row
from langgraph_pgstate.types.branches import Branch, Label, LineageStep

_LONGEST_LABEL: Final = 200
_SHORTEST_PART: Final = 4


@dataclass(frozen=True, slots=True)
class BranchFilter:
    """Which branches are asked for, checked.

    Attributes:
        thread_id: The thread.
        checkpoint_ns: The namespace.
        limit: At most so many, the newest.
    """

    thread_id: str
    checkpoint_ns: str
    limit: int


def request_branches(thread_id: str, checkpoint_ns: str, limit: int) -> BranchFilter:
    """Check what is asked for.

    Raises:
        ConfigurationError: If an argument cannot be searched for.
    """
    return BranchFilter(thread_id_of(thread_id), identifier("checkpoint_ns", checkpoint_ns), page_size(limit))


async def list_branches(db: Connection, queries: Queries, filter: BranchFilter) -> tuple[Branch, ...]:
    """A namespace's leaves, newest first, each with the path to its root. One query; reads no state."""
    key = {"thread_id": filter.thread_id, "checkpoint_ns": filter.checkpoint_ns}
    return branches_of(await db.fetch(queries.get_branches, key), filter)


def branches_of(rows: Sequence[Row], filter: BranchFilter) -> tuple[Branch, ...]:
    """The branches that some checkpoints make up; `rows` as `get_branches` answers them, oldest first."""
    parents: dict[str, str | None] = {row[0]: row[1] for row in rows}
    children = Counter(parent for parent in parents.values() if parent is not None)
    leaves = [row for row in reversed(rows) if not children[row[0]]]
    found = []
    for id, _, step, source, created_at, run_id, label in leaves[: filter.limit]:
        path = path_to(id, parents)
        root_parent = parents[path[0]]
        shared = [*([root_parent] if root_parent is not None else []), *path[:-1]]
        found.append(
            Branch(
                filter.thread_id,
                filter.checkpoint_ns,
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


def path_to(checkpoint_id: str, parents: Mapping[str, str | None]) -> tuple[str, ...]:
    """Ids from the root of a branch to a checkpoint, as far as `parents` knows them."""
    path: dict[str, None] = {}
    cursor: str | None = checkpoint_id
    while cursor is not None and cursor in parents and cursor not in path:
        path[cursor] = None
        cursor = parents[cursor]
    return tuple(reversed(path))


async def get_lineage(db: Connection, queries: Queries, address: Address) -> tuple[LineageStep, ...]:
    """What led to a checkpoint, or to the newest, root first and itself last. One query; reads no state.

    Raises:
        NotFoundError: If the named checkpoint does not exist.
    """
    rows = {row[0]: row for row in await db.fetch(queries.trace_lineage, address._asdict())}
    if not rows:
        if address.checkpoint_id is not None:
            raise NotFoundError(f"there is no {address}")
        return ()
    parents = {id: row[1] for id, row in rows.items()}
    # Where none was named, the newest is the only one that is no other's parent.
    last = address.checkpoint_id or next(iter(parents.keys() - {*parents.values()}), max(parents))
    path = path_to(last, parents)
    return tuple(LineageStep(address.thread_id, address.checkpoint_ns, *rows[id]) for id in path)


def request_label(config: Mapping[str, Any], text: str) -> tuple[Address, str]:
    """Check a label.

    Raises:
        ConfigurationError: If it is empty, too long, or cannot be stored.
    """
    label = identifier("label", text).strip()
    if not label or len(label) > _LONGEST_LABEL or not label.isprintable():
        raise ConfigurationError(f"a label is 1 to {_LONGEST_LABEL} printable characters on one line, not {text!r}")
    return address_of(config), label


def request_unlabel(config: Mapping[str, Any]) -> Address:
    """Check whose label is to go.

    Raises:
        ConfigurationError: If no checkpoint is named.
    """
    address = address_of(config)
    if address.checkpoint_id is None:
        raise ConfigurationError("name the checkpoint whose label is to go: the config has no checkpoint_id")
    return address


async def put_label(db: Connection, queries: Queries, address: Address, label: str) -> dict[str, Any]:
    """Give a checkpoint, or the newest, a label; it replaces the one it had. One transaction; safe to repeat.

    Returns:
        The checkpoint's config.

    Raises:
        NotFoundError: If there is no such checkpoint.
    """
    async with db.transaction():
        await db.fetch(queries.lock_thread, {"thread_id": address.thread_id})
        rows = await db.fetch(queries.put_label, {**address._asdict(), "label": label})
    if not rows:
        raise NotFoundError(f"there is no {address}" if address.checkpoint_id else _nothing(address.thread_id))
    return address._replace(checkpoint_id=rows[0][0]).config


async def delete_label(db: Connection, queries: Queries, address: Address) -> bool:
    """Take a checkpoint's label away; whether it had one. One statement."""
    return await db.execute(queries.delete_label, address._asdict()) > 0


async def list_labels(db: Connection, queries: Queries, thread_id: str) -> tuple[Label, ...]:
    """A thread's labels, newest checkpoint first. One query."""
    rows = await db.fetch(queries.list_labels, {"thread_id": thread_id})
    return tuple(Label(thread_id, *row) for row in rows)


async def find_checkpoint(db: Connection, queries: Queries, thread_id: str, name: str) -> Address:
    """The checkpoint of the root namespace that somebody means by an id, else a label, else a part of an id. One query.

    Raises:
        NotFoundError: If there is none.
        ConfigurationError: If there are several.
    """
    rows = await db.fetch(queries.get_branches, {"thread_id": thread_id, "checkpoint_ns": ""})
    by_part = [row[0] for row in rows if len(name) >= _SHORTEST_PART and name in row[0]]
    for found in ([row[0] for row in rows if row[0] == name], [row[0] for row in rows if row[6] == name], by_part):
        if len(found) > 1:
            raise ConfigurationError(
                f"{name!r} is {len(found)} checkpoints of thread {thread_id!r}: {', '.join(found[:5])}"
            )
        if found:
            return Address(thread_id, "", found[0])
    raise NotFoundError(f"thread {thread_id!r} has no checkpoint {name!r}")


@dataclass(slots=True)
class ForkRequest:
    """A fork, checked.

    Attributes:
        source_id: The thread.
        checkpoint_id: Where it starts from; `None` for the newest checkpoint, until it is known which that is.
        target_id: The thread that it becomes.
    """

    source_id: str
    checkpoint_id: str | None
    target_id: str


def request_fork(thread_id: str, checkpoint_id: str | None, to: str | None) -> ForkRequest:
    """Check a fork; without a name it gets a random one, the same however often it is tried.

    Raises:
        ConfigurationError: If an id cannot be stored, or both threads are one.
    """
    source_id = thread_id_of(thread_id)
    target_id = str(uuid4()) if to is None else thread_id_of(to)
    if source_id == target_id:
        raise ConfigurationError(
            f"thread {source_id!r} cannot be forked onto itself; name its checkpoint to branch in it"
        )
    id = identifier("checkpoint_id", checkpoint_id) if checkpoint_id else None
    check_key_size("thread_id and checkpoint_id", target_id, id)
    return ForkRequest(source_id, id, target_id)


async def count_older(db: Connection, queries: Queries, address: Address) -> int:
    """Return how many checkpoints of a namespace are older than one."""
    count: int = (await db.fetch(queries.count_older, address._asdict()))[0][0]
    return count


async def fork_thread(db: Connection, queries: Queries, codec: ValueCodec, request: ForkRequest) -> Address:
    """Make a thread that starts from a checkpoint of another. One transaction; safe to repeat.

    Returns:
        The checkpoint in the new thread.

    Raises:
        NotFoundError: If there is no such checkpoint.
        ConfigurationError: If the new thread's id has a history already, other than this fork's.
        ThreadDeletedError: If its id is that of a thread that was deleted, and left a tombstone.
    """
    source_id, target_id = request.source_id, request.target_id
    await refuse_deleted(db, queries, target_id)
    # Most of what waits is moved before, while nobody has to wait for it.
    await journal.write(db, queries, [source_id])
    async with db.transaction():
        # Two that fork to one id take turns here.
        origin = await db.fetch(queries.begin_fork, {"source_id": source_id, "target_id": target_id})
        if not origin:
            raise NotFoundError(_nothing(source_id))
        if request.checkpoint_id is None:
            heads = await db.fetch(queries.find_head, {"thread_id": source_id})
            if not heads:
                raise NotFoundError(_nothing(source_id))
            # Should this have to be tried again, it is the same fork although the source has gone on.
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
                f"thread {target_id!r} already has a history of its own; fork to a new thread, or delete that one first"
            )
        if not await db.execute(queries.fork_thread, key):
            raise NotFoundError(f"there is no {Address(source_id, '', checkpoint_id)}")
        # Messages of the last checkpoints that were copied may still be in the journal.
        await journal.write(db, queries, [source_id])
        await db.execute(queries.copy_late_messages, {"source_id": source_id, "target_id": target_id})
        await _project(db, queries, codec, key, forked)
        origin_of = {"thread_id": source_id, "checkpoint_id": checkpoint_id}
        events = ((target_id, {"forked_from": origin_of}), (source_id, {"forked_to": {"thread_id": target_id}}))
        for thread_id, payload in events:
            await db.execute(
                queries.note_fork,
                {
                    "thread_id": thread_id,
                    "suffix": f"{new_revision():014x}",
                    "checkpoint_id": checkpoint_id,
                    "payload": orjson.dumps(payload).decode(),
                },
            )
    return forked


async def _project(
    db: Connection, queries: Queries, codec: ValueCodec, key: Mapping[str, Any], forked: Address
) -> None:
    """Make the channels readable that the source's are; if one cannot be read here, the fork's next put does it."""
    rows = await db.fetch(queries.copy_projection, key)
    if not rows or rows[0][1]:
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
