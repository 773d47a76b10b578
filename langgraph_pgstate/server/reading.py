"""Reading request bodies as JSON types, within a time limit and without blocking the event loop."""

from __future__ import annotations

import asyncio
import json
import json.decoder
import json.scanner
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from json.decoder import scanstring  # type: ignore[attr-defined]
from typing import Any, AnyStr, Final, NamedTuple

from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect, Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from langgraph_pgstate.server.errors import Budget, refuse
from langgraph_pgstate.server.json import MOST_LEVELS, is_deeper

_SECONDS: Final = 60.0
# Bodies with more values or bytes are parsed in a thread, by Python code that does not block the event loop.
_FEW_VALUES: Final = 20_000
_FEW_BYTES: Final = 128 * 1024
# Maximum number of digits of an integer. The time to read an integer grows with the square of this number.
_MOST_DIGITS: Final = 100
_LONG_INTEGER: Final = re.compile(rb"[0-9]{%d}" % (_MOST_DIGITS + 1))
_NUL: Final = b"\\u0000"
# Fields of a body that hold content of the application.
_CONTENT: Final = frozenset({"input", "command", "values", "supersteps", "context", "value", "comment", "response"})
# A part of a string: at most 10,000 escapes or sequences of other characters. A match and `scanstring` hold the GIL
# until they end, so a string with many escapes is read in parts.
_PART: Final = re.compile(rb'(?:[^"\\]+|\\.){0,10000}+', re.DOTALL)
# The pattern for `str`. A part never ends between the two `\u` escapes of one character beyond 16 bits.
_TEXT_PART: Final = re.compile(
    r'(?:[^"\\]+|\\[^u]|\\u[dD][89abAB]..\\u[dD][c-fC-F]..|\\u.{4}){0,10000}+',
    re.DOTALL,
)
_SEPARATORS: Final = (b",", b"[", b"{")
# Maximum bytes of bodies that are not parsed yet. The first bytes of each body do not count.
_unparsed: Final = Budget(128 * 1024 * 1024)
# One thread parses one body at a time, which bounds the memory for parsing.
_parser: Final = ThreadPoolExecutor(1, "pgstate-parser")


class BodyLimits(NamedTuple):
    """The limits of a body.

    Attributes:
        size: Maximum number of bytes.
        values: Maximum number of lists, objects and items. A value takes up to a hundred times its bytes in memory, and
            graphs copy values on the event loop.
    """

    size: int = 16 * 1024 * 1024
    values: int = 100_000


DEFAULT_LIMITS: Final = BodyLimits()


class _Decoder(json.JSONDecoder):
    """The standard library's decoder without its C code, which would hold the GIL until it ends."""

    def __init__(self) -> None:
        super().__init__(object_pairs_hook=_object, parse_int=_integer)
        self.parse_string = _string
        self.scan_once = json.scanner.py_make_scanner(self)  # type: ignore[attr-defined]


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    # `dict(pairs)` would hold the GIL.
    return {name: value for name, value in pairs}  # noqa: C416


def _integer(digits: str) -> int:
    if len(digits) > _MOST_DIGITS:
        raise refuse(422, f"integers must have at most {_MOST_DIGITS} digits")
    return int(digits)


def _string(text: str, start: int, strict: bool = True) -> tuple[str, int]:
    """Return the JSON string whose first character is at `start`, and the index after it, like `scanstring`."""
    parts: list[str] = []
    while (end := _end_of_part(_TEXT_PART, text, start)) > start and text[end : end + 1] != '"':
        parts.append(scanstring(text[start:end] + '"', 0, strict)[0])
        start = end
    last, end = scanstring(text, start, strict)
    return ("".join([*parts, last]) if parts else last), end


