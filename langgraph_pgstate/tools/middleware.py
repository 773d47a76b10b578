"""The ledger as a middleware of langchain's `create_agent`; langchain is only needed for this."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from langgraph.errors import GraphBubbleUp
from langgraph.prebuilt.tool_node import ToolCallRequest

from langgraph_pgstate.errors import ConfigurationError, PGStateError, ToolSetupError


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
            with _past_other_middleware():
                if inspect.iscoroutinefunction(type(ledger).__call__):
                    raise ToolSetupError("an asynchronous ledger needs ainvoke or astream; AsyncPGState brought it")
                return ledger(request, handler)

        async def awrap_tool_call(
            self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], Awaitable[Any]]
        ) -> Any:
            """Run a tool call as an action of the ledger, on an event loop."""
            with _past_other_middleware():
                return await ledger.acall(request, handler)

    return LedgerMiddleware()


@contextmanager
def _past_other_middleware() -> Iterator[None]:
    """Let an error that stops the run past middleware that retries tools or tells the model of their errors.

    LangChain's own lets nothing past but what LangGraph itself raises to stop a graph.
    """
    try:
        yield
    except PGStateError as error:
        if error.is_final and not isinstance(error, GraphBubbleUp):
            error.__class__ = _stopping(type(error))
        raise


def _stopping(kind: type[PGStateError]) -> type[PGStateError]:
    """Return an error class as another that stops a graph, too."""
    if kind not in _kinds:
        _kinds[kind] = type(
            kind.__name__, (kind, GraphBubbleUp), {"__module__": kind.__module__, "__doc__": kind.__doc__}
        )
    return _kinds[kind]


_kinds: dict[type[PGStateError], type[PGStateError]] = {}
