"""One attempt at an action whose intent is committed: the effect, and its outcome in the ledger.

Blocking and async callers share this code. It awaits only its executor and a connection.
"""

from __future__ import annotations

import functools
import inspect
import logging
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

from langgraph.errors import GraphBubbleUp, ParentCommand

from langgraph_pgstate.codec.values import ValueCodec
from langgraph_pgstate.db.protocol import Connection
from langgraph_pgstate.db.translate import failed_here, is_rollback, rolled_back, translate
from langgraph_pgstate.errors import (
    CheckpointOrderError,
    ConfigurationError,
    ConflictError,
    DatabaseError,
    LeaseLostError,
    PGStateError,
    SchemaError,
    StaleHeadError,
    ThreadDeletedError,
    ToolError,
    ToolOutcomeUnknownError,
    ToolOvertakenError,
    ToolSetupError,
    ToolTimeoutError,
    UnavailableError,
)
from langgraph_pgstate.leases.starts import ToolStarts, tool_starts
from langgraph_pgstate.schema.queries import Queries
from langgraph_pgstate.tools import executions as tool_executions
from langgraph_pgstate.tools.executions import Intent, Outcome
from langgraph_pgstate.tools.executor import Abandoned, Executor, Overdue
from langgraph_pgstate.tools.intents import Execution, running_execution
from langgraph_pgstate.tools.interrupts import answers_used, counting_answers
from langgraph_pgstate.tools.policy import Happened, ToolSettings
from langgraph_pgstate.tools.results import ParentAnswer, failure, is_error, success
from langgraph_pgstate.tools.tool_call import (
    Raised,
    Refused,
    ToolCall,
    caused,
    keep_outcome,
    may_repeat,
    say,
    tool_error,
    under_way,
    undone,
)

# The server's timeout exceeds that of this process by this much; it only applies if this process cannot act.
_SERVERS_GRACE = 1.0
# Time limit for the server to end a transaction whose COMMIT was not confirmed.
_COMMIT_SECONDS = 5.0

T = TypeVar("T")
P = ParamSpec("P")
F = TypeVar("F", bound=Callable[..., Any])

_log = logging.getLogger(__name__)


