"""Translation of runs' events to the protocol's second version, in which messages consist of content blocks."""

from __future__ import annotations

import json
from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage
from langgraph.types import Interrupt

from langgraph_pgstate.runs.types import StreamEvent, ThreadEvent
from langgraph_pgstate.server.errors import short_error

_TEXTS: Final = {"text": "text", "reasoning": "reasoning"}
_CALLS: Final = {"tool_call_chunk": "tool_call", "server_tool_call_chunk": "server_tool_call"}
# Fields of blocks that may be large. These fields are sent when a block is complete, not when the block starts.
_LARGE: Final[Mapping[str, Any]] = {"args": {}, "base64": None, "data": None, "output": None, "value": {}}
_MODEL: Final = {"ls_provider": "provider", "ls_model_name": "model", "langgraph_node": "langgraph_node"}
_MODEL_TYPE: Final = "ls_model_type"
Part = dict[str, Any]


class MessageParts:
    """The messages of one run, as parts of the protocol: each message starts, has content blocks, and finishes."""

    def __init__(self) -> None:
        self._open: dict[str, _Message] = {}

    def add(self, message: Any, metadata: Mapping[str, Any]) -> Iterator[Part]:
        """Yield the protocol's parts for a chunk or a whole message; nothing if the message is not a model's output."""
        if not _is_output(message, metadata) or not message.id:
            return
        known = self._open.get(message.id)
        if known is None:
            known = self._open[message.id] = _Message(message.id)
            told = {name: metadata[key] for key, name in _MODEL.items() if isinstance(metadata.get(key), str)}
            yield {"event": "message-start", "role": "ai", "id": message.id, **({"metadata": told} if told else {})}
        yield from known.add(message)
        if not isinstance(message, AIMessageChunk) or message.chunk_position == "last":
            del self._open[message.id]
            yield from known.finish()

    def finish(self) -> Iterator[Part]:
        """Yield the last parts of all incomplete messages. Called when the attempt that streams them has ended."""
        for message in self._open.values():
            yield from message.finish()
        self._open.clear()


class _Message:
    """An incomplete message. Each part has the message's id, because several messages may be streamed at once."""

    def __init__(self, id: str) -> None:
        self._id = id
        self._blocks: dict[Hashable, tuple[int, Part]] = {}
        self._usage: dict[str, Any] = {}

    def add(self, message: BaseMessage) -> Iterator[Part]:
        for place, block in enumerate(_blocks_of(message)):
            kind = block.get("type")
            # Identify a block without an index by its type and its place in the chunk. The place is not enough, because
            # the first block of each chunk has the place 0.
            key = block["index"] if block.get("index") is not None else (kind, place)
            known = self._blocks.get(key)
            if known is None:
                known = self._blocks[key] = (len(self._blocks), {**block, **_empty(block)})
                yield {"event": "content-block-start", "id": self._id, "index": known[0], "content": _started(block)}
            delta = _merge(known[1], block)
            if delta is not None:
                yield {"event": "content-block-delta", "id": self._id, "index": known[0], "delta": delta}
        usage = getattr(message, "usage_metadata", None) or {}
        for name, count in usage.items():
            self._usage[name] = self._usage.get(name, 0) + count if isinstance(count, int) else count

    def finish(self) -> Iterator[Part]:
        for index, block in self._blocks.values():
            yield {"event": "content-block-finish", "id": self._id, "index": index, "content": _finished(block)}
        yield {"event": "message-finish", "id": self._id, **({"usage": self._usage} if self._usage else {})}


def _is_output(message: Any, metadata: Mapping[str, Any]) -> bool:
    """Return whether a message is the output of a model, not a message that a node returns."""
    # If a model does not stream, LangChain describes the model in the message's metadata.
    return isinstance(message, AIMessageChunk) or (isinstance(message, AIMessage) and _MODEL_TYPE in metadata)


def _blocks_of(message: BaseMessage) -> list[Part]:
    try:
        found: list[Any] = [*message.content_blocks]
    except Exception:
        # LangChain does not know the form of the content, so send the content as text.
        found = [{"type": "text", "text": str(message.text)}]
    return [block for block in found if isinstance(block, dict)]


