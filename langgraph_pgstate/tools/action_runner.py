"""Execution of one action: its intent is committed, the tool acts, and its outcome is written.

Blocking and async callers share this code. It awaits only its executor and a connection.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, Final, TypeVar

from langgraph.errors import GraphBubbleUp, ParentCommand

from langgraph_pgstate.codec.values import ValueCodec
from langgraph_pgstate.errors import (
    CheckpointOrderError,
    DatabaseError,
    EncryptionError,
    PGStateError,
    SchemaError,
    StaleHeadError,
    ThreadDeletedError,
    ToolBusyError,
    ToolOutcomeUnknownError,
    ToolOvertakenError,
    ToolSetupError,
    ToolTimeoutError,
    UnavailableError,
)
from langgraph_pgstate.leases.checking import ToolStarts
from langgraph_pgstate.process_identity import holder_id, lease_clock
from langgraph_pgstate.tools import executions as tool_executions
from langgraph_pgstate.tools.acting import Raised, Refused, act, act_in_transaction, say
from langgraph_pgstate.tools.executions import Intent, Outcome, Recorded
from langgraph_pgstate.tools.executor import Executor, under_way
from langgraph_pgstate.tools.intents import Execution, ToolCall, new_intent_id, repeat_next, running_execution
from langgraph_pgstate.tools.interrupts import answers_used, counting_answers
from langgraph_pgstate.tools.policy import Happened, ToolSettings
from langgraph_pgstate.tools.recorded import RecordedActions, TakeOver, is_known_gone, is_running, other_action
from langgraph_pgstate.tools.results import ParentAnswer, failure, is_error, present, success

_FIRST_PAUSE, _LONGEST_PAUSE = 0.02, 1.0
_LONGEST_CATCH_UP = 2.0
_MAX_UNRECORDED: Final = 1000

T = TypeVar("T")

_log = logging.getLogger(__name__)

# Outcomes that this process could not write, by intent id. The next call of the action writes the outcome. There is no
# lock, because `os.fork` could copy a lock that is held. Each change is a single dict call, which is atomic.
_unrecorded: dict[str, Outcome] = {}


class ActionRunner:
    """The runner of a ledger's actions: it commits intents, calls tools and writes outcomes.

    Attributes:
        executor: The executor.
        recorded: The rules for actions that are recorded already.
    """

    def __init__(self, executor: Executor, codec: ValueCodec, settings: ToolSettings) -> None:
        self.executor = executor
        self.recorded = RecordedActions(executor, codec, settings)
        self._codec, self._settings = codec, settings
        # Namespaces (without their task ids) of graphs whose checkpoints are not stored in the ledger's schema.
        self._unsaved: set[str] = set()

    async def perform(self, call: ToolCall) -> Any:
        """Run a tool, or return the recorded result if the same action was run before.

        Raises:
            ToolOutcomeUnknownError: If the action's outcome is unknown, and its policy leaves the decision to a person.
            ToolFailedError: If the action failed before, and its policy does not run it again.
            ToolBusyError: If another live process runs the action for longer than this call waits.
            ToolTimeoutError: If the action takes too long.
            ToolOvertakenError: If another process took the action over while it ran.
            ToolSetupError: If the setup of the tool does not match its ledger or graph.
        """
        if call.policy.transactional and call.policy.timeout is not None and self.executor.is_borrowed:
            raise ToolSetupError(
                f"{call.intent.tool} is transactional, and its timeout would close the ledger's only connection: open "
                "the state with a pool or a DSN"
            )
        try:
            return await self.executor.cancelled_once(self._perform(call))
        except BaseException as error:
            is_over = isinstance(error, Exception) and not (isinstance(error, PGStateError) and error.is_final)
            if call.is_counted and not is_over:
                # This attempt may have had an effect, so the task's next call with these arguments must be the same
                # action.
                repeat_next(call.intent.idempotency_key)
            raise

    async def _perform(self, call: ToolCall) -> Any:
        if call.is_ahead:
            await self._before(call.intent, self._catch_up(call.intent, call.is_saved))
        while True:
            # Renew the attempt from before its intent, because a thread that renews cannot always be started.
            with under_way(call.intent.intent_id), self.executor.alive(call.intent):
                call, attempt, answer = await self._intend(call)
                if answer is None:
                    answer = await self._attempt(call, attempt)
            if answer is not None:
                limit = self._settings.result_limit if call.policy.result_limit is None else call.policy.result_limit
                return present(answer.result, call.intent, limit, self._settings)
            # The action failed, and the policy allows another attempt.
            call = replace(call, intent=replace(call.intent, intent_id=new_intent_id()))

    async def _intend(self, call: ToolCall) -> tuple[ToolCall, int, Happened | None]:
        """Commit the intent of a call, unless the action has a recorded outcome.

        Returns:
            The call, the number of the attempt that may begin now, and `None`. If an outcome is recorded: the call, 0,
            and this outcome. If another action is recorded under the call's key, the returned call has a new key.
        """
        waited, pause = 0.0, _FIRST_PAUSE
        ttl_seconds = self._settings.ttl_seconds
        while True:
            asked_at = lease_clock()
            begun = self.executor.run_or_stop(tool_executions.begin, call.intent, holder_id(), ttl_seconds)
            attempt, recorded = await self._before(call.intent, self._unless_stopped(call.intent, begun))
            if recorded is not None:
                other = other_action(call, recorded)
                if other is not None:
                    call = replace(call, intent=other, origin_thread_id=None)
                    continue
                _refuse_itself(call.intent)
                source = await self.recorded.source_of(recorded)
                if source is not None and await self.recorded.adopt(recorded, source):
                    continue
                if is_running(source or recorded):
                    if waited >= self._settings.wait_seconds:
                        raise call.intent.error(ToolBusyError, f"is being run by {recorded.execution.holder_id}")
                    await self.executor.sleep(pause)
                    waited, pause = waited + pause, min(pause * 2, _LONGEST_PAUSE)
                    continue
                if recorded.execution.status != "success" and await self._write_kept(call.intent, recorded):
                    continue
                step = await self.recorded.next_step(call, recorded)
                if isinstance(step, Happened):
                    return call, 0, step
                attempt = 0 if step is None else await self._take_over(call.intent, step)
                if not attempt:
                    continue
                call = replace(call, origin_thread_id=recorded.execution.origin_thread_id)
            if await self._is_alive(call.intent, asked_at):
                return call, attempt, None

    async def _take_over(self, intent: Intent, step: TakeOver) -> int:
        """Begin another attempt at a recorded action. Return its number; 0 if the record has changed."""
        taken = self.executor.run_or_stop(
            tool_executions.take_over,
            intent,
            step.seen,
            holder_id(),
            self._settings.ttl_seconds,
            is_gone=is_known_gone(step.seen),
            answers=step.answers,
        )
        return await self._before(intent, self._unless_stopped(intent, taken))

    async def _is_alive(self, intent: Intent, asked_at: float) -> bool:
        """Return whether other processes still consider an attempt alive. Renew it if its intent was confirmed late.

        Args:
            intent: The recorded attempt.
            asked_at: Time before the intent was sent, by `lease_clock`.
        """
        while lease_clock() - asked_at > self._settings.ttl_seconds / 2:
            asked_at = lease_clock()
            attempts = {intent.intent_id: intent.idempotency_key}
            renewing = self.executor.run_or_stop(
                tool_executions.renew, intent.thread_id, attempts, self._settings.ttl_seconds
            )
            if not await self._before(intent, self._unless_stopped(intent, renewing)):
                return False
        return True

    async def _before(self, intent: Intent, preparing: Awaitable[T]) -> T:
        """Await a step that precedes the tool. If it fails, add to the error that the tool was not started."""
        try:
            return await preparing
        except (DatabaseError, SchemaError) as error:
            say(error, f"this attempt at {intent.tool} ({intent.idempotency_key!r}) was not started, it had no effect")
            raise

    async def _unless_stopped(self, intent: Intent, writing: Awaitable[T]) -> T:
        """Write an intent. On an error or cancellation the tool is not started, although the intent may be stored.

        The outcome `pending` is then written, or kept until the action's next call, so that the action can begin again.
        """
        try:
            written = await writing
            self.executor.raise_if_cancelled()
            return written
        except DatabaseError:
            _keep_outcome(intent.intent_id, Outcome("pending"))
            raise
        except Exception:
            raise
        except BaseException:
            await self._write_quietly(intent, Outcome("pending"))
            raise

    async def _write_kept(self, intent: Intent, recorded: Recorded) -> bool:
        """Write an outcome that this process could not write before. Return whether there was one."""
        outcome = None if recorded.intent_id is None else _unrecorded.get(recorded.intent_id)
        if recorded.intent_id is None or outcome is None:
            return False
        if recorded.execution.status in ("running", "unknown"):
            await self._write(replace(intent, intent_id=recorded.intent_id), outcome)
        if recorded.execution.origin_thread_id is None:
            # A fork or copy has the intent id of its source thread, which still needs the outcome.
            _unrecorded.pop(recorded.intent_id, None)
        return True

    async def _catch_up(self, intent: Intent, is_saved: bool) -> None:
        """Wait until the checkpoint from which a call was made is stored.

        If the process died before that, another process would call the model again. The model would repeat the tool
        call under another id, and the task would have another id. So the tool would run again, as a new action.

        Raises:
            UnavailableError: If a checkpoint that is certain to be stored is still missing after `wait_seconds`, and
                after at least two seconds.
        """
        names = "|".join(part.partition(":")[0] for part in (intent.checkpoint_ns or "").split("|"))
        is_certain = is_saved and not names
        waited, pause = 0.0, _FIRST_PAUSE / 40
        while not await self.executor.run_or_stop(tool_executions.is_reached, intent):
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
                # The subgraph has no checkpointer, or the checkpointer is on another database.
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
        # Checkpoints of this namespace are stored. An earlier checkpoint that seemed to be missing was only late.
        self._unsaved.discard(names)

    async def _attempt(self, call: ToolCall, attempt: int) -> Happened | None:
        """Run a tool whose intent is committed, and write the outcome.

        Returns:
            The result; `None` if the tool failed and may be retried at once.
        """
        intent = call.intent
        execution = Execution(
            intent.thread_id, intent.idempotency_key, intent.tool, attempt, origin_thread_id=call.origin_thread_id
        )
        call = replace(call, starts=ToolStarts())
        raised: Raised | None = None
        result: Any = None
        with counting_answers(), self.executor.alive(intent):
            try:
                if call.policy.transactional:
                    result = await act_in_transaction(
                        self.executor, call, execution, lambda result: self._answered(intent, result)
                    )
                else:
                    result = await act(self.executor, call, execution)
                    await self._finish(intent, self._answered(intent, result))
            except Refused as refused:
                result = refused.answer
                await self._finish(intent, self._answered(intent, result))
            except Raised as carried:
                raised = carried
            if raised is not None:
                if raised.rest is None or raised.rest.is_over:
                    await self._write_quietly(intent, self._outcome_of(call, raised))
                else:
                    await self._note_abandoned(call, raised)
                if not _may_retry(call, attempt, raised):
                    raise raised.error
            elif not is_error(result) or not _may_retry(call, attempt, None):
                return Happened(result)
            await self.executor.sleep(call.policy.retry.seconds(attempt))
            return None

    def _answered(self, intent: Intent, result: Any) -> Outcome:
        try:
            return replace(success(self._codec, self._settings, intent.tool, result), answers=answers_used())
        except Exception as error:
            why = f", because its result could not be serialized ({error})"
            raise intent.error(ToolOutcomeUnknownError, why) from error

    async def _finish(self, intent: Intent, outcome: Outcome) -> None:
        try:
            if await self.executor.to_the_end(self._write(intent, outcome)):
                return
            if await self.executor.run_or_stop(tool_executions.get, intent.thread_id, intent.idempotency_key) is None:
                _log.warning("thread %r was deleted while %s ran", intent.thread_id, intent.tool)
                return
        except (DatabaseError, EncryptionError, SchemaError) as error:
            say(error, f"{intent.tool} ({intent.idempotency_key!r}) has run, but its outcome could not be recorded")
            raise
        why = "was taken over by another process while it ran here; this outcome is discarded"
        raise intent.error(ToolOvertakenError, why)

    async def _write(self, intent: Intent, outcome: Outcome) -> bool:
        """Write an outcome, or keep it for the action's next call in this process.

        Return false if the action was taken over.
        """
        try:
            seconds = self._settings.ttl_seconds / 6
            return await self.executor.run_apart(
                seconds, tool_executions.finish, self.executor.queries, intent, outcome
            )
        except BaseException as error:
            _keep_outcome(intent.intent_id, outcome)
            if isinstance(error, PGStateError):
                error.is_final = True
            raise

    def _outcome_of(self, call: ToolCall, raised: Raised) -> Outcome:
        """Return the outcome of a tool that raised, or whose caller stopped waiting. All its code must have ended."""
        if call.refusal is not None or not raised.is_begun:
            return Outcome("pending")
        if raised.rest is not None and not call.policy.transactional:
            try:
                return self._answered(call.intent, raised.rest.outcome())
            except ParentCommand as up:
                return self._answered(call.intent, ParentAnswer(up.args[0]))
            except Exception as own:
                return self._outcome_of(call, Raised(own))
            except BaseException:
                if call.is_blocking and raised.rest.was_refused:
                    # The tool only waited for a free OS thread, so none of its code has run.
                    return Outcome("pending")
        error = raised.error
        is_stopped = isinstance(error, PGStateError) and (error.is_final or _is_refused_run(error, call.intent))
        if raised.is_rolled_back or (isinstance(error, GraphBubbleUp) and not is_stopped):
            # The tool waits for a person or another graph, and will start again.
            return Outcome("pending")
        if isinstance(error, ToolTimeoutError):
            return failure("timeout", call.intent.tool, error, self._settings)
        if isinstance(error, Exception) and not is_stopped:
            return replace(failure("error", call.intent.tool, error, self._settings), answers=answers_used())
        # The tool was stopped midway: by a cancellation, the end of its run, or a nested action of unknown outcome. The
        # effect is unknown, unless a transaction was rolled back.
        status = "pending" if call.policy.transactional else "unknown"
        return failure(status, call.intent.tool, error, self._settings)

    async def _note_abandoned(self, call: ToolCall, raised: Raised) -> None:
        """Keep an attempt alive in the background until all of its code has ended. Then record its outcome.

        Meanwhile no other attempt may begin, unless this attempt has timed out and the action may be repeated.
        """
        intent, rest = call.intent, raised.rest
        assert rest is not None
        alive = ExitStack()
        if isinstance(raised.error, ToolTimeoutError) and call.policy.may_repeat:
            await self._write_quietly(intent, failure("timeout", intent.tool, raised.error, self._settings))
        else:
            alive.enter_context(under_way(intent.intent_id))
            alive.enter_context(self.executor.alive(intent))

        async def conclude() -> None:
            outcome = self._outcome_of(call, raised)
            if outcome.status != "timeout" or not call.policy.may_repeat:
                await self._write_quietly(intent, outcome)

        self.executor.when_over(rest, f"{intent.tool} ({intent.idempotency_key!r})", conclude, alive.close)

    async def _write_quietly(self, intent: Intent, outcome: Outcome) -> None:
        """Write an outcome as `_write` does. An error is logged."""
        try:
            await self.executor.to_the_end(self._write(intent, outcome))
        except PGStateError as trouble:
            _log.warning("the outcome of %s could not be recorded: %s", intent.tool, trouble)


def _refuse_itself(intent: Intent) -> None:
    """Refuse a tool that calls itself as the action that it is running.

    Raises:
        ToolSetupError: If the tool calls itself.
    """
    outer = running_execution.get()
    if outer is not None and (outer.thread_id, outer.key) == (intent.thread_id, intent.idempotency_key):
        raise ToolSetupError(f"{outer.tool} calls itself as the same action, {outer.key!r}")


def _keep_outcome(intent_id: str, outcome: Outcome) -> None:
    """Keep an outcome that could not be written. The action's next call writes it.

    If too many outcomes are kept, the oldest are dropped.
    """
    _unrecorded[intent_id] = outcome
    for oldest in list(_unrecorded)[: max(0, len(_unrecorded) - _MAX_UNRECORDED)]:
        _unrecorded.pop(oldest, None)


def _may_retry(call: ToolCall, attempt: int, raised: Raised | None) -> bool:
    """Return whether another attempt may follow a failed one at once. No attempt follows an unknown outcome."""
    error = None if raised is None else raised.error
    if raised is not None and not raised.is_begun:
        return False
    if raised is not None and not raised.is_rolled_back:
        if not isinstance(error, Exception) or isinstance(error, GraphBubbleUp):
            return False
        if isinstance(error, ToolTimeoutError):
            if not call.policy.may_repeat:
                return False
        elif isinstance(error, PGStateError) and error.is_final:
            return False
    return call.policy.on_error == "retry" and attempt < call.policy.retry.attempts


def _is_refused_run(error: PGStateError, intent: Intent) -> bool:
    """Return whether an error says that an action's run may not write any more."""
    return isinstance(error, StaleHeadError | CheckpointOrderError | ThreadDeletedError) and (
        error.thread_id == intent.thread_id
    )
