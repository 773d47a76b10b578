"""All private names of LangGraph that this package uses. No other module may use a private name.

LangGraph makes a checkpoint's id from the process's clock (UUIDv6: a time, and random bits), and a thread continues
from the greatest id. The generator keeps its last time in `_last_v6_timestamp`, and never uses a time twice. If a clock
is behind, a new id would sort before the parent's id. So this module moves `_last_v6_timestamp` forward to the time of
each id that is read.
"""

from __future__ import annotations

import asyncio
import logging
import re
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from contextlib import AsyncExitStack, ExitStack
from datetime import UTC, datetime
from functools import cache, partial, reduce
from inspect import CO_COROUTINE, CORO_CREATED, getcoroutinestate, iscoroutine
from operator import attrgetter
from types import FrameType, FunctionType, UnionType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar, Union, get_args, get_origin

import ormsgpack
from langchain_core.messages import AIMessage
from langgraph.checkpoint.base import _with_msgpack_allowlist as with_msgpack_allowlist
from langgraph.checkpoint.base import id as _ids
from langgraph.checkpoint.serde import _msgpack, jsonplus
from langgraph.checkpoint.serde.types import _DeltaSnapshot
from pydantic import BaseModel

if TYPE_CHECKING:
    from langchain_core.callbacks import BaseCallbackHandler, BaseRunManager
    from langgraph.channels.delta import DeltaChannel
    from langgraph.types import Send

__all__ = [
    "CHECKPOINTER",
    "DELTA_COUNTERS",
    "DURABILITY",
    "HANDLER_PATH",
    "PACK_OPTIONS",
    "PULL_PATH",
    "READ",
    "REMOVE_ALL_MESSAGES",
    "REPLAY_STATE",
    "RESUME",
    "RUNTIME",
    "SAFE_TYPES",
    "SCRATCHPAD",
    "SEND",
    "TASK_ID",
    "TESTED_VERSIONS",
    "TEXT",
    "TOOLS_MODE",
    "TUPLE",
    "DeltaSnapshot",
    "EncryptionHandlers",
    "SerializerBase",
    "advance_ids_past",
    "auth_handlers",
    "calling_loop",
    "channels_of",
    "close_waiting_callbacks",
    "convert",
    "current_run",
    "delta_channel_class",
    "encryption_handlers",
    "event_handler",
    "extension_hook_of",
    "has_own_hook",
    "interrupt_counter",
    "is_anything_scheduled",
    "is_callback_awaited",
    "is_read_by_lines",
    "is_schedule_channel",
    "is_server_runtime",
    "is_strict",
    "messages_delta_reducer",
    "next_nodes",
    "parts_of",
    "run_manager_of",
    "send_class",
    "server_runtime",
    "strict_hook",
    "unwind_when_cancelled",
    "warn_if_untested",
    "with_msgpack_allowlist",
]

TESTED_VERSIONS: Final = ("1.2.15", "1.2.24")
"""The oldest and the newest version of langgraph with which the tests of this package passed."""

_LAST: Final = "_last_v6_timestamp"
_UUID6: Final = re.compile("([0-9a-f]{8})-([0-9a-f]{4})-6([0-9a-f]{3})-[89ab][0-9a-f]{3}-[0-9a-f]{12}")
# Ids of this time (the year 3409) or later are ignored. The time of an id has 60 bits, in 100 ns since 1582. This limit
# is half of the maximum, so that later ids remain for the generator.
_END: Final = 1 << 59
_EPOCH: Final = 0x01B21DD213814000
_SECOND: Final = 10_000_000
# Log greater differences between clocks. If NTP sets the clocks, the differences are smaller.
_NOTABLE: Final = 5 * _SECOND

_generator: Final[dict[str, Any]] = vars(_ids)
_lock: Final = threading.Lock()
# The greatest id that was read, and its time.
_greatest: tuple[str, int] = ("", 0)
_has_warned = False

# The event loop keeps only weak references to running tasks.
_unwinding: Final[set[asyncio.Task[Any]]] = set()

_logger = logging.getLogger("langgraph_pgstate")

