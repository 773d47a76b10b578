"""Tool calls and their intents, read from LangGraph's requests and configs."""

from __future__ import annotations

import hashlib
import inspect
import re
import threading
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4
from weakref import WeakKeyDictionary

import orjson
from langchain_core.tools import BaseTool, StructuredTool
from langgraph.config import get_config

from langgraph_pgstate.arguments import check_key_size, configurable_of, identifier, thread_id_of
from langgraph_pgstate.call_site import RunOf, origin_of, requested_by
from langgraph_pgstate.codec.metadata import to_json
from langgraph_pgstate.db.database import AsyncDatabase, Database
from langgraph_pgstate.errors import ConfigurationError, LeaseLostError, ToolSetupError
from langgraph_pgstate.langgraph_compat import CHECKPOINTER, DURABILITY, EDITED_CALLS, RUNTIME, SCRATCHPAD, TASK_ID
from langgraph_pgstate.leases.checking import ToolStarts
from langgraph_pgstate.record.types import action_token
from langgraph_pgstate.saver.common import CommonSaver
from langgraph_pgstate.tools.executions import Intent
from langgraph_pgstate.tools.policy import ToolPolicy, ToolSettings
from langgraph_pgstate.tools.results import as_answer

if TYPE_CHECKING:
    from langgraph.prebuilt.tool_node import ToolCallRequest

# The memory address in the default `repr` of an object.
_ADDRESS = re.compile(r" at 0x[0-9A-Fa-f]+")
_MAX_DEPTH = 100
# Methods of a tool that run before LangChain calls the callback handlers of the tool's start.
_STARTING: Final = ("invoke", "ainvoke", "run", "arun")


@dataclass(frozen=True, slots=True)
class Execution:
    """The attempt at an action in which a tool runs, as `current_execution()` returns it.

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

        If an action was started before a fork, its attempts on the fork have the same token.
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
        raise ToolSetupError("current_execution must be called in a tool that a ledger runs")
    return execution


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call of a tool.

    Attributes:
        intent: The intent to record.
        policy: The tool's policy.
        act: Runs the tool. Returns or raises its outcome, or returns an awaitable.
        as_answer: Converts a result given by a person or a check to the form that the caller expects.
        is_ahead: Whether the checkpoint from which the call was made is possibly not stored yet.
        is_saved: Whether it is certain that the checkpoint of the root graph will be stored in the ledger's schema.
        origin_thread_id: The thread on which the action was first started, if a fork or a copy brought it here.
        is_blocking: Whether the tool is a blocking function, which an event loop runs in a thread.
        is_counted: Whether the action is identified by the number of the call among the equal calls of its task.
        is_announced: Whether LangChain calls the callback handlers of the tool's start before any of its code runs.
        starts: Which starts of tools the lease check has allowed or refused in the present attempt.
    """

    intent: Intent
    policy: ToolPolicy
    act: Callable[[], Any]
    as_answer: Callable[[Any], Any] = lambda result: result
    is_ahead: bool = False
    is_saved: bool = False
    origin_thread_id: str | None = None
    is_blocking: bool = False
    is_counted: bool = False
    is_announced: bool = False
    starts: ToolStarts = field(default_factory=ToolStarts)

    @property
    def refusal(self) -> LeaseLostError | None:
        """The error of the lease check that kept the tool from beginning in this attempt; `None` if it was allowed."""
        return self.starts.refusal if self.is_announced else None


