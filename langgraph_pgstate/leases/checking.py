"""The checks of a lease before its run begins a node, a chain, a tool or a call of a chat model, and their results."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from contextvars import ContextVar
from typing import Any, Final
from uuid import UUID

from langchain_core.callbacks import BaseCallbackHandler

from langgraph_pgstate.errors import LeaseLostError
from langgraph_pgstate.langgraph_compat import run_manager_of
from langgraph_pgstate.leases.registry import HeldLease
from langgraph_pgstate.process_identity import lease_clock

# Minimum number of seconds between two checks for the end of a lease.
_LOOK_SECONDS: Final = 0.01


class ToolStarts:
    """The starts of the tool of one attempt, and of tools that this tool calls.

    The object belongs to a context, so it follows the attempt into tasks and OS threads.
    """

    def __init__(self) -> None:
        self._refusal: LeaseLostError | None = None
        # Whether each tool may start, by run id. If several leases are checked, all checks must allow the start.
        self._is_allowed: dict[UUID, bool] = {}

    def allow(self, run_id: UUID) -> None:
        """Remember that a check has allowed the start of a tool."""
        self._is_allowed.setdefault(run_id, True)

    def refuse(self, run_id: UUID, refusal: LeaseLostError) -> None:
        """Remember that a check has refused the start of a tool."""
        self._refusal = refusal
        self._is_allowed[run_id] = False

    @property
    def refusal(self) -> LeaseLostError | None:
        """The error of the check, if every start was refused so far; `None` if a tool has begun or none was started."""
        return None if any(self._is_allowed.values()) else self._refusal


tool_starts: Final[ContextVar[ToolStarts | None]] = ContextVar("pgstate_tool_starts", default=None)


class LeaseCheck(BaseCallbackHandler):
    """A callback handler that refuses new work when a lease is lost, or was not renewed in time.

    On an event loop, the handler also cancels the tasks of the run's nodes. Code in OS threads goes on until it begins
    a tool, a node or a call of a chat model.

    Args:
        held: The lease.
        root_id: Id of the graph's span. Its children are nodes, whose tasks are cancelled. `None` to cancel the graph's
            own task.
    """

    raise_error = True
    run_inline = True
    ignore_llm = ignore_retriever = ignore_retry = ignore_custom_event = True

    def __init__(self, held: HeldLease, root_id: UUID | None = None) -> None:
        self.held = held
        self.root_id = root_id
        self._tasks: dict[UUID, asyncio.Task[Any]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._cancelled: set[asyncio.Task[Any]] = set()
        held.on_stop.append(self._cancel_soon)

    def on_chain_start(self, *args: Any, run_id: UUID, parent_run_id: UUID | None = None, **kwargs: Any) -> None:
        """Check the lease before a graph, a node or a chain begins. Remember the task of a node."""
        self.held.check_confirmed()
        if parent_run_id == self.root_id:
            with suppress(RuntimeError):
                if (task := asyncio.current_task()) is not None:
                    self._tasks[run_id] = task
                    if self._timer is None:
                        self._look_later(task.get_loop())

    def on_tool_start(self, *args: Any, run_id: UUID, **kwargs: Any) -> None:
        """Check the lease before a tool begins.

        If a tool ledger runs the tool, tell the ledger whether the tool may begin.
        """
        starts = tool_starts.get()
        try:
            self.held.check_confirmed()
        except LeaseLostError as error:
            if starts is not None:
                starts.refuse(run_id, error)
            raise
        if starts is not None:
            starts.allow(run_id)

    def on_chat_model_start(self, *args: Any, **kwargs: Any) -> None:
        """Check the lease before a chat model is called."""
        self.held.check_confirmed()

    def on_chain_end(self, *args: Any, run_id: UUID, **kwargs: Any) -> None:
        """Forget the task of a node."""
        if self._tasks.pop(run_id, None) is not None and not self._tasks:
            self._stop_looking()

    def on_chain_error(self, *args: Any, run_id: UUID, **kwargs: Any) -> None:
        """Forget the task of a node."""
        self.on_chain_end(run_id=run_id)

    def take_back(self, error: BaseException | None) -> bool:
        """Withdraw this handler's cancellations. Return whether only these cancellations ended the run."""
        if not isinstance(error, asyncio.CancelledError) or not self._cancelled:
            return False
        others = [task for task in self._cancelled if not task.done() and task.uncancel()]
        return not others

    def _look_later(self, loop: asyncio.AbstractEventLoop) -> None:
        seconds = max(_LOOK_SECONDS, self.held.confirmed_until - lease_clock())
        self._timer = loop.call_later(seconds, self._look, loop)

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        if self.held.is_confirmed:
            self._look_later(loop)
        else:
            self.held.lose()

    def _stop_looking(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _cancel_soon(self) -> None:
        for task in [*self._tasks.values()]:
            # The event loop may be closed.
            with suppress(RuntimeError):
                task.get_loop().call_soon_threadsafe(self._cancel, task)

    def _cancel(self, task: asyncio.Task[Any]) -> None:
        if task in self._tasks.values() and task not in self._cancelled and task.cancel():
            self._cancelled.add(task)


def check_nodes(loop: Any, held: HeldLease) -> LeaseCheck | None:
    """Check a lease before each node of a run. Return the handler that checks; `None` if the loop is not known."""
    manager = run_manager_of(loop)
    if manager is None:
        return None
    handlers = manager.inheritable_handlers
    known = (one for one in handlers if isinstance(one, LeaseCheck) and one.held is held)
    check = next(known, None) or LeaseCheck(held, manager.run_id)
    # The check comes first, so that no span is recorded for refused work. The list is new, because other code may use
    # the old list.
    manager.inheritable_handlers = [check, *(one for one in handlers if one is not check)]
    return check


def raise_lost(check: LeaseCheck | None, error: BaseException | None) -> None:
    """Raise `LeaseLostError` if a run ended because the check of its lease cancelled the run."""
    if check is not None and check.take_back(error):
        lease = check.held.lease
        raise LeaseLostError(lease.thread_id, lease.fencing_token) from error
