"""Conversion of tool results: readable text, results for another call, and summaries."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any, cast
from urllib.parse import quote, unquote

import orjson
from langchain_core.messages import ToolMessage
from langgraph.errors import ParentCommand
from langgraph.types import Command
from pydantic import BaseModel

from langgraph_pgstate.codec.frames import pack
from langgraph_pgstate.codec.metadata import to_json
from langgraph_pgstate.codec.values import ValueCodec
from langgraph_pgstate.errors import ConfigurationError, NotFoundError, PGStateError
from langgraph_pgstate.tools.executions import (
    FRAMED_RESULT,
    PARENT_RESULT,
    UNSTORABLE_RESULT,
    Intent,
    Outcome,
    Recorded,
    open_result,
)
from langgraph_pgstate.tools.policy import ToolSettings

_log = logging.getLogger(__name__)

_SCHEME = "pgstate:tool/"
# Maximum nesting depth at which the size of a result counts bytes and other buffers.
_MAX_DEPTH = 100


class ParentAnswer:
    """A `Command` for the parent graph that a tool raised instead of returning it."""

    def __init__(self, command: Command[Any]) -> None:
        self.command = command


def success(codec: ValueCodec, settings: ToolSettings, tool: str, result: Any) -> Outcome:
    """Return the outcome of a tool that returned. A returned error message counts as a failure."""
    value, prefix = (result.command, PARENT_RESULT) if isinstance(result, ParentAnswer) else (result, "")
    text = _preview(lambda: readable(value), tool, settings)
    try:
        kind, data = _encode(codec, f"result of {tool}", value)
        prefix, data = FRAMED_RESULT + prefix, pack(data)
    except PGStateError:
        # The tool took effect, which must be recorded even if the result cannot be stored.
        kind, data, prefix = type(value).__qualname__, b"", UNSTORABLE_RESULT
    failed = is_error(result)
    return Outcome(
        "error" if failed else "success",
        prefix + kind,
        data,
        text,
        "ToolMessage" if failed else None,
        text if failed else None,
    )


def _encode(codec: ValueCodec, name: str, value: Any) -> tuple[str, bytes]:
    """Return a result as bytes that keep all types, or as many types as the serializer can keep."""
    try:
        return codec.dumps_exactly(name, value)
    except PGStateError:
        return codec.dumps(name, value)


def failure(status: str, tool: str, error: BaseException, settings: ToolSettings) -> Outcome:
    """Return the outcome of a tool that raised."""
    kind = type(error)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    return Outcome(status, error_type=name, error_message=_preview(lambda: str(error), tool, settings))


def restore(codec: ValueCodec, recorded: Recorded) -> Any:
    """Return the result of a recorded execution.

    Raises:
        UnsafeTypeError: If the serializer may not build the result's type.
        NotFoundError: If the result could not be stored.
        CorruptStateError: If the stored result was altered.
    """
    execution = recorded.execution
    where = f"the result of {execution.tool} ({execution.idempotency_key!r} on thread {execution.thread_id!r})"
    if recorded.result_type is not None and recorded.result_type.startswith(UNSTORABLE_RESULT):
        kind = recorded.result_type.removeprefix(UNSTORABLE_RESULT)
        raise NotFoundError(f"{where} is not stored: the serializer could not encode a {kind}. The tool succeeded")
    if recorded.result_type is None or recorded.result is None:
        raise NotFoundError(f"{where} is not recorded: its status is {execution.status}")
    kind, data = open_result(recorded.result_type, recorded.result, where)
    value = codec.loads(kind.removeprefix(PARENT_RESULT), data, where)
    return ParentAnswer(value) if kind.startswith(PARENT_RESULT) else value


def is_error(result: Any) -> bool:
    """Return whether a tool's result is an error message."""
    return isinstance(result, ToolMessage) and result.status == "error"


def readable(result: Any) -> str:
    """Return a result as readable text."""
    if isinstance(result, str):
        return result
    if isinstance(result, ToolMessage):
        return str(result.text)
    if isinstance(result, Command):
        messages = [message for message in _update_messages(result) if isinstance(message, ToolMessage)]
        told = [str(message.text) for message in messages]
        return "\n".join([*told, *([f"goto {result.goto}"] if result.goto else [])])
    if isinstance(result, list) and any(isinstance(item, ToolMessage | Command) for item in result):
        return "\n".join(map(readable, result))
    return _json_of(result)


def _json_of(value: Any) -> str:
    """Return a value as JSON. Values that JSON cannot represent are approximated."""
    return orjson.dumps(to_json(value)[0]).decode()


def _preview(read: Callable[[], str], tool: str, settings: ToolSettings) -> str | None:
    """Return the beginning of a text, redacted and without characters that PostgreSQL refuses.

    The outcome must be recorded even if there is no text, so an error of the caller's code is only logged.
    """
    try:
        text = read()
        if settings.redact is not None:
            text = str(settings.redact("preview", text))
    except Exception:
        _log.warning(
            "the outcome of %s is recorded without its text, because making the text failed", tool, exc_info=True
        )
        return None
    return str(to_json(text[: settings.preview_length])[0])


