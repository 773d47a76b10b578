"""Intents of tool calls, read from LangGraph's requests and configs."""

from __future__ import annotations

import hashlib
import inspect
import re
import threading
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from uuid import uuid4
from weakref import WeakKeyDictionary

import orjson
from langgraph.config import get_config

from langgraph_pgstate.arguments import check_key_size, configurable_of, identifier, thread_id_of
from langgraph_pgstate.call_site import RunOf, origin_of, requested_by
from langgraph_pgstate.codec.metadata import to_json
from langgraph_pgstate.errors import ConfigurationError, ToolSetupError
from langgraph_pgstate.langgraph_compat import CHECKPOINTER, DURABILITY, EDITED_CALLS, RUNTIME, SCRATCHPAD, TASK_ID
from langgraph_pgstate.record.types import action_token
from langgraph_pgstate.tools.executions import Intent
from langgraph_pgstate.tools.policy import ToolPolicy, ToolSettings

if TYPE_CHECKING:
    from langgraph.prebuilt.tool_node import ToolCallRequest

# The end of the default `repr` of an object.
_ADDRESS = re.compile(r" at 0x[0-9A-Fa-f]+")
_MAX_DEPTH = 100


@dataclass(frozen=True, slots=True)
class Execution:
    """The execution in which a tool runs.

    Attributes:
        thread_id: The thread.
        key: Identifies the action on its thread.
        tool: The tool.
        attempt: Number of the attempt, from 1. Above 1, an earlier attempt failed or was lost.
        connection: For a transactional tool, the connection that its writes must use.
        origin_thread_id: The thread on which the action was first started, if a fork or a copy brought it here.
    """

    thread_id: str
    key: str
    tool: str
    attempt: int
    connection: Any = None
    origin_thread_id: str | None = None

    @property
    def token(self) -> str:
        """A UUID that is the same for every attempt at this action, for use as an external API's idempotency key.

        An attempt on a fork at an action started before the fork has the same token.
        """
        return action_token(self.origin_thread_id or self.thread_id, self.tool, self.key)


running_execution: ContextVar[Execution | None] = ContextVar("pgstate_execution", default=None)


def current_execution() -> Execution:
    """Return the execution in which the calling tool runs.

    Raises:
        ToolSetupError: If the tool was not called through a ledger.
    """
    execution = running_execution.get()
    if execution is None:
        raise ToolSetupError("no tool execution is in progress here: the tool was called without its ledger")
    return execution


def intent_of_request(
    request: ToolCallRequest, policy: ToolPolicy, settings: ToolSettings, run_of: RunOf | None
) -> Intent:
    """Return the intent of a `ToolNode`'s tool call.

    Raises:
        ToolSetupError: If the graph runs without a thread.
        ConfigurationError: If the key cannot be stored.
    """
    call = request.tool_call
    tool, arguments, call_id = call["name"], call["args"], call.get("id")
    config: Mapping[str, Any] = request.runtime.config
    message_id, asked = _asked_for(request.state, tool, call_id, arguments)
    edit = _edit_by_person(request.state, config, call)
    if edit is not None:
        tool, arguments = edit["name"], edit["args"]
    fingerprint = _digest([tool, message_id, to_json(asked)[0], *([] if edit is None else [to_json(arguments)[0]])])
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
    """Return the intent of a function call in a node.

    Without a key function the action is the n-th call with these arguments in this task, or in the action that calls
    it. A task that is run again after a crash has the same id and makes the same calls.

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
        # Several actions of a task run beside each other, and each counts the calls of its own attempt.
        outer = running_execution.get()
        fingerprint = _digest([tool, _lasting(arguments), *([] if outer is None else [outer.key])])
        call = f"{tool}:{_task_of(config)}:{fingerprint[:16]}"
        key = f"{call}:{_ordinal(config, call)}"
    return _intent(config, tool, key, None, arguments, settings, run_of, None)


def saver_ahead_of(config: Mapping[str, Any]) -> Any:
    """Return the saver that may still be storing the checkpoint from which a running task started; `None` if it has."""
    configurable = configurable_of(config)
    return configurable.get(CHECKPOINTER) or None if configurable.get(DURABILITY) in (None, "async") else None


def _task_of(config: Mapping[str, Any]) -> str:
    """Return the task id of a config."""
    return str(configurable_of(config).get(TASK_ID) or "")


def scratchpad_of(config: Mapping[str, Any]) -> Any:
    """Return LangGraph's scratchpad of the running task (resume values and counters), or `None` outside of a task."""
    return configurable_of(config).get(SCRATCHPAD)


