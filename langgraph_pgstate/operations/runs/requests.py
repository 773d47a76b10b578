"""Requests to run a graph, validated and encoded before anything is written. No I/O."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final, Unpack
from uuid import UUID

import ormsgpack
from langchain_core.utils.uuid import uuid7
from langgraph.types import Command

from langgraph_pgstate.codec.frames import pack, unpack
from langgraph_pgstate.codec.metadata import to_json
from langgraph_pgstate.codec.traceparent import check_traceparent
from langgraph_pgstate.codec.values import ValueCodec
from langgraph_pgstate.errors import ArgumentTypeError, ConfigurationError, CorruptStateError
from langgraph_pgstate.operations.checkpoints.requests import (
    check_key_size,
    configurable_of,
    identifier,
    thread_id_of,
)
from langgraph_pgstate.operations.runs.arguments import (
    INT4_MAX,
    backoff_of,
    checkpoint_id_of,
    choice_of,
    default_answer_of,
    flag_of,
    integer_of,
    key_of,
    later_of,
    mapping_of,
    name_of,
    nodes_of,
    owner_of,
    seconds_of,
    stream_modes_of,
)
from langgraph_pgstate.operations.runs.webhooks import webhook_of
from langgraph_pgstate.settings import (
    DEFAULT_QUEUE,
    DEFAULT_SIZE_LIMIT,
    Backoff,
    EnqueueOptions,
    KeySource,
    ThreadKeys,
)

STRATEGIES: Final = ("enqueue", "reject", "interrupt", "rollback")
_DURABILITIES: Final = ("sync", "async", "exit")
_DEFAULT_KEYS: Final = ThreadKeys()
# Defaults of fields, which are not stored.
_LEFT_OUT: Final[Mapping[str, Any]] = {"config": {}, "metadata": {}, "on_completion": "keep", "stream_subgraphs": False}


@dataclass(frozen=True, slots=True)
class RunRequest:
    """A run to enqueue, validated and encoded.

    Attributes:
        thread_id: The thread.
        run_id: The run.
        queue: The queue.
        graph: Name of the graph.
        priority: Its priority.
        key: Runs of different keys take turns, and keys have limits.
        version: Version of the graph; empty for any.
        run_after: Time before which it is not claimed, or the time that it waits.
        strategy: What happens to other runs of the thread.
        options: Retries and time limits, and what is needed to enqueue it again; JSON types.
        data: Its `RunInput`, as a frame.
        owner: Agent, user and tenant.
        metadata: Its metadata, as JSON types, if they may be stored in clear text.
        adopts: Whether a run of this id that was not enqueued is taken over.
        start: Namespace and id of the checkpoint from which it starts; `None` for the thread's newest.
        traceparent: The caller's span, to whose trace it belongs.
    """

    thread_id: str
    run_id: str
    queue: str
    graph: str
    priority: int
    key: str
    version: str
    run_after: datetime | timedelta | None
    strategy: str
    options: Mapping[str, Any]
    data: bytes
    owner: Mapping[str, str | None]
    metadata: Mapping[str, Any] | None = None
    adopts: bool = False
    start: tuple[str, str] | None = None
    traceparent: str | None = None

    @classmethod
    def again(cls, thread_id: str, run_id: str, queue: str, options: str, data: bytes) -> RunRequest:
        """Return a run with the options of another, as `run_requests` has them."""
        given = json.loads(options)
        owner = {"agent": given["graph"], "user_id": None, "tenant_id": None, **given.get("owner", {})}
        graph, priority, key, version = given["graph"], given["priority"], given["key"], given.get("version", "")
        return cls(thread_id, run_id, queue, graph, priority, key, version, None, "enqueue", given, data, owner)

    @property
    def row(self) -> dict[str, Any]:
        """The row of `enqueue_runs`, without the data."""
        run_after = self.run_after
        return {
            "thread_id": self.thread_id,
            "run_id": self.run_id,
            "queue": self.queue,
            "graph": self.graph,
            "priority": self.priority,
            "key": self.key,
            "version": self.version,
            "run_at": run_after.timestamp() if isinstance(run_after, datetime) else None,
            "delay": run_after.total_seconds() if isinstance(run_after, timedelta) else None,
            "options": self.options,
            "rejects": self.strategy == "reject",
            "adopts": self.adopts,
            "checkpoint_ns": self.start and self.start[0],
            "checkpoint_id": self.start and self.start[1],
            "strategy": self.strategy,
            "metadata": self.metadata,
            "traceparent": self.traceparent,
            **self.owner,
        }


@dataclass(frozen=True, slots=True)
class RunInput:
    """The arguments with which an enqueued run calls its graph.

    Attributes:
        input: The input; `None` to go on from the newest checkpoint.
        command: The command instead of an input.
        config: The config, as it was given.
        context: The context.
        metadata: Metadata of the run.
        checkpoint_id: Checkpoint from which the run starts.
        interrupt_before: Nodes before which it stops.
        interrupt_after: Nodes after which it stops.
        durability: When checkpoints are stored.
        stream_mode: Modes of the events that are kept; see `modes_of`.
        stream_subgraphs: Whether events of subgraphs are kept, too.
        on_completion: `keep` or `delete`.
        default_answer: The answer that its interrupts get if nobody answers them in time.
    """

    input: Any = None
    command: Command[Any] | None = None
    config: Mapping[str, Any] = field(default_factory=dict)
    context: Any = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    checkpoint_id: str | None = None
    interrupt_before: Any = None
    interrupt_after: Any = None
    durability: Any = None
    stream_mode: list[str] | None = None
    on_completion: str = "keep"
    stream_subgraphs: bool = False
    default_answer: Any = None


def modes_of(request: RunInput) -> list[str]:
    """Return the modes of the events of a run that are kept."""
    return ["updates"] if request.stream_mode is None else request.stream_mode


def request_run(
    codec: ValueCodec,
    graph: str,
    input: Any = None,
    command: Command[Any] | None = None,
    *,
    known_graphs: Collection[str] | None = None,
    keys: ThreadKeys = _DEFAULT_KEYS,
    adopts: bool = False,
    run_key: KeySource | None = None,
    **options: Unpack[EnqueueOptions],
) -> RunRequest:
    """Validate and encode a run.

    Args:
        codec: Encodes the input.
        graph: Name of the graph.
        input: The graph's input.
        command: A command instead of it.
        known_graphs: The graphs that exist, if they are known.
        keys: Keys of the config that name the thread's owner.
        adopts: Whether a run of this id that was not enqueued is taken over.
        run_key: Source of the key of a run that is given none.
        options: See `EnqueueOptions`.

    Raises:
        ConfigurationError: If an argument is not usable.
        SerializationError: If a value cannot be stored; it is named.
    """
    if unknown := options.keys() - EnqueueOptions.__annotations__.keys():
        raise ArgumentTypeError(
            f"a run has no option {min(unknown)!r}; it has {', '.join(sorted(EnqueueOptions.__annotations__))}"
        )
    name_of("graph", graph)
    if known_graphs is not None and graph not in known_graphs:
        raise ConfigurationError(f"there is no graph {graph!r}; there are {', '.join(sorted(known_graphs)) or 'none'}")
    if command is not None and input is not None:
        raise ConfigurationError("a run takes an input or a command, not both")
    if command is not None and not isinstance(command, Command):
        raise ArgumentTypeError(f"command must be a langgraph.types.Command, not {type(command).__name__}")
    config = mapping_of("config", options.get("config"))
    metadata = mapping_of("metadata", options.get("metadata"))
    configurable = configurable_of(config)
    thread_id, run_id = _ids(options)
    default_answer = default_answer_of(codec, options.get("default_answer"))
    checkpoint_id = checkpoint_id_of(options.get("checkpoint_id") or configurable.get("checkpoint_id"))
    found = RunInput(
        input,
        command,
        config,
        options.get("context"),
        metadata,
        checkpoint_id,
        nodes_of("interrupt_before", options.get("interrupt_before")),
        nodes_of("interrupt_after", options.get("interrupt_after")),
        choice_of("durability", options.get("durability"), (None, *_DURABILITIES)),
        stream_modes_of(options.get("stream_mode")),
        choice_of("on_completion", options.get("on_completion", "keep"), ("keep", "delete")),
        flag_of("stream_subgraphs", options.get("stream_subgraphs", False)),
        None if default_answer is None else default_answer.value,
    )
    labels = {**configurable, **mapping_of("metadata of the config", config.get("metadata")), **metadata}
    queue = name_of("queue", options.get("queue", DEFAULT_QUEUE))
    key = (options["key"] if "key" in options else key_of(run_key, config)) or ""
    version = options.get("version") or ""
    priority = integer_of("priority", options.get("priority", 0), -INT4_MAX)
    owner = {
        "agent": owner_of(labels, keys.agent) or graph,
        "user_id": owner_of(labels, keys.user),
        "tenant_id": owner_of(labels, keys.tenant),
    }
    return RunRequest(
        thread_id,
        run_id,
        queue,
        graph,
        priority,
        name_of("key", key) if key else "",
        name_of("version", version) if version else "",
        later_of(options.get("run_after")),
        choice_of("multitask_strategy", options.get("multitask_strategy", "enqueue"), STRATEGIES),
        {
            "graph": graph,
            "priority": priority,
            "key": key,
            "version": version,
            "max_attempts": integer_of("max_attempts", options.get("max_attempts", 1), 1),
            "retry": backoff_of(options.get("retry")),
            "timeout": seconds_of("timeout", options.get("timeout")),
            "superstep_timeout": seconds_of("superstep_timeout", options.get("superstep_timeout")),
            "answer_after": None if default_answer is None else default_answer.after.total_seconds(),
            "owner": owner,
            **({} if (webhook := webhook_of(options.get("webhook"))) is None else {"webhook": webhook}),
        },
        seal_request(codec, found, options.get("size_limit", DEFAULT_SIZE_LIMIT)),
        owner,
        # Data that a serializer encrypts is not stored in clear text beside it.
        to_json(metadata)[0] if metadata and codec.is_native else None,
        adopts,
        None if checkpoint_id is None else (str(configurable.get("checkpoint_ns") or ""), checkpoint_id),
        check_traceparent(options.get("traceparent") or labels.get("traceparent")),
    )


def seal_request(codec: ValueCodec, request: RunInput, limit: int = DEFAULT_SIZE_LIMIT) -> bytes:
    """Return the arguments of a run as one frame.

    Raises:
        SerializationError: If a value cannot be stored; it is named.
        ConfigurationError: If it is larger than `limit` bytes.
    """
    fields = {name: getattr(request, name) for name in RunInput.__dataclass_fields__}
    encoded = {
        name: codec.dumps(name, value)
        for name, value in fields.items()
        if value is not None and not (name in _LEFT_OUT and value == _LEFT_OUT[name])
    }
    size = sum(len(data) for _, data in encoded.values())
    if size > limit:
        largest = max(encoded, key=lambda name: len(encoded[name][1]))
        raise ConfigurationError(
            f"the run is {size:,} bytes, of which {largest} is {len(encoded[largest][1]):,}; at most {limit:,} are "
            "enqueued. Store the data elsewhere and pass its name, or set size_limit"
        )
    return pack(ormsgpack.packb(encoded))


def open_request(codec: ValueCodec, data: bytes, where: str = "an enqueued run") -> RunInput:
    """Return the arguments of a run.

    Raises:
        CorruptStateError: If the bytes are damaged.
        UnreadableFormatError: If a newer version of this package, or another serializer, wrote them.
        UnsafeTypeError: If they hold a type that may not be built.
    """
    known = RunInput.__dataclass_fields__
    return RunInput(
        **{
            name: codec.loads(*value, f"{name} of {where}")
            for name, value in _encoded_fields(data, where).items()
            if name in known
        }
    )


def read_field(codec: ValueCodec, data: bytes, name: str, where: str) -> Any:
    """Return one field of a request, or `None` if it is not set. The other fields are not decoded.

    Raises:
        PGStateError: As `open_request` does.
    """
    found = _encoded_fields(data, where).get(name)
    return None if found is None else codec.loads(*found, f"{name} of {where}")


def change_request(codec: ValueCodec, data: bytes, where: str, **fields: Any) -> bytes:
    """Return a request with some fields replaced; `None` removes one. The other fields are not decoded.

    Raises:
        SerializationError: If a value cannot be stored.
        CorruptStateError: If the bytes are damaged.
    """
    encoded = _encoded_fields(data, where)
    for name, value in fields.items():
        encoded.pop(name, None)
        if value is not None:
            encoded[name] = codec.dumps(name, value)
    return pack(ormsgpack.packb(encoded))


def merge_requests(data: bytes, newer: bytes, names: Collection[str], where: str) -> bytes:
    """Return a request with some fields of another one; those that the other one lacks are removed. Nothing is decoded.

    Raises:
        CorruptStateError: If the bytes are damaged.
    """
    encoded, given = _encoded_fields(data, where), _encoded_fields(newer, where)
    kept = {name: value for name, value in encoded.items() if name not in names}
    return pack(ormsgpack.packb(kept | {name: given[name] for name in names if name in given}))


def _encoded_fields(data: bytes, where: str) -> dict[str, tuple[str, bytes]]:
    try:
        encoded = ormsgpack.unpackb(unpack(data, where))
        return {name: (str(type_), bytes(value)) for name, (type_, value) in encoded.items()}
    except (ormsgpack.MsgpackDecodeError, AttributeError, TypeError, ValueError) as error:
        raise CorruptStateError(where, f"it is not a request ({error})") from error


def options_of(text: str) -> dict[str, Any]:
    """Return the options of a run, as `run_requests` has them."""
    found: dict[str, Any] = json.loads(text)
    if found.get("retry") is not None:
        # A newer version of this package may have enqueued it.
        known = {name: value for name, value in found["retry"].items() if name in Backoff.__dataclass_fields__}
        found["retry"] = Backoff(**known)
    return found


def thread_given(options: EnqueueOptions) -> str | None:
    """Return the thread that the options of a run name, or `None` if they name none.

    Raises:
        ConfigurationError: If it is not usable.
    """
    given = options.get("thread_id")
    if given is None:
        given = configurable_of(options.get("config") or {}).get("thread_id")
    return None if given is None else thread_id_of(given)


def _ids(options: EnqueueOptions) -> tuple[str, str]:
    run_id = options.get("run_id")
    if isinstance(run_id, UUID):
        run_id = str(run_id)
    named = None if run_id is None else identifier("run_id", run_id)
    if named == "":
        raise ConfigurationError("run_id is empty")
    found = named or str(uuid7())
    given = thread_given(options)
    # A call that is repeated under a run_id finds the thread that the first one made.
    thread_id = given if given is not None else found if named else str(uuid7())
    check_key_size("thread_id and run_id", thread_id, found)
    return thread_id, found
