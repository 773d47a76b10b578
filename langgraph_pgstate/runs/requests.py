"""Validation and encoding of runs to enqueue. No I/O."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final, Unpack

from langchain_core.utils.uuid import uuid7
from langgraph.types import Command

from langgraph_pgstate.arguments import check_key_size, configurable_of, flag_of, text_of, thread_id_of
from langgraph_pgstate.codec.metadata import to_json
from langgraph_pgstate.codec.traceparent import check_traceparent
from langgraph_pgstate.codec.values import ValueCodec
from langgraph_pgstate.errors import ArgumentTypeError, ConfigurationError, CorruptStateError, PGStateError
from langgraph_pgstate.options import ThreadKeys, check_ttl
from langgraph_pgstate.runs.arguments import (
    INT4_MAX,
    backoff_of,
    checkpoint_id_of,
    choice_of,
    default_answer_of,
    integer_of,
    key_of,
    later_of,
    mapping_of,
    name_of,
    nodes_of,
    owner_of,
    run_id_of,
    seconds_of,
    stream_modes_of,
)
from langgraph_pgstate.runs.inputs import RunInput, seal_input
from langgraph_pgstate.runs.options import (
    DEFAULT_QUEUE,
    DEFAULT_SIZE_LIMIT,
    Backoff,
    DefaultAnswer,
    EnqueueOptions,
    KeySource,
)
from langgraph_pgstate.runs.webhook_rows import webhook_of

STRATEGIES: Final = ("enqueue", "reject", "interrupt", "rollback")
_DURABILITIES: Final = ("sync", "async", "exit")
_DEFAULT_KEYS: Final = ThreadKeys()


@dataclass(frozen=True, slots=True)
class RunRequest:
    """A run to enqueue, validated and encoded.

    Attributes:
        thread_id: Id of the thread.
        run_id: Id of the run.
        queue: Name of the queue.
        graph: Name of the graph.
        priority: Priority of the run. Runs of higher priority are claimed first.
        key: Key in the queue.
        version: Version of the graph; empty for any version.
        run_after: Time before which the run is not claimed, or a timedelta to wait.
        strategy: What happens to other runs of the thread.
        options: Retries, time limits and other options, as JSON types.
        data: The `RunInput`, encoded by `seal_input`.
        owner: Agent, user and tenant.
        metadata: The metadata as JSON types; `None` if the serializer may encrypt values, so that only `data` has them.
        adopts: Whether to enqueue a run of this id that was recorded without the queue.
        start: Namespace and id of the checkpoint from which the run starts; `None` for the thread's newest.
        traceparent: The caller's span, whose trace contains the run.
        has_new_id: Whether `run_id` was made for this request.
        expected_head: Checkpoint that must be the thread's newest in the root namespace.
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
    has_new_id: bool = False
    expected_head: str | None = None

    @classmethod
    def again(
        cls,
        codec: ValueCodec,
        thread_id: str,
        run_id: str,
        queue: str,
        options: str,
        data: bytes,
        metadata: Mapping[str, Any],
    ) -> RunRequest:
        """Return a new run with the stored options of another run.

        Args:
            codec: The codec of the state.
            thread_id: Id of the thread.
            run_id: Id of the new run.
            queue: Name of the queue.
            options: The options of the other run, as stored in `run_requests`.
            data: The `RunInput` of the new run, encoded by `seal_input`.
            metadata: The metadata of the new run.
        """
        given = read_options(options, f"run {run_id!r} of thread {thread_id!r}")
        owner = {"agent": given["graph"], "user_id": None, "tenant_id": None, **given.get("owner", {})}
        graph, priority, key, version = given["graph"], given["priority"], given["key"], given.get("version", "")
        shown = _clear_metadata(codec, metadata)
        return cls(thread_id, run_id, queue, graph, priority, key, version, None, "enqueue", given, data, owner, shown)

    @property
    def is_checked(self) -> bool:
        """Whether `check_enqueue` must check the run."""
        return not self.has_new_id or self.strategy == "reject" or bool(self.start or self.expected_head)

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
            "expected_head": self.expected_head,
            "strategy": self.strategy,
            "metadata": self.metadata,
            "traceparent": self.traceparent,
            **self.owner,
        }


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
        command: A command instead of an input.
        known_graphs: The graphs that may be enqueued; any if `None`.
        keys: Keys of the config that name the thread's owner.
        adopts: Whether to enqueue a run of this id that was recorded without the queue.
        run_key: Source of the key if the options have no key.
        options: See `EnqueueOptions`.

    Raises:
        ConfigurationError: If an argument is invalid.
        SerializationError: If a value cannot be stored. The error names the value.
    """
    if unknown := options.keys() - EnqueueOptions.__annotations__.keys():
        raise ArgumentTypeError(
            f"options must not have {min(unknown)!r}. Allowed are {', '.join(sorted(EnqueueOptions.__annotations__))}"
        )
    name_of("graph", graph)
    if known_graphs is not None and graph not in known_graphs:
        raise ConfigurationError(f"there is no graph {graph!r}; there are {', '.join(sorted(known_graphs)) or 'none'}")
    default_answer = default_answer_of(codec, options.get("default_answer"))
    given = _input_of(input, command, None if default_answer is None else default_answer.value, options)
    thread_id, run_id = _ids(options)
    has_new_id = options.get("run_id") is None
    configurable = configurable_of(given.config)
    labels = {**configurable, **mapping_of("metadata of the config", given.config.get("metadata")), **given.metadata}
    owner = {
        "agent": owner_of(labels, keys.agent) or graph,
        "user_id": owner_of(labels, keys.user),
        "tenant_id": owner_of(labels, keys.tenant),
    }
    queue = name_of("queue", options.get("queue", DEFAULT_QUEUE))
    key = (options["key"] if "key" in options else key_of(run_key, given.config)) or ""
    version = options.get("version") or ""
    priority = integer_of("priority", options.get("priority", 0), -INT4_MAX)
    place = {"graph": graph, "priority": priority, "key": key, "version": version, "owner": owner}
    checkpoint_id = given.checkpoint_id
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
        place | _limits_of(options, default_answer),
        seal_input(codec, given, integer_of("size_limit", options.get("size_limit", DEFAULT_SIZE_LIMIT), 1)),
        owner,
        _clear_metadata(codec, given.metadata),
        adopts,
        None if checkpoint_id is None else (str(configurable.get("checkpoint_ns") or ""), checkpoint_id),
        check_traceparent(options.get("traceparent") or labels.get("traceparent")),
        has_new_id,
        given.expected_head,
    )


def _clear_metadata(codec: ValueCodec, metadata: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the metadata of a run's row; `None` if the serializer may encrypt values."""
    return to_json(metadata)[0] if metadata and codec.is_native else None


