"""Reading LangGraph's calls: which tool, on which thread, in which task, and what the action is."""

from __future__ import annotations

import hashlib
import inspect
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any
from uuid import UUID, uuid4, uuid5
from weakref import WeakKeyDictionary

import orjson
from langchain_core.messages import AIMessage
from langgraph.config import get_config
from langgraph.prebuilt.tool_node import ToolCallRequest

from langgraph_pgstate.codec.metadata import to_json
from langgraph_pgstate.errors import ConfigurationError, ToolSetupError
from langgraph_pgstate.langgraph_compat import CHECKPOINTER, DURABILITY, RUNTIME, SCRATCHPAD, TASK_ID
from langgraph_pgstate.operations.checkpoints.addresses import check_key_size, configurable_of, identifier, thread_id_of
from langgraph_pgstate.operations.tools.tool_executions import Intent
from langgraph_pgstate.tools.policy import ToolPolicy, ToolSettings

RunOf = Callable[[Mapping[str, Any]], str | None]
"""From a config to the id of the run it belongs to."""

_TOKENS = UUID("6f1d5f0a-7c2e-4c55-9f43-6a2f1f0e7d10")
# How `object.__repr__` ends.
_ADDRESS = re.compile(r" at 0x[0-9A-Fa-f]+")
_MAX_DEPTH = 100


@dataclass(frozen=True, slots=True)
class Execution:
    """What a tool may know of the execution it runs in.

    Attributes:
        thread_id: The thread.
        key: What the action is, unique on its thread.
        tool: The tool.
        attempt: From 1; above 1 an earlier attempt failed or was lost.
        connection: For a transactional tool: the connection its writes have to go through.
        origin_thread_id: The thread the action was begun on first, if it came from there with a fork or a copy.
    """

    thread_id: str
    key: str
    tool: str
    attempt: int
    connection: Any = None
    origin_thread_id: str | None = None

    @property
    def token(self) -> str:
        """The same UUID for every attempt at this action and for no other: an external API's idempotency key.

        An attempt on a fork at what was begun before the fork has the same, too.
        """
        return str(uuid5(_TOKENS, f"{self.origin_thread_id or self.thread_id}\0{self.tool}\0{self.key}"))


_current: ContextVar[Execution | None] = ContextVar("pgstate_execution", default=None)


def current_execution() -> Execution:
    """The execution that the calling tool runs in.

    Raises:
        ToolSetupError: If no ledger runs it.
    """
    execution = _current.get()
    if execution is None:
        raise ToolSetupError("no tool execution is under way here: the tool was called without its ledger")
    return execution


def intent_of_request(
    request: ToolCallRequest, policy: ToolPolicy, settings: ToolSettings, run_of: RunOf | None
) -> Intent:
    """What a `ToolNode` is about to run.

    Raises:
        ToolSetupError: If the graph runs on no thread.
        ConfigurationError: If the key cannot be stored.
    """
    call = request.tool_call
    tool, arguments, call_id = call["name"], call["args"], call.get("id")
    config: Mapping[str, Any] = request.runtime.config
    message_id, asked = _asked_for(request.state, tool, call_id, arguments)
    fingerprint = _digest([tool, message_id, to_json(asked)[0]])
    if policy.key is not None:
        key, fingerprint = _own_key(tool, policy, arguments), ""
    else:
        key = call_id or f"{tool}:{fingerprint}"
    return _intent(config, tool, key, fingerprint or None, arguments, settings, run_of, call_id)


def intent_of_function(
    tool: str,
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    policy: ToolPolicy,
    settings: ToolSettings,
    run_of: RunOf | None,
) -> Intent:
    """What a node is about to run.

    Without a key function the action is the n-th call with these arguments in this task: run again after a crash, a
    task has the same id and makes the same calls.

    Raises:
        ToolSetupError: If this is not called in a graph on a thread.
        ConfigurationError: If the key cannot be stored.
    """
    try:
        config: Mapping[str, Any] = get_config()
    except RuntimeError as error:
        raise ToolSetupError(f"{tool} was called outside of a graph: its ledger needs a thread") from error
    bound = inspect.signature(function).bind(*args, **kwargs)
    bound.apply_defaults()
    arguments = dict(bound.arguments)
    if policy.key is not None:
        key = _own_key(tool, policy, arguments)
    else:
        fingerprint = _digest([tool, _lasting(arguments)])
        key = f"{tool}:{task_of(config)}:{fingerprint[:16]}:{_ordinal(config, fingerprint)}"
    return _intent(config, tool, key, None, arguments, settings, run_of, None)


def may_be_ahead(config: Mapping[str, Any]) -> bool:
    """Whether LangGraph may still be storing the checkpoint that a task started from while the task runs."""
    configurable = configurable_of(config)
    return bool(configurable.get(CHECKPOINTER)) and configurable.get(DURABILITY) in (
        None,
        "async",
    )


def task_of(config: Mapping[str, Any]) -> str:
    """The id of the task a config belongs to."""
    return str(configurable_of(config).get(TASK_ID) or "")


