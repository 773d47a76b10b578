"""The tool ledgers, blocking and async. Each tool call is an action that takes effect once.

The intent of an action is committed before its tool runs, and the outcome afterwards. If the process dies in between,
the outcome is unknown, and the action is never repeated silently.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import fields, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar, cast, overload

from langchain_core.tools import BaseTool

from langgraph_pgstate.arguments import thread_id_of
from langgraph_pgstate.call_site import RunOf
from langgraph_pgstate.codec.values import ValueCodec
from langgraph_pgstate.db.adapters import run_blocking
from langgraph_pgstate.db.database import AsyncDatabase, Database
from langgraph_pgstate.db.protocol import read
from langgraph_pgstate.db.runners import blocking
from langgraph_pgstate.errors import ArgumentTypeError, ConfigurationError, NotFoundError, ToolSetupError
from langgraph_pgstate.paging import Page
from langgraph_pgstate.record.types import CompensationReport, ToolExecution
from langgraph_pgstate.schema.queries import Queries
from langgraph_pgstate.scopes import Scope
from langgraph_pgstate.tools import executions as tool_executions
from langgraph_pgstate.tools.acting import with_connection
from langgraph_pgstate.tools.action_runner import ActionRunner
from langgraph_pgstate.tools.budget import Budget
from langgraph_pgstate.tools.compensation import Compensator, compensate_all
from langgraph_pgstate.tools.executor import AsyncExecutor, BlockingExecutor, Executor, OffloadingExecutor
from langgraph_pgstate.tools.intents import CallReader, ToolCall
from langgraph_pgstate.tools.middleware import middleware_of
from langgraph_pgstate.tools.policy import ToolPolicy, ToolSettings
from langgraph_pgstate.tools.results import parse_reference, restore

if TYPE_CHECKING:
    from langgraph.prebuilt.tool_node import ToolCallRequest

F = TypeVar("F", bound=Callable[..., Any])
AnyTool = TypeVar("AnyTool", bound=Callable[..., Any] | BaseTool)

_POLICY_NAMES = {field.name for field in fields(ToolPolicy)} - {"transactional"}
_PAGE = 100


class _Ledger:
    """The common part of both ledgers, without a connection."""

    _runner: ActionRunner
    _executor: Executor

    def _prepare(
        self,
        database: Database | AsyncDatabase,
        queries: Queries,
        codec: ValueCodec | None,
        settings: ToolSettings | None,
        default: ToolPolicy | None,
        run_of: RunOf | None,
    ) -> None:
        self._queries = queries
        self._codec = codec or ValueCodec()
        self._settings = settings or ToolSettings()
        self._default = default or ToolPolicy()
        self._calls = CallReader(database, queries.schema, self._settings, run_of)
        self._policies: dict[str, ToolPolicy] = {}
        # Names of the functions of tools, by the tool's name, if the names differ.
        self._functions: dict[str, str] = {}
        self._compensators: dict[str, Compensator] = {}
        # Module and qualified name of each function that `once` has wrapped without `name=`, by the function's name.
        self._places: dict[str, tuple[str, str]] = {}

    def policy(self, tool: str | None = None, /, **terms: Any) -> Callable[[AnyTool], AnyTool]:
        """Set the policy of a tool.

        Use it as a decorator, above or below `@tool`, or just call it with the tool's name. The tool stays unchanged.

        Args:
            tool: The tool's name; by default that of the decorated tool.
            terms: Attributes of `ToolPolicy`; by default those of the ledger's default policy.

        Raises:
            ConfigurationError: If a term is unknown, or two terms conflict.

        Example:
            >>> @tool
            ... @ledger.policy(key=lambda args: args["order_id"], on_unknown="check", check=was_charged)
            ... def charge(order_id: str, euros: int) -> str: ...
        """
        checked = self._with(self._default, terms)
        if tool is not None:
            self._policies[tool] = self._with(self._policies.get(tool, self._default), terms)

        def register(decorated: AnyTool) -> AnyTool:
            name = tool or _name_of(decorated)
            known = self._policies.get(name)
            self._policies[name] = checked if known is None else self._with(known, terms)
            return decorated

        return register

    def transactional(self, function: F) -> F:
        """Give a tool a connection whose transaction also stores the tool's outcome.

        The function takes the connection as its keyword parameter `connection` (psycopg's, async in an async ledger).
        The parameter is hidden from callers and from the model. Effects in the same database happen exactly once. If
        the process dies, the transaction is rolled back, and the tool is run again. The tool must not commit.

        Raises:
            ConfigurationError: If the function has no parameter `connection`.
        """
        name = _name_of(function)
        connected = with_connection(function, name, self._queries.schema)
        self._policies[name] = replace(self._policies.get(name, self._default), transactional=True)
        return connected

    def once(self, function: F | None = None, /, *, name: str | None = None, **terms: Any) -> Any:
        """Run each call of a plain function, inside a node or a task, as an action of the ledger.

        Without a `key` the action is the n-th call with these arguments in its task. A task that is run again after a
        crash gets the recorded results of its earlier calls. The serializer must be able to store the results.

        Args:
            function: The function.
            name: The name in the ledger; by default the function's name. It must be given for a lambda, and for a
                second function with the same name.
            terms: Attributes of `ToolPolicy`.

        Raises:
            ConfigurationError: If a term is unknown, two terms conflict, or `name` must be given.

        Example:
            >>> @ledger.once(key=lambda args: args["order_id"])
            ... def ship(order_id: str) -> str: ...
        """
        if function is None:
            return functools.partial(self.once, name=name, **terms)
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise ArgumentTypeError(f"{_name_of(function)} must not be a generator function, which runs after its call")
        wrapped = self._wrapped(function, name or _name_of(function), terms)
        if name is None:
            self._check_name(function)
        return wrapped

    def budget(self, *, max_steps: int | None = None, max_tokens: int | None = None) -> Budget:
        """Return a callback handler that ends a run with `RunBudgetExceededError` when its budget is used up.

        Args:
            max_steps: Supersteps of the root graph.
            max_tokens: Input and output tokens of all model calls together, as the models report them.

        Example:
            >>> graph = graph.with_config(callbacks=[ledger.budget(max_steps=30, max_tokens=200_000)])
        """
        return Budget(max_steps=max_steps, max_tokens=max_tokens)

    def middleware(self) -> Any:
        """Return the ledger as a middleware for `langchain.agents.create_agent`.

        Raises:
            ConfigurationError: If langchain is not installed.
        """
        return middleware_of(self)

    def _check_name(self, function: Callable[..., Any]) -> None:
        """Check that a function's name distinguishes its actions from those of other functions.

        Raises:
            ConfigurationError: If it does not.
        """
        name, place = _name_of(function), (getattr(function, "__module__", ""), getattr(function, "__qualname__", ""))
        if not place[1] or "<lambda>" in name:
            raise ConfigurationError(f"name=... must be given for {function!r}, which has no name of its own")
        if self._places.setdefault(name, place) != place:
            other = ".".join(self._places[name])
            raise ConfigurationError(
                f"name=... must be given for {'.'.join(place)}, because the actions of {other} have the name {name!r}"
            )

    def _wrapped(self, function: F, name: str, terms: Mapping[str, Any]) -> F:
        raise NotImplementedError

    def _with(self, policy: ToolPolicy, terms: Mapping[str, Any]) -> ToolPolicy:
        if unknown := set(terms) - _POLICY_NAMES:
            raise ConfigurationError(f"terms must be among {', '.join(sorted(_POLICY_NAMES))}, not {min(unknown)}")
        return replace(policy, **terms)

    def _policy_for(self, name: str) -> ToolPolicy:
        """Return a policy by the tool's name, or by the name of its function."""
        return self._policies.get(name) or self._policies.get(self._functions.get(name, name), self._default)

    def _note_function(self, name: str, function: Callable[..., Any] | None) -> None:
        """Note the name of a tool's function, for policies that were set before the tool got another name."""
        if function is not None and (own := _name_of(function)) != name:
            self._functions[name] = own

    def _call(self, request: ToolCallRequest, act: Callable[[], Any]) -> ToolCall:
        name = request.tool_call["name"]
        self._note_function(name, getattr(request.tool, "func", None) or getattr(request.tool, "coroutine", None))
        return self._calls.of_request(request, self._policy_for(name), act)

    def _call_of_function(
        self,
        function: Callable[..., Any],
        name: str,
        terms: Mapping[str, Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
    ) -> ToolCall:
        return self._calls.of_function(name, function, args, kwargs, self._with(self._policy_for(name), terms))

    def _register_compensation(self, compensator: Callable[..., Any]) -> Callable[[AnyTool], AnyTool]:
        name = _name_of(compensator)

        def register(tool: AnyTool) -> AnyTool:
            policy = self._policies.get(name, self._default)
            self._compensators[_name_of(tool)] = Compensator(name, compensator, policy)
            return tool

        return register

    async def _compensate(self, thread_id: str, run_id: str | None, to_checkpoint: str | None) -> CompensationReport:
        compensators = {
            tool: replace(item, policy=self._policies.get(item.name, item.policy))
            for tool, item in self._compensators.items()
        }
        for tool, function in self._functions.items():
            if tool not in compensators and function in compensators:
                compensators[tool] = compensators[function]
        return await compensate_all(
            self._runner,
            self._queries,
            self._codec,
            self._settings,
            compensators,
            thread_id_of(thread_id),
            run_id,
            to_checkpoint,
        )


class AsyncToolLedger(_Ledger):
    """Async twin of `ToolLedger`. Pass it to a `ToolNode` as `awrap_tool_call`."""

    def __init__(
        self,
        database: AsyncDatabase,
        queries: Queries,
        codec: ValueCodec | None = None,
        *,
        settings: ToolSettings | None = None,
        default: ToolPolicy | None = None,
        run_of: RunOf | None = None,
    ) -> None:
        self._prepare(database, queries, codec, settings, default, run_of)
        self._executor: AsyncExecutor = AsyncExecutor(database, queries, self._settings.ttl_seconds)
        self._runner = ActionRunner(self._executor, self._codec, self._settings)

    async def __call__(self, request: ToolCallRequest, execute: Callable[[ToolCallRequest], Awaitable[Any]]) -> Any:
        """Async twin of `ToolLedger.__call__`."""
        return await self._runner.perform(self._call(request, lambda: execute(request)))

    async def acall(self, request: ToolCallRequest, execute: Callable[[ToolCallRequest], Awaitable[Any]]) -> Any:
        """Run a tool call like `__call__`, under the name that both ledgers have."""
        return await self(request, execute)

    async def get(self, thread_id: str, key: str) -> ToolExecution | None:
        """Return one action without its result; `None` if there is no action with this key.

        Raises:
            ThreadArchivedError: If the thread is archived.
        """
        recorded = await self._executor.run(tool_executions.find, self._queries, thread_id_of(thread_id), key)
        return recorded.execution if recorded else None

    async def list(
        self,
        thread_id: str,
        *,
        run_id: str | None = None,
        unknown: bool = False,
        limit: int = _PAGE,
        after: ToolExecution | None = None,
    ) -> Sequence[ToolExecution]:
        """Return a thread's actions, newest first.

        Args:
            thread_id: The thread.
            run_id: Only actions whose last attempt belongs to this run.
            unknown: Only actions whose outcome is unknown: they took too long, or their process died; see `settle`.
            limit: Maximum number of actions.
            after: The last action of the previous page.

        Raises:
            ThreadArchivedError: If the thread is archived.
        """
        operation = tool_executions.list_executions
        return await self._executor.run(
            operation, self._queries, thread_id_of(thread_id), run_id, limit, _cursor(after), unknown=unknown
        )

    async def recent(
        self,
        *,
        tool: str | None = None,
        unknown: bool = False,
        scope: Scope | None = None,
        limit: int = 20,
        cursor: str | None = None,
    ) -> Page[ToolExecution]:
        """Return a page of the actions of all threads, newest first. One round trip.

        Args:
            tool: Only actions of this tool.
            unknown: Only actions whose outcome is unknown: they took too long, or their process died; see `settle`.
            scope: Only actions of threads whose metadata contain this.
            limit: Page size, 1,000 at most.
            cursor: `next` of the previous page.

        Raises:
            ConfigurationError: If an argument is invalid.
        """
        found = tool_executions.list_recent(tool=tool, unknown=unknown, scope=scope, limit=limit, cursor=cursor)
        return await self._executor.run(read, self._queries, found)

    async def result(self, reference: str) -> Any:
        """Return the whole result that the reference in a summary names (see `ToolSettings.result_limit`).

        Raises:
            ConfigurationError: If `reference` is not a reference.
            NotFoundError: If there is no such result.
            ThreadArchivedError: If the thread is archived.
            UnsafeTypeError: If the result has a type that may not be built.
        """
        thread_id, key = parse_reference(reference)
        recorded = await self._executor.run(tool_executions.find, self._queries, thread_id, key)
        if recorded is None:
            raise NotFoundError(f"thread {thread_id!r} has no tool execution {key!r}")
        return restore(self._codec, recorded)

    async def settle(
        self,
        thread_id: str,
        key: str,
        decision: str,
        result: Any = "done",
        *,
        by: str | None = None,
        seen: ToolExecution | None = None,
    ) -> None:
        """Decide the outcome of an action that is unknown or that failed. One compare-and-swap.

        Args:
            thread_id: The thread.
            key: The action.
            decision: `done`: the action took effect and returned `result`. `retry`: it had no effect, and its next call
                runs it. `fail`: it is not run again.
            result: Result of the action: any storable value; for a tool of a `ToolNode`, a text or a `ToolMessage`.
            by: Name of the person who decides. If given, an event of the kind `action` is stored with this name.
            seen: The action as `get` returned it. If the action has changed since, the decision is refused.
                Needed to change a decision.

        Raises:
            NotFoundError: If there is no such action.
            ThreadArchivedError: If the thread is archived.
            ConfigurationError: If the decision is invalid.
            AlreadySettledError: If the action is running, has succeeded, or differs from `seen`. Without `seen`, also
                if it was settled and not called since.
        """
        await self._runner.recorded.settle(thread_id_of(thread_id), key, decision, result, by, seen)

    @overload
    def compensate(self, what: Callable[..., Any], /) -> Callable[[AnyTool], AnyTool]: ...

    @overload
    def compensate(
        self, what: str, /, run_id: str | None = None, to_checkpoint: str | None = None
    ) -> Awaitable[CompensationReport]: ...

    def compensate(self, what: Any, /, run_id: str | None = None, to_checkpoint: str | None = None) -> Any:
        """Async twin of `ToolLedger.compensate`. With a thread, the return value is an awaitable."""
        if callable(what):
            return self._register_compensation(what)
        return self._compensate(what, run_id, to_checkpoint)

    async def close(self) -> None:
        """Async twin of `ToolLedger.close`."""
        await self._executor.close(self._settings.wait_seconds)

    def _wrapped(self, function: F, name: str, terms: Mapping[str, Any]) -> F:
        self._note_function(name, function)
        self._with(self._policy_for(name), terms)
        if not inspect.iscoroutinefunction(function):
            raise ArgumentTypeError(f"{name} must be an `async def` function, because its ledger is asynchronous")

        @functools.wraps(function)
        async def suspending(*args: Any, **kwargs: Any) -> Any:
            return await self._runner.perform(self._call_of_function(function, name, terms, args, kwargs))

        return cast("F", suspending)


class ToolLedger(_Ledger):
    """A ledger of tool executions in PostgreSQL. Safe to share between threads.

    Pass it to a `ToolNode` as `wrap_tool_call`. For a graph that runs on an event loop with a blocking database, also
    pass `ledger.acall` as `awrap_tool_call`.

    Args:
        database: The database.
        queries: The queries of the schema.
        codec: Serializer of results; by default LangGraph's own.
        settings: Settings for all tools.
        default: Policy of tools that have no policy of their own.
        run_of: Returns the id of the recorded run to which a config belongs.

    Example:
        >>> tools = ToolNode([charge], wrap_tool_call=ledger, awrap_tool_call=ledger.acall)
    """

    def __init__(
        self,
        database: Database,
        queries: Queries,
        codec: ValueCodec | None = None,
        *,
        settings: ToolSettings | None = None,
        default: ToolPolicy | None = None,
        run_of: RunOf | None = None,
    ) -> None:
        self._prepare(database, queries, codec, settings, default, run_of)
        self._executor: BlockingExecutor = BlockingExecutor(database, queries, self._settings.ttl_seconds)
        self._runner = ActionRunner(self._executor, self._codec, self._settings)
        self._offloading = ActionRunner(OffloadingExecutor(self._executor), self._codec, self._settings)

    def __call__(self, request: ToolCallRequest, execute: Callable[[ToolCallRequest], Any]) -> Any:
        """Run a tool call of a `ToolNode` as an action of the ledger.

        Raises:
            ToolError: If the outcome of the action is unknown, or it failed before, or another process runs it.
            ToolSetupError: If the setup of the tool does not match its ledger or graph, or if this is the thread of an
                event loop, which the call would block.
        """
        if _has_loop():
            raise ToolSetupError(
                "a blocking ledger must not be called on an event loop: give the ToolNode awrap_tool_call, too, as in "
                "ToolNode(tools, wrap_tool_call=state.tools, awrap_tool_call=state.tools.acall)"
            )
        return run_blocking(self._runner.perform(self._call(request, lambda: execute(request))))

    async def acall(self, request: ToolCallRequest, execute: Callable[[ToolCallRequest], Awaitable[Any]]) -> Any:
        """Run a tool call of a `ToolNode` on an event loop as an action of the ledger.

        Raises:
            ToolError: If the outcome of the action is unknown, or it failed before, or another process runs it.
            ToolSetupError: If the setup of the tool does not match its ledger or graph.
        """
        return await self._offloading.perform(self._call(request, lambda: execute(request)))

    get = blocking(AsyncToolLedger.get)
    list = blocking(AsyncToolLedger.list)
    recent = blocking(AsyncToolLedger.recent)
    result = blocking(AsyncToolLedger.result)
    settle = blocking(AsyncToolLedger.settle)

    @overload
    def compensate(self, what: Callable[..., Any], /) -> Callable[[AnyTool], AnyTool]: ...

    @overload
    def compensate(
        self, what: str, /, run_id: str | None = None, to_checkpoint: str | None = None
    ) -> CompensationReport: ...

    def compensate(self, what: Any, /, run_id: str | None = None, to_checkpoint: str | None = None) -> Any:
        """Register the compensation of a tool, as a decorator, or compensate the effects on a thread.

        Compensations are called with the `ToolExecution` and its recorded result, newest first. Each one is itself an
        action of the ledger, so a repeated call after a crash continues where the first stopped. If one fails, it is
        reported, and the others still run.

        Args:
            what: The function that compensates the decorated tool, or a thread's id.
            run_id: Only effects of this run.
            to_checkpoint: Only effects from this checkpoint of the root namespace on, on all its branches.

        Raises:
            NotFoundError: If there is no such checkpoint.
            ThreadArchivedError: If the thread is archived.

        Example:
            >>> @ledger.compensate(refund_payment)
            ... def charge(order_id: str, euros: int) -> str: ...
            >>> ledger.compensate("thread-1", to_checkpoint=checkpoint_id)
        """
        if callable(what):
            return self._register_compensation(what)
        return run_blocking(self._compensate(what, run_id, to_checkpoint))

    def close(self) -> None:
        """Wait up to `ToolSettings.wait_seconds` for tools whose callers have stopped waiting. Then stop renewing.

        On the thread of an event loop, this does not wait.
        """
        # A wait would block the event loop, which then could not notice the end of its tools.
        self._executor.close(0 if _has_loop() else self._settings.wait_seconds)

    def _wrapped(self, function: F, name: str, terms: Mapping[str, Any]) -> F:
        self._note_function(name, function)
        self._with(self._policy_for(name), terms)
        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def offloading(*args: Any, **kwargs: Any) -> Any:
                return await self._offloading.perform(self._call_of_function(function, name, terms, args, kwargs))

            return cast("F", offloading)

        @functools.wraps(function)
        def waiting(*args: Any, **kwargs: Any) -> Any:
            return run_blocking(self._runner.perform(self._call_of_function(function, name, terms, args, kwargs)))

        return cast("F", waiting)


def _name_of(tool: Any) -> str:
    return str(tool.name if isinstance(tool, BaseTool) else getattr(tool, "__name__", type(tool).__name__))


def _has_loop() -> bool:
    """Return whether an event loop runs on this thread."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _cursor(after: ToolExecution | None) -> tuple[datetime, str] | None:
    return None if after is None else (after.started_at, after.idempotency_key)
