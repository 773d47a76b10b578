"""Execution of one action: its intent, its attempts, and what happens if it is already recorded.

Blocking and async callers share this code. It awaits only its executor and a connection.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable
from dataclasses import replace
from typing import Any, TypeVar

from langgraph.errors import GraphBubbleUp, ParentCommand

from langgraph_pgstate.codec.values import ValueCodec
from langgraph_pgstate.errors import (
    AlreadySettledError,
    ConfigurationError,
    DatabaseError,
    NotFoundError,
    PGStateError,
    SchemaError,
    ToolBusyError,
    ToolFailedError,
    ToolOutcomeUnknownError,
    ToolSetupError,
    UnavailableError,
)
from langgraph_pgstate.process_identity import holder_id, lease_clock
from langgraph_pgstate.record.types import ToolExecution
from langgraph_pgstate.schema.queries import Queries
from langgraph_pgstate.tools import executions as tool_executions
from langgraph_pgstate.tools.attempt_runner import AttemptRunner
from langgraph_pgstate.tools.executions import Intent, Outcome, Recorded
from langgraph_pgstate.tools.executor import Executor
from langgraph_pgstate.tools.intents import new_intent_id, repeat_next, running_execution
from langgraph_pgstate.tools.interrupts import DECISIONS, answers_given, ask, skip_answers
from langgraph_pgstate.tools.policy import Happened, ToolSettings
from langgraph_pgstate.tools.results import ParentAnswer, for_call, masked, reference_to, restore, success
from langgraph_pgstate.tools.tool_call import (
    ToolCall,
    answers_of,
    drop_outcome,
    is_gone,
    is_known_gone,
    keep_outcome,
    kept_outcome,
    marked,
    may_repeat,
    other_action,
    say,
    tool_error,
    under_way,
)

_FIRST_PAUSE, _LONGEST_PAUSE = 0.02, 1.0
_LONGEST_CATCH_UP = 2.0

T = TypeVar("T")

_log = logging.getLogger(__name__)


class ActionRunner:
    """The rules of the tool ledger, on top of an executor."""

    def __init__(self, executor: Executor, queries: Queries, codec: ValueCodec, settings: ToolSettings) -> None:
        self.executor = executor
        self._codec, self._settings = codec, settings
        self._attempts = AttemptRunner(executor, queries, codec, settings)
        # Namespaces whose checkpoints seem not to be stored, by their graphs' names.
        self._unsaved: set[str] = set()

    async def perform(self, call: ToolCall) -> Any:
        """Run a tool, or return the recorded result if the same action was run before.

        Raises:
            ToolOutcomeUnknownError: If its outcome is unknown, and its policy leaves the decision to a person.
            ToolFailedError: If it failed before, and its policy does not run it again.
            ToolBusyError: If another live process runs it for longer than this call waits.
            ToolTimeoutError: If it takes too long.
            ToolOvertakenError: If another process took it over while it ran.
            ToolSetupError: If the setup of the tool does not match its ledger or graph.
        """
        if call.policy.transactional and call.policy.timeout is not None and self.executor.is_borrowed:
            raise ToolSetupError(
                f"{call.intent.tool} is transactional and has a timeout, which closes its connection; that cannot be "
                "the ledger's only connection. Give a pool or a DSN"
            )
        try:
            return await self.executor.cancelled_once(self._perform(call))
        except BaseException as error:
            is_over = isinstance(error, Exception) and not (isinstance(error, PGStateError) and error.is_final)
            if call.is_counted and not is_over:
                # Code of the task may call again, and must not act beside or after this attempt.
                repeat_next(call.intent.idempotency_key)
            raise

    async def _perform(self, call: ToolCall) -> Any:
        if call.is_ahead:
            await self._before(call.intent, self._catch_up(call.intent, call.is_saved))
        while True:
            with under_way(call.intent.intent_id):
                call, answer = await self._decide(call)
            if answer is not None:
                return self._present(call, answer.result)
            # It failed, and its policy runs it again.
            call = replace(call, intent=replace(call.intent, intent_id=new_intent_id()))

    async def _decide(self, call: ToolCall) -> tuple[ToolCall, Happened | None]:
        """Run a tool, or return the recorded outcome; `None` means that the tool is to be run again."""
        waited, pause = 0.0, _FIRST_PAUSE
        while True:
            asked_at = lease_clock()
            attempt, recorded = await self._begin(call.intent)
            if recorded is not None:
                other = other_action(call, recorded)
                if other is not None:
                    call = replace(call, intent=other, origin_thread_id=None)
                    continue
                outer = running_execution.get()
                if outer is not None and (outer.thread_id, outer.key) == (
                    call.intent.thread_id,
                    call.intent.idempotency_key,
                ):
                    raise ToolSetupError(f"{outer.tool} calls itself as the same action, {outer.key!r}")
                if recorded.execution.status == "running" and not is_gone(recorded):
                    if waited >= self._settings.wait_seconds:
                        raise tool_error(ToolBusyError, call.intent, f"is being run by {recorded.execution.holder_id}")
                    await self.executor.sleep(pause)
                    waited, pause = waited + pause, min(pause * 2, _LONGEST_PAUSE)
                    continue
                if recorded.execution.status == "success":
                    skip_answers(answers_of(recorded, call.intent))
                    result = self._restore(recorded)
                    return call, Happened(result if isinstance(result, ParentAnswer) else call.as_answer(result))
                if await self._write_kept(call.intent, recorded):
                    continue
                call = replace(call, origin_thread_id=recorded.execution.origin_thread_id)
                attempt, answer = await self._resume(call, recorded)
                if answer is not None:
                    return call, answer
                if not attempt:
                    continue
            if await self._is_alive(call.intent, asked_at):
                return call, await self._attempts.attempt(call, attempt)

    async def _is_alive(self, intent: Intent, asked_at: float) -> bool:
        """Return whether others still take an attempt for alive, however late its intent was confirmed.

        Args:
            intent: The attempt, which was recorded.
            asked_at: When that was asked for, at the earliest, by `lease_clock`.
        """
        while lease_clock() - asked_at > self._settings.ttl_seconds / 2:
            asked_at = lease_clock()
            attempts = {intent.intent_id: intent.idempotency_key}
            renewing = self._attempts.run(tool_executions.renew, intent.thread_id, attempts, self._settings.ttl_seconds)
            if not await self._before(intent, self._unless_stopped(intent, renewing)):
                return False
        return True

    async def _begin(self, intent: Intent) -> tuple[int, Recorded | None]:
        begun = self._attempts.run(tool_executions.begin, intent, holder_id(), self._settings.ttl_seconds)
        return await self._before(intent, self._unless_stopped(intent, begun))

    async def _before(self, intent: Intent, preparing: Awaitable[T]) -> T:
        """Await a step before the tool runs, and note in an error that the tool was not started."""
        try:
            return await preparing
        except (DatabaseError, SchemaError) as error:
            say(error, f"this attempt at {intent.tool} ({intent.idempotency_key!r}) was not started, it had no effect")
            raise

    async def _unless_stopped(self, intent: Intent, writing: Awaitable[T]) -> T:
        """Write an intent. On an error or cancellation the tool is not started, although the intent may be stored."""
        try:
            written = await writing
            self.executor.raise_if_cancelled()
            return written
        except DatabaseError:
            keep_outcome(intent.intent_id, Outcome("pending"))
            raise
        except Exception:
            raise
        except BaseException:
            await self._attempts.write_quietly(intent, Outcome("pending"))
            raise

    async def _write_kept(self, intent: Intent, recorded: Recorded) -> bool:
        """Write an outcome that this process could not write before. Return whether there was one."""
        outcome = kept_outcome(recorded.intent_id)
        if recorded.intent_id is None or outcome is None:
            return False
        if recorded.execution.status in ("running", "unknown"):
            await self._attempts.write(replace(intent, intent_id=recorded.intent_id), outcome)
        drop_outcome(recorded.intent_id)
        return True

    def _restore(self, recorded: Recorded) -> Any:
        """Return a recorded result. An error in reading it ends the run: a model must not repeat the action."""
        try:
            return restore(self._codec, recorded)
        except PGStateError as error:
            error.is_final = True
            raise

    async def _catch_up(self, intent: Intent, is_saved: bool) -> None:
        """Wait until the checkpoint from which a call was made is stored.

        If the process died before that, the model would be called again, and would repeat the tool call under another
        id. A task would be another one, too.

        Raises:
            UnavailableError: If a checkpoint that will be stored has not been stored after `wait_seconds`, or two
                seconds if that is less.
        """
        names = "|".join(part.partition(":")[0] for part in (intent.checkpoint_ns or "").split("|"))
        is_certain = is_saved and not names
        waited, pause = 0.0, _FIRST_PAUSE / 40
        while not await self._attempts.run(tool_executions.is_reached, intent):
            if is_certain and waited >= max(self._settings.wait_seconds, _LONGEST_CATCH_UP):
                error = UnavailableError(
                    f"checkpoint {intent.checkpoint_id!r} of thread {intent.thread_id!r} is not stored, {waited:.0f} "
                    "seconds after its tools were called"
                )
                error.is_final = True
                raise error
            if is_certain:
                pass
            elif names in self._unsaved:
                return
            elif waited >= _LONGEST_CATCH_UP:
                # A subgraph without a checkpointer, or a checkpointer on another database.
                self._unsaved.add(names)
                _log.warning(
                    "%s runs although checkpoint %r of thread %r is not stored: if this process dies, the call may be "
                    "repeated as a new action",
                    intent.tool,
                    intent.checkpoint_id,
                    intent.thread_id,
                )
                return
            await self.executor.sleep(pause)
            waited, pause = waited + pause, min(pause * 2, _FIRST_PAUSE * 5)
        # It was only late before.
        self._unsaved.discard(names)

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
            AlreadySettledError: If the action is running, has succeeded, or is another than `seen`.
            NotFoundError: If there is no such action.
        """
        if decision not in DECISIONS:
            raise ConfigurationError(f"decision {decision!r}: it must be one of {', '.join(DECISIONS)}")
        recorded = await self._attempts.run(tool_executions.get, thread_id, key)
        if recorded is None:
            raise NotFoundError(f"thread {thread_id!r} has no tool execution {key!r}")
        status = recorded.execution.status
        if status == "success" or (status == "running" and not is_gone(recorded)):
            reason = f"is not unknown: its status is {status}"
            raise AlreadySettledError(thread_id, key, recorded.execution.tool, reason)
        is_same = seen is None or seen == recorded.execution
        if not is_same or not await self._settle(
            recorded, self._decided(recorded, decision, result), recorded.answers, by
        ):
            raise AlreadySettledError(thread_id, key, recorded.execution.tool, "has just changed; read it again")

    async def _resume(self, call: ToolCall, recorded: Recorded) -> tuple[int, Happened | None]:
        """Return the next attempt at an action that neither succeeded nor is running, or its recorded outcome.

        Returns:
            The number of the attempt that may begin now, or the recorded outcome. Neither if the record has changed and
            must be read again.
        """
        execution, policy = recorded.execution, call.policy
        if execution.status == "pending":
            # It stopped at an interrupt of its own and starts again. Its interrupts are counted from here.
            skip_answers(answers_of(recorded, call.intent))
            return await self._take_over(call, recorded), None
        if execution.status == "error":
            if policy.on_error == "retry" and execution.attempt < policy.retry.attempts:
                return await self._take_over(call, recorded), None
            skip_answers(answers_of(recorded, call.intent))
            if recorded.result is not None:
                return 0, Happened(self._restore(recorded))
            raise tool_error(ToolFailedError, call.intent, execution.error_type, execution.error_message)
        if may_repeat(policy):
            return await self._take_over(call, recorded), None
        if not await self._attempts.run(tool_executions.mark_unknown, recorded, is_gone=is_known_gone(recorded)):
            return 0, None
        recorded = replace(recorded, execution=marked(recorded.execution))
        if policy.on_unknown == "check":
            return await self._check(call, recorded)
        if policy.on_unknown == "ask":
            return await self._ask(call, recorded)
        raise tool_error(ToolOutcomeUnknownError, call.intent)

    async def _check(self, call: ToolCall, recorded: Recorded) -> tuple[int, Happened | None]:
        """Call the policy's `check` to find out whether the action took effect."""
        check = call.policy.check
        assert check is not None
        try:
            answer = await self.executor.call(lambda: check(recorded.execution))
        except Exception as error:
            if isinstance(error, GraphBubbleUp):
                raise
            raise tool_error(ToolOutcomeUnknownError, call.intent, f", and its check failed ({error})") from error
        if answer is None:
            raise tool_error(ToolOutcomeUnknownError, call.intent, ", and its check cannot tell whether it took effect")
        if answer is False:
            return await self._take_over(call, recorded), None
        if answer is not True and not isinstance(answer, Happened):
            raise tool_error(
                ToolOutcomeUnknownError,
                call.intent,
                f", and its check returned {answer!r}, which is not a valid answer",
            )
        happened = answer if isinstance(answer, Happened) else Happened()
        answers = answers_of(recorded, call.intent)
        if recorded.execution.attempt > 1 and recorded.execution.task_id == call.intent.task_id:
            # The task never passed this action, so the answers so far belong to it or to actions before it.
            answers = max(answers, answers_given())
            skip_answers(answers)
        return await self._conclude(call, recorded, happened, answers)

    async def _ask(self, call: ToolCall, recorded: Recorded) -> tuple[int, Happened | None]:
        """Ask a person through an interrupt."""
        execution = recorded.execution
        used, open_ids = 0, [f"{execution.idempotency_key}#{execution.attempt}"]
        if call.intent.task_id:
            used, found = await self._attempts.run(
                tool_executions.task_interrupts, execution.thread_id, call.intent.task_id
            )
            # An execution of another task, from before a fork, is not among this task's own.
            open_ids = sorted({*found, *open_ids})
        try:
            decision, result, answers = ask(execution, used, open_ids)
        except RuntimeError as error:
            why = f", and no graph is running here to ask a person through an interrupt ({error})"
            raise tool_error(ToolOutcomeUnknownError, call.intent, why) from error
        if decision == "retry":
            return await self._take_over(call, recorded, answers), None
        if decision == "done":
            return await self._conclude(call, recorded, Happened(result), answers)
        if await self._settle(recorded, self._decided(recorded, decision, result), answers):
            raise tool_error(ToolFailedError, call.intent, "decision", "a person settled it as failed")
        return 0, None

    async def _conclude(
        self, call: ToolCall, recorded: Recorded, happened: Happened, answers: int
    ) -> tuple[int, Happened | None]:
        """Record that an action took effect."""
        answer = call.as_answer(happened.result)
        outcome = success(self._codec, self._settings, call.intent.tool, answer)
        return 0, Happened(answer) if await self._settle(recorded, outcome, answers) else None

    def _decided(self, recorded: Recorded, decision: str, result: Any) -> Outcome:
        if decision == "done":
            return success(self._codec, self._settings, recorded.execution.tool, result)
        if decision == "retry":
            return Outcome("pending")
        return Outcome("error", error_type="decision", error_message="a person settled it as failed")

    async def _take_over(self, call: ToolCall, recorded: Recorded, answers: int | None = None) -> int:
        taken = self._attempts.run(
            tool_executions.take_over,
            call.intent,
            recorded,
            holder_id(),
            self._settings.ttl_seconds,
            is_gone=is_known_gone(recorded),
            answers=answers_of(recorded, call.intent) if answers is None else answers,
        )
        return await self._before(call.intent, self._unless_stopped(call.intent, taken))

    async def _settle(self, recorded: Recorded, outcome: Outcome, answers: int, by: str | None = None) -> bool:
        return await self._attempts.run(
            tool_executions.settle,
            recorded,
            outcome,
            new_intent_id(),
            is_gone=is_known_gone(recorded),
            answers=answers,
            by=by,
        )

    def _present(self, call: ToolCall, result: Any) -> Any:
        """Return a tool's result in the form that this call needs, shortened to the result limit."""
        if isinstance(result, ParentAnswer):
            raise ParentCommand(result.command)
        intent = call.intent
        limit = self._settings.result_limit if call.policy.result_limit is None else call.policy.result_limit
        reference = reference_to(intent.thread_id, intent.idempotency_key)
        return masked(for_call(result, intent.tool_call_id), limit, reference, self._settings)