def scratchpad_of(config: Mapping[str, Any]) -> Any:
    """LangGraph's notes on the task under way: its resume values and counters; `None` outside of one."""
    return configurable_of(config).get(SCRATCHPAD)


def arguments_json(arguments: Mapping[str, Any], settings: ToolSettings) -> str:
    """A call's arguments, as near as JSON comes, redacted."""
    plain = to_json(dict(arguments))[0]
    if settings.redact is not None:
        plain = to_json(settings.redact("arguments", plain))[0]
    return orjson.dumps(plain).decode()


def new_intent_id() -> str:
    """For one attempt."""
    return uuid4().hex


def _intent(
    config: Mapping[str, Any],
    tool: str,
    key: str,
    fingerprint: str | None,
    arguments: Mapping[str, Any],
    settings: ToolSettings,
    run_of: RunOf | None,
    tool_call_id: str | None,
) -> Intent:
    configurable = configurable_of(config)
    metadata: Mapping[str, Any] = config.get("metadata") or {}
    try:
        thread_id = thread_id_of(configurable.get("thread_id"))
    except ConfigurationError as error:
        raise ToolSetupError(f"{tool} is run by a ledger, which needs a thread: {error}") from None
    check_key_size("thread_id and idempotency key", *[thread_id, identifier("idempotency key", key)])
    # Inside a node the config names the task's namespace, which ends in the task itself.
    namespace = str(configurable.get("checkpoint_ns") or "").rpartition("|")[0]
    heads: Mapping[str, str] = configurable.get("checkpoint_map") or {}
    run_id = (run_of(config) if run_of else None) or config.get("run_id") or metadata.get("run_id")
    step = metadata.get("langgraph_step")
    agent = metadata.get("lc_agent_name")
    return Intent(
        thread_id,
        key,
        fingerprint,
        new_intent_id(),
        str(to_json(tool)[0]),
        arguments_json(arguments, settings),
        tool_call_id=tool_call_id,
        agent=str(to_json(agent)[0]) if agent else None,
        run_id=str(run_id) if run_id else None,
        task_id=task_of(config) or None,
        checkpoint_ns=namespace,
        checkpoint_id=heads.get(namespace),
        root_checkpoint_id=heads.get(""),
        step=step if isinstance(step, int) else None,
    )


def _own_key(tool: str, policy: ToolPolicy, arguments: Mapping[str, Any]) -> str:
    assert policy.key is not None
    value = policy.key(arguments)
    if value is None or value == "":
        raise ConfigurationError(f"the key function of {tool} answered {value!r}: an action needs a name")
    return f"{tool}:{value}"


def _asked_for(state: Any, tool: str, call_id: str | None, arguments: Any) -> tuple[str | None, Any]:
    """The message that asked for a call, and the arguments as it has them; middleware may have changed the call's."""
    for message in reversed(_messages(state)):
        if isinstance(message, AIMessage):
            for call in message.tool_calls:
                if call["id"] == call_id and call["name"] == tool:
                    return message.id, call["args"]
    return None, arguments


def _messages(state: Any) -> Sequence[Any]:
    if isinstance(state, list):
        return state
    found = state.get("messages") if isinstance(state, Mapping) else getattr(state, "messages", None)
    return found if isinstance(found, list) else ()


def _ordinal(config: Mapping[str, Any], fingerprint: str) -> int:
    """How often this task has made the same call before, in this run of it."""
    pad = scratchpad_of(config)
    if pad is None:
        return 0
    runtime = configurable_of(config).get(RUNTIME)
    attempt = getattr(getattr(runtime, "execution_info", None), "node_attempt", 1)
    with _ordinals_lock:
        counts = _ordinals.setdefault(pad.get_null_resume, {})
        counts[attempt, fingerprint] = ordinal = counts.get((attempt, fingerprint), -1) + 1
    return ordinal


# LangGraph makes its notes on a task anew each time the task is run; of these, a function can be referred to weakly.
_ordinals: WeakKeyDictionary[Any, dict[tuple[int, str], int]] = WeakKeyDictionary()
_ordinals_lock = threading.Lock()


def _lasting(value: Any, depth: int = 0) -> Any:
    """As `to_json`, but the same in every process: an object without a text of its own, or a set, is not by itself."""
    if depth > _MAX_DEPTH:
        return None
    kind = type(value)
    if kind is dict:
        return to_json({key: _lasting(item, depth + 1) for key, item in value.items()})[0]
    if kind is list or kind is tuple:
        return [_lasting(item, depth + 1) for item in value]
    if isinstance(value, set | frozenset):
        return sorted((_lasting(item, depth + 1) for item in value), key=orjson.dumps)
    plain = to_json(value)[0]
    return plain if kind is str or not isinstance(plain, str) else _ADDRESS.sub("", plain)


def _digest(value: Any) -> str:
    return hashlib.blake2b(orjson.dumps(value, option=orjson.OPT_SORT_KEYS), digest_size=16).hexdigest()
