"""Messages of a model as content blocks, in the protocol's second version."""

from __future__ import annotations

import json
from collections.abc import Hashable, Iterator, Mapping
from typing import Any, Final

from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage

_TEXTS: Final = {"text": "text", "reasoning": "reasoning"}
_CALLS: Final = {"tool_call_chunk": "tool_call", "server_tool_call_chunk": "server_tool_call"}
# Sent when a block is complete, not when it starts.
_LARGE: Final[Mapping[str, Any]] = {"args": {}, "base64": None, "data": None, "output": None, "value": {}}
_MODEL: Final = {"ls_provider": "provider", "ls_model_name": "model", "langgraph_node": "langgraph_node"}
_MODEL_TYPE: Final = "ls_model_type"
Part = dict[str, Any]


class MessageParts:
    """The messages of one run, each of which starts, has blocks, and finishes."""

    def __init__(self) -> None:
        self._open: dict[str, _Message] = {}

    def add(self, message: Any, metadata: Mapping[str, Any]) -> Iterator[Part]:
        """Yield the parts that a chunk or a whole message stands for; none if no model has made it."""
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
        """Yield the last parts of messages that are not complete, because their attempt has ended."""
        for message in self._open.values():
            yield from message.finish()
        self._open.clear()


class _Message:
    """A message that is not complete. Each part names it, because several may be streamed at once."""

    def __init__(self, id: str) -> None:
        self._id = id
        self._blocks: dict[Hashable, tuple[int, Part]] = {}
        self._usage: dict[str, Any] = {}

    def add(self, message: BaseMessage) -> Iterator[Part]:
        for place, block in enumerate(_blocks_of(message)):
            kind = block.get("type")
            # Blocks without an index are distinguished by type, because each chunk begins again.
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
    """Return whether a message is what a model answers, and not one that a node returns."""
    # LangChain describes the model in the metadata of what it answers without streaming.
    return isinstance(message, AIMessageChunk) or (isinstance(message, AIMessage) and _MODEL_TYPE in metadata)


def _blocks_of(message: BaseMessage) -> list[Part]:
    try:
        found: list[Any] = [*message.content_blocks]
    except Exception:
        # Content in the form of no known provider.
        found = [{"type": "text", "text": str(message.text)}]
    return [block for block in found if isinstance(block, dict)]


def _empty(block: Part) -> Part:
    kind = block.get("type", "")
    return {_TEXTS[kind]: ""} if kind in _TEXTS else {"args": ""} if kind in _CALLS else {}


def _started(block: Part) -> Part:
    """Return a block as it starts: without what follows."""
    kind = block.get("type", "")
    if kind in _TEXTS:
        return {**{name: value for name, value in block.items() if name != "index"}, _TEXTS[kind]: ""}
    if kind in _CALLS:
        return {**block, "args": ""}
    kept = {name: value for name, value in block.items() if name not in _LARGE}
    return kept | {name: _LARGE[name] for name in ("args", "value") if name in block}


def _merge(known: Part, block: Part) -> Part | None:
    """Add a block of a chunk to what is known of it, and return the change; `None` if nothing is appended."""
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
    """Return a block that is complete: the call of a tool with its arguments as an object."""
    kind = _CALLS.get(block.get("type", ""))
    if kind is None:
        return block
    named = {name: value for name, value in block.items() if name not in ("args", "index", "type")}
    try:
        return {**named, "type": kind, "args": json.loads(block["args"] or "{}")}
    except ValueError:
        error = "the arguments are not JSON"
        return {**named, "type": "invalid_tool_call", "args": block["args"], "error": error}
