"""Actions that are recorded already: the next step that follows from the record, and a person's decision.

Blocking and async callers share this code. It awaits only its executor and a connection.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final

from langgraph.errors import GraphBubbleUp

from langgraph_pgstate.codec.values import ValueCodec
from langgraph_pgstate.errors import (
    AlreadySettledError,
    ConfigurationError,
    NotFoundError,
    PGStateError,
    ToolFailedError,
    ToolOutcomeUnknownError,
)
from langgraph_pgstate.process_identity import holder_id, is_known_dead
from langgraph_pgstate.record.types import ToolExecution
from langgraph_pgstate.tools import executions as tool_executions
from langgraph_pgstate.tools.executions import ALL_ANSWERS, Intent, Outcome, Recorded
from langgraph_pgstate.tools.executor import Executor, is_under_way
from langgraph_pgstate.tools.intents import ToolCall, new_intent_id
from langgraph_pgstate.tools.interrupts import DECISIONS, answers_given, ask, skip_answers
from langgraph_pgstate.tools.policy import Happened, ToolSettings
from langgraph_pgstate.tools.results import ParentAnswer, restore, success

GIVEN_UP: Final = "decision"
"""The error type of an action that a person has given up. No exception has this type."""


@dataclass(frozen=True, slots=True)
class TakeOver:
    """The next step of an action that neither succeeded nor is running: another attempt may begin.

    Attributes:
        seen: The action's record, which must not have changed.
        answers: Number of the task's resume values used so far.
    """

    seen: Recorded
    answers: int


class RecordedActions:
    """The rules by which an `ActionRunner` treats actions that are recorded already."""

    def __init__(self, executor: Executor, codec: ValueCodec, settings: ToolSettings) -> None:
        self._executor, self._codec, self._settings = executor, codec, settings

    async def source_of(self, recorded: Recorded) -> Recorded | None:
        """Return the same attempt as the thread has it on which it runs, if a fork or copy was made while it ran.

        No process writes the outcome into the rows of forks and copies. Without such an attempt, return `None`.
        """
        execution = recorded.execution
        if execution.origin_thread_id is None or execution.status not in ("running", "unknown"):
            return None
        key = execution.origin_thread_id, execution.idempotency_key
        source = await self._executor.run_or_stop(tool_executions.get, *key)
        if source is None or source.intent_id != recorded.intent_id or source.execution.compensated_at is not None:
            return None
        return source

    async def adopt(self, recorded: Recorded, source: Recorded) -> bool:
        """Store the outcome that an action of a fork or copy has on its source thread. Return whether it has one."""
        found = source.execution
        if found.status not in ("success", "error", "pending"):
            return False
        outcome = Outcome(
            found.status, source.result_type, source.result, found.preview, found.error_type, found.error_message
        )
        await self._executor.run_or_stop(
            tool_executions.settle, recorded, outcome, new_intent_id(), is_gone=True, answers=recorded.answers
        )
        return True

    async def next_step(self, call: ToolCall, recorded: Recorded) -> TakeOver | Happened | None:
        """Return the next step from the record of an action that no process runs.

        Returns:
            Another attempt, or the recorded outcome; `None` if the record has changed and must be read again.

        Raises:
            ToolOutcomeUnknownError: If the action's outcome is unknown, and its policy leaves the decision to a person.
            ToolFailedError: If the action failed before, and its policy does not run it again.
        """
        execution, policy, answers = recorded.execution, call.policy, answers_of(recorded, call.intent)
        if answers == ALL_ANSWERS:
            answers = answers_given()
            is_over = execution.status in ("success", "error")
            if is_over and not await self._executor.run_or_stop(tool_executions.note_answers, recorded, answers):
                return None
        if execution.status == "success":
            skip_answers(answers)
            result = self._restore(recorded)
            return Happened(result if isinstance(result, ParentAnswer) else call.as_answer(result))
        if execution.status == "pending":
            # The action starts again, for example because it stopped at its own interrupt. Skip the answers that were
            # used before the action, so that the action's interrupts get the later answers.
            skip_answers(answers)
            return TakeOver(recorded, answers)
        if execution.status == "error":
            is_given_up = execution.error_type == GIVEN_UP
            if policy.on_error == "retry" and execution.attempt < policy.retry.attempts and not is_given_up:
                return TakeOver(recorded, answers)
            skip_answers(answers)
            if recorded.result is not None:
                return Happened(self._restore(recorded))
            raise call.intent.error(ToolFailedError, execution.error_type, execution.error_message)
        if policy.may_repeat:
            return TakeOver(recorded, answers)
        marking = self._executor.run_or_stop(tool_executions.mark_unknown, recorded, is_gone=is_known_gone(recorded))
        if not await marking:
            return None
        if execution.status == "running":
            recorded = replace(recorded, execution=replace(execution, status="unknown"))
        if policy.on_unknown == "check":
            return await self._check(call, recorded, answers)
        if policy.on_unknown == "ask":
            return await self._ask(call, recorded)
        raise call.intent.error(ToolOutcomeUnknownError)

    def _restore(self, recorded: Recorded) -> Any:
        """Return a recorded result. An error in reading it ends the run, because a model must not repeat the action."""
        try:
            return restore(self._codec, recorded)
        except PGStateError as error:
            error.is_final = True
            raise

    async def _check(self, call: ToolCall, recorded: Recorded, answers: int) -> TakeOver | Happened | None:
        """Call the policy's `check` to find out whether the action took effect."""
        check = call.policy.check
        assert check is not None
        try:
            answer = await self._executor.call(lambda: check(recorded.execution))
        except Exception as error:
            if isinstance(error, GraphBubbleUp):
                raise
            raise call.intent.error(ToolOutcomeUnknownError, f", and its check failed ({error})") from error
        if answer is None:
            raise call.intent.error(ToolOutcomeUnknownError, ", and its check cannot tell whether it took effect")
        if answer is False:
            return TakeOver(recorded, answers)
        if answer is not True and not isinstance(answer, Happened):
            why = f", and its check returned {answer!r}, which is not a valid answer"
            raise call.intent.error(ToolOutcomeUnknownError, why)
        happened = answer if isinstance(answer, Happened) else Happened()
        if recorded.execution.attempt > 1 and recorded.execution.task_id == call.intent.task_id:
            # This task was run again, and has not got beyond this action. So this action and earlier actions have used
            # all answers that the task has.
            answers = max(answers, answers_given())
            skip_answers(answers)
        return await self._conclude(call, recorded, happened, answers)

    async def _ask(self, call: ToolCall, recorded: Recorded) -> TakeOver | Happened | None:
        """Ask a person through an interrupt."""
        execution = recorded.execution
        used, open_ids = 0, [f"{execution.idempotency_key}#{execution.attempt}"]
        if call.intent.task_id:
            used, found = await self._executor.run_or_stop(
                tool_executions.task_interrupts, execution.thread_id, call.intent.task_id
            )
            # `found` lacks this execution if another task began it, before a fork.
            open_ids = sorted({*found, *open_ids})
        try:
            decision, result, answers = ask(execution, used, open_ids)
        except RuntimeError as error:
            why = f", and no graph is running here to ask a person through an interrupt ({error})"
            raise call.intent.error(ToolOutcomeUnknownError, why) from error
        if decision == "retry":
            return TakeOver(recorded, answers)
        if decision == "done":
            return await self._conclude(call, recorded, Happened(result), answers)
        if await self._settle(recorded, self._decided(recorded, decision, result), answers):
            raise call.intent.error(ToolFailedError, GIVEN_UP, "a person settled it as failed")
        return None

    async def _conclude(self, call: ToolCall, recorded: Recorded, happened: Happened, answers: int) -> Happened | None:
        """Record that an action took effect."""
        answer = call.as_answer(happened.result)
        outcome = success(self._codec, self._settings, call.intent.tool, answer)
        return Happened(answer) if await self._settle(recorded, outcome, answers) else None

    async def settle(
        self,
        thread_id: str,
        key: str,
        decision: str,
        result: Any,
        by: str | None = None,
        seen: ToolExecution | None = None,
    ) -> None:
        """Store a person's decision about an action that no live process runs.

        Raises:
            ConfigurationError: If the decision is invalid.
            AlreadySettledError: If the action is running, has succeeded, or differs from `seen`. Without `seen`, also
                if it was settled and not called since.
            NotFoundError: If there is no such action.
            ThreadArchivedError: If the thread is archived.
        """
        if decision not in DECISIONS:
            raise ConfigurationError(f"decision must be one of {', '.join(DECISIONS)}, not {decision!r}")
        recorded = await self._executor.run_or_stop(tool_executions.find, thread_id, key)
        if recorded is None:
            raise NotFoundError(f"thread {thread_id!r} has no tool execution {key!r}")
        status = recorded.execution.status
        if status == "success" or is_running(recorded):
            reason = f"cannot be settled: its status is {status}"
            raise AlreadySettledError(thread_id, key, recorded.execution.tool, reason)
        if seen is None and status in ("pending", "error") and recorded.execution.alive_until is None:
            why = (
                f"has been settled: its status is {status}. To change the decision, pass the action of `get` as seen=, "
                "or give --again to `pgstate settle`"
            )
            raise AlreadySettledError(thread_id, key, recorded.execution.tool, why)
        is_same = seen is None or seen == recorded.execution
        # If the task waits in an interrupt of this action, the task's next answer belongs to this interrupt, and not to
        # a later one. After a failed action, the task may have continued beyond the action.
        answers = recorded.answers if status == "error" else ALL_ANSWERS
        if not is_same or not await self._settle(recorded, self._decided(recorded, decision, result), answers, by):
            raise AlreadySettledError(thread_id, key, recorded.execution.tool, "has just changed; read it again")

    def _decided(self, recorded: Recorded, decision: str, result: Any) -> Outcome:
        if decision == "done":
            return success(self._codec, self._settings, recorded.execution.tool, result)
        if decision == "retry":
            return Outcome("pending")
        return Outcome("error", error_type=GIVEN_UP, error_message="a person settled it as failed")

    async def _settle(self, recorded: Recorded, outcome: Outcome, answers: int, by: str | None = None) -> bool:
        return await self._executor.run_or_stop(
            tool_executions.settle,
            recorded,
            outcome,
            new_intent_id(),
            is_gone=is_known_gone(recorded),
            answers=answers,
            by=by,
        )


