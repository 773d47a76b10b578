"""Transactional tools: functions that get the connection of their attempt."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar, cast

from langgraph.errors import GraphBubbleUp

from langgraph_pgstate.db.translate import rolled_back
from langgraph_pgstate.errors import ConfigurationError, PGStateError, ToolSetupError
from langgraph_pgstate.tools.intents import running_execution
from langgraph_pgstate.tools.tool_call import undone

F = TypeVar("F", bound=Callable[..., Any])


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
