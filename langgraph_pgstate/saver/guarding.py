"""The choice of guards for a saver's writes. A guard is a condition that PostgreSQL checks when it stores a write."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final, TypeVar

from langgraph_pgstate.arguments import Address
from langgraph_pgstate.call_site import run_of
from langgraph_pgstate.checkpoints.requests import PutRequest
from langgraph_pgstate.errors import CheckpointOrderError, StaleHeadError
from langgraph_pgstate.leases.guards import Guard, is_explicit_fork, names_past
from langgraph_pgstate.leases.registry import HeldLease
from langgraph_pgstate.options import GuardSettings

K = TypeVar("K")
V = TypeVar("V")

_MOST_REMEMBERED: Final = 4096


class GuardPolicy:
    """The choice of guards for a saver's writes. Safe to share between threads.

    Args:
        settings: The kinds of writes to refuse.
    """

    def __init__(self, settings: GuardSettings) -> None:
        self.settings = settings
        # The child that a run stores after a checkpoint, by the checkpoint and the `id()` of the run. Keep the run,
        # too, so that no other object gets the same `id()`.
        self._advances: OrderedDict[tuple[Address, int], tuple[str, Any]] = OrderedDict()
        self._refused: OrderedDict[Address, StaleHeadError | CheckpointOrderError] = OrderedDict()
        self._lock = threading.Lock()

    def before_put(self, request: PutRequest, config: Mapping[str, Any], held: HeldLease | None) -> Guard:
        """Return the guard of a checkpoint."""
        head = self._guards_head(held) and not is_explicit_fork(config, request.merged_metadata.get("source"))
        run = run_of(config)
        if head and request.parent is not None and run is not None:
            # Remember the child before it is sent, because writes of the run's tasks may arrive at the same time.
            advance = (str(request.address.checkpoint_id), run)
            self._remember(self._advances, (request.parent, id(run)), advance)
        return self._guard(head, held)

    def before_writes(self, address: Address, config: Mapping[str, Any], held: HeldLease | None) -> Guard:
        """Return the guard of a task's writes.

        Raises:
            StaleHeadError: If the writes' checkpoint was refused.
            CheckpointOrderError: If the writes' checkpoint was refused because of its id.
        """
        head = self._guards_head(held) and not names_past(config)
        with self._lock:
            refused = self._refused.get(address)
        if isinstance(refused, CheckpointOrderError):
            raise CheckpointOrderError(
                refused.thread_id, refused.checkpoint_ns, refused.checkpoint_id, refused.parent_id
            ) from refused
        if refused is not None and head:
            raise StaleHeadError(
                refused.thread_id, refused.checkpoint_ns, refused.checkpoint_id, refused.winner_id
            ) from refused
        return self._guard(head, held, self._own_child(address, config) if head else None)

    def after_refusal(self, guard: Guard, address: Address, config: Mapping[str, Any]) -> Guard | None:
        """Return a new guard for writes that were refused because their own run advanced the branch, else `None`.

        LangGraph does not order puts, so writes may arrive after the checkpoint that includes them.
        """
        own = self._own_child(address, config)
        return None if own is None or own == guard.own_child else replace(guard, own_child=own)

    def note_stored(self, guard: Guard, held: HeldLease | None) -> None:
        """Confirm the renewal of the lease, if the stored write has renewed the lease."""
        if held is not None and guard.renew_for is not None:
            held.confirm(guard.asked_at, guard.renew_for)

    def _own_child(self, address: Address, config: Mapping[str, Any]) -> str | None:
        with self._lock:
            child_id, _ = self._advances.get((address, id(run_of(config))), (None, None))
        return child_id

    def note_refused(self, address: Address, error: StaleHeadError | CheckpointOrderError) -> None:
        """Remember that a checkpoint was refused. Writes of its tasks are then refused, too."""
        self._remember(self._refused, address, error)

    def _guards_head(self, held: HeldLease | None) -> bool:
        # If the lease was taken after the state was read, another run may have advanced the thread in between.
        return self.settings.head or (held is not None and not held.is_read_first)

    def _guard(self, head: bool, held: HeldLease | None, own_child: str | None = None) -> Guard:
        if held is None:
            return Guard(head, self.settings.keeps_tombstones, own_child=own_child)
        renew_for = self.settings.lease_ttl if held.is_renewal_due(self.settings.lease_ttl) else None
        lease = held.lease
        return Guard(
            head,
            self.settings.keeps_tombstones,
            lease.fencing_token,
            lease.holder_id,
            renew_for,
            held.asked_at,
            own_child,
        )

    def _remember(self, memory: OrderedDict[K, V], key: K, what: V) -> None:
        with self._lock:
            memory[key] = what
            memory.move_to_end(key)
            while len(memory) > _MOST_REMEMBERED:
                memory.popitem(last=False)
