"""Executions of tools, and the report of a compensation."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any


@dataclass(frozen=True, slots=True)
class ToolExecution:
    """One row of `tool_executions`: one intended effect.

    Attributes:
        thread_id: The thread.
        idempotency_key: What the action is; the same key is the same action.
        tool: The tool.
        status: `pending`, `running`, `success`, `error`, `timeout` or `unknown`.
        attempt: How often it was begun.
        agent: The agent.
        tool_call_id: The model's tool call.
        run_id: The run.
        task_id: The task.
        checkpoint_ns: Namespace of the task.
        checkpoint_id: The checkpoint its superstep started from.
        step: The superstep.
        holder_id: The process that runs it, or ran it last.
        alive_until: Until when that process may be taken to be alive.
        started_at: Time of the last attempt's intent, by the database's clock.
        ended_at: Time of its outcome.
        arguments: What the tool was called with.
        preview: The beginning of its result, as text.
        error_type: Qualified name of the exception.
        error_message: Its message.
        compensates: Key of the execution that this one takes back.
        compensated_at: When this one was taken back.
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


@dataclass(frozen=True, slots=True)
class CompensationReport:
    """What `compensate` took back, and what it could not. All are the original executions, newest first.

    Attributes:
        compensated: Taken back now.
        failed: With the error of each compensation that failed; they are tried again by the next call.
        uncovered: Successes of tools for which no compensation is registered.
        unsettled: Executions whose outcome is unknown or still to come; nothing was done about them.
        elsewhere: Executions that came along with a fork or a copy; the thread they were made on takes them back.
    """

    compensated: tuple[ToolExecution, ...] = ()
    failed: tuple[tuple[ToolExecution, Exception], ...] = ()
    uncovered: tuple[ToolExecution, ...] = ()
    unsettled: tuple[ToolExecution, ...] = ()
    elsewhere: tuple[ToolExecution, ...] = ()

    @property
    def is_complete(self) -> bool:
        """Whether nothing is left on this thread that anybody would have to look at."""
        return not (self.failed or self.uncovered or self.unsettled)
