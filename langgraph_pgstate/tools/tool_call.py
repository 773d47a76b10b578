"""One call of a tool, how it ends, and what follows from what is recorded of its action. No I/O."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from langgraph_pgstate.errors import DatabaseError, PGStateError
from langgraph_pgstate.operations.tools.tool_executions import Intent, Recorded
from langgraph_pgstate.process_identity import holder_id, is_known_dead
from langgraph_pgstate.tools.attempts import is_under_way
from langgraph_pgstate.tools.policy import ToolPolicy
from langgraph_pgstate.types import ToolExecution

E = TypeVar("E", bound=PGStateError)


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call of a tool.

    Attributes:
        intent: What is to be recorded.
        policy: What may be done with it.
        act: Runs the tool; answers or raises what it does, or something to await.
        as_answer: Turns what somebody else says the tool answered into what the caller expects.
        is_ahead: Whether the checkpoint that the call was made from may not be stored yet.
        origin_thread_id: The thread the action was begun on first, if it came from there with a fork or a copy.
    """

    intent: Intent
    policy: ToolPolicy
    act: Callable[[], Any]
    as_answer: Callable[[Any], Any] = lambda result: result
    is_ahead: bool = False
    origin_thread_id: str | None = None


class Raised(Exception):
    """Carries what a tool raised out of a transaction, which is rolled back on the way.

    Attributes:
        error: What it raised.
        is_rolled_back: Whether the database rolled it back, so that it is no failure of the tool.
    """

    def __init__(self, error: BaseException, *, is_rolled_back: bool = False) -> None:
        self.error = error
        self.is_rolled_back = is_rolled_back


class Refused(Exception):
    """Carries a tool's error message out of a transaction, which is rolled back on the way."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer


def may_repeat(policy: ToolPolicy) -> bool:
    """Whether what has no outcome may be run again; a transaction that was not committed left nothing behind."""
    return policy.transactional or policy.on_unknown == "retry"


def is_gone(recorded: Recorded) -> bool:
    """Whether nobody runs an action any more: known at once of processes of this machine, in time of others."""
    return is_known_gone(recorded) or (recorded.execution.holder_id != holder_id() and recorded.is_expired)


def is_known_gone(recorded: Recorded) -> bool:
    """Whether nobody runs an action any more, whatever its time says; that the database has to look at itself."""
    execution = recorded.execution
    if execution.status != "running":
        return True
    if execution.holder_id == holder_id():
        return not is_under_way(recorded.intent_id)
    return execution.holder_id is not None and is_known_dead(execution.holder_id)


def undone(error: DatabaseError, tool: str) -> DatabaseError:
    """Return an error that says that a transactional tool was rolled back, and stops its run."""
    error.is_final = True
    say(error, f"{tool} was rolled back, nothing has happened, and it may be run again")
    return error


def say(error: PGStateError, what: str) -> None:
    """Begin an error's message with what became of a tool."""
    error.args = (f"{what}: {error}", *error.args[1:])


def caused(error: E, cause: BaseException) -> E:
    """Return an error with its cause, which it was made for elsewhere than where it is raised."""
    error.__cause__ = cause
    return error


def answers_of(recorded: Recorded, intent: Intent) -> int:
    """How many answers of this very task were used up on an action; those given to a fork's task don't count here."""
    return recorded.answers if recorded.execution.task_id == intent.task_id else 0


def marked(execution: ToolExecution) -> ToolExecution:
    """Return an execution as it is once it is noted that whoever ran it is gone."""
    return replace(execution, status="unknown") if execution.status == "running" else execution


def other_action(call: ToolCall, recorded: Recorded) -> Intent | None:
    """The intent under a key of its own, if what is recorded under its key is another action; else `None`.

    Some providers number their tool calls from 0 in every answer, and a fork may edit what was asked for.
    """
    intent, execution = call.intent, recorded.execution
    if None not in (intent.fingerprint, recorded.fingerprint) and intent.fingerprint != recorded.fingerprint:
        return _under(intent, f"{intent.idempotency_key}@{str(intent.fingerprint)[:12]}")
    if execution.status == "success" and execution.compensated_at is not None:
        # Its effect is no more: to answer what it answered would be a lie.
        return _under(intent, f"{intent.idempotency_key}@{execution.compensated_at.timestamp():.6f}")
    is_over = execution.status in ("success", "error")
    if (
        call.policy.on_replay == "rerun"
        and is_over
        and _place(intent) != (execution.checkpoint_ns, execution.checkpoint_id)
    ):
        return _under(intent, f"{intent.idempotency_key}@{intent.checkpoint_id}")
    return None


def _place(intent: Intent) -> tuple[str | None, str | None]:
    return intent.checkpoint_ns, intent.checkpoint_id


def _under(intent: Intent, key: str) -> Intent | None:
    return None if intent.idempotency_key.endswith(key[key.rindex("@") :]) else replace(intent, idempotency_key=key)
