"""Tool executions and the report of a compensation."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final
from uuid import UUID, uuid5

_TOKENS: Final = UUID("6f1d5f0a-7c2e-4c55-9f43-6a2f1f0e7d10")


def action_token(thread_id: str, tool: str, key: str) -> str:
    """Return the UUID of an action that began on a thread: the same for each attempt, and on forks."""
    return str(uuid5(_TOKENS, f"{thread_id}\0{tool}\0{key}"))


@dataclass(frozen=True, slots=True)
class ToolExecution:
    """One row of `tool_executions`: one action of a tool.

    Attributes:
        thread_id: The thread.
        idempotency_key: Identifies the action. The same key means the same action.
        tool: The tool.
        status: `pending`, `running`, `success`, `error`, `timeout` or `unknown`.
        attempt: Number of attempts.
        agent: The agent.
        tool_call_id: The model's tool call.
        run_id: The run.
        task_id: The task.
        checkpoint_ns: Namespace of the task.
        checkpoint_id: The checkpoint from which its superstep started.
        step: The superstep.
        holder_id: The process of the current or last attempt.
        alive_until: Time until which that process is considered alive; `None` if another one, or a person, found the
            outcome.
        started_at: Start time of the last attempt, by the database's clock.
        ended_at: Time of its outcome.
        arguments: The tool's arguments.
        preview: The beginning of the result, as text.
        error_type: Qualified name of the exception.
        error_message: Message of the exception.
        compensates: Key of the execution that this one compensates.
        compensated_at: Time at which this execution was compensated.
        origin_thread_id: The thread on which the action was first started, if a fork or a copy brought it here.
    """

    thread_id: str
    idempotency_key: str
    tool: str
    status: str
    attempt: int
    agent: str | None
    tool_call_id: str | None
    run_id: str | None
    task_id: str | None
    checkpoint_ns: str | None
    checkpoint_id: str | None
    step: int | None
    holder_id: str | None
    alive_until: datetime | None
    started_at: datetime
    ended_at: datetime | None
    arguments: Any
    preview: str | None
    error_type: str | None
    error_message: str | None
    compensates: str | None
    compensated_at: datetime | None
    origin_thread_id: str | None = None

    @property
    def token(self) -> str:
        """The token that the tool found in `current_execution()`: ask the external system for what it did with it."""
        return action_token(self.origin_thread_id or self.thread_id, self.tool, self.idempotency_key)


@dataclass(frozen=True, slots=True)
class CompensationReport:
    """The outcome of `compensate`. All fields hold original executions, newest first.

    Attributes:
        compensated: Executions compensated by this call.
        failed: Executions whose compensation failed, each with its error. The next call tries again.
        uncovered: Successful executions of tools without a registered compensation.
        unsettled: Executions whose outcome is unknown or still to come. They are left unchanged.
        elsewhere: Executions copied from another thread by a fork or a copy. Compensate them on their own thread.
    """

    compensated: tuple[ToolExecution, ...] = ()
    failed: tuple[tuple[ToolExecution, Exception], ...] = ()
    uncovered: tuple[ToolExecution, ...] = ()
    unsettled: tuple[ToolExecution, ...] = ()
    elsewhere: tuple[ToolExecution, ...] = ()

    @property
    def is_complete(self) -> bool:
        """Whether nothing on this thread needs a person's attention."""
        return not (self.failed or self.uncovered or self.unsettled)