def distinct(requests: Sequence[RunRequest]) -> list[RunRequest]:
    """Return requests without repetitions, after checking that the runs can be enqueued together."""
    found: dict[str, RunRequest] = {}
    threads: Counter[str] = Counter()
    for request in requests:
        if found.setdefault(request.run_id, request).thread_id != request.thread_id:
            raise ConfigurationError(f"run_id must be unique, but two threads have the run_id {request.run_id!r}")
    for request in found.values():
        threads[request.thread_id] += 1
        if request.strategy != "enqueue" and threads[request.thread_id] > 1:
            raise ConfigurationError(
                f"multitask_strategy must be 'enqueue' for run {request.run_id!r}, not {request.strategy!r}, because "
                f"the batch has several runs of thread {request.thread_id!r}"
            )
    return list(found.values())


class RunEncoder:
    """A validator and encoder of runs, with the settings of a state.

    Args:
        codec: Encodes inputs.
        keys: Keys of configs that name a thread's owner.
        graphs: The graphs that may be enqueued; any if `None`.
        run_key: Source of the key if a run's options have no key.
    """

    def __init__(
        self,
        codec: ValueCodec,
        keys: ThreadKeys | None,
        graphs: Collection[str] | None,
        run_key: KeySource | None = None,
    ) -> None:
        self.codec, self._keys, self._graphs, self._run_key = codec, keys or ThreadKeys(), graphs, run_key

    def one(self, graph: str, input: Any, command: Command[Any] | None, options: EnqueueOptions) -> RunRequest:
        """Return a run as `request_run` does."""
        known: Any = {"known_graphs": self._graphs, "keys": self._keys, "run_key": self._run_key}
        return request_run(self.codec, graph, input, command, **known, **options)

    def many(self, runs: Sequence[Mapping[str, Any] | RunRequest]) -> list[RunRequest]:
        """Return the runs of a batch. Elements that are a `RunRequest` are returned unchanged.

        Raises:
            ConfigurationError: If an argument is invalid, or the runs cannot be enqueued together.
        """
        found = []
        for run in runs:
            if isinstance(run, RunRequest):
                found.append(run)
                continue
            options: Any = dict(run)
            if "graph" not in options:
                raise ArgumentTypeError("each run of a batch must name its graph: {'graph': ...}")
            graph, input, command = options.pop("graph"), options.pop("input", None), options.pop("command", None)
            found.append(self.one(graph, input, command, options))
        distinct(found)
        return found


