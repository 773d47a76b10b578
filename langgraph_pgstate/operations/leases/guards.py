"""Guards: what a write rests on, held and checked in its own transaction, in its own round trip.

A guard is one or two statements sent ahead of a write. The first locks what the write rests on, and waits for whoever
holds it; the next sees what that one left behind. One that does not hold fails, and takes the transaction with it:
the write, and what hooks wanted stored with it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final

from langgraph.checkpoint.base import CheckpointTuple

from langgraph_pgstate.db.protocol import Connection
from langgraph_pgstate.errors import LeaseLostError, PGStateError, StaleHeadError, ThreadDeletedError
from langgraph_pgstate.langgraph_compat import REPLAY_STATE
from langgraph_pgstate.operations.checkpoints.addresses import Address, configurable_of
from langgraph_pgstate.operations.record.put_hook import Statement
from langgraph_pgstate.sql import Queries

_MARK: Final = re.compile(r'"pgstate-guard:(\w+):(.*)"', re.DOTALL)
_SWEEP_PAGE: Final = 1000


class PastId(str):
    """The id of a checkpoint that was built on when it was read.

    It equals its string. LangGraph hands a run the ids that the saver gave it, and puts with them: so a put can tell
    whether its run named a past checkpoint, and forks on purpose, or read the head and was overtaken.
    """

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Guard:
    """What one write rests on.

    Attributes:
        head: Whether nobody else may have advanced the branch.
        thread: Whether the thread may not have been deleted.
        fencing_token: The lease that must not have been taken over.
        holder_id: Who holds it.
        renew_for: Seconds for which the lease is renewed with the write.
        own_child: The child by which the writing run itself has advanced the branch, if it has.
        makes_thread: Whether the thread's row is made, because it is known to be missing.
    """

    head: bool = False
    thread: bool = False
    fencing_token: int | None = None
    holder_id: str | None = None
    renew_for: float | None = None
    own_child: str | None = None
    makes_thread: bool = False

    def before_put(self, queries: Queries, address: Address, parent: Address | None) -> list[Statement]:
        """What is sent ahead of a checkpoint."""
        is_first = self.head and parent is None
        held_id = parent.checkpoint_id if self.head and parent is not None else None
        # Without a parent there is no row to lock but the thread's.
        found = self._hold(queries, address, held_id, makes_thread=is_first or (self.thread and parent is None))
        if is_first:
            found.append((queries.check_empty, {**_key(address), "own_id": address.checkpoint_id}))
        elif held_id is not None:
            parameters = {**_key(address), "held_id": held_id, "own_id": address.checkpoint_id}
            found.append((queries.check_head, parameters))
        return found

    def before_writes(self, queries: Queries, address: Address) -> list[Statement]:
        """What is sent ahead of a task's writes. No lock on the checkpoint: they may as well have come first."""
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
                # It says more than that the lease went with the thread.
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
            lease = {"fencing_token": self.fencing_token, "holder_id": self.holder_id, "ttl": self.renew_for}
            found.append((queries.renew_lease, {**key, **lease}))
        if self.thread and not (makes_thread or self.makes_thread):
            found.append((queries.check_deleted, key))
        return found

    def with_thread(self) -> Guard:
        """The same guard, making the thread's row."""
        return replace(self, makes_thread=True)

    def broken(self, error: BaseException, address: Address, parent_id: str | None) -> PGStateError | None:
        """Why a transaction failed, if it was for this guard.

        Args:
            error: What the driver raised.
            address: What was to be written.
            parent_id: The checkpoint that it rests on.
        """
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
        """Whether a transaction failed because there is no row of the thread to hold, and it was not made."""
        found = _reason(error)
        return found is not None and found[0] == "thread" and not self.makes_thread


def is_guard(error: BaseException) -> bool:
    """Whether a transaction failed because a guard did not hold."""
    return _reason(error) is not None