class CallReader:
    """A reader of tool calls, with their intents, from LangGraph's requests and configs.

    Args:
        database: The database of the ledger.
        schema: The schema.
        settings: The settings of the ledger.
        run_of: Returns the id of the recorded run to which a config belongs.
    """

    def __init__(
        self, database: Database | AsyncDatabase, schema: str, settings: ToolSettings, run_of: RunOf | None
    ) -> None:
        self._database, self._schema = database, schema
        self._settings, self._run_of = settings, run_of

    def of_request(self, request: ToolCallRequest, policy: ToolPolicy, act: Callable[[], Any]) -> ToolCall:
        """Return the `ToolCall` of a request of a `ToolNode`.

        Raises:
            ToolSetupError: If the graph runs without a thread.
            ConfigurationError: If the key cannot be stored.
        """
        called = request.tool_call
        name, call_id = called["name"], called.get("id")
        tool, arguments = name, called["args"]
        config: Mapping[str, Any] = request.runtime.config
        message_id, asked = _asked_for(request.state, tool, call_id, arguments)
        edit = _edit_by_person(request.state, config, called)
        if edit is not None:
            tool, arguments = edit["name"], edit["args"]
        fingerprint = _digest([tool, message_id, to_json(asked)[0], *([] if edit is None else [to_json(arguments)[0]])])
        if policy.key is not None:
            key, fingerprint = _own_key(tool, policy, arguments), ""
        else:
            key = call_id or f"{tool}:{fingerprint}"
        ahead = _saver_ahead_of(config)
        return ToolCall(
            self._intent(config, tool, key, fingerprint or None, arguments, call_id),
            policy,
            act,
            lambda result: as_answer(result, name, call_id),
            is_blocking=isinstance(request.tool, StructuredTool) and request.tool.coroutine is None,
            is_announced=_is_announced(request.tool),
            is_ahead=ahead is not None,
            is_saved=self._is_own(ahead),
        )

    def of_function(
        self,
        tool: str,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        policy: ToolPolicy,
    ) -> ToolCall:
        """Return the `ToolCall` of a function that is called in a node.

        Without a key function, the action is the n-th call with these arguments in the task or in the calling action. A
        task that is run again after a crash has the same id and makes the same calls.

        Raises:
            ToolSetupError: If this is not called in a graph on a thread.
            ConfigurationError: If the key cannot be stored.
        """
        try:
            config: Mapping[str, Any] = get_config()
        except RuntimeError as error:
            raise ToolSetupError(f"{tool} must not be called outside of a graph: its ledger needs a thread") from error
        bound = inspect.signature(function).bind(*args, **kwargs)
        bound.apply_defaults()
        arguments = dict(bound.arguments)
        ahead = None
        if policy.key is not None:
            key = _own_key(tool, policy, arguments)
        else:
            # Actions of one task may run at the same time, and each counts its own calls. So the fingerprint contains
            # the key of the calling action.
            outer = running_execution.get()
            fingerprint = _digest([tool, _lasting(arguments), *([] if outer is None else [outer.key])])
            call = f"{tool}:{_task_of(config)}:{fingerprint[:16]}"
            key = f"{call}:{_ordinal(config, call)}"
            # The key contains the task's id. A new process gets the same id only if the task's checkpoint is stored, so
            # the action must wait for this checkpoint.
            ahead = _saver_ahead_of(config)
        return ToolCall(
            self._intent(config, tool, key, None, arguments, None),
            policy,
            lambda: function(*args, **kwargs),
            is_ahead=ahead is not None,
            is_saved=self._is_own(ahead),
            is_counted=policy.key is None,
        )

    def _intent(
        self,
        config: Mapping[str, Any],
        tool: str,
        key: str,
        fingerprint: str | None,
        arguments: Mapping[str, Any],
        tool_call_id: str | None,
    ) -> Intent:
        metadata: Mapping[str, Any] = config.get("metadata") or {}
        try:
            origin = origin_of(config, self._run_of)
            # If no thread is named, `thread_id_of` raises an error.
            thread_id = origin.thread_id or thread_id_of(None)
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
            arguments_json(arguments, self._settings),
            tool_call_id=tool_call_id,
            agent=str(to_json(agent)[0]) if agent else None,
            run_id=origin.run_id,
            task_id=_task_of(config) or None,
            checkpoint_ns=origin.checkpoint_ns or "",
            checkpoint_id=origin.checkpoint_id,
            root_checkpoint_id=origin.root_checkpoint_id,
            step=step if isinstance(step, int) else None,
        )

    def _is_own(self, saver: Any) -> bool:
        """Return whether a saver stores in the ledger's schema of the same database."""
        return isinstance(saver, CommonSaver) and saver.stores_in(self._database, self._schema)


