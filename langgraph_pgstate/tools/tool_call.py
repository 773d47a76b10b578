"""Tool calls, the attempts in progress in this process, and decisions about recorded actions. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeVar

from langchain_core.tools import BaseTool

from langgraph_pgstate.errors import DatabaseError, LeaseLostError, PGStateError
from langgraph_pgstate.leases.starts import ToolStarts
from langgraph_pgstate.process_identity import holder_id, is_known_dead
from langgraph_pgstate.record.types import ToolExecution
from langgraph_pgstate.tools.executions import Intent, Outcome, Recorded
from langgraph_pgstate.tools.executor import Rest
from langgraph_pgstate.tools.policy import ToolPolicy

E = TypeVar("E", bound=PGStateError)

# The methods of a tool that are called before its handlers are.
_STARTING: Final = ("invoke", "ainvoke", "run", "arun")
_MAX_UNRECORDED: Final = 1000

# The attempts in progress in this process, and outcomes that it could not write, for all its ledgers. Changed only by
# single list and dict calls, which are atomic: another thread could hold a lock at a fork. What a forked child inherits
# is harmless there, because it has another holder id.
_under_way: list[str] = []
_unrecorded: dict[str, Outcome] = {}


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call of a tool.

    Attributes:
        intent: The intent to record.
        policy: The tool's policy.
        act: Runs the tool. Returns or raises its outcome, or returns an awaitable.
        as_answer: Converts a result given by a person or a check to the form that the caller expects.
        is_ahead: Whether the checkpoint from which the call was made may not be stored yet.
        is_saved: Whether it is certain that the checkpoint of the root graph will be stored in the ledger's schema.
        origin_thread_id: The thread on which the action was first started, if a fork or a copy brought it here.
        is_blocking: Whether the tool is a blocking function, which an event loop runs in a thread.
        is_counted: Whether the action is the n-th equal call in its task.
        is_announced: Whether no code of the tool runs before LangChain has called the handlers of its start.
        starts: The starts of tools in the present attempt.
    """

    intent: Intent
    policy: ToolPolicy
    act: Callable[[], Any]
    as_answer: Callable[[Any], Any] = lambda result: result
    is_ahead: bool = False
    is_saved: bool = False
    origin_thread_id: str | None = None
    is_blocking: bool = False
    is_counted: bool = False
    is_announced: bool = False
    starts: ToolStarts = field(default_factory=ToolStarts)

    @property
    def refusal(self) -> LeaseLostError | None:
        """The error of the check of a lease that has kept the tool from beginning in this attempt, else `None`."""
        return self.starts.refusal if self.is_announced else None


class Raised(Exception):
    """A carrier of a tool's exception out of a transaction, which is rolled back on the way.

    Attributes:
        error: The exception.
        is_rolled_back: Whether the database rolled the tool back, so that the error is not the tool's failure.
        rest: The tool itself, if the exception is that of a caller who has stopped waiting for it.
    """

    def __init__(self, error: BaseException, *, is_rolled_back: bool = False, rest: Rest | None = None) -> None:
        self.error = error
        self.is_rolled_back = is_rolled_back
        self.rest = rest


class Refused(Exception):
    """A carrier of a tool's error message out of a transaction, which is rolled back on the way."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer


def is_announced(tool: Any) -> bool:
    """Return whether no code of a tool runs before LangChain has called the handlers of its start."""
    return isinstance(tool, BaseTool) and all(
        getattr(type(tool), name).__module__.startswith("langchain_core.") for name in _STARTING
    )


def may_repeat(policy: ToolPolicy) -> bool:
    """Return whether an action without outcome may be run again. An uncommitted transaction had no effect."""
    return policy.transactional or policy.on_unknown == "retry"


def is_gone(recorded: Recorded) -> bool:
    """Return whether the process that ran an action is dead or its liveness has expired, so that nothing runs it."""
    return is_known_gone(recorded) or (recorded.execution.holder_id != holder_id() and recorded.is_expired)


def is_known_gone(recorded: Recorded) -> bool:
    """Return whether it is certain that nothing runs an action, without waiting for the liveness to expire."""
    execution = recorded.execution
    if execution.status != "running":
        return True
    if execution.holder_id == holder_id():
        return not is_under_way(recorded.intent_id)
    return execution.holder_id is not None and is_known_dead(execution.holder_id)


def undone(error: DatabaseError, tool: str) -> DatabaseError:
    """Return an error which says that a transactional tool was rolled back, and which ends the run."""
    error.is_final = True
    say(error, f"{tool} was rolled back, it had no effect, and may be run again")
    return error


def say(error: PGStateError, what: str) -> None:
    """Prefix an error's message with the state of a tool."""
    error.args = (f"{what}: {error}", *error.args[1:])


def tool_error(kind: Callable[..., Any], intent: Intent, *more: Any) -> Any:
    """Return an error about an action."""
    return kind(intent.tool, intent.thread_id, intent.idempotency_key, *more)


def caused(error: E, cause: BaseException) -> E:
    """Return an error with its cause set, for errors that are raised elsewhere."""
    error.__cause__ = cause
    return error


def answers_of(recorded: Recorded, intent: Intent) -> int:
    """Return the number of this task's answers used up by an action. Those of a forked task do not count."""
    return recorded.answers if recorded.execution.task_id == intent.task_id else 0


def marked(execution: ToolExecution) -> ToolExecution:
    """Return an execution with the status it has once its process is known to be gone."""
    return replace(execution, status="unknown") if execution.status == "running" else execution


def other_action(call: ToolCall, recorded: Recorded) -> Intent | None:
    """Return an intent under a key of its own if the recorded action is a different one, else `None`.

    Some providers number their tool calls from 0 in every response, and a fork may edit the requested call.
    """
    intent, execution = call.intent, recorded.execution
    if None not in (intent.fingerprint, recorded.fingerprint) and intent.fingerprint != recorded.fingerprint:
        return _under(intent, f"{intent.idempotency_key}@{str(intent.fingerprint)[:12]}")
    if execution.status == "success" and execution.compensated_at is not None:
        # Its effect was compensated, so the recorded result is no longer valid.
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


@contextmanager
def under_way(intent_id: str) -> Iterator[None]:
    """Mark an attempt as in progress, from before its intent is sent until its outcome is recorded or given up.

    The blocks of one attempt may overlap.
    """
    _under_way.append(intent_id)
    try:
        yield
    finally:
        _under_way.remove(intent_id)


def is_under_way(intent_id: str | None) -> bool:
    """Return whether an attempt is in progress in this process."""
    return intent_id in _under_way


def keep_outcome(intent_id: str, outcome: Outcome) -> None:
    """Keep an outcome that could not be written for the action's next call. The oldest are dropped."""
    _unrecorded[intent_id] = outcome
    for oldest in list(_unrecorded)[: max(0, len(_unrecorded) - _MAX_UNRECORDED)]:
        _unrecorded.pop(oldest, None)


def kept_outcome(intent_id: str | None) -> Outcome | None:
    """Return the outcome of an attempt that could not be written, or `None`."""
    return None if intent_id is None else _unrecorded.get(intent_id)


def drop_outcome(intent_id: str) -> None:
    """Drop an outcome that was written or that no longer counts."""
    _unrecorded.pop(intent_id, None)