def _empty(block: Part) -> Part:
    kind = block.get("type", "")
    return {_TEXTS[kind]: ""} if kind in _TEXTS else {"args": ""} if kind in _CALLS else {}


def _started(block: Part) -> Part:
    """Return a block at its start, without its content."""
    kind = block.get("type", "")
    if kind in _TEXTS:
        return {**{name: value for name, value in block.items() if name != "index"}, _TEXTS[kind]: ""}
    if kind in _CALLS:
        return {**block, "args": ""}
    kept = {name: value for name, value in block.items() if name not in _LARGE}
    return kept | {name: _LARGE[name] for name in ("args", "value") if name in block}


def _merge(known: Part, block: Part) -> Part | None:
    """Add a block of a chunk to the collected block, and return the change; `None` if nothing is appended."""
    kind = block.get("type", "")
    name = _TEXTS.get(kind) or ("args" if kind in _CALLS else None)
    if name is None or known.get("type") != kind:
        known.update(block)
        return None
    appended = block.get(name) or ""
    known.update({key: value for key, value in block.items() if value is not None and key != name})
    known[name] += appended
    if not appended:
        return None
    return {"type": "tool-call-delta" if name == "args" else f"{name}-delta", name: appended}


def _finished(block: Part) -> Part:
    """Return a complete block. The arguments of a tool's call, which arrive as JSON, are parsed."""
    kind = _CALLS.get(block.get("type", ""))
    if kind is None:
        return block
    named = {name: value for name, value in block.items() if name not in ("args", "index", "type")}
    try:
        return {**named, "type": kind, "args": json.loads(block["args"] or "{}")}
    except ValueError:
        error = "the arguments are not JSON"
        return {**named, "type": "invalid_tool_call", "args": block["args"], "error": error}


# Number of sequence numbers for one event of a run, which may become several events of the protocol.
_SEQS_PER_EVENT: Final = 16
# Values wait for their checkpoint, which comes later. No checkpoint comes after these events, so waiting values are
# sent before them.
_BOUNDARIES: Final = ("metadata", "error", "end", "gap")
_INTERRUPT: Final = "__interrupt__"
_STATUSES: Final = {"success": "completed", "error": "failed", "timeout": "failed"}
_METHODS: Final = {"input": "input.requested"}
Translated = tuple[str, Sequence[str], Any, str | None]
"""One event of the protocol: channel, namespace, data and node."""


class EventFilter:
    """The events that a client wants.

    Args:
        namespaces: Prefixes of namespaces; all namespaces if it is empty.
        depth: Maximum number of parts of a namespace after its prefix.
    """

    def __init__(
        self, channels: Collection[str], namespaces: Sequence[Sequence[str]] | None = None, depth: int | None = None
    ) -> None:
        self.channels = frozenset(channels)
        self._namespaces, self._depth = namespaces, depth

    def wants(self, channel: str, namespace: Sequence[str], data: Any) -> bool:
        """Return whether an event is wanted."""
        if channel not in self.channels:
            name = data.get("name") if channel == "custom" and isinstance(data, Mapping) else None
            if name is None or f"custom:{name}" not in self.channels:
                return False
        return not self._namespaces or any(self._is_below(namespace, start) for start in self._namespaces)

    def _is_below(self, namespace: Sequence[str], start: Sequence[str]) -> bool:
        if len(start) > len(namespace) or (self._depth is not None and len(namespace) - len(start) > self._depth):
            return False
        # The name of a node stands for all its tasks.
        return all(part in (found, found.partition(":")[0]) for part, found in zip(start, namespace, strict=False))