class BodyLimit:
    """Middleware that refuses bodies that are too large or arrive too slowly, when the application reads them."""

    def __init__(self, app: ASGIApp, most: int) -> None:
        self._app, self._most = app, most

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Call the application."""
        limited = receive_limited(scope, receive, self._most) if scope["type"] == "http" else receive
        await self._app(scope, limited, send)


def receive_limited(scope: Scope, receive: Receive, most: int) -> Receive:
    """Return a function that receives a body, and refuses a late body with 408 and a large body with 413."""
    announced = Headers(scope=scope).get("content-length", "")
    size = int(announced) if announced.isdecimal() and len(announced) < 20 else 0
    until = asyncio.get_running_loop().time() + _SECONDS
    is_whole = False

    async def limited() -> Message:
        nonlocal size, is_whole
        message: Message = {"type": "http.request"}
        if size <= most:
            try:
                async with asyncio.timeout_at(None if is_whole else until):
                    message = await receive()
            except TimeoutError:
                raise refuse(408, f"the body must arrive within {_SECONDS:.0f} seconds") from None
            is_whole = not message.get("more_body", False)
        if not announced:
            size += len(message.get("body", b""))
        if size > most:
            raise refuse(413, f"the body must have at most {most} bytes")
        return message

    return limited


async def json_of(request: Request, most_values: int = DEFAULT_LIMITS.values) -> Any:
    """Return the body of a request as JSON types, without NULs in its content; `None` if the body is empty."""
    with claiming() as claim:
        return await parsed(request, await bytes_of(request, claim), most_values)


def claiming() -> AbstractContextManager[Callable[[int], None]]:
    """Provide a function for `bytes_of` that claims memory for a body until the end of the block."""
    return _unparsed.claiming()


async def bytes_of(request: Request, claim: Callable[[int], None]) -> bytes:
    """Return the body of a request. Claim memory for a body of many bytes."""
    parts: list[bytes] = []
    size = 0
    try:
        async for part in request.stream():
            size += len(part)
            if size > _FEW_BYTES:
                claim(len(part))
            parts.append(part)
    except ClientDisconnect:
        # Respond with 400. Otherwise the server would log an error, and clients could fill the log.
        raise refuse(400, "the body ends early") from None
    raw = b"".join(parts)
    parts.clear()
    return raw


async def parsed(request: Request, raw: bytes, most_values: int) -> Any:
    """Return the body of a request as `json_of` does."""
    if not raw:
        return None
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        # Refuse other content types, because browsers let a page of any origin send them without a preflight request.
        raise refuse(415, "the body must be application/json")
    is_small = len(raw) <= _FEW_BYTES and sum(map(raw.count, _SEPARATORS)) <= min(_FEW_VALUES, most_values)
    if is_small and not _LONG_INTEGER.search(raw):
        return _parsed(raw, json.JSONDecoder())
    return await asyncio.get_running_loop().run_in_executor(_parser, _parsed_slowly, raw, most_values)


def _parsed_slowly(raw: bytes, most_values: int) -> Any:
    if _has_more(raw, most_values):
        raise refuse(413, f"the body must have at most {most_values} values")
    return _parsed(raw, _Decoder())


def _has_more(raw: bytes, most: int) -> bool:
    """Return whether JSON has more than a number of values. Separators in strings do not count."""
    count = start = strings = 0
    # A value has at most two strings: its name and itself. More than `2 * most + 1` strings are more than `most`
    # values.
    while count <= most and strings <= 2 * most + 1 and (end := raw.find(b'"', start)) >= 0:
        count += sum(raw.count(one, start, end) for one in _SEPARATORS)
        strings += 1
        start = end + 1
        while (end := _end_of_part(_PART, raw, start)) > start:
            start = end
        start += 1
    return strings > 2 * most + 1 or count + sum(raw.count(one, start) for one in _SEPARATORS) > most


def _end_of_part(part: re.Pattern[AnyStr], text: AnyStr, start: int) -> int:
    found = part.match(text, start)
    return start if found is None else found.end()


def _parsed(raw: bytes, decoder: json.JSONDecoder) -> Any:
    try:
        # Accept only UTF-8, because the search for NULs would find no NUL in other encodings.
        found = decoder.decode(raw.decode())
    except (ValueError, RecursionError) as error:
        raise refuse(422, f"the body must be JSON: {error}") from None
    if is_deeper(found, MOST_LEVELS):
        raise refuse(422, f"the body must have at most {MOST_LEVELS} levels of lists and objects")
    return _without_nul(found, is_content=False) if _NUL in raw else found


def _without_nul(value: Any, is_content: bool) -> Any:
    """Return a value with NULs removed from content. NULs elsewhere are refused, because they could be in an id."""
    if isinstance(value, str):
        if "\0" in value and not is_content:
            raise refuse(422, "the body must not contain NUL outside of content, because PostgreSQL cannot store it")
        return value.replace("\0", "")
    if isinstance(value, list):
        return [_without_nul(item, is_content) for item in value]
    if isinstance(value, dict):
        return {
            _without_nul(name, is_content): _without_nul(item, is_content or name in _CONTENT)
            for name, item in value.items()
        }
    return value
