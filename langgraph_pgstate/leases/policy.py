"""What a saver's next write rests on, by its settings and by what its own runs have done."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final, TypeVar

from langgraph_pgstate.call_site import run_of
from langgraph_pgstate.errors import CheckpointOrderError, StaleHeadError
from langgraph_pgstate.leases.registry import HeldLease
from langgraph_pgstate.operations.checkpoints.addresses import Address
from langgraph_pgstate.operations.checkpoints.requests import PutRequest
from langgraph_pgstate.operations.leases.guards import Guard, is_explicit_fork, names_past
from langgraph_pgstate.settings import GuardSettings

K = TypeVar("K")
V = TypeVar("V")

_MOST_REMEMBERED: Final = 4096


class GuardPolicy:
    """What a saver's writes rest on, by its settings and by what its own runs have done. Safe to share between threads.

    Args:
        settings: Which writes are refused.
    """

    def __init__(self, settings: GuardSettings) -> None:
        self.settings = settings
        # By run, which is kept so that no other object gets its id: several may try to advance one checkpoint.
        self._advances: OrderedDict[tuple[Address, int], tuple[str, Any]] = OrderedDict()
        self._refused: OrderedDict[Address, StaleHeadError | CheckpointOrderError] = OrderedDict()
        self._lock = threading.Lock()

    def before_put(self, request: PutRequest, config: Mapping[str, Any], held: HeldLease | None) -> Guard:
        """What a checkpoint rests on.

        Args:
            request: The put.
            config: Its config.
            held: The lease it is made under.
        """
        head = self._guards_head(held) and not is_explicit_fork(config, request.labels.get("source"))
        run = run_of(config)
        if head and request.parent is not None and run is not None:
            # Before it is sent: what its run's tasks have still to write may come at the same time.
            advance = (str(request.address.checkpoint_id), run)
            self._remember(self._advances, (request.parent, id(run)), advance)
        return self._guard(head, held)

    def before_writes(self, address: Address, config: Mapping[str, Any], held: HeldLease | None) -> Guard:
        """What a task's writes rest on.

        Raises:
            StaleHeadError: If the checkpoint they belong to was refused.
            CheckpointOrderError: If the checkpoint they belong to was refused for its id.
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
        """What a task's writes rest on if they were refused for what their own run has done; else `None`.

        They may arrive after the checkpoint that has them in its state: LangGraph waits for neither.
        """
        own = self._own_child(address, config)
        return None if own is None or own == guard.own_child else replace(guard, own_child=own)

    def _own_child(self, address: Address, config: Mapping[str, Any]) -> str | None:
        with self._lock:
            child_id, _ = self._advances.get((address, id(run_of(config))), (None, None))
        return child_id

    def note_refused(self, address: Address, error: StaleHeadError | CheckpointOrderError) -> None:
        """A checkpoint was refused: what its tasks still write is refused, too."""
        self._remember(self._refused, address, error)

    def _guards_head(self, held: HeldLease | None) -> bool:
        # Whoever took the lease after it had read does not know what happened between.
        return self.settings.head or (held is not None and not held.is_read_first)

    def _guard(self, head: bool, held: HeldLease | None, own_child: str | None = None) -> Guard:
        if held is None:
            return Guard(head, self.settings.keeps_tombstones, own_child=own_child)
        renew_for = self.settings.lease_ttl if held.is_renewal_due(self.settings.lease_ttl) else None
        lease = held.lease
        return Guard(head, self.settings.keeps_tombstones, lease.fencing_token, lease.holder_id, renew_for, own_child)

    def _remember(self, memory: OrderedDict[K, V], key: K, what: V) -> None:
        with self._lock:
            memory[key] = what
            memory.move_to_end(key)
            while len(memory) > _MOST_REMEMBERED:
                memory.popitem(last=False)