def _input_of(input: Any, command: Command[Any] | None, default_answer: Any, options: EnqueueOptions) -> RunInput:
    """Return the validated arguments with which a run calls its graph."""
    if command is not None and input is not None:
        raise ConfigurationError("input and command must not both be given")
    if command is not None and not isinstance(command, Command):
        raise ArgumentTypeError(f"command must be a langgraph.types.Command, not {type(command).__name__}")
    config = mapping_of("config", options.get("config"))
    return RunInput(
        input,
        command,
        config,
        options.get("context"),
        mapping_of("metadata", options.get("metadata")),
        checkpoint_id_of(options.get("checkpoint_id") or configurable_of(config).get("checkpoint_id")),
        nodes_of("interrupt_before", options.get("interrupt_before")),
        nodes_of("interrupt_after", options.get("interrupt_after")),
        choice_of("durability", options.get("durability"), (None, *_DURABILITIES)),
        stream_modes_of(options.get("stream_mode")),
        choice_of("on_completion", options.get("on_completion", "keep"), ("keep", "delete")),
        flag_of("stream_subgraphs", options.get("stream_subgraphs", False)),
        default_answer,
        text_of("expected_head", options.get("expected_head")),
    )


def _limits_of(options: EnqueueOptions, default_answer: DefaultAnswer | None) -> dict[str, Any]:
    """Return the validated retries, time limits and webhook of a run as JSON types."""
    webhook = webhook_of(options.get("webhook"))
    return {
        "max_attempts": integer_of("max_attempts", options.get("max_attempts", 1), 1),
        "retry": backoff_of(options.get("retry")),
        "timeout": seconds_of("timeout", options.get("timeout")),
        "superstep_timeout": seconds_of("superstep_timeout", options.get("superstep_timeout")),
        "answer_after": None if default_answer is None else default_answer.after.total_seconds(),
        **({} if webhook is None else {"webhook": webhook}),
    }


def options_of(text: str, where: str) -> dict[str, Any]:
    """Return the options of a run from the text in `run_requests`. The option `retry` is a `Backoff`.

    Raises:
        CorruptStateError: If the text is damaged.
    """
    found = read_options(text, where)
    return found if found.get("retry") is None else {**found, "retry": _stored_backoff(found["retry"])}


def read_options(text: str, where: str) -> dict[str, Any]:
    """Return the options of a run, or of a schedule's runs, from the stored text. The option `retry` is a dict.

    Raises:
        CorruptStateError: If the text is damaged.
    """
    try:
        found: dict[str, Any] = json.loads(text)
        name_of("graph", found.get("graph"))
        integer_of("priority", found.get("priority"), -INT4_MAX)
        integer_of("max_attempts", found.get("max_attempts", 1), 1)
        for name in ("key", "version"):
            if found.get(name):
                name_of(name, found[name])
        for name in ("timeout", "superstep_timeout"):
            seconds_of(name, found.get(name))
        if found.get("answer_after") is not None:
            check_ttl("answer_after", timedelta(seconds=found["answer_after"]))
        if found.get("retry") is not None:
            _stored_backoff(found["retry"])
        webhook_of(found.get("webhook"))
        choice_of("multitask_strategy", found.get("multitask_strategy", "enqueue"), STRATEGIES)
        for name, value in found.get("owner", {}).items():
            text_of(name, value)
    except (PGStateError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise CorruptStateError(where, f"its options cannot be used ({error})") from error
    return found


def _stored_backoff(stored: Mapping[str, Any]) -> Backoff:
    # Leave out unknown names, because a newer version of this package may have enqueued the run.
    return Backoff(**{name: value for name, value in stored.items() if name in Backoff.__dataclass_fields__})


def thread_given(options: EnqueueOptions) -> str | None:
    """Return the thread that the options of a run name, or `None`."""
    given = options.get("thread_id")
    if given is None:
        given = configurable_of(options.get("config") or {}).get("thread_id")
    return None if given is None else thread_id_of(given)


def _ids(options: EnqueueOptions) -> tuple[str, str]:
    found, is_named = run_id_of(options.get("run_id")), options.get("run_id") is not None
    given = thread_given(options)
    # A new thread gets the given run_id as its id, so that a repeated call finds the thread.
    thread_id = given if given is not None else found if is_named else str(uuid7())
    check_key_size("thread_id and run_id", thread_id, found)
    return thread_id, found
