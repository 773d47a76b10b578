"""Guards, which refuse a write whose precondition no longer holds, in the write's transaction and round trip.

The statements of a guard are sent ahead of the write. One statement locks the rows on which the write depends, and
waits for concurrent transactions that lock these rows. A later statement checks the rows that those transactions
committed. If a check fails, the whole transaction fails, including the write and the statements of hooks.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final

from langgraph.checkpoint.base import CheckpointTuple

from langgraph_pgstate.arguments import Address, configurable_of
from langgraph_pgstate.db.protocol import Connection
from langgraph_pgstate.errors import (
    LeaseLostError,
    PGStateError,
    StaleHeadError,
    ThreadArchivedError,
    ThreadDeletedError,
)
from langgraph_pgstate.langgraph_compat import REPLAY_STATE
from langgraph_pgstate.schema.queries import Queries, Statement

# A guard's mark in the message of a database error. The text around the mark depends on the server's language.
_MARK: Final = re.compile(r"pgstate-guard:(\w+):(.*);", re.DOTALL)
_SWEEP_PAGE: Final = 1000


class PastId(str):
    """The id of a checkpoint that had children when it was read. It equals a plain string with the same id.

    LangGraph passes ids from the saver back to `put`. An id of this type shows that the run named a past checkpoint and
    forks deliberately. A run that read the head must not fork after another run has advanced.
    """

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Guard:
    """The preconditions of one write of a saver.

    Attributes:
        head: Whether the write is refused if another run has advanced the branch.
        thread: Whether the write is refused if the thread was deleted.
        fencing_token: Token of the lease. The write is refused if the lease was taken over.
        holder_id: The lease's holder.
        renew_for: Seconds for which the lease is renewed with the write.
        asked_at: Time at which the renewal was requested, by `lease_clock`.
        own_child: The child with which the writing run itself advanced the branch, if any.
        makes_thread: Whether to create the thread's row, which is known to be missing.
    """

    head: bool = False
    thread: bool = False
    fencing_token: int | None = None
    holder_id: str | None = None
    renew_for: float | None = None
    asked_at: float = 0.0
    own_child: str | None = None
    makes_thread: bool = False

    def before_put(self, queries: Queries, address: Address, parent: Address | None) -> list[Statement]:
        """Return the statements to send ahead of a checkpoint."""
        is_first = self.head and parent is None
        held_id = parent.checkpoint_id if self.head and parent is not None else None
        # A first checkpoint has no parent whose row can be locked. The thread's row is locked instead, and must exist.
        found = self._hold(queries, address, held_id, makes_thread=is_first or (self.thread and parent is None))
        if is_first:
            found.append((queries.check_empty, {**_key(address), "own_id": address.checkpoint_id}))
        elif held_id is not None:
            parameters = {**_key(address), "held_id": held_id, "own_id": address.checkpoint_id}
            found.append((queries.check_head, parameters))
        return found

    def before_writes(self, queries: Queries, address: Address) -> list[Statement]:
        """Return the statements to send ahead of a task's writes. They need no lock on the checkpoint."""
        found = self._hold(queries, address, None)
        if self.head:
            parameters = {**_key(address), "held_id": address.checkpoint_id, "own_id": self.own_child}
            found.append((queries.check_head, parameters))
        return found

    def _hold(
        self, queries: Queries, address: Address, held_id: str | None, makes_thread: bool = False
    ) -> list[Statement]:
        key = {"thread_id": address.thread_id}
        found: list[Statement] = []
        if makes_thread or self.makes_thread:
            found.append((queries.make_thread, key))
            if self.thread:
                # Check this first. Otherwise the error for a deleted thread would be that the lease was lost.
                found.append((queries.check_deleted, key))
        if self.thread or self.fencing_token is not None or held_id is not None:
            parameters = {
                **_key(address),
                "holds_thread": self.thread,
                "fencing_token": self.fencing_token,
                "held_id": held_id,
                "own_id": address.checkpoint_id,
            }
            found.append((queries.hold_for_write, parameters))
        if self.renew_for is not None:
            lease = {"holder_id": self.holder_id, "ttl": self.renew_for}
            found.append((queries.renew_lease, {**key, **lease}))
        if self.thread and not (makes_thread or self.makes_thread):
            found.append((queries.check_deleted, key))
        return found

    def with_thread(self) -> Guard:
        """Return a copy of this guard that also creates the thread's row."""
        return replace(self, makes_thread=True)

    def broken(self, error: BaseException, address: Address, parent_id: str | None) -> PGStateError | None:
        """Return the error for a transaction that failed because of this guard, else `None`."""
        found = _reason(error)
        if found is None:
            return None
        reason, detail = found
        if reason == "lease":
            return LeaseLostError(address.thread_id, self.fencing_token or 0)
        if reason == "deleted":
            return ThreadDeletedError(address.thread_id, datetime.fromtimestamp(float(detail), UTC))
        if reason == "head":
            return StaleHeadError(address.thread_id, address.checkpoint_ns, parent_id or "", detail or None)
        return None

    def misses_thread(self, error: BaseException) -> bool:
        """Return whether a transaction failed because the thread has no row. If so, try again with `with_thread`."""
        found = _reason(error)
        return found is not None and found[0] == "thread" and not self.makes_thread