def _reason(error: BaseException) -> tuple[str, str] | None:
    if getattr(error, "sqlstate", None) != "22P02":
        return None
    found = _MARK.search(str(error))
    return None if found is None else (found[1], found[2])


def _key(address: Address) -> dict[str, Any]:
    return {"thread_id": address.thread_id, "checkpoint_ns": address.checkpoint_ns}


def names_past(config: Mapping[str, Any]) -> bool:
    """Whether a write rests on a checkpoint that was named although it had been built on: a fork on purpose."""
    return type(configurable_of(config).get("checkpoint_id")) is PastId


def is_explicit_fork(config: Mapping[str, Any], source: Any) -> bool:
    """Whether a put makes a branch on purpose.

    Args:
        config: The put's.
        source: The `source` of its metadata.
    """
    if names_past(config):
        return True
    configurable = configurable_of(config)
    # A copy of a first checkpoint, or a subgraph that had not begun where its graph is replayed from.
    return not configurable.get("checkpoint_id") and (source == "fork" or configurable.get(REPLAY_STATE) is not None)


def with_past_parent(loaded: CheckpointTuple) -> CheckpointTuple:
    """A checkpoint whose parent's id tells that it was built on."""
    if loaded.parent_config is None:
        return loaded
    return loaded._replace(parent_config=_as_past(loaded.parent_config))


def as_past(loaded: CheckpointTuple) -> CheckpointTuple:
    """A checkpoint whose ids tell that it was built on."""
    loaded = with_past_parent(loaded)
    checkpoint: Any = {**loaded.checkpoint, "id": PastId(loaded.checkpoint["id"])}
    return loaded._replace(config=_as_past(loaded.config), checkpoint=checkpoint)


def _as_past(config: Any) -> Any:
    configurable = config["configurable"]
    return {**config, "configurable": {**configurable, "checkpoint_id": PastId(configurable["checkpoint_id"])}}


async def has_child(db: Connection, queries: Queries, address: Address) -> bool:
    """Whether a checkpoint was built on. One round trip."""
    return bool((await db.fetch(queries.has_child, address._asdict()))[0][0])


async def leave_tombstone(db: Connection, queries: Queries, thread_id: str, seconds: float) -> None:
    """Note that a thread is about to be deleted, and wait for those who hold it. To be called in a transaction.

    Args:
        db: The connection.
        queries: The queries of the schema.
        thread_id: The thread.
        seconds: How long late writes are refused.
    """
    key = {"thread_id": thread_id}
    # Who writes holds the thread's row; so it has to be there. Not locked by halves before: who holds it may have to
    # touch it, and the two would wait for each other.
    if not await db.fetch(queries.lock_thread, key):
        await db.execute(queries.make_thread, key)
        await db.fetch(queries.lock_thread, key)
    await db.execute(queries.put_tombstone, {**key, "seconds": seconds})


async def refuse_deleted(db: Connection, queries: Queries, thread_id: str) -> None:
    """Refuse to make rows for a thread that was deleted and not revived. One round trip.

    Raises:
        ThreadDeletedError: If it has a tombstone.
    """
    if found := await db.fetch(queries.get_tombstone, {"thread_id": thread_id}):
        raise ThreadDeletedError(thread_id, found[0][0])


async def revive_thread(db: Connection, queries: Queries, thread_id: str) -> bool:
    """Let a deleted thread's id be used again. One statement; safe to repeat.

    Returns:
        Whether there was a tombstone.
    """
    return await db.execute(queries.delete_tombstone, {"thread_id": thread_id}) > 0


async def sweep(db: Connection, queries: Queries) -> int:
    """Remove tombstones whose time has passed, and leases that nobody has held for a day. Page by page; safe to repeat.

    Returns:
        How many rows went.
    """
    gone = 0
    for query in (queries.sweep_tombstones, queries.sweep_leases):
        while swept := await db.execute(query, {"page_size": _SWEEP_PAGE}):
            gone += swept
            if swept < _SWEEP_PAGE:
                break
    return gone
