"""The ledger as a middleware of langchain's `create_agent`; langchain is only needed for this."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from importlib import import_module
from typing import Any

from langgraph.prebuilt.tool_node import ToolCallRequest

from langgraph_pgstate.errors import ConfigurationError, ToolSetupError


def middleware_of(ledger: Any) -> Any:
    """An `AgentMiddleware` that hands every tool call to a ledger.

    Raises:
        ConfigurationError: If langchain is not installed.
    """
    try:
        base: Any = import_module("langchain.agents.middleware").AgentMiddleware
    except ImportError as error:
        raise ConfigurationError(
            "create_agent and its middleware come with langchain: pip install langchain"
        ) from error

    class LedgerMiddleware(base):  # type: ignore[misc]
        """Each tool call is an action of the ledger."""

        @property
        def name(self) -> str:
            """What the agent calls it; an agent has one."""
            return "pgstate_tools"

        def wrap_tool_call(self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], Any]) -> Any:
            """Run a tool call as an action of the ledger."""
            if inspect.iscoroutinefunction(type(ledger).__call__):
                raise ToolSetupError("an asynchronous ledger needs ainvoke or astream; AsyncPGState brought it")
            return ledger(request, handler)

        async def awrap_tool_call(
            self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], Awaitable[Any]]
        ) -> Any:
            """Run a tool call as an action of the ledger, on an event loop."""
            return await ledger.acall(request, handler)

    return LedgerMiddleware()
