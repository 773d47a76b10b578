"""One attempt at an action: the call of a tool after its intent is committed and before its outcome is written.

Blocking and async callers share this code. It awaits only its executor and a connection.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar, cast

from langgraph.errors import GraphBubbleUp, ParentCommand

from langgraph_pgstate.db.protocol import Connection
from langgraph_pgstate.db.translate import failed_here, is_rollback, rolled_back, translate
from langgraph_pgstate.encryption.keys import HeldKeys
from langgraph_pgstate.errors import (
    ConfigurationError,
    ConflictError,
    DatabaseError,
    EncryptionError,
    MissingKeysError,
    PGStateError,
    SchemaError,
    ToolError,
    ToolOvertakenError,
    ToolSetupError,
    ToolTimeoutError,
    UnavailableError,
)
from langgraph_pgstate.leases.checking import tool_starts
from langgraph_pgstate.tools import executions as tool_executions
from langgraph_pgstate.tools.executions import Intent, Outcome
from langgraph_pgstate.tools.executor import Abandoned, Executor, Overdue, Rest, Unstarted
from langgraph_pgstate.tools.intents import Execution, ToolCall, running_execution
from langgraph_pgstate.tools.results import ParentAnswer, is_error

# The server ends a transaction this many seconds after the tool's timeout, in case this process hangs.
_SERVERS_GRACE = 1.0
# Seconds to wait for the server to end a transaction whose COMMIT was not confirmed.
_COMMIT_SECONDS = 5.0

E = TypeVar("E", bound=PGStateError)
F = TypeVar("F", bound=Callable[..., Any])


class Raised(Exception):
    """An exception that carries a tool's exception out of a transaction, so that the transaction is rolled back.

    Attributes:
        error: The tool's exception.
        is_begun: Whether the tool was called.
        is_rolled_back: Whether the database rolled the transaction back. Then the tool itself has not failed.
        rest: The tool, if its caller has stopped waiting for it. It may still run.
    """

    def __init__(
        self, error: BaseException, *, is_begun: bool = True, is_rolled_back: bool = False, rest: Rest | None = None
    ) -> None:
        self.error = error
        self.is_begun = is_begun
        self.is_rolled_back = is_rolled_back
        self.rest = rest


class Refused(Exception):
    """An exception that carries a tool's error message out of a transaction, so that the transaction is rolled back."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer


async def act(executor: Executor, call: ToolCall, execution: Execution) -> Any:
    """Call a tool, and return its result.

    Raises:
        Raised: If the tool raises, takes too long, or was not allowed to begin, or if its caller is cancelled.
    """
    seconds, connection = call.policy.timeout, execution.connection
    token, starts_token = running_execution.set(execution), tool_starts.set(call.starts)
    result: Any = None
    try:
        if connection is not None:
            result = await executor.act_on(connection, call.act, seconds)
        else:
            result = await executor.act(call.act, seconds, is_blocking=call.is_blocking)
    except ParentCommand as up:
        return ParentAnswer(up.args[0])
    except Abandoned as abandoned:
        if not isinstance(abandoned.error, Overdue):
            raise Raised(abandoned.error, rest=abandoned.rest) from abandoned.error
        overdue = call.intent.error(ToolTimeoutError, seconds)
        # If the tool may not be repeated, its unknown outcome must end the run.
        overdue.is_final = not call.policy.may_repeat
        raise Raised(overdue, rest=abandoned.rest) from None
    except Unstarted as unstarted:
        raise Raised(unstarted.error, is_begun=False) from None
    except Exception as error:
        if call.refusal is None:
            raise Raised(error) from error
    except BaseException as error:
        raise Raised(error) from error
    finally:
        tool_starts.reset(starts_token)
        running_execution.reset(token)
    refusal = call.refusal
    if refusal is not None:
        # The lease check kept the tool from beginning. Raise the check's error even if there is a result, because
        # middleware inside the ledger may have turned the error into a message.
        say(refusal, f"{call.intent.tool} was not started, it had no effect")
        raise Raised(refusal)
    return result