def is_running(recorded: Recorded) -> bool:
    """Return whether a live process runs an action."""
    return recorded.execution.status == "running" and not is_gone(recorded)


def is_gone(recorded: Recorded) -> bool:
    """Return whether no process runs an action, because its process is dead or its `alive_until` has passed."""
    return is_known_gone(recorded) or (recorded.execution.holder_id != holder_id() and recorded.is_expired)


def is_known_gone(recorded: Recorded) -> bool:
    """Return whether it is certain that no process runs an action, even if its `alive_until` has not passed."""
    execution = recorded.execution
    if execution.status != "running":
        return True
    if execution.holder_id == holder_id():
        return not is_under_way(recorded.intent_id)
    return execution.holder_id is not None and is_known_dead(execution.holder_id)


def answers_of(recorded: Recorded, intent: Intent) -> int:
    """Return the number of this task's answers that an action has used. Answers of a forked task do not count."""
    return recorded.answers if recorded.execution.task_id == intent.task_id else 0


def other_action(call: ToolCall, recorded: Recorded) -> Intent | None:
    """Return an intent under a new key if the recorded action is a different action, else `None`.

    Different actions may have the same key: some providers number their tool calls from 0 in every response, and a fork
    may edit the requested call.
    """
    intent, execution = call.intent, recorded.execution
    if None not in (intent.fingerprint, recorded.fingerprint) and intent.fingerprint != recorded.fingerprint:
        return _under(intent, f"{intent.idempotency_key}@{str(intent.fingerprint)[:12]}")
    if execution.status == "success" and execution.compensated_at is not None:
        # The recorded effect was compensated, so the recorded result is no longer valid.
        return _under(intent, f"{intent.idempotency_key}@{execution.compensated_at.timestamp():.6f}")
    is_over = execution.status in ("success", "error")
    is_elsewhere = (intent.checkpoint_ns, intent.checkpoint_id) != (execution.checkpoint_ns, execution.checkpoint_id)
    if call.policy.on_replay == "rerun" and is_over and is_elsewhere:
        return _under(intent, f"{intent.idempotency_key}@{intent.checkpoint_id}")
    return None


def _under(intent: Intent, key: str) -> Intent | None:
    return None if intent.idempotency_key.endswith(key[key.rindex("@") :]) else replace(intent, idempotency_key=key)