class Translation:
    """A translator of the events of a thread to those of the protocol, for one stream.

    The translation of an event depends on earlier events of its run, so unwanted events are translated, too. An event
    has the same id in all streams. Sequence numbers also grow from run to run, because the numbers of a run begin with
    the time of its first stored event, in microseconds.

    Args:
        since: Number of the last event that the client has.
    """

    def __init__(self, wanted: EventFilter, since: int | None = None) -> None:
        self._wanted, self._since = wanted, since or 0
        self._run: _Run | None = None
        self._seq = 0

    def translate(self, found: ThreadEvent) -> Iterator[dict[str, Any]]:
        """Yield the events of the protocol for an event of a run."""
        event = found.event
        if self._run is None or self._run.run_id != found.run_id:
            self._run = _Run(found.run_id, found.graph)
        first = self._run.first_seq(event)
        counts: dict[str, int] = {}
        for place, (channel, namespace, data, node) in enumerate(self._run.translate(event)):
            counts[channel] = counts.get(channel, 0) + 1
            self._seq = max(first + place, self._seq + 1)
            if self._seq > self._since and self._wanted.wants(channel, namespace, data):
                yield {
                    "type": "event",
                    "event_id": f"{found.run_id}:{event.id}:{channel}:{counts[channel]}",
                    "seq": self._seq,
                    "method": _METHODS.get(channel, channel),
                    "params": {
                        "namespace": namespace,
                        "timestamp": microseconds(event.stored_at) // 1000,
                        **({} if node is None else {"node": node}),
                        "data": data,
                    },
                }


class _Run:
    """The state of one run, after the events that were translated so far."""

    def __init__(self, run_id: str, graph: str) -> None:
        self.run_id = run_id
        self._start: int | None = None
        self._graph = graph
        # Unwanted messages are translated, too, so that all streams have the same numbers.
        self._messages = MessageParts()
        # Namespace and node of each message, for the event that ends the message.
        self._places: dict[str, tuple[Sequence[str], str | None]] = {}
        # Whether a subgraph is still running, by namespace.
        self._subgraphs: dict[tuple[str, ...], bool] = {}
        self._calls: dict[str, str] = {}
        self._interrupt_ids: set[str] = set()
        # The last values of each namespace, until the checkpoint of these values is known.
        self._held: dict[tuple[str, ...], Any] = {}
        self._error: str | None = None

    def first_seq(self, event: StreamEvent) -> int:
        """Return the first sequence number for an event of the run. The caller skips numbers that are already used."""
        distance = number_of(event.id) * _SEQS_PER_EVENT
        if self._start is None and event.stored_at is not None:
            # If the run's first events are no longer stored, use the time of this event. The number is still greater
            # than the numbers of earlier events.
            self._start = microseconds(event.stored_at) - max(0, distance - _SEQS_PER_EVENT)
        return (self._start or 0) + distance

    def translate(self, event: StreamEvent) -> Iterator[Translated]:
        mode, namespace, data = event.event, event.namespace, event.data
        if mode == "checkpoints":
            # LangGraph yields a checkpoint after its values, but clients expect the checkpoint first.
            yield "checkpoints", namespace, _checkpoint(data), None
        for place in [*self._held] if mode in _BOUNDARIES else [namespace] if namespace in self._held else []:
            yield "values", place, self._held.pop(place), None
        if mode == "metadata":
            yield from self._finish_messages()
            yield "lifecycle", (), {"event": "running", "graph_name": self._graph}, None
        elif mode == "error":
            self._error = short_error(data).get("message")
        elif mode == "end":
            yield from self._finish_messages()
            yield from self._run_end(data["status"])
        elif mode == "messages":
            yield from self._message(namespace, *data)
        elif mode == "values":
            yield from self._interrupts(namespace, data)
            if isinstance(data, Mapping):
                data = {name: value for name, value in data.items() if name != _INTERRUPT}
            if data or not isinstance(data, Mapping):
                self._held[namespace] = data
        elif mode == "updates" and isinstance(data, Mapping):
            yield from self._interrupts(namespace, data)
            for node, values in data.items():
                if node != _INTERRUPT:
                    yield "updates", namespace, {"node": node, "values": values}, node
        elif mode == "tasks":
            yield from self._task(namespace, data)
            yield "tasks", namespace, data, None
        elif mode == "custom":
            yield "custom", namespace, _custom(data), None
        elif mode == "tools":
            yield "tools", namespace, data, None

    def _message(self, namespace: Sequence[str], message: Any, metadata: Any) -> Iterator[Translated]:
        node = metadata.get("langgraph_node")
        self._places[getattr(message, "id", None) or ""] = (namespace, node)
        for part in self._messages.add(message, metadata):
            yield "messages", namespace, part, node

    def _finish_messages(self) -> Iterator[Translated]:
        for part in self._messages.finish():
            namespace, node = self._places[part["id"]]
            yield "messages", namespace, part, node
        self._places.clear()

    def _interrupts(self, namespace: Sequence[str], data: Any) -> Iterator[Translated]:
        asked = data.get(_INTERRUPT, ()) if isinstance(data, Mapping) else ()
        for interrupt in asked if isinstance(asked, Sequence) else ():
            if isinstance(interrupt, Interrupt) and interrupt.id not in self._interrupt_ids:
                self._interrupt_ids.add(interrupt.id)
                asking = {"interrupt_id": interrupt.id, "payload": interrupt.value}
                # The Python SDK reads `value`, and the JavaScript SDK reads `payload`.
                yield "input", namespace, {**asking, "value": interrupt.value}, None

    def _task(self, namespace: tuple[str, ...], data: Any) -> Iterator[Translated]:
        """Yield starts and ends of subgraphs. The last part of a subgraph's namespace names the task that runs it."""
        if "result" in data:
            for subgraph, is_open in [*self._subgraphs.items()]:
                if is_open and subgraph[:-1] == namespace and subgraph[-1].endswith(f":{data['id']}"):
                    status = "interrupted" if data.get("interrupts") else "failed" if data.get("error") else "completed"
                    error = str(data["error"]) if status == "failed" else None
                    yield self._subgraph_end(subgraph, status, error)
            return
        given = data.get("input")
        call = given.get("tool_call") if isinstance(given, Mapping) else None
        if isinstance(call, Mapping) and isinstance(call.get("id"), str):
            self._calls[data["id"]] = call["id"]
        if namespace and namespace not in self._subgraphs:
            self._subgraphs[namespace] = True
            name, _, task_id = namespace[-1].partition(":")
            cause = {"type": "toolCall", "tool_call_id": self._calls[task_id]} if task_id in self._calls else None
            started = {"event": "started", "namespace": namespace, "graph_name": name, "trigger_call_id": task_id}
            yield "lifecycle", namespace, started | ({} if cause is None else {"cause": cause}), None

    def _subgraph_end(self, namespace: tuple[str, ...], status: str, error: str | None) -> Translated:
        self._subgraphs[namespace] = False
        told = {"event": status, "graph_name": namespace[-1].partition(":")[0]}
        return "lifecycle", namespace, told | ({} if error is None else {"error": error}), None

    def _run_end(self, status: str) -> Iterator[Translated]:
        told = _STATUSES.get(status, "interrupted")
        for subgraph, is_open in reversed([*self._subgraphs.items()]):
            if is_open:
                yield self._subgraph_end(subgraph, told, self._error)
        error = self._error or (f"the run ended as {status}" if told == "failed" else None)
        end = {"event": told, "graph_name": self._graph}
        yield "lifecycle", (), end | ({} if error is None else {"error": error}), None