def broken_condition(error: BaseException) -> str | None:
    """Return the condition of a guard that made a transaction fail; `None` if it failed for another reason."""
    found = _reason(error)
    return None if found is None else found[0]


def archive_of(error: BaseException) -> str | None:
    """Return the archive of the thread if a transaction failed because it is archived, else `None`."""
    found = _reason(error)
    return found[1] if found is not None and found[0] == "archived" else None


def _reason(error: BaseException) -> tuple[str, str] | None:
    if getattr(error, "sqlstate", None) != "22P02":
        return None
    found = _MARK.search(str(error))
    return None if found is None else (found[1], found[2])


def _key(address: Address) -> dict[str, Any]:
    return {"thread_id": address.thread_id, "checkpoint_ns": address.checkpoint_ns}


def names_past(config: Mapping[str, Any]) -> bool:
    """Return whether a write's config names a checkpoint that already had children, which is a deliberate fork."""
    return type(configurable_of(config).get("checkpoint_id")) is PastId


def is_explicit_fork(config: Mapping[str, Any], source: Any) -> bool:
    """Return whether a put, with this `source` in its metadata, forks deliberately."""
    if names_past(config):
        return True
    configurable = configurable_of(config)
    # A put without a parent forks if it copies a first checkpoint, or begins a subgraph while the graph replays.
    return not configurable.get("checkpoint_id") and (source == "fork" or configurable.get(REPLAY_STATE) is not None)


def with_past_parent(loaded: CheckpointTuple) -> CheckpointTuple:
    """Return a checkpoint whose parent's id is a `PastId`."""
    if loaded.parent_config is None:
        return loaded
    return loaded._replace(parent_config=_as_past(loaded.parent_config))


def as_past(loaded: CheckpointTuple) -> CheckpointTuple:
    """Return a checkpoint whose id and parent's id are `PastId`s."""
    loaded = with_past_parent(loaded)
    checkpoint: Any = {**loaded.checkpoint, "id": PastId(loaded.checkpoint["id"])}
    return loaded._replace(config=_as_past(loaded.config), checkpoint=checkpoint)


def _as_past(config: Any) -> Any:
    configurable = config["configurable"]
    return {**config, "configurable": {**configurable, "checkpoint_id": PastId(configurable["checkpoint_id"])}}


async def has_child(db: Connection, queries: Queries, address: Address) -> bool:
    """Return whether a checkpoint has children. One round trip."""
    return bool((await db.fetch(queries.has_child, address._asdict()))[0][0])


async def lock_for_deletion(db: Connection, queries: Queries, thread_id: str) -> bool:
    """Lock a thread's row until the transaction ends. Return whether the row existed.

    Waits for writes and enqueueing in progress. Only later statements see the rows that these have stored.
    """
    key = {"thread_id": thread_id}
    # Writers lock the thread's row, so the row must exist. Lock the row for update at once. Two transactions that both
    # first take a weaker lock would deadlock.
    if await db.fetch(queries.lock_thread_for_update, key):
        return True
    await db.execute(queries.make_thread, key)
    await db.fetch(queries.lock_thread_for_update, key)
    return False


async def store_tombstone(db: Connection, queries: Queries, thread_id: str, seconds: float) -> None:
    """Store a tombstone before a thread is deleted. For `seconds`, late writes are refused.

    Call it in the transaction that deletes the thread, after `lock_for_deletion`.
    """
    await db.execute(queries.put_tombstone, {"thread_id": thread_id, "seconds": seconds})


async def refuse_deleted(db: Connection, queries: Queries, thread_id: str) -> None:
    """Raise `ThreadDeletedError` if a thread has a tombstone. One round trip."""
    if found := await db.fetch(queries.get_tombstone, {"thread_id": thread_id}):
        raise ThreadDeletedError(thread_id, found[0][0])


async def refuse_archived(db: Connection, queries: Queries, thread_id: str) -> None:
    """Raise `ThreadArchivedError` if a thread is archived, because its rows are missing. One round trip."""
    if found := await db.fetch(queries.get_archive_of, {"thread_id": thread_id}):
        raise ThreadArchivedError(thread_id, *found[0])


async def revive_thread(db: Connection, queries: Queries, thread_id: str) -> bool:
    """Remove a thread's tombstone, and return whether there was one. One statement; safe to repeat."""
    return await db.execute(queries.delete_tombstone, {"thread_id": thread_id}) > 0


async def sweep(db: Connection, queries: Queries) -> int:
    """Remove expired tombstones, and leases that nobody has held for a day. Return the number of removed rows.

    Works page by page; safe to repeat.
    """
    gone = 0
    for query in (queries.sweep_tombstones, queries.sweep_leases):
        while swept := await db.execute(query, {"page_size": _SWEEP_PAGE}):
            gone += swept
            if swept < _SWEEP_PAGE:
                break
    return gone
