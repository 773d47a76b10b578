"""Chat messages of a state, and Markdown, as a page shows them."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from langchain_core.messages import BaseMessage
from markdown_it import MarkdownIt
from markdown_it.token import Token
from markupsafe import Markup

from langgraph_pgstate.inspector.formatting import SHOWN, ValueView, cut, view
from langgraph_pgstate.inspector.forms import call_title

_LINK: Final = re.compile(r"(https?://|mailto:)", re.IGNORECASE)
_MOST_GROWTH: Final = 5
_MOST_CELLS: Final = 3000
# The parser's time can grow with the square of the number of delimiters in a paragraph.
_MOST_DELIMITERS: Final = 1000
_DELIMITERS: Final = re.compile(r"[\[\]*_~!`<&\\]")
_PARAGRAPH_END: Final = re.compile(r"\n(?= {0,3}(?:[-*+#] |\n))")
_IMAGE: Final = re.compile(r"data:image/(png|gif|jpeg|webp);base64,", re.IGNORECASE)


def is_safe_link(url: str) -> bool:
    """Return whether a link leads to a web site or an e-mail address."""
    return _LINK.match(url) is not None


def is_safe_image(url: str) -> bool:
    """Return whether an image is a data URL. A page loads no image from another site."""
    return _IMAGE.match(url) is not None


def to_html(text: str) -> Markup:
    """Return Markdown as HTML. Raw HTML is shown as text. Only links to sites and e-mail addresses stay links.

    Text whose HTML would be many times as long, like a table of empty cells, is shown unchanged, and so is text that
    would take seconds.
    """
    if any(len(_DELIMITERS.findall(one)) > _MOST_DELIMITERS for one in _PARAGRAPH_END.split(text)):
        return Markup("<pre>{}</pre>").format(text)
    lines = text.splitlines()
    # The parser gives each row of a table the columns of the widest row. This can take seconds for a text of 4 KB.
    is_wide = max((line.count("|") for line in lines), default=0) * len(lines) > _MOST_CELLS
    # The renderer escapes all text, and no rule passes HTML through.
    found = _parser("commonmark" if is_wide else "table").render(text)
    if len(found) > _MOST_GROWTH * len(text) + 200:
        return Markup("<pre>{}</pre>").format(text)
    return Markup(found)  # nosec B704


@cache
def _parser(rules: str) -> MarkdownIt:
    parser = MarkdownIt("commonmark", {"html": False, "linkify": False, "xhtmlOut": False}).enable("strikethrough")
    if rules == "table":
        parser.enable("table")
    parser.validateLink = _is_allowed  # type: ignore[method-assign]
    parser.add_render_rule("link_open", _open_link)
    parser.add_render_rule("image", _draw_image)
    for cell in ("th_open", "td_open"):
        parser.add_render_rule(cell, _open_cell)
    return parser


def _is_allowed(url: str) -> bool:
    return is_safe_link(url) or is_safe_image(url)


def _open_link(self: Any, tokens: Sequence[Token], index: int, options: Any, env: Any) -> str:
    token = tokens[index]
    if is_safe_link(str(token.attrGet("href") or "")):
        token.attrSet("rel", "noopener noreferrer nofollow")
        token.attrSet("target", "_blank")
    else:
        token.attrs.pop("href", None)
    return str(self.renderToken(tokens, index, options, env))


def _open_cell(self: Any, tokens: Sequence[Token], index: int, options: Any, env: Any) -> str:
    token = tokens[index]
    # Use a class, because the pages' Content-Security-Policy forbids `style` attributes.
    if "right" in str(token.attrs.pop("style", "")):
        token.attrSet("class", "number")
    return str(self.renderToken(tokens, index, options, env))


def _draw_image(self: Any, tokens: Sequence[Token], index: int, options: Any, env: Any) -> str:
    token = tokens[index]
    if is_safe_image(str(token.attrGet("src") or "")):
        return str(self.image(tokens, index, options, env))
    # Show text instead of the image, because loading the image would tell a site who reads the page.
    token.tag, token.nesting = "span", 1
    token.attrs.clear()
    opening = str(self.renderToken(tokens, index, options, env))
    return f"{opening}{Markup.escape(token.content or 'image')}</span>"


MOST_MESSAGES: Final = 50
# Maximum number of characters of all messages of a page, and of one image in them.
_MOST_TEXT: Final = 40_000
_MOST_IMAGE: Final = 60_000
_MOST_FILES: Final = 20
# Number of messages that a page shows after the requested message.
_AFTER: Final = 4
_GIST: Final = 200
_ROLES: Final = {"user": "human", "assistant": "ai", "developer": "system"}
_FILES: Final = ("image", "image_url", "input_image", "file", "input_file", "document", "audio", "input_audio", "video")
_REASONING: Final = ("reasoning", "thinking", "redacted_thinking", "reasoning_content")
_IMAGE_TYPES: Final = ("image/png", "image/gif", "image/jpeg", "image/webp")


@dataclass(frozen=True, slots=True)
class ToolCallView:
    """A call of a tool that a message asks for."""

    name: str
    id: str | None
    arguments: ValueView


@dataclass(frozen=True, slots=True)
class FileView:
    """A file of a message, or an image that is too large for the page or not in the message.

    Attributes:
        part: Index of the part in the content of the message, from 0.
        kind: `image`, `file`, `audio`, `video` or `document`.
        type: Media type that the message gives.
        size: Bytes of the file; `None` if its data is not in the message.
        url: Address of a file whose data is not in the message.
    """

    part: int
    kind: str
    name: str | None
    type: str | None
    size: int | None
    url: str | None

    @property
    def is_image(self) -> bool:
        """Whether a browser can show it as an image."""
        return self.size is not None and self.type in _IMAGE_TYPES


@dataclass(frozen=True, slots=True)
class MessageView:
    """A chat message.

    Attributes:
        number: Index of the message in the channel, from 0.
        role: `system`, `human`, `ai`, `tool` or another.
        name: Name of the agent or of the tool.
        text: Text of the message, or its beginning.
        size: Characters of the whole text.
        reasoning: Reasoning of the model, or its beginning.
        reasoning_size: Characters of the whole reasoning; 0 for none.
        images: Data URLs of images.
        files: Files, sounds, and images that are too large for the page or not in the message.
        others: Number of parts of other kinds.
        tool_call_id: The tool call whose result the message is.
        is_failed: Whether the message is the error of a tool.
    """

    number: int
    role: str
    name: str | None
    id: str | None
    text: str
    size: int
    reasoning: str
    reasoning_size: int
    images: tuple[str, ...]
    files: tuple[FileView, ...]
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
            len(self.text) == self.size
            and len(self.reasoning) == self.reasoning_size
            and not self.others
            and all(one.arguments.is_whole for one in self.tool_calls)
        )


@dataclass(frozen=True, slots=True)
class Conversation:
    """A part of the messages of a channel.

    Attributes:
        channel: The channel; `None` if the state has no messages.
        messages: The messages, oldest first.
        count: Number of all messages of the channel.
        hit: Index of the requested message, if the channel has it.
    """

    channel: str | None
    messages: tuple[MessageView, ...]
    count: int
    hit: int | None = None

    @property
    def older(self) -> int:
        """Number of messages before these."""
        return self.messages[0].number if self.messages else 0

    @property
    def newer(self) -> int:
        """Number of messages after these."""
        return self.count - self.messages[-1].number - 1 if self.messages else 0


def conversation(
    values: Mapping[str, Any], channel: str | None, before: int | None, message_id: str | None = None
) -> Conversation:
    """Return the last messages of a channel, as many as a page shows.

    Args:
        channel: The channel; by default `messages`, or else a channel that has messages.
        before: Only messages before this index.
        message_id: Only messages up to this message, and a few after it.
    """
    if channel is None:
        channel = next((name for name in ("messages", *values) if is_conversation(values.get(name))), None)
    if channel is None or not is_conversation(values.get(channel)):
        return Conversation(None, (), 0)
    messages: Sequence[Any] = values[channel]
    hit = None if message_id is None else _place(messages, message_id)
    if hit is not None and before is None:
        before = hit + 1 + _AFTER
    found: list[MessageView] = []
    left = _MOST_TEXT
    for number in reversed(range(len(messages) if before is None else min(before, len(messages)))):
        if len(found) == MOST_MESSAGES or left <= 0:
            break
        found.append(_view(number, _fields(messages[number]), min(SHOWN, left)))
        shown = found[-1]
        calls = sum(len(one.arguments.text) for one in shown.tool_calls)
        left -= len(shown.text) + len(shown.reasoning) + calls + 100 * (1 + len(shown.files))
    return Conversation(channel, tuple(reversed(found)), len(messages), hit)


def _place(messages: Sequence[Any], id: str) -> int | None:
    return next((number for number, one in enumerate(messages) if _fields(one).get("id") == id), None)


def is_conversation(value: Any) -> bool:
    """Return whether a value is a list of chat messages, and not empty."""
    return isinstance(value, list) and bool(value) and all(map(is_message, value))


def is_message(value: Any) -> bool:
    """Return whether a value is a chat message: a LangChain message, or a dict with a role and a content."""
    if isinstance(value, BaseMessage):
        return True
    return isinstance(value, Mapping) and "content" in value and isinstance(value.get("role", value.get("type")), str)


def gist(message: Mapping[str, Any]) -> str:
    """Return a message in one line: the beginnings of its text, files and tool calls."""
    text, thoughts, images, files, others = _content(message.get("content"))
    kinds = [*("image" for _ in images), *(one.kind for one in files), *("other part" for _ in range(others))]
    calls = message.get("tool_calls")
    asked = [call_title(*called(call)[:2]) for call in (calls if isinstance(calls, list) else ())]
    parts = [
        "failed:" if message.get("status") == "error" else "",
        text or ("" if asked or not thoughts else f"reasoning: {thoughts}"),
        ", ".join(f"[{kind}]" for kind in kinds[:_AFTER]),
        f"→ {', '.join(asked)}" if asked else "",
    ]
    return cut(" ".join(filter(None, parts)), _GIST)


def text_of(content: Any) -> str:
    """Return the text in the content of a message."""
    return _content(content)[0]


def file_of(message: Any, part: int) -> tuple[str, bytes] | None:
    """Return the media type and the data of a file in a message; `None` if there is no file at this index.

    The type of a file that is no image is `application/octet-stream`, so that browsers do not open the file.
    """
    content = _fields(message).get("content")
    given = content[part] if isinstance(content, list) and part < len(content) else None
    if not isinstance(given, Mapping) or given.get("type") not in _FILES:
        return None
    type, data, _ = _source(given)
    if data is None:
        return None
    try:
        found = base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        return None
    return (type if type in _IMAGE_TYPES else "application/octet-stream"), found


def _fields(message: Any) -> Mapping[str, Any]:
    if not isinstance(message, BaseMessage):
        return message  # type: ignore[no-any-return]
    names = ("type", "name", "id", "content", "tool_calls", "tool_call_id", "usage_metadata", "status")
    found = {name: getattr(message, name, None) for name in names}
    return {**found, "reasoning_content": message.additional_kwargs.get("reasoning_content")}


def _view(number: int, message: Mapping[str, Any], most: int) -> MessageView:
    text, thoughts, images, files, others = _content(message.get("content"))
    if not thoughts and isinstance(message.get("reasoning_content"), str):
        thoughts = message["reasoning_content"]
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
        thoughts[: most // 2],
        len(thoughts),
        tuple(images),
        tuple(files),
        others,
        tuple(_call(call, most) for call in (calls if isinstance(calls, list) else ())),
        _text_or_none(message.get("tool_call_id")),
        tokens.get("input_tokens"),
        tokens.get("output_tokens"),
        message.get("status") == "error",
    )


def _content(content: Any) -> tuple[str, str, list[str], list[FileView], int]:
    """Return the text of a message, its reasoning, images and files, and the number of other parts."""
    if isinstance(content, str):
        return content, "", [], [], 0
    if not isinstance(content, list):
        return ("" if content is None else view(content).text), "", [], [], 0
    texts: list[str] = []
    thoughts: list[str] = []
    images: list[str] = []
    files: list[FileView] = []
    others = 0
    for place, part in enumerate(content):
        kind = part.get("type") if isinstance(part, Mapping) else None
        if isinstance(part, str):
            texts.append(part)
        elif kind in ("text", "input_text", "output_text", "text-plain") and isinstance(part.get("text"), str):
            texts.append(part["text"])
        elif kind in _REASONING:
            thoughts.append(_reasoning(part))
        elif kind in _FILES:
            file, address = _file(place, part)
            if address is not None and sum(map(len, images)) + len(address) <= _MOST_IMAGE:
                images.append(address)
            elif len(files) < _MOST_FILES:
                files.append(file)
            else:
                others += 1
        elif kind not in ("tool_use", "tool_call", "tool_calls", "function_call"):
            # The page shows tool calls from the message's `tool_calls`.
            others += 1
    return "\n\n".join(texts), "\n\n".join(filter(None, thoughts)), images, files, others


def _reasoning(part: Mapping[str, Any]) -> str:
    """Return the reasoning in a part of a message, in the formats of several providers."""
    if part.get("type") == "redacted_thinking":
        return "(encrypted by the provider)"
    for name in ("reasoning", "thinking", "text", "reasoning_content"):
        found = part.get(name)
        found = found.get("text") if isinstance(found, Mapping) else found
        if isinstance(found, str):
            return found
    summary = part.get("summary")
    parts = summary if isinstance(summary, list) else []
    return "\n\n".join(one["text"] for one in parts if isinstance(one, Mapping) and isinstance(one.get("text"), str))


def _file(place: int, part: Mapping[str, Any]) -> tuple[FileView, str | None]:
    """Return a file and, for an image in the message, its data URL."""
    type, data, url = _source(part)
    inner = part.get("file")
    names = (part, inner) if isinstance(inner, Mapping) else (part,)
    name = next(
        (one[key] for one in names for key in ("filename", "name", "title") if _text_or_none(one.get(key))), None
    )
    kind = str(part["type"]).removeprefix("input_").removesuffix("_url")
    size = None if data is None else len(data) * 3 // 4 - data[-2:].count("=")
    file = FileView(place, kind, name, type, size, url)
    address = f"data:{type};base64,{data}" if file.is_image else None
    return file, address if address is not None and is_safe_image(address) else None


def _source(part: Mapping[str, Any]) -> tuple[str | None, str | None, str | None]:
    """Return the media type, base64 data and address of a file, in the formats of several providers."""
    kind = str(part["type"])
    given = next((part[name] for name in (kind, "source", "image_url", "file") if name in part), part)
    if isinstance(given, str):
        given = {"url": given}
    if not isinstance(given, Mapping):
        return None, None, None
    type = _text_or_none(given.get("mime_type") or given.get("media_type") or part.get("mime_type"))
    if type is None and kind in ("image", "input_audio"):
        type = f"audio/{given.get('format')}" if kind == "input_audio" else "image/png"
    data = next((given[name] for name in ("base64", "data", "file_data") if _text_or_none(given.get(name))), None)
    url = next((one for one in (given.get("url"), data) if isinstance(one, str) and ":" in one), None)
    if url is not None and url.startswith("data:"):
        head, _, data = url.partition(",")
        type, url = head.removeprefix("data:").partition(";")[0].lower() or type, None
    return type, data, url if url is not None and is_safe_link(url) else None


def _call(call: Any, most: int) -> ToolCallView:
    name, arguments, id = called(call)
    return ToolCallView(name, id, view(arguments, most))


def called(call: Any) -> tuple[str, Any, str | None]:
    """Return the tool, the arguments and the id of a call."""
    given = call if isinstance(call, Mapping) else {"args": call}
    function = given.get("function")
    # Messages that are dicts may have tool calls in OpenAI's format.
    if isinstance(function, Mapping):
        given = {"name": function.get("name"), "args": function.get("arguments"), "id": given.get("id")}
    return str(given.get("name") or "?"), given.get("args"), _text_or_none(given.get("id"))


def _text_or_none(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None