def as_answer(result: Any, tool: str, tool_call_id: str | None) -> Any:
    """Return a result as a `ToolNode` expects it."""
    if isinstance(result, ToolMessage | Command):
        return result
    if isinstance(result, list) and result and all(isinstance(item, ToolMessage | Command) for item in result):
        return result
    # Imported here, because only a `ToolNode` needs this module, and has imported it already.
    from langgraph.prebuilt.tool_node import msg_content_output

    return ToolMessage(content=cast(Any, msg_content_output(result)), name=tool, tool_call_id=tool_call_id or "")


def for_call(result: Any, tool_call_id: str | None) -> Any:
    """Return a recorded result as the result of another call of the same action."""

    def renamed(message: ToolMessage) -> ToolMessage:
        if tool_call_id is None or message.tool_call_id == tool_call_id:
            return message
        return message.model_copy(update={"tool_call_id": tool_call_id, "id": None})

    return _each_message(result, renamed)


def present(result: Any, intent: Intent, limit: int | None, settings: ToolSettings) -> Any:
    """Return the result of an action in the form that a call needs, shortened to a limit of bytes.

    Raises:
        ParentCommand: If the result is a command for the parent graph.
    """
    if isinstance(result, ParentAnswer):
        raise ParentCommand(result.command)
    reference = reference_to(intent.thread_id, intent.idempotency_key)
    return masked(for_call(result, intent.tool_call_id), limit, reference, settings)


def masked(result: Any, limit: int | None, reference: str, settings: ToolSettings) -> Any:
    """Return a result in which every text above the limit is replaced by its beginning and a reference."""
    if limit is None:
        return result

    def shortened(message: ToolMessage) -> ToolMessage:
        summary = _summary(str(message.text), limit, reference, settings, _size(message))
        return message if summary is None else message.model_copy(update={"content": summary, "artifact": None})

    if isinstance(result, str):
        return _summary(result, limit, reference, settings) or result
    if _holds_messages(result):
        return _each_message(result, shortened)
    size = _bytes_of(result)
    if size <= limit:
        return result
    return {"$ref": reference, "bytes": size, "preview": readable(result)[: settings.preview_length]}


def reference_to(thread_id: str, idempotency_key: str) -> str:
    """Return the reference to a whole result."""
    return f"{_SCHEME}{quote(thread_id, safe='')}/{quote(idempotency_key, safe='')}"


def parse_reference(reference: str) -> tuple[str, str]:
    """Return thread and key of a reference.

    Raises:
        ConfigurationError: If `reference` is not a reference.
    """
    thread_id, slash, key = reference.removeprefix(_SCHEME).partition("/")
    if not reference.startswith(_SCHEME) or not slash or not thread_id or not key:
        raise ConfigurationError(f"reference must have the form {_SCHEME}THREAD/KEY, not {reference!r}")
    return unquote(thread_id), unquote(key)


def _size(message: ToolMessage) -> int:
    """Return the bytes of a message's content, including binary parts, and of its artifact."""
    return _bytes_of(message.content) + (0 if message.artifact is None else _bytes_of(message.artifact))


def _bytes_of(value: Any) -> int:
    """Return the size of a value: the size of its byte strings and buffers, plus the size of the rest as text."""
    found: list[int] = []
    rest = _without_buffers(value, found)
    if rest is None and found:
        return sum(found)
    text = rest if isinstance(rest, str) else _json_of(rest)
    return sum(found) + len(text.encode("utf-8", "surrogatepass"))


def _without_buffers(value: Any, found: list[int], depth: int = 0) -> Any:
    """Return a value with `None` for bytes, arrays and other buffers. Their sizes are appended to `found`."""
    if value is None or isinstance(value, str | int | float) or depth > _MAX_DEPTH:
        return value
    if isinstance(value, BaseModel):
        value = dict(value)
    elif is_dataclass(value) and not isinstance(value, type):
        value = {field.name: getattr(value, field.name) for field in fields(value)}
    if isinstance(value, Mapping):
        return {key: _without_buffers(item, found, depth + 1) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_without_buffers(item, found, depth + 1) for item in value]
    try:
        found.append(memoryview(value).nbytes)
    except (TypeError, ValueError):
        return value
    return None


def _summary(text: str, limit: int, reference: str, settings: ToolSettings, size: int | None = None) -> str | None:
    size = _bytes_of(text) if size is None else size
    if size <= limit:
        return None
    return f"{text[: settings.preview_length]}\n[… {size:,} bytes in all, kept as {reference}]"


def _holds_messages(result: Any) -> bool:
    return isinstance(result, ToolMessage | Command) or (
        isinstance(result, list) and any(isinstance(item, ToolMessage | Command) for item in result)
    )


def _each_message(result: Any, change: Callable[[ToolMessage], ToolMessage]) -> Any:
    if isinstance(result, ToolMessage):
        return change(result)
    if isinstance(result, list):
        return [_each_message(item, change) for item in result]
    if isinstance(result, Command):
        messages = _update_messages(result)
        changed = [change(item) if isinstance(item, ToolMessage) else item for item in messages]
        if all(new is old for new, old in zip(changed, messages, strict=True)):
            return result
        if isinstance(result.update, Mapping):
            return replace(result, update={**result.update, "messages": changed})
        return replace(result, update=changed)
    return result


def _update_messages(command: Command[Any]) -> list[Any]:
    found = command.update.get("messages") if isinstance(command.update, Mapping) else command.update
    return found if isinstance(found, list) else []
