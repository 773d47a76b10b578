"""The ledger as a middleware of langchain's `create_agent`. Only this module needs langchain."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from langgraph.errors import GraphBubbleUp, GraphInterrupt

from langgraph_pgstate.errors import ConfigurationError, PGStateError, ToolSetupError

if TYPE_CHECKING:
    from langgraph.prebuilt.tool_node import ToolCallRequest

# The type of LangChain's `ToolApprovalRequest`.
_APPROVAL: Final = "tool_approval"


def middleware_of(ledger: Any) -> Any:
    """Return an `AgentMiddleware` that passes every tool call to a ledger.

    Raises:
        ConfigurationError: If langchain is not installed.
    """
    try:
        base: Any = import_module("langchain.agents.middleware").AgentMiddleware
    except ImportError as error:
        raise ConfigurationError(
            "create_agent and its middleware are part of langchain: pip install langchain"
        ) from error

    class LedgerMiddleware(base):  # type: ignore[misc]
        """A middleware that runs each tool call as an action of the ledger."""

        @property
        def name(self) -> str:
            """Name of the middleware, which is unique within an agent."""
            return "pgstate_tools"

        def wrap_tool_call(self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], Any]) -> Any:
            """Run a tool call as an action of the ledger."""
            with _past_other_middleware(), _outside_of_approval(request):
                if inspect.iscoroutinefunction(type(ledger).__call__):
                    raise ToolSetupError("the ledger of AsyncPGState is asynchronous: use ainvoke or astream")
                return ledger(request, handler)

        async def awrap_tool_call(
            self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], Awaitable[Any]]
        ) -> Any:
            """Run a tool call as an action of the ledger, on an event loop."""
            with _past_other_middleware(), _outside_of_approval(request):
                return await ledger.acall(request, handler)

    return LedgerMiddleware()


@contextmanager
def _outside_of_approval(request: ToolCallRequest) -> Iterator[None]:
    """Refuse a `HumanInTheLoopMiddleware` listed after the ledger, because it asks a person within the ledger's action.

    The ledger has then begun the model's request as an action. A rejection would be recorded as a failure of this
    action, and an edited call would run under its key.

    Raises:
        ToolSetupError: If there is such a middleware. The tool was not called.
    """
    try:
        yield
    except GraphInterrupt as error:
        call = request.tool_call
        for asked in error.args[0] if error.args else ():
            value = asked.value if isinstance(asked.value, Mapping) else {}
            if value.get("type") == _APPROVAL and _names(value) == (call.get("id"), call["name"]):
                raise ToolSetupError(
                    f'{call["name"]}: HumanInTheLoopMiddleware(interrupt_mode="per_call") must be listed before '
                    "ledger.middleware(), because a person's edit or rejection decides what the action is"
                ) from error
        raise


def _names(approval: Mapping[str, Any]) -> tuple[Any, Any]:
    return approval.get("tool_call_id"), approval.get("name")


@contextmanager
def _past_other_middleware() -> Iterator[None]:
    """Pass a final error through middleware that retries tools or reports their errors to the model.

    LangChain's own middleware passes on only exceptions of type `GraphBubbleUp`. So the error becomes one of these.
    """
    try:
        yield
    except PGStateError as error:
        if error.is_final and not isinstance(error, GraphBubbleUp):
            error.__class__ = _stopping(type(error))
        raise


def _stopping(kind: type[PGStateError]) -> type[PGStateError]:
    """Return a subclass of an error class that also stops a graph."""
    if kind not in _kinds:
        _kinds[kind] = type(
            kind.__name__, (kind, GraphBubbleUp), {"__module__": kind.__module__, "__doc__": kind.__doc__}
        )
    return _kinds[kind]


_kinds: dict[type[PGStateError], type[PGStateError]] = {}