def arguments_json(arguments: Mapping[str, Any], settings: ToolSettings) -> str:
    """Return a call's arguments as redacted JSON. Values that JSON cannot represent are approximated."""
    plain = to_json(dict(arguments))[0]
    if settings.redact is not None:
        plain = to_json(settings.redact("arguments", plain))[0]
    return orjson.dumps(plain).decode()


def new_intent_id() -> str:
    """Return a new id for one attempt."""
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
    metadata: Mapping[str, Any] = config.get("metadata") or {}
    try:
        thread_id = thread_id_of(configurable_of(config).get("thread_id"))
        origin = origin_of(config, run_of)
    except ConfigurationError as error:
        raise ToolSetupError(f"{tool} is run by a ledger, which needs a thread: {error}") from None
    check_key_size("thread_id and idempotency key", *[thread_id, identifier("idempotency key", key)])
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
        run_id=origin.run_id,
        task_id=_task_of(config) or None,
        checkpoint_ns=origin.checkpoint_ns or "",
        checkpoint_id=origin.checkpoint_id,
        root_checkpoint_id=origin.root_checkpoint_id,
        step=step if isinstance(step, int) else None,
    )


def _own_key(tool: str, policy: ToolPolicy, arguments: Mapping[str, Any]) -> str:
    assert policy.key is not None
    value = policy.key(arguments)
    if value is None or value == "":
        raise ConfigurationError(f"the key function of {tool} returned {value!r}: an action needs a key")
    return f"{tool}:{value}"


def _asked_for(state: Any, tool: str, call_id: str | None, arguments: Any) -> tuple[str | None, Any]:
    """Return the id of the message that requested a call, and its arguments before any change by middleware."""
    found = requested_by(state, tool, call_id)
    return (None, arguments) if found is None else (found[0].id, found[1])


def _edit_by_person(state: Any, config: Mapping[str, Any], call: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the name and arguments that a person gave a call through LangChain's `HumanInTheLoopMiddleware`.

    The message that requested the call keeps its own arguments. The edit is in the state, or, if each call asks for
    itself, an answer of the task.
    """
    edits = state.get(EDITED_CALLS) if isinstance(state, Mapping) else getattr(state, EDITED_CALLS, None)
    if isinstance(edits, Mapping) and call.get("id") in edits:
        edit: Mapping[str, Any] = edits[call.get("id")]
        return edit
    for answer in getattr(scratchpad_of(config), "resume", ()):
        action = answer.get("edited_action") if isinstance(answer, Mapping) else None
        if isinstance(action, Mapping) and (action.get("name"), action.get("args")) == (call["name"], call["args"]):
            return action
    return None


def repeat_next(key: str) -> None:
    """Let the next equal call of this task be this action again, as the outcome of this call is not known.

    Args:
        key: The key of a function call without a key function.
    """
    call, _, ordinal = key.rpartition(":")
    with _ordinals_lock:
        _ordinals_left(get_config(), call).append(int(ordinal))


def _ordinal(config: Mapping[str, Any], call: str) -> int:
    """Return the number of equal calls that this task has made before, in this run of it and of the outer action."""
    with _ordinals_lock:
        left = _ordinals_left(config, call)
        left.sort()
        ordinal = left.pop(0)
        if not left:
            left.append(ordinal + 1)
    return ordinal


def _ordinals_left(config: Mapping[str, Any], call: str) -> list[int]:
    """Return the numbers of a task's next equal calls: those to be repeated, and that of the next new one."""
    pad, outer = scratchpad_of(config), running_execution.get()
    if pad is None:
        return [0]
    runtime = configurable_of(config).get(RUNTIME)
    attempt = getattr(getattr(runtime, "execution_info", None), "node_attempt", 1)
    place = attempt, 0 if outer is None else outer.attempt, call
    return _ordinals.setdefault(pad.get_null_resume, {}).setdefault(place, [0])


# LangGraph makes a new scratchpad for each run of a task; one of its functions supports weak references.
_ordinals: WeakKeyDictionary[Any, dict[tuple[int, int, str], list[int]]] = WeakKeyDictionary()
_ordinals_lock = threading.Lock()


def _lasting(value: Any, depth: int = 0) -> Any:
    """Return what `to_json` does, but equal in every process: sets are sorted, and memory addresses removed."""
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
