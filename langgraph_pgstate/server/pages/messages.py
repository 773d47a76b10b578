"""Chat messages of a state as a page shows them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from langchain_core.messages import BaseMessage

from langgraph_pgstate.server.pages.markdown import is_safe_image
from langgraph_pgstate.server.pages.values import SHOWN, ValueView, view

MOST_MESSAGES: Final = 50
# Characters of all messages of a page, and of one image in them.
_MOST_TEXT: Final = 40_000
_MOST_IMAGE: Final = 60_000
_ROLES: Final = {"user": "human", "assistant": "ai", "developer": "system"}


@dataclass(frozen=True, slots=True)
class ToolCallView:
    """A call of a tool that a message asks for.

    Attributes:
        name: The tool.
        id: The call's id.
        arguments: Its arguments.
    """

    name: str
    id: str | None
    arguments: ValueView


@dataclass(frozen=True, slots=True)
class MessageView:
    """A chat message.

    Attributes:
        number: Its place in the channel, from 0.
        role: `system`, `human`, `ai`, `tool` or another.
        name: Its name: of the agent, or of the tool.
        id: Its id.
        text: Its text, or the beginning.
        size: Characters of the whole text.
        images: Addresses of images, each with its data in it.
        others: Number of other parts, like files, sounds, and images that are elsewhere or too large.
        tool_calls: The tool calls that it asks for.
        tool_call_id: The tool call that it answers.
        input_tokens: Input tokens as the model reported them.
        output_tokens: Output tokens as the model reported them.
        is_failed: Whether it is the error of a tool.
    """

    number: int
    role: str
    name: str | None
    id: str | None
    text: str
    size: int
    images: tuple[str, ...]
    others: int
    tool_calls: tuple[ToolCallView, ...]
    tool_call_id: str | None
    input_tokens: int | None
    output_tokens: int | None
    is_failed: bool

    @property
    def is_whole(self) -> bool:
        """Whether all of the message is shown."""
        return (
            len(self.text) == self.size and not self.others and all(one.arguments.is_whole for one in self.tool_calls)
        )


@dataclass(frozen=True, slots=True)
class Conversation:
    """A part of the messages of a channel.

    Attributes:
        channel: The channel; `None` if the state has no messages.
        messages: The messages, oldest first.
        count: Number of all messages of the channel.
    """

    channel: str | None
    messages: tuple[MessageView, ...]
    count: int

    @property
    def older(self) -> int:
        """Number of messages before these."""
        return self.messages[0].number if self.messages else 0


def conversation(values: Mapping[str, Any], channel: str | None, before: int | None) -> Conversation:
    """Return the last messages of a channel, as many as a page shows.

    Args:
        values: The state.
        channel: The channel; by default `messages`, or another one that has messages.
        before: Only messages before this place.
    """
    if channel is None:
        channel = next((name for name in ("messages", *values) if is_conversation(values.get(name))), None)
    if channel is None or not is_conversation(values.get(channel)):
        return Conversation(None, (), 0)
    messages: Sequence[Any] = values[channel]
    found: list[MessageView] = []
    left = _MOST_TEXT
    for number in reversed(range(len(messages) if before is None else min(before, len(messages)))):
        if len(found) == MOST_MESSAGES or left <= 0:
            break
        found.append(_view(number, _fields(messages[number]), min(SHOWN, left)))
        left -= len(found[-1].text) + sum(len(one.arguments.text) for one in found[-1].tool_calls) + 100
    return Conversation(channel, tuple(reversed(found)), len(messages))


def is_conversation(value: Any) -> bool:
    """Return whether a value is a list of chat messages: LangChain's, or dicts with a role and a content."""
    return isinstance(value, list) and bool(value) and all(map(_is_message, value))


def _is_message(value: Any) -> bool:
    if isinstance(value, BaseMessage):
        return True
    return isinstance(value, Mapping) and "content" in value and isinstance(value.get("role", value.get("type")), str)


def _fields(message: Any) -> Mapping[str, Any]:
    if not isinstance(message, BaseMessage):
        return message  # type: ignore[no-any-return]
    names = ("type", "name", "id", "content", "tool_calls", "tool_call_id", "usage_metadata", "status")
    return {name: getattr(message, name, None) for name in names}


def _view(number: int, message: Mapping[str, Any], most: int) -> MessageView:
    text, images, others = _content(message.get("content"))
    role = str(message.get("role") or message.get("type") or "")
    usage = message.get("usage_metadata")
    tokens = usage if isinstance(usage, Mapping) else {}
    calls = message.get("tool_calls")
    return MessageView(
        number,
        _ROLES.get(role, role),
        _text_or_none(message.get("name")),
        _text_or_none(message.get("id")),
        text[:most],
        len(text),
        tuple(images),
        others,
        tuple(_call(call, most) for call in (calls if isinstance(calls, list) else ())),
        _text_or_none(message.get("tool_call_id")),
        tokens.get("input_tokens"),
        tokens.get("output_tokens"),
        message.get("status") == "error",
    )


def _content(content: Any) -> tuple[str, list[str], int]:
    """Return the text of a message, its images, and the number of its other parts."""
    if isinstance(content, str):
        return content, [], 0
    if not isinstance(content, list):
        return ("", [], 0) if content is None else (view(content).text, [], 0)
    texts: list[str] = []
    images: list[str] = []
    others = 0
    for part in content:
        kind = part.get("type") if isinstance(part, Mapping) else None
        if isinstance(part, str):
            texts.append(part)
        elif kind == "text" and isinstance(part.get("text"), str):
            texts.append(part["text"])
        elif kind not in ("tool_use", "tool_call", "tool_calls"):
            # Tool calls are shown from `tool_calls`.
            image = _image(part)
            if image is not None and sum(map(len, images)) + len(image) <= _MOST_IMAGE:
                images.append(image)
            else:
                others += 1
    return "\n\n".join(texts), images, others


def _image(part: Any) -> str | None:
    """Return the address of an image that has its data in it."""
    if not isinstance(part, Mapping):
        return None
    given = part.get("image_url")
    url = given.get("url") if isinstance(given, Mapping) else given
    if url is None and part.get("type") == "image":
        data = part.get("base64") or part.get("data")
        url = f"data:{part.get('mime_type', 'image/png')};base64,{data}" if isinstance(data, str) else part.get("url")
    return url if isinstance(url, str) and is_safe_image(url) else None


def _call(call: Any, most: int) -> ToolCallView:
    given = call if isinstance(call, Mapping) else {"args": call}
    function = given.get("function")
    # OpenAI's form, in messages that are dicts.
    if isinstance(function, Mapping):
        given = {"name": function.get("name"), "args": function.get("arguments"), "id": given.get("id")}
    return ToolCallView(str(given.get("name") or "?"), _text_or_none(given.get("id")), view(given.get("args"), most))


def _text_or_none(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None
