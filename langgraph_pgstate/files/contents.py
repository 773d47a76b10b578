"""Encoding of the contents of files, and the literal text that a regular expression requires."""

from __future__ import annotations

import re
from typing import Any, Final, NamedTuple

from langgraph_pgstate.codec.frames import MOST_BYTES, pack, unpack
from langgraph_pgstate.codec.values import ValueCodec, encodes_as_utf8
from langgraph_pgstate.errors import ArgumentTypeError, ConfigurationError, CorruptStateError

_OPTIONS: Final = re.compile(r"\(\?([a-z]+)\)")
# Escapes that `required_literal` does not analyze: codes of characters, such as `\x41`, and back references.
_UNCLEAR: Final = re.compile(r"\\[^\WdwsDWSmMyYAZ]")
# A token: an escape, a set, the start or end of a group, a quantifier, or any other character.
_TOKEN: Final = re.compile(
    r"\\(?P<escaped>[^\w\s])|\\.|\[(?:\^?\]?)(?:\[[:.=].*?[:.=]\]|[^\]])*\]|(?P<open>\((?:\?[:=!<]+)?)|(?P<close>\))"
    r"|(?P<optional>[*?]|\{0?,?\d*,?\d*\})\??|(?P<or>\|)|[.^$+{}]|(?P<plain>.)",
    re.DOTALL,
)


class Content(NamedTuple):
    """The encoded content of a file.

    Attributes:
        size: Number of bytes before encoding.
        line_count: Number of lines; 0 if the content is binary.
        value_type: Type name of the caller's own serializer; `None` if this package has encoded `data`.
        text: The text for searches in SQL; `None` if SQL cannot search the content.
    """

    size: int
    line_count: int
    is_text: bool
    value_type: str | None
    data: bytes
    text: str | None


def encode_content(codec: ValueCodec, content: str | bytes) -> Content:
    """Return the content of a file in its stored form. Bytes that are UTF-8 are text.

    Raises:
        ConfigurationError: If the content is neither text nor bytes, has a lone surrogate, or is too large.
        SerializationError: If the caller's own serializer cannot store the content.
    """
    text: str | None
    if isinstance(content, str):
        if not encodes_as_utf8(content):
            raise ConfigurationError("content must not have a lone surrogate, which UTF-8 cannot encode")
        text, raw = content, content.encode()
    elif isinstance(content, bytes | bytearray | memoryview):
        raw = bytes(content)
        try:
            text = raw.decode()
        except UnicodeDecodeError:
            text = None
    else:
        raise ArgumentTypeError(f"content must be a string or bytes, not {type(content).__name__}")
    if len(raw) > MOST_BYTES:
        raise ConfigurationError(f"content must have {MOST_BYTES:,} bytes at most, not {len(raw):,}")
    lines = 0 if text is None else len(text.splitlines())
    if not codec.is_native:
        # Store no plain text, because the caller's own serializer may encrypt.
        return Content(len(raw), lines, text is not None, *codec.dumps("content of a file", raw), None)
    searched = None if text is None or "\0" in text else text
    return Content(len(raw), lines, text is not None, None, pack(raw), searched)


def decode_content(codec: ValueCodec, value_type: str | None, data: bytes, is_text: bool, where: str) -> str | bytes:
    """Return the content of a file from its stored form.

    Raises:
        CorruptStateError: If the stored form is damaged.
        UnreadableFormatError: If this installation cannot read the stored form.
    """
    raw: Any = unpack(data, where) if value_type is None else codec.loads(value_type, data, where)
    try:
        if not isinstance(raw, bytes):
            raise TypeError(f"the stored value has the type {type(raw).__name__}")
        return raw.decode() if is_text else raw
    except (TypeError, UnicodeDecodeError) as error:
        raise CorruptStateError(where, f"a file must have bytes as content ({error})") from error


def line_pattern(pattern: str) -> str:
    """Return a regular expression of PostgreSQL whose matches do not cross lines."""
    if pattern.startswith("***"):
        raise ConfigurationError(
            f"pattern must not begin with `***`, which PostgreSQL takes for a directive, got {pattern!r}"
        )
    options = _OPTIONS.match(pattern)
    if options is None:
        return f"(?n){pattern}"
    return f"(?{options[1]}n){pattern[options.end() :]}"


def required_literal(pattern: str) -> str:
    """Return a text that each match of a regular expression contains; empty if none is known.

    A search first leaves out files without this text. Looking for a text is five times as fast as matching an
    expression.
    """
    if pattern.startswith(("(?", "***")) or _UNCLEAR.search(pattern) or ("[" in pattern and "\\" in pattern):
        return ""
    runs, depth = [""], 0
    for token in _TOKEN.finditer(pattern):
        if token["open"]:
            depth += 1
            runs.append("")
        elif token["close"]:
            depth -= 1
            runs.append("")
        elif depth:
            continue
        elif token["or"]:
            return ""
        elif token["optional"]:
            runs[-1] = runs[-1][:-1]
            runs.append("")
        elif (character := token["plain"] or token["escaped"]) is not None:
            runs[-1] += character
        else:
            runs.append("")
    return "" if depth else max(runs, key=len)
