"""Hooks, which add rows to the transaction and the round trip in which the saver stores a checkpoint."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from langgraph_pgstate.checkpoints.planning import PutPlan

if TYPE_CHECKING:
    from langgraph_pgstate.checkpoints.writes import WritesRequest
from langgraph_pgstate.schema.queries import Statement

_logger = logging.getLogger("langgraph_pgstate")


class PutHook(Protocol):
    """A hook that adds rows to a put. A hook must not use the database itself.

    For a large put, `before_put` is called outside the event loop's thread. Rows added to `plan.journal_entry` are
    stored by the put's own statement. The returned statements must be safe to repeat, because a put may be sent again.
    If the database refuses the data, the checkpoint is stored without the hook's rows, and `after_put` is not called.
    """

    def before_put(self, plan: PutPlan, config: Mapping[str, Any]) -> Sequence[Statement]:
        """Return statements to send after the checkpoint's own rows, in the same transaction. Must not raise."""
        ...

    def after_put(self, plan: PutPlan) -> None:
        """Handle the commit of the checkpoint and of its statements."""
        ...


class PutHooks:
    """Several hooks as one. If a hook raises an error, the error is logged, and the put goes on."""

    def __init__(self, *members: PutHook) -> None:
        self._members = members

    def before_put(self, plan: PutPlan, config: Mapping[str, Any]) -> Sequence[Statement]:
        """Return the statements of all hooks."""
        statements: list[Statement] = []
        for member in self._members:
            try:
                statements += member.before_put(plan, config)
            except Exception:
                _logger.exception("%s: %s is not recorded", type(member).__name__, plan.request.address)
        return statements

    def after_put(self, plan: PutPlan) -> None:
        """Call all hooks."""
        for member in self._members:
            try:
                member.after_put(plan)
            except Exception:
                _logger.exception("%s: after_put failed for %s", type(member).__name__, plan.request.address)

    def before_writes(self, request: WritesRequest) -> Sequence[Statement]:
        """Return the statements of the hooks that have a `before_writes`."""
        return [statement for member in self._members for statement in before_writes(member, request)]

    def after_writes(self, request: WritesRequest) -> None:
        """Call the hooks that have an `after_writes`."""
        for member in self._members:
            after_writes(member, request)

    def forget_thread(self, thread_id: str) -> None:
        """Call the hooks that have a `forget_thread`."""
        for member in self._members:
            forget_thread(member, thread_id)


def before_writes(hook: PutHook | None, request: WritesRequest) -> Sequence[Statement]:
    """Return the statements that a hook adds to the transaction of a task's writes."""
    find = getattr(hook, "before_writes", None)
    found: Sequence[Statement] = () if find is None else find(request)
    return found


def after_writes(hook: PutHook | None, request: WritesRequest) -> None:
    """Call a hook's `after_writes`, if the hook has one. The task's writes must be committed."""
    note = getattr(hook, "after_writes", None)
    if note is not None:
        note(request)


def forget_thread(hook: PutHook, thread_id: str) -> None:
    """Call a hook's `forget_thread`, if the hook has one, because rows of the thread may have been removed."""
    forget = getattr(hook, "forget_thread", None)
    if forget is not None:
        forget(thread_id)