# Keys of a run's `configurable`, as `langgraph._internal._constants` names them.
RUNTIME: Final = "__pregel_runtime"
"""The runtime of a run, which every node and subgraph gets."""
REPLAY_STATE: Final = "__pregel_replay_state"
"""Set while a graph replays, so that subgraphs start from their checkpoints of that time."""
SCRATCHPAD: Final = "__pregel_scratchpad"
"""A task's resume values and counters."""
CHECKPOINTER: Final = "__pregel_checkpointer"
DURABILITY: Final = "__pregel_durability"
TASK_ID: Final = "__pregel_task_id"
EDITED_CALLS: Final = "hitl_edited_tool_calls"
"""The channel of `HumanInTheLoopMiddleware` for tool calls that a person has edited, by id."""
TOOLS_MODE: Final = "tools"
"""The stream mode of tool calls, which `langgraph.types.StreamMode` leaves out."""
READ: Final = "__pregel_read"
"""The function by which a task reads channels."""
SEND: Final = "__pregel_send"
"""The function by which a task writes to channels."""
RESUME: Final = "__resume__"
"""The channel of resume values."""
DELTA_COUNTERS: Final = "counters_since_delta_snapshot"
"""The key of a checkpoint's metadata that lists the DeltaChannels without a snapshot in the checkpoint."""
PULL_PATH: Final = "~__pregel_pull, "
"""Beginning of the path of a task that an edge has triggered. The node's name follows."""
HANDLER_PATH: Final = ", node_error_handler, 0000000000"
"""End of the path of a node's error handler, after the failed task's path."""
REMOVE_ALL_MESSAGES: Final = "__remove_all__"
"""`langgraph.graph.message.REMOVE_ALL_MESSAGES`, whose module takes too long to import with a saver."""
SAFE_TYPES: Final[frozenset[tuple[str, ...]]] = _msgpack.SAFE_MSGPACK_TYPES
"""`(module, name)` of the types that LangGraph builds in strict mode."""
DeltaSnapshot: Final = _DeltaSnapshot
"""A DeltaChannel's value among a checkpoint's values."""

PACK_OPTIONS: Final[int] = jsonplus._option
"""The options with which LangGraph's serializer calls `ormsgpack.packb`."""
_EXACT_OPTIONS: Final[int] = (PACK_OPTIONS | ormsgpack.OPT_PASSTHROUGH_TUPLE) & ~ormsgpack.OPT_REPLACE_SURROGATES
TUPLE: Final = ("builtins", "tuple")
"""The type of a tuple in the bytes of `dumps_exactly`."""
TEXT: Final[type] = type(AIMessage("").text)
"""The type of `message.text`, a `str` that can be called. It is encoded as a `str`."""

strict_hook: Final[Callable[[int, bytes], Any]] = jsonplus._create_msgpack_ext_hook(None)
"""LangGraph's own hook for msgpack extensions, which builds only `SAFE_TYPES`."""


convert: Final[Callable[[Any], Any]] = jsonplus._msgpack_default
"""LangGraph's function that converts an object to a msgpack extension."""

extension_hook_of: Final[Callable[[Any], Callable[[int, bytes], Any]]] = attrgetter("_unpack_ext_hook")
"""Return the extension hook of a `JsonPlusSerializer`."""
has_own_hook: Final[Callable[[Any], bool]] = attrgetter("_custom_unpack_ext_hook")
"""Return whether a `JsonPlusSerializer` was given an extension hook."""
# Number of stack frames to search for LangGraph's loop. Wrappers of the saver add frames.
_FRAMES: Final = 21

# Channels for scheduling, pending input, interrupts and resume values, as `langgraph._internal._constants` and
# `StateGraph.compile` name them. Older versions use `start:`.
_NEXT_PREFIX: Final = "branch:to:"
_SCHEDULE_PREFIXES: Final = ("branch:", "join:", "start:", "__pregel_")
_SCHEDULE: Final = frozenset(
    {"__start__", "__input__", "__interrupt__", "__resume__", "__error__", "__scheduled__", "__no_writes__"}
)

_replacing_counters: Final = threading.Lock()
_C = TypeVar("_C", bound=Callable[[], int])
_I = TypeVar("_I")
_DIGEST: Final = re.compile("[0-9a-f]{32}")