class AttemptRunner:
    """Attempts at actions, on top of an executor."""

    def __init__(self, executor: Executor, queries: Queries, codec: ValueCodec, settings: ToolSettings) -> None:
        self._executor = executor
        self._queries, self._codec, self._settings = queries, codec, settings

    async def run(
        self,
        operation: Callable[Concatenate[Connection, Queries, P], Awaitable[T]],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        """Run an operation on the ledger's database. An error ends the run, as a model cannot handle it."""
        try:
            return await self._executor.run(operation, self._queries, *args, **kwargs)
        except PGStateError as error:
            error.is_final = True
            raise

    async def attempt(self, call: ToolCall, attempt: int) -> Happened | None:
        """Run a tool whose intent is committed. Return `None` if it failed and may be tried again at once."""
        intent = call.intent
        execution = Execution(
            intent.thread_id, intent.idempotency_key, intent.tool, attempt, origin_thread_id=call.origin_thread_id
        )
        call = replace(call, starts=ToolStarts())
        with counting_answers(), self._alive(intent):
            return await self._attempt_alive(call, attempt, execution)

    def _alive(self, intent: Intent) -> AbstractContextManager[None]:
        return self._executor.alive(intent.thread_id, intent.idempotency_key, intent.intent_id)

    async def _attempt_alive(self, call: ToolCall, attempt: int, execution: Execution) -> Happened | None:
        raised: Raised | None = None
        result: Any = None
        try:
            if call.policy.transactional:
                result = await self._act_in_transaction(call, execution)
            else:
                result = await self._act(call, execution)
                await self._finish(call.intent, self._answered(call.intent, result))
        except Refused as refused:
            result = refused.answer
            await self._finish(call.intent, self._answered(call.intent, result))
        except Raised as carried:
            raised = carried
        if raised is not None:
            if raised.rest is None or raised.rest.is_over:
                await self.write_quietly(call.intent, self._outcome_of(call, raised))
            else:
                await self._note_abandoned(call, raised)
            if not self._may_retry(call, attempt, raised):
                raise raised.error
        elif not is_error(result) or not self._may_retry(call, attempt, None):
            return Happened(result)
        await self._executor.sleep(call.policy.retry.seconds(attempt))
        return None

    async def _act(self, call: ToolCall, execution: Execution) -> Any:
        intent, seconds, connection = call.intent, call.policy.timeout, execution.connection
        token, starts_token = running_execution.set(execution), tool_starts.set(call.starts)
        try:
            if connection is not None:
                result = await self._executor.act_on(connection, call.act, seconds)
            else:
                result = await self._executor.act(call.act, seconds)
        except ParentCommand as up:
            return ParentAnswer(up.args[0])
        except Abandoned as abandoned:
            if not isinstance(abandoned.error, Overdue):
                raise Raised(abandoned.error, rest=abandoned.rest) from abandoned.error
            overdue = tool_error(ToolTimeoutError, intent, seconds)
            # Unless it may be repeated, its unknown outcome must end the run.
            overdue.is_final = not may_repeat(call.policy)
            raise Raised(overdue, rest=abandoned.rest) from None
        except Exception as error:
            raise Raised(self._refusal(call) or error) from error
        except BaseException as error:
            raise Raised(error) from error
        finally:
            tool_starts.reset(starts_token)
            running_execution.reset(token)
        if (refusal := self._refusal(call)) is not None:
            # Middleware within the ledger's has made an answer of it.
            raise Raised(refusal)
        return result

    @staticmethod
    def _refusal(call: ToolCall) -> LeaseLostError | None:
        """Return the error to raise if the check of a lease has kept the tool from beginning, else `None`."""
        refusal = call.refusal
        if refusal is not None:
            say(refusal, f"{call.intent.tool} was not started, it had no effect")
        return refusal

    async def _act_in_transaction(self, call: ToolCall, execution: Execution) -> Any:
        """Run a tool in a transaction that also writes its outcome, so that both are committed or neither."""
        intent = call.intent
        has_begun = has_ended = False
        result: Any = None
        try:
            async with self._executor.lend() as (connection, db):
                if call.policy.timeout is not None:
                    await tool_executions.limit_transaction(db, self._queries, call.policy.timeout + _SERVERS_GRACE)
                has_begun = True
                result = await self._act_and_record(call, replace(execution, connection=connection), db)
                has_ended = True
        except (Raised, Refused, ToolError):
            raise
        except Exception as error:
            trouble: PGStateError = (
                error if isinstance(error, PGStateError) else caused(translate(error, self._queries.schema), error)
            )
        except BaseException:
            if not has_begun:
                await self.write_quietly(intent, Outcome("pending"))
            raise
        else:
            return result
        if not has_begun:
            # No usable connection was available.
            await self.write_quietly(intent, Outcome("pending"))
            trouble.is_final = True
            say(trouble, f"this attempt at {intent.tool} was not started, it had no effect")
            raise trouble
        if isinstance(trouble, UnavailableError):
            if has_ended and await self._is_committed(intent):
                return result
        elif not (isinstance(trouble, ConflictError) and is_rollback(trouble)):
            raise Raised(trouble)
        raise Raised(undone(trouble, intent.tool), is_rolled_back=True)

    async def _is_committed(self, intent: Intent) -> bool:
        """Return whether a transaction with an unconfirmed COMMIT was committed, by the row of its outcome."""
        try:
            return await self.run(tool_executions.is_committed, intent, _COMMIT_SECONDS)
        except (DatabaseError, SchemaError) as error:
            say(error, f"the next call of {intent.tool} finds out whether it was committed")
            raise

    async def _act_and_record(self, call: ToolCall, execution: Execution, db: Connection) -> Any:
        """Run a tool in its transaction, and write its outcome there."""
        intent, connection, schema = call.intent, execution.connection, self._queries.schema
        try:
            result = await self._act(call, execution)
        except Raised as raised:
            error = raised.error
            passes = isinstance(error, GraphBubbleUp | ToolTimeoutError) or not isinstance(error, Exception)
            if passes or (trouble := rolled_back(connection, error, schema)) is None:
                raise
            if isinstance(error, DatabaseError) and error.is_final:
                raise Raised(error, is_rolled_back=True) from error
            raise Raised(caused(undone(trouble, intent.tool), error), is_rolled_back=True) from error
        if is_error(result):
            if (trouble := rolled_back(connection, None, schema)) is not None:
                raise Raised(undone(trouble, intent.tool), is_rolled_back=True)
            raise Refused(result)
        outcome = self._answered(intent, result)
        try:
            is_mine = await tool_executions.finish(db, self._queries, intent, outcome)
        except Exception as error:
            trouble = rolled_back(connection, error, schema) or failed_here(error, schema)
            if trouble is not None:
                raise Raised(caused(undone(trouble, intent.tool), error), is_rolled_back=True) from error
            # The tool left the transaction in a failed state; it is rolled back.
            raise Raised(error) from error
        if not is_mine:
            why = "was taken over by another process; its writes here are rolled back"
            raise tool_error(ToolOvertakenError, intent, why)
        return result

    def _answered(self, intent: Intent, result: Any) -> Outcome:
        try:
            return replace(success(self._codec, self._settings, intent.tool, result), answers=answers_used())
        except Exception as error:
            why = f", because its result could not be serialized ({error})"
            raise tool_error(ToolOutcomeUnknownError, intent, why) from error

    async def _finish(self, intent: Intent, outcome: Outcome) -> None:
        try:
            if await self._executor.to_the_end(self.write(intent, outcome)):
                return
            if await self.run(tool_executions.get, intent.thread_id, intent.idempotency_key) is None:
                _log.warning("thread %r was deleted while %s ran", intent.thread_id, intent.tool)
                return
        except (DatabaseError, SchemaError) as error:
            say(error, f"{intent.tool} ({intent.idempotency_key!r}) has run, but its outcome could not be recorded")
            raise
        raise tool_error(
            ToolOvertakenError, intent, "was taken over by another process while it ran here; this outcome is discarded"
        )

    async def write(self, intent: Intent, outcome: Outcome) -> bool:
        """Write an outcome, or keep it for the action's next call in this process. False if it was taken over."""
        try:
            seconds = self._settings.ttl_seconds / 6
            return await self._executor.run_apart(seconds, tool_executions.finish, self._queries, intent, outcome)
        except BaseException as error:
            keep_outcome(intent.intent_id, outcome)
            if isinstance(error, PGStateError):
                error.is_final = True
            raise

    def _outcome_of(self, call: ToolCall, raised: Raised) -> Outcome:
        """Return the outcome of a tool that raised, or whose caller has stopped waiting, once all of it has ended."""
        if call.refusal is not None:
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
                    # It waited for a thread that was free. Without a thread, other code has replaced it.
                    return Outcome("pending")
        error = raised.error
        is_stopped = isinstance(error, PGStateError) and (error.is_final or _is_refused_run(error, call.intent))
        if raised.is_rolled_back or (isinstance(error, GraphBubbleUp) and not is_stopped):
            # It waits for a person or another graph, and starts again after that.
            return Outcome("pending")
        if isinstance(error, ToolTimeoutError):
            return failure("timeout", error, self._settings)
        if isinstance(error, Exception) and not is_stopped:
            return replace(failure("error", error, self._settings), answers=answers_used())
        # Stopped midway, by a cancellation, by the end of its run, or by a nested action of unknown outcome: its
        # progress is unknown, unless it was rolled back.
        return failure("pending" if call.policy.transactional else "unknown", error, self._settings)

    async def _note_abandoned(self, call: ToolCall, raised: Raised) -> None:
        """Keep an attempt alive in the background until all of its code has ended, and record its outcome then.

        Only an attempt that took too long and may be repeated does not keep others from beginning.
        """
        intent, rest = call.intent, raised.rest
        assert rest is not None
        alive = ExitStack()
        if isinstance(raised.error, ToolTimeoutError) and may_repeat(call.policy):
            await self.write_quietly(intent, failure("timeout", raised.error, self._settings))
        else:
            alive.enter_context(under_way(intent.intent_id))
            alive.enter_context(self._alive(intent))

        async def conclude() -> None:
            outcome = self._outcome_of(call, raised)
            if outcome.status != "timeout" or not may_repeat(call.policy):
                await self.write_quietly(intent, outcome)

        self._executor.when_over(rest, f"{intent.tool} ({intent.idempotency_key!r})", conclude, alive.close)

    async def write_quietly(self, intent: Intent, outcome: Outcome) -> None:
        """Write an outcome as `write` does. An error is logged."""
        try:
            await self._executor.to_the_end(self.write(intent, outcome))
        except PGStateError as trouble:
            _log.warning("the outcome of %s could not be recorded: %s", intent.tool, trouble)

    @staticmethod
    def _may_retry(call: ToolCall, attempt: int, raised: Raised | None) -> bool:
        """Return whether a failed attempt may be followed by another at once. One of unknown outcome may not."""
        error = None if raised is None else raised.error
        if raised is not None and not raised.is_rolled_back:
            if not isinstance(error, Exception) or isinstance(error, GraphBubbleUp):
                return False
            if isinstance(error, ToolTimeoutError):
                if not may_repeat(call.policy):
                    return False
            elif isinstance(error, PGStateError) and error.is_final:
                return False
        return call.policy.on_error == "retry" and attempt < call.policy.retry.attempts


def _is_refused_run(error: PGStateError, intent: Intent) -> bool:
    """Return whether an error says that the run of an action may write nothing more."""
    return isinstance(error, StaleHeadError | CheckpointOrderError | ThreadDeletedError) and (
        error.thread_id == intent.thread_id
    )


def with_connection(function: F, name: str, schema: str) -> F:
    """Return a function that passes the connection of the present attempt as `connection`, which its signature lacks.

    Raises:
        ConfigurationError: If the function has no parameter `connection`.
    """
    signature = inspect.signature(function)
    if "connection" not in signature.parameters:
        raise ConfigurationError(f"{name} is transactional: it needs a parameter `connection`")
    rest = [item for item in signature.parameters.values() if item.name != "connection"]

    def connected(*args: Any, **kwargs: Any) -> Any:
        execution = running_execution.get()
        if execution is None or execution.connection is None:
            raise ToolSetupError(
                f"{name} is transactional and was called without its ledger: pass the ledger to its ToolNode, or "
                "decorate it with @ledger.once as well"
            )
        return function(*args, connection=execution.connection, **kwargs)

    def raise_if_undone(error: Exception) -> None:
        # Checked here, because a ToolNode may turn the error into a message for the model.
        execution = running_execution.get()
        if execution is not None and not isinstance(error, GraphBubbleUp | PGStateError):
            trouble = rolled_back(execution.connection, error, schema)
            if trouble is not None:
                raise undone(trouble, name) from error

    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def suspending(*args: Any, **kwargs: Any) -> Any:
            try:
                return await connected(*args, **kwargs)
            except Exception as error:
                raise_if_undone(error)
                raise

        wrapper: Any = suspending
    else:

        @functools.wraps(function)
        def blocking(*args: Any, **kwargs: Any) -> Any:
            try:
                return connected(*args, **kwargs)
            except Exception as error:
                raise_if_undone(error)
                raise

        wrapper = blocking
    wrapper.__signature__ = signature.replace(parameters=rest)
    # `typing` follows `__wrapped__` and would find the parameter `connection` again.
    wrapper.__annotations__ = {key: kind for key, kind in function.__annotations__.items() if key != "connection"}
    del wrapper.__wrapped__
    return cast("F", wrapper)
