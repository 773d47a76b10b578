"""Tools with which an agent remembers, recalls and forgets for the user of the run."""

from __future__ import annotations

import functools
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any

from langchain_core.messages import HumanMessage
from langchain_core.tools import BaseTool, StructuredTool, ToolException
from langgraph.prebuilt import ToolRuntime

from langgraph_pgstate.arguments import configurable_of
from langgraph_pgstate.call_site import lists_of, requested_by
from langgraph_pgstate.db.adapters import run_blocking
from langgraph_pgstate.errors import ArgumentTypeError, ConfigurationError, SerializationError
from langgraph_pgstate.langgraph_compat import channels_of
from langgraph_pgstate.memory.memories import Owner, forgetting_of, owner_of
from langgraph_pgstate.memory.remembering import AsyncMemories
from langgraph_pgstate.memory.store import AsyncPGMemoryStore, PGMemoryStore

OwnerSource = Callable[[ToolRuntime], str | None]
_MAX_RECALLED = 50


def memory_tools(
    memory: Any, *, agent: str | None = None, user: OwnerSource | None = None, tenant: OwnerSource | None = None
) -> list[BaseTool]:
    """Return the tools `remember`, `recall` and `forget`, for `ToolNode` and `create_agent`.

    The tools use the memories of the run's user, and a model cannot name another user. The origin of a memory is the
    user's last message, or else the message that requested the call.

    Args:
        memory: A `PGState` or `AsyncPGState`, or its `memory`.
        agent: Agent that stores the memories; by default they are for all agents of the user.
        user: Returns the user of a run; by default the user that the server has authenticated, else
            `configurable.user_id` of the config.
        tenant: Returns the tenant of a run; by default the `tenant_id` of the authenticated user, else
            `configurable.tenant_id` of the config.

    Raises:
        ConfigurationError: If the first argument has no memory.
    """
    store = getattr(memory, "memory", memory)
    if not isinstance(store, PGMemoryStore | AsyncPGMemoryStore):
        raise ArgumentTypeError(f"memory_tools must be given a state or its memory, not {type(memory).__name__}")
    tools = _Tools(store, agent, user or _user_of, tenant or _tenant_of)
    return [_tool(store, method) for method in (tools.remember, tools.recall, tools.forget)]


def _user_of(runtime: ToolRuntime) -> str | None:
    configurable: Mapping[str, Any] = runtime.config.get("configurable") or {}
    return _text(configurable.get("langgraph_auth_user_id") or configurable.get("user_id"))


def _tenant_of(runtime: ToolRuntime) -> str | None:
    configurable: Mapping[str, Any] = runtime.config.get("configurable") or {}
    if not configurable.get("langgraph_auth_user_id"):
        return _text(configurable.get("tenant_id"))
    # A client may have set `tenant_id` in the config. Only the authenticated user is trusted.
    user = configurable.get("langgraph_auth_user")
    return _text(user.get("tenant_id") if isinstance(user, Mapping) else getattr(user, "tenant_id", None))


def _text(value: Any) -> str | None:
    return None if value is None or value == "" else str(value)


class _Tools:
    def __init__(self, store: Any, agent: str | None, user: OwnerSource, tenant: OwnerSource) -> None:
        self._store, self._agent, self._user, self._tenant = store, agent, user, tenant

    def _owner(self, runtime: ToolRuntime) -> Owner:
        user = self._user(runtime)
        if not user:
            raise ConfigurationError(
                "the tools of memory require the run's user: set configurable.user_id in the run's config, or give "
                "memory_tools the argument user="
            )
        return owner_of(self._tenant(runtime), user, self._agent)

    async def remember(
        self,
        content: str,
        runtime: ToolRuntime,
        kind: str = "fact",
        key: str | None = None,
        importance: float | None = None,
    ) -> str:
        """Remember something about the user for later conversations. What is known already is only counted.

        Args:
            content: One statement that can be understood without this conversation.
            kind: fact, preference, interaction or summary.
            key: A short name if it replaces what is known under this name, such as home or diet.
            importance: From 0 to 1.
        """
        owner = self._owner(runtime)
        found = await _told(
            AsyncMemories.remember(
                self._store,
                content,
                kind,
                key=key,
                importance=importance,
                **owner._asdict(),
                message_id=_cause(runtime),
                by=owner.user_id,
            )
        )
        return f"remembered as {found.key}"

    async def recall(self, query: str, runtime: ToolRuntime, kinds: list[str] | None = None, limit: int = 5) -> str:
        """Look up what is remembered about the user.

        Args:
            query: What to look for.
            kinds: Only these kinds, such as fact or preference.
            limit: How many at most.
        """
        owner = self._owner(runtime)
        limit = max(1, min(limit, _MAX_RECALLED))
        found = await _told(AsyncMemories.recall(self._store, query, kinds=kinds, limit=limit, **owner._asdict()))
        shown = [
            {"key": one.key, "kind": one.kind, "content": one.content, "since": f"{one.valid_from:%Y-%m-%d}"}
            for one in found
        ]
        return json.dumps(shown, ensure_ascii=False)

    async def forget(self, key: str, runtime: ToolRuntime) -> str:
        """Forget what is remembered about the user under a key.

        Args:
            key: The key, as recall shows it.
        """
        owner = self._owner(runtime)

        async def forget() -> int:
            # As `recall` does, find the key in the namespaces of all agents.
            asked = replace(forgetting_of(owner, None, key, None, False), is_below=True)
            return await AsyncMemories.forget_asked(self._store, asked, owner.user_id)

        return "forgotten" if await _told(forget()) else "nothing is remembered under this key"


async def _told(call: Awaitable[Any]) -> Any:
    """Return the result of a call. If an argument is invalid, the model gets the message of the error."""
    try:
        return await call
    except (ConfigurationError, SerializationError) as error:
        raise ToolException(str(error)) from error


def _cause(runtime: ToolRuntime) -> str | None:
    """Return the id of the user's last message, or else of the message that requested the call.

    The input of a node that a `Send` starts may lack messages, so also search the messages of the graph.
    """
    states = (runtime.state, channels_of(configurable_of(runtime.config)))
    for state in states:
        for messages in lists_of(state):
            for message in reversed(messages):
                if isinstance(message, HumanMessage) and message.id is not None:
                    return message.id
    found = next((one for state in states if (one := requested_by(state, "remember", runtime.tool_call_id))), None)
    return None if found is None else found[0].id


def _tool(store: PGMemoryStore | AsyncPGMemoryStore, method: Callable[..., Any]) -> BaseTool:
    @functools.wraps(method)
    def run(*args: Any, **kwargs: Any) -> Any:
        coroutine = method(*args, **kwargs)
        if isinstance(store, AsyncPGMemoryStore):
            return store.wait(coroutine, method.__name__)
        return run_blocking(coroutine)

    return StructuredTool.from_function(
        run,
        coroutine=method if isinstance(store, AsyncPGMemoryStore) else None,
        name=method.__name__,
        parse_docstring=True,
        handle_tool_error=True,
    )