def advance_ids_past(checkpoint_id: str) -> None:
    """Make new checkpoint ids of this process sort after an id that was read.

    All runs of the process share the generator. An id that is no UUIDv6, or is later than the year 3409, has no effect.

    Safe to call from many threads: CPython with its GIL does not switch threads while `uuid6` reads, compares and
    stores the last time.
    """
    global _greatest  # noqa: PLW0603
    greatest_id, timestamp = _greatest
    if checkpoint_id > greatest_id:
        found = _UUID6.fullmatch(checkpoint_id)
        if found is None:
            return
        timestamp = int(found[1] + found[2] + found[3], 16)
        if timestamp >= _END:
            return
        _greatest = checkpoint_id, timestamp
    if (_generator.get(_LAST) or 0) < timestamp:
        _advance(timestamp)


def _advance(timestamp: int) -> None:
    global _has_warned  # noqa: PLW0603
    with _lock:
        if (_generator.get(_LAST) or 0) < timestamp:
            _generator[_LAST] = timestamp
    ahead = timestamp - (time.time_ns() // 100 + _EPOCH)
    if ahead > _NOTABLE and not _has_warned:
        _has_warned = True
        _logger.warning(
            "a checkpoint was made by a clock that is %d s ahead of this process's clock. Correct the wrong clock. "
            "New checkpoint ids of this process continue from the later time",
            ahead // _SECOND,
        )


def auth_handlers(auth: Any) -> tuple[Callable[..., Any] | None, dict[tuple[str, str], Callable[..., Any]], Any]:
    """Return the handlers of a `langgraph_sdk.Auth`: for authentication, by resource and action, and for all else."""
    handlers = {key: found[0] for key, found in auth._handlers.items() if found}
    return auth._authenticate_handler, handlers, next(iter(auth._global_handlers), None)


def is_server_runtime(annotation: Any) -> bool:
    """Return whether an annotation is LangGraph's `ServerRuntime` or a union with it."""
    # A factory with this annotation has imported the module.
    module = sys.modules.get("langgraph_sdk.runtime")
    if module is None:
        return False
    known = (module.ServerRuntime, module._ServerRuntimeBase, module._ExecutionRuntime, module._ReadRuntime)
    several = get_args(annotation) if isinstance(annotation, UnionType) or get_origin(annotation) is Union else ()
    return any(one in known or get_origin(one) in known for one in (annotation, *several))


def server_runtime(access_context: str, context: Any, user: Any, store: Any) -> Any:
    """Return the `ServerRuntime` for the call of a graph factory. Only `threads.create_run` has a `context`."""
    from langgraph_sdk import runtime

    common: Any = {"access_context": access_context, "user": user, "store": store}
    if access_context == "threads.create_run":
        return runtime._ExecutionRuntime(**common, context=context)
    return runtime._ReadRuntime(**common)


def unwind_when_cancelled(stack: AsyncExitStack) -> None:
    """Make sure that the exit stack of a LangGraph loop is unwound.

    `AsyncPregelLoop.__aexit__` calls `self.stack.__aexit__`, and runs the coroutine in a task. anyio may cancel this
    task before the first step, so that no node task is cancelled and no callback is called. In this case, another task
    unwinds the stack.
    """
    aexit = stack.__aexit__

    def unwind_always(*error: Any) -> Any:
        # Remove this replacement. Otherwise the stack would refer to itself.
        del stack.__aexit__
        running = asyncio.get_running_loop()
        has_begun = False

        async def unwind() -> bool | None:
            nonlocal has_begun
            has_begun = True
            return await aexit(*error)

        def check() -> None:
            if not has_begun:
                task = running.create_task(aexit(*error))
                _unwinding.add(task)
                task.add_done_callback(_forget)

        # The caller's task takes its first step in the next iteration of the event loop. Check one iteration later.
        running.call_soon(running.call_soon, check)
        return unwind()

    stack.__aexit__ = unwind_always  # type: ignore[method-assign]


def calling_loop() -> tuple[ExitStack | AsyncExitStack | None, Any]:
    """Return the exit stack of the calling LangGraph loop, and the loop; outside of a loop, two `None`.

    `SyncPregelLoop.__enter__` and `AsyncPregelLoop.__aenter__` read the first checkpoint. LangGraph unwinds `stack` at
    the end of the run.
    """
    frame: FrameType | None = sys._getframe(1)
    for _ in range(_FRAMES):
        if frame is None:
            break
        if frame.f_code.co_name in ("__enter__", "__aenter__"):
            loop = frame.f_locals.get("self")
            exits = getattr(loop, "stack", None)
            if isinstance(exits, ExitStack | AsyncExitStack):
                return exits, loop
        frame = frame.f_back
    return None, None


def run_manager_of(loop: Any) -> BaseRunManager | None:
    """Return the callback manager of a LangGraph loop, or `None`."""
    manager = getattr(loop, "manager", None)
    return manager if hasattr(manager, "inheritable_handlers") else None


def close_waiting_callbacks() -> None:
    """Close the coroutines of other callbacks, because the calling callback is about to raise.

    LangChain's async manager makes a coroutine for each handler before it awaits the first coroutine.
    """
    for frame in _manager_frames():
        waiting = [*frame.f_locals.get("inline_tasks", ()), *frame.f_locals.get("non_inline_tasks", ())]
        for one in waiting:
            if iscoroutine(one) and getcoroutinestate(one) == CORO_CREATED:
                one.close()
        if waiting:
            return


def is_callback_awaited() -> bool:
    """Return whether LangChain awaits what the calling callback returns. Its blocking manager does not.

    LangChain's blocking manager is used for `invoke`, also on an event loop.
    """
    frame = next(_manager_frames(), None)
    return frame is None or bool(frame.f_code.co_flags & CO_COROUTINE)


def _manager_frames() -> Iterator[FrameType]:
    """Return the functions of LangChain's callback managers that are calling, the last called first."""
    frame: FrameType | None = sys._getframe(1)
    for _ in range(_FRAMES):
        if frame is None:
            return
        if frame.f_globals.get("__name__") == "langchain_core.callbacks.manager":
            yield frame
        frame = frame.f_back


def event_handler(send: Callable[[dict[str, Any]], None]) -> BaseCallbackHandler:
    """Return a handler that calls a function with each event that `astream_events(version="v2")` yields for a run.

    The function is called before the run continues, so all earlier events are sent when a checkpoint is stored.
    (`astream_events` puts events into a queue that is read later.) Chunks of the run itself are left out, because
    `stream` yields them.

    Args:
        send: The function. It is called on the event loop or in the thread of the event.
    """
    from langchain_core.tracers.event_stream import _AstreamEventsCallbackHandler

    class Handler(_AstreamEventsCallbackHandler):
        # LangChain's `__init__` makes a queue and perhaps an event loop, which are not needed.
        def __init__(self) -> None:
            self.run_map, self.parent_map, self.is_tapped = {}, {}, {}

        def _send(self, event: Any, event_type: str) -> None:
            if not event["parent_ids"] and event["event"].endswith("_end"):
                # The run's first event has the input already.
                event["data"].pop("input", None)
            send(event)

    return Handler()


def _forget(task: asyncio.Task[Any]) -> None:
    _unwinding.discard(task)
    # Retrieve the exception, so that asyncio does not log it.
    if not task.cancelled():
        task.exception()


@cache
def send_class() -> type[Send]:
    """Return LangGraph's `Send`, whose module takes too long to import with a saver."""
    from langgraph.types import Send

    return Send


def current_run() -> Any:
    """Return the object that identifies the run of the calling node, as `call_site.run_of` does; `None` elsewhere."""
    from langchain_core.runnables.config import var_child_runnable_config

    config = var_child_runnable_config.get() or {}
    runtime = config.get("configurable", {}).get(RUNTIME)
    return None if runtime is None else getattr(runtime, "control", None) or runtime


@cache
def delta_channel_class() -> type[DeltaChannel[Any]]:
    """Return LangGraph's `DeltaChannel`, whose module takes too long to import with a saver."""
    from langgraph.channels.delta import DeltaChannel

    return DeltaChannel


def is_schedule_channel(name: str) -> bool:
    """Return whether a channel is LangGraph's own."""
    return name in _SCHEDULE or name.startswith(_SCHEDULE_PREFIXES)


def next_nodes(channels: Iterable[str]) -> list[str]:
    """Return the nodes that edges and branches have scheduled, from the names of a state's channels."""
    return sorted(name.removeprefix(_NEXT_PREFIX) for name in channels if name.startswith(_NEXT_PREFIX))


def channels_of(configurable: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the values of all channels of a task's graph; empty outside of a task."""
    read: Any = configurable.get(READ)
    channels = getattr(read, "args", ())[1:2]
    return read(list(channels[0])) if channels else {}


def is_anything_scheduled(channels: Mapping[str, Any]) -> bool:
    """Return whether a state has a node to run."""
    return bool(next_nodes(channels)) or "__start__" in channels or bool(channels.get("__pregel_tasks"))


def is_digest(interrupt_id: Any) -> bool:
    """Return whether an id of an interrupt is LangGraph's digest of the task's namespace, which no other task has."""
    return isinstance(interrupt_id, str) and _DIGEST.fullmatch(interrupt_id) is not None


def distinct_interrupts(interrupts: Iterable[_I], attribute: str = "id") -> list[_I]:
    """Return interrupts without repetitions, by the attribute with their id. Ids that are not digests may repeat.

    If a task of the functional API is interrupted, LangGraph also stores the interrupt for the tasks that called it.
    """
    found: dict[Any, _I] = {}
    for number, one in enumerate(interrupts):
        id = getattr(one, attribute, None)
        found.setdefault(id if is_digest(id) else number, one)
    return [*found.values()]


def interrupt_counter(scratchpad: Any, kind: Callable[[int], _C]) -> _C | None:
    """Replace a task's counter of interrupts by a counter that can be read, and return the new counter.

    Args:
        scratchpad: The task's `PregelScratchpad`.
        kind: Class of the new counter. A call of an instance returns the count and adds one.

    Returns:
        The counter, the same for each call; `None` if there is no scratchpad, or its counter is of an unknown kind.
    """
    lazy = getattr(scratchpad, "interrupt_counter", None)
    if lazy is None or not hasattr(lazy, "_counter"):
        return None
    with _replacing_counters:
        before: _C | Any = lazy._counter
        if type(before) is not kind:
            # LangGraph's counter returns its count only when it is advanced.
            lazy._counter = kind(0 if before is None else before())
        counter: _C = lazy._counter
        return counter


class SerializerBase(jsonplus.JsonPlusSerializer):
    """LangGraph's serializer, with control over how objects are stored and built."""

    pack: Callable[[Any], bytes] = staticmethod(
        partial(ormsgpack.packb, default=jsonplus._msgpack_default, option=PACK_OPTIONS)
    )
    """Returns a value as msgpack, the same bytes as LangGraph's for a value within a list."""
    _extend_exactly: Callable[[Any], Any] = staticmethod(jsonplus._msgpack_default)

    def note_objects(self, note: Callable[[Any], None], noted: Set[int]) -> None:
        """Call `note` with each object to store, unless the id of the object's class is in `noted`.

        LangGraph's function encodes nested objects by calling a global name of its module. In the copy made here, this
        name is `encode`, so that nested objects are noted, too.
        """

        def encode(value: Any) -> bytes:
            return ormsgpack.packb(value, default=extend, option=PACK_OPTIONS)

        def encode_exactly(value: Any) -> bytes:
            # LangGraph's function puts a type's name and content into a tuple, which must stay an array.
            outer = [*value] if type(value) is tuple else value
            return ormsgpack.packb(outer, default=extend_exactly, option=_EXACT_OPTIONS)

        code = jsonplus._msgpack_default.__code__
        convert = FunctionType(code, {**vars(jsonplus), "_msgpack_enc": encode})
        convert_exactly = FunctionType(code, {**vars(jsonplus), "_msgpack_enc": encode_exactly})

        def extend(value: Any) -> Any:
            if id(type(value)) not in noted:
                note(value)
            return convert(value)

        def extend_exactly(value: Any) -> Any:
            if (parts := parts_of(value)) is not None:
                code, content = parts
                return ormsgpack.Ext(code, encode_exactly(content))
            if id(type(value)) not in noted:
                note(value)
            # In strict mode, LangGraph's hook builds numpy arrays only from LangGraph's form, not from the exact form.
            is_array = type(value).__module__ == "numpy"
            return (convert if is_array else convert_exactly)(value)

        self.pack = partial(ormsgpack.packb, default=extend, option=PACK_OPTIONS)
        self._extend_exactly = extend_exactly

    def dumps_typed(self, obj: Any) -> tuple[str, bytes]:
        """Return a value's type and bytes, the same as LangGraph's."""
        if obj is None or isinstance(obj, bytes | bytearray):
            return super().dumps_typed(obj)
        return "msgpack", self.pack(obj)

    def dumps_exactly(self, value: Any) -> bytes:
        """Return a value as msgpack that keeps tuples and other details. `loads_typed` reads these bytes, too."""
        return ormsgpack.packb(value, default=self._extend_exactly, option=_EXACT_OPTIONS)

    def use_extension_hook(self, hook: Callable[[int, bytes], Any]) -> None:
        """Build msgpack extensions with this function."""
        self._unpack_ext_hook = hook

    def revive(self, value: dict[str, Any]) -> Any:
        """Build an object of the JSON format that LangGraph wrote before 2024."""
        return super()._reviver(value)

    def _reviver(self, value: dict[str, Any]) -> Any:
        return self.revive(value)


def parts_of(value: Any) -> tuple[int, list[Any]] | None:
    """Return a value's extension code and content for `dumps_exactly`; `None` if LangGraph's bytes are exact."""
    kind = type(value)
    if kind is tuple:
        return jsonplus.EXT_CONSTRUCTOR_SINGLE_ARG, [*TUPLE, [*value]]
    if kind is datetime and (value.fold or value.tzinfo not in (None, UTC)):
        time = {name: getattr(value, name) for name in ("hour", "minute", "second", "microsecond", "tzinfo", "fold")}
        date = {"year": value.year, "month": value.month, "day": value.day}
        return jsonplus.EXT_CONSTRUCTOR_KW_ARGS, ["datetime", "datetime", {**date, **time}]
    if kind is deque and value.maxlen is not None:
        return jsonplus.EXT_CONSTRUCTOR_POS_ARGS, ["collections", "deque", [[*value], value.maxlen]]
    if isinstance(value, BaseModel):
        # `model_dump` would turn nested objects into dicts.
        fields = {**value.__dict__, **(value.__pydantic_extra__ or {})}
        return jsonplus.EXT_PYDANTIC_V2, [kind.__module__, kind.__name__, fields, "model_validate_json"]
    return None


def messages_delta_reducer() -> Callable[[Any, Any], Any]:
    """Return LangGraph's reducer of messages in a DeltaChannel, or a reducer by `add_messages` if there is none."""
    from langgraph.graph import message

    def add_all(state: Any, writes: Any) -> Any:
        return reduce(message.add_messages, writes, state)

    # LangGraph's reducer is experimental, so a version may lack it.
    own: Callable[[Any, Any], Any] = getattr(message, "_messages_delta_reducer", add_all)
    return own


@cache
def warn_if_untested() -> None:
    """Log once if the installed langgraph is not of `TESTED_VERSIONS`."""
    try:
        from langgraph.version import __version__ as installed
    except ImportError:
        return
    oldest, newest = map(_release, TESTED_VERSIONS)
    if installed and not oldest <= _release(installed) <= newest:
        _logger.warning(
            "langgraph %s is outside of the versions that langgraph_pgstate was tested with, %s to %s",
            installed,
            *TESTED_VERSIONS,
        )


def _release(version: str) -> tuple[int, ...]:
    """Return the numbers at the beginning of a version."""
    return tuple(int(part) for part in version.split(".")[:3] if part.isdecimal())


def is_strict() -> bool:
    """Return whether `LANGGRAPH_STRICT_MSGPACK` was set when the process began."""
    return bool(_msgpack.STRICT_MSGPACK_ENABLED)


def is_read_by_lines(path: str) -> bool:
    """Return whether deepagents reads a file of this name by lines. Other files, such as images, are read whole."""
    from deepagents.backends.utils import _get_backend_read_file_type

    return bool(_get_backend_read_file_type(path) == "text")


class EncryptionHandlers(NamedTuple):
    """The functions of a `langgraph_sdk.Encryption`.

    Attributes:
        encrypt: Encrypts bytes.
        decrypt: Decrypts bytes. Returns bytes, or an object with bytes as `plaintext`.
        has_context: Whether there is a function that makes contexts from requests.
        context: Makes a context from a model and metadata.
    """

    encrypt: Callable[[Any, bytes], Any] | None
    decrypt: Callable[[Any, bytes], Any] | None
    has_context: bool
    context: Callable[[str, dict[str, Any]], Any]


def encryption_handlers(given: Any) -> EncryptionHandlers | None:
    """Return the handlers of a `langgraph_sdk.Encryption`; `None` for any other object."""
    try:
        from langgraph_sdk.encryption import Encryption
        from langgraph_sdk.encryption.types import EncryptionContext
    except ImportError:
        return None
    if not isinstance(given, Encryption):
        return None
    return EncryptionHandlers(
        given._blob_encryptor, given._blob_decryptor, given._context_handler is not None, EncryptionContext
    )