def _custom(data: Any) -> dict[str, Any]:
    """Return the data of a custom event. The key `payload` holds the object that a node wrote.

    If the object has a `name`, its fields are copied beside `payload`. For `thread.extensions[name]`, the Python SDK
    yields all these data, the JavaScript SDK only the `payload`.
    """
    name = data.get("name") if isinstance(data, Mapping) else None
    return {"payload": data, **data} if isinstance(name, str) and name else {"payload": data}


def _checkpoint(data: Any) -> dict[str, Any]:
    """Return a checkpoint without its state."""
    metadata = data.get("metadata") or {}
    found = {"id": _id_of(data.get("config")), "step": metadata.get("step"), "source": metadata.get("source")}
    parent_id = _id_of(data.get("parent_config"))
    return found | ({} if parent_id is None else {"parent_id": parent_id})


def _id_of(config: Any) -> Any:
    return config["configurable"].get("checkpoint_id") if config else None


def number_of(id: str) -> int:
    """Return the place of an event in its run. The events `error` and `end` are behind all other events."""
    number, dot, _ = id.partition(".")
    return int(number) + bool(dot)


def microseconds(time: datetime | None) -> int:
    """Return a time as microseconds since 1970; 0 if the time is not known."""
    return 0 if time is None else round(time.timestamp() * 1_000_000)