async def act_in_transaction(
    executor: Executor, call: ToolCall, execution: Execution, outcome_of: Callable[[Any], Outcome]
) -> Any:
    """Call a tool in a transaction that also writes its outcome, so that the tool's writes and the outcome are
    committed together.

    Args:
        executor: The executor.
        call: The call.
        execution: The attempt, without a connection.
        outcome_of: Returns the `Outcome` to store for a result.

    Raises:
        Raised: If the tool raises, or the transaction cannot begin or be committed.
        Refused: If the tool returns an error message.
        ToolOvertakenError: If another process has taken the action over.
    """
    intent, schema = call.intent, executor.queries.schema
    has_begun = has_ended = False
    result: Any = None
    try:
        async with executor.lend() as (connection, db):
            if call.policy.timeout is not None:
                await tool_executions.limit_transaction(db, executor.queries, call.policy.timeout + _SERVERS_GRACE)
            has_begun = True
            result = await _act_and_record(executor, call, replace(execution, connection=connection), db, outcome_of)
            has_ended = True
    except (Raised, Refused, ToolError):
        raise
    except Exception as error:
        trouble = error if isinstance(error, PGStateError) else caused(translate(error, schema), error)
    except BaseException as error:
        if not has_begun:
            raise Raised(error, is_begun=False) from error
        raise
    else:
        return result
    if not has_begun:
        # Without a usable connection, the tool has not begun. A model cannot handle this error, so the error ends the
        # run.
        trouble.is_final = True
        say(trouble, f"this attempt at {intent.tool} was not started, it had no effect")
        raise Raised(trouble, is_begun=False)
    if isinstance(trouble, UnavailableError):
        if has_ended and await _is_committed(executor, intent):
            return result
    elif not (isinstance(trouble, ConflictError) and is_rollback(trouble)):
        raise Raised(trouble)
    raise Raised(undone(trouble, intent.tool), is_rolled_back=True)


async def _act_and_record(
    executor: Executor, call: ToolCall, execution: Execution, db: Connection, outcome_of: Callable[[Any], Outcome]
) -> Any:
    """Call a tool in its transaction, and write its outcome there."""
    intent, connection, schema = call.intent, execution.connection, executor.queries.schema
    try:
        result = await act(executor, call, execution)
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
    outcome = outcome_of(result)
    try:
        is_mine = await _finish(executor, db, intent, outcome)
    except EncryptionError as error:
        raise Raised(undone(error, intent.tool), is_rolled_back=True) from error
    except Exception as error:
        trouble = rolled_back(connection, error, schema) or failed_here(error, schema)
        if trouble is not None:
            raise Raised(caused(undone(trouble, intent.tool), error), is_rolled_back=True) from error
        # The tool left the transaction in a failed state, so the transaction is rolled back.
        raise Raised(error) from error
    if not is_mine:
        raise intent.error(ToolOvertakenError, "was taken over by another process; its writes are rolled back")
    return result


async def _finish(executor: Executor, db: Connection, intent: Intent, outcome: Outcome) -> bool:
    """Write an outcome in a tool's transaction. If data keys are no longer in memory, load them and try again."""
    held: HeldKeys | None = None
    while True:
        try:
            return await tool_executions.finish(db, executor.queries, intent, outcome)
        except MissingKeysError as error:
            # The error was raised before the statement was sent, so load the missing keys and try again in the same
            # transaction.
            db.keys = held = await executor.load_keys(error, held)


async def _is_committed(executor: Executor, intent: Intent) -> bool:
    """Return whether a transaction whose COMMIT was not confirmed was committed. The row of its outcome shows this."""
    try:
        return await executor.run_or_stop(tool_executions.is_committed, intent, _COMMIT_SECONDS)
    except (DatabaseError, SchemaError) as error:
        say(error, f"the next call of {intent.tool} finds out whether the transaction was committed")
        raise


def say(error: PGStateError, what: str) -> None:
    """Prefix an error's message with the state of a tool."""
    error.args = (f"{what}: {error}", *error.args[1:])


def undone(error: E, tool: str) -> E:
    """Return an error which says that a transactional tool was rolled back, and which ends the run."""
    error.is_final = True
    say(error, f"{tool} was rolled back, it had no effect, and may be run again")
    return error


def caused(error: E, cause: BaseException) -> E:
    """Set the cause of an error that other code raises, and return the error."""
    error.__cause__ = cause
    return error


def with_connection(function: F, name: str, schema: str) -> F:
    """Return a function that passes the current attempt's connection as `connection`.

    The signature of the returned function lacks this parameter.

    Raises:
        ConfigurationError: If the function has no parameter `connection`.
    """
    signature = inspect.signature(function)
    if "connection" not in signature.parameters:
        raise ConfigurationError(f"{name} must have a parameter `connection`, because it is transactional")
    rest = [item for item in signature.parameters.values() if item.name != "connection"]

    def connected(*args: Any, **kwargs: Any) -> Any:
        execution = running_execution.get()
        if execution is None or execution.connection is None:
            raise ToolSetupError(
                f"{name} is transactional and was called without its ledger: pass the ledger to the ToolNode, or "
                "decorate the function with @ledger.once, too"
            )
        return function(*args, connection=execution.connection, **kwargs)

    def raise_if_undone(error: Exception) -> None:
        # Look for a rollback before the error leaves the tool, because a ToolNode may turn the error into a message.
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