def _saver_ahead_of(config: Mapping[str, Any]) -> Any:
    """Return the saver that may still be storing the checkpoint of a running task; `None` if the checkpoint is
    stored.
    """
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


def _is_announced(tool: Any) -> bool:
    """Return whether LangChain calls the callback handlers of a tool's start before any code of the tool runs."""
    return isinstance(tool, BaseTool) and all(
        getattr(type(tool), name).__module__.startswith("langchain_core.") for name in _STARTING
    )


def _own_key(tool: str, policy: ToolPolicy, arguments: Mapping[str, Any]) -> str:
    assert policy.key is not None
    value = policy.key(arguments)
    if value is None or value == "":
        raise ConfigurationError(f"the key function of {tool} returned {value!r}: an action needs a key")
    if not _is_lasting(value):
        raise ConfigurationError(
            f"the key function of {tool} must return a text, a number, or a tuple of these, got {value!r}, which "
            "another process would write differently"
        )
    return f"{tool}:{value}"


def _asked_for(state: Any, tool: str, call_id: str | None, arguments: Any) -> tuple[str | None, Any]:
    """Return the id of the message that requested a call, and its arguments before any change by middleware."""
    found = requested_by(state, tool, call_id)
    return (None, arguments) if found is None else (found[0].id, found[1])


def _edit_by_person(state: Any, config: Mapping[str, Any], call: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the name and arguments that a person gave a call through LangChain's `HumanInTheLoopMiddleware`.

    The middleware leaves the model's arguments in the message that requested the call, and stores the edit in a channel
    of its own. If it raises one interrupt per call, the edit is read from the task's answers instead.
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
    """Count this task's next call that equals an earlier call as the same action. The earlier outcome is unknown.

    Args:
        key: The key of the earlier call, which must be a call of a function that has no key function.
    """
    call, _, ordinal = key.rpartition(":")
    with _ordinals_lock:
        _ordinals_left(get_config(), call).append(int(ordinal))


def _ordinal(config: Mapping[str, Any], call: str) -> int:
    """Return the number of a call, from 0, among equal calls.

    Calls are counted anew in each execution of the task, and in each attempt of the action that makes the calls.
    """
    with _ordinals_lock:
        left = _ordinals_left(config, call)
        left.sort()
        ordinal = left.pop(0)
        if not left:
            left.append(ordinal + 1)
    return ordinal


def _ordinals_left(config: Mapping[str, Any], call: str) -> list[int]:
    """Return the numbers of a task's next equal calls: the numbers to repeat, and the next new number."""
    pad, outer = scratchpad_of(config), running_execution.get()
    if pad is None:
        return [0]
    runtime = configurable_of(config).get(RUNTIME)
    attempt = getattr(getattr(runtime, "execution_info", None), "node_attempt", 1)
    place = attempt, 0 if outer is None else outer.attempt, call
    return _ordinals.setdefault(pad.get_null_resume, {}).setdefault(place, [0])


# LangGraph makes a new scratchpad for each execution of a task. The key is the scratchpad's function
# `get_null_resume`, because the scratchpad itself supports no weak references.
_ordinals: WeakKeyDictionary[Any, dict[tuple[int, int, str], list[int]]] = WeakKeyDictionary()
_ordinals_lock = threading.Lock()


def _lasting(value: Any, depth: int = 0) -> Any:
    """Return the JSON of `to_json` in a form that is equal in every process: sets are sorted, and memory addresses
    removed.
    """
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


def _is_lasting(value: Any, text_of: Callable[[Any], str] = str) -> bool:
    """Return whether the text of a value is equal in every process: it has no sets and no memory addresses."""
    if isinstance(value, str):
        return True
    if isinstance(value, Mapping | list | tuple):
        parts = value.items() if isinstance(value, Mapping) else value
        return all(_is_lasting(part, repr) for part in parts)
    return not isinstance(value, set | frozenset) and _ADDRESS.search(text_of(value)) is None


def _digest(value: Any) -> str:
    return hashlib.blake2b(orjson.dumps(value, option=orjson.OPT_SORT_KEYS), digest_size=16).hexdigest()
